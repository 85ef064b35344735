"""The model card (`README.md`) that goes with every checkpoint and export."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

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
    figures: Mapping[str, float | None] | None = None,
    versions: Mapping[str, str] | None = None,
    merged: bool = False,
) -> str:
    """A Hugging Face model card: YAML front matter, what the model is, how it was trained, figures, the config.

    Args:
        config: The run's resolved config.
        phase: Phase of the checkpoint ("sft", "rl").
        step: Steps of it that are done.
        figures: Newest figures by name; what is None or not finite is left out.
        versions: Of the libraries, by name.
        merged: The adapters that the config asks for are folded into the weights.

    Returns:
        Markdown text.
    """
    lines = [
        "---",
        yaml.safe_dump(_front_matter(config, merged), sort_keys=False).rstrip(),
        "---",
        "",
        f"# {config.name}",
        "",
        f"A checkpoint of Skill-TTRL after {step} steps of the phase `{phase}`. It started from {_origin(config, merged)}.",
        "",
        "## Training",
        "",
        *_training(config, phase),
        "",
        "The weights follow the training tasks and were measured on those named in the config only. Test-time training "
        "sharpens what a model half knows already; where its majority is wrong it makes the wrong answer surer.",
    ]
    finite = {name: value for name, value in (figures or {}).items() if value is not None and math.isfinite(value)}
    if finite:
        lines += ["", "## Figures", "", "| figure | value |", "|---|---:|"]
        lines += [f"| {name} | {value:.4g} |" for name, value in finite.items()]
    lines += ["", "## Config", "", "What differs from the defaults:", ""]
    lines += ["```yaml", config.to_yaml(sparse=True).rstrip(), "```"]
    if versions:
        lines += ["", "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."]
    return "\n".join(lines) + "\n"


def _front_matter(config: SkillTTRLConfig, merged: bool) -> dict[str, object]:
    adapter = config.model.lora is not None and not merged
    front: dict[str, object] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
    }
    if config.model.path != "embedded" and not Path(config.model.path).is_dir():  # a name of the hub
        front["base_model"] = config.model.path
    own = ["reinforcement-learning", "grpo", *(["ttrl"] if config.rl.reward == "majority" else [])]
    front["tags"] = ["skill-ttrl", *(["self-training"] if "vote_sft" in config.phases else own)]
    return front


def _origin(config: SkillTTRLConfig, merged: bool) -> str:
    """What the model was before, and how its weights relate to that."""
    if config.model.path == "embedded":
        return "a small Qwen2 with random initial weights, made on the spot"
    revision = f" at revision `{config.model.revision}`" if config.model.revision else ""
    base = f"`{config.model.path}`{revision}"
    if config.model.lora is None:
        return base
    return f"{base}; its LoRA adapters are folded in" if merged else f"{base} and holds LoRA adapters for it"


def _training(config: SkillTTRLConfig, phase: str) -> list[str]:
    lines = []
    if phase == "sft" or "sft" in config.phases:
        source = config.sft.data.path if config.sft.data else "none given"
        lines.append(
            f"- Supervised cold start: up to {config.sft.steps} steps of {config.sft.batch_size} demonstrations from "
            f"`{source}`, loss on the completions only."
        )
    if phase == "rl":
        reward = _REWARDS.get(config.rl.reward, f"`{config.rl.reward}`")
        source = config.data.train.path if config.data.train else config.env.id
        lines.append(
            f"- Reinforcement (`{config.rl.advantage}` advantages, `{config.rl.loss}` loss, learning rate "
            f"{config.rl.learning_rate:g}): up to {config.rl.steps} steps of {config.rl.prompts_per_step} prompts from "
            f"`{source}`, {config.rollout.n_samples_per_prompt} samples each."
        )
        lines.append(f"- Reward: {reward}.")
    if phase == "vote_sft":
        samples = config.rl.steps * config.rl.prompts_per_step * config.rollout.n_votes_per_prompt
        lines.append(
            f"- SFT on the majority answers: fine-tuned (learning rate {config.vote_sft.learning_rate:g}, "
            f"{config.vote_sft.passes} passes) on those of {samples:,} samples of its start that agree with their "
            "prompt's majority; no labels were used."
        )
    return lines
