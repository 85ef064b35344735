"""`skillttrl collect`: the tasks of an environment are played by a scripted agent or a policy, and every episode is stored.

One line an episode (`types.Trajectory` as JSON), in the order of the tasks. Episodes are played in chunks, here or on workers, and kept
chunk by chunk; stopped at any point and called again, a collection of a scripted agent, or with the backend `hf`, ends with the same
bytes as one that was never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skill_ttrl.agents.scripted import FIRST, check_adviser, find_scripted_agent, make_scripted_agent
from skill_ttrl.commands.resolve import EvalTarget, env_kwargs, in_env, is_trained, resolve_target
from skill_ttrl.commands.sampler import (
    ABORT_AFTER_FAILURES,
    Chunk,
    PolicySetup,
    Sampler,
    ScriptedSetup,
    open_sampler,
    sample_chunks,
    split_into_chunks,
)
from skill_ttrl.config import AgentConfig, CollectConfig, EnvConfig, ScaleConfig, SkillTTRLConfig
from skill_ttrl.cores import cores
from skill_ttrl.envs import resolve_env
from skill_ttrl.envs.lookup import refuse_split
from skill_ttrl.errors import ConfigError, EndpointError, EnvError, RunFolderError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.llm.openai.ledger import SAME, USAGE, Ledger, current_ledger, track_usage, usage_lines
from skill_ttrl.progress import SILENT, Progress
from skill_ttrl.rollout.episode import MOVES, Exploration
from skill_ttrl.rollout.outcome import (
    EpisodeResult,
    SamplingPass,
    SuccessStats,
    count_by_type,
    count_success,
    episode_result,
)
from skill_ttrl.runs.episode_logs import TrajectoryFile, lines_of, write_array
from skill_ttrl.runs.folder import describe_environment
from skill_ttrl.train.rules import Rules
from skill_ttrl.train.tasks import ConfigTasks, TaskSelection, Unit
from skill_ttrl.types import Group, Task, Trajectory, to_json

_LISTING = {"action_order", "hidden_verbs", "actions", "action_parser", "max_turns"}
CHUNK = 64
"""Episodes of a model that are played together and kept together, where nobody says otherwise and the backend takes as many at once."""
MOST_A_BATCH = 16
"""Most episodes of a scripted agent that travel to a worker together."""
BATCHES = 64
"""Least number of batches, if there are so many episodes: then the workers finish at about the same time."""
_EPISODES_A_PROCESS = 64  # fewer are played sooner than another process has started
PHASE = "play"
_SECONDS_BETWEEN_WRITES = 1.0


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of a collection."""

    env: str
    """The environment's id."""
    agent: str
    split: str
    seed: int
    source: str
    """Where the environment has its tasks from, as it says; several with commas between; empty where it does not say."""
    overall: SuccessStats
    by_type: dict[str, SuccessStats]
    """By type of task; empty where there is only one type."""
    first_error: str | None
    """Error of the first episode that failed; None if none did."""
    output: str | None
    """The file of trajectories; None where they were not kept."""
    played: int
    """Episodes that this call played; the others were there already."""
    seconds: float
    """Wall time of this call."""
    tokens: int = 0
    """Tokens that a policy wrote in this call."""
    explore: float | Sequence[float] = 0.0
    """Share of a scripted agent's steps that take a random action, or one for each rollout of a task in turn; see `Exploration`."""


@dataclass(frozen=True, slots=True)
class Collection:
    """An agent, the tasks it plays, and the file of its episodes."""

    selection: TaskSelection
    agent: str
    seed: int
    output: str | Path | None
    """`FILE.jsonl`, or `FILE.json` for a JSON array, which is written from `FILE.jsonl` once all episodes are there; None: nothing is kept."""
    progress: Progress
    explore: Exploration = field(default_factory=Exploration)


