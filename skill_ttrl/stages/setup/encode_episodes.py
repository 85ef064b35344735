"""Whole episodes as tokens: one example each, of which what an expert would have said is learnt."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from skill_ttrl.agents.action_parser import possible
from skill_ttrl.agents.agent import Agent
from skill_ttrl.llm.chat import answer_end, encode_chats, encode_next, missing_end, turn_end
from skill_ttrl.rl.pack import EncodedDemonstration
from skill_ttrl.rollout.scripted import ADVICE
from skill_ttrl.stages.inputs.demonstrate import scene_at
from skill_ttrl.stages.inputs.whole_episodes import MEMORY, EpisodeShown
from skill_ttrl.types import Message, Skill, Step, Trajectory


class _Grown:
    """The tokens of an episode after its first prompt, while they are put together."""

    def __init__(self) -> None:
        self.tokens, self.labels = array("l"), array("l")
        self.mask: list[bool] = []

    def act(self, done: Sequence[int], learnt: Sequence[int] | None) -> None:
        """An answer; what is learnt is `learnt`, up to and including the first token that differs from what was done."""
        labels, mask = label_answer(done, learnt)
        self.tokens.extend(done)
        self.labels.extend(labels)
        self.mask += mask

    def see(self, tokens: Sequence[int]) -> None:
        """Add tokens that follow an answer; none of them is learnt."""
        self.tokens.extend(tokens)
        self.labels.extend(tokens)
        self.mask += [False] * len(tokens)

    def example(self, prompt: Sequence[int]) -> EncodedDemonstration | None:
        """All of it, up to the last token that is learnt; None where none is."""
        end = len(self.mask) - (self.mask[::-1].index(True) if any(self.mask) else len(self.mask))
        if end == 0:
            return None
        tokens, labels = self.tokens[:end], self.labels[:end]
        return EncodedDemonstration(
            array("l", prompt), tokens, tuple(self.mask[:end]), None if labels == tokens else labels
        )


def label_answer(done: Sequence[int], learnt: Sequence[int] | None) -> tuple[list[int], list[bool]]:
    """Label and mask of each token of an answer, both with their end token.

    Where the two part, the last label is the token that should have stood there: what came after it was said after another one.
    Where one begins the other, that is the end token, or the first token after it.
    """
    labels, mask = list(done), [False] * len(done)
    for place, (token, wanted) in enumerate(zip(done, learnt or (), strict=False)):
        labels[place], mask[place] = wanted, True
        if token != wanted:
            break
    return labels, mask


def encode_shown(tokenizer: Any, episodes: Sequence[EpisodeShown]) -> list[EncodedDemonstration]:
    """Demonstrations of whole episodes as tokens.

    Raises:
        ConfigError: the chat template does not only append (`encode_next`).
    """
    texts = {text for each in episodes for turn in each.turns for text in (turn.done, turn.learnt) if text is not None}
    answers = encode_answers(tokenizer, sorted(texts), turn_end(tokenizer)) if texts else {}
    seen: dict[Message, Sequence[int]] = {}
    encoded = []
    for episode, prompt in zip(episodes, encode_chats(tokenizer, [each.prompt for each in episodes]), strict=True):
        grown = _Grown()
        for turn in episode.turns:
            grown.act(answers[turn.done], None if turn.learnt is None else answers[turn.learnt])
            if turn.seen is not None:
                if turn.seen not in seen:
                    seen[turn.seen] = encode_next(tokenizer, turn.seen)
                grown.see(seen[turn.seen])
        example = grown.example(prompt)
        if example is not None:
            encoded.append(example)
    return encoded


def encode_answers(tokenizer: Any, texts: Sequence[str], end: int) -> dict[str, tuple[int, ...]]:
    """Tokens of each answer, and `end` behind them."""
    found = tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
    return {text: (*ids, end) for text, ids in zip(texts, found, strict=True)}


def encode_advised(
    tokenizer: Any,
    agent: Agent,
    trajectories: Sequence[Trajectory],
    *,
    tagged: bool,
) -> list[EncodedDemonstration]:
    """Episodes that a policy played while an expert watched (`Adviser`), as tokens; what is learnt is what the expert would have said.

    Where an episode is one growing conversation it is one example, else each of its steps is. Its tokens are those that were sampled.
    Failed episodes, and advice that was not possible, are left out.
    """
    known = {} if agent.bank is None else {skill.id: skill for skill in agent.bank.snapshot}
    rows = [
        (each, [_advised(agent, each, place, known, tagged) for place in range(len(each.steps))])
        for each in trajectories
        if each.error is None
    ]
    texts = sorted({text for _, row in rows for text in row if text is not None})
    if agent.memory != MEMORY:
        answers = encode_answers(tokenizer, texts, answer_end(tokenizer))
        return [
            EncodedDemonstration(array("l", step.prompt_ids), array("l", answers[text]))
            for each, row in rows
            for step, text in zip(each.steps, row, strict=True)
            if text is not None
        ]
    ended = encode_answers(tokenizer, texts, turn_end(tokenizer))
    encoded = [_grow(tokenizer, each.steps, [ended.get(text or "") for text in row]) for each, row in rows]
    return [each for each in encoded if each is not None]


def _advised(agent: Agent, trajectory: Trajectory, place: int, known: Mapping[str, Skill], tagged: bool) -> str | None:
    """The text that the expert would have written at a step; None where that was not possible there, or has no form."""
    step = trajectory.steps[place]
    advice = step.info.get(ADVICE)
    if not isinstance(advice, str) or step.completion is None:
        return None
    if step.admissible_actions and not possible(advice, step.admissible_actions):
        return None
    skills = tuple(known[name] for name in trajectory.skills_in_prompt if name in known)
    answer = agent.answer(advice, scene_at(trajectory, place, skills))
    return f"<action>{answer}</action>" if tagged and answer is not None else answer


def _grow(tokenizer: Any, steps: Sequence[Step], learnt: Sequence[Sequence[int] | None]) -> EncodedDemonstration | None:
    """One episode of a growing conversation.

    Raises:
        ValueError: a prompt does not begin with the one before and what was answered.
    """
    grown, prompt = _Grown(), array("l", steps[0].prompt_ids if steps else ())
    for place, (step, wanted) in enumerate(zip(steps, learnt, strict=True)):
        assert step.completion is not None  # a step of a policy
        done = (*step.completion.token_ids, *missing_end(tokenizer, step.completion))
        grown.act(done, wanted)
        if place + 1 < len(steps):
            begun, later = len(step.prompt_ids) + len(done), steps[place + 1].prompt_ids
            if later[:begun] != (*step.prompt_ids, *done):
                raise ValueError(f"The prompt of step {place + 1} does not continue the previous prompt.")
            grown.see(later[begun:])
    return grown.example(prompt)
