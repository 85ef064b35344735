"""Two wordings of each question: half of a group's rollouts answer a paraphrase (`vote.paraphrase`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.answers.extract import last_tagged
from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Request, Sampling, refuse_error, wait_for
from skill_ttrl.registry import import_attribute
from skill_ttrl.skills.retrieval import BankView
from skill_ttrl.stages.training.components import OnRolloutEnd, RolloutFn, RolloutWorker, ignore
from skill_ttrl.types import Group, Task
from skill_ttrl.types.thoughts import content

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
