"""Demonstrations of a data set or of collected episodes, as prompts and answers, and these as tokens.

A good agent's step is imitated under the prompt that the policy will see, skills included. The skills in it vary: those that are found for
the task, none at all, or others of the bank (`demonstrations` in the config), so that following them is worth learning and doing without
them is learnt as well.
"""

from __future__ import annotations

import json
import random
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter

from skill_ttrl.agents.action_parser import possible, project
from skill_ttrl.agents.agent import Agent, AgentInput, task_skills
from skill_ttrl.config import BUILTIN, DemonstrationsConfig
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
from skill_ttrl.rollout.episode import ADVICE
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.querying import OPENAI, LLMQuerier, shortened
from skill_ttrl.skills.types import goal_of
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.train.run import Meter, TrainingComponents
from skill_ttrl.train.run_bank import models_of
from skill_ttrl.train.tasks import ConfigTasks, of_training, seen_prompts, seen_tasks
from skill_ttrl.types import Message, Skill, Step, Trajectory, content, derive_seed

PHASE = "thoughts"
BATCH = 64
"""Questions that go out together: between them it can be stopped, and says how far it is."""
SHOWN_CHARS = 24_000
MOST_CHARS = 1200
"""Longest thought in characters; a longer one is cut."""
KEPT = "The answers received so far are saved with the run and will be reused."
"""Said of thoughts that were paid for, where the others failed."""
_MESSAGES, _LEARNT = TypeAdapter(list[Message]), TypeAdapter(list[str | None])
TAGS = re.compile("</?(?:think|action)>")
"""What may not stand in a thought: it would end it, or act."""


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

    def question(about: StepShown) -> tuple[Message, ...]:
        prompt = shortened("\n\n".join(message.content for message in about.messages), SHOWN_CHARS)
        done = shortened(about.action, SHOWN_CHARS)
        request = asking.templates.render("thought_request", shown=prompt, done=done)
        return (Message("system", asking.templates.render("thought")), Message("user", request))

    progress.start(PHASE, len(shown), "thought")
    found, failed = list[StepShown](), 0
    for begin in range(0, len(shown), BATCH):
        batch = shown[begin : begin + BATCH]
        ways = "skills.on_failure=skip omits the thought of such a demonstration"
        with annotate_error(EndpointError, f"Nothing was trained; {ways}. {KEPT}"):
            answers = asking.ask([question(each) for each in batch], ThoughtAnswer)
        for each, answer in zip(batch, answers, strict=True):
            thought = "" if isinstance(answer, EndpointError) else TAGS.sub("", answer.thought).strip()[:MOST_CHARS]
            found.append(replace(each, thought=thought))
        failed += sum(isinstance(answer, EndpointError) for answer in answers)
        progress.advance(PHASE, len(found), {"failed": float(failed)})
    progress.finish(PHASE)
    if failed:
        progress.notice(
            f"The teacher gave no thought for {failed} of {len(shown)} demonstrations; they have none.", warning=True
        )
    return found


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
    texts = {message.content for each in episodes for message in each.messages[each.first :: 2]}
    texts |= {text for each in episodes for text in each.learnt if text is not None}
    answers = encode_answers(tokenizer, sorted(texts), turn_end(tokenizer)) if texts else {}
    seen: dict[Message, Sequence[int]] = {}
    encoded = []
    prompts = encode_chats(tokenizer, [each.messages[: each.first] for each in episodes])
    for episode, prompt in zip(episodes, prompts, strict=True):
        grown, said = _Grown(), episode.messages[episode.first :]
        for done, learnt, after in zip(said[::2], episode.learnt, [*said[1::2], None], strict=True):
            grown.act(answers[done.content], None if learnt is None else answers[learnt])
            if after is not None:
                if after not in seen:
                    seen[after] = encode_next(tokenizer, after)
                grown.see(seen[after])
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
    tokenizer: Any, agent: Agent, trajectories: Sequence[Trajectory], *, tagged: bool
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
    tasks = ConfigTasks(parts.config)
    demonstrations = tasks.demonstrations(source)
    if not resumed:
        prompts = seen_prompts(shown.prompt for shown in demonstrations)
        warnings += tasks.keep_apart(meter.eval_tasks, prompts, f"sft.data ({source.name})")
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
    seed = derive_seed(parts.config.seed, "demonstrations")
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
    what = f"demonstrations.trajectories ({names_of(files)})"
    episodes = list(of_training(read_episodes(files, progress), whole.training_splits, what))
    agent, tagged = agent_of(parts), whole.agent.action_parser != "none"
    seen = seen_tasks(episode.task for episode in episodes)
    warnings += ConfigTasks(whole).keep_apart(meter.eval_tasks, seen, what)
    if agent.memory == MEMORY:
        grown, shown, imitated, left_out = demonstrate_episodes(episodes, agent, config, whole.seed, tagged=tagged)
        encoded, chats = encode_shown(parts.policy.tokenizer, grown), [each.as_chat() for each in grown]
        refuse_too_long(parts, encoded, "The longest episode")
    else:
        shown, imitated, left_out = demonstrate(episodes, agent, config, whole.seed)
        if config.rationale == OPENAI:
            shown = with_thoughts(shown, models_of(whole).asking("teacher"), progress)
        said = [(each.messages, each.response(tagged)) for each in shown]
        encoded = _encode_chats(parts, said)
        chats = [
            as_chat((*asked, Message("assistant", answer)), each)
            for (asked, answer), each in zip(said, shown, strict=True)
        ]
    found = coverage(shown, imitated, [] if parts.bank is None else parts.bank.skills, left_out)
    folder.write_text(DEMONSTRATIONS, "".join(json.dumps(each) + "\n" for each in chats))
    folder.write_json(COVERAGE, asdict(found))
    text = f"Imitating {found.examples:,} steps of {found.episodes:,} episodes, {found.won:,} of them won."
    if found.not_written:
        text += f" {found.not_written:,} steps are skipped because agent.observations cannot write their action, or an earlier one of the episode."
    if found.skills_shown:
        text += f" {found.no_skill_fraction:.0%} of the prompts have no skills."
    progress.notice(text)
    tokenizer = parts.policy.tokenizer
    unknown, read = count_unknown(tokenizer, [ids for each in encoded for ids in (each.prompt_ids, each.response_ids)])
    if unknown:
        progress.notice(
            f"Of the demonstrations, {unknown:,} of {read:,} tokens ({unknown / read:.2%}) are {tokenizer.unk_token}: words that the "
            "policy's tokenizer does not know.",
            warning=True,
        )
    return encoded


