"""`skillttrl vote`: the voting comparison. Samples in, votes out, several voting strategies on the same samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skill_ttrl.answers import persist_cache
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, RunFolderError, did_you_mean
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.rollout.samples import SAMPLE, SamplingPass
from skill_ttrl.runs.episode_logs import SampleFolder
from skill_ttrl.runs.folder import EQUIVALENCE_CACHE, RunFolder
from skill_ttrl.stages.evaluation.vote_comparison import JudgedVote, Visits, VoteLab, replay
from skill_ttrl.stages.setup.checks import load_checked
from skill_ttrl.stages.targets.draw import draw_samples
from skill_ttrl.stages.targets.resolve import resolve_target, with_limit
from skill_ttrl.stages.targets.stored import is_stored, read_stored
from skill_ttrl.storage.files import wrap_os_errors, write_atomic
from skill_ttrl.types import derive_seed, to_json
from skill_ttrl.voting import STRATEGIES, check_strategy, given_up

VOTES, LAB = "votes.jsonl", "vote.json"
ALL = "all"


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a run, a checkpoint or a model is sampled; stored samples have been."""

    data: Sequence[str] = ()
    """Files or data sets; empty: the source's own problems."""
    samples: int | None = None
    """Samples of each problem; None: the config's `rollout.n_votes_per_prompt`."""
    config: str | None = None
    """A plain model's recipe or config file."""
    chunk: int | None = None
    """As in `evaluate.run_all`."""
    use_bank: bool = True
    """False asks without the skill bank."""
    both_wordings: bool = False
    """Half of the samples answer a paraphrase of the question, made as `vote.paraphrase` of the config says."""
    limit: int | None = None
    """Problems of each file or data set; None: all."""


AS_IN_TRAINING = Drawing()


def run(
    source: str | Path,
    *,
    strategies: Sequence[str] = ("majority",),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    drawing: Drawing = AS_IN_TRAINING,
    progress: Progress | None = None,
) -> VoteLab:
    """Vote on samples with one strategy or several.

    Args:
        source: stored samples (see `targets.stored`), or a run, checkpoint or model that is sampled as its training would be.
        strategies: names in `voting.STRATEGIES` or `module:function`; `all` for every built-in one. The majority is always
            included for comparison.
        options: of strategies, by name, e.g. `{"gated": {"threshold": 0.6}}`.
        output: folder for `votes.jsonl` and `vote.json`; drawn samples are stored there too, and an interrupted vote resumes from them.
        overrides: changes to the config; `seed` and `eval.confidence` hold for stored samples as well.
        drawing: how to sample a source that is not stored samples.
        progress: reports what is drawn and what was left out.

    Raises:
        ConfigError: no such strategy, or an option that it does not take.
        SkillTTRLError: samples cannot be read or drawn, or the output not be written.
        Interrupted: a signal came while samples were drawn.
    """
    asked = _asked(strategies, options or {})
    progress = progress or SilentProgress()
    with nullcontext() if output is None else persist_cache(Path(output) / EQUIVALENCE_CACHE):
        if is_stored(source):
            if drawing != AS_IN_TRAINING:
                raise ConfigError(
                    f"{source} holds stored samples, so nothing is sampled: options of sampling (--data, --samples, --limit, --config, "
                    "--batch-size, --no-skills, --paraphrase) need a run or a model, named with --policy."
                )
            found = _stored(source, output, overrides, progress)
        else:
            found = _drawn(source, drawing, output, overrides, progress)
        lab, votes = _lab(str(source), found, asked)
    if output is not None:
        _write(Path(output), lab, votes)
    return lab


@dataclass(frozen=True, slots=True)
class _Found:
    """Samples, and what is known of them."""

    visits: Visits
    config: SkillTTRLConfig
    trained_on: int | None = None
    notes: tuple[str, ...] = ()


