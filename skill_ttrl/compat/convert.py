"""Configs of published systems, converted: a file of theirs in, a config of ours out, with every key that has no counterpart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.config.section import read_mapping
from skill_ttrl.config.seed_keys import DEMONSTRATIONS, FIRST_SKILL_TTRL, SKILLRL_RUST, Key
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.rl.algorithms import build_algorithm
from skill_ttrl.rl.losses import build_loss
from skill_ttrl.storage.files import flatten, write_new

Data = dict[str, Any]


@dataclass(frozen=True)
class System:
    """A published system and its config."""

    name: str
    keys: Mapping[str, Key]
    base: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Our settings that follow from the system itself, given its own values by their keys."""


def _first_base(values: Mapping[str, Any]) -> Mapping[str, Any]:
    votes = values["rollout.n_votes_per_prompt"]
    # It measured with at most 16 of the samples that vote.
    found: Data = {"eval.samples": votes if isinstance(votes, int) and votes < 16 else 16}
    if values["merger.model"] is None:
        found["skills.merger"] = "heuristic"
    return found


def _rust_base(values: Mapping[str, Any]) -> Mapping[str, Any]:
    epochs, batch = values["sft.epochs"], values["sft.batch_size"]
    whole = isinstance(epochs, int) and isinstance(batch, int) and batch > 0
    return {
        "phases": ["collect", "distill", "sft", "rl"],
        "env.id": "alfworld",
        "agent.template": "alfworld",
        "agent.context_mode": "window",
        "agent.action_parser": "action",
        "agent.max_turns": 50,
        "rl.reward": "env",
        "skills.embedder": "openai",
        "skills.max_retrievals": 0,
        "skills.update": "none",
        "distill.teacher": "openai",
        "evolve.teacher": "openai",
        **({"sft.steps": -(-epochs * DEMONSTRATIONS // batch)} if whole else {}),
    }


SYSTEMS = (
    System("the first Skill-TTRL", FIRST_SKILL_TTRL, _first_base),
    System("SkillRL in Rust", SKILLRL_RUST, _rust_base),
)
EXPECTED = "a config of the first Skill-TTRL (YAML) or of SkillRL in Rust (JSON)"
ALGORITHM, SCALE = "rl.algorithm.type", "rl.algorithm.scale_rewards"
BELONGING = {"model.lora.": "model.lora.r", "endpoints.roles.merger.": "endpoints.roles.merger.model"}
"""Settings of a section that is there only where one of them is set."""


@dataclass(frozen=True)
class Converted:
    """Result of a conversion."""

    system: str
    config: SkillTTRLConfig
    without_counterpart: Mapping[str, str]
    """Keys that the file states and that set nothing here, each with the reason and what to do."""
    different: Mapping[str, str]
    """Keys that are set here and mean something else, or do so only in part."""

    def notes(self) -> list[str]:
        """One line for each of these keys, after one on where the config comes from."""
        missing = [f"No counterpart: {key}. {reason}." for key, reason in self.without_counterpart.items()]
        different = [f"Different: {key}. {reason}." for key, reason in self.different.items()]
        return [f"Converted from a config of {self.system}.", *missing, *different]

    def text(self) -> str:
        """The config as a file, its notes as comments at the head."""
        return "".join(f"# {' '.join(line.split())}\n" for line in self.notes()) + self.config.to_yaml(sparse=True)


def convert(path: str | Path, output: str | Path | None = None) -> Converted:
    """Read a config of a published system as one of ours, and write it whole or not at all.

    Args:
        path: the first Skill-TTRL's YAML, or the JSON of SkillRL in Rust. What it leaves out has that system's default.
        output: file to write, which must not be there; None: nothing is written.

    Raises:
        ConfigError: no such file, neither of the two, or a value that no config of ours can have.
        RunFolderError: `output` exists, or cannot be written.
    """
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {path}: {error}. Expected {EXPECTED}.") from None
    data = read_mapping(text, where)
    stated = {name: value for name, value in flatten(data, lists=False).items() if value != {}}
    system = max(SYSTEMS, key=lambda each: len(each.keys.keys() & stated.keys()))
    if not system.keys.keys() & stated.keys():  # a key of ours alone decides nothing
        found = ", ".join(str(name)[:40] for name in list(data)[:8]) or "nothing"
        raise ConfigError(
            f"{where} is not {EXPECTED}; found the keys: {found}. A config of this project needs no conversion: skillttrl configs FILE."
        )
    values = {name: stated.get(name, key.default) for name, key in system.keys.items()}
    ours, missing, different = dict(system.base(values)), dict[str, str](), dict[str, str]()
    for name, key in system.keys.items():
        given = key.values(values[name])
        ours |= given
        if name in stated and (key.note or not key.paths):
            (different if key.paths else missing)[name] = key.note
        if key.unset and not given:
            missing[name] = key.unset
    for name in [name for name in stated if name not in system.keys]:
        missing[name] = f"It is not a key of {system.name}.{did_you_mean(name, system.keys).removesuffix('.')}"
    for start, needed in BELONGING.items():
        if needed not in ours:
            ours = {path: value for path, value in ours.items() if not path.startswith(start)}
    if ours.get(ALGORITHM, "grpo") != "grpo":  # the others have no such option, and normalise by themselves
        ours.pop(SCALE, None)
    name = re.sub(r"[^\w.-]", "_", Path(path).stem).lstrip(".") or "converted"
    changes = [f"{setting}={json.dumps(value)}" for setting, value in ours.items()]
    try:
        converted = Converted(system.name, load_config({"name": name}, changes), missing, different)
    except ConfigError as error:
        raise ConfigError(f"{where} cannot be converted, by the keys that its own became: {error}") from None
    build_loss(converted.config.rl.loss)  # options of both are checked when they are built
    build_algorithm(converted.config.rl.algorithm)
    if output is not None:
        write_new(Path(output), converted.text())
    return converted
