"""The text of a config: YAML 1.2's core schema, or JSON.

PyYAML reads YAML 1.1, where `1e-6` is text, `no` is false, `12:30` is 750 and a key given twice counts silently once. A
config must mean what it looks like, so only null, true, false and decimal numbers are more than text here.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from skill_ttrl.errors import ConfigError

_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")
_DIGITS = list("-+.0123456789")


class _Loader(yaml.SafeLoader):
    """Reads the core schema and refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that the loader would read as something else."""


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), _DIGITS)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _DIGITS)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _DIGITS)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # rare line breaks become spaces in every style but the double-quoted one
    style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def read_mapping(text: str, where: str) -> dict[str, Any]:
    """Keys and values of a YAML or JSON text; `where` names it in messages.

    Raises:
        ConfigError: it is neither, holds a key twice, or is not a mapping.
    """
    try:
        data = _read_json(text) or yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{where} must hold keys and values, found {type(data).__name__}.")
    return {str(key): value for key, value in data.items()}


def read_value(text: str) -> Any:
    """One value: null, true, false, a number, or a list or mapping in brackets; all else is the text as it stands."""
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):
        return value if text.startswith(("'", '"')) else text
    return text if isinstance(value, list | dict) and not text.startswith(("[", "{")) else value


def write_yaml(data: Any) -> str:
    """YAML that `read_mapping` reads back as the same data, keys in their order."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def _read_json(text: str) -> Any:
    """The value of a JSON text, None where it is none: YAML knows neither its tabs nor its pairs of surrogates."""
    try:
        return json.loads(text) if text.lstrip().startswith("{") else None
    except json.JSONDecodeError:
        return None
