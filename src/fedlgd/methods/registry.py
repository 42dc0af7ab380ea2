"""Methods by name. A file with `@register` is picked up by the command line, the config and the tests."""

import difflib
import importlib
import pkgutil
from dataclasses import is_dataclass
from functools import cache

from fedlgd.core.errors import SettingError
from fedlgd.methods.protocol import Method

PARTS = ("enrol", "start", "broadcast", "site", "server")
_methods: dict[str, type[Method]] = {}


def register(cls: type) -> type:
    """Make a method known by its `name`."""
    _methods[cls.name] = cls  # type: ignore[attr-defined]
    return cls


@cache
def _import_all() -> None:
    package = importlib.import_module("fedlgd.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fedlgd.methods.{module.name}")


def names() -> list[str]:
    _import_all()
    return sorted(_methods)


def find(name: str) -> type[Method]:
    """A registered method, or a user's own as `package.module:Class`."""
    _import_all()
    if name in _methods:
        return _methods[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, _methods, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SettingError(
            f"no method is called {name!r}; {hint}there are: {', '.join(names())}; your own: package.module:Class"
        )
    try:
        cls: type[Method] = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise SettingError(f"cannot import method {name!r}: {error}") from error
    if not is_dataclass(cls):
        raise SettingError(
            f"method {name!r} is not a dataclass; its fields are its settings (see methods/protocol.py)"
        )
    missing = [part for part in PARTS if not callable(getattr(cls, part, None))]
    if missing:
        raise SettingError(
            f"method {name!r} lacks {', '.join(missing)}; "
            f"a method offers {', '.join(PARTS)} (see methods/protocol.py)"
        )
    return cls
