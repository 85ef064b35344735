"""The sections of a config that say how skills come about: collected episodes, skills distilled from them, demonstrations with
these skills, and their evolution while the policy learns. Defaults: SkillRL (arXiv 2602.08234, table 4, and its code).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from skill_ttrl.config.section import Section

Share = Annotated[float, Field(ge=0, le=1)]


class CollectConfig(Section):
    """The phase collect: episodes to distill skills from and to imitate."""

    agent: str = "expert"
    """A scripted agent (`expert`, `random`, `first`, `constant:TEXT`, `walkthrough`, `rule`, `careful`, `brief`, `module:attribute`), or a policy: a run, a model, `openai`."""
    data: list[str] | None = Field(default=None, min_length=1)
    """Data whose training tasks are played one after another, each in the place of `env.kwargs.data`, such as `[official, "generated:10000"]`:
    so many `episodes` and `rollouts_per_task` of each. None: those of `env.kwargs`. The run learns and is measured on its own data, whatever stands here."""
    episodes: int | None = Field(default=64, ge=1)
    """Episodes; None: `rollouts_per_task` of every training task."""
    rollouts_per_task: int = Field(default=1, ge=1)
    """Episodes of each task."""
    epsilon: Share | Annotated[list[Share], Field(min_length=1)] = 0.0
    """Share of a scripted agent's steps in which any possible action is taken instead of its own, which stays in the step's info as
    `expert_action`: what it would have done there. A list: one for each rollout of a task in turn, such as `[0, 0.1, 0.2, 0.3]` with `rollouts_per_task: 4`; the
    advice is then kept even where all are 0."""
    explore_moves: float = Field(default=0.0, ge=0, le=1)
    """Share of these random actions that only move (`explore_moves_like`), where the environment lists such: a step that changes nothing but the
    place leaves the task as it was, and the way back is what is to be learnt."""
    explore_moves_like: list[str] = Field(default=["go to *"], min_length=1)
    """Actions that only move: a text, or its beginning with `*` behind it."""
    explore_never: list[str] = Field(default_factory=list)
    """Actions that are never taken at random, such as the one that ends an episode: a text, or its beginning with `*` behind it. Where no other
    is possible, the agent's own is taken."""
    max_steps: int | None = Field(default=None, ge=1)
    """Longest episode of a scripted agent, in steps; None: the environment alone bounds it."""


class DistillConfig(Section):
    """The phase distill: skills from successes and failures, by type of task."""

    teacher: str = "heuristic"
    """Teacher that writes the skills: `heuristic` (what winners did and losers did not; no language model), `openai`
    (`endpoints.teacher`), or `module:attribute` of your own."""
    max_general: int = Field(default=12, ge=0)
    """Most general principles (SkillRL: 8-12, WebShop 10-15)."""
    max_specific: int = Field(default=6, ge=0)
    """Most skills of one type of task (SkillRL: 4-6)."""
    max_mistakes: int = Field(default=12, ge=0)
    """Most mistakes to avoid (SkillRL: 8-12)."""
    successes: int = Field(default=5, ge=0)
    """Won episodes of each type that the teacher is shown (SkillRL: 5; WebShop: 8)."""
    failures: int = Field(default=5, ge=0)
    """Lost ones."""
    last_steps: int = Field(default=5, ge=1)
    """Steps at the end of each that it is shown."""
    prompt_max_tokens: int = Field(default=6000, ge=200)
    """Longest question to the teacher; parts that do not fit are left out, and reported."""


class DemonstrationsConfig(Section):
    """Demonstrations of the phase sft where `sft.data` is not given: steps of collected episodes, with skills in their prompts."""

    trajectories: str | list[str] | None = None
    """File of collected episodes, or several; None: those of the run's own phase collect."""
    examples: int | None = Field(default=7500, ge=1)
    """Most steps that are imitated (SkillRL: 7,500 of ALFWorld, 2,400 of WebShop), spread over episodes; None: all."""
    label: Literal["success", "expert"] = "success"
    """Actions to imitate: `success`, those of won episodes; `expert`, the ones that the agent would have taken at each step of every
    episode (see `collect.epsilon`)."""
    rationale: Literal["none", "skill", "next_subgoal", "openai"] = "none"
    """Content of `<think>`. `none`: nothing, and no tag. `skill`: the title of the skill that the step follows. `next_subgoal`: the next
    action that handles what the task names, found in the episode itself. `openai`: a text that `endpoints.teacher` writes."""
    no_skill_fraction: float = Field(default=0.2, ge=0, le=1)
    """Share of the episodes whose prompts have no skills: the worth of the skills shows only where they are missing."""
    random_skill_fraction: float = Field(default=0.1, ge=0, le=1)
    """Share of the episodes whose prompts have skills drawn from the whole bank, in place of those that are found."""


class EvolveConfig(Section):
    """The evolution of skills while the policy learns: failures on training tasks lead to new and better skills."""

    every: int = Field(default=5, ge=1)
    """Steps of the rl phase between two looks at success by type of task (SkillRL: 5)."""
    threshold: float = Field(default=0.4, gt=0, le=1)
    """A type whose success since the last look is below this is looked into (SkillRL: 0.4). No success is below 0: to evolve nothing,
    leave the section out."""
    min_episodes: int = Field(default=8, ge=1)
    """Episodes of a type that it takes to judge it."""
    max_failures_below_threshold: int = Field(default=10, ge=1)
    """Failures that are analysed where success is below the threshold (SkillRL: 10)."""
    max_failures_above_threshold: int = Field(default=5, ge=0)
    """Failures that are analysed of a type that is above the threshold but not perfect, once any type is below it (SkillRL: 5)."""
    max_new_skills: int = Field(default=3, ge=0)
    """Most skills that are new or changed in one round (SkillRL: 3)."""
    max_evolved: int | None = Field(default=None, ge=1)
    """Most evolved skills in the bank; the least useful go first. None: `skills.max_skills` alone bounds them."""
    teacher: str = "heuristic"
    """As `distill.teacher`, or `analogy`: skills of other types of task, with the actions that failures of a type without a skill were offered.
    They are guesses: use it with `skills.gate`."""
    last_steps: int = Field(default=5, ge=1)
    """Steps at the end of each failure that the teacher is shown."""
    prompt_max_tokens: int = Field(default=6000, ge=200)
    """Longest question to the teacher."""
