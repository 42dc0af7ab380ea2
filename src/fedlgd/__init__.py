"""Federated learning on small distilled data sets.

import fedlgd
federation = fedlgd.load("builtin-digits")
result = fedlgd.run(federation, fedlgd.FedLGD(), rounds=30)
result.accuracy, result.model, result.anchors, result.virtual, result.records
result.predict("digit.png")
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "load": "fedlgd.data.suites",
    "from_arrays": "fedlgd.data.federation",
    "from_folders": "fedlgd.data.suites",
    "Federation": "fedlgd.data.federation",
    "run": "fedlgd.runs.run",
    "Result": "fedlgd.runs.result",
    "compare": "fedlgd.runs.compare",
    "tune": "fedlgd.runs.tune",
    "open_run": "fedlgd.runs.result",
    "configure": "fedlgd.runs.config",
    "write_report": "fedlgd.report.page",
    "FedAvg": "fedlgd.methods.fedavg",
    "FedLGD": "fedlgd.methods.fedlgd",
    "FedBN": "fedlgd.methods.fedbn",
    "FedNova": "fedlgd.methods.fednova",
    "FedProx": "fedlgd.methods.fedprox",
    "FedProtoAvg": "fedlgd.methods.fedproto",
    "FedProtoLocal": "fedlgd.methods.fedproto",
    "LocalOnly": "fedlgd.methods.baselines",
    "Moon": "fedlgd.methods.moon",
    "Pooled": "fedlgd.methods.baselines",
    "Scaffold": "fedlgd.methods.scaffold",
    "VHL": "fedlgd.methods.vhl",
    "Anchored": "fedlgd.methods.anchors",
    "Refined": "fedlgd.methods.refine",
    "Regularised": "fedlgd.methods.regularisers",
    "Local": "fedlgd.core.train",
    "Distil": "fedlgd.distill.settings",
    "FedlgdError": "fedlgd.core.errors",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from fedlgd.core.errors import FedlgdError as FedlgdError
    from fedlgd.core.train import Local as Local
    from fedlgd.data.federation import Federation as Federation
    from fedlgd.data.federation import from_arrays as from_arrays
    from fedlgd.data.suites import from_folders as from_folders
    from fedlgd.data.suites import load as load
    from fedlgd.distill.settings import Distil as Distil
    from fedlgd.methods.anchors import Anchored as Anchored
    from fedlgd.methods.baselines import LocalOnly as LocalOnly
    from fedlgd.methods.baselines import Pooled as Pooled
    from fedlgd.methods.fedavg import FedAvg as FedAvg
    from fedlgd.methods.fedbn import FedBN as FedBN
    from fedlgd.methods.fedlgd import FedLGD as FedLGD
    from fedlgd.methods.fednova import FedNova as FedNova
    from fedlgd.methods.fedproto import FedProtoAvg as FedProtoAvg
    from fedlgd.methods.fedproto import FedProtoLocal as FedProtoLocal
    from fedlgd.methods.fedprox import FedProx as FedProx
    from fedlgd.methods.moon import Moon as Moon
    from fedlgd.methods.refine import Refined as Refined
    from fedlgd.methods.regularisers import Regularised as Regularised
    from fedlgd.methods.scaffold import Scaffold as Scaffold
    from fedlgd.methods.vhl import VHL as VHL
    from fedlgd.report.page import write_report as write_report
    from fedlgd.runs.compare import compare as compare
    from fedlgd.runs.config import configure as configure
    from fedlgd.runs.result import Result as Result
    from fedlgd.runs.result import open_run as open_run
    from fedlgd.runs.run import run as run
    from fedlgd.runs.tune import tune as tune


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `fedlgd --help` does not import torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedlgd' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
