"""From a config to a policy: its sampler, its agent, and the weights where they are here.

torch and its family are imported only where weights are: a remote model is queried without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.agents.action_parser import ActionList, projection
from skill_ttrl.agents.agent import Agent, AgentInput, PromptFormatter, task_skills
from skill_ttrl.agents.observations import find_observations
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.config import BUILTIN, AgentConfig, SkillTTRLConfig
from skill_ttrl.data.episodes import Files, episode_corpus, read_episodes
from skill_ttrl.data.tasks import tokenizer_corpus
from skill_ttrl.llm.backend import Backend, BackendContext, OnLearner
from skill_ttrl.llm.backends import backend_facts, make_backend
from skill_ttrl.prompts.templates import Templates, read_document
from skill_ttrl.train.open_run import starting_skills
from skill_ttrl.train.rules import Rules, combined
from skill_ttrl.types import Skill, derive_seed

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skill_ttrl.llm.models.load import LoadedModel


Notice = Callable[[str], None]


@dataclass(frozen=True)
class PolicyBundle:
    """Parts needed to query a policy."""

    context: BackendContext
    """Loads the learner's model where it is looked at: a sampler that lives elsewhere needs none here."""
    backend: Backend
    agent: Agent


def build_policy(
    config: SkillTTRLConfig,
    *,
    weights: Path | None = None,
    trains: bool = False,
    notice: Notice = lambda text: None,
    stopping: Callable[[], bool] = lambda: False,
    load: Callable[[], LoadedModel] | None = None,
    over_ranks: OnLearner | None = None,
    tools: tuple[str, ...] = (),
) -> PolicyBundle:
    """Sampler and agent of a config; `weights` is a checkpoint to use in place of `model.path`, `tools` are the environment's (`EnvPool.schemas`).

    With `trains` the weights will change: the sampler must be able to follow them. `load` loads the policy in another way than
    `PolicyLoader`, and `over_ranks` reaches a model that spans several ranks (see `BackendContext`).
    """
    accelerator: Accelerator | None = None
    place: dict[str, Any] = {}
    if not backend_facts(config).remote:
        from skill_ttrl.rl.device import autocast_dtype, make_accelerator

        accelerator = make_accelerator(config.runtime)
        place = {"device": str(accelerator.device), "autocast": autocast_dtype(accelerator)}
    context = BackendContext(
        config,
        load or partial(PolicyLoader(config, weights).load, accelerator),
        **place,
        over_ranks=over_ranks,
        weights=weights,
        trains=trains,
        notice=notice,
        stopping=stopping,
    )
    backend = make_backend(context)
    try:
        agent = make_agent(config, backend, tools)
        if error := combined([*Rules(config).of_policy(backend, agent)]):
            raise error
        return PolicyBundle(context, backend, agent)
    except BaseException:
        backend.close()
        raise


def make_agent(config: SkillTTRLConfig, backend: Backend, tools: tuple[str, ...] = ()) -> Agent:
    """The agent that a config asks for; its prompts have skills where the config has a skills section."""
    numbered = config.agent.actions == "numbered"
    project = projection(config.agent.action_parser, numbered=numbered)
    listing = ActionList.of(config.agent)
    agent, skills, window = config.agent, config.skills, None
    if agent.windowed:
        window = TurnPromptBuilder(
            Templates(agent.prompts),
            agent.template,
            system=agent.system,
            history=agent.history_length,
            observation_tokens=agent.max_observation_tokens,
            max_tokens=config.data.max_prompt_tokens,
            count=backend.count,
            count_text=backend.count_text,
            numbered=numbered,
            asks=skills is not None and skills.max_retrievals > 0,
            document=read_document(agent.document),
        )
        agent = agent.model_copy(update={"template": "plain"})
    formatter = PromptFormatter.from_config(agent)
    if skills is not None:
        formatter = PromptFormatter.from_config(agent, skill_tokens=skills.prompt_max_tokens, count=backend.count_text)
    form = find_observations(config.agent.observations)
    parts: dict[str, Any] = {"project": project, "listing": listing, "form": form, "tools": tools}
    return Agent(formatter, agent.context_mode, window, skills, **parts, program=config.program)


