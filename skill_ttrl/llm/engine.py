"""`RolloutEngine`: sampling for people who only want text, a synchronous face over the backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from skill_ttrl.config import ModelConfig
from skill_ttrl.llm.base import Backend, Generation, Request, Sampling, wait_for
from skill_ttrl.registry import Registry
from skill_ttrl.types import Message, derive_seed

BACKENDS: Registry[Callable[..., Backend]] = Registry("backend")


class RolloutEngine:
    """Samples `n` texts for each prompt.

    Args:
        model_path: Hugging Face id or folder.
        engine: `hf`, or `module:attribute` of a `Backend` that is made from (model, tokenizer).
        temperature, top_p, max_new_tokens: how to sample.
        seed: the same seed and the same calls give the same texts.
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
        from skill_ttrl.llm.load import load_model

        loaded = load_model(ModelConfig(path=model_path), device=device, seed=seed)
        self.backend: Backend = make_backend(engine, loaded.model, loaded.tokenizer)
        self.sampling = Sampling(temperature=temperature, top_p=top_p, max_new_tokens=max_new_tokens)
        self._seed, self._calls = seed, 0

    def generate(self, prompts: Sequence[str], n_samples: int = 64) -> list[list[str]]:
        """`n_samples` texts for each prompt, in order; a prompt is a user's message."""
        requests = [Request((Message("user", prompt),), n=n_samples) for prompt in prompts]
        return [[done.text for done in found.completions] for found in self._run(requests)]

    def _run(self, requests: list[Request]) -> list[Generation]:
        self._calls += 1
        seed = derive_seed(self._seed, "engine", self._calls)
        return wait_for(self.backend.generate(requests, self.sampling, seed=seed))


def make_backend(name: str, model: Any, tokenizer: Any, **options: Any) -> Backend:
    """The backend called `name`, or `module:attribute`, around a loaded model.

    Raises:
        ConfigError: no backend has this name.
    """
    backend: Backend = BACKENDS.get(name)(model, tokenizer, **options)
    return backend


@BACKENDS.register("hf")
def _hf(model: Any, tokenizer: Any, **options: Any) -> Backend:
    from skill_ttrl.llm.hf import HFBackend

    return HFBackend(model, tokenizer, **options)
