"""The code of a user's own that a run is made of: a digest for each source file. No torch.

Code of fedlgd, torch and the standard library is not counted: a run is resumed only with the same versions of the
first two. Installed packages are not followed. A module counts as it was when it was first looked at after its
import: later edits of its file are not what runs, until it is imported again.
"""

import ast
import dis
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from fedlgd.core.files import digest

OURS = "fedlgd"
KNOWN = frozenset({"torch", *sys.stdlib_module_names}) - {"__main__"}
LOOSE = ("__main__", "__mp_main__", "builtins", "")  # modules whose code has no file that it could be told by
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that a program has made
WRAPPERS = (property, staticmethod, classmethod, cached_property, partial, MethodType)
FUNCTIONS = (FunctionType, *WRAPPERS)
WRAPPED = ("fget", "fset", "__func__", "func")  # where they keep what they wrap

Code = type[Any] | FunctionType


def code_digests(objects: Iterable[object]) -> dict[str, str]:
    """Digests of the source files of these classes and functions, and of the user's modules that they import.

    The keys are `module.py` or `package/module.py`, and `__main__:Class` for code of a notebook, of the main
    program or of `exec`, which counts with what it uses from there.
    """
    walk = _Walk()
    for each in objects:
        walk.visit(each)
    return {name: digest(*sorted(contents)) for name, contents in sorted(walk.found.items())}


def source_text(code: Any) -> str:
    """The source of a class or function; if there is none, what it is compiled to."""
    try:
        return inspect.getsource(code)
    except Exception:  # of any kind if the text does not fit the code
        return "\n".join(line for each in _unwrapped(code) if _is_foreign(each) for line in _lines(each))


class _Walk:
    """Collects the contents of files by name. `visit` begins at an object, `_follow` at a module."""

    def __init__(self) -> None:
        self.found: dict[str, set[bytes]] = {}
        self._seen: set[int | str] = set()

    def visit(self, value: object, installed: bool = True) -> None:
        """`installed`: also count the file of a class or function that is part of an installed package."""
        for code in _unwrapped(value):
            if id(code) not in self._seen:
                self._seen.add(id(code))
                if _is_foreign(code):
                    self._add(code, installed)
                for inner in _more(code):
                    self.visit(inner, installed)

    def _add(self, code: Code, installed: bool) -> None:
        file = _home(code)
        if file is None:
            self._add_loose(code)
        elif _is_installed(file):
            if installed:
                self._add_file(code.__module__, file)
        else:
            self._follow(code.__module__)

    def _add_file(self, name: str, file: Path) -> bytes:
        content = _content(name, file)
        self.found.setdefault(_label(name, file), set()).add(content)
        return content

    def _add_loose(self, code: Code) -> None:
        """Code without a file, and the constants that it uses; functions and classes that it uses are visited."""
        lines = [*_lines(code)]
        for function in _functions(code):
            for name, value in _used(function):
                if isinstance(value, ModuleType):
                    self._follow(value.__name__)
                elif _is_plain(value):
                    lines.append(f"{name} = {value!r}")
                elif callable(value):
                    self.visit(value, installed=False)
            for each in (each for inner in _inside(function.__code__) for each in dis.get_instructions(inner)):
                if each.opname == "IMPORT_NAME":
                    self._follow(each.argval)
        home = "__main__" if (code.__module__ or "") in LOOSE else code.__module__
        self.found.setdefault(f"{home}:{code.__qualname__}", set()).add("\n".join(lines).encode())

    def _follow(self, name: str) -> None:
        """A module of the user's own, and those that it imports."""
        if name in self._seen or _top(name) in (OURS, *LOOSE) or _top(name) in KNOWN:
            return
        self._seen.add(name)
        file = _find(name)
        if file is None or _is_installed(file):
            return
        content = self._add_file(name, file)
        for other in _imports(content, name if file.stem == "__init__" else name.rpartition(".")[0]):
            self._follow(other)
        for value in [*getattr(sys.modules.get(name), "__dict__", {}).values()]:
            if isinstance(value, ModuleType):
                self._follow(value.__name__)


# Classes and functions


def _unwrapped(value: Any) -> Iterator[Code]:
    """A class or a function, also from inside a property, a partial, or a wrapper; of anything else its class."""
    if isinstance(value, WRAPPERS) or hasattr(type(value), "cache_clear"):
        for name in (*WRAPPED, "__wrapped__"):
            if (inner := getattr(value, name, None)) is not None:
                yield from _unwrapped(inner)
    elif isinstance(value, type | FunctionType):
        yield value
        if isinstance(value, FunctionType) and hasattr(value, "__wrapped__"):
            yield from _unwrapped(value.__wrapped__)
    else:
        yield type(value)


