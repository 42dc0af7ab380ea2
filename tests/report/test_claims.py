"""Methods of a user: every sentence about them follows from what they declare and what was observed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fedlgd.core.types import Update
from fedlgd.methods import common
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.protocol import WEIGHTS, Expected
from fedlgd.report import claims, privacy
from fedlgd.report.cost import break_evens, cost_table
from fedlgd.report.groups import group_runs
from fedlgd.report.page import images_section, render
from fedlgd.report.summary import caveats
from fedlgd.rundir.disclosure import DISCLOSES, UNKNOWN_KIND
from fedlgd.rundir.manifest import Promise
from fedlgd.rundir.read import Run, read_run
from fedlgd.rundir.records import SentPart
from fedlgd.runs.run import execute
from tests import tiny
from tests.report.fake import write_run
from tests.runs.folder import config

pytestmark = pytest.mark.usefixtures("undrawn")
CLASSES = tiny.CLASSES
PROMISE = Promise(epsilon=4.0, delta=1e-5, gaussian=True)


@dataclass(frozen=True, kw_only=True)
class Uploading(common.Training):
    """The sites train no model: they send some pictures, and the server keeps its model."""

    name: ClassVar[str] = "uploading"
    train_on: ClassVar[Any] = "nothing"
    sends: ClassVar[Mapping[str, str]] = {"trees/virtual": "images"}
    start, broadcast = common.start, common.broadcast

    def enrol(self, site, net, rng):
        return FedAvg.enrol(tiny.fedavg(), site, net, rng)

    def pictures(self, state, site):
        return state.virtual.images[:CLASSES].clone()

    def site(self, msg, state, site, net, rng, fit=common.fit):
        trees = {"virtual": {"images": self.pictures(state, site)}}
        return Update(site=site.name, params={}, weight=1.0, trees=trees), state

    def server(self, state, updates, net, rng):
        list(updates)
        return replace(state, round=state.round + 1)

    def expects(self, msg, net, hello):
        return Expected({}, {"virtual": {"images": torch.empty(CLASSES, *net.shape)}})


@dataclass(frozen=True, kw_only=True)
class Lying(Uploading):
    """Declares weights, and reads at the enrolment; sends real images, which it reads in every round."""

    name: ClassVar[str] = "lying"
    train_on: ClassVar[Any] = "virtual"
    sends: ClassVar[Mapping[str, str]] = {"params": "weights"}

    def pictures(self, state, site):
        return site.train.x[:CLASSES].float()


@dataclass(frozen=True, kw_only=True)
class Means(common.Training):
    """FedAvg on real images that also sends mean features, and a number of a kind that nobody else knows."""

    name: ClassVar[str] = "means"
    sends: ClassVar[Mapping[str, str]] = {**WEIGHTS, "trees/means": "feature means", "trees/radius": "a radius"}
    enrol, start, broadcast, server = common.enrol, common.start, common.broadcast, common.average

    def site(self, msg, state, site, net, rng, fit=common.fit):
        sent, state = FedAvg.site(self, msg, state, site, net, rng, fit)
        features = net(msg.params, site.train.x.float()).features.detach()
        means = torch.stack([features[site.train.y == k].mean(0) for k in range(tiny.CLASSES)])
        return replace(sent, trees={"means": {"means": means}, "radius": {"radius": torch.ones(1)}}), state

    def expects(self, msg, net, hello):
        features = net(msg.params, torch.zeros(1, *net.shape)).features
        means = torch.empty(tiny.CLASSES, *features.shape[1:])
        return Expected(msg.params, {"means": {"means": means}, "radius": {"radius": torch.empty(1)}})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for cls in (Uploading, Lying, Means):
        execute(config(tiny.settings(cls(), tiny.SETTINGS), rounds=3), tiny.federation(), folder / cls.name)
        found[cls.name] = read_run(folder / cls.name)
    return found


def rows(run: Run) -> dict[str, tuple[float | None, str, str]]:
    """Bytes, what is disclosed and noise, by what left each site."""
    return {row[0].text: (row[1].value, row[2].text, row[3].text) for row in privacy.left_table(run).rows}


def facts(run: Run) -> list[str]:
    (part,) = privacy.privacy_section(group_runs([run]))["runs"]
    return [each.kind for each in part["facts"]]


def test_a_method_that_uploads_images_is_not_said_to_train_or_to_keep_them(runs: dict[str, Run]) -> None:
    """By hand: 3 pictures of 3 x 8 x 8 floats in a message of each site, in each of 3 rounds."""
    run = runs["uploading"]
    assert run.label == "Uploading"
    assert facts(run) == ["trained-on-nothing", "reads-observed"]
    found = rows(run)
    assert [*found][:2] == ["counts, at the enrolment", "images, in an update"]
    assert found["images, in an update"] == (3 * 3 * 64 * 4, DISCLOSES["images"], "no")
    assert found["the updates of 3 rounds in all"][0] == 3 * 3 * 3 * 64 * 4
    assert images_section(group_runs([run]))["stay"].kind == "sets-sent"
    assert not break_evens(group_runs([run]))
    assert "training loss" not in str(found)


def test_a_kind_of_the_authors_own_is_named_and_nothing_is_said_about_it(runs: dict[str, Run]) -> None:
    run = runs["means"]
    assert facts(run) == ["trained-on-real", "reads-observed"]
    assert rows(run)["a radius, in an update"] == (4, UNKNOWN_KIND, "no")
    assert rows(run)["feature means, in an update"][1] == DISCLOSES["feature means"]
    assert rows(run)["weights, in an update"][0] == 4 * tiny.param_count()
    assert "undeclared" not in [each.kind for each in caveats(group_runs([run]))]


def test_a_false_declaration_is_told_and_no_statement_rests_on_it(runs: dict[str, Run]) -> None:
    run = runs["lying"]
    assert facts(run) == [
        "training-unknown",
        "reads-observed",
        "sent-undeclared",
        "read-undeclared",
        "declared-unsent",
    ]
    found = rows(run)
    told = (3 * 3 * 64 * 4, privacy.NOT_COVERED, "not known")
    assert found["trees/virtual (not declared), in an update"] == told
    assert found["weights, in an update"][0] is None
    warning = caveats(group_runs([run]))[0]
    assert warning.kind == "undeclared"
    assert all(each in warning.text for each in (run.label, "trees/virtual", "round 1"))
    assert images_section(group_runs([run]))["stay"].kind == "sets-unknown"
    page = render([run])
    assert page.count('data-kind="undeclared"') == page.count('data-kind="read-undeclared"') == 1
    assert 'data-kind="virtual-only"' not in page


def test_methods_that_train_no_model_are_named_apart(runs: dict[str, Run]) -> None:
    groups = group_runs(runs.values())
    idle = claims.without_training(groups)
    assert idle == [runs["uploading"].label, runs["lying"].label]  # the second was not seen to train
    (_, note) = cost_table(groups).notes
    assert all(label in note for label in idle)
    assert len(cost_table(group_runs([runs["means"]])).notes) == 1


def test_the_table_of_declarations_has_every_method(runs: dict[str, Run]) -> None:
    declared = claims.declared_table(group_runs(runs.values()))
    assert [[cell.text for cell in row[1:]] for row in declared.rows] == [
        ["nothing", "at the enrolment", "counts", "images"],
        ["virtual sets", "at the enrolment", "counts", "weights"],
        ["real images", "in every round", "counts", "weights, loss, feature means and a radius"],
    ]


def run_with(path: Path, promise: Promise | None = None, readers: Mapping[int, int] | None = None, **method: Any):
    """A run of four rounds with facts of its method, and sites that read in these rounds."""
    run = read_run(write_run(path))
    manifest = replace(run.manifest, promise=promise, method=replace(run.manifest.method, **method))
    part = {"params": SentPart(tensors=2, form="", bytes=30, sites=3)}
    records = [replace(each, sent=part if each.round >= 0 and readers is not None else {}) for each in run.records]
    records = [replace(each, readers=(readers or {}).get(each.round, 0)) for each in records]
    return replace(run, manifest=manifest, records=tuple(records))


@pytest.mark.parametrize(
    ("method", "readers", "kinds"),
    [
        ({"train_on": "virtual", "reads": ("enrolment",)}, None, ["virtual-only", "reads-declared"]),
        ({"train_on": "virtual", "reads": ("enrolment",)}, {-1: 3}, ["virtual-only", "reads-observed"]),
        ({"train_on": "virtual", "reads": ()}, {}, ["virtual-only", "reads-observed"]),
        ({"train_on": "virtual", "reads": ("every",)}, {2: 1}, ["trained-on-virtual", "reads-observed"]),
        ({"train_on": "virtual", "reads": ("enrolment",)}, {-1: 3, 3: 1}, ["training-unknown", "reads-observed"]),
        ({"train_on": "virtual", "reads": ()}, {-1: 1}, ["training-unknown", "reads-observed"]),
        ({"train_on": "real", "reads": ("every",)}, {0: 3}, ["trained-on-real", "reads-observed"]),
    ],
)
def test_what_sites_trained_on_follows_from_the_declaration_and_the_reads(
    method: dict[str, Any], readers: dict[int, int] | None, kinds: list[str], tmp_path: Path
) -> None:
    run = run_with(tmp_path / "a", None, readers, **method)
    assert [claims.training_sentence(run).kind, claims.reading_sentence(run).kind] == kinds


def test_a_promise_covers_the_kinds_that_are_sent(tmp_path: Path) -> None:
    sends = {"hello/counts": "counts", "params": "weights", "trees/prototypes": "prototypes"}
    run = run_with(tmp_path / "a", PROMISE, {}, sends=sends, train_on="real", reads=("every",))
    assert "(counts, weights and prototypes)" in privacy.promise_sentence(run).text
    assert "virtual" not in privacy.promise_sentence(run).text
    assert claims.reading_sentence(run).kind == "reads-released"
    more = replace(run.records[1], sent={**run.records[1].sent, "trees/x": run.records[1].sent["params"]})
    undeclared = replace(run, records=(run.records[0], more))
    assert privacy.promise_sentence(undeclared).kind == "image"
    assert rows(undeclared)["trees/x (not declared), in an update"][2] == "yes"


def test_a_run_that_read_images_without_noise_is_not_called_covered(tmp_path: Path) -> None:
    run = run_with(tmp_path / "a", PROMISE, {2: 1}, reads=("every",))
    assert privacy.promise_sentence(run).kind == "broken"
    assert {noise for _, _, noise in rows(run).values()} == {"not known", "no", "–"}
    page = render([run])
    assert 'data-promise="broken"' in page
    assert "It covers" not in page
    kept = replace(run_with(tmp_path / "b", PROMISE), seed=1)
    assert privacy.spent_together(group_runs([replace(run, records=kept.records), kept]))
    assert not privacy.spent_together(group_runs([run, kept]))
    site = run_with(tmp_path / "c", replace(PROMISE, protects="site"), {2: 1}, reads=("every",))
    assert privacy.promise_sentence(site).kind == "site"


def test_old_records_have_kinds_without_bytes_and_the_totals(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"))
    found = rows(run)
    assert found["weights, in an update"][:2] == (None, DISCLOSES["weights"])
    assert found["the enrolment in all"][0] == 400
    assert found["the updates of 4 rounds in all"][0] == pytest.approx(4e6 / 3)


def test_the_hello_of_a_method_is_told_by_its_kinds(tmp_path: Path) -> None:
    hello = {"hello/counts": "counts", "hello/statistics": "statistics", "hello/trees/means": "feature means"}
    run = run_with(tmp_path / "a", None, {}, sends={**hello, **WEIGHTS})
    assert [*rows(run)][:3] == [f"{kind}, at the enrolment" for kind in hello.values()]
    assert rows(run)["weights, in an update"][0] == 10
