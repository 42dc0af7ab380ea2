"""The suite `folders`: a user's own images.

One way for every image: `layouts` finds it, `images` reads it, `prepare` fits it to one size, and `decode` assigns
it to a part, stacks it and stores the arrays.
"""

import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedlgd.core.errors import DataError, SettingError
from fedlgd.core.settings import setting
from fedlgd.core.text import plural
from fedlgd.data.arrays import Arrays, site_from_arrays
from fedlgd.data.federation import Federation, from_sites
from fedlgd.data.images import Depth, ImageError, ImageFile, shown
from fedlgd.data.own import decode, layouts
from fedlgd.data.own.classes import class_errors
from fedlgd.data.prepare import Colour, Fit, Scaling, scales
from fedlgd.data.suites import SuiteSettings


@dataclass(frozen=True, kw_only=True)
class Folders(SuiteSettings):
    """Your own images, one folder per site; see docs/own-data.md for the layouts."""

    path: str = setting("", "The folder, .csv or .npz file.")
    size: int = setting(0, "Side in pixels to resize to; 0 if all images have one size.", least=0, most=1024)
    fit: Fit = setting("stretch", 'Resizing: "stretch" the whole image, "crop" its centre, or "pad" it with black.')
    colour: Colour = setting("auto", '"auto": grey images become three equal channels; "grey": all become grey.')
    test_share: float = setting(
        0.2, "Share of each class that is held out for testing if a site has no test part.", above=0, below=1
    )
    split_seed: int = setting(0, "Seed of the hold-out.", least=0, most=2**63 - 1)
    scaling: Scaling = setting(
        "half", '"half", or by mean and std of the training pixels of each site ("own") or of all ("shared").'
    )
    min_per_class: int = setting(
        1,
        "Least number of training images of each class at each site; 0 allows missing classes.",
        least=0,
        most=10**6,
    )

    skip_bad: bool = setting(False, "Leave out files that cannot be read as images.")
    patient: str = setting(
        "", 'Patients, who are never split: a pattern with one group for file names, as "^([^_]+)_", or "dicom".'
    )
    columns: str = setting("", 'Names of the columns of a table, as "path=file,label=diagnosis".')
    classes: str = setting(
        "", 'Names of one class, ours first, as "glaucoma=Glaucoma=1,normal=b/0"; or a .toml file.'
    )
    bits: int = setting(16, "Bits that 16-bit PNG and TIFF use: a pixel is value / 2^(bits - 8).", least=8, most=16)
    window: tuple[float, ...] = setting(
        (), "[centre, width] for all DICOM images; empty for the window of each file."
    )

    @property
    def depth(self) -> Depth:
        return Depth(self.bits, self.window)

    @property
    def names(self) -> layouts.Names:
        """How the owner calls columns, classes and patients."""
        columns = {name: given[-1] for name, *given in _chains(self.columns, "data.columns")}
        for name in columns:
            if name not in layouts.COLUMNS:
                raise SettingError("unknown-column", name=name, available=layouts.COLUMNS)
        classes = dict[str, str]()
        for name, *others in _chains(self.classes, "data.classes"):
            for other in others:
                if classes.setdefault(other, name) != name:
                    raise SettingError("class-mapped-twice", name=other, first=classes[other], second=name)
        return layouts.Names(columns, classes, _pattern(self.patient))

    def survey(self, only: str = "") -> layouts.Tree:
        """The sites under `path`, or the one site `only` whose images they are; no image is read yet."""
        path = Path(self.path).expanduser().absolute()
        if len(self.window) not in (0, 2):
            raise SettingError("window-not-two-numbers", window=list(self.window))
        return layouts.survey(path, self.names, only)

    def open(self, name: str = "", note: str = "", only: str = "") -> Federation:
        """The sites, decoded on first use and stored in the data home; afterwards they are mapped from there.

        Problems that file names show are found before any image is read. name, note: of the federation, if not
        those of the folder. only: the name of the one site whose images these are; other sites are elsewhere.
        """
        if not self.path:
            raise DataError("no-data-path")
        if only and self.scaling == "shared":
            raise DataError("shared-scaling-of-one-site")
        tree = self.survey(only)
        left_out = [0] * len(tree.sites)
        if self.skip_bad:
            tree, left_out = _readable(tree, self.depth)
        _refuse_unusable(tree, self.min_per_class)
        arrays = decode.load_or_decode(tree.sites, tree.classes, self)
        scaled = scales([each["train_x"] for each in arrays], self.scaling)
        found = zip(tree.sites, arrays, scaled, leaks(arrays), left_out, strict=True)
        sites = [
            site_from_arrays(images.name, each, tree.classes, scale, self._note(tree, images, each, leak, left))
            for images, each, scale, leak, left in found
        ]
        if near := sum(int(each["test_near"].sum()) for each in arrays):
            warnings.warn(f"{_like(near)}; fedlgd data check lists them", stacklevel=2)
        note = note or f"the user's own images, layout {tree.layout}"
        if skipped := _skipped(tree, ""):
            note += f"; skipped files or folders: {skipped}"
        name = name or shown(tree.path.name if tree.path.is_dir() else tree.path.stem)
        whole = from_sites(name, sites, note, self.min_per_class)
        return replace(whole, fit=self.fit, colour=self.colour, depth=self.depth)

    def _note(self, tree: layouts.Tree, site: layouts.SiteImages, arrays: Arrays, leak: int, left_out: int) -> str:
        """How a site's images were processed, and what a reader of its results must know."""
        formats, trained = arrays["formats"].tolist(), set(arrays["train_y"].tolist())
        text, near = ", ".join(formats), int(arrays["test_near"].sum())
        known, patients = arrays["patients"].tolist()
        by = " by patient" if known else ""
        gone = [repr(label) for k, label in enumerate(tree.classes) if k not in trained]
        whose = "the site" if self.scaling == "own" else "all sites"
        window = f"the window {list(self.window)}" if self.window else "the window of each file"
        skipped = _skipped(tree, site.name)
        notes = (
            (self.size, f"resized to {self.size}x{self.size} (bilinear, {self.fit})"),
            (not site.is_split, f"{self.test_share:.0%} of each class held out here{by} (seed {self.split_seed})"),
            (self.scaling != "half", f"scaled by the training pixels of {whose}"),
            (len(formats) > 1, f"mixed formats: {text}"),
            ("16-bit" in text, f"16-bit values divided by {2 ** (self.bits - 8)}"),
            ("DICOM" in text, f"DICOM shown with {window}"),
            (gone, f"no training image of class {', '.join(gone)}"),
            (leak, f"{plural(leak, 'test image')} also among the training images of a site"),
            (near, _like(near)),
            (patients, f"{plural(patients, 'test image')} of patients with training images"),
            (left_out, f"{plural(left_out, 'unreadable file')} left out"),
            (skipped, f"skipped files or folders: {skipped}"),
        )
        return "; ".join(words for holds, words in notes if holds)