def encode_kept(parts: TrainingComponents, path: Path) -> list[EncodedDemonstration]:
    """The demonstrations that a run has kept (`DEMONSTRATIONS`), as tokens.

    Raises:
        RunFolderError: it was changed.
    """
    try:
        if parts.config.agent.whole_episodes:
            return encode_shown(parts.policy.tokenizer, [EpisodeShown.from_chat(row) for row in read_jsonl(path)])
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
    prompts = encode_chats(tokenizer, [messages for messages, _ in chats], parts.worker.agent.offered)
    encoded = [
        EncodedDemonstration(prompt, answers[answer]) for prompt, (_, answer) in zip(prompts, chats, strict=True)
    ]
    refuse_too_long(parts, encoded, "The longest demonstration")
    return encoded


def refuse_too_long(parts: TrainingComponents, encoded: Sequence[EncodedDemonstration], what: str) -> None:
    """Raise `DataError` where an example is longer than the model's positions; `what` names the longest."""
    longest = max(encoded, key=attrgetter("length"))
    prompt, response = len(longest.prompt_ids), len(longest.response_ids)
    positions = getattr(parts.policy.model.config, "max_position_embeddings", None)
    if positions is not None and prompt + response > positions:
        more = "use a model with more (model.path)"
        if parts.config.model.path == BUILTIN:
            more = f"set model.builtin.max_positions={prompt + response}"
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
    scenes = []
    for shown in demonstrations:
        before = tuple(
            Step(prompt, response, 0.0, False, False, calls=calls[0] if calls else ())
            for prompt, response, *calls in shown.before
        )
        scenes.append(AgentInput(shown.prompt, before, skills=tuple(map(_skill, shown.skills))))
    prompts = encode_chats(tokenizer, [agent.prompt(scene).messages for scene in scenes], agent.offered)
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
    return parts.worker.with_bank(parts.bank_view()).agent


