"""Pin what a run reads: commits of hub models and data sets, hashes of files, written into the run's own config."""

from __future__ import annotations

import hashlib
from pathlib import Path

from skill_ttrl.agents.document import document_revision
from skill_ttrl.config import BUILTIN, ModelConfig, SkillsConfig, SkillTTRLConfig, Source
from skill_ttrl.config.rl import COPY
from skill_ttrl.data.records import FILE_HASH, read_source
from skill_ttrl.errors import DataError, ModelError
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.llm.models.gguf import is_gguf
from skill_ttrl.skills.embedders import hub_commit
from skill_ttrl.voting.rewards import MODEL_REWARD

FOLDER_DIGEST = "blocks:"
_BLOCKS, _BLOCK = 64, 1 << 20
"""A weight file is recognised by its size and so many blocks of so many bytes, spread over it evenly."""


def pin_revisions(config: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config with every revision that can be known filled in.

    Raises:
        DataError: a data set cannot be read, or a file's content is not the pinned one.
        ModelError: a hub model cannot be found, or a reward model is not the pinned one.
    """
    pinned, found = pin_policy(config), dict[str, str | None]()
    if config.reinforces and config.rl.reward.startswith(MODEL_REWARD):
        name = config.rl.reward.removeprefix(MODEL_REWARD)
        found[name] = _reward_revision(name, config.data.revisions.get(name))
    critic = pinned.rl.critic if config.reinforces else None
    if critic is not None and critic.model is not None and critic.model != COPY:
        asked = config.data.revisions.get(critic.model)
        found[critic.model] = _model_revision(ModelConfig(path=critic.model, revision=asked))
    found |= {source.name: data_revision(source) for source in _sources(config)}
    pinned.data.revisions |= {name: revision for name, revision in found.items() if revision is not None}
    return pinned


def pin_policy(config: SkillTTRLConfig, *, use_bank: bool = True) -> SkillTTRLConfig:
    """The config with the revisions of its model, its document and, where `use_bank`, of the embedder of its skills.

    Raises:
        ModelError: a hub model cannot be found.
        DocumentError: the document cannot be read, or is not the pinned one.
    """
    pinned = config.model_copy(deep=True)
    if (document := config.agent.document) is not None:
        pinned.data.revisions[document] = document_revision(document, config.data.revisions.get(document))
    if not backend_facts(config).remote:
        pinned.model.revision = _model_revision(config.model)
    if use_bank and pinned.skills is not None:
        pinned.skills.embedder_revision = _embedder_revision(pinned.skills)
    return pinned


def take_revisions(config: SkillTTRLConfig, saved: SkillTTRLConfig) -> SkillTTRLConfig:
    """The config with the revisions that `saved`, the same config at the start of its run, has pinned."""
    taken = config.model_copy(deep=True)
    taken.model.revision = saved.model.revision
    if taken.skills is not None and saved.skills is not None:
        taken.skills.embedder_revision = saved.skills.embedder_revision
    taken.data.revisions = {**saved.data.revisions}
    return taken


def _sources(config: SkillTTRLConfig) -> list[Source]:
    gate = None if config.skills is None or config.skills.gate is None else config.data.source(config.skills.gate.data)
    every = (config.train_source, config.eval_source, config.demonstration_source, gate)
    return [source for source in every if source is not None]


def _model_revision(model: ModelConfig) -> str | None:
    if model.path == BUILTIN or is_gguf(model.path) or Path(model.path).is_dir():
        return model.revision
    from skill_ttrl.llm.models.load import hub_revision

    return hub_revision(model)


def _reward_revision(path: str, asked: str | None) -> str | None:
    """The exact version of a reward model: the commit of a hub's, a digest of a folder's files."""
    if not Path(path).is_dir():
        try:
            return _model_revision(ModelConfig(path=path, revision=asked))
        except ModelError as error:
            raise ModelError(f"Cannot load the reward model of rl.reward={MODEL_REWARD}{path}. {error}") from None
    found = f"{FOLDER_DIGEST}{folder_digest(Path(path))}"
    if asked is not None and asked != found:
        raise ModelError(
            f"The reward model in {path} has changed since this run started: its files are {found}, the config pins {asked}. "
            "Restore the folder, or start a new run."
        )
    return found


def folder_digest(folder: Path) -> str:
    """A digest of a model's files that reads a part of the large ones only; notes and hidden files do not count."""
    digest = hashlib.sha256()
    for file in sorted(entry for entry in folder.iterdir() if entry.is_file()):
        if file.suffix == ".md" or file.name.startswith("."):
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        step = max(_BLOCK, (size - _BLOCK) // (_BLOCKS - 1))
        with file.open("rb") as stream:
            for start in range(0, size, step):
                stream.seek(start)
                digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def _embedder_revision(skills: SkillsConfig) -> str | None:
    """Commit of a hub model; another embedder, or a folder, has its fingerprint in the bank's index."""
    hub = skills.embedder == "sentence-transformers" and not Path(skills.embedder_model).expanduser().is_dir()
    if not hub or not skills.embeds:
        return skills.embedder_revision
    try:
        return hub_commit(skills.embedder_model, skills.embedder_revision)
    except OSError as error:
        raise ModelError(
            f"Cannot find the embedder {skills.embedder_model!r}: {str(error).partition(chr(10))[0]} Name a folder in "
            "skills.embedder_model, or set skills.embedder=hash, which needs no download."
        ) from None


def data_revision(source: Source) -> str | None:
    """The exact version that a source reads now: the hash of a file, the commit of a hub data set; None of a family.

    Raises:
        DataError: it cannot be read, or a file's content is not the pinned one.
    """
    asked = source.revision
    if source.path.startswith("synthetic:"):
        return asked
    found = read_source(source, limit=1).revision
    if asked is not None and asked.startswith(FILE_HASH) and found != asked:
        raise DataError(
            f"{source.name} has changed since this run started: its content is {found}, the config pins {asked}. Restore the file, or "
            "start a new run."
        )
    return found or asked


def pinned_source(source: Source | None) -> Source | None:
    """A source with its revision; None where there is none.

    Raises:
        DataError: see `data_revision`.
    """
    return None if source is None else source.model_copy(update={"revision": data_revision(source)})
