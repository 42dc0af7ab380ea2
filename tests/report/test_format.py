"""Numbers as a person writes them."""

import pytest

from fedlgd.report import format as fmt
from fedlgd.report.groups import Stat


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (fmt.percent(0.9123), "91.2"),
        (fmt.percent_stat(Stat(0.5, 0.0123)), "50.0 ± 1.2"),
        (fmt.percent_stat(None), "–"),
        (fmt.points(-0.012), "−1.2"),
        (fmt.points(0.012), "+1.2"),
        (fmt.points(-0.0001), "0.0"),
        (fmt.number_of_bytes(0), "0 B"),
        (fmt.number_of_bytes(999), "999 B"),
        (fmt.number_of_bytes(1000), "1.00 kB"),
        (fmt.number_of_bytes(45_600_000), "45.6 MB"),
        (fmt.operations(1.234e14), "123 TFLOP"),
        (fmt.operations(1e25), "10000000 EFLOP"),
        (fmt.duration(0.125), "0.12 s"),
        (fmt.duration(119.0), "119 s"),
        (fmt.duration(150.0), "2.50 min"),
        (fmt.duration(36000.0), "10.0 h"),
        (fmt.plural(1, "seed"), "1 seed"),
        (fmt.plural(2, "seed"), "2 seeds"),
    ],
)
def test_written(written: str, expected: str) -> None:
    assert written == expected
