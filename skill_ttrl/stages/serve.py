"""`skillttrl serve`: one vLLM server for a model, in the foreground. Restarting it is the work of whoever runs it: systemd, Docker.

What cannot work is refused before anything starts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import skill_ttrl
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.server_key import KEY_VARIABLE, drawn_key, given_key, is_localhost, key_file
from skill_ttrl.llm.vllm.servers.http import weight_transfer_dir
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.storage.files import wrap_os_errors

LAUNCHER = Path(skill_ttrl.__file__).parent / "llm" / "vllm" / "plugin" / "launch.py"
SHARED = "dtype max_num_seqs cpu_kv_cache_gb tensor_parallel_size"
"""Settings of a recipe's section `vllm` that a server has by the same name."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""How this machine reaches a server that listens everywhere."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Model to serve, and settings of its server. `of_recipe` reads them from a recipe."""

    model: str
    """A model's folder, a model of the hub as OWNER/NAME, or a run or checkpoint of ours."""
    revision: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    python: str = sys.executable
    """Interpreter of the environment that has vLLM."""
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.9
    cpu_kv_cache_gb: int = 1
    tensor_parallel_size: int = 1
    lora: int | None = None
    """Most rank of adapters that are taken; None: no adapters."""
    lora_modules: tuple[str, ...] = ()
    """Names of the layers that take adapters; none: those of a decoder block."""
    sleep: bool = False
    transfer: str | None = None
    """The folder in which weights pass (`vllm.weight_transfer_dir`)."""


def serving_of(
    model: str | None, recipe: str | None = None, overrides: Sequence[str] = (), *, output: Path, **settings: Any
) -> Serving:
    """Choose the model to serve and its settings: as the recipe says, else by the defaults of `Serving`; `settings` that are not None come before.

    `recipe` is the name or file of a config, `overrides` are KEY=VALUE of it. Without a `model` it is the recipe's.

    Raises:
        ConfigError: neither model nor recipe, or overrides without a recipe.
    """
    if recipe is not None:
        serving = of_recipe(load_config(recipe, overrides), output, model)
    elif model is None or overrides:
        raise ConfigError("Name a MODEL to serve, or a config with --config, which --set needs.")
    else:
        serving = Serving(model)
    return replace(serving, **{name: value for name, value in settings.items() if value is not None})


def of_recipe(config: SkillTTRLConfig, output: Path, model: str | None = None) -> Serving:
    """The server of a recipe, for `model` in place of its own where one is named.

    The built-in model, which is in no folder, is made as training makes it and written to `output`.
    """
    from skill_ttrl.config import BUILTIN
    from skill_ttrl.llm.models.model_config import load_model_config
    from skill_ttrl.llm.vllm.checks import engine_length

    vllm, own = config.vllm, config.model
    lora = own.lora if vllm.weight_sync == "lora" else None
    positions = getattr(load_model_config(own), "max_position_embeddings", None)
    path = model or own.path
    if path == BUILTIN:
        path = str(_written(config, output))
    same = set(SHARED.split())
    if "gpu_memory_utilization" in vllm.model_fields_set:  # the default is for a GPU that the learner is on, too
        same.add("gpu_memory_utilization")
    return Serving(
        path,
        revision=None if model else own.revision,
        max_model_len=engine_length(config, positions),
        lora=None if lora is None else lora.r,
        lora_modules=() if lora is None or isinstance(lora.target_modules, str) else tuple(lora.target_modules),
        sleep=vllm.enable_sleep_mode,
        transfer=vllm.weight_transfer_dir,
        **vllm.model_dump(include=same),
    )


