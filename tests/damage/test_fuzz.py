"""Generated input over every reader: whatever it is, it is read or refused with a `FedlgdError`, never a traceback.

Inputs are numbered: input `n` of a kind is the same in every session. The slow campaign has more than 10 000.
"""

import io
import json
import random
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save

from fedlgd.core import files
from fedlgd.core.errors import FedlgdError, RunError
from fedlgd.core.settings import describe_settings
from fedlgd.data.arrays import read_domain
from fedlgd.data.images import ImageFile
from fedlgd.data.own.check import check_data
from fedlgd.deploy import messages
from fedlgd.deploy.coordinator import Sent, checked_answers, read_answers
from fedlgd.engines.site import Task
from fedlgd.engines.wire import _digest, pack
from fedlgd.methods.registry import names
from fedlgd.rundir.read import read_run
from fedlgd.rundir.records import decode_record, encode_record
from fedlgd.runs.config import known_paths, resolve
from fedlgd.runs.parse import parse_assignment, read_toml
from fedlgd.runs.run import execute
from tests import tiny
from tests.engines.hostile import PLAN, honest
from tests.runs.folder import FAST_NET, config, method, run_until

HOW = config(method("fedlgd"), net=FAST_NET)
DATA = tiny.federation(tiny.NAMES[:2], train=3, test=1)
PIECES = [
    *(
        "1",
        "-1",
        "0",
        "1e400",
        "nan",
        "inf",
        "true",
        "9" * 30,
        "9" * 5000,
        "0x1F",
        "1.5",
        "1979-05-27",
        '"x"',
        "''",
    ),
    *("[", "]", "[[", "{", "}", "{a=1}", "[1, 2]", '["a", 1]', ",", "=", ".", "\n", "\0", "\ud800", "é", "#", " "),
]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Bits turned, bytes cut out, doubled or replaced."""
    made = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(made) + 1)
        how = rng.randrange(5)
        if how == 0 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del made[at : at + rng.choice([1, 4, 100, 10_000])]
        elif how == 2:
            made[at:at] = made[at : at + rng.choice([1, 10, 1000])]
        elif how == 3:
            made[at : at + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"[[[[", b'""""'])
        else:
            made[at:at] = rng.randbytes(rng.randrange(9))
    return bytes(made)


def text(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.choice([1, 1, 1, 2, 4])))


def paths(rng: random.Random) -> str:
    from fedlgd.data.suites import SUITES
    from fedlgd.methods import registry

    cls = registry.recipe(rng.choice(names())).settings
    known = known_paths(cls, "convnet", rng.choice(list(SUITES.values())).settings)
    return rng.choice([*known, "method", "data", "net", "rounds.x", text(rng), "distil"])


def fuzz_set(rng: random.Random, place: Path) -> None:
    given = dict(parse_assignment(f"{paths(rng)}={text(rng)}") for _ in range(rng.choice([1, 2, 3])))
    describe_settings(resolve({}, given).plan)


def fuzz_toml(rng: random.Random, place: Path) -> None:
    lines = [f"{paths(rng)} = {text(rng)}" if rng.random() < 0.8 else f"[{paths(rng)}]" for _ in range(4)]
    content = "\n".join(lines).encode(errors="replace")
    (place / "a.toml").write_bytes(mutated(content, rng) if rng.random() < 0.3 else content)
    resolve(read_toml(place / "a.toml")).toml()


def _npz(rng: random.Random) -> bytes:
    buffer, save = io.BytesIO(), rng.choice([np.savez, np.savez_compressed])
    kind = rng.choice(["u1", "u1", "u1", "i8", "f4", "U3"])
    shape = rng.choice([(6, 4, 4), (6, 4, 4, 3), (6,), (0, 4, 4), (6, 1, 1, 1), (2, 4, 4)])
    save(buffer, train_x=np.zeros(shape, kind), train_y=np.arange(rng.choice([0, 2, 6])).astype("u1"))
    return buffer.getvalue()


def fuzz_npz(rng: random.Random, place: Path) -> None:
    (place / "a.npz").write_bytes(mutated(_npz(rng), rng) if rng.random() < 0.8 else _npz(rng))
    with suppress(FedlgdError):
        read_domain(place / "a.npz", ("train",))
    check_data(place / "a.npz", 1)


def fuzz_csv(rng: random.Random, place: Path) -> None:
    cells = ["a.png", "../a.png", "/etc/passwd", "ape", "bee", "x", "train", "test", "", "\0", '"', "é", "a" * 200]
    sign = rng.choice(",;\t")
    rows = [sign.join(rng.choice(cells) for _ in range(rng.randrange(6))) for _ in range(rng.randrange(5))]
    head = sign.join(rng.choice([["path", "site", "label"], ["path", "site", "label", "split"], ["path"]]))
    content = "\n".join([head, *rows]).encode()
    (place / "a.csv").write_bytes(mutated(content, rng) if rng.random() < 0.4 else content)
    check_data(place / "a.csv", 1)