def _asked(strategies: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Options by strategy, each checked on a small made-up vote before anything is read or drawn."""
    names = list(dict.fromkeys(each for name in strategies for each in (STRATEGIES if name == ALL else [name])))
    if not names:
        raise ConfigError(f"Name a voting strategy.{did_you_mean('', [*STRATEGIES, ALL])}")
    for name in options:
        if name not in names:
            raise ConfigError(
                f"There are options for {name!r}, which is not among the chosen strategies: {', '.join(names)}."
            )
    for name in names:
        check_strategy(name, options.get(name))
    return {name: options.get(name, {}) for name in names}


def _stored(source: str | Path, output: str | Path | None, overrides: Sequence[str], progress: Progress) -> _Found:
    config = load_checked({}, overrides)
    if output is not None:
        _refuse_foreign(Path(output))
    stored = read_stored(source)
    for note in stored.notes:
        progress.notice(note, warning=True)
    if output is not None:
        with wrap_os_errors("make", Path(output)):
            Path(output).mkdir(parents=True, exist_ok=True)
    return _Found(stored.visits, config, stored.trained_on, stored.notes)


def _drawn(
    source: str | Path, drawing: Drawing, output: str | Path | None, overrides: Sequence[str], progress: Progress
) -> _Found:
    """Samples as a training step would draw them, from the same sampling settings."""
    subject = resolve_target(source, overrides, config=drawing.config, data=drawing.data, use_bank=drawing.use_bank)
    how, seed = subject.config.rollout, derive_seed(subject.config.seed, "vote", SAMPLE)
    sampling = Sampling(how.temperature, how.top_p, how.top_k, how.max_new_tokens)
    count = how.n_votes_per_prompt if drawing.samples is None else drawing.samples
    if drawing.both_wordings and count % 2:
        raise ConfigError(f"Half of the samples answer a paraphrase, so their number must be even, found {count}.")
    problems = with_limit(subject.problems(drawing.data), drawing.limit)
    found = draw_samples(
        subject,
        problems,
        [SamplingPass(SAMPLE, count, sampling, seed)],
        phase="vote",
        output=output,
        chunk=drawing.chunk,
        use_bank=drawing.use_bank,
        both_wordings=drawing.both_wordings,
        progress=progress,
    )
    known = found.known
    trained_on = None if known is None else sum(known[row.source, row.task.id] for row in found.rows)
    return _Found([found.rows], subject.config, trained_on)


def _lab(
    source: str, found: _Found, strategies: Mapping[str, Mapping[str, Any]]
) -> tuple[VoteLab, dict[str, list[JudgedVote]]]:
    confidence = found.config.eval.confidence
    replayed, votes = replay(found.visits, strategies, seed=found.config.seed, confidence=confidence)
    problems = {(row.source, row.task.id): row.task.ground_truth is not None for visit in found.visits for row in visit}
    counts = [len(row.samples) for visit in found.visits for row in visit]
    lab = VoteLab(
        source=source,
        problems=len(problems),
        samples=(min(counts), max(counts)),
        visits=len(found.visits),
        labelled=sum(problems.values()),
        trained_on=found.trained_on,
        confidence=confidence,
        strategies=tuple(replayed),
        notes=found.notes,
        undecided_answers=given_up(answer for visit in found.visits for row in visit for answer in row.answers),
    )
    return lab, votes


def _refuse_foreign(path: Path) -> None:
    """A folder that holds something else must not lose it to files of the same names."""
    if not path.exists():
        return
    ours = path.is_dir() and (SampleFolder.exists(path) or (path / LAB).is_file() or not any(path.iterdir()))
    if RunFolder.exists(path) or not ours:
        raise RunFolderError(f"{path} holds something other than votes. Choose another --output.")


def _write(output: Path, lab: VoteLab, votes: Mapping[str, Sequence[JudgedVote]]) -> None:
    """Write `vote.json`, and `votes.jsonl` with a line for each strategy, visit and problem."""
    lines = []
    for name, judged in votes.items():
        for each in judged:
            source, task_id = each.problem
            first = {"strategy": name, "source": source, "step": each.step, "task_id": task_id}
            first |= {"task_type": each.task_type, "correct": each.correct, "reward_accuracy": each.reward_accuracy}
            lines.append(f"{json.dumps(first)[:-1]}, {to_json(each.vote)[1:]}\n")
    text = json.dumps(asdict(lab), indent=2, ensure_ascii=False) + "\n"
    with wrap_os_errors("write", output):
        write_atomic(output / VOTES, "".join(lines).encode())
        write_atomic(output / LAB, text.encode())
