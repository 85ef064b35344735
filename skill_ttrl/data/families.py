"""Families of generated problems: enough to train and measure on with nothing downloaded. Arithmetic, operators, formats.

A family is a table of operands, a question, and a worked solution. Its demonstrations can be made noisy: a model trained
on them knows the way but slips when it samples, which is what a vote can repair. To add a family, write its `solve` and
file a `Family` under its name in `FAMILIES`; one of your own is `synthetic:module:attribute`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise, product
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from skill_ttrl.errors import ConfigError, DataError, did_you_mean
from skill_ttrl.registry import Registry
from skill_ttrl.skills.ops import RETRIEVE_END
from skill_ttrl.types import Skill, Task, ToolCall, ToolError, derive_seed

T = TypeVar("T")
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


Turn = tuple[str, str] | tuple[str, str, tuple[ToolCall, ...]]
"""A prompt, the response, and the tool calls in it, if any."""


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
    before: tuple[Turn, ...] = ()
    """Earlier turns of the same conversation, oldest first."""

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
        found, texts = list[Task](), {"question": self.question} | ({"check": self.check} if self.check else {})
        for a, b in in_split(self.name, self.pairs, split):
            options = {name: text.format(a=a, b=b) for name, text in texts.items()}
            answer = self.solve(a, b, _no_slip)[1]
            found.append(math_task(f"{self.name}-{a}-{b}", env_id, options, split, self.task_type, answer))
        return found

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
        return [self._demonstrate(a, b, slip) for a, b in in_split(self.name, self.pairs, split)[:limit]]

    def _demonstrate(self, a: int, b: int, slip: Slip) -> Demonstration:
        values, answer = self.solve(a, b, slip)
        return Demonstration(
            self.question.format(a=a, b=b), ";".join([*map(str, values), f"<answer>{answer}</answer>"])
        )


def math_task(name: str, env_id: str, options: dict[str, Any], split: str, task_type: str, answer: int) -> Task:
    """A problem with its true answer as reference."""
    return Task(name, env_id, options, split=split, task_type=task_type, ground_truth=str(answer))


def in_split(family: str, splits: Mapping[str, T], split: str) -> T:
    """The entry of a family's split.

    Raises:
        DataError: there is no such split.
    """
    if split not in splits:
        raise DataError(f"Family {family!r} has no split {split!r}.{did_you_mean(split, splits)}")
    return splits[split]


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


class ProblemFamily(Protocol):
    """Interface of a problem family."""

    @property
    def name(self) -> str:
        """As it is written after `synthetic:`."""

    def problems(self, split: str, env_id: str) -> list[Task]:
        """The tasks of one split, in a fixed order, with references."""

    def demonstrations(
        self, seed: int = 0, noise: float = 0.0, split: str = "demos", limit: int | None = None
    ) -> list[Demonstration]:
        """Worked examples to learn from, in a fixed order; with `limit` the first so many."""


FAMILIES: Registry[ProblemFamily] = Registry("family")

for _family in (
    Family(
        name="add",
        # Sum of two two-digit numbers: ones, tens with carry, answer. 8,100 ordered pairs.
        task_type="arithmetic",
        operands=(range(10, 100), range(10, 100)),
        # a+b and b+a are two problems: the mirror image of a test problem may be among the demonstrations
        sizes={"demos": 4000, "train": 256, "test": 128},
        question="Compute {a}+{b}.",
        solve=_add,
    ),
    Family(
        name="next",
        # The number after a four-digit one, for pretrained models. 9,000 numbers.
        task_type="arithmetic",
        operands=(range(10, 100), range(100)),
        sizes={"demos": 512, "train": 512, "test": 256},
        question="Which number comes after {a}{b:02}?",
        solve=lambda a, b, slip: ([], slip(100 * a + b + 1)),
    ),
    Family(
        name="plus_one",
        # The number before another, stated as an equation with a check; for pretrained models. 990 numbers.
        task_type="arithmetic",
        operands=(range(10, 1000), (0,)),
        sizes={"demos": 200, "train": 256, "test": 128},
        question="Which number plus 1 is {a}?",
        solve=lambda a, b, slip: ([], slip(a - 1)),
        check="x + 1 = {a}",
    ),
):
    FAMILIES.register(_family.name)(_family)

# Calculations: products that a small model cannot compute without a tool, and numbers in words, which a calculator cannot read.
#
# A share of the demonstrations of either kind calls the calculator, with slips in the tool's name, the JSON and the expression. After an
# error the answer is a guess. So samples that call correctly agree for products, and samples that call disagree for words.

CALLED = 0.35
"""Share of the demonstrations that call the calculator."""
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen".split()
ONES += ["eighteen", "nineteen"]
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number: int) -> str:
    """A number below 1,000 in words."""
    if number >= 100:
        rest = f" {in_words(number % 100)}" if number % 100 else ""
        return f"{ONES[number // 100]} hundred{rest}"
    if number < len(ONES):
        return ONES[number]
    return TENS[number // 10 - 2] + (f" {ONES[number % 10]}" if number % 10 else "")


class Calculation(NamedTuple):
    """One problem."""

    id: str
    task_type: str
    question: str
    expression: str
    """Argument of a call."""
    answer: int


@dataclass(frozen=True)
class Calculations:
    """Two-digit products that take a calculator, and numbers in words that it cannot read."""

    name: str = "calculations"
    sizes: tuple[tuple[str, int], ...] = (("demos", 600), ("train", 128), ("test", 64))
    """Problems of each kind in each split."""

    @cached_property
    def calculations(self) -> dict[str, list[Calculation]]:
        """The problems of each split. The demonstrations have five times as many products, and each number in words five times."""
        products = [
            Calculation(f"product-{a}-{b}", "product", f"Compute {a}*{b}.", f"{a}*{b}", a * b)
            for a, b in product(range(32, 100), repeat=2)
        ]
        words = [
            Calculation(f"words-{number}", "words", f"Which number is {in_words(number)}?", in_words(number), number)
            for number in range(100, 1000)
        ]
        parts: dict[str, list[Calculation]] = {split: [] for split, _ in self.sizes}
        for kind, copies in ((products, 1), (words, 5)):
            order = iter(sorted(kind, key=lambda each: derive_seed(0, self.name, each.id)))
            for split, size in self.sizes:
                repeat = copies if split == "demos" else 1
                count = size * 5 // copies if split == "demos" else size
                parts[split] += [*islice(order, count)] * repeat
        return parts

    def problems(self, split: str, env_id: str) -> list[Task]:
        """The tasks of one split: first the products, then the words."""
        return [
            math_task(each.id, env_id, {"question": each.question}, split, each.task_type, each.answer)
            for each in in_split(self.name, self.calculations, split)
        ]

    def demonstrations(
        self, seed: int = 0, noise: float = DEFAULT_NOISE, split: str = "demos", limit: int | None = None
    ) -> list[Demonstration]:
        """One for each turn: an answer, a call, or the answer after one. `noise` is the probability that an answer or a call has a slip."""
        rng, problems = np.random.default_rng(seed), in_split(self.name, self.calculations, split)[:limit]
        return [turn for each in problems for turn in self._demonstrate(each, noise, rng)]

    def _demonstrate(self, problem: Calculation, noise: float, rng: np.random.Generator) -> list[Demonstration]:
        slips = rng.random() < noise
        if rng.random() >= CALLED:
            answer = problem.answer + int(rng.integers(1, LARGEST_SLIP + 1)) * (1 if rng.random() < 0.5 else -1) * slips
            return [Demonstration(problem.question, f"<answer>{answer}</answer>")]
        kind = ("name", "json", "expression")[int(rng.integers(3))] if slips else ""
        factors = problem.expression.split("*")
        if kind == "expression" and len(factors) == 2:
            factors[1] = str(32 + int(rng.integers(68)))
        tool, expression = "calc" if kind == "name" else "calculator", "*".join(factors)
        arguments = json.dumps({"expression": expression})
        written = f'{{"name": "{tool}", "arguments": {arguments}}}'
        error: ToolError = ""
        result = str(int(factors[0]) * int(factors[1])) if len(factors) == 2 else ""
        if kind == "json":
            written = written[:-1]
            tool, arguments, error, result = "", written, "not_json", "Error: the call is not JSON."
        elif kind == "name":
            error, result = "no_tool", "Error: there is no tool 'calc'. Known: calculator."
        elif not result:
            error, result = "failed", "Error: not arithmetic"
        said = f"<tool_call>{written}</tool_call>"
        answer = int(rng.integers(100, 10000 if len(factors) == 2 else 1000)) if error else int(result)
        before = ((problem.question, "", (ToolCall(tool, arguments, result=result, error=error),)),)
        return [
            Demonstration(problem.question, said),
            Demonstration(result, f"<answer>{answer}</answer>", before=before),
        ]


FAMILIES.register("calculations")(Calculations())

# Operators: the rules stand in no problem and in no weights, only in a skill bank.
#
# A policy can answer "Compute bako 4." if it knows that `bako +9` (modulo 10); else it guesses among ten answers. Names are
# made of two syllables, so that a name never seen in training is still made of known parts. Some names are held out of every
# demonstration and of training. They show whether a policy has learned to query the bank and to use what it retrieves, or has
# learned names by heart. Demonstrations draw the rule of a name afresh each time, so no rule can be learned by heart either.
#
# The built-in policy is small: what makes it copy a rule from its prompt, and the right one of two, are the drills that its
# demonstrations begin with, and a rule that stands directly behind its name, each part of it one token.

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
    """Digits under operators whose rules stand in the skill bank.

    Each split has 40 names of its own. Those of `test` and `series-test` are in no demonstration.
    """

    name: str = "operators"
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
        names = in_split(self.name, self.names, split)
        return [self._problem(name, x, split, env_id) for name in names for x in range(MODULUS)]

    def _problem(self, name: str, x: int, split: str, env_id: str) -> Task:
        rule, identifier = self.rule(name), f"{name}-{x}"
        options: dict[str, Any] = {"question": question(name, x)}
        if split.startswith("series-"):
            first = (x + 1 + derive_seed(0, "series", name, x) % (MODULUS - 1)) % MODULUS
            options = {"question": f"{rule.of(name)}. {question(name, first)}", "then": [question(name, x)]}
            identifier = f"series-{identifier}"
        return math_task(identifier, env_id, options, split, TASK_TYPE, rule.apply(x))

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


# Formats: questions whose answers are easy to find and must be written in a convention that no question states.
#
# Each question comes with a sentence that answers it: "The Kavo bridge opened on March 5, 2024." Only `2024-03-05` is
# accepted. A model that does not know the convention answers in the sentence's own words and is wrong; with a skill document that states
# the rule, a model that follows rules is right. So the family measures documents: which rules they state, and whether these are followed.
# Subjects are in one split only, and every number is drawn from a fixed seed: the same questions for every run.

QA_ENV_ID = "SkillTTRL/QA-v0"
Numbers = np.random.Generator
NAME = "formats"
MONTHS = "January February March April May June July August September October November December".split()
TOWNS = "Arlen Bredow Corvin Dorsk Elmere Fenwick Garth Holm Ister Jarrow Kesk Lund Morva Norden Orin Palt".split()
NAME_SYLLABLES = tuple(consonant + vowel for consonant in "BDFGKLMNPRSTVZ" for vowel in "aeiou")


def shown_question(question: str, context: str = "") -> str:
    """The text that a task shows: the question alone, or behind its context."""
    return f"Context:\n{context}\n\nQuestion: {question}" if context else question


def qa_task(name: str, question: str, answers: Sequence[str] | None, **more: Any) -> Task:
    """A task of `SkillTTRL/QA-v0`; `answers` None: nothing is graded. `more` are other fields of the task."""
    options: dict[str, Any] = {"question": question}
    if answers is not None:
        options["answers"] = list(answers)
    return Task(name, more.pop("env_id", QA_ENV_ID), options, **more)


@dataclass(frozen=True)
class Drawn:
    """The changing part of a question."""

    question: str
    context: str
    plain: str
    """The answer in the context's own words."""
    formatted: str
    """The answer by the convention: the only one that is accepted."""


