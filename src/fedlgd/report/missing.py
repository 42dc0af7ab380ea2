"""Sites without test images of some class: what their numbers say, and what they leave out."""

from collections.abc import Mapping, Sequence

from fedlgd.report.formats import plural
from fedlgd.report.groups import Group

MARK = "†"
TWO_CLASSES = "The balanced accuracy there is the accuracy on the other class alone, and there is no AUC."
MORE_CLASSES = "The accuracy there says nothing about these classes."
COUNTS = "The mean over sites counts such a site like any other."
MOST = 5  # sites that a note lists

Missing = Mapping[str, tuple[str, ...]]
"""Names of classes by site."""


def missing_classes(groups: Sequence[Group]) -> Missing:
    """The classes of which a site has no test image, by the counts of its last evaluation."""
    found: dict[str, tuple[str, ...]] = {}
    for run in (run for group in groups for run in group.counted):
        names = run.manifest.data.classes
        for site, score in run.final.scores.items() if run.final else ():
            if len(score.total) == len(names) and any(score.total) and not all(score.total):
                found[site] = tuple(name for name, count in zip(names, score.total, strict=True) if not count)
    return found


def marked(site: str, missing: Missing) -> str:
    """The site's name, with a mark if a note below the table is about it."""
    return site + MARK if site in missing else site


def missing_notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """Which site lacks which classes, and what that does to its numbers; nothing if none lacks any."""
    missing = missing_classes(groups)
    if not missing:
        return ()
    listed = [f"{site} of {_named(gone)}" for site, gone in list(missing.items())[:MOST]]
    if len(missing) > MOST:
        listed.append(f"and {plural(len(missing) - MOST, 'more site')}")
    effect = TWO_CLASSES if len(groups[0].runs[0].manifest.data.classes) == 2 else MORE_CLASSES
    return (f"{MARK} No test images: {'; '.join(listed)}. {effect} {COUNTS}",)


def _named(classes: Sequence[str]) -> str:
    quoted = ", ".join(map(repr, classes))
    return f"class {quoted}" if len(classes) == 1 else f"classes {quoted}"
