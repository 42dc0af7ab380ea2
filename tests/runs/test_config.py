"""Configuration: one namespace, one order of precedence, and no setting that is silently ignored."""

import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.cli import run as command
from fedlgd.cli.options import RunOptions
from fedlgd.core.errors import FedlgdError, SettingError
from fedlgd.core.train import Local
from fedlgd.distill.settings import Distil
from fedlgd.methods import registry
from fedlgd.methods.anchors import Anchored
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.methods.parts import name_of
from fedlgd.methods.scaffold import Scaffold
from fedlgd.nets.registry import NETS, describe_net
from fedlgd.runs.config import Config, RunSettings, configure, resolve, with_setting
from fedlgd.runs.parse import parse_assignment, read_toml
from tests.errors import refuses
from tests.runs.own import Own


def set_to(*texts: str) -> dict[str, Any]:
    """What `--set a --set b` assigns."""
    return dict(parse_assignment(text) for text in texts)


def test_a_file_and_set_give_the_same_configuration():
    text = """
        method = "fedlgd"
        rounds = 7
        ratio = 0.5
        [data]
        limit = 30
        [net]
        width = 8
        norm = "batch"
        [distil]
        augment = ["flip", "crop"]
        start = "noise"
        [anchors.selected]
        every = 3
        [pull]
        repeat = true
        """
    by_set = set_to(
        "method=fedlgd",
        "rounds=7",
        "ratio=0.5",
        "data.limit=30",
        "net.width=8",
        "net.norm=batch",
        'distil.augment=["flip", "crop"]',
        "distil.start=noise",
        "anchors.selected.every=3",
        "pull.repeat=true",
    )
    config = resolve(tomllib.loads(text))
    assert config == resolve({}, by_set)
    assert config.plan == RunSettings(rounds=7, ratio=0.5, real_samples=4)
    assert config.data.limit == 30
    assert config.net == {"name": "convnet", "width": 8, "norm": "batch"}
    assert config.method.distil == Distil(augment=("flip", "crop"), start="noise")
    assert config.method.anchors.selected.every == 3
    assert config.method.pull.repeat is True


def test_nothing_set_is_the_default_of_every_part():
    assert resolve({}) == Config(method=FedLGD())
    assert resolve({"method": "fedavg"}) == Config(method=FedAvg())


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("a.b=3", "a.b", 3),
        ("a=0.5", "a", 0.5),
        ("a=1e-3", "a", 0.001),
        ("a=true", "a", True),
        ('a="3"', "a", "3"),
        ("a=word", "a", "word"),
        ("a=[]", "a", []),
        ("a=b=c", "a", "b=c"),
        (" a = word ", "a", "word"),
        ("a=", "a", ""),
        ("net=pkg.mod:Net", "net", "pkg.mod:Net"),
    ],
)
def test_a_value_after_set_is_read_as_toml_or_as_text(text, path, value):
    assert parse_assignment(text) == (path, value)
    assert type(parse_assignment(text)[1]) is type(value)


@pytest.mark.parametrize("text", ["rounds", "=3", "", " = 3"])
def test_set_without_key_or_value_is_refused(text):
    with pytest.raises(SettingError, match=r"key=value.*distil.per_class=10"):
        parse_assignment(text)


# Precedence: the defaults, then the preset, the file, the flags, and --set


def resolved_by_command_line(monkeypatch, flags, preset="", file=None, settings=()) -> Config:
    """The configuration that `fedlgd run` would run."""
    seen: list[Config] = []

    def see(config: Config, *_: Any) -> None:
        seen.append(config)
        raise InterruptedError

    monkeypatch.setattr(command, "_prepared", see)
    with pytest.raises(InterruptedError):
        command.run(RunOptions(**flags, preset=preset, config=file, settings=list(settings), quiet=True))
    return seen[0]


