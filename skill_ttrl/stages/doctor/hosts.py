"""Checks of the hosts that a config names, for `doctor` and `--dry-run`: vLLM servers, models behind addresses, Chroma.

Hosts are sent only requests that cost nothing: whether they are up, and which models they have. A key goes only to the host that it
is for and is never shown; what a host answers is shown without control characters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from skill_ttrl.config import EndpointConfig, Role, SkillTTRLConfig
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.storage.jsonl import parse_json

Status = Literal["ok", "warn", "fail"]
WAIT = 5.0
"""Seconds in which a host must answer."""
LONGEST_BODY = 1 << 20
"""Bytes of an answer that are read."""
CHROMA = "chroma server"
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
        return Answer(0, problem=f"it does not speak HTTP ({type(error).__name__})")
    except Exception as error:  # no such host, refused, too late, an address or a proxy that is none
        return Answer(0, problem=escape_terminal(" ".join(str(error).split()))[:200] or type(error).__name__)
    try:
        return Answer(answer.status_code, parse_json(body))
    except ValueError:
        return Answer(answer.status_code)


def host_checks(config: SkillTTRLConfig) -> list[Check]:
    """A check of each host that a run of `config` would send requests to."""
    from skill_ttrl.stages.setup.checks import roles_used

    checks: list[Check] = []
    if config.rollout.backend == "vllm" and config.vllm.mode == "server" and config.vllm.servers:
        with ThreadPoolExecutor(len(config.vllm.servers)) as asking:
            checks += asking.map(partial(_server, config), config.vllm.servers)
    for role in sorted(roles_used(config)):
        endpoint = config.endpoints.of(role)
        if endpoint is not None:  # one that is missing is found by `check_models`
            checks += tried(f"endpoint {role}", partial(_endpoint, endpoint, role))
    return checks + tried(CHROMA, partial(_chroma, config))


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
        advice = f"Set endpoints.{role}.model to a name that the server knows."
        return Check(name, "warn", f"{where} answers ({key}), but lists {found.scrubbed(_names(models))}", advice)
    return Check(name, "ok", f"{where} answers; {key}")


def _chroma(config: SkillTTRLConfig) -> Check | None:
    skills = config.skills
    if skills is None or not skills.embeds or skills.index != "chroma" or skills.chroma_server is None:
        return None
    answer = ask(f"http://{skills.chroma_server}/api/v2/heartbeat")
    if answer.status == 200 and isinstance(answer.body, dict) and "nanosecond heartbeat" in answer.body:
        return Check(CHROMA, "ok", f"{skills.chroma_server} answers")
    port = skills.chroma_server.rpartition(":")[2]
    problem = answer.problem or f"HTTP {answer.status}: another program has the port {port}"
    advice = (
        f"Start it: chroma run --path FOLDER --host HOST --port {port}. Or use skills.index=memory, which needs none."
    )
    return Check(CHROMA, "fail", f"{skills.chroma_server} does not answer: {problem}", advice)
