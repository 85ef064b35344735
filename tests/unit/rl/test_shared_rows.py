"""Embeddings that learn as sums of shared rows are those of a model whose embeddings are computed from the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from pydantic import ValidationError
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from skill_ttrl.config import BuiltinConfig, SFTConfig
from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.models.builtin import build_model, embedding_parts
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rl.optim import SharedRows, shared_rows
from skill_ttrl.rl.policy import Policy
from skill_ttrl.rl.sft_learner import SFTLearner

WORDS = ["<pad>", "<act>", "go to", "mug", "shelf", "mug 1", "mug 2", "shelf 1", "shelf 2", "shelf 3", "hot"]
SHAPE = BuiltinConfig(
    hidden_size=16, layers=1, heads=2, intermediate_size=24, vocabulary="entities", shared_embeddings=True
)
DATA = [EncodedDemonstration([1, 3, 5], [2, 7, 6, 1]), EncodedDemonstration([4, 8], [9, 10, 3], [True, False, True])]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"<[a-z]+>|[a-z]+ \d+|go to|[a-z]+"), "removed", invert=True)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner, eos_token="<act>", pad_token="<pad>"
    )


def make_policy(tokenizer: Any) -> Policy:
    return Policy(build_model(SHAPE, tokenizer, seed=1), tokenizer, "cpu")


def sft_config(optimizer: str) -> SFTConfig:
    rates = {"learning_rate": 0.002, "muon_learning_rate": 0.01, "lr_scheduler": "constant", "warmup_steps": 0}
    return SFTConfig.model_validate({"optimizer": optimizer, **rates})


def matrix(policy: Policy) -> Tensor:
    return policy.model.get_input_embeddings().weight.detach().clone()  # type: ignore[no-any-return]


def test_tokens_of_a_kind_or_a_number_share_a_row(tokenizer: Any) -> None:
    membership = embedding_parts(tokenizer)[0]
    assert membership.shape == (11, 2 + 4 + 4)  # 2 specials; go to, mug, shelf, hot; no number, 1, 2, 3
    assert membership.sum(dim=1).tolist() == [1.0] * 2 + [2.0] * 9
    shared = (membership @ membership.T).int()

    def between(left: str, right: str) -> int:
        return int(shared[WORDS.index(left), WORDS.index(right)])

    assert [between("mug", other) for other in ("mug 1", "shelf", "shelf 1", "go to")] == [1, 1, 0, 1]
    assert between("mug 1", "shelf 1") == 1 and between("mug 1", "shelf 2") == 0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_learns_as_a_model_that_computes_its_embeddings_from_the_rows(
    optimizer: str, tokenizer: Any, accelerator: Accelerator
) -> None:
    policy, twin = make_policy(tokenizer), make_policy(tokenizer)
    learner = SFTLearner(policy, sft_config(optimizer), accelerator)
    membership = embedding_parts(tokenizer)[0]
    rows = nn.Parameter(SharedRows(twin.model.get_input_embeddings().weight, membership).rows.detach().clone())
    # The twin's rows are others with the same sums: a constant is moved from all kinds to all numbers.
    rows.data[[2, 4, 5, 9]] += 0.3
    rows.data[[3, 6, 7, 8]] -= 0.3
    assert torch.allclose(membership @ rows, matrix(policy), atol=1e-6)
    reference = Explicit(twin.model, rows, membership, optimizer)
    for step in range(5):
        metrics = learner.step(DATA, step)
        loss, norm = reference.step()
        assert (metrics["loss"], metrics["grad_norm"]) == pytest.approx((loss, norm), rel=1e-5)
        assert torch.allclose(matrix(policy), membership @ rows, atol=1e-6)


class Explicit:
    """A bare training loop of a model whose embedding and head are `membership @ rows`."""

    def __init__(self, model: Any, rows: nn.Parameter, membership: Tensor, optimizer: str) -> None:
        self.model, self.rows, self.membership = model, rows, membership
        self.others = {name: each for name, each in model.named_parameters() if "embed_tokens" not in name}
        every: list[nn.Parameter] = [rows, *self.others.values()]
        hidden = [each for each in self.others.values() if each.ndim == 2 and optimizer == "muon"]
        rest = [each for each in every if not any(each is other for other in hidden)]
        self.optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, lr=0.002, weight_decay=0.0)]
        if hidden:
            from skill_ttrl.rl.optim import Muon

            self.optimizers.append(Muon(hidden, lr=0.01))
        self.every = every

    def step(self) -> tuple[float, float]:
        embeddings = self.membership @ self.rows
        weights = {**self.others, "model.embed_tokens.weight": embeddings, "lm_head.weight": embeddings}
        losses = []
        for prompt, response, mask, *_ in DATA:
            ids = torch.tensor([[*prompt, *response]])
            logits = torch.func.functional_call(
                self.model, weights, kwargs={"input_ids": ids}, tie_weights=False
            ).logits
            found = torch.log_softmax(logits[0, len(prompt) - 1 : -1], dim=-1)[range(len(response)), list(response)]
            losses.append(found[torch.tensor(mask or [True] * len(response))])
        loss = -torch.cat(losses).mean()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.every, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        return float(loss.detach()), float(norm)


def test_a_resumed_run_has_the_same_weights_bit_for_bit(
    tokenizer: Any, accelerator: Accelerator, tmp_path: Path
) -> None:
    policy = make_policy(tokenizer)
    learner = SFTLearner(policy, sft_config("muon"), accelerator)
    for step in range(2):
        learner.step(DATA, step)
    policy.model.save_pretrained(tmp_path)
    torch.save(learner.state_dict(), tmp_path / "state.pt")
    again = Policy(AutoModelForCausalLM.from_pretrained(tmp_path), tokenizer, "cpu")
    resumed = SFTLearner(again, sft_config("muon"), accelerator)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for step in range(2, 4):
        assert learner.step(DATA, step) == resumed.step(DATA, step)
    assert all(
        torch.equal(left, right)
        for left, right in zip(policy.model.parameters(), again.model.parameters(), strict=True)
    )
    assert type(again.model).__name__ == "Qwen2ForCausalLM"


def test_what_cannot_share_rows_is_refused(tokenizer: Any, accelerator: Accelerator) -> None:
    with pytest.raises(ValidationError, match="shared_embeddings needs vocabulary=entities"):
        BuiltinConfig(shared_embeddings=True)
    policy = make_policy(tokenizer)
    policy.model.config.shared_embeddings = False
    assert shared_rows(policy) is None
    policy.model.config.shared_embeddings = True
    policy.sharding = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"runtime\.parallel=ddp"):
        shared_rows(policy)
    policy.sharding = None
    policy.model.get_input_embeddings().weight.data[5, 0] += 0.1
    with pytest.raises(ModelError, match="no sums of a row a kind and a row a number"):
        shared_rows(policy)


def test_the_first_layer_may_begin_by_attending_to_words_like_each_one(tokenizer: Any) -> None:
    shape = SHAPE.model_copy(update={"hidden_size": 64, "layers": 2, "attend_to_alike": 2.0})
    plain = shape.model_copy(update={"attend_to_alike": 0.0})
    drawn: Any = build_model(plain, tokenizer, seed=3)
    alike: Any = build_model(shape, tokenizer, seed=3)
    first, second = (layer.self_attn for layer in alike.get_decoder().layers)
    assert torch.equal(first.q_proj.weight, first.k_proj.weight)
    assert torch.equal(first.q_proj.weight, 2 * drawn.get_decoder().layers[0].self_attn.q_proj.weight)
    assert not torch.equal(second.q_proj.weight, second.k_proj.weight)

    def share_of_alike(model: Any) -> float:
        """Attention of the last "mug 2" to the first "mug" among words of other kinds, mean of heads."""
        ids = torch.tensor([[3, 8, 4, 10, 2, 9, 4, 8, 6]])
        model.set_attn_implementation("eager")
        attentions: Tensor = model(ids, output_attentions=True).attentions[0]
        return float(attentions[0, :, -1, 0].mean().detach())

    assert share_of_alike(alike) > 1.5 * share_of_alike(drawn)
    embeddings = alike.get_input_embeddings().weight
    assert 0.03 < float(embeddings.std()) < 0.07
    assert torch.linalg.norm(embeddings[5] - embeddings[6]) < torch.linalg.norm(embeddings[5] - embeddings[7]) / 2