def test_each_source_wins_over_the_one_before_and_leaves_its_other_settings(monkeypatch, tmp_path):
    file = tmp_path / "config.toml"

    def steps(given: bool, preset: str, flags: dict[str, Any], settings: list[str]) -> tuple[Any, ...]:
        config = resolved_by_command_line(monkeypatch, flags, preset, file if given else None, settings)
        distil = config.method.distil
        return distil.steps, distil.real_per_class, config.plan.rounds, config.plan.seed

    file.write_text("rounds = 11\nseed = 12\n[distil]\nsteps = 13\n")
    flags = {"rounds": 21}
    assert steps(False, "", {}, []) == (2000, 32, 100, 0)
    assert steps(False, "paper", {}, []) == (10_000, 256, 100, 0)
    assert steps(False, "quick", {}, []) == (100, 32, 100, 0)
    assert steps(True, "quick", {}, []) == (13, 32, 11, 12)
    assert steps(True, "quick", flags, []) == (13, 32, 21, 12)
    assert steps(True, "quick", flags, ["rounds=31", "distil.steps=33"]) == (33, 32, 31, 12)


def test_the_method_of_set_wins_over_the_flag_and_the_file(monkeypatch, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('method = "fedlgd"\n')
    assert resolved_by_command_line(monkeypatch, {}, file=file).method == FedLGD()
    assert resolved_by_command_line(monkeypatch, {"method": "fedavg"}, file=file).method == FedAvg()
    config = resolved_by_command_line(monkeypatch, {"method": "fedavg"}, file=file, settings=["method=fedlgd"])
    assert config.method == FedLGD()


@pytest.mark.parametrize("key", ["net", "data"])
def test_a_name_alone_does_not_drop_the_other_settings_of_its_section(monkeypatch, tmp_path, key):
    file = tmp_path / "config.toml"
    file.write_text('[data]\nname = "builtin-digits"\nlimit = 30\n[net]\nname = "resnet18"\n')
    new = {"net": "convnet", "data": "digits"}[key]
    by_flag = resolved_by_command_line(monkeypatch, {key: new}, file=file)
    by_set = resolved_by_command_line(monkeypatch, {}, file=file, settings=[f"{key}={new}"])
    assert by_flag == by_set
    assert by_set.data.limit == 30
    assert (by_set.net["name"], by_set.data.name)[key == "data"] == new
    assert resolve({}, set_to("net.width=4", "net=convnet")).net == {"name": "convnet", "width": 4}
    assert resolve({"net": "convnet"}, set_to("net.width=4")).net == {"name": "convnet", "width": 4}


def test_the_last_of_two_assignments_wins():
    assert resolve({}, set_to("rounds=3", "rounds=4")).plan.rounds == 4


def test_resolving_does_not_change_what_it_was_given():
    given_settings = {"distil": {"steps": 5}, "net": {"width": 4}}
    resolve(given_settings, {"distil.steps": 6, "net.depth": 2}, "quick")
    assert given_settings == {"distil": {"steps": 5}, "net": {"width": 4}}


# Unknown settings


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("round", "rounds"),
        ("data.limt", "data.limit"),
        ("net.widht", "net.width"),
        ("distil.perclass", "distil.per_class"),
        ("anchor.per_class", "anchors.per_class"),
        ("distill.per_class", "distil.per_class"),
        ("anchors.selected.evry", "anchors.selected.every"),
        ("refin.selected.every", "refine.selected.every"),
        ("temperature", "pull.temperature"),
        ("rounds.a", "rounds"),
        ("methd", "method"),
    ],
)
def test_an_unknown_setting_is_refused_with_its_full_path_and_the_nearest(path, nearest):
    for attempt in (lambda: resolve({}, {path: 1}), lambda: resolve(nested(path, 1))):
        with pytest.raises(SettingError) as error:
            attempt()
        assert f"unknown setting {path!r}" in str(error.value)
        assert f"did you mean {nearest!r}?" in str(error.value)


def nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def test_an_unknown_setting_that_is_near_to_nothing_lists_what_there_is():
    with pytest.raises(SettingError, match=r"'zzzz'; available: .*anchors\.selected\.every.*net\.width.*seed"):
        resolve({"zzzz": 1})


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[distill]", "distill"),
        ("[distil.nothing]", "distil.nothing"),
        ("[net.nothing]", "net.nothing"),
        ('"distil.per_class" = 3', '"distil.per_class"'),
        ("preset = 'quick'", "preset"),
    ],
)
def test_a_section_or_key_that_would_do_nothing_is_refused(text, path):
    with pytest.raises(SettingError) as error:
        resolve(tomllib.loads(text))
    assert f"unknown setting {path!r}" in str(error.value)


