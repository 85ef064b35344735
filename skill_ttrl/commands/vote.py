"""`skillttrl vote`: the voting comparison. Samples in, votes out, several voting strategies on the same samples."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from skill_ttrl.answers import bare_key, canonical, canonicals, correct, persist_cache
from skill_ttrl.commands.resolve import is_stored, resolve_target, with_fitting, with_limit
from skill_ttrl.commands.sampler import draw_samples
from skill_ttrl.config import Source
from skill_ttrl.data.records import read_records, text_lists
from skill_ttrl.data.tasks import load_tasks
from skill_ttrl.errors import ConfigError, DataError, EnvError, RunFolderError, TrustError, did_you_mean
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.progress import SILENT, Progress
from skill_ttrl.rollout.outcome import SAMPLE, Sample, SamplingPass, TaskSamples, sample_of
from skill_ttrl.runs.episode_logs import SAMPLES, Place, SampleFolder, read_facts, read_rollouts
from skill_ttrl.runs.folder import EQUIVALENCE_CACHE, RunFolder
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.statistics import Interval, Verdict, mean_interval, paired_difference, verdict
from skill_ttrl.storage.files import wrap_os_errors, write_atomic
from skill_ttrl.storage.jsonl import first_keys, parsed, whole_lines
from skill_ttrl.train.defaults import load_checked
from skill_ttrl.train.tasks import ConfigTasks
from skill_ttrl.types import Task, VoteResult, derive_seed, to_json
from skill_ttrl.voting import STRATEGIES, Ballot, UndecidedAnswers, batch_vote, check_strategy, given_up, requires
from skill_ttrl.voting.strategies import INPUT_SOURCES

Visits = Sequence[Sequence[TaskSamples]]
Problem = tuple[str, str]
"""(source, task id)"""
Values = Mapping[str, Mapping[Problem, float]]
"""Values of each metric by problem."""
BASELINE = "majority"
FALSE_CONSENSUS = 0.5
"""A wrong winner with at least this share of the samples is a false consensus."""
TITLES: Mapping[str, str] = {
    "label_accuracy": "label accuracy",
    "decided_accuracy": "accuracy where decided",
    "reward_accuracy": "reward accuracy",
    "false_consensus": "false consensus",
    "majority_ratio": "majority ratio",
    "abstained": "abstained",
    "flip_rate": "flip rate",
}
"""The metrics, the main one first, and their titles. The first four need true answers, the last one several visits."""


@dataclass(frozen=True, slots=True)
class JudgedVote:
    """One vote, compared with the true answer."""

    problem: Problem
    task_type: str
    step: int
    """Place of its visit."""
    vote: VoteResult
    correct: bool | None
    """True if the winner is the true answer; False without a winner, None without a true answer."""
    reward_accuracy: float | None
    """Share of samples that belong to the winner's class exactly if they are true."""
    winner: str | None
    """The winner's class (`answers.canonical`)."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A mean over problems."""

    value: float
    interval: Interval
    problems: int
    """Number of problems that have a value."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A strategy less the majority, paired over problems."""

    value: float
    interval: Interval
    verdict: Verdict
    """"better" here means higher."""
    problems: int
    """Number of problems for which both have a value."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One strategy on all samples."""

    strategy: str
    options: Mapping[str, Any]
    requires: str | None = None
    """Missing inputs; then it has no metrics."""
    figures: Mapping[str, Metric] = field(default_factory=dict)
    """Values of `TITLES` where available."""
    differences: Mapping[str, Difference] = field(default_factory=dict)
    """From the majority, by metric; empty for the majority itself."""


