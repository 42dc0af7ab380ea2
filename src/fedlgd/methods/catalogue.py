"""The names of the methods and parts, one line about each. This module does not import torch.

`fedlgd methods` answers from here at once. A test compares it with the classes in `registry`.
"""

from typing import NamedTuple


class About(NamedTuple):
    """One line about a method, and its presets."""

    line: str
    presets: tuple[str, ...] = ("paper", "quick", "strong")


class Part(NamedTuple):
    """The kind of a part, which a method accepts or not, and one line about it."""

    kind: str
    line: str


METHODS: dict[str, About] = {
    "fedavg": About("FedAvg (McMahan et al., AISTATS 2017): sites train, the server averages their models"),
    "fedbn": About(
        "FedBN (Li et al., ICLR 2021): each site keeps its own normalisation layers, the rest is averaged"
    ),
    "fedlgd": About(
        "FedLGD (Huang et al., TMLR 2025): sites train on distilled images and on anchors of the server",
        ("paper", "official", "quick", "strong"),
    ),
    "fednova": About("FedNova (Wang et al., NeurIPS 2020): averages steps normalised by the local work"),
    "fedproto-avg": About("FedProto (Tan et al., AAAI 2022), and models are averaged, too: one global model"),
    "fedproto-local": About(
        "FedProto (Tan et al., AAAI 2022): only class prototypes are shared, each site has its model"
    ),
    "fedprox": About("FedProx (Li et al., MLSys 2020): FedAvg and a proximal term to the received model"),
    "local-only": About("lower baseline: each site trains alone, nothing is sent"),
    "moon": About("MOON (Li et al., CVPR 2021): contrasts features with the global and the previous local model"),
    "pooled": About("upper baseline, not federated: the images of all sites in one place"),
    "scaffold": About("SCAFFOLD (Karimireddy et al., ICML 2020), option II: control variates correct the drift"),
    "vhl": About("VHL (Tang et al., ICML 2022): aligns features on images of an untrained generator"),
}

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
