"""Single- and multi-turn rollouts: every task is played `group_size` times, by a model through one batching backend or by a scripted agent.

`sync` advances all active rollouts together, one batched turn at a time; the same seed gives the same samples. `async` advances
each rollout as soon as its environment responds: once the environments of a task are reset, a slow one blocks no other. Rollouts
that stand at the same prompt at the start of a group share one request with `n` samples, so the prompt is read once.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from skill_ttrl.agents.agent import Agent, RetrievalQuery, results_of
from skill_ttrl.agents.scripted import ScriptedAgent
from skill_ttrl.errors import BudgetError, ConfigError, EndpointError, EnvError, ModelError
from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling, checked
from skill_ttrl.llm.hand_over import BatchingBackend, HandOver
from skill_ttrl.llm.pauses import InsertionPoint, generate_with_insertions
from skill_ttrl.registry import naming
from skill_ttrl.rollout.episode import (
    ActiveRollout,
    EnvPool,
    EnvThreads,
    Exploration,
    ScriptedPlayer,
    ScriptedPolicy,
    TextEnvironment,
    call_inline,
    operations,
)
from skill_ttrl.rollout.programs import open_programs
from skill_ttrl.skills.merge import note
from skill_ttrl.skills.ops import RETRIEVE_END, RETRIEVE_MARKS
from skill_ttrl.types import Completion, Group, Message, Task, Trajectory, derive_seed

Schedule = Literal["sync", "async"]


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How rollouts are sampled and when they end."""

    sampling: Sampling
    seed: int
    """Of all random choices."""
    max_turns: int = 1
    """Longest episode."""
    max_prompt_tokens: int | None = None
    """An episode whose conversation grows past it ends there; one that begins past it has failed. What the bank adds to a prompt
    has a budget of its own and does not count."""
    constrain: bool = False
    """The model can write nothing but an action that the environment lists, where it lists any."""
    adviser: Callable[[], ScriptedAgent] | None = None
    """Makes a scripted agent that watches a rollout and says at each state what it would do (`ScriptedPlayer`); None: none does."""
    schedule: Schedule = "sync"
    """`sync` calls environments here and in order, `async` in threads."""
    rollout_timeout_s: float | None = None
    """An episode that has taken so long has failed (`stop_reason` "timeout"). Environments are then called in threads in either
    schedule, and one that hangs is not used again. None: it may take any time."""


THREADS = 256
"""Most environments that are called at the same time in threads."""


