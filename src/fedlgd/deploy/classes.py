"""The classes of a federation are agreed before its first round, so that a misspelt folder is not a class more.

`fedlgd provision --classes` writes them into the kits: a site that has another class is refused when it joins.
Without them a run takes the classes of its sites if all sites have the same. If not, the coordinator names them
(`fedlgd run --classes`), or says in a terminal that the classes of all sites together are meant.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence

from fedlgd.core.errors import RunError, SettingError, looks_like, message
from fedlgd.data.own.classes import ClassesOfSites, holders, misspelt
from fedlgd.data.own.layouts import natural
from fedlgd.deploy.policy import TaskError

Confirm = Callable[[ClassesOfSites], bool]
"""Whether the classes of all sites together are meant."""


def check_agreed(found: Sequence[str], agreed: Sequence[str]) -> None:
    """Refuse images of a class that was not agreed on; nothing is refused if there is no agreement. A site may
    lack a class."""
    if agreed and (unknown := [name for name in found if name not in agreed]):
        way_out = how_to_map({name: looks_like(name, agreed) for name in unknown})
        raise TaskError("class-not-agreed", unknown=unknown, agreed=natural(agreed), way_out=way_out)


def how_to_map(alike: Mapping[str, str]) -> str:
    """What a site does about names of classes, given what they look like."""
    if not (like := {name: other for name, other in alike.items() if other}):
        return message("class-unlike")
    pairs = ", ".join(f"{name!r} looks like {other!r}" for name, other in like.items())
    setting = shlex.quote("data.classes=" + ",".join(f"{other}={name}" for name, other in like.items()))
    return message("class-alike", pairs=pairs, setting=setting)


def classes_of_run(given: Sequence[str], of_kit: Sequence[str]) -> tuple[str, ...]:
    """The classes that the command or the kit names; none if neither does."""
    if given and of_kit and set(given) != set(of_kit):
        raise SettingError("classes-not-of-kit", given=natural(given), of_kit=natural(of_kit))
    return tuple(given or of_kit)


def agree(told: ClassesOfSites, agreed: Sequence[str], confirm: Confirm) -> tuple[str, ...]:
    """The classes of a run at the sites that told theirs, in natural order, as for folders."""
    known = holders(told)
    rare = {name: sites for name, sites in known.items() if len(sites) < len(told)}
    if agreed or not rare or confirm(told):
        return tuple(natural(agreed or known))
    only = "; ".join(f"{name!r} only at {', '.join(sites)}" for name, sites in rare.items())
    names = shlex.quote(",".join(known))
    raise RunError("classes-of-sites-differ", only=only, way_out=how_to_map(misspelt(told)), classes=names)


def class_lines(told: ClassesOfSites) -> list[str]:
    """Which sites have which class, for a terminal."""
    like = misspelt(told)
    marks = {name: f" (looks like {like[name]})" if name in like else "" for name in holders(told)}
    rows = [f"  {name}: {', '.join(sites)}{marks[name]}" for name, sites in holders(told).items()]
    return ["The sites do not have the same classes:", *rows]
