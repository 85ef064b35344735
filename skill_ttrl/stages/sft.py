"""Cold start: supervised learning on demonstrations, loss on completions only."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from skill_ttrl.agents.agent import Scene
from skill_ttrl.config import SFTConfig, SkillTTRLConfig
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.data.families import Demonstration, Told, Written
from skill_ttrl.data.tasks import load_demonstrations
from skill_ttrl.envs.lookup import env_fixed_actions
from skill_ttrl.errors import ConfigError, DataError, RunFolderError
from skill_ttrl.llm.chat import encode_chats, encode_plain
from skill_ttrl.progress import Progress
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rl.sft_learner import SFTLearner
from skill_ttrl.runs.checkpoint import load_tensors
from skill_ttrl.runs.exposure import most_shown
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.querying import OPENAI
from skill_ttrl.stages.setup.demonstrate import Coverage, as_chat, chosen_steps, coverage, demonstrate
from skill_ttrl.stages.setup.leak import (
    Seen,
    demonstration_leaks,
    foreign_splits,
    seen_prompts,
    seen_tasks,
    settle,
    training_splits,
)
from skill_ttrl.stages.setup.rationale import with_thoughts
from skill_ttrl.stages.training.context import Run, TrainingComponents
from skill_ttrl.stages.training.run_bank import models_of
from skill_ttrl.stages.training.stopping import skipped_too_often, watch_updates
from skill_ttrl.storage.jsonl import read_jsonl
from skill_ttrl.types import Message, Skill, Step, derive_seed

Encoded = tuple[list[EncodedDemonstration], list[EncodedDemonstration]]
"""(clean, noisy) demonstrations as tokens."""

DEMONSTRATIONS, COVERAGE = "demonstrations.jsonl", "coverage.json"
"""Files of a run that imitates episodes."""
MANY = 20_000
"""Demonstrations whose tokenising takes long enough to be announced."""


def cold_start(run: Run, demonstrations: Encoded) -> None:
    """Train on (clean, noisy) demonstrations for `sft.steps` steps; the first `clean_fraction` of them see no noise."""
    config = run.config.sft
    done = run.steps_done("sft")
    if done < config.steps:
        imitate(run, demonstrations, done)
    if (failed := skipped_too_often(run, "sft", ended=True)) is not None:
        raise failed


def imitate(run: Run, demonstrations: Encoded, done: int) -> None:
    """The steps of the cold start after the first `done`.

    Raises:
        TrainingError: see `stopping.skipped_too_often`; the run is saved.
    """
    config = run.config.sft
    clean, noisy = demonstrations
    learner = SFTLearner(run.bench.policy, config, run.bench.accelerator)
    if done and run.resumed is not None:
        learner.load_state_dict(load_tensors(run.resumed.path)["learner"])
    run.progress.start("cold start", config.steps, "step", done)
    for step in range(done, config.steps):
        began = time.perf_counter()
        data = clean if step < config.clean_fraction * config.steps else noisy
        batch = [data[i] for i in batch_indices(len(data), config, step, run.config.seed)]
        if step < config.whole_fraction * config.steps:
            batch = [whole(each) for each in batch]
        figures = learner.step(batch, step, seed=run.config.seed)
        run.log.log("sft", step, figures)
        run.log.time("sft", step, {"seconds": time.perf_counter() - began})
        run.progress.advance("cold start", step + 1, figures)
        finished = step + 1
        failed = watch_updates(run, "sft", step, figures)
        if failed or finished == config.steps or finished % config.checkpoint_every == 0 or run.stop.signum is not None:
            run.checkpoint("sft", finished, state={}, tensors={"learner": learner.state_dict()})
            run.stop_if_requested("sft", finished)
        if failed:
            raise failed
    run.progress.finish("cold start")


def whole(demonstration: EncodedDemonstration) -> EncodedDemonstration:
    """The same with all tokens but the first to be learnt, those of the prompt too."""
    prompt, response, mask = demonstration
    learnt = (True,) * len(response) if mask is None else mask
    return EncodedDemonstration(prompt[:1], (*prompt[1:], *response), (*(True,) * (len(prompt) - 1), *learnt))


def batch_indices(count: int, config: SFTConfig, step: int, seed: int) -> list[int]:
    """Which demonstrations a step takes: each epoch is all of them, in the order that `sft.order` says."""
    if config.order == "given":
        return [(step * config.batch_size + place) % count for place in range(config.batch_size)]
    indices: list[int] = []
    position = step * config.batch_size
    while len(indices) < config.batch_size:
        epoch, offset = divmod(position + len(indices), count)
        order = np.random.default_rng(derive_seed(seed, "sft", epoch)).permutation(count)
        indices += order[offset : offset + config.batch_size - len(indices)].tolist()
    return indices


def encode_demonstrations(
    bench: TrainingComponents, folder: RunFolder, progress: Progress, *, begun: bool = False
) -> Encoded:
    """(clean, noisy) demonstrations as tokens; the two are the same where the source has no noise.

    `begun`: whether the run goes on from a checkpoint.
    """
    config = bench.config.sft
    if config.data is None:
        # A run that goes on imitates what it began with: thoughts that a model wrote come once, and files of others change.
        kept = folder.path / DEMONSTRATIONS if begun else None
        encoded = (
            encode_kept(bench, kept)
            if kept is not None and kept.is_file()
            else encode_episodes(bench, folder, progress)
        )
        return encoded, encoded
    seed = derive_seed(bench.config.seed, "demonstrations")
    demonstrations = load_demonstrations(config.data, seed=seed)
    if not demonstrations:
        raise DataError(f"{config.data.path} holds no demonstrations.")
    prompts = seen_prompts(shown.prompt for shown in demonstrations)
    if not begun:
        bench.warnings += _leaks(bench, prompts, f"sft.data ({config.data.path})")
    if len(demonstrations) >= MANY:
        progress.notice(f"Tokenising {len(demonstrations):,} demonstrations ...")
    noisy = _encode(bench, demonstrations)
    _refuse_too_long(bench, noisy, f"The longest demonstration of {config.data.path}")
    if config.clean_fraction == 0:
        return noisy, noisy
    if not config.data.path.startswith("family:"):
        progress.notice(
            f"sft.clean_fraction ({config.clean_fraction}) has no effect: only a family's demonstrations can be had without "
            f"noise, and {config.data.path} is a file. Set it to 0.",
            warning=True,
        )
        return noisy, noisy
    return _encode(bench, load_demonstrations(config.data, seed=seed, noise=0.0)), noisy


def encode_episodes(bench: TrainingComponents, folder: RunFolder, progress: Progress) -> list[EncodedDemonstration]:
    """Steps of collected episodes as tokens. What is imitated is kept in the run's folder, as chats that other trainers read, and
    beside it what it covers.

    Raises:
        ConfigError: there are no episodes.
        DataError: they cannot be read, or there is nothing to imitate.
    """
    config = bench.config.demonstrations
    path = imitated_file(bench.config)
    episodes, agent = list(read_episodes(path, progress)), bench.acting()
    tagged = bench.config.agent.projection != "none"
    what = f"demonstrations.trajectories ({path})"
    foreign = foreign_splits(episodes, training_splits(bench.config), what)
    bench.warnings += settle(bench.config, foreign)
    bench.warnings += _leaks(bench, seen_tasks(episode.task for episode in episodes), what)
    shown = list(demonstrate(episodes, agent, config, bench.config.seed))
    if config.thought == OPENAI:
        shown = with_thoughts(shown, models_of(bench.config).asking("teacher"), progress)
    bank = [] if bench.bank is None else list(bench.bank.bank.snapshot())
    steps, refused = chosen_steps(episodes, config)
    imitated = list({id(trajectory): trajectory for trajectory, _, _ in steps}.values())
    found = coverage(shown, imitated, bank, refused, env_fixed_actions(bench.config.env.id))
    encoded = _encode_chats(bench, [(each.messages, each.response(tagged)) for each in shown])
    folder.write_text(DEMONSTRATIONS, "".join(json.dumps(as_chat(each, tagged)) + "\n" for each in shown))
    folder.write_json(COVERAGE, asdict(found))
    progress.notice(said_of(found))
    return encoded


def _leaks(bench: TrainingComponents, seen: Seen, what: str) -> list[str]:
    return demonstration_leaks(bench.config, bench.eval_tasks, seen, what, transductive=bench.transductive)


def imitated_file(config: SkillTTRLConfig) -> str:
    """The file of episodes that a run imitates.

    Raises:
        ConfigError: none is named.
    """
    if config.demonstrations.trajectories is None:
        raise ConfigError(
            "The sft phase needs something to imitate: put the phase collect before it, name a file of episodes in "
            "demonstrations.trajectories, or demonstrations in sft.data.path (see `skillttrl configs show quickstart`)."
        )
    return config.demonstrations.trajectories


def encode_kept(bench: TrainingComponents, path: Path) -> list[EncodedDemonstration]:
    """The demonstrations that a run has kept (`DEMONSTRATIONS`), as tokens.

    Raises:
        RunFolderError: it was changed.
    """
    chats: list[tuple[tuple[Message, ...], str]] = []
    for row in read_jsonl(path):
        said = row.get("messages")
        if not isinstance(said, list) or len(said) < 2 or not all(map(_is_message, said)):
            chats = []
            break
        *asked, answer = [Message(**message) for message in said]
        chats.append((tuple(asked), answer.content))
    if not chats:
        raise RunFolderError(
            f"{path} does not hold the demonstrations that this run began with: it was changed. Put it back, or start a new run."
        )
    return _encode_chats(bench, chats)


def _is_message(found: object) -> bool:
    return (
        isinstance(found, dict)
        and found.keys() == {"role", "content"}
        and all(isinstance(each, str) for each in found.values())
    )


def _encode_chats(
    bench: TrainingComponents, chats: Sequence[tuple[tuple[Message, ...], str]]
) -> list[EncodedDemonstration]:
    """Prompts and what is answered to them."""
    tokenizer = bench.policy.tokenizer
    answers = tokenizer([answer for _, answer in chats], add_special_tokens=False)["input_ids"]
    prompts = encode_chats(tokenizer, [messages for messages, _ in chats])
    encoded = [
        EncodedDemonstration(prompt, (*ids, tokenizer.eos_token_id))
        for prompt, ids in zip(prompts, answers, strict=True)
    ]
    _refuse_too_long(bench, encoded, "The longest demonstration")
    return encoded


def said_of(found: Coverage) -> str:
    """What demonstrations cover, in a line or two."""
    verbs = ", ".join(f"{name} {count}" for name, count in found.by_verb.items())
    never = f" Never done: {', '.join(found.never_done)}." if found.never_done else ""
    bare = f" {found.without_skills:.0%} of the prompts have no skills, the others {found.distinct_skill_blocks} different sets."
    return (
        f"{found.examples:,} steps of {found.episodes:,} episodes are imitated, {found.won:,} of them won: {verbs}.{never}"
        + (f"{bare} Most shown: {most_shown(found.skills_shown, found.examples)}." if found.skills_shown else "")
    )


def _refuse_too_long(bench: TrainingComponents, encoded: Sequence[EncodedDemonstration], what: str) -> None:
    longest = max(len(worked.prompt_ids) + len(worked.response_ids) for worked in encoded)
    positions = getattr(bench.policy.model.config, "max_position_embeddings", None)
    if positions is not None and longest > positions:
        raise DataError(
            f"{what} has {longest} tokens, but the model has {positions} positions. Shorten it, or take a model with more."
        )


def _encode(bench: TrainingComponents, demonstrations: Sequence[Demonstration]) -> list[EncodedDemonstration]:
    """Tokens as the model will meet them: skills in the prompt, what the bank told inserted and not learnt."""
    tokenizer, agent = bench.policy.tokenizer, bench.acting()
    pieces = [list(shown.parts()) for shown in demonstrations]
    texts = list(dict.fromkeys(piece.text for row in pieces for piece in row if isinstance(piece, Written)))
    written = dict(zip(texts, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True)) if texts else {}
    scenes = [
        Scene(shown.prompt, _turns(shown.before), skills=tuple(map(_skill, shown.skills))) for shown in demonstrations
    ]
    prompts = encode_chats(tokenizer, [agent.prompt(scene).messages for scene in scenes])
    encoded = []
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
        encoded.append(EncodedDemonstration(prompt, (*ids, tokenizer.eos_token_id), (*mask, True)))
    return encoded


def _turns(before: Sequence[tuple[str, str]]) -> tuple[Step, ...]:
    return tuple(Step(prompt, response, 0.0, False, False) for prompt, response in before)


def _skill(text: str) -> Skill:
    return Skill("demonstration", "", text)
