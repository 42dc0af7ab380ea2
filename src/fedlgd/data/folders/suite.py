"""A user's own images as a federation: folders, a CSV table, or one .npz a site; decoded once, then mapped."""

import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fedlgd.core.errors import DataError, check
from fedlgd.data.decode import Colour, Recipe, arrays_of
from fedlgd.data.federation import Federation, federation
from fedlgd.data.holding import Holding, Problem, natural
from fedlgd.data.images import Fit, shown
from fedlgd.data.layouts import Tree, survey
from fedlgd.data.prepared import Arrays, site_of
from fedlgd.data.scaling import Scaling, scales


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Your own images, one folder a site; see docs/own-data.md for the layouts.

    path: the folder, .csv or .npz. size: side in pixels to resize to, 0 when all images have one size. fit:
    "stretch" the whole image, "crop" its middle, or "pad" it with black. colour: "auto", grey becomes three equal
    channels, or "grey" for all. test_share: how much of each class is held out where there is no test part.
    split_seed: of that choice. scaling: "half", or by the training pixels of each site ("own") or of all
    ("shared"). min_per_class: training images that each site must have of each class; 0 lets classes be missing.
    """

    path: str = ""
    size: int = 0
    fit: Fit = "stretch"
    colour: Colour = "auto"
    test_share: float = 0.2
    split_seed: int = 0
    scaling: Scaling = "half"
    min_per_class: int = 1

    def __post_init__(self) -> None:
        for name, words in (("fit", Fit), ("colour", Colour), ("scaling", Scaling)):
            value = getattr(self, name)
            check(value in get_args(words), f"data.{name}", repr(value), f"there are: {', '.join(get_args(words))}")
        check(0 <= self.size <= 1024, "data.size", self.size, "use 0 (as they are) or up to 1024 pixels")
        check(0 < self.test_share < 1, "data.test_share", self.test_share, "use a share such as 0.2")
        check(0 <= self.split_seed < 2**63, "data.split_seed", self.split_seed, "use 0 or a positive number")
        check(self.min_per_class >= 0, "data.min_per_class", self.min_per_class, "use 0 or more")

    @property
    def recipe(self) -> Recipe:
        return Recipe(
            size=self.size,
            fit=self.fit,
            colour=self.colour,
            test_share=self.test_share,
            split_seed=self.split_seed,
        )

    def open(self) -> Federation:
        """The sites, decoded on first use and kept in the data home; afterwards they are mapped from there."""
        if not self.path:
            raise DataError("data.path is empty; name a folder: fedlgd run --data DIR")
        path = Path(self.path).expanduser().absolute()
        tree = survey(path)
        name = shown(path.name if path.is_dir() else path.stem)
        return opened(tree, self, name, f"the user's own images, layout {tree.layout}")


def opened(tree: Tree, settings: Folders, name: str, note: str) -> Federation:
    """The federation in a surveyed tree; refuses what no later stage could use before it decodes anything."""
    refuse_errors([*tree.problems, *alike(tree.sites)])
    classes = class_names(tree.sites)
    if len(classes) < 2:
        raise DataError(
            f"{shown(tree.path)} has one class, {', '.join(classes)}; there must be something to tell apart"
        )
    _refuse_missing(tree.sites, classes, settings.min_per_class)
    if tree.problems:
        warnings.warn(
            f"{shown(tree.path)}: {len(tree.problems)} files or folders are skipped; "
            f"fedlgd data check {shown(tree.path)} lists them",
            stacklevel=3,
        )
    arrays = arrays_of(tree.sites, classes, settings.recipe)
    scaled = scales([each["train_x"] for each in arrays], settings.scaling)
    notes = [_note(source, settings, leak) for source, leak in zip(tree.sites, leaks(arrays), strict=True)]
    parts = zip(tree.sites, arrays, scaled, notes, strict=True)
    sites = [site_of(source.name, each, classes, scale, told) for source, each, scale, told in parts]
    return federation(name, sites, note, settings.min_per_class)


def _note(site: Holding, settings: Folders, leak: int) -> str:
    """What was done to a site's images, and what a reader of its results must know."""
    said = []
    if settings.size:
        said.append(f"resized to {settings.size}x{settings.size} (bilinear, {settings.fit})")
    if not any(site.parts):
        said.append(f"{settings.test_share:.0%} of each class held out here (seed {settings.split_seed})")
    if settings.scaling != "half":
        said.append(f"scaled by the training pixels of {'the site' if settings.scaling == 'own' else 'all sites'}")
    if leak:
        said.append(f"{leak} test images are also training images of a site")
    return "; ".join(said)


def leaks(arrays: Sequence[Arrays]) -> list[int]:
    """How many test images of each site are, pixel for pixel, training images of some site."""
    trained = {row.tobytes() for each in arrays for row in each["train_print"]}
    return [sum(row.tobytes() in trained for row in each["test_print"]) for each in arrays]


def refuse_errors(problems: Sequence[Problem]) -> None:
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        where = ", ".join(filter(None, (first.site and f"site {first.site!r}", first.file)))
        told = " ".join(filter(None, (where, first.problem + more)))
        raise DataError(f"{told}; {first.way_out} (fedlgd data check lists every problem)")


def class_names(sites: Sequence[Holding]) -> tuple[str, ...]:
    """All classes of all sites, in natural order."""
    return tuple(natural({label for site in sites for label in site.labels}))


def alike(sites: Sequence[Holding]) -> list[Problem]:
    """Classes whose names differ only in case, blanks or the encoding of an accent: surely one class."""
    homes: dict[str, dict[str, str]] = {}
    for site in sites:
        for label in natural(set(site.labels)):
            homes.setdefault(_folded(label), {}).setdefault(label, site.name)
    return [
        Problem("error", "", "", f"one class has {len(names)} names: {_listed(names)}", "rename them alike")
        for names in homes.values()
        if len(names) > 1
    ]


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").split())


def _listed(names: dict[str, str]) -> str:
    return ", ".join(f"{name!r} (site {site!r})" for name, site in names.items())


def _refuse_missing(sites: Sequence[Holding], classes: tuple[str, ...], least: int) -> None:
    """What can be said from the names alone; `federation` says the rest after the division."""
    for site in sites:
        pairs = zip(site.labels, site.parts, strict=True)
        counts = Counter(label for label, part in pairs if part != "test")
        for label in classes:
            if counts[label] < least:
                raise DataError(
                    f"site {site.name!r} has {counts[label] or 'no'} training image(s) of class {label!r}, "
                    f"fewer than min_per_class={least}; add some, drop the class at every site, "
                    f"or pass --set data.min_per_class={counts[label]}"
                )
