"""Demonstrations as tokens: of a data set, or of collected episodes."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from skill_ttrl.agents.action_parser import possible
from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.config import BUILTIN
from skill_ttrl.data.episodes import names_of, read_episodes
from skill_ttrl.data.families import Demonstration, Told, Written
from skill_ttrl.data.tasks import load_demonstrations
from skill_ttrl.errors import DataError, EndpointError, RunFolderError, annotate_error
from skill_ttrl.llm.chat import (
    answer_end,
    answer_form,
    count_unknown,
    encode_chats,
    encode_next,
    encode_plain,
    missing_end,
    turn_end,
)
from skill_ttrl.progress import Progress
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rollout.scripted import ADVICE
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.querying import OPENAI, LLMQuerier, shortened
from skill_ttrl.stages.inputs.demonstrate import (
    MEMORY,
    Coverage,
    EpisodeShown,
    StepShown,
    answer_note,
    as_chat,
    coverage,
    demonstrate,
    demonstrate_episodes,
    scene_at,
)
from skill_ttrl.stages.inputs.leak import foreign_splits, refuse_leak, seen_prompts, seen_tasks, training_splits
from skill_ttrl.stages.training.run import Meter, TrainingComponents
from skill_ttrl.stages.training.run_bank import models_of
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Message, Skill, Step, Trajectory, derive_seed
from skill_ttrl.types.thoughts import content

PHASE = "thoughts"
BATCH = 64
"""Questions that go out together: between them it can be stopped, and says how far it is."""
SHOWN_CHARS = 24_000
MOST_CHARS = 1200
"""Longest thought in characters; a longer one is cut."""
KEPT = "The answers received so far are saved with the run and will be reused."
"""Said of thoughts that were paid for, where the others failed."""
_MESSAGES = TypeAdapter(list[Message])
TAGS = ("<think>", "</think>", "<action>", "</action>")


class ThoughtAnswer(BaseModel):
    """The teacher's answer."""

    model_config = ConfigDict(extra="forbid")
    thought: str


def with_thoughts(shown: Sequence[StepShown], asking: LLMQuerier, progress: Progress) -> list[StepShown]:
    """The demonstrations with thoughts. One that could not be had stays empty, which is said, unless `skills.on_failure` is `stop`.

    Args:
        shown: the demonstrations.
        asking: the model.
        progress: reports how far it is.

    Raises:
        EndpointError: no usable answer came, under `stop`.
        BudgetError: what may be spent is spent.
    """
    progress.start(PHASE, len(shown), "thought")
    found: list[StepShown] = []
    failed = 0
    for begin in range(0, len(shown), BATCH):
        batch = shown[begin : begin + BATCH]
        ways = "skills.on_failure=skip omits the thought of such a demonstration"
        with annotate_error(EndpointError, f"Nothing was trained; {ways}. {KEPT}"):
            answers = asking.ask([question(each, asking) for each in batch], ThoughtAnswer)
        for each, answer in zip(batch, answers, strict=True):
            if isinstance(answer, EndpointError):
                failed += 1
                found.append(each)
            else:
                found.append(replace(each, thought=cleaned(answer.thought)))
        progress.advance(PHASE, len(found), {"failed": float(failed)})
    progress.finish(PHASE)
    if failed:
        progress.notice(
            f"The teacher gave no thought for {failed} of {len(shown)} demonstrations; they have none.", warning=True
        )
    return found


def question(shown: StepShown, asking: LLMQuerier) -> tuple[Message, ...]:
    """The question to the teacher about one demonstration."""
    prompt = "\n\n".join(message.content for message in shown.messages)
    request = asking.templates.render(
        "thought_request", shown=shortened(prompt, SHOWN_CHARS), done=shortened(shown.action, SHOWN_CHARS)
    )
    return (Message("system", asking.templates.render("thought")), Message("user", request))


def cleaned(thought: str) -> str:
    """A thought as it may stand in `<think>`: without tags that would end it or act, of bounded length."""
    for tag in TAGS:
        thought = thought.replace(tag, "")
    return thought.strip()[:MOST_CHARS]


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
    """Tokens of each answer in the form of the chat template (`answer_form`), and `end` behind them."""
    written = list(map(answer_form(tokenizer), texts)) if texts else []
    found = tokenizer(written, add_special_tokens=False)["input_ids"] if texts else []
    return {text: (*ids, end) for text, ids in zip(texts, found, strict=True)}


