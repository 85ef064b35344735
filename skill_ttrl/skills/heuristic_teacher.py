"""Skills from whole episodes by counting, without a language model: what winners did and losers did not.

Actions are read as forms such as `take X from ...`, with nothing known of the environment. An action is a verb and what stands behind
it, as words (`take mug 1 from shelf 2`) or in brackets (`click[buy now]`). Numbers are left out. A word behind the verb that is nearly
always the same there belongs to the form (`from`); any other is a gap. What fills a gap and stands in the task becomes a placeholder, X
for what the task names first, then Y and Z; the rest is `...`. In brackets the whole argument is one gap: words of the task, or what
many tasks have in common, or `...`.

`distilled` learns from won and lost episodes. What it looks for is a list of small functions, `LOOKS`: each is given the episodes of one
type and says at most a few sentences that are true of them. What is found alike in most types is said once, of all of them. A finding
comes before another if it tells winners from losers better. Where nobody won there is nothing to hold losers against: then a mistake is
only what is wrong in itself.

`evolved_by_counting` drafts what most failures share: as a mistake to avoid, or, where a skill of the bank names a kind of action that
they never came to, as a better text of that skill. The texts hold no counts, so that the same fault always has the same text, and what
the bank says already is not drafted again.

`evolved_by_analogy` is for a type of task that nobody has won yet. Failures alone do not say what would have won. They do show which
actions were possible, and the bank shows what skills look like. So each offered action that names something of the task takes the place
of a step of the same shape in a skill of another type: `clean X with sinkbasin` becomes `polish X with shelf`, and so does every step with
its words. These are guesses: first come actions that no skill names, and of these the one that most failures were offered and did not
take. A gate has to decide on them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median

from skill_ttrl.config import DistillConfig, EvolveConfig
from skill_ttrl.skills.admit import said_already
from skill_ttrl.skills.types import NO_TYPE, Case, Draft, TeacherResult, grouped
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
_JOINED = re.compile(r"[^\W_]+(?:['’.&/-][^\W_]+)*")  # `in/on` of an action is one word
_BRACKETS = re.compile(r"([^\[\]]{1,40})\[(.*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Form:
    """One action as it reads."""

    text: str
    """`take X from ...`; equal for actions that do the same in different tasks; empty for free text."""
    own: str = ""
    """The same with its own words in the gaps: `go to sinkbasin`; empty where there is no gap."""
    fills: tuple[str, ...] = ()
    """Words of placeholders and gaps, in order."""
    wider: str = ""
    """The form of which this is a special case: `take X from ...` for `take X from Y`; empty where there is none."""


def words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without numbers that stand alone."""
    return tuple(word for word in _WORD.findall(text.lower()) if not word.isdigit())


