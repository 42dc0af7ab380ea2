"""The first and the latest virtual images of every owner, as they lie on disk."""

import base64
from pathlib import Path

from fedlgd.report.grids import galleries
from fedlgd.report.groups import group_runs
from fedlgd.report.read import read_run
from tests.report.conftest import MakeGroups, run_of
from tests.report.fake import CLASSES, TILE, write_run


def test_anchors_come_first_then_the_sites_each_from_start_to_latest(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=12, per_class=2)
    (gallery,) = galleries(group_runs([read_run(path)]))
    assert [grid.owner for grid in gallery.grids] == ["anchors, on the server", "mnist", "svhn", "usps"]
    first, latest = gallery.grids[1].pictures
    assert (first.version, latest.version) == ("start", "round 10")
    assert (first.width, first.height) == (2 * TILE, len(CLASSES) * TILE)
    encoded = latest.uri.removeprefix("data:image/png;base64,")
    assert base64.b64decode(encoded) == (path / "virtual" / "0010" / "site0.png").read_bytes()


def test_a_single_version_is_shown_once(tmp_path: Path) -> None:
    (gallery,) = galleries(group_runs([read_run(write_run(tmp_path / "a", done=0, per_class=1))]))
    assert [len(grid.pictures) for grid in gallery.grids] == [1, 1, 1, 1]


def test_methods_without_virtual_images_have_no_gallery(make_groups: MakeGroups) -> None:
    assert galleries(make_groups(run_of("FedAvg", x=0.9))) == ()


def test_a_file_that_is_no_image_is_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", done=0, per_class=1)
    (path / "virtual" / "start" / "site0.png").write_text("<svg onload='alert(1)'>")
    (gallery,) = galleries(group_runs([read_run(path)]))
    assert "mnist" not in [grid.owner for grid in gallery.grids]
