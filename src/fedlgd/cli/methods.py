"""`fedlgd methods` and `nets`: what can be chosen, its settings, and what a method declares."""

import inspect
import json as jsonlib
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import msgspec
import typer

from fedlgd.cli import options
from fedlgd.cli.terminal import folded, print_json, show_table
from fedlgd.core.errors import SettingError
from fedlgd.core.settings import SettingInfo, describe_settings
from fedlgd.core.text import plural
from fedlgd.methods import registry
from fedlgd.nets.registry import NETS, build_net, describe_net, settings_of
from fedlgd.report.claims import HELLO, TRAINS_ON, declared_reads
from fedlgd.rundir.disclosure import discloses
from fedlgd.rundir.manifest import MethodInfo
from fedlgd.runs.resume import method_info

MAX_DEFAULT = 20  # letters of a list that is shown as a default
USUAL_PRESETS = ("paper", "quick", "strong")


def methods(given: options.MethodsOptions) -> None:
    if given.name is not None:
        _show_method(given.name, given.json)
        return
    rows = [describe_method(name) for name in registry.names()]
    if given.json:
        print_json(rows)
        return
    family = [row for row in rows if row["family"]]
    others = [row for row in rows if not row["family"]]
    for title, group in (("The family: federated learning on virtual images", family), ("\nOther methods", others)):
        show_table(("method", "about"), [(row["name"], row["about"]) for row in group], f"{title}:", numbers=())
    parts = [(f"+{name}", part.about) for name, part in registry.stacks().items()]
    title = "\nParts are added to a method with +, as in scaffold+anchors:"
    show_table(("part", "about"), parts, title, numbers=())
    own = {row["name"]: [name for name in row["presets"] if name not in USUAL_PRESETS] for row in rows}
    more = [f"{name} also {', '.join(presets)}" for name, presets in own.items() if presets]
    typer.echo(f"Presets: {', '.join(USUAL_PRESETS)}; {'; '.join(more)}.")
    typer.echo("fedlgd methods NAME shows the settings of a method.")


def describe_method(name: str) -> dict[str, Any]:
    cls, settings = registry.find_method(name), registry.recipe(name).settings
    about = vars(cls).get("about") or inspect.getdoc(sys.modules[cls.__module__]) or ""
    declared = {}
    with suppress(SettingError):  # a part can need a setting that has no default
        found = declared_by(name)
        declared = {"train_on": found.train_on, "reads": found.reads, "sends": found.sends}
    return {
        "name": name,
        "about": about.partition("\n")[0],
        "family": name.partition("+")[0] in registry.FAMILY,
        "presets": list(settings.presets),
        "settings": msgspec.to_builtins(settings()),
        "description": inspect.getdoc(cls) or "",
        **declared,
        "preset_settings": msgspec.to_builtins(settings.presets),
        "setting_details": plain_settings(describe_settings(settings)),
    }


def declared_by(name: str, **settings: Any) -> MethodInfo:
    """What a method declares with these settings, and else with its defaults."""
    recipe = registry.recipe(name)
    return method_info(recipe.make(recipe.settings(**settings)), build_net("convnet", (3, 32, 32), 10))


def sent_rows(declared: MethodInfo) -> list[tuple[str, str, str]]:
    """What a site sends, when, and what it discloses."""
    when = {path: "at the enrolment" if path.startswith(HELLO) else "in updates" for path in declared.sends}
    return list(dict.fromkeys((kind, when[path], discloses(kind)) for path, kind in declared.sends.items()))


def _show_method(name: str, json: bool) -> None:
    row = describe_method(name)
    if json:
        print_json(row)
        return
    typer.echo(f"{name}: {row['about']}\n\n{row['description']}\n")
    if "sends" in row:
        declared = declared_by(name)
        basis = f"With the default settings its sites train on {TRAINS_ON[declared.train_on]}"
        typer.echo(folded(f"{basis}. Private images are read {declared_reads(declared)}. A site sends:"))
        show_table(("what", "when", "what it discloses"), sent_rows(declared), numbers=())
        typer.echo()
    show_settings(describe_settings(registry.recipe(name).settings))
    presets = {
        preset: "\n".join(f"{path} = {jsonlib.dumps(value)}" for path, value in settings.items())
        for preset, settings in row["preset_settings"].items()
    }
    if presets:
        rows = ((preset, lines or "the defaults") for preset, lines in presets.items())
        show_table(("preset", "settings"), rows, "\nPresets: --preset NAME", numbers=())


def show_settings(settings: Iterable[SettingInfo], title: str = "Settings") -> None:
    """Path, default, help line and allowed values."""
    rows = []
    for info in settings:
        default, about = info.default, f"{info.help} ({info.allowed})" if info.allowed else info.help
        shown = "not set" if default is None else jsonlib.dumps(default)
        if isinstance(default, tuple | list) and len(shown) > MAX_DEFAULT:
            shown, about = plural(len(default), "value"), f"{about} Default: {', '.join(map(str, default))}"
        rows.append((info.path, shown, about))
    show_table(("setting", "default", "help"), rows, f"{title}: --set setting=value", numbers=())


def plain_settings(settings: Iterable[SettingInfo]) -> list[dict[str, Any]]:
    """Settings as they are written to JSON."""
    return [{**asdict(info), "allowed": info.allowed} for info in settings]


def nets(given: options.NetsOptions) -> None:
    built = {name: build_net(name, (3, 28, 28), 10) for name in NETS}
    if given.json:
        rows = []
        for name, net in built.items():
            row = {"name": name, "settings": settings_of(name), "parameters": net.size}
            row |= {
                "MFLOP per image": round(net.flops / 1e6, 1),
                "setting_details": plain_settings(describe_net(name)),
            }
            rows.append(row)
        print_json(rows)
        return
    sizes = ((name, f"{net.size:,}".replace(",", " "), f"{net.flops / 1e6:.1f}") for name, net in built.items())
    show_table(("name", "parameters", "MFLOP per image"), sizes, "For 28x28 images, 10 classes")
    for name in NETS:
        show_settings(describe_net(name), f"\nSettings of {name}")
    typer.echo("\nYour own: --net package.module:Class")
