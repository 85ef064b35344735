"""Discrete-event simulation of the RL loop: rollouts, environments, update, weight transfer. Pure: numbers in, numbers out.

Batch k may start once update k - `max_staleness` is in force, and none is in flight across a barrier (a checkpoint, an evaluation). It is learned
from once all of its rollouts have ended. Replicas decode as vLLM does (continuous batching, arXiv 2309.06180): all sequences in a replica advance
together, a token a round, and a round takes the longer the more of them there are.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

PARTS = ("generation", "environment", "update", "transfer", "records")
"""Parts of a step; `records` are votes, rewards, skills and files, all on the driver."""
MEASURED_STEPS = 4
LONGEST = 20
"""Most steps that are simulated from one start with nothing in flight to another; barriers further apart are left out, their share is small."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Seconds of one decoding round of a replica."""

    fixed: float = 0.0
    """Whatever is in it: launches of kernels, Python."""
    read: float = 0.0
    """Reading the weights from memory."""
    row_read: float = 0.0
    """Reading the keys and values of one sequence."""
    row_compute: float = 0.0
    """Operations of one sequence, at the same time as the reading."""
    row_prompt: float = 0.0
    """Reading a sequence's prompt, spread over its rounds."""

    def seconds(self, rows: int) -> float:
        """A round with so many sequences: fixed + max(reading, computing) + prompts (roofline, Williams et al. 2009)."""
        return self.fixed + max(self.read + self.row_read * rows, self.row_compute * rows) + self.row_prompt * rows


@dataclass(frozen=True, slots=True)
class Loop:
    """A training loop as numbers. Times are seconds."""

    rollouts: int
    """A step, all tasks together."""
    turns: int
    """Of each rollout; each decodes tokens, then takes an environment's step."""
    lengths: tuple[float, ...]
    """Tokens of a turn: one of these is drawn for each."""
    decoding: Decoding
    replicas: int
    slots: int
    """Sequences that a replica decodes at once; others wait."""
    env_seconds: float = 0.0
    env_slots: int = 1
    """Environments of one step that are called at the same time; steps in flight have threads of their own."""
    slow_fraction: float = 0.0
    """Rollouts whose environment is slow."""
    slow_factor: float = 1.0
    lockstep: bool = False
    """All rollouts of a step advance turn by turn (`rollout.mode: sync`)."""
    update: float = 0.0
    transfer: float = 0.0
    records: float = 0.0
    split: bool = False
    """Generation and learner have devices of their own; else they take turns, and staleness is 0."""
    max_staleness: int = 0
    in_turn: bool = False
    """The rollouts of a step start once those of the step before have ended (`rl.in_flight_updates: false`)."""
    barriers: tuple[int, ...] = ()
    """Numbers of steps at whose multiples no rollouts are in flight (`rl.save_steps`, `rl.eval_steps`)."""
    weight: int = 1
    """Rollouts that one simulated sequence stands for."""
    seed: int = 0

    @property
    def generation_alone(self) -> Loop:
        """The same loop without its other parts."""
        return replace(self, env_seconds=0.0, update=0.0, transfer=0.0, records=0.0, split=False)

    def faster(self, part: str, factor: float = 2.0) -> Loop:
        """The same loop where one of `PARTS` takes 1/`factor` of its time."""
        if part == "generation":
            old = self.decoding
            cut = {name: getattr(old, name) / factor for name in Decoding.__slots__}
            return replace(self, decoding=Decoding(**cut))
        name = {"environment": "env_seconds"}.get(part, part)
        return replace(self, **{name: getattr(self, name) / factor})


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a simulation, its first steps left out."""

    step_seconds: float
    utilisation: dict[str, float]
    """`generation`: share of the replicas' time that they decode; `environment update transfer records`: share of the time that there is one."""
    staleness: float
    """Mean over batches of the updates between its start and its own update."""


