"""What would decide the claims that are not decided: the runs that are missing, their CPU time, and an order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedlgd.core.text import duration
from fedlgd.paper.items import (
    Claim,
    Item,
    Rule,
    estimate_of,
    find_item,
    jobs_of,
    owner_of,
    parts_at,
    requested_runs,
    stored_part,
)
from fedlgd.paper.verdicts import Verdict, known_verdicts, shipped
from fedlgd.runs.entries import Job

HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """The runs of one part of an item that claims wait for. seconds: their CPU time, as measured runs of this part
    took it; None: none was measured. cpu: the same in words, or the estimate of the item."""

    item: Item
    part: str
    claims: tuple[str, ...]
    jobs: tuple[Job, ...]
    seconds: float | None
    cpu: str = "not measured"

    @property
    def claims_per_hour(self) -> float:
        """Claims per CPU hour; 0 where the time is not known."""
        return HOUR * len(self.claims) / self.seconds if self.seconds else 0.0


def undecided(folder: Path, item: str | None = None, part: str | None = None) -> list[Verdict]:
    """Verdicts on the claims that are not decided, of all items or of one, or of one part of it."""
    found = known_verdicts(folder, {item: find_item(item)} if item else None)
    return [
        each
        for each in found
        if each.word == "not decided"
        and (part is None or (each.claim.rule is not None and each.claim.rule.part == part))
    ]


def missing_runs(folder: Path, scale: str, seeds: int, claims: Sequence[Verdict]) -> list[Missing]:
    """What these undecided claims wait for at a scale, most claims per CPU hour first, parts of unknown cost last.

    Only the entries that a rule compares are run, each with `seeds` seeds, or with as many as the item fixes. A
    claim that as many seeds did not decide waits for nothing. What a claim needs is measured before anything else.
    """
    return sorted(_missing(folder, scale, seeds, claims), key=lambda each: -each.claims_per_hour)


def _missing(folder: Path, scale: str, seeds: int, undecided_claims: Sequence[Verdict]) -> Iterator[Missing]:
    waiting: dict[tuple[str, str], list[tuple[Claim, Rule]]] = {}
    for verdict in undecided_claims:
        claim, owner = verdict.claim, owner_of(find_item(verdict.item))
        rule = claim.rule_at(scale)
        if (needs := claim.needs) and needs.part not in shipped().seconds.get(owner.name, {}).get(scale, {}):
            measured = stored_part(folder, owner, needs.part, scale).groups
            rule = rule if needs.left in measured else needs
        if rule is None or rule.part not in parts_at(owner, scale):
            continue
        tried = verdict.scale == scale and verdict.seeds >= requested_runs(owner, rule.part, scale, seeds).seeds
        if rule is claim.needs or not tried:
            waiting.setdefault((owner.name, rule.part), []).append((claim, rule))
    for (name, part), claims in waiting.items():
        item, compared = find_item(name), {entry for _, rule in claims for entry in (rule.left, *rule.right)}
        wanted = requested_runs(item, part, scale, seeds)
        wanted = replace(wanted, methods=tuple(entry for entry in wanted.methods if entry in compared))
        groups = stored_part(folder, item, part, scale).groups.values()
        finished = {run.path for group in groups for run in group.counted}
        library = folder / scale
        jobs = [job for job in jobs_of(wanted, library / name / part, library) if job.folder not in finished]
        per_run = shipped().seconds.get(name, {}).get(scale, {}).get(part)
        seconds = None if per_run is None else per_run * len(jobs)
        if jobs:
            texts = tuple(claim.text for claim, _ in claims)
            words = (estimate_of(item, scale, part) or "not measured") if seconds is None else duration(seconds)
            yield Missing(item=item, part=part, claims=texts, jobs=tuple(jobs), seconds=seconds, cpu=words)
