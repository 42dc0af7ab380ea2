"""What users get wrong, what disks damage and what attackers craft: each is refused with its code.

A row is (reader, damage, code). A new reader, or a new way to damage what it reads, is a new row.
"""

import os
import pkgutil
import random
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import fedlgd
from fedlgd.core import files
from fedlgd.core.errors import FedlgdError
from fedlgd.core.settings import Settings
from fedlgd.data.arrays import npz_digest, read_arrays
from fedlgd.data.federation import Federation, from_sites
from fedlgd.data.own.check import check_data
from fedlgd.data.suites import from_folders, load
from fedlgd.methods.registry import find_method
from fedlgd.nets.registry import build_net
from fedlgd.report.page import write_report
from fedlgd.rundir.read import read_run
from fedlgd.runs.config import resolve
from fedlgd.runs.parse import parse_assignment, read_toml
from fedlgd.runs.run import execute, run
from tests import tiny
from tests.damage.npz import CRAFTED, encrypted, npy, packed
from tests.damage.table import KINDS, Row, arrays, half, images, resumed
from tests.errors import check_error
from tests.runs.folder import FAST_NET, config, method

NAMES = ["cat", "cow", "dog"]

# Arrays


def _array_row(damage: str, code: str, change: Any, classes: Any = None, **values: Any) -> Row:
    """Site ape is good; `change` spoils the arrays of bee."""

    def attempt(_: Path) -> None:
        bee = arrays()
        bee = change(bee) or bee
        fedlgd.from_arrays({"ape": arrays(), "bee": bee}, classes=classes)

    return Row("from_arrays", damage, attempt, code, {"site": "bee", **values})


def _set(part: int, value: Any, *, floats: bool = False) -> Any:
    """The arrays with one pixel or label replaced."""

    def change(bee: list[Any]) -> None:
        if floats:
            bee[0], bee[2] = bee[0] / 255, bee[2] / 255
        bee[part][(1, 2, 3)[: bee[part].ndim]] = value

    return change


def _put(part: int, make: Any) -> Any:
    """The arrays with one of them made from itself."""

    def change(bee: list[Any]) -> None:
        bee[part] = make(bee[part])

    return change


def _without_class(bee: list[Any]) -> list[Any]:
    keep = bee[1] != 1
    return [bee[0][keep], bee[1][keep], *bee[2:]]


def _array_rows() -> Iterator[Row]:
    for part, name in ((0, "train"), (2, "test")):
        yield _array_row(
            f"an empty {name} part",
            "part-empty",
            lambda bee, at=part: [each[:0] if i in (at, at + 1) else each for i, each in enumerate(bee)],
            part=name,
        )
        for value in (np.nan, np.inf, -np.inf):
            code = "pixels-not-finite" if np.isnan(value) else "pixels-out-of-range"
            yield _array_row(f"{value} in {name}", code, _set(part, value, floats=True))
        for at in (part, part + 1):
            yield _array_row(f"array {at} too short", "labels-do-not-match", _put(at, lambda x: x[:-1]), part=name)
        for label, classes in ((-1, None), (3, NAMES), (1000, NAMES)):
            yield _array_row(
                f"{name} label {label}", "label-out-of-range", _set(part + 1, label), classes, label=label
            )
    for value in (-0.1, 1.1, 255.0):
        yield _array_row(f"pixel {value}", "pixels-out-of-range", _set(0, value, floats=True))
    for kind in (float, bool, str):
        yield _array_row(
            f"labels of {kind.__name__}", "labels-not-integers", _put(1, lambda y, k=kind: y.astype(k)), NAMES
        )
    for shape in ((12, 8), (12, 8, 8, 2), (12, 8, 8, 3, 1), (12,)):
        change = _put(0, lambda _, s=shape: np.zeros(s, np.uint8))
        yield _array_row(f"images of shape {shape}", "array-not-images", change, shape=shape)
    yield _array_row("32-bit images", "images-of-wrong-type", _put(0, lambda x: x.astype(np.int32)))
    yield _array_row("two arrays", "not-four-arrays", lambda bee: bee[:2], count=2)
    yield _array_row("larger images", "site-shapes-differ", lambda _: arrays(size=10), shape=(3, 10, 10))
    yield _array_row("larger test images", "site-shapes-differ", _put(2, lambda _: arrays(size=10)[2]))
    yield _array_row("a class less", "class-too-small", _without_class, NAMES, label="cow", count=0)
    yield _array_row("a class more", "class-too-small", lambda _: arrays(4), site="ape", label="3")
    yield Row(
        "from_arrays",
        "few images of a class",
        lambda _: fedlgd.from_arrays({"ape": arrays()}, min_per_class=5),
        "class-too-small",
        {"site": "ape", "count": 4, "least": 5},
    )
    yield Row("from_arrays", "no site", lambda _: fedlgd.from_arrays({}), "federation-without-site")
    yield Row("federation", "a name twice", lambda _: from_sites("x", [_site("a"), _site("a")]), "site-twice")
    yield Row(
        "federation",
        "other classes",
        lambda _: from_sites("x", [_site("a", NAMES), _site("b", NAMES[::-1])]),
        "classes-differ",
        {"site": "b", "other": "a"},
    )