def test_an_empty_section_that_exists_is_fine():
    assert resolve(tomllib.loads("[distil]\n[anchors.selected]\n[net]\n[data]")) == resolve({})


def test_a_setting_of_another_method_or_net_is_refused():
    with pytest.raises(SettingError, match=r"unknown setting 'refine.steps'"):
        resolve({"method": "fedavg"}, {"refine.steps": 1})
    with pytest.raises(SettingError, match=r"unknown setting 'net.depth'"):
        resolve({"net": "resnet18"}, {"net.depth": 2})


def test_a_setting_of_a_part_is_known_where_the_part_is():
    assert resolve({"method": "fedavg+anchors"}, {"anchors.per_class": 3}).method.anchors.per_class == 3
    with pytest.raises(SettingError, match=r"unknown setting 'anchors.per_class'"):
        resolve({"method": "fedavg"}, {"anchors.per_class": 3})
    with pytest.raises(SettingError, match=r"unknown setting 'refine.steps'"):
        resolve({"method": "fedavg+anchors"}, {"refine.steps": 1})


def test_configure_takes_a_name_a_stack_or_a_class():
    assert configure("fedlgd", "quick", refine__steps=3) == configure(FedLGD, "quick", refine__steps=3)
    stacked = configure("fedavg+anchors", anchors__per_class=3, local__lr=0.5)
    assert (stacked.anchors.per_class, stacked.local.lr) == (3, 0.5)
    with pytest.raises(SettingError, match=r"'anchors.per_clas'; did you mean 'anchors.per_class'"):
        configure("fedavg+anchors", anchors__per_clas=3)


def test_configure_refuses_unknown_settings_too():
    assert configure(FedLGD, "quick", refine__steps=3).refine.steps == 3
    with pytest.raises(SettingError, match=r"'refine.step'; did you mean 'refine.steps'"):
        configure(FedLGD, refine__step=3)
    with pytest.raises(SettingError, match=r"unknown setting 'rounds'"):
        configure(FedLGD, rounds=3)


# Wrong types and values


def test_a_start_that_does_not_exist_is_named_once_with_those_that_do():
    words = "distil.start is 'nose'; choose one of: statistics, noise, mean-image, real"
    with pytest.raises(SettingError, match=f"^{words}"):
        resolve(nested("distil.start", "nose"))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("rounds", "many", "int"),
        ("rounds", 1.5, "int"),
        ("rounds", True, "int"),
        ("rounds", [3], "int"),
        ("ratio", "half", "float"),
        ("seed", 0.5, "int"),
        ("data.limit", "all", "int"),
        ("data.name", 3, "name"),
        ("local.lr", "fast", "float"),
        ("distil.per_class", 2.5, "int"),
        ("distil.augment", "flip", "array"),
        ("anchors.in_loss", "sometimes", "'unselected', 'always', 'never'"),
        ("anchors.selected.every", "two", "int"),
        ("pull.repeat", 1, "bool"),
        ("distil", 5, "object"),
        ("anchors.selected", [1], "object"),
        ("method", 3, "name"),
        ("method", ["fedavg"], "name"),
        ("net", 3, "name"),
        ("net.name", 3, "name"),
        ("data", 3, "name"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_path_and_what_is_wanted(path, value, words):
    with pytest.raises(SettingError) as error:
        resolve(nested(path, value))
    assert repr(path) in str(error.value)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rounds", 0),
        ("rounds", -1),
        ("ratio", 0),
        ("ratio", -0.5),
        ("ratio", 1.01),
        ("ratio", float("nan")),
        ("evaluate_every", -1),
        ("local.epochs", 0),
        ("local.batch", 0),
        ("local.lr", 0),
        ("local.lr", -0.1),
        ("distil.per_class", 0),
        ("distil.real_per_class", 0),
        ("distil.steps", -1),
        ("distil.augment", ["flip", "colour"]),
        ("refine.steps", -1),
        ("refine.selected.every", 0),
        ("anchors.per_class", -1),
        ("anchors.steps", -1),
        ("anchors.selected.first", -1),
        ("anchors.selected.count", -1),
        ("pull.weight", -1),
        ("pull.temperature", 0),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(path, value):
    with pytest.raises(SettingError) as error:
        resolve(nested(path, value))
    message = str(error.value)
    assert path.rpartition(".")[0] in message
    assert path.rpartition(".")[2] in message
    assert str(value) in message or repr(value[-1]) in message
    assert "; use " in message or "; available: " in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("local.lr", float("nan")),
        ("local.momentum", -1),
        ("local.weight_decay", -1),
        ("distil.lr", -1),
        ("distil.momentum", -1),
        ("distil.start_scale", -1),
        ("anchors.lr", -1),
        ("pull.weight", float("nan")),
    ],
)
def test_a_number_that_can_only_be_a_slip_is_refused_by_name(path, value):
    with pytest.raises(SettingError, match=path):
        resolve(nested(path, value))


