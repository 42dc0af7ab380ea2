"""Parts that can be stacked on a method: anchors, refinement of virtual sets, regularisers.

`--method scaffold+anchors+refine`, or in Python `Refined(method=Anchored(method=Scaffold(train_on="virtual")))`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Self

from fedlgd.core.errors import SettingError
from fedlgd.core.types import Broadcast, Hello, Params, ServerState, Site, SiteState, Update
from fedlgd.distill.gradient import match_gradient, pseudo_gradient
from fedlgd.distill.private import reserve_refinements
from fedlgd.methods.anchors import Anchors, stale_anchors
from fedlgd.methods.catalogue import parts_of
from fedlgd.methods.common import fit
from fedlgd.methods.objective import Term
from fedlgd.methods.protocol import Fit, Method, Net, Settings, Stream, Trained, Visit
from fedlgd.methods.refine import REDRAWN, Refine
from fedlgd.methods.regularisers import Pull, Regulariser

Presets = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part stacked on a method. It delegates everything it does not define to the inner method."""

    kind: ClassVar[str]
    allows: ClassVar[tuple[str, ...] | None] = None
    """The kinds of parts that can be stacked on this one; None: all that the method accepts."""
    method: Method

    def __post_init__(self) -> None:
        if self.kind not in self.stackable(self.method):
            possible = ", ".join(parts_of(self.stackable(self.method))) or "nothing"
            raise SettingError(f"{self.stack} cannot be stacked on {self.method.name}; it accepts: {possible}")
        twice = self.sections.keys() & all_settings(self.method).keys()
        if twice:
            raise SettingError(f"{self.method.name} already has a section {twice.pop()!r}; stack each part once")

    @staticmethod
    def stackable(method: Method) -> tuple[str, ...]:
        """The kinds of parts that a method accepts: each kind once, regularisers any number of times."""
        if isinstance(method, Part):
            inner = Part.stackable(method.method)
            left = tuple(kind for kind in inner if kind != method.kind or kind == "regulariser")
            return left if method.allows is None else tuple(kind for kind in left if kind in method.allows)
        kinds: tuple[str, ...] = getattr(method, "stackable", ("regulariser",))
        return kinds

    def __getattr__(self, name: str) -> Any:
        """Functions and settings of the inner method: `adapt`, `personal`, `local`, `mu`."""
        if name.startswith("_") or name == "method":
            raise AttributeError(name)
        return getattr(self.method, name)

    @property
    def sections(self) -> dict[str, Settings]:
        """The settings of this part by section."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "method"}

    @property
    def stack(self) -> str:
        """The name of this part after `+`."""
        return self.kind

    @property
    def name(self) -> str:
        return f"{self.method.name}+{self.stack}"

    @property
    def label(self) -> str:
        name, on, data = self.method.label.partition(" on ")
        return f"{name} + {self.title}{on}{data}"

    @property
    def title(self) -> str:
        return self.stack

    def at(self, t: int, rounds: int) -> Self:
        return replace(self, method=self.method.at(t, rounds))


@dataclass(frozen=True, kw_only=True)
class Anchored(Part):
    """Adds anchors, updated by gradient matching in selected rounds, to a method that averages models."""

    kind: ClassVar[str] = "anchors"
    presets: ClassVar[Presets] = {
        "paper": {"anchors.plan": "exact", "anchors.steps": 500},
        "quick": {"anchors.steps": 10, "pull.weight": 1.0},
        "strong": {"anchors.steps": 10, "pull.weight": 1.0},
    }

    anchors: Anchors = Anchors()
    pull: Pull = Pull()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.anchors.check_upload(self.distil)

    @property
    def stack(self) -> str:
        """`noise` if the anchors are never updated and have no regulariser: the control for anchors."""
        return "anchors" if self.anchors.steps or self.pull.weight else "noise"

    @property
    def title(self) -> str:
        return {"noise": "noise images"}.get(self.stack, self.stack)

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        state, hello = self.method.enrol(site, net, rng)
        statistics = self.anchors.upload(site, self.distil.statistics, net)
        return state, replace(hello, statistics=statistics)

    def expects_hello(self, net: Net) -> Hello:
        return self.anchors.hello(net)

    def start(self, params: Params, hellos: Sequence[Hello], net: Net, rng: Stream) -> ServerState:
        state = self.method.start(params, hellos, net, rng)
        return replace(state, anchors=self.anchors.first(hellos, net, rng))

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        needed = self.anchors.needed_in(state.round, self.pull)
        return replace(self.method.broadcast(state, site), anchors=stale_anchors(state, site, needed))

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        if msg.anchors:
            state = replace(state, anchors=msg.anchors)
        present = self.anchors.beside(state.anchors, self.pull, msg.round)
        return self.method.site(msg, state, site, net, rng, partial(fit, beside=present))

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        t, anchors, after = state.round, state.anchors, self.method.server(state, updates, net, rng)
        if anchors and self.anchors.move_in(t):
            target = pseudo_gradient(state.params, after.params, self.local.rate(self.local.steps))
            anchors, _ = match_gradient(anchors, net, state.params, target, self.anchors, t)
        return replace(after, anchors=anchors)


@dataclass(frozen=True, kw_only=True)
class Refined(Part):
    """Adds iterative DM to a method that trains on virtual sets and sends the complete model."""

    kind: ClassVar[str] = "refine"
    presets: ClassVar[Presets] = {
        "paper": {"refine.real_per_class": 256},
        "quick": {"refine.steps": 10},
        "strong": REDRAWN,
    }

    refine: Refine = Refine()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (data := getattr(self.method, "train_on", "virtual")) != "virtual":
            raise SettingError(
                f"refine updates virtual sets, but {self.method.name} trains on {data} images; use "
                "train_on=virtual (--train-on virtual), or leave refine out"
            )

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        reserve_refinements(site, net, self.distil, rng.seed, self.refine.releases(self.distil))
        return self.method.enrol(site, net, rng)

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        if state.virtual and self.refine.move_in(msg.round):
            state = self.refine.moved(state, site, net, msg.params, self.distil, msg.round, rng)
        update, after = self.method.site(msg, state, site, net, rng, fit)
        released = {name: tree for name, tree in state.trees.items() if name == "released"}
        return update, replace(after, trees={**released, **after.trees}) if released else after


@dataclass(frozen=True, kw_only=True)
class Regularised(Part):
    """Adds a term to the loss of any method."""

    kind: ClassVar[str] = "regulariser"

    term: Regulariser

    @property
    def sections(self) -> dict[str, Settings]:
        return {self.term.section: self.term}

    @property
    def stack(self) -> str:
        return _qualified(type(self.term), self.term.section)

    @property
    def title(self) -> str:
        return self.term.section

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        extra = self.term.term(msg, state, net)

        def regularised(*given: Any, terms: Sequence[Term] = (), **more: Any) -> Trained:
            return fit(*given, terms=[*terms, extra], **more)

        return self.method.site(msg, state, site, net, rng, regularised if extra else fit)


def all_settings(method: Method) -> dict[str, Any]:
    """The settings of a method and of what is stacked on it, by name."""
    if isinstance(method, Part):
        return {**all_settings(method.method), **method.sections}
    return {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]


def name_of(method: Method) -> str:
    """The name by which `registry.recipe` finds this method again."""
    if isinstance(method, Part):
        return f"{name_of(method.method)}+{method.stack}"
    return _qualified(type(method), method.name)


def _qualified(cls: type, name: str) -> str:
    """`name` for a class of this package, else `package.module:Class`."""
    return name if cls.__module__.startswith("fedlgd.") else f"{cls.__module__}:{cls.__qualname__}"
