"""JSON answers: asked for as the server can, read whatever stands around them, and asked for again with what was wrong."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from skill_ttrl.config import EndpointConfig

T = TypeVar("T", bound=BaseModel)

MOST_STARTS = 64
"""Places of an answer at which JSON is looked for."""
LONGEST_PROBLEM = 800
"""Most characters of a description of an answer's errors."""
# One way to read it: \s* would take n² for n line breaks.
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)


def response_format(config: EndpointConfig, schema: type[BaseModel]) -> dict[str, Any] | None:
    """The field of a request that asks for the schema; None where the prompt alone asks."""
    if config.structured == "none":
        return None
    if config.structured == "json_object":
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": schema.__name__, "strict": True, "schema": strict_schema(schema)},
    }


def instruction(schema: type[BaseModel]) -> str:
    """Prompt text that requires an answer in the form of the schema."""
    wanted = json.dumps(schema.model_json_schema(), ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It must fit this JSON schema:\n{wanted}"


def repair(problem: str) -> str:
    """Message to a model whose answer could not be used."""
    return f"That answer cannot be used: {problem}\nAnswer again, with the corrected JSON object and nothing else."


def strict_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """The schema as OpenAI's strict mode wants it: every property required, no others allowed, no defaults."""
    return dict(_strict(schema.model_json_schema()))


def read_json(text: str, schema: type[T]) -> tuple[T | None, str]:
    """The first object in a text that fits the schema, and where there is none what is wrong.

    Fenced blocks come first, then the text itself from each brace on. A schema with `from_list` is handed lists too, where
    there is no object: one of objects, from a bracket that stands before every brace to where it ends. Nothing is evaluated.
    """
    problem = ""
    pieces = [*_FENCE.findall(text), text]
    for piece in pieces:
        for value in _objects(piece):
            try:
                return schema.model_validate(value), ""
            except ValidationError as error:
                problem = problem or _explained(error)  # the outermost object is the one that was meant
    if getattr(schema, "from_list", False):
        for value in (each for piece in pieces for each in _lists(piece)):
            try:
                return schema.model_validate(value), ""
            except ValidationError as error:
                problem = _explained(error)
    return None, problem or "there is no JSON object in it."


def _objects(text: str) -> list[Any]:
    decoder, found, at = json.JSONDecoder(), [], 0
    for _ in range(MOST_STARTS):
        at = text.find("{", at)
        if at < 0:
            break
        try:
            value, at = decoder.raw_decode(text, at)
            found.append(value)
        except (ValueError, RecursionError):
            at += 1
    return found


def _lists(text: str) -> list[Any]:
    """Lists of objects that stand in no object: of an answer that was cut off, no inner list is taken for the whole."""
    decoder, found, first_brace = json.JSONDecoder(), [], text.find("{")
    starts = [match.start() for match in re.finditer(r"\[", text[: first_brace if first_brace >= 0 else len(text)])]
    for at in starts[:MOST_STARTS]:
        try:
            value, _ = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if all(isinstance(each, dict) for each in value):
            found.append(value)
    return found


def _explained(error: ValidationError) -> str:
    problems = [f"{'.'.join(map(str, each['loc'])) or 'the object'}: {each['msg']}" for each in error.errors()]
    return "; ".join(problems)[:LONGEST_PROBLEM] + "."


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    inner = {
        key: {name: _strict(each) for name, each in value.items()} if key in ("properties", "$defs") else _strict(value)
        for key, value in node.items()
        if key != "default" or isinstance(value, dict)
    }
    if isinstance(node.get("properties"), dict):
        inner["additionalProperties"] = False
        inner["required"] = list(node["properties"])
    return inner
