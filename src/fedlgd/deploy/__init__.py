"""Real sites over Flower. Nothing imports this package but its commands (`cli/deploy`, `run --engine flower`).

Everyone gets a folder of keys and settings:

    kit          makes and reads kits; `templates/` holds their instructions and the default policy of a site

On the coordinator's machine, `fedlgd serve` and `fedlgd run --engine flower`:

    superlink    the process that relays messages: Flower's SuperLink with TLS, without torch
    proxy        stands before the SuperLink: who may ask for what, and how much
    connection   the coordinator's requests to the SuperLink, and the replies of sites that arrive through it
    classes      the classes that sites and coordinator agree on before the first round
    coordinator  the server's half of a run: asks the sites for their classes and starts the run with the engine
                 `flower`, which sends them its tasks

At a site, `fedlgd join`:

    processes    the process that holds the connection (Flower's SuperNode), and the supervisor of both processes
    client       the process that computes: it carries out tasks with the images of the site
    policy       what a site allows: `site.toml`
    journal      everything that left the site, and what it refused

`messages` turns tasks and answers into Flower messages; `processes` also starts and ends child processes.
"""

from importlib.util import find_spec

from fedlgd.core.errors import SettingError


def check_flower() -> None:
    """Refuse to go on without the packages that real sites need."""
    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise SettingError("flower-missing")
