"""The pickles of CIFAR-10 read without running them: an interpreter of the few opcodes they are made of.

A pickle is a program; `pickle.load` would run whatever it names. Here nothing is imported or called: a name is
only compared with the four that numpy writes, and all that can come out is numbers, text, lists, tuples,
dictionaries and arrays of bytes.
"""

import io
import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlgd.core.errors import DataError, FedlgdError

LARGEST = 1 << 26  # bytes: twice a batch of CIFAR-10
MOST = 200_000  # opcodes: five times a batch

MARK = object()
RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
ENCODE = "_codecs encode"  # how Python 3 writes bytes in the protocol of Python 2
DTYPE_STATE = (3, "|", None, None, None, -1, -1, 0)


@dataclass(frozen=True)
class Name:
    """A module and a name in it, never looked up."""

    text: str


@dataclass
class Slot:
    """Where an array or its type will be: numpy pickles an empty one first and fills it afterwards."""

    kind: str
    value: Any = None


def read_pickle(content: bytes, where: object) -> Any:
    """What the pickle holds, or a `DataError` that says what in it is refused."""
    if len(content) > LARGEST:
        raise DataError(f"{where} is a pickle of {len(content)} bytes; a batch of CIFAR-10 has half of {LARGEST}")
    machine = Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(content))):
            if count > MOST:
                raise RefusedError("more opcodes than any batch has")
            machine.step(opcode.name, argument)
        return machine.result()
    except FedlgdError:
        raise
    except RefusedError as error:
        raise DataError(f"{where} holds {error}; it is not a CIFAR-10 batch and was not run") from error
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        raise DataError(f"{where} is a damaged pickle ({error}); download it again") from error


class RefusedError(Exception):
    """Something a batch of CIFAR-10 does not hold."""


class Machine:
    """A stack, and a memory of what was pickled before."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        if opcode in VALUES:
            self.stack.append(argument)
        elif opcode in CONSTANTS:
            self.stack.append(CONSTANTS[opcode]())
        elif opcode in ACTIONS:
            ACTIONS[opcode](self, argument)
        else:
            raise RefusedError(f"the opcode {opcode}")

    def result(self) -> Any:
        (value,) = self.stack
        return _unwrapped(value)

    def since_mark(self) -> list[Any]:
        """What was pushed after the last mark, which goes too."""
        at = len(self.stack) - 1 - self.stack[::-1].index(MARK)
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def pop(self, count: int) -> list[Any]:
        values = self.stack[-count:]
        del self.stack[-count:]
        return values


def _unwrapped(value: Any) -> Any:
    """The value itself: arrays come as slots at the top level or inside the dictionary."""
    if isinstance(value, Slot):
        if value.kind != "array" or value.value is None:
            raise RefusedError("an array that was never filled")
        return value.value
    if isinstance(value, dict):
        return {key: _unwrapped(item) if isinstance(item, Slot) else item for key, item in value.items()}
    return value


def _protocol(machine: Machine, number: int) -> None:
    if number != 2:
        raise RefusedError(f"a pickle of protocol {number}")


def _name(machine: Machine, text: str) -> None:
    if text not in (*RECONSTRUCT, "numpy ndarray", "numpy dtype", ENCODE):
        raise RefusedError(f"the name {text!r:.80}")
    machine.stack.append(Name(text))


def _call(machine: Machine, _: None) -> None:
    """What numpy's pickles call, and nothing else: an empty array, the type of bytes, bytes written as text."""
    name, arguments = machine.pop(2)
    match name, arguments:
        case Name(text), (Name("numpy ndarray"), (0,), _) if text in RECONSTRUCT:
            machine.stack.append(Slot("array"))
        case Name("numpy dtype"), ("u1" | "|u1", 0, 1):
            machine.stack.append(Slot("bytes"))
        case Name(text), (str(written), "latin1") if text == ENCODE:
            machine.stack.append(written.encode("latin-1"))
        case _:
            raise RefusedError(
                f"a call of {name.text!r}" if isinstance(name, Name) else "a call of what is no name"
            )


def _fill(machine: Machine, _: None) -> None:
    """Give an empty array its shape and bytes; the type of bytes has nothing more to say."""
    (state,) = machine.pop(1)
    slot = machine.stack[-1]
    match slot, state:
        case Slot("bytes"), tuple(values) if values == DTYPE_STATE:
            pass
        case Slot("array", None), (1, tuple(shape), Slot("bytes"), False, str() | bytes() as content):
            slot.value = _array(shape, content.encode("latin-1") if isinstance(content, str) else content)
        case _:
            raise RefusedError("a state that is not an array of bytes")


def _array(shape: tuple[Any, ...], content: bytes) -> Any:
    if not all(type(side) is int and side >= 0 for side in shape) or math.prod(shape) != len(content):
        raise RefusedError(f"an array whose {len(content)} bytes do not fill its shape")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _collect(count: int) -> Callable[[Machine, Any], None]:
    return lambda machine, _: machine.stack.append(tuple(machine.pop(count)))


def _mark(machine: Machine, _: None) -> None:
    machine.stack.append(MARK)


def _tuple(machine: Machine, _: None) -> None:
    machine.stack.append(tuple(machine.since_mark()))


def _append(machine: Machine, _: None) -> None:
    _extend(machine, machine.pop(1))


def _appends(machine: Machine, _: None) -> None:
    _extend(machine, machine.since_mark())


def _extend(machine: Machine, values: list[Any]) -> None:
    if type(machine.stack[-1]) is not list:
        raise RefusedError("items for what is no list")
    machine.stack[-1].extend(values)


def _set_item(machine: Machine, _: None) -> None:
    _update(machine, machine.pop(2))


def _set_items(machine: Machine, _: None) -> None:
    _update(machine, machine.since_mark())


def _update(machine: Machine, values: list[Any]) -> None:
    if type(machine.stack[-1]) is not dict:
        raise RefusedError("items for what is no dictionary")
    machine.stack[-1].update(zip(values[::2], values[1::2], strict=True))


def _remember(machine: Machine, place: int) -> None:
    machine.memory[place] = machine.stack[-1]


def _recall(machine: Machine, place: int) -> None:
    machine.stack.append(machine.memory[place])


def _nothing(machine: Machine, _: None) -> None:
    pass


VALUES = ("BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE")
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
ACTIONS: dict[str, Callable[[Machine, Any], None]] = {
    "PROTO": _protocol,
    "STOP": _nothing,
    "MARK": _mark,
    "TUPLE": _tuple,
    "TUPLE1": _collect(1),
    "TUPLE2": _collect(2),
    "TUPLE3": _collect(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "BINPUT": _remember,
    "LONG_BINPUT": _remember,
    "BINGET": _recall,
    "LONG_BINGET": _recall,
    "GLOBAL": _name,
    "REDUCE": _call,
    "BUILD": _fill,
}
