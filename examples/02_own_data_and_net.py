"""Use your own arrays as sites, and your own network.

A network is an nn.Module class called as Class(shape=..., classes=...) whose forward returns (features, logits).
Run: python examples/02_own_data_and_net.py
"""

import numpy as np
from torch import Tensor, nn

import fedlgd


class SmallNet(nn.Module):
    """Two strided convolutions; from the command line: --net 02_own_data_and_net:SmallNet"""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], width, 3, stride=2, padding=1), nn.GroupNorm(2, width), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(width * (shape[1] // 2) * (shape[2] // 2), classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


def stripes(n: int, brightness: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """16x16 grey images of horizontal (0) or vertical (1) stripes, with a brightness per site."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    wave = np.sin(np.arange(16) * 1.5)
    pictures = np.stack([np.tile(wave, (16, 1)) if label else np.tile(wave[:, None], (1, 16)) for label in labels])
    noisy = brightness + 0.2 * pictures + 0.1 * rng.standard_normal(pictures.shape)
    return (255 * noisy.clip(0, 1)).astype(np.uint8), labels


def main(rounds: int = 15) -> fedlgd.Result:
    sites = {
        name: (*stripes(60, brightness, seed), *stripes(40, brightness, seed + 100))
        for seed, (name, brightness) in enumerate({"dark": 0.3, "bright": 0.7}.items())
    }
    federation = fedlgd.from_arrays(sites, classes=["horizontal", "vertical"])
    method = fedlgd.configure(fedlgd.FedLGD, "quick", distil__per_class=5, distil__steps=20, local__augment=())
    net = {"name": f"{__name__}:SmallNet", "width": 8}
    result = fedlgd.run(federation, method, rounds=rounds, net=net)
    print(result.accuracy)
    return result


if __name__ == "__main__":
    main()
