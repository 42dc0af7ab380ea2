"""Real samples and every version of the virtual images, small enough for a page and never twice."""

import base64
import io
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from fedlgd.report import grids
from fedlgd.report.grids import Gallery, pictures, thin
from fedlgd.report.groups import group_runs
from fedlgd.rundir.read import read_run
from tests.report.conftest import MakeGroups, run_of
from tests.report.fake import CLASSES, TILE, write_run


def only_gallery(path: Path) -> Gallery:
    (gallery,) = pictures(group_runs([read_run(path)])).galleries
    return gallery


def decoded(uri: str) -> bytes:
    return base64.b64decode(uri.removeprefix("data:image/png;base64,"))


def test_sites_come_first_then_the_anchors_each_with_all_its_versions(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=12, per_class=2)
    gallery = only_gallery(path)
    assert gallery.versions == ("setup", "round 1", "round 6", "round 11")
    assert [grid.owner for grid in gallery.grids] == ["mnist", "svhn", "usps", "anchors, on the server"]
    shown = gallery.grids[0].pictures
    assert [(picture.version, picture.at) for picture in shown] == list(
        zip(gallery.versions, range(4), strict=True)
    )
    assert shown[0].image.size == (2 * TILE, len(CLASSES) * TILE)
    assert (shown[0].width, shown[0].rows) == (2 * 2 * TILE, CLASSES)
    assert decoded(shown[3].uri) == (path / "virtual" / "0010" / "site0.png").read_bytes()


def test_real_samples_stand_beside_the_virtual_images_of_their_site(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", per_class=1, samples=2)
    *sites, anchors = only_gallery(path).grids
    assert [decoded(grid.real.uri) for grid in sites] == [
        (path / "real" / f"site{at}.png").read_bytes() for at in range(3)
    ]
    assert anchors.real is None


def test_real_samples_alone_make_a_gallery(tmp_path: Path) -> None:
    gallery = only_gallery(write_run(tmp_path / "a", method="fedavg", samples=2))
    assert [(grid.owner, grid.pictures) for grid in gallery.grids] == [("mnist", ()), ("svhn", ()), ("usps", ())]


def test_a_picture_that_two_methods_share_is_in_the_page_once(tmp_path: Path) -> None:
    """Both start from the same sets; only the second moves them on."""
    fedavg = write_run(tmp_path / "a", label="FedAvg", method="fedavg", done=0, per_class=1, samples=1)
    fedlgd = write_run(tmp_path / "b", label="FedLGD", rounds=6, per_class=1, samples=1)
    found = pictures(group_runs([read_run(fedavg), read_run(fedlgd)]))
    assert [gallery.label for gallery in found.galleries] == ["FedLGD"]
    assert found.repeated == ("FedAvg",)
    shown = [
        p.uri for gallery in found.galleries for grid in gallery.grids for p in (grid.real, *grid.pictures) if p
    ]
    assert len(shown) == len(set(shown)) == 3 + 4 * 3


def test_sheets_are_cut_to_whole_columns_when_they_are_too_large_for_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "a", rounds=12, per_class=5)
    whole = sum(len(file.read_bytes()) for file in path.glob("virtual/*/*.png"))
    monkeypatch.setattr(grids, "MAX_PNG_BYTES", int(0.65 * whole))
    gallery = only_gallery(path)
    assert gallery.columns == (3, 5)
    sizes = [len(decoded(picture.uri)) for grid in gallery.grids for picture in grid.pictures]
    assert sum(sizes) < 0.68 * whole
    cut = Image.open(io.BytesIO(decoded(gallery.grids[0].pictures[1].uri)))
    before = Image.open(path / "virtual" / "0000" / "site0.png")
    assert cut.size == (3 * TILE, before.height)
    assert cut.tobytes() == before.crop((0, 0, 3 * TILE, before.height)).tobytes()


def test_many_versions_are_thinned_out_evenly() -> None:
    versions = ["start", *(f"{number:04d}" for number in range(0, 100, 5))]
    kept = [versions.index(version) for version in thin(versions)]
    assert kept[0] == 0
    assert kept[-1] == 20
    assert len(kept) == grids.MAX_VERSIONS
    assert {after - before for before, after in pairwise(kept)} <= {2, 3}
    assert thin(["start", "0000"]) == ["start", "0000"]


def test_of_many_sites_the_first_by_name_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "MAX_SITES_SHOWN", 2)
    gallery = only_gallery(write_run(tmp_path / "a", per_class=1, samples=1, final={"c": 0.5, "b": 0.5, "a": 0.5}))
    assert [grid.owner for grid in gallery.grids] == ["b", "a", "anchors, on the server"]
    assert gallery.hidden == 1


def test_methods_without_pictures_have_no_gallery(make_groups: MakeGroups) -> None:
    assert pictures(make_groups(run_of("FedAvg", x=0.9))).galleries == ()


@pytest.mark.parametrize("content", [b"<svg onload='alert(1)'>", b"\x89PNG\r\n\x1a\n", b"", b"cut"])
def test_a_file_that_is_no_whole_image_is_left_out(tmp_path: Path, content: bytes) -> None:
    path = write_run(tmp_path / "a", done=0, per_class=1)
    file = path / "virtual" / "start" / "site0.png"
    file.write_bytes(file.read_bytes()[:-200] if content == b"cut" else content)
    assert "mnist" not in [grid.owner for grid in only_gallery(path).grids]


def with_text(file: Path, **text: str) -> None:
    info = PngImagePlugin.PngInfo()
    for key, value in text.items():
        info.add_text(key.replace("_", " "), value)
    Image.open(file).save(file, pnginfo=info)


def test_rows_have_the_names_of_the_classes_that_the_file_says(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=0, per_class=1)
    sheet = path / "virtual" / "start" / "site0.png"
    Image.open(sheet).crop((0, 0, TILE, 2 * TILE)).save(sheet)
    assert only_gallery(path).grids[0].pictures[0].rows == ()
    with_text(sheet, classes="3 7")
    assert only_gallery(path).grids[0].pictures[0].rows == ("3", "7")
    for wrong in ("3", "3 99", "words", "1 2 3"):
        with_text(sheet, classes=wrong)
        assert only_gallery(path).grids[0].pictures[0].rows == ()


def test_the_caption_says_by_what_the_values_of_the_anchors_were_divided(tmp_path: Path) -> None:
    *_, anchors = only_gallery(write_run(tmp_path / "a", rounds=1, per_class=1)).grids
    assert [picture.version for picture in anchors.pictures] == ["setup, values ÷ 3", "round 1, values ÷ 3"]


@pytest.mark.parametrize(("change", "gain"), [(0, 32), (7, 32), (8, 16), (60, 4), (130, 1)])
def test_the_difference_is_made_as_bright_as_it_can_be(tmp_path: Path, change: int, gain: int) -> None:
    path = write_run(tmp_path / "a", rounds=1, per_class=1)
    for version, value in (("start", 100), ("0000", 100 + change)):
        Image.new("RGB", (TILE, 10 * TILE), (value,) * 3).save(path / "virtual" / version / "site0.png")
    assert only_gallery(path).grids[0].gain == gain


def test_small_images_are_enlarged_by_a_whole_number_and_wide_sheets_are_cut(tmp_path: Path) -> None:
    two = only_gallery(write_run(tmp_path / "a", done=0, per_class=12, classes=("no", "yes")))
    ten = only_gallery(write_run(tmp_path / "b", done=0, per_class=12))
    assert (two.columns, ten.columns) == ((10, 12), (5, 12))
    assert two.grids[0].pictures[0].width == 10 * 2 * TILE
