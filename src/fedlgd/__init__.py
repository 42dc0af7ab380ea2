"""Federated learning on small distilled data sets.

import fedlgd
federation = fedlgd.load("builtin-digits")
result = fedlgd.run(federation, fedlgd.FedLGD(), rounds=30)
result.accuracy, result.model, result.anchors, result.virtual, result.records
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "load": "fedlgd.data.registry",
    "from_arrays": "fedlgd.data.federation",
    "from_folders": "fedlgd.data.registry",
    "Federation": "fedlgd.data.federation",
    "run": "fedlgd.runs.runner",
    "Result": "fedlgd.runs.runner",
    "configure": "fedlgd.runs.config",
    "FedAvg": "fedlgd.methods.fedavg",
    "FedLGD": "fedlgd.methods.fedlgd",
    "Anchored": "fedlgd.methods.parts",
    "Refined": "fedlgd.methods.parts",
    "Regularised": "fedlgd.methods.parts",
    "Local": "fedlgd.core.train",
    "Distil": "fedlgd.distill.distribution",
    "FedlgdError": "fedlgd.core.errors",
}

__all__ = [
    "Anchored",
    "Distil",
    "FedAvg",
    "FedLGD",
    "Federation",
    "FedlgdError",
    "Local",
    "Refined",
    "Regularised",
    "Result",
    "__version__",
    "configure",
    "from_arrays",
    "from_folders",
    "load",
    "run",
]

if TYPE_CHECKING:
    from fedlgd.core.errors import FedlgdError
    from fedlgd.core.train import Local
    from fedlgd.data.federation import Federation, from_arrays
    from fedlgd.data.registry import from_folders, load
    from fedlgd.distill.distribution import Distil
    from fedlgd.methods.fedavg import FedAvg
    from fedlgd.methods.fedlgd import FedLGD
    from fedlgd.methods.parts import Anchored, Refined, Regularised
    from fedlgd.runs.config import configure
    from fedlgd.runs.runner import Result, run


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `fedlgd --help` does not import torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedlgd' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
