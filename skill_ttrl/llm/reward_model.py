"""A Hugging Face reward model as a reward: one scalar for a question and an answer."""

from __future__ import annotations

from typing import Any

import torch

from skill_ttrl.errors import ModelError
from skill_ttrl.llm.chat import render
from skill_ttrl.llm.models.load import reading_model
from skill_ttrl.types import Group


class RewardModel:
    """Scores whole conversations with a sequence-classification model that has one output.

    Args:
        path: Hugging Face id or folder.
        revision: commit of a hub model; None: the newest.
        device: where it runs.
        batch_size: conversations scored at once.

    Raises:
        ModelError: it cannot be loaded, or it has more than one output.
    """

    def __init__(self, path: str, *, device: str, revision: str | None = None, batch_size: int = 16) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        with reading_model(path, "config.json, tokenizer or safetensors", "reward model"):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(path, revision=revision or "main")
            model: Any = AutoModelForSequenceClassification.from_pretrained(
                path, revision=revision or "main", use_safetensors=True
            )
        if model.config.num_labels != 1:
            raise ModelError(f"{path!r} has {model.config.num_labels} outputs; a reward model must have one.")
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        model.config.pad_token_id = self._tokenizer.pad_token_id
        self._model = model.to(device).eval()
        self._batch_size = batch_size

    def __call__(self, group: Group) -> list[float]:
        """One score for each try."""
        texts = [self._conversation(trajectory.steps) for trajectory in group.trajectories]
        scores: list[float] = []
        for start in range(0, len(texts), self._batch_size):
            batch = self._tokenizer(texts[start : start + self._batch_size], return_tensors="pt", padding=True)
            with torch.inference_mode():
                logits = self._model(**batch.to(self._model.device)).logits
            scores += logits.squeeze(-1).float().tolist()
        return scores

    def _conversation(self, steps: Any) -> str:
        turns = []
        for step in steps:
            turns += [{"role": "user", "content": step.observation}, {"role": "assistant", "content": step.action}]
        if getattr(self._tokenizer, "chat_template", None):
            return str(render(self._tokenizer, turns))
        return "\n".join(turn["content"] for turn in turns)
