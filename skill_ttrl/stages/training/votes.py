"""Votes in training: who is asked what, how a step's votes are held, and what they do to the advantages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skill_ttrl.agents.agent import Scene
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.answers.extract import last_tagged
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Request, Sampling, refuse_error, wait_for
from skill_ttrl.registry import import_attribute
from skill_ttrl.stages.training.context import Run, TrainingComponents
from skill_ttrl.types import Group, Task, VoteResult, derive_seed
from skill_ttrl.voting import VoteHistory, ballot_of, batch_vote, check_strategy, majority_vote, needs

Paraphraser = Callable[[Sequence[str]], list[str]]
"""Questions → the same in other words, in order."""

POLICY = "policy"
TEMPLATE = "paraphrase"
BASE = "votes of the base"


def check_vote(config: SkillTTRLConfig) -> str:
    """Look at the `vote` section as far as that is possible without a model; gives a line that says what it asks for.

    Raises:
        ConfigError: no such strategy, an option that it does not have or cannot use, or a paraphrase that cannot be made.
    """
    section = config.vote
    check_strategy(section.strategy, section.options)
    wanted = needs(section.strategy, section.options)
    if "views" in wanted:
        if config.rollout.n_votes_per_prompt % 2:
            raise ConfigError(
                f"vote.strategy={section.strategy} asks each question in two wordings, half of the votes each, but "
                f"rollout.n_votes_per_prompt is {config.rollout.n_votes_per_prompt}. Make it even."
            )
        if section.paraphrase == POLICY:
            _asking(config)
        elif not callable(import_attribute(section.paraphrase, "paraphrase")):
            raise ConfigError(
                f"vote.paraphrase: {section.paraphrase!r} is no function from a question to its paraphrase."
            )
    return f"{section.strategy}, which needs {', '.join(wanted)}" if wanted else section.strategy


class VoteManager:
    """The votes of a run.

    Args:
        bench: What is asked.
        state: What `state_dict` gave, to go on; empty to begin.

    Raises:
        ConfigError: the strategy needs paraphrases, and a task does not state its question.
    """

    def __init__(self, bench: TrainingComponents, state: Mapping[str, Any]) -> None:
        self.bench = bench
        self.config = bench.config.vote
        self.history = VoteHistory.from_state(state["votes"]) if "votes" in state else VoteHistory()
        self.base_shares: dict[str, float] = dict(state.get("base_shares", {}))
        self._needs = needs(self.config.strategy, self.config.options)
        self._reword: Paraphraser | None = None
        if "views" in self._needs:
            silent = [task.id for task in bench.train_tasks if not isinstance(task.options.get("question"), str)]
            if silent:
                raise ConfigError(
                    f"vote.strategy={self.config.strategy} asks each question in two wordings, but {len(silent)} of "
                    f"{len(bench.train_tasks)} tasks do not state theirs, first {silent[0]!r}. Use another strategy."
                )
            self._reword = make_rewording(bench)

    def play(self, tasks: Sequence[Task], seed: int) -> list[Group]:
        """Each task `n_votes_per_prompt` times; one group a task, in order.

        Where the strategy asks for it, the second half of a group answers a paraphrase (`Trajectory.view` 1).
        """
        votes = self.bench.config.rollout.n_votes_per_prompt
        if self._reword is None:
            return self.bench.play(tasks, votes, self.bench.sampling, seed)
        return sample_both_variants(self.bench, self._reword, tasks, votes, self.bench.sampling, seed)

    def hold(self, groups: Sequence[Group], step: int) -> list[VoteResult]:
        """The votes of one step. `history` is told of them apart, when the step is recorded."""
        seed = derive_seed(self.bench.config.seed, "vote", step)
        ballots = [
            ballot_of(
                group,
                history=self.history.of(group.task.id),
                base_share=self.base_shares.get(group.task.id),
                seed=seed,
            )
            for group in groups
        ]
        return batch_vote(self.config.strategy, ballots, self.config.options)

    def estimate_base_ratio(self, run: Run, steps: Iterable[Sequence[Task]]) -> None:
        """Ask the policy as it is now for its votes on the tasks of these steps, once, where the strategy needs that.

        RESTRAIN (arXiv 2510.02172): the share of the majority under the frozen base. A resumed run has it in its state.
        """
        if "base_share" not in self._needs:
            return
        tasks = list({task.id: task for step in steps for task in step if task.id not in self.base_shares}.values())
        if not tasks:
            return
        config, size = self.bench.config, self.bench.config.rl.prompts_per_step
        run.progress.start(BASE, len(tasks), "prompt")
        leaving = f"Stopped during the {BASE}, which are held again from their start: go on with --resume auto."
        for start in range(0, len(tasks), size):
            seed = derive_seed(config.seed, "base-votes", start)
            with run.stop.interruptible(leaving):
                groups = self.bench.play(
                    tasks[start : start + size], config.rollout.n_votes_per_prompt, self.bench.sampling, seed
                )
            self.base_shares |= {group.task.id: majority_vote(group.answers).agreement for group in groups}
            run.progress.advance(BASE, len(self.base_shares), {})
        run.progress.finish(BASE)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return {"votes": self.history.state_dict()} | ({"base_shares": self.base_shares} if self.base_shares else {})


def sample_both_variants(
    bench: TrainingComponents, reword: Paraphraser, tasks: Sequence[Task], tries: int, sampling: Sampling, seed: int
) -> list[Group]:
    """Each task in two wordings, half of the `tries` each; one group a task, in order. Every task states its question."""
    questions = reword([task.options["question"] for task in tasks])
    others = [
        replace(task, options={**task.options, "question": question})
        for task, question in zip(tasks, questions, strict=True)
    ]
    groups = bench.play([*tasks, *others], tries // 2, sampling, seed)
    return [merge_variants(*pair) for pair in zip(groups[: len(tasks)], groups[len(tasks) :], strict=True)]


def merge_variants(group: Group, paraphrased: Group) -> Group:
    """The tries at a task and at its paraphrase as one group."""
    second = tuple(replace(trajectory, view=1) for trajectory in paraphrased.trajectories)
    return replace(group, trajectories=group.trajectories + second)


def make_rewording(bench: TrainingComponents) -> Paraphraser:
    """The paraphrases that `vote.paraphrase` names. A question whose paraphrase is empty or too long stays as it is.

    Raises:
        ConfigError: there is no such function.
    """
    config = bench.config
    if config.vote.paraphrase == POLICY:
        write = _by_policy(bench)
    else:
        write = _by_function(import_attribute(config.vote.paraphrase, "paraphrase"))

    def reword(questions: Sequence[str]) -> list[str]:
        found = write(questions)
        for text in found:
            if not isinstance(text, str):
                raise ConfigError(f"vote.paraphrase: {config.vote.paraphrase!r} must give a text; it gave {text!r}.")
        return [new if _fits(bench, new) else old for old, new in zip(questions, found, strict=True)]

    return reword


def _by_function(function: Callable[[str], str]) -> Paraphraser:
    return lambda questions: [function(question) for question in questions]


def _by_policy(bench: TrainingComponents) -> Paraphraser:
    """Greedy paraphrases by the policy as it is at that moment; what does not fit into its prompt is not asked."""
    config, formatter = bench.config, _asking(bench.config)

    def write(questions: Sequence[str]) -> list[str]:
        asked = [formatter.messages(question) for question in questions]
        short = [messages for messages in asked if bench.backend.count(messages) <= config.data.max_prompt_tokens]
        plainly = Sampling(temperature=0.0, max_new_tokens=config.rollout.max_new_tokens)
        done = wait_for(bench.backend.generate([Request(messages) for messages in short], plainly, seed=0))
        refuse_error(done)
        texts = {messages: made.completions[0].text for messages, made in zip(short, done, strict=True)}
        return [reworded(texts.get(messages, "")) for messages in asked]

    return write


def reworded(text: str) -> str:
    """The question in what a model wrote: what stands in its last `<question>`, else all of it."""
    tagged = last_tagged(text, "question")
    return (text if tagged is None else tagged).strip()


def _asking(config: SkillTTRLConfig) -> PromptFormatter:
    return PromptFormatter(TEMPLATE, config.agent.system, prompts=config.agent.prompts)


def _fits(bench: TrainingComponents, question: str) -> bool:
    length = bench.backend.count(bench.agent.prompt(Scene(question)).messages) if question.strip() else 0
    return 0 < length <= bench.config.data.max_prompt_tokens
