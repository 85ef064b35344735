"""Plays recorded rollouts of a run again, and names the first thing that comes out otherwise. Nothing is written into the run.

What a model wrote is taken as it was recorded: it is read again, and handed again to the run's environment, which is reset with the same options
and seed. The vote and the rewards of its group are computed again. On request, the recorded tokens are scored with the weights that sampled them.
No MCP server is started or called: what its tools answered is taken as it was recorded too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby, takewhile, zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from skill_ttrl.agents.agent import Agent, task_skills
from skill_ttrl.answers import correct
from skill_ttrl.config import load_config
from skill_ttrl.config.sampling import McpServer
from skill_ttrl.envs.tools import Tool
from skill_ttrl.errors import CheckpointError, ConfigError, DataError, ModelError, RunFolderError, SkillTTRLError
from skill_ttrl.llm.backend import Backend, Generation, Sampling, TokenCounter, wait_for
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.progress import SILENT, Progress
from skill_ttrl.rl.device import out_of_memory
from skill_ttrl.rollout.episode import ActiveRollout, EnvPool
from skill_ttrl.rollout.rollout import RolloutContext, RolloutSettings
from skill_ttrl.runs.checkpoint import edited_settings, list_checkpoints, verify
from skill_ttrl.runs.episode_logs import TRAJECTORIES, Place, read_episode, read_rollouts
from skill_ttrl.runs.folder import LIBRARIES, RunFolder, describe_environment, read_run_json
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.build import PolicyBundle, build_policy, make_agent, make_envs, reward_set
from skill_ttrl.train.open_run import read_run_bank
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.train.tasks import pinned_source
from skill_ttrl.types import Group, Step, Task, Trajectory, derive_seed, equal_rewards, from_json, to_json
from skill_ttrl.voting import ballot_of, batch_majority_vote, batch_vote, requires
from skill_ttrl.voting.rewards import RewardSet

TOLERANCE = 1e-4
"""Largest difference of two log-probs (nats) that counts as rounding."""
SHOWN = 60
"""Characters that are shown on each side of a difference."""
OUTSIDE = Tool({"type": "function", "function": {"name": "mcp-server", "description": "", "parameters": {}}}, str)
"""Stands for the tools of MCP servers. It is never called."""
OF_A_TURN = "observation admissible_actions action action_status parse_error calls reward terminated truncated".split()
AT_THE_END = "error final_obs answer ops source goal success score".split()
Row = tuple[int, Place, Trajectory]
"""Number of a line, and what is in it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that was recorded and now comes out otherwise."""

    what: str
    """Field of a step or a trajectory; or "prompt", "outcome", "vote", "log-prob of token 3 (…)"."""
    recorded: str
    now: str
    """Both are cut around the first character in which they differ."""
    turn: int | None = None
    """From 1; None: it belongs to no turn."""
    episode: str = ""
    """Id of the rollout."""


@dataclass(frozen=True, slots=True)
class Replays:
    """The outcome of replaying rollouts of a run."""

    run: str
    replayed: int
    turns: int
    different: Mapping[str, int]
    """Rollouts that differ, by what differs first."""
    differences: tuple[Difference, ...]
    """The first one of each of these."""
    scored: int
    """Tokens."""
    largest: float | None
    """Largest difference of two log-probs, in nats; None: no token was scored."""
    changed: tuple[str, ...]
    """Versions and data that are no longer those of the run: they may explain a difference."""
    notes: tuple[str, ...]
    """Parts that were not compared, each with the reason."""


def replay(
    run: str | Path,
    *,
    episode: str | None = None,
    step: int | None = None,
    tokens: bool = False,
    progress: Progress = SILENT,
) -> Replays:
    """Play rollouts of a run again: the one with this id, all of a step, or without either all there are.

    Args:
        run: its folder; it is read only.
        episode: `rl:12:TASK:3`.
        step: of any phase that recorded rollouts.
        tokens: also build the prompts again, and score the recorded tokens.
        progress: listens.

    Raises:
        ConfigError: there is no such rollout, or tokens are to be scored that a server sampled.
        DataError: a line cannot be read, or tokens do not fit each other.
        EnvError: the environment cannot be made.
        TrustError: the run is another user's, and its config has power over this machine.
        CheckpointError: no weights that sampled these rollouts are there.
    """
    path, found, replayed, turns = Path(run), list[Difference](), 0, 0
    with Replayer(path, tokens) as replayer:
        place, sought = (None, None) if episode is None else read_episode(path, episode)
        if not (file := path / TRAJECTORIES).is_file():
            raise RunFolderError(f"{path} has no {TRAJECTORIES}: there is nothing to replay (run.save_trajectories).")
        lines = ((number, *line[1:]) for number, line in enumerate(read_rollouts(file, replayer.notes), start=1))
        wanted = (row for row in lines if step in (None, row[1].step))
        if sought is not None:  # its whole group, which voted
            wanted = (row for row in lines if (row[1], row[2].task.id) == (place, sought.task.id))
        with file.open("rb") as stream:
            progress.start("replay", sum(1 for _ in stream), "line")
        for _, group in groupby(wanted, lambda row: (row[1], row[2].task.id)):
            rows = list(group)
            for length, difference in replayer.group(rows, episode):
                replayed, turns = replayed + 1, turns + length
                found += [] if difference is None else [difference]
            progress.advance("replay", rows[-1][0], {"different": float(len(found))})
        progress.finish("replay")
        notes = tuple(dict.fromkeys(replayer.notes))
        if not replayed:
            none = f"{path} has no rollouts{'' if step is None else f' of step {step}'} in {TRAJECTORIES}."
            raise ConfigError(none if sought is None else f"{episode} belongs to an evaluation and cannot be replayed.")
        if tokens and not replayer.scored:
            raise CheckpointError(" ".join(notes) or f"{path} has no recorded tokens.")
        kinds = dict(Counter(each.what.partition(" of token")[0] for each in found).most_common())
        scores = (replayer.scored, replayer.largest)
        if replayer.served:
            listed = " Prompts that list its tools were not compared." if tokens else ""
            notes = (f"No MCP server was called: the results of its tools are the recorded ones.{listed}", *notes)
        return Replays(str(path), replayed, turns, kinds, tuple(found), *scores, replayer.changed(), notes)


class Replayer(ExitStack):
    """Environments, votes and weights to play the rollouts of one run again; a context manager."""

    def __init__(self, path: Path, tokens: bool) -> None:
        super().__init__()
        self.path, self.tokens, self.notes = path, tokens, list[str]()
        self._made_with = read_run_json(path)
        self.config = load_config(path / "config.yaml")
        self.scored, self.largest = 0, cast("float | None", None)
        self._pool: EnvPool | None = None
        self._weights: tuple[tuple[str, int], PolicyBundle | None, Any] = (("", -1), None, None)
        """Phase, updates in it, and the policy then, or None: the one that was needed last."""
        self.served = any(isinstance(tool, McpServer) for tool in self.config.agent.tools)
        """True where tools are those of MCP servers."""
        if tokens and backend_facts(self.config).remote:
            raise ConfigError(f"{path} was sampled by a server, whose weights are not here. Leave --tokens out.")

    def group(self, rows: Sequence[Row], only: str | None) -> Iterator[tuple[int, Difference | None]]:
        """Replay the rollouts of one task in one step, or `only` that with this id: the turns of each, and its first difference."""
        names = [place.episode(each.task.id) for _, place, each in rows]
        at = [number for number, name in enumerate(names) if only in (None, name)]
        try:
            bundle = self._load(rows[at[0]]) if self.tokens else None
            scores = {} if bundle is None else self._score([rows[number][2] for number in at])
            judged = self._judge(rows)
        except SkillTTRLError:
            raise
        except (MemoryError, ValueError, IndexError, RuntimeError) as error:
            if out_of_memory(error) is not None:
                text = str(error).strip().partition("\n")[0].rstrip(".")
                advice = "Replay fewer rollouts (--episode), leave --tokens out, or use a machine with more memory."
                raise ModelError(f"Out of memory ({names[at[0]]}): {text}. {advice}") from None
            raise DataError(f"{names[at[0]]}: its tokens do not fit each other, or the model: {error}.") from None
        for order, number in enumerate(at):
            _, place, recorded = rows[number]
            found = self._again(place, recorded, bundle) or judged.get(number) or scores.get(order)
            yield len(recorded.steps), found and replace(found, episode=names[number])

    def changed(self) -> tuple[str, ...]:
        """Versions and data that are no longer those of the run."""
        infos = (self._made_with, describe_environment())
        there, here = (_mapping(each.get("libraries")) | each for each in infos)
        pairs = [(name, there.get(name), here.get(name)) for name in ("skill_ttrl", "python", "platform", *LIBRARIES)]
        found = [f"{name} {was}, now {now}" for name, was, now in pairs if was != now]
        found += [f"config.yaml: {each}" for each in edited_settings(self.path, self.config)]
        try:
            pinned_source(self.config.train_source)
        except SkillTTRLError as error:
            found.append(str(error))
        return tuple(found)

    def _seeds(self, purpose: str, place: Place) -> list[int]:
        """Seeds of a step: with `rl.dynamic_sampling` one a round, as a line does not say in which it was."""
        rounds = self.config.rl.dynamic_sampling if place.phase == "rl" else 0
        places = [(place.step or 0,), *((place.step or 0, number) for number in range(1, rounds))]
        return [derive_seed(self.config.seed, purpose, *each) for each in places]

    # Playing.

    @cached_property
    def _agent(self) -> Agent:
        return make_agent(self.config, cast(TokenCounter, SimpleNamespace(count=len, count_text=len)))

    @lru_cache(maxsize=1)  # noqa: B019  (it lives as long as the command)
    def _bank(self, version: int | None) -> RunBank | None:
        return None if version is None else read_run_bank(self.config.skills, self.path, version)

    def _envs(self, task: Task) -> EnvPool:
        if self._pool is None:
            agent = self.config.agent
            if self.served:
                local = [each for each in agent.tools if not isinstance(each, McpServer)]
                agent = agent.model_copy(update={"tools": [*local, OUTSIDE]})
            self._pool = make_envs(self.config.env, agent, [task])
            self.callback(self._pool.close)
        return self._pool

    def _again(self, place: Place, recorded: Trajectory, bundle: PolicyBundle | None) -> Difference | None:
        """The first difference of a rollout as it is now. Where a line does not say by which seed it was played, any will do that gives none."""
        seeds, size, found = self._seeds("rollout", place), self.config.rollout.prompts_per_batch, list[Difference]()
        if size is not None:
            starts = range(0, self.config.rl.prompts_per_step, size)
            seeds = [derive_seed(seed, "batch", start) for seed in seeds for start in starts]
        for seed in seeds if recorded.task.seed is None else seeds[:1]:
            different = wait_for(self._play(recorded, derive_seed(seed, "env", recorded.task.id), bundle))
            if different is None:
                return None
            found.append(different)
        return found[0]

    async def _play(self, recorded: Trajectory, seed: int, bundle: PolicyBundle | None) -> Difference | None:
        config, envs = self.config, self._envs(recorded.task)
        bank, shown = self._bank(recorded.bank_version), {each.id: each for each in task_skills(recorded.task) or ()}
        shown = {**({} if bank is None else {each.id: each for each in bank.skills}), **shown}
        if missing := [name for name in recorded.skills_in_prompt if name not in shown]:
            bank_now = f"not in version {recorded.bank_version} of the bank"
            return Difference("skills_in_prompt", ", ".join(missing), bank_now, 1)
        agent = replace(self._agent if bundle is None else bundle.agent, tools=envs.schemas)
        if bank is not None and (bundle is not None or bank.config.as_tools):
            agent = agent.with_bank(bank.view())
        most, limited = config.agent.max_turns, config.agent.structured_actions
        how = RolloutSettings(Sampling.of(config.rollout), seed, max_turns=most, constrain=limited)
        here = {json.loads(each)["function"]["name"] for each in agent.offered} - {OUTSIDE.name}
        context = RolloutContext(agent, cast(Backend, bundle and bundle.backend), how, lambda ended: None)
        prompt: Difference | None = None
        with envs.lend(1) as (env,):
            episode = ActiveRollout(recorded.task, env, envs)
            await episode.start(seed)
            episode.skills = tuple(shown[name] for name in recorded.skills_in_prompt)
            if agent.program is not None and recorded.steps:  # it is not started again: its calls stand as they are
                last, episode.by_program, episode.steps = recorded.steps[-1], True, [*recorded.steps]
                if recorded.error is None:  # a reward of its own is marked as graded
                    own = last.reward if last.info.get("graded") is True else None
                    await episode.act_program(last.action, own, most)
            for turn, step in enumerate(() if agent.program else recorded.steps, start=1):
                if episode.stop_reason is not None or step.completion is None:
                    break
                request = None if bundle is None or prompt is not None else context.build_request(episode, {})
                alike = request is None or request.token_ids in (None, step.prompt_ids)
                if request is not None and not alike and not (self.served and request.messages):
                    texts = (self._decode(ids) for ids in (step.prompt_ids, request.token_ids))
                    prompt = Difference("prompt", *_cut(*texts), turn)
                # Calls as they were before they were run; one that is no JSON has no name.
                calls = [replace(each, result=None, error="" if each.name else each.error) for each in step.calls]
                if self.served:
                    calls = [now if now.name in here else was for was, now in zip(step.calls, calls, strict=True)]
                done = replace(step.completion, calls=tuple(calls))
                await context.apply_completion(episode, Generation(step.prompt_ids, (done,)), done)
            if episode.error is not None:
                envs.replace(env)
        failed = recorded.error is not None and len(episode.steps) == len(recorded.steps)
        if episode.stop_reason is None or failed:  # what failed then need not fail now
            episode.stop_reason, episode.error = recorded.stop_reason, recorded.error
        now = from_json(Trajectory, to_json(episode.finish(recorded.bank_version)))
        return first_difference(recorded, now, prompt)

    # Votes and rewards.

    @cached_property
    def _votes(self) -> dict[str, dict[str, Any]]:
        rows = [row for row in read_jsonl(self.path / "votes.jsonl") if isinstance(row.get("matches"), list)]
        return {f"{row.get('phase')}:{row.get('step')}:{row.get('task_id')}": row for row in rows}

    @cached_property
    def _rewards(self) -> RewardSet:
        truths = {str(line.get("task_id")): _truth(line) for line in self._votes.values()}
        return reward_set(self.config, {task: truth for task, truth in truths.items() if truth is not None})

    def _judge(self, rows: Sequence[Row]) -> dict[int, Difference]:
        """Differences in the vote, the labels or the rewards of a group, by the rollout's place."""
        (_, place, first), config, name = rows[0], self.config, self.config.vote.chosen[0]
        line = self._votes.get(f"{place.phase}:{place.step}:{first.task.id}")
        if line is None or len(line["matches"]) != len(rows) or "base_answers" in requires(*config.vote.chosen):
            self.notes.append(f"Some votes ({name}) were not held again: votes.jsonl lacks what they need.")
            return {}
        group = Group(first.task, tuple(each for _, _, each in rows))
        if place.phase == "vote_sft":
            from skill_ttrl.train.imitate import chosen

            (vote,) = batch_majority_vote([group.answers])
            given = [chosen(config.rl.reward, group, vote, seed) for seed in self._seeds("reward", place)]
        else:
            (vote,) = batch_vote(name, [ballot_of(group)], config.vote.chosen[1])
            rewarded = [self._rewards(group, vote, seed) for seed in self._seeds("reward", place)]
            given = [[each.reward or 0.0 for each in found.trajectories] for found in rewarded]
        truth, found = _truth(line), dict[int, Difference]()
        right = correct([(each, truth) for each in group.answers])
        for at, (_, own, each) in enumerate(rows):
            checks: list[tuple[str, Any, Any]] = [("vote", line.get("answer"), vote.answer)]
            checks.append(("match with the vote", line["matches"][at], vote.matches[at]))
            if truth is not None and own.original_score is not None:
                checks.append(("label", own.original_score, float(right[at])))
            if not any(equal_rewards((each.reward or 0.0, rewards[at])) for rewards in given):
                checks.append(("reward of the group", each.reward, given[0][at]))
            if different := [(what, *_cut(was, now)) for what, was, now in checks if was != now]:
                found[at] = Difference(*different[0])
        return found

    # Tokens.

    def _load(self, row: Row) -> PolicyBundle | None:
        """The policy that sampled a rollout; None, and a note, where its weights are not there."""
        _, place, recorded = row
        version = max((step.completion.policy_version for step in recorded.steps if step.completion), default=0)
        key = (place.phase, version)
        if self._weights[0] == key:
            return self._weights[1]
        earlier = [*takewhile(lambda each: each != place.phase, map(str, self.config.phases))]
        earlier = [each for each in earlier if each not in ("collect", "distill")]
        kept = list_checkpoints(RunFolder(self.path, None))
        there: dict[int, Path | None] = {each.step: each.path for each in kept if each.phase == place.phase == "rl"}
        # Before its first update: what the phase before it left, or the model as the run began with it.
        starts = [each.path for each in kept if each.phase in earlier[-1:]] if earlier else [None]
        if starts:
            there[0] = starts[-1]
        if version not in there:
            near = max((each for each in there if each < version), default=None)
            rollouts = read_rollouts(self.path / TRAJECTORIES, [])
            ids = (at.episode(each.task.id) for _, at, each in rollouts if (at.phase, at.step) == (place.phase, near))
            hint = "" if near is None else f" The nearest before it can be scored: --episode {next(ids, '(none)')}"
            self.notes.append(f"No checkpoint is kept of {version} updates of {place.phase}: tokens not scored.{hint}")
            self._weights = (key, None, None)
            return None
        from skill_ttrl.rl.policy import Policy

        folder, config = there[version], self.config.model_copy(deep=True)
        config.rollout.backend = "hf"  # whatever sampled, this is the learner's own forward pass
        if folder is not None:
            try:
                verify(folder)
            except CheckpointError as error:
                self.notes.append(str(error))
        bundle = build_policy(config, weights=folder, tools=self._envs(recorded.task).schemas)
        if bundle.context.autocast is not None:
            self.notes.append(f"In {bundle.context.autocast} rounding alone can exceed {TOLERANCE:g} nats.")
        loaded = bundle.context.loaded
        policy = Policy(loaded.model, loaded.tokenizer, bundle.context.device, packing="off")
        self._weights = (key, bundle, policy)
        return bundle

    def _decode(self, ids: Sequence[int] | None) -> str:
        return str(self._weights[2].tokenizer.decode(list(ids or ())))

    def _scorable(self, step: Step) -> Step:
        """The step; without its completion where the learner's forward pass cannot give its log-probs again."""
        done = step.completion
        if done is None or (len(done.logprobs) == len(done.token_ids) and done.policy_version == self._weights[0][1]):
            return step
        self.notes.append(
            "Some tokens were not scored: they have no log-prob, or come from other weights than the end of their episode "
            "(rl.in_flight_updates)."
        )
        return replace(step, completion=None)

    def _score(self, rollouts: Sequence[Trajectory]) -> dict[int, Difference]:
        """Score each sampled token in a fresh forward pass; gives the first log-prob of each rollout that differs."""
        from skill_ttrl.rl.batch import pack
        from skill_ttrl.rl.parallel.ranks import own_micro_batches

        _, bundle, policy = self._weights
        assert bundle is not None
        kept = [replace(each, steps=tuple(map(self._scorable, each.steps))) for each in rollouts]
        if not any(step.completion and step.completion.token_ids for each in kept for step in each.steps):
            return {}
        batch, config = pack([Group(kept[0].task, tuple(kept))]), self.config
        parts = own_micro_batches(policy, batch, sequences=config.rl.micro_batch_size)
        how = {"temperature": config.rollout.temperature, "autocast": bundle.context.autocast}
        now_F = policy.score(batch, parts, **how)
        was_F, owner_F, found = batch.sampler_log_probs_F, batch.trajectory_index_N[batch.item_F], {}
        apart_F = (now_F - was_F).abs() * batch.trained_F
        for at in (apart_F > TOLERANCE).nonzero().flatten().tolist():
            if (number := int(owner_F[at])) not in found:
                turn, token = int(batch.step_F[at]), int(batch.tokens_F[at])
                place = int(((owner_F == number) & (batch.step_F == turn))[: at + 1].sum())
                what = f"log-prob of token {place} ({self._decode([token])!r}, id {token})"
                found[number] = Difference(what, f"{was_F[at]:.6f}", f"{now_F[at]:.6f}", turn + 1)
        self.scored += int(batch.trained_F.sum())
        self.largest = max(self.largest or 0.0, float(apart_F.max()))
        return found


