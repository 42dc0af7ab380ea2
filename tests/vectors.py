"""The test vectors of the specification: numbers in float64 that an independent script computed."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-9


@cache
def _all() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "vectors.json").read_text())


def vector(name: str) -> dict[str, Any]:
    """The vectors of one part, as plain lists and numbers."""
    return _all()[name]


def floats(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(got: Tensor | float, wanted: Any) -> None:
    """Equal to the tolerance of the vectors, and of the same shape."""
    got, wanted = torch.as_tensor(got, dtype=torch.float64), torch.as_tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)