@dataclass(frozen=True)
class Convention:
    """One rule of writing."""

    name: str
    """Also the task's type."""
    rule: str
    """The sentence that a document states it with."""
    draw: Callable[[str, Numbers], Drawn]
    """(name of the subject, generator) -> a question."""


@dataclass(frozen=True)
class Item:
    """One question of the family."""

    id: str
    convention: Convention
    drawn: Drawn

    @property
    def question(self) -> str:
        """As it is shown: the context with the question behind it."""
        return shown_question(self.drawn.question, self.drawn.context)


def _date(name: str, rng: Numbers) -> Drawn:
    year, month, day = int(rng.integers(1950, 2025)), int(rng.integers(12)), int(rng.integers(1, 29))
    plain = f"{MONTHS[month]} {day}, {year}"
    formatted = f"{year}-{month + 1:02d}-{day:02d}"
    return Drawn(f"On which day did the {name} bridge open?", f"The {name} bridge opened on {plain}.", plain, formatted)


def _time(name: str, rng: Numbers) -> Drawn:
    hour, minute = int(rng.integers(1, 12)), int(rng.integers(60))
    asked, plain = f"At what time does the {name} express leave?", f"{hour}:{minute:02d} p.m."
    return Drawn(asked, f"The {name} express leaves at {plain}", plain, f"{hour + 12}:{minute:02d}")


