"""Sentences about the method of a run. They follow only from its declaration and from the messages and reads of the
run. A sentence has a kind, so that programs need not read its English.
"""

from collections.abc import Iterator, Sequence

from fedlgd.core.text import enumeration, plural
from fedlgd.report.groups import Group
from fedlgd.report.tables import METHOD, NONE, Cell, Column, Row, Sentence, Table
from fedlgd.rundir.disclosure import DISCLOSES, UNDECLARED, Mismatch, differences, kind_of, observed
from fedlgd.rundir.manifest import MethodInfo
from fedlgd.rundir.read import Run

HELLO = "hello/"
READS = {"enrolment": "at the enrolment", "selected": "in selected rounds", "every": "in every round"}
TRAINS_ON = {"real": "real images", "virtual": "virtual sets", "nothing": "nothing"}
MISMATCHES = {
    "sent-undeclared": "{method} sent {what}, which it does not declare: no statement here covers it.",
    "read-undeclared": "{method} read private images {what}, which it does not declare.",
    "declared-unsent": "{method} declares that it sends {what}, which the observed messages did not have.",
}


def mismatches(run: Run) -> list[Mismatch]:
    """Where the method did not do what it declares."""
    return list(differences(run.manifest.method, run.records))


def mismatch_sentences(run: Run) -> Iterator[Sentence]:
    for each in mismatches(run):
        yield Sentence(each.code, MISMATCHES[each.code].format(method=run.label, what=_what(each)))


def _what(each: Mismatch) -> str:
    """The path; of reads, when the first of them was."""
    if each.code != "read-undeclared":
        return each.what
    return READS["enrolment"] if each.what == "0" else f"first in round {each.what}"


def undeclared(groups: Sequence[Group]) -> Iterator[Sentence]:
    """One warning for each method that sent or read what it does not declare."""
    for group in groups:
        found = dict.fromkeys(each for run in group.runs for each in mismatches(run))
        sent = [each.what for each in found if each.code == "sent-undeclared"]
        reads = [_what(each) for each in found if each.code == "read-undeclared"]
        parts = [f"sent {enumeration(sent)}"] if sent else []
        parts += [f"read private images {reads[0]}"] if reads else []
        if parts:
            text = f"{group.label} {' and '.join(parts)}, which it does not declare"
            yield Sentence("undeclared", f"{text}; statements about what left the sites do not cover it.")


def watched_run(run: Run) -> bool:
    """Whether messages and reads were observed; records of older versions have neither."""
    return any(record.sent for record in run.records)


def declared_reads(method: MethodInfo) -> str:
    """`at the enrolment and in selected rounds`"""
    return enumeration(READS[each] for each in method.reads) or "never"


def training_sentence(run: Run) -> Sentence:
    """What the sites trained on. Reads outside the declaration leave nothing to say about real images."""
    method = run.manifest.method
    if any(each.code == "read-undeclared" for each in mismatches(run)):
        text = f"It declares that sites train on {TRAINS_ON[method.train_on]} and read real images"
        unknown = "but they read them at other times too: what its messages contain of them is not known"
        return Sentence("training-unknown", f"{text} {declared_reads(method)}, {unknown}.")
    if method.train_on == "nothing":
        return Sentence("trained-on-nothing", "The sites train no model.")
    if method.train_on == "real":
        return Sentence("trained-on-real", "The sites train on real images.")
    if "every" in method.reads:
        text = "The sites train on virtual sets, and read real images in every round."
        return Sentence("trained-on-virtual", text)
    reads = (
        f"They read real images {declared_reads(method)} only." if method.reads else "They never read real images."
    )
    return Sentence("virtual-only", f"The sites train on virtual sets. {reads}")


def reading_sentence(run: Run) -> Sentence:
    """When private images are read, as declared and as observed. Reads through releases with noise are not raw."""
    declared = f"Private training images are read, as declared: {declared_reads(run.manifest.method)}; as observed"
    if not watched_run(run):
        return Sentence("reads-declared", f"{declared}: not known, the records are older.")
    rounds = [record for record in run.records if record.round >= 0]
    first = max((record.readers for record in run.records if record.round < 0), default=0)
    later = sum(record.readers > 0 for record in rounds)
    promised = run.manifest.promise
    if promised and promised.protects == "image" and not (first or later):
        return Sentence("reads-released", f"{declared}: through releases with noise alone.")
    seen = f"by {plural(first, 'site')} at the enrolment and in {later} of {plural(len(rounds), 'round')}"
    return Sentence("reads-observed", f"{declared}: {seen}.")


def kinds_sent(run: Run, hello: bool | None = None) -> dict[str, list[str]]:
    """The paths of each kind that is declared or was observed, at the enrolment, in updates, or in both (None).

    An undeclared message has no kind, so it has a line for each path.
    """
    method = run.manifest.method
    kinds: dict[str, list[str]] = {}
    for path in dict.fromkeys((*method.sends, *observed(run.records))):
        if hello in (None, path.startswith(HELLO)):
            kind = kind_of(path, method)
            kinds.setdefault(f"{path} ({UNDECLARED})" if kind == UNDECLARED else kind, []).append(path)
    return kinds


def sets_sentence(runs: Sequence[Run]) -> Sentence:
    """Whether the virtual sets of these runs stay at their sites."""
    kinds = {run.label: kinds_sent(run).keys() for run in runs}
    if sending := [label for label, sent in kinds.items() if "images" in sent]:
        return Sentence("sets-sent", f"Images leave the sites in {enumeration(sending)}; see Privacy.")
    if unknown := [label for label, sent in kinds.items() if sent - DISCLOSES.keys()]:
        text = f"It is not known whether images leave the sites in {enumeration(unknown)}; see Privacy."
        return Sentence("sets-unknown", text)
    return Sentence("sets-stay", "No virtual image of a site leaves it.")


def without_training(groups: Sequence[Group]) -> list[str]:
    """The methods whose sites train no model: they declare it, or no training was observed."""

    def trains(run: Run) -> bool:
        rounds = [record for record in run.records if record.round >= 0]
        seen = any(record.flops.get("train") for record in rounds) or not any(record.flops for record in rounds)
        return seen and run.manifest.method.train_on != "nothing"

    return [group.label for group in groups if not all(map(trains, group.counted))]


def declared_table(groups: Sequence[Group]) -> Table:
    """What each method declares: what its sites train on, when they read private images, and what they send."""
    names = ("sites train on", "private images are read", "sent at the enrolment", "sent in updates")

    def row(group: Group) -> Row:
        run = group.counted[0]
        method = run.manifest.method
        kinds = [
            {kind: path for path, kind in method.sends.items() if path.startswith(HELLO) is at}
            for at in (True, False)
        ]
        sent = (enumeration(each) or NONE for each in kinds)
        return tuple(map(Cell, (group.label, TRAINS_ON[method.train_on], declared_reads(method), *sent)))

    return Table((METHOD, *(Column(name, number=False) for name in names)), tuple(map(row, groups)))