def simulate(loop: Loop) -> Outcome:
    """Simulate steps until the loop runs evenly, then `MEASURED_STEPS` and more, and return their mean.

    Where nothing is drawn and no step begins before the last one has ended, all steps are alike and one is enough.
    """
    staleness = loop.max_staleness if loop.split else 0
    if staleness and (steps := _steps_to_barrier(loop.barriers, MEASURED_STEPS + staleness)):
        return _Simulation(loop, staleness).run(0, steps)  # its start is what follows a barrier
    alike = len(loop.lengths) == 1 and loop.slow_fraction in (0.0, 1.0) and not staleness
    warm = 1 + 2 * staleness
    flight = staleness + 1  # steps that may end as a bunch: whole ones count
    measured = flight * math.ceil((MEASURED_STEPS + staleness) / flight)
    return _Simulation(loop, staleness).run(warm, warm + (1 if alike else measured))


def _steps_to_barrier(periods: tuple[int, ...], least: int) -> int:
    """Steps after which barriers repeat, `least` or more; the last barrier in `LONGEST` steps where that is longer; 0: there is none."""
    repeat = math.lcm(*periods)
    if periods and (steps := repeat * math.ceil(least / repeat)) <= LONGEST:
        return steps
    return max((step for step in range(1, LONGEST + 1) for each in periods if step % each == 0), default=0)


@dataclass(eq=False, slots=True)
class _Rollout:
    batch: int
    replica: _Replica
    tokens: list[float]
    env_seconds: float
    turn: int = 0


