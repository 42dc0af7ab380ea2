"""The wheel has everything that the package reads, and works where the repository is not."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import PATIENCE

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        folder,
        ROOT,
    ]
    subprocess.run([sys.executable, "-m", *map(str, build)], check=True, timeout=PATIENCE, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(wheel):
    ours = {str(file.relative_to(SOURCES)) for file in (SOURCES / "fedlgd").rglob("*") if file.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    assert ours <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_the_wheel_works_without_the_repository(wheel, tmp_path, digits_home):
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    tiny = "-s data.limit=40 -s data.test_limit=20 -s net.width=4 -s distil.steps=1 -s distil.per_class=2"
    commands = (
        f"run builtin-digits --method fedavg --preset quick --rounds 1 --out run {tiny}",
        "open run",
        "export run --no-onnx",
        "data list",
    )
    for command in commands:
        full = [sys.executable, "-m", "fedlgd", *command.split()]
        done = subprocess.run(full, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, (command, done.stderr)
    where = [sys.executable, "-c", "import fedlgd; print(fedlgd.__file__)"]
    said = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.startswith(str(tmp_path))