def _site(name: str, classes: Any = None) -> Any:
    (site,) = fedlgd.from_arrays({name: arrays()}, classes=classes).sites
    return site


# Settings


def _run_rows(damage: str, code: str, values: dict[str, Any] | None = None, **settings: Any) -> Iterator[Row]:
    """The same settings in Python and in a file, where a value out of bounds is an invalid setting."""
    in_file = {"setting-out-of-bounds": "invalid-setting"}.get(code, code)
    yield Row("run", damage, lambda _: run(tiny.federation(), **settings), code, values or {})
    yield Row(
        "settings", damage, lambda _: resolve(settings), in_file, values if code == in_file and values else {}
    )


def _setting_rows() -> Iterator[Row]:
    for rounds in (0, -1):
        yield from _run_rows(f"rounds {rounds}", "setting-out-of-bounds", {"value": rounds}, rounds=rounds)
    for ratio in (0.0, -0.5, 1.0001, 2.0, float("nan"), float("inf")):
        yield from _run_rows(f"ratio {ratio}", "setting-out-of-bounds", {"setting": "ratio"}, ratio=ratio)
    yield from _run_rows("an unknown part", "part-unknown", {"name": "ancors"}, method="fedavg+ancors")
    yield from _run_rows("no part", "no-part", method="fedavg+tests.runs.own:Own")
    yield from _run_rows("a part that does not fit", "part-not-accepted", method="fedlgd+anchors")
    yield from _run_rows("two parts of one kind", "parts-share-section", method="fedavg+anchors+noise")
    for name in ("fedlg", "zzzz"):
        yield from _run_rows(f"method {name}", "method-unknown", {"name": name}, method=name)
    for name in ("bultin-digits", "zzzz"):
        yield Row("suite", name, lambda _, name=name: load(name), "unknown-suite", {"name": name})
    for key in ("limit", "test_limit"):
        yield Row(
            "suite", f"{key} -1", lambda _, key=key: load("builtin-digits", **{key: -1}), "setting-out-of-bounds"
        )
    yield Row(
        "method", "unknown", lambda _: find_method("fedlg"), "method-unknown", {"hint": "; did you mean 'fedlgd'?"}
    )
    yield Row(
        "engine", "unknown", lambda _: run(tiny.federation(), engine="pol"), "engine-unknown", {"name": "pol"}
    )
    yield Row("engine", "workers of loop", lambda _: run(tiny.federation(), workers=2), "loop-has-no-workers")
    many = {"distil.per_class": 4, "distil.short": "refuse"}
    yield Row(
        "run",
        "more virtual images than real ones",
        lambda _: execute(config(method("fedlgd", **many), net=FAST_NET), tiny.federation(train=3, test=1)),
        "class-smaller-than-virtual",
        {"site": "ape", "count": 3, "per_class": 4},
    )
    yield Row("net", "unknown", lambda _: build_net("connet", (3, 8, 8), 3), "net-unknown", {"name": "connet"})
    yield Row("settings", "unknown net", lambda _: resolve({"net": "connet"}), "net-unknown", {"name": "connet"})
    for key, value, code in (
        ("widht", 3, "net-setting-unknown"),
        ("width", 0, "net-setting-number"),
        ("width", -1, "net-setting-number"),
        ("width", "wide", "net-setting-number"),
        ("norm", "bach", "net-setting-choice"),
        ("depth", 5, "net-image"),
    ):
        attempt = lambda _, given={key: value}: build_net("convnet", (3, 8, 8), 3, given)  # noqa: E731
        yield Row("net", f"{key} {value}", attempt, code)


