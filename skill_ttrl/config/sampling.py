"""Sections of a config: prompts and actions of the agent, sampling, voting, and how accuracy is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, WrapValidator, model_validator

from skill_ttrl.config.section import Section, name_and_options


class McpServer(Section):
    """An MCP server whose tools the model may call."""

    mcp: Annotated[list[str], Field(min_length=1)] | Annotated[str, Field(pattern="^https?://")]
    """The command that starts it ([program, argument, ...]), or the address of one that runs (streamable HTTP)."""


def _named_tool(value: Any, check: Callable[[Any], Any]) -> Any:
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            "must be calculator, module:function, {mcp: [program, argument]} or {mcp: 'http://…'}"
        ) from None


NamedTool = Annotated[str | McpServer, WrapValidator(_named_tool)]


class AgentConfig(Section):
    """How a task becomes a prompt."""

    template: str = "boxed"
    """A Markdown file of `skill_ttrl/prompts` by name, or the path of your own; `$question` marks where the task goes."""
    system: str | None = None
    """System message; None leaves it out."""
    document: str | None = None
    """A Markdown file that ends the system message of every prompt: a skill document. (`skills.bank: document:FILE` makes skills of its
    sections instead.) It counts toward `data.max_prompt_tokens`. None: no document."""
    max_turns: int = Field(default=1, ge=1)
    """Most turns of an episode."""
    context_mode: Literal["conversation", "episode", "none", "window"] = "conversation"
    """Which earlier turns a prompt contains. `conversation`: all of them, in a newly rendered prompt. `episode`: all of them as one growing
    token sequence: each prompt is the previous one plus the sampled tokens plus those of the new observation, so that nothing is computed
    twice and an episode is one training sequence. For `hf` and `vllm` with chat templates that only append (docs/imitation.md). `none`:
    none of them. `window`: a new prompt each turn, made by `template` from the task, the last `history_length` turns, the observation, the
    admissible actions and the skills."""
    observations: str = "full"
    """Form of observations in prompts, and of actions if the form has its own. `full`: the environment's text. `alfworld`: the objects that
    an ALFWorld observation names, or one word; `alfworld_reach` adds those that the admissible actions show to be within reach
    (docs/environments.md). `module:attribute`: your own function from an `AgentInput` to a text, or a `Form`
    (`skill_ttrl.agents.observations`) of such a function and one for the actions that the policy writes instead of the environment's
    (docs/imitation.md). Episodes, experts and teachers always use the environment's own observations and actions."""
    history_length: int | None = Field(default=2, ge=0)
    """Past turns in a prompt with `context_mode: window` (SkillRL: 2); None: all."""
    max_observation_tokens: int | None = Field(default=None, ge=1)
    """Longest observation in a prompt with `context_mode: window`; the rest is cut off, and the step records it. None: only
    `data.max_prompt_tokens` applies."""
    actions: Literal["text", "numbered"] = "text"
    """How a prompt with `context_mode: window` lists the admissible actions. `numbered`: each has a number, which is the model's answer. An
    action with a slot, such as `search[<your query>]`, is listed with the words of the task; to use other words, the model writes it out."""
    action_order: Literal["listed", "words"] = "listed"
    """Order of the actions in a prompt with `context_mode: window`. `listed`: the environment's. `words`: first those whose object the task
    names, then those that the skills name, and last those already done; a list that is too long is cut at the end."""
    hidden_verbs: list[str] = Field(default_factory=list)
    """Verbs whose actions such a prompt does not list (SkillRL: `help` in ALFWorld). If the model writes one anyway, it counts as invalid
    and is executed."""
    action_parser: Literal["none", "action"] = "none"
    """How to read an action from the model's text. `none`: the whole text. `action`: the text inside `<action>`; small typos are corrected,
    inadmissible actions are invalid."""
    prompts: str | None = None
    """Folder of your own templates; a file there replaces the shipped one of the same name."""
    tools: list[NamedTool] = Field(default_factory=list)
    """Tools that the model may call in addition to the environment's: `calculator`, `module:function` of your own, `{mcp: [program, argument]}` or
    `{mcp: "http://..."}` (docs/tools.md)."""
    tool_timeout_s: float = Field(default=30.0, gt=0)
    """Longest duration of one call, in seconds; the model gets an error for one that takes longer."""
    structured_actions: bool = False
    """Let the model write only one of the environment's `admissible_commands` (`hf`). Training uses the same restriction: probabilities,
    entropies and KL are over the allowed tokens."""

    @property
    def windowed(self) -> bool:
        """True if each turn has a prompt of its own, made anew with the last turns."""
        return self.context_mode == "window"

    @property
    def whole_episodes(self) -> bool:
        """True if an episode is one sequence of tokens that only grows."""
        return self.context_mode == "episode"


