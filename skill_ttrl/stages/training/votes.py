"""Votes in training: the rollouts that vote, and what a step's votes are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.answers.extract import last_tagged
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.llm.backend import Request, Sampling, refuse_error, wait_for
from skill_ttrl.registry import import_attribute
from skill_ttrl.signals import RESUME
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.stages.training.metrics import completions_of
from skill_ttrl.stages.training.run import OnRolloutEnd, RolloutFn, RolloutWorker, Run, TrainingComponents, ignore
from skill_ttrl.types import Group, Task, VoteResult, derive_seed
from skill_ttrl.types.thoughts import content
from skill_ttrl.voting import VoteHistory, ballot_of, batch_majority_vote, batch_vote, requires
from skill_ttrl.voting.rewards import RewardSet, late_vote
from skill_ttrl.voting.strategies import SEQUENTIAL, SequentialTest
from skill_ttrl.voting.tally import mean

BASE = "votes of the base"


class VoteManager:
    """The votes of a run.

    Args:
        components: what generates the rollouts.
        state: result of `state_dict` to resume from; empty for a new run.

    Raises:
        ConfigError: the strategy needs paraphrases, and a task does not state its question.
    """

    rollout: RolloutFn
    """Rolls out each task `n_votes_per_prompt` times, half of them on a paraphrase where the strategy needs that, or until it is decided."""

    def __init__(self, components: TrainingComponents, state: Mapping[str, Any]) -> None:
        config, worker = components.config, components.worker
        self.config = config
        self.history = VoteHistory.from_state(state["votes"]) if "votes" in state else VoteHistory()
        self._requires = requires(config.vote.strategy, config.vote.options)
        rollout_fn = worker.rollout_fn
        self._plain = rollout_fn(config.rollout.n_votes_per_prompt)
        self.rollout = self._plain
        if config.vote.strategy == SEQUENTIAL:
            test = SequentialTest(**config.vote.options)
            self.rollout = in_rounds(rollout_fn, config.rollout.n_votes_per_prompt, test)
        if "views" in self._requires:
            half = rollout_fn(config.rollout.n_votes_per_prompt // 2)
            self.rollout = with_paraphrases(half, make_paraphraser(worker))

    def compute_votes(self, groups: Sequence[Group], step: int) -> list[VoteResult]:
        """Compute one vote per group. Does not update `history`; the caller does when it logs the step."""
        seed = derive_seed(self.config.seed, "vote", step)
        ballots = [
            ballot_of(
                group,
                history=self.history.of(group.task.id),
                base_answers=tuple(given)
                if (given := self.history.base_answers.get(group.task.id)) is not None
                else None,
                seed=seed,
            )
            for group in groups
        ]
        return batch_vote(self.config.vote.strategy, ballots, self.config.vote.options)

    def ask_base(self, run: Run, steps: Iterable[Sequence[Task]], done: int) -> None:
        """Sample each task's answers from the policy before training, once, where the strategy needs them.

        A run resumed after `done` steps has them in its state.

        Raises:
            RunFolderError: it does not; the policy is another one by now.
        """
        if "base_answers" not in self._requires:
            return
        given = self.history.base_answers
        tasks = list({task.id: task for step in steps for task in step if task.id not in given}.values())
        if not tasks:
            return
        if done:
            raise RunFolderError(
                f"{run.folder.path} was begun by an earlier version and lacks the answers before training, which vote.strategy="
                f"{self.config.vote.strategy} needs. Start again in another --output."
            )
        size, bank = self.config.rl.prompts_per_step, run.components.bank.view()
        run.progress.start(BASE, len(tasks), "prompt")
        leaving = f"Interrupted during the {BASE}, which will start over. {RESUME}"
        for start in range(0, len(tasks), size):
            seed = derive_seed(self.config.seed, "base-votes", start)
            with run.stop.interruptible(leaving):
                groups = self._plain(tasks[start : start + size], bank, seed)
            given |= {group.task.id: list(group.answers) for group in groups}
            run.progress.advance(BASE, len(given), {})
        run.progress.finish(BASE)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state for a checkpoint."""
        return {"votes": self.history.state_dict()}


