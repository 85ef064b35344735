"""Skills from whole episodes by counting, without a language model: what winners did and losers did not.

Actions are read as forms such as `take X from ...`, with nothing known of the environment. An action is a verb and what stands behind
it, as words (`take mug 1 from shelf 2`) or in brackets (`click[buy now]`). Numbers are left out. A word behind the verb that is nearly
always the same there belongs to the form (`from`); any other is a gap. What fills a gap and stands in the task becomes a placeholder, X
for what the task names first, then Y and Z; the rest is `...`. In brackets the whole argument is one gap: words of the task, or what
many tasks have in common, or `...`.

What is looked for is a list of small functions, `WINNERS` and `MISTAKES`: each is given the episodes of one type and says at most a few
sentences that are true of them. What is found alike in most types is said once, of all of them. A finding comes before another if it
tells winners from losers better. Where nobody won there is nothing to hold losers against: then a mistake is only what is wrong in itself.

New and better skills from failures, without a language model: what failed episodes do again and again, and guesses by analogy.

A fault is looked for in every failure by a rule that knows no environment: actions are words before numbers and brackets, and an
action changed nothing where the same was seen after it as before. What most failures share is drafted, as a mistake to avoid, or,
where a skill of the bank names a kind of action that they never came to, as a better text of that skill. The texts hold no counts,
so that the same fault always has the same text, and what the bank says already is not drafted again.

`evolved_by_analogy` is for a type of task that nobody has won yet. Failures alone do not say what would have won. They do show which
actions were possible, and the bank shows what skills look like. So each offered action that names something of the task takes the place
of a step of the same shape in a skill of another type: `clean X with sinkbasin` becomes `polish X with shelf`, and so does every step with
its words. These are guesses: first come actions that no skill names, and of these the one that most failures were offered and did not
take. A gate has to decide on them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.skills.admit import said_already
from skill_ttrl.skills.types import NO_TYPE, Case, Draft, TeacherResult
from skill_ttrl.types import Skill, Step

PLACEHOLDERS = ("X", "Y", "Z")
OF_THE_TASK = "words of the task"
"""An argument in brackets that the task names."""
GAP = "..."
FIXED = 0.9
"""A word that fills at least this share of a place belongs to the form."""
MIN_SEEN = 3
"""Tasks in which a form must have been seen for that to be known."""
COMMON = 0.25
"""An argument that at least this share of the episodes have, of at least `MIN_SEEN` tasks, is a name of the environment."""
SAID = 0.7
"""An argument of several words is taken from the task where at least this share of them stand in it."""
MOST_WORDS = 8
"""Longer actions are free text and have no form."""

_WORD = re.compile(r"[^\W_]+(?:['’.&-][^\W_]+)*")
_JOINED = re.compile(r"[^\W_]+(?:['’.&/-][^\W_]+)*")
_BRACKETS = re.compile(r"([^\[\]]{1,40})\[(.*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Form:
    """One action as it reads."""

    text: str
    """`take X from ...`; equal for actions that do the same in different tasks."""
    named: tuple[str, ...] = ()
    """Words that its placeholders stand for, in order."""
    others: tuple[str, ...] = ()
    """Words that fill its gaps."""
    fills: tuple[str, ...] = ()
    """Words of placeholders and gaps, in order."""
    wider: str = ""
    """The form of which this is a special case: `take X from ...` for `take X from Y`; empty where there is none."""


def _action_words(action: str) -> tuple[str, ...]:
    """The words of an action; `in/on` is one."""
    return tuple(word for word in _JOINED.findall(action.lower()) if not word.isdigit())


def words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without numbers that stand alone."""
    return tuple(word for word in _WORD.findall(text.lower()) if not word.isdigit())


