"""The coordinator's half of a run at real sites: `runs.run.execute` with the engine flower.

`fedlgd run --engine flower` calls `coordinate` with a grid of its own. `app` does the same for users of `flwr run`:
the run configuration names the file of a `Request`. The run folder is on the coordinator, as in any other
run. Stop it at any moment: the same request resumes.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlgd.core import files
from fedlgd.core.errors import RunError, one_line
from fedlgd.core.text import plural
from fedlgd.data.federation import Federation
from fedlgd.data.own.sites import natural
from fedlgd.deploy.engine import AWAY, MARGIN_BYTES, PAUSE_SECONDS, Flower, Post, is_name
from fedlgd.deploy.messages import Description, Order, read_reply
from fedlgd.deploy.real_sites import without_images
from fedlgd.engines.validate import Refused, check_enrolled
from fedlgd.rundir.manifest import read_manifest
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.extend import continued
from fedlgd.runs.result import Result
from fedlgd.runs.run import Listener, execute

app = ServerApp()

MAX_CLASSES = 10_000
MAX_SIDE_PIXELS = 4_096


@dataclass(frozen=True, kw_only=True)
class Request:
    """A run of real sites. `sites`: the node id of every site, from the registered keys. `timeout`: seconds that a
    round waits for its sites. `config` is the text of the run's `config.toml`, with data name "real-sites"."""

    config: str
    out: str
    sites: dict[str, int]
    timeout: float = 3600.0
    threads: int = 1
    command: str = ""

    def write(self, file: Path) -> None:
        files.write_json(file, msgspec.to_builtins(self))

    @classmethod
    def read(cls, file: Path) -> "Request":
        given = files.read_json(file)
        with files.reading(file):
            return msgspec.convert(given, cls)


@app.main()
def main(grid: Grid, context: Context) -> None:
    coordinate(grid, Request.read(Path(str(context.run_config["request"]))))


def coordinate(
    grid: Grid, request: Request, on_round: Listener | None = None, pause: float = PAUSE_SECONDS
) -> Result:
    """Run or resume the request with the sites that the grid reaches."""
    torch.set_num_threads(request.threads)
    out = Path(request.out).absolute()
    config = continued(resolve(tomllib.loads(request.config)), out)
    post = Post(grid=grid, nodes=request.sites, timeout=request.timeout, pause=pause)
    run = files.digest(str(out).encode(), request.config.encode())
    federation = _known(out, request.sites) or _described(post, config, run, request)
    order = Order(run=run, config=config.toml(), classes=federation.classes, shape=federation.shape)
    return execute(config, federation, out, on_round, request.command, engine=Flower(post=post, order=order))


def _known(out: Path, sites: Mapping[str, int]) -> Federation | None:
    """The federation of a run that has started; its sites are not asked again."""
    if not (out / "state").exists():
        return None
    data = read_manifest(out).data
    notes = {site.name: site.note for site in data.sites}
    if notes.keys() != sites.keys():
        raise RunError("kit-of-another-run", out=str(out), started=sorted(notes), given=sorted(sites))
    return without_images(notes, data.classes, data.shape)


def _described(post: Post, config: Config, run: str, request: Request) -> Federation:
    """Ask the sites for their classes and the shape of their images."""
    names = list(request.sites)
    told: dict[str, Description] = {}
    refused = dict.fromkeys(names, AWAY)
    here = post.wait_for(names, config.plan.quorum)
    for sent, got in post.ask(Order(run=run, config=request.config), dict.fromkeys(here, ())):
        try:
            if isinstance(got, str):
                raise Refused("site-fault", fault=got)
            (found,) = read_reply(got.content, sent.question, Description, 1, MARGIN_BYTES)
            _check_description(found, sent.site)
        except Refused as refusal:
            refused[sent.site] = str(refusal)
            continue
        told[sent.site] = found
        del refused[sent.site]
    check_enrolled(len(names), refused, config.plan.quorum)
    classes = tuple(natural({name for each in told.values() for name in each.classes}))  # as for folders
    return without_images({name: _note(told.get(name)) for name in names}, classes, _shape(told))


def _check_description(told: Description, site: str) -> None:
    if told.fault:
        raise Refused("site-fault", fault=one_line(told.fault))
    if told.site != site:
        raise Refused("name-of-another", name=told.site[:40])
    if not all(map(is_name, told.classes)) or not 2 <= len(set(told.classes)) == len(told.classes) <= MAX_CLASSES:
        raise Refused("classes-impossible")
    if not all(0 < side <= MAX_SIDE_PIXELS for side in told.shape):
        raise Refused("shape-impossible", shape=told.shape)


def _note(told: Description | None) -> str:
    if told is None or told.images is None:
        return ""
    return f"{told.images[0]} training and {plural(told.images[1], 'test image')}"


def _shape(told: Mapping[str, Description]) -> tuple[int, ...]:
    shapes = {name: each.shape for name, each in sorted(told.items())}
    if len(set(shapes.values())) > 1:
        raise RunError("shapes-of-sites-differ", shapes=shapes)
    return next(iter(shapes.values()))
