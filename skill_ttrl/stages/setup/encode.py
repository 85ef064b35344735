"""Demonstrations as tokens: of a data set, or of collected episodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skill_ttrl.agents.agent import Agent, AgentInput
from skill_ttrl.config import BUILTIN, SkillTTRLConfig
from skill_ttrl.data.episodes import Files, names_of, read_episodes
from skill_ttrl.data.families import Demonstration, Told, Written
from skill_ttrl.data.tasks import load_demonstrations
from skill_ttrl.envs.lookup import env_fixed_actions
from skill_ttrl.errors import ConfigError, DataError, RunFolderError
from skill_ttrl.llm.chat import answer_end, encode_chats, encode_plain
from skill_ttrl.progress import Progress
from skill_ttrl.rl.pack import EncodedDemonstration
from skill_ttrl.runs.exposure import most_shown
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.querying import OPENAI
from skill_ttrl.stages.evaluation.unknown_words import unknown_note
from skill_ttrl.stages.inputs.demonstrate import Coverage, answer_note, as_chat, chosen_steps, coverage, demonstrate
from skill_ttrl.stages.inputs.leak import foreign_splits, seen_prompts, seen_tasks, settle, training_splits
from skill_ttrl.stages.inputs.rationale import with_thoughts
from skill_ttrl.stages.inputs.whole_episodes import MEMORY, EpisodeShown, demonstrate_episodes
from skill_ttrl.stages.setup.encode_episodes import encode_answers, encode_shown
from skill_ttrl.stages.training.components import TrainingComponents
from skill_ttrl.stages.training.meter import Meter
from skill_ttrl.stages.training.run_bank import models_of
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Message, Skill, Step, derive_seed

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
        resumed: the run goes on from a checkpoint.
    """
    config = parts.config.sft
    if config.data is None:
        # A run that goes on imitates what it began with: thoughts that a model wrote come once, and files of others change.
        path = folder.path / DEMONSTRATIONS
        if resumed and path.is_file():
            encoded = encode_kept(parts, path)
        else:
            encoded = encode_episodes(parts, meter, folder, progress, warnings)
        return encoded, encoded
    seed = derive_seed(parts.config.seed, "demonstrations")
    demonstrations = load_demonstrations(config.data, seed=seed)
    if not demonstrations:
        raise DataError(f"{config.data.path} holds no demonstrations.")
    if note := answer_note(parts.config, demonstrations):
        warnings.append(note)
    prompts = seen_prompts(shown.prompt for shown in demonstrations)
    if not resumed:
        warnings += meter.demonstration_leaks(parts.config, prompts, f"sft.data ({config.data.path})")
    if len(demonstrations) >= MANY:
        progress.notice(f"Tokenising {len(demonstrations):,} demonstrations ...")
    tokenizer, agent = parts.policy.tokenizer, agent_of(parts)
    noisy = encode_written(tokenizer, agent, demonstrations)
    refuse_too_long(parts, noisy, f"The longest demonstration of {config.data.path}")
    if config.noise_free_fraction == 0:
        return noisy, noisy
    if not config.data.path.startswith("synthetic:"):
        progress.notice(
            f"sft.noise_free_fraction ({config.noise_free_fraction}) has no effect: only a family's demonstrations can be had without "
            f"noise, and {config.data.path} is a file. Set it to 0.",
            warning=True,
        )
        return noisy, noisy
    return encode_written(tokenizer, agent, load_demonstrations(config.data, seed=seed, noise=0.0)), noisy


def encode_episodes(
    parts: TrainingComponents, meter: Meter, folder: RunFolder, progress: Progress, warnings: list[str]
) -> list[EncodedDemonstration]:
    """Steps of collected episodes as tokens. Writes them into the run's folder, as chats that other trainers read, with their coverage.

    Raises:
        ConfigError: there are no episodes.
        DataError: they cannot be read, or there is nothing to imitate.
    """
    config, whole = parts.config.demonstrations, parts.config
    files = imitated_files(whole)
    episodes, agent = list(read_episodes(files, progress)), agent_of(parts)
    tagged = whole.agent.action_parser != "none"
    what = f"demonstrations.trajectories ({names_of(files)})"
    warnings += settle(whole, foreign_splits(episodes, training_splits(whole), what))
    warnings += meter.demonstration_leaks(whole, seen_tasks(episode.task for episode in episodes), what)
    if agent.memory == MEMORY:
        grown, shown, imitated, left_out = demonstrate_episodes(episodes, agent, config, whole.seed, tagged=tagged)
        encoded, chats = _encode_grown(parts, grown), [each.as_chat() for each in grown]
    else:
        shown = list(demonstrate(episodes, agent, config, whole.seed))
        if config.rationale == OPENAI:
            shown = with_thoughts(shown, models_of(whole).asking("teacher"), progress)
        steps, left_out = chosen_steps(episodes, config, agent)
        imitated = list({id(trajectory): trajectory for trajectory, _, _ in steps}.values())
        encoded = _encode_chats(parts, [(each.messages, each.response(tagged)) for each in shown])
        chats = [as_chat(each, tagged) for each in shown]
    found = coverage(shown, imitated, list(parts.bank.skills), left_out, env_fixed_actions(whole.env.id))
    folder.write_text(DEMONSTRATIONS, "".join(json.dumps(each) + "\n" for each in chats))
    folder.write_json(COVERAGE, asdict(found))
    progress.notice(said_of(found))
    if note := unknown_note(
        parts.policy.tokenizer, [ids for each in encoded for ids in (each.prompt_ids, each.response_ids)]
    ):
        progress.notice(f"Of the demonstrations, {note}", warning=True)
    return encoded


