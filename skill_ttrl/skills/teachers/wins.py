"""Skills from whole episodes by counting, without a language model: what winners did and losers did not.

Actions are read as forms (`actions.Forms`), so nothing is known of the environment. What is looked for is a list of small
functions, `WINNERS` and `MISTAKES` (`distill_mistakes`): each is given the episodes of one type and says at most a few sentences
that are true of them. What is found alike in most types is said once, of all of them. A finding comes before another if it
tells winners from losers better.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import median

from skill_ttrl.config import DistillConfig
from skill_ttrl.skills.teachers.actions import GAP, PLACEHOLDERS, Forms, names_task, placeholders
from skill_ttrl.skills.teachers.cases import NO_TYPE
from skill_ttrl.skills.teachers.findings import (
    MIN_EPISODES,
    MOST,
    EpisodeStats,
    Finding,
    ParsedEpisode,
    evidence_task_ids,
    quoted,
    share,
)
from skill_ttrl.skills.teachers.mistakes import MISTAKES
from skill_ttrl.skills.types import Case, Draft, TeacherResult

LIFT = 0.2
"""Winners must do a step more often than losers by this share of the episodes."""
IN_ORDER = 0.5
"""A chain of steps is a finding where at least this share of the winners followed it."""
NEARLY_ALL = 0.8
LONGEST_CHAIN, MOST_CHAINS = 8, 20
MIN_FOUND = 5
MOST_PLACES, MOST_NAMES = 3, 8


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
    drafts = _drafts([each for each in everywhere if not each.mistake], "general", "", config.max_general)
    mistakes = [each for each in everywhere if each.mistake]
    for kind, found in by_type.items():
        own = [each for each in found if each.key not in said and each.text]
        drafts += _drafts([each for each in own if not each.mistake], "task", kind, config.max_specific)
        mistakes += [each.of_type(kind) for each in own if each.mistake]
    drafts += _drafts(mistakes, "mistake", "", config.max_mistakes)
    return TeacherResult(tuple(drafts), tuple(notes))


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
        if types[each.key] >= 2 and (each.mistake or types[each.key] > MOST * len(by_type))
    ]


def _drafts(found: Sequence[Finding], tier: str, kind: str, most: int) -> list[Draft]:
    ordered = sorted(found, key=lambda each: (-each.weight, each.key))[:most]
    return [
        Draft(
            title=each.title,
            text=each.text,
            when_to_apply=each.when,
            tier=tier,  # type: ignore[arg-type]  # one of the three, named above
            task_type=each.task_type or kind,
            evidence=each.evidence,
        )
        for each in ordered
    ]


def _one_sided(stats: EpisodeStats) -> list[str]:
    name = stats.task_type or NO_TYPE
    if not stats.won:
        return [f"{name}: none of {len(stats.lost)} episodes succeeded, so there are only mistakes to learn from."]
    if not stats.lost:
        return [
            f"{name}: none of {len(stats.won)} episodes failed, so it is not known what winners do that losers do not."
        ]
    few = [
        f"{len(side)} {how}"
        for side, how in ((stats.won, "succeeded"), (stats.lost, "failed"))
        if len(side) < MIN_EPISODES
    ]
    return [f"{name}: {' and '.join(few)}; it takes {MIN_EPISODES} to count."] if few else []


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
    return [Finding(f"order {chain}", title, text, stats.reads_like, weight, evidence_task_ids(followers))]


def shared_steps(stats: EpisodeStats) -> list[Finding]:
    """Each single step that winners share and that names something of the task: a skill only of all types together."""
    if stats.task_type:  # there the chain says it; here it only counts in how many types it is so
        return [Finding(f"step {form}", "", "", "", 0.0, ()) for form in _telling(stats) if names_task(form)]
    found = []
    for form in sorted(form for form in _telling(stats) if names_task(form)):
        did = [played for played in stats.won if form in played.kinds]
        text = (
            f"Whatever the type of task, {len(did)} of {len(stats.won)} won tries did {quoted(form)}.{_legend([form])}"
        )
        found.append(Finding(f"step {form}", f"Most wins have {quoted(form)}", text, "", 0.5, evidence_task_ids(did)))
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
        title = f"Where {_first_placeholder(form)} was found"
        found.append(
            Finding(
                f"places {form}",
                title,
                text,
                stats.reads_like,
                1 + sum(where[each] for each in usual) / len(holders),
                evidence_task_ids(holders),
            )
        )
    return found


def all_that_is_named(stats: EpisodeStats) -> list[Finding]:
    """Before the last step winners have done everything that was listed in the words of the task."""
    last = stats.closing
    if last is None:
        return []
    ready = [played for played in stats.won if played.ends_with(last) and played.named_listed]
    other = [played for played in stats.lost if played.ends_with(last) and played.named_listed]
    if len(ready) < MIN_EPISODES:
        return []
    won, lost = share(ready, ParsedEpisode.left_nothing_named), share(other, ParsedEpisode.left_nothing_named)
    if won < MOST or (other and won - lost < LIFT):
        return []
    how = sorted({form for played in ready for form in played.named_forms})
    text = f"Before {quoted(last)}, do every listed action that the task names ({', '.join(map(quoted, how[:2]))}), one of each kind."
    evidence = evidence_task_ids([played for played in ready if played.left_nothing_named()])
    return [Finding(f"all named {last}", "Leave out nothing that the task names", text, "", 1.5 + won - lost, evidence)]


def length(stats: EpisodeStats) -> list[Finding]:
    """Steps that winners took, where losers took clearly more or fewer."""
    if min(len(stats.won), len(stats.lost)) < MIN_EPISODES:
        return []
    won, lost = sorted(len(each.case.steps) for each in stats.won), [len(each.case.steps) for each in stats.lost]
    middle, most, least, others = (
        round(median(won)),
        won[int(0.9 * (len(won) - 1))],
        won[int(0.1 * (len(won) - 1))],
        round(median(lost)),
    )
    if others >= 1.5 * most:
        text = (
            f"Most wins take about {middle} steps and few take more than {most}; failed tries wandered on to {others}. "
            "Take the next step of the task as soon as it is possible."
        )
        return [Finding("few steps", "Go straight for it", text, "", 0.6, evidence_task_ids(stats.won))]
    if others <= 0.6 * least:
        text = f"Wins took {least} steps or more, about {middle}; failed tries were over after {others}. Do all that the task asks for before the last step."
        return [Finding("more steps", "Do not end too early", text, "", 0.8, evidence_task_ids(stats.won))]
    return []


WINNERS: Sequence[Callable[[EpisodeStats], list[Finding]]] = (
    steps_in_order,
    shared_steps,
    places,
    all_that_is_named,
    length,
)


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


def _first_placeholder(form: str) -> str:
    return next((name for name in PLACEHOLDERS if name in form.split()), "it")


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
