"""The images of sites as arrays: read, fitted to one size, split into parts, and stored in the data home."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from fedlgd.core.errors import DataError
from fedlgd.core.meter import track
from fedlgd.core.text import plural
from fedlgd.data.arrays import PARTS, Arrays, Pixels, cache_key, load_arrays, store_arrays
from fedlgd.data.images import Depth, Header, ImageError, ImageFile, Picture
from fedlgd.data.own.sites import ArrayRow, SiteImages
from fedlgd.data.own.split import DIGEST_BYTES, is_test, near_duplicates, pixel_digest, thumbnail
from fedlgd.data.prepare import Colour, Fit, planes
from fedlgd.data.suites import data_home

VERSION = 2  # increase with every change to the arrays, so that stored arrays of an older version are not used
FOLDER = f"made/folders-{VERSION}"
MAX_SIZES_IN_NOTE = 4
DICOM = "dicom"  # the setting `patient` for the PatientID of DICOM files


class Decoding(NamedTuple):
    """The settings that decide about the pixels of an image and about its part."""

    size: int
    fit: Fit
    colour: Colour
    depth: Depth
    patient: str
    test_share: float
    split_seed: int


def load_or_decode(sites: Sequence[SiteImages], classes: tuple[str, ...], how: Decoding) -> list[Arrays]:
    """The arrays of each site, from the data home or else decoded and stored there.

    Besides images and labels: `print` and `near` of every image, see `pixel_digest` and `near_duplicates`;
    `formats` with their numbers; and `patients`, the number of images of known patients, and of test images of
    patients who also have training images.
    """
    with suppress(OSError):  # `store_arrays` reports it
        (data_home() / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)  # as private as the original images
    keys = [cache_key(tuple(how), classes, site.name, site.stamp, size=12) for site in sites]
    arrays = [load_arrays(f"{FOLDER}/{key}") for key in keys]
    if None in arrays:
        headers = _headers(sites, how.size)  # of all sites: their sizes have to agree
        for i, found in enumerate(arrays):
            if found is None:
                arrays[i] = store_arrays(f"{FOLDER}/{keys[i]}", decode(sites[i], headers[i], classes, how))
    made = [each for each in arrays if each is not None]
    near_key = f"{FOLDER}/{cache_key('near', *keys, size=12)}"
    near = load_arrays(near_key)
    if near is None:
        found_near = near_duplicates(made)
        near = store_arrays(near_key, {str(number): each >= 0 for number, each in enumerate(found_near)})
    return [each | {"test_near": near[str(number)]} for number, each in enumerate(made)]


def _headers(sites: Sequence[SiteImages], size: int) -> list[list[Header]]:
    """The headers of all images; without a size to resize to, images of different sizes are refused."""
    found = [
        [site.images[i].header() for i in track(f"reading headers of {site.name}", len(site.images))]
        for site in sites
    ]
    counts = [Counter(f"{header.width}x{header.height}" for header in headers) for headers in found]
    if not size and len(set().union(*counts)) > 1:
        sizes = "; ".join(f"{site.name!r} has {size_list(each)}" for site, each in zip(sites, counts, strict=True))
        raise DataError("sizes-differ", sizes=sizes)
    return found


def size_list(counts: Counter[str]) -> str:
    """The most frequent sizes with their numbers of images."""
    first = [f"{size} ({count})" for size, count in counts.most_common(MAX_SIZES_IN_NOTE)]
    more = [plural(len(counts) - MAX_SIZES_IN_NOTE, "other size")] if len(counts) > MAX_SIZES_IN_NOTE else []
    return ", ".join(first + more)


def decode(site: SiteImages, headers: list[Header], classes: tuple[str, ...], how: Decoding) -> Arrays:
    """Planes, labels, digests and thumbnails of both parts, and what is known of all images together."""
    grey = how.colour == "grey" or all(header.grey for header in headers)
    pixels: dict[int, Pixels] = {}
    prints, thumbs, formats, patients = list[bytes](), list[Pixels](), Counter[str](), list[str]()
    for i in track(f"decoding {site.name}", len(site.images)):
        picture, print_, thumb, patient = look(site.images[i], how.depth, how.patient)
        prints.append(print_)
        thumbs.append(thumb)
        patients.append(patient)
        formats[f"{picture.format} {'grey' if picture.image.mode == 'L' else 'colour'}"] += 1
        pixels[i] = planes(picture.image, grey, how.size, how.fit)
    tests = np.array(is_test(site, prints, patients, how.test_share, how.split_seed))
    labels = np.array([classes.index(image.label) for image in site.images])
    all_prints = np.frombuffer(b"".join(prints), np.uint8).reshape(-1, DIGEST_BYTES)
    shape = pixels[0].shape
    listed = [f"{name} ({count})" for name, count in formats.most_common()]
    trained = {patient for patient, test in zip(patients, tests, strict=True) if not test and patient}
    leaked = sum(bool(test) and patient in trained for patient, test in zip(patients, tests, strict=True))
    arrays: Arrays = {"formats": np.array(listed), "patients": np.array([sum(map(bool, patients)), leaked])}
    for part, chosen in zip(PARTS, (~tests, tests), strict=True):
        stack = np.empty((int(chosen.sum()), *shape), np.uint8)
        for place, row in enumerate(np.flatnonzero(chosen).tolist()):
            stack[place] = pixels.pop(row)  # released once copied: the images are never in memory twice
        arrays |= {f"{part}_x": stack, f"{part}_y": labels[chosen], f"{part}_print": all_prints[chosen]}
        arrays[f"{part}_thumb"] = np.array(thumbs)[chosen]
    return arrays


def look(image: ImageFile | ArrayRow, depth: Depth, setting: str) -> tuple[Picture, bytes, Pixels, str]:
    """The picture, a digest of its pixels, its thumbnail and its patient; see `patient_of` for the setting."""
    picture = image.read(depth)
    return picture, pixel_digest(picture.image), thumbnail(picture.image), patient_of(image, picture, setting)


def patient_of(image: ImageFile | ArrayRow, picture: Picture, setting: str) -> str:
    """The patient that the owner named, or the PatientID of a DICOM file if the setting says so; "" if unknown."""
    if setting != DICOM or picture.format != "DICOM":
        return image.patient
    if isinstance(image, ImageFile) and not picture.patient:
        raise ImageError("no-patient-id", path=image.path)
    return picture.patient
