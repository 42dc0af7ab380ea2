"""Parts that can be stacked on a method: what they have in common, and momentum that is kept between rounds.

`--method scaffold+anchors+refine`, or in Python `Refined(method=Anchored(method=Scaffold(train_on="virtual")))`.
The other parts are in `anchors`, `refine`, `redraw`, `regularisers`, `robust` and `private`.
"""

import re
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Self

from fedlgd.core.errors import PrivacyError, SettingError
from fedlgd.core.types import Broadcast, Params, Site, SiteState
from fedlgd.distill.settings import Budget
from fedlgd.methods.common import fit, shrunk_sections
from fedlgd.methods.protocol import Fit, Method, Net, Settings, Stream, Trained, Visit


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part stacked on a method. It delegates everything it does not define to the inner method."""

    kind: ClassVar[str]
    allows: ClassVar[tuple[str, ...] | None] = None
    """The kinds of parts that can be stacked on this one; None: all that the method accepts."""
    method: Method

    def __post_init__(self) -> None:
        if self.kind not in self.stackable(self.method):
            from fedlgd.methods.registry import parts_of  # which imports the parts

            kinds, about = self.stackable(self.method), {"part": self.stack, "method": self.method.name}
            if is_own(type(self)):
                raise SettingError("own-part-not-accepted", **about, of_kind=self.kind, kinds=kinds or ["none"])
            raise SettingError("part-not-accepted", **about, possible=parts_of(kinds) or ["nothing"])
        twice = self.sections.keys() & all_settings(self.method).keys()
        if twice:
            raise SettingError("part-twice", method=self.method.name, section=twice.pop())

    @staticmethod
    def stackable(method: Method) -> tuple[str, ...]:
        """The kinds of parts that a method accepts: each kind once, regularisers any number of times.

        Other parts work once in a round, so a method with several exchanges does not accept them.
        """
        if isinstance(method, Part):
            inner = Part.stackable(method.method)
            left = tuple(kind for kind in inner if kind != method.kind or kind == "regulariser")
            return left if method.allows is None else tuple(kind for kind in left if kind in method.allows)
        kinds: tuple[str, ...] = getattr(method, "stackable", ("regulariser",))
        return kinds if method.exchanges == 1 else tuple(kind for kind in kinds if kind == "regulariser")

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
        """The name of this part after `+`; of a user's own, that of its class."""
        return type(self).__name__.lower() if is_own(type(self)) else self.kind

    @property
    def name(self) -> str:
        return f"{self.method.name}+{self.stack}"

    @property
    def label(self) -> str:
        """FedAvg + anchors on virtual data; FedLGD + redraw without anchors"""
        name, *rest = re.split(r"(?= on | without )", self.method.label, maxsplit=1)
        return " ".join((name, "+", self.title)) + "".join(rest)

    @property
    def title(self) -> str:
        return self.stack

    def at(self, t: int, rounds: int) -> Self:
        inner = self.method.at(t, rounds)
        return self if inner is self.method else replace(self, method=inner)

    def trial(self) -> Self:
        return replace(self, method=self.method.trial(), **shrunk_sections(self))


@dataclass(frozen=True, kw_only=True)
class Momentum(Part):
    """A site keeps its momentum between rounds (Yu, Jin and Yang, ICML 2019, without averaging it).

    v of the last step of a round is v of the first step of the next; needs `local.momentum` above 0.
    """

    kind: ClassVar[str] = "momentum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.local.momentum:
            raise SettingError("momentum-is-zero")

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        last: list[Params] = []

        def remembering(*given: Any, **more: Any) -> Trained:
            trained = fit(*given, velocity=state.trees.get("velocity"), **more)
            last.append(trained.velocity)
            return trained

        update, after = self.method.site(msg, state, site, net, rng, remembering)
        return update, replace(after, trees={**after.trees, "velocity": last[-1]})


def innermost(method: Method) -> Method:
    """The method without its parts."""
    while isinstance(method, Part):
        method = method.method
    return method


def all_settings(method: Method) -> dict[str, Any]:
    """The settings of a method and of what is stacked on it, by name."""
    if isinstance(method, Part):
        return {**all_settings(method.method), **method.sections}
    return {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]


def default_settings(method: Method) -> dict[str, Any]:
    """`all_settings` as its classes have them, without those that have no default."""
    if isinstance(method, Part):
        own = {name: getattr(type(method), name, None) or type(given)() for name, given in method.sections.items()}
        return {**default_settings(method.method), **own}
    return {f.name: f.default for f in fields(method) if f.default is not MISSING}  # type: ignore[arg-type]


def for_rounds(method: Method, rounds: int) -> Method:
    """The method with its budgets and those of its parts divided among `rounds`, unless they give the number."""
    inner: dict[str, Any] = {"method": for_rounds(method.method, rounds)} if isinstance(method, Part) else {}
    shared: dict[str, Budget] = {}
    for name, budget in (method.sections if isinstance(method, Part) else all_settings(method)).items():
        if isinstance(budget, Budget) and budget.on:
            given: int = getattr(budget, "rounds", 0)
            if 0 < given < rounds:
                raise PrivacyError("rounds-beyond-budget", section=name, given=given, rounds=rounds)
            shared[name] = replace(budget, rounds=given or rounds)  # type: ignore[call-arg]
    return replace(method, **inner, **shared) if inner or shared else method  # type: ignore[type-var]


def name_of(method: Method) -> str:
    """The name by which `registry.recipe` finds this method again."""
    if isinstance(method, Part):
        return f"{name_of(method.method)}+{qualified(type(method), method.stack)}"
    return qualified(type(method), method.name)


def qualified(cls: type, name: str) -> str:
    """`name` for a class of this package, else `package.module:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}" if is_own(cls) else name


def is_own(cls: type) -> bool:
    """Whether a class is a user's own, not one of this package."""
    return not cls.__module__.startswith("fedlgd.")
