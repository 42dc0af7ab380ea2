"""Compiled and eager runs of the paper: which seeds ran how, and whether a verdict depends on it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fedlgd.core.settings import flat
from fedlgd.core.text import enumeration, percentage_points, plural
from fedlgd.paper.items import Found, Item, entry_name, stored, stored_part
from fedlgd.paper.verdicts import Verdict, verdict_of
from fedlgd.report.groups import Group
from fedlgd.report.tables import Cell, Column, Table, as_markdown, percent
from fedlgd.rundir.read import Run
from results import RECORDS

PAPER, AGAIN = RECORDS / "paper", RECORDS / "paper-modes"  # in the second are eager runs of the first, compiled
UNNAMED = "bd3dafa4"  # the commit of compiled runs whose manifests name none yet
OLDER = " Some runs are of an older version of the package, which has other settings."
HOW = "These seeds were run eager, and once more compiled. A compiled pass adds numbers in another order."
SAME = "With the compiled runs in place of the eager ones, the verdict is the same."
OTHER = "**With the compiled runs in place of the eager ones, the verdict is another one.**"


def modes(found: Found) -> str:
    """Which runs of a part were compiled, and at which commit; empty if none was and none names its commit."""
    runs = [(entry, run) for entry, group in found.groups.items() for run in group.counted]
    kinds = {_kind(run): [(entry, own) for entry, own in runs if _kind(own) == _kind(run)] for _, run in runs}
    if not any(compiled or commit for compiled, commit in kinds):
        return ""
    told = [_told(kinds[kind], len(found.groups), *kind) for kind in sorted(kinds)]
    older = OLDER if any(_versions(group.counted) > 1 for group in found.groups.values()) else ""
    return f"{'; '.join(told)}.{older}"


def _kind(run: Run) -> tuple[bool, str]:
    """Whether it was compiled, and its commit; the compiled runs that do not name one are all of `UNNAMED`."""
    compiled = run.manifest.engine.compile
    return compiled, run.manifest.commit or (UNNAMED if compiled else "")


def _told(runs: Sequence[tuple[str, Run]], entries: int, compiled: bool, commit: str) -> str:
    """`Seeds 0 to 4 compiled, at commit 0123abc`, with the names of the entries if they are not all."""
    names = list(dict.fromkeys(entry_name(entry) for entry, _ in runs))
    of = f" of {enumeration(names)}" if len(names) < entries else ""
    at = f", at commit {commit}" if commit else ""
    return f"Seeds {ranges(sorted({run.seed for _, run in runs}))}{of} {'compiled' if compiled else 'eager'}{at}"


def ranges(seeds: Sequence[int]) -> str:
    """ranges([0, 1, 2, 5]) -> "0 to 2 and 5"."""
    first = [seed for seed in seeds if seed - 1 not in seeds]
    last = [seed for seed in seeds if seed + 1 not in seeds]
    return enumeration(str(a) if a == b else f"{a} to {b}" for a, b in zip(first, last, strict=True))


def comparison(item: Item) -> Iterator[str]:
    """The runs of an item that were run in both modes, and the verdicts with either; nothing if there are none."""
    for again in stored(AGAIN, item):
        first = stored_part(PAPER, item, again.part, again.scale)
        both = list(_pairs(first.groups, again.groups))
        gaps = [_accuracy(compiled) - _accuracy(eager) for _, eager, compiled in both]
        sizes = sorted(map(abs, gaps))
        apart = f"Accuracies differ by {percent(sizes[0])} to {percent(sizes[-1])} points"
        mean = f"{percentage_points(sum(gaps) / len(gaps))} in the mean of {plural(len(gaps), 'pair')}"
        older = OLDER if any(_versions((eager, compiled)) > 1 for _, eager, compiled in both) else ""
        yield from (f"### Eager and compiled: {again.label}", "", f"{HOW}{older} {apart}, {mean}.", "")
        yield from (as_markdown(_pair_table(both)), "")
        for claim, rule in ((each, each.rule) for each in item.claims):
            if rule is None or rule.part != again.part:
                continue
            found = {
                name: verdict_of(item, claim, rule, replace(first, groups=groups))
                for name, groups in _choices(first.groups, again.groups).items()
            }
            stored_as, swapped, *_ = found.values()
            yield from (f"{claim.text} {SAME if stored_as.word == swapped.word else OTHER}", "")
            yield from (as_markdown(_verdict_table(found)), "")


def _in_mode(runs: Iterable[Run], compiled: bool) -> tuple[Run, ...]:
    return tuple(run for run in runs if run.manifest.engine.compile == compiled)


def _versions(runs: Iterable[Run]) -> int:
    """How many versions of the package the runs are of, as their settings tell."""
    return len({tuple(sorted(path for path, _ in flat(run.settings))) for run in runs})


def _pairs(first: Mapping[str, Group], again: Mapping[str, Group]) -> Iterator[tuple[str, Run, Run]]:
    """Entry, eager run and compiled run of the same seed."""
    for entry, group in again.items():
        eager = {run.seed: run for run in _in_mode(first[entry].counted, compiled=False)}
        yield from ((entry, eager[run.seed], run) for run in group.counted if run.seed in eager)


def _choices(first: Mapping[str, Group], again: Mapping[str, Group]) -> dict[str, dict[str, Group]]:
    """Which runs a verdict can be based on."""
    kept = {
        "as stored": first,
        "compiled in place of eager": {each: _swapped(first[each], again.get(each)) for each in first},
        "only compiled": {each: _swapped(_part_of(first[each], compiled=True), again.get(each)) for each in first},
        "only eager": {each: _part_of(first[each], compiled=False) for each in first},
    }
    return {name: {entry: each for entry, each in groups.items() if each.runs} for name, groups in kept.items()}


def _part_of(group: Group, compiled: bool) -> Group:
    """The runs of a group in one mode."""
    return replace(group, runs=_in_mode(group.counted, compiled))


def _swapped(group: Group, again: Group | None) -> Group:
    """A group with the runs of another one in place of its own of the same seed."""
    runs = {run.seed: run for each in (group, again) if each for run in each.runs}
    return replace(group, runs=tuple(runs[seed] for seed in sorted(runs)))


def _accuracy(run: Run) -> float:
    """The unweighted mean over sites after the last round."""
    assert run.final
    return run.final.accuracy


def _pair_table(both: Sequence[tuple[str, Run, Run]]) -> Table:
    heads = (Column("method", number=False), *map(Column, ("seed", "eager (%)", "compiled (%)", "difference")))
    rows = []
    for entry, eager, compiled in both:
        before, after = (_accuracy(run) for run in (eager, compiled))
        shown = (str(eager.seed), percent(before), percent(after), percentage_points(after - before))
        rows.append(tuple(map(Cell, (entry_name(entry), *shown))))
    return Table(heads, tuple(rows))


def _verdict_table(found: Mapping[str, Verdict]) -> Table:
    heads = (Column("runs", number=False), Column("seeds"))
    more = (Column("ours (difference, interval)", number=False), Column("verdict", number=False))
    rows = ((name, str(each.seeds), each.ours, each.word) for name, each in found.items())
    return Table((*heads, *more), tuple(tuple(map(Cell, row)) for row in rows))
