"""Backends by name, what each is made from, and `RolloutEngine`: sampling for people who only want text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.config import EndpointConfig, ModelConfig, SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling, refuse_error, wait_for
from skill_ttrl.registry import Registry
from skill_ttrl.types import Message, derive_seed

if TYPE_CHECKING:
    from skill_ttrl.llm.models.load import LoadedModel


@dataclass(frozen=True)
class BackendContext:
    """What a backend is made from. The learner's model is loaded when somebody first looks at it."""

    config: SkillTTRLConfig
    load: Callable[[], LoadedModel]
    """Loads the learner's model; see `loaded`."""
    device: str = "cpu"
    """Where the learner computes."""
    autocast: Any = None
    """torch dtype of the learner's forward pass where it differs from its weights'."""
    weights: Path | None = None
    """Checkpoint that the policy is taken from, in place of `config.model`."""
    trains: bool = False
    """Whether the weights will change: then `sync` follows each step."""
    notice: Callable[[str], None] = field(default=lambda text: None)
    """Tells the user something, such as that a server is being waited for."""
    stopping: Callable[[], bool] = field(default=lambda: False)
    """Whether the user wants to leave: then nothing that was lost is waited for."""

    @cached_property
    def loaded(self) -> LoadedModel:
        """The learner's model and tokenizer."""
        return self.load()


BACKENDS: Registry[Callable[[BackendContext], Backend]] = Registry("backend")


def make_backend(context: BackendContext) -> Backend:
    """The backend that `rollout.backend` names: a built-in one, or `module:attribute`, called with the context.

    Raises:
        ConfigError: no backend has this name, or it cannot be made from the config.
    """
    backend = BACKENDS.get(context.config.rollout.backend)(context)
    missing = [name for name in ("generate", "encode", "count", "sync", "rest", "close") if not hasattr(backend, name)]
    if missing:
        raise ConfigError(
            f"{context.config.rollout.backend!r} gave a {type(backend).__name__} without {', '.join(missing)}. A backend has "
            "the members of skill_ttrl.llm.backend.Backend."
        )
    return backend


@BACKENDS.register("hf")
def _hf(context: BackendContext) -> Backend:
    from skill_ttrl.llm.hf import HFBackend

    return HFBackend(
        context.loaded.model,
        context.loaded.tokenizer,
        max_batch_size=context.config.rollout.max_batch_size,
        autocast=context.autocast,
    )


@BACKENDS.register("vllm")
def _vllm(context: BackendContext) -> Backend:
    if context.config.vllm.mode == "server":
        from skill_ttrl.llm.vllm.servers.backend import VLLMServerBackend

        return VLLMServerBackend(context)
    from skill_ttrl.llm.vllm.backend import VLLMBackend

    return VLLMBackend(context)


@BACKENDS.register("openai")
def _openai(context: BackendContext) -> Backend:
    from skill_ttrl.llm.openai.backend import OpenAIBackend

    return OpenAIBackend(context)


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
        if engine == "openai":
            config.endpoints.policy = EndpointConfig(model=model_path)
        load = partial(load_model, config.model, device=device, seed=seed)
        self.backend = make_backend(BackendContext(config, load, device))
        self.sampling = Sampling(temperature=temperature, top_p=top_p, max_new_tokens=max_new_tokens)
        self._seed, self._calls = seed, 0

    def generate(self, prompts: Sequence[str], n_samples: int = 64) -> list[list[str]]:
        """`n_samples` texts for each prompt, in order; a prompt is a user's message.

        Raises:
            EndpointError: a model behind an address gave no answer.
        """
        requests = [Request((Message("user", prompt),), n=n_samples) for prompt in prompts]
        generations = self._run(requests)
        refuse_error(generations)
        return [[done.text for done in found.completions] for found in generations]

    def close(self) -> None:
        """Stop what the backend has started."""
        self.backend.close()

    def _run(self, requests: list[Request]) -> list[Generation]:
        self._calls += 1
        seed = derive_seed(self._seed, "engine", self._calls)
        return wait_for(self.backend.generate(requests, self.sampling, seed=seed))
