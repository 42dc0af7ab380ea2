"""Data sets come whole or not at all: from good, bad and broken servers, and from a folder."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedlgd.cli import app
from fedlgd.core.errors import DataError
from fedlgd.data.arrays import read_domain
from fedlgd.data.fetch import download, prepare
from fedlgd.data.fetch.download import Dataset, Original
from tests.data.fetch import writing
from tests.data.fetch.serving import Site, serving
from tests.errors import refuses

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

CONTENT = bytes(writing.bytes_of(1_000_000))
SHA = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0)
    with serving() as served:
        served.files["good"] = CONTENT
        yield served


def original(*urls: str, **known: object) -> Original:
    return replace(Original(name="file.bin", urls=urls, hash=SHA, size=len(CONTENT)), **known)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


# Downloads


def test_a_file_is_downloaded_whole_and_then_not_again(site, tmp_path):
    path = download.download(original(site.url("good")), tmp_path)
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]
    download.download(original(site.url("good")), tmp_path)
    assert site.asked == [("good", "")]


def test_a_file_with_the_wrong_hash_is_refused_and_the_next_mirror_tried(site, tmp_path):
    site.files["bad"] = CONTENT[:-1] + b"!"
    download.download(original(site.url("bad"), site.url("good")), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [path for path, _ in site.asked] == ["bad", "good"]


def test_if_every_mirror_is_wrong_nothing_stays_and_the_error_says_what_each_sent(site, tmp_path):
    site.files |= {"bad": CONTENT[:-1] + b"!", "long": CONTENT + b"!", "short": CONTENT[:-1]}
    wrong = original(site.url("bad"), site.url("none"), site.url("long"), site.url("short"))
    with refuses("no-mirror") as caught:
        download.download(wrong, tmp_path)
    assert "its sha256 is" in str(caught.value)
    assert "HTTP 404" in str(caught.value)
    assert "1000001 bytes" in str(caught.value)
    assert "it has 999999 bytes" in str(caught.value)
    assert names(tmp_path) == []


def test_a_server_that_never_stops_is_stopped_soon_after_the_published_size(site, tmp_path):
    site.files["endless"] = CONTENT * 50
    with refuses("no-mirror") as caught:
        download.download(original(site.url("endless")), tmp_path)
    assert "has 1000000" in caught.value.values["answers"]
    assert names(tmp_path) == []


def test_an_address_that_leads_in_circles_is_an_error_of_that_mirror(site, tmp_path):
    with refuses("no-mirror") as caught:
        download.download(original(site.url("circle")), tmp_path)
    assert "redirects" in caught.value.values["answers"]


def test_an_md5_is_checked_too_and_a_file_of_unknown_hash_is_taken(site, tmp_path):
    known = original(site.url("good"), hash=f"md5:{hashlib.md5(CONTENT).hexdigest()}", size=0)
    assert download.download(known, tmp_path).read_bytes() == CONTENT
    unknown = original(site.url("good"), hash="", size=0, name="other.bin")
    assert download.download(unknown, tmp_path).read_bytes() == CONTENT


def test_a_cut_connection_goes_on_where_it_stopped(site, tmp_path):
    site.cuts["good"] = [600_000, 100_000]
    download.download(original(site.url("good")), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert site.asked == [("good", ""), ("good", "bytes=600000-"), ("good", "bytes=700000-")]


def test_a_server_that_knows_no_ranges_is_asked_for_everything_again(site, tmp_path):
    site.cuts["good"], site.ranges = [600_000], False
    download.download(original(site.url("good")), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert site.asked == [("good", ""), ("good", "bytes=600000-")]


def test_a_later_command_goes_on_with_the_part_of_an_earlier_one(site, tmp_path):
    site.cuts["good"] = [600_000, 0, 0, 0]
    with refuses("no-mirror"):
        download.download(original(site.url("good")), tmp_path)
    assert names(tmp_path) == ["file.bin.part"]
    assert download.missing_bytes(original(), tmp_path) == 400_000
    site.asked.clear()
    download.download(original(site.url("good")), tmp_path)
    assert site.asked == [("good", "bytes=600000-")]
    assert names(tmp_path) == ["file.bin"]


def test_another_mirror_goes_on_with_the_part_of_the_first(site, tmp_path):
    site.files["first"] = CONTENT
    site.cuts["first"] = [600_000, 0, 0, 0]
    download.download(original(site.url("first"), site.url("good")), tmp_path)
    assert site.asked[-1] == ("good", "bytes=600000-")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_an_interrupt_keeps_the_part(site, tmp_path, monkeypatch):
    def interrupt(label: str, done: int, total: int) -> None:
        if done >= 500_000:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "tick", interrupt)
        with pytest.raises(KeyboardInterrupt):
            download.download(original(site.url("good")), tmp_path)
    assert names(tmp_path) == ["file.bin.part"]
    download.download(original(site.url("good")), tmp_path)
    assert re.fullmatch(r"bytes=[5-9]\d{5}-", site.asked[-1][1])
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_part_that_does_not_fit_is_thrown_away(site, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"!" * 600_000)
    download.download(original(site.url("good")), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert site.asked == [("good", "bytes=600000-"), ("good", "")]


@pytest.mark.parametrize("size", [0, len(CONTENT)])
def test_a_part_that_is_whole_already_is_taken(size, site, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    download.download(original(site.url("good"), size=size), tmp_path)
    assert names(tmp_path) == ["file.bin"]
    assert len(site.asked) == (1 if size == 0 else 0)


def test_without_a_hash_halves_are_never_joined(site, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"!" * 600_000)
    download.download(original(site.url("good"), hash="", size=0), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert site.asked == [("good", "")]


def test_a_server_that_answers_with_another_range_is_not_believed(site, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:600_000])
    site.shift = 100
    download.download(original(site.url("good")), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert site.asked == [("good", "bytes=600000-"), ("good", "")]


def test_a_compressed_file_is_not_unpacked_on_the_way(site, tmp_path):
    packed = writing.idx(writing.bytes_of(3, 28, 28))
    site.files["x.gz"], site.headers["Content-Encoding"] = packed, "gzip"
    known = original(site.url("x.gz"), hash=f"sha256:{hashlib.sha256(packed).hexdigest()}", size=len(packed))
    assert download.download(known, tmp_path).read_bytes() == packed


def test_a_server_that_is_not_there_is_an_error_that_says_so(tmp_path):
    with serving() as gone:
        url = gone.url("good")
    with refuses("no-mirror") as caught:
        download.download(original(url), tmp_path)
    assert "refused" in caught.value.values["answers"]


def test_a_full_disk_is_an_error_that_names_the_file(site, tmp_path):
    (tmp_path / "file.bin.part").symlink_to("/dev/full")
    with refuses("part-not-written", error="No space left on device"):
        download.download(original(site.url("good")), tmp_path)
    assert not (tmp_path / "file.bin").exists()


# Whole data sets, from a server


def small(site: Site, folder: Path, name: str = "mnist", **changes: object) -> Dataset:
    """MNIST with eight images, served from here."""
    writing.mnist(folder)
    files = []
    for path in sorted(folder.iterdir()):
        site.files[path.name] = content = path.read_bytes()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        files.append(Original(name=path.name, urls=(site.url(path.name),), hash=digest, size=len(content)))
    source = replace(download.DATASETS[name], files=tuple(files), counts=((5, 3),), room=10_000)
    return replace(source, **changes)


@pytest.fixture
def mnist(site, tmp_path) -> Dataset:
    return small(site, tmp_path / "published")


def test_a_data_set_is_downloaded_read_and_written_and_the_downloads_go(mnist, tmp_path):
    home = tmp_path / "home"
    outcome = prepare.fetch(mnist, home)
    assert (outcome.state, outcome.paths) == ("prepared", (str(home / "mnist.npz"),))
    assert names(home) == ["mnist.npz"]
    arrays = read_domain(home / "mnist.npz")
    assert np.array_equal(arrays["train_x"], writing.bytes_of(5, 28, 28))
    assert isinstance(arrays["train_x"], np.memmap)


def test_the_downloads_can_be_kept(mnist, tmp_path):
    home = tmp_path / "home"
    prepare.fetch(mnist, home, keep=True)
    assert names(home / "originals" / "mnist") == sorted(file.name for file in mnist.files)


def test_what_is_there_is_not_fetched_again_unless_asked(mnist, site, tmp_path):
    home = tmp_path / "home"
    prepare.fetch(mnist, home)
    site.asked.clear()
    assert prepare.fetch(mnist, home).state == "there"
    assert site.asked == []
    assert prepare.fetch(mnist, home, again=True).state == "prepared"
    assert len(site.asked) == 4


def test_what_is_there_but_damaged_is_prepared_again(mnist, tmp_path, caplog):
    home = tmp_path / "home"
    prepare.fetch(mnist, home)
    (home / "mnist.npz").write_bytes(b"PK damaged")
    assert prepare.fetch(mnist, home).state == "prepared"
    assert "it is prepared again" in caplog.text
    read_domain(home / "mnist.npz")


def test_too_little_room_is_said_before_anything_is_asked_for(mnist, site, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 90, 10))
    with refuses("disk-full", what="mnist", needed="32.0 MB", free="10 B"):
        prepare.fetch(mnist, tmp_path / "home")
    assert site.asked == []
    assert names(tmp_path / "home") == []


def test_a_disk_that_fills_while_writing_leaves_no_half(mnist, tmp_path, monkeypatch):
    def savez(file, **arrays):
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    home = tmp_path / "home"
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", savez)
        with pytest.raises(DataError, match=r"mnist\.npz: No space left"):
            prepare.fetch(mnist, home)
    assert [name for name in names(home) if "npz" in name] == []
    assert prepare.fetch(mnist, home).state == "prepared"
    assert names(home) == ["mnist.npz"]


@pytest.mark.parametrize("stage", ["read", "write"])
def test_an_interrupted_preparation_leaves_nothing_and_needs_no_second_download(
    stage, mnist, site, tmp_path, monkeypatch
):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    home = tmp_path / "home"
    with monkeypatch.context() as patch:
        if stage == "read":
            patch.setitem(prepare.READERS, "mnist", interrupt)
        else:
            patch.setattr(np, "savez", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare.fetch(mnist, home)
    assert [name for name in names(home) if not name.startswith("originals")] == []
    site.asked.clear()
    assert prepare.fetch(mnist, home).state == "prepared"
    assert site.asked == []
    assert names(home) == ["mnist.npz"]


def test_a_data_set_with_fewer_images_than_published_is_refused(mnist, tmp_path):
    with refuses("unpublished-numbers", train=5, test=3, published="60000 and 10000"):
        prepare.fetch(replace(mnist, counts=((60_000, 10_000),)), tmp_path / "home")
    assert not (tmp_path / "home" / "mnist.npz").exists()


def test_two_commands_at_once_do_not_write_to_one_part(mnist, tmp_path):
    home = tmp_path / "home"
    with (
        prepare._alone(home / "originals" / "mnist"),
        refuses("being-downloaded"),
    ):
        prepare.fetch(mnist, home)
    assert prepare.fetch(mnist, home).state == "prepared"


def test_a_failed_download_says_how_to_do_without_a_network(mnist, site, tmp_path):
    site.files.clear()
    with refuses("download-failed") as caught:
        prepare.fetch(mnist, tmp_path / "home")
    assert "mnist --from DIR" in caught.value.values["by_hand"]
    assert names(tmp_path / "home") == []


def test_cifar10_gives_a_file_of_all_and_one_of_the_test_photographs(site, tmp_path):
    writing.cifar(tmp_path / "cifar-10-binary.tar.gz")
    source = replace(download.DATASETS["cifar10"], files=(), counts=((15, 3),))
    assert prepare.fetch(source, tmp_path / "home", given=tmp_path).state == "prepared"
    assert set(np.load(tmp_path / "home" / "cifar10_test.npz")) == {"test_x", "test_y"}
    assert len(read_domain(tmp_path / "home" / "cifar10.npz")["train_x"]) == 15
    assert prepare.fetch(source, tmp_path / "home").state == "there"


# From a folder


def test_a_given_folder_needs_no_network(mnist, site, tmp_path):
    given = tmp_path / "published"
    assert prepare.fetch(mnist, tmp_path / "home", given=given).state == "prepared"
    assert site.asked == []
    assert len(names(given)) == 4
    inner = tmp_path / "all" / "mnist"
    inner.parent.mkdir()
    given.rename(inner)
    assert prepare.fetch(mnist, tmp_path / "home", given=inner.parent, again=True).state == "prepared"


def test_a_given_file_that_is_not_the_published_one_is_refused(mnist, tmp_path):
    path = tmp_path / "published" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(writing.idx(writing.digits(3, seed=9)))
    with refuses("original-differs"):
        prepare.fetch(mnist, tmp_path / "home", given=path.parent)


def test_a_given_folder_that_lacks_a_file_names_it(mnist, tmp_path):
    (tmp_path / "published" / "t10k-labels-idx1-ubyte.gz").unlink()
    with refuses("original-missing", what="t10k-labels-idx1-ubyte.gz"):
        prepare.fetch(mnist, tmp_path / "home", given=tmp_path / "published")


# The command


@pytest.fixture
def run(tmp_path, monkeypatch, mnist):
    """The command with a group of two: MNIST from here, and a data set to be got by hand."""
    by_hand = download.DATASETS["synth_ganin"]
    monkeypatch.setenv("FEDLGD_DATA", str(tmp_path / "home"))
    monkeypatch.setattr(prepare, "GROUPS", {"digits": (mnist, by_hand), "retina": download.GROUPS["retina"]})
    monkeypatch.setattr(
        prepare, "DATASETS", {"mnist": mnist, "synth_ganin": by_hand, "usps": download.DATASETS["usps"]}
    )

    def fedlgd(*words: str) -> object:
        done = CliRunner().invoke(app, ["data", "fetch", *words])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return fedlgd


def test_the_terms_come_first_and_the_place_last(run, tmp_path):
    done = run("digits")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].startswith("mnist: MNIST, handwritten digits")
    assert "Terms: CC BY-SA 3.0" in lines[0]
    assert lines[1].startswith("synth_ganin: SynthDigits")
    assert done.stdout.splitlines() == [f"mnist: prepared: {tmp_path / 'home' / 'mnist.npz'}"]
    assert "synth_ganin: manual download needed (optional: the suite renders a substitute)" in done.stderr
    assert "downloading train-images-idx3-ubyte.gz" in done.stderr


def test_a_data_set_asked_for_by_name_is_not_optional(run):
    done = run("synth_ganin")
    assert done.exit_code == 2
    assert "fedlgd data fetch synth_ganin --from DIR" in done.stderr


def test_quiet_shows_the_terms_but_no_progress(run):
    done = run("mnist", "--quiet")
    assert "Terms" in done.stderr
    assert "downloading" not in done.stderr


def test_json_for_scripts(run, tmp_path):
    done = run("digits", "--json")
    first, second = json.loads(done.stdout)
    assert first == {
        "name": "mnist",
        "state": "prepared",
        "paths": [str(tmp_path / "home" / "mnist.npz")],
        "note": "",
        "optional": False,
    }
    assert (second["state"], second["optional"]) == ("by hand", True)
    assert json.loads(run("mnist", "--json").stdout)[0]["state"] == "there"


def test_one_failure_does_not_stop_the_rest_and_the_exit_code_is_2(run, site, monkeypatch):
    site.files.pop("t10k-images-idx3-ubyte.gz")
    done = run("mnist", "synth_ganin")
    assert done.exit_code == 2
    assert "mnist: failed: cannot download t10k-images-idx3-ubyte.gz (127.0.0.1:" in done.stderr
    assert "synth_ganin: manual download needed" in done.stderr


def test_from_a_folder(run, tmp_path, site):
    assert run("mnist", "--from", str(tmp_path / "published")).exit_code == 0
    assert site.asked == []
    done = run("mnist", "--from", str(tmp_path / "nowhere"))
    assert done.exit_code == 2
    assert "nowhere" in done.stderr


def test_an_unknown_name_is_an_error_with_a_suggestion(run):
    done = run("mnits")
    assert done.exit_code == 2
    assert "did you mean 'mnist'" in " ".join(done.stderr.split())


def test_an_interrupt_says_how_to_go_on(run, monkeypatch):
    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(prepare.READERS, "mnist", interrupt)
    done = run("mnist")
    assert done.exit_code == 130
    assert "Re-run the same command to resume" in done.stderr


def test_retina_says_for_each_site_where_it_is_and_where_it_goes(run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        prepare, "GROUPS", {"retina": tuple(replace(s, files=()) for s in download.GROUPS["retina"])}
    )
    done = run("retina")
    assert done.exit_code == 2
    for name in ("drishti", "acrima", "refuge"):
        assert f"{tmp_path / 'home'}/retina/{name}/Training|Testing/glaucoma|normal" in done.stderr
    assert "fedlgd data fetch rim_one --from DIR" in done.stderr
    for part in ("Training", "Testing"):
        (tmp_path / "home" / "retina" / "acrima" / part).mkdir(parents=True)
    assert "acrima: already there" in run("retina").stdout


# What is written down


@pytest.mark.parametrize("source", download.DATASETS.values(), ids=lambda source: source.name)
def test_every_source_says_its_terms_and_can_be_had(source):
    assert source.what
    assert source.terms
    assert source.page.startswith("http")
    assert source.makes
    assert source.files or source.by_hand
    readable = source.name in prepare.READERS or source.name in prepare.UNPACKERS
    assert readable or not source.files
    assert (source.name in prepare.READERS) == bool(source.counts)
    for file in source.files:
        assert re.fullmatch(r"|md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.hash)
        assert all(re.match(r"https?://[\w.-]+/", url) for url in file.urls)
        assert file.urls


def test_plain_http_only_where_a_hash_protects():
    for source in download.DATASETS.values():
        for file in source.files:
            assert file.hash or all(url.startswith("https://") for url in file.urls)