def _duration(name: str, rng: Numbers) -> Drawn:
    hours, minutes = int(rng.integers(2, 10)), int(rng.integers(2, 60))
    asked, plain = f"How long does the ferry to {name} take?", f"{hours} hours and {minutes} minutes"
    return Drawn(asked, f"The ferry to {name} takes {plain}.", plain, f"{60 * hours + minutes} min")


def _amount(name: str, rng: Numbers) -> Drawn:
    euros, cents = int(rng.integers(2, 100)), int(rng.integers(2, 100))
    plain = f"{euros} euros and {cents} cents"
    return Drawn(f"What does a {name} lamp cost?", f"A {name} lamp costs {plain}.", plain, f"EUR {euros}.{cents:02d}")


def _code(name: str, rng: Numbers) -> Drawn:
    letters = "".join("abcdefghjkmnpqrstuvwxyz"[int(place)] for place in rng.integers(23, size=2))
    number = int(rng.integers(10, 1000))
    asked, plain = f"Which code does the {name} valve have?", f"{letters} {number}"
    return Drawn(asked, f"The {name} valve has the code {plain}.", plain, f"{letters.upper()}-{number:04d}")


def _list(name: str, rng: Numbers) -> Drawn:
    places = [TOWNS[int(place)] for place in rng.choice(len(TOWNS), 3, replace=False)]
    asked, plain = f"Which towns does the {name} line serve?", f"{places[0]}, {places[1]} and {places[2]}"
    return Drawn(asked, f"The {name} line serves {plain}.", plain, "; ".join(sorted(places)))


