"""Identity of a run: the schema and versions it was written with, and the config it belongs to."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import uuid
from functools import cache
from pathlib import Path
from typing import Any

from skill_ttrl.config import ROLES, SkillTTRLConfig
from skill_ttrl.errors import RunFolderError
from skill_ttrl.storage.append_log import flatten
from skill_ttrl.storage.jsonl import parse_json

SCHEMA_VERSION = 2
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "tokenizers", "gymnasium", "datasets", "numpy", "pydantic")
_ADDRESS_AND_LIMITS = (
    "base_url",  # a server may move; its model's name says who answers
    *("api_key_env", "timeout", "max_concurrency", "max_retries", "price_in", "price_out"),
)
NO_EFFECT_ON_RESULTS = (
    "name",
    "run",
    "verified",
    "requires",
    "sft.save_steps",
    "rl.save_steps",
    "sft.micro_batch_size",
    "rl.micro_batch_size",
    "rl.micro_batch_tokens",
    "rollout.max_batch_size",
    "skills.chroma_server",
    "skills.index",
    "model.gradient_checkpointing",
    "model.packing",
    "runtime.nproc",
    "runtime.parallel",
    "runtime.reshard_after_forward",
    "runtime.param_offload",
    "runtime.optimizer_offload",
    "scale",
    "optimize.workers",
    "command.timeout",
    "endpoints.max_cost",
    "endpoints.max_total_tokens",
    "endpoints.max_requests",
    *(
        f"{place}.{key}"
        for place in ("endpoints", *(f"endpoints.roles.{role}" for role in ROLES))
        for key in _ADDRESS_AND_LIMITS
    ),
)
"""Config keys (or sections) in which a resumed run may differ from its start: they change what is kept, memory, how many
processes train, where episodes run, where a server is or how long it is waited for."""


def describe_environment() -> dict[str, Any]:
    """Return the content of `run.json`: schema, an id drawn for this run, versions and platform.

    Excludes the user, the host name and the command.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "id": uuid.uuid4().hex[:12],
        "skill_ttrl": _version("skill-ttrl") or "not installed",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
    }


def read_run_json(path: str | Path) -> dict[str, Any]:
    """The content of a run's `run.json`.

    Raises:
        RunFolderError: no such folder, not a run folder, not readable, or written under another schema version.
    """
    path = Path(path)
    if not path.joinpath("run.json").is_file():
        if path.is_dir():
            found = summarize_names(sorted(entry.name for entry in path.iterdir()))
            raise RunFolderError(f"{path} is not a run folder: it has no run.json (found: {found}).")
        if path.exists():
            raise RunFolderError(f"{path} is a file, not a run folder. Give the folder that holds run.json.")
        raise RunFolderError(f"There is no run folder at {path}. Start a run with: skillttrl train.")
    try:
        data: dict[str, Any] = parse_json(path.joinpath("run.json").read_text(encoding="utf-8"))
        version = data["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else error
        raise RunFolderError(
            f"Cannot read {path / 'run.json'}, which is damaged or not of a run: {problem}. Restore the file from a copy; its checkpoints "
            "are models of their own."
        ) from None
    if version != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} has schema version {version!r}, written by skill-ttrl {data.get('skill_ttrl', 'unknown')}; this "
            f"version reads schema {SCHEMA_VERSION}. Use the skill-ttrl that wrote it, or choose another --output."
        )
    return data


def config_differences(saved: SkillTTRLConfig, given: SkillTTRLConfig) -> list[str]:
    """Keys whose values change results and differ, as `"rl.learning_rate 0.0003 there, 0.0001 here"`.

    A revision that `saved` has resolved and `given` leaves open is no difference.
    """
    there, here = (flatten(config.model_dump(mode="json"), lists=False) for config in (saved, given))
    differences = []
    for key in sorted(there.keys() | here.keys()):
        old, new = there.get(key), here.get(key)
        ignored = any(key == name or key.startswith(name + ".") for name in NO_EFFECT_ON_RESULTS)
        resolved = key.endswith("revision") and new is None
        if old != new and not ignored and not resolved:
            differences.append(f"{key} {json.dumps(old)} there, {json.dumps(new)} here")
    return differences


def summarize_names(names: list[str]) -> str:
    """The first few names, for a message."""
    return (", ".join(names[:5]) + (", ..." if len(names) > 5 else "")) or "nothing"


@cache
def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