@dataclass(frozen=True, slots=True)
class VoteLab:
    """Result of comparing strategies on one set of samples."""

    source: str
    problems: int
    samples: tuple[int, int]
    """Fewest and most samples of a problem at one visit."""
    visits: int
    """1 for samples drawn once; more for the steps of a run, in which problems come round again."""
    labelled: int
    """Problems whose true answer is known."""
    trained_on: int | None
    """Problems that the policy was trained on; None where that is not known."""
    strategies: tuple[Replayed, ...]
    """The majority first; the others as they were asked for."""
    notes: tuple[str, ...] = ()
    """Notes on omitted or missing samples."""
    undecided_answers: UndecidedAnswers = field(default_factory=UndecidedAnswers)
    """Of the different answers of all samples, those that are compared as texts only, and why."""

    def describe_samples(self) -> str:
        """The samples that were voted on, in one sentence."""
        few, many = self.samples
        text = f"{self.problems} problems, {few if few == many else f'{few} to {many}'} samples each"
        text += f", {self.visits} visits" if self.visits > 1 else ""
        if self.trained_on is not None:
            known = {0: "held-out", self.problems: "transductive"}
            text += f", {known.get(self.trained_on, f'{self.trained_on} of them transductive')}"
        if self.labelled < self.problems:
            text += f"; {self.labelled or 'none'} of them with a true answer"
        return f"{text}."


def replay(
    visits: Visits, strategies: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Replayed], dict[str, list[JudgedVote]]]:
    """Hold the votes of every strategy on the same samples.

    Args:
        visits: the samples.
        strategies: options by strategy; the majority is added, first, where it is not among them.

    Returns:
        One `Replayed` for each strategy, and the votes of those that could be held.

    Raises:
        ConfigError: an option of a strategy is out of its range.
    """
    canonicals([answer for visit in visits for row in visit for answer in (*row.answers, row.task.ground_truth)])
    ballots = ballots_of(visits)
    found: list[Replayed] = []
    votes: dict[str, list[JudgedVote]] = {}
    base: Values = {}
    for name, options in {BASELINE: strategies.get(BASELINE, {}), **strategies}.items():
        every = [ballot for visit in ballots for ballot in visit]
        lacks = [need for need in requires(name, options) if any(getattr(each, need) is None for each in every)]
        if lacks:
            needed = "; ".join(f"{need}: {INPUT_SOURCES.get(need, need)}" for need in lacks)
            found.append(Replayed(name, options, requires=needed))
            continue
        votes[name] = [
            _judged(row, step, vote)
            for step, (visit, given) in enumerate(zip(visits, ballots, strict=True))
            for row, vote in zip(visit, batch_vote(name, given, options), strict=True)
        ]
        values = values_by_problem(votes[name])
        base = base or values
        figures, differences = dict[str, Metric](), dict[str, Difference]()
        for key, of in values.items():
            known = [*of.values()]
            if known:
                figures[key] = Metric(math.fsum(known) / len(known), mean_interval(known), len(known))
            both = [problem for problem in base[key] if problem in of]
            if both and name != BASELINE:
                before, after = ([each[key][problem] for problem in both] for each in (base, values))
                value, *bounds = paired_difference(before, after)
                interval = (bounds[0], bounds[1])
                differences[key] = Difference(value, interval, verdict(interval), len(both))
        found.append(Replayed(name, options, figures=figures, differences=differences))
    return found, votes


def ballots_of(visits: Visits) -> list[list[Ballot]]:
    """The ballots of each visit, with all that the samples say.

    The answers before training (`base_answers`) are those of a problem's first visit: samples of one policy are what its
    training would begin with.
    """
    first: dict[Problem, tuple[str | None, ...]] = {}

    def ballot(row: TaskSamples) -> Ballot:
        return Ballot(
            answers=row.answers,
            prompt="/".join(_problem(row)),
            logprobs=_whole([sample.logprob for sample in row.samples]),
            lengths=_whole([sample.tokens for sample in row.samples]),
            base_answers=first.setdefault(_problem(row), row.answers),
            keys=tuple(canonicals(row.answers)),
        )

    return [[ballot(row) for row in visit] for visit in visits]