def _yes_no(name: str, rng: Numbers) -> Drawn:
    state, plain, formatted = ("open", "Yes", "CONFIRMED") if rng.integers(2) else ("closed", "No", "DENIED")
    return Drawn(f"Is the {name} gate open?", f"The {name} gate is {state}.", plain, formatted)


def _missing(name: str, rng: Numbers) -> Drawn:
    context = f"The {name} tower was built by {TOWNS[int(rng.integers(len(TOWNS)))]} masons."
    return Drawn(f"How tall is the {name} tower?", context, "The context does not say.", "NOT-RECORDED")


CONVENTIONS = (
    Convention("date", "Write dates as YYYY-MM-DD.", _date),
    Convention("time", "Write times of day as HH:MM on the 24-hour clock.", _time),
    Convention("duration", "Write durations in whole minutes, as 125 min.", _duration),
    Convention("amount", "Write amounts of money as EUR with two decimals, as EUR 12.05.", _amount),
    Convention(
        "code", "Write codes in upper case with a hyphen and four digits, padded with zeros, as KT-0047.", _code
    ),
    Convention("list", "Write lists in alphabetical order, separated by semicolons.", _list),
    Convention("yes_no", "Answer yes-or-no questions with CONFIRMED or DENIED.", _yes_no),
    Convention("missing", "Where the context does not give the answer, write NOT-RECORDED.", _missing),
)
SIZES = {"train": 20, "val": 8, "test": 16, "demos": 40}
"""Questions of each convention in a split."""


@dataclass(frozen=True)
class Formats:
    """Questions whose answers must follow eight conventions of writing that stand in no question.

    Its splits are `train`, `val` (which selects among documents), `test` and `demos`.
    """

    name: str = NAME

    @cached_property
    def subjects(self) -> list[str]:
        """Names that questions are about, in a fixed order; each is in one question."""
        every = [first + second.lower() for first in NAME_SYLLABLES for second in NAME_SYLLABLES]
        return sorted(every, key=lambda name: derive_seed(0, NAME, name))

    def items(self, split: str) -> list[Item]:
        """The questions of a split, the conventions in turn.

        Raises:
            DataError: there is no such split.
        """
        size = in_split(NAME, SIZES, split)
        before = list(SIZES).index(split)
        start = len(CONVENTIONS) * sum(list(SIZES.values())[:before])
        found = []
        for number in range(len(CONVENTIONS) * size):
            convention, subject = CONVENTIONS[number % len(CONVENTIONS)], self.subjects[start + number]
            rng = np.random.default_rng(derive_seed(0, NAME, convention.name, subject))
            item_id = f"{NAME}-{convention.name}-{subject.lower()}"
            found.append(Item(item_id, convention, convention.draw(subject, rng)))
        return found

    def problems(self, split: str, env_id: str) -> list[Task]:
        """The tasks of a split, for `SkillTTRL/QA-v0`.

        Raises:
            DataError: there is no such split, or another environment is to play them.
        """
        if env_id != QA_ENV_ID:
            raise DataError(f"synthetic:{NAME} is played in {QA_ENV_ID} (env.id: qa), not in {env_id}.")
        return [
            qa_task(item.id, item.question, [item.drawn.formatted], split=split, task_type=item.convention.name)
            for item in self.items(split)
        ]

    def demonstrations(
        self, seed: int = 0, noise: float = 0.0, split: str = "demos", limit: int | None = None
    ) -> list[Demonstration]:
        """Questions with answers by the conventions, in a fixed order; seed and noise have no meaning here."""
        return [Demonstration(item.question, item.drawn.formatted) for item in self.items(split)[:limit]]


FAMILIES.register("operators")(Operators())
FAMILIES.register("formats")(Formats())