def _skill(text: str) -> Skill:
    return Skill("demonstration", "", text)


@dataclass(frozen=True, slots=True)
class StepShown:
    """One step to imitate."""

    messages: tuple[Message, ...]
    """The prompt."""
    action: str
    """The action to imitate."""
    thought: str
    """Content of `<think>`; empty: no such tag."""
    task_id: str
    task_type: str
    skills: tuple[str, ...]
    """Ids of the skills in the prompt."""
    answer: str = ""
    """The action as the model writes it: its number, where actions are numbered, or its form; empty: its text."""

    def response(self, tagged: bool) -> str:
        """Target text of the model."""
        thought = f"<think>{self.thought}</think>" if self.thought else ""
        answer = self.answer or self.action
        return f"{thought}<action>{answer}</action>" if tagged else answer


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of demonstrations: actions, types and skills."""

    examples: int
    episodes: int
    """Episodes that the examples come from."""
    won: int
    """Successful ones among these episodes."""
    by_type: Mapping[str, int] = field(default_factory=dict)
    """Examples by type of task."""
    skills_shown: Mapping[str, int] = field(default_factory=dict)
    """Examples whose prompt shows a skill, by its id; skills of the bank that none shows have 0."""
    no_skill_fraction: float = 0.0
    """Share of the examples whose prompts have none."""
    not_possible: int = 0
    """Steps that were left out because what was done was not among the possible actions."""
    not_written: int = 0
    """Steps that were left out because the form of actions cannot write what was done there, or before in their episode."""


ChosenStep = tuple[Trajectory, int, str]
"""An episode, the place of a step in it, and what to do there."""
LeftOut = tuple[int, int]
"""How many steps of the episodes are not imitated: `Coverage.not_possible`, `Coverage.not_written`."""


def chosen_steps(
    trajectories: Sequence[Trajectory], config: DemonstrationsConfig, agent: Agent | None = None
) -> tuple[list[ChosenStep], LeftOut]:
    """(episode, step, what to do there) of what is imitated, in order, and what was left out.

    What the form of actions of `agent` cannot write is not learnt; nor is what follows such an action in its episode, where prompts
    have it.

    Raises:
        DataError: there is nothing to imitate.
    """
    found: list[ChosenStep] = []
    refused = not_written = 0
    for trajectory in trajectories:
        if trajectory.error is not None or not (trajectory.is_success or config.label == "expert"):
            continue
        for place, action, written in _labels(trajectory, config, agent):
            listed = trajectory.steps[place].admissible_actions
            if not (
                action in listed or not listed or project(f"<action>{action}</action>", listed).action_status == "valid"
            ):
                refused += 1
            elif not written:
                not_written += 1
            else:
                found.append((trajectory, place, action))
    if not found:
        won = sum(trajectory.is_success for trajectory in trajectories)
        raise DataError(
            f"There is nothing to imitate with demonstrations.label={config.label}: {won} of {len(trajectories)} episodes succeeded, and "
            f"agent.observations cannot write {not_written} of their steps. Collect more episodes, or use a better agent. label=success "
            "needs successful episodes, label=expert episodes that were collected with --epsilon."
        )
    most = config.examples or len(found)
    if most < len(found):
        found = [found[place * len(found) // most] for place in range(most)]
    return found, (refused, not_written)


def _labels(
    trajectory: Trajectory, config: DemonstrationsConfig, agent: Agent | None
) -> Iterator[tuple[int, str, bool]]:
    """(step, what to do there, True if that and its prompt can be written) of one episode."""
    written = True
    for place, step in enumerate(trajectory.steps):
        advice = step.info.get(ADVICE)
        action = advice if isinstance(advice, str) else None
        if config.label == "success":
            # An episode that was won in spite of a step that its agent did not want shows nothing good at that step.
            action = None if action not in (None, step.action) else step.action
        if agent is None or not agent.writes_form:
            if action is not None:
                yield place, action, True
            continue
        scene = scene_at(trajectory, place, ())
        if action is not None:
            yield place, action, written and agent.answer(action, scene) is not None
        if written and agent.memory != "none":  # its prompts have what was done
            written = agent.answer(step.action, scene) is not None


def demonstrate(
    trajectories: Sequence[Trajectory], agent: Agent, config: DemonstrationsConfig, seed: int
) -> tuple[list[StepShown], list[Trajectory], LeftOut]:
    """The steps to imitate, with the prompts that `agent` makes of them, the episodes that they are of, and what was left out.

    Raises:
        DataError: there is nothing to imitate.
    """
    steps, left_out = chosen_steps(trajectories, config, agent)
    skills = skills_of_episodes(steps, agent, config, seed)
    return show_steps(steps, agent, skills), _episodes(steps), left_out


def show_steps(
    steps: Sequence[ChosenStep], agent: Agent, shown: Mapping[int, tuple[Skill, ...]], *, prompts: bool = True
) -> list[StepShown]:
    """The steps of `chosen_steps`, with the skills of each episode (`skills_of_episodes`); without `prompts` they have no messages."""
    found = []
    for trajectory, place, action in steps:
        task, skills = trajectory.task, shown[id(trajectory)]
        scene = scene_at(trajectory, place, skills)
        messages = agent.prompt(scene).messages if prompts else ()
        names, answer = tuple(skill.id for skill in skills), agent.answer(action, scene) or ""
        found.append(StepShown(messages, action, "", task.id, task.task_type, names, answer))
    return found


def _episodes(steps: Sequence[ChosenStep]) -> list[Trajectory]:
    return list({id(trajectory): trajectory for trajectory, _, _ in steps}.values())


def scene_at(trajectory: Trajectory, place: int, skills: tuple[Skill, ...]) -> AgentInput:
    """The scene in which the step at this place was taken."""
    step = trajectory.steps[place]
    return AgentInput(step.observation, trajectory.steps[:place], goal_of(trajectory), step.admissible_actions, skills)


def skills_of_episodes(
    steps: Sequence[ChosenStep], agent: Agent, config: DemonstrationsConfig, seed: int
) -> dict[int, tuple[Skill, ...]]:
    """The skills in the prompts of each episode, by the identity of its trajectory: found, none, or others.

    A skill that the task brings (`agent.task_skills`) is always shown.
    """
    episodes = _episodes(steps)
    said = [goal_of(each) or each.steps[0].observation for each in episodes]
    found = agent.select_skills([each.task for each in episodes], said)
    everything = [] if agent.bank is None else list(agent.bank.snapshot)
    shown: dict[int, tuple[Skill, ...]] = {}
    for place, (trajectory, own) in enumerate(zip(episodes, found, strict=True)):
        drawn = random.Random(derive_seed(seed, "skills shown", trajectory.task.id, place))
        share = drawn.random()
        if task_skills(trajectory.task) is not None:
            shown[id(trajectory)] = own.skills
        elif share < config.no_skill_fraction:
            shown[id(trajectory)] = ()
        elif share < config.no_skill_fraction + config.random_skill_fraction:
            others = drawn.sample(everything, min(len(everything), max(1, len(own.skills))))
            shown[id(trajectory)] = agent.fit_to_budget(others).skills
        else:
            shown[id(trajectory)] = own.skills
    return shown


def coverage(
    shown: Sequence[StepShown], episodes: Sequence[Trajectory], bank: Sequence[Skill], left_out: LeftOut
) -> Coverage:
    """Coverage of the demonstrations of these episodes.

    Args:
        shown: the demonstrations.
        episodes: the imitated episodes.
        bank: all skills.
        left_out: steps that are not imitated.
    """
    counts = Counter(skill for each in shown for skill in each.skills)
    return Coverage(
        examples=len(shown),
        episodes=len(episodes),
        won=sum(trajectory.is_success for trajectory in episodes),
        by_type=dict(sorted(Counter(each.task_type for each in shown).items())),
        skills_shown={skill.id: counts[skill.id] for skill in bank},
        no_skill_fraction=sum(not each.skills for each in shown) / len(shown) if shown else 0.0,
        not_possible=left_out[0],
        not_written=left_out[1],
    )


def as_chat(messages: Sequence[Message], shown: StepShown | EpisodeShown, **more: Any) -> dict[str, Any]:
    """A demonstration as other trainers read it: `messages` with roles, the last one the assistant's."""
    about = {"task": shown.task_id, "task_type": shown.task_type, "skills": list(shown.skills)}
    return {"messages": _MESSAGES.dump_python([*messages]), **more, **about}


