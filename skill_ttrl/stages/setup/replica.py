"""One rank's part of a run: the weights it computes with, and what samples from them. The driver's stages do the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.config.rl import COPY
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backends import backend_facts, make_backend
from skill_ttrl.llm.context import BackendContext
from skill_ttrl.rl.parallel.commands import Objects
from skill_ttrl.rl.parallel.environment import strategy, variables
from skill_ttrl.stages.setup.policy import load_policy

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skill_ttrl.llm.models.load import LoadedModel
    from skill_ttrl.rl.parallel.shard import Sharding
    from skill_ttrl.rl.policy import Policy


def make_replica(objects: Objects, config: SkillTTRLConfig, weights: Path | None) -> LoadedModel:
    """Command: load the policy on every rank, whole or this rank's shard of it.

    Args:
        objects: This rank's; gets `policy`, `accelerator`, `critic` where `rl.critic` names a model, and on the other ranks than the driver what samples, `backend`.
        config: As the driver's run has it.
        weights: Checkpoint to take the policy from, in place of `model.path`.

    Raises:
        SkillTTRLError: the policy cannot be made.
    """
    from skill_ttrl.rl.device import autocast_dtype, make_accelerator

    ranks = objects.ranks
    accelerator = make_accelerator(config.runtime)
    objects["accelerator"] = accelerator
    loaded, objects["policy"] = _load(objects, config, accelerator, weights)
    if "rl" in config.phases and config.rl.critic is not None and config.rl.critic.model is not None:
        if config.rl.critic.model == COPY:
            objects["policy"].check_copy()  # the copy is made when the phase begins
        else:
            objects["critic"] = _load_critic(objects, config, accelerator)
    facts = backend_facts(config)
    if not ranks.is_driver and (facts.is_learner or facts.engine):
        place: dict[str, Any] = {"device": str(accelerator.device), "autocast": autocast_dtype(accelerator)}
        place |= {"weights": weights, "rank_environment": variables() if facts.engine else {}}
        objects["backend"] = make_backend(BackendContext.of(config, lambda: loaded, **place, trains=True))
    return loaded


def _load(
    objects: Objects, config: SkillTTRLConfig, accelerator: Accelerator, weights: Path | None
) -> tuple[LoadedModel, Policy]:
    """The weights that `config.model` or a checkpoint names, on every rank, whole or this rank's shard of them."""
    from skill_ttrl.rl.policy import Policy

    ranks = objects.ranks
    sharding: Sharding | None = None
    if strategy(config.runtime, ranks.size, on_gpu=accelerator.device.type == "cuda") == "fsdp":
        loaded, sharding = _load_sharded(objects, config, accelerator, weights)
    else:
        loaded = load_policy(config, accelerator, weights)
        ranks.copy_from_driver_([*loaded.model.parameters(), *loaded.model.buffers()])
    options = config.model.model_dump(include={"gradient_checkpointing", "packing"})
    options["offload_optimizer"] = config.runtime.optimizer_offload
    return loaded, Policy(loaded.model, loaded.tokenizer, accelerator.device, sharding=sharding, **options)


def _load_critic(objects: Objects, config: SkillTTRLConfig, accelerator: Accelerator) -> Policy:
    """The decoder that `rl.critic.model` names; a resumed run fills in what it learned.

    Raises:
        ModelError: it cannot be loaded, or it reads other tokens than the policy.
    """
    critic = config.rl.critic
    assert critic is not None
    named = config.model.model_copy(update={"path": critic.model, "revision": critic.revision})
    _, found = _load(objects, config.model_copy(update={"model": named}), accelerator, None)
    if found.tokenizer.get_vocab() != objects["policy"].tokenizer.get_vocab():
        raise ModelError(
            f"rl.critic.model={critic.model} has another vocabulary than the policy. Use a model of the same family, "
            "rl.critic.model=policy for a copy of the policy, or null for a head on it."
        )
    return found


def _load_sharded(
    objects: Objects, config: SkillTTRLConfig, accelerator: Accelerator, weights: Path | None
) -> tuple[LoadedModel, Sharding]:
    """This rank's shard of the weights. They are read once: by the driver, or each piece of a sharded checkpoint where it belongs."""
    from skill_ttrl.llm.models.weights import is_sharded, read_shards, weights_of
    from skill_ttrl.rl.device import autocast_dtype
    from skill_ttrl.rl.parallel.shard import Sharding

    ranks, runtime = objects.ranks, config.runtime
    source = weights or Path(config.model.path)
    in_pieces = is_sharded(source) and config.model.lora is None  # adapters rename what they adapt
    loaded = load_policy(config, accelerator, weights, device="cpu", empty=in_pieces or not ranks.is_driver)
    whole = {name: parameter.detach() for name, parameter in loaded.model.named_parameters()}
    sharding = Sharding(
        loaded.model,
        accelerator.device,
        ranks.size,
        compute=autocast_dtype(accelerator),
        reshard_after_forward=runtime.reshard_after_forward,
        offload=runtime.param_offload,
    )
    if in_pieces:
        read_shards(source, weights_of(loaded.model), ranks.control)
        ranks.copy_from_driver_(list(loaded.model.buffers()))
    else:
        sharding.fill(whole if ranks.is_driver else {}, ranks)
    return loaded, sharding
