"""Load a policy: the built-in one, a Hugging Face model, or a checkpoint of a run, with or without LoRA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import save_file

from skill_ttrl.config import BUILTIN, LoraConfig, ModelConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.gguf import on_disk
from skill_ttrl.llm.models.weights import is_sharded, read_shards, weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def count_parameters(model_config: Any, lora: LoraConfig | None) -> tuple[int, int]:
    """(all numbers of a model with its adapters, those of its adapters), counted without storage.

    Raises:
        ModelError: transformers builds no causal language model from this config.
    """
    builder: Any = transformers.AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = builder.from_config(model_config)
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"Cannot count the parameters of a {getattr(model_config, 'model_type', 'model')!r} model: transformers builds no "
            f"causal language model from this config ({' '.join(str(error).split())[:200]})."
        ) from None
    head = model.get_output_embeddings()
    linear = [each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not head]
    adapters = 0 if lora is None else sum(lora.r * (each.in_features + each.out_features) for each in linear)
    parameters = sum(parameter.numel() for parameter in model.parameters()) + adapters
    return parameters, adapters


def load_model_config(model: ModelConfig) -> Any:
    """The transformers config of a model: of the built-in one as it will be made, else from a folder, cache or hub.

    Raises:
        ModelError: it is in no folder and no cache, and the hub cannot be reached or has no such model.
    """
    if model.path == BUILTIN:
        tokenizer = build_tokenizer((), model.builtin)
        with torch.device("meta"):
            return build_model(model.builtin, tokenizer, seed=0).config
    return _read(transformers.AutoConfig, on_disk(model), "config.json")


@contextmanager
def reading_model(path: str, files: str, kind: str = "model") -> Iterator[None]:
    """Turn whatever a library raises over a model's files into `ModelError`. `files` are those that it reads."""
    try:
        yield
    except (ModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a foreign folder can make transformers, tokenizers and safetensors raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        if Path(path).is_dir():
            what = f"Its {files} cannot be used: {reason}."
        elif path.startswith((".", "/", "~")) or path.count("/") > 1:
            what = f"There is no folder {Path(path)}."
        else:
            hint = "Check the name, the network and HF_HUB_OFFLINE; cached models work offline."
            what = f"{hint} ({reason})"
        raise ModelError(f"Cannot load the {kind} {path!r}. {what}") from error


def check_tokenizer(tokenizer: Any, described: Any, path: str) -> None:
    """Raise `ModelError` for a tokenizer that is not the model's: transformers makes an empty one where tokenizer.json is missing."""
    known, rows = len(tokenizer), getattr(described.get_text_config(), "vocab_size", None) or 0
    if known < rows / 2 or not tokenizer("the answer 12", add_special_tokens=False)["input_ids"]:
        raise ModelError(
            f"The tokenizer of {path!r} has {known:,} tokens and its config.json {rows:,}: it is empty or another model's. The folder needs "
            "the model's own tokenizer.json (or tokenizer.model, or vocab.json and merges.txt)."
        )


ADAPTER_WEIGHTS = "adapter_model.safetensors"
TOKENIZER_FILES = ("tokenizer", "special_tokens_map", "added_tokens", "chat_template", "vocab.", "merges.")
"""Beginnings of the names of files that make a tokenizer."""
CONTENTS = r"{{ messages | map(attribute='content') | join('\n\n') }}"
"""Chat template that renders a conversation as `encode_chat` does without one."""

# The run's own view shows progress; bars of single files would tear it.
transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A policy."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_model(
    config: ModelConfig,
    *,
    device: str,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    corpus: Iterable[str] = (),
    empty: bool = False,
) -> LoadedModel:
    """The policy that a config names, on `device` ("cpu", "cuda:0", …), ready to train.

    `dtype` is that of the weights; with LoRA the adapters stay in float32. `seed` draws the weights of the built-in policy and of
    new adapters; the built-in tokenizer learns the words of `corpus`. With `empty` the weights of a Hugging Face model are not read:
    they are to be filled in from another rank.

    Raises:
        ModelError: the model is not there, needs code that is not trusted, or does not fit the device.
    """
    if config.path == BUILTIN:
        tokenizer = build_tokenizer(corpus, config.builtin)
        model: Any = build_model(config.builtin, tokenizer, seed)
    else:
        model, tokenizer = _load_pretrained(config, dtype, empty=empty)
    if config.lora is not None:
        if config.path == BUILTIN:
            raise ConfigError("model.lora needs a pretrained model; the built-in one starts from random weights.")
        model = add_lora(model, config.lora, seed)
    return LoadedModel(_to_device(model, device), tokenizer)


def load_checkpoint(
    folder: Path,
    *,
    device: str,
    dtype: torch.dtype = torch.float32,
    base: ModelConfig | None = None,
    empty: bool = False,
) -> LoadedModel:
    """The policy saved in `folder`, a checkpoint or any folder in Hugging Face format: full weights, or an adapter on its base model.

    `base` says how to load it (trust, attention), and where an adapter's base model is; None takes what the adapter names. With
    `empty` no weights but an adapter's are read: they are to be filled in by the caller. Weights in pieces (`shards`) are read whole.

    Raises:
        ModelError: a part of it is not there or cannot be read.
    """
    own = (base or ModelConfig()).model_copy(update={"path": str(folder), "revision": None})
    if not (folder / "adapter_config.json").is_file():
        model, tokenizer = _load_pretrained(own, dtype, empty=empty)
        return LoadedModel(_to_device(model, device), tokenizer)
    from peft import PeftConfig, PeftModel

    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{folder} has no {ADAPTER_WEIGHTS}. Other formats, such as pickles, are not loaded.")
    files = f"adapter_config.json or {ADAPTER_WEIGHTS}"
    if base is None:
        with reading_model(str(folder), files):
            described = PeftConfig.from_pretrained(str(folder))
        base = ModelConfig(path=str(described.base_model_name_or_path), revision=described.revision)
    model, _ = _load_pretrained(base, dtype, empty=empty)
    with reading_model(str(folder), files):
        model = PeftModel.from_pretrained(model, str(folder), is_trainable=True)
    return LoadedModel(_to_device(model, device), load_tokenizer(own))


