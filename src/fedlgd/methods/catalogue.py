"""The names of the parts, one line about each. This module does not import torch.

`fedlgd methods` answers from here at once. A test compares it with the classes in `registry`.
"""

from typing import NamedTuple


class Part(NamedTuple):
    """The kind of a part, which a method accepts or not, and one line about it."""

    kind: str
    line: str


PARTS: dict[str, Part] = {
    "anchors": Part("anchors", "images of the server beside those of a site, moved by gradient matching"),
    "noise": Part("anchors", "control for anchors: as many images of noise, never moved"),
    "refine": Part("refine", "refines virtual sets in selected rounds; the method trains on virtual sets"),
    "momentum": Part("momentum", "local momentum is kept between rounds instead of reset"),
    "median": Part("robust", "the server takes the median of the models instead of the mean"),
    "trimmed": Part("robust", "the server takes a mean without the smallest and largest values"),
    "dp-sgd": Part("dp-sgd", "DP-SGD at each site: trains on real images with differential privacy"),
    "dp-fedavg": Part("dp-fedavg", "hides whether a site took part; needs about 50 sites and a trusted server"),
    "proximal": Part("regulariser", "FedProx's term in the loss of any method"),
}


def parts_of(kinds: tuple[str, ...]) -> list[str]:
    """The names of the parts of these kinds."""
    return [name for name, part in PARTS.items() if part.kind in kinds]
