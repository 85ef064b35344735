"""The agent in a text environment: a scene becomes a prompt, and the model's words become an action.

An agent is a pure function of the episode so far. Sampling is the backend's, acting is the environment's. With `skills` its
prompts have a place for skills, and with a `bank` there are some: they stand in the prompts, and questions that the model
writes to the bank are answered.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from skill_ttrl.agents.action_parser import (
    AS_LISTED,
    ActionList,
    ParsedAction,
    Project,
    answer_for,
    has_slot,
    possible,
    whole,
)
from skill_ttrl.agents.observations import Form, FormActions, read_form
from skill_ttrl.agents.turn_prompt import Prompt, TurnPromptBuilder, estimate_tokens
from skill_ttrl.config import AgentConfig, ProgramConfig, SkillsConfig
from skill_ttrl.llm.chat import read_calls
from skill_ttrl.prompts.templates import Templates, read_document, with_document
from skill_ttrl.sanitize import escape, replace_surrogates
from skill_ttrl.skills.ops import last_open_query
from skill_ttrl.skills.retrieval import TIERS, BankView, Query
from skill_ttrl.types import Message, Skill, Step, Task, ToolCall

if TYPE_CHECKING:
    from skill_ttrl.skills.bank import SkillBank

TASK_SKILL = "skill"
"""Option of a task that brings a skill of its own; also the id of that skill."""


@dataclass(frozen=True)
class AgentInput:
    """Where an episode stands when the agent is to act."""

    observation: str
    """Current observation."""
    steps: Sequence[Step] = ()
    """Past steps, oldest first."""
    task: str = ""
    """Task in words; empty if only the observations state it."""
    admissible_actions: tuple[str, ...] = ()
    """The actions that are possible now; empty where the environment lists none."""
    skills: tuple[Skill, ...] = ()
    """Chosen at the start of the episode."""
    found: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results of forms of actions in this scene, by form: each is asked for several times at a step."""


@dataclass(frozen=True)
class RetrievalQuery:
    """A question that one rollout has just written to the bank."""

    task: Task
    written: str
    """All that the model wrote in this turn so far; it ends with the question."""
    notes: tuple[Skill, ...] = ()
    """Skills that this rollout wrote in earlier turns."""


@dataclass(frozen=True)
class RetrievedSkills:
    """The answer to a question, as it is inserted."""

    text: str
    skills: tuple[Skill, ...]


@dataclass(frozen=True)
class PromptSkills:
    """The skills of one episode's prompts."""

    skills: tuple[Skill, ...] = ()
    """In the order of their tiers, best first within one."""
    left_out: int = 0
    """Skills that were found for it and did not fit their token budget."""


def task_skills(task: Task) -> tuple[Skill, ...] | None:
    """The skill that a task brings (`options["skill"]`: `text`, and if wanted `title` and `when_to_apply`), in place of the bank's.

    Empty texts, or `{}`: a prompt without skills. None: the task brings none, and the bank is asked.
    """
    given = task.options.get(TASK_SKILL)
    if not isinstance(given, Mapping):
        return None
    title, text, when = (str(given.get(name) or "") for name in ("title", "text", "when_to_apply"))
    return (Skill(TASK_SKILL, title, text, when, task_type=task.task_type),) if text else ()


