"""The policy as the learner sees it: a causal language model that scores tokens.

The head is applied to trained positions only, in blocks, so that a vocabulary of 151k never costs a whole (tokens,
vocabulary) matrix. This goes past the model's own `forward`, so a new `Policy` first checks on a few tokens that both
give the same logits, and that it computes prefix trees as it computes single sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skill_ttrl.errors import ModelError
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.forward.log_probs import HeadSettings, score_tokens
from skill_ttrl.rl.forward.micro_batch import MicroBatch
from skill_ttrl.rl.forward.probe import refuse_trees, run_tree

if TYPE_CHECKING:
    from skill_ttrl.rl.parallel.shard import Sharding

T = TypeVar("T")

LOGIT_BUDGET = 128_000_000
"""Most logits (positions x vocabulary) that are held for the backward pass; others are computed twice."""
CUSTOM_HEAD_COPIES = 4
"""Float32 copies of the logits of a head that is not a plain linear layer: its logits, their log-softmax, their gradients."""

Packing = Literal["auto", "on", "off"]


class Policy:
    """A causal language model of transformers, plain or with peft adapters.

    Args:
        model: The model; it is moved to `device`.
        tokenizer: Its tokenizer; only the padding id is used here.
        device: Where it computes.
        gradient_checkpointing: Recompute activations in the backward pass.
        logit_budget: Most logits that are held for the backward pass.
        sharding: How the model's weights are spread over several ranks; None: they are all here.
        packing: `on`: micro-batches are prefix trees without padding. `off`: padded rows. `auto`: `on` where the model
            computes trees as it computes sequences, else `off`, and `packing_refused` says why.

    Raises:
        ModelError: the model's logits are not its head applied to its decoder's output, or `packing` is `on` and cannot be.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        device: torch.device | str,
        *,
        gradient_checkpointing: bool = False,
        logit_budget: int = LOGIT_BUDGET,
        sharding: Sharding | None = None,
        packing: Packing = "auto",
    ) -> None:
        self.device = torch.device(device)
        self.sharding = sharding
        self.model = model if sharding is not None else model.to(self.device)
        self.tokenizer = tokenizer
        self.logit_budget = logit_budget
        self.has_adapters = hasattr(model, "get_base_model")
        base = model.get_base_model() if self.has_adapters else model
        self._decoder: nn.Module = base.get_decoder()
        self._head: nn.Module = base.get_output_embeddings()
        config = base.config.get_text_config()
        self._logit_scale = float(getattr(config, "logit_scale", None) or 1.0)
        self._logit_scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._reference: dict[str, Tensor] | None = None
        self._verify_logits()
        self.packing_refused = None if packing == "off" else self._refuse_trees(base)
        """Why items are padded although packing was asked for; None: they are not, or it was not."""
        self.packs = packing != "off" and self.packing_refused is None
        self.release_weights()
        if packing == "on" and self.packing_refused:
            raise ModelError(
                f"model.packing is on, but {type(base).__name__} cannot be packed: {self.packing_refused}. "
                "Set model.packing=auto or off: items are padded then."
            )
        if gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    @property
    def pad_id(self) -> int:
        """Token id for padding; any will do, since padding is never looked at."""
        pad_id = getattr(self.tokenizer, "pad_token_id", None)
        return 0 if pad_id is None else int(pad_id)

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that learn, by name; tied ones once. Sharded ones are this rank's shards."""
        self.release_weights()
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @contextmanager
    def training(self, seed: int) -> Iterator[None]:
        """Training mode for a while, dropout drawn from `seed`; the global generators are left as they were."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            self.model.train()
            try:
                yield
            finally:
                self.model.eval()

    def token_logprobs(
        self, micro_batch: MicroBatch, *, temperature: float = 1.0, with_entropy: bool = False
    ) -> tuple[Float[Tensor, "N R"], Float[Tensor, "N R"] | None]:
        """Log-prob of each trained token, and on request the entropy of the distribution it came from.

        Args:
            micro_batch: Items to score, on this policy's device.
            temperature: Logits are divided by it, as they were when the tokens were sampled.
            with_entropy: Also compute the entropy.

        Returns:
            (log_probs, entropy) in nats, float32, (N, R), 0 where nothing is trained; entropy is None unless asked for.
        """

        def forward() -> tuple[Tensor, Tensor | None]:
            return self._score(self.hidden_states(micro_batch), micro_batch, temperature, with_entropy)

        scores = self.forward_pass(forward)
        shape = micro_batch.response_mask_N_R
        log_probs, entropy = (
            None
            if part is None
            else torch.zeros_like(shape).flatten().index_copy(0, micro_batch.slots_K, part).view_as(shape)
            for part in scores
        )
        assert log_probs is not None
        return log_probs, entropy

    def forward_pass(self, forward: Callable[[], T]) -> T:
        """Run `forward`, which calls parts of the model: sharded weights are gathered for it."""
        return forward() if self.sharding is None else self.sharding.inside(forward)

    def gather_weights(self) -> None:
        """Gather sharded weights on every rank until `release_weights`, to sample with them; nothing to do where they are whole."""
        if self.sharding is not None:
            self.sharding.gather()

    def release_weights(self) -> None:
        """Free gathered weights: every rank holds its shard alone."""
        if self.sharding is not None:
            self.sharding.release()

    def hidden_states(self, micro_batch: MicroBatch) -> Float[Tensor, "Q D"]:
        """Last hidden states at the positions where trained tokens are predicted; called within `forward_pass`."""
        if micro_batch.tree is not None:
            hidden_N_T_D = run_tree(self._decoder, micro_batch.tree)
        else:
            hidden_N_T_D = self._decoder(input_ids=micro_batch.tokens_N_T, use_cache=False).last_hidden_state
        return hidden_N_T_D.flatten(0, 1).index_select(0, micro_batch.positions_Q)

    def lay_out(self, batch: RolloutBatch, rows: Int[Tensor, " N"]) -> MicroBatch:
        """The items at `rows` as this model computes them, packed or padded, on its device."""
        return batch.micro_batch(rows, self.pad_id, packed=self.packs).to(self.device)

    def _score(
        self, hidden_Q_D: Tensor, micro_batch: MicroBatch, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        targets_K, rows_K, head = micro_batch.targets_K, micro_batch.rows_K, self._head
        if _is_plain_linear(head):
            settings = HeadSettings(self._logit_scale, self._softcap, temperature, with_entropy, self.logit_budget)
            return score_tokens(hidden_Q_D, head.weight, head.bias, targets_K, rows_K, settings)
        hidden_K_D = hidden_Q_D[rows_K]
        rows = max(1, self.logit_budget // (CUSTOM_HEAD_COPIES * self._vocabulary_size))
        parts = []
        for hidden, targets in zip(torch.split(hidden_K_D, rows), torch.split(targets_K, rows), strict=True):
            arguments = (hidden, targets, temperature, with_entropy)
            if torch.is_grad_enabled() and len(targets_K) > rows:
                # Logits are computed again in the backward pass instead of being held for all chunks.
                parts.append(checkpoint(self._score_chunk, *arguments, use_reentrant=False))
            else:
                parts.append(self._score_chunk(*arguments))
        log_probs_K = torch.cat([log_probs for log_probs, _ in parts])
        return log_probs_K, torch.cat([entropy for _, entropy in parts]) if with_entropy else None

    def _score_chunk(
        self, hidden_K_D: Tensor, targets_K: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"] | None]:
        log_p_K_V = torch.log_softmax(self._logits(hidden_K_D).float() / temperature, dim=-1)
        log_probs_K = log_p_K_V.gather(1, targets_K[:, None]).squeeze(1)
        return log_probs_K, -(log_p_K_V.exp() * log_p_K_V).sum(dim=-1) if with_entropy else None

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(hidden)
        if self._logit_scale != 1.0:
            logits = logits * self._logit_scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits

    @property
    def _vocabulary_size(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    @torch.no_grad()
    def _verify_logits(self) -> None:
        """Compare head(decoder(x)) with the model's own logits on eight tokens."""
        self.model.eval()
        probe: Int[Tensor, "1 T"] = torch.arange(8, device=self.device)[None] % self._vocabulary_size
        logits = self.model(input_ids=probe, use_cache=False).logits
        theirs = logits.float()
        decoder = self._decoder
        ours = self.forward_pass(
            lambda: self._logits(decoder(input_ids=probe, use_cache=False).last_hidden_state)
        ).float()
        tolerance = 1e-4 if logits.dtype == torch.float32 else 1e-3
        error = float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))
        if not error <= tolerance:
            raise ModelError(
                f"{type(self.model).__name__}: its logits differ from its head applied to its decoder's output by "
                f"{error:.2e} (relative; at most {tolerance:.0e} is allowed). Its weights are not finite, or it "
                "rescales its output in a way the learner does not know. Use a plain causal language model."
            )

    def _refuse_trees(self, base: Any) -> str | None:
        return self.forward_pass(lambda: refuse_trees(base, self._decoder, self._vocabulary_size))

    def keep_reference(self) -> None:
        """Begin to keep a reference where there is none: a copy of the weights; for adapters, the bare base model."""
        if self._reference is None and not self.has_adapters:
            self.refresh_reference()

    @torch.no_grad()
    def refresh_reference(self, alpha: float = 1.0) -> None:
        """Make the present weights the reference, or alpha of them and 1 - alpha of the old reference's (TR-DPO, arXiv 2404.09656).

        Costs one copy of the trainable weights in memory.
        """
        if alpha < 1.0 and self._reference is not None:
            for name, parameter in self.trainable_parameters().items():
                self._reference[name].mul_(1.0 - alpha).add_(parameter.detach(), alpha=alpha)
            return
        self._reference = {name: parameter.detach().clone() for name, parameter in self.trainable_parameters().items()}

    @torch.no_grad()
    def reference_logprobs(self, micro_batch: MicroBatch, *, temperature: float = 1.0) -> Float[Tensor, "N R"]:
        """Log-probs of the same tokens under the reference; never with dropout.

        Raises:
            RuntimeError: no reference is kept.
        """
        with self.as_reference():
            return self.token_logprobs(micro_batch, temperature=temperature)[0]

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """Put the reference's weights in the place of the policy's for a while, without dropout.

        Raises:
            RuntimeError: no reference is kept.
        """
        was_training = self.model.training
        self.model.eval()
        try:
            with self._reference_weights():
                yield
        finally:
            self.model.train(was_training)

    @contextmanager
    def _reference_weights(self) -> Iterator[None]:
        if self._reference is not None:
            self._swap_reference()
            try:
                yield
            finally:
                self._swap_reference()
        elif self.has_adapters:
            with self.model.disable_adapter():
                yield
        else:
            raise RuntimeError("No reference is kept: call keep_reference() first.")

    @torch.no_grad()
    def _swap_reference(self) -> None:
        """Exchange the trainable weights with the reference's: pointers only, so it takes no second model.

        Sharded weights are read from memory of their own, so there the values are exchanged, one shard at a time.
        """
        assert self._reference is not None
        if self.sharding is not None:
            self.sharding.exchange(self.trainable_parameters(), self._reference)
            return
        for name, parameter in self.trainable_parameters().items():
            parameter.data, self._reference[name] = self._reference[name], parameter.data

    def reference_state(self) -> dict[str, Tensor] | None:
        """The reference's weights, for a checkpoint; None where there is none or the bare base model serves."""
        return self._reference

    def load_reference_state(self, state: dict[str, Tensor] | None) -> None:
        """Put back what `reference_state` gave."""
        if state is not None and self.sharding is not None:
            state = self.sharding.as_shards(state, self.trainable_parameters())
        elif state is not None:
            state = {name: value.to(self.device).clone() for name, value in state.items()}
        self._reference = state


def _is_plain_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether the head is its weight and bias and nothing else: no adapters, hooks or sharded tensors."""
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return False
    return type(head.weight.data) is Tensor