MEMORY = "episode"
"""The `agent.context_mode` of such episodes."""


@dataclass(frozen=True, slots=True)
class EpisodeShown:
    """One episode to imitate."""

    messages: tuple[Message, ...]
    """The first prompt, then the assistant's answers and what followed each; the last is an answer."""
    learnt: tuple[str | None, ...]
    """For each answer the text to learn in its place; None: nothing."""
    task_id: str = ""
    task_type: str = ""
    skills: tuple[str, ...] = ()
    """Ids of the skills in the first prompt."""

    @property
    def first(self) -> int:
        """Place of the first answer."""
        return [message.role for message in self.messages].index("assistant")

    def as_chat(self) -> dict[str, Any]:
        """The episode as other trainers read it: `messages` with roles, and in `learnt` what is to be learnt in place of each of the
        assistant's; null: nothing.
        """
        return as_chat(self.messages, self, learnt=list(self.learnt))

    @classmethod
    def from_chat(cls, row: Mapping[str, Any]) -> Self:
        """The episode that `as_chat` gave; of its task and skills nothing is kept.

        Raises:
            ValueError, KeyError: it is none.
        """
        return cls(tuple(_MESSAGES.validate_python(row["messages"])), tuple(_LEARNT.validate_python(row["learnt"])))


def demonstrate_episodes(
    trajectories: Sequence[Trajectory], agent: Agent, config: DemonstrationsConfig, seed: int, *, tagged: bool
) -> tuple[list[EpisodeShown], list[StepShown], list[Trajectory], LeftOut]:
    """Episodes to imitate, the steps of them that are learnt, without prompts, what was collected of them, and what was left out.

    An episode ends before an action that the form of actions cannot write.
    Where `demonstrations.examples` bounds the steps, whole episodes are left out, so many that about so many steps are learnt.

    Raises:
        DataError: there is nothing to imitate.
    """
    steps, left_out = chosen_steps(trajectories, config.model_copy(update={"examples": None}), agent)
    episodes = _episodes(steps)
    if config.examples is not None and config.examples < len(steps):
        most = max(1, len(episodes) * config.examples // len(steps))
        episodes = [episodes[place * len(episodes) // most] for place in range(most)]
        chosen = {*map(id, episodes)}
        steps = [each for each in steps if id(each[0]) in chosen]
    skills = skills_of_episodes(steps, agent, config, seed)
    shown = show_steps(steps, agent, skills, prompts=False)
    learnt: dict[int, dict[int, StepShown]] = {}
    for (trajectory, place, _), step in zip(steps, shown, strict=True):
        learnt.setdefault(id(trajectory), {})[place] = step
    grown = [_show(each, agent, learnt[id(each)], skills[id(each)], tagged) for each in episodes]
    return grown, shown, episodes, left_out


def _show(
    trajectory: Trajectory, agent: Agent, learnt: Mapping[int, StepShown], skills: tuple[Skill, ...], tagged: bool
) -> EpisodeShown:
    """One episode, up to the last turn at which something is learnt."""
    steps, goal, last = trajectory.steps, goal_of(trajectory), max(learnt)
    messages, targets = list(agent.prompt(scene_at(trajectory, 0, skills)).messages), list[str | None]()
    for place, step in enumerate(steps[: last + 1]):
        shown = learnt.get(place)
        target = None if shown is None else shown.response(tagged)
        done = target
        if shown is None or target is None or shown.action != step.action:
            answer = agent.answer(step.action, scene_at(trajectory, place, skills))
            # What cannot be written is the last turn: only what should have been done there stands in it.
            done = target if answer is None else f"<action>{answer}</action>" if tagged else answer
        assert done is not None
        messages.append(Message("assistant", done))
        targets.append(target)
        if place < last:
            after = steps[place + 1]
            scene = AgentInput(after.observation, steps[: place + 1], goal, after.admissible_actions, skills)
            messages.append(agent.next_message(scene))
    names = tuple(skill.id for skill in skills)
    return EpisodeShown(tuple(messages), tuple(targets), trajectory.task.id, trajectory.task.task_type, names)