async def rollout(
    tasks: Sequence[Task],
    group_size: int,
    *,
    envs: EnvPool,
    agent: Agent | ScriptedPolicy,
    backend: Backend | None = None,
    settings: RolloutSettings,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> list[Group]:
    """Play each task `group_size` times; one `Group` for each task, in order.

    Args:
        tasks: what is played.
        group_size: rollouts of each task.
        envs: where they are played.
        agent: makes prompts of what is seen and actions of what `backend` writes; or a scripted agent, which plays one rollout after
            another and needs no backend.
        backend: the model.
        settings: how rollouts are sampled and when they end.
        on_episode: called with each rollout as it ends, in any order.
    """
    owners = [task for task in tasks for _ in range(group_size)]
    if isinstance(agent, ScriptedPolicy):
        rollouts = []
        for place, task in enumerate(owners):
            with envs.lend(1) as (env,):
                rollouts.append(await _play_scripted(task, place % group_size, env, envs, agent, settings))
                if rollouts[-1].error is not None:  # what comes next must not depend on what a failure left behind
                    agent.discard_agent()
                    envs.replace(env)
            on_episode(rollouts[-1])
    else:
        assert backend is not None
        with envs.lend(len(owners)) as taken:
            placed = list(zip(owners, taken, strict=True))
            run = await _play(placed, group_size, envs, RolloutContext(agent, backend, settings, on_episode))
        rollouts = [run.finished[place] for place in range(len(owners))]
    starts = range(0, len(owners), group_size)
    return [Group(task, tuple(rollouts[start : start + group_size])) for task, start in zip(tasks, starts, strict=True)]


async def _play_scripted(
    task: Task, attempt: int, env: TextEnvironment, envs: EnvPool, policy: ScriptedPolicy, settings: RolloutSettings
) -> Trajectory:
    """One rollout of a scripted agent."""
    timeout_s, threads = settings.rollout_timeout_s, EnvThreads(1)
    call = call_inline if timeout_s is None else threads.call
    try:
        player = policy.player(settings.seed, attempt)
        episode = ActiveRollout(task, env, envs, call, timeout_s, scripted=player)
        await episode.start(derive_seed(settings.seed, "env", task.id))
        while episode.stop_reason is None:
            if episode.remaining_s is not None and episode.remaining_s <= 0:
                episode.mark_timeout()
            else:
                await episode.act_scripted(policy.max_steps(settings.max_turns))
    finally:
        threads.close()
    return episode.finish()


def run_scripted_episode(
    env: TextEnvironment,
    task: Task,
    agent: ScriptedAgent,
    *,
    seed: int,
    attempt: int = 0,
    explore: float | Sequence[float] | Exploration = 0.0,
    max_steps: int = 1000,
) -> Trajectory:
    """Let a scripted agent play one task to its end in an environment, which stays open.

    An exception of the environment or the agent is the episode's outcome (`stop_reason` "error"), not the caller's.

    Args:
        env: it is reset.
        task: what is played.
        agent: plays the task.
        seed: of the environment, where the task has none, and of the agent.
        attempt: number of the attempt at this task: all begin alike, and the agent's choices differ.
        explore: chance of a step, in [0, 1], that any admissible action is taken, all equally likely, whatever the agent says; see
            `Exploration`. Above 0, what it said stands in the `info` of every step (`ADVICE`).
        max_steps: bound for environments that set none.
    """
    policy = ScriptedPolicy(lambda: agent, Exploration.of(explore))
    settings = RolloutSettings(Sampling(), seed, max_turns=max_steps)
    work = _play_scripted(task, attempt, env, EnvPool(lambda: env), policy, settings)
    try:
        work.send(None)  # nothing is waited for, so it needs no event loop, and Ctrl-C ends it at once
    except StopIteration as ended:
        return cast(Trajectory, ended.value)
    raise AssertionError("a scripted episode without a time limit waits for nothing")


async def _play(
    placed: Sequence[tuple[Task, TextEnvironment]], group_size: int, envs: EnvPool, run: RolloutContext
) -> RolloutContext:
    """Play each task in its environment; gives `run` with what came of it."""
    backend, settings = run.backend, run.settings
    threads = EnvThreads(THREADS)
    # A tool call may take long, and Ctrl-C interrupts only calls in threads.
    in_threads = settings.schedule == "async" or settings.rollout_timeout_s is not None or bool(run.agent.offered)
    call = threads.call if in_threads else call_inline
    episodes = [ActiveRollout(task, env, envs, call, settings.rollout_timeout_s) for task, env in placed]
    if settings.adviser is not None:
        for place, episode in enumerate(episodes):
            episode.scripted = ScriptedPlayer(settings.adviser(), settings.seed, place % group_size)
    getattr(backend, "start", lambda: None)()  # an engine that starts only now takes nobody's time
    extends = run.agent.prompts_extend and settings.max_turns > 1  # a gateway calls `keeping` itself
    try:
        with getattr(backend, "keeping", nullcontext)() if extends else nullcontext():
            if run.agent.program is not None:
                await _run_programs(run, episodes)
            elif settings.schedule == "sync":
                await _run_lockstep(run, episodes, group_size)
            else:
                if getattr(backend, "blocking", False):
                    batching = BatchingBackend(backend, lambda: len(episodes) - len(run.finished))
                    run.backend = cast(Backend, batching)
                rows = list(enumerate(episodes))
                starts = range(0, len(episodes), group_size)
                await _gather(_run_group(run, rows[start : start + group_size]) for start in starts)
    finally:
        threads.close()
    return run


async def _run_lockstep(run: RolloutContext, episodes: Sequence[ActiveRollout], group_size: int) -> None:
    """Advance all active rollouts together, turn by turn.

    Environments are called one after the other, always in the same order: where two share a file or a generator, a resumed run would
    otherwise differ.
    """
    # One seed for all rollouts of a task, the same in a resumed run.
    for episode in episodes:
        await episode.start(derive_seed(run.settings.seed, "env", episode.task.id))
    attach_prompt_skills(episodes, run.agent, run.backend)
    for turn in range(run.settings.max_turns):
        known: PromptCache = {}
        waiting: dict[tuple[int, Request], list[ActiveRollout]] = defaultdict(list)
        for place, episode in enumerate(episodes):
            request = run.build_request(episode, known)
            if request is not None:
                waiting[place // group_size, request].append(episode)
        if not waiting:
            break
        requests = [replace(request, n=len(row)) for (_, request), row in waiting.items()]
        found = await generate_turn(requests, list(waiting.values()), run, derive_seed(run.settings.seed, "turn", turn))
        for generation, row in found:
            for episode, completion in zip(row, generation.completions, strict=True):
                await run.apply_completion(episode, generation, completion)
        for place, episode in enumerate(episodes):
            run.finish(place, episode)
    for place, episode in enumerate(episodes):
        run.finish(place, episode)


async def _run_programs(run: RolloutContext, episodes: Sequence[ActiveRollout]) -> None:
    """Have the agent's program play every rollout, each in a process of its own."""
    agent, limit = run.agent, run.settings.max_prompt_tokens
    known: PromptCache = {}
    assert agent.program is not None
    for episode in episodes:
        await episode.start(derive_seed(run.settings.seed, "env", episode.task.id))
    attach_prompt_skills(episodes, agent, run.backend)
    if limit is not None:  # skills have a budget of their own
        limit += max((episode.skill_tokens for episode in episodes), default=0)
    async with open_programs(agent.program, run.backend, run.settings.sampling, limit) as programs:

        async def play(place: int, episode: ActiveRollout) -> None:
            request = run.build_request(episode, known)
            if request is not None:
                given = (request.messages, agent.formatter.document, _seed(run, place, episode))
                await programs.play(episode, *given, run.settings.max_turns)
            run.finish(place, episode)

        await _gather(play(*placed) for placed in enumerate(episodes))


async def _run_group(run: RolloutContext, row: Sequence[tuple[int, ActiveRollout]]) -> None:
    """Run the rollouts of one task when `async`; those at the same prompt share their first request."""
    seed = derive_seed(run.settings.seed, "env", row[0][1].task.id)
    await _gather(episode.start(seed) for _, episode in row)
    attach_prompt_skills([episode for _, episode in row], run.agent, run.backend)
    known: PromptCache = {}
    waiting: dict[Request, list[tuple[int, ActiveRollout]]] = defaultdict(list)
    for place, episode in row:
        request = run.build_request(episode, known)
        if request is None:
            run.finish(place, episode)
        else:
            waiting[request].append((place, episode))
    await _gather(_run_shared_first_turn(run, request, asking) for request, asking in waiting.items())


async def _run_shared_first_turn(
    run: RolloutContext, request: Request, row: Sequence[tuple[int, ActiveRollout]]
) -> None:
    """Run the first turn of rollouts at the same prompt; each continues alone from there."""
    requests = [replace(request, n=len(row))]
    found = await generate_turn(requests, [[episode for _, episode in row]], run, _seed(run, *row[0]))
    for generation, _ in found:
        pairs = zip(row, generation.completions, strict=True)
        await _gather(_run_rest(run, *placed, generation, completion) for placed, completion in pairs)
    for place, episode in row:
        run.finish(place, episode)


async def _run_rest(
    run: RolloutContext, place: int, episode: ActiveRollout, generation: Generation, completion: Completion
) -> None:
    """Run the rest of a rollout, from its first completion on."""
    await run.apply_completion(episode, generation, completion)
    while (request := run.build_request(episode, {})) is not None:
        for generation, _ in await generate_turn([request], [[episode]], run, _seed(run, place, episode)):
            await run.apply_completion(episode, generation, generation.completions[0])
    run.finish(place, episode)


def _seed(run: RolloutContext, place: int, episode: ActiveRollout) -> int:
    return derive_seed(run.settings.seed, "episode", place, len(episode.steps))


async def _gather(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. The first error cancels the others; after a `BudgetError` they finish, as they are paid for."""
    running = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*running)
    except BaseException as error:
        if not isinstance(error, BudgetError):
            for task in running:
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise


PromptCache = dict[tuple[Message, ...], tuple[Request, int]]
"""The request and the tokens of conversations that have been looked at."""


@dataclass
class RolloutContext:
    """Everything that the rollouts of one call share."""

    agent: Agent
    backend: Backend
    settings: RolloutSettings
    on_rollout_end: Callable[[Trajectory], None]
    finished: dict[int, Trajectory] = field(default_factory=dict)
    """Trajectories by the index of the rollout."""

    @property
    def bank_version(self) -> int | None:
        """Frozen version of the bank that the rollouts see; None without a bank."""
        return None if self.agent.bank is None else self.agent.bank.snapshot.version

    def finish(self, index: int, episode: ActiveRollout) -> None:
        """Store and report the rollout at `index` if it has ended."""
        if episode.stop_reason is not None and index not in self.finished:
            self.finished[index] = episode.finish(self.bank_version)
            self.on_rollout_end(self.finished[index])

    def build_request(self, episode: ActiveRollout, known: PromptCache) -> Request | None:
        """The next request of a rollout; None if it has ended, now perhaps for lack of time or room.

        Rollouts at the same point share their conversation, whose tokens are looked up in `known`.
        """
        if episode.stop_reason is None and episode.remaining_s is not None and episode.remaining_s <= 0:
            episode.mark_timeout()
        if episode.stop_reason is not None:
            return None
        fits: bool | None = None
        tools = self.agent.offered
        ids = self._continued(episode) if episode.steps and (tools or self.agent.memory == "episode") else None
        if ids is not None:
            request, length = Request(token_ids=ids, tools=tools), len(ids)
        else:
            prompt = self.agent.prompt(episode.scene)
            messages, fits = prompt.messages, prompt.fits
            episode.left_out = {**prompt.left_out, **episode.skills_had_no_room}
            if messages not in known:
                try:
                    # A backend of the user's own takes tools only if its agents have some.
                    found = cast(Any, self.backend).encode(messages, *([tools] if tools else []))
                except ModelError as error:
                    if not episode.steps or not tools:
                        raise
                    episode.fail(error)  # as Llama's template refuses two calls in a turn
                    return None
                length = self.backend.count(messages) if found is None else len(found)
                known[messages] = Request(messages, token_ids=found, tools=tools), length
            request, length = known[messages]
        length -= episode.skill_tokens
        limit = self.settings.max_prompt_tokens
        if limit is not None and (length > limit if fits is None else not fits):
            episode.mark_context_overflow(length, limit)
            return None
        if not self.settings.constrain:
            return request
        choices, slot_words = self.agent.choices(episode.scene)
        if slot_words and not getattr(self.backend, "limits_slots", False):
            raise ConfigError(
                "agent.structured_actions with an agent.observations form whose slots accept only certain words needs a backend that can restrict them; this rollout.backend cannot. Use hf, or --set agent.structured_actions=false."
            )
        return replace(request, choice=choices, slot_words=slot_words)

    def _continued(self, episode: ActiveRollout) -> tuple[int, ...] | None:
        """The tokens of an episode so far, what is seen now, and the beginning of the next answer.

        None if an agent with tools has a shortened conversation, or a chat template that does more than append: the prompt of this turn is
        then rendered anew, as a sequence of its own.
        """
        last = episode.steps[-1]
        assert last.completion is not None
        try:
            if last.calls:
                later = cast(Any, self.backend).encode_results(results_of(last), last.completion)
            else:
                later = self.backend.encode_next(self.agent.next_message(episode.scene), last.completion)
        except (ConfigError, ModelError) as error:
            if self.agent.memory == "episode":
                raise
            warnings.warn(f"Turns after the first are rendered anew. {error}", stacklevel=2)
            return None
        return None if later is None else (*last.prompt_ids, *last.completion.token_ids, *later)

    async def apply_completion(self, episode: ActiveRollout, generation: Generation, completion: Completion) -> None:
        """Parse the action of a completion and step the environment."""
        completion = checked(completion)
        calls = completion.calls or ()
        if self.agent.offered and completion.calls is None and completion.finish_reason != "error":
            plain = replace(completion, text=completion.model_text, inserted_spans=())
            text, calls = cast(Any, self.backend).tool_calls(plain, self.agent.offered, generation.prompt_ids)
            completion = replace(plain, text=text) if calls else completion
        if calls:
            calls, read = self.agent.answer_calls(calls, episode.task, episode.notes)
            episode.retrieved += read
            completion = replace(completion, calls=None)
            await episode.call_tools(generation.prompt_ids, completion, self.settings.max_turns, calls)
            return
        projection = self.agent.read(completion.model_text, episode.scene, constrained=self.settings.constrain)
        await episode.act(generation.prompt_ids, completion, self.settings.max_turns, projection)
        if self.agent.skills is not None and self.agent.skills.episode_notes and episode.error is None:
            episode.notes += tuple(note(text, episode.task) for text in operations(episode.steps[-1:]).generate)


def attach_prompt_skills(episodes: Sequence[ActiveRollout], agent: Agent, backend: Backend) -> None:
    """Select the skills of every first prompt in one search; rollouts with the same task and first observation get the same skills."""
    if agent.skills is None:
        return
    begun = {(episode.task.id, episode.observation): episode for episode in episodes}
    scenes = [episode.scene for episode in begun.values()]
    chosen = agent.select_skills(
        [episode.task for episode in begun.values()], [each.task or each.observation for each in scenes]
    )
    bare = agent.with_bank(None)  # a prompt as its limit counts it
    for episode, scene, shown in zip(begun.values(), scenes, chosen, strict=True):
        if agent.window is None:  # which counts for itself
            with_skills = agent.prompt(replace(scene, skills=shown.skills)).messages
            episode.skill_tokens = backend.count(with_skills) - backend.count(bare.prompt(scene).messages)
        episode.skills = shown.skills
        episode.skills_had_no_room = {"skills": shown.left_out} if shown.left_out else {}
    for episode in episodes:
        first = begun[episode.task.id, episode.observation]
        episode.skills, episode.skill_tokens = first.skills, first.skill_tokens
        episode.skills_had_no_room = first.skills_had_no_room


async def generate_turn(
    requests: Sequence[Request], asking: Sequence[Sequence[ActiveRollout]], run: RolloutContext, seed: int
) -> list[tuple[Generation, Sequence[ActiveRollout]]]:
    """Generate one turn: each request's generation with its rollouts; nothing where the time of all of them is over.

    Where the agent has a bank, queries in the middle of a completion are answered there and then.
    """
    every = [episode for row in asking for episode in row]
    left = max((episode.remaining_s for episode in every if episode.remaining_s is not None), default=None)
    began = time.monotonic()
    try:
        async with asyncio.timeout(left) as clock:
            with _naming_backend(run.backend, every):
                return list(zip(await _generate(requests, asking, run, seed), asking, strict=True))
    except TimeoutError:
        if not clock.expired():  # it is the sampler's own
            raise
    finally:
        for episode in every:
            episode.elapsed_s += time.monotonic() - began
    for episode in every:
        episode.mark_timeout()
    return []


def _naming_backend(backend: Backend, asking: Sequence[ActiveRollout]) -> AbstractContextManager[None]:
    """Name a backend of the user's own in its errors (`naming`); errors of a built-in backend stay as they are."""
    source: Any = backend
    while isinstance(source, BatchingBackend | HandOver):
        source = source.source
    if type(source).__module__.partition(".")[0] == "skill_ttrl":
        return nullcontext()
    tasks = list(dict.fromkeys(episode.task.id for episode in asking))
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return naming(f"The backend {type(source).__module__}:{type(source).__qualname__}", f"on task {tasks[0]!r}{more}")


async def _generate(
    requests: Sequence[Request], asking: Sequence[Sequence[ActiveRollout]], run: RolloutContext, seed: int
) -> list[Generation]:
    agent = run.agent
    if agent.skills is None:
        return await run.backend.generate(requests, run.settings.sampling, seed=seed)

    def tell(pauses: Sequence[InsertionPoint]) -> list[str | None]:
        owners = [asking[pause.request][pause.sample] for pause in pauses]
        queries = [
            RetrievalQuery(owner.task, pause.written, owner.notes) for owner, pause in zip(owners, pauses, strict=True)
        ]
        answers = agent.retrieve(queries)
        for owner, answer in zip(owners, answers, strict=True):
            owner.retrieved += answer.skills if answer is not None else ()
        # Other tags may end in "/>".
        unreadable = ("" if pause.stop_marker == RETRIEVE_END else None for pause in pauses)
        return [nothing if answer is None else answer.text for answer, nothing in zip(answers, unreadable, strict=True)]

    return await generate_with_insertions(
        run.backend,
        requests,
        run.settings.sampling,
        seed=seed,
        stop_markers=RETRIEVE_MARKS,
        answer=tell,
        limit=agent.max_retrievals,
    )


def all_unanswered(groups: Sequence[Group]) -> bool:
    """True if the model gave no answer in any rollout."""
    return all(trajectory.stop_reason == "no_answer" for group in groups for trajectory in group.trajectories)


def refuse_failure(groups: Sequence[Group]) -> list[str]:
    """Return the errors of the failed rollouts. A failed rollout is data, unless there is nothing else.

    Raises:
        EndpointError: the model gave no answer in any rollout.
        EnvError: every rollout failed: the environment is broken, and there is nothing to learn from or to measure.
    """
    rollouts = [trajectory for group in groups for trajectory in group.trajectories]
    errors = [trajectory.error for trajectory in rollouts if trajectory.error is not None]
    if rollouts and all_unanswered(groups):
        raise EndpointError(
            f"The model gave no answer in any of {len(rollouts)} rollouts. The first: {errors[0]}", "failed"
        )
    if errors and len(errors) == len(rollouts):
        raise EnvError(f"All {len(rollouts)} rollouts failed in {groups[0].task.env_id}. The first error: {errors[0]}")
    return errors
