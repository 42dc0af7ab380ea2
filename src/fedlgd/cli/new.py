"""`fedlgd new method`: a method of your own to start from, with its tests. Imports no torch."""

import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from string import Template

import typer

from fedlgd.cli.options import NewMethodOptions
from fedlgd.core.errors import SettingError
from fedlgd.core.files import writing

MAKES = {  # how a test makes the method
    "regulariser": "fedlgd.Regularised(method=fedlgd.FedAvg(), term={Class}())",
    "upload": "{Class}(distil=fedlgd.Distil(per_class=2, steps=2), moves=2)",
}
USES = {  # how a command names it
    "regulariser": "fedavg+{module}:{Class}",
    "upload": "{module}:{Class} --set distil.steps=100",
}


def method(given: NewMethodOptions) -> None:
    files = method_files(given.name, given.kind)
    for path in files:
        if path.exists():
            raise SettingError("file-exists", file=str(path))
    for path, text in files.items():
        with writing(path, "Go to another folder"):
            path.write_text(text, encoding="utf-8")
    code, test = files
    use = USES.get(given.kind, "{module}:{Class}").format(**words_of(given.name))
    typer.echo(f"Wrote {code} and {test}. Change the first, and run the second: python -m pytest {test}")
    typer.echo(f"Next: fedlgd run builtin-digits --method {use} --rounds 3 --set data.limit=200 --set net.width=16")


def method_files(name: str, kind: str) -> dict[Path, str]:
    """The module of a method of this kind and its tests, by the files they are written to."""
    words = words_of(name)
    if not words["module"].isidentifier() or keyword.iskeyword(words["module"]):
        raise SettingError("method-name-invalid", name=name)
    if name != name.lower():
        suggested = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
        raise SettingError("method-name-capitals", name=name, suggested=suggested)
    if words["module"] in sys.stdlib_module_names:
        raise SettingError("method-name-taken", name=name)
    words["method"] = MAKES.get(kind, "{Class}()").format(**words)
    folder = resources.files("fedlgd") / "cli" / "templates"
    texts = {f"{words['module']}.py": f"{kind}.py.txt", f"test_{words['module']}.py": "test.py.txt"}
    return {
        Path(file): Template((folder / template).read_text(encoding="utf-8")).substitute(words)
        for file, template in texts.items()
    }


def words_of(name: str) -> dict[str, str]:
    """`own-head`: the module own_head, the class OwnHead, whose section as a regulariser would be ownhead."""
    module = name.replace("-", "_")
    made = "".join(part[:1].upper() + part[1:] for part in module.split("_"))
    return {"name": name, "module": module, "Class": made, "section": made.lower()}
