"""The model card (`README.md`) that goes with every checkpoint and export."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.statistics import PAIRED_TEST, paired_difference, verdict
from skill_ttrl.voting.rewards import CONTROLS

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
    messages: Sequence[Mapping[str, str]] = (),
    versions: Mapping[str, str] | None = None,
    merged: bool = False,
) -> str:
    """A Hugging Face model card: YAML front matter, what the model is, how to ask it, how it was trained, figures, the config.

    Args:
        config: The run's resolved config.
        phase: Phase of the checkpoint ("sft", "rl").
        step: Steps of it that are done.
        evaluations: Lines of `evaluations.jsonl`, oldest first; each is a column of the figures, named by its `label`.
        messages: A conversation as the policy is asked, for the usage snippet; empty: the tokenizer has no chat template.
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
        *_usage(config, messages, merged),
        "## Training",
        "",
        *_training(config, phase),
        "",
        "The weights follow the training tasks and were measured on those named in the config only. Test-time training "
        "sharpens what a model half knows already; where its majority is wrong it makes the wrong answer surer.",
    ]
    lines += _figures(config, evaluations)
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
    if config.model.path != "builtin" and not Path(config.model.path).is_dir():  # a name of the hub
        front["base_model"] = config.model.path
    own = ["reinforcement-learning", "grpo", *(["ttrl"] if config.rl.reward == "majority" else [])]
    front["tags"] = ["skill-ttrl", *(["self-training"] if "vote_sft" in config.phases else own)]
    return front


def _origin(config: SkillTTRLConfig, merged: bool) -> str:
    """Describe the model that training started from, and how these weights relate to it."""
    if config.model.path == "builtin":
        return "a small Qwen2 with random initial weights, made on the spot"
    revision = f" at revision `{config.model.revision}`" if config.model.revision else ""
    base = f"`{config.model.path}`{revision}"
    if config.model.lora is None:
        return base
    return f"{base}; its LoRA adapters are folded in" if merged else f"{base} and holds LoRA adapters for it"


def _training(config: SkillTTRLConfig, phase: str) -> list[str]:
    lines = []
    if phase == "sft" or "sft" in config.phases:
        source = f"from `{config.sft.data.path}`" if config.sft.data else f"from episodes of `{config.env.id}`"
        size = config.sft.batch_size if config.sft.batch_tokens is None else f"{config.sft.batch_tokens:,} tokens of"
        lines.append(
            f"- Supervised cold start: up to {config.sft.steps} steps of {size} demonstrations {source}, loss on the completions only."
        )
    if "dagger" in config.phases and phase != "sft":
        own = config.dagger
        lines.append(
            f"- DAgger: up to {own.rounds} rounds of {own.episodes:,} episodes that the policy played, labelled by the scripted agent "
            f"`{config.collect.agent}`; {sum(own.round_steps):,} updates."
        )
    if phase == "rl":
        reward = _REWARDS.get(config.rl.reward, f"`{config.rl.reward}`")
        source = config.data.train.path if config.data.train else config.env.id
        lines.append(
            f"- Reinforcement (`{config.rl.algorithm['type']}`, loss `{config.rl.loss['type']}`, learning rate "
            f"{config.rl.learning_rate:g}): up to {config.rl.steps} steps of {config.rl.prompts_per_step} prompts from "
            f"`{source}`, {config.rollout.n_samples_per_prompt} samples each."
        )
        lines.append(f"- Reward: {reward}.")
    if phase == "vote_sft":
        samples = config.rl.steps * config.rl.prompts_per_step * config.rollout.n_votes_per_prompt
        agree = "that agree with their prompt's majority; no labels were used"
        by_control = f"by the control `{config.rl.reward}` ({_REWARDS.get(config.rl.reward)})"
        which = f"chosen {by_control}" if config.rl.reward in CONTROLS else agree
        lines.append(
            f"- SFT on {'samples' if config.rl.reward in CONTROLS else 'the majority answers'}: fine-tuned (learning rate "
            f"{config.vote_sft.learning_rate:g}, {config.vote_sft.passes} passes) on those of {samples:,} samples of its "
            f"start {which}."
        )
    return lines


def _usage(config: SkillTTRLConfig, messages: Sequence[Mapping[str, str]], merged: bool) -> list[str]:
    """How to load the folder and ask the model once."""
    adapters = config.model.lora is not None and not merged
    package, name = ("peft", "AutoPeftModelForCausalLM") if adapters else ("transformers", "AutoModelForCausalLM")
    load = [f"from {package} import {name}", "from transformers import AutoTokenizer"]
    if not adapters:
        load = [f"from {package} import {name}, AutoTokenizer"]
    if messages:
        prompt = [
            f"messages = {json.dumps([dict(message) for message in messages], indent=4, ensure_ascii=False)}",
            "inputs = tokenizer.apply_chat_template(",
            '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
            ")",
        ]
    else:
        prompt = ['inputs = tokenizer("YOUR QUESTION", return_tensors="pt")  # it has no chat template']
    several = (
        f"In training it played episodes of `{config.env.id}`, whose prompts tell the task, what is seen and what can be done; "
        "`skillttrl evaluate` and `skillttrl play` make them."
    )
    return [
        "## Usage",
        "",
        "```python",
        *load,
        "",
        'folder = "."  # this folder',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = {name}.from_pretrained(folder)",
        *prompt,
        f"output = model.generate(**inputs, max_new_tokens={config.rollout.max_new_tokens}, do_sample=False)",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
        "```",
        "",
        *([several, ""] if config.agent.max_turns > 1 else []),
    ]


def _figures(config: SkillTTRLConfig, evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """A column for each evaluation, then the change from the first to the last; empty where nothing was measured."""
    if not evaluations:
        return []
    first, last = evaluations[0], evaluations[-1]
    source = config.data.eval or config.data.train
    data = f"`{source.path}`" if source is not None else f"`{config.env.id}`"
    held = "the problems it trained on" if last.get("transductive") else "held-out problems"
    k = last["samples"]
    rows = [(f"avg@{k}", "accuracy"), (f"maj@{k}", "majority"), ("greedy", "greedy"), ("score", "score")]
    lines = [
        "",
        "## Figures",
        "",
        f"Measured on {last['problems']} {held} ({data}, split {last['split']}), {k} samples each at T = "
        f"{last['temperature']:g}; brackets are {config.eval.confidence:.0%} intervals over problems.",
        "",
        f"| metric | {' | '.join(str(each['label']) for each in evaluations)} |",
        f"|---|{'---:|' * len(evaluations)}",
        *(
            f"| {label} | {' | '.join(_figure(each, key) for each in evaluations)} |"
            for label, key in rows
            if any(each.get(key) is not None for each in evaluations)
        ),
    ]
    if first is not last and first["accuracy"] is not None and last["accuracy"] is not None:
        shares = [[each["correct"] / each["samples"] for each in found["results"]] for found in (first, last)]
        change, low, high = paired_difference(*shares, confidence=config.eval.confidence)
        lines += [
            "",
            f"Change of avg@{k}: {change:+.3f} [{low:+.3f}, {high:+.3f}], paired by problem: {verdict((low, high))} ({PAIRED_TEST}).",
        ]
    return lines


def _figure(evaluation: Mapping[str, Any], key: str) -> str:
    value, bounds = evaluation.get(key), evaluation.get(f"{key}_interval")
    if value is None:
        return "-"
    return f"{value:.3f}" + (f" [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else "")
