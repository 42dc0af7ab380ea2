"""Classes of a user's own, imported by name. This module does not import torch."""

import importlib
import sys
from typing import Any

from fedlgd.core.errors import FedlgdError, SettingError


def import_object(spec: str, what: str, kind: type[FedlgdError] = SettingError) -> Any:
    """Import `package.module:Class`; the current folder is searched too."""
    module, _, attribute = spec.partition(":")
    if "" not in sys.path:
        sys.path.append("")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise kind("cannot-import", what=what, spec=spec, error=error) from error
