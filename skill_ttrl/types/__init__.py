"""Core data types: plain frozen data shared by all layers.

An agent acts on a `Task` in an environment. Each rollout is a `Trajectory` of `Step`s, and each step holds the exact sampled
tokens. All rollouts of one task form a `Group`, the unit of voting and of advantages. All types survive a round trip through
JSON (`to_json`, `from_json`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

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
ActionStatus = Literal["valid", "repaired", "invalid"]
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Labels:
    """The two labels of a task."""

    ground_truth: str | None
    """The true answer; None where it is not known."""
    pseudo: str | None
    """The winner of a vote; None where nobody won."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task: everything that an environment's `reset` needs, with a stable id."""

    id: str
    """Unique in its data set and stable between runs."""
    env_id: str
    """Gymnasium id of the environment."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed unchanged to `reset(options=...)`."""
    seed: int | None = None
    """Passed to `reset(seed=...)`; None draws one from the run's seed, the same for all rollouts of a group."""
    split: str = "train"
    """Name of the part of the data it belongs to."""
    task_type: str = ""
    """Kind of task, for metrics by type ("algebra", "pick_and_place"); empty when unknown."""
    ground_truth: str | None = None
    """Label in use: the true answer where one is known, or, after `voting.apply_pseudo_labels`, the winner of a vote. It
    serves evaluation only; label-free rewards never see it (`without_ground_truth`)."""
    labels: Labels | None = None
    """Both labels, after a vote has set the pseudo-label (`voting.apply_pseudo_labels`); None before."""

    def without_ground_truth(self) -> Task:
        """Return the task without any label, true or voted, as the trainer sees it."""
        return replace(self, ground_truth=None, labels=None)


def where_any() -> Any:
    """Metadata that leaves an empty field out of files, as in runs without tools."""
    from pydantic import Field

    return Field(exclude_if=lambda value: not value)


