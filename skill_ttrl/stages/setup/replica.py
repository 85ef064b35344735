"""One rank's part of a run: the weights it computes with, and what samples from them. The driver's stages do the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.llm.backends import backend_facts, make_backend
from skill_ttrl.llm.context import BackendContext
from skill_ttrl.rl.parallel.commands import Objects
from skill_ttrl.rl.parallel.strategy import strategy
from skill_ttrl.stages.setup.policy import load_policy

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skill_ttrl.llm.models.load import LoadedModel
    from skill_ttrl.rl.parallel.shard import Sharding


def make_replica(objects: Objects, config: SkillTTRLConfig, weights: Path | None) -> LoadedModel:
    """Command: load the policy on every rank, whole or this rank's shard of it.

    Args:
        objects: This rank's; gets `policy` and `accelerator`, and on the other ranks than the driver what samples, `backend`.
        config: As the driver's run has it.
        weights: Checkpoint to take the policy from, in place of `model.path`.

    Raises:
        SkillTTRLError: the policy cannot be made.
    """
    from skill_ttrl.rl.device import autocast_dtype, make_accelerator
    from skill_ttrl.rl.policy import Policy

    ranks = objects.ranks
    accelerator = make_accelerator(config.runtime)
    sharding: Sharding | None = None
    if strategy(config.runtime, ranks.size, on_gpu=accelerator.device.type == "cuda") == "fsdp":
        loaded, sharding = _load_sharded(objects, config, accelerator, weights)
    else:
        loaded = load_policy(config, accelerator, weights)
        ranks.copy_from_driver_([*loaded.model.parameters(), *loaded.model.buffers()])
    objects["accelerator"] = accelerator
    objects["policy"] = Policy(
        loaded.model,
        loaded.tokenizer,
        accelerator.device,
        sharding=sharding,
        **config.model.model_dump(include={"gradient_checkpointing", "packing"}),
    )
    if not ranks.is_driver and backend_facts(config).is_learner:
        place: dict[str, Any] = {"device": str(accelerator.device), "autocast": autocast_dtype(accelerator)}
        objects["backend"] = make_backend(BackendContext.of(config, lambda: loaded, **place, trains=True))
    return loaded


def _load_sharded(
    objects: Objects, config: SkillTTRLConfig, accelerator: Accelerator, weights: Path | None
) -> tuple[LoadedModel, Sharding]:
    """This rank's shard of the weights. They are read once: by the driver, or each piece of a sharded checkpoint where it belongs."""
    from skill_ttrl.llm.models.shards import is_sharded, read_shards, weights_of
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