def hub_revision(config: ModelConfig) -> str | None:
    """Commit that a hub model's name means now (from the cache where there is no network).

    Raises:
        ModelError: there is no such model, or it can be found neither on the hub nor in the cache.
    """
    commit: str | None = getattr(_read(transformers.AutoConfig, config, "config.json"), "_commit_hash", None)
    return commit or config.revision


def save_model(model: Any, tokenizer: Any, folder: Path, *, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write a policy in Hugging Face format: all weights, or the adapter alone where it has one.

    `weights` are written in the place of the model's own, which are not looked at; without any, only what describes them is.
    """
    if weights is None:
        model.save_pretrained(folder)
    elif hasattr(model, "get_base_model"):
        model.save_pretrained(folder, state_dict=weights)
    else:  # transformers itself would write nothing on another rank than 0
        described = copy(model.config)
        # Sharded weights change their model's class.
        described.architectures = [type(model).__name__.removeprefix("FSDP")]
        described.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
        if weights:
            held = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
            save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    files = getattr(tokenizer, "files_read", {})
    for name, data in files.items():  # transformers would write the same tokenizer in another form
        (folder / name).write_bytes(data)
    if not files:
        tokenizer.save_pretrained(folder)
    if getattr(tokenizer, "chat_template", None) == "":  # model.chat_template=none, for whoever loads it too
        starts = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
        (folder / "chat_template.jinja").write_text("{{ bos_token }}" * starts + CONTENTS, encoding="utf-8")
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors writes them for the owner alone


def add_lora(model: Any, config: LoraConfig, seed: int) -> Any:
    """Wrap `model` in trainable low-rank adapters; its own weights are frozen."""
    import peft

    adapter = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # peft takes any number and says int
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, adapter)


def _load_pretrained(config: ModelConfig, dtype: torch.dtype, *, empty: bool = False) -> tuple[Any, Any]:
    config = on_disk(config)
    described = _read(transformers.AutoConfig, config, "config.json")
    kernel = getattr(described, "_attn_implementation", None)
    if "/" in str(kernel):
        raise ModelError(
            f"config.json of {config.path!r} asks for the attention kernel {kernel}, which is foreign code. Remove it there."
        )
    tokenizer = load_tokenizer(config)
    check_tokenizer(tokenizer, described, config.path)
    options: dict[str, Any] = {"dtype": dtype}
    in_pieces = is_sharded(Path(config.path))
    if empty or in_pieces:
        with reading_model(config.path, "config.json"):
            model = _without_weights(described, options)
        if in_pieces and not empty:
            read_shards(Path(config.path), weights_of(model))
        return model, tokenizer
    options |= {"use_safetensors": True, "output_loading_info": True}  # a pickle can run code
    files = "config.json and safetensors"
    model, info = _read(transformers.AutoModelForCausalLM, config, files, **options)
    if info["missing_keys"]:  # transformers draws them at random
        names = ", ".join(sorted(info["missing_keys"])[:3])
        raise ModelError(f"The weights of {config.path!r} lack {names}. Copy or download the model again.")
    return model, tokenizer


def _without_weights(described: Any, options: dict[str, Any]) -> Any:
    """The model with memory for its weights that holds nothing yet: what is not written to is not taken from the machine."""
    from accelerate import init_empty_weights

    build: Any = transformers.AutoModelForCausalLM
    with init_empty_weights(include_buffers=False):
        model = build.from_config(described, trust_remote_code=False, **options)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            data = torch.empty_like(parameter, device="cpu")
            setattr(module, name, torch.nn.Parameter(data, requires_grad=parameter.requires_grad))
    model.tie_weights()
    return model.eval()


def load_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer of a model in Hugging Face format, without its weights.

    Raises:
        ModelError: it is not there or cannot be read.
    """
    config = on_disk(config)
    tokenizer = _read(transformers.AutoTokenizer, config, "tokenizer.json or tokenizer_config.json")
    if config.chat_template == "none":
        tokenizer.chat_template = ""  # said on purpose: there is nothing to warn of
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    folder = Path(config.path)
    if (folder / "tokenizer.json").is_file() and not (folder / "additional_chat_templates").exists():
        names = (file for file in folder.iterdir() if file.name.startswith(TOKENIZER_FILES) and file.is_file())
        tokenizer.files_read = {file.name: file.read_bytes() for file in names}  # now: old checkpoints are removed
    return tokenizer


def _read(auto: Any, config: ModelConfig, files: str, **options: Any) -> Any:
    """Load with one of transformers' Auto classes from the config's path; `files` are those that it reads."""
    if files == "config.json" and Path(config.path, "adapter_config.json").is_file():
        raise ModelError(
            f"{config.path} holds adapters without their base model. Fold them in first: skillttrl export RUN --merge-lora "
            "--output MODEL, then start from MODEL."
        )
    chosen = {"revision": config.revision or "main", "trust_remote_code": False}
    with reading_model(config.path, files):
        return auto.from_pretrained(config.path, **chosen, **options)


def _to_device(model: Any, device: str) -> Any:
    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"The weights do not fit on {device}: {error}. Use LoRA (model.lora), a smaller model, or see "
            "`skillttrl doctor --config`."
        ) from None
