"""Shadow federations: the same run in which one site has a random half of its images, watched by an attacker.

Every message passes the tap. Statistics of all attacked images are computed while the federation runs, and stored
in one file per federation, so that an interrupted audit goes on. Virtual sets of other sites are cached.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean

from torch import Tensor

from fedlgd.attacks.pool import halved
from fedlgd.attacks.sent import is_whole
from fedlgd.attacks.watch import MAX_DRAWS, Study, Watch
from fedlgd.core.errors import RunError
from fedlgd.core.meter import tick
from fedlgd.core.types import ServerState
from fedlgd.data.federation import Federation
from fedlgd.distill.settings import Distil
from fedlgd.engines.server import serve
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.engines.storage import RamStorage, States
from fedlgd.engines.wire import read_message, write_message
from fedlgd.methods.common import Training, enrol
from fedlgd.methods.protocol import Net, Stream
from fedlgd.runs.config import Config
from fedlgd.runs.jobs import run_jobs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observations:
    """What an attacker of one federation observes: statistics by "target/name", and the accuracy of the model.

    unattacked: the paths of what the site sent and no attack looked at.
    """

    members: Tensor
    statistics: dict[str, Tensor]
    accuracy: float | None = None
    unattacked: tuple[str, ...] = ()


OnRound = Callable[..., None]
Tap = Callable[[Task, Answer], None]


def run_federation(
    config: Config, federation: Federation, net: Net, states: States, on_round: OnRound, tap: Tap = lambda *_: None
) -> tuple[ServerState, float]:
    """The last state of the server, and the mean accuracy over sites.

    `tap` is called with every task and its answer: all that the server sees of a site.
    """
    method, plan, memory = config.method, config.plan, RamStorage()
    sites = Sites(method, federation, net, plan, states)

    def work(task: Task) -> Answer:
        answer = sites(task)
        tap(task, answer)
        return answer

    for record in serve(sites, memory, partial(map, work)):
        on_round(record)
    state = memory.server()
    assert state is not None
    return state, fmean(score.accuracy for score in record.scores.values())


def run_watched(
    config: Config, federation: Federation, net: Net, study: Study, members: Tensor, on_round: OnRound
) -> Observations:
    """Run a federation and return what its attacker has seen. There is a model to attack if all sites share one."""
    method, net = config.method, config.method.adapt(net)
    first = net.init(Stream(config.plan.seed).at("init"))
    known = getattr(method, "draws", None)
    draws = tuple(islice(known(net, config.plan.seed), MAX_DRAWS)) if known else ()
    watch = Watch(study, net, config.plan.rounds, members, first, method.sends, draws)
    half = halved(federation, study.pool, members, watch.release)
    state, accuracy = run_federation(config, half, net, watch, on_round, watch.tap)
    if state.anchors:
        watch.anchors(state.anchors)
    if not has_distil(method) and "copies/nearest" not in watch.found:
        watch.copy()
    shared = not method.personal and is_whole(state.params, first)
    model = study.of_model(net, state.params) if shared else {}
    return Observations(
        members=members,
        statistics=watch.found | {f"model/{name}": values for name, values in model.items()},
        accuracy=accuracy,
        unattacked=watch.unattacked,
    )


def has_distil(method: object) -> bool:
    """Whether a method has our settings of distillation, by which controls are made; a user's own need not."""
    return isinstance(getattr(method, "distil", None), Distil)


def distil_watched(
    config: Config, federation: Federation, net: Net, study: Study, members: Tensor, _: OnRound
) -> Observations:
    """Only the first virtual set of the site; no federation is run."""
    site = halved(federation, study.pool, members).by_name[study.pool.site]
    method = config.method
    assert isinstance(method, Training)
    virtual = enrol(method, site, net, Stream(config.plan.seed).at("enrol", site.name))[0].virtual
    assert virtual is not None
    found = study.of_images(virtual.data.x, virtual.data.y)
    return Observations(members=members, statistics={f"virtual/{name}": values for name, values in found.items()})


@dataclass(frozen=True, slots=True)
class Shadow:
    """One federation to run: where its statistics are stored, and how many ticks of progress it has."""

    file: Path
    run: Callable[[OnRound], Observations]
    ticks: int
    label: str = ""

    @property
    def title(self) -> str:
        return f"shadow federation {self.file.stem}" + (f" of {self.label}" if self.label else "")

    @property
    def group(self) -> Path:
        """No other federation has its virtual sets."""
        return self.file

    def work(self, on_round: OnRound) -> None:
        write_message(self.file, self.run(on_round), private=True)

    def read(self) -> Observations:
        return read_message(self.file, Observations)


def run_shadows(shadows: Sequence[Shadow], jobs: int, command: str = "") -> None:
    """Run what is not stored yet, `jobs` federations at a time in processes with one thread each.

    command: runs one at a time in this process, where an error shows its traceback.
    """
    left = [shadow for shadow in shadows if not shadow.file.exists()]
    total, done = sum(shadow.ticks for shadow in left), 0

    def advance(*_: object) -> None:
        nonlocal done
        done += 1
        tick("shadow federations", min(done, total), total)

    if jobs == 1:
        for shadow in left:
            shadow.work(advance)
        return
    with closing(run_jobs(left, jobs, Shadow.work, advance)) as running:
        for ended in running:
            if ended.error:
                values = {"title": ended.job.title, "cause": ended.code, "command": command}
                raise RunError("shadow-failed", error=ended.error, **values)