class Forms:
    """Reads the actions of episodes by what all of them have in common.

    Args:
        cases: the episodes; actions of others can be read too.
    """

    def __init__(self, cases: Iterable[Case]) -> None:
        places: dict[tuple[str, int], list[Counter[str]]] = {}
        tasks: dict[tuple[str, int], set[str]] = defaultdict(set)
        holders: dict[tuple[str, str], list[str]] = defaultdict(list)
        episodes = 0
        for case in cases:
            episodes += 1
            arguments: set[tuple[str, str]] = set()
            for action in dict.fromkeys(step.action for step in case.steps):  # who repeats himself says nothing more
                if (inside := bracketed(action)) is not None:
                    arguments.add(inside)
                elif found := _action_words(action):
                    key = found[0], len(found)
                    tasks[key].add(case.task_id)
                    for place, word in zip(places.setdefault(key, [Counter() for _ in found]), found, strict=True):
                        place[word] += 1
            for inside in arguments:
                holders[inside].append(case.task_id)
        self._fixed = {key: tuple(map(_fixed, places[key])) for key in places if len(tasks[key]) >= MIN_SEEN}
        self._fillers = {
            word
            for key, known in self._fixed.items()
            for place, fixed in zip(places[key], known, strict=True)
            for word in place
            if word != fixed
        }
        self._arguments = {
            inside for inside, ids in holders.items() if len({*ids}) >= MIN_SEEN and len(ids) >= COMMON * episodes
        }

    def of(self, case: Case, action: str) -> Form:
        """The form of an action of this episode."""
        if (inside := bracketed(action)) is not None:
            verb, argument = inside
            if is_of_task(argument, case.task):
                return Form(f"{verb}[{OF_THE_TASK}]")
            known = f"{verb}[{argument}]"
            return Form(known) if inside in self._arguments else Form(f"{verb}[{GAP}]", known)
        if not (found := _action_words(action)):
            return Form("")
        names = self._names(case.task)
        fixed = self._fixed.get((found[0], len(found)), found)  # too seldom seen: its words are its form
        gaps = [place for place, (word, standing) in enumerate(zip(found, fixed, strict=True)) if word != standing]
        text, own, wider = list(found), list(found), list(found)
        for place in gaps:
            text[place] = names.get(found[place], GAP)
            own[place] = names.get(found[place], found[place])
            wider[place] = text[place] if place == gaps[0] != gaps[-1] else GAP
        return Form(
            " ".join(text),
            " ".join(own) if own != text else "",
            tuple(found[place] for place in gaps),
            " ".join(wider) if wider != text else "",
        )

    def task(self, case: Case) -> str:
        """The task with placeholders: `put a clean X in Y`."""
        names = self._names(case.task)
        return _WORD.sub(lambda match: names.get(match[0].lower(), match[0]), case.task).strip(" .")

    def _names(self, task: str) -> dict[str, str]:
        order = dict.fromkeys(word for word in words(task) if word in self._fillers)
        return dict(zip(order, PLACEHOLDERS, strict=False))


def _action_words(action: str) -> tuple[str, ...]:
    """The words of an action, `in/on` being one; none of free text."""
    found = tuple(word for word in _JOINED.findall(action.lower()) if not word.isdigit())
    return found if len(found) <= MOST_WORDS else ()


def _fixed(place: Counter[str]) -> str | None:
    word, count = _ranked(place)[0]
    return word if count >= FIXED * place.total() else None


def names_task(form: str) -> bool:
    """True if a form names something of the task."""
    return OF_THE_TASK in form or any(name in form.split() for name in PLACEHOLDERS)


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


# Episodes of one type, and what is found in them.

