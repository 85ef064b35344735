"""The policy as the learner sees it: a causal language model that scores tokens.

The head is applied to trained positions only, in blocks, so that a vocabulary of 151k never costs a whole (tokens,
vocabulary) matrix. This goes past the model's own `forward`, so a new `Policy` first checks on a few tokens that both
give the same logits, and that it computes prefix trees as it computes single sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.micro_batch import LimitedTokens, Limits, MicroBatch, ModelWork, install_trees, lay_out, run_tree
from skill_ttrl.rl.parallel.ranks import like, local

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
        self.has_adapters = hasattr(model, "get_base_model")
        base = model.get_base_model() if self.has_adapters else model
        self._decoder: nn.Module = base.get_decoder()
        self._embedding: nn.Module = base.get_input_embeddings()
        self.work = ModelWork.of(base)
        self.scored = 0.0
        """Floating-point operations of `score` since the caller last set this to 0."""
        self._head = Head(base, logit_budget)
        self._gathers = False
        """Gradients of embedding and head go straight to `.grad`."""
        self.reference: dict[str, Tensor] | None = None
        """The reference's weights, for a checkpoint; None where there is none or the bare base model serves."""
        self._verify_logits()
        self.packing_refused: str | None = None
        """Why items are padded although packing was asked for; None: they are not, or it was not."""
        if packing != "off":
            self.packing_refused = self.forward_pass(lambda: install_trees(base, self._decoder, self._head.vocabulary))
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
        return Policy(deepcopy(self.model), self.tokenizer, self.device, packing=packing)

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

        log_probs_K, entropy_K = self.forward_pass(forward)
        return micro_batch.spread(log_probs_K), None if entropy_K is None else micro_batch.spread(entropy_K)

    @torch.no_grad()
    def score(
        self,
        batch: RolloutBatch,
        parts: Iterable[tuple[Int[Tensor, " N"], bool]],
        *,
        temperature: float,
        autocast: torch.dtype | None,
    ) -> Float[Tensor, " F"]:
        """Log-probs (nats) of a batch's trained tokens, without gradient; 0 elsewhere. Adds to `scored`.

        Args:
            batch: What is scored.
            parts: Items of each micro-batch, and whether its scores count (`own_micro_batches`).
            temperature: At which the tokens were sampled.
            autocast: Dtype of the forward pass where it is not that of the weights.
        """
        self.model.eval()
        found_F = torch.zeros(len(batch.tokens_F))
        # Cast copies of the weights live as long as autocast does: one of its own for each pass over the batch.
        with torch.autocast(self.device.type, autocast, enabled=autocast is not None):
            for rows, counts in parts:
                part = self.lay_out(batch, rows)
                self.scored += self.work.forward(part)
                scores_N_R, _ = self.token_logprobs(part, temperature=temperature)
                if counts:
                    found_F[batch.trained_places(rows)] = scores_N_R.float()[part.response_mask_N_R.bool()].cpu()
        return found_F

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
            weight, padding = self._embedding.weight, self._embedding.padding_idx
            inputs = {"inputs_embeds": gather_rows(weight, micro_batch.tokens_N_T, padding)}
        if micro_batch.tree is not None:
            hidden_N_T_D = run_tree(self._decoder, micro_batch.tree, **inputs)
        else:
            hidden_N_T_D = self._decoder(**inputs, use_cache=False).last_hidden_state
        return hidden_N_T_D.flatten(0, 1).index_select(0, micro_batch.positions_Q)

    def lay_out(self, batch: RolloutBatch, rows: Int[Tensor, " N"]) -> MicroBatch:
        """The items at `rows` as this model computes them, packed or padded, on its device."""
        return lay_out(batch, rows, self.pad_id, packed=self.packs).to(self.device)

    @torch.no_grad()
    def _verify_logits(self) -> None:
        """Compare head(decoder(x)) with the model's own logits on eight tokens."""
        self.model.eval()
        probe: Int[Tensor, "1 T"] = torch.arange(8, device=self.device)[None] % self._head.vocabulary
        logits = self.model(input_ids=probe, use_cache=False).logits
        theirs = logits.float()
        decode = partial(self._decoder, input_ids=probe, use_cache=False)
        ours = self.forward_pass(lambda: self._head.logits(decode().last_hidden_state)).float()
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
        if self.reference is None and not self.has_adapters:
            self.refresh_reference()

    @torch.no_grad()
    def refresh_reference(self) -> None:
        """Make the present weights the reference; costs one copy of the trainable weights in memory."""
        self.reference = {name: parameter.detach().clone() for name, parameter in self.trainable_parameters().items()}

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """Put the reference's weights in the place of the policy's for a while, without dropout.

        Raises:
            RuntimeError: no reference is kept.
        """
        if self.reference is None and not self.has_adapters:
            raise RuntimeError("There is no reference model: call keep_reference() first.")
        was_training = self.model.training
        self.model.eval()
        if self.reference is not None:
            self._swap_reference()
        try:
            with nullcontext() if self.reference is not None else self.model.disable_adapter():
                yield
        finally:
            if self.reference is not None:
                self._swap_reference()
            self.model.train(was_training)

    @torch.no_grad()
    def _swap_reference(self) -> None:
        """Exchange the trainable weights with the reference's: pointers only, so it takes no second model.

        Sharded weights are read from memory of their own, so there the values are exchanged, one shard at a time.
        """
        assert self.reference is not None
        for name, parameter in self.trainable_parameters().items():
            if self.sharding is None:
                parameter.data, self.reference[name] = self.reference[name], parameter.data
            else:
                ours, theirs = local(parameter), local(self.reference[name])
                held = ours.clone()
                ours.copy_(theirs)
                theirs.copy_(held)

    @torch.no_grad()
    def return_to_reference(self) -> None:
        """Give the policy the reference's weights for good; the reference stays as it is."""
        assert self.reference is not None
        reference = {name: weights.clone() for name, weights in self.reference.items()}
        self._swap_reference()
        self.reference = reference

    def load_reference(self, state: dict[str, Tensor] | None) -> None:
        """Put back what `reference` was."""
        if state is not None:
            ours = self.trainable_parameters()
            state = {name: like(value.to(self.device), ours[name]).clone() for name, value in state.items()}
        self.reference = state


