"""Faults that users of SkillRL found in its agent, and that ours does not have. How a group's statistics are taken is tested with the
learner, how skills evolve in `test_evolution_faults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from skill_ttrl.agents.agent import Agent
from skill_ttrl.config import load_config
from skill_ttrl.envs.webshop.catalogue.catalogue import forget
from skill_ttrl.envs.webshop.env import WebShopEnv
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.rollout import RolloutSettings, rollout
from skill_ttrl.skills.folder import BankSettings
from skill_ttrl.skills.retrieval import BankView, make_retriever
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.stages.setup.policy import make_agent
from skill_ttrl.types import Skill, Tier
from tests.scripted_backend import RecordingBackend, ScriptedBackend
from tests.webshop_files import options, product, wanted, write_catalogue

UPSTREAM_LONGEST = 13_000
"""Characters of a prompt above which SkillRL takes the template of the first step, which has no skills."""
TIERS: tuple[Tier, ...] = ("general", "task", "mistake")
BANK = tuple(
    Skill(f"s{number}", f"Rule {number}", f"Compare what costs less, rule {number}.", "always", tier=tier)
    for number, tier in enumerate(TIERS)
)


def agent(backend: ScriptedBackend, env: str, **data: Any) -> Agent:
    """The agent that the recipe of SkillRL makes, with a bank."""
    config = load_config(f"skillrl_{env}", ["skills.embedder=hash", "skills.index=memory"])
    config.data.max_prompt_tokens = data.get("max_prompt_tokens", config.data.max_prompt_tokens)
    made = make_agent(config, backend)
    assert isinstance(made, Agent)
    return made.with_bank(
        BankView(Snapshot.of(1, BANK), make_retriever(BankSettings(retrieval="embedding", index="memory")))
    )


@pytest.fixture(scope="module")
def long_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A shop with a product of 900 colours."""
    root = tmp_path_factory.mktemp("webshop")
    colours = [f"a shade of blue, number {number}" for number in range(900)]
    products = [product("B0LAMP0001", customization_options=options(color=colours))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        for name in ("TEST_GOALS", "DEV_GOALS"):
            patch.setattr(f"skill_ttrl.envs.webshop.goals.{name}", 1)
        forget()
        yield str(write_catalogue(root / "data", products, {"B0LAMP0001": wanted("Find me a lamp")}))
    forget()


def test_skills_are_missing_from_no_first_prompt(long_pages: str) -> None:
    """Upstream's template of step 0 has none (`*_TEMPLATE_NO_HIS`)."""
    backend = RecordingBackend(["<think>so</think><action>search[lamp]</action>"])
    (task,) = WebShopEnv(long_pages).tasks("train")[:1]
    work = rollout([task], 1, envs=EnvPool(lambda: WebShopEnv(long_pages)), agent=agent(backend, "webshop"), backend=backend, settings=RolloutSettings(Sampling(), 0, max_turns=2, max_prompt_tokens=6000))  # fmt: skip
    (group,) = wait_for(work)
    assert len(backend.prompts) == 2 and all(skill.text in prompt for prompt in backend.prompts for skill in BANK)
    assert set(group.trajectories[0].skills_in_prompt) == {skill.id for skill in BANK}


def test_skills_are_lost_on_no_long_page(long_pages: str) -> None:
    """Upstream drops skills and history together where a prompt is long, and says nothing; here the page is cut, and says so."""
    actions = ["search[oak desk lamp]", "click[b0lamp0001]", "click[a shade of blue, number 7]", "click[buy now]"]
    backend = RecordingBackend([f"<think>so</think><action>{action}</action>" for action in actions])
    (task,) = WebShopEnv(long_pages).tasks("train")[:1]
    work = rollout([task], 1, envs=EnvPool(lambda: WebShopEnv(long_pages)), agent=agent(backend, "webshop"), backend=backend, settings=RolloutSettings(Sampling(), 0, max_turns=9, max_prompt_tokens=6000))  # fmt: skip
    (played,) = wait_for(work)[0].trajectories
    assert [step.action for step in played.steps] == actions and played.stop_reason == "terminated"
    long = [step for step in played.steps if len(step.observation) > UPSTREAM_LONGEST]
    assert len(long) == 2  # the product's page, before and after its colour is chosen
    for place, (step, prompt) in enumerate(zip(played.steps, backend.prompts, strict=True)):
        assert all(skill.text in prompt for skill in BANK), f"step {place} lost its skills"
        bare = len(prompt.encode()) - len(agent(backend, "webshop").window.experience(BANK).encode())  # type: ignore[union-attr]
        assert bare <= 6000 and (step in long) == ("observation_tokens" in step.truncated_parts)
        assert (step in long) == ("turns" in step.truncated_parts) == ("actions" in step.truncated_parts) or place == 0