MIN_EPISODES = 2
"""Episodes of a kind that it takes to say what they share."""
MOST = 0.6
"""Share of the episodes from which on they have something in common."""
NEARLY_ALL = 0.8
SAME = 0.1
"""Difference of two shares that says nothing."""
LIFT = 0.2
"""Winners must do a step more often than losers by this share of the episodes."""
IN_ORDER = 0.5
"""A chain of steps is a finding where at least this share of the winners followed it."""
WORDED = 0.2
"""Share of the tasks of a type from which on a wording is named."""
MOST_EVIDENCE = 50
"""Most tasks that are named as evidence."""
LONGEST_CHAIN, MOST_CHAINS = 8, 20
MIN_FOUND = 5
MOST_PLACES, MOST_NAMES = 3, 8
TWICE = 2.0
"""Losers do it at least so many times as often as winners."""
OFTEN = 0.1
"""Share of all steps of the losers."""
SOME = 0.25
MOST_LACKING = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is true of the episodes of a type, as a skill."""

    key: str
    """Names the finding, in the same words whatever the type."""
    weight: float
    """The higher, the better it tells winners from losers."""
    draft: Draft


class ParsedEpisode:
    """One episode and the forms of its actions."""

    def __init__(self, case: Case, forms: Forms) -> None:
        self.case = case
        self.forms = [forms.of(case, step.action) for step in case.steps]
        self.ways = [tuple(filter(None, (form.own, form.text, form.wider))) for form in self.forms]
        """Readings of each step: in its own words, where it has gaps, as a form, and as a wider one."""
        self.kinds = frozenset(each for form in self.forms for each in (form.text, form.wider) if each)
        """All forms that occur, and those of which they are special cases."""

    def follows(self, chain: Sequence[str]) -> bool:
        """True if its steps hold those of the chain, in order."""
        left = iter(self.ways)
        return all(any(step in ways for ways in left) for step in chain)


class EpisodeStats:
    """The episodes of one type, parsed."""

    def __init__(self, task_type: str, forms: Forms, cases: Sequence[Case]) -> None:
        parsed = [ParsedEpisode(case, forms) for case in cases]
        self.won = [each for each in parsed if each.case.won]
        self.lost = [each for each in parsed if not each.case.won]
        self.reads_like = reads_like(forms, cases) if task_type else ""
        """Wordings of the tasks of this type, where they are much the same."""

    @cached_property
    def closing(self) -> str:
        """The form with which nearly all winners end; empty where they end in many ways."""
        if len(self.won) < MIN_EPISODES:
            return ""
        form, count = _ranked(Counter(each.forms[-1].text for each in self.won))[0]
        return form if count >= NEARLY_ALL * len(self.won) else ""

    @cached_property
    def telling(self) -> list[str]:
        """Forms that most winners have and losers lack, and what most winners end with; none where losers have all of them."""
        if len(self.won) < MIN_EPISODES:
            return []
        won, lost = _counts(self.won), _counts(self.lost)
        found = {
            form
            for form in self.common(MOST)
            if not self.lost or won[form] / len(self.won) - lost[form] / len(self.lost) >= LIFT
        }
        return sorted(found | {self.closing} if found and self.closing else found)

    def common(self, least: float) -> list[str]:
        """Forms that at least this share of the winners have, without those of which nearly as many have a special case."""
        counts, total = _counts(self.won), len(self.won)
        said = {
            form.wider
            for each in self.won
            for form in each.forms
            if form.wider and counts[form.text] >= counts[form.wider] - SAME * total
        }
        return sorted(form for form, count in counts.items() if count >= least * total and form not in said)


def reads_like(forms: Forms, cases: Sequence[Case]) -> str:
    """The wordings that many of the tasks have: `The task reads like: put a clean X in Y, or clean some X and put it in Y`.

    Empty where the tasks have no wording in common.
    """
    counts = Counter(forms.task(case) for case in cases)
    least = max(MIN_EPISODES, WORDED * len(cases))
    often = [text for text, count in _ranked(counts) if count >= least and text and len(text) <= 80]
    return f"The task reads like: {', or '.join(often)}" if often else ""


def task_ids(cases: Iterable[Case]) -> tuple[str, ...]:
    """Ids of the tasks, each once."""
    return tuple(dict.fromkeys(case.task_id for case in cases))


def repeats(case: Case, apart: int = 1) -> int:
    """Steps that did and saw again what had been done and seen, `apart` steps or more before."""
    done = case.outcomes()
    return sum(pair in done[: max(0, place + 1 - apart)] for place, pair in enumerate(done))


def _counts(episodes: Iterable[ParsedEpisode]) -> Counter[str]:
    """For each form the number of episodes in which it occurs."""
    return Counter(form for each in episodes for form in each.kinds)


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _evidence(episodes: Iterable[ParsedEpisode]) -> tuple[str, ...]:
    return task_ids(each.case for each in episodes)[:MOST_EVIDENCE]


def cases_by_type(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """The episodes of each type, in their order."""
    return grouped(cases, key=lambda case: case.task_type)


# Skills.


def distilled(cases: Sequence[Case], config: DistillConfig) -> TeacherResult:
    """Skills from episodes by counting: the same for the same episodes, whatever their order."""
    cases = sorted((case for case in cases if case.steps), key=lambda case: (case.task_id, case.won, len(case.steps)))
    forms = Forms(cases)
    stats = {kind: EpisodeStats(kind, forms, found) for kind, found in sorted(cases_by_type(cases).items())}
    by_type = {kind: _found(each) for kind, each in stats.items()}
    notes = [
        f"{kind or NO_TYPE}: {len(each.won)} episodes succeeded and {len(each.lost)} failed; counting needs {MIN_EPISODES} of each."
        for kind, each in stats.items()
        if min(len(each.won), len(each.lost)) < MIN_EPISODES
    ]
    types = Counter(key for found in by_type.values() for key in {each.key for each in found})
    everywhere = [
        each
        for each in (_found(EpisodeStats("", forms, cases)) if len(by_type) > 1 else ())
        if types[each.key] >= 2 and (each.draft.tier == "mistake" or types[each.key] > MOST * len(by_type))
    ]
    said = {each.key for each in everywhere}
    drafts = [replace(each, tier="general") for each in _best(everywhere, False, config.max_general)]
    findings = [*everywhere]
    for kind, found in by_type.items():
        # A step of a type is said by the chain of that type: alone it only counts in how many types it is so.
        own = [
            replace(each, draft=replace(each.draft, task_type=kind))
            for each in found
            if each.key not in said and not (kind and each.key.startswith(STEP))
        ]
        drafts += _best(own, False, config.max_specific)
        findings += own
    drafts += _best(findings, True, config.max_mistakes)
    return TeacherResult(tuple(drafts), tuple(notes))


def _found(stats: EpisodeStats) -> list[Finding]:
    return [finding for look in LOOKS for finding in look(stats)]


def _best(found: Iterable[Finding], mistakes: bool, most: int) -> list[Draft]:
    """The drafts of the strongest findings that are mistakes, or that are none."""
    ordered = sorted(found, key=lambda each: (-each.weight, each.key))
    return [each.draft for each in ordered if (each.draft.tier == "mistake") == mistakes][:most]


def steps_in_order(stats: EpisodeStats) -> Iterator[Finding]:
    """The chain of steps that most winners follow and that losers lack, with what nearly all of the winners do in between."""
    chain = _best_chain(stats.won, {form for form in stats.telling if GAP not in form or names_task(form)})
    if not chain:
        return
    followers = [each for each in stats.won if each.follows(chain)]
    lead = len(followers) / len(stats.won)
    if stats.lost:
        lead -= sum(each.follows(chain) for each in stats.lost) / len(stats.lost)
        if lead < LIFT:
            return
    full = _with_usual(followers, chain)
    text = f"Do these in this order: {', then '.join(f'`{step}`' for step in full)}.{_legend(full)}"
    draft = Draft("Steps in the order that won", text, stats.reads_like, evidence=_evidence(followers))
    yield Finding(f"order {chain}", 2 + lead, draft)


STEP = "step "
"""Begins the key of a single step."""


def shared_steps(stats: EpisodeStats) -> Iterator[Finding]:
    """Each single step that winners share and that names something of the task."""
    for form in filter(names_task, stats.telling):
        did = [each for each in stats.won if form in each.kinds]
        text = f"Whatever the type of task, {len(did)} of {len(stats.won)} won tries did `{form}`.{_legend([form])}"
        yield Finding(f"{STEP}{form}", 0.5, Draft(f"Most wins have `{form}`", text, evidence=_evidence(did)))


def places(stats: EpisodeStats) -> Iterator[Finding]:
    """Places where what the task names was found: words that filled the gap of a step in which it is named too."""
    for form in stats.telling:
        firsts = [
            (each, next((own for own in each.forms if form in (own.text, own.wider)), Form(""))) for each in stats.won
        ]
        found = [(each, *own.fills) for each, own in firsts if len(own.fills) == 2 and GAP in form]
        where = Counter(place for _, _, place in found)
        usual = [place for place, count in _ranked(where)[:MOST_PLACES] if count > 1]
        if len(found) < MIN_FOUND or not usual:
            continue
        text = f"For `{form}`, look first where it was found most often: {', '.join(usual)}."
        named = []
        for name, count in _ranked(Counter(name for _, name, _ in found)):
            there = _ranked(Counter(place for _, own, place in found if own == name))
            if count >= MIN_EPISODES:
                named.append(f"{name} at {' or '.join(place for place, _ in there[:2])}")
        if named:
            text += f" Found before: {'; '.join(named[:MOST_NAMES])}."
        placeholder = next((name for name in PLACEHOLDERS if name in form.split()), "it")
        evidence = _evidence(each for each, _, _ in found)
        draft = Draft(f"Where {placeholder} was found", text, stats.reads_like, evidence=evidence)
        yield Finding(f"places {form}", 1 + sum(where[each] for each in usual) / len(found), draft)


def repetitions(stats: EpisodeStats) -> Iterator[Finding]:
    """Doing again what showed nothing new."""
    lost, won = (
        sum(repeats(each.case) for each in side) / max(1, sum(len(each.case.steps) for each in side))
        for side in (stats.lost, stats.won)
    )
    if len(stats.lost) >= MIN_EPISODES and lost >= OFTEN and lost >= TWICE * won:
        text = (
            f"In failed tries {max(1, round(10 * lost))} of 10 steps repeated an action and saw again what it had shown before. "
            "When an action shows nothing new, do one that has not been tried yet."
        )
        evidence = _evidence(each for each in stats.lost if repeats(each.case))
        draft = Draft("repeat an action that has shown nothing new", text, tier="mistake", evidence=evidence)
        yield Finding("repeats", 1 + lost - won, draft)


def ended_too_soon(stats: EpisodeStats) -> Iterator[Finding]:
    """Ending with the step that ends the winners' episodes, without what they had done before it."""
    last = stats.closing
    ended = [each for each in stats.lost if last and each.forms[-1].text == last]
    lacking = {form: [each for each in ended if form not in each.kinds] for form in stats.common(NEARLY_ALL)}
    least = max(MIN_EPISODES, SOME * len(stats.lost))
    wrong = [form for form, each in lacking.items() if form != last and len(each) >= least]
    if forms := sorted(wrong, key=lambda form: (-len(lacking[form]), form))[:MOST_LACKING]:
        holders = [each for each in ended if any(each in lacking[form] for form in forms)]
        text = (
            f"Do {' and '.join(f'`{form}`' for form in forms)} first, as nearly all won tries did; {len(holders)} of "
            f"{len(stats.lost)} failed ones ended without."
        )
        draft = Draft(f"end with `{last}` too early", text, tier="mistake", evidence=_evidence(holders))
        yield Finding(f"too soon {last}", 1.5 + len(holders) / len(stats.lost), draft)