def encode_advised(
    tokenizer: Any,
    agent: Agent,
    trajectories: Sequence[Trajectory],
    *,
    tagged: bool,
) -> list[EncodedDemonstration]:
    """Episodes that a policy played while an expert watched (`ScriptedPlayer`), as tokens; what is learnt is what the expert would have said.

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


Encoded = tuple[list[EncodedDemonstration], list[EncodedDemonstration]]
"""(clean, noisy) demonstrations as tokens."""

DEMONSTRATIONS, COVERAGE = "demonstrations.jsonl", "coverage.json"
"""Files of a run that imitates episodes."""
MANY = 20_000
"""Demonstrations whose tokenising takes long enough to be announced."""


def encode_demonstrations(
    parts: TrainingComponents,
    meter: Meter,
    folder: RunFolder,
    progress: Progress,
    warnings: list[str],
    *,
    resumed: bool = False,
) -> Encoded:
    """(clean, noisy) demonstrations as tokens; the two are the same where the source has no noise.

    Args:
        parts: what encodes them.
        meter: knows the tasks that are measured on.
        folder: the run's.
        progress: shows the data that is imitated.
        warnings: gets lines for the summary on held-out tasks that are imitated.
        resumed: the run continues from a checkpoint.
    """
    config, source = parts.config.sft, parts.config.demonstration_source
    if source is None:
        # A run that goes on imitates what it began with: thoughts that a model wrote come once, and files of others change.
        path = folder.path / DEMONSTRATIONS
        if resumed and path.is_file():
            encoded = encode_kept(parts, path)
        else:
            encoded = encode_episodes(parts, meter, folder, progress, warnings)
        return encoded, encoded
    seed = derive_seed(parts.config.seed, "demonstrations")
    demonstrations = load_demonstrations(source, seed=seed)
    if not demonstrations:
        raise DataError(f"{source.name} holds no demonstrations.")
    if note := answer_note(parts.config, demonstrations):
        warnings.append(note)
    prompts = seen_prompts(shown.prompt for shown in demonstrations)
    if not resumed:
        warnings += meter.demonstration_leaks(parts.config, prompts, f"sft.data ({source.name})")
    if len(demonstrations) >= MANY:
        progress.notice(f"Tokenizing {len(demonstrations):,} demonstrations ...")
    tokenizer, agent = parts.policy.tokenizer, agent_of(parts)
    noisy = encode_written(tokenizer, agent, demonstrations)
    refuse_too_long(parts, noisy, f"The longest demonstration of {source.name}")
    if config.noise_free_fraction == 0:
        return noisy, noisy
    if not source.path.startswith("synthetic:"):
        progress.notice(
            f"sft.noise_free_fraction ({config.noise_free_fraction}) has no effect: it needs a generated family, and {source.name} is a file. Set it to 0.",
            warning=True,
        )
        return noisy, noisy
    return encode_written(tokenizer, agent, load_demonstrations(source, seed=seed, noise=0.0)), noisy


def encode_episodes(
    parts: TrainingComponents, meter: Meter, folder: RunFolder, progress: Progress, warnings: list[str]
) -> list[EncodedDemonstration]:
    """Steps of collected episodes as tokens. Writes them into the run's folder, as chats that other trainers read, with their coverage.

    Raises:
        ConfigError: there are no episodes.
        DataError: they cannot be read, or there is nothing to imitate.
    """
    config, whole = parts.config.demonstrations, parts.config
    files = whole.demonstrations.trajectories
    assert files is not None  # a rule
    episodes, agent = list(read_episodes(files, progress)), agent_of(parts)
    tagged = whole.agent.action_parser != "none"
    what = f"demonstrations.trajectories ({names_of(files)})"
    refuse_leak(foreign_splits(episodes, training_splits(whole), what))
    warnings += meter.demonstration_leaks(whole, seen_tasks(episode.task for episode in episodes), what)
    if agent.memory == MEMORY:
        grown, shown, imitated, left_out = demonstrate_episodes(episodes, agent, config, whole.seed, tagged=tagged)
        encoded, chats = _encode_grown(parts, grown), [each.as_chat() for each in grown]
    else:
        shown, imitated, left_out = demonstrate(episodes, agent, config, whole.seed)
        if config.rationale == OPENAI:
            shown = with_thoughts(shown, models_of(whole).asking("teacher"), progress)
        encoded = _encode_chats(parts, [(each.messages, each.response(tagged)) for each in shown])
        chats = [as_chat(each, tagged) for each in shown]
    found = coverage(shown, imitated, list(parts.bank.skills), left_out)
    folder.write_text(DEMONSTRATIONS, "".join(json.dumps(each) + "\n" for each in chats))
    folder.write_json(COVERAGE, asdict(found))
    progress.notice(said_of(found))
    tokenizer = parts.policy.tokenizer
    unknown, read = count_unknown(tokenizer, [ids for each in encoded for ids in (each.prompt_ids, each.response_ids)])
    if unknown:
        progress.notice(
            f"Of the demonstrations, {unknown:,} of {read:,} tokens ({unknown / read:.2%}) are {tokenizer.unk_token}: words that the "
            "policy's tokenizer does not know.",
            warning=True,
        )
    return encoded


def _encode_grown(parts: TrainingComponents, episodes: Sequence[EpisodeShown]) -> list[EncodedDemonstration]:
    """Whole episodes, each one example."""
    encoded = encode_shown(parts.policy.tokenizer, episodes)
    refuse_too_long(parts, encoded, "The longest episode")
    return encoded


def encode_kept(parts: TrainingComponents, path: Path) -> list[EncodedDemonstration]:
    """The demonstrations that a run has kept (`DEMONSTRATIONS`), as tokens.

    Raises:
        RunFolderError: it was changed.
    """
    try:
        if parts.config.agent.whole_episodes:
            return _encode_grown(parts, [EpisodeShown.from_chat(row) for row in read_jsonl(path)])
        said = [_MESSAGES.validate_python(row["messages"]) for row in read_jsonl(path)]
        chats = [(tuple(asked), answer.content) for *asked, answer in said]
    except (KeyError, TypeError, ValueError, StopIteration):
        chats = []
    if not chats:
        raise RunFolderError(f"{path} has changed since this run started. Restore it, or start a new run.")
    return _encode_chats(parts, chats)


def _encode_chats(
    parts: TrainingComponents, chats: Sequence[tuple[tuple[Message, ...], str]]
) -> list[EncodedDemonstration]:
    """Prompts and what is answered to them."""
    tokenizer = parts.policy.tokenizer
    answers = encode_answers(tokenizer, [answer for _, answer in chats], answer_end(tokenizer))
    prompts = encode_chats(tokenizer, [messages for messages, _ in chats])
    encoded = [
        EncodedDemonstration(prompt, answers[answer]) for prompt, (_, answer) in zip(prompts, chats, strict=True)
    ]
    refuse_too_long(parts, encoded, "The longest demonstration")
    return encoded


def said_of(found: Coverage) -> str:
    """Describe the coverage of demonstrations in a line or two."""
    said = f"Imitating {found.examples:,} steps of {found.episodes:,} episodes, {found.won:,} of them won."
    if found.not_written:
        said += f" {found.not_written:,} steps are skipped because agent.observations cannot write their action, or an earlier one of the episode."
    if found.skills_shown:
        said += f" {found.no_skill_fraction:.0%} of the prompts have no skills."
    return said


def refuse_too_long(parts: TrainingComponents, encoded: Sequence[EncodedDemonstration], what: str) -> None:
    """Raise `DataError` where an example is longer than the model's positions; `what` names the longest."""
    prompt, response = max(((len(one.prompt_ids), len(one.response_ids)) for one in encoded), key=sum)
    positions = getattr(parts.policy.model.config, "max_position_embeddings", None)
    if positions is not None and prompt + response > positions:
        builtin = parts.config.model.path == BUILTIN
        more = (
            f"set model.builtin.max_positions={prompt + response}" if builtin else "use a model with more (model.path)"
        )
        raise DataError(
            f"{what} has {prompt + response} tokens (prompt {prompt}, response {response}), but the model has {positions} positions. "
            f"Shorten it, or {more}."
        )