class Forms:
    """Reads the actions of episodes by what all of them have in common.

    Args:
        cases: the episodes; actions of others can be read too.
    """

    def __init__(self, cases: Iterable[Case]) -> None:
        self._places: dict[tuple[str, int], list[Counter[str]]] = {}
        self._seen: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._arguments: Counter[tuple[str, str]] = Counter()
        self._argument_tasks: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._fillers: set[str] = set()
        self._episodes = 0
        for case in cases:
            self._episodes += 1
            self._count(case)
        self._fixed = {
            key: tuple(map(_fixed, places)) for key, places in self._places.items() if len(self._seen[key]) >= MIN_SEEN
        }
        for key, known in self._fixed.items():
            for place, fixed in zip(self._places[key][1:], known[1:], strict=True):
                self._fillers |= {word for word in place if word != fixed}

    def of(self, case: Case, action: str) -> Form | None:
        """The form of an action of this episode; None for free text."""
        inside = bracketed(action)
        if inside is not None:
            return self._in_brackets(case.task, *inside)
        found = _action_words(action)
        if not 1 <= len(found) <= MOST_WORDS:
            return None
        fixed = self._fixed.get((found[0], len(found)), found)  # too seldom seen: its words are its form
        names = self._names(case.task)
        gaps = sum(word != standing for word, standing in zip(found[1:], fixed[1:], strict=True))
        text, wider = [found[0]], [found[0]]
        fills: list[str] = []
        for word, standing in zip(found[1:], fixed[1:], strict=True):
            if word != standing:
                fills.append(word)
            text.append(word if word == standing else names.get(word, GAP))
            wider.append(text[-1] if word == standing or (len(fills) == 1 < gaps) else GAP)
        return Form(
            " ".join(text),
            tuple(word for word in fills if word in names),
            tuple(word for word in fills if word not in names),
            tuple(fills),
            " ".join(wider) if wider != text else "",
        )

    def literal(self, case: Case, action: str) -> str | None:
        """The same with its own words in the gaps: `go to sinkbasin`. None where there is no gap."""
        found = self.of(case, action)
        if found is None or not found.others:
            return None
        parts = found.text.split(GAP)
        return "".join(part + word for part, word in zip(parts, [*found.others, ""], strict=True))

    def task(self, case: Case) -> str:
        """The task with placeholders: `put a clean X in Y`."""
        names = self._names(case.task)
        return _WORD.sub(lambda match: names.get(match[0].lower(), match[0]), case.task).strip(" .")

    def _names(self, task: str) -> dict[str, str]:
        order = dict.fromkeys(word for word in words(task) if word in self._fillers)
        return dict(zip(order, PLACEHOLDERS, strict=False))

    def _in_brackets(self, task: str, verb: str, argument: str) -> Form:
        if is_of_task(argument, task):
            return Form(f"{verb}[{OF_THE_TASK}]", (argument,))
        tasks = self._argument_tasks.get((verb, argument), ())
        if len(tasks) >= MIN_SEEN and self._arguments[verb, argument] >= COMMON * self._episodes:
            return Form(f"{verb}[{argument}]")
        return Form(f"{verb}[{GAP}]", (), (argument,))

    def _count(self, case: Case) -> None:
        """Each action once for an episode: who repeats himself says nothing more."""
        arguments: set[tuple[str, str]] = set()
        for action in dict.fromkeys(step.action for step in case.steps):
            inside = bracketed(action)
            if inside is not None:
                arguments.add(inside)
                continue
            found = _action_words(action)
            if 1 <= len(found) <= MOST_WORDS:
                key = found[0], len(found)
                self._seen[key].add(case.task_id)
                places = self._places.setdefault(key, [Counter() for _ in found])
                for place, word in zip(places, found, strict=True):
                    place[word] += 1
        self._arguments.update(arguments)
        for inside in arguments:
            self._argument_tasks[inside].add(case.task_id)


def names_task(form: str) -> bool:
    """True if a form names something of the task."""
    return OF_THE_TASK in form or bool(placeholders([form]))


def placeholders(forms: Sequence[str]) -> list[str]:
    """Placeholders that occur in some of the forms, in order."""
    return [name for name in PLACEHOLDERS if any(name in form.split() for form in forms)]


def bracketed(action: str) -> tuple[str, str] | None:
    """Verb and argument of `verb[argument]`, in lower case and on one line; None for an action in words."""
    match = _BRACKETS.fullmatch(action.strip())
    if match is None:
        return None
    return " ".join(match[1].lower().split()), " ".join(match[2].lower().split())


def is_of_task(argument: str, task: str) -> bool:
    """True if the task names an argument: its words one after another, or most of the words of a longer one."""
    said, stated = words(argument), words(task)
    if said and any(stated[at : at + len(said)] == said for at in range(len(stated) - len(said) + 1)):
        return True
    return len(said) >= MIN_SEEN and sum(word in stated for word in said) >= SAID * len(said)


def _fixed(place: Counter[str]) -> str | None:
    word, count = min(place.items(), key=lambda item: (-item[1], item[0]))
    return word if count >= FIXED * place.total() else None


# Episodes of one type, and what is found in them.

MIN_EPISODES = 2
"""Episodes of a kind that it takes to say what they share."""
MOST = 0.6
"""Share of the episodes from which on they have something in common."""
ENDS = 0.8
"""Share of the winners that end with the same step, where that is what ends an episode."""
SAME = 0.1
"""Difference of two shares that says nothing."""
WORDED = 0.2
"""Share of the tasks of a type from which on a wording is named."""
MOST_EVIDENCE = 50
"""Most tasks that are named as evidence."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is true of the episodes of a type, as a skill; a draft without a text only counts in how many types it is so."""

    key: str
    """Names the finding, in the same words whatever the type."""
    weight: float
    """The higher, the better it tells winners from losers."""
    draft: Draft


class ParsedEpisode:
    """One episode and the forms of its actions."""

    def __init__(self, case: Case, forms: Forms) -> None:
        self.case = case
        self.forms: list[Form | None] = [forms.of(case, step.action) for step in case.steps]
        self.texts = [form.text if form is not None else "" for form in self.forms]
        own = [forms.literal(case, step.action) for step in case.steps]
        self.wider = {form.text: form.wider for form in self.forms if form is not None and form.wider}
        self.ways = [
            tuple(filter(None, (literal, text, self.wider.get(text))))
            for literal, text in zip(own, self.texts, strict=True)
        ]
        """Readings of each step: in its own words, where it has gaps, as a form, and as a wider one."""

    @cached_property
    def kinds(self) -> frozenset[str]:
        """All forms that occur, and those of which they are special cases."""
        return frozenset(filter(None, (*self.texts, *self.wider.values())))


