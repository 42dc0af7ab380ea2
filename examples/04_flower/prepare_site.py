"""Prepare the folder of a site for the Flower app: its policy, and where its images are.

Run: python examples/04_flower/prepare_site.py FOLDER SITE IMAGES
"""

import sys
from pathlib import Path

from fedlgd.core.files import private_folder, write_atomic
from fedlgd.data.own.suite import Folders
from fedlgd.deploy.client import SiteSettings
from fedlgd.deploy.kit import template


def main(folder: Path, site: str, images: Path) -> Path:
    private_folder(folder)
    if not (folder / "site.toml").exists():
        write_atomic(folder / "site.toml", template("site.toml").encode(), private=True)
    settings = SiteSettings(site=site, folder=folder, images=Folders(path=str(images.absolute())))
    settings.open()
    settings.write()
    return folder


if __name__ == "__main__":
    print(main(Path(sys.argv[1]).absolute(), sys.argv[2], Path(sys.argv[3])))
