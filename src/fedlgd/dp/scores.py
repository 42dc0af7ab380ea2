"""Scores on test images under differential privacy: noisy, and each released once."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedlgd.core.evaluate import score
from fedlgd.core.net import Net
from fedlgd.core.score import Score
from fedlgd.core.types import Params, Site
from fedlgd.data.federation import site_digest
from fedlgd.distill.settings import Budget
from fedlgd.dp.budget import Level, budget_mu
from fedlgd.dp.ledger import Book, open_book, params_digest
from fedlgd.dp.release import add_noise

MAX_IMAGE_LOSS = 10.0
SENSITIVITY = math.sqrt(3)


@dataclass(frozen=True, eq=False)
class NoisyScores:
    r"""The scores of the models of a run at one site. `planned`: how often a model is scored.

    For each score a site releases one vector of correct images per class, images per class, and the sum of losses,
    of which an image has at most 10, in units of 10:

        s = sum_i (e_{y_i} [i is right], e_{y_i}, min(l_i, 10) / 10) + sigma sqrt(3) N(0, I)
        sigma = sqrt(number of scores) / mu

    One image changes s by at most sqrt(3). Training and test images are different images: each has its own ledger.
    """

    site: Site
    classes: int
    seed: int
    planned: int
    budget: Budget

    def __call__(self, net: Net, params: Params) -> Score:
        book, account, level = self.reserve()

        def make(generator: np.random.Generator) -> Params:
            found = score(net, params, self.site.test, self.classes, most=MAX_IMAGE_LOSS)
            clean = [*found.correct, *found.total, found.loss * len(self.site.test) / MAX_IMAGE_LOSS]
            return {"sums": add_noise(torch.tensor(clean), level.sigma * SENSITIVITY, generator)}

        return self._score(book.once(account, "scores", params_digest(params), make)["sums"].tolist())

    def reserve(self) -> tuple[Book, str, Level]:
        """Charge all scores of the run before the first one: the book, the account and its noise."""
        budget = self.budget
        level = Level(math.sqrt(self.planned) / budget_mu(budget, budget.scores), 1.0, self.planned)
        account = f"scores, seed {self.seed}, {level}, {site_digest(self.site)}"
        book = open_book(f"{self.site.name} test images", budget)
        book.reserve(account, {"scores": level})
        return book, account, level

    def _score(self, sums: list[float]) -> Score:
        """Possible counts from noisy ones; there is no area under a curve."""
        total = [max(0, round(n)) for n in sums[self.classes : -1]]
        correct = [min(all_, max(0, round(n))) for n, all_ in zip(sums, total, strict=False)]
        images = max(1, sum(total))
        loss = MAX_IMAGE_LOSS * min(1.0, max(0.0, sums[-1] / images))
        return Score(accuracy=sum(correct) / images, loss=loss, correct=tuple(correct), total=tuple(total))
