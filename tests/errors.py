"""What tests say about errors: their code and their values, not their English."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fedlgd.core.errors import FedlgdError, messages


@contextmanager
def refuses(code: str, kind: type[FedlgdError] = FedlgdError, /, **values: Any) -> Iterator[pytest.ExceptionInfo]:
    """The block raises an error of this kind with this code and, among its values, these."""
    assert code in messages(), f"messages.toml has no {code!r}"
    with pytest.raises(kind) as caught:
        yield caught
    check_error(caught.value, code, **values)


def check_error(error: BaseException, code: str, /, **values: Any) -> None:
    """The error has this code and, among its values, these."""
    assert isinstance(error, FedlgdError)
    assert error.code == code, str(error)
    assert {name: error.values.get(name) for name in values} == values
