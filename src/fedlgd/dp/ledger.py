"""What a site has released under differential privacy: its secret, its ledger, and every released value.

A release is made once: it is charged to the ledger, stored, and read from there ever after. Making it again, with
the same or with other noise, would be a second answer about the same images. So a resumed run, or the same run in
another folder, costs nothing; another seed or other settings are new releases.

The folder `privacy/<site>` of the state home has `secret`, `ledger.json` (with a digest) and `released/`, readable
by its user only. A site is known by its name: two different sites of the same name share a budget.

Earlier versions kept this folder in the data home. A ledger that is found there is taken over, and nothing there is
changed: another machine that shares the data home, or an earlier version, still has to find what was spent. What it
adds later is taken over, too.
"""

import hashlib
import logging
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedlgd.core import files
from fedlgd.core.device import to_cpu
from fedlgd.core.errors import PrivacyError, message
from fedlgd.core.homes import STATE_VARIABLE, earlier_state_homes, state_home
from fedlgd.core.types import Params, Site
from fedlgd.data.federation import site_digest
from fedlgd.distill.settings import Budget
from fedlgd.dp.budget import BUDGET_SLACK, Level, spent_epsilon

FORMAT = 1
MAX_LOCK_WAIT = 600.0  # seconds for another run that makes a release at the same site
WAY_OUT = f"Free space, or set {STATE_VARIABLE} to a writable folder"
LEDGER, SECRET, RELEASED = "ledger.json", "secret", "released"

Accounts = dict[str, dict[str, dict[str, Any]]]
"""account -> part -> {"level": Level, "made": {number: digest of the released value}}"""

Make = Callable[[np.random.Generator], Params]
"""Makes a release with noise from this generator."""

log = logging.getLogger(__name__)


def gaussian(generator: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """N(0, 1) in float64 as (g1 + g2 + g3 + g4) / 2: the rounding of one sample can disclose what it was added to
    (Holohan and Braghin, 2021)."""
    return torch.from_numpy(generator.standard_normal((4, *shape)).sum(0) / 2)


def generator_for(secret: bytes, *address: str) -> np.random.Generator:
    """The generator of one release."""
    key = hashlib.blake2b("\n".join(address).encode(), key=secret[:64], digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "big")))


@dataclass(frozen=True)
class Simulation:
    """Releases with noise from a public key: nothing is stored or protected."""

    key: str
    site: str

    @property
    def fingerprint(self) -> str:
        return f"test {self.key}"

    def reserve(self, account: str, levels: Mapping[str, Level], only: str = "") -> None:
        pass

    def once(self, account: str, part: str, number: str, make: Make) -> Params:
        return make(generator_for(self.key.encode(), self.site, account, part, number))


