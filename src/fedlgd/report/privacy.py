"""The section on privacy: what left each site, and what is promised. What attacks found is in `attacks`.

Sentences have a kind (`image`, `simulation`, ...), so that programs need not read their English.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fedlgd.core.text import enumeration, number_of_bytes, plural
from fedlgd.dp import accounting
from fedlgd.report import claims
from fedlgd.report.attacks import audit_part
from fedlgd.report.groups import Group
from fedlgd.report.tables import NONE, Cell, Column, Row, Sentence, Table
from fedlgd.rundir.disclosure import UNDECLARED, discloses, observed
from fedlgd.rundir.manifest import Promise
from fedlgd.rundir.read import Run

NOT_COVERED = "not known: it is not declared, and not covered by any statement here"
ONCE_RELEASED = {"counts": "noisy counts", "start": "the initial images"}
SHARE_NAMES = {"start": "initial images", "refine": "refinement", "distil": "distillation"}


def privacy_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Every audited run, and one run of each group without an audit. `shares`: parts of the budget in percent."""
    runs = [run for group in groups for run in [run for run in group.runs if run.audits] or group.counted[:1]]

    def part(run: Run) -> dict[str, Any]:
        heading, promised = f"{run.label}, seed {run.seed}", run.manifest.promise
        facts = [claims.training_sentence(run), claims.reading_sentence(run), *claims.mismatch_sentences(run)]
        if broken_promise(run):
            promised, audits = None, {name: replace(each, promised=None) for name, each in run.audits.items()}
            run = replace(run, audits=audits)
        return {
            "heading": heading,
            "left": left_table(run),
            "facts": facts,
            "promise": promise_sentence(run),
            "shares": budget_parts(promised),
            "audits": [audit_part(run, name) for name in run.audits],
        }

    declared = claims.declared_table(groups)
    return {"spent": spent_together(groups), "declared": declared, "runs": [part(run) for run in runs]}


def broken_promise(run: Run) -> bool:
    """Whether the method read private images without noise under a promise to each of them.

    Sites are sealed against this; a folder of another version may contain it.
    """
    promised = run.manifest.promise
    hides_images = promised is not None and promised.protects == "image"
    return hides_images and any(record.readers for record in run.records)


def spent_together(groups: Sequence[Group]) -> str:
    """What the sites have spent on all these runs; empty unless several runs make a promise with their secret.

    Runs of private distillation on all images are Gaussian: mu^2 adds up, at the smallest delta. Otherwise both
    epsilon and delta add up, which is always true. Promises to images and to sites have no common sum.
    """
    promised = {
        (run.manifest.data.digest, run.seed, str(run.settings)): run.manifest.promise
        for group in groups
        for run in group.runs
        if run.manifest.promise and not run.manifest.promise.simulation
    }
    budgets, broken = list(promised.values()), any(broken_promise(run) for group in groups for run in group.runs)
    if (
        broken
        or len(budgets) < 2
        or len({data for data, *_ in promised}) > 1
        or len({each.protects for each in budgets}) > 1
    ):
        return ""
    if all(each.gaussian for each in budgets):
        delta = min(each.delta for each in budgets)
        mu = math.sqrt(sum(accounting.mu_for(each.epsilon, each.delta) ** 2 for each in budgets))
        epsilon = accounting.epsilon(mu, delta)
    else:
        epsilon, delta = sum(each.epsilon for each in budgets), sum(each.delta for each in budgets)
    ledger = " Its ledger knows of other runs." if budgets[0].protects == "image" else ""
    return (
        f"These {len(budgets)} runs have the same images: on them together each site has spent at most (epsilon, "
        f"delta) = ({epsilon:.3g}, {delta:.2g}).{ledger}"
    )


