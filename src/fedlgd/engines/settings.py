"""Rounds of a run: their number, the sampling of sites, what the server accepts, and when it evaluates."""

from dataclasses import dataclass

import torch

from fedlgd.core.settings import Settings, setting
from fedlgd.core.types import Stream


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Settings):
    """What engines know of a run beside its method; `runs.config.RunSettings` adds what its folder gets."""

    rounds: int = setting(100, "Number of rounds.", least=1, most=1_000_000)
    ratio: float = setting(1.0, "Fraction of sites sampled in each round.", above=0, most=1)
    quorum: float = setting(
        1.0, "Fraction of the sampled sites that must send a valid update, or the run stops.", above=0, most=1
    )
    clip_update: float = setting(0.0, "Largest L2 norm of a site's change of the model; 0: no limit.", least=0)
    seed: int = setting(0, "Random seed.", least=-(2**63), most=2**63 - 1)
    evaluate_every: int = setting(
        0, "Evaluate every this many rounds; 0: about ten times per run.", least=0, most=1_000_000
    )

    def scores(self, t: int) -> bool:
        """Whether the model is evaluated after round t; always after the last round."""
        every = self.evaluate_every or max(1, self.rounds // 10)
        return (t + 1) % every == 0 or t + 1 == self.rounds


def sample_sites(names: list[str], ratio: float, rng: Stream) -> list[str]:
    """int(ratio * N) sites, at least one, uniformly without replacement; in the order of `names`."""
    count = max(1, int(ratio * len(names) + 1e-9))
    chosen = torch.randperm(len(names), generator=rng.generator())[:count].sort().values
    return [names[i] for i in chosen.tolist()]