def _encode_grown(parts: TrainingComponents, episodes: Sequence[EpisodeShown]) -> list[EncodedDemonstration]:
    """Whole episodes, each one example."""
    encoded = encode_shown(parts.policy.tokenizer, episodes)
    refuse_too_long(parts, encoded, "The longest episode")
    return encoded


def imitated_files(config: SkillTTRLConfig) -> Files:
    """The episodes that a run imitates.

    Raises:
        ConfigError: none is named.
    """
    if config.demonstrations.trajectories is None:
        raise ConfigError(
            "The phase sft needs something to imitate (and dagger too): put the phase collect before it, name a file of episodes in "
            "demonstrations.trajectories, or demonstrations in sft.data.path (see `skillttrl configs quickstart`)."
        )
    return config.demonstrations.trajectories


def encode_kept(parts: TrainingComponents, path: Path) -> list[EncodedDemonstration]:
    """The demonstrations that a run has kept (`DEMONSTRATIONS`), as tokens.

    Raises:
        RunFolderError: it was changed.
    """
    chats: list[tuple[tuple[Message, ...], str]] = []
    if parts.config.agent.context_mode == MEMORY:
        with suppress(KeyError, TypeError, ValueError, StopIteration):
            return _encode_grown(parts, [EpisodeShown.from_chat(row) for row in read_jsonl(path)])
        raise _changed(path)
    for row in read_jsonl(path):
        said = row.get("messages")
        if not isinstance(said, list) or len(said) < 2 or not all(map(_is_message, said)):
            chats = []
            break
        *asked, answer = [Message(**message) for message in said]
        chats.append((tuple(asked), answer.content))
    if not chats:
        raise _changed(path)
    return _encode_chats(parts, chats)


def _changed(path: Path) -> RunFolderError:
    return RunFolderError(f"{path} has changed since this run started. Restore it, or start a new run.")


def _is_message(found: object) -> bool:
    return (
        isinstance(found, dict)
        and found.keys() == {"role", "content"}
        and all(isinstance(each, str) for each in found.values())
    )


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
    verbs = ", ".join(f"{name} {count}" for name, count in found.by_verb.items())
    never = f" Never shown: {', '.join(found.never_done)}." if found.never_done else ""
    if found.not_written:
        never += (
            f" {found.not_written:,} steps are left out because agent.observations cannot write their action, or an earlier one of "
            "the episode."
        )
    bare = (
        f" {found.no_skill_fraction:.0%} of the prompts have no skills; the others have {found.distinct_skill_blocks} different "
        "sets."
    )
    return (
        f"Imitating {found.examples:,} steps of {found.episodes:,} episodes, {found.won:,} of them won: {verbs}.{never}"
        + (f"{bare} Shown most often: {most_shown(found.skills_shown, found.examples)}." if found.skills_shown else "")
    )


def refuse_too_long(parts: TrainingComponents, encoded: Sequence[EncodedDemonstration], what: str) -> None:
    """Raise `DataError` where an example is longer than the model's positions; `what` names the longest."""
    prompt, response = max(((len(one.prompt_ids), len(one.response_ids)) for one in encoded), key=sum)
    positions = getattr(parts.policy.model.config, "max_position_embeddings", None)
    if positions is not None and prompt + response > positions:
        builtin = parts.config.model.path == BUILTIN
        more = (
            f"set model.builtin.max_positions={prompt + response}" if builtin else "take a model with more (model.path)"
        )
        raise DataError(
            f"{what} has {prompt + response} tokens (prompt {prompt}, response {response}), but the model has {positions} positions. "
            f"Shorten it, or {more}."
        )


def encode_written(tokenizer: Any, agent: Agent, demonstrations: Sequence[Demonstration]) -> list[EncodedDemonstration]:
    """Tokenize demonstrations as the model will see them: skills in the prompt, retrieved skills inserted and excluded from the loss."""
    pieces = [list(shown.parts()) for shown in demonstrations]
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
