"""Read a config from YAML, JSON, a shipped recipe or a mapping, apply overrides, and list every mistake in it at once.

A file states only what differs from the defaults. `--set rl.learning_rate=1e-6` overrides single keys. An unknown key is an
error that names the closest known one. The resolved config is saved with the run. Secrets stay in the environment.
"""

from __future__ import annotations

import copy
import importlib.resources
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from skill_ttrl.config.data import NamedSource
from skill_ttrl.config.schema import SkillTTRLConfig
from skill_ttrl.config.section import explain_problem, read_mapping, read_value, section_at
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.trust import check_trusted

MAY_HOLD_A_KEY = {"base_url", "api_key_env", "servers", "extra_body"}
"""Fields whose value no message shows: a key may have been put there by mistake."""


class InvalidConfigError(ConfigError):
    """Settings that no config can have: all that are found at once.

    Args:
        where: names the config.
        problems: a line for each.
    """

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        super().__init__("\n".join([f"{where} has {len(problems)} problem{'s' * (len(problems) > 1)}:", *problems]))


def load_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    trust: bool = False,
    without: Collection[str] = (),
) -> SkillTTRLConfig:
    """Read a config from a file (YAML or JSON), a shipped recipe's name, or a mapping, then apply `key=value` overrides.

    Args:
        source: where the config is; a run folder stands for its `config.yaml`.
        overrides: changes, as for `--set`.
        trust: read a run's config whoever wrote it, as one that is shown and not obeyed may be; nothing that it names is imported.
        without: keys of the section `rl` that count as if the source did not state them; overrides still may.

    Raises:
        ConfigError: no such file or recipe, not YAML, an unknown key, or a value out of its range (`InvalidConfigError`).
        TrustError: another user's run, with settings that run code, send secrets or write elsewhere.
    """
    data, text, where = read_source(source)
    if isinstance(source, Mapping) and overrides and not source:
        where = "what --set says"
    for key in without:
        data["rl"].pop(key)
    for override in overrides:
        _forget_other_kind(data, override)
    for override in overrides:
        apply_override(data, override)
    try:
        config = SkillTTRLConfig.model_validate(data)
    except ValidationError as error:
        recipe = str(source) if where.startswith("recipe ") else "quickstart"
        raise InvalidConfigError(where, [*_problems(error, recipe)]) from None
    if not isinstance(source, Mapping) and _is_of_run(source, where):
        chosen = (".".join(parse_override(each)[0]) for each in overrides)
        check_trusted(Path(where), text, config.stated(), chosen, shown=trust)
    return config


def read_source(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str, str]:
    """Read what a config's source states, unchecked; its text, and its name in messages.

    Raises:
        ConfigError: no such file or recipe, not YAML, or empty.
    """
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source)), "", "the given mapping"
    text, where = read_config_text(source)
    data = read_mapping(text, where)
    if not data:
        raise ConfigError(
            f"{where} is empty. To run a recipe, give its name. To start from one: skillttrl configs quickstart."
        )
    return data, text, where


def apply_override(data: dict[str, Any], text: str) -> None:
    """Set the key that an override names, in plain data."""
    keys, value = parse_override(text)
    node = data
    for place, key in enumerate(keys[:-1], start=1):
        child = node.get(key)
        if not isinstance(child, dict):
            # The short form of a mapping: data.train=FILE of a source, vote.strategy=sequential of what has options of its own.
            short = "path" if section_at(SkillTTRLConfig, keys[:place]) else "type"
            child = node[key] = {short: child} if isinstance(child, str) else {}
        node = child
    node[keys[-1]] = value


def recipe_names() -> list[str]:
    """Names of the shipped recipes, sorted."""
    folder = importlib.resources.files("skill_ttrl.configs")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_config_text(source: str | Path) -> tuple[str, str]:
    """Text of a config file or shipped recipe, and what to call it in messages.

    A path is meant where the source has a separator or a `.yaml`, `.yml` or `.json` ending; a bare name is a recipe's.
    """
    name = str(source)
    if Path(name).suffix in {".yaml", ".yml", ".json"} or "/" in name or isinstance(source, Path):
        path = Path(name)
        if path.is_dir() and (path / "config.yaml").is_file():
            path = path / "config.yaml"
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except FileNotFoundError:
            raise ConfigError(f"No config file at {path}.{_recipe_hint(path.stem)}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"Cannot read the config {path}: {error}.") from None
    if name not in recipe_names():
        raise ConfigError(f"Unknown recipe {name!r}.{_recipe_hint(name)} A file of your own is given by its path.")
    resource = importlib.resources.files("skill_ttrl.configs").joinpath(f"{name}.yaml")
    return resource.read_text(encoding="utf-8"), f"recipe {name!r}"


def _is_of_run(source: str | Path, where: str) -> bool:
    """True if the config's file lies in a run folder or was named by its folder."""
    file = Path(where)
    return file.is_file() and (Path(source).is_dir() or (file.parent / "run.json").exists())


def parse_override(text: str) -> tuple[list[str], Any]:
    """`a.b=c` as (["a", "b"], value): `1e-6` is a number, `null` None, `[a, b]` a list; what the field keeps as text is text.

    Raises:
        ConfigError: there is no `=`, or a key is empty.
    """
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"Cannot read the override {text!r}. It is written key=value, e.g. rl.learning_rate=1e-6.")
    value = value.strip()
    parsed = read_value(value)
    if isinstance(parsed, bool | int | float) and _takes_text(keys):
        return keys, value
    return keys, parsed


def _takes_text(keys: Sequence[str]) -> bool:
    """Check if the field at `keys` holds text: `name=1e3` is a name then."""
    section = section_at(SkillTTRLConfig, keys[:-1])
    field = section.model_fields.get(keys[-1]) if section else None
    if field is None:
        return False
    kinds = get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else (field.annotation,)
    return any(kind is str or get_origin(kind) is Literal for kind in kinds)


def _forget_other_kind(data: dict[str, Any], text: str) -> None:
    """Leave out split and options of the file's source, where an override names one of another kind (`data.train.path=mine.jsonl`)."""
    keys, value = parse_override(text)
    section = section_at(SkillTTRLConfig, keys[:-1])
    if keys[-1] != "path" or section is None or not issubclass(section, NamedSource):
        return
    node: Any = data
    for key in keys[:-1]:
        node = node.get(key) if isinstance(node, dict) else None
    if isinstance(node, dict) and _kind(node.get("path")) != _kind(value):
        node.pop("split", None)
        node.pop("options", None)


def _kind(path: object) -> str:
    """The kind of source that a path names: of files, of the hub, or generated."""
    return next((start for start in ("hf:", "synthetic:") if str(path).startswith(start)), "file")


def _recipe_hint(name: str) -> str:
    return did_you_mean(name, recipe_names()) + " List them with: skillttrl configs."


def _problems(error: ValidationError, recipe: str) -> Iterator[str]:
    """One line for each mistake that pydantic has found."""
    for problem in error.errors():
        path = ".".join(str(part)[:80] for part in problem["loc"])
        shows_value = not {*problem["loc"]} & MAY_HOLD_A_KEY
        for text in explain_problem(problem, SkillTTRLConfig, shows_value=shows_value, recipe=recipe):
            yield f"  {path}: {text}" if path else f"  {text}"