class PrivacyLedger:
    """The ledger of a site on its own disk, which makes every release once."""

    def __init__(self, site: str, budget: Budget) -> None:
        self._site, self._budget = site, budget
        self._folder = state_home() / "privacy" / files.safe_name(site)

    @property
    def fingerprint(self) -> str:
        """Identifies the secret, without telling it."""
        with self._opened():
            return files.digest(self._secret())

    def reserve(self, account: str, levels: Mapping[str, Level], only: str = "") -> None:
        """Charge these parts to the budget, before the first release of an account.

        `only`: all parts must be affordable, but this one alone is charged now, because it decides on the others.
        """
        with self._opened() as accounts:
            parts = accounts.get(account, {})
            new = {name: {"level": list(level), "made": {}} for name, level in levels.items() if name not in parts}
            if new:
                self._afford({**accounts, account: parts | new}, self._spent(accounts))
                charged = {name: part for name, part in new.items() if only in ("", name)}
                self._write({**accounts, account: parts | charged})

    def once(self, account: str, part: str, number: str, make: Make) -> Params:
        """The release with this number, made now if it was never made."""
        with self._opened() as accounts:
            made = accounts[account][part]["made"]
            file = _released(self._folder, account, part, number)
            if number in made:
                return self._read(file, made[number])
            before, made[number] = self._spent(accounts), ""
            self._afford(accounts, before)
            content = save(make(generator_for(self._secret(), account, part, number)))
            with files.writing(file, WAY_OUT, PrivacyError):
                files.private_folder(file.parent)
                files.write_atomic(file, content, private=True)
            made[number] = files.digest(content)
            self._write(accounts)
            return _tensors(content)

    def spent(self) -> float:
        """The epsilon of everything this site has released or reserved, at the delta of its budget."""
        with self._opened() as accounts:
            return self._spent(accounts)

    def _spent(self, accounts: Accounts) -> float:
        parts = [part for account in accounts.values() for part in account.values()]
        levels = [(Level(*part["level"]), len(part["made"])) for part in parts]
        all_levels = [level._replace(releases=max(level.releases, made)) for level, made in levels]
        return spent_epsilon(all_levels, self._budget.delta, self._budget.adjacency)

    def _afford(self, accounts: Accounts, before: float) -> None:
        """Refuse what would exceed the budget of the site."""
        after, limit, section = self._spent(accounts), self._budget.limit, self._budget.section
        if after > limit * (1 + BUDGET_SLACK):
            values = {"before": before, "after": after, "limit": limit, "delta": self._budget.delta}
            total = math.ceil(100 * after) / 100
            raise PrivacyError("budget-exceeded", site=self._site, section=section, total=total, **values)

    @contextmanager
    def _opened(self) -> Iterator[Accounts]:
        """What was reserved and released, by account and part; no other process changes it meanwhile."""
        busy = PrivacyError("ledger-busy", site=self._site)
        with files.writing(self._folder, WAY_OUT, PrivacyError):
            for folder in (self._folder.parent.parent, self._folder.parent, self._folder):
                files.private_folder(folder)
        with files.locked(self._folder / ".lock", busy, MAX_LOCK_WAIT):
            accounts = self._accounts(self._folder / LEDGER)
            for home in earlier_state_homes():
                accounts = self._take_over(home / "privacy" / self._folder.name, accounts)
            yield accounts

    def _take_over(self, earlier: Path, accounts: Accounts) -> Accounts:
        """The accounts with those in the folder of an earlier version.

        The ledger is written last: after a crash everything is done again, with the same result.
        """
        merged = merge_accounts(accounts, self._accounts(earlier / LEDGER))
        if merged == accounts:
            return accounts
        with files.writing(self._folder, WAY_OUT, PrivacyError):
            for account, part, number in _numbers(merged) - _numbers(accounts):
                source = _released(earlier, account, part, number)
                if source.is_file():
                    files.private_folder(self._folder / RELEASED)
                    target = _released(self._folder, account, part, number)
                    files.write_atomic(target, source.read_bytes(), private=True)
            if (earlier / SECRET).is_file() and not (self._folder / SECRET).exists():
                files.write_atomic(self._folder / SECRET, (earlier / SECRET).read_bytes(), private=True)
        self._write(merged)
        log.warning(message("ledger-taken-over", site=self._site, earlier=earlier, folder=self._folder))
        return merged

    def _accounts(self, file: Path) -> Accounts:
        try:
            if not file.exists():
                return {}
            book = files.read_json(file)
            found, accounts = book["format"], dict(book["accounts"])
        except files.MALFORMED as error:
            raise self._damaged(file) from error
        except OSError as error:
            raise PrivacyError(
                "ledger-unreadable", file=str(file), site=self._site, reason=error.strerror
            ) from error
        if found != FORMAT:
            raise PrivacyError("ledger-format", file=str(file), found=found, readable=FORMAT)
        return accounts

    def _write(self, accounts: Accounts) -> None:
        book = {"format": FORMAT, "site": self._site, "accounts": accounts}
        files.write_json(self._folder / LEDGER, book, private=True)

    def _read(self, file: Path, expected: str) -> Params:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise self._damaged(file) from error
        if files.digest(content) != expected:
            raise self._damaged(file)
        return _tensors(content)

    def _secret(self) -> bytes:
        """The secret of the site, drawn at its first release."""
        file = self._folder / SECRET
        if not file.exists():
            with files.writing(file, WAY_OUT, PrivacyError):
                files.write_atomic(file, secrets.token_bytes(32), private=True)
        return file.read_bytes()

    def _damaged(self, file: Path) -> PrivacyError:
        return PrivacyError("ledger-damaged", file=str(file), site=self._site)


def merge_accounts(accounts: Accounts, others: Accounts) -> Accounts:
    """Both ledgers in one: what is spent is at least what each of them says, and merging again changes nothing.

    A release that both made as one and the same is charged once. An account in which they made different releases
    under one number, or at different levels, is charged twice: the second time under a name that no run has.
    """
    merged = dict(accounts)
    for account, parts in others.items():
        name = account
        while any(_differ(merged.get(name, parts).get(part, entry), entry) for part, entry in parts.items()):
            name += " (again)"
        mine = merged.get(name, parts)
        merged[name] = mine | {
            part: {**entry, "made": mine.get(part, entry)["made"] | entry["made"]} for part, entry in parts.items()
        }
    return merged


def _differ(mine: dict[str, Any], other: dict[str, Any]) -> bool:
    both = mine["made"].keys() & other["made"].keys()
    return mine["level"] != other["level"] or any(mine["made"][n] != other["made"][n] for n in both)


def _numbers(accounts: Accounts) -> set[tuple[str, str, str]]:
    """All releases, by account, part and number."""
    return {
        (a, p, number) for a, parts in accounts.items() for p, entry in parts.items() for number in entry["made"]
    }


def _released(folder: Path, account: str, part: str, number: str) -> Path:
    """The file of a release."""
    return folder / RELEASED / f"{files.digest(repr((account, part, number)).encode())}.safetensors"


Book = PrivacyLedger | Simulation


def open_book(site: str, budget: Budget) -> Book:
    """The ledger of a site, or a simulation if the budget has a `test_key`."""
    return Simulation(budget.test_key, site) if budget.test_key else PrivacyLedger(site, budget)


def account_name(kind: str, seed: int, site: Site, net: str, **settings: Any) -> str:
    """Identifies the releases about the images of a site that these settings make."""
    made_from = {"site": site.name, "data": site_digest(site), "net": net, **settings}
    return f"{kind}, seed {seed}, {files.digest_json(made_from)}"


def charged_settings(budget: Budget) -> dict[str, Any]:
    """The settings of a budget that its releases on training images depend on."""
    settings = asdict(budget) | {"total": 0.0, "test_key": ""}
    del settings["scores"]
    return settings


def _tensors(content: bytes) -> Params:
    """Sorted by name, and clones, because torch aligns its memory: the same bits however a release was obtained."""
    return {name: tensor.clone() for name, tensor in sorted(load(content).items())}


def params_digest(params: Params) -> str:
    """A hash of the weights of a model."""
    parts = [(name, to_cpu(value).contiguous().numpy().tobytes()) for name, value in sorted(params.items())]
    return files.digest(repr(parts).encode())
