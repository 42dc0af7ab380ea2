"""The generated parts of the pages about membership inference, from the audits in measured/privacy.

python -m results.pages.privacy NAME FILE TITLE COMMAND...   stores the output of `fedlgd audit RUN --json`
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedlgd.core.text import duration, plural
from fedlgd.report.attacks import NO_LEAK, audit_caveats, audit_table, verdict
from fedlgd.report.tables import as_markdown
from fedlgd.rundir.results import Audit, Finding
from results import MEASURED
from results.pages.accuracy import table
from results.pages.figures import dots

FOLDER = MEASURED / "privacy"
LEAK = "a leak was found"
AUDITED = ("mnist-small", "svhn-small", "mnist-medium", "svhn-medium")  # where presets are compared
SMALL, FULL = 200, 5000  # training images of a site
CLEAR = 0.02  # difference of accuracies
TARGETS = {"model": "model", "virtual": "virtual set", "anchors": "anchors", "updates": "updates"}
COMMON = ("paper-protocol", "fewer-controls", "in-sample", "equal-steps", "intervals")  # said once for all audits
WORDS = {
    "leak": "leak found",
    "no-leak": "no leak found",
    "control-missed": "inconclusive",
    "blind-off-chance": "not decided",
}
Stored = Mapping[str, tuple[dict[str, Any], Audit]]


def membership(part: str) -> str:
    """A part of the pages about membership inference."""
    parts = {
        "answer": answer,
        "fedavg": beside_fedavg,
        "summary": summary,
        "presets": presets,
        "audits": each_audit,
        "paper": paper_protocol,
        "claims": claims,
    }
    return parts[part](audits(FOLDER))


def audits(folder: Path) -> Stored:
    """Every stored audit by its name, with its title; the smallest sites first."""
    found = {}
    for file in folder.glob("audit-*.json"):
        stored = json.loads(file.read_text())
        found[file.stem.removeprefix("audit-")] = (stored, msgspec.convert(stored["audit"], Audit))
    return dict(sorted(found.items(), key=lambda item: (item[1][1].images, item[0])))


def shadows(stored: Stored) -> dict[str, Audit]:
    """The audits with shadow federations, by a short title."""
    found = (each for each in stored.values() if each[1].attack != "paper")
    return {re.sub(r": \d+ images a class", "", about["title"]): audit for about, audit in found}


def answer(stored: Stored) -> str:
    """What attacks found at small and at full sites."""
    small, full = (
        [audit for audit in shadows(stored).values() if audit.images in sizes]
        for sizes in (range(SMALL + 1), range(FULL, sys.maxsize))
    )
    model, virtual = (max(_middles(small, target)) for target in ("model", "virtual"))
    most = max(area for target in TARGETS for area in _middles(full, target))
    end = f"At full sites it is at most {most:.3f}"
    if all(verdict(audit).kind == "control-missed" for audit in full):
        end += ", but there the attacks also miss a control that must leak, so this proves nothing"
    return (
        "Training on virtual images alone does not hide who was in the training set. At sites with 20 images per "
        f"class, attacks find members with an area under the curve (AUC) of up to {model:.2f} on the model and "
        f"{virtual:.2f} on the virtual set; guessing has 0.5. {end}."
    )


def beside_fedavg(stored: Stored) -> str:
    """Whether the model leaks less than that of FedAvg on real images, and whether the virtual set leaks more."""
    behind, lower, apart, more, known = [], 0, 0, 0, list(shadows(stored).values())
    for audit in known:
        ours, virtual = (_pick(audit, "run", target) for target in ("model", "virtual"))
        real = _pick(audit, "baseline", "model", "real")
        if ours and real and virtual:
            behind.append(100 * ((real.accuracy or 0) - (ours.accuracy or 0)))
            lower += ours.auc[2] < real.auc[0]
            apart += ours.auc[2] < real.auc[0] or ours.auc[0] > real.auc[2]
            more += virtual.auc[1] > ours.auc[1]
    return (
        f"{plural(lower, 'audit') if lower else 'No audit'} of {len(known)} shows that the final model of FedLGD "
        "leaks less than that of FedAvg on real images. The 95 % intervals of their AUC overlap in "
        f"{len(behind) - apart}, while FedLGD is {min(behind):.0f} to {max(behind):.0f} points less accurate. The "
        f"virtual set has a larger AUC than the model in {more} of {len(known)} audits."
    )


def _middles(found: list[Audit], target: str) -> Iterator[float]:
    for audit in found:
        if best := _pick(audit, "run", target):
            yield best.auc[1]


def summary(stored: Stored) -> str:
    """The strongest attack on each target of each audit; bold where its interval is above 1/2."""
    rows = []
    for title, audit in shadows(stored).items():
        best = [_pick(audit, "run", target) for target in TARGETS]
        best += [_pick(audit, "baseline", "model", "real")]
        rows.append([title, *map(_area, best), WORDS[verdict(audit).kind]])
    heads = ["site", *TARGETS.values(), "FedAvg on real images", "verdict"]
    return table(heads, rows, ["verdict"])


def presets(stored: Stored) -> str:
    """The strongest attack under preset quick, preset strong and redrawing, at sites of the same size."""
    rows = []
    for site in AUDITED:
        quick, *others = (stored.get(site + end) for end in ("", "-strong", "-redraw"))
        if not quick:
            continue
        title = re.sub(r": \d+ images a class", "", quick[0]["title"])
        for target in ("model", "virtual"):
            found = [each and _pick(each[1], "run", target) for each in (quick, *others)]
            real = _pick(quick[1], "baseline", target, "real")
            cells = [_text(each) if each else "not measured" for each in found]
            rows.append([f"{title}, {TARGETS[target]}", *cells, _text(real) if real else "–"])
    return table(["AUC", "`quick`", "`strong`", "`+redraw`", "FedAvg on real images"], rows)


def _area(found: Finding | None) -> str:
    if found is None:
        return "–"
    middle = f"{found.auc[1]:.3f}"
    return f"**{middle}**" if found.auc[0] > 0.5 else middle


def figures() -> dict[str, str]:
    """SVG texts by file name."""
    targets, models = {}, {}
    for title, audit in shadows(audits(FOLDER)).items():
        best = {words: _pick(audit, "run", target) for target, words in TARGETS.items()}
        targets[title] = {words: found.auc for words, found in best.items() if found}
        arms = {"FedLGD": _pick(audit, "run", "model")}
        arms |= {f"FedAvg, {kind} images": _pick(audit, "baseline", "model", kind) for kind in ("real", "virtual")}
        models[title] = {arm: found.auc for arm, found in arms.items() if found}
    along = "AUC of the strongest attack"
    return {
        "privacy-audits.svg": dots(targets, along, "privacy-audits", 0.5),
        "privacy-models.svg": dots(models, f"{along} on the model", "privacy-models", 0.5),
    }


def each_audit(stored: Stored) -> str:
    """The table of each audit with shadow federations."""
    return _sections({name: each for name, each in stored.items() if each[1].attack != "paper"})


def paper_protocol(stored: Stored) -> str:
    """The table of each audit by the protocol of the paper."""
    return _sections({name: each for name, each in stored.items() if each[1].attack == "paper"})


def _sections(stored: Stored) -> str:
    said = {str(each): None for _, audit in stored.values() for each in audit_caveats(audit) if each.kind in COMMON}
    lines = [*(f"- {each}" for each in said), ""]
    for about, audit in stored.values():
        lines += [f"### {about['title']}\n", *(f"    {command}" for command in about["commands"]), ""]
        lines += [f"{verdict(audit)}{_cost(about)}\n", as_markdown(audit_table(audit))]
        lines += [*(f"{each}\n" for each in audit_caveats(audit) if each.kind not in COMMON)]
    return "\n".join(lines).rstrip()


def _cost(about: Mapping[str, Any]) -> str:
    if "cpu" not in about:
        return ""
    wall = f", {duration(about['wall'])} on two cores" if "wall" in about else ""
    return f" The audit took {about['cpu']:.0f} CPU seconds{wall}."


def claims(stored: Stored) -> str:
    """Each privacy claim of the paper that the stored audits can speak about."""
    known = shadows(stored)
    rows = [*_against_fedavg(known), *_no_leak(known), *_protocol(stored)]
    return table(["the paper", "here", "numbers"], rows, ["here", "numbers"])


def _pick(audit: Audit, kind: str, target: str, words: str = "") -> Finding | None:
    """The finding of this kind with the largest area."""
    found = [f for f in audit.findings if f.kind == kind and f.target == target and words in f.label]
    return max(found, key=lambda each: each.auc[1], default=None)


def _text(found: Finding) -> str:
    low, middle, high = found.auc
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def _against_fedavg(known: Mapping[str, Audit]) -> Iterator[list[str]]:
    states = []
    for audit in known.values():
        ours, real = _pick(audit, "run", "model"), _pick(audit, "baseline", "model", "real")
        if ours and real:
            below, above = ours.auc[2] < real.auc[0], ours.auc[0] > real.auc[2]
            behind = (real.accuracy or 0) - (ours.accuracy or 0) > CLEAR
            yes = "confirmed, but at lower accuracy" if behind else "confirmed"
            states.append(yes if below else "not confirmed" if above else "not decidable")
    if states:
        state = states[0] if len(set(states)) == 1 else "not decidable: it depends on the site"
        claim = "The ROC of FedLGD's model is nearer to the diagonal than that of FedAvg on real images"
        lower = sum(each.startswith("confirmed") for each in states)
        numbers = f"Lower in {lower} of {len(states)} audits, higher in {states.count('not confirmed')}"
        yield [claim, state, f"{numbers}; the intervals overlap in the others"]


def _no_leak(known: Mapping[str, Audit]) -> Iterator[list[str]]:
    """Claims that something does not leak: refuted by one finding, never confirmed."""
    claims = {
        "model": "Training on virtual data protects the members of a site (implied by Dong et al., 2022)",
        "virtual": "A virtual set can be kept or shared without telling who was there",
        "updates": "Averaged gradients further improve the privacy guarantee",
    }
    for target, claim in claims.items():
        if found := _known(known, target):
            leak = any(each.auc[0] > 0.5 for each in found.values())
            yield [claim, f"not confirmed: {LEAK}" if leak else f"not decidable: {NO_LEAK}", _most(found)]
    anchors, models = _known(known, "anchors"), _known(known, "model")
    if anchors:
        more = any(each.auc[0] > models[name].auc[2] for name, each in anchors.items() if name in models)
        leak = any(each.auc[0] > 0.5 for each in anchors.values())
        state = f"not decidable: {'they leak, but no more than the model' if leak else NO_LEAK}"
        state = "not confirmed: they leak more than the model" if more else state
        yield ["Anchors cause no extra privacy leakage", state, _most(anchors)]


def _known(known: Mapping[str, Audit], target: str) -> dict[str, Finding]:
    found = {title: _pick(audit, "run", target) for title, audit in known.items()}
    return {title: each for title, each in found.items() if each}


def _most(known: Mapping[str, Finding]) -> str:
    """The largest and the smallest area of several audits."""
    title, found = max(known.items(), key=lambda item: item[1].auc[1])
    least, other = min(known.items(), key=lambda item: item[1].auc[1])
    most = f"At most {_text(found)} ({title}; {found.statistic})"
    return most if len(known) == 1 else f"{most}. At least {_text(other)} ({least}; {other.statistic})"


def _protocol(stored: Stored) -> Iterator[list[str]]:
    """The attack of the paper on the same model, held out, in-sample and blind."""
    numbers, wrong = [], {False: False, True: False}
    for _, audit in (each for each in stored.values() if each[1].attack == "paper"):
        blind = _pick(audit, "blind", "model")
        first = next(each for each in audit.findings if each.kind == "run")
        if blind:
            wrong[bool(audit.settings.get("in_sample"))] |= blind.auc[0] > 0.5
            how = "In-sample" if audit.settings.get("in_sample") else "Held out"
            numbers.append(f"{how}: {_text(first)}, blind {_text(blind)} ({first.statistic}; {audit.site})")
    if numbers:
        how = "held out" if wrong[False] else "in-sample"
        state = f"not confirmed: {how}, it finds a leak in a model that saw neither side"
        claim = "A likelihood ratio of gradient norms, training against test images, measures leakage"
        yield [claim, state if any(wrong.values()) else "not decidable", ". ".join(numbers)]


def store(name: str, file: str, title: str, *commands: str) -> None:
    """Keep what the tables need; curves are in the report of a run. `cpu=SECONDS`, `wall=SECONDS`: its cost."""
    (audit,) = json.loads(Path(file).read_text()).values()
    for each in audit["findings"]:
        each["roc"] = []
    cost = dict(each.split("=", 1) for each in commands if each.startswith(("cpu=", "wall=")))
    told = [each for each in commands if not each.startswith(("cpu=", "wall="))]
    kept = {"title": title, "commands": told, **{k: float(v) for k, v in cost.items()}, "audit": audit}
    (FOLDER / f"audit-{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    store(*sys.argv[1:])