ToolError = Literal["", "not_json", "no_tool", "bad_arguments", "failed", "timeout", "too_long"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model wrote, with its result."""

    name: str
    arguments: str
    """The JSON object as the model wrote it; with the error `not_json` the whole call as it was written."""
    id: str = ""
    """Pairs the call with its result in requests to a remote model; empty where their order does."""
    result: str | None = None
    """Text that the model sees; None before the call is run."""
    error: ToolError = ""
    """Reason of a failure; empty if there is none. `too_long`: the result is cut."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str
    calls: Annotated[tuple[ToolCall, ...], where_any()] = ()
    """Calls of tools at the end of an assistant's turn."""
    call: Annotated[ToolCall | None, where_any()] = None
    """The call that a `tool` message answers."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Completion of a model, token by token. Training uses these tokens and never tokenizes the text again."""

    text: str
    token_ids: tuple[int, ...]
    """Sampled ids, including the end-of-sequence id if it was sampled. Empty if the inference engine returns none (an API)."""
    logprobs: tuple[float, ...]
    """Log-probability (nats) of each token under the sampling distribution at temperature `Sampling.temperature`. Empty if
    the inference engine returns none."""
    finish_reason: FinishReason
    policy_version: int = 0
    """Number of weight updates the sampling policy had seen."""
    completion_mask: tuple[bool, ...] | None = None
    """True for each sampled token, which is trained on; False for an inserted one. None: all tokens were sampled."""
    inserted_spans: tuple[tuple[int, int], ...] = ()
    """Spans [start, end) of `text`, in characters, that were inserted (retrieved skills), not sampled."""
    error: str | None = None
    """Reason why a request returned nothing usable, if `finish_reason` is "error"."""
    allowed: tuple[tuple[int, ...], ...] | None = None
    """Token ids that each token was drawn from, ascending, where `Request.choice` limited it; a forced token's is itself alone, with log-prob
    0. None: any token of the vocabulary. Log-probs are those of the distribution over these ids alone."""
    calls: Annotated[tuple[ToolCall, ...] | None, where_any()] = None
    """Calls of tools that a server has parsed; `text` is then without them. None: they stand in the text."""

    @property
    def num_sampled_tokens(self) -> int:
        """Number of sampled tokens; 0 if the inference engine returns neither ids nor log-probs."""
        return sum(self.completion_mask) if self.completion_mask else max(len(self.token_ids), len(self.logprobs))

    @property
    def num_inserted_tokens(self) -> int:
        """Number of inserted tokens."""
        return 0 if self.completion_mask is None else self.completion_mask.count(False)

    @property
    def model_text(self) -> str:
        """Sampled text, without inserted spans. Only this text is parsed for answers, actions and skill operations."""
        parts, end = [], 0
        for start, stop in self.inserted_spans:
            parts.append(self.text[end:start])
            end = stop
        return "".join([*parts, self.text[end:]])


@dataclass(frozen=True, slots=True)
class Step:
    """One turn in an environment, in Gymnasium's terms."""

    observation: str
    action: str
    """Action passed to the environment, parsed from the sampled text without inserted spans."""
    reward: float
    terminated: bool
    truncated: bool
    prompt_ids: tuple[int, ...] = ()
    """Exact prompt tokens the completion was sampled from."""
    completion: Completion | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    """Serializable part of the `info` that `step` returned: strings, numbers and booleans, without strings that `reset` returned too."""
    admissible_actions: tuple[str, ...] = ()
    """Admissible actions that the environment listed when this one was chosen; empty if it lists none."""
    action_status: ActionStatus | None = None
    """Result of parsing the action from the model's text (`agents.action_parser`); None if the whole text is the action."""
    parse_error: str = ""
    """Reason why the action is not `valid`; empty if it is."""
    calls: Annotated[tuple[ToolCall, ...], where_any()] = ()
    """Calls of tools of this turn, with their results; where there are any, `action` is their text."""
    truncated_parts: Mapping[str, int] = field(default_factory=dict)
    """Counts of items that did not fit into the prompt: `turns` of the history, `observation_tokens`, `actions`, `skills`."""

    @property
    def model_text(self) -> str:
        """Sampled text of this turn; the action if no model acted."""
        return self.action if self.completion is None else self.completion.model_text


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout of one task."""

    task: Task
    steps: tuple[Step, ...]
    answer: str | None
    """Extracted final answer; None without one."""
    stop_reason: StopReason
    reward: float | None = None
    """Reward for the learner, from a vote, a label or the environment; None before it is set."""
    error: str | None = None
    """Reason for the failure when `stop_reason` is "error", "timeout" or "no_answer" (of the model): a failed rollout is data, not a crash."""
    ops: SkillOps | None = None
    """Skill operations that the rollout wrote; None without a skill bank."""
    skills_in_prompt: tuple[str, ...] = ()
    """Ids of the skills in its first prompt."""
    retrieved: tuple[str, ...] = ()
    """Ids of the skills inserted in response to its queries, in order."""
    bank_version: int | None = None
    """Version of the bank snapshot that it used."""
    final_obs: str = ""
    """Observation after the last step; empty without steps."""
    source: str = ""
    """Source of the task according to the environment (`info["source"]`); empty if not given."""
    goal: str = ""
    """Goal in words according to the environment (`info["task"]`); empty if not given."""
    start_state: str = ""
    """Digest of the state before the first step (`info["state"]` of `reset`); empty if not given."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Unweighted rewards by name if there are several (`rl.extra_rewards`); `reward` is their weighted sum."""

    @property
    def env_return(self) -> float:
        """Sum of the environment's own rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def text(self) -> str:
        """Text of all turns (see `Step.model_text`), joined by line breaks; with calls of tools."""
        return "\n".join(
            step.model_text + (step.action if step.calls and step.completion else "") for step in self.steps
        )

    @property
    def content(self) -> str:
        """`text` without the thoughts of each turn."""
        return "\n".join(content(step.model_text) for step in self.steps)

    @property
    def won(self) -> bool | None:
        """Success according to the environment (`won` in the last step's `info`); None if it reports no boolean."""
        won = self.steps[-1].info.get("won") if self.steps else None
        return won if isinstance(won, bool) else None

    @property
    def is_success(self) -> bool:
        """True if the environment reports success: `won` if given, else a return above 0. A failed rollout never succeeds.

        With partial rewards most rollouts have a positive return, so `won` takes precedence.
        """
        if self.error is not None:
            return False
        return self.env_return > 0 if self.won is None else self.won

    @property
    def success(self) -> bool | None:
        """`is_success`; None where the environment did not grade (`graded` in the last step's `info`). A failed rollout is no success."""
        if self.error is None and not (self.steps and self.steps[-1].info.get("graded", True)):
            return None
        return self.is_success

    @property
    def score(self) -> float | None:
        """How near it came to a perfect rollout, in [0, 1]: `score` in the last step's `info`.

        None where there is none, or a number out of that range: other games count points, which have no such meaning.
        """
        score = self.steps[-1].info.get("score") if self.steps else None
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            return None
        return float(score)

    @property
    def exploits(self) -> int | None:
        """Attempts to get around the task: `exploits` in the last step's `info`; None where the environment does not count them."""
        count = self.steps[-1].info.get("exploits") if self.steps else None
        return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one task from one policy version: the unit of voting, of advantages and of merging."""

    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def answers(self) -> list[str | None]:
        """Final answers in the order of the rollouts."""
        return [trajectory.answer for trajectory in self.trajectories]

    def with_rewards(self, rewards: list[float], parts: Sequence[Mapping[str, float]] | None = None) -> Group:
        """Return the group with one reward for each rollout, in order, and the parts that sum to it."""
        rows = zip(self.trajectories, rewards, parts or [{}] * len(rewards), strict=True)
        return replace(self, trajectories=tuple(replace(each, reward=one, rewards=part) for each, one, part in rows))

    def select(self, indices: list[int]) -> Group:
        """Return the group with only the rollouts at these positions."""
        return replace(self, trajectories=tuple(self.trajectories[i] for i in indices))


@dataclass(frozen=True, slots=True)
class VoteResult:
    """Outcome of a vote over the answers of one group. Unpacks as `answer, majority_ratio, matches`."""

    answer: str | None
    """The winning answer, in the words of its first voter; None when nobody won: no answers, or a strategy that abstains."""
    majority_ratio: float
    """Votes for the winner (where nobody won: for the largest class) over ALL samples, those without an answer included; in
    [0, 1] (TTRL: majority_ratio)."""
    matches: tuple[bool, ...]
    """For each sample, whether it belongs to the winner's class. A sample without an answer never does."""
    classes: tuple[tuple[str, int], ...] = ()
    """(representative, votes) of each class of equal answers, most votes first, ties by first appearance."""
    abstained: int = 0
    """Samples that gave no answer."""
    tie: bool = False
    """True if another class scored equally well; the class that appeared first won."""
    scores: tuple[float, ...] = ()
    """Score that the strategy gave each class, in the order of `classes`; empty if votes alone decide."""

    @property
    def agreement(self) -> float:
        """Alias of `majority_ratio`, as the first Skill-TTRL calls it."""
        return self.majority_ratio

    @property
    def sample_rewards(self) -> tuple[float, ...]:
        """Reward of each sample: 1 for each match, else 0."""
        return tuple(float(match) for match in self.matches)

    def select(self, indices: list[int]) -> VoteResult:
        """Return the vote restricted to the samples at these positions."""
        return replace(self, matches=tuple(self.matches[place] for place in indices))

    def __iter__(self) -> Iterator[Any]:
        return iter((self.answer, self.majority_ratio, list(self.matches)))


# Thoughts: the text between a model's thinking marks, parsed in one place. Answers, actions and skills are read from the rest.


THINK, THINK_END = "<think>", "</think>"
MARKS = (
    (THINK, THINK_END),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
)
"""What opens a thought and what closes it: Qwen, DeepSeek, GLM and others; Seed; Mistral; Gemma 4."""
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
"""gpt-oss opens a channel for each part of an answer; `final` is the one that the user sees."""
_CLOSE = re.compile("|".join(re.escape(close) for _, close in MARKS), re.IGNORECASE)
_OPENING = {close.lower(): re.compile(re.escape(opened), re.IGNORECASE) for opened, close in MARKS}
_THOUGHT = re.compile(
    "|".join(rf"{re.escape(opened)}(.*?)(?:{re.escape(close)}|\Z)" for opened, close in MARKS),
    re.DOTALL | re.IGNORECASE,
)
_CHANNEL = re.compile(
    r"<\|channel\|>\s*+(\w++).{,200}?<\|message\|>(.*?)(?=<\|(?:start|channel|end|return|call)\|>|\Z)", re.DOTALL
)
_JSON = re.compile(r"\s*+(?:[{`]|\[(?!THINK))")


def split_thought(text: str) -> tuple[str, str]:
    """(thought, content) of what a model wrote. Total: any text has both, either may be empty.

    A thought that is never closed reaches to the end, so there is no content. A closing mark without its opening one ends a thought that
    the prompt has opened. Several thoughts are joined by blank lines.
    """
    if channels := _CHANNEL.findall(text):
        thoughts = [said for name, said in channels if name != "final"]
        return _joined(thoughts), "".join(said for name, said in channels if name == "final")
    begun, closed = list[str](), _CLOSE.search(text)
    if closed and not _OPENING[closed[0].lower()].search(text, 0, closed.start()):
        begun, text = [text[: closed.start()]], text[closed.end() :]
    thoughts = [*begun, *(found[found.lastindex or 0] for found in _THOUGHT.finditer(text))]
    return (_joined(thoughts), _THOUGHT.sub("", text).lstrip()) if thoughts else ("", text)


def content(text: str) -> str:
    """What a model wrote without its thoughts: see `split_thought`."""
    return split_thought(text)[1]


def json_content(text: str) -> str:
    """`content` of an answer in JSON; where the text begins with JSON, all of it, because marks in its strings are text."""
    return text if _JSON.match(text) else content(text)


def with_thought(thought: str, said: str) -> str:
    """One text of a thought and a content that came apart, which `split_thought` parses back."""
    return f"{THINK}\n{_CLOSE.sub('', thought).strip()}\n{THINK_END}\n\n{said}" if thought.strip() else said


def _joined(thoughts: list[str]) -> str:
    return "\n\n".join(filter(None, (thought.strip() for thought in thoughts)))


def equal_rewards(rewards: Iterable[float]) -> bool:
    """True if all rewards are equal up to rounding, as 0.3 and 0.1 + 0.2 are; also of none."""
    values = list(rewards)
    return not values or math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-12)


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Derive a seed for one purpose at one point of a run, in [0, 2**63).

    Every random choice draws from `derive_seed(run seed, purpose, step)`, so a resumed run makes the same choices as an
    uninterrupted one, and no generator state has to be stored.
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def to_json(value: Any) -> str:
    """Serialize any of the types above as one line of JSON."""
    text: str = _adapter(cast(Any, type(value))).dump_json(value).decode()
    return text


def from_json(kind: type[T], text: str | bytes) -> T:
    """Parse a value that `to_json` wrote.

    Raises:
        pydantic.ValidationError: the text is not a valid `kind`.
    """
    value: T = _adapter(cast(Any, kind)).validate_json(text)
    return value


def first_problem(error: ValidationError) -> str:
    """Describe the first validation error of `from_json`, with its field if there is one: "steps.0.reward: ..."."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    return f"{field}{': ' if field else ''}{problem['msg'].removeprefix('Value error, ')}"
