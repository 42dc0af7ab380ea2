"""Real sites over Flower: kits, the coordinator's server, the site's program, its policy and its journal.

Everyone gets a `kit`, with the `texts` in it. The server is `superlink` behind a `gate`, which counts by `limits`;
TLS begins in `handshake`. The `coordinator` connects to it for a run of `server`, and replies are `arriving`. A
site starts `supernode` and `worker`, which gives tasks to `client`: it obeys the `policy` and writes the
`journal`. `processes` starts and ends all of them.
"""

from importlib.util import find_spec

from fedlgd.core.errors import SettingError


def check_flower() -> None:
    """Refuse to go on without the packages that real sites need."""
    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise SettingError("flower-missing")
