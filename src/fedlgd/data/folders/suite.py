"""The suite `folders`: a user's own images.

An image is found by `layouts`, read by `image_source`, resized and assigned to a part by `decoding`, and becomes a
tensor in `store`.
"""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedlgd.core.errors import DataError
from fedlgd.core.settings import setting
from fedlgd.core.types import Site
from fedlgd.data.federation import Federation, federation
from fedlgd.data.folders.decoding import Colour, Fit, Recipe, decoded
from fedlgd.data.folders.image_source import ImageFile, SiteImages, site_of_files
from fedlgd.data.folders.layouts import Tree, survey, survey_site
from fedlgd.data.folders.problems import ImageError, refuse_errors, shown
from fedlgd.data.scaling import Scaling, scales
from fedlgd.data.store import Arrays, site_of
from fedlgd.data.suite import SuiteSettings


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

    def open(self) -> Federation:
        """The sites, decoded on first use and cached in the data home; afterwards they are mapped from there."""
        if not self.path:
            raise DataError("data.path is empty; name a folder: fedlgd run --data DIR")
        path = Path(self.path).expanduser().absolute()
        return self.open_as(shown(path.name if path.is_dir() else path.stem))

    def open_as(self, name: str, note: str = "") -> Federation:
        """The federation under another name. Everything that names alone can tell is checked before decoding."""
        return self._opened(survey(Path(self.path).expanduser().absolute()), name, note)

    def open_site(self, name: str) -> Site:
        """`path` holds the images of one site of a federation whose other sites are elsewhere."""
        if self.scaling == "shared":
            raise DataError(
                'scaling is "shared", but the images of the other sites are elsewhere; use "half" or "own"'
            )
        (site,) = self._opened(survey_site(Path(self.path).expanduser().absolute(), name), name).sites
        return site

    def _opened(self, tree: Tree, name: str, note: str = "") -> Federation:
        left_out = [0] * len(tree.sites)
        if self.skip_bad:
            tree, left_out = _readable(tree)
        _refuse(tree, self.min_per_class)
        recipe = Recipe(self.size, self.fit, self.colour, self.test_share, self.split_seed)
        arrays = decoded(tree.sites, tree.classes, recipe)
        scaled = scales([each["train_x"] for each in arrays], self.scaling)
        sites = [
            site_of(images.name, each, tree.classes, scale, self._note(images, leak, left))
            for images, each, scale, leak, left in zip(
                tree.sites, arrays, scaled, leaks(arrays), left_out, strict=True
            )
        ]
        note = note or f"the user's own images, layout {tree.layout}"
        return replace(federation(name, sites, note, self.min_per_class), fit=self.fit, colour=self.colour)

    def _note(self, site: SiteImages, leak: int, left_out: int) -> str:
        """How a site's images were processed, and what a reader of its results must know."""
        notes = []
        if self.size:
            notes.append(f"resized to {self.size}x{self.size} (bilinear, {self.fit})")
        if not site.is_split:
            notes.append(f"{self.test_share:.0%} of each class held out here (seed {self.split_seed})")
        if self.scaling != "half":
            notes.append(f"scaled by the training pixels of {'the site' if self.scaling == 'own' else 'all sites'}")
        if leak:
            notes.append(f"{leak} test images are also training images of a site")
        if left_out:
            notes.append(f"{left_out} unreadable files left out")
        return "; ".join(notes)


def _readable(tree: Tree) -> tuple[Tree, list[int]]:
    """Without the files that cannot be read, and how many each site has; rows of an .npz are readable."""
    sites, left_out = [], list[int]()
    for site in tree.sites:
        good = [image for image in site.images if not isinstance(image, ImageFile) or _is_readable(image)]
        if not good:
            raise DataError(f"site {site.name!r} has no readable image; remove the site or replace its files")
        left_out.append(len(site.images) - len(good))
        files = [image for image in good if isinstance(image, ImageFile)]
        sites.append(site_of_files(site.name, files) if left_out[-1] else site)
    if sum(left_out):
        counts = ", ".join(
            f"{count} of site {site.name!r}" for site, count in zip(sites, left_out, strict=True) if count
        )
        warnings.warn(f"files that cannot be read are left out: {counts}", stacklevel=4)
    return replace(tree, sites=tuple(sites)), left_out


def _is_readable(image: ImageFile) -> bool:
    try:
        image.read()
    except ImageError:
        return False
    return True


def _refuse(tree: Tree, least: int) -> None:
    """Refuse what no later stage could use; `federation` checks again after the hold-out."""
    refuse_errors(tree.problems)
    path, classes = shown(tree.path), tree.classes
    if len(classes) < 2:
        raise DataError(f"{path} has only one class, {', '.join(classes)}; add images of another class")
    for site in tree.sites:
        counts = Counter(image.label for image in site.images if image.part != "test")
        for label in classes:
            if counts[label] < least:
                raise DataError(
                    f"site {site.name!r} has {counts[label] or 'no'} training image(s) of class {label!r}, "
                    f"fewer than min_per_class={least}; add images, remove the class at every site, "
                    f"or pass --set data.min_per_class={counts[label]}"
                )
    if tree.problems:
        skipped = f"{len(tree.problems)} files or folders are skipped"
        warnings.warn(f"{path}: {skipped}; fedlgd data check {path} lists them", stacklevel=4)


def leaks(arrays: Sequence[Arrays]) -> list[int]:
    """For each site, how many of its test images are also training images, of any site, pixel for pixel."""
    trained = {row.tobytes() for each in arrays for row in each["train_print"]}
    return [sum(row.tobytes() in trained for row in each["test_print"]) for each in arrays]