def _chains(text: str, path: str) -> list[list[str]]:
    """ "a=b=c,d=e", or a .toml file with a = ["b", "c"], as [[a, b, c], [d, e]]."""
    if text.lower().endswith(".toml"):
        try:
            found = tomllib.loads(Path(text).expanduser().read_text("utf-8"))
            chains = [[name, *([given] if isinstance(given, str) else given)] for name, given in found.items()]
        except (OSError, ValueError, TypeError) as error:
            raise SettingError("names-file-unreadable", setting=path, file=text, error=error) from error
    else:
        chains = [[name.strip() for name in part.split("=")] for part in text.split(",") if text]
    if any(len(chain) < 2 or not all(isinstance(name, str) and name for name in chain) for chain in chains):
        raise SettingError("names-malformed", setting=path, value=text)
    return chains


def _pattern(text: str) -> re.Pattern[str] | None:
    if text in ("", decode.DICOM):
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise SettingError("patient-no-pattern", pattern=text, error=error) from error
    if pattern.groups != 1:
        raise SettingError("patient-without-group", pattern=text, dicom=decode.DICOM)
    return pattern


def _skipped(tree: layouts.Tree, site: str) -> int:
    return sum(problem.severity == "warning" and problem.site == site for problem in tree.problems)


def _readable(tree: layouts.Tree, depth: Depth) -> tuple[layouts.Tree, list[int]]:
    """Without the files that cannot be read, and how many each site has; rows of an .npz are readable."""
    sites, left_out = [], list[int]()
    for site in tree.sites:
        good = [image for image in site.images if not isinstance(image, ImageFile) or _is_readable(image, depth)]
        if not good:
            raise DataError("no-readable-image", site=site.name)
        left_out.append(len(site.images) - len(good))
        stamp = (site.stamp, [image.where for image in good])
        sites.append(replace(site, images=good, stamp=stamp) if left_out[-1] else site)
    if sum(left_out):
        bad = zip(sites, left_out, strict=True)
        counts = ", ".join(f"{count} of site {site.name!r}" for site, count in bad if count)
        warnings.warn(f"files that cannot be read are left out: {counts}", stacklevel=3)
    return replace(tree, sites=tuple(sites)), left_out


def _is_readable(image: ImageFile, depth: Depth) -> bool:
    try:
        image.read(depth)
    except ImageError:
        return False
    return True


def _refuse_unusable(tree: layouts.Tree, least: int) -> None:
    """Refuse what no later stage could use; `federation` checks again after the hold-out."""
    layouts.refuse_errors(tree.problems)
    path, classes = shown(tree.path), tree.classes
    if len(classes) < 2:
        raise DataError("only-one-class", path=path, classes=classes)
    found = {site.name: layouts.natural({image.label for image in site.images}) for site in tree.sites}
    trained = {site.name: Counter(i.label for i in site.images if i.part != "test") for site in tree.sites}
    for _, error in class_errors(found, trained, least):
        raise error
    if tree.problems:
        skipped = f"skipped files or folders: {len(tree.problems)}"
        warnings.warn(f"{path}: {skipped}; fedlgd data check {path} lists them", stacklevel=3)


def _like(near: int) -> str:
    return f"{plural(near, 'test image')} {'looks' if near == 1 else 'look'} like training images"


def leaks(arrays: Sequence[Arrays]) -> list[int]:
    """For each site, how many of its test images are also training images, of any site, pixel for pixel."""
    trained = {row.tobytes() for each in arrays for row in each["train_print"]}
    return [sum(row.tobytes() in trained for row in each["test_print"]) for each in arrays]