LOOKS = (steps_in_order, shared_steps, places, repetitions, ended_too_soon)


def _best_chain(won: Sequence[ParsedEpisode], telling: set[str]) -> tuple[str, ...]:
    """The longest of the winners' chains that nearly all of them follow, whatever else they do; where there is none, the most
    frequent one, if it is that of most; else nothing.
    """
    chains: Counter[tuple[str, ...]] = Counter()
    for played in won:
        steps = (next((way for way in ways if way in telling), "") for ways in played.ways)
        chain: list[str] = []
        for step in filter(None, steps):
            chain += [step] if step not in chain[-1:] else []
        chains[tuple(chain)] += 1
    usual = sorted(chains, key=lambda chain: (-chains[chain], len(chain), chain))[:MOST_CHAINS]
    short = [chain for chain in usual if 1 <= len(chain) <= LONGEST_CHAIN]
    followed = [chain for chain in short if sum(each.follows(chain) for each in won) >= NEARLY_ALL * len(won)]
    if followed:
        return min(followed, key=lambda chain: (-len(chain), -chains[chain], chain))
    return next((chain for chain in short if chains[chain] >= IN_ORDER * len(won)), ())


def _with_usual(followers: Sequence[ParsedEpisode], chain: tuple[str, ...]) -> list[str]:
    """The chain, and before each of its steps what nearly all followers did there: `go to sinkbasin` before `clean X ...`."""
    between: list[Counter[str]] = [Counter() for _ in chain]
    ranks: dict[str, list[int]] = defaultdict(list)
    for played in followers:
        start = 0
        for counts, step in zip(between, chain, strict=True):
            at = next(place for place in range(start, len(played.ways)) if step in played.ways[place])
            own = dict.fromkeys(way for ways in played.ways[start:at] for way in ways if GAP not in way)
            counts.update(own.keys())
            for rank, way in enumerate(own):
                ranks[way].append(rank)
            start = at + 1
    full: list[str] = []
    for step, counts in zip(chain, between, strict=True):
        usual = [way for way, count in counts.items() if count >= NEARLY_ALL * len(followers) and way not in chain]
        full += [*sorted(usual, key=lambda way: (median(ranks[way]), way)), step]
    return full