def _is_foreign(code: Code) -> bool:
    """Neither of fedlgd and torch nor of the standard library; `exec` makes classes of the module `builtins`."""
    module = code.__module__ or ""
    if module in LOOSE:
        return isinstance(code, FunctionType) or bool(code.__flags__ & HEAP_TYPE)
    return _top(module) != OURS and _top(module) not in KNOWN


def _more(code: Code) -> Iterator[object]:
    """The bases of a class, and what it has from elsewhere: `server = helpers.server`."""
    if isinstance(code, type) and _is_foreign(code):
        yield from code.__mro__[1:]
        for value in vars(code).values():
            if isinstance(value, FUNCTIONS):
                name = next((each.__qualname__ for each in _unwrapped(value)), "")
                if not name.startswith(f"{code.__qualname__}."):
                    yield value


def _functions(code: Code) -> list[FunctionType]:
    """A function itself; those of a class, by name."""
    if isinstance(code, FunctionType):
        return [code]
    own = (vars(code)[name] for name in sorted(vars(code)))
    found = (each for value in own if isinstance(value, FUNCTIONS) for each in _unwrapped(value))
    return [each for each in found if isinstance(each, FunctionType)]


def _lines(code: Code) -> Iterator[str]:
    """The text of a class or function: constants and bases of a class, and each function."""
    if isinstance(code, type):
        yield f"{code.__qualname__}: {', '.join(base.__qualname__ for base in code.__bases__)}"
        for name in sorted(vars(code)):
            if _is_plain(value := vars(code)[name]) and name not in ("__module__", "__doc__", "__firstlineno__"):
                yield f"{name} = {value!r}"
    for function in _functions(code):
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        yield f"{function.__qualname__} {[value for value in defaults if _is_plain(value)]}"
        try:
            yield inspect.getsource(function)
        except Exception:  # of any kind if the text does not fit the code
            yield from _compiled(function.__code__)


def _compiled(code: CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _compiled(value)
        else:  # the order of a set is another one in every process
            yield repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _inside(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions in it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _inside(value)


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The global and enclosing variables that a function reads, by name."""
    names = sorted({name for code in _inside(function.__code__) for name in code.co_names})
    yield from ((name, function.__globals__[name]) for name in names if name in function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            try:
                yield name, cell.cell_contents
            except ValueError:  # it has no value yet
                continue


def _is_plain(value: object) -> bool:
    """A constant, whose text says all about it."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


# Modules and files


def _top(name: str) -> str:
    return name.partition(".")[0]


def _home(code: Code) -> Path | None:
    """The file of its module; None if it was not made by that module, as in a notebook."""
    name = code.__module__ or ""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if name in LOOSE or module is None or file is None:
        return None
    own = [each for each in _functions(code) if each.__module__ == name]
    made_there = not own or any(each.__globals__ is module.__dict__ for each in own)
    return Path(file) if made_there else None


def _find(name: str) -> Path | None:
    """The file of a module, which is not imported for that."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if file else None
    spec, path, parts = None, None, name.split(".")
    for end in range(1, len(parts) + 1):
        try:
            spec = PathFinder.find_spec(".".join(parts[:end]), path)
        except (ImportError, ValueError, OSError):
            return None
        if spec is None or (end < len(parts) and spec.submodule_search_locations is None):
            return None
        path = spec.submodule_search_locations
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


def _imports(content: bytes, package: str) -> Iterator[str]:
    """The modules that a source file imports, wherever it does so."""
    try:
        nodes = [*ast.walk(ast.parse(content))]
    except (SyntaxError, ValueError):  # no Python source, such as a compiled module
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:
                continue
            if _top(base) == OURS or _top(base) in KNOWN:
                continue
            for alias in node.names:  # a module of the package, or a name in it
                inner = f"{base}.{alias.name}"
                yield inner if _find(inner) else base


def _is_installed(file: Path) -> bool:
    file = file.resolve()
    roots = (Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return bool({"site-packages", "dist-packages"} & {*file.parts}) or any(map(file.is_relative_to, roots))


_contents: dict[str, tuple[ModuleSpec, bytes]] = {}  # of modules that are imported; each import has its own spec


def _content(name: str, file: Path) -> bytes:
    """The content of a source file; of a module that is imported, what it was when this was first asked."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    known = _contents.get(name)
    if known and spec is not None and known[0] is spec:
        return known[1]
    try:
        content = file.read_bytes().replace(b"\r\n", b"\n")
    except OSError:
        content = b""
    if spec is not None:
        _contents[name] = spec, content
    return content


def _label(name: str, file: Path) -> str:
    """`package/module.py`: the end of the path that the name of the module has, too, so no folder of the user's."""
    parts = name.split(".") if file.stem == "__init__" else name.split(".")[:-1]
    folders = file.parts[:-1]
    same = parts and folders[-len(parts) :] == tuple(parts)
    return "/".join((*parts, file.name)) if same else file.name
