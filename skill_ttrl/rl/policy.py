"""The policy as the learner sees it: a causal language model that scores tokens.

The head is applied to trained positions only, in chunks, so that a vocabulary of 151k never costs a whole (tokens,
vocabulary) matrix. This goes past the model's own `forward`, so a new `Policy` first checks on a few tokens that both
give the same logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skill_ttrl.errors import ModelError
from skill_ttrl.rl.batch import MicroBatch

if TYPE_CHECKING:
    from skill_ttrl.rl.parallel.shard import Sharding

T = TypeVar("T")

LOGIT_BUDGET = 32_000_000
"""Most logits (rows x vocabulary) that are held at once."""


class Policy:
    """A causal language model of transformers, plain or with peft adapters.

    Args:
        model: The model; it is moved to `device`.
        tokenizer: Its tokenizer; only the padding id is used here.
        device: Where it computes.
        gradient_checkpointing: Recompute activations in the backward pass.
        logit_budget: Most logits that are held at once.
        sharding: How the model's weights are spread over several ranks; None: they are all here.

    Raises:
        ModelError: the model's logits are not its head applied to its decoder's output.
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
        self.release_weights()
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
            hidden_N_T_D = self._decoder(input_ids=micro_batch.tokens_N_T, use_cache=False).last_hidden_state
            hidden_K_D = hidden_N_T_D.flatten(0, 1)[micro_batch.positions_K]
            return self._score_in_chunks(hidden_K_D, micro_batch.targets_K, temperature, with_entropy)

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

    def _score_in_chunks(
        self, hidden_K_D: Tensor, targets_K: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        rows = max(1, self.logit_budget // self._vocabulary_size)
        if len(targets_K) <= rows:
            return self._score(hidden_K_D, targets_K, temperature, with_entropy)
        parts = []
        for hidden, targets in zip(torch.split(hidden_K_D, rows), torch.split(targets_K, rows), strict=True):
            arguments = (hidden, targets, temperature, with_entropy)
            if torch.is_grad_enabled():
                # Logits are computed again in the backward pass instead of being kept for all chunks.
                parts.append(checkpoint(self._score, *arguments, use_reentrant=False))
            else:
                parts.append(self._score(*arguments))
        log_probs_K = torch.cat([log_probs for log_probs, _ in parts])
        return log_probs_K, torch.cat([entropy for _, entropy in parts]) if with_entropy else None

    def _score(
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

    def keep_reference(self) -> None:
        """Begin to keep a reference where there is none: a copy of the weights; for adapters, the bare base model."""
        if self._reference is None and not self.has_adapters:
            self.refresh_reference()

    @torch.no_grad()
    def refresh_reference(self) -> None:
        """Make the present weights the reference. Costs one copy of the trainable weights in memory."""
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