def in_rounds(rollout_fn: Callable[[int], RolloutFn], most: int, test: SequentialTest) -> RolloutFn:
    """Roll out each task, at most `most` times, until `test` says that its majority is decided.

    Each round has a seed of its own; a task's environment has the same in all of them.
    """

    def roll_out(
        tasks: Sequence[Task], bank: BankView | None, seed: int, on_rollout_end: OnRolloutEnd = ignore
    ) -> list[Group]:
        groups = [Group(task, ()) for task in tasks]
        places, drawn = list(range(len(tasks))), 0
        for look in test.looks(most):
            undecided_tasks = [_seeded(tasks[place], seed) for place in places]
            found = rollout_fn(look - drawn)(undecided_tasks, bank, derive_seed(seed, "round", drawn), on_rollout_end)
            for place, group in zip(places, found, strict=True):
                groups[place] = replace(groups[place], trajectories=groups[place].trajectories + group.trajectories)
            drawn = look
            votes = batch_majority_vote(groups[place].answers for place in places)
            counts = [[count for _, count in vote.classes] for vote in votes]
            undecided = (not test.decided(row, most - drawn) for row in counts)
            places = [place for place, needed in zip(places, undecided, strict=True) if needed]
            if not places:
                break
        return groups

    return roll_out


def _seeded(task: Task, seed: int) -> Task:
    """The task with a seed for its environment, which is its own where it has one."""
    return task if task.seed is not None else replace(task, seed=derive_seed(seed, "env", task.id))


# Greedy rollouts: the baseline of algorithms that require one (ReMax). They are rewarded and never trained on.


@dataclass(frozen=True)
class GreedyBaseline:
    """Rolls out each task once at temperature 0, where that is required."""

    worker: RolloutWorker
    required: bool

    def rollout(self, tasks: Sequence[Task], bank: BankView | None, seed: int) -> list[Group]:
        """One group of one a task; none where they are not required."""
        if not self.required:
            return []
        greedily = Sampling.of(self.worker.config.rollout, 0.0)
        return self.worker.with_bank(bank).generate_rollouts(tasks, 1, greedily, seed)

    def rewards(
        self,
        greedy: Sequence[Group],
        groups: Sequence[Group],
        votes: Sequence[VoteResult],
        rewards: RewardSet,
        seed: int,
    ) -> dict[str, float] | None:
        """Reward each greedy rollout, by task id, as the samples are rewarded; a failed one has no reward. None: not required.

        Where votes are rewarded the greedy answer does not take part: it is rewarded as the samples that gave the same answer,
        else with 0.
        """
        if not self.required:
            return None
        found = {}
        for once, group, vote in zip(greedy, groups, votes, strict=True):
            (only,) = once.trajectories
            if only.error is None:
                (rewarded,) = rewards(once, late_vote(vote, group.answers, only.answer), seed).trajectories
                found[group.task.id] = rewarded.reward or 0.0
        return found

    def metrics(self, greedy: Sequence[Group], rewards: Mapping[str, float] | None) -> dict[str, float]:
        """`greedy_reward`: mean reward of the greedy rollouts; `greedy_tokens`: tokens sampled for them in this step.

        `failed_greedy_rollouts`: their share; such a task is not trained on in this step. Empty where they are not required.
        """
        if rewards is None:
            return {}
        return {
            "greedy_reward": mean(list(rewards.values())),
            "greedy_tokens": float(sum(done.num_sampled_tokens for done in completions_of(greedy))),
            "failed_greedy_rollouts": 1.0 - len(rewards) / max(1, len(greedy)),
        }


# Two wordings of each question: half of a group's rollouts answer a paraphrase (`vote.paraphrase`).


Paraphraser = Callable[[Sequence[str]], list[str]]
"""Questions → the same in other words, in order."""

POLICY = "policy"
TEMPLATE = "paraphrase"


