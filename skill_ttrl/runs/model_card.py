"""The model card (`README.md`) that goes with every checkpoint and export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from skill_ttrl.config import SkillTTRLConfig

_REWARDS = {
    "majority": "agreement with the majority answer of the samples: **no labels were used**",
    "label": "agreement with the true answer: a control, **labels were used**",
    "random": "a coin toss: a control that should teach nothing",
    "format": "whether an answer was given at all: a control",
    "env": "the environment's own return",
}


def model_card(
    config: SkillTTRLConfig,
    *,
    phase: str,
    step: int,
    evaluations: Sequence[Mapping[str, Any]] = (),
    merged: bool = False,
) -> str:
    """A Hugging Face model card: YAML front matter, what the model is, how it was trained, figures, the config.

    Args:
        config: The run's resolved config.
        phase: Phase of the checkpoint ("sft", "rl").
        step: Steps of it that are done.
        evaluations: Lines of `evaluations.jsonl`, oldest first; each is a column of the figures, named by its `label`.
        merged: The adapters that the config asks for are folded into the weights.

    Returns:
        Markdown text.
    """
    path, builtin, lora = config.model.path, config.model.path == "builtin", config.model.lora is not None
    front: dict[str, object] = {
        "library_name": "peft" if lora and not merged else "transformers",
        "pipeline_tag": "text-generation",
    }
    if not builtin and not Path(path).is_dir():  # a name of the hub
        front["base_model"] = path
    own = ["reinforcement-learning", "grpo", *(["ttrl"] if config.rl.reward == "majority" else [])]
    front["tags"] = ["skill-ttrl", *(["self-training"] if "vote_sft" in config.phases else own)]
    origin = f"`{path}`" + (f" at revision `{config.model.revision}`" if config.model.revision else "")
    if lora:
        origin += "; its LoRA adapters are folded in" if merged else " and holds LoRA adapters for it"
    if builtin:
        origin = "a small Qwen2 with random initial weights"
    trained = f"Phases: {', '.join(f'`{each}`' for each in config.phases)}; this checkpoint is of `{phase}`."
    if phase in ("rl", "vote_sft"):
        data = config.data.train.path if config.data.train else config.env.id
        trained += f" Samples of `{data}`. Reward: {_REWARDS.get(config.rl.reward, f'`{config.rl.reward}`')}."
    lines = [
        *("---", yaml.safe_dump(front, sort_keys=False).rstrip(), "---", "", f"# {config.name}", ""),
        *(f"A checkpoint of Skill-TTRL after {step} steps of the phase `{phase}`. It started from {origin}.", ""),
        *("## Training", "", trained, ""),
        "The weights follow the training tasks and were measured on those named in the config only. Test-time training "
        "sharpens what a model half knows already; where its majority is wrong it makes the wrong answer surer.",
        *_figures(config, evaluations),
        *("", "## Config", "", "Differences from the defaults:", ""),
        *("```yaml", config.to_yaml(sparse=True).rstrip(), "```"),
    ]
    return "\n".join(lines) + "\n"


def _figures(config: SkillTTRLConfig, evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table with a column for each evaluation; empty where nothing was measured."""
    if not evaluations:
        return []
    last = evaluations[-1]
    source, k = config.data.eval or config.data.train, last["samples"]
    data = f"`{source.path if source is not None else config.env.id}`"
    held = "the problems it trained on" if last.get("transductive") else "held-out problems"
    labels = {f"avg@{k}": "accuracy", f"maj@{k}": "majority", "greedy": "greedy", "score": "score"}
    rows = {label: [_figure(each, key) for each in evaluations] for label, key in labels.items()}
    return [
        *("", "## Figures", ""),
        f"Measured on {last['problems']} {held} ({data}, split {last['split']}), {k} samples each at T = "
        f"{last['temperature']:g}; brackets are {config.eval.confidence:.0%} intervals over problems.",
        "",
        f"| metric | {' | '.join(str(each['label']) for each in evaluations)} |",
        f"|---|{'---:|' * len(evaluations)}",
        *(f"| {label} | {' | '.join(row)} |" for label, row in rows.items() if {*row} != {"-"}),
    ]


def _figure(evaluation: Mapping[str, Any], key: str) -> str:
    value, bounds = evaluation.get(key), evaluation.get(f"{key}_interval")
    if value is None:
        return "-"
    return f"{value:.3f}" + (f" [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else "")
