"""One rollout turn: build prompts, generate completions, parse actions, step environments. Scheduling lives in `rollout`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from skill_ttrl.agents.agent import Agent, RetrievalQuery
from skill_ttrl.agents.scripted import ScriptedAgent
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling
from skill_ttrl.llm.hand_over import BatchingBackend, HandOver
from skill_ttrl.llm.pauses import InsertionPoint, generate_with_insertions
from skill_ttrl.registry import naming
from skill_ttrl.rollout.episode import ActiveRollout, operations
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.skills.merge.plan import note
from skill_ttrl.skills.ops import RETRIEVE_END, RETRIEVE_MARKS
from skill_ttrl.types import Completion, Message, Trajectory

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
    """Makes a scripted agent that watches a rollout and says at each state what it would do (`Adviser`); None: none does."""
    schedule: Schedule = "sync"
    """`sync` calls environments here and in order, `async` in threads."""
    rollout_timeout_s: float | None = None
    """An episode that has taken so long has failed (`stop_reason` "timeout"). Environments are then called in threads in either
    schedule, and one that hangs is not used again. None: it may take any time."""


PromptCache = dict[tuple[Message, ...], tuple[Request, int]]
"""The request and the tokens of conversations that have been looked at."""

ROUNDING = 1e-3
"""How far above 0 rounding may put a log-prob (nats)."""


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
        if self.agent.memory == "episode" and episode.steps:
            ids = self._continued(episode)
            request, length = Request(token_ids=ids), len(ids)
        else:
            prompt = self.agent.prompt(episode.scene)
            messages, fits = prompt.messages, prompt.fits
            episode.left_out = {**prompt.left_out, **episode.skills_had_no_room}
            if messages not in known:
                found = self.backend.encode(messages)
                length = self.backend.count(messages) if found is None else len(found)
                known[messages] = Request(messages, token_ids=found), length
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

    def _continued(self, episode: ActiveRollout) -> tuple[int, ...]:
        """The tokens of an episode so far, what is seen now, and the beginning of the next answer."""
        last = episode.steps[-1]
        assert last.completion is not None
        later = self.backend.encode_next(self.agent.next_message(episode.scene), last.completion)
        assert later is not None  # `check_grows`
        return (*last.prompt_ids, *last.completion.token_ids, *later)

    async def apply_completion(self, episode: ActiveRollout, generation: Generation, completion: Completion) -> None:
        """Parse the action of a completion and step the environment."""
        completion = checked(completion)
        projection = self.agent.read(completion.model_text, episode.scene, constrained=self.settings.constrain)
        await episode.act(generation.prompt_ids, completion, self.settings.max_turns, projection)
        if self.agent.skills is not None and self.agent.skills.episode_notes and episode.error is None:
            episode.notes += tuple(note(text, episode.task) for text in operations(episode.steps[-1:]).generate)


def checked(completion: Completion) -> Completion:
    """A backend's completion as it may be used: one whose log-probs are none has failed (`finish_reason` "error").

    Halves of characters (lone surrogates) in its text are replaced one by one, so that spans of it stay right.
    """
    logprobs = completion.logprobs
    if logprobs and not (math.isfinite(sum(logprobs)) and max(logprobs) <= ROUNDING):
        place = next(i for i, each in enumerate(logprobs) if not (math.isfinite(each) and each <= ROUNDING))
        problem = (
            f"The backend gave token {place} the log-prob {logprobs[place]:g}: a log-prob is finite and at most 0."
        )
        return replace(completion, finish_reason="error", error=problem)
    text = replace_surrogates(completion.text)
    error = None if completion.error is None else replace_surrogates(completion.error)
    same = text == completion.text and error == completion.error
    return completion if same else replace(completion, text=text, error=error)


def attach_prompt_skills(episodes: Sequence[ActiveRollout], agent: Agent, backend: Backend) -> None:
    """Select the skills of every first prompt in one search; rollouts with the same task and first observation get the same skills."""
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
