"""The vocabulary: plain frozen data that every layer hands on.

A `Task` is played by an agent in an environment; each try is a `Trajectory` of `Step`s, each step holding the exact
tokens that were sampled; the tries at one task are a `Group`, the unit of voting and of advantages. Everything here
survives a round trip through JSON (`to_json`, `from_json`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from skill_ttrl.types.skills import BankUpdate as BankUpdate
from skill_ttrl.types.skills import Change as Change
from skill_ttrl.types.skills import ChangeKind as ChangeKind
from skill_ttrl.types.skills import Evolution as Evolution
from skill_ttrl.types.skills import Skill as Skill
from skill_ttrl.types.skills import SkillOps as SkillOps
from skill_ttrl.types.skills import SkillStats as SkillStats
from skill_ttrl.types.skills import Tier as Tier

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

FinishReason = Literal["stop", "length", "error"]
StopReason = Literal["terminated", "truncated", "max_turns", "timeout", "no_answer", "error"]
Verdict = Literal["valid", "repaired", "invalid"]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Labels:
    """The two answers that a task can be held to."""

    true: str | None
    """The true answer; None where it is not known."""
    pseudo: str | None
    """The winner of a vote; None where nobody won."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do: everything that an environment's `reset` needs, and how to refer to it."""

    id: str
    """Unique in its data set and stable between runs."""
    env_id: str
    """Gymnasium id of the environment that plays it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Handed to `reset(options=...)` as it is."""
    seed: int | None = None
    """Handed to `reset(seed=...)`; None draws one from the run's seed, the same for all tries of a group."""
    split: str = "train"
    """Name of the part of the data it belongs to."""
    task_type: str = ""
    """Kind of task, for figures by type ("algebra", "pick_and_place"); empty when unknown."""
    reference: str | None = None
    """The label in force: the true answer where one is known, or, after `voting.apply_pseudo_labels`, what a vote gave. It
    measures; label-free rewards never see it (`without_reference`)."""
    labels: Labels | None = None
    """Both labels, once a vote has given one (`voting.apply_pseudo_labels`); None before."""

    def without_reference(self) -> Task:
        """The same task as the trainer is given it: no label in it, neither true nor voted."""
        return replace(self, reference=None, labels=None)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model answered, token by token. The tokens are the truth: training never tokenises the text again."""

    text: str
    token_ids: tuple[int, ...]
    """Sampled ids, the end-of-sequence id included when it was sampled. Empty where the sampler names none (an API)."""
    logprobs: tuple[float, ...]
    """Log-probability (nats) of each token under the sampling distribution at temperature `Sampling.temperature`. Empty where
    the sampler gives none."""
    finish_reason: FinishReason
    policy_version: int = 0
    """Number of weight updates the sampling policy had seen."""
    mask: tuple[bool, ...] | None = None
    """For each token whether it was sampled, and so is trained on; False for one that was inserted. None: all sampled."""
    inserted: tuple[tuple[int, int], ...] = ()
    """Spans [start, end) of `text`, in characters, that were inserted (retrieved skills) and not written by the model."""
    error: str | None = None
    """Why there is no answer, where `finish_reason` is "error": the sampler was asked and nothing usable came."""
    allowed: tuple[tuple[int, ...], ...] | None = None
    """Token ids that each token was drawn from, ascending, where `Request.choices` limited it; a forced token's is itself alone, with log-prob
    0. None: any token of the vocabulary. Log-probs are those of the distribution over these ids alone. Not written to files."""

    @property
    def sampled(self) -> int:
        """Tokens that the model wrote itself; 0 where the sampler names neither ids nor log-probs."""
        return sum(self.mask) if self.mask else max(len(self.token_ids), len(self.logprobs))

    @property
    def told(self) -> int:
        """Tokens that were inserted."""
        return 0 if self.mask is None else self.mask.count(False)

    @property
    def written(self) -> str:
        """What the model itself wrote: only this is parsed, answered with and handed to an environment."""
        kept, end = [], 0
        for start, stop in self.inserted:
            kept.append(self.text[end:start])
            end = stop
        return "".join([*kept, self.text[end:]])


@dataclass(frozen=True, slots=True)
class Step:
    """One turn in an environment, in Gymnasium's words."""

    observation: str
    action: str
    """What the environment was given: what the model's own words say, without what was inserted into them."""
    reward: float
    terminated: bool
    truncated: bool
    prompt_ids: tuple[int, ...] = ()
    """Exact prompt tokens the completion was sampled from."""
    completion: Completion | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    """What `step` returned beside the rest: texts, numbers and truth values, without the texts that `reset` had returned too."""
    admissible: tuple[str, ...] = ()
    """The actions that the environment listed as possible when this one was chosen; empty where it lists none."""
    verdict: Verdict | None = None
    """How the action was found in the model's words (`agents.action_parser`); None where all of them are the action."""
    complaint: str = ""
    """Why it is not `valid`; empty where it is."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """What the prompt had no room for, by what it is: `turns` of the history, `observation_tokens`, `actions`, `skills`."""

    @property
    def written(self) -> str:
        """All that the model wrote in this turn; the action where no model acted."""
        return self.action if self.completion is None else self.completion.written


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One try at one task."""

    task: Task
    steps: tuple[Step, ...]
    answer: str | None
    """The final answer, as extracted; None when none was given."""
    stop_reason: StopReason
    reward: float | None = None
    """What the learner is given (set by the reward: a vote, a label, the environment)."""
    error: str | None = None
    """Reason of the failure when `stop_reason` is "error", "timeout" or "no_answer" (of the model): a failed rollout is data, not a crash."""
    ops: SkillOps | None = None
    """What it asked of the skill bank; None where there was no bank to ask."""
    skills_in_prompt: tuple[str, ...] = ()
    """Ids of the skills that its first prompt showed."""
    retrieved: tuple[str, ...] = ()
    """Ids of the skills that were inserted because it asked, in order."""
    bank_version: int | None = None
    """Frozen version of the bank that it saw."""
    last_observation: str = ""
    """What was seen after the last step; empty where nothing was played."""
    source: str = ""
    """Where the environment has the task from (`info["source"]`); empty where it does not say."""
    goal: str = ""
    """What was to be done, in words, as the environment says it (`info["task"]`); empty where it does not."""
    start_state: str = ""
    """Digest of the state before the first step (`info["state"]` of `reset`); empty where the environment names none."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Each reward by its name, before weights, where there are several (`rl.extra_rewards`): `reward` is their weighted sum."""
    view: int = 0
    """Which wording of the task it answered: 0 as given, 1 a paraphrase (its own `task` then states that one)."""

    @property
    def env_return(self) -> float:
        """Sum of the environment's own rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def text(self) -> str:
        """All that the model wrote, turn by turn."""
        return "\n".join(step.written for step in self.steps)

    @property
    def won(self) -> bool | None:
        """What the environment says of its success (`won` in `info`), at the last step; None where it says nothing."""
        won = self.steps[-1].info.get("won") if self.steps else None
        return won if isinstance(won, bool) else None

    @property
    def succeeded(self) -> bool:
        """Success as the environment sees it: `won`, else a return above 0. A failed rollout is none.

        Where rewards are partial most rollouts earn something, so the environment's own word decides before its return.
        """
        if self.error is not None:
            return False
        return self.env_return > 0 if self.won is None else self.won


@dataclass(frozen=True, slots=True)
class Group:
    """All tries at one task from one policy version: the unit of voting, of advantages and of merging."""

    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def answers(self) -> list[str | None]:
        """Final answers in the order of the tries."""
        return [trajectory.answer for trajectory in self.trajectories]

    def with_rewards(self, rewards: list[float], parts: Sequence[Mapping[str, float]] | None = None) -> Group:
        """The same group, each rollout carrying its reward (one for each, in order), and the parts that it is the sum of."""
        rows = zip(self.trajectories, rewards, parts or [{}] * len(rewards), strict=True)
        return replace(self, trajectories=tuple(replace(each, reward=one, rewards=part) for each, one, part in rows))

    def select(self, indices: list[int]) -> Group:
        """The tries at these positions only."""
        return replace(self, trajectories=tuple(self.trajectories[i] for i in indices))


@dataclass(frozen=True, slots=True)
class VoteResult:
    """Outcome of a vote over the answers of one group. Unpacks as `answer, agreement, matches`.

    The second half of the fields says what the vote does to training; their defaults are those of a plain majority.
    """

    answer: str | None
    """The winning answer, in the words of its first voter; None when nobody won: no answers, or a strategy that abstains."""
    agreement: float
    """Votes for the winner (where nobody won: for the largest class) over ALL samples, those without an answer included; in
    [0, 1] (TTRL: majority_ratio)."""
    matches: tuple[bool, ...]
    """For each sample, whether it belongs to the winner's class. A sample without an answer never does."""
    classes: tuple[tuple[str, int], ...] = ()
    """(representative, votes) of each class of equal answers, most votes first, ties by first appearance."""
    abstained: int = 0
    """Samples that gave no answer."""
    tie: bool = False
    """Whether another class did as well; the one that appeared first was chosen."""
    scores: tuple[float, ...] = ()
    """What a strategy gave each class, in the order of `classes`; empty where votes alone decide."""
    rewards: tuple[float, ...] = ()
    """Reward of each sample; empty: 1 for each match, else 0 (see `earned`)."""
    membership: tuple[int, ...] = ()
    """Place of each sample's class in `classes`, -1 for a sample without an answer. Given where `label_weights` is."""
    label_weights: tuple[float, ...] = ()
    """Where each class is a pseudo-label: its weight, in the order of `classes`. The advantages are the weighted sum of those
    that each label alone would give (RESTRAIN). Empty: the winner is the only label."""
    weight: float = 1.0
    """Factor of the prompt's advantages, at least 0."""
    penalty: float = 0.0
    """Taken off the advantage of every sample of the prompt, before `weight`."""
    bonus: tuple[float, ...] = ()
    """Added to each sample's advantage at the end, in units of the prompt's mean absolute advantage; empty: nothing."""
    skipped: bool = False
    """Whether nothing is learnt from this prompt at this step."""
    flags: tuple[str, ...] = ()
    """What the strategy noticed, in its own words ("flip", "high_risk"); their shares are in the metrics."""

    @property
    def earned(self) -> tuple[float, ...]:
        """Reward of each sample."""
        return self.rewards or tuple(float(match) for match in self.matches)

    def select(self, indices: list[int]) -> VoteResult:
        """The same vote as it bears on the samples at these positions only."""
        chosen: dict[str, Any] = {
            name: tuple(getattr(self, name)[place] for place in indices)
            for name in ("matches", "rewards", "membership", "bonus")
            if getattr(self, name)
        }
        return replace(self, **chosen)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.answer, self.agreement, list(self.matches)))


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose at one point of a run, in [0, 2**63).

    Every random choice draws from `derive_seed(run seed, what for, step)`, so a resumed run makes the same choices as one
    that was never stopped, and no generator's state has to be stored.
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def to_json(value: Any) -> str:
    """One line of JSON for any of the types above."""
    text: str = _adapter(cast(Any, type(value))).dump_json(value).decode()
    return text


def from_json(kind: type[T], text: str | bytes) -> T:
    """The value that `to_json` wrote.

    Raises:
        pydantic.ValidationError: the text is not one of `kind`.
    """
    value: T = _adapter(cast(Any, kind)).validate_json(text)
    return value


def first_problem(error: ValidationError) -> str:
    """What is wrong with a text that `from_json` refuses, with the field where it is in one: "steps.0.reward: ..."."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    return f"{field}{': ' if field else ''}{problem['msg']}"
