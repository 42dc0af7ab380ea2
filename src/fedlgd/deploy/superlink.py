"""The server of a federation: Flower's SuperLink on one TLS port, behind a gate."""

import logging
import sys
from base64 import b64decode
from functools import lru_cache, partial
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from fedlgd.deploy.kit import Address, Kit, address, read_kit
from fedlgd.deploy.processes import end_with_parent

EVENT = "fedlgd: "  # begins a line for the terminal of `serve`


def superlink_arguments(kit: Kit, listen: Address) -> list[str]:
    """The command line of Flower's SuperLink. It starts no further process."""
    folder = kit.folder
    return [
        *("--host", listen.host, "--port", str(listen.port)),
        *("--ssl-ca-certfile", str(kit.ca)),
        *("--ssl-certfile", str(folder / "server.crt"), "--ssl-keyfile", str(folder / "server.key")),
        *("--enable-supernode-auth", "--isolation", "process"),
        *("--disable-runtime-dependency-installation", "--database", str(kit.state / "superlink.db")),
    ]


def main(folder: str, listen: str, store: str) -> None:
    """Run the server in this process; `fedlgd serve` starts it."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    from fedlgd.deploy.proxy import Gate
    from fedlgd.deploy.quotas import Reports
    from fedlgd.deploy.tls import LOOP, protocols

    end_with_parent()
    kit = read_kit(Path(folder), "server")
    sys.argv = ["flower-superlink", *superlink_arguments(kit, address(listen))]
    config = _parse_superlink_lifespan_config()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    secret, report = (kit.folder / "secret").read_text(), Reports(_event)
    uvicorn.run(
        Gate(create_app(config, SuperLinkLifespan), secret, partial(site_of, kit), report, int(store)),
        host=config.host,
        port=config.port,
        http=protocols(kit, report),  # type: ignore[arg-type]
        ws="none",
        loop=LOOP,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )


def site_of(kit: Kit, header: bytes) -> str:
    """The site whose public key is in Flower's header. Keys are read again when sites are added or removed."""
    try:
        given = load_pem_public_key(b64decode(header, validate=True))
        text = given.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    return _sites(kit, (kit.folder / "sites").stat().st_mtime_ns).get(text, "")


@lru_cache(1)
def _sites(kit: Kit, changed: int) -> dict[bytes, str]:
    return {b" ".join(key.split()[:2]): name for name, key in kit.public_keys.items()}


def _event(text: str) -> None:
    sys.stdout.write(f"{EVENT}{text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