def test_a_section_assigned_below_a_value_is_refused():
    with pytest.raises(SettingError, match=r"'rounds.a'.*'rounds' is a value"):
        resolve({"rounds": 3}, {"rounds.a": 1})


# Presets

STACKED = ("fedavg+anchors", "scaffold+anchors+refine", "fedavg+noise", "vhl+proximal", "fedlgd+proximal")
NAMES = (*registry.names(), *STACKED)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_nothing_but_a_set_of_settings(name):
    presets = registry.recipe(name).settings.presets
    assert {"paper", "quick"} <= set(presets)
    for preset, values in presets.items():
        by_name = resolve({"method": name}, preset=preset)
        assert by_name == resolve({"method": name}, values)
        assert by_name.method == configure(name, preset)
        assert by_name.digest == resolve({"method": name}, values).digest


def test_a_preset_of_a_stack_is_that_of_the_method_and_of_what_is_on_it():
    method = resolve({"method": "fedavg+anchors+refine"}, preset="quick").method
    assert (method.refine.steps, method.method.anchors.steps, method.distil.steps) == (10, 10, 100)
    assert method.method.method == configure("fedavg", "quick")


def test_an_unknown_preset_is_refused_with_those_there_are():
    with pytest.raises(SettingError, match=r"'fedlgd' has no preset 'fast'; available: paper, official, quick"):
        resolve({}, preset="fast")


# Spelled out, and read back


@pytest.mark.parametrize("name", NAMES)
def test_the_written_configuration_spells_out_every_setting_of_the_method(name):
    written = tomllib.loads(resolve({"method": name}).toml())
    assert set(leaves(written)) >= set(leaves(asdict(registry.recipe(name).settings())))
    assert written["method"] == name


def leaves(raw: dict[str, Any], prefix: str = "") -> list[str]:
    """All paths but those of settings that are not set: TOML has no null."""
    inner = {key: leaves(value, f"{prefix}{key}.") for key, value in raw.items() if isinstance(value, dict)}
    return sum(
        inner.values(), [prefix + key for key, value in raw.items() if key not in inner and value is not None]
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_default_given_by_hand_is_the_same_configuration(name):
    plain = resolve({"method": name})
    by_class = Config(method=configure(name))
    lr = by_class.method.local.lr
    by_hand = resolve({"method": name}, {"local.lr": lr, "seed": 0, "rounds": RunSettings().rounds})
    assert plain.toml() == by_hand.toml() == by_class.toml()
    assert plain.digest == by_hand.digest == by_class.digest


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "method": st.just("fedlgd"),
        "rounds": st.integers(1, 10**6),
        "ratio": st.floats(0, 1, exclude_min=True),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "evaluate_every": st.integers(1, 100),
        "data.name": st.sampled_from(["builtin-digits", "digits"]),
        "data.limit": st.integers(0, 10**6),
        "net.width": st.integers(1, 512),
        "net.norm": st.sampled_from(["instance", "batch", "none"]),
        "local.lr": st.floats(1e-300, 1e300),
        "local.momentum": st.floats(0, 1, exclude_max=True),
        "distil.per_class": st.integers(1, 100),
        "distil.augment": st.lists(st.sampled_from(["flip", "crop", "color"])),
        "distil.net": WORDS,
        "anchors.start": st.sampled_from(["noise", "statistics"]),
        "anchors.selected.first": st.integers(0, 10),
        "refine.selected.every": st.integers(1, 10),
        "pull.weight": st.floats(0, 1e9),
        "pull.repeat": st.booleans(),
    },
)


