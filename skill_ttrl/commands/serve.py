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
from pathlib import Path
from types import FrameType

import skill_ttrl
from skill_ttrl.config import BUILTIN, load_config
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.models.gguf import model_folder
from skill_ttrl.llm.server_key import KEY_VARIABLE, drawn_key, given_key, is_localhost, key_file
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.storage.files import wrap_os_errors

LAUNCHER = Path(skill_ttrl.__file__).parent / "llm" / "vllm" / "plugin" / "launch.py"
GPU_MEMORY = 0.9
"""Share of a GPU's memory that a server takes where the config states none: the config's default leaves room for a learner."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Types of the weights by `runtime.precision`."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""How this machine reaches a server that listens everywhere."""


def plan(
    policy: str | None,
    recipe: str | None,
    overrides: Sequence[str] = (),
    *,
    output: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    python: str | None = None,
) -> tuple[str, ...]:
    """The command of a server (`LAUNCHER`), after everything that can be checked was.

    Args:
        policy: a model's folder, a hub model as OWNER/NAME, a run or a checkpoint; None: the recipe's model.
        recipe: name or file of a config, whose sections `model` and `vllm` set up the server; None: the defaults.
        overrides: KEY=VALUE of the config.
        output: folder for the built-in model of a recipe, which is made as training makes it.
        host: address to listen on.
        port: port to listen on.
        python: interpreter of the environment that has vLLM; None: this one.

    Raises:
        ConfigError: neither policy nor recipe, the port is taken, the host needs a key, or there is no such interpreter.
        ModelError: there is no such model, or it is incomplete.
        RunFolderError: a run has no checkpoint yet.
    """
    if policy is None and recipe is None:
        raise ConfigError("Name a model to serve, or a config with --config.")
    if not is_localhost(host) and not given_key():
        raise ConfigError(
            f"--host {host} accepts other machines, and anybody who connects can change the weights. Set the environment "
            f"variable {KEY_VARIABLE} here and where training runs, or use 127.0.0.1."
        )
    python = python or sys.executable
    if shutil.which(python) is None:
        raise ConfigError(f"{python!r} is not an executable Python interpreter. Set --python to the path of one.")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"Port {port} of {host} is not available: {error.strerror}. Nothing was started. Choose another "
                "with --port, or stop the program that uses it."
            ) from None
    config = load_config({} if recipe is None else recipe, overrides)
    from skill_ttrl.llm.models.load import load_model_config
    from skill_ttrl.llm.vllm.checks import engine_length
    from skill_ttrl.llm.vllm.servers import weight_transfer_dir

    vllm = config.vllm
    options = vllm.model_dump() | {"dtype": DTYPES.get(config.runtime.precision, "auto")}
    options["weight_transfer_dir"] = str(weight_transfer_dir(vllm.weight_transfer_dir))
    if recipe is not None:  # sequences are as long as the config's limits add up to
        positions = getattr(load_model_config(config.model), "max_position_embeddings", None)
        options["max_model_len"] = engine_length(vllm.max_model_len, config.longest_sequence, positions)
    if "gpu_memory_utilization" not in vllm.model_fields_set:
        options["gpu_memory_utilization"] = GPU_MEMORY
    path = policy or config.model.path
    if path == BUILTIN:  # as a run of this recipe would begin with it
        from skill_ttrl.llm.models.load import save_model
        from skill_ttrl.train.build import PolicyLoader

        loaded = PolicyLoader(config).load()
        with wrap_os_errors("write", output):
            output.mkdir(parents=True, exist_ok=True)
            save_model(loaded.model, loaded.tokenizer, output)
    model = find_model(str(output) if path == BUILTIN else model_folder(path))
    options |= {"model": model, "revision": None if policy else config.model.revision, "host": host, "port": port}
    return python, str(LAUNCHER), json.dumps(options | {"parent": os.getpid()})


def run(command: Sequence[str], host: str, port: int, notice: Callable[[str], None]) -> None:
    """Run the server until it ends, or until this process gets SIGINT, SIGTERM or SIGHUP, which it gets too.

    The key is the environment's, else one that is drawn for this user's clients.

    Raises:
        ModelError: the server ended by itself.
        ConfigError: a drawn key cannot be written.
    """
    stopped = list[int]()
    with ExitStack() as stack:
        key = given_key() or stack.enter_context(drawn_key(port))
        # A session of its own: a Ctrl-C reaches it through us alone, and its children can be ended with it.
        server = subprocess.Popen(command, env={**os.environ, KEY_VARIABLE: key}, start_new_session=True)
        stack.callback(_end_group, server)

        def stop(signum: int, frame: FrameType | None) -> None:
            stopped.append(signum)
            server.send_signal(signal.SIGTERM)

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, signum, signal.signal(signum, stop))
        address = f"http://{EVERYWHERE.get(host, f'[{host}]' if ':' in host else host)}:{port}"
        notice(
            f"Starting {address}. Once it is ready, use it with: --set rollout.backend=vllm --set vllm.mode=server "
            f"--set 'vllm.servers=[{address}]'. Ctrl-C stops it."
        )
        if not given_key():
            notice(f"It requires a key. Skill-TTRL finds it by itself; for other clients it is in {key_file(port)}.")
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
    from skill_ttrl.commands.resolve import find_checkpoint

    folder = Path(path).expanduser()
    if not folder.exists():
        if path.startswith((".", "/", "~")) or path.count("/") != 1:
            raise ModelError(
                f"There is no model folder {path}. Name a folder in Hugging Face format, a run, or a hub model (OWNER/NAME)."
            )
        return path
    run = RunFolder.exists(folder) or (folder / "manifest.json").is_file()
    found = find_checkpoint(folder)[1] if run else folder
    if (found / "adapter_config.json").is_file():
        raise ModelError(
            f"{found} holds adapters without their base model. Merge them first: skillttrl export RUN --merge-lora --output MODEL."
        )
    if not (found / "config.json").is_file():
        raise ModelError(f"{found} has no config.json, so it is neither a Hugging Face model nor a run.")
    return str(found.resolve())
