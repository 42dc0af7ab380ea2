"""Whether a random half of a site is enough for every federation of an audit: found out before the first is run."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from fedlgd.attacks.candidates import Pool, halved, members_in
from fedlgd.core.errors import DataError, PrivacyError
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.text import plural
from fedlgd.core.types import Site
from fedlgd.data.federation import Federation
from fedlgd.distill.init import PICKS
from fedlgd.distill.settings import Distil
from fedlgd.dp.fedavg import SiteDp
from fedlgd.dp.release import Told
from fedlgd.runs.config import Config

LEAST = 60  # smallest pool


def check_pool(pool: Pool) -> None:
    """Refuse a site with too few images to measure anything."""
    if len(pool) < LEAST:
        raise DataError(
            f"site {pool.site!r} has {plural(len(pool), 'training image')}; an audit splits them at random and "
            f"needs {LEAST} or more to measure anything. Choose a larger site with --site, if there is one"
        )


def check_halves(config: Config, pool: Pool, federation: Federation, net: Net, count: int, rng: Stream) -> None:
    """Refuse a site of which one of the `count` halves is too small for the method of these federations."""
    method: Any = config.method
    hides_images = not isinstance(method.budget, SiteDp | None)
    for i in range(count):
        site = halved(federation, pool, members_in(pool, i, rng)).by_name[pool.site]
        if hides_images:
            _check_promise(config, site, net)
        elif getattr(method, "train_on", "real") == "virtual":
            _check_classes(method.distil, site, pool, net.classes)


def _check_classes(distil: Distil, site: Site, pool: Pool, classes: int) -> None:
    fewest = int(site.train.counts(classes)[pool.data.counts(classes) > 0].min())
    parts = distil.tiles**2 if distil.start in PICKS else 1
    if fewest < distil.per_class * parts:
        tiles = f" of {parts} tiles each" if parts > 1 else ""
        raise DataError(
            f"site {site.name!r} is too small: a random half of its images has {fewest} of a class, fewer than "
            f"distil.per_class = {distil.per_class}{tiles}. Audit a larger site with --site, or a run with a "
            "smaller distil.per_class"
        )


class _Released(Exception):  # noqa: N818
    """The site made its first release: this is no error."""


def _check_promise(config: Config, site: Site, net: Net) -> None:
    """Enrol the site up to its first release: what refuses too few images comes before. Nothing is stored."""

    def stop(_: Told) -> None:
        raise _Released

    try:
        with suppress(_Released):
            rng = Stream(config.plan.seed).at("enrol", site.name)
            config.method.enrol(replace(site, on_release=stop), config.method.adapt(net), rng)
    except PrivacyError as error:
        raise PrivacyError(
            f"site {site.name!r} is too small: an audit trains on random halves of its images, and one of them is "
            f"refused: {error}; or audit a larger site with --site"
        ) from error