# Text that is too much

DEEP = "[" * 100_000
HUGE = {
    "ten megabytes": ("rounds=" + "9" * 10_000_000, "text-too-long"),
    "a million digits": ("rounds=" + "9" * 1_000_000, "text-too-long"),
    "five thousand digits": ("rounds=" + "9" * 5_000, "too-deep-to-read"),
    "brackets": ("rounds=" + DEEP, "too-deep-to-read"),
    "closed brackets": ("rounds=" + DEEP + "]" * 100_000, "text-too-long"),
    "a few brackets": ("rounds=" + "[" * 50 + "]" * 50, "too-many-levels"),
    "inline tables": ("distil=" + "{a=" * 10_000 + "1" + "}" * 10_000, "too-deep-to-read"),
    "dots in a value": ("distil={" + ".".join(["a"] * 50_000) + "=1}", "too-many-dots"),
}
DOTS = ".".join(["a"] * 100_000) + "=1"
ASSIGNED = {**HUGE, "dots": (DOTS, "assignment-too-deep")}
WRITTEN = {
    **HUGE,
    "dots": (DOTS, "text-too-long"),
    "a slip": ("[distil]\nper_clas = 3\n", "unknown-setting"),
    "no TOML": ("rounds: 3\n", "config-no-toml"),
}


def _file(place: Path, text: str) -> Any:
    (place / "my.toml").write_text(text)
    return resolve(read_toml(place / "my.toml"))


def _text_rows() -> Iterator[Row]:
    for damage, (text, code) in ASSIGNED.items():
        yield Row("--set", damage, lambda _, text=text: resolve({}, dict([parse_assignment(text)])), code)
    for damage, (text, code) in WRITTEN.items():
        yield Row("config file", damage, lambda place, text=text: _file(place, text), code)
    yield Row("config file", "missing", lambda place: read_toml(place / "no.toml"), "config-unreadable")
    yield Row("config file", "without end", lambda _: read_toml(Path("/dev/zero")), "text-too-long")


# Archives of arrays


BESIDE = ("folder of npz", "a folder")


def _npz_rows() -> Iterator[Row]:
    for damage, make in CRAFTED.items():
        for reader, read in (("npz", lambda place: read_arrays(place / "a.npz")), ("folder of npz", from_folders)):

            def attempt(place: Path, make: Any = make, read: Any = read) -> None:
                make(place / "a.npz")
                assert (place / "a.npz").is_dir() or check_data(place, 1).count("error")
                read(place)

            code = "npz-unreadable" if reader == "npz" else "folder-problem"
            yield Row(reader, damage, attempt, "npz-beside-folders" if (reader, damage) == BESIDE else code)

    def digest(place: Path) -> None:
        encrypted(place / "a.npz")
        npz_digest(place / "a.npz")

    yield Row("digest of npz", "encrypted", digest, "npz-unreadable")


# Run folders

STORED = [
    *("manifest.json", "config.toml", "records.jsonl", "state/head.json", "state/server-2.safetensors"),
    *("state/enrolled/ape.safetensors", "state/sites/ape/0001.safetensors", "state/sites/bee/0001.safetensors"),
]
ENROLLED = [
    *STORED[:6],
    *(f"state/sites/{name}/start.safetensors" for name in ("ape", "bee")),
    "state/enrolled/bee.safetensors",
]


def _cut(length: float) -> Any:
    """The first part of a file: a share of it, or all but its last letter (two, where the last ends a line)."""

    def damage(file: Path) -> None:
        content = file.read_bytes()
        whole = len(content) - (2 if file.suffix == ".json" else 1)
        file.write_bytes(content[: whole if length == 1 else int(length * len(content))])

    return damage


def _turned(seed: int) -> Any:
    """One bit turned round."""

    def damage(file: Path) -> None:
        content, rng = bytearray(file.read_bytes()), random.Random(f"{file.name} {seed}")
        position = {0: 0, 1: len(content) - 1}.get(seed, rng.randrange(len(content)))
        content[position] ^= 1 << rng.randrange(8)
        file.write_bytes(content)

    return damage


