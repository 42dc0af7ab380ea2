"""All problems of a folder of images at once: the command `fedlgd data check`."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedlgd.core.errors import DataError
from fedlgd.core.meter import track
from fedlgd.data.arrays import PARTS, Pixels
from fedlgd.data.images import ArrayRow, ImageError, ImageFile
from fedlgd.data.own import decode, layouts
from fedlgd.data.own.classes import class_errors, misspelt_errors
from fedlgd.data.own.layouts import Problem, SiteImages
from fedlgd.data.own.suite import Folders

MIN_TRAINING_IMAGES = 10  # of a class; fewer are reported
MAX_CLASS_RATIO = 10  # of the largest to the smallest class of a site


@dataclass(frozen=True, slots=True)
class ReadImage:
    """The facts about a readable image that are kept without its pixels."""

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
    """How many sites and images were read, all problems, errors first, and the test images of each site."""

    sites: int
    images: int
    problems: tuple[Problem, ...]
    tested: Mapping[str, int] = field(default_factory=dict)

    def count(self, severity: str) -> int:
        return sum(problem.severity == severity for problem in self.problems)


def check_data(path: Path, least: int = MIN_TRAINING_IMAGES, only: str = "", how: Folders = Folders()) -> Checked:
    """Read every image under `path` as `how` says. A path that does not exist is refused; its problems are listed.

    only: the name of the one site that the images belong to; see `survey`.
    """
    try:
        tree = replace(how, path=str(path)).survey(only)
    except DataError as error:
        if not path.exists():
            raise
        return Checked(0, 0, (layouts.problem_of(error),))
    problems, seen = list(tree.problems), list[ReadImage]()
    for site in tree.sites:
        read = _read(site, problems, how)
        if not read:
            problems.append(layouts.problem_of(DataError("no-readable-image", site=site.name), site.name))
        seen += read
    names = [site.name for site in tree.sites]
    problems += [*_duplicates(seen), *_near(seen), *_patients(seen, how)]
    problems += [*_classes(names, seen, least, how), *_kinds(names, seen, how.size), *_formats(names, seen)]
    ordered = sorted(problems, key=lambda p: (p.severity, layouts.natural_key(p.site)))
    tested = {name: sum(each.test for each in seen if each.site == name) for name in names}
    return Checked(len(names), len(seen), tuple(ordered), tested)


def _read(site: SiteImages, problems: list[Problem], how: Folders) -> list[ReadImage]:
    """Every image that can be read; unreadable and unusual files are added to the problems."""
    images, seen = list[ImageFile | ArrayRow](), list[ReadImage]()
    for i in track(f"checking {site.name}", len(site.images)):
        image = site.images[i]
        try:
            picture, print_, thumb, patient = decode.look(image, how)
        except ImageError as error:
            severity: Literal["error", "warning"] = "warning" if how.skip_bad else "error"
            problems.append(Problem(severity, site.name, image.where, error.problem, error.way_out, error.code))
            continue
        problems += [
            layouts.found_warning(code, site.name, image.where, **values) for code, values in picture.remarks
        ]
        pixels = np.asarray(picture.image)
        if bool((pixels == pixels[0, 0]).all()):
            problems.append(layouts.found_warning("single-colour", site.name, image.where))
        images.append(image)
        size, grey = f"{picture.image.width}x{picture.image.height}", picture.image.mode == "L"
        marks = picture.format, print_, thumb, patient, picture.patient
        seen.append(ReadImage(site.name, image.where, image.label, size, grey, *marks, test=False))
    prints, patients = [each.print for each in seen], [each.patient for each in seen]
    tests = decode.is_test(replace(site, images=images), prints, patients, how)
    return [replace(each, test=test) for each, test in zip(seen, tests, strict=True)]


def _duplicates(seen: Sequence[ReadImage]) -> Iterator[Problem]:
    """Files with equal pixels, each compared with the first one, training images first."""
    groups: dict[bytes, list[ReadImage]] = defaultdict(list)
    for image in sorted(seen, key=lambda s: s.test):
        groups[image.print].append(image)
    for first, *copies in groups.values():
        for image in copies:
            elsewhere = first.site != image.site
            other = f"{first.file} at site {first.site!r}" if elsewhere else first.file
            if image.label != first.label:
                same = {"other": other, "label": first.label}
                yield layouts.found_error("same-image-other-class", image.site, image.file, **same)
            elif image.test and not first.test:
                yield layouts.found_error("test-image-in-training", image.site, image.file, other=other)
            else:
                code = "same-image-at-two-sites" if elsewhere else "same-image"
                yield layouts.found_warning(code, image.site, image.file, other=other)


def _near(seen: Sequence[ReadImage]) -> Iterator[Problem]:
    """Test images that look like a training image of any site."""
    parts = [[each for each in seen if each.test == test] for test in (False, True)]
    if not all(parts):
        return
    arrays = {}
    for part, members in zip(PARTS, parts, strict=True):
        prints = np.frombuffer(b"".join(each.print for each in members), np.uint8)
        arrays[f"{part}_thumb"] = np.array([each.thumb for each in members]).reshape(-1, decode.THUMBNAIL_SIDE**2)
        arrays[f"{part}_print"] = prints.reshape(-1, decode.DIGEST_BYTES)
    for image, number in zip(parts[1], decode.near_duplicates([arrays])[0].tolist(), strict=True):
        if number >= 0:
            like = parts[0][number]
            other = {"other": like.file, "other_site": like.site}
            yield layouts.found_warning("looks-like-training", image.site, image.file, **other)


def _patients(seen: Sequence[ReadImage], how: Folders) -> Iterator[Problem]:
    """Patients in both parts of a site, and DICOM patients that are not used."""
    trained = {(each.site, each.patient) for each in seen if each.patient and not each.test}
    for each in seen:
        if each.test and (each.site, each.patient) in trained:
            yield layouts.found_error("patient-in-both-parts", each.site, each.file)
    files = Counter((each.site, each.dicom_patient) for each in seen if each.dicom_patient and not each.patient)
    unused = [site for (site, _), count in files.items() if count > 1 and how.patient != decode.DICOM]
    for site in dict.fromkeys(unused):
        yield layouts.found_warning("dicom-patients-unused", site)


def _formats(sites: Sequence[str], seen: Sequence[ReadImage]) -> Iterator[Problem]:
    """Several file formats at one site, and between sites."""
    by_site = {site: Counter(each.format for each in seen if each.site == site) for site in sites}
    for site, formats in by_site.items():
        if len(formats) > 1:
            yield layouts.found_warning("formats-at-site", site, formats=decode.size_list(formats))
    if len({frozenset(formats) for formats in by_site.values() if formats}) > 1:
        listed = "; ".join(f"{site}: {', '.join(sorted(formats))}" for site, formats in by_site.items())
        yield layouts.found_warning("formats-between-sites", formats=listed)


def _classes(sites: Sequence[str], seen: Sequence[ReadImage], least: int, how: Folders) -> Iterator[Problem]:
    """Classes with no or few images at a site, and names that are misspelt."""
    classes = layouts.natural({image.label for image in seen})
    if len(classes) == 1:
        yield layouts.found_error("one-class", label=classes[0])
    found = {site: layouts.natural({each.label for each in seen if each.site == site}) for site in sites}
    trained = {site: Counter(each.label for each in seen if each.site == site and not each.test) for site in sites}
    tested = {site: Counter(each.label for each in seen if each.site == site and each.test) for site in sites}
    refused = list(class_errors(found, trained, how.min_per_class))
    yield from (layouts.problem_of(error, site) for site, error in refused)
    wrong = misspelt_errors(found)
    if not how.min_per_class:
        yield from (replace(layouts.problem_of(error), severity="warning") for error in wrong.values())
    for site in filter(found.get, sites):
        if not tested[site]:
            yield layouts.problem_of(DataError("part-empty", site=site, part="test"), site)
        meant = {error.values["like"] for name, error in wrong.items() if name in found[site]}
        for label in (each for each in classes if each not in meant and (each in found[site] or each not in wrong)):
            if how.min_per_class <= (count := trained[site][label]) < least:
                yield layouts.found_warning("class-with-few-images", site, count=count, label=label)
            if tested[site] and not tested[site][label]:
                yield layouts.found_warning("class-without-test", site, label=label)
        counts = [trained[site][label] for label in classes] or [0]
        if min(counts) and max(counts) > MAX_CLASS_RATIO * min(counts):
            yield layouts.found_warning("classes-uneven", site, largest=max(counts), smallest=min(counts))


def _kinds(sites: Sequence[str], seen: Sequence[ReadImage], size: int) -> Iterator[Problem]:
    """Different sizes, unless images are resized, and grey images next to colour images."""
    sizes = {site: Counter(image.size for image in seen if image.site == site) for site in sites}
    yield from map(layouts.problem_of, decode.size_errors(sizes, size))
    by_site = {site: [image.grey for image in seen if image.site == site] for site in sites}
    for site, greys in by_site.items():
        if any(greys) and not all(greys):
            yield layouts.found_warning("grey-and-colour", site, grey=sum(greys), colour=len(greys) - sum(greys))
    all_grey = {site: all(greys) for site, greys in by_site.items() if greys}
    if len({*all_grey.values()}) > 1:
        listed = ", ".join(repr(site) for site, grey in all_grey.items() if grey)
        yield layouts.found_warning("grey-sites", sites=listed)
