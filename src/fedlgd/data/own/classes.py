"""Classes of several sites: names that are misspelt, and why a run would refuse them. A run and `fedlgd data check`
ask the same functions."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fedlgd.core.errors import DataError, looks_like
from fedlgd.data.own.layouts import natural, plain_name

ClassesOfSites = Mapping[str, Sequence[str]]
"""The classes of each site."""


def holders(classes: ClassesOfSites) -> dict[str, list[str]]:
    """The sites that have each class, in natural order."""
    names = natural({name for each in classes.values() for name in each})
    return {name: [site for site, each in classes.items() if name in each] for name in names}


def misspelt(classes: ClassesOfSites) -> dict[str, str]:
    """{"glaucomma": "glaucoma"}: names of classes that look like one that as many sites or more have."""
    known, found, sites = list[str](), dict[str, str](), holders(classes)
    for name in sorted(sites, key=lambda name: -len(sites[name])):
        if like := looks_like(name, known):
            found[name] = like
        else:
            known.append(name)
    return found


def misspelt_errors(classes: ClassesOfSites) -> dict[str, DataError]:
    """An error for each class that some sites lack and that looks like a class of as many sites or more."""
    sites = holders(classes)
    alike = {name: like for name, like in misspelt(classes).items() if len(sites[name]) < len(classes)}
    mappings = {name: shlex.quote(f"data.classes={like}={name}") for name, like in alike.items()}
    return {
        name: DataError("class-misspelt", name=name, sites=sites[name], like=like, setting=mappings[name])
        for name, like in alike.items()
    }


def class_errors(
    classes: ClassesOfSites, trained: Mapping[str, Counter[str]], least: int
) -> Iterator[tuple[str, DataError]]:
    """Sites, or "" for all, and why a run refuses their classes.

    trained: the training images of each class at each site; `least` of them are needed. A misspelt class is one
    error; that it is missing elsewhere, and the class that is meant is missing there, follows from it. `survey`
    reports names that differ only in case or whitespace.
    """
    wrong = misspelt_errors(classes) if least else {}
    for name, error in wrong.items():
        if plain_name(name) != plain_name(error.values["like"]):
            yield "", error
    for site, counts in trained.items():
        meant = {error.values["like"] for name, error in wrong.items() if name in classes[site]}
        for label in natural({name for each in classes.values() for name in each} - wrong.keys() - meant):
            if counts[label] < least:
                values = {"count": counts[label], "label": label, "least": least}
                yield site, DataError("class-too-small-at-site", site=site, **values)
