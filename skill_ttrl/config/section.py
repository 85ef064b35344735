"""The base of every section of a config, and its text: YAML 1.2's core schema, or JSON.

PyYAML reads YAML 1.1, where `1e-6` is text, `no` is false, `12:30` is 750 and a key given twice counts silently once. A
config must mean what it looks like, so only null, true, false and decimal numbers are more than text here. Aliases, tags and
deep nesting are refused: a few lines of them can stand for gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field

from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.storage.jsonl import parse_json

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay rate of an optimizer's running mean."""


def name_and_options(given: str | Mapping[str, Any], default: str) -> tuple[str, dict[str, Any]]:
    """Split a name, or `{type: NAME, ...}`, into name and options; without a type the name is `default`."""
    options = {"type": given} if isinstance(given, str) else dict(given)
    return str(options.pop("type", default)), options


class Section(BaseModel):
    """Base of every section: unknown keys are errors, assignments are validated, docstrings are help texts."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


OPTIONS_OF = {"vote.options": "vote.strategy", "rl.stop_options": "rl.stop_rule"}
"""Keys that older configs have, and where their values stand now."""
MAX_SHOWN = 200
"""Characters of a wrong value that a message shows."""


def explain_problem(
    problem: Mapping[str, Any], root: type[BaseModel], *, shows_value: bool = True, recipe: str = "quickstart"
) -> list[str]:
    """Put one of pydantic's errors into sentences, without the name of the key that they are about.

    Args:
        problem: an entry of `ValidationError.errors()`.
        root: the section that was validated.
        shows_value: say what was found; not where it may be a secret.
        recipe: a shipped config, whose settings the message says how to list.
    """
    place, value, kind = problem["loc"], problem["input"], problem["type"]
    found = "" if not shows_value or isinstance(value, dict | BaseModel) else f" (found {_shortened(value)})"
    if kind == "extra_forbidden":
        if holder := OPTIONS_OF.get(".".join(map(str, place))):
            return [f"unknown key. Options stand with the name: {holder}={{type: NAME, OPTION: VALUE}}."]
        section = section_at(root, place[:-1])
        absent = f" --set '{place[0]}={{}}'" if _is_optional(root, place[:1]) else ""
        known = section.model_fields if section else ()
        return [f"unknown key.{did_you_mean(str(place[-1])[:80], known, f'skillttrl configs {recipe} --full{absent}')}"]
    if kind == "list_type":
        return [f"must be a list in brackets, such as [a, b]{found}."]
    if kind == "literal_error" and isinstance(value, str):
        choices = re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
        return [f"unknown value {value[:80]!r}.{did_you_mean(value[:80], choices)}"]
    if kind == "model_type" and (section := section_at(root, place)):
        none = ", or null for none" if place and _is_optional(root, place) else ""
        return [f"expected a section: write {{key: value}}{none}{found}. Its keys: {', '.join(section.model_fields)}."]
    if kind == "dict_type":
        return [f"expected a mapping: write {{name: value}}{found}."]
    words = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return [f"{text}{found}." for text in words.split("\n")]


def section_at(root: type[BaseModel], place: Sequence[str | int]) -> type[BaseModel] | None:
    """The section that the keys lead to from `root`; None where they lead elsewhere."""
    section, named = root, False
    for part in place:
        if isinstance(part, int) or named:  # in a list of sections, or a mapping of them by name
            named = False
            continue
        field = section.model_fields.get(str(part))
        candidates = (field.annotation, *get_args(field.annotation)) if field else ()
        inner = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return None
        section, named = inner[0], field is not None and get_origin(field.annotation) is dict
    return section


def _is_optional(root: type[BaseModel], place: Sequence[str | int]) -> bool:
    holder = section_at(root, place[:-1])
    field = holder.model_fields.get(str(place[-1])) if holder else None
    return field is not None and type(None) in get_args(field.annotation)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


try:  # the parser in C takes a tenth of the time; PyYAML's wheels have it, a build of one's own may not
    from yaml import CSafeLoader as Parser
except ImportError:
    from yaml import SafeLoader as Parser  # type: ignore[assignment]


_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGITS = list("-+.0123456789")
MAX_DEPTH = 40
"""Sections in sections; a config has five."""
MAX_DIGITS = 300
"""Of a whole number; Python reads no more than 4,300."""


class _Loader(Parser):
    """Reads the core schema, and refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal("a key is a single word, not a list or a mapping", key.start_mark)
            if key.value in seen:
                raise _refusal(f"the key {key.value[:80]!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """A decimal number, which the resolver has recognised."""
        if len(node.value) > MAX_DIGITS:
            raise _refusal(f"a number of {len(node.value):,} digits", node.start_mark)
        return int(node.value)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that the loader would read as something else."""


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), _DIGITS)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _DIGITS)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _DIGITS)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # rare line breaks become spaces in every style but the double-quoted one
    style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def read_mapping(text: str, where: str) -> dict[str, Any]:
    """Keys and values of a YAML or JSON text; `where` names it in messages.

    Raises:
        ConfigError: it is neither, holds a key twice, is nested too deeply, has aliases or tags, or is not a mapping.
    """
    try:
        data = _read_json(text) or _load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is neither YAML nor JSON: {_reason(error, text)}.") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{where} must contain keys and values, found {type(data).__name__}.")
    return {str(key): value for key, value in data.items()}


def read_value(text: str) -> Any:
    """One value: null, true, false, a number, or a list or mapping in brackets; all else is the text as it stands."""
    try:
        value = _load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):
        return value if text.startswith(("'", '"')) else text
    return text if isinstance(value, list | dict) and not text.startswith(("[", "{")) else value


def write_yaml(data: Any) -> str:
    """YAML that `read_mapping` reads back as the same data, keys in their order."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def _load(text: str) -> Any:
    """The value of a YAML text; aliases, tags and deep nesting are refused before anything is built."""
    if lone := _SURROGATE.search(text):
        at = len(text[: lone.start()].encode())
        raise yaml.reader.ReaderError("", at, ord(lone[0]), "unicode", "not allowed")
    depth = 0
    event: Any
    for event in yaml.parse(text, Parser):
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(f"the alias *{event.anchor}: write the value out", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise _refusal(f"the tag {event.tag[:60]}: write the value without it", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _refusal(f"more than {MAX_DEPTH} levels of nesting", event.start_mark)
    return yaml.load(text, _Loader)


def _read_json(text: str) -> Any:
    """The value of a JSON text, None where it is none: YAML knows neither its tabs nor its pairs of surrogates."""
    try:
        return parse_json(text) if text.lstrip().startswith("{") else None
    except ValueError:  # no JSON, or a number of thousands of digits; YAML's reader names the place
        return None


def _refusal(reason: str, place: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, reason, place)


def _reason(error: yaml.YAMLError, text: str) -> str:
    """Description of the error, with its line."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.encode(errors="surrogatepass")[: error.position].count(b"\n") + 1
        return f"line {line}: the character #x{error.character:04x} is not allowed"
    assert isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None
    said = " ".join(part for part in (error.context, error.problem) if part)
    return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {said}"
