"""`openenv:URL`: an environment on a server of OpenEnv, through the package's own client.

Text from the server is untrusted: it is bounded and escaped, and it names no import, command or address.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import gymnasium

from skill_ttrl.envs.text_env import TextEnv, check_action, foreign_text, reset_options
from skill_ttrl.errors import EnvError, MissingDependencyError
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.signals import FAILURES
from skill_ttrl.trust import clean_address

ENV_ID = "SkillTTRL/OpenEnv-v0"
MAX_MESSAGE_MB, MAX_SCHEMA = 4.0, 80_000
"""Longest message of a server, in MB, and longest schema, in bytes, that is read."""
_GENERIC = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of the schema of actions where a server offers tools and the schema does not say which."""


class OpenEnvEnv(TextEnv):
    """Environments on a server of OpenEnv.

    The first observation ends with the schema of actions. An action is a JSON object of that schema; if the schema requires only one field,
    its value is enough. An action that the server refuses gets reward 0, and the refusal is the observation. An observation with a single
    text is shown as text, any other as JSON.

    Args:
        url: of the server, like `http://127.0.0.1:8000`.
        reset: further arguments of the server's `reset`, in addition to the seed.
        answer_timeout: seconds that a step or reset may take.

    Raises:
        MissingDependencyError: openenv-core is not installed.
        EnvError: there is no such server.
    """

    config_defaults: ClassVar[Mapping[str, Any]] = {
        "agent.template": "plain",
        "agent.max_turns": 10,
        "data.max_prompt_tokens": 4096,
        "rl.reward": "env",
    }
    expensive = True

    def __init__(self, url: str, reset: Mapping[str, Any] | None = None, answer_timeout: float = 60.0) -> None:
        super().__init__()
        try:
            from openenv.core import GenericEnvClient, env_client
        except ImportError:
            raise MissingDependencyError.for_extra("env.id: openenv:URL", "openenv") from None
        self.url, self._reset, self._timeout = clean_address(url).rstrip("/"), dict(reset or {}), answer_timeout
        if not self.url.startswith(("http://", "https://")):
            raise EnvError(f"openenv:URL needs the address of a server like http://127.0.0.1:8000, found {url!r:.200}.")
        if env_client.ws_connect.__name__ != "_Direct":

            class _Direct(env_client.ws_connect):  # type: ignore[misc]
                def process_redirect(self, exc: Exception) -> Exception:
                    return exc  # the address is the user's, and no server names another

            env_client.ws_connect = _Direct
        self._make: Callable[[], Any] = lambda: GenericEnvClient(
            self.url, message_timeout_s=answer_timeout, max_message_size_mb=MAX_MESSAGE_MB, mode="simulation"
        ).sync()
        self._client: Any = None
        self._schema: dict[str, Any] = {}
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode at the server, with this seed; the connection is one session."""
        super().reset(seed=seed)
        reset_options(ENV_ID, options, ())
        seeded = {} if seed is None else {"seed": seed}
        if self._client is None:
            self._client = self._make()
            self._schema = self._actions()
        found = self._ask(lambda: self._client.reset(**seeded, **self._reset), "reset")
        if isinstance(found, str):
            raise EnvError(f"{self.url} refused to begin an episode: {found}")
        self._over = bool(found.done)
        form = foreign_text(json.dumps(self._schema, ensure_ascii=False))
        return f"{_text(found.observation)}\n\nAnswer with an action, JSON of this schema: {form}", {"source": self.url}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Send an action. Any text is accepted; the server may refuse it."""
        check_action(ENV_ID, action)
        if self._over:
            raise gymnasium.error.ResetNeeded("Cannot call OpenEnvEnv.step before OpenEnvEnv.reset.")
        payload = parse_action(action, self._schema)
        if payload is None:
            return "This is no action: it must be a JSON object of the schema.", 0.0, False, False, {"refused": True}
        found = self._ask(lambda: self._client.step(payload), "step")
        if isinstance(found, str):
            return found, 0.0, False, False, {"refused": True}
        reward = 0.0 if found.reward is None else found.reward
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise EnvError(f"{self.url} returned the reward {reward!r:.60}, which is no finite number.")
        self._over = bool(found.done)
        return _text(found.observation), float(reward), self._over, False, {"refused": False}

    def close(self) -> None:
        """End the session."""
        client, self._client, self._over = self._client, None, True
        if client is not None:
            client.close()

    def _ask(self, call: Any, what: str) -> Any:
        """The server's answer, or the text of its refusal; all else ends the session."""
        try:
            return call()
        except RuntimeError as error:  # how the client says that the server answered with an error
            if str(error).startswith("Server error: "):
                return foreign_text(str(error).removeprefix("Server error: "))
            raise
        except FAILURES as error:
            raise self._lost(f"{self.url} gave no answer to {what}", error) from None

    def _lost(self, what: str, error: BaseException) -> EnvError:
        """End the session; the error to raise."""
        self.close()
        return EnvError(f"{what}: {type(error).__name__}: {foreign_text(str(error), 300)}")

    def _actions(self) -> dict[str, Any]:
        """The schema of actions, with the tools where the server offers some; the client has no call for it."""
        import httpx

        try:
            with httpx.stream("GET", f"{self.url}/schema", timeout=self._timeout) as response:
                response.raise_for_status()
                text = b""
                for part in response.iter_bytes():
                    text += part
                    if len(text) > MAX_SCHEMA:
                        raise ValueError("the schema is too long")
            schema = json.loads(text)["action"]
            if schema.get("title") in _GENERIC:
                listed = self._client.step({"type": "list_tools"}).observation["tools"]
                properties = {"type": {"const": "call_tool"}, "tool_name": {"enum": [tool["name"] for tool in listed]}}
                required = ["type", "tool_name", "arguments"]
                return {"type": "object", "required": required, "properties": properties, "tools": listed}
            return dict(schema)
        except FAILURES as error:
            raise self._lost(f"No server of OpenEnv answers at {self.url}", error) from None


def parse_action(text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The action that a model's text is: its JSON object, also in a fence, or the value of the one required field; None where it is neither."""
    text = replace_surrogates(text).strip()
    if text.startswith("```") and text.endswith("```"):
        text = text.strip("`").partition("\n")[2].strip()
    value: Any = text
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        value = json.loads(replace_surrogates(json.dumps(value, ensure_ascii=False)))
    if isinstance(value, dict):
        return value
    required = schema.get("required", [])
    return {required[0]: value} if len(required) == 1 else None


def _text(observation: Any) -> str:
    shown = {key: value for key, value in dict(observation).items() if value is not None and value != {}}
    alone = next(iter(shown.values())) if len(shown) == 1 else None
    return foreign_text(alone if isinstance(alone, str) else json.dumps(shown, ensure_ascii=False))
