"""A trained policy found again: from a run folder or one of its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skill_ttrl.answers import extract
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import RunFolderError
from skill_ttrl.llm.base import Request, Sampling, wait_for
from skill_ttrl.runs.checkpoint import newest, verify
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.stages.build import make_parts
from skill_ttrl.types import VoteResult
from skill_ttrl.voting import majority_vote


@dataclass(frozen=True, slots=True)
class Trained:
    """Where a trained policy's weights are, and the config it was trained with."""

    config: SkillTTRLConfig
    weights: Path


@dataclass(frozen=True, slots=True)
class Reply:
    """What a policy answered to one question."""

    question: str
    texts: tuple[str, ...]
    answers: tuple[str | None, ...]
    vote: VoteResult


def find_trained(path: str | Path, overrides: Sequence[str] = ()) -> Trained:
    """The newest checkpoint of a run, or the checkpoint that `path` itself is.

    Raises:
        RunFolderError: `path` is neither, or the run has no checkpoint yet.
        CheckpointError: the checkpoint is damaged.
    """
    path = Path(path)
    if RunFolder.exists(path):
        checkpoint, _ = newest(RunFolder.open(path, lock=False))
        if checkpoint is None:
            raise RunFolderError(f"{path} has no checkpoint yet: nothing was trained in it so far.")
        return Trained(load_config(path / "config.yaml", overrides), checkpoint.path)
    run = path.resolve().parent.parent
    if path.is_dir() and (path / "manifest.json").is_file() and RunFolder.exists(run):
        verify(path)
        return Trained(load_config(run / "config.yaml", overrides), path)
    raise RunFolderError(
        f"{path} is neither a run folder nor a checkpoint of one. Runs are made by `skillttrl train`; "
        "list yours with: ls runs."
    )


def ask(
    trained: Trained, question: str, *, samples: int = 1, temperature: float = 0.0, max_new_tokens: int | None = None
) -> Reply:
    """Put a question to a trained policy, in the words of its training template.

    Args:
        trained: which policy.
        question: the task, as the training data words it.
        samples: how many answers; more than one are put to a vote.
        temperature: 0 is greedy.
        max_new_tokens: longest answer; None takes the config's.
    """
    parts = make_parts(trained.config, weights=trained.weights)
    sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens or trained.config.rollout.max_new_tokens)
    request = Request(parts.agent.messages((), question), n=samples)
    (found,) = wait_for(parts.backend.generate([request], sampling, seed=trained.config.seed))
    texts = tuple(completion.text for completion in found.completions)
    answers = tuple(extract(text) for text in texts)
    return Reply(question, texts, answers, majority_vote(answers))
