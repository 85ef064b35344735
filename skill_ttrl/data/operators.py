"""Operator problems: the rules of the operators stand in no problem and in no weights, only in a skill bank.

A policy can answer "Compute bako 4." if it knows that `bako +9` (modulo 10); else it guesses among ten answers. Names are
made of two syllables, so that a name never seen in training is still made of known parts. Some names are held out of every
demonstration and of training. They show whether a policy has learned to query the bank and to use what it retrieves, or has
learned names by heart. Demonstrations draw the rule of a name afresh each time, so no rule can be learned by heart either.

The built-in policy is small: what makes it copy a rule from its prompt, and the right one of two, are the drills that its
demonstrations begin with, and a rule that stands directly behind its name, each part of it one token.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from skill_ttrl.data.families import Demonstration
from skill_ttrl.errors import ConfigError, DataError, did_you_mean
from skill_ttrl.skills.ops import RETRIEVE_END
from skill_ttrl.types import Skill, Task, derive_seed

SYLLABLES = tuple(consonant + vowel for consonant in "bdfgkvz" for vowel in "aiou")
SPLITS = ("test", "series-test", "train", "series-train")
"""The first two have names that no demonstration asks about or tells of; a drill's row may hold their syllables by chance."""
TASK_TYPE = "operator"
MODULUS = 10


@dataclass(frozen=True)
class Rule:
    """`+9`: what an operator does to a digit, modulo 10."""

    operation: str
    digit: int

    def apply(self, x: int) -> int:
        """Its value at `x`, in [0, 10)."""
        values = {"+": x + self.digit, "-": x - self.digit, "*": x * self.digit}
        return values[self.operation] % MODULUS

    def of(self, name: str) -> str:
        """The text of a skill: `bako +9`."""
        return f"{name} {self.operation}{self.digit}"


OPERATIONS = ("+", "-", "*")
RULES = tuple(Rule(operation, digit) for operation in OPERATIONS for digit in range(MODULUS))


QUESTION = re.compile(r"Compute (\w+) (\d)\.")


@dataclass(frozen=True)
class OperatorGrammar:
    """The form of the rules, one a name: `NAME (+|-|*)DIGIT`. Not the rules. See `optimize.induction.RuleGrammar`."""

    def subject(self, question: str) -> str | None:
        """The name that a problem asks about."""
        found = QUESTION.search(question)
        return found[1] if found else None

    def lines(self, subject: str) -> list[str]:
        """Every rule that a name could have."""
        return [rule.of(subject) for rule in RULES]

    def predict(self, line: str, question: str) -> str | None:
        """The answer under a rule; None where the problem is about another name, or the line is no rule."""
        found, (name, _, rest) = QUESTION.search(question), line.partition(" ")
        if found is None or found[1] != name or rest[:1] not in OPERATIONS or not rest[1:].isdecimal():
            return None
        return str(Rule(rest[0], int(rest[1:])).apply(int(found[2])))


@dataclass(frozen=True)
class Mixture:
    """Shares of the kinds of demonstration in one part of the curriculum; what is left over has no rule."""

    count: int
    """Demonstrations in this part."""
    echo: float = 0.0
    """A row of tokens is written again from another start: a drill."""
    recite: float = 0.0
    """The rules of three skills, in another order than in the prompt: a drill."""
    rule: float = 0.0
    """The right skill stands in the prompt, among up to two others."""
    stated: float = 0.0
    """The problem itself states the rule: the first of a series."""
    told: float = 0.0
    """The query to the bank is given and not learnt here; the use of the retrieved skills is."""


ECHOED = (*SYLLABLES, *(f" {sign}" for sign in OPERATIONS), *map(str, range(MODULUS)))
"""Parts of the rows of the echo drill: every part of a skill."""
ASK = 0.3
"""Of the demonstrations without a rule: those that ask the bank; the others guess."""
NOTE = 0.3
"""Of those that state the rule: those that write it down as a skill."""
CURRICULUM = (
    Mixture(16_000, echo=1.0),
    Mixture(62_400, echo=0.15, recite=0.3, rule=0.275, stated=0.0825, told=0.1925),
    Mixture(129_600, echo=0.08, recite=0.1, rule=0.246, stated=0.0984, told=0.2296),
)