def plan(serving: Serving) -> tuple[str, ...]:
    """The command of the server, after everything that can be looked at was; see `LAUNCHER`.

    Raises:
        ConfigError: the port is taken, the host needs a key, or there is no such interpreter.
        ModelError: there is no such model, or it is no whole one.
        RunFolderError: a run has no checkpoint yet.
    """
    if not is_localhost(serving.host) and not given_key():
        raise ConfigError(
            f"--host {serving.host} accepts other machines, and anybody who connects can change the weights. Set the environment "
            f"variable {KEY_VARIABLE} here and where training runs, or use 127.0.0.1."
        )
    if shutil.which(serving.python) is None:
        raise ConfigError(
            f"{serving.python!r} is not an executable Python interpreter. Set --python to the path of one."
        )
    model = find_model(serving.model)
    _check_free(serving.host, serving.port)
    options = {name: value for name, value in asdict(serving).items() if name not in ("python", "transfer")}
    folder = weight_transfer_dir(serving.transfer)
    options |= {"model": model, "weight_transfer_dir": str(folder), "parent": os.getpid()}
    return serving.python, str(LAUNCHER), json.dumps(options)


def run(serving: Serving, notice: Callable[[str], None]) -> None:
    """Run the server until it ends, or until this process gets SIGINT, SIGTERM or SIGHUP, which it gets too.

    The key is the environment's, else one that is drawn for this user's clients.

    Raises:
        ModelError: the server ended by itself. Otherwise as `plan`, and `ConfigError` where a drawn key cannot be written.
    """
    command, stopped = plan(serving), list[int]()
    with ExitStack() as stack:
        key = given_key() or stack.enter_context(drawn_key([serving.port]))
        # A session of its own: a Ctrl-C reaches it through us alone, and its children can be ended with it.
        server = subprocess.Popen(command, env={**os.environ, KEY_VARIABLE: key}, start_new_session=True)
        stack.callback(_end_group, server)

        def stop(signum: int, frame: FrameType | None) -> None:
            stopped.append(signum)
            server.send_signal(signal.SIGTERM)

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, signum, signal.signal(signum, stop))
        host = EVERYWHERE.get(serving.host, f"[{serving.host}]" if ":" in serving.host else serving.host)
        address = f"http://{host}:{serving.port}"
        notice(
            f"Starting {address}. Once it is ready, use it with: --set rollout.backend=vllm --set vllm.mode=server "
            f"--set 'vllm.servers=[{address}]'. Ctrl-C stops it."
        )
        if not given_key():
            notice(
                f"It requires a key. Skill-TTRL finds it by itself; for other clients it is in {key_file(serving.port)}."
            )
        code = server.wait()
    if not stopped:
        raise ModelError(f"The vLLM server at {address} ended with exit code {code}; its own messages are above.")


def _end_group(server: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def find_model(path: str) -> str:
    """The folder of a model, a run's newest checkpoint among them; what can only be the name of a hub's model stays.

    Raises:
        ModelError: there is no such folder, or it holds adapters or nothing of a model.
        RunFolderError: a run that has no checkpoint.
    """
    from skill_ttrl.stages.targets.trained import find_trained

    folder = Path(path).expanduser()
    if not folder.exists():
        if path.startswith((".", "/", "~")) or path.count("/") != 1:
            raise ModelError(
                f"There is no model folder {path}. Name a folder in Hugging Face format, a run, or a hub model (OWNER/NAME)."
            )
        return path
    run = RunFolder.exists(folder) or (folder / "manifest.json").is_file()
    found = find_trained(folder).weights if run else folder
    if (found / "adapter_config.json").is_file():
        raise ModelError(
            f"{found} holds adapters without their base model. Serve the base model with --max-lora-rank RANK and set "
            "vllm.weight_sync=lora, or merge them first: skillttrl export RUN --merge-lora --output MODEL."
        )
    if not (found / "config.json").is_file():
        raise ModelError(f"{found} has no config.json, so it is neither a Hugging Face model nor a run.")
    return str(found.resolve())


def _check_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"Port {port} of {host} is not available: {error.strerror}. Nothing was started. Choose another "
                "with --port, or stop the program that uses it."
            ) from None


def _written(config: SkillTTRLConfig, folder: Path) -> Path:
    """The built-in model as a run of this recipe would begin with it."""
    from skill_ttrl.llm.models.load import save_model
    from skill_ttrl.rl.device import make_accelerator
    from skill_ttrl.stages.setup.policy import load_policy

    loaded = load_policy(config, make_accelerator(config.runtime), None)
    with wrap_os_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        save_model(loaded.model, loaded.tokenizer, folder)
    return folder
