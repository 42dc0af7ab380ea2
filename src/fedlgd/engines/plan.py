"""How long a run is, which sites take part, and when the model is scored."""

from dataclasses import dataclass

import torch

from fedlgd.core.rng import Stream
from fedlgd.core.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class Plan(Settings):
    """The settings of a run that are not the method's."""

    rounds: int = setting(100, "Number of rounds.", least=1, most=1_000_000)
    ratio: float = setting(1.0, "Share of the sites that take part in each round.", above=0, most=1)
    seed: int = setting(0, "Seed of everything random.", least=-(2**63), most=2**63 - 1)
    evaluate_every: int = setting(
        0, "Score the model after every so many rounds; 0: about ten times in a run.", least=0, most=1_000_000
    )
    real_samples: int = setting(
        -1,
        "Real images per class of every site copied for the report; -1: 4 of published data, none of your own.",
        least=-1,
        most=1_000,
    )
    analysis: bool = setting(True, "Measure how alike the sites' features are, for the report.")

    def scores(self, t: int) -> bool:
        """Is the model scored after round t? The last round always is."""
        every = self.evaluate_every or max(1, self.rounds // 10)
        return (t + 1) % every == 0 or t + 1 == self.rounds


def sample(names: list[str], ratio: float, rng: Stream) -> list[str]:
    """int(ratio * N) sites, at least one, uniformly without replacement; in the order of `names`."""
    count = max(1, int(ratio * len(names) + 1e-9))
    chosen = torch.randperm(len(names), generator=rng.generator())[:count].sort().values
    return [names[i] for i in chosen.tolist()]