def values_by_problem(votes: Sequence[JudgedVote]) -> Values:
    """Each metric by problem, as a mean over its visits; a problem without true answer, or without a winner where one is
    needed, has no value.
    """
    found: dict[str, dict[Problem, list[float]]] = {name: defaultdict(list) for name in TITLES}
    winners: dict[Problem, list[str]] = defaultdict(list)
    for held in votes:
        vote, problem = held.vote, held.problem
        found["majority_ratio"][problem].append(vote.majority_ratio)
        found["abstained"][problem].append(float(vote.answer is None))
        if held.winner is not None:
            winners[problem].append(held.winner)
        if held.correct is None or held.reward_accuracy is None:
            continue
        found["label_accuracy"][problem].append(float(held.correct))
        found["reward_accuracy"][problem].append(held.reward_accuracy)
        wrong = vote.answer is not None and not held.correct
        found["false_consensus"][problem].append(float(wrong and vote.majority_ratio >= FALSE_CONSENSUS))
        if vote.answer is not None:
            found["decided_accuracy"][problem].append(float(held.correct))
    # Visits without a winner do not count: a flip is from the winner before to another one.
    found["flip_rate"] = {
        problem: [float(one != other) for one, other in pairwise(keys)]
        for problem, keys in winners.items()
        if len(keys) > 1
    }
    return {
        name: {problem: sum(values) / len(values) for problem, values in by_problem.items()}
        for name, by_problem in found.items()
    }


def _problem(row: TaskSamples) -> Problem:
    return row.source, row.task.id


def _whole(values: Sequence[Any]) -> tuple[Any, ...] | None:
    return None if any(value is None for value in values) else tuple(values)


def _judged(row: TaskSamples, step: int, vote: VoteResult) -> JudgedVote:
    won, reward_accuracy = None, None
    if row.task.ground_truth is not None:
        won, *right = correct([(answer, row.task.ground_truth) for answer in (vote.answer, *row.answers)])
        reward_accuracy = float(np.mean([one == other for one, other in zip(vote.matches, right, strict=True)]))
    winner = bare_key(canonical(vote.answer))
    return JudgedVote(_problem(row), row.task.task_type, step, vote, won, reward_accuracy, winner)


VOTES, LAB = "votes.jsonl", "vote.json"
ALL = "all"


def run(
    source: str | Path,
    *,
    strategies: Sequence[str] = ("majority",),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    progress: Progress = SILENT,
    **drawing: Any,
) -> VoteLab:
    """Vote on samples with one strategy or several.

    Args:
        source: stored samples (see `read_stored`), or a run, checkpoint or model that is sampled as its training would be.
        strategies: names in `voting.STRATEGIES` or `module:function`; `all` for every built-in one. The majority is always
            included for comparison.
        options: of strategies, by name, e.g. `{"anchored": {"weight": 0.6}}`.
        output: folder for `votes.jsonl` and `vote.json`; drawn samples are stored there too, and an interrupted vote resumes from them.
        overrides: changes to the config.
        progress: reports what is drawn and what was left out.
        drawing: how to sample a source that is not stored samples, see `sample_as_in_training`.

    Raises:
        ConfigError: no such strategy, or an option that it does not take.
        SkillTTRLError: samples cannot be read or drawn, or the output not be written.
        Interrupted: a signal came while samples were drawn.
    """
    asked = _asked(strategies, options or {})
    path = None if output is None else Path(output)
    with ExitStack() as stack:
        if is_stored(source):
            if any(drawing.values()):
                raise ConfigError(
                    f"{source} holds stored samples, so nothing is sampled: options of sampling (--data, --samples, --limit, --config, "
                    "--batch-size, --no-skills) need a run or a model, named with --policy."
                )
            load_checked({}, overrides)
            if path is not None:
                _refuse_foreign(path)
            found = read_stored(source)
            for note in found.notes:
                progress.notice(note, warning=True)
            if path is not None:
                with wrap_os_errors("make", path):
                    path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(persist_cache(path / EQUIVALENCE_CACHE))
        else:
            found = sample_as_in_training(stack, source, overrides, output=path, progress=progress, **drawing)
        replayed, votes = replay(found.visits, asked)
        rows = [row for visit in found.visits for row in visit]
        counts = [len(row.samples) for row in rows]
        problems = {_problem(row): row.task.ground_truth is not None for row in rows}
        lab = VoteLab(
            source=str(source),
            problems=len(problems),
            samples=(min(counts), max(counts)),
            visits=len(found.visits),
            labelled=sum(problems.values()),
            trained_on=found.trained_on,
            strategies=tuple(replayed),
            notes=found.notes,
            undecided_answers=given_up(answer for row in rows for answer in row.answers),
        )
    if path is not None:
        _write(path, lab, votes)
    return lab