def _changed(name: str, change: Any) -> Any:
    """A JSON file of a run with some keys changed, and a right digest."""

    def damage(folder: Path) -> None:
        whole = files.read_json(folder / name)
        files.write_json(folder / name, change(whole))

    return damage


def _record(line: bytes) -> Any:
    """One line of records, with a right digest."""

    def damage(folder: Path) -> None:
        (folder / "records.jsonl").write_bytes(line + b"\n")
        head = files.read_json(folder / "state" / "head.json")
        head["records"] = {"bytes": len(line) + 1, "digest": files.digest(line + b"\n")}
        files.write_json(folder / "state" / "head.json", head)

    return damage


def _damaged_rows() -> Iterator[Row]:
    ways = {"cut to nothing": _cut(0), "cut in half": _cut(0.5), "cut at its end": _cut(1), "deleted": Path.unlink}
    ways |= {f"bit {seed} turned": _turned(seed) for seed in range(10)}
    for kind, names in (("fedlgd", STORED), ("fedavg", ENROLLED)):
        for name in names:
            for way, damage in ways.items():
                attempt = resumed(lambda folder, n=name, d=damage: d(folder / n), kind)
                yield Row(
                    "resume", f"{name} of {kind} {way}", attempt, _FILE_CODES.get((name, way), "damaged-file")
                )


_FILE_CODES: dict[tuple[str, str], str] = {
    ("manifest.json", "deleted"): "manifest-missing",
    ("state/head.json", "deleted"): "head-missing",
}
ALLOWED = [("sites", {}), ("round", -1), ("round", 2**70)]
WRONG = [None, -1, "x", [], {}, 1.5, 2**70, [[]], {"a": {}}]
KEYS = {
    "manifest.json": ("format", "config", "versions", "data"),
    "state/head.json": ("format", "round", "server", "sites", "records"),
}


_KEY_CODES = {
    ("manifest.json", "format"): "manifest-format",
    ("state/head.json", "format"): "head-format",
}


def _crafted_rows() -> Iterator[Row]:
    for name, keys in KEYS.items():
        for key in keys:
            code = _KEY_CODES.get((name, key), "damaged-file")
            less = _changed(name, lambda whole, key=key: {k: v for k, v in whole.items() if k != key})
            yield Row("resume", f"{name} without {key}", resumed(less), "damaged-file")
            for wrong in WRONG:
                if (key, wrong) not in ALLOWED:
                    change = _changed(name, lambda whole, key=key, wrong=wrong: whole | {key: wrong})
                    yield Row(
                        "resume",
                        f"{key} of {name} is {wrong}",
                        resumed(change),
                        "other-version" if (key, wrong) == ("versions", {}) else code,
                    )
    for server in ("../../secret", "/etc/passwd", "server-1.safetensors/../x", "server-1.safetensors\n"):
        change = _changed("state/head.json", lambda head, server=server: head | {"server": server})
        yield Row("resume", f"a head that names {server!r}", resumed(change), "damaged-file")
    for line in (b"[" * 100_000, b'{"scores": {"ape": 1}}', b"[]", b"{}", b"1" * 10_000, b"\xff", b""):
        for reader, attempt in (("resume", resumed(_record(line))), ("report", _read(_record(line)))):
            yield Row(reader, f"a record {line[:20]!r}", attempt, "damaged-file")
    brackets = lambda folder: (folder / "manifest.json").write_text("[" * 100_000)  # noqa: E731
    yield Row("resume", "a manifest of brackets", resumed(brackets), "damaged-file")
    yield Row("report", "a manifest of brackets", _read(brackets), "damaged-file")


def _read(damage: Any) -> Any:
    def attempt(place: Path) -> None:
        folder = half(place)
        damage(folder)
        read_run(folder)

    return attempt


SITES = KINDS["fedlgd"]
OTHERS = {
    "a round less": (replace(SITES, plan=replace(SITES.plan, rounds=2)), "more-rounds-done"),
    "another seed": (replace(SITES, plan=replace(SITES.plan, seed=9)), "other-configuration"),
    "another rate": (replace(SITES, method=method("fedlgd", **{"local.lr": 0.5})), "other-configuration"),
    "another method": (replace(SITES, method=method("fedavg")), "other-configuration"),
    "another net": (replace(SITES, net={"name": "convnet", "depth": 2, "width": 4}), "other-configuration"),
    "a setting more": (replace(SITES, net={**FAST_NET, "bias": True}), "other-configuration"),
    "another limit": (replace(SITES, data=replace(SITES.data, limit=5)), "other-configuration"),
}