@dataclass(frozen=True)
class Operators:
    """The family; each split has names of its own, `test` and `series-test` such as no demonstration has."""

    name: str = "operators"
    description: str = (
        "Digits under operators whose rules stand in the skill bank. 40 names a split, half of them held out."
    )
    size: int = 40
    """Names in each split."""
    curriculum: tuple[Mixture, ...] = CURRICULUM

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """Names of each split, and those that demonstrations draw from (`demos`). The same for every run and seed."""
        every = [first + second for first in SYLLABLES for second in SYLLABLES if first != second]
        order = sorted(every, key=lambda name: derive_seed(0, "operators", name))
        parts = {split: order[place * self.size :][: self.size] for place, split in enumerate(SPLITS)}
        return {**parts, "demos": order[2 * self.size :]}

    def rule(self, name: str) -> Rule:
        """The rule that a name has in the bank."""
        return RULES[derive_seed(0, "rule", name) % len(RULES)]

    def problems(self, split: str, env_id: str) -> list[Task]:
        """Every name of the split with every digit; the answer of a series is that of its second problem."""
        if split not in SPLITS:
            raise DataError(f"Family {self.name!r} has no split {split!r}.{did_you_mean(split, SPLITS)}")
        return [self._problem(name, x, split, env_id) for name in self.names[split] for x in range(MODULUS)]

    def _problem(self, name: str, x: int, split: str, env_id: str) -> Task:
        rule, identifier = self.rule(name), f"{name}-{x}"
        options: dict[str, Any] = {"question": question(name, x)}
        if split.startswith("series-"):
            first = (x + 1 + derive_seed(0, "series", name, x) % (MODULUS - 1)) % MODULUS
            options = {"question": f"{rule.of(name)}. {question(name, first)}", "then": [question(name, x)]}
            identifier = f"series-{identifier}"
        return Task(identifier, env_id, options, split=split, task_type=TASK_TYPE, ground_truth=str(rule.apply(x)))

    def skills(self, *, shuffled: bool = False) -> list[Skill]:
        """One skill for each name of `train` and `test`; `shuffled` gives each the rule of another, as a control.

        A series brings its own rules: its names are in no bank.
        """
        names = sorted([*self.names["test"], *self.names["train"]])
        owners = dict(zip(names, self._others(names) if shuffled else names, strict=True))
        return [
            Skill(f"op-{name}", name, self.rule(owner).of(name), task_type=TASK_TYPE, source="synthetic:operators")
            for name, owner in owners.items()
        ]

    def _others(self, names: Sequence[str]) -> list[str]:
        """For each name another one whose rule is another function: `+3` and `-7` are the same one."""
        functions = {name: tuple(self.rule(name).apply(x) for x in range(MODULUS)) for name in names}
        order = sorted(names, key=lambda name: (functions[name], name))
        largest = max(Counter(functions.values()).values())
        other = {name: order[(place + largest) % len(order)] for place, name in enumerate(order)}
        return [other[name] for name in names]

    def corpus(self) -> list[str]:
        """Texts to learn merges from: syllables far more often than words, so that none runs across two syllables."""
        words = ["Compute", *(f" {sign}" for sign in OPERATIONS), "retrieve", " query", '="', '"></', "generate", "></"]
        return [text for text in SYLLABLES for _ in range(200)] + [word for word in words for _ in range(50)]

    def demonstrations(
        self, seed: int = 0, noise: float = 0.0, split: str = "demos", limit: int | None = None
    ) -> list[Demonstration]:
        """Worked examples on fresh names and rules, in the order of the curriculum (`sft.shuffle=false` keeps it).

        Every draw is from `seed`; noise has no meaning here, and the only split is "demos".
        """
        if split != "demos":
            raise DataError(f"Family {self.name!r} has demonstrations only in its split 'demos', not in {split!r}.")
        rng = np.random.default_rng(seed)
        parts = (mixture for mixture in self.curriculum for _ in range(mixture.count))
        return [self._demonstrate(mixture, rng) for mixture in islice(parts, limit)]

    def _demonstrate(self, mixture: Mixture, rng: np.random.Generator) -> Demonstration:
        pool = self.names["demos"]
        names = [pool[place] for place in rng.choice(len(pool), 3, replace=False)]
        rules = [RULES[int(rng.integers(len(RULES)))] for _ in names]
        kinds = (mixture.echo, mixture.recite, mixture.rule, mixture.stated, mixture.told)
        kind = int(np.searchsorted(np.cumsum(kinds), rng.random(), side="right"))
        if kind == 0:
            return _echo(rng)
        if kind == 1:
            return _recite(names, rules, rng)
        x = int(rng.integers(MODULUS))
        name, rule = names[0], rules[0]
        others = [other.of(stranger) for stranger, other in zip(names[1:], rules[1:], strict=True)]
        if kind == 2:
            shown = others[: rng.choice(3, p=(0.4, 0.4, 0.2))]
            shown.insert(int(rng.integers(len(shown) + 1)), rule.of(name))
            return Demonstration(question(name, x), worked(name, rule, x), tuple(shown))
        if kind == 3:
            note = f"<skill_ops><generate>{rule.of(name)}</generate></skill_ops>" if rng.random() < NOTE else ""
            return Demonstration(f"{rule.of(name)}. {question(name, x)}", note + worked(name, rule, x))
        shown = others[: rng.choice(3, p=(0.8, 0.12, 0.08))]
        if kind == 4:
            return _told(name, rule, x, others, rng, given=True)
        if rng.random() < ASK:
            return _told(name, rule, x, others, rng)._replace(skills=tuple(shown))
        return Demonstration(question(name, x), _guess(name, x, rng), tuple(shown))


