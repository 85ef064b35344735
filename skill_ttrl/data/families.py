"""Families of generated problems: enough to train and measure on with nothing downloaded.

A family is a table of operands, a question, and a worked solution. Its demonstrations can be made noisy: a model trained
on them knows the way but slips when it samples, which is what a vote can repair. To add a family, write its `solve` and
file a `Family` under its name in `FAMILIES`; one of your own is `synthetic:module:attribute`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple, Protocol

import numpy as np

from skill_ttrl.errors import DataError, did_you_mean
from skill_ttrl.registry import Registry
from skill_ttrl.skills.ops import RETRIEVE_END
from skill_ttrl.types import Task, derive_seed

Slip = Callable[[int], int]
"""Applied to every value of a worked solution, in order: the identity, or now and then a wrong value."""

DEFAULT_NOISE = 0.2
LARGEST_SLIP = 3


class Written(NamedTuple):
    """A piece of a response that the model writes, or finds written."""

    text: str
    learnt: bool


class Told(NamedTuple):
    """Skills that the bank answers with at one point of a response."""

    skills: tuple[str, ...]


class Demonstration(NamedTuple):
    """A prompt and the response a model is to learn."""

    prompt: str
    response: str
    skills: tuple[str, ...] = ()
    """Texts of the skills that the prompt shows."""
    told: tuple[tuple[str, ...], ...] = ()
    """For each question to the skill bank in the response, in order, the texts of the skills that answer it."""
    given: tuple[tuple[int, int], ...] = ()
    """Spans [start, end) of the response that the model finds written and does not learn, in order."""
    before: tuple[tuple[str, str], ...] = ()
    """(what was said to the model, its response) of earlier turns of the same conversation, oldest first."""

    def parts(self) -> Iterator[Written | Told]:
        """The response as it comes about, piece by piece."""
        answers: dict[int, tuple[str, ...]] = {}
        end = 0
        for skills in self.told:
            end = self.response.index(RETRIEVE_END, end) + len(RETRIEVE_END)
            answers[end] = skills
        edges = sorted({0, len(self.response), *answers, *(edge for span in self.given for edge in span)})
        for start, stop in pairwise(edges):
            yield Written(self.response[start:stop], not any(begin <= start < end for begin, end in self.given))
            if stop in answers:
                yield Told(answers[stop])


@dataclass(frozen=True)
class Family:
    """Problems over pairs of numbers."""

    name: str
    description: str
    task_type: str
    operands: tuple[Sequence[int], Sequence[int]]
    """Values of the first and of the second number; every pair is a problem."""
    sizes: Mapping[str, int]
    """Problems in each split. The splits are cut from one fixed order, so no problem is in two of them."""
    question: str
    """With `{a}` and `{b}` where the numbers go."""
    solve: Callable[[int, int, Slip], tuple[list[int], int]]
    """Intermediate values and the answer; each value goes through the slip before it is used further."""
    check: str = ""
    """Conditions on the answer x (`answers.conditions`), with `{a}` and `{b}`; empty: the problems have none."""

    @cached_property
    def pairs(self) -> dict[str, list[tuple[int, int]]]:
        """The operand pairs of each split: the same for every run and seed, so that nothing leaks between runs."""
        order = sorted(product(*self.operands), key=lambda pair: derive_seed(0, "family", self.name, *pair))
        parts, start = {}, 0
        for split, size in self.sizes.items():
            parts[split] = order[start : start + size]
            start += size
        return parts

    def problems(self, split: str, env_id: str) -> list[Task]:
        """The tasks of one split, in a fixed order, each with its true answer as reference."""
        return [
            Task(
                f"{self.name}-{a}-{b}",
                env_id,
                {"question": self.question.format(a=a, b=b)}
                | ({"check": self.check.format(a=a, b=b)} if self.check else {}),
                split=split,
                task_type=self.task_type,
                ground_truth=str(self.solve(a, b, _no_slip)[1]),
            )
            for a, b in self._pairs(split)
        ]

    def demonstrations(
        self, seed: int = 0, noise: float = DEFAULT_NOISE, split: str = "demos", limit: int | None = None
    ) -> list[Demonstration]:
        """Worked solutions of one split, in a fixed order, e.g. `8;12;<answer>128</answer>`.

        Args:
            seed: of the noise; another seed gives the same problems with other slips.
            noise: chance that a value is off by 1 to 3 (never below zero); later values follow from the wrong one.
            split: whose problems.
            limit: only the first so many.
        """
        slip = _slips(np.random.default_rng(seed), noise) if noise > 0 else _no_slip
        return [self._demonstrate(a, b, slip) for a, b in self._pairs(split)[:limit]]

    def _demonstrate(self, a: int, b: int, slip: Slip) -> Demonstration:
        values, answer = self.solve(a, b, slip)
        return Demonstration(
            self.question.format(a=a, b=b), ";".join([*map(str, values), f"<answer>{answer}</answer>"])
        )

    def _pairs(self, split: str) -> list[tuple[int, int]]:
        if split not in self.pairs:
            raise DataError(f"Family {self.name!r} has no split {split!r}.{did_you_mean(split, self.pairs)}")
        return self.pairs[split]


def _no_slip(value: int) -> int:
    return value


def _slips(rng: np.random.Generator, noise: float) -> Slip:
    def slip(value: int) -> int:
        if rng.random() >= noise:
            return value
        offset = int(rng.integers(1, LARGEST_SLIP + 1))
        return value - offset if value >= offset and rng.random() < 0.5 else value + offset

    return slip


def _add(a: int, b: int, slip: Slip) -> tuple[list[int], int]:
    ones = slip(a % 10 + b % 10)
    tens = slip(a // 10 + b // 10 + ones // 10)
    return [ones, tens], slip(10 * tens + ones % 10)


def _next(a: int, b: int, slip: Slip) -> tuple[list[int], int]:
    return [], slip(100 * a + b + 1)


def _multiply(a: int, b: int, slip: Slip) -> tuple[list[int], int]:
    ones = slip(a % 10 * b)
    tens = slip(a // 10 * b + ones // 10)
    return [ones, tens], slip(10 * tens + ones % 10)


def _mod(a: int, b: int, slip: Slip) -> tuple[list[int], int]:
    multiple = slip(a // b * b)
    return [multiple], slip(max(a - multiple, 0))


class ProblemFamily(Protocol):
    """Interface of a problem family."""

    @property
    def name(self) -> str:
        """As it is written after `synthetic:`."""

    @property
    def description(self) -> str:
        """One line for lists."""

    def problems(self, split: str, env_id: str) -> list[Task]:
        """The tasks of one split, in a fixed order, with references."""

    def demonstrations(
        self, seed: int = 0, noise: float = 0.0, split: str = "demos", limit: int | None = None
    ) -> list[Demonstration]:
        """Worked examples to learn from, in a fixed order; with `limit` the first so many."""


FAMILIES: Registry[ProblemFamily] = Registry("family")

FAMILIES.register("add")(
    Family(
        name="add",
        description="Sum of two two-digit numbers: ones, tens with carry, answer. 8,100 ordered pairs.",
        task_type="arithmetic",
        operands=(range(10, 100), range(10, 100)),
        # a+b and b+a are two problems: the mirror image of a test problem may be among the demonstrations
        sizes={"demos": 4000, "train": 256, "test": 128},
        question="Compute {a}+{b}.",
        solve=_add,
    )
)
FAMILIES.register("next")(
    Family(
        name="next",
        description="The number after a four-digit one, for pretrained models. 9,000 numbers.",
        task_type="arithmetic",
        operands=(range(10, 100), range(100)),
        sizes={"demos": 512, "train": 512, "test": 256},
        question="Which number comes after {a}{b:02}?",
        solve=_next,
    )
)
FAMILIES.register("plus_one")(
    Family(
        name="plus_one",
        description="The number before another, stated as an equation with a check; for pretrained models. 990 numbers.",
        task_type="arithmetic",
        operands=(range(10, 1000), (0,)),
        sizes={"demos": 200, "train": 256, "test": 128},
        question="Which number plus 1 is {a}?",
        solve=lambda a, b, slip: ([], slip(a - 1)),
        check="x + 1 = {a}",
    )
)
FAMILIES.register("multiply")(
    Family(
        name="multiply",
        description="A two-digit times a one-digit number: ones, tens with carry, answer. 720 pairs.",
        task_type="arithmetic",
        operands=(range(10, 100), range(2, 10)),
        sizes={"demos": 480, "train": 128, "test": 64},
        question="Compute {a}*{b}.",
        solve=_multiply,
    )
)
FAMILIES.register("mod")(
    Family(
        name="mod",
        description="Remainder of a number below 1,000 by a one-digit one: largest multiple, answer. 7,200 pairs.",
        task_type="number_theory",
        operands=(range(100, 1000), range(2, 10)),
        sizes={"demos": 4000, "train": 256, "test": 128},
        question="Compute {a} mod {b}.",
        solve=_mod,
    )
)
