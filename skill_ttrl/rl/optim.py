"""Optimizers and learning rates.

`build_optimizer` gives one object over AdamW, or over Muon for the hidden matrices and AdamW for the rest. It also
holds the loss scaler of fp16, and it is where a gradient that is not finite is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from skill_ttrl.errors import ConfigError, ModelError
from skill_ttrl.llm.models.builtin import MARK, embedding_parts
from skill_ttrl.rl.batch import RolloutBatch
from skill_ttrl.rl.parallel.ranks import ALONE, Ranks, like, local, whole

if TYPE_CHECKING:
    from skill_ttrl.rl.policy import Policy


Schedule = Literal["constant", "cosine", "linear"]


def learning_rate(
    step: int,
    total_steps: int,
    peak: float,
    warmup_steps: int = 0,
    schedule: Schedule = "constant",
    min_lr_ratio: float = 0.0,
    decay_from: float = 0.0,
) -> float:
    """The rate of one optimizer step: a linear warm-up that ends at the peak, then constant, a cosine or a straight line.

    Args:
        step: 0 for the first step; those beyond the end keep the last rate.
        total_steps: Steps in all.
        peak: Highest rate.
        warmup_steps: Step i of these has the rate peak * (i + 1) / warmup_steps, so that the first is not lost.
        schedule: `constant`, or `cosine` or `linear` from the peak down to `min_lr_ratio * peak` at the last step; where that
            is 0, it would come one step after the last, as in `transformers.get_cosine_schedule_with_warmup`.
        min_lr_ratio: In [0, 1].
        decay_from: Share of all steps that `linear` stays at the peak, warm-up included.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    first = max(warmup_steps, round(decay_from * total_steps))
    last = total_steps - 1 if min_lr_ratio > 0 else total_steps  # a step at the rate 0 would learn nothing
    progress = min(1.0, max(0.0, (step - first) / max(1, last - first)))
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak * (min_lr_ratio + (1.0 - min_lr_ratio) * left)


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is orthogonalised by Newton-Schulz (Keller Jordan, "Muon", 2024), for 2-D weights.

    The same update as `torch.optim.Muon`, which iterates in bf16: on a CPU without bf16 instructions that takes 15
    times as long as the fp32 here (11 ms against 0.75 ms for 288 x 96), and its bits depend on the CPU.

    Args:
        params: Matrices.
        lr: Step size; multiplied by sqrt(max(1, rows / columns)) for each matrix.
        momentum: Of the running mean of gradients; the look-ahead is Nesterov's.
        weight_decay: Decoupled, as a multiple of lr.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all matrices that have a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                buffer = state["momentum_buffer"].lerp_(matrix.grad, 1.0 - group["momentum"])
                # A sharded matrix is orthogonalised whole, on every rank.
                update = like(orthogonalise(whole(matrix.grad.lerp(buffer, group["momentum"]))), matrix)
                matrix.mul_(1.0 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def orthogonalise(matrix: Tensor, iterations: int = 5) -> Tensor:
    """Singular values driven to about 1 (0.5 to 1.5) by a quintic Newton-Schulz iteration; same shape and dtype."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).float()
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.T if tall else x).to(matrix.dtype)


class PolicyOptimizer:
    """One or two torch optimizers, whose present rates are their peaks, behind one face.

    Args:
        optimizers: They take no parameter twice.
        scaler: Loss scaler of fp16, or None.
        ranks: Processes that compute parts of the same loss; their gradients are added up, unless the weights are sharded: then
            the backward pass has done so.
        parts: The same parameters by part of the model (`model_parts`); None: one part.
        shared: Rows that the optimizers hold in the place of the model's embeddings.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: Any = None,
        ranks: Ranks = ALONE,
        parts: Mapping[str, Sequence[nn.Parameter]] | None = None,
        *,
        shared: SharedRows | None = None,
    ) -> None:
        self._shared = shared
        self._ranks = ranks
        self._optimizers = list(optimizers)
        self._peaks = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in self._optimizers]
        self._scaler = scaler
        self.parameters: list[nn.Parameter] = [
            parameter
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        self._parts = parts or {"other": self.parameters}
        self.part_norms: dict[str, float] = {}
        """Norm of the gradient of each part of the model at the latest step, before clipping."""

    def set_lr(self, fraction: float) -> None:
        """Set every rate to this fraction of its peak."""
        for optimizer, peaks in zip(self._optimizers, self._peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * fraction

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradient to what has gathered."""
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def step(self, loss: Tensor, grad_clip: float) -> tuple[float, bool]:
        """Clip the gathered gradient to the norm `grad_clip`, update the weights, and forget the gradient.

        The whole loss that the gradient belongs to, a number (with several ranks their sum), is only looked at.

        Returns:
            (norm of the gradient before clipping, whether the weights were updated). They are not when the loss or the
            gradient is not finite, on any rank.
        """
        if self._shared is not None:
            self._shared.take_gradient()
        self._add_up_gradients()
        if self._scaler is not None:
            for optimizer in self._optimizers:
                self._scaler.unscale_(optimizer)
        norms = torch.stack([_gradient_norm(parameters).to(loss.device) for parameters in self._parts.values()])
        norm = torch.linalg.vector_norm(norms)
        _scale_gradients(self.parameters, (grad_clip / (norm + 1e-6)).clamp(max=1.0))
        loss_value, norm_value, *seen = torch.cat([torch.stack([loss.detach().float(), norm]), norms]).tolist()
        self.part_norms = dict(zip(self._parts, seen, strict=True))
        finite = math.isfinite(norm_value) and math.isfinite(loss_value)
        if finite:
            for optimizer in self._optimizers:
                optimizer.step()
            if self._shared is not None:
                self._shared.write()
        if self._scaler is not None:
            self._scaler.update()
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        return norm_value, finite

    def _add_up_gradients(self) -> None:
        """Add up the gradients of all ranks. Those of sharded weights are added up already, by the backward pass."""
        plain = [parameter for parameter in self.parameters if local(parameter) is parameter]
        if not self._ranks.several or not plain:
            return
        # A rank without a share of the batch has no gradients; what no rank has used keeps none.
        used = torch.tensor([parameter.grad is not None for parameter in plain], dtype=torch.float32)
        self._ranks.sum_([used])
        for parameter, count in zip(plain, used.tolist(), strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._ranks.sum_([parameter.grad for parameter in plain if parameter.grad is not None])

    def state_dict(self) -> dict[str, Any]:
        """State for an exact resume."""
        scaler = None if self._scaler is None else self._scaler.state_dict()
        shared = {} if self._shared is None else {"shared_rows": self._shared.rows.detach()}
        return {"optimizers": [optimizer.state_dict() for optimizer in self._optimizers], "scaler": scaler, **shared}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, here or with another number of ranks: whole moments are cut to this rank's shards."""
        if self._shared is not None:
            self._shared.rows.data.copy_(state["shared_rows"])
        for optimizer, part in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(part)
            for parameter, moments in optimizer.state.items():
                for name, value in moments.items():
                    if isinstance(value, Tensor):
                        moments[name] = like(value, parameter)
        if self._scaler is not None and state["scaler"] is not None:
            self._scaler.load_state_dict(state["scaler"])


def build_optimizer(
    model: Any,
    *,
    learning_rate: float,
    muon_learning_rate: float | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    scaler: Any = None,
    ranks: Ranks = ALONE,
    shared: SharedRows | None = None,
) -> PolicyOptimizer:
    """The optimizer of a model's trainable parameters. Vectors (biases, norms) are never decayed.

    Args:
        model: Any module; a causal language model for Muon.
        learning_rate: Peak rate of AdamW.
        muon_learning_rate: Peak rate of Muon for 2-D weights that are neither embeddings nor head; None: these are AdamW's too.
        betas: Of AdamW.
        weight_decay: Of both, decoupled.
        scaler: Loss scaler of fp16 (`accelerator.scaler`), or None.
        ranks: Processes that compute parts of the same loss.
        shared: See `PolicyOptimizer`.

    Raises:
        ModelError: nothing in the model is trainable.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ModelError("The model has no trainable parameters. Unfreeze some, or add adapters (model.lora).")
    parts, rest = model_parts(model), trainable
    optimizers: list[torch.optim.Optimizer] = []
    if muon_learning_rate is not None:
        outside = {id(each) for part in ("embeddings", "head") for each in parts.get(part, ())}
        hidden = [each for each in trainable if each.ndim == 2 and id(each) not in outside]
        rest = [each for each in trainable if each.ndim != 2 or id(each) in outside]
        if hidden:
            optimizers.append(Muon(hidden, lr=muon_learning_rate, weight_decay=weight_decay))
    if rest:
        optimizers.append(adamw(_held(rest, shared), learning_rate, betas=betas, weight_decay=weight_decay))
    held = {part: _held(parameters, shared) for part, parameters in parts.items()}
    return PolicyOptimizer(optimizers, scaler, ranks, held, shared=shared)


def adamw(
    parameters: Sequence[nn.Parameter],
    learning_rate: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """AdamW whose decay, decoupled, leaves out vectors (biases, norms)."""
    groups = [
        {"params": [each for each in parameters if each.ndim >= 2], "weight_decay": weight_decay},
        {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, betas=betas, fused=True)


def _held(parameters: Sequence[nn.Parameter], shared: SharedRows | None) -> list[nn.Parameter]:
    """Parameters that the optimizer holds for these: shared rows in the place of the embeddings that are their sums."""
    if shared is None:
        return list(parameters)
    return [shared.rows if parameter is shared.embeddings else parameter for parameter in parameters]


def _gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Norm of their gradients together, a float32 number; 0 where there are none."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return whole(nn.utils.get_total_norm(gradients)).float() if gradients else torch.zeros(())


def _scale_gradients(parameters: Sequence[nn.Parameter], factor: Tensor) -> None:
    """Multiply their gradients in place."""
    for parameter in parameters:
        if parameter.grad is not None:
            local(parameter.grad).mul_(factor.to(parameter.grad.device))


# The trainable parameters of a causal language model by the part of the model that they belong to.


PARTS = ("embeddings", "attention", "mlp", "norms", "head", "lora", "other")
_BY_NAME = (
    ("norms", re.compile(r"norm|\bln_")),
    ("attention", re.compile(r"\battn\b|attention|self_attn")),
    ("mlp", re.compile(r"\bmlp\b|feed_forward|\bffn\b|experts")),
)


def model_parts(model: Any) -> dict[str, list[nn.Parameter]]:
    """Sort the trainable parameters into `PARTS`; parts without any are left out.

    A head that is tied to the embeddings counts with these; adapters, whatever they sit on, are `lora`; a value head is `other`.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    head = set() if output is None else {id(parameter) for parameter in output.parameters()}
    found: dict[str, list[nn.Parameter]] = {part: [] for part in PARTS}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found[_part(name, id(parameter), embeddings, head)].append(parameter)
    return {part: parameters for part, parameters in found.items() if parameters}


def _part(name: str, key: int, embeddings: set[int], head: set[int]) -> str:
    if ".lora_" in name:
        return "lora"
    if key in embeddings:
        return "embeddings"
    if key in head:
        return "head"
    return next((part for part, pattern in _BY_NAME if pattern.search(name)), "other")


# Embeddings that learn as sums of shared rows, in a model whose matrix is a plain one.
#
# The optimizer holds the rows in the matrix's place: `take_gradient` hands them the matrix's gradient before a step, `write` sets
# the matrix after it. What is sampled from, saved and loaded is the matrix.


TOLERANCE = 1e-4
"""Largest difference between a marked matrix and the nearest sums of rows, as a share of its largest value."""


class SharedRows:
    """The rows whose sums are an embedding matrix, found by least squares.

    A constant could be moved from all kinds to all numbers; the smallest rows are taken. Gradients do not depend on it.

    Args:
        embeddings: The matrix, (V, D); tied to the head or not.
        membership: Which rows each of its tokens is the sum of, (V, K).

    Raises:
        ModelError: the matrix is no such sum.
    """

    def __init__(self, embeddings: nn.Parameter, membership: Tensor) -> None:
        if len(membership) != len(embeddings):
            raise ModelError(
                f"The model is marked {MARK}, but its {len(embeddings)} embeddings are not those of its tokenizer's "
                f"{len(membership)} tokens. Remove {MARK} from its config.json to train them one by one."
            )
        self.embeddings = embeddings
        values = embeddings.detach().double().cpu()
        rows = torch.linalg.lstsq(membership.double(), values, driver="gelsd").solution
        error = float((membership.double() @ rows - values).abs().max() / values.abs().max().clamp(min=1e-12))
        if not error <= TOLERANCE:
            raise ModelError(
                f"The model is marked {MARK}, but its embeddings are no sums of a row a kind and a row a number (they differ by "
                f"{error:.1e} of the largest). Remove {MARK} from its config.json to train them one by one."
            )
        # Contiguous: fused AdamW takes values and gradient in the order in which they lie in memory.
        self.rows = nn.Parameter(rows.to(embeddings).contiguous())
        self._membership = membership.to(embeddings)

    @torch.no_grad()
    def take_gradient(self) -> None:
        """Move the gradient of the matrix to the rows."""
        gradient, self.embeddings.grad = self.embeddings.grad, None
        if gradient is not None:
            self.rows.grad = self._membership.T @ gradient

    @torch.no_grad()
    def write(self) -> None:
        """Set the matrix to the sums of the rows."""
        self.embeddings.copy_(self._membership @ self.rows)


def shared_rows(policy: Policy) -> SharedRows | None:
    """The shared rows of a policy's embeddings; None where each has its own, or where they do not learn.

    Raises:
        ConfigError: the weights are sharded.
        ModelError: see `SharedRows`.
    """
    embeddings = policy.model.get_input_embeddings().weight
    if not getattr(policy.model.config, MARK, False) or not embeddings.requires_grad:
        return None
    if policy.sharding is not None:
        raise ConfigError(
            f"The model is marked {MARK}: its embeddings learn as sums of rows, which are not sharded. Set runtime.parallel=ddp, or "
            "train without model.builtin.shared_embeddings."
        )
    return SharedRows(embeddings, embedding_parts(policy.tokenizer)[0])


def finite_mean(values: Sequence[float]) -> float:
    """Mean of the values that are finite; 0 of none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / max(1, len(finite))


def why_skipped(batch: RolloutBatch, items_M: Int[Tensor, " M"], loss: float, grad_norm: float) -> str:
    """Why an optimizer step was not taken: an input of the loss of these items, the loss, or its gradient alone is not finite."""
    inside_F = torch.isin(batch.item_F, items_M)
    found = []
    for field in fields(batch):
        values = getattr(batch, field.name)
        if field.name.endswith("_F") and values is not None and values.is_floating_point():
            count = int((~values.isfinite() & inside_F).sum())
            found += [f"{field.name} at {count} tokens"] if count else []
    inputs = ", ".join(found)
    if math.isfinite(loss):
        return f"the loss is {loss:.4g}, the norm of its gradient {grad_norm}" + (f" ({inputs})" if inputs else "")
    return f"the loss is {loss}; " + (f"not finite before it: {inputs}" if inputs else "all of its inputs are finite")