def _asked(strategies: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Options by strategy, each checked on a small made-up vote before anything is read or drawn."""
    names = list(dict.fromkeys(each for name in strategies for each in (STRATEGIES if name == ALL else [name])))
    if not names:
        raise ConfigError(f"Name a voting strategy.{did_you_mean('', [*STRATEGIES, ALL])}")
    for name in options:
        if name not in names:
            raise ConfigError(f"There are options for {name!r}, not among the chosen strategies: {', '.join(names)}.")
    for name in names:
        check_strategy(name, options.get(name))
    return {name: options.get(name, {}) for name in names}


def sample_as_in_training(
    stack: ExitStack,
    source: str | Path,
    overrides: Sequence[str],
    *,
    data: Sequence[str] = (),
    samples: int | None = None,
    config: str | None = None,
    limit: int | None = None,
    chunk: int | None = None,
    no_skills: bool = False,
    **keeping: Any,
) -> SampleSet:
    """Samples as a training step would draw them, from the same sampling settings; their folder is open as long as `stack`.

    Args:
        stack: closes the folder.
        source: a run, a checkpoint or a model.
        overrides: changes to its config.
        data: files or data sets; empty: the source's own problems.
        samples: samples of each problem; None: the config's `rollout.n_votes_per_prompt`.
        config: a plain model's recipe or config file.
        limit: problems of each file or data set; None: all.
        chunk: as in `draw_samples`.
        no_skills: ask without the skill bank.
        keeping: where they are kept and reported (`draw_samples`).
    """
    subject = with_fitting(resolve_target(source, overrides, config=config, data=data, use_bank=not no_skills))
    how, seed = subject.config.rollout, derive_seed(subject.config.seed, "vote", SAMPLE)
    draws = [SamplingPass(SAMPLE, samples or how.n_votes_per_prompt, Sampling.of(how), seed)]
    problems = with_limit(subject.problems(data), limit)
    drawing = draw_samples(subject, problems, draws, phase="vote", chunk=chunk, use_bank=not no_skills, **keeping)
    drawn = stack.enter_context(drawing)
    known = drawn.known
    trained_on = None if known is None else sum(known[_problem(row)] for row in drawn.rows)
    return SampleSet((drawn.rows,), trained_on=trained_on)


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


# Stored samples: of an evaluation, of a run's training, or texts in a file. They are read as visits (see `replay`); everything in them is
# untrusted text.

LARGEST = 10**12
"""Size above which a log-probability or a length is a slip: no sample has it, and not every sum could hold it."""


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Samples to vote on."""

    visits: tuple[tuple[TaskSamples, ...], ...]
    """Problems that are voted on together: one for samples drawn once, one for each step of a run."""
    notes: tuple[str, ...] = ()
    """Notes on what was left out or could not be read."""
    trained_on: int | None = None
    """Problems that the policy was trained on; None where that is not known."""


def read_stored(source: str | Path) -> SampleSet:
    """Samples of a file or folder.

    Args:
        source: the `--output` of `evaluate` or `vote` or its `samples.jsonl`; the `trajectories.jsonl` of a run, whose true
            answers are taken from the run's data; or records with `problem`, `responses` (a list of texts) and where they are
            known `answer`, `logprobs`, `lengths` (lists of as many numbers).

    Raises:
        DataError: it cannot be read, or holds no samples; names the line.
    """
    path = Path(source)
    if path.is_dir():
        path = path / SAMPLES
    keys = first_keys(path)
    if keys >= {"draw", "task", "samples"}:
        return _from_samples(path)
    if keys >= {"task", "steps"}:
        return _from_trajectories(path)
    return _from_records(path)


def _from_samples(path: Path) -> SampleSet:
    notes: list[str] = []
    rows = [parsed(*line, TaskSamples) for line in whole_lines(path, notes)]
    main = tuple(row for row in rows if row.draw == SAMPLE and row.samples)
    for row in main:
        for number, sample in enumerate(row.samples):
            _refuse_unsound(sample, f"{path}, sample {number} of problem {row.task.id!r}")
    if not main:
        raise DataError(
            f"{path} holds no samples at a temperature, only {', '.join(sorted({row.draw for row in rows}))}."
        )
    facts = read_facts(path.parent)
    seen = facts.get("trained_on") if isinstance(facts, dict) else None
    trained_on = sum([row.source, row.task.id] in seen for row in main) if isinstance(seen, list) else None
    return SampleSet((main,), tuple(notes), trained_on)


def _from_trajectories(path: Path) -> SampleSet:
    notes: list[str] = []
    rollouts: dict[Place, dict[str, list[tuple[Task, Sample]]]] = defaultdict(lambda: defaultdict(list))
    for where, place, trajectory in read_rollouts(path, notes):
        # Tokens are most of a trajectory; of them only sums are kept.
        sample = sample_of(trajectory)
        _refuse_unsound(sample, where)
        rollouts[place][trajectory.task.id].append((trajectory.task, sample))
    if not rollouts:
        raise DataError(f"{path} holds no samples.")
    references = _references(path.parent, notes)
    visits = []
    for tasks in rollouts.values():
        rows = []
        for name, group in tasks.items():
            task = group[0][0]
            task = replace(task, ground_truth=task.ground_truth or references.get(name))
            rows.append(TaskSamples("", SAMPLE, task, tuple(sample for _, sample in group)))
        visits.append(tuple(rows))
    problems = {name for tasks in rollouts.values() for name in tasks}
    return SampleSet(tuple(visits), tuple(notes), len(problems))  # a run writes down what it is trained on


def _references(run: Path, notes: list[str]) -> dict[str, str]:
    """True answers of a run's training problems by id: its trajectories have none, as the trainer had none."""
    if not RunFolder.exists(run):
        return {}
    try:
        tasks = ConfigTasks.of_run(run).training(pinned=True)
    except (ConfigError, DataError, EnvError, TrustError) as error:
        notes.append(f"True answers are missing because the run's training problems cannot be read: {error}")
        return {}
    return {task.id: task.ground_truth for task in tasks if task.ground_truth is not None}


def _from_records(path: Path) -> SampleSet:
    records = read_records(path)
    if "responses" not in records.columns:
        raise DataError(
            f"{path} contains no samples: neither lines of {SAMPLES} or of a run's trajectories.jsonl, nor records with 'problem' "
            f"and 'responses' (it has: {', '.join(map(repr, records.columns))}). To draw samples, give --policy and --data."
        )
    name = "problem" if "problem" in records.columns else Source.model_fields["prompt_field"].default
    tasks = load_tasks(Source(path=str(path), prompt_field=name), "")
    rows = []
    for task, row, responses, where in zip(
        tasks, records.rows, text_lists(records, "responses"), records.places, strict=True
    ):
        columns = []
        for key in ("logprobs", "lengths"):
            given = row.get(key)
            if given is not None and (not isinstance(given, list) or len(given) != len(responses)):
                raise DataError(f"{where}: {key!r} must be a list of {len(responses)} numbers, one for each response.")
            columns.append(given or [None] * len(responses))
        samples = []
        for number, (text, logprob, length) in enumerate(zip(responses, *columns, strict=True)):
            answer = OutputParser().parse(text).answer
            sample = Sample(text, answer, logprob, length)
            _refuse_unsound(sample, f"{where}, response {number}")
            samples.append(sample)
        rows.append(TaskSamples("", SAMPLE, task, tuple(samples)))
    return SampleSet((tuple(rows),))


def _refuse_unsound(sample: Sample, where: str) -> None:
    """Raise `DataError` where a sample has numbers that no sampling gives."""
    bounds = {
        "log-probability must be a number": (sample.logprob, -LARGEST),
        "tokens must be a whole number": (sample.tokens, 0),
    }
    for what, (value, least) in bounds.items():
        # Also of hundreds of digits, of which nothing floating can be made; not a number is within no bounds.
        fits = value is None or (type(value) in (int, float) and least <= value <= LARGEST)
        if not fits or (least == 0 and value is not None and value != int(value)):
            raise DataError(f"{where}: its {what} from {least:g} to {LARGEST:g}.")
