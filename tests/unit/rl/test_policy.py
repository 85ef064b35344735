from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, PreTrainedModel

from skill_ttrl.errors import ModelError
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.micro_batch import MicroBatch, lay_out
from skill_ttrl.rl.policy import Policy


def whole(batch: RolloutBatch) -> MicroBatch:
    return lay_out(batch, torch.arange(len(batch)), 39)


def plain_scores(model: Any, micro_batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """The long way: the model's own forward with an attention mask, one item at a time, all logits."""
    rows = []
    width = micro_batch.response_mask_N_R.shape[1]
    length = micro_batch.tokens_N_T.shape[1]
    for row in range(len(micro_batch.tokens_N_T)):
        positions_K = micro_batch.positions_Q[micro_batch.rows_K]
        positions = positions_K[positions_K // length == row] % length
        end = int(positions.max()) + 2
        logits = model(input_ids=micro_batch.tokens_N_T[row : row + 1, :end]).logits[0]
        log_p = torch.log_softmax(logits[positions] / temperature, dim=-1)
        chosen = log_p.gather(1, micro_batch.tokens_N_T[row, positions + 1][:, None])[:, 0]
        entropy = -(log_p.exp() * log_p).sum(-1)
        fill = (0, width - len(positions))
        rows.append((torch.nn.functional.pad(chosen, fill), torch.nn.functional.pad(entropy, fill)))
    return torch.stack([a for a, _ in rows]), torch.stack([b for _, b in rows])


def of_reference(policy: Policy, micro_batch: MicroBatch) -> torch.Tensor:
    with torch.no_grad(), policy.as_reference():
        return policy.token_logprobs(micro_batch)[0]


@pytest.mark.parametrize("budget", [10_000, 3 * 40])
def test_scores_equal_plain_logits_including_the_gradient(
    budget: int, make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch]
) -> None:
    micro_batch = whole(make_batch())
    policy = make_policy(logit_budget=budget)
    log_probs, entropy = policy.token_logprobs(micro_batch, temperature=0.7, with_entropy=True)
    assert entropy is not None
    weights = torch.linspace(-1, 1, log_probs.numel()).view_as(log_probs)
    ((log_probs + 0.3 * entropy) * weights).sum().backward()  # type: ignore[no-untyped-call]
    chunked = {name: parameter.grad for name, parameter in policy.trainable_parameters().items()}

    other = make_policy().model
    plain, plain_entropy = plain_scores(other, micro_batch, 0.7)
    ((plain + 0.3 * plain_entropy) * weights).sum().backward()  # type: ignore[no-untyped-call]
    assert torch.allclose(log_probs, plain, atol=1e-5)
    assert torch.allclose(entropy, plain_entropy, atol=1e-5)
    for name, parameter in other.named_parameters():
        gradient = chunked[name]
        assert gradient is not None and parameter.grad is not None
        assert torch.allclose(gradient, parameter.grad, atol=1e-5), name


@pytest.mark.parametrize(
    "model",
    [
        Gemma2ForCausalLM(
            Gemma2Config(
                vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=1, head_dim=8, final_logit_softcapping=0.5,
            )
        ),
        CohereForCausalLM(
            CohereConfig(
                vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                num_key_value_heads=1, logit_scale=0.0625,
            )
        ),
    ],
    ids=["softcapping", "logit_scale"],
)  # fmt: skip
def test_models_that_rescale_their_logits(model: PreTrainedModel, make_batch: Callable[..., RolloutBatch]) -> None:
    micro_batch = whole(make_batch())
    with torch.no_grad():
        policy = Policy(model, None, "cpu")
        assert torch.allclose(
            policy.token_logprobs(micro_batch)[0], plain_scores(model, micro_batch, 1.0)[0], atol=1e-5
        )
    assert policy.pad_id == 0


def test_a_rescaling_it_does_not_know_is_refused(make_model: Callable[..., Any]) -> None:
    model = make_model()
    model.register_forward_hook(lambda module, args, output: output.__setitem__("logits", output.logits * 1.01))
    with pytest.raises(ModelError, match="logits differ"):
        Policy(model, None, "cpu")


def test_the_reference_stays_where_it_was_taken(
    make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch]
) -> None:
    policy, micro_batch = make_policy(), whole(make_batch())
    with pytest.raises(RuntimeError, match="keep_reference"):
        of_reference(policy, micro_batch)
    with torch.no_grad():
        before = policy.token_logprobs(micro_batch)[0]
        policy.keep_reference()
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
        after = policy.token_logprobs(micro_batch)[0]
    assert not torch.allclose(before, after, atol=1e-3)
    assert torch.equal(of_reference(policy, micro_batch), before)
    with torch.no_grad():
        assert torch.equal(policy.token_logprobs(micro_batch)[0], after)
    policy.keep_reference()
    assert torch.equal(of_reference(policy, micro_batch), before)
    policy.refresh_reference()
    assert torch.equal(of_reference(policy, micro_batch), after)


def test_with_adapters_the_reference_is_the_base_model_until_refreshed(
    make_lora_policy: Callable[..., Policy], make_policy: Callable[..., Policy], make_batch: Callable[..., RolloutBatch]
) -> None:
    policy, micro_batch = make_lora_policy(), whole(make_batch())
    policy.keep_reference()
    assert policy.reference is None
    with torch.no_grad():
        base = make_policy().token_logprobs(micro_batch)[0]
        adapted = policy.token_logprobs(micro_batch)[0]
    assert not torch.allclose(base, adapted, atol=1e-3)
    assert torch.allclose(of_reference(policy, micro_batch), base, atol=1e-6)
    assert all("lora_" in name for name in policy.trainable_parameters())
    policy.refresh_reference()
    with torch.no_grad():
        for parameter in policy.trainable_parameters().values():
            parameter.zero_()
    assert torch.allclose(of_reference(policy, micro_batch), adapted, atol=1e-6)


@pytest.mark.parametrize("adapters", [False, True])
def test_gradient_checkpointing_recomputes_and_changes_nothing(
    adapters: bool,
    make_policy: Callable[..., Policy],
    make_lora_policy: Callable[..., Policy],
    make_batch: Callable[..., RolloutBatch],
) -> None:
    micro_batch = whole(make_batch())
    gradients, forwards = [], []
    for checkpointing in (False, True):
        policy = (make_lora_policy if adapters else make_policy)(gradient_checkpointing=checkpointing)
        calls: list[int] = []
        layer = policy._decoder.layers[0].self_attn  # type: ignore[index, union-attr]
        layer.register_forward_hook(lambda module, args, output, calls=calls: calls.append(1))
        with policy.training(0):
            policy.token_logprobs(micro_batch)[0].sum().backward()  # type: ignore[no-untyped-call]
        gradients.append([parameter.grad for parameter in policy.trainable_parameters().values()])
        forwards.append(len(calls))
    assert forwards == [1, 2]
    for plain, recomputed in zip(*gradients, strict=True):
        assert plain is not None and recomputed is not None
        assert torch.allclose(plain, recomputed, atol=1e-6)


def test_training_mode_draws_dropout_from_its_seed_and_leaves_the_generator_alone(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    state = torch.get_rng_state()
    draws = []
    for seed in (1, 1, 2):
        with policy.training(seed):
            assert policy.model.training
            draws.append(torch.rand(3).tolist())
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.get_rng_state(), state) and not policy.model.training