def fuzz_image(rng: random.Random, place: Path) -> None:
    buffer, kind = io.BytesIO(), rng.choice(["PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP", "PPM"])
    pixels = np.frombuffer(rng.randbytes(192), np.uint8).reshape(8, 8, 3)
    Image.fromarray(pixels).save(buffer, kind)
    file = place / f"a.{kind.lower()}"
    file.write_bytes(mutated(buffer.getvalue(), rng))
    image = ImageFile(file, place.resolve())
    image.header()
    image.read()


def fuzz_folder(rng: random.Random, place: Path) -> None:
    """Files of a run folder are mutated, removed, or changed inside and given a right digest."""
    shutil.copytree(place / "half", place / "run")
    every = sorted(p for p in (place / "run").rglob("*") if p.is_file() and p.name != ".lock")
    file = rng.choice(every)
    if file.suffix == ".json" and rng.random() < 0.7:
        whole = files.read_json(file)
        files.write_json(file, whole | {key: _changed(whole[key], rng) for key in rng.sample(sorted(whole), 1)})
    elif rng.random() < 0.1:
        file.unlink()
    else:
        file.write_bytes(mutated(file.read_bytes(), rng))
    with suppress(FedlgdError):
        read_run(place / "run")
    execute(HOW, DATA, place / "run")


ASKED = messages.question(messages.Order(run="r", config=""), [])


def fuzz_update(rng: random.Random, place: Path) -> None:
    """The bytes of an answer are mutated, or a value in it is changed and the digest made right."""
    of = honest(rng.choice(["fedlgd", "scaffold-real", "fednova-prox", "fedproto-avg-uniform"]))
    *others, sender = of.answers.values()
    tensors, plain = pack(sender)
    if rng.random() < 0.6:
        plain = plain | {key: _changed(plain[key], rng) for key in rng.sample(sorted(plain), 1)}
    content = save(tensors, {"plain": (text := json.dumps(plain)), "digest": _digest(tensors, text)})
    content = mutated(content, rng) if rng.random() < 0.5 else content
    task = Task(
        what="train", site=sender.site, round=0, message=of.method.broadcast(of.memory.server(), sender.site)
    )
    sent = Sent(sender.site, 1, messages.question_digest(ASKED), [task])
    sender_node = SimpleNamespace(src_node_id=sent.node)
    got: Any = SimpleNamespace(
        content=messages.reply(ASKED, [content]), metadata=sender_node, has_error=lambda: False
    )
    (answer,) = checked_answers(sent, read_answers(got, sent, lambda _: 0))
    server, _ = of.server([*others, answer], replace(PLAN, quorum=0.5))
    for record in server.run():
        assert decode_record(encode_record(record)).refused == record.refused
        if record.refused:
            raise RunError(f"refused: {dict(record.refused)}")


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        return {k: _changed(v, rng) if k == key else v for k, v in value.items() if k != key or rng.random() < 0.8}
    return rng.choice([None, -1, 2**70, "", "../x", [], {}, [[]], {"a": 1}, 1.5, True, "x" * 1000])


KINDS: dict[str, tuple[Callable[[random.Random, Path], None], int]] = {
    "set": (fuzz_set, 3000),
    "toml": (fuzz_toml, 3000),
    "npz": (fuzz_npz, 1500),
    "csv": (fuzz_csv, 1500),
    "image": (fuzz_image, 1500),
    "folder": (fuzz_folder, 300),
    "update": (fuzz_update, 1200),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    run_until(0, HOW, DATA, tmp_path / "half")
    return tmp_path


def campaign(kind: str, place: Path, count: int) -> dict[str, int]:
    """How many inputs were read (a check lists what is wrong) and how many were refused; any other error fails."""
    ended = {"read": 0, "refused": 0}
    for number in range(count):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                KINDS[kind][0](random.Random(f"{kind} {number}"), place)
            ended["read"] += 1
        except FedlgdError:
            ended["refused"] += 1
        except Exception as error:
            raise AssertionError(f"{kind} input {number}: {type(error).__name__}: {error}") from error
        shutil.rmtree(place / "run", ignore_errors=True)
    return ended


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_inputs_are_read_or_refused(kind: str, place: Path) -> None:
    ended = campaign(kind, place, KINDS[kind][1] // 60)
    assert sum(ended.values()) == KINDS[kind][1] // 60


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_the_campaign(kind: str, place: Path) -> None:
    ended = campaign(kind, place, KINDS[kind][1])
    assert sum(ended.values()) == KINDS[kind][1]


def test_the_campaign_has_ten_thousand_inputs() -> None:
    assert sum(count for _, count in KINDS.values()) >= 10_000
