"""A run with a class of few images: it ends, and says what it did."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedlgd.cli.common import announce_short
from fedlgd.core.types import LabelledSet
from fedlgd.data.federation import Federation
from fedlgd.engines.storage import version_name
from fedlgd.report.groups import group_runs
from fedlgd.report.summary import caveats, short_classes_text
from fedlgd.rundir.manifest import read_manifest
from fedlgd.rundir.read import read_runs
from fedlgd.runs.run import execute
from tests import tiny
from tests.runs.folder import FAST_NET, config, method


def few(images: dict[int, int]) -> Federation:
    """Two sites, of which the second has only so many images of some classes."""
    data = tiny.federation(tiny.NAMES[:2], train=4, test=2)
    ape, bee = data.sites
    kept = [i for k in range(tiny.CLASSES) for i in bee.train.of_class(k)[: images.get(k)].tolist()]
    train = LabelledSet(bee.train.x[kept], bee.train.y[kept], bee.train.scale)
    return Federation(data.name, (ape, replace(bee, train=train)))


def test_a_run_with_a_small_class_ends_and_its_manifest_report_and_picture_say_so(tmp_path):
    data = few({1: 1, 2: 0})
    how = {"distil.per_class": 3, "refine.selected.first": 0, "refine.selected.every": 1}
    for name in ("fedlgd", "fedlgd+redraw"):
        out = tmp_path / name
        execute(config(method(name, **how), net=FAST_NET, rounds=2), data, out)
        sites = {site.name: dict(site.short) for site in read_manifest(out).data.sites}
        assert sites == {"ape": {}, "bee": {data.classes[1]: 1}}
        noted = {str(each) for each in caveats(group_runs(read_runs([out])[0])) if each.kind == "short-classes"}
        assert noted == {short_classes_text(sites)}
        sheet = np.asarray(Image.open(out / "virtual" / version_name(-1) / "bee.png"))
        cells = sheet.reshape(2, tiny.SIDE, 3, tiny.SIDE, -1).swapaxes(1, 2)
        assert [[bool((cell == 255).all()) for cell in row] for row in cells] == [[False] * 3, [False, True, True]]


def test_only_runs_that_make_fewer_images_announce_it(capsys):
    data = few({1: 1})
    rare = {"distil.per_class": 3}
    announce_short([method("fedlgd", **rare)], data)
    said = capsys.readouterr().err
    assert "bee" in said
    assert f"{data.classes[1]!r} (1)" in said
    quiet = [
        method("fedavg", train_on="real", **rare),
        method("fedlgd", **{"distil.per_class": 1}),
        method("fedlgd", **rare, **{"distil.short": "refuse"}),
    ]
    announce_short(quiet, data)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("count", [5, 6, 8])
def test_a_note_names_a_few_sites_and_counts_the_others(count):
    text = short_classes_text({f"s{i}": {"x": 1} for i in range(count)} | {"full": {}})
    assert [f"s{i} of" in text for i in range(count)] == [i < 5 for i in range(count)]
    assert ("more site" in text) == (count > 5)
    assert "full" not in text
    assert not short_classes_text({"full": {}})
