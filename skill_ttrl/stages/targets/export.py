"""`skillttrl export`: a trained policy as a plain Hugging Face folder, adapters merged on request."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.llm.chat import write_sampling
from skill_ttrl.llm.models.load import load_checkpoint, load_tokenizer, save_model
from skill_ttrl.llm.models.weights import SHARDS, is_sharded, merge_adapters
from skill_ttrl.runs.checkpoint import MANIFEST, STATE, TENSORS, load_state, model_card
from skill_ttrl.stages.targets.resolve import TrainedPolicy
from skill_ttrl.storage.files import wrap_os_errors

TRAINER_FILES = {MANIFEST, STATE, TENSORS}
"""Files that are needed only to resume a run."""


def export(trained: TrainedPolicy, output: str | Path, *, merged: bool = False) -> Path:
    """Write the policy to `output`, which must not exist; it appears whole or not at all.

    Args:
        trained: which policy.
        output: folder to make.
        merged: fold LoRA adapters into the weights of their base model, so that no peft is needed to load it.

    Raises:
        RunFolderError: `output` exists or cannot be written.
        ConfigError: `merged` is asked for a policy without adapters.
    """
    output = Path(output)
    if output.exists():
        raise RunFolderError(f"{output} exists already. Choose another --output.")
    adapters = (trained.weights / "adapter_config.json").is_file()
    if merged and not adapters:
        raise ConfigError(f"{trained.weights} has no adapters to merge. Leave out --merge-lora.")
    building = output.with_name(f".{output.name}.partial")
    with wrap_os_errors("write", output):
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        try:
            if merged or is_sharded(trained.weights):
                loaded = load_checkpoint(trained.weights, device="cpu", base=trained.config.model)
                model: Any = loaded.model
                save_model(merge_adapters(model) if merged else model, loaded.tokenizer, building)
            else:
                shutil.copytree(
                    trained.weights, building, ignore=shutil.ignore_patterns(*TRAINER_FILES, SHARDS), dirs_exist_ok=True
                )
            if (building / "config.json").is_file():
                own = trained.config.model.model_copy(update={"path": str(building), "revision": None})
                write_sampling(building, load_tokenizer(own), trained.config.rollout)
            saved = load_state(trained.weights)
            card = model_card(trained.config, phase=saved["phase"], step=saved["step"], merged=merged)
            (building / "README.md").write_text(card, encoding="utf-8")
            building.rename(output)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    return output
