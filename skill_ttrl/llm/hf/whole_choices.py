"""Choices drawn as a whole, each with the model's probability of its tokens, renormalised over all choices of its request.

Token by token, a beginning is drawn without regard to what can follow it: where "take" is likely because of a mug that is not there, what is
there is taken. Here a choice whose end is unlikely stays unlikely. All choices of a prompt are scored in one forward pass: their tokens
stand behind it as a tree, in which each sees the prompt and its own beginning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from skill_ttrl.llm.hf.kept import KeptRows

MOST_LOGITS = 200_000_000
"""Logits that are held at once."""


@dataclass
class Tree:
    """Tokens of some choices, each beginning that they share once; the last token of a choice is not in it: nothing follows it."""

    choices: tuple[tuple[int, ...], ...]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """Of each token the one before it; -1: the prompt's last."""
    paths: list[list[int]] = field(default_factory=list)
    """Of each choice, the node after which each of its tokens comes."""

    def __post_init__(self) -> None:
        known: dict[tuple[int, int], int] = {}
        for choice in self.choices:
            path = [-1]
            for token in choice[:-1]:
                node = known.setdefault((path[-1], token), len(self.tokens))
                if node == len(self.tokens):
                    self.tokens.append(token)
                    self.parents.append(path[-1])
                path.append(node)
            self.paths.append(path)

    def seen(self, size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each token which of them it sees: itself and those before it. (size, size), False beyond its own."""
        found = np.zeros((size, size), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                found[node, :node] = found[parent, :node]
            found[node, node] = True
        return found

    def depths(self) -> list[int]:
        """Tokens between the prompt and each token."""
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent < 0 else found[parent] + 1)
        return found

    def token_logprobs(self, probabilities: Sequence[float], number: int) -> list[float]:
        """Log-probs of the tokens of a choice, each among what may stand in its place; they add up to that of the choice."""
        mass = dict.fromkeys(range(-1, len(self.tokens)), 0.0)
        for path, probability in zip(self.paths, probabilities, strict=True):
            for node in path:
                mass[node] += probability
        masses = [*(mass[node] for node in self.paths[number]), probabilities[number]]
        return [min(0.0, math.log(after / before)) for before, after in pairwise(masses)]


def score_choices(
    model: Any, rows: KeptRows, prompts: Sequence[tuple[int, ...]], trees: Sequence[Tree], pad_id: int
) -> Float[Tensor, "P C"]:
    """The log-prob of each prompt's choices; minus infinity beyond a prompt's own."""
    device = model.device
    scores = torch.full((len(prompts), max(len(tree.choices) for tree in trees)), -torch.inf, device=device)
    size = (max(len(tree.tokens) for tree in trees) + 1) * model.config.get_text_config().vocab_size
    for part in _parts(len(prompts), max(1, MOST_LOGITS // size)):
        own = trees[part]
        rows.expect(len(prompts))
        places, new = rows.begin(prompts[part])
        by_row: list[Tree] = list(own)
        for tree, row in zip(own, places, strict=True):
            by_row[row] = tree
        logprobs_R_N_V = rows.read_trees(model, new, by_row, pad_id).float().log_softmax(-1)
        where = [
            (row, node + 1, token, part.start + number, choice)
            for number, (tree, row) in enumerate(zip(own, places, strict=True))
            for choice, path in enumerate(tree.paths)
            for node, token in zip(path, tree.choices[choice], strict=True)
        ]
        row_K, node_K, token_K, prompt_K, choice_K = torch.tensor(where, device=device).T
        scores[prompt_K, choice_K] = 0.0
        scores.index_put_((prompt_K, choice_K), logprobs_R_N_V[row_K, node_K, token_K], accumulate=True)
    return scores


def _parts(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