def _legend(steps: Sequence[str]) -> str:
    """Meaning of the placeholders, where there are any."""
    used = [name for name in PLACEHOLDERS if any(name in step.split() for step in steps)]
    meaning = "it" if len(used) == 1 else "them, in its order"
    return f" {' and '.join(used)}: as the task names {meaning}." if used else ""


# From failures.

SHARE = 0.5
"""Of the failures that are looked at, so many show what is drafted."""
CIRCLING = 0.4
"""Share of an episode's steps that came to what had been seen before after the same action."""
REFUSAL_CHARS = 100
"""A longer answer shows a place or a page, which some actions change without its text telling."""
PLACE_CHARS = 400
"""A longer one shows a page of many things, where a word of the task says little."""
REMINDER = "Failed attempts mostly end before any"
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


def evolved_by_counting(failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
    """New and better skills from what failures share; none where they share nothing, or nothing that the skills do not say."""
    found: list[tuple[float, Draft]] = []
    for shows, title, text, why in FAULTS:
        found += _shared([case for case in failures if shows(case)], failures, Draft(title, text, why, "mistake"))
    verbs = {verb(step.action) for case in failures for step in case.steps}
    for kind, cases in cases_by_type(failures).items():
        found += _too_soon(kind, cases)
        for skill in skills:
            if skill.tier == "task" and skill.task_type == kind and REMINDER not in skill.text:
                found += _never_came_to(skill, cases, verbs)[:1]
    found.sort(key=lambda pair: -pair[0])  # stable: of equal shares the first rule counts
    drafts = [draft for _, draft in found]
    known = said_already(drafts, skills, None, 1.0)
    fresh = [draft for draft, skill_id in zip(drafts, known, strict=True) if skill_id is None]
    return TeacherResult(tuple(fresh[: config.max_new_skills]))


def _shared(guilty: Sequence[Case], cases: Sequence[Case], draft: Draft) -> list[tuple[float, Draft]]:
    """The draft, with its evidence, and the share of the cases that show it; none where too few do."""
    if len(guilty) < max(MIN_EPISODES, SHARE * len(cases)):
        return []
    return [(len(guilty) / len(cases), replace(draft, evidence=task_ids(guilty)))]


def verb(action: str) -> str:
    """The kind of an action: what stands before its bracket, else its first word, with a small word that follows it.

    "go to shelf 3" is "go to", "search[blue mug]" is "search".
    """
    head, bracket, _ = action.strip().lower().partition("[")
    found = head.split()
    return head.strip() if bracket else " ".join(found[: 2 if len(found) > 1 and found[1] in _SMALL else 1])


def is_stuck(case: Case) -> bool:
    """Twice or more, the action of the step before was taken again and the same was seen again."""
    return sum(now == before for before, now in pairwise(case.outcomes())) >= 2


def goes_in_circles(case: Case) -> bool:
    """Much of the episode came to what had been seen before after the same action, with others between."""
    return repeats(case, apart=2) >= max(4, CIRCLING * len(case.steps))


def is_refused(case: Case) -> bool:
    """Three or more different actions got one short answer, and at least a quarter of the steps did."""
    answers = grouped(case.outcomes(), key=lambda outcome: outcome[1])
    return any(
        0 < len(seen) <= REFUSAL_CHARS and len(set(each)) >= 3 and 4 * len(each) >= len(case.steps)
        for seen, each in answers.items()
    )


def is_malformed(case: Case) -> bool:
    """Two or more actions were not valid, and at least a fifth of them."""
    invalid = sum(map(_is_invalid, case.steps))
    return invalid >= 2 and 5 * invalid >= len(case.steps)


def _is_invalid(step: Step) -> bool:
    """True if the action could not be read, or was not among the listed ones, where `search[<your query>]` stands for any."""
    kinds = {each.partition("[")[0] for each in step.admissible_actions if "<" in each}
    listed = not step.admissible_actions or step.action in step.admissible_actions
    return step.action_status == "invalid" or not (listed or step.action.partition("[")[0] in kinds)


def passes_by(case: Case) -> bool:
    """Something that the task names was seen on the way, and no action named it."""
    wanted = {word for word in _LETTERS.findall(case.task.lower()) if len(word) > 1} - _SMALL - _COMMON
    wanted -= {word for step in case.steps for word in _LETTERS.findall(step.action.lower())}
    seen = (text.replace(case.task, " ").lower() for _, text in case.outcomes() if len(text) <= PLACE_CHARS)
    return bool(wanted) and any(word in wanted for text in seen for word in _LETTERS.findall(text))


FAULTS: tuple[tuple[Callable[[Case], bool], str, str, str], ...] = (
    (
        is_stuck,
        "Repeat an action that changed nothing",
        "Read what the last action changed. Where it changed nothing, do something else: an action, a place or an option that "
        "has not been tried.",
        "The same action is expected to do more the second time.",
    ),
    (
        is_malformed,
        "Write an action that cannot be read or is not possible",
        "Write one action exactly as it stands among the possible ones, in the form that is asked for, and nothing else in its "
        "place.",
        "The action is written from memory, in other words than those that are offered.",
    ),
    (
        is_refused,
        "Try one action after another where all get the same answer",
        "The same answer to different actions says that none of them does anything here. Look at what is possible now, and go "
        "where the next step of the task is possible.",
        "A step of the task is tried before what it needs is in place.",
    ),
    (
        passes_by,
        "Pass by what the task names",
        "As soon as something that the task names is seen, act on it: take it, open it, use it or choose it before going on.",
        "The search goes on after its object was already in view.",
    ),
    (
        goes_in_circles,
        "Go back to what was already looked at",
        "Keep in mind what each place or page has shown. Go to those that were not looked at before going to one again.",
        "There is no record of what was already searched.",
    ),
)
"""Rules for all types of tasks, the plainest first: what an episode shows, the title, the text, and why it happens."""


def _too_soon(kind: str, cases: Sequence[Case]) -> list[tuple[float, Draft]]:
    """Most failures of a type ended by the same action of their own."""
    ended = grouped(
        (case for case in cases if case.steps[-1].terminated),
        key=lambda case: " ".join(re.sub(r"\d+", "", case.steps[-1].action.lower()).split()),
    )
    if not ended:
        return []
    action = min(ended, key=lambda each: (-len(ended[each]), each))
    text = (
        f"`{action}` ends the task. Before it, hold everything that the task asks for against what is chosen and seen; where "
        "something is missing or differs, go back and mend it."
    )
    why = "The task is ended as soon as it can be, not when all of it is done."
    return _shared(ended[action], cases, Draft(f"End with `{action}` too soon", text, why, "mistake", kind))


def _never_came_to(skill: Skill, cases: Sequence[Case], verbs: Iterable[str]) -> list[tuple[float, Draft]]:
    """Better texts for a skill that names a kind of action which most failures of its type never came to, the most telling first.

    The kinds of actions are those that are seen in any failure, and those that the skill writes between backquotes.
    """
    named = {verb(each) for each in _QUOTED.findall(skill.text)} | {each for each in verbs if _asks_for(skill, each)}
    found = []
    for each in sorted(named - {""}):
        text = f"{skill.text.rstrip()} {REMINDER} `{each}`: get there early, and keep steps for it."
        draft = Draft(skill.title, text, skill.when_to_apply, "task", skill.task_type, skill.id)
        without = [case for case in cases if all(verb(step.action) != each for step in case.steps)]
        found += _shared(without, cases, draft)
    return sorted(found, key=lambda pair: -pair[0])


def _asks_for(skill: Skill, kind: str) -> bool:
    """True if a skill's words name this kind of action, and not after a word of warning."""
    named = re.search(rf"((?:(?<!\S)\S++\s++){{0,3}})\b{re.escape(kind)}\b", skill.text.lower())
    return named is not None and not re.search(r"\b(?:not|never|avoid|without|before|don't)\b", named[1])


# By analogy.


def evolved_by_analogy(failures: Sequence[Case], skills: Sequence[Skill], config: EvolveConfig) -> TeacherResult:
    """Skills of other types, reworded with offered actions. All drafts there are, the likeliest first: whoever admits them takes the
    first `config.max_new_skills` that were not rejected before.

    Nothing is drafted for a type that the bank has a skill for, nor from episodes without listed actions.
    """
    known = [skill for skill in skills if skill.tier == "task" and skill.task_type]
    drafts: dict[tuple[str, str], Draft] = {}
    for kind, cases in cases_by_type(failures).items():
        if kind and all(skill.task_type != kind for skill in known):
            for draft in _analogies(kind, cases, known):
                drafts.setdefault((kind, draft.text), draft)
    return TeacherResult(tuple(drafts.values()))


def _analogies(kind: str, cases: Sequence[Case], skills: Sequence[Skill]) -> Iterator[Draft]:
    offered = [sorted({action for step in case.steps for action in step.admissible_actions}) for case in cases]
    forms = Forms(
        replace(case, steps=tuple(Step("", action, 0.0, False, False) for action in actions))
        for case, actions in zip(cases, offered, strict=True)
    )
    holders: dict[str, list[Case]] = defaultdict(list)
    taken: Counter[str] = Counter()
    for case, actions in zip(cases, offered, strict=True):
        for form in filter(names_task, {forms.of(case, action).text for action in actions}):
            holders[form].append(case)
        taken.update({forms.of(case, step.action).text for step in case.steps})
    known = {_wide(step) for skill in skills for step in _QUOTED.findall(skill.text)}
    possible = {words(action) for actions in offered for action in actions}
    likely = sorted(
        (form for form in holders if len(holders[form]) >= MIN_EPISODES),
        key=lambda form: (_wide(form) in known, taken[form] - len(holders[form]), form),
    )
    when = reads_like(forms, cases)
    for form in likely:
        for skill in skills:
            for step in _QUOTED.findall(skill.text):
                if _shape(step) == _shape(form):
                    names = dict(zip(step.split(), form.split(), strict=True))
                    text = _reworded(skill.text, names)
                    if all(_is_possible(each, possible) for each in _QUOTED.findall(text)):
                        yield Draft(skill.title, text, when, "task", kind, evidence=task_ids(holders[form]))


def _shape(step: str) -> tuple[str, ...]:
    """The step with its placeholders and gaps alone: steps of one shape can stand for each other."""
    return tuple(word if word in (*PLACEHOLDERS, GAP) else "" for word in step.split())


def _wide(step: str) -> str:
    """The step with any thing in the place of what the task names."""
    return " ".join(GAP if word in PLACEHOLDERS else word for word in step.split())


def _is_possible(step: str, possible: Iterable[tuple[str, ...]]) -> bool:
    """True if some offered action reads like the step."""
    wanted = _wide(step).split()
    return any(
        len(action) == len(wanted) and all(own in (GAP, word) for own, word in zip(wanted, action, strict=True))
        for action in possible
    )


def _reworded(text: str, names: dict[str, str]) -> str:
    """The text with other words in its steps."""
    return _QUOTED.sub(lambda step: _NAME.sub(lambda word: names.get(word[0], word[0]), step[0]), text)
