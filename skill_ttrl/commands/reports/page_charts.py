"""The charts of the report: the six that matter for a run with their bands, then every other metric, runs overlaid and seeds averaged."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from statistics import fmean
from typing import Any, NamedTuple

from skill_ttrl.metrics import bounds, find
from skill_ttrl.statistics import Interval, repeats_interval
from skill_ttrl.train.results import Evaluation

POINTS = 300
"""Most points of a line; in a longer one each is the mean of some steps."""
APART, WINDOW = 0.1, 3
"""Growth of the gap between majority ratio and label accuracy since the first steps that is shaded, and the steps it is averaged over."""
SAME = 1e-6
"""Metrics whose values differ by less never changed."""
TRAINING = ("rl", "vote_sft", "dagger_round", "dagger", "sft", "optimize")
"""Phases in the order in which a main chart looks for its metrics."""
Key = tuple[str, str]
"""Phase and name of a metric."""


class Plan(NamedTuple):
    """A main chart. Of alternatives, `a|b`, it shows the first that was logged; a name that ends in `/` stands for its family."""

    id: str
    title: str
    left: str
    right: str = ""


PLANS = (
    Plan("reward", "Reward and accuracy of evaluations", "reward"),
    Plan("votes", "Majority ratio and label accuracy", "majority_ratio label_accuracy"),
    Plan("answers", "Answer entropy and distinct winners", "answer_entropy", "distinct_winners"),
    Plan("length", "Length and truncation", "completions/mean_length", "completions/clipped_ratio"),
    Plan("update", "KL and gradient norm", "kl|reward_kl|approx_kl", "grad_norm"),
    Plan("types", "Success by task type", "success/"),
    Plan("scores", "Scores of the document", "rollout_hard candidate_gate_score current_score best_score"),
    Plan("success", "Success and invalid actions", "success score invalid_actions"),
    Plan("skills", "Skills retrieved and written", "retrieval_hit_rate generate_rate", "bank_skills"),
    Plan("turns", "Turns of an episode", "episode_steps"),
    Plan("loss", "Loss of imitation", "loss"),
    Plan("document", "Length of the document", "skill_len"),
)
MAIN = 6


def chosen(names: str, there: Collection[str]) -> list[str]:
    """The metrics of a plan that were logged."""
    found = list[str]()
    for name in names.split():
        family = sorted(each for each in there if each.startswith(name)) if name.endswith("/") else []
        found += family or [each for each in name.split("|") if each in there][:1]
    return found


LABELS = {"accuracy": "eval accuracy"}


def six_figures(metrics: Collection[str]) -> list[list[tuple[str, str]]]:
    """(metric, label) of the figures in the main charts among these metrics, row by row; `accuracy` is of the newest evaluation."""
    names = {plan.id: f"{plan.left} {plan.right}" for plan in PLANS[:MAIN]}
    names |= {"reward": "reward accuracy", "types": "success success/"}
    rows = [chosen(each, metrics) for each in names.values()]
    return [
        [(name, LABELS.get(name) or name.rpartition("/")[2].replace("_", " ")) for name in row] for row in rows if row
    ]


def figure(value: float) -> str:
    """Three decimals, or two digits of what these would hide: the KL of a LoRA run."""
    return f"{value:.2g}" if 1e-9 < abs(value) < 1e-2 else f"{value:z.3f}"


@dataclass(frozen=True)
class Member:
    """Metrics of one run."""

    rows: Sequence[Mapping[str, Any]]
    """Lines of `metrics.jsonl`, or of an optimization its history."""
    evaluations: Sequence[Evaluation] = ()
    spread: Mapping[tuple[str, int], Interval] = field(default_factory=dict)
    """Interval of the mean reward over the prompts of a step, by phase and step."""
    seed: int | None = None
    """Its own, of one of several seeds."""

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
    drawing = _Drawing(shown)
    main = [chart for plan in PLANS if (chart := drawing.planned(plan)) is not None][:MAIN]
    done = {name for chart in main for name in chart["search"].split(", ")}
    families: dict[Any, list[Key]] = defaultdict(list)
    for (phase, name), alias in drawing.names.items():
        drawn = (phase, name) in drawing.constant or done & {f"{phase}/{each}" for each in alias}
        if name == alias[0] and not drawn:
            metric, family = find(name), name.partition("/")[0]
            families[phase, family, metric and metric.unit, metric and metric.range].append((phase, name))
    rest = [
        drawing.chart("/".join(keys[0]), f"{phase}: {keys[0][1] if len(keys) == 1 else family}", keys)
        for (phase, family, *_), keys in families.items()
    ]
    constant = [
        [f"{phase}: {name}", f"{value if abs(value) > SAME else 0:.4g}", _meaning(name)]
        for (phase, name), value in drawing.constant.items()
        if f"{phase}/{name}" not in done
    ]
    return {"main": main, "rest": rest, "constant": constant}


class _Drawing:
    """Series of all runs, and which of them are the same."""

    def __init__(self, shown: Sequence[Curves]) -> None:
        self.shown = shown
        self.series = [[member.series() for member in each.members] for each in shown]
        every = [*chain.from_iterable(self.series)]
        self.names, self.constant = dict[Key, list[str]](), dict[Key, float]()
        alike: dict[Any, list[str]] = defaultdict(list)
        for key in sorted({key for member in every for key in member}):
            curves = tuple(tuple(member.get(key, {}).items()) for member in every)
            values = [value for curve in curves for _, value in curve]
            if max(values) - min(values) <= SAME * max(1.0, abs(values[0])):
                self.constant[key] = values[0]
            self.names[key] = alike[key[0], key if key in self.constant else curves]
            self.names[key].append(key[1])

    def planned(self, plan: Plan) -> dict[str, Any] | None:
        """A main chart; None where nothing of it was logged."""
        for phase in TRAINING:
            if left := self._logged(phase, plan.left):
                chart = self.chart(plan.id, plan.title, left, self._logged(phase, plan.right), aliases=False)
                for place in range(len(self.shown)) if plan.id == "reward" else ():
                    chart["lines"] += self._evaluated(place, phase)
                for member in chain.from_iterable(self.series) if plan.id == "votes" and len(left) == 2 else ():
                    chart["shaded"] += _apart(member, left)
                return chart
        return None

    def _logged(self, phase: str, names: str) -> list[Key]:
        return [(phase, name) for name in chosen(names, [name for each, name in self.names if each == phase])]

    def chart(
        self, id: str, title: str, left: Sequence[Key], right: Sequence[Key] = (), *, aliases: bool = True
    ) -> dict[str, Any]:
        """A chart of these metrics, with a second axis for those on the right."""
        places, keys = range(len(self.shown)), [*left, *right]
        names = dict.fromkeys(metric.name for _, name in keys if (metric := find(name)) is not None)
        drawn = (self._lines(place, key, right=key in right, aliases=aliases) for place in places for key in keys)
        return {
            "id": id,
            "title": title,
            "note": " ".join(f"{name}: {_meaning(name)}" for name in names),
            **_axis(left),
            "right": _axis(right) if right else None,
            "lines": [*chain.from_iterable(drawn)],
            "shaded": [],
            "search": ", ".join(f"{phase}/{name}" for phase, first in keys for name in self.names[phase, first]),
        }

    def _lines(self, place: int, key: Key, *, right: bool, aliases: bool) -> list[dict[str, Any]]:
        """The line of a metric: of several seeds their mean with its interval, and each of them thin."""
        members = [member[key] for member in self.series[place] if key in member]
        seeds = [one.seed for one, has in zip(self.shown[place].members, self.series[place], strict=True) if key in has]
        width = 1 + max((max(member) for member in members), default=0) // POINTS
        thinned = [_thin(member, width) for member in members]
        others = [name for name in self.names[key] if name != key[1]] if aliases else []
        label = self._label(place, f"{key[1]} (= {', '.join(others)})" if others else key[1])
        label += f", means of {width} steps" if width > 1 else ""
        if len(members) < 2:
            spread = self.shown[place].members[0].spread if key[1] == "reward" else {}
            own = {step: each for (phase, step), each in spread.items() if phase == key[0]}
            low, high = (_thin({step: each[end] for step, each in own.items()}, width) for end in (0, 1))
            bands = [{s: (low[s], high[s]) for s in each} if low.keys() >= each.keys() else {} for each in thinned]
            return [_line(place, label, each, band, right=right) for each, band in zip(thinned, bands, strict=True)]
        together = {step: [each[step] for each in thinned if step in each] for step in sorted({*chain(*thinned)})}
        mean = {step: fmean(values) for step, values in together.items()}
        least, most = bounds(getattr(find(key[1]), "range", ""))
        within = -math.inf if least is None else least, math.inf if most is None else most
        band = {
            step: repeats_interval(values, within=within) or (mean[step], mean[step])
            for step, values in together.items()
        }
        thin = [
            _line(place, f"{label}, seed {seed}", each, style="thin", right=right)
            for seed, each in zip(seeds, thinned, strict=True)
        ]
        return [_line(place, f"{label}, mean of {len(members)} seeds", mean, band, right=right), *thin]

    def _evaluated(self, place: int, phase: str) -> list[dict[str, Any]]:
        """The accuracy of the evaluations of each run as points: before its first step, between two, and after its last."""
        lines = []
        for member, series in zip(self.shown[place].members, self.series[place], strict=True):
            last = 1 + max((max(values) for (each, _), values in series.items() if each == phase), default=0)
            known = {each.label: each for each in member.evaluations if each.accuracy is not None}
            steps = {"before": 0, "after": last} | {label: int(label[5:]) for label in known if label[5:].isdecimal()}
            at = {steps[label]: known[label] for label in sorted(known.keys() & steps.keys(), key=steps.__getitem__)}
            values = {step: each.accuracy or 0.0 for step, each in at.items()}
            for each in [*at.values()][:1]:
                what = f"avg@{each.samples} of {'training' if each.transductive else 'held-out'} tasks"
                what += "" if member.seed is None else f", seed {member.seed}"
                band = {step: one.accuracy_interval or (values[step], values[step]) for step, one in at.items()}
                lines.append(_line(place, self._label(place, what), values, band, style="points"))
        return lines

    def _label(self, place: int, text: str) -> str:
        return text if len(self.shown) == 1 else f"{self.shown[place].label}: {text}"


def _line(
    run: int, label: str, values: Mapping[int, float], band: Mapping[int, Interval] | None = None, **style: Any
) -> dict[str, Any]:
    def short(numbers: Sequence[float]) -> list[float]:
        return [float(f"{each:.4g}") for each in numbers]

    low, high = (short([each[end] for each in band.values()]) if band else None for end in (0, 1))
    line = {"run": run, "label": label, "x": [*values], "y": short([*values.values()]), "low": low, "high": high}
    return line | {"style": "solid", "right": False} | style


def _thin(values: Mapping[int, float], width: int) -> dict[int, float]:
    """Means of `width` steps each, at the last of them."""
    groups = [[*each] for _, each in groupby(values.items(), lambda one: one[0] // width)]
    return {each[-1][0]: fmean(value for _, value in each) for each in groups}


def _axis(keys: Sequence[Key]) -> dict[str, Any]:
    """Unit and range that all metrics of an axis share."""
    units, ranges = ({getattr(find(name), what, "") for _, name in keys} for what in ("unit", "range"))
    return {
        "unit": units.pop() if len(units) == 1 else "",
        "range": list(bounds(ranges.pop() if len(ranges) == 1 else "")),
    }


def _meaning(name: str) -> str:
    """The meaning of a metric without Markdown."""
    found = find(name)
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", f"{found.meaning}.".replace("`", "")) if found else ""


def _apart(member: Mapping[Key, Mapping[int, float]], keys: Sequence[Key]) -> list[dict[str, Any]]:
    """Steps in which votes agree more and are right less often than in the first ones."""
    found: list[dict[str, Any]] = []
    ratio, label = (member.get(key, {}) for key in keys)
    gaps = [(step, ratio[step] - label[step]) for step in ratio if step in label]
    means = [
        (gaps[end - 1][0], fmean(gap for _, gap in gaps[end - WINDOW : end])) for end in range(WINDOW, len(gaps) + 1)
    ]
    for apart, steps in groupby(means, lambda each: each[1] > max(0.0, means[0][1] + APART)):
        if apart:
            first, *rest = [step for step, _ in steps]
            why = "The samples agree more, and their majority is right less often."
            found.append({"from": first, "to": rest[-1] if rest else first, "why": why})
    return found
