"""Rollouts of a skill document: the `RollOutFn` of a policy in any environment, and how its agent reads the document.

The agent reads the document at the head of its prompts (`agent.document`), or as a skill bank that prompts show and the policy
queries. A trajectory becomes a `RolloutResult`, which is what the analysts read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skill_ttrl.answers import correct
from skill_ttrl.config import SkillsConfig
from skill_ttrl.errors import ConfigError, DocumentError
from skill_ttrl.llm.backend import Sampling
from skill_ttrl.optimize.calls import Item
from skill_ttrl.optimize.lessons import clip
from skill_ttrl.optimize.types import RolloutResult
from skill_ttrl.registry import naming
from skill_ttrl.rollout.rollout import refuse_failure
from skill_ttrl.skills.changes import Snapshot, normalize_skill
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.skills.retrieval import BankView, make_retriever
from skill_ttrl.train.run import RolloutWorker
from skill_ttrl.types import Skill, Task, Trajectory, derive_seed

OnResult = Callable[[int, RolloutResult], None]
ToSkills = Callable[[str], Sequence[Skill]]
"""The skills of a document."""
PlaceDocument = Callable[[RolloutWorker, str], RolloutWorker]
"""The worker whose agent reads this document."""


def items_of(tasks: Iterable[Task]) -> list[dict[str, Any]]:
    """Tasks as items of the loop: what names and describes them, without true answers."""
    found = []
    for task in tasks:
        question = task.options.get("question")
        described = {"split": task.split, "task_type": task.task_type, "question": question}
        found.append({"id": task.id, **{name: value for name, value in described.items() if value}})
    return found


def as_bank(skills: SkillsConfig | None, to_skills: ToSkills) -> PlaceDocument:
    """The document is the skill bank, searched and shown as the section `skills` says. One embedder serves all documents.

    Raises:
        ConfigError: the policy's config has no skills section.
    """
    if skills is None or not skills.enabled:
        raise ConfigError(
            "optimize.place=bank needs a skills section in use: without it, prompts have no place for skills. Add one."
        )
    retriever = make_retriever(BankSettings.from_config(skills).changed(index="memory"))

    def place(worker: RolloutWorker, document: str) -> RolloutWorker:
        with naming("The reader of documents (optimize.granularity)"):
            found = to_skills(document)
        return worker.with_bank(BankView(Snapshot.of(0, map(normalize_skill, found)), retriever))

    return place


@dataclass(frozen=True)
class PolicyRollouts:
    """The `RollOutFn` of a policy: rolls out a document on items whose tasks it knows.

    Raises:
        KeyError: an item names no known task.
        BudgetError: the budget is spent; finished rollouts were reported.
        EndpointError, EnvError: every rollout failed.
    """

    worker: RolloutWorker
    tasks: Mapping[str, Task]
    """By id. Their true answers, where they have any, decide `hard`."""
    place: PlaceDocument
    show_reference: bool = True
    """Results hold the true answer, which analysts then read."""
    temperature: float = 0.0
    """Sampling temperature; 0: greedy."""

    def __call__(
        self, document: str, items: Sequence[Item], *, seed: int, on_result: OnResult = lambda place, result: None
    ) -> list[RolloutResult]:
        """One result an item, in order; see `optimize.calls.RollOutFn`.

        A document that leaves prompts no room fails on every item; `place` raises it as an error.
        """
        tasks = [self.tasks[str(item["id"])] for item in items]
        try:
            worker = self.place(self.worker, document)
        except DocumentError as error:  # a candidate without room for a task fails on all of them
            failed = [RolloutResult(task.id, fail_reason=str(error), task_type=task.task_type) for task in tasks]
            for place, result in enumerate(failed):
                on_result(place, result)
            return failed
        how = worker.config.rollout
        sampling = replace(Sampling.of(how), temperature=self.temperature)
        places = {task.id: place for place, task in enumerate(tasks)}  # items differ
        results: dict[int, RolloutResult] = {}

        def report(trajectory: Trajectory) -> None:
            place = places[trajectory.task.id]
            results[place] = as_result(trajectory, show_reference=self.show_reference)
            # One that failed, or that nothing grades, is finished only once it is clear that not all are so.
            if trajectory.error is None and not results[place].ungraded:
                on_result(place, results[place])

        groups = []
        for start in range(0, len(tasks), how.max_batch_size):
            part = tasks[start : start + how.max_batch_size]
            own = derive_seed(seed, "chunk", start)
            groups += worker.generate_rollouts(part, 1, sampling, own, on_rollout_end=report)
        refuse_failure(groups)
        return [results[place] for place in range(len(tasks))]


TURN_CHARS = 2000
"""Longest text of one turn in a conversation; of a longer one beginning and end stay."""
MOST_TURNS = 60
"""Most turns of a conversation; of a longer one the first and the last stay."""


def as_result(trajectory: Trajectory, *, show_reference: bool = True, success: bool | None = None) -> RolloutResult:
    """The result of one rollout, as the text optimizer reads it.

    `hard` is what the environment says, where it says `won`; else a true answer decides; else the environment's return. `soft` is the
    environment's score, or the same as `hard`. A failed rollout is no success; one that nothing judges is marked `ungraded`, and one that
    the environment rewards although the true answer says that it is wrong `rewarded`.

    Args:
        trajectory: the rollout.
        show_reference: it holds the true answer of the task.
        success: overrides the rules above.
    """
    task, given, score = trajectory.task, success is not None, trajectory.score
    undecided = not given and trajectory.error is None and trajectory.won is None
    if undecided and task.ground_truth is not None:
        success = bool(correct([(trajectory.answer, task.ground_truth)])[0])
    elif not given:
        success = trajectory.success
    hard, question = int(bool(success)), task.options.get("question")
    extras: dict[str, Any] = {"stop_reason": trajectory.stop_reason}
    if success is None:
        extras["ungraded"] = True
    elif undecided and not hard and trajectory.env_return > 0:
        extras["rewarded"] = True
    if trajectory.bank_version is not None:
        extras |= {"skills_in_prompt": [*trajectory.skills_in_prompt], "retrieved": [*trajectory.retrieved]}
    return RolloutResult(
        id=task.id,
        hard=hard,
        soft=float(hard) if score is None or trajectory.error is not None else score,
        n_turns=len(trajectory.steps),
        fail_reason="" if hard else why_it_failed(trajectory, success, show_reference=show_reference),
        task_type=task.task_type,
        task_description=trajectory.goal,
        predicted_answer=trajectory.answer or "",
        question=question if isinstance(question, str) else trajectory.goal,
        reference_text=(true_answer(task) or "") if show_reference else "",
        conversation=conversation(trajectory),
        extras=extras,
    )


def true_answer(task: Task) -> str | None:
    """The true answer of a task, or the phrasings that its environment accepts (`SkillTTRL/QA-v0`); None where there is none."""
    accepted = task.options.get("answers")
    if task.ground_truth is None and isinstance(accepted, list) and accepted:
        return " | ".join(map(str, accepted))
    return task.ground_truth


def why_it_failed(trajectory: Trajectory, success: bool | None, *, show_reference: bool) -> str:
    """The reason of a failure in words."""
    if trajectory.error is not None:
        return f"{trajectory.stop_reason}: {clip(trajectory.error, 500)}"
    invalid = sum(step.action_status == "invalid" for step in trajectory.steps)
    ends = {"max_turns": "the task was not done", "truncated": "the episode was truncated"}
    reasons = [
        f"{said} after {len(trajectory.steps)} turns" for end, said in ends.items() if trajectory.stop_reason == end
    ]
    last = trajectory.steps[-1].completion if trajectory.steps else None
    if last is not None and last.finish_reason == "length":
        reasons.append("the last reply reached its length limit")
    if invalid:
        reasons.append(f"{invalid} of {len(trajectory.steps)} actions were not valid")
    reference, score = true_answer(trajectory.task), trajectory.score
    if reference is not None and trajectory.answer is None:
        reasons.append("no answer was found in the reply")
    elif reference is not None:
        expected = f", expected {clip(reference, 200)!r}" if show_reference else ""
        reasons.append(f"answered {clip(trajectory.answer or '', 200)!r}{expected}")
    elif score is not None and score > 0:
        reasons.append(f"only partly right (score {score:.2f})")
    if success is None:
        reasons.append("nothing tells whether it succeeded")
    return "; ".join(reasons) or "the task was not done"


def conversation(trajectory: Trajectory) -> list[dict[str, str]]:
    """Observations and replies, turn by turn; long texts and long episodes are cut in the middle, where a line says how many are missing.

    Text that the bank inserted into a completion is part of it.
    """
    turns: list[tuple[str, str]] = []
    for step in trajectory.steps:
        said = step.action if step.completion is None else step.completion.text
        said += step.action if step.calls and step.completion else ""
        turns += [("user", step.observation), ("assistant", said)]
    turns += [("user", trajectory.final_obs)] if trajectory.final_obs else []
    if len(turns) > MOST_TURNS:
        half = (MOST_TURNS - 1) // 2
        turns[half:-half] = [("user", f"[... {len(turns) - 2 * half} turns left out ...]")]
    return [{"role": role, "content": clip(content, TURN_CHARS)} for role, content in turns]