def question(name: str, x: int) -> str:
    """The text of a problem."""
    return f"Compute {name} {x}."


def worked(name: str, rule: Rule, x: int) -> str:
    """An answer that restates the rule."""
    return f"{rule.of(name)};<answer>{rule.apply(x)}</answer>"


def read_rules(document: str) -> list[Skill]:
    """The skills of a document with a rule a line, such as `bako +9`; other lines are left out, and of one name the first counts."""
    found: dict[str, Skill] = {}
    for line in map(str.strip, document.split("\n")):
        name = line.partition(" ")[0]
        if line in OperatorGrammar().lines(name):
            found.setdefault(name, Skill(f"op-{name}", name, line, task_type=TASK_TYPE, source="document"))
    return [*found.values()]


def bank_family(name: str) -> list[Skill]:
    """The skills of `synthetic:operators`, or of the control `synthetic:operators-shuffled`.

    Raises:
        ConfigError: no family of skills has this name.
    """
    families = {"operators": False, "operators-shuffled": True}
    if name not in families:
        raise ConfigError(f"No family of skills is called {name!r}.{did_you_mean(name, families)}")
    return Operators().skills(shuffled=families[name])


def _echo(rng: np.random.Generator) -> Demonstration:
    """A row of different tokens, written again from another start; its first token could not be known."""
    row = [ECHOED[place] for place in rng.permutation(len(ECHOED))[: int(rng.integers(6, 13))]]
    start = int(rng.integers(len(row)))
    turned = [*row[start:], *row[:start]]
    return Demonstration("".join(row), "".join(turned), given=((0, len(turned[0])),))


def _recite(names: Sequence[str], rules: Sequence[Rule], rng: np.random.Generator) -> Demonstration:
    """The rules of three skills in another order; only what stands behind each name is learnt."""
    texts = [rule.of(name) for name, rule in zip(names, rules, strict=True)]
    response, given = "", []
    for place in rng.permutation(len(names)):
        given.append((len(response), len(response) + len(names[place])))
        response += texts[place]
        given.append((len(response), len(response) + 1))
        response += ";"
    return Demonstration("", response, tuple(texts), given=tuple(given))


def _told(
    name: str, rule: Rule, x: int, others: Sequence[str], rng: np.random.Generator, *, given: bool = False
) -> Demonstration:
    """Make a demonstration that queries the bank and retrieves the right skill, it and another, another, or nothing.

    `given`: the query is not learnt, only what follows; so the share of queries stays `ASK`, however often use is practised.
    """
    right = rule.of(name)
    both = (right, others[0]) if rng.random() < 0.5 else (others[0], right)
    shares = (0.6, 0.4, 0.0, 0.0) if given else (0.55, 0.3, 0.08, 0.07)
    told = ((right,), both, (others[0],), ())[rng.choice(4, p=shares)]
    answer = worked(name, rule, x) if right in told else _guess(name, x, rng)
    asked = f'<skill_ops><retrieve query="{name}">{RETRIEVE_END}'
    spans = ((0, len(asked)),) if given else ()
    return Demonstration(question(name, x), f"{asked}</skill_ops>{answer}", told=(told,), given=spans)


def _guess(name: str, x: int, rng: np.random.Generator) -> str:
    """Any of the ten answers, each as likely, with a rule that gives it: `*0` and `*5` would make some answers frequent."""
    answer = int(rng.integers(MODULUS))
    fitting = [rule for rule in RULES if rule.apply(x) == answer]
    return worked(name, fitting[int(rng.integers(len(fitting)))], x)