def left_table(run: Run) -> Table:
    """One row for each kind of what a site sent, with its bytes and what it discloses; then all messages together.

    Bytes are means over sites: of one message, as observed in the first rounds, and of all messages, as recorded.
    Where whole sites are hidden, the server adds the noise, and what a site sends has none.
    """
    promised, sites = run.manifest.promise, max(1, len(run.manifest.data.sites))
    scores = "yes" if promised and promised.scores else "no"

    def in_all(what: str, before_rounds: bool) -> Row:
        total = sum(record.bytes_up for record in run.records if (record.round < 0) is before_rounds)
        return Cell(what), Cell(number_of_bytes(total / sites), total / sites), Cell(NONE), Cell(NONE)

    rows: tuple[Row, ...] = (
        *_kind_rows(run, hello=True),
        *_kind_rows(run, hello=False),
        in_all("the enrolment in all", before_rounds=True),
        in_all(f"the updates of {plural(run.done, 'round')} in all", before_rounds=False),
        (
            Cell(f"scores, {plural(len(run.evaluated), 'time')}"),
            Cell(NONE),
            Cell("accuracy, loss and correct images per class of test images"),
            Cell(scores),
        ),
        (Cell("seconds and FLOPs"), Cell(NONE), Cell("about how many images the site has"), Cell("no")),
    )
    words = [Column(name, number=False) for name in ("what left each site", "what it discloses", "noise")]
    return Table((words[0], Column("bytes per site"), *words[1:]), rows)


def _kind_rows(run: Run, hello: bool) -> Iterator[Row]:
    """The kinds in the `Hello`, or in updates. A promise to images covers what is not declared, too."""
    promised, sent = run.manifest.promise, observed(run.records)
    hides_images = promised is not None and promised.protects == "image"
    noise = "yes" if hides_images else "at the server" if promised and not hello else "no"
    if broken_promise(run):
        hides_images, noise = False, "not known"
    for kind, paths in claims.kinds_sent(run, hello).items():
        sizes = [sent[path].bytes / sent[path].sites for path in paths if path in sent]
        missing = "not seen" if claims.watched_run(run) else NONE
        size = Cell(number_of_bytes(sum(sizes)), sum(sizes)) if sizes else Cell(missing)
        told = discloses(kind)
        has_noise = noise
        if kind == "counts":
            told = f"{'noisy' if noise == 'yes' else 'exact'} counts of images per class"
        elif kind.endswith(f"({UNDECLARED})") and hides_images:
            told = "not declared: only the promise covers it"
        elif kind.endswith(f"({UNDECLARED})"):
            told, has_noise = NOT_COVERED, "not known"
        yield Cell(f"{kind}, {'at the enrolment' if hello else 'in an update'}"), size, Cell(told), Cell(has_noise)


def promise_sentence(run: Run) -> Sentence | None:
    """The promise to each training image, or to each site, and its limits; None without a promise.

    A promise to images covers whatever the method sends: images can be read through releases with noise only.
    """
    promised = run.manifest.promise
    if promised is None:
        return None
    if promised.simulation:
        return Sentence("simulation", "Simulation, no privacy: the noise comes from a public key (test_key).")
    relation = "replace" if promised.adjacency == "replace" else "add or remove"
    budget = f"(epsilon, delta) = ({promised.epsilon:g}, {promised.delta:g}), {relation} one {promised.protects}"
    if broken_promise(run):
        text = f"Not kept: {budget}, was planned, but private images were read without noise. Nothing is covered."
        return Sentence("broken", text)
    if promised.protects == "site":
        covers = "the models that the server sends; not what the server receives, nor scores on test images"
        return Sentence("site", f"Each site: {budget}. It covers {covers}.")
    first, later = promised.releases, promised.refinements
    once = [words for name, words in ONCE_RELEASED.items() if promised.shares.get(name)]
    over = f", over {f'{first} + ' if later else ''}{plural(later or first, 'release')}" if first else ""
    over += f", {enumeration(once)}" if over and once else ""
    sets = ", virtual sets" if run.manifest.method.train_on == "virtual" else ""
    covers = (
        f"It covers what sites send ({enumeration(claims.kinds_sent(run))}){sets} and what is computed from it; not"
    )
    text = f"Each training image of each site: {budget}{over}. {covers}"
    if promised.scores:
        scores = f"Each test image: epsilon {promised.scores:g}."
        return Sentence("image", f"{text} the time that training takes. {scores}")
    return Sentence("image", f"{text} scores on test images.")


def budget_parts(promised: Promise | None) -> dict[str, float]:
    """The parts of the budget (of mu^2) in percent, by their purpose in words."""
    shares = promised.shares if promised else {}
    return {SHARE_NAMES.get(name, name): 100 * share for name, share in shares.items() if share}