class EpisodeWriter:
    """Takes episodes in their order: counts them, reports progress, and appends them to the log now and then.

    While all have failed nothing is kept: a collection that only fails leaves no file.
    """

    def __init__(self, units: Sequence[Unit], log: TrajectoryFile | None, progress: Progress) -> None:
        self.units, self.log, self.progress = units, log, progress
        self.outcomes: list[EpisodeResult] = []
        self._waiting: list[str] = []
        self._written = -math.inf
        self._fine = 0
        self._shown = self._won = 0

    def read_existing(self) -> int:
        """Count the episodes that the log holds already.

        Raises:
            RunFolderError: a line is no trajectory, or not the one that belongs there.
        """
        if self.log is None:
            return 0
        path, total = self.log.path, len(self.units)
        if self.log.cut:
            self.progress.notice(
                f"The last line of {path} was incomplete and is removed ({self.log.cut:,} bytes); its episode is played again."
            )
        expected = [repr(task.id) for task, _ in self.units]
        for trajectory in self.log.read(Trajectory, expected, lambda found: repr(found.task.id)):
            outcome = episode_result(trajectory)
            self._count(outcome)
            self._shown, self._won = self._shown + 1, self._won + bool(outcome.success)
        if there := len(self.outcomes):
            whole = f"All {total} episodes are in {path} already."
            self.progress.notice(
                whole if there == total else f"Continuing after {there} of {total} episodes in {path}."
            )
        return there

    def show(self, outcome: EpisodeResult, figures: Mapping[str, float] | None = None) -> None:
        """Report an episode that has ended, whatever its place; `figures` are shown next to its success."""
        self._shown, self._won = self._shown + 1, self._won + bool(outcome.success)
        self.progress.advance(PHASE, self._shown, {"success": self._won / self._shown, **(figures or {})})

    def add(self, line: str, outcome: EpisodeResult) -> None:
        """Take the next episode in order.

        Raises:
            EndpointError, EnvError: all have failed, and that is enough of them to tell.
        """
        self._count(outcome)
        self._waiting.append(line)
        if not self._fine and len(self.outcomes) in (ABORT_AFTER_FAILURES, len(self.units)):
            kind = EndpointError if all(outcome.unanswered for outcome in self.outcomes) else EnvError
            raise kind(
                f"All {len(self.outcomes)} episodes failed in {self.units[0][0].env_id}, so nothing is saved. The first error: "
                f"{self.outcomes[0].error}"
            )
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> bool:
        """Append what has come since; True if the log has everything now.

        Raises:
            RunFolderError: it cannot be written.
        """
        if self.log is not None and self._waiting and self._fine:
            self.log.append(self._waiting)
            self._waiting.clear()
        self._written = time.monotonic()
        return self.log is not None and not self._waiting

    def leaving(self, in_play: int = 1) -> str:
        """Say what is kept when it ends here, where so many episodes are played together."""
        if self.log is None:
            return "Stopped; nothing is saved. With --output FILE.jsonl episodes are saved as they finish."
        if not self.outcomes and in_play == 1:
            return "Interrupted before the first episode finished."
        done = f"Stopped; {len(self.outcomes)} of {len(self.units)} episodes are saved in {self.log.path}"
        again = f"; the {in_play} in progress will be played again" if in_play > 1 else ""
        return f"{done}{again}. {SAME}"

    def _count(self, outcome: EpisodeResult) -> None:
        self.outcomes.append(outcome)
        self._fine += outcome.error is None