def first_difference(recorded: Trajectory, now: Trajectory, prompt: Difference | None = None) -> Difference | None:
    """The first thing, turn by turn, in which two plays of a rollout differ; `prompt`: the first prompt that does."""
    if recorded.start_state != now.start_state:
        return Difference("start_state", *_cut(recorded.start_state, now.start_state), 1)
    for turn, (was, new) in enumerate(zip_longest(recorded.steps, now.steps), start=1):
        if prompt is not None and prompt.turn == turn:
            return prompt
        if was is None or new is None:
            return Difference("outcome", recorded.error or "it went on", now.error or now.stop_reason, turn)
        pairs = [(name, getattr(was, name), getattr(new, name)) for name in OF_A_TURN]
        keys = sorted({*was.info, *new.info})
        for name, one, other in (*pairs, *((f"info[{key!r}]", was.info.get(key), new.info.get(key)) for key in keys)):
            if one != other:
                return Difference(name, *_cut(one, other), turn)
    pairs = [(name, getattr(recorded, name), getattr(now, name)) for name in AT_THE_END]
    return next((Difference(name, *_cut(one, other)) for name, one, other in pairs if one != other), None)


def _cut(recorded: Any, now: Any) -> tuple[str, str]:
    """Two values as texts, cut around the first character in which they differ."""
    one, other = (
        value if isinstance(value, str) else json.dumps(value, default=asdict, ensure_ascii=False)
        for value in (recorded, now)
    )
    pairs = enumerate(zip(one, other, strict=False))
    at = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
    start, end = max(0, at - SHOWN), at + SHOWN
    one, other = (f"{'…' * (start > 0)}{text[start:end]}{'…' * (len(text) > end)}" for text in (one, other))
    return one, other


def _truth(line: Mapping[str, Any]) -> str | None:
    """The true answer in a line of `votes.jsonl`."""
    truth = _mapping(line.get("labels")).get("ground_truth")
    return truth if isinstance(truth, str) else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