@given(SETTINGS, st.sampled_from(["", "paper", "official", "quick"]))
def test_the_written_configuration_resolves_to_itself(settings, preset):
    config = resolve({}, settings, preset)
    again = resolve(tomllib.loads(config.toml()))
    assert again == config
    assert again.toml() == config.toml()
    assert again.digest == config.digest


STACK_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "rounds": st.integers(1, 10**6),
        "train_on": st.just("virtual"),
        "server_lr": st.floats(0.1, 2),
        "anchors.steps": st.integers(0, 3),
        "anchors.in_loss": st.sampled_from(["unselected", "always", "never"]),
        "pull.weight": st.sampled_from([0.0, 1.0]),
        "refine.selected.every": st.integers(1, 10),
        "proximal.mu": st.floats(0, 10),
    },
)


@given(STACK_SETTINGS, st.permutations(["anchors", "refine", "proximal"]), st.sampled_from(["", "paper", "quick"]))
def test_the_written_configuration_of_a_stack_resolves_to_itself(settings, parts, preset):
    """In whatever order, and even where anchors that neither move nor pull are called noise."""
    config = resolve({"method": "+".join(["scaffold", *parts])}, settings, preset)
    again = resolve(tomllib.loads(config.toml()))
    assert again == config
    assert again.toml() == config.toml()


DEFAULTS = {"rounds": 100, "seed": 0, "data.limit": 0, "distil.per_class": 10}


@given(SETTINGS, st.sampled_from(sorted(DEFAULTS)))
def test_another_value_is_another_digest(settings, path):
    value = settings.get(path, DEFAULTS[path])
    other = settings | {path: value - 1 if value > 1 else value + 1}  # within the bounds of each
    assert resolve({}, settings).digest != resolve({}, other).digest


def test_runs_that_differ_only_in_the_seed_share_their_variant():
    a, b, c = (resolve({}, {"seed": s, "rounds": r}) for s, r in ((0, 5), (1, 5), (0, 6)))
    assert a.variant == b.variant != c.variant
    assert a.digest != b.digest


# A user's own method


def test_a_users_own_method_is_configured_like_any_other():
    config = resolve({"method": "tests.runs.own:Own", "boldness": 3}, {"local.lr": 0.5}, "bold")
    assert config.method == Own(boldness=3.0, local=Local(lr=0.5, epochs=3, batch=8))
    with pytest.raises(SettingError, match=r"'bolness'; did you mean 'boldness'"):
        resolve({"method": "tests.runs.own:Own"}, {"bolness": 1})


def test_a_setting_leaves_the_rest_of_its_section_as_the_method_has_it():
    for config in (
        resolve({"method": "tests.runs.own:Own"}, {"local.lr": 0.5}),
        resolve({"method": "tests.runs.own:Own", "local": {"lr": 0.5}}),
        Config(method=configure(Own, local__lr=0.5)),
    ):
        assert config.method.local == Local(lr=0.5, batch=8)


def test_a_term_is_stacked_on_a_users_own_method():
    config = resolve({"method": "tests.runs.own:Own+proximal"}, {"proximal.mu": 0.5, "boldness": 3}, "bold")
    assert config.method.method == Own(boldness=3.0, local=Local(epochs=3, batch=8))
    assert config.method.term.mu == 0.5
    assert name_of(config.method) == "tests.runs.own:Own+proximal"
    assert resolve(tomllib.loads(config.toml())) == config
    with pytest.raises(SettingError, match=r"anchors cannot be stacked on own; it accepts: proximal"):
        resolve({"method": "tests.runs.own:Own+anchors"})


@pytest.mark.parametrize("method", [Own(clip=0.5), Own()])
@pytest.mark.parametrize("registered", [False, True])
def test_a_users_own_method_is_found_again_by_the_written_configuration(method, registered, monkeypatch):
    """In a new process too, where nobody has registered it."""
    with monkeypatch.context() as patch:
        if registered:
            patch.setitem(registry._methods, Own.name, Own)
        text = Config(method=method).toml()
    assert resolve(tomllib.loads(text)).method == method