def _with(part: str, what: str) -> Federation:
    """The data with one pixel or two labels changed."""
    first, *rest = images().sites
    x, y = getattr(first, part).x.clone(), getattr(first, part).y.clone()
    if what == "pixel":
        x[0, 0, 0, 0] ^= 1
    else:
        y[0], y[-1] = y[-1].item(), y[0].item()
    return Federation(images().name, (replace(first, **{part: replace(getattr(first, part), x=x, y=y)}), *rest))


def _other_rows() -> Iterator[Row]:
    same = lambda _: None  # noqa: E731
    for damage, (how, code) in OTHERS.items():
        yield Row("resume", damage, resumed(same, how=how), code)
    for part in ("train", "test"):
        for what in ("pixel", "label"):
            yield Row("resume", f"a {part} {what} changed", resumed(same, data=_with(part, what)), "images-changed")
    for damage, names in (("another site", ("ape", "cow")), ("a site more", tiny.NAMES)):
        data = tiny.federation(names, train=3, test=1)
        yield Row("resume", damage, resumed(same, data=data), "images-changed")
    for package in ("torch", "fedlgd"):
        change = _changed(
            "manifest.json", lambda whole, p=package: whole | {"versions": {**whole["versions"], p: "0.0.1"}}
        )
        yield Row("resume", f"another {package}", resumed(change), "other-version", {"name": package})
    for name, code in (("manifest.json", "manifest-format"), ("state/head.json", "head-format")):
        change = _changed(name, lambda whole: whole | {"format": 99})
        yield Row("resume", f"format 99 in {name}", resumed(change), code, {"format": 99})
    older = _changed("state/head.json", lambda whole: whole | {"format": 1})
    yield Row("resume", "the format before", resumed(older), "head-format", {"format": 1})
    edited = lambda folder: _edit(folder / "config.toml", "rounds = 3", "rounds = 9")  # noqa: E731
    yield Row("resume", "an edited config.toml", resumed(edited), "damaged-file")
    for kind in KINDS:
        gone = lambda folder: shutil.rmtree(folder / "state")  # noqa: E731
        yield Row("resume", f"no state of {kind}", resumed(gone, kind), "folder-not-empty")
        lost = lambda folder: shutil.rmtree(folder / "state" / "sites" / "bee")  # noqa: E731
        yield Row("resume", f"no states of a site of {kind}", resumed(lost, kind), "damaged-file")
    swap = lambda folder: shutil.copy(folder / STORED[6], folder / STORED[4])  # noqa: E731
    yield Row("resume", "a state of another kind", resumed(swap), "damaged-file")
    for name in ("thesis.txt", "manifest.json", "config.toml", "records.jsonl", "state/x"):
        code = {"manifest.json": "damaged-file", "state/x": "manifest-missing"}.get(name, "folder-not-empty")
        yield Row("resume", f"a folder with only {name}", resumed(_only(name)), code)
    for place in ("file", "file/below", "file/far/below"):
        yield Row("run", f"out={place}", lambda root, place=place: _below_a_file(root, place), "cannot-write")


def _edit(file: Path, before: str, after: str) -> None:
    file.write_text(file.read_text().replace(before, after))


def _only(name: str) -> Any:
    def damage(folder: Path) -> None:
        shutil.rmtree(folder)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")

    return damage


def _below_a_file(root: Path, place: str) -> None:
    (root / "file").write_text("mine")
    try:
        execute(SITES, images(), root / place)
    finally:
        assert (root / "file").read_text() == "mine"


# Links and special files

LINKED = [
    *("records.jsonl", "manifest.json", "config.toml", ".lock", "analysis.json", "state", "state/head.json"),
    *("state/sites/ape", "state/enrolled/ape.safetensors", "virtual/start/ape.png", "real", "real/ape.png"),
    *("invert/real-round0-batch1.png", "invert-2/real-round0-batch1.png"),
]


