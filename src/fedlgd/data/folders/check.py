"""Every problem of a tree of images at once: what `fedlgd data check` says."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedlgd.core.errors import DataError
from fedlgd.core.meter import track
from fedlgd.data.decode import size_list, tested
from fedlgd.data.folders import alike
from fedlgd.data.holding import Holding, Part, Problem, natural
from fedlgd.data.images import ImageError, Picture, fingerprint
from fedlgd.data.layouts import survey

TEST_SHARE, SPLIT_SEED = 0.2, 0  # the defaults of the suite: what a run without further settings would divide
LEAST = 10  # training images of a class below which it is called tiny
UNEVEN = 10  # times that the largest class of a site may exceed its smallest


@dataclass(frozen=True, slots=True)
class Seen:
    """What one readable image turned out to be."""

    site: str
    file: str
    label: str
    part: Part
    size: str
    grey: bool
    print: bytes
    test: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """How much was looked at, and all that was found, errors first."""

    sites: int
    images: int
    problems: tuple[Problem, ...]

    def count(self, severity: str) -> int:
        return sum(problem.severity == severity for problem in self.problems)


def check_data(path: Path, least: int = LEAST) -> Checked:
    """Reads every image under `path`. A path that does not exist is refused; whatever is wrong inside is listed."""
    try:
        tree = survey(path)
    except DataError as error:
        if not path.exists():
            raise
        return Checked(0, 0, (_of_error(error),))
    problems, seen = list(tree.problems), []
    sites = [site for site in tree.sites if not _refused(site, problems)]
    for site in sites:
        seen += _read(site, problems)
    problems += [*alike(sites), *_duplicates(seen), *_classes(sites, seen, least), *_kinds(sites, seen)]
    ordered = sorted(problems, key=lambda p: (p.severity, p.site))
    return Checked(len(sites), len(seen), tuple(ordered))


def _of_error(error: DataError, site: str = "", file: str = "") -> Problem:
    problem, _, way_out = str(error).partition("; ")
    return Problem("error", site, file, problem, way_out)


def _refused(site: Holding, problems: list[Problem]) -> bool:
    """Whether a site cannot even say what it holds."""
    try:
        return not site.labels
    except DataError as error:
        problems.append(_of_error(error, site.name))
        return True


def _read(site: Holding, problems: list[Problem]) -> list[Seen]:
    """Every image that can be read; what is wrong or odd about the files goes to the problems."""
    found: list[Seen] = []
    for i in track(f"checking {site.name}", len(site.labels)):
        try:
            picture = site.read(i)
        except ImageError as error:
            problems.append(Problem("error", site.name, site.where(i), error.problem, error.way_out))
            continue
        problems += _odd(site.name, site.where(i), picture)
        found.append(_seen(site, i, picture))
    prints = [image.print for image in found]
    tests = tested([s.label for s in found], [s.part for s in found], prints, TEST_SHARE, SPLIT_SEED)
    return [replace(image, test=test) for image, test in zip(found, tests, strict=True)]


def _seen(site: Holding, i: int, picture: Picture) -> Seen:
    width, height = picture.image.size
    return Seen(
        site=site.name,
        file=site.where(i),
        label=site.labels[i],
        part=site.parts[i],
        size=f"{width}x{height}",
        grey=picture.image.mode == "L",
        print=fingerprint(picture.image),
    )


def _odd(site: str, file: str, picture: Picture) -> Iterator[Problem]:
    for problem, way_out in picture.remarks:
        yield Problem("warning", site, file, problem, way_out)
    pixels = np.asarray(picture.image)
    if bool((pixels == pixels[0, 0]).all()):
        yield Problem("warning", site, file, "is one single colour", "look at it; perhaps remove it")


def _duplicates(seen: Sequence[Seen]) -> Iterator[Problem]:
    """Files with the same pixels; the worst that can be said of each against the first, training images first."""
    groups: dict[bytes, list[Seen]] = defaultdict(list)
    for image in sorted(seen, key=lambda s: s.test):
        groups[image.print].append(image)
    for first, *copies in groups.values():
        for image in copies:
            yield _duplicate(image, first)


def _duplicate(image: Seen, first: Seen) -> Problem:
    other = f"{first.file} at site {first.site!r}" if first.site != image.site else first.file
    if image.label != first.label:
        words = "error", f"is the same image as {other}, which is of class {first.label!r}", "keep the right one"
    elif image.test and not first.test:
        words = "error", f"is a test image that is also trained on: {other}", "keep one of them"
    elif image.site != first.site:
        words = "warning", f"is the same image as {other}", "keep it at one site"
    else:
        words = "warning", f"is the same image as {other}", "keep one of them"
    severity, problem, way_out = words
    return Problem("error" if severity == "error" else "warning", image.site, image.file, problem, way_out)


def _classes(sites: Sequence[Holding], seen: Sequence[Seen], least: int) -> Iterator[Problem]:
    """Classes that a site does not have, or hardly."""
    classes = natural({image.label for image in seen})
    if len(classes) == 1:
        yield Problem("error", "", "", f"there is one class only, {classes[0]!r}", "add what it is to be told from")
    trained = Counter((image.site, image.label) for image in seen if not image.test)
    held = Counter((image.site, image.label) for image in seen if image.test)
    for site in sites:
        counts = {label: trained[site.name, label] for label in classes}
        for label, count in counts.items():
            yield from _class(site.name, label, count, held[site.name, label], least)
        most, fewest = max(counts.values(), default=0), min(counts.values(), default=0)
        if fewest and most > UNEVEN * fewest:
            problem = f"has {most} training images of its largest class and {fewest} of its smallest"
            yield Problem("warning", site.name, "", problem, "judge it by balanced accuracy, not by accuracy")


def _class(site: str, label: str, trained: int, tested: int, least: int) -> Iterator[Problem]:
    if not trained:
        way_out = "add some, drop the class at every site, or run with --set data.min_per_class=0"
        yield Problem("error", site, "", f"has no training image of class {label!r}", way_out)
    elif trained < least:
        problem = f"has only {trained} training images of class {label!r}"
        yield Problem("warning", site, "", problem, "add some; so few say little")
    if not tested:
        yield Problem("warning", site, "", f"has no test image of class {label!r}", "add some to judge that class")


def _kinds(sites: Sequence[Holding], seen: Sequence[Seen]) -> Iterator[Problem]:
    """Sizes, and grey images among colour."""
    by_size = Counter(image.size for image in seen)
    if len(by_size) > 1:
        way_out = "choose one: fedlgd run --data DIR --set data.size=64"
        yield Problem("warning", "", "", f"images are of {len(by_size)} sizes: {size_list(by_size)}", way_out)
    shares = {site.name: [image.grey for image in seen if image.site == site.name] for site in sites}
    for name, greys in shares.items():
        if any(greys) and not all(greys):
            problem = f"mixes {sum(greys)} grey and {len(greys) - sum(greys)} colour images"
            yield Problem("warning", name, "", problem, "save them alike, or run with --set data.colour=grey")
    pure = {name: all(greys) for name, greys in shares.items() if greys}
    if len({*pure.values()}) > 1:
        grey = ", ".join(repr(name) for name, all_grey in pure.items() if all_grey)
        problem = f"site {grey} is grey and others are in colour"
        yield Problem("warning", "", "", problem, "mind it when judging, or run with --set data.colour=grey")
