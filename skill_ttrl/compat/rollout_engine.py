"""`RolloutEngine`: sampling for people who only want text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from skill_ttrl.config import ModelConfig, SkillTTRLConfig
from skill_ttrl.llm.backend import BackendContext, Request, Sampling, refuse_error, wait_for
from skill_ttrl.llm.backends import REMOTE, make_backend
from skill_ttrl.types import Message, derive_seed

if TYPE_CHECKING:
    pass


class RolloutEngine:
    """Samples `n` texts for each prompt.

    Args:
        model_path: Hugging Face id or folder; for `openai` the name of a model at `OPENAI_BASE_URL`.
        engine: a backend by name: `hf`, `vllm`, `openai`, or `module:attribute` of your own.
        temperature, top_p, max_new_tokens: how to sample.
        seed: the same seed and the same calls give the same texts, as far as the backend promises it.
        device: "cpu", "cuda", …
    """

    def __init__(
        self,
        model_path: str,
        engine: str = "hf",
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 512,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        from skill_ttrl.llm.models.load import load_model

        config = SkillTTRLConfig(model=ModelConfig(path=model_path))
        config.rollout.backend, config.rollout.max_new_tokens = engine, max_new_tokens
        if engine == REMOTE:
            config.endpoints.model = model_path
        load = partial(load_model, config.model, device=device, seed=seed)
        self.backend = make_backend(BackendContext.of(config, load, device))
        self.sampling = Sampling(temperature=temperature, top_p=top_p, max_new_tokens=max_new_tokens)
        self._seed, self._calls = seed, 0

    def generate(
        self,
        prompts: Sequence[str],
        n_samples: int = 64,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> list[list[str]]:
        """`n_samples` texts for each prompt, in order; a prompt is a user's message.

        Args:
            prompts: user's messages.
            n_samples: texts for each.
            temperature: of this call; None: the engine's own.
            top_p: likewise.
            max_tokens: longest text of this call; None: the engine's `max_new_tokens`.

        Raises:
            EndpointError: a remote model gave no answer.
        """
        given: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_tokens}
        sampling = replace(self.sampling, **{name: value for name, value in given.items() if value is not None})
        requests = [Request((Message("user", prompt),), n=n_samples) for prompt in prompts]
        self._calls += 1
        seed = derive_seed(self._seed, "engine", self._calls)
        generations = wait_for(self.backend.generate(requests, sampling, seed=seed))
        refuse_error(generations)
        return [[done.text for done in found.completions] for found in generations]

    def close(self) -> None:
        """Stop what the backend has started."""
        self.backend.close()
