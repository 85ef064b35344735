"""Rollout backends by name: what is known of each beforehand, and how it is made.

To add a built-in backend, register a function that makes it and add its facts, the same as its class attributes, to `FACTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Backend, BackendContext, BackendFacts
from skill_ttrl.llm.hand_over import HandOver
from skill_ttrl.llm.openai.backend import OpenAIBackend, ProgramBackend
from skill_ttrl.registry import Registry, require_methods

REMOTE = "openai"
"""The backend that samples from a remote model, and the name of that model as a source."""
NO_MODEL = "none"
"""The backend of a program that brings its own model (section `program`), and its name as a source."""
FACTS = {
    "hf": BackendFacts(is_learner=True, blocking=True, structured=True),
    "vllm": BackendFacts(engine=True),
    REMOTE: BackendFacts(trainable=False, remote=True, grows=False),
    NO_MODEL: BackendFacts(trainable=False, remote=True, grows=False),
}
BACKENDS: Registry[Callable[[BackendContext], Backend]] = Registry("backend")


def is_remote(source: object) -> bool:
    """True if `source` is the policy of `endpoints`: `openai` or `openai:MODEL`."""
    return str(source).partition(":")[0] == REMOTE


def is_frozen(source: object) -> bool:
    """True if `source` has no weights here: the policy of `endpoints`, or `none`."""
    return is_remote(source) or str(source) == NO_MODEL


def backend_facts(config: SkillTTRLConfig) -> BackendFacts:
    """The facts of the backend that `rollout.backend` names, without making it.

    For `module:attribute` the attribute's own; the defaults where there is no such name, as `make_backend` will say.
    """
    name = config.rollout.backend
    if name in FACTS:
        facts = FACTS[name]
        copies = facts.is_learner and config.runs_ahead
        engine = facts.engine and config.vllm.mode == "colocate"
        return replace(facts, is_learner=facts.is_learner and not copies, is_copy=copies, engine=engine)
    try:
        made_by = BACKENDS.get(name)
    except ConfigError:
        return BackendFacts()
    known = {
        fact: getattr(made_by, fact)
        for fact in ("is_learner", "trainable", "blocking", "log_probs")
        if hasattr(made_by, fact)
    }
    known["structured"] = bool(getattr(made_by, "supports_structured_outputs", False))
    known["grows"] = not isinstance(made_by, type) or hasattr(made_by, "encode_next")
    return BackendFacts(**known)


def untrainable(name: str) -> str:
    """Why the backend of a run cannot be trained: it does not follow the learner's weights."""
    return (
        f"rollout.backend={name} cannot be trained: it does not follow the learner's weights. Train with hf or vllm, or use it with "
        "evaluate, vote or ask."
    )


def make_backend(context: BackendContext) -> Backend:
    """The backend that `rollout.backend` names: a built-in one, or `module:attribute`, called with the context.

    Raises:
        ConfigError: no backend has this name, or it cannot be made from the config.
    """
    name = context.settings.rollout.backend
    if context.trains and name in FACTS and not FACTS[name].trainable:
        raise ConfigError(untrainable(name))
    backend = BACKENDS.get(name)(context)
    require_methods(backend, name, "generate", "encode", "count", "update_weights", "sleep", "close")
    if context.trains and not getattr(backend, "trainable", True):
        backend.close()
        raise ConfigError(untrainable(name))
    return cast(Backend, HandOver(backend)) if context.trains and context.settings.runs_ahead else backend


@BACKENDS.register("hf")
def _hf(context: BackendContext) -> Backend:
    from skill_ttrl.llm.hf import HFBackend, HFCopyBackend

    made = HFCopyBackend if context.trains and context.settings.runs_ahead else HFBackend
    return made(
        context.loaded.model,
        context.loaded.tokenizer,
        max_batch_size=context.settings.rollout.max_batch_size,
        autocast=context.autocast,
    )


@BACKENDS.register("vllm")
def _vllm(context: BackendContext) -> Backend:
    if context.settings.vllm.mode == "server":
        from skill_ttrl.llm.vllm.servers import VLLMServerBackend

        return VLLMServerBackend(context)
    from skill_ttrl.llm.vllm.backend import VLLMBackend

    return VLLMBackend(context)


BACKENDS.register(NO_MODEL)(ProgramBackend)
BACKENDS.register(REMOTE)(OpenAIBackend)