def run(
    selection: TaskSelection,
    *,
    agent: str = "expert",
    prompts: AgentConfig | None = None,
    explore: float | Sequence[float] | Exploration = 0.0,
    seed: int = 0,
    jobs: int | None = None,
    scale: ScaleConfig | None = None,
    output: str | Path | None = None,
    progress: Progress = SILENT,
    timeout_s: float | None = None,
) -> Collected:
    """Run a scripted agent on tasks, in order, and store every episode.

    An episode in which the environment or the agent fails is data: its line has `error`, and it counts as no success.

    Args:
        selection: which tasks; the environment is made with its `kwargs`.
        agent: `expert`, `random`, `first`, `constant:TEXT`, `walkthrough`, or `module:attribute`, called without arguments
            (`agents.scripted.ScriptedAgent`). Each process has one, so `start` must forget earlier episodes.
        prompts: how a policy's prompts list the actions and how many turns it has: `first` then takes the action that such a
            prompt lists first. None: as the environment lists them.
        explore: probability, in [0, 1], that a step takes a random admissible action in place of the agent's own, which stays in
            the step's `info` as `expert_action`; a sequence: one for each rollout of a task in turn. See `Exploration`.
        seed: of the environment, where a task has none, and of the scripted agent, whose choices differ between rollouts of a task.
        jobs: processes; None: one for each core, and fewer where there is little to play. More than one start a fresh Python
            each, so that a script that calls this stands under `if __name__ == "__main__"`.
        scale: where the agent plays; None: on this machine.
        output: `FILE.jsonl`; the settings are stored in `FILE.jsonl.json`. None: nothing is stored.
        progress: reports episodes, success and notices.
        timeout_s: seconds that an episode may take; None: any time.

    Raises:
        ConfigError: there is no such agent, or a number is out of its range.
        EnvError: there is no such environment, split, type or data, or every episode failed.
        RunFolderError: `output` holds something else, or cannot be written.
        Interrupted: a signal came; what was played is kept where there is an `output`.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, found {jobs}.")
    scale = scale or ScaleConfig()
    if jobs is not None and scale.address is not None:
        raise ConfigError(
            f"--num-workers={jobs} sets processes on this machine. With scale.address={scale.address} set scale.workers instead."
        )
    env = EnvConfig(id=selection.env, kwargs=dict(selection.kwargs))
    Rules(SkillTTRLConfig(env=env, collect=CollectConfig(agent=agent), scale=scale), "collect").check()
    collection = Collection(selection.made(selection.kwargs), agent, seed, output, progress, Exploration.of(explore))
    return _collect_scripted(collection, prompts, jobs, scale, timeout_s)


def run_as_configured(
    config: SkillTTRLConfig, *, agent: str, split: str | None = None, limit: int | None = None, **how: Any
) -> Collected:
    """Have a scripted agent play what a run of `config` is measured on, so that both can be compared: same tasks, same turns.

    `first` takes the action that the config's prompts list first, `constant:TEXT` is read as the config reads a model's text.

    Args:
        config: its environment, `env.eval_split`, `env.eval_tasks` and `agent` are used.
        agent: see `run`.
        split: another split.
        limit: another number of tasks.
        how: seed, jobs, output and progress, see `run`.

    Raises:
        ConfigError: the config is measured on tasks of files or families, which an agent does not play; or the order of the actions
            depends on the skills of a bank, which only the policy's own evaluation knows.
        SkillTTRLError: as for `run`.
    """
    env, source = config.env, config.eval_source or config.train_source
    if source is not None:
        raise ConfigError(
            f"This config evaluates on {source.path}, but an agent plays the environment's own tasks. Use --env instead of "
            "--config, or keep the config's prompts with: --set data.train=null --set data.eval=null."
        )
    bank = config.skills is not None and config.skills.enabled and config.skills.bank is not None
    if agent == FIRST and config.agent.action_order == "words" and bank:
        raise ConfigError(
            "With agent.action_order=words the bank's skills decide which action is listed first. Evaluate the policy instead: its "
            "table includes this agent. Or add: --set skills.enabled=false."
        )
    split, limit = env.eval_split if split is None else split, env.eval_tasks if limit is None else limit
    how |= {"agent": agent, "prompts": config.agent, "scale": config.scale}
    selection = TaskSelection(env.id, split, env.kwargs, episodes=limit)
    return run(selection, timeout_s=config.rollout.rollout_timeout_s, **how)


def run_policy(
    source: str | Path,
    selection: TaskSelection,
    *,
    overrides: Sequence[str] = (),
    config: str | None = None,
    use_bank: bool = True,
    greedy: bool = False,
    chunk: int | None = None,
    seed: int | None = None,
    output: str | Path | None = None,
    progress: Progress = SILENT,
) -> Collected:
    """Run a policy on tasks, sampled as its rollouts are, and store every episode.

    Args:
        source: run folder, checkpoint, model's folder, model on the hub, or `openai:MODEL`; see `resolve_target`.
        selection: which tasks. Where the policy was trained in this environment, its arguments are those of the training, with
            these changes. Rollouts of one task are sampled as one group.
        overrides: changes to the config, e.g. `rollout.temperature=0.4`; `env.kwargs.NAME=VALUE` is handed to the environment.
        config: a plain model's recipe or config file.
        use_bank: False plays without the skill bank.
        greedy: take the likeliest tokens, in the place of sampling at `rollout.temperature`.
        chunk: episodes that are played together; None: `CHUNK`, or as many as the backend takes at once. Another number samples
            other episodes from the same seed.
        seed: of all random choices; None: the config's.
        output: `FILE.jsonl`; the settings are stored in `FILE.jsonl.json`, the cost of requests in `FILE.jsonl.usage.jsonl`.
            None: nothing is stored.
        progress: reports episodes, success, tokens and cost.

    Raises:
        SkillTTRLError: there is no such policy, environment, split or type; `output` holds something else; every episode failed;
            or the budget is spent (`BudgetError`).
        Interrupted: a signal came; every finished chunk is stored where there is an `output`.
    """
    env_id = resolve_env(selection.env)
    refuse_split({**env_kwargs(overrides, env_id), **selection.kwargs})
    found = resolve_target(source, overrides, config=config, use_bank=use_bank)
    selection = selection.made({**env_kwargs(overrides, env_id, found.config.env), **selection.kwargs})
    playing = in_env(found, selection.env, selection.kwargs, overrides)
    playing.check(use_bank=use_bank)
    usage = None if output is None else Path(f"{lines_of(Path(output))}.{USAGE}")
    with track_usage(usage, found.config.endpoints) as ledger, ledger.phase("collect"):
        own = found.config.seed if seed is None else seed
        collection = Collection(selection, found.name, own, output, progress)
        collected = _collect_policy(playing, collection, greedy=greedy, chunk=chunk, use_bank=use_bank)
    for line in usage_lines(ledger.report()):
        progress.notice(line)
    return collected


def collect_into(path: Path, config: SkillTTRLConfig, progress: Progress) -> Collected:
    """Run the collect phase of a run: the agent that `config.collect` names plays the run's training tasks. Resumes where it stopped.

    A plain model plays with the run's config, including its skill bank; a trained policy plays with its own config.

    Args:
        path: `FILE.jsonl` for the episodes.
        config: the run's.
        progress: reports episodes and success.

    Raises:
        SkillTTRLError: as for `run` and `run_policy`.
        Interrupted: a signal came; finished episodes are stored.
    """
    asked, selection = config.collect, ConfigTasks(config).selection()
    if find_scripted_agent(asked.agent, resolve_env(config.env.id)) is not None:
        collection = Collection(selection, asked.agent, config.seed, path, progress, exploration(asked))
        # More processes need a script that stands under `if __name__ == "__main__"`, which a caller of a run need not know.
        return _collect_scripted(collection, None, 1, config.scale, config.rollout.rollout_timeout_s)
    if asked.epsilon:
        raise ConfigError(
            f"collect.epsilon works with scripted agents, but collect.agent={asked.agent} is a policy. Set it to 0; raise "
            "rollout.temperature for more variety."
        )
    found = resolve_target(asked.agent, config=None if is_trained(asked.agent) else config.model_dump(mode="json"))
    playing = in_env(found, selection.env, selection.kwargs)
    playing.check()
    return _collect_policy(playing, Collection(selection, found.name, config.seed, path, progress))


def exploration(asked: CollectConfig) -> Exploration:
    """The exploration that a config asks for."""
    chances = tuple(asked.epsilon) if isinstance(asked.epsilon, list) else (asked.epsilon,)
    moves, never = tuple(asked.explore_moves_like), tuple(asked.explore_never)
    return Exploration(chances, asked.explore_moves, asked.max_steps, moves, never)


def _collect_scripted(
    collection: Collection, prompts: AgentConfig | None, jobs: int | None, scale: ScaleConfig, timeout_s: float | None
) -> Collected:
    selection, agent, explore = collection.selection, collection.agent, collection.explore
    if explore.advises:  # refused before anything is played
        check_adviser(make_scripted_agent(agent, resolve_env(selection.env), prompts))
    units = selection.units(collection.progress)
    tried = [units[place][0] for place in dict.fromkeys((0, len(units) // 2, len(units) - 1))]
    on_ray = scale.address is not None
    setup = ScriptedSetup(selection.env, selection.kwargs, agent, prompts, explore, timeout_s, tried if on_ray else ())
    depends_on: dict[str, Any] = {"explore": explore.stated} if explore.advises else {}
    depends_on |= {
        name: value
        for name, value, default in (
            ("explore_moves", explore.moves, 0.0),
            ("explore_moves_like", list(explore.moves_like), list(MOVES)),
            ("explore_never", list(explore.never), []),
            ("max_steps", explore.max_steps, None),
        )
        if value != default
    }
    if prompts is not None:
        depends_on["prompts"] = prompts.model_dump(mode="json", include=_LISTING)
    jobs = 1 if on_ray else jobs or min(cores(), max(1, len(units) // _EPISODES_A_PROCESS))
    size = max(1, min(MOST_A_BATCH, len(units) // BATCHES)) if on_ray or jobs > 1 else 1
    return _collect(collection, units, depends_on, lambda tasks: setup, Sampling(), size, scale, jobs)


def _collect_policy(
    found: EvalTarget, collection: Collection, *, greedy: bool = False, chunk: int | None = None, use_bank: bool = True
) -> Collected:
    config, sampling = found.config, Sampling.of(found.config.rollout, 0.0 if greedy else None)
    if chunk is not None and chunk < 1:
        raise ConfigError(f"chunk must be at least 1, found {chunk}.")
    size = chunk or min(CHUNK, config.rollout.max_batch_size)
    depends_on = {
        "model": found.fingerprint(),
        "config": {name: value for name, value in found.decisive().items() if name != "env"},
        "sampling": asdict(sampling),
        "chunk": size,
        "skill_bank": use_bank and config.skills is not None,
    }
    units = collection.selection.units(collection.progress)

    def setup(tasks: Sequence[Task]) -> PolicySetup:
        return PolicySetup(found, {"": tasks}, use_bank)

    return _collect(collection, units, {"policy": depends_on}, setup, sampling, size, config.scale)


def _collect(
    collection: Collection,
    units: Sequence[Unit],
    depends_on: Mapping[str, Any],
    setup: Callable[[Sequence[Task]], PolicySetup | ScriptedSetup],
    sampling: Sampling,
    size: int,
    scale: ScaleConfig,
    jobs: int = 1,
) -> Collected:
    """Count what the file holds, and play the rest in chunks of `size` episodes, whoever plays.

    Args:
        collection: what is played, and where it is stored.
        units: all episodes, in order.
        depends_on: what the episodes depend on apart from the names of agent and tasks.
        setup: makes what plays these tasks.
        sampling: of a policy.
        size: episodes of a chunk.
        scale: where it plays.
        jobs: processes of this machine.

    Raises:
        RunFolderError: the file holds something else, which is named, or cannot be written.
    """
    selection, progress, output = collection.selection, collection.progress, collection.output
    per_task, tasks = selection.rollouts_per_task, [task for task, attempt in units if attempt == 0]
    draw = SamplingPass("", per_task, sampling, collection.seed)
    plan = list(split_into_chunks(tasks, draw, max(1, size // per_task), lines_per_task=per_task, lines=len(units)))
    began, meter, log = time.perf_counter(), _Meter(current_ledger()), None
    with ExitStack() as stack:
        if output is not None:
            made_with = {**selection.made_with(units, collection.agent, collection.seed), **depends_on}
            lines = lines_of(Path(output))
            # Else it would be replaced at the end.
            if lines != Path(output) and Path(output).exists() and not lines.exists():
                raise RunFolderError(
                    f"{output} exists without the {lines.name} that this command writes, so another program created it. Choose another "
                    "--output, or remove it."
                )
            log = stack.enter_context(TrajectoryFile(lines, made_with))
        writer = EpisodeWriter(units, log, progress)
        there = writer.read_existing()
        if there < len(units):
            progress.start(PHASE, len(units), "episode", there)
            try:
                with open_sampler(setup(tasks), scale, progress, chunks=len(plan), jobs=jobs) as sampler:
                    _play(sampler, plan, writer, meter)
            finally:  # what was played is kept however it ends
                writer.write()
            progress.finish(PHASE)
        if log is not None and output is not None and log.path != Path(output):
            write_array(Path(output), log.lines())
        outcomes = writer.outcomes
        sources = sorted({outcome.source for outcome in outcomes} - {""})
        if log is not None:
            made_in = describe_environment()
            log.note(facts={"source": sources, **{name: made_in[name] for name in ("python", "platform", "libraries")}})
    return Collected(
        env=resolve_env(selection.env),
        agent=collection.agent,
        split=selection.split,
        seed=collection.seed,
        source=", ".join(sources),
        overall=count_success(outcomes),
        by_type=count_by_type(outcomes),
        first_error=next((outcome.error for outcome in outcomes if outcome.error is not None), None),
        output=None if log is None else str(output),
        played=len(outcomes) - there,
        seconds=time.perf_counter() - began,
        tokens=meter.tokens,
        explore=collection.explore.stated,
    )


def _play(sampler: Sampler, plan: Sequence[Chunk], writer: EpisodeWriter, meter: _Meter) -> None:
    """Play the chunks that are not whole yet."""

    def on_episode(trajectory: Trajectory) -> None:
        meter.add(trajectory)
        writer.show(episode_result(trajectory), meter.figures())

    def reported(chunk: Chunk, there: int) -> bool:
        """True if each episode is reported as it ends: all of them are new and will be kept."""
        return not there and chunk.lines == len(chunk.tasks) * chunk.draw.rollouts_per_task

    def sample(left: Sequence[tuple[Chunk, int]]) -> Generator[list[Group]]:
        listeners = [on_episode if reported(*each) else meter.add for each in left]
        return sampler.sample([chunk for chunk, _ in left], listeners)

    def take(chunk: Chunk, there: int, groups: list[Group]) -> None:
        played = [trajectory for group in groups for trajectory in group.trajectories]
        for trajectory in played[there : chunk.lines]:
            outcome = episode_result(trajectory)
            if not reported(chunk, there):
                writer.show(outcome, meter.figures())
            writer.add(to_json(trajectory), outcome)
        if writer.write():
            current_ledger().settle()

    sample_chunks(plan, len(writer.outcomes), sample, take, writer.leaving)


class _Meter:
    """Tokens and cost while episodes are played."""

    def __init__(self, ledger: Ledger) -> None:
        self.tokens = 0
        """Tokens that the policy has written; for a remote policy, in requests that were answered; 0 of a scripted agent."""
        self._ledger, self._before = ledger, ledger.totals()
        self._began = time.perf_counter()

    def add(self, trajectory: Trajectory) -> None:
        self.tokens += sum(
            step.completion.num_sampled_tokens for step in trajectory.steps if step.completion is not None
        )

    def figures(self) -> dict[str, float]:
        spent = self._ledger.totals()
        self.tokens = max(self.tokens, spent.tokens_out - self._before.tokens_out)  # a remote model may return no ids
        rate = {"tokens/s": self.tokens / max(time.perf_counter() - self._began, 1e-9)} if self.tokens else {}
        return rate | ({"cost": spent.cost} if spent.cost else {})