def unstated(tasks: Sequence[Task]) -> list[str]:
    """Ids of the tasks that do not state their question, so that it has no other wording."""
    return [task.id for task in tasks if not isinstance(task.options.get("question"), str)]


def check_paraphrase(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where `vote.paraphrase` cannot be made."""
    named = config.vote.paraphrase
    if named == POLICY:
        _formatter(config)
    elif not callable(import_attribute(named, "paraphrase")):
        raise ConfigError(f"vote.paraphrase: {named!r} is not a function from a question to its paraphrase.")


def with_paraphrases(half: RolloutFn, paraphrase: Paraphraser) -> RolloutFn:
    """Roll out each task in two wordings, by `half` each; see `sample_both_variants`."""

    def roll_out(
        tasks: Sequence[Task], bank: BankView | None, seed: int, on_rollout_end: OnRolloutEnd = ignore
    ) -> list[Group]:
        return sample_both_variants(lambda both: half(both, bank, seed, on_rollout_end), paraphrase, tasks)

    return roll_out


def sample_both_variants(
    sample: Callable[[Sequence[Task]], list[Group]], paraphrase: Paraphraser, tasks: Sequence[Task]
) -> list[Group]:
    """Sample each task in two wordings; one group a task, in order. Every task states its question.

    The second half of a group answers the paraphrase (`Trajectory.prompt_variant` 1).
    """
    questions = paraphrase([task.options["question"] for task in tasks])
    others = [
        replace(task, options={**task.options, "question": question})
        for task, question in zip(tasks, questions, strict=True)
    ]
    groups = sample([*tasks, *others])
    return [
        replace(
            group,
            trajectories=group.trajectories + tuple(replace(each, prompt_variant=1) for each in other.trajectories),
        )
        for group, other in zip(groups[: len(tasks)], groups[len(tasks) :], strict=True)
    ]


def make_paraphraser(worker: RolloutWorker) -> Paraphraser:
    """The paraphrases that `vote.paraphrase` names. A question whose paraphrase is empty or too long stays as it is.

    Raises:
        ConfigError: there is no such function.
    """
    named = worker.config.vote.paraphrase
    if named == POLICY:
        write = _by_policy(worker)
    else:
        function = import_attribute(named, "paraphrase")

        def write(questions: Sequence[str]) -> list[str]:
            return [function(question) for question in questions]

    def fits(question: str) -> bool:
        length = worker.backend.count(worker.agent.prompt(AgentInput(question)).messages) if question.strip() else 0
        return 0 < length <= worker.config.data.max_prompt_tokens

    def paraphrase(questions: Sequence[str]) -> list[str]:
        found = write(questions)
        for text in found:
            if not isinstance(text, str):
                raise ConfigError(f"vote.paraphrase: {named!r} must return a text; it returned {text!r}.")
        return [new if fits(new) else old for old, new in zip(questions, found, strict=True)]

    return paraphrase


def _by_policy(worker: RolloutWorker) -> Paraphraser:
    """Greedy paraphrases by the policy as it is at that moment; a question whose prompt is too long gets none."""
    config, backend, formatter = worker.config, worker.backend, _formatter(worker.config)

    def write(questions: Sequence[str]) -> list[str]:
        prompts = [formatter.messages(question) for question in questions]
        short = [messages for messages in prompts if backend.count(messages) <= config.data.max_prompt_tokens]
        greedy = Sampling.of(config.rollout, 0.0)
        done = wait_for(backend.generate([Request(messages) for messages in short], greedy, seed=0))
        refuse_error(done)
        texts = {messages: made.completions[0].text for messages, made in zip(short, done, strict=True)}
        return [reworded(texts.get(messages, "")) for messages in prompts]

    return write


def reworded(text: str) -> str:
    """The question in what a model wrote: what stands in its last `<question>`, else all of it but thoughts."""
    text = content(text)
    tagged = last_tagged(text, "question")
    return (text if tagged is None else tagged).strip()


def _formatter(config: SkillTTRLConfig) -> PromptFormatter:
    return PromptFormatter(TEMPLATE, config.agent.system, prompts=config.agent.prompts)
