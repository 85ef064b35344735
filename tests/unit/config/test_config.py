"""Configs: what a file or an override says is what the run gets, and a mistake is named where it stands."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skill_ttrl.config import SkillTTRLConfig, load_config, parse_override
from skill_ttrl.config.section import read_mapping, write_yaml
from skill_ttrl.errors import ConfigError


def setting(override: str) -> Any:
    """The value that a config has after one override."""
    value: Any = load_config({}, [override])
    for key in parse_override(override)[0]:
        value = value[key] if isinstance(value, dict) else getattr(value, key)
    return value


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rl.learning_rate=1e-6", 1e-6),
        ("rl.learning_rate=1E-6", 1e-6),
        ("rl.learning_rate=2", 2.0),
        ("rl.steps=3", 3),
        ("rl.mini_batch_size=null", None),
        ("rl.mini_batch_size=", None),
        ("rl.betas=[0.9, 0.95]", (0.9, 0.95)),
        ("rl.reward=random", "random"),
        ("rl.reward=my_rewards:score", "my_rewards:score"),
        ("name=1e3", "1e3"),
        ("name=007", "007"),
        ("name=on", "on"),
        ("name=true", "true"),
        ("name=2024-01-01", "2024-01-01"),
        ("name=infinity", "infinity"),
        ("name='quoted # text'", "quoted # text"),
        ("name=a=b", "a=b"),
        ("agent.system=You: answer # all of it", "You: answer # all of it"),
        ("agent.system=- one", "- one"),
        ("agent.system=null", None),
        ("phases=[sft, rl]", ["sft", "rl"]),
        ("run.save_trajectories=false", False),
        ("run.save_total_limit=null", None),
        ("model.lora.r=8", 8),
        ("env.kwargs.noise=1e-3", 1e-3),
        ("env.kwargs.digits=2", 2),
        ("env.kwargs.name=1x", "1x"),
        ("env.kwargs={digits: 2, deep: {ok: true}}", {"digits": 2, "deep": {"ok": True}}),
        ("eval.extra_temperatures=[0.3, 1]", [0.3, 1.0]),
    ],
)
def test_override_has_the_value_it_looks_like(override: str, expected: object) -> None:
    value = setting(override)
    assert value == expected
    assert type(value) is type(expected)


def test_overrides_reach_into_sections_a_file_has_and_leave_the_caller_s_mapping() -> None:
    given_mapping: dict[str, Any] = {"rl": {"steps": 5, "kl_coef": 0.0}, "model": {"lora": None}}
    config = load_config(given_mapping, ["rl.steps=6", "rl.steps=7", "model.lora.alpha=4"])
    assert (config.rl.steps, config.rl.kl_coef) == (7, 0.0)
    assert config.model.lora is not None
    assert (config.model.lora.alpha, config.model.lora.r) == (4.0, 16)
    assert given_mapping == {"rl": {"steps": 5, "kl_coef": 0.0}, "model": {"lora": None}}
    named = load_config({}, ["vote.strategy=anchored", "vote.strategy.weight=0.5"])
    assert named.vote.strategy == {"type": "anchored", "weight": 0.5}
    source = load_config({"data": {"train": "own.jsonl"}}, ["data.train.limit=5"]).data.train
    assert source is not None and (source.path, source.limit) == ("own.jsonl", 5)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rl.kl_in_reward=true", "null for none"),
        ("rl.critic=policy", "{key: value}, or null for none"),
        ("rl=3", "Its keys: reward, "),
        ("rl.loss=3", "{type: name}"),
        ("rl.extra_rewards=format", "{name: value}"),
        ("rl.steps=-1", "(found -1)"),
        ("rl.steps=3.5", "rl.steps"),
        ("rl.learning_rate=nan", "rl.learning_rate"),
        ("rl.learning_rate=1e30", "rl.learning_rate"),
        ("rl.betas=[2, 3]", "rl.betas"),
        ("name=../../evil", "name"),
        ("eval.extra_temperatures=[-1]", "eval.extra_temperatures"),
        ("model.builtin.heads=7", "model.builtin"),
        ("runtime.threads=100000", "runtime.threads"),
        ("rollout={n_votes_per_prompt: 8, n_samples_per_prompt: 16}", "n_samples_per_prompt (16)"),
    ],
)
def test_a_wrong_value_is_answered_with_what_to_write(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({}, [override])
    assert words in str(caught.value) and "Value error" not in str(caught.value)


def test_yaml_and_json_files_mean_the_same(tmp_path: Path) -> None:
    data = {"name": "x", "rl": {"learning_rate": 1e-6, "steps": 3, "mini_batch_size": None}, "phases": ["sft", "rl"]}
    (tmp_path / "a.json").write_text(json.dumps(data, indent="\t"), encoding="utf-8")
    (tmp_path / "a.yaml").write_text(
        "name: x\nrl: {learning_rate: 1e-6, steps: 3, mini_batch_size: null}\nphases: [sft, rl]\n", encoding="utf-8"
    )
    assert load_config(tmp_path / "a.json") == load_config(str(tmp_path / "a.yaml")) == load_config(data)


def test_a_file_that_holds_no_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# nothing yet\n", encoding="utf-8")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    sources: list[str | Path] = ["quickstrat", *(tmp_path / f"{name}.yaml" for name in "abc")]
    for source in sources:
        with pytest.raises(ConfigError, match=Path(source).name):
            load_config(source)
    assert load_config({}) == SkillTTRLConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rl: [", "neither YAML nor JSON"),
        ("- rl\n- sft\n", "must contain keys and values, found list"),
        ("just words", "must contain keys and values, found str"),
        ("rl: {steps: 1}\nseed: 1\nrl: {steps: 2}\n", "the key 'rl' is given twice"),
        ("rl:\n  steps: 1\n  steps: 2\n", "the key 'steps' is given twice"),
        ("name: !!python/object/apply:os.getcwd []\n", r"line 1, column 7: the tag .*os.getcwd"),
        ("seed: !!int 0x\n", "line 1, column 7: the tag tag:yaml.org,2002:int: write the value without it"),
        (f"seed: {'9' * 5000}\n", "line 1, column 7: a number of 5,000 digits"),
        (f'{{"seed": {"9" * 5000}}}', "a number of 5,000 digits"),
        ("env:\n  kwargs: " + "[" * 5000, "line 2, column 49: more than 40 levels of nesting"),
        ('{"env": ' + "[" * 50_000 + "]" * 50_000 + "}", "more than 40 levels of nesting"),
        ("env:\n  kwargs:\n    ? [a]\n    : 1\n", "line 3, column 7: a key is a single word"),
        ("name: &a run\nenv: {id: *a}\n", r"line 2, column 11: the alias \*a: write the value out"),
        ("name: a\x00b\n", "line 1: the character #x0000 is not allowed"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: expected a single document"),
    ],
)
def test_text_that_is_no_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(tmp_path / "a.yaml")
    assert "a.yaml" in str(caught.value)
    assert "<unicode string>" not in str(caught.value)


def test_run_folder_gives_its_resolved_config(tmp_path: Path) -> None:
    config = load_config({"name": "kept", "rl": {"steps": 2}})
    config.save(tmp_path / "config.yaml")
    assert load_config(tmp_path) == config


@pytest.mark.parametrize("sparse", [False, True])
def test_saved_config_reads_back_as_the_same(sparse: bool) -> None:
    data = {
        "name": "1e3",
        "agent": {"system": "no"},
        "rl": {"learning_rate": 3e-7, "betas": [0.9, 0.95]},
        "sft": {"data": {"path": "synthetic:add", "options": {"noise": 1e-3, "tag": "007", "on": True}}},
    }
    config = load_config(data)
    assert load_config(read_mapping(config.to_yaml(sparse=sparse), "it")) == config
    assert ("entropy_coef" in config.to_yaml(sparse=sparse)) is not sparse


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@example({"\x85": None, "a": "b\u2028c"})
@given(st.dictionaries(st.text(), values, max_size=4))
def test_what_is_written_is_what_is_read(data: dict[str, Any]) -> None:
    assert read_mapping(write_yaml(data), "it") == data


@given(st.text())
def test_text_of_an_override_never_breaks_anything(value: str) -> None:
    keys, parsed = parse_override(f"name={value}")
    assert keys == ["name"]
    assert parsed is None or isinstance(parsed, str | list | dict)


YAML_PIECES = [
    *"[]{}:?&*!,#-|>'\"%@~=\n\t \\ax1.+0", "!!int ", "&a ", "*a", "<<", "---\n", "? ", "- ", "rl: ", "\ud800", "\x85",
    "\x00",
]  # fmt: skip


@given(st.lists(st.sampled_from(YAML_PIECES), max_size=20).map("".join))
def test_no_text_of_a_config_is_a_traceback(text: str) -> None:
    with suppress(ConfigError):
        load_config(read_mapping(text, "a.yaml"))


@pytest.mark.parametrize(
    ("overrides", "left"),
    [
        (["data.train.path=mine.parquet"], {"path": "mine.parquet"}),
        (["data.train.path=[a.parquet, b.parquet]"], {"path": ["a.parquet", "b.parquet"]}),
        (["data.train.path=synthetic:operators"], {"path": "synthetic:operators", "split": "train"}),
        (["data.train.split=test", "data.train.path=hf:me/mine"], {"path": "hf:me/mine", "split": "test"}),
        (["sft.data.path=mine.jsonl"], {"path": "mine.jsonl"}),
    ],
)
def test_a_source_of_another_kind_has_nothing_of_the_recipe_s_kind(overrides: list[str], left: dict[str, Any]) -> None:
    config = load_config("quickstart", overrides)
    source = config.sft.data if overrides[0].startswith("sft") else config.data.train
    assert source is not None and source.model_dump(exclude_defaults=True) == left
