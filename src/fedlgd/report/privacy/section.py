"""The privacy section of a report: what left each site, what is promised, and what attacks found."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlgd.core.files import safe_name
from fedlgd.core.settings import flat
from fedlgd.core.text import number_of_bytes, plural
from fedlgd.dp import accounting
from fedlgd.report.figures import Drawing
from fedlgd.report.formats import NONE, Cell, Column, Table
from fedlgd.report.groups import Group, short
from fedlgd.report.privacy.audit import audit_caveats, audit_table, verdict
from fedlgd.report.privacy.roc import roc_plots
from fedlgd.rundir.manifest import Promise
from fedlgd.rundir.read import Run
from fedlgd.rundir.results import AUDIT
from fedlgd.rundir.sweep import with_note

READ_ROC = (
    "Both axes are logarithmic. Bands: 95 % over images. A curve far above the dotted line at small false positive "
    "rates means that some images can be recognised almost with certainty."
)
SHARES = {"start": "initial images", "refine": "refinement", "distil": "first virtual set"}
BASIS = "Real images of the site enter through its virtual set only."


@dataclass(frozen=True, slots=True)
class Privacy:
    """What the report says about one run. `shares`: parts of the privacy budget in percent."""

    heading: str
    left: Table
    promise: str
    shares: tuple[tuple[str, float], ...]
    audits: tuple["Audited", ...]


@dataclass(frozen=True, slots=True)
class Audited:
    """One audit of a run; the heading has the settings in which it differs from others of the same run."""

    heading: str
    table: Table
    verdict: str
    caveats: tuple[str, ...]
    drawings: tuple[Drawing, ...]


def privacy_of(groups: Sequence[Group]) -> tuple[Privacy, ...]:
    """Every audited run, and one run of each group without an audit."""
    chosen = ([run for run in group.runs if run.audits] or group.counted[:1] for group in groups)
    return tuple(_privacy(run) for runs in chosen for run in runs)


def _privacy(run: Run) -> Privacy:
    promised = run.manifest.promise
    shares = {SHARES.get(name, name): 100 * share for name, share in promised.shares.items()} if promised else {}
    return Privacy(
        heading=f"{run.label}, seed {run.seed}",
        left=left_table(run),
        promise=promise_text(promised),
        shares=tuple((name, share) for name, share in shares.items() if share),
        audits=tuple(_audited(run)),
    )


def _audited(run: Run) -> Iterator[Audited]:
    labels = labels_of({name: ("site " + each.site, each.settings) for name, each in run.audits.items()})
    for name, audit in run.audits.items():
        drawings = tuple(_drawings(run, name, labels[name]))
        yield Audited(labels[name], audit_table(audit), verdict(audit), tuple(audit_caveats(audit)), drawings)


def audit_drawings(run: Run) -> Iterator[Drawing]:
    """The ROC curves of all audits of a run."""
    for each in _audited(run):
        yield from each.drawings


def _drawings(run: Run, name: str, label: str) -> Iterator[Drawing]:
    for number, (title, figure) in enumerate(roc_plots(run.audits[name])):
        about = f"ROC on log-log axes, {title}, {run.label}, seed {run.seed}, {label}"
        file = f"roc{number}-{safe_name(run.manifest.method.name)}-seed{run.seed}{name.removeprefix(AUDIT)}"
        yield Drawing(file, about, figure, "" if number else READ_ROC)


def labels_of(results: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """The label of each result of a run, with the settings in which they differ: `site scans (attack=lira)`.

    The site is in the label, and what is shown of a result does not change it.
    """
    found = {name: dict(flat(settings)) for name, (_, settings) in results.items()}
    paths = dict.fromkeys(path for each in found.values() for path in each if path not in ("site", "show"))
    values = {path: {str(each[path]) for each in found.values() if path in each} for path in paths}
    differ = [path for path in paths if len(values[path]) > 1]
    return {
        name: with_note(label, {path: short(path, found[name][path]) for path in differ if path in found[name]})
        for name, (label, _) in results.items()
    }


def left_table(run: Run) -> Table:
    """What every site has sent, with bytes per site: the mean over sites, because records have only sums."""
    sites, method, promised = max(1, len(run.manifest.data.sites)), run.manifest.method, run.manifest.promise
    hello = sum(record.bytes_up for record in run.records if record.round < 0)
    updates = sum(record.bytes_up for record in run.records if record.round >= 0)
    scored = len(run.evaluated)
    covered = promised is not None and promised.protects == "image"
    noisy = "yes" if covered else "at the server" if promised else "no"
    statistics = ", and pixel statistics" if "statistics" in method.hello else ""
    sent = " and ".join({"loss": "training loss"}.get(each, each) for each in method.update)
    rows: tuple[tuple[str, float | None, str, str], ...] = (
        (
            "hello, once",
            hello,
            f"{'noisy' if covered else 'exact'} counts of images per class{statistics}",
            "yes" if covered else "no",
        ),
        (
            "updates",
            updates,
            f"{sent}. {BASIS if method.train_on == 'virtual' else 'Trained on real images.'}",
            noisy,
        ),
        (
            f"scores, {plural(scored, 'time')}",
            None,
            "accuracy, loss and correct images per class of test images",
            "yes" if promised and promised.scores else "no",
        ),
        ("seconds and FLOPs", None, "tell about how many images the site has", "no"),
    )
    columns = (
        Column("what left each site", number=False),
        Column("bytes per site"),
        Column("from", number=False),
        Column("noise", number=False),
    )
    return Table(columns, tuple((Cell(a), _bytes(n, sites), Cell(b), Cell(c)) for a, n, b, c in rows))


def _bytes(total: float | None, sites: int) -> Cell:
    return Cell(NONE) if total is None else Cell(number_of_bytes(total / sites), total / sites)


def promise_text(promised: Promise | None) -> str:
    """What is promised to each training image, in words; empty without a promise."""
    if promised is None:
        return ""
    if promised.simulation:
        return "Simulation, no privacy: the noise comes from a public key (test_key)."
    relation = "replace" if promised.adjacency == "replace" else "add or remove"
    who = "Each site" if promised.protects == "site" else "Each training image of each site"
    scores = f"Each test image: epsilon {promised.scores:g}." if promised.scores else ""
    first, later = promised.releases, promised.refinements
    over = f", over {f'{first} + ' if later else ''}{plural(later or first, 'release')}" if first else ""
    return (
        f"{who}: (epsilon, delta) = ({promised.epsilon:g}, {promised.delta:g}), {relation} one image"
        f"{over}. It covers models, anchors, prototypes and virtual sets; not "
        f"{'the time that training takes' if scores else 'scores on test images'}. {scores}"
    ).rstrip()


def spent_together(groups: Sequence[Group]) -> str:
    """What the sites have spent on all these runs; empty unless several runs make a promise with their secret.

    Runs of private distillation on all images are Gaussian: mu^2 adds up, at the smallest delta. Otherwise both
    epsilon and delta add up, which is always true.
    """
    runs = [run for group in groups for run in group.runs]
    promised = {
        (run.manifest.data.digest, run.seed, str(run.settings)): run.manifest.promise
        for run in runs
        if run.manifest.promise and not run.manifest.promise.simulation
    }
    budgets = list(promised.values())
    if len(budgets) < 2 or len({data for data, *_ in promised}) > 1:
        return ""
    if all(each.gaussian for each in budgets):
        delta = min(each.delta for each in budgets)
        mu = math.sqrt(sum(accounting.mu_for(each.epsilon, each.delta) ** 2 for each in budgets))
        epsilon = accounting.epsilon(mu, delta)
    else:
        epsilon, delta = sum(each.epsilon for each in budgets), sum(each.delta for each in budgets)
    return (
        f"These {len(budgets)} runs have the same images: on them together each site has spent at most (epsilon, "
        f"delta) = ({epsilon:.3g}, {delta:.2g}). Its ledger knows of other runs."
    )