def test_a_users_method_is_named_by_where_it_is():
    assert name_of(Own()) == "tests.runs.own:Own"
    assert name_of(FedAvg()) == "fedavg"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedlgdd", "did you mean 'fedlgd'"),
        ("nothing.here:Class", "cannot import method 'nothing.here:Class'"),
        ("tests.runs.own:Nothing", "cannot import method 'tests.runs.own:Nothing'"),
        ("tests.runs.own:Lacking", "lacks broadcast, site, server"),
    ],
)
def test_a_method_that_is_none_is_refused(name, words):
    with pytest.raises(SettingError) as error:
        resolve({"method": name})
    assert words in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": ":Own"},
        {"method": ".own:Own"},
        {"method": "tests.runs.own:NotADataclass"},
        {"net": ":Net"},
        {"net": ".own:Net"},
    ],
)
def test_a_name_that_cannot_be_imported_is_an_error_the_user_can_act_on(settings):
    with pytest.raises(FedlgdError):
        resolve(settings)


# Files


def test_a_file_that_is_missing_or_not_toml_or_not_text_is_named(tmp_path: Path):
    bad = tmp_path / "bad.toml"
    with pytest.raises(SettingError, match=r"cannot read config '.*bad.toml': No such file"):
        read_toml(bad)
    bad.write_text("rounds = = 3\n")
    with pytest.raises(SettingError, match=r"bad.toml' is not valid TOML: .*line 1"):
        read_toml(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"bad.toml' is not valid TOML"):
        read_toml(bad)
    with pytest.raises(SettingError, match="Is a directory"):
        read_toml(tmp_path)


# Settings of others, and settings that a method fixes


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "fedavg", "pull": {"weight": 3}}, "method fedlgd and parts +anchors, +noise, not of fedavg"),
        ({"method": "fedavg", "mu": 3}, "methods fednova, fedprox, moon, not of fedavg"),
        ({"net": {"name": "resnet18", "depth": 3}}, "network convnet, not of the chosen net"),
        ({"data": {"skip_bad": True}}, "federation folders, not of the chosen data"),
    ],
)
def test_a_setting_of_another_method_part_network_or_federation_says_whose_it_is(given, words):
    with pytest.raises(SettingError, match=re.escape(f"it is a setting of {words}")) as error:
        resolve(given)
    assert "did you mean" not in str(error.value)


@dataclass(frozen=True, kw_only=True)
class Steady(Own):
    """A method of one's own that fixes a setting of its base class."""

    boldness: ClassVar[float] = 2.0


def test_a_setting_that_a_class_fixes_is_refused_with_its_value():
    with pytest.raises(SettingError, match=r"boldness of own is always 2\.0; leave boldness out"):
        configure(Steady, boldness=3)
    with pytest.raises(SettingError, match=r"train_on of fedlgd is always 'virtual'"):
        resolve({"train_on": "real"})


def test_refinement_means_virtual_sets_and_refuses_real_images():
    assert resolve({"method": "fedavg+refine"}).method.train_on == "virtual"
    with pytest.raises(SettingError, match=r"refine updates virtual sets, but fedavg trains on real images; use"):
        resolve({"method": "fedavg+refine", "train_on": "real"})


@pytest.mark.parametrize("name", NETS)
def test_every_setting_of_a_network_has_a_help_line(name):
    assert all(info.help for info in describe_net(name))


def test_a_setting_of_an_object_is_changed_in_the_method_or_the_part_that_has_it():
    stacked = Anchored(method=Scaffold(train_on="virtual"))
    for path, of in (("local.lr", lambda method: method.method.local.lr), ("pull.weight", lambda m: m.pull.weight)):
        changed = with_setting(stacked, path, 0.5)
        assert (of(changed), with_setting(changed, path, of(stacked))) == (0.5, stacked)
    with refuses("setting-not-of-every-method", path="local.lrr", hint="; did you mean 'lr'?"):
        with_setting(stacked, "local.lrr", 0.5)
