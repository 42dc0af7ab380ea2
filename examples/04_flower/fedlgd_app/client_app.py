"""The site's half: the same program that `fedlgd join` runs.

Start each SuperNode with --node-config "site='a' folder='/srv/fedlgd'"; prepare_site.py makes the folder.
"""

from fedlgd.deploy.client import app

__all__ = ["app"]
