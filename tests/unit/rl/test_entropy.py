"""The entropy coefficient that follows a target, the tokens of high entropy, whitening, and a reference that is mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from skill_ttrl.config import RLConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.checks import check_algorithm
from skill_ttrl.rl.kl import kl_estimate
from skill_ttrl.rl.learn import UpdateRule, at_high_entropy
from skill_ttrl.rl.learner import LocalLearner
from skill_ttrl.rl.policy import Policy
from skill_ttrl.types import Group, VoteResult

VOTES = [VoteResult(None, 0.0, (False,) * 4)] * 3
MakePolicy = Callable[..., Policy]
MakeGroups = Callable[..., list[Group]]


def settings(**changes: Any) -> RLConfig:
    plain = {"prompts_per_step": 3, "mini_batch_size": None, "kl_coef": 0.0, "warmup_steps": 0, "learning_rate": 1e-2}
    return RLConfig.model_validate(plain | changes)


def test_the_rule_applies_it_where_the_sampled_entropy_is_low_and_resumes_it(
    make_policy: MakePolicy, make_groups: MakeGroups, accelerator: Accelerator
) -> None:
    # Log-probs are drawn between -3.7 and -3.4. Rewards are all equal: nothing but the bonus has a gradient.
    groups = [group.with_rewards([1.0] * 4) for group in make_groups()]
    norms = {}
    for target in (3.0, 4.0):
        config = settings(entropy_coef=0.5, adaptive_entropy={"target": target})
        rule = UpdateRule(config, sampler_is_learner=True)
        learner = LocalLearner(make_policy(), config, accelerator, total_steps=2)
        found = rule(learner, groups, VOTES, step=0, seed=0, temperature=1.0)
        norms[found["entropy_coef"]] = found["grad_norm"]
        assert (found["updates"] == 1) == (target == 4.0)
        again = UpdateRule(config, sampler_is_learner=True)
        again.load_state_dict(rule.state_dict())
        assert again.entropy is not None and again.entropy.coef == pytest.approx(0.505 if target == 4.0 else 0.495)
    assert norms[0.0] == 0 < norms[0.5]


def test_all_but_these_lose_their_weight_and_still_count_in_the_mean(
    make_policy: MakePolicy, make_batch: Callable[..., RolloutBatch], accelerator: Accelerator
) -> None:
    batch, policy = make_batch(), make_policy()
    learner = LocalLearner(policy, settings(), accelerator, total_steps=1)
    scored = learner.score(batch, temperature=1.0, own=False, reference=False, entropy=True)
    assert scored.entropies_F is not None and torch.equal(scored.old_log_probs_F, batch.old_log_probs_F)
    (whole,) = batch.micro_batches(torch.arange(12), 12, 0)
    with torch.no_grad():
        _, expected = policy.token_logprobs(whole, with_entropy=True)
    assert expected is not None
    found = scored.micro_batch(torch.arange(12), 0)
    assert torch.allclose(scored.entropies_F[scored.trained_F].sum(), expected.sum(), atol=1e-4) and found is not None
    masked, metrics = at_high_entropy(replace(scored, weights_F=torch.full_like(scored.entropies_F, 2.0)), 0.2)
    assert masked.weights_F is not None
    high = scored.entropies_F[scored.trained_F] >= metrics["entropy_threshold"]
    assert torch.equal(masked.weights_F[masked.trained_F], 2.0 * high)
    assert float(high.float().mean()) == pytest.approx(0.2, abs=0.1)  # the first tokens of a prompt share theirs
    losses = [learner.update(each, step=0, seed=0, temperature=1.0)["policy_loss"] for each in (scored, masked)]
    assert losses[0] != losses[1]


def test_the_rule_scores_entropies_where_they_are_asked_for(
    make_policy: MakePolicy, make_groups: MakeGroups, accelerator: Accelerator
) -> None:
    groups = [group.with_rewards([1.0, 0.0, 1.0, 1.0]) for group in make_groups()]
    config = settings(top_entropy_quantile=0.2)
    learner = LocalLearner(make_policy(), config, accelerator, total_steps=1)
    found = UpdateRule(config, sampler_is_learner=True)(learner, groups, VOTES, step=0, seed=0, temperature=1.0)
    assert found["entropy_threshold"] > 0 and found["updates"] == 1


@pytest.mark.parametrize("estimator", ["k1+", "k3+"])
def test_the_plus_forms_have_the_value_of_one_and_the_gradient_of_k2(estimator: Any) -> None:
    reference = torch.tensor([-1.0, -2.0, 3.0], dtype=torch.float64)
    log_probs = torch.tensor([-1.3, -1.1, -40.0], dtype=torch.float64).requires_grad_()
    value = kl_estimate(log_probs, reference, estimator)
    torch.testing.assert_close(value, kl_estimate(log_probs, reference, estimator[:2]))
    (gradient,) = torch.autograd.grad(value.sum(), log_probs)
    torch.testing.assert_close(gradient, (log_probs - reference).detach())


@pytest.mark.parametrize(
    ("rl", "words"),
    [
        ({"kl_bias_correction": True, "kl_coef": 0.0}, "rl.kl_coef is 0"),
        ({"kl_bias_correction": True, "kl_estimator": "k3+"}, "rl.kl_estimator is k3+"),
        ({"ref_model_sync_steps": 5, "kl_coef": 0.0}, "there is none"),
        ({"algorithm": "gspo"}, "with the loss gspo, but rl.loss is ppo_clip"),
    ],
)
def test_settings_without_effect_are_refused(rl: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_algorithm(RLConfig.model_validate(rl), vote_strategy="majority", action_parser="action", multi_turn=False)