class PromptFormatter:
    """Puts a question into a template, with skills where there is a bank.

    Args:
        template: template of a question by name (see `Templates`), or a path to a Markdown file with `$question`.
        system: system message; None leaves it out.
        prompts: a set of templates; see `Templates`.
        skill_bank: bank that methods without `skills` search. None: prompts have no skills.
        task_type: kind of task that skills are looked up for; empty for any.
        max_skills: most skills in one prompt.
        skill_tokens: token budget of the skills in one prompt.
        count: tokens of a text.

    Raises:
        ConfigError: no such template, or it has not the places it needs.
    """

    def __init__(
        self,
        template: str = "boxed",
        system: str | None = None,
        *,
        prompts: str | None = None,
        skill_bank: SkillBank | None = None,
        task_type: str = "",
        max_skills: int = 6,
        skill_tokens: int = 512,
        count: Callable[[str], int] = estimate_tokens,
    ) -> None:
        self.templates = Templates(prompts)
        self.templates.get(template)
        self._template, self._system = template, system
        self._bank, self._task_type, self._max_skills = skill_bank, task_type, max_skills
        self.skill_tokens, self._count = skill_tokens, count
        self.document = ""

    @classmethod
    def from_config(
        cls, config: AgentConfig, *, skill_tokens: int = 512, count: Callable[[str], int] = estimate_tokens
    ) -> PromptFormatter:
        """The formatter that a run's config asks for; the agent hands it the skills."""
        made = cls(config.template, config.system, prompts=config.prompts, skill_tokens=skill_tokens, count=count)
        return made.with_document(read_document(config.document))

    def with_document(self, document: str) -> PromptFormatter:
        """The same formatter with another document in its conversations."""
        other = copy.copy(self)
        other.document = document
        return other

    def format_prompt(
        self,
        question: str,
        task_type: str | None = None,
        *,
        skills: Sequence[Skill] | None = None,
        bank_empty: bool | None = None,
    ) -> str:
        """The user's message. The question is inserted as it is: a `$` or brace in it means nothing.

        Args:
            question: the task.
            task_type: kind of task that skills are looked up for; None: the formatter's own.
            skills: what to put in front of it, in this order; None asks the formatter's own bank, or leaves skills out of
                it where there is none.
            bank_empty: whether the prompt says that the bank has nothing at all (cold start); None: where `skills` is empty.
        """
        text = self.templates.render(self._template, question=question)
        return self._with_skills(text, question, task_type, skills, bank_empty)

    def format_agent_prompt(
        self,
        task_description: str,
        current_state: str = "",
        available_actions: str | Sequence[str] = "",
        task_type: str | None = None,
        *,
        skills: Sequence[Skill] | None = None,
    ) -> str:
        """The user's message for one turn of an agent; `task_type` and `skills` as in `format_prompt`."""
        actions = available_actions if isinstance(available_actions, str) else ", ".join(available_actions)
        text = self.templates.render("agent_task", task=task_description, state=current_state, actions=actions)
        return self._with_skills(text, task_description, task_type, skills, None)

    def format_batch(self, questions: Sequence[str], task_type: str | None = None) -> list[str]:
        """One user's message for each question."""
        return [self.format_prompt(question, task_type) for question in questions]

    def messages(
        self, question: str, skills: Sequence[Skill] | None = None, *, bank_empty: bool | None = None
    ) -> tuple[Message, ...]:
        """The conversation that the model is to continue; see `format_prompt`."""
        system = (Message("system", self._system),) if self._system is not None else ()
        task = Message("user", self.format_prompt(question, skills=skills, bank_empty=bank_empty))
        return with_document((*system, task), self.document)

    def fit(
        self, skills: Sequence[Skill], tokens: int | None = None, render: Callable[[Skill], str] | None = None
    ) -> tuple[Skill, ...]:
        """The skills that fit a token budget, taken in the order given, shown in the order of their tiers.

        A skill that does not fit is passed over; a shorter one after it may still fit. `render` is how a prompt shows one, where
        that is not `render_skill`.
        """
        left = self.skill_tokens if tokens is None else tokens
        fitting = []
        for skill in skills:
            needed = self._count((render or self.render_skill)(skill))
            if needed <= left:
                fitting.append(skill)
                left -= needed
        return tuple(sorted(fitting, key=lambda skill: TIERS.index(skill.tier)))  # stable: best first within a tier

    def render_skill(self, skill: Skill) -> str:
        """One skill as a prompt shows it. Its fields are escaped: they can neither open nor close a tag."""
        return self.templates.render(
            "skill",
            id=escape(skill.id).replace('"', "'"),
            title=escape(skill.title),
            text=escape(skill.text),
            when_to_apply=escape(skill.when_to_apply),
            tier=skill.tier,
        )

    def render_retrieved(self, skills: Sequence[Skill]) -> str:
        """Render the text inserted after a query: the retrieved skills, or a notice that there are none."""
        if not skills:
            return self.templates.render("no_results")
        return self.templates.render("retrieved", skills=self._joined(skills))

    def _with_skills(
        self, text: str, question: str, task_type: str | None, skills: Sequence[Skill] | None, bank_empty: bool | None
    ) -> str:
        if skills is None:
            if self._bank is None:
                return text
            view = BankView(self._bank.snapshot(), self._bank.retriever)
            query = Query(question, self._task_type if task_type is None else task_type)
            found = view.select_for_prompts([query], self._max_skills)[0]
            skills, bank_empty = self.fit(found), not len(self._bank)
        if bank_empty or (bank_empty is None and not skills):
            return self.templates.render("skills_empty", question=text)
        return self.templates.render("skills", skills=self._joined(skills), question=text)

    def _joined(self, skills: Sequence[Skill]) -> str:
        return "\n".join(self.render_skill(skill) for skill in skills)