def encode_written(tokenizer: Any, agent: Agent, demonstrations: Sequence[Demonstration]) -> list[EncodedDemonstration]:
    """Tokenize demonstrations as the model will see them: skills in the prompt, retrieved skills inserted and excluded from the loss."""
    pieces, form = [list(shown.parts()) for shown in demonstrations], answer_form(tokenizer)
    for shown, row in zip(demonstrations, pieces, strict=True):
        if isinstance(first := row[0], Written) and (len(row) == 1 or content(shown.response) == shown.response):
            row[0] = Written(form(first.text), first.learnt)
    texts = list(dict.fromkeys(piece.text for row in pieces for piece in row if isinstance(piece, Written)))
    written = dict(zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True)) if texts else {}
    scenes = [
        AgentInput(shown.prompt, _turns(shown.before), skills=tuple(map(_skill, shown.skills)))
        for shown in demonstrations
    ]
    prompts = encode_chats(tokenizer, [agent.prompt(scene).messages for scene in scenes])
    encoded, end = [], answer_end(tokenizer)
    for prompt, row in zip(prompts, pieces, strict=True):
        ids: list[int] = []
        mask: list[bool] = []
        for piece in row:
            if isinstance(piece, Told):
                told = agent.formatter.render_retrieved([_skill(text) for text in piece.skills])
                tokens, learnt = encode_plain(tokenizer, told), False
            else:
                tokens, learnt = written[piece.text], piece.learnt
            ids += tokens
            mask += [learnt] * len(tokens)
        encoded.append(EncodedDemonstration(prompt, (*ids, end), (*mask, True)))
    return encoded


def agent_of(parts: TrainingComponents) -> Agent:
    """The agent with the bank as it is now."""
    return parts.worker.with_bank(parts.bank.view()).agent


def _turns(before: Sequence[tuple[str, str]]) -> tuple[Step, ...]:
    return tuple(Step(prompt, response, 0.0, False, False) for prompt, response in before)


def _skill(text: str) -> Skill:
    return Skill("demonstration", "", text)
