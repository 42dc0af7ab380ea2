"""All problems of a folder of images at once: the command `fedlgd data check`."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedlgd.core.errors import DataError
from fedlgd.core.meter import track
from fedlgd.core.text import plural
from fedlgd.data.arrays import PARTS, Pixels
from fedlgd.data.images import ImageError, ImageFile, Picture
from fedlgd.data.own.decode import DICOM, look, size_list
from fedlgd.data.own.sites import ArrayRow, Problem, SiteImages, natural, natural_key, problem_of
from fedlgd.data.own.split import DIGEST_BYTES, THUMBNAIL_SIDE, is_test, near_duplicates
from fedlgd.data.own.suite import Folders

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
    format: str
    print: bytes
    thumb: Pixels
    patient: str
    dicom_patient: str
    test: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """How many sites and images were read, and all problems, errors first."""

    sites: int
    images: int
    problems: tuple[Problem, ...]

    def count(self, severity: str) -> int:
        return sum(problem.severity == severity for problem in self.problems)


def check_data(path: Path, least: int = LEAST, only: str = "", how: Folders = Folders()) -> Checked:
    """Read every image under `path` as `how` says. A path that does not exist is refused; its problems are listed.

    only: the name of the one site that the images belong to; see `survey_site`.
    """
    try:
        tree = replace(how, path=str(path)).survey(only)
    except DataError as error:
        if not path.exists():
            raise
        return Checked(0, 0, (problem_of(error),))
    problems, seen = list(tree.problems), list[Seen]()
    for site in tree.sites:
        seen += _read(site, problems, how)
    names = [site.name for site in tree.sites]
    problems += [*_duplicates(seen), *_near(seen), *_patients(seen, how)]
    problems += [*_classes(names, seen, least), *_kinds(names, seen), *_formats(names, seen)]
    ordered = sorted(problems, key=lambda p: (p.severity, natural_key(p.site)))
    return Checked(len(names), len(seen), tuple(ordered))


def _read(site: SiteImages, problems: list[Problem], how: Folders) -> list[Seen]:
    """Every image that can be read; unreadable and unusual files are added to the problems."""
    images, seen = list[ImageFile | ArrayRow](), list[Seen]()
    for i in track(f"checking {site.name}", len(site.images)):
        image = site.images[i]
        try:
            picture, print_, thumb, patient = look(image, how.depth, how.patient)
        except ImageError as error:
            problems.append(Problem("error", site.name, image.where, error.problem, error.way_out))
            continue
        problems += _unusual(site.name, image.where, picture)
        images.append(image)
        size, grey = f"{picture.image.width}x{picture.image.height}", picture.image.mode == "L"
        marks = picture.format, print_, thumb, patient, picture.patient
        seen.append(Seen(site.name, image.where, image.label, size, grey, *marks, test=False))
    prints, patients = [each.print for each in seen], [each.patient for each in seen]
    tests = is_test(replace(site, images=images), prints, patients, how.test_share, how.split_seed)
    return [replace(each, test=test) for each, test in zip(seen, tests, strict=True)]


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


def _near(seen: Sequence[Seen]) -> Iterator[Problem]:
    """Test images that look like a training image of any site."""
    parts = [[each for each in seen if each.test == test] for test in (False, True)]
    if not all(parts):
        return
    arrays = {}
    for part, members in zip(PARTS, parts, strict=True):
        arrays[f"{part}_thumb"] = np.array([each.thumb for each in members]).reshape(-1, THUMBNAIL_SIDE**2)
        arrays[f"{part}_print"] = np.frombuffer(b"".join(each.print for each in members), np.uint8).reshape(
            -1, DIGEST_BYTES
        )
    for image, number in zip(parts[1], near_duplicates([arrays])[0].tolist(), strict=True):
        if number >= 0:
            like = parts[0][number]
            problem = f"is a test image that looks like the training image {like.file} of site {like.site!r}"
            yield Problem("warning", image.site, image.file, problem, "compare them; keep a picture in one part")


def _patients(seen: Sequence[Seen], how: Folders) -> Iterator[Problem]:
    """Patients in both parts of a site, and DICOM patients that are not used."""
    trained = {(each.site, each.patient) for each in seen if each.patient and not each.test}
    for each in seen:
        if each.test and (each.site, each.patient) in trained:
            problem = "is a test image of a patient who also has training images"
            yield Problem("error", each.site, each.file, problem, "move all images of the patient into one part")
    files = Counter((each.site, each.dicom_patient) for each in seen if each.dicom_patient and not each.patient)
    for site in dict.fromkeys(site for (site, _), count in files.items() if count > 1 and how.patient != DICOM):
        problem = "has several DICOM files of one PatientID, and patients are not kept together"
        yield Problem("warning", site, "", problem, f"run with --set data.patient={DICOM}")


def _formats(sites: Sequence[str], seen: Sequence[Seen]) -> Iterator[Problem]:
    """Several file formats at one site, and between sites."""
    by_site = {site: Counter(each.format for each in seen if each.site == site) for site in sites}
    way_out = "make sure that the format says nothing about the class"
    for site, formats in by_site.items():
        if len(formats) > 1:
            yield Problem("warning", site, "", f"has files of several formats: {size_list(formats)}", way_out)
    if len({frozenset(formats) for formats in by_site.values() if formats}) > 1:
        listed = "; ".join(f"{site}: {', '.join(sorted(formats))}" for site, formats in by_site.items())
        yield Problem("warning", "", "", f"sites have different formats: {listed}", "take it into account")


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
                problem = f"has only {plural(count, 'training image')} of class {label!r}, too few to be reliable"
                yield Problem("warning", site, "", problem, "add images")
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
            problem = f"mixes {sum(greys)} grey and {plural(len(greys) - sum(greys), 'colour image')}"
            yield Problem(
                "warning", site, "", problem, "convert them to one kind, or run with --set data.colour=grey"
            )
    all_grey = {site: all(greys) for site, greys in by_site.items() if greys}
    if len({*all_grey.values()}) > 1:
        names = ", ".join(repr(site) for site, grey in all_grey.items() if grey)
        problem = f"the images of site {names} are grey and those of other sites are in colour"
        yield Problem("warning", "", "", problem, "take it into account, or run with --set data.colour=grey")