@dataclass(frozen=True)
class Agent:
    """Turns an episode so far into a prompt, and the model's answer into an action.

    Args:
        formatter: makes the first message.
        memory: `conversation`: later observations follow the model's own turns as they are. `episode`: the same, but later prompts are
            made of tokens (`next_message`). `none`: each turn is a first.
        window: makes every prompt instead (`agent.context_mode: window`).
        skills: how prompts show skills; None: they have no place for any.
        bank: one frozen version of the skill bank. None: nobody queries a bank (the bank-off control): prompts say that it is
            empty, and questions stay unanswered.
        project: finds the action in what was written.
        listing: of the possible actions in a prompt.
        form: of observations in prompts, and where it has one of actions, of those that are written (`agent.observations`); None: as the
            environment has both.
    """

    formatter: PromptFormatter
    memory: str = "conversation"
    window: TurnPromptBuilder | None = None
    skills: SkillsConfig | None = None
    bank: BankView | None = None
    project: Project = whole
    listing: ActionList = AS_LISTED
    form: Form | None = None
    tools: tuple[str, ...] = ()
    """Schemas of the tools that the environment answers calls of (`Request.tools`)."""
    program: ProgramConfig | None = None
    """Plays each episode, from this agent's first prompt on; None: the model itself does."""

    def with_bank(self, bank: BankView | None) -> Agent:
        """The same agent with another version of the bank."""
        return replace(self, bank=bank)

    def with_document(self, document: str) -> Agent:
        """The same agent with another skill document at the head of its prompts; empty: without one."""
        text = replace_surrogates(document)
        window = None if self.window is None else replace(self.window, document=text)
        return replace(self, formatter=self.formatter.with_document(text), window=window)

    def prompt(self, scene: AgentInput) -> Prompt:
        """The model's prompt in this scene, whose skills are those that `select_skills` gave at the start."""
        if self.window is not None:
            seen, steps, asks = self._seen(scene), self._steps(scene, self.window.history), self.max_retrievals > 0
            return self.window.prompt(seen, steps, scene.task, self.listed(scene), scene.skills, asks=asks)
        return Prompt(self._conversation(scene))

    def next_message(self, scene: AgentInput) -> Message:
        """The message that follows the model's last answer in a conversation that only grows (`agent.context_mode: episode`)."""
        return Message("user", self._seen(scene))

    @property
    def offered(self) -> tuple[str, ...]:
        """Schemas of all tools that the model may call: the environment's, and the bank's where that is one (`skills.as_tools`)."""
        return (*self.tools, *BANK_TOOLS) if self.skills is not None and self.skills.as_tools else self.tools

    def answer_calls(
        self, calls: Sequence[ToolCall], task: Task, notes: tuple[Skill, ...] = ()
    ) -> tuple[tuple[ToolCall, ...], list[Skill]]:
        """Return the calls, with results for the bank's tools, and the skills that were read."""
        read: list[Skill] = []
        if self.skills is None or not self.skills.as_tools:
            return tuple(calls), read
        return tuple(self._answer_call(call, task, notes, read) for call in calls), read

    def _answer_call(self, call: ToolCall, task: Task, notes: tuple[Skill, ...], read: list[Skill]) -> ToolCall:
        if call.error or call.name not in (SEARCH, READ):
            return call
        wanted = json.loads(call.arguments).get("query" if call.name == SEARCH else "id")
        if not isinstance(wanted, str):
            what = "query" if call.name == SEARCH else "id"
            return replace(call, error="bad_arguments", result=f"Error: {call.name} needs {what}, a text.")
        assert self.skills is not None
        if call.name == SEARCH:
            query = Query(wanted, self._type_of(task), notes)
            found = self.bank.find([query], self.skills.retrieval_top_k)[0] if self.bank is not None else ()
            lines = [f"{escape(skill.id)}: {escape(skill.title or skill.when_to_apply)}" for skill in found]
            return replace(call, result="\n".join(lines) or self.formatter.render_retrieved(()))
        known = {skill.id: skill for skill in (*notes, *(() if self.bank is None else self.bank.snapshot))}
        if wanted not in known:
            return replace(call, error="failed", result=escape(f"Error: there is no skill {wanted[:80]!r}."))
        read.append(known[wanted])
        return replace(call, result=self.formatter.render_skill(known[wanted]))

    def read(self, written: str, scene: AgentInput, *, constrained: bool = False) -> ParsedAction:
        """The action that the model's own words mean in this scene; `constrained`: it could write nothing but a possible one."""
        actions = self.form_actions(scene)
        if actions is not None:
            return read_form(written, actions, self.project, constrained=constrained)
        if self.project is whole:
            return whole(written)
        if constrained and possible(written, scene.admissible_actions):
            return ParsedAction(written, "valid")
        return self.project(written, (*self.listed(scene), *filter(has_slot, scene.admissible_actions)))

    def choices(self, scene: AgentInput) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """All that the model may write in this scene where it is held to possible actions, and the words that may stand in a slot."""
        actions = self.form_actions(scene)
        return (scene.admissible_actions, ()) if actions is None else (actions.choices, actions.slot_words)

    def answer(self, action: str, scene: AgentInput) -> str | None:
        """The text that the model writes to mean an action of the environment: of its form, a number, or the action; None: its form has none."""
        actions = self.form_actions(scene)
        if actions is not None:
            return actions.write(action)
        return answer_for(action, self.listed(scene), self.window is not None and self.window.numbered)

    @property
    def writes_form(self) -> bool:
        """True where actions are written in a form of their own."""
        return self.form is not None and self.form.actions is not None

    def form_actions(self, scene: AgentInput) -> FormActions | None:
        """The form of the possible actions in this scene; None: they are written as the environment lists them."""
        if self.form is None or self.form.actions is None:
            return None
        if self.form.actions not in scene.found:
            scene.found[self.form.actions] = self.form.actions(scene)
        actions: FormActions = scene.found[self.form.actions]
        return actions

    def listed(self, scene: AgentInput) -> tuple[str, ...]:
        """The possible actions in the order in which the prompt lists them."""
        actions = self.form_actions(scene)
        if actions is not None:
            return actions.choices
        return self.listing(scene.admissible_actions, scene.task, scene.skills, [step.action for step in scene.steps])

    @property
    def prompts_extend(self) -> bool:
        """True where the prompt of a turn begins with that of the turn before and what was answered."""
        return self.window is None and self.memory != "none"

    @property
    def max_retrievals(self) -> int:
        """How often one answer may query the bank."""
        return 0 if self.skills is None or self.bank is None else self.skills.max_retrievals

    def select_skills(self, tasks: Sequence[Task], said: Sequence[str]) -> list[PromptSkills]:
        """The skills that each task's prompts show, within the token budget: its own, else those found by what the task says."""
        if self.skills is None:
            return [PromptSkills()] * len(tasks)
        own = [task_skills(task) for task in tasks]
        if self.bank is None:
            return [self.fit_to_budget(each or ()) for each in own]
        asked = [place for place, each in enumerate(own) if each is None]
        queries = [Query(said[place], self._type_of(tasks[place])) for place in asked]
        found = dict(zip(asked, self.bank.select_for_prompts(queries, self.skills.prompt_top_k), strict=True))
        return [self.fit_to_budget(found[place] if each is None else each) for place, each in enumerate(own)]

    def fit_to_budget(self, skills: Sequence[Skill]) -> PromptSkills:
        """Those of the skills, best first, that fit the token budget of a prompt."""
        fitting = self.formatter.fit(skills, render=None if self.window is None else self.window.skill)
        return PromptSkills(fitting, len(skills) - len(fitting))

    def retrieve(self, queries: Sequence[RetrievalQuery]) -> list[RetrievedSkills | None]:
        """The bank's answer to each question, all searched together; None for one that cannot be read."""
        assert self.bank is not None and self.skills is not None
        budget = self.skills.retrieval_max_tokens
        texts = [last_open_query(query.written) for query in queries]
        readable = [(query, text) for query, text in zip(queries, texts, strict=True) if text is not None]
        asked = [Query(text, self._type_of(query.task), query.notes) for query, text in readable]
        found = iter(self.bank.find(asked, self.skills.retrieval_top_k))

        def answer(skills: Sequence[Skill]) -> RetrievedSkills:
            fitting = self.formatter.fit(skills, budget)
            best_first = tuple(skill for skill in skills if skill in fitting)
            return RetrievedSkills(self.formatter.render_retrieved(best_first), best_first)

        return [None if text is None else answer(next(found)) for text in texts]

    def _type_of(self, task: Task) -> str:
        """Return the bank's name for the task's type (`skills.type_names`); by default the type itself."""
        names = {} if self.skills is None else self.skills.type_names
        return names.get(task.task_type, task.task_type)

    def _seen(self, scene: AgentInput) -> str:
        """The observation as prompts write it."""
        return scene.observation if self.form is None else self.form.observe(scene)

    def _steps(self, scene: AgentInput, last: int | None = None) -> Sequence[Step]:
        """The steps as prompts write them; only the `last` ones are ever shown, None: all. An action that the form cannot write stays as it is."""
        if self.form is None:
            return scene.steps
        steps = list(scene.steps)
        for place in range(0 if last is None else max(0, len(steps) - last), len(steps)):
            step = scene.steps[place]
            then = replace(
                scene,
                observation=step.observation,
                steps=scene.steps[:place],
                admissible_actions=step.admissible_actions,
            )
            steps[place] = replace(step, observation=self.form.observe(then))
            actions = self.form_actions(then) if self.window is not None or step.completion is None else None
            if actions is not None:
                written = actions.write(step.action)
                steps[place] = replace(steps[place], action=written or step.action, admissible_actions=actions.choices)
        return steps

    def _conversation(self, scene: AgentInput) -> tuple[Message, ...]:
        """The messages of an episode: the first observation in its template, then the turns, as far as `memory` reaches."""
        steps, observation = self._steps(scene), self._seen(scene)
        skills = None if self.skills is None else scene.skills
        bank_empty = not scene.skills and (self.bank is None or not len(self.bank.snapshot))
        if not steps or self.memory == "none":
            return self.formatter.messages(observation, skills, bank_empty=bank_empty)
        turns = list(self.formatter.messages(steps[0].observation, skills, bank_empty=bank_empty))
        for step, seen in zip(steps, [*(later.observation for later in steps[1:]), observation], strict=True):
            said = step.action if step.completion is None else step.completion.text
            turns.append(Message("assistant", read_calls(said)[0] if step.calls else said, step.calls))
            turns += results_of(step) or [Message("user", seen)]
        return tuple(turns)


SEARCH, READ = "search_skills", "read_skill"


def _bank_tool(name: str, description: str, argument: str, what: str) -> str:
    properties = {argument: {"type": "string", "description": what}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    function = {"name": name, "description": description, "parameters": parameters}
    return json.dumps({"type": "function", "function": function})


BANK_TOOLS = (
    _bank_tool(
        SEARCH,
        "Search the skill bank. Returns ids and titles, best first.",
        "query",
        "What you want to know how to do.",
    ),
    _bank_tool(READ, "Read one skill of the skill bank.", "id", "The id of a skill, as search_skills gave it."),
)
"""The skill bank as tools (`skills.as_tools`)."""


def results_of(step: Step) -> list[Message]:
    """The results of a step's calls, as messages to the model."""
    return [Message("tool", call.result or "", call=call) for call in step.calls]
