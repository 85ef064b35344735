"""The model card (`README.md`) that goes with every checkpoint and export."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.statistics import PAIRED_TEST, paired_difference, verdict

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
    adapter = config.model.lora is not None and not merged
    front: dict[str, object] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
    }
    if config.model.path == "builtin":
        origin = "a small Qwen2 with random initial weights, made on the spot"
    else:
        origin = f"`{config.model.path}`" + (f" at revision `{config.model.revision}`" if config.model.revision else "")
        if not Path(config.model.path).is_dir():  # a name of the hub
            front["base_model"] = config.model.path
    if config.model.lora is not None and config.model.path != "builtin":
        origin += "; its LoRA adapters are folded in" if merged else " and holds LoRA adapters for it"
    own = ["reinforcement-learning", "grpo", *(["ttrl"] if config.rl.reward == "majority" else [])]
    front["tags"] = ["skill-ttrl", *(["self-training"] if "vote_sft" in config.phases else own)]
    training = [f"- Phases: {', '.join(f'`{each}`' for each in config.phases)}; this checkpoint is of `{phase}`."]
    if phase in ("rl", "vote_sft"):
        data = config.data.train.path if config.data.train else config.env.id
        training += [
            f"- Samples of `{data}`. Reward: {_REWARDS.get(config.rl.reward, f'`{config.rl.reward}`')}.",
        ]
    lines = [
        *("---", yaml.safe_dump(front, sort_keys=False).rstrip(), "---", "", f"# {config.name}", ""),
        *(f"A checkpoint of Skill-TTRL after {step} steps of the phase `{phase}`. It started from {origin}.", ""),
        *_usage(config, messages, adapter),
        *("## Training", "", *training, ""),
        "The weights follow the training tasks and were measured on those named in the config only. Test-time training "
        "sharpens what a model half knows already; where its majority is wrong it makes the wrong answer surer.",
        *_figures(config, evaluations),
        *("", "## Config", "", "What differs from the defaults:", ""),
        *("```yaml", config.to_yaml(sparse=True).rstrip(), "```"),
    ]
    if versions:
        lines += ["", "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."]
    return "\n".join(lines) + "\n"


def _usage(config: SkillTTRLConfig, messages: Sequence[Mapping[str, str]], adapter: bool) -> list[str]:
    """How to load the folder and ask the model once."""
    package, name = ("peft", "AutoPeftModelForCausalLM") if adapter else ("transformers", "AutoModelForCausalLM")
    prompt = ['inputs = tokenizer("YOUR QUESTION", return_tensors="pt")  # it has no chat template']
    if messages:
        asked = json.dumps([dict(message) for message in messages], indent=4, ensure_ascii=False)
        end = 'add_generation_prompt=True, return_dict=True, return_tensors="pt"'
        prompt = [f"messages = {asked}", f"inputs = tokenizer.apply_chat_template(messages, {end})"]
    several = (
        f"It played episodes of `{config.env.id}`; `skillttrl evaluate` and `skillttrl envs play` make their prompts."
    )
    return [
        *("## Usage", "", "```python", f"from {package} import {name}", "from transformers import AutoTokenizer", ""),
        'folder = "."  # this folder',
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = {name}.from_pretrained(folder)",
        *prompt,
        f"output = model.generate(**inputs, max_new_tokens={config.rollout.max_new_tokens}, do_sample=False)",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
        *("```", "", *([several, ""] if config.agent.max_turns > 1 else [])),
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
