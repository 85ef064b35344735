"""The optimizer that asks no language model: it finds rules by elimination, in a grammar that the user gives.

A grammar says which lines a document may hold about a subject and which answer each line gives to a question. Every rollout excludes
lines: with a true answer, those that give another one; without, a failure excludes the lines that give its answer, and a success those
that give another one. For each subject with failures one of the lines that nothing excludes is proposed, drawn by the step's seed, so
that after a rejected step another one comes. Each subject has a section of the document, which as a bank is one skill. The grammar is knowledge of the form
of rules, not of the rules.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from skill_ttrl.config import OptimizeConfig
from skill_ttrl.errors import ConfigError
from skill_ttrl.optimize.calls import Calls
from skill_ttrl.optimize.types import Edit, Patch, RawPatch, RolloutResult, StepView
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.registry import import_attribute, naming, require_methods
from skill_ttrl.types import derive_seed


class RuleGrammar(Protocol):
    """The lines that a document may hold, one a rule."""

    def subject(self, question: str) -> str | None:
        """The subject of a question, to which a rule belongs; None where there is none."""

    def lines(self, subject: str) -> Sequence[str]:
        """Every line about a subject. A document holds at most one of them."""

    def predict(self, line: str, question: str) -> str | None:
        """The answer that a line gives to a question; None: it says nothing of it."""


@dataclass
class Evidence:
    """Answers known of one subject, by question."""

    right: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, set[str]] = field(default_factory=dict)

    def add(self, rollout: RolloutResult) -> None:
        """Add what a rollout tells: its true answer where it has one, else whether its own was right."""
        question, answer = asked(rollout), rollout.predicted_answer
        if rollout.reference_text:
            self.right[question] = rollout.reference_text
        elif rollout.hard and answer:
            self.right[question] = answer
        elif answer:
            self.wrong.setdefault(question, set()).add(answer)

    def excludes(self, line: str, grammar: RuleGrammar) -> bool:
        """True if a known answer contradicts the line."""
        right = ((grammar.predict(line, question), answer) for question, answer in self.right.items())
        wrong = ((grammar.predict(line, question), answers) for question, answers in self.wrong.items())
        return any(said is not None and said != answer for said, answer in right) or any(
            said in answers for said, answers in wrong
        )


@dataclass
class InductionOptimizer:
    """Proposes for each subject with failures a line of its grammar that no rollout so far excludes.

    An `optimize.optimizer.Optimizer`. Its evidence grows over the steps of one run; a replayed run collects the same.
    """

    grammar: RuleGrammar
    evidence: dict[str, Evidence] = field(default_factory=dict)
    """By subject."""

    def reflect(self, view: StepView) -> list[RawPatch]:
        """One patch: an edit for each subject with failures, those that most failures support first."""
        with naming(f"The grammar {type(self.grammar).__qualname__}", f"in step {view.step}"):
            failures: dict[str, int] = {}
            for rollout in view.rollouts:
                subject = self.grammar.subject(asked(rollout))
                if subject is not None:
                    self.evidence.setdefault(subject, Evidence()).add(rollout)
                    failures[subject] = failures.get(subject, 0) + (not rollout.hard)
            failing = sorted((name for name in failures if failures[name]), key=lambda name: (-failures[name], name))
            edits = [edit for name in failing for edit in self._edits(view, name, failures[name])]
            reason = f"{len(edits)} edits for {len(failing)} subjects with failures: lines that no rollout excludes"
            return [RawPatch(Patch(edits, reason), "failure", len(view.rollouts))] if edits else []

    def merge(self, view: StepView, patches: Sequence[RawPatch]) -> Patch:
        """All edits: they are of different subjects."""
        edits = [edit for raw in patches for edit in raw.patch.edits]
        return Patch(edits, "; ".join(raw.patch.reasoning for raw in patches))

    def select(self, view: StepView, patch: Patch, max_edits: int) -> Patch:
        """The edits with the most failures behind them."""
        edits = sorted(patch.edits, key=lambda edit: -(edit.support_count or 0))
        return Patch(edits[:max_edits], f"{patch.reasoning}; {max_edits} with the most failures")

    def state_dict(self) -> dict[str, Any]:
        """The evidence as JSON, for a checkpoint of a run that also trains weights."""
        wrong = {name: {q: sorted(each) for q, each in known.wrong.items()} for name, known in self.evidence.items()}
        return {"right": {name: known.right for name, known in self.evidence.items()}, "wrong": wrong}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the evidence of `state_dict`."""
        self.evidence = {
            name: Evidence(dict(right), {question: {*answers} for question, answers in state["wrong"][name].items()})
            for name, right in state["right"].items()
        }

    def _edits(self, view: StepView, subject: str, failures: int) -> list[Edit]:
        """The edit that brings a possible line into the document; none where one is there, or no line is left."""
        lines, written = self.grammar.lines(subject), [line.strip() for line in view.document.split("\n")]
        present = [place for place, line in enumerate(written) if line in lines]
        possible = [line for line in lines if not self.evidence[subject].excludes(line, self.grammar)]
        if not possible or any(written[place] in possible for place in present):
            return []
        line = random.Random(derive_seed(view.seed, "line", subject)).choice(possible)
        heading = " ".join(subject.split())
        edit = replace_line(view.document, present[0], line) if present else Edit("append", f"## {heading}\n\n{line}")
        edit.support_count, edit.source_type = failures, "failure"
        return [edit]


def make_induction(calls: Calls, config: OptimizeConfig, templates: Templates) -> InductionOptimizer:
    """The optimizer `induce` with the grammar of `optimize.optimizer_options`; it calls no model and reads no templates.

    Raises:
        ConfigError: the options name no usable grammar.
    """
    path = config.optimizer_options.get("grammar")
    if {*config.optimizer_options} - {"grammar"} or not isinstance(path, str):
        raise ConfigError(
            "The optimizer induce needs a grammar and nothing else: optimize.optimizer_options={grammar: 'module:attribute'}, such as "
            f"skill_ttrl.data.families:OperatorGrammar; found {config.optimizer_options}."
        )
    found = import_attribute(path, "grammar")
    with naming(f"The grammar {path!r}", "when it was made"):
        grammar = found() if isinstance(found, type) else found
    require_methods(grammar, path, "subject", "lines", "predict")
    return InductionOptimizer(cast(RuleGrammar, grammar))


def asked(rollout: RolloutResult) -> str:
    """The question of a rollout, or the task in words."""
    return rollout.question or rollout.task_description


def replace_line(document: str, place: int, content: str) -> Edit:
    """The edit that replaces line `place`. Its target takes in neighbouring lines until it is the first text of its kind."""
    lines = document.split("\n")
    first, last = place, place
    while document.find("\n".join(lines[first : last + 1])) != sum(len(line) + 1 for line in lines[:first]):
        first, last = max(0, first - 1), min(len(lines) - 1, last + 1)
    new = [*lines[first:place], content, *lines[place + 1 : last + 1]]
    return Edit("replace", "\n".join(new), "\n".join(lines[first : last + 1]))
