"""One turn of tries: from where they stand to prompts, answers, actions and steps. Who goes when is `rollout`'s."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from skill_ttrl.agents.agent import Agent, RetrievalQuery
from skill_ttrl.llm.backend import Backend, Generation, Request, Sampling
from skill_ttrl.llm.batching import BatchingBackend
from skill_ttrl.llm.pauses import InsertionPoint, generate_with_insertions
from skill_ttrl.registry import naming
from skill_ttrl.rollout.episode import ActiveRollout, operations
from skill_ttrl.skills.bank.changes import replace_surrogates
from skill_ttrl.skills.merge.plan import note
from skill_ttrl.skills.ops import RETRIEVE_END, RETRIEVE_MARKS
from skill_ttrl.types import Completion, Message, Trajectory

PromptCache = dict[tuple[Message, ...], tuple[Request, int]]
"""The request and the tokens of conversations that have been looked at."""

ROUNDING = 1e-3
"""How far above 0 rounding may put a log-prob (nats)."""


@dataclass
class Play:
    """What all tries of one rollout share."""

    agent: Agent
    backend: Backend
    sampling: Sampling
    seed: int
    max_turns: int
    max_prompt_tokens: int | None
    constrain: bool
    tell: Callable[[Trajectory], None]
    """Told of each try as it ends."""
    ended: dict[int, Trajectory] = field(default_factory=dict)
    """By the place of the try among all."""

    @property
    def bank_version(self) -> int | None:
        """The frozen version of the bank that the tries see; None where they see none."""
        return None if self.agent.bank is None else self.agent.bank.snapshot.version

    def end(self, place: int, episode: ActiveRollout) -> None:
        """Keep and tell what has ended; what has not goes on."""
        if episode.stop_reason is not None and place not in self.ended:
            self.ended[place] = episode.finish(self.bank_version)
            self.tell(self.ended[place])

    def ask(self, episode: ActiveRollout, known: PromptCache) -> Request | None:
        """What the model is asked for a try; None where it has ended: before, or because there is no time or room for more.

        Tries at the same point share their conversation, whose tokens are looked up in `known`.
        """
        if episode.stop_reason is None and episode.left is not None and episode.left <= 0:
            episode.mark_timeout()
        if episode.stop_reason is not None:
            return None
        prompt = self.agent.prompt(episode.scene)
        messages, episode.left_out = prompt.messages, {**prompt.left_out, **episode.skills_had_no_room}
        if messages not in known:
            ids = self.backend.encode(messages)
            known[messages] = (
                Request(messages, token_ids=ids),
                self.backend.count(messages) if ids is None else len(ids),
            )
        request, length = known[messages]
        length -= episode.skill_tokens
        limit = self.max_prompt_tokens
        if limit is not None and (length > limit if prompt.fits is None else not prompt.fits):
            episode.mark_context_overflow(length, limit)
            return None
        return replace(request, choices=episode.admissible if self.constrain else ())

    async def take(self, episode: ActiveRollout, generation: Generation, completion: Completion) -> None:
        """What the model wrote becomes an action, and the action a step."""
        completion = checked(completion)
        projection = self.agent.read(completion.written, episode.scene)
        await episode.act(generation.prompt_ids, completion, self.max_turns, projection)
        if self.agent.skills is not None and self.agent.skills.own_notes and episode.error is None:
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
    text, error = (
        replace_surrogates(completion.text),
        None if completion.error is None else replace_surrogates(completion.error),
    )
    same = text == completion.text and error == completion.error
    return completion if same else replace(completion, text=text, error=error)


def attach_prompt_skills(episodes: Sequence[ActiveRollout], agent: Agent, backend: Backend) -> None:
    """Choose the skills of every first prompt, all searched together; tries that begin alike see the same ones."""
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


async def answers(
    requests: Sequence[Request], asking: Sequence[Sequence[ActiveRollout]], play: Play, seed: int
) -> list[tuple[Generation, Sequence[ActiveRollout]]]:
    """What the model answers in one turn, each request with those who asked it; nothing where the time of all of them is over.

    Where the agent has a bank, their questions to it are answered on the way.
    """
    every = [episode for row in asking for episode in row]
    left = max((episode.left for episode in every if episode.left is not None), default=None)
    began = time.monotonic()
    try:
        async with asyncio.timeout(left) as clock:
            with _naming_backend(play.backend, every):
                return list(zip(await _generate(requests, asking, play, seed), asking, strict=True))
    except TimeoutError:
        if not clock.expired():  # it is the sampler's own
            raise
    finally:
        for episode in every:
            episode.spent += time.monotonic() - began
    for episode in every:
        episode.mark_timeout()
    return []


def _naming_backend(backend: Backend, asking: Sequence[ActiveRollout]) -> AbstractContextManager[None]:
    """`naming` for a backend of the user's own; what goes wrong in ours is a fault of ours and stays as it is."""
    source = backend.source if isinstance(backend, BatchingBackend) else backend
    if type(source).__module__.partition(".")[0] == "skill_ttrl":
        return nullcontext()
    tasks = list(dict.fromkeys(episode.task.id for episode in asking))
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return naming(f"The backend {type(source).__module__}:{type(source).__qualname__}", f"at task {tasks[0]!r}{more}")


async def _generate(
    requests: Sequence[Request], asking: Sequence[Sequence[ActiveRollout]], play: Play, seed: int
) -> list[Generation]:
    agent = play.agent
    if agent.skills is None:
        return await play.backend.generate(requests, play.sampling, seed=seed)

    def tell(pauses: Sequence[InsertionPoint]) -> list[str | None]:
        owners = [asking[pause.request][pause.sample] for pause in pauses]
        queries = [
            RetrievalQuery(owner.task, pause.written, owner.notes) for owner, pause in zip(owners, pauses, strict=True)
        ]
        answers = agent.retrieve(queries)
        for owner, answer in zip(owners, answers, strict=True):
            owner.retrieved += answer.skills if answer is not None else ()
        unreadable = (
            "" if pause.stop_marker == RETRIEVE_END else None for pause in pauses
        )  # other tags may end in "/>"
        return [nothing if answer is None else answer.text for answer, nothing in zip(answers, unreadable, strict=True)]

    return await generate_with_insertions(
        play.backend,
        requests,
        play.sampling,
        seed=seed,
        stop_markers=RETRIEVE_MARKS,
        answer=tell,
        limit=agent.max_retrievals,
    )
