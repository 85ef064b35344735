"""Sections of the first Skill-TTRL's config that have other names here, as views of ours: `config.algorithm.clip_ratio` is `rl.loss.clip_ratio`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from skill_ttrl.config.section import section_at
from skill_ttrl.config.seed_keys import FIRST_SKILL_TTRL
from skill_ttrl.errors import ConfigError, did_you_mean


class SeedSection:
    """View of a config by the keys of one section of the first Skill-TTRL (`seed_keys.FIRST_SKILL_TTRL`). Holds nothing itself."""

    def __init__(self, config: BaseModel, section: str) -> None:
        object.__setattr__(self, "_config", config)
        object.__setattr__(self, "_section", section)

    def __getattr__(self, name: str) -> Any:
        key = FIRST_SKILL_TTRL.get(f"{self._section}.{name}")
        if key is None or not key.paths:
            raise AttributeError(f"config.{self._section} has no {name!r}.{did_you_mean(name, self._names())}")
        value = _value(self._config, key.paths[0])
        return value if key.read is None else key.read(value)

    def __setattr__(self, name: str, value: Any) -> None:
        key = FIRST_SKILL_TTRL.get(f"{self._section}.{name}")
        if key is None:
            raise ConfigError(f"config.{self._section} has no {name!r}.{did_you_mean(name, self._names())}")
        if not key.paths:
            raise ConfigError(f"config.{self._section}.{name} has no counterpart here. {key.note}.")
        for path, ours in key.values(value).items():
            _set(self._config, path, ours)

    def __dir__(self) -> list[str]:
        return self._names()

    def _names(self) -> list[str]:
        start = f"{self._section}."
        return [
            path.removeprefix(start) for path, key in FIRST_SKILL_TTRL.items() if path.startswith(start) and key.paths
        ]


class SeedSections:
    """The views, for the config."""

    @property
    def algorithm(self) -> SeedSection:
        """Alias of settings in `rl`."""
        return SeedSection(self, "algorithm")  # type: ignore[arg-type]

    @property
    def skill_bank(self) -> SeedSection:
        """Alias of settings in `skills`; setting one adds that section where there is none."""
        return SeedSection(self, "skill_bank")  # type: ignore[arg-type]

    @property
    def merger(self) -> SeedSection:
        """Alias of settings in `endpoints.roles.merger`; setting the model makes it `skills.merger` too."""
        return SeedSection(self, "merger")  # type: ignore[arg-type]

    @property
    def trainer(self) -> SeedSection:
        """Alias of settings in `rl`, `seed` and `runtime`."""
        return SeedSection(self, "trainer")  # type: ignore[arg-type]


def _value(config: BaseModel, path: str) -> Any:
    """The value of a setting; its default where its section is None."""
    node: Any = config
    for at, name in enumerate(keys := path.split(".")):
        if node is None:
            section = section_at(type(config), keys[:at])
            field = section.model_fields.get(name) if section else None
            node = None if field is None or field.is_required() else field.get_default(call_default_factory=True)
        else:
            node = node.get(name) if isinstance(node, dict) else getattr(node, name)
    return node


def _set(config: BaseModel, path: str, value: Any) -> None:
    """Set a setting, checked as any other; a section that is None is made."""
    *above, last = path.split(".")
    node: Any = config
    for at, name in enumerate(above):
        inner = getattr(node, name)
        if isinstance(inner, dict):  # options, or sections by name
            key, *rest = (*above[at + 1 :], last)
            own = inner[key].model_dump(exclude_unset=True) if rest and key in inner else {}
            setattr(node, name, {**inner, key: {**own, rest[0]: value} if rest else value})
            return
        if inner is None:
            section = section_at(type(config), above[: at + 1])
            assert section is not None
            setattr(
                node,
                name,
                {last: value} if any(each.is_required() for each in section.model_fields.values()) else section(),
            )
            inner = getattr(node, name)
        node = inner
    setattr(node, last, value)