_PLACE = re.compile(r"\$\w+")
_OF_SKILLS = ("skill", "skills", "skills_empty", "retrieved", "no_results")


@dataclass(frozen=True)
class PolicyLoader:
    """Loads the weights that `model` names, or a checkpoint in their place; the built-in model takes its words from what is imitated."""

    config: SkillTTRLConfig
    weights: Path | None = None
    """The checkpoint."""

    def load(
        self, accelerator: Accelerator | None = None, *, device: str | None = None, empty: bool = False
    ) -> LoadedModel:
        """Load the policy.

        Weights that learn stay in float32, whatever the precision of the forward; frozen ones under LoRA need not.

        Args:
            accelerator: Where it computes, and how precisely; None: one is made.
            device: Where the weights go; None: where the accelerator computes.
            empty: They are not read: the caller fills them in.
        """
        from skill_ttrl.llm.models.load import load_checkpoint, load_model
        from skill_ttrl.rl.device import make_accelerator, weight_dtype

        config, model, source = self.config, self.config.model, self.config.demonstration_source
        accelerator = accelerator or make_accelerator(config.runtime)
        place: Any = {"device": device or str(accelerator.device), "empty": empty}
        place["dtype"] = weight_dtype(accelerator, frozen=model.lora is not None)
        if self.weights is not None:
            return load_checkpoint(self.weights, base=model, **place)
        corpus: Collection[str] = []
        if model.path == BUILTIN and model.builtin.vocabulary == "entities":
            corpus = self.prompt_texts(() if config.skills is None else tuple(starting_skills(config.skills)))
        elif model.path == BUILTIN and source is not None:
            corpus = tokenizer_corpus(source, seed=derive_seed(config.seed, "demonstrations"))
        elif model.path == BUILTIN and config.demonstrations.trajectories is not None:
            corpus = episode_corpus(config.demonstrations.trajectories)
        return load_model(model, seed=derive_seed(config.seed, "model"), corpus=corpus, **place)

    def prompt_texts(self, skills: tuple[Skill, ...] = ()) -> set[str]:
        """Texts that stand in the prompts and answers of a run: of its demonstrations, its templates, and of these skills.

        Raises:
            DataError: the demonstrations cannot be read.
            ConfigError, DocumentError: a template or the document cannot.
        """
        config, agent = self.config, self.config.agent
        templates, form = Templates(agent.prompts), find_observations(agent.observations)
        shown = [templates.get(agent.template, of_a_turn=agent.windowed)]
        shown += [templates.get(name) for name in _OF_SKILLS if skills]
        found = {_PLACE.sub(" ", each.template) for each in shown} | {agent.system or "", read_document(agent.document)}
        found |= set(() if form is None else form.vocabulary)
        found |= {text for skill in skills for text in (skill.title, skill.text, skill.when_to_apply)}
        if config.demonstration_source is not None:
            found.update(tokenizer_corpus(config.demonstration_source, seed=derive_seed(config.seed, "demonstrations")))
        elif config.demonstrations.trajectories is not None:
            found.update(_of_episodes(config.demonstrations.trajectories, agent))
        return found


def _of_episodes(files: Files, agent: AgentConfig) -> Iterator[str]:
    """Observations as prompts write them, tasks, what was done and what could have been (but for forms of actions, which say their words)."""
    form = find_observations(agent.observations)
    for trajectory in read_episodes(files):
        for skill in task_skills(trajectory.task) or ():
            yield from (skill.title, skill.text, skill.when_to_apply)
        if agent.windowed:  # whose prompts have a place for it
            yield trajectory.goal
        for place, step in enumerate(trajectory.steps):
            seen = step.observation
            if form is not None:
                seen = form.observe(
                    AgentInput(seen, trajectory.steps[:place], trajectory.goal, step.admissible_actions)
                )
            yield seen
            if form is None or form.actions is None:
                yield from step.admissible_actions or (step.action,)  # a model may have written anything
