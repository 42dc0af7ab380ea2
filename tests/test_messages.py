"""Every error of the package has its code and its values in `messages.toml`."""

import ast
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import fedlgd
from fedlgd.core import errors
from fedlgd.core.errors import FedlgdError, message, messages

SOURCE = Path(fedlgd.__file__).parent
CATALOGUE = Path(errors.__file__).with_name("messages.toml")
KINDS = {"FedlgdError"}


class Raised(NamedTuple):
    """One place that makes an error."""

    place: str
    code: str | None
    values: set[str] | None


def kinds() -> set[str]:
    """The names of all error classes with a code."""
    trees = [ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = set(KINDS)
    for _ in range(3):  # subclasses of subclasses
        found |= {
            each.name
            for each in classes
            if any(isinstance(base, ast.Name) and base.id in found for base in each.bases)
        }
    return found


def raised() -> Iterator[Raised]:
    known = kinds()
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
            if called in known or (called == "kind" and node.args):  # in plugins, the class is an argument
                place = f"{file.relative_to(SOURCE)}:{node.lineno}"
                first = node.args[0] if len(node.args) == 1 else None
                code = first.value if isinstance(first, ast.Constant) else None
                open_ended = any(each.arg is None for each in node.keywords)
                values = None if open_ended else {each.arg for each in node.keywords if each.arg}
                yield Raised(place, code, values)


def fields(code: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(messages()[code]) if name is not None}


def test_every_error_has_a_code_of_the_catalogue():
    assert [each.place for each in raised() if each.code not in messages()] == []


def test_every_error_gives_the_values_that_its_message_names():
    known = [each for each in raised() if each.code in messages() and each.values is not None]
    missing = {
        each.place: fields(each.code) - each.values for each in known if each.code and each.values is not None
    }
    assert {place: names for place, names in missing.items() if names} == {}


def test_no_message_is_left_over():
    text = "\n".join(file.read_text() for file in SOURCE.rglob("*.py"))
    assert [code for code in messages() if f'"{code}"' not in text] == []


def test_a_code_stands_once_in_the_catalogue():
    lines = CATALOGUE.read_text().splitlines()
    codes = Counter(line.partition(" = ")[0] for line in lines if " = " in line and line[0].isalpha())
    assert [code for code, count in codes.items() if count > 1] == []


def test_numbers_take_their_noun_and_lists_their_commas(monkeypatch):
    monkeypatch.setattr(errors, "messages", lambda: {"x": "{n:#image} of {site!r}: {names:,}"})
    assert message("x", n=1, site="a", names=["b", "c"]) == "1 image of 'a': b, c"


def test_a_text_that_is_no_code_is_the_message_of_someone_elses_error():
    error = FedlgdError("my method needs {braces}")
    assert (str(error), error.code) == ("my method needs {braces}", "")
