"""Tools around a text environment: what a model may call before it acts.

A turn of calls is a step of the environment. `ToolEnv.step` takes a text, which is the environment's action, or a sequence of
`ToolCall`s, which it runs: the results are the observation, the reward is 0, and the episode continues. A failed call (no JSON, no such tool,
an exception, a timeout, a result that is too long) becomes a text that the model sees.

Tools come from the environment (`tools`, an attribute or property: functions and `Tool`s) and from `agent.tools`: `calculator`,
functions of the user's own, and MCP servers (`envs.mcp`).
"""

from __future__ import annotations

import ast
import contextvars
import inspect
import json
import math
import operator
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import gymnasium
from pydantic import ValidationError, validate_call

from skill_ttrl.config import AgentConfig
from skill_ttrl.config.sampling import McpServer
from skill_ttrl.envs.text_env import close_env
from skill_ttrl.errors import ConfigError, EnvError, did_you_mean, on_error
from skill_ttrl.llm.chat import function_schema
from skill_ttrl.registry import Registry
from skill_ttrl.sanitize import escape
from skill_ttrl.signals import FAILURES
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.types import ToolCall, ToolError, first_problem

MAX_RESULT = 4000
"""Most characters of a result that a model sees."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool:
    """A tool: the schema that the model sees, and the function that a call runs.

    Raises:
        ConfigError: its name is none that models can call.
    """

    schema: Mapping[str, Any]
    """`{"type": "function", "function": {"name": ..., "description": ..., "parameters": JSON schema}}`."""
    call: Callable[[dict[str, Any]], str]
    """Takes the arguments; what it raises becomes a text for the model, except for an `EnvError`, which ends the episode."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"A tool's name is 1 to 64 letters, digits, _ and -, found {self.name[:80]!r}.")

    @property
    def name(self) -> str:
        """By which it is called."""
        return str(self.schema["function"]["name"])


def function_tool(function: Callable[..., Any]) -> Tool:
    """A tool of a typed function, described by its Google docstring. Arguments are converted and checked by its type hints.

    Raises:
        ConfigError: a type hint, or the line of an argument under `Args:`, is not there.
    """
    name = getattr(function, "__name__", repr(function)[:80])
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"The function {name} cannot be a tool: it is async. Write it with def.")
    try:
        schema, checked = function_schema(function), validate_call(function)
    except FAILURES as error:
        raise ConfigError(
            f"The function {name} cannot be a tool: {error} It needs a docstring that says what it does, a type hint for each "
            "argument, and under `Args:` a line for each."
        ) from None

    def call(arguments: dict[str, Any]) -> str:
        found = checked(**arguments)
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)

    return Tool(schema, call)


class ToolEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A text environment whose action may also be a sequence of `ToolCall`s.

    Args:
        env: its own tools (`tools`) come first.
        tools: further ones: as in `agent.tools`, functions, or `Tool`s.
        timeout_s: longest call. A function that has not answered by then is left alone: its thread cannot be ended.

    Raises:
        ConfigError: a tool cannot be made, or two have one name.
        EnvError: an MCP server does not start.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], tools: Sequence[Any] = (), timeout_s: float = 30.0) -> None:
        super().__init__(env)
        self._timeout_s = timeout_s
        self._servers: list[Any] = []
        self._tools: dict[str, Tool] = {}
        self._info: dict[str, Any] = {}
        with on_error(self.abandon):
            for each in (*tools_of(env), *tools):
                for tool in self._made(each):
                    if tool.name in self._tools:
                        raise ConfigError(f"Two tools are called {tool.name!r}. Rename one, or leave it out.")
                    self._tools[tool.name] = tool
        self.schemas = tuple(json.dumps(tool.schema, ensure_ascii=False) for tool in self._tools.values())

    def _made(self, named: Any) -> list[Tool]:
        if isinstance(named, McpServer):
            from skill_ttrl.envs.mcp import McpClient

            self._servers.append(McpClient(named.mcp, self._timeout_s))
            return cast(list[Tool], self._servers[-1].tools())
        found = TOOLS.get(named) if isinstance(named, str) else named
        return [found if isinstance(found, Tool) else function_tool(found)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, with a new session at each MCP server."""
        for server in self._servers:
            server.renew()
        seen, self._info = self.env.reset(seed=seed, options=options)
        return seen, self._info

    def step(self, action: str | Sequence[ToolCall]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action in the environment, or run calls in their order; those that have a result are not run.

        `info["tool_calls"]` has the calls with their results; the rest is the environment's last, without its `answer`.
        """
        if isinstance(action, str):
            answer = self.env.step(action)
            self._info = answer[-1]
            return answer
        for server in self._servers:
            server.ready()  # its start does not count as the time of a call
        done = tuple(call if call.result is not None else self._run(call) for call in action)
        seen = "\n".join(call.result or "" for call in done)
        return seen, 0.0, False, False, {**self._info, "answer": None, "tool_calls": done}

    def _run(self, call: ToolCall) -> ToolCall:
        def failed(error: ToolError, text: str) -> ToolCall:
            return replace(call, error=error, result=escape(f"Error: {text}"[:MAX_RESULT]))

        tool = self._tools.get(call.name)
        if tool is None and call.error != "not_json":
            return failed("no_tool", f"there is no tool {call.name[:80]!r}.{did_you_mean(call.name[:80], self._tools)}")
        try:
            arguments = parse_json(call.arguments or "{}")
        except ValueError:
            arguments = None
        if tool is None or not isinstance(arguments, dict):
            return failed("not_json", "the call is not JSON.")
        try:
            found = _within(self._timeout_s, partial(tool.call, arguments))
        except EnvError:  # the tool is gone, which is not the model's doing
            raise
        except TimeoutError:
            return failed("timeout", f"{call.name} gave no answer within {self._timeout_s:g} s.")
        except ValidationError as error:
            return failed("bad_arguments", f"{call.name}: {first_problem(error)}.")
        except FAILURES as error:
            return failed("failed", str(error) or type(error).__name__)
        if len(found) > MAX_RESULT:
            return replace(call, error="too_long", result=f"{escape(found[:MAX_RESULT])} … (cut)")
        return replace(call, result=escape(found))

    def close(self) -> None:
        """Close the environment and end the MCP servers that it has started."""
        self.abandon()
        close_env(self.env)

    def abandon(self) -> None:
        """The environment hangs and is not used again: end what need not wait for it (`EnvPool.discard`)."""
        for server in self._servers:
            server.close()


def with_tools(env: gymnasium.Env[Any, Any], agent: AgentConfig) -> gymnasium.Env[Any, Any]:
    """The environment with its own tools and those of `agent.tools`; as it is where there are none. Raises as `ToolEnv`."""
    with on_error(partial(close_env, env)):
        return ToolEnv(env, agent.tools, agent.tool_timeout_s) if agent.tools or tools_of(env) else env


def tools_of(env: gymnasium.Env[Any, Any]) -> tuple[Any, ...]:
    """The tools that an environment brings: functions and `Tool`s."""
    return tuple(getattr(env.unwrapped, "tools", ()))


def _within(seconds: float, work: Callable[[], str]) -> str:
    """What `work` returns or raises, in a thread that is left alone when its time is over.

    Raises:
        TimeoutError: it has not returned by then.
    """
    answer: Future[str] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            answer.set_result(context.run(work))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return answer.result(seconds)


TOOLS: Registry[Any] = Registry("tool")
MAX_EXPRESSION = 200
MAX_DIGITS = 100
_SIGNS = str.maketrans({"×": "*", "÷": "/", "−": "-", "^": "**", "\u00a0": " "})
_ARITHMETIC = re.compile(r"[0-9.+\-*/%() ]+")
_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


@TOOLS.register("calculator")
def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, such as 12*(3+4).
    """
    text = expression.translate(_SIGNS).strip()
    if len(text) > MAX_EXPRESSION or not _ARITHMETIC.fullmatch(text):
        raise ValueError("not arithmetic")
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise ValueError("not arithmetic") from None
    except ArithmeticError as error:
        raise ValueError(str(error)) from None
    return str(int(value)) if value == int(value) else f"{value:.10g}"


def _value(node: ast.AST) -> Any:
    found: Any
    if isinstance(node, ast.Constant):
        found = node.value
    elif isinstance(node, ast.UnaryOp):
        found = _OPERATIONS[type(node.op)](_value(node.operand))
    elif not isinstance(node, ast.BinOp):
        raise TypeError("no arithmetic")
    else:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) * math.log10(abs(left) + 1) > MAX_DIGITS:
            raise OverflowError("the result is too large")
        exact = isinstance(node.op, ast.Div) and isinstance(left, int) and isinstance(right, int) and right
        found = left // right if exact and left % right == 0 else _OPERATIONS[type(node.op)](left, right)
    if isinstance(found, complex) or not math.isfinite(found) or abs(found) > 10**MAX_DIGITS:
        raise OverflowError("the result is too large, or no real number")
    return found
