"""Do the images of virtual sets and the anchors copy training images?"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlgd.attacks.replay import Moment, Replay
from fedlgd.attacks.similarity import Neighbours, neighbours
from fedlgd.core.files import safe_name
from fedlgd.core.types import Site, VirtualSet
from fedlgd.rundir.contact_sheet import write_sheet
from fedlgd.runs.contact_sheets import DIVISOR

CLOSEST = 5  # pairs that are shown
COLUMNS = 8  # pictures in a row


def nearness(near: Neighbours) -> dict[str, Any]:
    """How often pictures are nearer to training images, beside chance, and their mean distances."""
    if not len(near.rows):
        return {"nearer_training": None}
    return {
        "nearer_training": near.share,
        "expected": float(near.expected.mean()),
        "p_value": near.p_value,
        "distance_training": float(near.near.mean()),
        "distance_held_out": float(near.far.mean()),
    }


def write_rows(file: Path, rows: Sequence[Tensor]) -> None:
    """One row of pictures for each tensor of pixels."""
    shown = torch.stack([row[:COLUMNS] for row in rows])
    if shown.shape[1]:
        write_sheet(file.parent, file, shown.flatten(0, 1), range(len(rows)))


def memorisation(run: Replay, moments: Mapping[int, Moment], folder: Path) -> Iterator[dict[str, Any]]:
    """Are virtual images and anchors nearer to training images than to held-out ones? At every site.

    folder: of the pictures of the closest pairs.
    """
    seen = set[tuple[str, str, int]]()
    for moment in moments.values():
        for site in run.federation.sites:
            sets = {"virtual set": moment.sites[site.name].virtual, "anchors": moment.server.anchors}
            for what, virtual in sets.items():
                if virtual and (key := (what, site.name, virtual.round)) not in seen:
                    seen.add(key)
                    yield from _memorised(site, what, virtual, folder)


def _memorised(site: Site, what: str, virtual: VirtualSet, folder: Path) -> Iterator[dict[str, Any]]:
    pictures = virtual.data  # the tiles of an image one by one
    near = neighbours(pictures.x, pictures.y, site.train, site.test)
    if not len(near.rows):
        return
    closest = near.near.argsort()[:CLOSEST]
    name = f"memory-{what.partition(' ')[0]}-{safe_name(site.name)}-{virtual.round + 1}.png"
    pixels = site.train.scale.to_pixels(pictures.x / (DIVISOR if what == "anchors" else 1))
    rows = (pixels[near.rows[closest]], site.train.pixels(near.training[closest]))
    write_rows(folder / name, [*rows, site.test.pixels(near.held_out[closest])])
    yield {
        "what": what,
        "site": site.name,
        "round": virtual.round,
        "images": len(near.rows),
        **nearness(near),
        "closest": near.near[closest].tolist(),
        "picture": f"{folder.name}/{name}",
    }
