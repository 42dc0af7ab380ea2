"""Promises of privacy that cover all rounds of a run, and the scores on test images, which have noise under one."""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from fedlgd.core.errors import PrivacyError
from fedlgd.core.evaluate import score
from fedlgd.core.net import Net
from fedlgd.core.score import Score
from fedlgd.core.types import Params, Site
from fedlgd.data.federation import site_digest
from fedlgd.dp.budget import Budget, Level
from fedlgd.dp.distil import digest_of
from fedlgd.dp.fedavg import DpFedAvg, SiteDp
from fedlgd.dp.ledger import Book, open_book
from fedlgd.dp.release import noised
from fedlgd.dp.sgd import Dp, DpSgd
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Method

MOST = 10.0  # loss of an image
SENSITIVITY = math.sqrt(3)


def budget_of(method: Method) -> Budget | None:
    """The budget of a method that makes a promise of privacy."""
    if isinstance(method, DpSgd):
        return method.dp
    if isinstance(method, DpFedAvg):
        return method.site_dp
    if isinstance(method, Part):
        return budget_of(method.method)
    distil = getattr(method, "distil", None)
    return distil.private if distil is not None and distil.private.on else None


def is_private(method: Method) -> bool:
    """Whether a method makes a promise of privacy: then no real image may be shown or analysed."""
    return budget_of(method) is not None


def promise(method: Method) -> str:
    """What is promised, in one sentence; empty without a promise."""
    budget = budget_of(method)
    if budget is None:
        return ""
    if budget.test_key:
        return f"Simulation, no privacy: the noise comes from {budget.section}.test_key, which is public."
    if isinstance(budget, SiteDp):
        return f"Privacy of each site in this run: (epsilon, delta) = ({budget.epsilon:g}, {budget.delta:g})."
    scores = f"epsilon {budget.scores:g} for each of them" if budget.scores else "not covered"
    return f"Privacy of each training image: {budget.promise}. Scores on test images: {scores}."


def for_rounds(method: Method, rounds: int) -> Method:
    """The method with its budget divided among `rounds`, unless its settings give their number."""
    if not isinstance(method, Part):
        return method
    found = {name: part for name, part in method.sections.items() if isinstance(part, Dp | SiteDp)}
    for name, part in found.items():
        if 0 < part.rounds < rounds:
            raise PrivacyError(
                f"{name}.rounds is {part.rounds}, but the run has {rounds}; use rounds={part.rounds}, or leave "
                f"{name}.rounds out to divide the budget among all rounds"
            )
    decided = {name: replace(part, rounds=part.rounds or rounds) for name, part in found.items()}
    return replace(method, method=for_rounds(method.method, rounds), **decided)


@dataclass(frozen=True, eq=False)
class Scores:
    r"""The scores of the models of a run at one site. `planned`: how often a model is scored.

    With a budget `scores` there is noise: for each score a site releases one vector of correct images per class,
    images per class, and the sum of losses, of which an image has at most 10, in units of 10:

        s = sum_i (e_{y_i} [i is right], e_{y_i}, min(l_i, 10) / 10) + sigma sqrt(3) N(0, I)
        sigma = sqrt(number of scores) / mu

    One image changes s by at most sqrt(3). Training and test images are different images: each has its own ledger.
    """

    site: Site
    classes: int
    seed: int
    planned: int
    budget: Budget | None

    @classmethod
    def of(cls, method: Method, site: Site, classes: int, seed: int, planned: int) -> "Scores":
        budget = budget_of(method)
        return cls(site, classes, seed, planned, budget if budget is not None and budget.scores else None)

    def reserve(self) -> None:
        """Charge all scores of the run before the first one."""
        if self.budget is not None:
            self._account(self.budget)

    def __call__(self, net: Net, params: Params) -> Score:
        exact = partial(score, net, params, self.site.test, self.classes)
        if self.budget is None:
            return exact()
        book, account, level = self._account(self.budget)

        def make(generator: np.random.Generator) -> Params:
            found = exact(most=MOST)
            clean = [*found.correct, *found.total, found.loss * len(self.site.test) / MOST]
            return {"sums": noised(torch.tensor(clean), level.sigma * SENSITIVITY, generator)}

        return self._score(book.once(account, "scores", digest_of(params), make)["sums"].tolist())

    def _account(self, budget: Budget) -> tuple[Book, str, Level]:
        level = Level(math.sqrt(self.planned) / budget.mu_for(budget.scores), 1.0, self.planned)
        account = f"scores, seed {self.seed}, {level}, {site_digest(self.site)}"
        book = open_book(f"{self.site.name} test images", budget)
        book.reserve(account, {"scores": level})
        return book, account, level

    def _score(self, sums: list[float]) -> Score:
        """Possible counts from noisy ones; there is no area under a curve."""
        total = [max(0, round(n)) for n in sums[self.classes : -1]]
        correct = [min(all_, max(0, round(n))) for n, all_ in zip(sums, total, strict=False)]
        images = max(1, sum(total))
        loss = MOST * min(1.0, max(0.0, sums[-1] / images))
        return Score(accuracy=sum(correct) / images, loss=loss, correct=tuple(correct), total=tuple(total))
