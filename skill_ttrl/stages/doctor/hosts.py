"""Checks of the hosts that a config names, for `doctor` and `--dry-run`: vLLM servers, models behind addresses, Chroma.

Hosts are sent only requests that cost nothing: whether they are up, and which models they have. A key goes only to the host that it
is for and is never shown; what a host answers is shown without control characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from skill_ttrl.config import EndpointConfig, Role, SkillTTRLConfig
from skill_ttrl.errors import EndpointError, SkillBankError, SkillTTRLError
from skill_ttrl.llm.backends import REMOTE, is_remote
from skill_ttrl.sanitize import escape_terminal
from skill_ttrl.skills.querying import OPENAI
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
    checks: list[Check] = []
    if config.rollout.backend == "vllm" and config.vllm.mode == "server" and config.vllm.servers:
        with ThreadPoolExecutor(len(config.vllm.servers)) as asking:
            checks += asking.map(partial(_server, config), config.vllm.servers)
    for role in sorted(roles_used(config)):
        endpoint = config.endpoints.of(role)
        if endpoint is not None:  # one that is missing is found by `check_models`
            checks += tried(f"endpoint {role}", partial(_endpoint, endpoint, role))
    return checks + tried(CHROMA, partial(_chroma, config))


def failing_hosts(config: SkillTTRLConfig) -> Iterator[SkillTTRLError]:
    """An error for each host that a run of `config` could not use."""
    from skill_ttrl.stages.setup.checks import check_models

    with suppress(SkillTTRLError):  # what is not set, such as a key, is an error of its own
        check_models(config)
        for check in host_checks(config):
            if check.status == "fail":
                kind = SkillBankError if check.name == CHROMA else EndpointError
                yield kind(f"{check.name}: {check.found}. {check.advice}".rstrip())


def _server(config: SkillTTRLConfig, address: str) -> Check:
    from skill_ttrl.llm.server_key import KEY_VARIABLE, key_headers

    name, headers = f"vllm server {address}", key_headers(address)
    health = ask(f"{address}/health", headers)
    if health.status != 200:
        advice = "Start it: skillttrl serve MODEL. A server answers once its model is loaded, after a minute or more."
        return Check(name, "fail", f"not ready: {health.problem or f'HTTP {health.status} at /health'}", advice)
    listed = ask(f"{address}/v1/models", headers)
    if listed.status in (401, 403):
        problem = f"it requires a key; {KEY_VARIABLE} {'was refused' if headers else 'is not set'}"
        return Check(name, "fail", problem, f"Set {KEY_VARIABLE} to the server's key.")
    models = _models(listed)
    lengths = [each["max_model_len"] for each in models if isinstance(each.get("max_model_len"), int)]
    if not lengths:
        return Check(name, "fail", f"HTTP {listed.status} at /v1/models: this is no vLLM server", "Fix vllm.servers.")
    needed = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    text = f"ready: {_names(models)}, at most {max(lengths)} tokens"
    if max(lengths) < needed:
        advice = f"skillttrl serve … --set vllm.max_model_len={needed}, or lower data.max_prompt_tokens or rollout.max_new_tokens."
        return Check(name, "fail", f"{text}; the config needs {needed}", advice)
    return Check(name, "ok", text)


def _models(answer: Answer) -> list[dict[str, Any]]:
    data = answer.body.get("data") if isinstance(answer.body, dict) else None
    return [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []


def _names(models: list[dict[str, Any]]) -> str:
    names = [escape_terminal(str(each.get("id")))[:80] for each in models]
    return ", ".join(names[:MOST_NAMES]) + (f", … ({len(names)} in all)" if len(names) > MOST_NAMES else "")


def roles_used(config: SkillTTRLConfig) -> set[Role]:
    """The endpoints that a run of the config sends requests to."""
    phases, skills, evolve, optimize = config.phases, config.skills, config.evolve, config.optimize
    if skills is not None and not skills.enabled:
        skills = evolve = None
    teaches = "distill" in phases and config.distill.teacher == OPENAI
    rationales = config.imitates and config.sft.data is None and config.demonstrations.rationale == OPENAI
    uses: dict[Role, bool] = {
        "policy": config.rollout.backend == REMOTE or ("collect" in phases and is_remote(config.collect.agent)),
        "merger": skills is not None and skills.update == "merge" and skills.merger == OPENAI,
        "teacher": teaches or rationales or (evolve is not None and evolve.teacher == OPENAI),
        "embeddings": skills is not None and skills.embeds and skills.embedder == OPENAI,
        "optimizer": optimize is not None and optimize.optimizer == OPENAI,
    }
    return {role for role, used in uses.items() if used}


def _endpoint(endpoint: EndpointConfig, role: Role) -> Check:
    from skill_ttrl.llm.openai.replies import find_address

    name = f"endpoint {role}"
    address = find_address(endpoint, role)  # raises where a key or an address is missing
    where = f"{escape_terminal(endpoint.model)} at {address.host}"
    key = "no key" if address.is_open else f"key from {address.key_variable}"
    base = address.base_url.rstrip("/")
    if endpoint.provider == "azure":
        answer = ask(f"{base}/openai/models?api-version={address.api_version}", {"api-key": address.key})
    else:
        answer = ask(f"{base}/models", {} if address.is_open else {"Authorization": f"Bearer {address.key}"})
    if answer.status == 0:
        problem = f"{where} does not answer: {address.scrubbed(answer.problem)}"
        return Check(name, "fail", problem, "Start the server, or correct base_url.")
    if answer.status in (401, 403):
        found = f"{where} refuses the key (HTTP {answer.status}; {key})"
        return Check(name, "fail", found, f"Check the value of {address.key_variable}.")
    if answer.status == 404:
        advice = "base_url usually ends in /v1. A server without a list of models may still answer requests."
        return Check(name, "warn", f"{where} answers, but has no list of models there (HTTP 404; {key})", advice)
    if answer.status != 200:
        return Check(
            name, "fail", f"{where} answers HTTP {answer.status} ({key})", "Check base_url and the server's log."
        )
    models = _models(answer)
    if endpoint.provider == "openai" and models and endpoint.model not in [each.get("id") for each in models]:
        advice = f"Set endpoints.{role}.model to a name that the server knows."
        return Check(name, "warn", f"{where} answers ({key}), but lists {address.scrubbed(_names(models))}", advice)
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
