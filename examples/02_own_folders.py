"""Use your own image files: one folder per site, with one folder per class.

Run: python examples/02_own_folders.py            creates a small folder of images and trains on it
     python examples/02_own_folders.py DIR        trains on your own images
From the command line: fedlgd data check DIR, then fedlgd run --data DIR --set data.size=64
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import fedlgd


def draw_sites(root: Path, per_class: int = 40) -> Path:
    """Stripes at two clinics: darker PNG images at one, brighter JPEG images at the other."""
    wave = np.sin(np.arange(24) * 1.2)
    for site, brightness, suffix in (("clinic-a", 90, "png"), ("clinic-b", 160, "jpg")):
        rng = np.random.default_rng(brightness)
        for label, pattern in (("lying", wave[:, None]), ("standing", wave[None, :])):
            folder = root / site / label
            folder.mkdir(parents=True)
            for i in range(per_class):
                pixels = brightness + 50 * pattern + 20 * rng.standard_normal((24, 24))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.{suffix}")
    return root


def main(folder: Path, rounds: int = 10) -> fedlgd.Result:
    federation = fedlgd.from_folders(folder, size=16)
    for site in federation.sites:
        print(f"{site.name}: {len(site.train)} training and {len(site.test)} test images; {site.note}")
    method = fedlgd.configure(fedlgd.FedLGD, "quick", distil__per_class=5, distil__steps=20)
    result = fedlgd.run(federation, method, rounds=rounds, net={"name": "convnet", "width": 8, "depth": 2})
    for name, score in result.records[-1].scores.items():
        area = "none" if score.auc is None else f"{score.auc:.2f}"
        print(f"{name}: accuracy {score.accuracy:.2f}, balanced {score.balanced:.2f}, area under the curve {area}")
    return result


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(draw_sites(Path(scratch, "clinics")))
