"""Episodes whose tokens only grow, packed as one item each: the same learning as from an item for each step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_ttrl.config import RLConfig
from skill_ttrl.llm.backend import Request, Sampling
from skill_ttrl.llm.hf import HFBackend, sample_seeds
from skill_ttrl.rl.batch import RolloutBatch, pack, with_advantages
from skill_ttrl.rl.learner import LocalLearner, UpdateRule
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory, VoteResult


def draws(draw: random.Random, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw.randrange(39) for _ in range(draw.randint(low, high)))


def episode(draw: random.Random, task: Task, prompt: tuple[int, ...], reward: float, breaks: bool) -> Trajectory:
    """2 to 4 steps, each prompt the tokens before it and what the environment said; with `breaks` the third begins anew."""
    steps: list[Step] = []
    for at in range(draw.randint(3 if breaks else 2, 4)):
        tokens = draws(draw, 1, 4)
        mask = (True,) * (len(tokens) - 1) + (at != 1 or len(tokens) == 1,)
        done = Completion("", tokens, tuple(-3.6 - 0.1 * draw.random() for _ in tokens), "stop", completion_mask=mask)
        state = {"state": f"{task.id} {draw.randrange(3)}"}
        verdict: Any = "invalid" if draw.random() < 0.3 else "valid"
        steps.append(Step(state["state"], "", 0.0, False, False, prompt, done, info=state, action_status=verdict))
        prompt = draws(draw, 2, 3) if breaks and at == 1 else (*prompt, *tokens, *draws(draw, 0, 3))
    return Trajectory(task, tuple(steps), None, "terminated", reward=reward, start_state="start")


def episodes(seed: int = 0) -> list[Group]:
    """2 groups of 3 episodes; one has a step whose prompt is no continuation."""
    draw, groups = random.Random(seed), []
    for number in range(2):
        task, prompt = Task(f"t{number}", "e"), draws(draw, 2, 4)
        tries = tuple(episode(draw, task, prompt, float(at == 0), number + at == 0) for at in range(3))
        groups.append(Group(task, tries))
    return groups


def trajectories(groups: Sequence[Group]) -> list[Trajectory]:
    return [each for group in groups for each in group.trajectories]


GROUPS = episodes()


def at_completions(batch: RolloutBatch, values_F: torch.Tensor) -> list[float]:
    found: list[float] = values_F[batch.step_F >= 0].tolist()
    return found


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_joining_loses_and_invents_nothing(seed: int) -> None:
    groups = episodes(seed)
    apart, joined = (
        pack(groups, invalid_action_penalty_coef=0.5),
        pack(groups, invalid_action_penalty_coef=0.5, join=True),
    )
    rows = [[float(number + at) for at in range(len(each.steps))] for number, each in enumerate(trajectories(groups))]
    apart, joined = with_advantages(apart, groups, rows), with_advantages(joined, groups, rows)
    assert joined.turn_places == apart.turn_places
    for name in ("tokens", "scores", "old_log_probs", "trained", "step", "advantages"):
        assert at_completions(joined, getattr(joined, f"{name}_F")) == at_completions(
            apart, getattr(apart, f"{name}_F")
        )
    places = [joined.tokens_F[: int(at) + 1] for at in (joined.step_F >= 0).nonzero()]
    contexts = [
        each[int(start) :]
        for each, start in zip(places, joined.starts_N[joined.item_F[joined.step_F >= 0]], strict=True)
    ]
    alone = [
        apart.tokens_F[int(apart.starts_N[apart.item_F[at]]) : int(at) + 1] for at in (apart.step_F >= 0).nonzero()
    ]
    assert all(torch.equal(one, other) for one, other in zip(contexts, alone, strict=True)), (
        "the same tokens before each"
    )


def gradients(policy: Policy, batch: RolloutBatch, temperature: float = 0.7) -> tuple[float, dict[str, torch.Tensor]]:
    """The token-mean loss of a batch, in micro-batches of 3, and its gradients."""
    total = 0.0
    with policy.training(0):
        for rows in torch.split(torch.arange(len(batch)), 3):
            part = policy.lay_out(batch, rows)
            log_probs, entropy = policy.token_logprobs(part, temperature=temperature, with_entropy=True)
            assert entropy is not None
            loss = -((log_probs * part.advantages_N_R).sum() + 0.1 * entropy.sum()) / batch.trained_F.sum()
            torch.autograd.backward(loss)
            total += float(loss.detach())
    return total, {name: each.grad for name, each in policy.model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("packing", ["off", "on"])
def test_an_item_an_episode_has_the_gradient_of_its_steps(packing: str, make_policy: Callable[..., Policy]) -> None:
    draw, found = random.Random(3), []
    advantages = [[draw.gauss(0, 1) for _ in each.steps] for each in trajectories(GROUPS)]
    for join in (False, True):
        batch = with_advantages(pack(GROUPS, join=join), GROUPS, advantages)
        found.append(gradients(make_policy(packing=packing), batch))
    (loss, apart), (same, joined) = found
    assert same == pytest.approx(loss, abs=1e-6) and joined.keys() == apart.keys() and len(apart) > 20
    for name, gradient in apart.items():
        assert torch.allclose(joined[name], gradient, atol=1e-6), name
    assert max(float(each.abs().max()) for each in apart.values()) > 1e-2


RULES: Sequence[dict[str, Any]] = (
    {"algorithm": {"type": "grpo", "level": "step"}, "invalid_action_penalty_coef": 0.25},
    {"algorithm": {"type": "gigpo"}, "invalid_action_penalty_coef": 0.25},
    {"algorithm": {"type": "graphgpo"}},
    {"algorithm": {"type": "dapo"}},
    {"algorithm": {"type": "rloo"}, "kl_in_reward": {"coef": 0.1}},
    {"algorithm": {"type": "reinforce_plus_plus", "gamma": 0.9}},
    {"algorithm": {"type": "psr"}},
    {"algorithm": {"type": "gae", "lam": 0.9}, "critic": {}},
)


@pytest.mark.parametrize("changes", RULES, ids=lambda changes: str(changes["algorithm"]["type"]))
def test_a_rule_learns_the_same_from_whole_episodes(
    changes: dict[str, Any], make_policy: Callable[..., Policy], accelerator: Accelerator
) -> None:
    plain = {"reward": "env", "prompts_per_step": 2, "mini_batch_size": None, "kl_coef": 0.0, "warmup_steps": 0}
    config = RLConfig.model_validate({**plain, "learning_rate": 1e-9, "loss_aggregation": "token-mean", **changes})
    votes, found = [VoteResult(None, 0.0, (False,) * 3)] * 2, []
    groups = [
        replace(
            group, trajectories=tuple(replace(each, rewards={"env": each.reward or 0.0}) for each in group.trajectories)
        )
        for group in GROUPS
    ]
    for join in (False, True):
        rule = UpdateRule(config, sampler_is_learner=True, join=join)
        learner = LocalLearner(make_policy(), config, accelerator, total_steps=1)
        metrics = rule(learner, groups, votes, step=0, seed=0, temperature=1.0)
        assert rule.record is not None
        found.append((metrics, rule.record))
    (apart, record), (joined, same) = found
    for name in ("policy_loss", "grad_norm", "clip_fraction", "entropy", "advantage/mean", "tokens"):
        assert joined[name] == pytest.approx(apart[name], abs=2e-6), name
    assert joined["sequences"] == 7 < apart["sequences"] and joined["all_tokens"] < apart["all_tokens"]
    for row, wanted in zip(same.advantages, record.advantages, strict=True):
        assert row == pytest.approx(wanted, abs=1e-5)


def sampled_episodes(backend: HFBackend, temperature: float) -> list[Group]:
    """8 episodes of 3 turns from the sampler, which keeps what it computed: the first and the last turn one of some choices, a slot in one."""
    task, ends = Task("t", "e"), (backend.encode_text("A?"), backend.encode_text("2+"))
    turns = (("84", "8;1", "8", "5<answer>"), (), ("12;", "1", "Compute 3", "look"))
    steps: list[list[Step]] = [[] for _ in range(8)]
    seen = [backend.encode_text("Compute 12+34.") for _ in steps]
    how = Sampling(max_new_tokens=9, temperature=temperature)
    with backend.keeping():
        for number, choices in enumerate(turns):
            requests = [Request(token_ids=ids, choice=choices, slot_words=("84", "12;")) for ids in seen]
            for at, found in enumerate(backend.sample(requests, how, sample_seeds(requests, number))):
                (done,) = found.completions
                steps[at].append(Step("", done.text, 0.0, False, False, found.prompt_ids, done))
                seen[at] = (*found.prompt_ids, *done.token_ids, *ends[number % 2])
    return [Group(task, tuple(Trajectory(task, tuple(row), None, "terminated") for row in steps))]


@pytest.mark.parametrize(("temperature", "packing"), [(1.0, "on"), (0.6, "off")])
def test_the_learner_scores_a_constrained_episode_as_it_was_sampled(
    tiny_model: tuple[Any, Any], temperature: float, packing: str, accelerator: Accelerator
) -> None:
    backend = HFBackend(*tiny_model)
    groups = sampled_episodes(backend, temperature)
    batch = pack(groups, join=True)
    assert len(batch) == 8 and batch.allowed_F is not None
    config = RLConfig(kl_coef=0.1, micro_batch_size=3)
    policy = Policy(deepcopy(backend.model), backend.tokenizer, "cpu", packing=packing)  # type: ignore[arg-type]
    learner = LocalLearner(policy, config, accelerator, total_steps=1)
    scored = learner.score(batch, temperature=temperature, own=True, reference=True)
    assert scored.ref_log_probs_F is not None
    for found_F in (scored.old_log_probs_F, scored.ref_log_probs_F):
        assert torch.allclose(found_F, batch.sampler_log_probs_F, atol=2e-4)
    limited = batch.trained_F & (batch.allowed_F >= 0)
    forced = limited & (batch.sampler_log_probs_F == 0)
    assert forced.any() and (scored.old_log_probs_F[forced] == 0).all()
    plain = learner.score(replace(batch, allowed_F=None), temperature=temperature, own=True, reference=False)
    assert float((plain.old_log_probs_F - batch.sampler_log_probs_F).abs().max()) > 1