class _Replica:
    """One engine. `rounds` counts tokens that a sequence would have got since the start; it stands still where nothing is decoded."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.slots = loop, max(1, loop.slots // loop.weight)
        self.rounds = self.at = self.busy = 0.0
        self.active: list[tuple[float, int, _Rollout]] = []
        self.waiting: deque[_Rollout] = deque()
        self.changes = 0

    @property
    def round_seconds(self) -> float:
        return max(self.loop.decoding.seconds(len(self.active) * self.loop.weight), 1e-12)

    @property
    def ends(self) -> float:
        """Time at which the next sequence ends."""
        return self.at + max(0.0, self.active[0][0] - self.rounds) * self.round_seconds

    def advance(self, now: float) -> None:
        if now > self.at:
            if self.active:
                self.rounds += (now - self.at) / self.round_seconds
                self.busy += now - self.at
            self.at = now

    def fill(self, order: int) -> None:
        while self.waiting and len(self.active) < self.slots:
            each = self.waiting.popleft()
            self.changes += 1
            heapq.heappush(self.active, (self.rounds + each.tokens[each.turn], order + self.changes, each))

    def take_ended(self) -> list[_Rollout]:
        last, found = self.active[0][0] + 1e-9, []
        while self.active and self.active[0][0] <= last:
            found.append(heapq.heappop(self.active)[2])
        return found


class _Simulation:
    """The clock, its events, and what happens at each."""

    def __init__(self, loop: Loop, staleness: int) -> None:
        self.loop, self.staleness = loop, staleness
        self.units = max(1, round(loop.rollouts / loop.weight))
        self.replicas = [_Replica(loop) for _ in range(loop.replicas)]
        self.now, self.order = 0.0, 0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.version = self.admitted = 0
        self.began: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.held: dict[int, list[_Rollout]] = {}
        self.learning = False
        # Several rollouts in one: where fewer environments than that are called at once, one call takes the time of all.
        self.env_slots = max(1, loop.env_slots // loop.weight)
        self.env_scale = max(1.0, loop.weight / loop.env_slots)
        self.calling = Counter[int]()  # by batch, as `env_waiting` is
        self.env_waiting = defaultdict[int, deque[_Rollout]](deque)
        self.spent = dict.fromkeys(PARTS, 0.0)
        self.ends: list[float] = []

    def run(self, warm: int, steps: int) -> Outcome:
        self.steps, before, base = steps, dict(self.spent), 0.0
        self.admit()
        while len(self.ends) < steps:
            time, _, action = heapq.heappop(self.events)
            if any(self.calling.values()):
                self.spent["environment"] += time - self.now
            self.now, done = time, len(self.ends)
            action()
            if len(self.ends) == warm > done:
                before, base = self.totals(), self.now
        span = self.now - base
        shares = {name: (total - before[name]) / max(span, 1e-12) for name, total in self.totals().items()}
        shares["generation"] /= self.loop.replicas
        stale = [step - self.began[step] for step in range(warm, steps)]
        return Outcome(span / (steps - warm), shares, sum(stale) / len(stale))

    def totals(self) -> dict[str, float]:
        for each in self.replicas:
            each.advance(self.now)
        return self.spent | {"generation": sum(each.busy for each in self.replicas)}

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.events, (self.now + seconds, self.order, action))

    def admit(self) -> None:
        """Start the batches that may start with the weights in force."""
        loop = self.loop
        barriers = [(self.version // each + 1) * each for each in loop.barriers]
        end = min(self.version + self.staleness + 1, self.steps, *barriers)
        while self.admitted < end and not (loop.in_turn and self.left.get(self.admitted - 1)):
            batch = self.admitted
            self.admitted += 1
            self.began[batch], self.left[batch], self.held[batch] = self.version, self.units, []
            random = np.random.default_rng((loop.seed, batch))
            slow = random.random(self.units) < loop.slow_fraction
            drawn = random.integers(len(loop.lengths), size=(self.units, loop.turns))
            for place in range(self.units):
                tokens = [loop.lengths[each] for each in drawn[place]]
                env_seconds = loop.env_seconds * self.env_scale * (loop.slow_factor if slow[place] else 1.0)
                self.replicas[place % loop.replicas].waiting.append(
                    _Rollout(batch, self.replicas[place % loop.replicas], tokens, env_seconds)
                )
            for replica in self.replicas:
                self.decode(replica)

    def decode(self, replica: _Replica) -> None:
        """Give waiting sequences the free places of a replica, and plan when the next one ends."""
        replica.advance(self.now)
        replica.fill(self.order)
        replica.changes += 1
        if replica.active:
            self.later(max(0.0, replica.ends - self.now), partial(self.decoded, replica, replica.changes))

    def decoded(self, replica: _Replica, changes: int) -> None:
        if changes != replica.changes:  # others have come since, which moved the end
            return
        replica.advance(self.now)
        ended = replica.take_ended()
        self.decode(replica)
        for each in ended:
            self.together(each, self.call_env)

    def together(self, rollout: _Rollout, action: Callable[[list[_Rollout]], None]) -> None:
        """Go on: at once, or in lockstep once all rollouts of the batch are here."""
        if not self.loop.lockstep:
            action([rollout])
            return
        held = self.held[rollout.batch]
        held.append(rollout)
        if len(held) == self.units:
            self.held[rollout.batch] = []
            action(held)

    def call_env(self, rollouts: list[_Rollout]) -> None:
        if not self.loop.env_seconds:
            self.next_turn(rollouts)
            return
        batch = rollouts[0].batch
        self.env_waiting[batch].extend(rollouts)
        self.start_envs(batch)

    def start_envs(self, batch: int) -> None:
        waiting = self.env_waiting[batch]
        while waiting and self.calling[batch] < self.env_slots:
            each = waiting.popleft()
            self.calling[batch] += 1
            self.later(each.env_seconds, partial(self.answered, each))

    def answered(self, rollout: _Rollout) -> None:
        self.calling[rollout.batch] -= 1
        self.start_envs(rollout.batch)
        self.together(rollout, self.next_turn)

    def next_turn(self, rollouts: list[_Rollout]) -> None:
        touched = dict[_Replica, None]()
        for each in rollouts:
            each.turn += 1
            if each.turn == self.loop.turns:
                self.left[each.batch] -= 1
            else:
                each.replica.waiting.append(each)
                touched[each.replica] = None
        for replica in touched:
            self.decode(replica)
        self.admit()
        self.learn()

    def learn(self) -> None:
        if self.learning or self.left.get(self.version) != 0:
            return
        self.learning = True
        self.spent["update"] += self.loop.update
        self.spent["records"] += self.loop.records
        self.later(self.loop.update + self.loop.records, self.updated)

    def updated(self) -> None:
        """Hand the new weights over; generation pauses meanwhile, and what it has begun goes on with them."""
        transfer = self.loop.transfer
        self.spent["transfer"] += transfer
        for each in self.replicas:
            each.advance(self.now)
            each.at = self.now + transfer
            self.decode(each)
        self.later(transfer, self.transferred)

    def transferred(self) -> None:
        self.version, self.learning = self.version + 1, False
        self.ends.append(self.now)
        self.admit()
        self.learn()
