"""Writes run directories that look like real ones, without training anything."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from PIL import Image, ImageDraw, PngImagePlugin

from fedlgd.core.files import digest as digest_of
from fedlgd.core.files import write_json

SITES = ("mnist", "svhn", "usps")
CLASSES = tuple("0123456789")
TILE = 28
FINAL = {"mnist": 0.95, "svhn": 0.62, "usps": 0.91}


def write_run(
    path: Path,
    *,
    label: str = "FedLGD",
    method: str = "fedlgd",
    seed: int = 0,
    rounds: int = 4,
    done: int | None = None,
    final: Mapping[str, float] = FINAL,
    classes: Sequence[str] = CLASSES,
    evaluate_every: int = 1,
    per_class: int = 0,
    samples: int = 0,
    settings: Mapping[str, Any] | None = None,
    digest: str = "9f2c41d0a7",
    flags: Sequence[str] = ("virtual",),
    auc: float | None = None,
    cpu: float | None = None,
    device: str = "cpu",
    totals: Mapping[str, Sequence[int]] | None = None,
    hits: Mapping[str, Sequence[int]] | None = None,
) -> Path:
    """A run of `rounds` rounds of which `done` are on record, ending at the accuracies in `final`.

    `cpu` is the share of the wall time that is CPU time; `totals` are test images by class at some sites, `hits`
    those of them that are right, by default half of each, whatever `final` says.
    """
    done = rounds if done is None else done
    path.mkdir(parents=True)
    train_on = {"train_on": "virtual" if "virtual" in flags else "real"}
    config = _config(method, seed, rounds, evaluate_every) | train_on | dict(settings or {})
    (path / "config.toml").write_text(tomli_w.dumps(config))
    manifest = _manifest(label, method, seed, rounds, tuple(final), classes, digest)
    manifest["engine"] = {"name": "loop", "device": device}
    (path / "manifest.json").write_text(json.dumps(manifest, indent=1))
    records = [_enrolment(flags), *(_record(number, final, rounds, evaluate_every) for number in range(done))]
    if auc is not None:
        for score in (score for record in records for score in record["scores"].values()):
            score["auc"] = auc
    for record in records:
        if cpu is not None:
            record["cpu"] = {phase: cpu * value for phase, value in record["seconds"].items()}
        for site, total in (totals or {}).items():
            if site in record["scores"]:
                record["scores"][site] |= {"total": list(total), "correct": [each // 2 for each in total]}
            if site in record["scores"] and site in (hits or {}):
                right = {"correct": list(hits[site]), "accuracy": sum(hits[site]) / sum(total)}
                record["scores"][site] |= right
    (path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if per_class:
        _write_sheets(path / "virtual", len(final), classes, per_class, done, anchors=method == "fedlgd")
    if samples:
        (path / "real").mkdir()
        for at in range(len(final)):
            _sheet(at, 9, classes, samples).save(path / "real" / f"site{at}.png")
    return path


def commit(path: Path, lines: int | None = None) -> None:
    """Commits the first `lines` lines of the records, by default all of them."""
    written = (path / "records.jsonl").read_bytes().splitlines(keepends=True)
    content = b"".join(written[:lines])
    records = {"bytes": len(content), "digest": digest_of(content)}
    write_json(path / "state" / "head.json", {"format": 1, "records": records})


def append_round(path: Path, number: int, accuracies: Mapping[str, float] = FINAL) -> None:
    """Appends an evaluated round to the records."""
    scores = {site: {"accuracy": a, "loss": 1.0, "correct": [1], "total": [2]} for site, a in accuracies.items()}
    with (path / "records.jsonl").open("a") as file:
        file.write(json.dumps({"round": number, "scores": scores}) + "\n")


def write_analysis(path: Path, sites: Sequence[str] = SITES) -> None:
    """Clouds of points and distances as a finished run of `sites` would leave them."""
    random = np.random.default_rng(1)
    far = [[0.0 if a == b else 0.1 * (1 + a + b) for b in range(len(sites))] for a in range(len(sites))]
    clouds = [
        {
            "kind": kind,
            "site": site,
            "points": random.normal([6 * at, at], 1, (20, 2)).round(2).tolist(),
            "labels": [i % 10 for i in range(20)],
        }
        for kind in ("real", "virtual")
        for at, site in enumerate(sites)
    ]
    points = random.normal(3, 2, (20, 2)).round(2).tolist()
    clouds.append({"kind": "anchors", "site": "", "points": points, "labels": [i % 10 for i in range(20)]})
    content = {
        "complete": True,
        "distances": [{"round": t, "sites": dict.fromkeys(sites, 1 / (t + 2))} for t in (-1, 0, 2)],
        "sites": list(sites),
        "images": 20,
        "mmd": {"real": far, "virtual": [[value / 2 for value in row] for row in far]},
        "map": clouds,
    }
    (path / "analysis.json").write_text(json.dumps(content))


def _config(method: str, seed: int, rounds: int, evaluate_every: int) -> dict[str, Any]:
    return {
        "method": method,
        "rounds": rounds,
        "ratio": 1.0,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "data": {"name": "builtin-digits"},
        "net": {"name": "convnet", "width": 32},
        "distil": {"per_class": 10},
        "local": {"epochs": 2, "steps": 0, "batch": 32, "lr": 0.01},
    }


def _manifest(
    label: str, method: str, seed: int, rounds: int, sites: Sequence[str], classes: Sequence[str], digest: str
) -> dict[str, Any]:
    return {
        "format": 1,
        "versions": {"fedlgd": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "threads": 2,
        "command": f"fedlgd run builtin-digits --method {method} --rounds {rounds} --seed {seed}",
        "label": label,
        "method": method,
        "data": {
            "name": "builtin-digits",
            "digest": digest,
            "note": "Real MNIST and optical digits; the other sites are stand-ins drawn from them.",
            "shape": [3, TILE, TILE],
            "classes": list(classes),
            "sites": [_site(at, name) for at, name in enumerate(sites)],
        },
        "net": {"label": "convnet,width=32", "parameters": 12345, "flops": 1234567},
    }


def _site(at: int, name: str) -> dict[str, Any]:
    note = "real MNIST images" if at == 0 else "a stand-in: MNIST digits on coloured noise, not the real images"
    return {"name": name, "folder": f"site{at}", "train": 2000 - 400 * at, "test": 500, "note": note}


def _enrolment(flags: Sequence[str]) -> dict[str, Any]:
    return {
        "round": -1,
        "sampled": [],
        "scores": {},
        "metrics": {},
        "bytes_up": 1200,
        "bytes_down": 0,
        "seconds": {"distil": 6.0},
        "flops": {"distil": 4_000_000_000},
        "flags": list(flags),
    }


def _record(number: int, final: Mapping[str, float], rounds: int, evaluate_every: int) -> dict[str, Any]:
    evaluated = number == rounds - 1 or (number + 1) % evaluate_every == 0
    return {
        "round": number,
        "sampled": list(final),
        "scores": {site: _score(share, number, rounds) for site, share in final.items()} if evaluated else {},
        "metrics": {site: {"loss": 0.1} for site in final},
        "bytes_up": 1_000_000,
        "bytes_down": 1_500_000,
        "seconds": {"distil": 2.0, "train": 5.0, "server": 0.5, "evaluate": 1.0},
        "flops": {
            "distil": 1_000_000_000,
            "train": 3_000_000_000,
            "server": 50_000_000,
            "evaluate": 400_000_000,
        },
        "flags": ["virtual", "anchors"] if number % 5 == 0 else [],
    }


def _score(share: float, number: int, rounds: int) -> dict[str, Any]:
    """Rises from chance to exactly `share` in the last round."""
    accuracy = share - (share - 0.1) * (1 - (number + 1) / rounds) ** 3
    correct = [round(250 * accuracy), round(500 * accuracy) - round(250 * accuracy)]
    return {"accuracy": accuracy, "loss": 2.3 * (1 - accuracy), "correct": correct, "total": [250, 250]}


def _write_sheets(
    folder: Path, sites: int, classes: Sequence[str], per_class: int, done: int, anchors: bool
) -> None:
    for version in ("start", *(f"{number:04d}" for number in range(0, done, 5))):
        (folder / version).mkdir(parents=True)
        owners = [f"site{at}" for at in range(sites)] + (["anchors"] if anchors else [])
        for at, owner in enumerate(owners):
            age = 0 if version == "start" else 1 + int(version)
            text = PngImagePlugin.PngInfo()
            if owner == "anchors":
                text.add_text("divided by", "3")
            _sheet(at, age, classes, per_class).save(folder / version / f"{owner}.png", pnginfo=text)


def _sheet(owner: int, age: int, classes: Sequence[str], per_class: int) -> Image.Image:
    """Digits that come out of the noise with age."""
    picture = Image.new("RGB", (per_class * TILE, len(classes) * TILE), (40 * owner, 30, 60))
    draw = ImageDraw.Draw(picture)
    for row, name in enumerate(classes):
        for column in range(per_class):
            draw.text((column * TILE + 6 + column % 3, row * TILE + 1), name[:1], (230, 220, 200), font_size=20)
    noise = np.random.default_rng([owner, age]).normal(0, 70 / (1 + age), (*picture.size[::-1], 3))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8))
