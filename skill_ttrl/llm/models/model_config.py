"""The transformers config of a model, without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, Qwen2Config

from skill_ttrl.config import BUILTIN, ModelConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer

PUBLISHED: dict[str, tuple[int, int, int, int, int, int, bool, int, float]] = {
    "Qwen/Qwen2.5-7B-Instruct": (152064, 3584, 18944, 28, 28, 4, False, 32768, 1e6),
    "Qwen/Qwen2.5-1.5B-Instruct": (151936, 1536, 8960, 28, 12, 2, True, 32768, 1e6),
    "Qwen/Qwen2.5-0.5B-Instruct": (151936, 896, 4864, 24, 14, 2, True, 32768, 1e6),
    "Qwen/Qwen2.5-Math-7B": (152064, 3584, 18944, 28, 28, 4, False, 4096, 1e4),
    "Qwen/Qwen2.5-Math-1.5B": (151936, 1536, 8960, 28, 12, 2, True, 4096, 1e4),
}
"""Shapes of models that shipped recipes name, as in their `config.json`: a plan needs them where no hub is reached."""
COLUMNS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "tie_word_embeddings"),
    *("max_position_embeddings", "rope_theta"),
)


def load_model_config(model: ModelConfig) -> Any:
    """The transformers config of a model: of the built-in one as it will be made, else from a folder, cache or hub.

    Raises:
        ModelError: it is in no folder and no cache, and the hub cannot be reached or has no such model.
    """
    if model.path == BUILTIN:
        tokenizer = build_tokenizer((), model.builtin)
        with torch.device("meta"):
            return build_model(model.builtin, tokenizer, seed=0).config
    chosen = {"revision": model.revision or "main", "trust_remote_code": model.trust_remote_code}
    here = Path(model.path).is_dir()
    try:
        return AutoConfig.from_pretrained(model.path, local_files_only=True, **chosen)
    except (OSError, ValueError) as error:
        reason = f"that folder has none that can be read ({' '.join(str(error).split())[:200]})"
    if not here:
        reason = "it is no folder here, not in the Hugging Face cache, and the hub was not reached"
        if _hub_answers():
            try:
                return AutoConfig.from_pretrained(model.path, **chosen)
            except (OSError, ValueError) as error:
                reason = " ".join(str(error).split())[:300]
    raise ModelError(
        f"Cannot read the config of the model {model.path!r}: {reason}. The estimate needs its config.json alone: put it "
        "into a folder and set model.path to that folder, or allow the network."
    )


def _hub_answers() -> bool:
    """True if the Hugging Face hub answers: one short request, where its own client would try for half a minute."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # whatever the HTTP client raises, it did not get there
        return False
    return True


def published_config(path: str) -> Any | None:
    """The transformers config of a model by its name on the hub; None: it is not in the table."""
    if path not in PUBLISHED:
        return None
    shape: dict[str, Any] = dict(zip(COLUMNS, PUBLISHED[path], strict=True))
    return Qwen2Config(**shape)
