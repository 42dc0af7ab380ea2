"""What users get wrong: each slip is refused with the thing, the value and the way out."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedlgd
from fedlgd.core.errors import DataError, FedlgdError, NetError, RunError, SettingError
from fedlgd.data.federation import Federation, federation, limited
from fedlgd.data.suites import load
from fedlgd.methods.registry import find_method, names
from fedlgd.nets.registry import build_net
from fedlgd.runs.config import resolve
from fedlgd.runs.parse import read_toml
from fedlgd.runs.run import execute, run
from tests import tiny
from tests.runs.folder import FAST_NET, config, everything, head, leftovers, method


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path / "home"))


def arrays(classes: int = 3, size: int = 8, each: int = 4) -> tuple[Any, Any, Any, Any]:
    """Images and labels of one good site."""
    y = np.arange(classes * each) % classes
    x = np.random.default_rng(0).integers(0, 256, size=(len(y), size, size), dtype=np.uint8)
    return x, y, x.copy(), y.copy()


def refusal(kind: type[Exception], attempt: Callable[[], Any], *words: str) -> None:
    """The attempt is refused, in one line, with all of these words."""
    with pytest.raises(kind) as error:
        attempt()
    assert isinstance(error.value, FedlgdError)
    message = str(error.value)
    assert "\n" not in message
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"


# Images and labels


def test_good_arrays_are_accepted():
    """The rest of this file means something only if this passes."""
    made = fedlgd.from_arrays({"ape": arrays(), "bee": arrays()})
    assert made.shape == (3, 8, 8)
    assert len(made.classes) == 3
    result = run(made, method("fedavg"), rounds=1, net=FAST_NET)
    assert set(result.accuracy) == {"ape", "bee"}


def test_sites_with_different_classes():
    (ape,) = fedlgd.from_arrays({"ape": arrays()}, classes=["cat", "cow", "dog"]).sites
    (bee,) = fedlgd.from_arrays({"bee": arrays()}, classes=["cat", "dog", "cow"]).sites
    refusal(
        DataError,
        lambda: federation("mine", [ape, bee]),
        "site 'bee' has classes ['cat', 'dog', 'cow']",
        "site 'ape' has ['cat', 'cow', 'dog']",
        "the same classes in the same order",
    )


def test_a_site_with_more_classes_than_the_others():
    refusal(
        DataError,
        lambda: fedlgd.from_arrays({"ape": arrays(3), "bee": arrays(4)}),
        "site 'ape' has 0 images of class 3 ('3')",
        "min_per_class=0",
    )


def test_sites_with_different_shapes():
    refusal(
        DataError,
        lambda: fedlgd.from_arrays({"ape": arrays(size=8), "bee": arrays(size=10)}),
        "site 'bee' has images of shape (3, 10, 10)",
        "site 'ape' has (3, 8, 8)",
        "resize",
    )


def test_test_images_of_another_shape_than_the_training_images():
    x, y, _, _ = arrays(size=8)
    _, _, other, _ = arrays(size=10)
    refusal(DataError, lambda: fedlgd.from_arrays({"ape": (x, y, other, y)}), "'ape'", "(3, 10, 10)", "(3, 8, 8)")


def test_a_class_missing_at_a_site_is_refused_and_may_be_allowed():
    x, y, test_x, test_y = arrays()
    keep = y != 1
    sites = {"ape": arrays(), "bee": (x[keep], y[keep], test_x, test_y)}
    refusal(
        DataError,
        lambda: fedlgd.from_arrays(sites, classes=["cat", "cow", "dog"]),
        "site 'bee' has 0 images of class 1 ('cow')",
        "min_per_class=0",
    )
    allowed = fedlgd.from_arrays(sites, classes=["cat", "cow", "dog"], min_per_class=0)
    result = run(allowed, method("fedlgd"), rounds=2, net=FAST_NET)
    assert result.virtual["bee"].labels.unique().tolist() == [0, 2]


def test_too_few_images_of_a_class():
    sites = {"ape": arrays(each=4)}
    refusal(
        DataError,
        lambda: fedlgd.from_arrays(sites, min_per_class=5),
        "site 'ape' has 4 images of class 0 ('0')",
        "min_per_class=4",
    )


@pytest.mark.parametrize("part", [0, 2], ids=["train", "test"])
def test_an_empty_site(part):
    whole = list(arrays())
    whole[part], whole[part + 1] = whole[part][:0], whole[part + 1][:0]
    where = "train" if part == 0 else "test"
    refusal(
        DataError, lambda: fedlgd.from_arrays({"ape": arrays(), "bee": whole}), f"site 'bee', {where} part is empty"
    )


def test_no_site_at_all():
    refusal(DataError, lambda: fedlgd.from_arrays({}), "has no site", "at least one")


def test_two_sites_of_one_name():
    (ape,) = fedlgd.from_arrays({"ape": arrays()}).sites
    refusal(DataError, lambda: federation("mine", [ape, ape]), "two sites are called 'ape'")


@pytest.mark.parametrize(("label", "classes"), [(-1, None), (3, ["a", "b", "c"]), (1000, ["a", "b", "c"])])
@pytest.mark.parametrize("part", [1, 3], ids=["train", "test"])
def test_labels_out_of_range(label, classes, part):
    whole = list(arrays())
    whole[part][2] = label
    refusal(
        DataError,
        lambda: fedlgd.from_arrays({"ape": whole}, classes=classes),
        "site 'ape'",
        f"label {label} is out of range for 3 classes",
        "from 0 to 2",
    )


@pytest.mark.parametrize("kind", [float, bool, str])
def test_labels_that_are_no_whole_numbers(kind):
    x, y, test_x, test_y = arrays()
    refusal(
        DataError,
        lambda: fedlgd.from_arrays({"ape": (x, y.astype(kind), test_x, test_y)}, classes=["a", "b", "c"]),
        "site 'ape': labels are",
        "integers from 0",
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", [0, 2], ids=["train", "test"])
def test_pixels_that_are_no_numbers(value, part):
    whole = [a / 255 if a.ndim == 3 else a for a in arrays()]
    whole[part][1, 2, 3] = value
    refusal(DataError, lambda: fedlgd.from_arrays({"ape": arrays(), "bee": whole}), "site 'bee'", "pixels")


@pytest.mark.parametrize("value", [-0.1, 1.1, 255.0])
def test_float_pixels_outside_0_to_1(value):
    whole = [a / 255 if a.ndim == 3 else a for a in arrays()]
    whole[0][1, 2, 3] = value
    refusal(DataError, lambda: fedlgd.from_arrays({"ape": whole}), "site 'ape'", f"{value:g}", "0..1")


@pytest.mark.parametrize("part", [0, 1, 2, 3], ids=["train_x", "train_y", "test_x", "test_y"])
def test_images_and_labels_of_different_length(part):
    whole = list(arrays())
    whole[part] = whole[part][:-1]
    refusal(
        DataError,
        lambda: fedlgd.from_arrays({"ape": whole}),
        f"site 'ape', {'train' if part < 2 else 'test'} part",
        f"{11 if part % 2 == 0 else 12} images but {12 if part % 2 == 0 else 11} labels",
    )


@pytest.mark.parametrize("shape", [(12, 8), (12, 8, 8, 2), (12, 8, 8, 3, 1), (12,)])
def test_images_of_an_odd_shape(shape):
    whole = list(arrays())
    whole[0] = np.zeros(shape, dtype=np.uint8)
    refusal(DataError, lambda: fedlgd.from_arrays({"ape": whole}), "site 'ape'", str(shape), "(n, height, width)")


def test_images_of_whole_numbers_that_are_no_bytes():
    whole = [a.astype(np.int32) if a.ndim == 3 else a for a in arrays()]
    refusal(DataError, lambda: fedlgd.from_arrays({"ape": whole}), "site 'ape'", "int32", "uint8")


def test_a_part_left_out():
    refusal(DataError, lambda: fedlgd.from_arrays({"ape": arrays()[:2]}), "site 'ape' has 2 arrays", "test_y")


# Settings that do not fit the data or make no sense


def test_more_virtual_images_than_a_class_has():
    data = tiny.federation(train=3, test=1)
    refusal(
        DataError,
        lambda: execute(config(method("fedlgd", **{"distil.per_class": 4}), net=FAST_NET), data),
        "site 'ape' has 3 images of class 0",
        "distil.per_class is 4",
        "use distil.per_class=3 or less",
    )


@pytest.mark.parametrize("rounds", [0, -1])
def test_no_rounds(rounds):
    for attempt in (
        lambda: run(tiny.federation(), rounds=rounds),
        lambda: resolve({"rounds": rounds}),
        lambda: resolve({}, {"rounds": rounds}),
    ):
        refusal(SettingError, attempt, f"rounds is {rounds}; use 1 or more (Number of rounds)")


@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.0001, 2.0, float("nan"), float("inf")])
def test_a_share_of_sites_outside_0_to_1(ratio):
    for attempt in (lambda: run(tiny.federation(), ratio=ratio), lambda: resolve({"ratio": ratio})):
        bound = "more than 0" if ratio <= 0 else "1 or less"
        refusal(SettingError, attempt, f"ratio is {ratio}; use ", bound, "Fraction of sites")


def test_an_unknown_method():
    for attempt in (lambda: find_method("fedlg"), lambda: resolve({"method": "fedlg"})):
        refusal(SettingError, attempt, "'fedlg'", "did you mean 'fedlgd'?", *names(), "package.module:Class")
    refusal(SettingError, lambda: find_method("zzzz"), "'zzzz'", *names())


def test_an_unknown_thing_to_stack_on_a_method():
    for attempt in (
        lambda: resolve({"method": "fedavg+ancors"}),
        lambda: fedlgd.configure("fedavg+ancors"),
        lambda: run(tiny.federation(), "fedavg+ancors"),
    ):
        refusal(
            SettingError, attempt, "'ancors'", "did you mean 'anchors'?", "noise", "refine", "package.module:Class"
        )
    refusal(
        SettingError,
        lambda: resolve({"method": "fedavg+tests.runs.own:Own"}),
        "Own'",
        "subclass fedlgd.methods.regularisers.Regulariser",
    )


def test_a_thing_that_cannot_be_stacked_on_this_method():
    refusal(SettingError, lambda: resolve({"method": "fedlgd+anchors"}), "anchors", "fedlgd", "proximal")
    refusal(SettingError, lambda: resolve({"method": "fedavg+anchors+noise"}), "anchors and noise", "one of")


def test_an_unknown_engine():
    refusal(SettingError, lambda: run(tiny.federation(), engine="pol"), "'pol'", "loop or pool", "mean 'pool'?")
    refusal(SettingError, lambda: run(tiny.federation(), workers=2), "workers is 2", "use engine pool")
    refusal(SettingError, lambda: run(tiny.federation(), engine="pool", workers=-1), "workers is -1", "1 or more")


def test_an_unknown_net():
    for attempt in (lambda: build_net("connet", (3, 8, 8), 3), lambda: resolve({"net": "connet"})):
        refusal(NetError, attempt, "'connet'", "did you mean 'convnet'?", "resnet18", "package.module:Class")


def test_an_unknown_setting_of_a_net():
    refusal(NetError, lambda: build_net("convnet", (3, 8, 8), 3, {"widht": 3}), "'widht'", "'width'")


@pytest.mark.parametrize(("setting", "value"), [("width", 0), ("width", -1), ("width", "wide"), ("norm", "bach")])
def test_a_net_that_cannot_be_built(setting, value):
    data = tiny.federation(train=3, test=1)
    refusal(NetError, lambda: run(data, rounds=1, net={setting: value}), "net", setting, str(value))


def test_a_net_too_deep_for_the_images():
    refusal(NetError, lambda: build_net("convnet", (3, 8, 8), 3, {"depth": 5}), "depth=5", "(3, 8, 8)")


def test_an_unknown_suite():
    refusal(
        DataError, lambda: load("bultin-digits"), "'bultin-digits'", "did you mean 'builtin-digits'?", "available:"
    )
    refusal(DataError, lambda: run("zzzz"), "'zzzz'", "builtin-digits")


@pytest.mark.parametrize("key", ["limit", "test_limit"])
def test_a_negative_limit(key):
    refusal(SettingError, lambda: load("builtin-digits", **{key: -1}), f"data.{key} is -1", "0 for all")


def test_a_limit_larger_than_the_data_keeps_all():
    data = tiny.federation(train=3, test=1)
    assert limited(data, 1000, 1000).digest == data.digest


# Configuration files


def test_a_config_file_with_a_slip(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text("[distil]\nper_clas = 3\n")
    refusal(SettingError, lambda: resolve(read_toml(file)), "'distil.per_clas'", "did you mean 'distil.per_class'?")


def test_a_config_file_that_is_not_toml(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text("rounds: 3\n")
    refusal(SettingError, lambda: read_toml(file), str(file), "not valid TOML", "line 1")


def test_a_config_file_that_is_missing(tmp_path):
    refusal(SettingError, lambda: read_toml(tmp_path / "no.toml"), str(tmp_path / "no.toml"), "No such file")


# Places that cannot be written, and disks that fill up


@pytest.fixture
def data() -> Federation:
    return tiny.federation(tiny.NAMES[:2], train=3, test=1)


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below"])
def test_a_folder_that_cannot_be_made(place, tmp_path, data):
    (tmp_path / "file").write_text("mine")
    refusal(
        RunError,
        lambda: execute(config(method("fedavg"), net=FAST_NET), data, tmp_path / place),
        f"cannot write {tmp_path / place}",
        "writable folder with --out",
    )
    assert (tmp_path / "file").read_text() == "mine"


class FullDisk:
    """A disk that has room for so many more files."""

    def __init__(self, room: int) -> None:
        self.room = room

    def fsync(self, handle: int) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_at_any_moment_leaves_nothing_half_written_and_the_run_goes_on(tmp_path, data, monkeypatch):
    how = config(method("fedlgd"), rounds=2, net=FAST_NET)
    execute(how, data, tmp_path / "straight")
    (tmp_path / "home").rename(tmp_path / "old-home")
    refusals: list[str] = []
    for room in range(100):
        monkeypatch.setattr(os, "fsync", FullDisk(room).fsync)
        try:
            execute(how, data, tmp_path / "full")
            break
        except RunError as error:
            refusals.append(str(error))
        assert not list(tmp_path.rglob("*.part"))
    assert len(refusals) > 10
    for words in ("No space left on device", "Free space", "re-run the same command to resume"):
        assert all(words in refusal for refusal in refusals)
    assert everything(tmp_path / "full") == everything(tmp_path / "straight")
    assert leftovers(tmp_path / "full") == []


def test_a_full_disk_in_a_round_keeps_the_rounds_before(tmp_path, data, monkeypatch):
    how = config(method("fedlgd"), net=FAST_NET)
    folder = tmp_path / "out"

    def fill(record: Any) -> None:
        if record.round == 0:
            monkeypatch.setattr(os, "fsync", FullDisk(1).fsync)

    refusal(RunError, lambda: execute(how, data, folder, fill), str(folder), "No space left on device")
    assert head(folder)["round"] == 1
    monkeypatch.undo()
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path / "home"))
    heard: list[int] = []
    execute(how, data, folder, lambda record: heard.append(record.round))
    assert heard == [1, 2]
    execute(how, data, tmp_path / "straight")
    assert everything(folder) == everything(tmp_path / "straight")
