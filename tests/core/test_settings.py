"""Settings refuse what is outside their bounds, by path, with the bound and what the setting is for."""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.errors import SettingError
from fedlgd.core.settings import Settings, setting
from tests.errors import refuses


@dataclass(frozen=True, kw_only=True)
class Oven(Settings):
    section: ClassVar[str] = "kitchen.oven"

    trays: int = setting(2, "Number of trays.", least=1, most=4)
    share: float = setting(0.5, "Share of the heat from above.", above=0, below=1)
    heat: float = setting(180.0, "Degrees.", least=0)
    name: str = setting("hearth", "What it is called.")
    note: str = field(default="", metadata={})


@dataclass(frozen=True, kw_only=True)
class Bare(Settings):
    count: int = setting(0, "A number.", least=0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"trays": 0}, "kitchen.oven.trays is 0; use 1 or more (Number of trays)"),
        ({"trays": 5}, "kitchen.oven.trays is 5; use 4 or less (Number of trays)"),
        ({"share": 0.0}, "kitchen.oven.share is 0.0; use more than 0 (Share of the heat from above)"),
        ({"share": 1.0}, "kitchen.oven.share is 1.0; use less than 1 (Share of the heat from above)"),
        ({"heat": -0.1}, "kitchen.oven.heat is -0.1; use 0 or more (Degrees)"),
    ],
)
def test_a_value_outside_its_bounds_is_refused_with_path_bound_and_help(wrong, words):
    with pytest.raises(SettingError) as error:
        Oven(**wrong)
    assert str(error.value) == words


@pytest.mark.parametrize("name", ["trays", "share", "heat"])
def test_nan_is_outside_of_every_bound(name):
    with pytest.raises(SettingError, match=rf"kitchen\.oven\.{name} is nan; use "):
        Oven(**{name: math.nan})


def test_infinity_is_outside_of_an_upper_bound_only():
    assert Oven(heat=math.inf).heat == math.inf
    with refuses("setting-out-of-bounds", SettingError, value=math.inf, bound="4 or less"):
        Oven(trays=math.inf)
    with refuses("setting-out-of-bounds", SettingError, value=-math.inf, bound="0 or more"):
        Oven(heat=-math.inf)


@given(st.integers(1, 4), st.floats(0, 1, exclude_min=True, exclude_max=True), st.floats(0, 1e300))
def test_every_value_inside_is_kept_as_it_is(trays, share, heat):
    oven = Oven(trays=trays, share=share, heat=heat)
    assert (oven.trays, oven.share, oven.heat) == (trays, share, heat)


def test_a_changed_copy_is_checked_too():
    with refuses("setting-out-of-bounds", SettingError, value=9):
        replace(Oven(), trays=9)


def test_a_setting_without_bounds_may_be_anything():
    assert Oven(name="", note="x").name == ""


def test_outside_of_a_section_the_path_is_the_name():
    with pytest.raises(SettingError, match=r"^count is -1; use 0 or more \(A number\)$"):
        Bare(count=-1)


def test_settings_do_not_change():
    with pytest.raises(AttributeError):
        Oven().trays = 3  # type: ignore[misc]
