"""New and better skills from failures, without a language model: what failed episodes do again and again, and guesses by analogy.

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
from itertools import pairwise

from skill_ttrl.config import EvolveConfig
from skill_ttrl.skills.admit import said_already
from skill_ttrl.skills.teachers.counting import (
    GAP,
    MIN_EPISODES,
    PLACEHOLDERS,
    Forms,
    invalid_steps,
    names_task,
    reads_like,
    repeats,
    task_ids,
    words,
)
from skill_ttrl.skills.types import Case, Draft, TeacherResult
from skill_ttrl.types import Skill, Step

SHARE = 0.5
"""Of the failures that are looked at, so many show what is drafted."""
CIRCLING = 0.4
"""Share of an episode's steps that came to what had been seen before after the same action."""
REFUSAL_CHARS = 100
"""A longer answer shows a place or a page, which some actions change without its text telling."""
PLACE_CHARS = 400
"""A longer one shows a page of many things, where a word of the task says little."""
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[^\W\d_]+")
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
    """See `Teacher.evolve`. Nothing is drafted where the failures share nothing, or nothing that the skills do not say."""
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
    wanted = {word for word in _WORD.findall(case.task.lower()) if len(word) > 1} - _SMALL - _COMMON
    done = {word for step in case.steps for word in _WORD.findall(step.action.lower())}
    seen = {
        word
        for _, text in case.outcomes()
        if len(text) <= PLACE_CHARS
        for word in _WORD.findall(text.replace(case.task, " ").lower())
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
    """See `Teacher.evolve`, but for the bound: the drafts are all there are, the likeliest first, and whoever admits them takes the
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
