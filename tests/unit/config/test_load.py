"""Configuration: one declaration gives keys, flags and checks; what is wrong is named with the nearest right name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llmctl.config.load import differences, load, parse_size, read_yaml
from llmctl.config.schema import Opt, fields_of, to_mapping, to_yaml, walk
from llmctl.errors import UserError


@dataclass
class Model:
    """A section."""

    num_layers: Annotated[int, Opt("Layers.", min=1, max=100)] = 4
    scaling: Annotated[float | None, Opt("Scaling.")] = None


@dataclass
class Config:
    """An example."""

    lr: Annotated[float, Opt("Peak.", min=0)] = 1e-3
    shard_size: Annotated[int, Opt("Size.", size=True)] = 200_000_000
    mode: Annotated[Literal["fast", "exact"], Opt("Mode.")] = "fast"
    names: Annotated[list[str], Opt("Names.")] = field(default_factory=list)
    rules: Annotated[dict[str, dict[str, float]], Opt("Rules.")] = field(default_factory=dict)
    keep: Annotated[bool, Opt("Keep.", identity=False)] = True
    model: Annotated[Model, Opt("The model.")] = field(default_factory=Model)


def test_order_of_precedence(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("lr: 0.5\nmode: exact\nmodel: {num_layers: 7}\n")
    config = load(Config, file, ["lr=0.25", "model.scaling=2"], {"lr": 0.125, "mode": None})
    assert (config.lr, config.mode, config.model.num_layers, config.model.scaling) == (0.125, "exact", 7, 2.0)


def test_a_flag_can_clear_what_yaml_set(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("keep: true\nlr: 3\n")
    config = load(Config, file, [], {"keep": False, "lr": 0.0})
    assert config.keep is False
    assert config.lr == 0.0


@pytest.mark.parametrize(
    ("assignment", "problem", "hint"),
    [
        ("lrr=1", "unknown configuration key `lrr`", "did you mean `lr`?"),
        ("model.num_layer=1", "unknown configuration key `model.num_layer`", "did you mean `model.num_layers`?"),
        ("model.num_layers=0", "`model.num_layers` must be at least 1, got 0", "Layers."),
        ("model.num_layers=101", "`model.num_layers` must be at most 100, got 101", "Layers."),
        ("model.num_layers=2.5", "`model.num_layers` must be a whole number, got 2.5", "Layers."),
        ("model.num_layers=true", "`model.num_layers` must be a whole number, got True", "Layers."),
        ("lr=fast", "`lr` must be a number, got 'fast'", "Peak."),
        ("lr=.nan", "`lr` must be a number, got nan", "Peak."),
        ("lr=null", "`lr` must have a value", "leave it out to take the default, 0.001"),
        ("mode=fsat", "unknown value of `mode` `fsat`", "did you mean `fast`?"),
        ("keep=maybe", "`keep` must be true or false, got 'maybe'", "Keep."),
        ("model=3", "`model` is a section, got 3", "write `model.NAME=value`"),
        ("lr.x=3", None, None),
        ("rules=3", "`rules` must be a section of keys and values, got 3", "Rules."),
        ("nothing", "`--set nothing` is not of the form key=value", "write --set section.key=value"),
        ("shard_size=lots", "`shard_size` must be a size such as 200MB, got 'lots'", "Size."),
    ],
)
def test_what_is_wrong_is_named(assignment: str, problem: str | None, hint: str | None) -> None:
    with pytest.raises(UserError) as caught:
        load(Config, None, [assignment])
    if problem is not None:
        assert caught.value.problem == problem
        assert caught.value.hint == hint


def test_scientific_notation_that_yaml_reads_as_text() -> None:
    assert load(Config, None, ["lr=1e-4"]).lr == 1e-4


@pytest.mark.parametrize(
    ("text", "bytes_"), [("200MB", 200_000_000), ("1.5GiB", 3 * 2**29), ("10k", 10_000), ("7", 7), ("2 TB", 2 * 10**12)]
)
def test_sizes(text: str, bytes_: int) -> None:
    assert parse_size(text) == bytes_


def test_a_key_written_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("lr: 1\nlr: 2\n")
    with pytest.raises(UserError, match="key `lr` stands twice"):
        read_yaml(file)


@pytest.mark.parametrize("text", ["[1, 2]", "lr: [", "!!python/object/apply:os.system ['true']"])
def test_yaml_that_is_no_mapping_or_runs_code_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UserError):
        read_yaml(file)


def test_missing_file_names_it() -> None:
    with pytest.raises(UserError, match=r"no such configuration file: nowhere\.yaml"):
        load(Config, "nowhere.yaml")


def test_resolved_configuration_can_be_passed_back(tmp_path: Path) -> None:
    config = load(Config, None, ["names=[a, b]", "rules={x: {y: 1}}", "model.scaling=3"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert load(Config, file) == config


@given(
    st.builds(
        Config,
        lr=st.floats(min_value=0, allow_nan=False, allow_infinity=False),
        mode=st.sampled_from(["fast", "exact"]),
        names=st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)),
        model=st.builds(Model, num_layers=st.integers(1, 100)),
    )
)
def test_any_configuration_survives_yaml(config: Config) -> None:
    from llmctl.config.load import build

    assert build(Config, yaml.safe_load(to_yaml(config))) == config


def test_identity_leaves_out_what_cannot_change_the_output() -> None:
    assert "keep" in to_mapping(Config())
    assert "keep" not in to_mapping(Config(), identity_only=True)


def test_differences_are_named_by_key() -> None:
    ours = to_mapping(load(Config, None, ["model.num_layers=8"]))
    assert differences(ours, to_mapping(Config())) == ["model.num_layers: 4 → 8"]


def test_walk_yields_dotted_leaves() -> None:
    assert [key for key, _ in walk(Config)][-2:] == ["model.num_layers", "model.scaling"]


def test_a_field_without_opt_is_a_fault() -> None:
    @dataclass
    class Careless:
        size: int = 3

    with pytest.raises(TypeError, match="size has no Opt"):
        fields_of(Careless)


def test_off_in_yaml_is_a_word_where_it_is_a_choice(tmp_path):
    """YAML 1.1 reads a bare `off` as false; `gradient_monitor: off` means the choice."""
    from llmctl.training.config import TrainingConfig

    path = tmp_path / "c.yaml"
    path.write_text("gradient_monitor: off\n")
    assert load(TrainingConfig, path, (), {}).gradient_monitor == "off"
    assert load(TrainingConfig, None, ("gradient_monitor=off",), {}).gradient_monitor == "off"
    with pytest.raises(UserError, match="gradient_monitor"):
        load(TrainingConfig, None, ("gradient_monitor=on",), {})
