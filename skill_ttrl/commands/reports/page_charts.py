"""The charts of the report: the six that matter for a run with their bands, then every other metric, runs overlaid and seeds averaged."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

from skill_ttrl.metrics import Metric, bounds, find
from skill_ttrl.statistics import Interval, repeats_interval
from skill_ttrl.train.results import Evaluation

POINTS = 300
"""Most points of a line; in a longer one each is the mean of some steps."""
APART = 0.1
"""Growth of the gap between majority ratio and label accuracy since the first steps from which on a chart is shaded."""
WINDOW = 3
"""Steps that such a gap is averaged over."""
SAME = 1e-6
"""Metrics whose values differ by less never changed."""
TRAINING = ("rl", "vote_sft", "dagger_round", "dagger", "sft", "optimize")
"""Phases in the order in which a main chart looks for its metrics."""
Key = tuple[str, str]
"""Phase and name of a metric."""


class Plan(NamedTuple):
    """A main chart. Of alternatives, written `a|b`, it shows the first that was logged; a name ending in `/` stands for all of its family."""

    id: str
    title: str
    left: tuple[str, ...]
    right: tuple[str, ...] = ()


PLANS = (
    Plan("reward", "Reward and accuracy of evaluations", ("reward",)),
    Plan("votes", "Majority ratio and label accuracy", ("majority_ratio", "label_accuracy")),
    Plan("answers", "Answer entropy and distinct winners", ("answer_entropy",), ("distinct_winners",)),
    Plan("length", "Length and truncation", ("completions/mean_length",), ("completions/clipped_ratio",)),
    Plan("update", "KL and gradient norm", ("kl|reward_kl|approx_kl",), ("grad_norm",)),
    Plan("types", "Success by task type", ("success/",)),
    Plan("scores", "Scores of the document", ("rollout_hard", "candidate_gate_score", "current_score", "best_score")),
    Plan("success", "Success and invalid actions", ("success", "score", "invalid_actions")),
    Plan("skills", "Skills retrieved and written", ("retrieval_hit_rate", "generate_rate"), ("bank_skills",)),
    Plan("turns", "Turns of an episode", ("episode_steps",)),
    Plan("loss", "Loss of imitation", ("loss",)),
    Plan("document", "Length of the document", ("skill_len",)),
)
MAIN = 6


@dataclass(frozen=True)
class Member:
    """What one run has measured."""

    rows: Sequence[Mapping[str, Any]]
    """Lines of `metrics.jsonl`, or of an optimization its history."""
    evaluations: Sequence[Evaluation] = ()
    spread: Mapping[tuple[str, int], Interval] = field(default_factory=dict)
    """Interval of the mean reward over the prompts of a step, by phase and step."""

    def series(self) -> dict[Key, dict[int, float]]:
        """Values by step of each metric."""
        found: dict[Key, dict[int, float]] = defaultdict(dict)
        for row in self.rows:
            for name, value in row.items():
                if name not in ("step", "phase") and isinstance(value, int | float) and math.isfinite(value):
                    found[str(row["phase"]), name][int(row["step"])] = float(value)
        return found


@dataclass(frozen=True)
class Curves:
    """A run, or the runs of a folder of seeds."""

    label: str
    members: Sequence[Member]


def charts(shown: Sequence[Curves]) -> dict[str, Any]:
    """The charts of runs (`main`, `rest`), and the metrics that never changed (`constant`)."""
    return _Charts(shown).all()


class _Charts:
    def __init__(self, shown: Sequence[Curves]) -> None:
        self.shown = shown
        self.series = [[member.series() for member in each.members] for each in shown]
        every = [member for members in self.series for member in members]
        self.keys = sorted({key for member in every for key in member})
        self.constant, self.names = list[Key](), dict[Key, list[str]]()
        alike: dict[Any, list[str]] = {}
        for phase, name in self.keys:
            values = [value for member in every for value in member.get((phase, name), {}).values()]
            if max(values) - min(values) <= SAME * max(1.0, abs(values[0])):
                self.constant.append((phase, name))
                self.names[phase, name] = [name]
            else:
                curve = tuple(tuple(member.get((phase, name), {}).items()) for member in every)
                self.names[phase, name] = alike.setdefault((phase, curve), [])
                alike[phase, curve].append(name)

    def all(self) -> dict[str, Any]:
        main, used = list[dict[str, Any]](), set[str]()
        for plan in PLANS:
            if len(main) < MAIN and (chart := self._main(plan)) is not None:
                main.append(chart)
                used.add(chart["search"])
        done = {name for search in used for name in search.split(", ")}
        families: dict[Any, list[Key]] = defaultdict(list)
        for phase, name in self.keys:
            alias = self.names[phase, name]
            if (phase, name) in self.constant or name != alias[0] or done & {f"{phase}/{each}" for each in alias}:
                continue
            family, metric = name.partition("/")[0] if "/" in name else name, find(name)
            families[phase, family, metric and metric.unit, metric and metric.range].append((phase, name))
        rest = [self._chart(f"{'/'.join(keys[0])}", self._title(keys), keys, ()) for keys in families.values()]
        constant = []
        for phase, name in self.constant:
            if f"{phase}/{name}" not in done:
                value = next(v for members in self.series for m in members for v in m.get((phase, name), {}).values())
                constant.append([f"{phase}: {name}", f"{value if abs(value) > SAME else 0:.4g}", _meaning(find(name))])
        return {"main": main, "rest": rest, "constant": constant}

    @staticmethod
    def _title(keys: Sequence[Key]) -> str:
        phase, name = keys[0]
        return f"{phase}: {name if len(keys) == 1 else name.partition('/')[0]}"

    def _main(self, plan: Plan) -> dict[str, Any] | None:
        for phase in TRAINING:
            left, right = self._logged(phase, plan.left), self._logged(phase, plan.right)
            if left:
                chart = self._chart(plan.id, plan.title, left, right)
                if plan.id == "reward":
                    chart["lines"] += [
                        line for place in range(len(self.shown)) for line in self._evaluated(place, phase)
                    ]
                if plan.id == "votes" and len(left) == 2:
                    chart["shaded"] = [part for members in self.series for part in _apart(members, left)]
                return chart
        return None

    def _logged(self, phase: str, names: Iterable[str]) -> list[Key]:
        found = []
        for name in names:
            if name.endswith("/"):
                found += [key for key in self.keys if key[0] == phase and key[1].startswith(name)]
            else:
                found += [(phase, each) for each in name.split("|") if (phase, each) in self.names][:1]
        return found

    def _chart(self, id: str, title: str, left: Sequence[Key], right: Sequence[Key]) -> dict[str, Any]:
        lines = [
            line
            for place in range(len(self.shown))
            for key in (*left, *right)
            for line in self._lines(place, key, right=key in right)
        ]
        metrics = {found.name: found for key in (*left, *right) if (found := find(key[1])) is not None}
        return {
            "id": id,
            "title": title,
            "note": " ".join(f"{name}: {_meaning(each)}" for name, each in metrics.items()),
            **_axis(left),
            "right": _axis(right) if right else None,
            "lines": lines,
            "shaded": [],
            "search": ", ".join(f"{key[0]}/{name}" for key in (*left, *right) for name in self.names[key]),
        }

    def _lines(self, place: int, key: Key, *, right: bool) -> list[dict[str, Any]]:
        """The line of a metric: of several seeds their mean with its interval, and each of them thin."""
        members = [member[key] for member in self.series[place] if key in member]
        if not members:
            return []
        width = 1 + max(max(member) for member in members) // POINTS
        thinned = [_thin(member, width) for member in members]
        others = [name for name in self.names[key] if name != key[1]]
        label = self._label(place, f"{key[1]} (= {', '.join(others)})" if others else key[1])
        if len(self.shown[place].members) == 1:
            spread = self.shown[place].members[0].spread if key[1] == "reward" else {}
            known = {step: spread[key[0], step] for step in members[0] if (key[0], step) in spread}
            low, high = ({s: each[end] for s, each in known.items()} for end in (0, 1))
            band = list(zip(_thin(low, width).values(), _thin(high, width).values(), strict=True))
            band = band if len(band) == len(thinned[0]) else []
            return [_line(place, label, thinned[0], band, right=right)]
        together: dict[int, list[float]] = defaultdict(list)
        for member in thinned:
            for step, value in member.items():
                together[step].append(value)
        mean = {step: fmean(together[step]) for step in sorted(together)}
        band = [repeats_interval(together[step]) or (value, value) for step, value in mean.items()]
        thin = [_line(place, f"{label}, one seed", each, style="thin", right=right) for each in thinned]
        return [_line(place, f"{label}, mean of {len(members)} seeds", mean, band, right=right), *thin]

    def _evaluated(self, place: int, phase: str) -> list[dict[str, Any]]:
        """The accuracy of the evaluations of a run as points: at its start, after some steps, and at its end."""
        found, of = [], self.shown[place]
        for member, series in zip(of.members, self.series[place], strict=True):
            last = 1 + max(
                (step for (name, _), values in series.items() if name == phase for step in values), default=0
            )
            places = {"before": 0, "after": last}
            at: dict[int, Evaluation] = {}
            for each in member.evaluations:
                step = places.get(each.label, int(each.label[5:]) if each.label[5:].isdecimal() else None)
                if step is not None and each.accuracy is not None:
                    at[step] = each
            if at:
                first = next(iter(at.values()))
                what = "training tasks" if first.transductive else "held-out tasks"
                label = self._label(place, f"avg@{first.samples} of {what}")
                values = {step: each.accuracy or 0.0 for step, each in sorted(at.items())}
                band = [at[step].accuracy_interval or (value, value) for step, value in values.items()]
                found.append(_line(place, label, values, band, style="points"))
        return found

    def _label(self, place: int, text: str) -> str:
        return text if len(self.shown) == 1 else f"{self.shown[place].label}: {text}"


def _line(
    run: int,
    label: str,
    values: Mapping[int, float],
    band: Sequence[Interval] = (),
    *,
    style: str = "solid",
    right: bool = False,
) -> dict[str, Any]:
    low, high = ([_short(each[end]) for each in band] if band else None for end in (0, 1))
    x, y = [*values], [_short(value) for value in values.values()]
    return {"run": run, "label": label, "x": x, "y": y, "low": low, "high": high, "style": style, "right": right}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _thin(values: Mapping[int, float], width: int) -> dict[int, float]:
    """Means of `width` steps each, at the last of them."""
    if width == 1:
        return dict(values)
    found = {}
    for _, several in groupby(values.items(), lambda each: each[0] // width):
        steps, numbers = zip(*several, strict=True)
        found[steps[-1]] = fmean(numbers)
    return found


def _axis(keys: Sequence[Key]) -> dict[str, Any]:
    """Unit and range that all metrics of an axis share."""
    metrics = [find(name) for _, name in keys]
    units, ranges = ({getattr(each, what, "") for each in metrics} for what in ("unit", "range"))
    low, high = bounds(ranges.pop()) if len(ranges) == 1 and "" not in ranges else (None, None)
    return {"unit": units.pop() if len(units) == 1 else "", "range": [low, high]}


def _meaning(metric: Metric | None) -> str:
    """The meaning of a metric without Markdown."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", f"{metric.meaning}.".replace("`", "")) if metric else ""


def _apart(members: Sequence[Mapping[Key, Mapping[int, float]]], keys: Sequence[Key]) -> list[dict[str, Any]]:
    """Steps in which votes agree more and are right less often than in the first ones."""
    found: list[dict[str, Any]] = []
    for member in members:
        ratio, label = (member.get(key, {}) for key in keys)
        gaps = [(step, ratio[step] - label[step]) for step in ratio if step in label]
        first = fmean(gap for _, gap in gaps[:WINDOW]) if gaps else 0.0
        begun = False
        for place in range(WINDOW, len(gaps)):
            gap = fmean(each for _, each in gaps[place - WINDOW + 1 : place + 1])
            apart, step = gap > 0 and gap - first > APART, gaps[place][0]
            if apart and not begun:
                found.append(
                    {"from": step, "to": step, "why": "The samples agree more, and their majority is right less often."}
                )
            elif apart:
                found[-1]["to"] = step
            begun = apart
    return found
