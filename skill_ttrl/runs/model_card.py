"""The model card (`README.md`) that goes with every checkpoint and export."""

from __future__ import annotations

from pathlib import Path

import yaml

from skill_ttrl.config import SkillTTRLConfig

_REWARDS = {
    "majority": "agreement with the majority answer of the samples: **no labels were used**",
    "verify": "whether the answer satisfies the problem's `check`: **no labels were used**",
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
    merged: bool = False,
) -> str:
    """A Hugging Face model card: YAML front matter, what the model is, how it was trained, the config.

    Args:
        config: The run's resolved config.
        phase: Phase of the checkpoint ("sft", "rl").
        step: Steps of it that are done.
        merged: The adapters that the config asks for are folded into the weights.

    Returns:
        Markdown text.
    """
    path, builtin, lora = config.model.path, config.model.path == "builtin", config.model.lora is not None
    front: dict[str, object] = {
        "library_name": "peft" if lora and not merged else "transformers",
        "pipeline_tag": "text-generation",
    }
    if not builtin and ":" not in path and not Path(path).exists():  # a name of the hub
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
        "The weights are specialized on the training tasks. Test-time training reinforces the majority answer. Where the majority is "
        "wrong, the model becomes more confident in a wrong answer.",
        *("", "## Config", "", "Differences from the defaults:", ""),
        *("```yaml", config.to_yaml(sparse=True).rstrip(), "```"),
    ]
    return "\n".join(lines) + "\n"