def _moved_out(place: str) -> Any:
    """A part of the run is elsewhere, and a link leads to it."""

    def damage(folder: Path) -> None:
        inside, outside = folder / place, folder.parent / "outside"
        if inside.exists():
            inside.rename(outside)
        else:
            outside.write_text("mine")
            inside.parent.mkdir(exist_ok=True)
        inside.symlink_to(outside)

    return damage


def _link_to_nothing(folder: Path) -> None:
    (folder / "records.jsonl").unlink()
    (folder / "records.jsonl").symlink_to(folder.parent / "new")


def _pipe(place: str) -> Any:
    def damage(folder: Path) -> None:
        (folder / place).unlink(missing_ok=True)
        os.mkfifo(folder / place)

    return damage


def _link_rows() -> Iterator[Row]:
    ways = {f"{place} is a link": _moved_out(place) for place in LINKED} | {"a link to nothing": _link_to_nothing}
    pipes = ("records.jsonl", "state/head.json", "virtual/start/pipe.png")
    ways |= {f"{place} is a pipe": _pipe(place) for place in pipes}
    for way, damage in ways.items():
        yield Row("resume", way, _unfollowed(damage, _resume), "no-ordinary-file")
        yield Row("report", way, _unfollowed(damage, _report), "no-readable-run")


def _resume(folder: Path) -> None:
    execute(SITES, images(), folder)


def _report(folder: Path) -> None:
    write_report([folder], folder / "report.html")


def _unfollowed(damage: Any, read: Any) -> Any:
    """What a link names is left alone, and nothing is made where it leads to nothing."""

    def attempt(place: Path) -> None:
        folder = half(place)
        damage(folder)
        outside = {
            file: file.read_bytes() for file in place.rglob("*") if folder not in file.parents and file.is_file()
        }
        try:
            read(folder)
        finally:
            assert outside == {
                file: file.read_bytes()
                for file in place.rglob("*")
                if folder not in file.parents and file.is_file()
            }

    return attempt


ROWS = [
    row
    for rows in (
        *(_array_rows, _setting_rows, _text_rows, _npz_rows),
        *(_damaged_rows, _crafted_rows, _other_rows, _link_rows),
    )
    for row in rows()
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_damage_is_refused(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    (tmp_path / "place").mkdir()
    with pytest.raises(FedlgdError) as caught:
        row.attempt(tmp_path / "place")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < (300 if row.reader in ("--set", "config file") else 10_000)
    check_error(caught.value, row.code, **row.values)


def test_good_input_is_read(tmp_path: Path) -> None:
    """The table means something only if this passes."""
    made = fedlgd.from_arrays({"ape": arrays(), "bee": arrays()})
    assert set(run(made, method("fedavg"), rounds=1, net=FAST_NET).accuracy) == {"ape", "bee"}
    packed(tmp_path / "a.npz", npy())
    assert read_arrays(tmp_path / "a.npz")["train_x"].shape == (6, 8, 8)
    _resume(half(tmp_path))
    (tmp_path / "latest").symlink_to(tmp_path / "fedlgd")
    (tmp_path / "fedlgd" / "wandb").mkdir()
    (tmp_path / "fedlgd" / "wandb" / "latest-run").symlink_to(tmp_path)
    _resume(tmp_path / "latest")
    _report(tmp_path / "latest")


def test_a_class_may_be_missing_at_a_site_if_the_user_allows_it() -> None:
    sites = {"ape": arrays(), "bee": _without_class(arrays())}
    allowed = fedlgd.from_arrays(sites, classes=NAMES, min_per_class=0)
    result = run(allowed, method("fedlgd"), rounds=2, net=FAST_NET)
    assert result.virtual["bee"].labels.unique().tolist() == [0, 2]


def groups() -> Iterator[type[Settings]]:
    """Every group of settings of the package."""
    for module in pkgutil.walk_packages(fedlgd.__path__, "fedlgd."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    found = Settings.__subclasses__()
    while found:
        cls = found.pop()
        found += cls.__subclasses__()
        if cls.__module__.startswith("fedlgd."):
            yield cls


def test_every_integer_setting_has_a_lower_and_an_upper_bound() -> None:
    integers = [(cls, f) for cls in groups() for f in fields(cls) if get_type_hints(cls)[f.name] is int]
    assert len(integers) > 30
    unbounded = [f"{cls.__name__}.{f.name}" for cls, f in integers if not {"least", "most"} <= f.metadata.keys()]
    assert unbounded == []
