"""`skillttrl init my_env` and `init problems`: a small environment, or a small set of problems, that already trains, to start from.

What is written is text from `templates/`: the environment, a config, a test, and demonstrations for the cold start, or with
`--turns` a scripted agent that plays them; problems come with a config, a prompt and a README.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import itertools
import json
import keyword
import os
import random
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from string import Template

from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.types import derive_seed

# Names that the template of the environment uses itself.
_TAKEN_CLASS_NAMES = {"Any", "ClassVar", "Guide", "Mapping", "Sequence", "Task", "TextEnv"}
_DEMONSTRATIONS = 1000
_HELD_OUT = 192
"""Numbers that the template keeps for its train and test splits, the first of its order."""
_NOISE = 0.15
"""Chance that a digit of a demonstrated answer is replaced: the model is to half know the game."""


def init_project(name: str, folder: str | Path = ".", *, turns: bool = False) -> list[Path]:
    """Write `<name>.py`, `<name>.yaml`, `test_<name>.py` and, for one turn, `<name>_demos.jsonl`: all of them, or none.

    Args:
        name: a Python module's name, e.g. `my_env`; the class is then `MyEnv` and its id `my_env:MyEnv-v0`.
        folder: where; made if it is not there.
        turns: an environment of several turns, whose demonstrations a scripted agent plays.

    Returns:
        The files.

    Raises:
        ConfigError: the name is no usable module name.
        RunFolderError: a file is already there, or the folder cannot be written.
    """
    class_name = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    usable = re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and not keyword.iskeyword(name) and class_name.isidentifier()
    if not usable or class_name in _TAKEN_CLASS_NAMES:
        raise ConfigError(
            f"{name!r} cannot name a new environment. Use a Python module name without folder or suffix, e.g. my_env."
        )
    folder, spec = Path(folder), importlib.util.find_spec(name)
    if spec is not None and (spec.origin is None or Path(spec.origin).resolve().parent != folder.resolve()):
        raise ConfigError(  # the new file would be imported in its place, everywhere in that folder
            f"{name!r} is the name of an existing module ({spec.origin}). Choose another, e.g. my_{name}."
        )
    words, kind = {"name": name, "class_name": class_name}, "_turns" if turns else ""
    texts = {
        folder / f"{name}.py": _template(f"env{kind}.py", words),
        folder / f"{name}.yaml": _template(f"config{kind}.yaml", words),
        folder / f"test_{name}.py": _template(f"test{kind}.py", words),
    }
    if not turns:
        texts[folder / f"{name}_demos.jsonl"] = _demonstrations()
    return _write(folder, texts, "Choose another name or --output.")


PROBLEMS = "problems"
"""The name that `init` takes for a set of problems instead of an environment."""


def init_problems(folder: str | Path = ".") -> list[Path]:
    """Write problems to learn from and held-out ones, a config that trains on them, its prompt, and a README: all of them, or none.

    Args:
        folder: Where; made if it is not there.

    Returns:
        The files.

    Raises:
        RunFolderError: A file is already there, or the folder cannot be written.
    """
    files = importlib.resources.files("skill_ttrl.envs").joinpath("templates", PROBLEMS).iterdir()
    texts = {
        Path(folder) / file.name: file.read_text(encoding="utf-8") for file in sorted(files, key=lambda each: each.name)
    }
    return _write(Path(folder), texts, "Choose another folder: --output FOLDER.")


def _write(folder: Path, texts: Mapping[Path, str], advice: str) -> list[Path]:
    """Write all files, or none."""
    if present := [path.name for path in texts if path.exists()]:
        raise RunFolderError(f"{folder} already has {', '.join(present)}. {advice}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # All are written to a folder of their own first: a full disk leaves no half-written file.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".init-") as scratch:
            for path, text in texts.items():
                (Path(scratch) / path.name).write_text(text, encoding="utf-8")
            for path in texts:
                os.replace(Path(scratch) / path.name, path)
    except OSError as error:
        raise RunFolderError(f"Cannot write into {folder}: {error.strerror or error}. No file was changed.") from None
    return list(texts)


def _template(file: str, words: Mapping[str, str]) -> str:
    text = importlib.resources.files("skill_ttrl.envs").joinpath("templates", f"{file}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(words)


def _demonstrations() -> str:
    """One JSON object a line. The numbers come in the template's order, after those it keeps for train and test."""
    numbers = ["".join(digits) for digits in itertools.product("123456789", repeat=4)]
    random.Random(0).shuffle(numbers)
    lines = []
    for number in numbers[_HELD_OUT : _HELD_OUT + _DEMONSTRATIONS]:
        noise = random.Random(derive_seed(0, "demonstration", number))
        digits = [noise.choice("123456789") if noise.random() < _NOISE else digit for digit in reversed(number)]
        lines.append(json.dumps({"prompt": f"Reverse {number}.", "response": f"<answer>{''.join(digits)}</answer>"}))
    return "\n".join(lines) + "\n"
