r"""Scores on test images with noise, for a method with a promise of privacy and a budget `scores`.

For each score a site releases one vector: correct images per class, images per class, and the sum of losses, of
which an image has at most 10, in units of 10:

    s = sum_i (e_{y_i} [i is right], e_{y_i}, min(l_i, 10) / 10) + sigma sqrt(3) N(0, I)
    sigma = sqrt(number of scores) / mu

One image changes s by at most sqrt(3). Training and test images are different images: each has its own ledger.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fedlgd.core import gauss
from fedlgd.core.evaluate import score
from fedlgd.core.net import Net
from fedlgd.core.records import Score
from fedlgd.core.types import Params, Site
from fedlgd.data.federation import site_digest
from fedlgd.distill.budget import Budget, Level
from fedlgd.distill.ledger import Book, open_book
from fedlgd.distill.private import digest_of
from fedlgd.distill.release import noised
from fedlgd.methods.promises import budget_of
from fedlgd.methods.protocol import Method

MOST = 10.0  # loss of an image
SENSITIVITY = math.sqrt(3)


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of the models of a run at one site. `planned`: how often a model is scored."""

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
        mu = gauss.mu_for(budget.scores, budget.delta) / (2 if budget.adjacency == "replace" else 1)
        level = Level(math.sqrt(self.planned) / mu, 1.0, self.planned)
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
