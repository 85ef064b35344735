"""The policy as the learner sees it: a causal language model that scores tokens.

The head is applied to trained positions only, in blocks, so that a vocabulary of 151k never costs a whole (tokens,
vocabulary) matrix. This goes past the model's own `forward`, so a new `Policy` first checks on a few tokens that both
give the same logits, and that it computes prefix trees as it computes single sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.head import Head, embed, is_plain_embedding
from skill_ttrl.rl.micro_batch import MicroBatch, ModelWork
from skill_ttrl.rl.tree import refuse_trees, run_tree

if TYPE_CHECKING:
    from skill_ttrl.rl.parallel.shard import Sharding

T = TypeVar("T")

LOGIT_BUDGET = 32_000_000
"""Most logits (positions x vocabulary) that are held for the backward pass; others are computed twice."""

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
        offload_optimizer: The state of an optimizer of these weights lies in the CPU's memory between its steps.

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
        offload_optimizer: bool = False,
    ) -> None:
        self.offload_optimizer = offload_optimizer
        self.device = torch.device(device)
        self.sharding = sharding
        self.model = model if sharding is not None else model.to(self.device)
        self.tokenizer = tokenizer
        self.has_adapters = hasattr(model, "get_base_model")
        base = model.get_base_model() if self.has_adapters else model
        self._decoder: nn.Module = base.get_decoder()
        self._embedding: nn.Module = base.get_input_embeddings()
        self.work = ModelWork.of(base)
        self._head = Head(base, logit_budget)
        self._gathers = False
        """Gradients of embedding and head go straight to `.grad`."""
        self._reference: dict[str, Tensor] | None = None
        self._verify_logits()
        self.packing_refused = None if packing == "off" else self._refuse_trees(base)
        """Why items are padded although packing was asked for; None: they are not, or it was not."""
        self.packs = packing != "off" and self.packing_refused is None
        self.release_weights()
        if packing == "on" and self.packing_refused:
            raise ModelError(
                f"model.packing is on, but {type(base).__name__} cannot be packed: {self.packing_refused}. "
                "Set model.packing=auto or off to pad them instead."
            )
        if gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def copy(self) -> Policy:
        """Another policy with a copy of the weights as they are, without a reference.

        Raises:
            ConfigError: the weights are sharded.
        """
        self.check_copy()
        packing: Packing = "on" if self.packs else "off"
        return Policy(
            deepcopy(self.model), self.tokenizer, self.device, packing=packing, offload_optimizer=self.offload_optimizer
        )

    def check_copy(self) -> None:
        """Raise `ConfigError` where weights are sharded: they are not copied."""
        if self.sharding is not None:
            raise ConfigError(
                "Sharded weights (runtime.parallel: fsdp) are not copied. Set rl.critic.model to the folder or name of a model, or to "
                "null for a head on the policy's own decoder."
            )

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
        """Training mode for a while, dropout drawn from `seed`; the global generators are left as they were.

        Gradients of embedding and head are added to `.grad` without passing through autograd, unless the weights are sharded.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            # torch.manual_seed keeps a stack trace for every kind of device that is there but not used, each time
            (torch.manual_seed if devices else torch.default_generator.manual_seed)(seed)
            self.model.train()
            self._gathers = self.sharding is None
            try:
                yield
            finally:
                self._gathers = False
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
            return self._head.score(
                self.hidden_states(micro_batch),
                micro_batch,
                temperature=temperature,
                with_entropy=with_entropy,
                gather_gradient=self._gathers,
            )

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
        inputs: dict[str, Tensor] = {"input_ids": micro_batch.tokens_N_T}
        if self._gathers and torch.is_grad_enabled() and is_plain_embedding(self._embedding):
            inputs = {"inputs_embeds": embed(self._embedding, micro_batch.tokens_N_T)}
        if micro_batch.tree is not None:
            hidden_N_T_D = run_tree(self._decoder, micro_batch.tree, **inputs)
        else:
            hidden_N_T_D = self._decoder(**inputs, use_cache=False).last_hidden_state
        return hidden_N_T_D.flatten(0, 1).index_select(0, micro_batch.positions_Q)

    def lay_out(self, batch: RolloutBatch, rows: Int[Tensor, " N"]) -> MicroBatch:
        """The items at `rows` as this model computes them, packed or padded, on its device."""
        return batch.micro_batch(rows, self.pad_id, packed=self.packs).to(self.device)

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
            lambda: self._head.logits(decoder(input_ids=probe, use_cache=False).last_hidden_state)
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
    def refresh_reference(self) -> None:
        """Make the present weights the reference; costs one copy of the trainable weights in memory."""
        self._reference = {name: parameter.detach().clone() for name, parameter in self.trainable_parameters().items()}

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """Put the reference's weights in the place of the policy's for a while, without dropout.

        Raises:
            RuntimeError: no reference is kept.
        """
        if self._reference is None and not self.has_adapters:
            raise RuntimeError("There is no reference model: call keep_reference() first.")
        was_training = self.model.training
        self.model.eval()
        if self._reference is not None:
            self._swap_reference()
        try:
            with nullcontext() if self._reference is not None else self.model.disable_adapter():
                yield
        finally:
            if self._reference is not None:
                self._swap_reference()
            self.model.train(was_training)

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

    @torch.no_grad()
    def return_to_reference(self) -> None:
        """Give the policy the reference's weights for good; the reference stays as it is."""
        assert self._reference is not None
        reference = {name: weights.clone() for name, weights in self._reference.items()}
        self._swap_reference()
        self._reference = reference

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