# The language-model head as the learner applies it: to hidden states at chosen positions, for the tokens that follow them.


CUSTOM_HEAD_COPIES = 4
"""Float32 copies of the logits of a head that is not a plain linear layer: its logits, their log-softmax, their gradients."""


class Head:
    """Head of a causal language model.

    Args:
        model: The model, without adapters around it.
        budget: Most logits (positions x vocabulary) that are held for the backward pass.
    """

    def __init__(self, model: Any, budget: int) -> None:
        self._module: nn.Module = model.get_output_embeddings()
        self._budget = budget
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        config = model.config.get_text_config()
        self._scale = float(getattr(config, "logit_scale", None) or 1.0)
        self._scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)

    def logits(self, hidden: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape V"]:
        """Logits of hidden states."""
        logits: Tensor = self._module(hidden)
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits

    def score(
        self,
        hidden_Q_D: Float[Tensor, "Q D"],
        micro_batch: MicroBatch,
        *,
        temperature: float,
        with_entropy: bool,
        gather_gradient: bool,
    ) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"] | None]:
        """Log-probs of the trained tokens of a micro-batch, and on request the entropies.

        `gather_gradient`: the weight's gradient may go straight to `.grad` (`may_gather`).
        """
        settings = HeadSettings(self._scale, self._softcap, temperature, with_entropy, self._budget)
        if _is_plain_linear(self._module):
            settings = replace(settings, gather_gradient=gather_gradient and may_gather(self._module.weight))
        if not micro_batch.allowed:
            return self._score(hidden_Q_D, micro_batch.targets_K, micro_batch.rows_K, None, settings)
        log_probs_K = hidden_Q_D.new_zeros(micro_batch.trained_tokens, dtype=torch.float32)
        entropy_K = torch.zeros_like(log_probs_K) if with_entropy else None
        for part in micro_batch.allowed:
            hidden = hidden_Q_D.index_select(0, part.queries_Q)
            found, entropy = self._score(hidden, part.targets_K, part.rows_K, part, settings)
            log_probs_K = log_probs_K.index_copy(0, part.places_K, found)
            if entropy_K is not None and entropy is not None:
                entropy_K = entropy_K.index_copy(0, part.places_K, entropy)
        return log_probs_K, entropy_K

    def _score(
        self, hidden_Q_D: Tensor, targets_K: Tensor, rows_K: Tensor, part: LimitedTokens | None, settings: HeadSettings
    ) -> tuple[Tensor, Tensor | None]:
        """Score tokens against all rows of the head, or against those of `part`."""
        if not _is_plain_linear(self._module):
            return self._score_custom(hidden_Q_D[rows_K], targets_K, part, settings)
        weight: Tensor = self._module.weight
        bias: Tensor | None = self._module.bias
        if part is not None and part.ids_V is not None:
            straight = settings.gather_gradient
            weight = gather_rows(weight, part.ids_V) if straight else weight.index_select(0, part.ids_V)
            bias = None if bias is None else bias[part.ids_V]
            settings = replace(settings, gather_gradient=False)
        return score_tokens(
            hidden_Q_D, weight, bias, targets_K, rows_K, settings, None if part is None else part.limits
        )

    def _score_custom(
        self, hidden_K_D: Tensor, targets_K: Tensor, part: LimitedTokens | None, settings: HeadSettings
    ) -> tuple[Tensor, Tensor | None]:
        """The same for a head of any kind, in chunks of positions."""
        rows = max(1, self._budget // (CUSTOM_HEAD_COPIES * self.vocabulary))
        parts = []
        for places in torch.split(torch.arange(len(targets_K), device=targets_K.device), rows):
            arguments = (hidden_K_D[places], targets_K[places], part, places, settings)
            if torch.is_grad_enabled() and len(targets_K) > rows:
                # Logits are computed again in the backward pass instead of being held for all chunks.
                parts.append(checkpoint(self._score_chunk, *arguments, use_reentrant=False))
            else:
                parts.append(self._score_chunk(*arguments))
        log_probs_K = torch.cat([log_probs for log_probs, _ in parts])
        return log_probs_K, torch.cat([entropy for _, entropy in parts]) if settings.with_entropy else None

    def _score_chunk(
        self,
        hidden_K_D: Tensor,
        targets_K: Tensor,
        part: LimitedTokens | None,
        places: Tensor,
        settings: HeadSettings,
    ) -> tuple[Tensor, Tensor | None]:
        """Score the tokens at `places` of all that are scored, or of `part`."""
        logits_K_V = self.logits(hidden_K_D).float() / settings.temperature
        outside_K_V = None
        if part is not None and part.ids_V is not None:
            logits_K_V = logits_K_V.index_select(1, part.ids_V)
        if part is not None and part.limits is not None:
            outside_K_V = ~part.limits.mask(0, logits_K_V.shape[1], part.rows_K[places])
            logits_K_V = logits_K_V.masked_fill(outside_K_V, -torch.inf)
        log_p_K_V = torch.log_softmax(logits_K_V, dim=-1)
        log_probs_K = log_p_K_V.gather(1, targets_K[:, None]).squeeze(1)
        if not settings.with_entropy:
            return log_probs_K, None
        finite_K_V = log_p_K_V if outside_K_V is None else log_p_K_V.masked_fill(outside_K_V, 0.0)
        return log_probs_K, -(log_p_K_V.exp() * finite_K_V).sum(dim=-1)


def _is_plain_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """True if the head is its weight and bias and nothing else: no adapters, hooks or sharded tensors."""
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return False
    return type(head.weight.data) is Tensor


# Log-probs of chosen tokens from hidden states, without ever holding a whole (positions, vocabulary) matrix in float32 twice.
#
# The vocabulary is cut into blocks; a block's logits live in the processor's cache while its part of the softmax is summed. The
# backward pass works block by block too, so each row of the head's gradient is written once. As many logits as the budget allows
# are held for the backward pass, the others are computed again. With a frozen head (adapters) nothing is held: the gradient
# of a log-prob with respect to its hidden state, W[target] - sum_v p_v W[v], is summed in the forward pass, as Liger-Kernel
# does for the cross-entropy (arXiv 2410.10989).
#
# Suffixes: _Q positions, _K chosen tokens, _V vocabulary, _D width, _B a block of the vocabulary.


CPU_BLOCK, GPU_BLOCK = 2_000_000, 2**26
"""Logits of a block: on a CPU few enough to stay in its cache, on a GPU so many that its kernels take longer than their launch."""
GPU_ALIGNMENT = 128
"""A GPU's block is a multiple of so many tokens wide: a bf16 matrix product whose rows are not aligned to 16 bytes takes five times as long."""
MIN_BLOCK_WIDTH = 64
"""Fewest tokens of the vocabulary in a block."""


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """From the head's output to the logits of the softmax, in this order; and what is wanted of it."""

    scale: float = 1.0
    """Factor of the head's output."""
    softcap: float | None = None
    """c: logits become c tanh(logits / c)."""
    temperature: float = 1.0
    with_entropy: bool = False
    budget: int = 0
    """Most logits that are held for the backward pass."""
    gather_gradient: bool = False
    """The weight's gradient goes straight to its `.grad`; autograd gets none."""

    def logits(self, output: Tensor) -> Float[Tensor, " *shape"]:
        """Float32 logits from the head's output, which is left as it was."""
        logits = output.float()
        if self.softcap is not None:
            return torch.tanh(logits * (self.scale / self.softcap)) * (self.softcap / self.temperature)
        factor = self.scale / self.temperature
        return logits if factor == 1.0 else logits * factor

    def backward(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Gradient of the head's output, from that of the logits; may overwrite it."""
        gradient = gradient.mul_(self.scale / self.temperature)
        if self.softcap is not None:
            gradient.mul_(1.0 - (logits * (self.temperature / self.softcap)).square_())
        return gradient


def score_tokens(
    hidden_Q_D: Float[Tensor, "Q D"],
    weight_V_D: Float[Tensor, "V D"],
    bias_V: Float[Tensor, " V"] | None,
    targets_K: Int[Tensor, " K"],
    rows_K: Int[Tensor, " K"],
    settings: HeadSettings,
    limits: Limits | None = None,
) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"] | None]:
    """Log-probs of tokens, and on request the entropies of the distributions that they come from.

    Args:
        hidden_Q_D: What the head is given.
        weight_V_D: Of the head.
        bias_V: Of the head.
        targets_K: Tokens to score.
        rows_K: Position of each, an index of `hidden_Q_D`; several tokens may have the same.
        settings: See `HeadSettings`.
        limits: The part of the vocabulary that each position's distribution is over; None: all of it.

    Returns:
        (log_probs_K, entropy_K) in nats, float32.
    """
    log_probs_K, entropy_Q = _Scores.apply(hidden_Q_D, weight_V_D, bias_V, targets_K, rows_K, settings, limits)  # type: ignore[no-untyped-call]
    return log_probs_K, entropy_Q[rows_K] if settings.with_entropy else None


def block_width(rows: int, device: str) -> int:
    """Tokens of the vocabulary in a block of logits of so many positions, on a kind of device."""
    if device == "cpu":
        return max(MIN_BLOCK_WIDTH, CPU_BLOCK // max(1, rows))
    return -(-max(MIN_BLOCK_WIDTH, GPU_BLOCK // max(1, rows)) // GPU_ALIGNMENT) * GPU_ALIGNMENT


class _Scores(torch.autograd.Function):
    """`score_tokens` with the entropy of each position (empty unless asked for)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_Q_D: Tensor,
        weight_V_D: Tensor,
        bias_V: Tensor | None,
        targets_K: Tensor,
        rows_K: Tensor,
        settings: HeadSettings,
        limits: Limits | None,
    ) -> tuple[Tensor, Tensor]:
        head = _Head(hidden_Q_D, weight_V_D, bias_V)
        learns_head = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        plain = settings.softcap is None and not settings.with_entropy and limits is None
        ctx.summed = ctx.needs_input_grad[0] and not learns_head and plain
        budget = settings.budget if ctx.needs_input_grad[0] or learns_head else 0

        chosen_K = hidden_Q_D.new_empty(len(targets_K), dtype=torch.float32)
        sums: list[Tensor] = []
        inner: list[Tensor] = []
        means_Q_D = torch.zeros_like(hidden_Q_D, dtype=torch.float32) if ctx.summed else None
        total_Q = hidden_Q_D.new_full((len(hidden_Q_D),), -torch.inf, dtype=torch.float32)
        held = []
        for start, end in head.blocks:
            output_Q_B = head.output(start, end)
            logits_Q_B = settings.logits(output_Q_B)
            if limits is not None:
                logits_Q_B = logits_Q_B.masked_fill(~limits.mask(start, end), -torch.inf)
            sums.append(torch.logsumexp(logits_Q_B, dim=1))
            inside = ((targets_K >= start) & (targets_K < end)).nonzero().squeeze(1)
            chosen_K[inside] = logits_Q_B[rows_K[inside], targets_K[inside] - start]
            if settings.with_entropy:
                log_share_Q_B = logits_Q_B - sums[-1][:, None]
                inner.append(_finite(torch.exp(log_share_Q_B) * log_share_Q_B, limits).sum(dim=1))
            if means_Q_D is not None:
                total_Q = _add_mean(means_Q_D, total_Q, logits_Q_B, sums[-1], head, start, end)
            if not ctx.summed and end * len(hidden_Q_D) <= budget:
                held.append(output_Q_B)
        sums_Q_n = torch.stack(sums, dim=1)
        sum_Q = torch.logsumexp(sums_Q_n, dim=1)
        entropy_Q = sum_Q.new_empty(0)
        if settings.with_entropy:
            log_share_Q_n = sums_Q_n - sum_Q[:, None]
            share_Q_n = torch.exp(log_share_Q_n) * (torch.stack(inner, dim=1) + log_share_Q_n)
            entropy_Q = -_finite(share_Q_n, limits).sum(dim=1)
        ctx.settings, ctx.limits, ctx.dtype, ctx.weight = settings, limits, head.dtype, weight_V_D
        ctx.save_for_backward(hidden_Q_D, weight_V_D, bias_V, targets_K, rows_K, sum_Q, entropy_Q, means_Q_D, *held)
        return chosen_K - sum_Q[rows_K], entropy_Q

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_K, grad_entropy_Q = gradients
        hidden_Q_D, weight_V_D, bias_V, targets_K, rows_K, sum_Q, entropy_Q, means_Q_D, *held = ctx.saved_tensors
        settings: HeadSettings = ctx.settings
        weights_Q = torch.zeros_like(sum_Q).index_add_(0, rows_K, grad_K)
        factor = settings.scale / settings.temperature
        if ctx.summed:
            grad_Q_D = means_Q_D.mul(-weights_Q[:, None])
            grad_Q_D.index_add_(0, rows_K, weight_V_D[targets_K].float() * grad_K[:, None])
            return grad_Q_D.mul_(factor).to(hidden_Q_D.dtype), None, None, None, None, None, None

        head = _Head(hidden_Q_D, weight_V_D, bias_V, ctx.dtype)
        grad_hidden = torch.zeros_like(hidden_Q_D, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        gather = settings.gather_gradient
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = gathered(ctx.weight) if gather else torch.empty_like(weight_V_D)
        grad_bias = torch.empty_like(bias_V) if ctx.needs_input_grad[2] else None
        for number, (start, end) in enumerate(head.blocks):
            output_Q_B = held[number] if number < len(held) else head.output(start, end)
            logits_Q_B = settings.logits(output_Q_B)
            log_p_Q_B = logits_Q_B - sum_Q[:, None]
            grad_Q_B = torch.exp(log_p_Q_B)
            if settings.with_entropy:  # dH / dlogit = -p (log p + H)
                pull_Q_B = log_p_Q_B.add_(entropy_Q[:, None]).mul_(grad_entropy_Q[:, None])
                grad_Q_B.mul_(pull_Q_B.add_(weights_Q[:, None]).neg_())
            else:
                grad_Q_B.mul_(-weights_Q[:, None])
            inside = ((targets_K >= start) & (targets_K < end)).nonzero().squeeze(1)
            if ctx.limits is not None:
                grad_Q_B = grad_Q_B.masked_fill_(~ctx.limits.mask(start, end), 0.0)
            places = (rows_K[inside], targets_K[inside] - start)
            grad_Q_B.index_put_(places, grad_K[inside], accumulate=True)
            grad_out = settings.backward(grad_Q_B, logits_Q_B).to(ctx.dtype)
            if grad_hidden is not None:
                grad_hidden += grad_out @ head.weight(start, end)
            if grad_weight is not None and gather and head.dtype == grad_weight.dtype:
                grad_weight[start:end].addmm_(grad_out.T, head.hidden_Q_D)
            elif grad_weight is not None and gather:
                grad_weight[start:end] += grad_out.T @ head.hidden_Q_D
            elif grad_weight is not None:
                grad_weight[start:end] = grad_out.T @ head.hidden_Q_D
            if grad_bias is not None:
                grad_bias[start:end] = grad_out.sum(dim=0)
        grad_input = None if grad_hidden is None else grad_hidden.to(hidden_Q_D.dtype)
        return grad_input, None if gather else grad_weight, grad_bias, None, None, None, None


def _finite(values: Tensor, limits: Limits | None) -> Tensor:
    """P log p, which is 0 where a limit makes p 0."""
    return values if limits is None else values.nan_to_num_(nan=0.0)


def _add_mean(
    means_Q_D: Tensor, total_Q: Tensor, logits_Q_B: Tensor, sum_Q: Tensor, head: _Head, start: int, end: int
) -> Tensor:
    """Take a block into the mean of the head's rows under the softmax; gives the new logarithm of the sum of all blocks."""
    new_Q = torch.logaddexp(total_Q, sum_Q)
    share_Q_B = torch.exp(logits_Q_B - new_Q[:, None]).to(head.dtype)
    means_Q_D.mul_(torch.exp(total_Q - new_Q)[:, None]).add_(share_Q_B @ head.weight(start, end))
    return new_Q


class _Head:
    """The head in blocks of its vocabulary, computed in the dtype that autocast asks for, or in the given one."""

    def __init__(
        self, hidden_Q_D: Tensor, weight_V_D: Tensor, bias_V: Tensor | None, dtype: torch.dtype | None = None
    ) -> None:
        device = hidden_Q_D.device.type
        if dtype is None:
            casts = torch.is_autocast_enabled(device)
            dtype = torch.get_autocast_dtype(device) if casts else weight_V_D.dtype
        self.dtype = dtype
        self.hidden_Q_D = hidden_Q_D.to(dtype)
        self._weight, self._bias, self._device = weight_V_D, bias_V, device
        width = block_width(len(hidden_Q_D), device)
        size = len(weight_V_D)
        self.blocks = [(start, min(start + width, size)) for start in range(0, size, width)]

    def weight(self, start: int, end: int) -> Tensor:
        """Rows of the head's weight."""
        return self._weight[start:end].to(self.dtype)

    def output(self, start: int, end: int) -> Tensor:
        """Head's output for a block."""
        bias = None if self._bias is None else self._bias[start:end].to(self.dtype)
        with torch.autocast(self._device, enabled=False):
            return linear(self.hidden_Q_D, self.weight(start, end), bias)


# Gradients of embedding and head that go straight to `.grad`.
#
# With a large vocabulary these two are most of the weights, or the same weights. Autograd would make a gradient of the whole matrix
# for each of them and micro-batch, only to add it to the one that has gathered.


def may_gather(weight: Tensor) -> bool:
    """True if nothing else has to see this weight's gradient on its way: a plain leaf without hooks."""
    hooks = weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None)
    return weight.requires_grad and weight.is_leaf and type(weight) is nn.Parameter and not hooks


def gathered(weight: Tensor) -> Tensor:
    """The gradient that has gathered; zeros where there was none."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def gather_rows(
    weight_V_D: Tensor, ids: Int[Tensor, "*shape"], padding: int | None = None
) -> Float[Tensor, "*shape D"]:
    """Rows of a matrix, whose gradient goes straight to its `.grad`; that of the row `padding` is dropped, as in `nn.Embedding`."""
    rows: Tensor = _Rows.apply(weight_V_D, ids, padding)  # type: ignore[no-untyped-call]
    return rows


def is_plain_embedding(module: nn.Module) -> TypeGuard[nn.Embedding]:
    """True if a module is a table of rows that learns, and nothing else."""
    if type(module) is not nn.Embedding or module._forward_hooks or module._forward_pre_hooks:
        return False
    return may_gather(module.weight) and module.max_norm is None and not (module.scale_grad_by_freq or module.sparse)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        ctx.weight, ctx.padding = weight, padding
        ctx.save_for_backward(ids)
        return weight[ids]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ids, rows = ctx.saved_tensors[0].flatten(), gradients[0].flatten(0, -2).to(ctx.weight.dtype)
        if ctx.padding is not None:
            rows = rows.masked_fill((ids == ctx.padding)[:, None], 0.0)
        gathered(ctx.weight).index_add_(0, ids, rows)
        return None, None, None
