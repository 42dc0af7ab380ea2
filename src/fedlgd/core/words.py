"""Words for numbers in messages and tables. This module does not import torch."""


def plural(count: int, noun: str) -> str:
    """plural(1, "seed") -> "1 seed"; plural(3, "class") -> "3 classes"."""
    return f"{count} {counted(count, noun)}"


def counted(count: int, noun: str) -> str:
    """The noun alone, as it follows this number."""
    return noun if count == 1 else f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"