class RolloutConfig(Section):
    """Sampling."""

    backend: str = "hf"
    """`hf`, `vllm` (see the section `vllm`), `openai` (`endpoints`; its weights do not change), `none` (the program of the
    section `program` brings its own model), or `module:attribute` of your own (see `skill_ttrl.llm.backend`)."""
    n_votes_per_prompt: int = Field(default=64, ge=1)
    """Samples that vote (TTRL: 64)."""
    n_samples_per_prompt: int = Field(default=32, ge=1)
    """How many of these samples are trained on, chosen with a seed (TTRL: 32)."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0: the whole vocabulary."""
    max_new_tokens: int = Field(default=3072, ge=1)
    """Longest completion in tokens (TTRL: 3072)."""
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Texts that end a completion, as a line break does for a model that continues with the next question."""
    prompts_per_batch: int | None = Field(default=None, ge=1)
    """Prompts whose rollouts are sampled together, each batch with its own seed. Batches run one after another, or on the workers of a Ray
    cluster (`scale.address`). Fewer prompts take less memory. None: all prompts of a step or an evaluation. The number changes which samples
    a seed gives."""
    max_batch_size: int = Field(default=1024, ge=1)
    """Most rows that the `hf` backend decodes at once; on a CPU, no more than 1 GiB of keys and values holds. The number changes which
    samples a seed gives."""
    mode: Literal["auto", "sync", "async"] = "auto"
    """How multi-turn episodes advance. `sync`: together, turn by turn; the same seed gives the same samples. `async`: each as soon as its
    environment responds, so that a slow one blocks no other; for samplers that batch incoming requests. Environments then run in threads.
    `auto`: `sync` for `hf` and for single-turn episodes, otherwise `async`. See docs/imitation.md."""
    rollout_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds that an episode may wait for its environment and the sampler. After that it ends as failed (`stop_reason` "timeout"). None:
    unlimited."""

    @model_validator(mode="after")
    def _votes_cover_samples(self) -> RolloutConfig:
        if self.n_votes_per_prompt < self.n_samples_per_prompt:
            raise ValueError(
                f"n_votes_per_prompt ({self.n_votes_per_prompt}) must be at least n_samples_per_prompt "
                f"({self.n_samples_per_prompt}): the trained samples are a subset of those that vote"
            )
        return self


class VoteConfig(Section):
    """Voting strategy. It affects training if votes are rewarded (`rl.reward: majority`). See docs/voting.md."""

    strategy: str | dict[str, Any] = "majority"
    """`majority`, `confidence`, `anchored`, `sequential`, or `module:function` of your own; with options: `{type: anchored, weight: 0.5}`."""

    @property
    def chosen(self) -> tuple[str, dict[str, Any]]:
        """Name and options of `strategy`."""
        return name_and_options(self.strategy, "majority")


class EvalConfig(Section):
    """How accuracy is measured (avg@k, pass@k, maj@k, greedy)."""

    samples: int = Field(default=16, ge=1)
    """Samples per problem (TTRL: 16)."""
    temperature: float = Field(default=0.6, gt=0)
    """TTRL: 0.6."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """TTRL: 0.95."""
    extra_temperatures: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    """Further temperatures at which avg@k is measured."""
    greedy: bool = True
    controls: list[str] = Field(default_factory=lambda: ["random", "first"])
    """Scripted agents that play the same tasks for comparison, if the environment judges success and lists actions: `random`, `first` (the
    first action in the prompt), `constant:TEXT`, or another scripted agent. `[]`: none."""