@dataclass(frozen=True)
class EpisodeStats:
    """The episodes of one type."""

    task_type: str
    won: tuple[ParsedEpisode, ...]
    lost: tuple[ParsedEpisode, ...]
    forms: Forms

    @classmethod
    def of(cls, task_type: str, forms: Forms, cases: Iterable[Case]) -> EpisodeStats:
        """Parse the episodes."""
        parsed = [ParsedEpisode(case, forms) for case in cases]
        return cls(
            task_type,
            tuple(each for each in parsed if each.case.won),
            tuple(each for each in parsed if not each.case.won),
            forms,
        )

    @cached_property
    def closing(self) -> str | None:
        """The form with which nearly all winners end; None where they end in many ways."""
        ends = Counter(each.texts[-1] for each in self.won)
        if len(self.won) < MIN_EPISODES:
            return None
        form, count = min(ends.items(), key=lambda item: (-item[1], item[0]))
        return form if form and count >= ENDS * len(self.won) else None

    @cached_property
    def reads_like(self) -> str:
        """Wordings of the tasks of this type, where they are much the same (`reads_like`)."""
        return reads_like(self.forms, [each.case for each in (*self.won, *self.lost)]) if self.task_type else ""

    @staticmethod
    def shares(episodes: Sequence[ParsedEpisode]) -> dict[str, float]:
        """For each form the share of the episodes in which it occurs; 0 for others."""
        counts = Counter(form for each in episodes for form in each.kinds)
        return defaultdict(float, {form: count / len(episodes) for form, count in counts.items()})

    @staticmethod
    def common(episodes: Sequence[ParsedEpisode], least: float) -> list[str]:
        """Forms that at least this share of the episodes have, without those of which nearly as many have a special case."""
        counts = Counter(form for each in episodes for form in each.kinds)
        said = {
            wider
            for each in episodes
            for form, wider in each.wider.items()
            if counts[form] >= counts[wider] - SAME * len(episodes)
        }
        return sorted(form for form, count in counts.items() if count >= least * len(episodes) and form not in said)


def reads_like(forms: Forms, cases: Sequence[Case]) -> str:
    """The wordings that many of the tasks have: `The task reads like: put a clean X in Y, or clean some X and put it in Y`.

    Empty where the tasks have no wording in common.
    """
    counts = Counter(forms.task(case) for case in cases)
    least = max(MIN_EPISODES, WORDED * len(cases))
    often = sorted((-count, text) for text, count in counts.items() if count >= least and text and len(text) <= 80)
    return f"The task reads like: {', or '.join(text for _, text in often)}" if often else ""


def share(episodes: Sequence[ParsedEpisode], holds: Callable[[ParsedEpisode], bool]) -> float:
    """Share of the episodes of which something holds; 0 where there are none."""
    return sum(map(holds, episodes)) / len(episodes) if episodes else 0.0


def _evidence(episodes: Iterable[ParsedEpisode]) -> tuple[str, ...]:
    """Ids of the episodes' tasks, bounded."""
    return task_ids(each.case for each in episodes)[:MOST_EVIDENCE]


def task_ids(cases: Iterable[Case]) -> tuple[str, ...]:
    """Ids of the tasks, each once."""
    return tuple(dict.fromkeys(case.task_id for case in cases))


def repeats(case: Case, apart: int = 1) -> int:
    """Steps that did and saw again what had been done and seen, `apart` steps or more before."""
    done = case.outcomes()
    return sum(pair in done[: max(0, place + 1 - apart)] for place, pair in enumerate(done))


def invalid_steps(case: Case) -> int:
    """Steps whose action could not be read, or was not among the listed ones."""
    return sum(map(_is_invalid, case.steps))


def quoted(form: str) -> str:
    """An action as it stands in a text."""
    return f"`{form}`"


def _is_invalid(step: Step) -> bool:
    if step.action_status == "invalid":
        return True
    if not step.admissible_actions or step.action in step.admissible_actions:
        return False
    verb = step.action.partition("[")[0]
    return not any(
        "<" in each and each.partition("[")[0] == verb for each in step.admissible_actions
    )  # `search[<your query>]`


# Skills.

LIFT = 0.2
"""Winners must do a step more often than losers by this share of the episodes."""
IN_ORDER = 0.5
"""A chain of steps is a finding where at least this share of the winners followed it."""
NEARLY_ALL = 0.8
LONGEST_CHAIN, MOST_CHAINS = 8, 20
MIN_FOUND = 5
MOST_PLACES, MOST_NAMES = 3, 8
TWICE = 2.0
"""Losers do it at least so many times as often as winners."""
OFTEN = 0.1
"""Share of all steps of the losers."""
SOME = 0.25
MOST_LACKING = 2


