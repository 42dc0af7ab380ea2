"""All problems of a folder of images at once: the command `fedlgd data check`."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlgd.core.errors import DataError
from fedlgd.core.meter import track
from fedlgd.data.folders.decoding import fingerprint, is_test, size_list
from fedlgd.data.folders.image_source import ArrayRow, ImageFile, Picture, SiteImages
from fedlgd.data.folders.layouts import survey, survey_site
from fedlgd.data.folders.problems import ImageError, Problem, natural, problem_of
from fedlgd.data.folders.suite import Folders

LEAST = 10  # training images of a class; fewer are reported
UNEVEN = 10  # largest ratio between the largest and the smallest class of a site


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a readable image once its pixels are gone."""

    site: str
    file: str
    label: str
    size: str
    grey: bool
    print: bytes
    test: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """How many sites and images were read, and all problems, errors first."""

    sites: int
    images: int
    problems: tuple[Problem, ...]

    def count(self, severity: str) -> int:
        return sum(problem.severity == severity for problem in self.problems)


def check_data(path: Path, least: int = LEAST, only: str = "") -> Checked:
    """Read every image under `path`. A path that does not exist is refused; all problems inside it are listed.

    only: the name of the one site that the images belong to; see `survey_site`.
    """
    try:
        tree = survey_site(path, only) if only else survey(path)
    except DataError as error:
        if not path.exists():
            raise
        return Checked(0, 0, (problem_of(error),))
    problems, seen = list(tree.problems), list[Seen]()
    for site in tree.sites:
        seen += _read(site, problems)
    names = [site.name for site in tree.sites]
    problems += [*_duplicates(seen), *_classes(names, seen, least), *_kinds(names, seen)]
    ordered = sorted(problems, key=lambda p: (p.severity, p.site))
    return Checked(len(names), len(seen), tuple(ordered))


def _read(site: SiteImages, problems: list[Problem]) -> list[Seen]:
    """Every image that can be read; unreadable and unusual files are added to the problems."""
    images, kinds, prints = list[ImageFile | ArrayRow](), list[tuple[str, bool]](), list[bytes]()
    for i in track(f"checking {site.name}", len(site.images)):
        image = site.images[i]
        try:
            picture = image.read()
        except ImageError as error:
            problems.append(Problem("error", site.name, image.where, error.problem, error.way_out))
            continue
        problems += _unusual(site.name, image.where, picture)
        images.append(image)
        kinds.append((f"{picture.image.width}x{picture.image.height}", picture.image.mode == "L"))
        prints.append(fingerprint(picture.image))
    default = Folders()  # the hold-out of a run without further settings
    tests = is_test(images, prints, site.is_split, default.test_share, default.split_seed)
    rows = zip(images, kinds, prints, tests, strict=True)
    return [Seen(site.name, i.where, i.label, size, grey, p, test) for i, (size, grey), p, test in rows]


def _unusual(site: str, file: str, picture: Picture) -> Iterator[Problem]:
    for problem, way_out in picture.remarks:
        yield Problem("warning", site, file, problem, way_out)
    pixels = np.asarray(picture.image)
    if bool((pixels == pixels[0, 0]).all()):
        yield Problem("warning", site, file, "has a single colour", "look at it and remove it if it is a mistake")


def _duplicates(seen: Sequence[Seen]) -> Iterator[Problem]:
    """Files with equal pixels, each compared with the first one, training images first."""
    groups: dict[bytes, list[Seen]] = defaultdict(list)
    for image in sorted(seen, key=lambda s: s.test):
        groups[image.print].append(image)
    for first, *copies in groups.values():
        for image in copies:
            other = f"{first.file} at site {first.site!r}" if first.site != image.site else first.file
            if image.label != first.label:
                problem = f"is the same image as {other}, which has class {first.label!r}"
                yield Problem("error", image.site, image.file, problem, "keep the one with the right class")
            elif image.test and not first.test:
                problem = f"is a test image that is also a training image: {other}"
                yield Problem("error", image.site, image.file, problem, "keep one of them")
            else:
                way_out = "keep it at one site" if first.site != image.site else "keep one of them"
                yield Problem("warning", image.site, image.file, f"is the same image as {other}", way_out)


def _classes(sites: Sequence[str], seen: Sequence[Seen], least: int) -> Iterator[Problem]:
    """Classes with no or few images at a site."""
    classes = natural({image.label for image in seen})
    if len(classes) == 1:
        yield Problem("error", "", "", f"there is only one class, {classes[0]!r}", "add images of another class")
    trained = Counter((image.site, image.label) for image in seen if not image.test)
    tested = Counter((image.site, image.label) for image in seen if image.test)
    for site in sites:
        for label in classes:
            count = trained[site, label]
            if not count:
                way_out = "add images, remove the class at every site, or run with --set data.min_per_class=0"
                yield Problem("error", site, "", f"has no training image of class {label!r}", way_out)
            elif count < least:
                problem = f"has only {count} training images of class {label!r}"
                yield Problem("warning", site, "", problem, "add images; too few to be reliable")
            if not tested[site, label]:
                problem = f"has no test image of class {label!r}"
                yield Problem("warning", site, "", problem, "add images, so that the class is evaluated")
        counts = [trained[site, label] for label in classes] or [0]
        if min(counts) and max(counts) > UNEVEN * min(counts):
            problem = f"has {max(counts)} training images of its largest class and {min(counts)} of its smallest"
            yield Problem("warning", site, "", problem, "use balanced accuracy instead of accuracy")


def _kinds(sites: Sequence[str], seen: Sequence[Seen]) -> Iterator[Problem]:
    """Different sizes, and grey images next to colour images."""
    sizes = Counter(image.size for image in seen)
    if len(sizes) > 1:
        way_out = "choose one: fedlgd run --data DIR --set data.size=64"
        yield Problem("warning", "", "", f"images have {len(sizes)} sizes: {size_list(sizes)}", way_out)
    by_site = {site: [image.grey for image in seen if image.site == site] for site in sites}
    for site, greys in by_site.items():
        if any(greys) and not all(greys):
            problem = f"mixes {sum(greys)} grey and {len(greys) - sum(greys)} colour images"
            yield Problem(
                "warning", site, "", problem, "convert them to one kind, or run with --set data.colour=grey"
            )
    all_grey = {site: all(greys) for site, greys in by_site.items() if greys}
    if len({*all_grey.values()}) > 1:
        names = ", ".join(repr(site) for site, grey in all_grey.items() if grey)
        problem = f"the images of site {names} are grey and those of other sites are in colour"
        yield Problem("warning", "", "", problem, "take it into account, or run with --set data.colour=grey")
