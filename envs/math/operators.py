"""Operator problems: what an operator does stands in no problem and in no weight, only in a skill bank.

"Compute bako 4." can be answered by one who knows that `bako plus 9`; others guess among ten answers. Names are made of
two syllables, so that a name never seen in training is still made of known parts. Some names are kept out of every
demonstration and of training: on those it shows whether a policy has learned to ask and to use what it is told, or has
learned names by heart. Demonstrations draw the rule of a name afresh each time, so no rule can be learned by heart either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from skill_ttrl.envs.math.families import Demonstration
from skill_ttrl.errors import ConfigError, DataError, did_you_mean
from skill_ttrl.skills.ops import RETRIEVE_END
from skill_ttrl.types import Skill, Task, derive_seed

SYLLABLES = tuple(consonant + vowel for consonant in "bdfgkvz" for vowel in "aiou")
TASK_TYPE = "operator"
MODULUS = 10


@dataclass(frozen=True)
class Rule:
    """`plus 9`: what an operator does to a digit, modulo 10."""

    operation: str
    digit: int

    def apply(self, x: int) -> int:
        """Its value at `x`, in [0, 10)."""
        values = {"plus": x + self.digit, "minus": x - self.digit, "times": x * self.digit}
        return values[self.operation] % MODULUS

    def of(self, name: str) -> str:
        """The text of a skill: `bako plus 9`."""
        return f"{name} {self.operation} {self.digit}"


RULES = tuple(Rule(operation, digit) for operation in ("plus", "minus", "times") for digit in range(MODULUS))


@dataclass(frozen=True)
class Mixture:
    """Shares of the kinds of demonstration; see `Operators.demonstrations`."""

    rule: float = 0.45
    """The right skill stands in the prompt, among up to two others."""
    stated: float = 0.15
    """The problem itself states the rule: the first of a series."""
    ask: float = 0.3
    """Of those without a rule: the answer asks the bank; the others guess."""
    note: float = 0.3
    """Of those that state the rule: the answer writes it down as a skill."""
    others: tuple[float, float, float] = (0.5, 0.3, 0.2)
    """No, one or two other skills beside the right one."""
    told: tuple[float, float, float, float] = (0.55, 0.25, 0.10, 0.10)
    """An answer that asks is told the right skill; it and another; another; nothing."""


@dataclass(frozen=True)
class Operators:
    """The family; its splits are of names: `train`, `test` (never seen in training), and `series-…` of both."""

    name: str = "operators"
    description: str = "Digits under operators whose rules stand in the skill bank. 40 trained names, 40 held-out ones."
    held_out: int = 40
    trained: int = 40
    demos: int = 40_000
    mixture: Mixture = Mixture()

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """Names by part: `test`, `train`, and `demos` (all but the held-out ones). The same for every run and seed."""
        every = [first + second for first in SYLLABLES for second in SYLLABLES if first != second]
        order = sorted(every, key=lambda name: derive_seed(0, "operators", name))
        test, others = order[: self.held_out], order[self.held_out :]
        return {"test": test, "train": others[: self.trained], "demos": others}

    def rule(self, name: str) -> Rule:
        """The rule that a name has in the bank."""
        return RULES[derive_seed(0, "rule", name) % len(RULES)]

    def problems(self, split: str, env_id: str) -> list[Task]:
        """Every name of the split with every digit; the answer of a series is that of its second problem."""
        part, series = split.removeprefix("series-"), split.startswith("series-")
        if part not in ("train", "test"):
            known = ("train", "test", "series-train", "series-test")
            raise DataError(f"Family {self.name!r} has no split {split!r}.{did_you_mean(split, known)}")
        make = self._series if series else self._single
        return [make(name, x, part, env_id) for name in self.names[part] for x in range(MODULUS)]

    def _single(self, name: str, x: int, split: str, env_id: str) -> Task:
        return Task(
            id=f"{name}-{x}",
            env_id=env_id,
            options={"question": question(name, x)},
            split=split,
            task_type=TASK_TYPE,
            reference=str(self.rule(name).apply(x)),
        )

    def _series(self, name: str, x: int, split: str, env_id: str) -> Task:
        first = (x + 1 + derive_seed(0, "series", name, x) % (MODULUS - 1)) % MODULUS
        return Task(
            id=f"series-{name}-{x}",
            env_id=env_id,
            options={"question": f"{self.rule(name).of(name)}. {question(name, first)}", "then": [question(name, x)]},
            split=split,
            task_type=TASK_TYPE,
            reference=str(self.rule(name).apply(x)),
        )

    def skills(self, *, shuffled: bool = False) -> list[Skill]:
        """One skill a name, trained and held-out; `shuffled` gives each name the rule of another, as a control."""
        names = sorted([*self.names["test"], *self.names["train"]])
        owners = names
        if shuffled:
            owners = [names[place] for place in _derangement(len(names), derive_seed(0, "shuffled"))]
        return [
            Skill(f"op-{name}", name, self.rule(owner).of(name), task_type=TASK_TYPE, source="family:operators")
            for name, owner in zip(names, owners, strict=True)
        ]

    def corpus(self) -> list[str]:
        """Texts to learn merges from: syllables far more often than words, so that none runs across two syllables."""
        words = ["Compute", " plus", " minus", " times", "retrieve", " query", '="', '"></', "generate", "></", "plus"]
        return [text for text in SYLLABLES for _ in range(200)] + [word for word in words for _ in range(50)]

    def demonstrations(self, seed: int = 0, noise: float = 0.0, split: str = "demos") -> list[Demonstration]:
        """Worked examples on fresh names and rules: with the rule, without it, asking, and writing it down.

        Args:
            seed: of every draw.
            noise: has no meaning here.
            split: "demos".
        """
        if split != "demos":
            raise DataError(f"Family {self.name!r} has demonstrations in its split 'demos' only, not in {split!r}.")
        rng = np.random.default_rng(seed)
        return [self._demonstrate(rng) for _ in range(self.demos)]

    def _demonstrate(self, rng: np.random.Generator) -> Demonstration:
        mixture, pool = self.mixture, self.names["demos"]
        name, *strangers = (pool[place] for place in rng.choice(len(pool), 3, replace=False))
        rule, x = _draw_rule(rng), int(rng.integers(MODULUS))
        others = [_draw_rule(rng).of(stranger) for stranger in strangers]
        kind = rng.random()
        if kind < mixture.rule:
            shown = others[: rng.choice(3, p=mixture.others)]
            shown.insert(int(rng.integers(len(shown) + 1)), rule.of(name))
            return Demonstration(question(name, x), worked(name, rule, x), tuple(shown))
        if kind < mixture.rule + mixture.stated:
            note = f"<skill_ops><generate>{rule.of(name)}</generate></skill_ops>" if rng.random() < mixture.note else ""
            return Demonstration(f"{rule.of(name)}. {question(name, x)}", note + worked(name, rule, x))
        shown = others[: rng.choice(3, p=(0.8, 0.12, 0.08))]
        if rng.random() >= mixture.ask:
            return Demonstration(question(name, x), _guess(name, x, rng), tuple(shown))
        told = self._told(name, rule, others[0], rng)
        known = rule.of(name) in told
        answer = worked(name, rule, x) if known else _guess(name, x, rng)
        asked = f'<skill_ops><retrieve query="{name}">{RETRIEVE_END}'
        return Demonstration(question(name, x), f"{asked}</skill_ops>{answer}", tuple(shown), (told,))

    def _told(self, name: str, rule: Rule, other: str, rng: np.random.Generator) -> tuple[str, ...]:
        right = rule.of(name)
        both = (right, other) if rng.random() < 0.5 else (other, right)
        return ((right,), both, (other,), ())[rng.choice(4, p=self.mixture.told)]


def question(name: str, x: int) -> str:
    """The text of a problem."""
    return f"Compute {name} {x}."


def worked(name: str, rule: Rule, x: int) -> str:
    """An answer that restates the rule."""
    return f"{rule.of(name)};<answer>{rule.apply(x)}</answer>"


def bank_family(name: str) -> list[Skill]:
    """The skills of `family:operators`, or of the control `family:operators-shuffled`.

    Raises:
        ConfigError: no family of skills has this name.
    """
    families = {"operators": False, "operators-shuffled": True}
    if name not in families:
        raise ConfigError(f"No family of skills is called {name!r}.{did_you_mean(name, families)}")
    return Operators().skills(shuffled=families[name])


def _draw_rule(rng: np.random.Generator) -> Rule:
    return RULES[int(rng.integers(len(RULES)))]


def _guess(name: str, x: int, rng: np.random.Generator) -> str:
    """Any of the ten answers, each as likely, with a rule that gives it."""
    answer = int(rng.integers(MODULUS))
    fitting = [rule for rule in RULES if rule.apply(x) == answer]
    return worked(name, fitting[int(rng.integers(len(fitting)))], x)


def _derangement(count: int, seed: int) -> Sequence[int]:
    """A permutation that leaves nothing in its place: a cycle through all, in random order."""
    order = np.random.default_rng(seed).permutation(count).tolist()
    moved = [0] * count
    for place, following in zip(order, [*order[1:], order[0]], strict=True):
        moved[place] = following
    return moved