def distilled(cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
    """Skills from episodes by counting: the same for the same episodes, whatever their order."""
    cases = sorted((case for case in cases if case.steps), key=lambda case: (case.task_id, case.won, len(case.steps)))
    forms = Forms(cases)
    types: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        types[case.task_type].append(case)
    stats = {kind: EpisodeStats.of(kind, forms, found) for kind, found in sorted(types.items())}
    notes = [note for each in stats.values() for note in _one_sided(each)]
    by_type = {kind: _found(each) for kind, each in stats.items()}
    everywhere = _everywhere(by_type, EpisodeStats.of("", forms, cases))
    said = {each.key for each in everywhere}
    own = {
        kind: [each for each in found if each.key not in said and each.draft.text] for kind, found in by_type.items()
    }
    drafts = _best([each for each in everywhere if not _is_mistake(each)], config.max_general, tier="general")
    for kind, found in own.items():
        found = [each for each in found if not _is_mistake(each)]
        drafts += _best(found, config.max_specific, tier="task", task_type=kind)
    mistakes = [each for each in everywhere if _is_mistake(each)]
    for kind, found in own.items():
        mistakes += [replace(each, draft=replace(each.draft, task_type=kind)) for each in found if _is_mistake(each)]
    return TeacherResult((*drafts, *_best(mistakes, config.max_mistakes)), tuple(notes))


def _found(stats: EpisodeStats) -> list[Finding]:
    found = [finding for look in (*WINNERS, *MISTAKES) for finding in look(stats)]
    return sorted(found, key=lambda each: (-each.weight, each.key))


def _everywhere(by_type: dict[str, list[Finding]], together: EpisodeStats) -> list[Finding]:
    """Findings in most types, of mistakes in two, that hold over all episodes together too."""
    if len(by_type) < 2:
        return []
    types = Counter(key for found in by_type.values() for key in {each.key for each in found})
    return [
        each
        for each in _found(together)
        if types[each.key] >= 2 and (_is_mistake(each) or types[each.key] > MOST * len(by_type))
    ]


def _best(found: Sequence[Finding], most: int, **fields: Any) -> list[Draft]:
    ordered = sorted(found, key=lambda each: (-each.weight, each.key))[:most]
    return [replace(each.draft, **fields) for each in ordered]


def _is_mistake(finding: Finding) -> bool:
    return finding.draft.tier == "mistake"


def _one_sided(stats: EpisodeStats) -> list[str]:
    name = stats.task_type or NO_TYPE
    if not stats.won:
        return [f"{name}: none of {len(stats.lost)} episodes succeeded, so it can only teach mistakes."]
    if not stats.lost:
        return [f"{name}: none of {len(stats.won)} episodes failed, so there are no losers to compare winners with."]
    few = [
        f"{len(side)} {how}"
        for side, how in ((stats.won, "succeeded"), (stats.lost, "failed"))
        if len(side) < MIN_EPISODES
    ]
    return [f"{name}: {' and '.join(few)}; counting needs {MIN_EPISODES} of each."] if few else []


# --- what winners do ---


def steps_in_order(stats: EpisodeStats) -> list[Finding]:
    """The chain of steps that most winners follow and that losers lack, with what nearly all of the winners do in between."""
    telling = {form for form in _telling(stats) if GAP not in form or names_task(form)}
    chain = _best_chain(stats.won, telling)
    if not chain:
        return []
    followers = [played for played in stats.won if _follows(played, chain)]
    winners, losers = len(followers) / len(stats.won), share(stats.lost, lambda played: _follows(played, chain))
    if stats.lost and winners - losers < LIFT:
        return []
    full = _with_usual(followers, chain)
    if len(full) == 1:
        title, text = f"The step that won: {quoted(full[0])}", f"What won was {quoted(full[0])}.{_legend(full)}"
    else:
        title = "Steps in the order that won"
        text = f"Do these in this order: {', then '.join(map(quoted, full))}.{_legend(full)}"
    weight = 2 + winners - losers
    return [Finding(f"order {chain}", weight, Draft(title, text, stats.reads_like, evidence=_evidence(followers)))]


def shared_steps(stats: EpisodeStats) -> list[Finding]:
    """Each single step that winners share and that names something of the task: a skill only of all types together."""
    if stats.task_type:  # there the chain says it; here it only counts in how many types it is so
        return [Finding(f"step {form}", 0.0, Draft("", "")) for form in _telling(stats) if names_task(form)]
    found = []
    for form in sorted(form for form in _telling(stats) if names_task(form)):
        did = [played for played in stats.won if form in played.kinds]
        text = (
            f"Whatever the type of task, {len(did)} of {len(stats.won)} won tries did {quoted(form)}.{_legend([form])}"
        )
        draft = Draft(f"Most wins have {quoted(form)}", text, evidence=_evidence(did))
        found.append(Finding(f"step {form}", 0.5, draft))
    return found


def places(stats: EpisodeStats) -> list[Finding]:
    """Places where what the task names was found: words that filled the gap of a step in which it is named too."""
    found = []
    for form in sorted(_telling(stats)):
        where: Counter[str] = Counter()
        by_name: dict[str, Counter[str]] = defaultdict(Counter)
        holders = []
        for played in stats.won:
            first = next((each for each in played.forms if each and form in (each.text, each.wider)), None)
            if first is None or len(first.fills) != 2 or GAP not in form:
                continue
            name, place = first.fills
            where[place] += 1
            by_name[name][place] += 1
            holders.append(played)
        usual = [place for place, count in _ranked(where)[:MOST_PLACES] if count > 1]
        if len(holders) < MIN_FOUND or not usual:
            continue
        text = f"For {quoted(form)}, look first where it was found most often: {', '.join(usual)}."
        known = sorted(by_name.items(), key=lambda item: (-item[1].total(), item[0]))
        named = [
            f"{name} at {' or '.join(place for place, _ in _ranked(counts)[:2])}"
            for name, counts in known
            if counts.total() >= MIN_EPISODES
        ]
        if named:
            text += f" Found before: {'; '.join(named[:MOST_NAMES])}."
        placeholder = next((name for name in PLACEHOLDERS if name in form.split()), "it")
        weight = 1 + sum(where[each] for each in usual) / len(holders)
        draft = Draft(f"Where {placeholder} was found", text, stats.reads_like, evidence=_evidence(holders))
        found.append(Finding(f"places {form}", weight, draft))
    return found


def length(stats: EpisodeStats) -> list[Finding]:
    """Steps that winners took, where losers took clearly more."""
    if min(len(stats.won), len(stats.lost)) < MIN_EPISODES:
        return []
    won, lost = sorted(len(each.case.steps) for each in stats.won), [len(each.case.steps) for each in stats.lost]
    middle, others = round(median(won)), round(median(lost))
    most = won[int(0.9 * (len(won) - 1))]
    if others >= 1.5 * most:
        text = (
            f"Most wins take about {middle} steps and few take more than {most}; failed tries wandered on to {others}. "
            "Take the next step of the task as soon as it is possible."
        )
        return [Finding("few steps", 0.6, Draft("Go straight for it", text, evidence=_evidence(stats.won)))]
    return []


# --- what losers do ---


def repetitions(stats: EpisodeStats) -> list[Finding]:
    """Doing again what showed nothing new."""
    lost, won = _rate(stats.lost, repeats), _rate(stats.won, repeats)
    if len(stats.lost) < MIN_EPISODES or lost < OFTEN or lost < TWICE * won:
        return []
    text = (
        f"In failed tries {_of_ten(lost)} steps repeated an action and saw again what it had shown before. When an action shows "
        "nothing new, do one that has not been tried yet."
    )
    holders = [each for each in stats.lost if repeats(each.case)]
    return [_mistake("repeats", "repeat an action that has shown nothing new", text, 1 + lost - won, holders)]


def ended_too_soon(stats: EpisodeStats) -> list[Finding]:
    """Ending with the step that ends the winners' episodes, without what they had done before it."""
    last = stats.closing
    if last is None:
        return []
    ended = [each for each in stats.lost if each.texts[-1] == last]
    lacking = {form: [each for each in ended if form not in each.kinds] for form in _needed(stats) if form != last}
    wrong = {form: each for form, each in lacking.items() if len(each) >= max(MIN_EPISODES, SOME * len(stats.lost))}
    if not wrong:
        return []
    forms = sorted(wrong, key=lambda form: (-len(wrong[form]), form))[:MOST_LACKING]
    holders = [each for each in ended if any(each in wrong[form] for form in forms)]
    steps = " and ".join(map(quoted, forms))
    text = (
        f"Do {steps} first, as nearly all won tries did; {len(holders)} of {len(stats.lost)} failed ones ended without."
    )
    title = f"end with {quoted(last)} too early"
    return [_mistake(f"too soon {last}", title, text, 1.5 + len(holders) / len(stats.lost), holders)]


WINNERS = (steps_in_order, shared_steps, places, length)
MISTAKES = (repetitions, ended_too_soon)


def _telling(stats: EpisodeStats) -> set[str]:
    """Forms that most winners have and losers lack, and what most winners end with; none where losers have all of them."""
    if len(stats.won) < MIN_EPISODES:
        return set()
    won, lost = stats.shares(stats.won), stats.shares(stats.lost)
    common = stats.common(stats.won, MOST)
    found = {form for form in common if not stats.lost or won[form] - lost[form] >= LIFT}
    return found | {stats.closing} if found and stats.closing else found


def _best_chain(won: Sequence[ParsedEpisode], telling: set[str]) -> tuple[str, ...]:
    """The longest of the winners' chains that nearly all of them follow, whatever else they do; where there is none, the most
    frequent one, if it is that of most; else nothing.
    """
    if not telling:
        return ()
    chains = Counter(_chain(played, telling) for played in won)
    usual = sorted(chains.items(), key=lambda item: (-item[1], len(item[0]), item[0]))[:MOST_CHAINS]
    short = [(chain, count) for chain, count in usual if 1 <= len(chain) <= LONGEST_CHAIN]
    followed = [chain for chain, _ in short if sum(_follows(played, chain) for played in won) >= NEARLY_ALL * len(won)]
    if followed:
        return min(followed, key=lambda chain: (-len(chain), -chains[chain], chain))
    return next((chain for chain, count in short if count >= IN_ORDER * len(won)), ())


def _chain(played: ParsedEpisode, steps: set[str]) -> tuple[str, ...]:
    """Its steps that are among these, without one after itself."""
    chain: list[str] = []
    for ways in played.ways:
        text = next((each for each in ways if each in steps), None)
        if text is not None and text not in chain[-1:]:
            chain.append(text)
    return tuple(chain)


def _follows(played: ParsedEpisode, chain: Sequence[str]) -> bool:
    left = iter(played.ways)
    return all(any(step in ways for ways in left) for step in chain)


def _with_usual(followers: Sequence[ParsedEpisode], chain: tuple[str, ...]) -> tuple[str, ...]:
    """The chain, and before each of its steps what nearly all followers did there: `go to sinkbasin` before `clean X ...`."""
    between: list[Counter[str]] = [Counter() for _ in chain]
    places: dict[str, list[int]] = defaultdict(list)
    for played in followers:
        start = 0
        for number, step in enumerate(chain):
            at = next(place for place in range(start, len(played.ways)) if step in played.ways[place])
            own = dict.fromkeys(way for ways in played.ways[start:at] for way in ways if GAP not in way)
            between[number].update(list(own))
            for place, way in enumerate(own):
                places[way].append(place)
            start = at + 1
    full: list[str] = []
    for step, counts in zip(chain, between, strict=True):
        usual = [way for way, count in counts.items() if count >= NEARLY_ALL * len(followers) and way not in chain]
        full += [*sorted(usual, key=lambda way: (median(places[way]), way)), step]
    return tuple(full)


def _legend(chain: Sequence[str]) -> str:
    """Meaning of the placeholders, where there are any."""
    used = placeholders(chain)
    return (
        f" {' and '.join(used)}: as the task names {'it' if len(used) == 1 else 'them, in its order'}." if used else ""
    )


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _mistake(key: str, title: str, text: str, weight: float, holders: Sequence[ParsedEpisode]) -> Finding:
    return Finding(key, weight, Draft(title, text, tier="mistake", evidence=_evidence(holders)))


def _rate(episodes: Sequence[ParsedEpisode], count: Callable[[Case], int]) -> float:
    steps = sum(len(each.case.steps) for each in episodes)
    return sum(count(each.case) for each in episodes) / steps if steps else 0.0


def _needed(stats: EpisodeStats) -> list[str]:
    """Forms that nearly all winners have."""
    return stats.common(stats.won, NEARLY_ALL)


def _of_ten(rate: float) -> str:
    return f"{max(1, round(10 * rate))} of 10"


SHARE = 0.5
"""Of the failures that are looked at, so many show what is drafted."""
CIRCLING = 0.4
"""Share of an episode's steps that came to what had been seen before after the same action."""
REFUSAL_CHARS = 100
"""A longer answer shows a place or a page, which some actions change without its text telling."""
PLACE_CHARS = 400
"""A longer one shows a page of many things, where a word of the task says little."""
_NUMBER = re.compile(r"\d+")
_LETTERS = re.compile(r"[^\W\d_]+")
_QUOTED = re.compile(r"`([^`\n]{1,80})`")
_NAME = re.compile(r"[^\W_]+")
_SMALL = frozenset(
    "to in on at into onto from with off up out for the a an of and or is it as by be not no one two all".split()
)
_COMMON = frozenset(
    "find get put place make take have move this that then them some any same price lower than less more most you your me my "
    "look looking task under over using use need want please show buy are was its their there each other first last".split()
)
"""Words of a goal that name no thing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that finds one fault, and what is said of it."""

    shows: Callable[[Case], bool]
    title: str
    text: str
    why: str


def evolved_by_counting(failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
    """New and better skills from what failures share; none where they share nothing, or nothing that the skills do not say."""
    found: list[tuple[float, Draft]] = []
    for fault in FAULTS:
        guilty = [case for case in failures if fault.shows(case)]
        if _enough(guilty, failures):
            draft = Draft(fault.title, fault.text, fault.why, "mistake", evidence=task_ids(guilty))
            found.append((len(guilty) / len(failures), draft))
    by_type: dict[str, list[Case]] = defaultdict(list)
    for case in failures:
        by_type[case.task_type].append(case)
    verbs = {verb(step.action) for case in failures for step in case.steps} - {""}
    for kind, cases in by_type.items():
        found += _too_soon(kind, cases)
        found += _never_came_to(kind, cases, skills, verbs)
    found.sort(key=lambda pair: -pair[0])  # stable: of equal shares the first rule counts
    drafts = [draft for _, draft in found]
    known = said_already(drafts, skills, None, 1.0)
    fresh = [draft for draft, skill_id in zip(drafts, known, strict=True) if skill_id is None]
    return TeacherResult(tuple(fresh[: config.max_new_skills]))


def verb(action: str) -> str:
    """The kind of an action: what stands before its bracket, else its first word, with a small word that follows it.

    "go to shelf 3" is "go to", "search[blue mug]" is "search".
    """
    head, bracket, _ = action.strip().lower().partition("[")
    words = head.split()
    return head.strip() if bracket else " ".join(words[: 2 if len(words) > 1 and words[1] in _SMALL else 1])


def is_stuck(case: Case) -> bool:
    """Twice or more, the action of the step before was taken again and the same was seen again."""
    return sum(now == before for before, now in pairwise(case.outcomes())) >= 2


def goes_in_circles(case: Case) -> bool:
    """Much of the episode came to what had been seen before after the same action, with others between."""
    return repeats(case, apart=2) >= max(4, CIRCLING * len(case.steps))


def is_refused(case: Case) -> bool:
    """Three or more different actions got one short answer, and at least a quarter of the steps did."""
    actions: dict[str, list[str]] = defaultdict(list)
    for action, seen in case.outcomes():
        actions[seen].append(action)
    return any(
        len(set(each)) >= 3 and 4 * len(each) >= len(case.steps)
        for seen, each in actions.items()
        if 0 < len(seen) <= REFUSAL_CHARS
    )


def is_malformed(case: Case) -> bool:
    """Two or more actions were not valid, and at least a fifth of them."""
    invalid = invalid_steps(case)
    return invalid >= 2 and 5 * invalid >= len(case.steps)


def passes_by(case: Case) -> bool:
    """Something that the task names was seen on the way, and no action named it."""
    if not case.task:
        return False
    wanted = {word for word in _LETTERS.findall(case.task.lower()) if len(word) > 1} - _SMALL - _COMMON
    done = {word for step in case.steps for word in _LETTERS.findall(step.action.lower())}
    seen = {
        word
        for _, text in case.outcomes()
        if len(text) <= PLACE_CHARS
        for word in _LETTERS.findall(text.replace(case.task, " ").lower())
        if word in wanted and word not in done
    }
    return bool(seen)


FAULTS = (
    Fault(
        is_stuck,
        "Repeat an action that changed nothing",
        "Read what the last action changed. Where it changed nothing, do something else: an action, a place or an option that "
        "has not been tried.",
        "The same action is expected to do more the second time.",
    ),
    Fault(
        is_malformed,
        "Write an action that cannot be read or is not possible",
        "Write one action exactly as it stands among the possible ones, in the form that is asked for, and nothing else in its "
        "place.",
        "The action is written from memory, in other words than those that are offered.",
    ),
    Fault(
        is_refused,
        "Try one action after another where all get the same answer",
        "The same answer to different actions says that none of them does anything here. Look at what is possible now, and go "
        "where the next step of the task is possible.",
        "A step of the task is tried before what it needs is in place.",
    ),
    Fault(
        passes_by,
        "Pass by what the task names",
        "As soon as something that the task names is seen, act on it: take it, open it, use it or choose it before going on.",
        "The search goes on after its object was already in view.",
    ),
    Fault(
        goes_in_circles,
        "Go back to what was already looked at",
        "Keep in mind what each place or page has shown. Go to those that were not looked at before going to one again.",
        "There is no record of what was already searched.",
    ),
)
"""Rules for all types of tasks, the plainest first."""


def _too_soon(kind: str, cases: Sequence[Case]) -> list[tuple[float, Draft]]:
    """Most failures of a type ended by the same action of their own."""
    last = [(_plain(case.steps[-1].action), case) for case in cases if case.steps[-1].terminated]
    if not last:
        return []
    action, _ = min(Counter(action for action, _ in last).items(), key=lambda pair: (-pair[1], pair[0]))
    guilty = [case for own, case in last if own == action]
    if not _enough(guilty, cases):
        return []
    text = (
        f"`{action}` ends the task. Before it, hold everything that the task asks for against what is chosen and seen; where "
        "something is missing or differs, go back and mend it."
    )
    why = "The task is ended as soon as it can be, not when all of it is done."
    draft = Draft(f"End with `{action}` too soon", text, why, "mistake", kind, evidence=task_ids(guilty))
    return [(len(guilty) / len(cases), draft)]


def _never_came_to(
    kind: str, cases: Sequence[Case], skills: Sequence[Skill], verbs: Iterable[str]
) -> list[tuple[float, Draft]]:
    """Better texts for the skills of a type that name a kind of action which most failures of that type never came to.

    The kinds of actions are those that are seen in any failure, and those that the skill writes between backquotes.
    """
    found = []
    for skill in skills:
        if skill.tier != "task" or skill.task_type != kind or REMINDER in skill.text:
            continue
        named = {verb(quoted) for quoted in _QUOTED.findall(skill.text)} | {
            each for each in verbs if _asks_for(skill, each)
        }
        missing: dict[str, list[Case]] = {}
        for each in sorted(named - {""}):
            guilty = [case for case in cases if all(verb(step.action) != each for step in case.steps)]
            if _enough(guilty, cases):
                missing[each] = guilty
        if missing:
            most = max(missing, key=lambda each: len(missing[each]))
            text = f"{skill.text.rstrip()} {REMINDER} `{most}`: get there early, and keep steps for it."
            draft = Draft(skill.title, text, skill.when_to_apply, "task", kind, skill.id, task_ids(missing[most]))
            found.append((len(missing[most]) / len(cases), draft))
    return found


REMINDER = "Failed attempts mostly end before any"


def _asks_for(skill: Skill, kind: str) -> bool:
    """True if a skill's words name this kind of action, and not after a word of warning."""
    named = re.search(rf"((?:(?<!\S)\S++\s++){{0,3}})\b{re.escape(kind)}\b", skill.text.lower())
    return named is not None and not re.search(r"\b(?:not|never|avoid|without|before|don't)\b", named[1])


def _plain(action: str) -> str:
    return " ".join(_NUMBER.sub("", action.lower()).split())


def _enough(guilty: Sequence[Case], cases: Sequence[Case]) -> bool:
    return len(guilty) >= max(MIN_EPISODES, SHARE * len(cases))


# --- by analogy ---


def evolved_by_analogy(failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
    """Skills of other types, reworded with offered actions. All drafts there are, the likeliest first: whoever admits them takes the
    first `config.max_new_skills` that were not rejected before.

    Nothing is drafted for a type that the bank has a skill for, nor from episodes without listed actions.
    """
    by_type: dict[str, list[Case]] = defaultdict(list)
    for case in failures:
        by_type[case.task_type].append(case)
    known = [skill for skill in skills if skill.tier == "task" and skill.task_type]
    drafts: dict[tuple[str, str], Draft] = {}
    for kind, cases in by_type.items():
        if kind and all(skill.task_type != kind for skill in known):
            for draft in _analogies(kind, cases, known):
                drafts.setdefault((kind, draft.text), draft)
    return TeacherResult(tuple(drafts.values()))


def _analogies(kind: str, cases: Sequence[Case], skills: Sequence[Skill]) -> Iterator[Draft]:
    holders: dict[str, list[Case]] = defaultdict(list)
    taken: Counter[str] = Counter()
    forms = Forms(
        replace(case, steps=tuple(Step("", action, 0.0, False, False) for action in sorted(_offered(case))))
        for case in cases
    )
    for case in cases:
        for form in _named_forms(forms, case, _offered(case)):
            holders[form].append(case)
        taken.update(_named_forms(forms, case, {step.action for step in case.steps}))
    known = {_wide(step) for skill in skills for step in _QUOTED.findall(skill.text)}
    possible = {words(action) for case in cases for action in _offered(case)}
    likely = sorted(
        (form for form in holders if len(holders[form]) >= MIN_EPISODES),
        key=lambda form: (_wide(form) in known, taken[form] - len(holders[form]), form),
    )
    when = reads_like(forms, cases)
    for form in likely:
        for skill in skills:
            for step in _QUOTED.findall(skill.text):
                if _shape(step) == _shape(form):
                    text = _reworded(skill.text, dict(zip(step.split(), form.split(), strict=True)))
                    if all(_is_possible(each, possible) for each in _QUOTED.findall(text)):
                        yield Draft(skill.title, text, when, "task", kind, evidence=task_ids(holders[form]))


def _named_forms(forms: Forms, case: Case, actions: set[str]) -> list[str]:
    """Forms of those of the actions that name something of the task, in order."""
    found = (forms.of(case, action) for action in actions)
    return sorted({form.text for form in found if form is not None and names_task(form.text)})


def _offered(case: Case) -> set[str]:
    """The actions that were possible at some step of an episode."""
    return {action for step in case.steps for action in step.admissible_actions}


def _shape(step: str) -> tuple[str, ...]:
    """The step with its placeholders and gaps alone: steps of one shape can stand for each other."""
    return tuple(word if word in (*PLACEHOLDERS, GAP) else "" for word in step.split())


def _wide(step: str) -> str:
    """The step with any thing in the place of what the task names."""
    return " ".join(GAP if word in PLACEHOLDERS else word for word in step.split())


def _is_possible(step: str, possible: Collection[tuple[str, ...]]) -> bool:
    """True if some offered action reads like the step."""
    wanted = _wide(step).split()
    return any(
        len(action) == len(wanted) and all(own in (GAP, word) for own, word in zip(wanted, action, strict=True))
        for action in possible
    )


def _reworded(text: str, names: Mapping[str, str]) -> str:
    """The text with other words in its steps."""
    return _QUOTED.sub(lambda step: _NAME.sub(lambda word: names.get(word[0], word[0]), step[0]), text)
