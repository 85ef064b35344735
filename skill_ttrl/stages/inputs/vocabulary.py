"""The texts that a tokenizer of entities learns its words from (`model.builtin.vocabulary: entities`): those of a run's prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from skill_ttrl.agents.agent import AgentInput, task_skills
from skill_ttrl.agents.document import read_document
from skill_ttrl.agents.observations import find_observations
from skill_ttrl.config import AgentConfig, SkillTTRLConfig
from skill_ttrl.data.episodes import Files, read_episodes
from skill_ttrl.data.tasks import tokenizer_corpus
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.types import Skill, derive_seed

_PLACE = re.compile(r"\$\w+")
_OF_SKILLS = ("skill", "skills", "skills_empty", "retrieved", "no_results")


def prompt_texts(config: SkillTTRLConfig, skills: tuple[Skill, ...] = ()) -> set[str]:
    """Texts that stand in the prompts and answers of a run: of its demonstrations, its templates, and of these skills.

    Raises:
        DataError: the demonstrations cannot be read.
        ConfigError, DocumentError: a template or the document cannot.
    """
    found = {*_around(config.agent, bool(skills)), *config.model.builtin.words}
    form = find_observations(config.agent.observations)
    found |= set(() if form is None else form.vocabulary)
    found |= {text for skill in skills for text in (skill.title, skill.text, skill.when_to_apply)}
    if config.sft.data is not None:
        found.update(tokenizer_corpus(config.sft.data, seed=derive_seed(config.seed, "demonstrations")))
    elif config.demonstrations.trajectories is not None:
        found.update(_of_episodes(config.demonstrations.trajectories, config.agent))
    return found


def _around(agent: AgentConfig, skills: bool) -> Iterator[str]:
    """Texts of the templates, of the system message and the document."""
    templates = Templates(agent.prompts)
    yield _PLACE.sub(" ", templates.get(agent.template, of_a_turn=agent.context_mode == "window").template)
    for name in _OF_SKILLS if skills else ():
        yield _PLACE.sub(" ", templates.get(name).template)
    yield agent.system or ""
    if agent.document is not None and agent.document_as != "bank":
        yield read_document(agent.document)


def _of_episodes(files: Files, agent: AgentConfig) -> Iterator[str]:
    """Observations as prompts write them, tasks, what was done and what could have been (but for forms of actions, which say their words)."""
    form = find_observations(agent.observations)
    for trajectory in read_episodes(files):
        for skill in task_skills(trajectory.task) or ():
            yield from (skill.title, skill.text, skill.when_to_apply)
        if agent.context_mode == "window":  # whose prompts have a place for it
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
