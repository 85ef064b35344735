"""`--dry-run`: what a run would take, before it starts: tokens, memory, hours, cost. Nothing is sampled and nothing is written.

Tokens are bounds: every prompt and answer at its longest, every episode at its last turn. Hours are given for these bounds and for
what is usual (`USUAL`), and say how the speed is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from skill_ttrl.agents.scripted.scripted_agent import scripted_agent_names
from skill_ttrl.config import BUILTIN, EndpointConfig, SkillTTRLConfig, verified_note
from skill_ttrl.errors import ConfigError, ModelError, SkillTTRLError
from skill_ttrl.llm.backends import REMOTE, backend_facts, is_command
from skill_ttrl.llm.models.model_config import load_model_config, published_config
from skill_ttrl.rl.device import device_memory, gpus
from skill_ttrl.rl.memory import read_shape
from skill_ttrl.rl.speed import PLANNED, Device, Speed, device_of, measured, reckoned
from skill_ttrl.skills.querying import OPENAI
from skill_ttrl.stages.doctor.backends import context_checks
from skill_ttrl.stages.doctor.memory import MemoryEstimate, estimate_memory, items_of_episode, update_thirds
from skill_ttrl.stages.doctor.missing import asks_servers, beside_learner, missing_servers
from skill_ttrl.stages.doctor.preflight import Preflight, look_before
from skill_ttrl.stages.setup.checks import check_names
from skill_ttrl.stages.setup.defaults import overruled, with_defaults
from skill_ttrl.stages.setup.ranks import TooManyRanksError, planned_ranks

USUAL = {"turns": 0.6, "prompt": 0.5, "answer": 0.3}
"""Shares of the bounds that episodes usually take: an agent that wins ends early, pages and answers are rarely at their longest."""
_SHARES = ", ".join(f"{name} {share:.0%}" for name, share in USUAL.items())
TEACHER_ANSWER, THOUGHT = 1500, 300
"""Tokens of a teacher's answer with skills, and of one with a thought, taken for reckoning."""
MEASURED_PARAMETERS = 20_000_000
"""Models up to this size are measured on a CPU: it takes seconds. The built-in one has less, also from a checkpoint."""
TYPES = 7
"""Types of task of an environment, taken for reckoning: ALFWorld has 6, WebShop's banks 7."""


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """One phase of the run. Tokens are bounds."""

    phase: str
    what: str
    episodes: int = 0
    prompt_tokens: int = 0
    """Read by the policy while it samples."""
    answer_tokens: int = 0
    """Sampled by it."""
    trained_tokens: int = 0
    """Read by the learner, prompts included."""
    rounds: int = 0
    """Decoding steps, one after another."""
    requests: int = 0
    """Requests to a remote language model."""
    hours: float | None = None
    """At the bounds; None where nothing is known of the speed."""
    usual_hours: float | None = None
    cost: float | None = None
    """Of language models with a price; None where none has one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Tokens, memory, hours and cost of a run, in all."""

    name: str
    model: str
    parameters: int
    trainable: int
    phases: list[PhasePlan]
    speed: Speed | None
    memory: dict[str, int]
    """Bytes by part, on the device that is planned for."""
    peak: int
    """Bytes on one device: ranks on a CPU share it, each GPU has one rank."""
    available: int
    """Bytes of that device."""
    hours: float | None
    usual_hours: float | None
    cost: float | None
    assumptions: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    """Why a run of it would not start, or not end; empty: it would."""
    exit_code: int = 0
    """With which `skillttrl train` would refuse it, or 5 where memory is too small; 0: it would not, as far as can be seen here."""
    ranks: int = 1
    """Processes that train together."""
    parallel: str = "alone"
    """How they hold the policy: `ddp`, `fsdp`; `alone`: one has it."""


def plan(config: SkillTTRLConfig, *, asks_ranks: bool = False) -> Plan:
    """Reckon what a run of `config` takes; `asks_ranks`: the command line says how many ranks (`setup.ranks.check_gpus`).

    Raises:
        ModelError: the model's config can be had nowhere.
        SkillTTRLError: nothing has a name that the config calls (`check_names`); nothing is measured then.
    """
    check_names(config)
    stated, assumptions, missing = config, list[str](), list[SkillTTRLError]()
    with suppress(SkillTTRLError):  # such an environment is among the refusals
        config = with_defaults(config)
    model_config = planned_model(config, assumptions, missing)
    device = planned_device(config, assumptions, planned_ranks(config))
    memory = estimate_memory(
        config,
        model_config,
        device="cpu" if device is None else "cuda",
        precision=None if device is None or config.runtime.precision != "auto" else "bf16",
        total=None if device is None else int(device.memory),
    )
    speed = _speed(config, model_config, device, memory, assumptions)
    found = look_before(stated, asks_ranks=asks_ranks)
    assumptions += [*found.notes, *_further_rounds(config), *(overruled(config) if "rl" in config.phases else ())]
    phases = [
        _timed(each, speed, config) for each in (_phase(name, config, found) for name in (*config.phases, "evaluate"))
    ]
    available = device_memory("cpu") if device is None else int(device.memory)
    refusals = [
        *found.refusals,
        *missing,
        *missing_servers(config),
        *_too_large(config, model_config, 0 if device is None and _too_many(found) else memory.on_device, available),
    ]
    assumptions += [*_about_ranks(memory), *beside_learner(config)]
    if config.verified is not None and not (note := verified_note(config)).startswith("untested"):
        assumptions.append(f"a recorded run of these settings: {note}")
    if any(each.requests and each.cost is None for each in phases):
        assumptions.append(
            "no cost is given: what the teacher's tokens cost is not known (endpoints.teacher.price_in and price_out, per million)"
        )
    assumptions.append(f"tokens and hours are bounds; usual hours take {_SHARES} of them")
    return Plan(
        config.name,
        config.model.path,
        memory.parameters,
        memory.trainable,
        phases,
        speed,
        dict(memory.parts),
        memory.on_device,
        available,
        _sum([each.hours for each in phases]),
        _sum([each.usual_hours for each in phases]),
        _sum([each.cost for each in phases]),
        assumptions,
        [str(each).rstrip(".") for each in refusals],
        refusals[0].exit_code if refusals else 0,
        memory.ranks,
        memory.parallel,
    )


def _too_large(config: SkillTTRLConfig, model_config: Any, peak: int, available: int) -> Iterator[SkillTTRLError]:
    """Prompts that the model has no positions for, and `peak` bytes where the device has fewer."""
    for check in context_checks(config, model_config):
        if check.status == "fail":
            yield ConfigError(f"{check.found}. {check.advice}")
    if peak > available:
        yield ModelError(
            f"it needs {peak / 1e9:.1f} GB at its peak and the device has {available / 1e9:.1f} GB: take adapters (model.lora), "
            "gradient checkpointing, a smaller micro-batch, several GPUs (--nproc, runtime.parallel=fsdp), or a smaller model"
        )


def _too_many(found: Preflight) -> bool:
    """True where the ranks were refused whatever their model is: its memory is no further reason then."""
    return any(isinstance(each, TooManyRanksError) for each in found.refusals)


def _about_ranks(memory: MemoryEstimate) -> Iterator[str]:
    """Words on what is counted of several ranks."""
    if memory.ranks == 1:
        return
    if memory.device == "cpu":
        yield f"{memory.ranks} ranks share this machine's memory and cores: memory is theirs together, and they are no faster than one"
    else:
        yield f"{memory.ranks} GPUs learn and read prompts that many times as fast as one (communication is not counted)"
    if memory.offloaded:
        yield f"each rank has {memory.offloaded / 1e9:.1f} GB more in the machine's own memory (offloaded)"


def _phase(name: str, config: SkillTTRLConfig, found: Preflight) -> PhasePlan:
    """The tokens of one phase; `found` knows how many tasks there are."""
    if name == "collect":
        collect = config.collect
        count = collect.episodes or (found.train or config.env.train_tasks or 0) * collect.rollouts_per_task
        count *= len(collect.data) if collect.data else 1
        each = PhasePlan(name, f"{_count(count)} by {collect.agent}", episodes=count)
        return each if _is_scripted(collect.agent) else _sampled(each, count, _batches(count, config), config)
    if name == "distill":
        asked = TYPES + 2 if config.distill.teacher == OPENAI else 0
        cost = _cost(asked, config.distill.prompt_max_tokens, config.endpoints.teacher)
        return PhasePlan(name, f"skills by {config.distill.teacher}", requests=asked, cost=cost)
    if name == "sft":
        sft = config.sft
        batch = sft.batch_size if sft.batch_tokens is None else max(1, sft.batch_tokens // _item(config))
        examples = sft.steps * batch
        size = str(batch) if sft.batch_tokens is None else f"{sft.batch_tokens:,} tokens"
        each = PhasePlan(name, f"{sft.steps:,} steps of {size}", trained_tokens=examples * _item(config))
        if sft.data is not None or config.demonstrations.rationale != OPENAI:
            return each
        # Without `demonstrations.examples` every step is imitated: then as many as are learnt from is the best that is known.
        asked = config.demonstrations.examples or examples
        cost = _cost(asked, _prompt(config), config.endpoints.teacher, answer=THOUGHT)
        return replace(each, what=f"{each.what}, thoughts by {OPENAI}", requests=asked, cost=cost)
    if name == "evaluate":
        trained = {"rl", "vote_sft"} & {*config.phases}
        between = (config.rl.steps - 1) // config.rl.eval_steps if trained and config.rl.eval_steps else 0
        bank_off = len(trained) if config.skills is not None and config.skills.enabled else 0
        times = 1 + len(trained) + between + bank_off + ("dagger" in config.phases) * config.dagger.evaluations
        rollouts = config.eval.samples + config.eval.greedy + config.eval.samples * len(config.eval.extra_temperatures)
        tasks = found.evaluated or config.env.eval_tasks or 0
        what = f"{times} x {tasks:,} tasks x {rollouts}" if tasks else "all held-out tasks"
        eval_ = config.eval
        ways = [eval_.samples] * (1 + len(eval_.extra_temperatures)) + [1] * eval_.greedy
        batches = times * sum(_batches(tasks * each, config) for each in ways)
        return _sampled(PhasePlan(name, what), times * tasks * rollouts, batches, config)
    return _dagger(config) if name == "dagger" else _reinforce(name, config)


def _dagger(config: SkillTTRLConfig) -> PhasePlan:
    own, updates = config.dagger, sum(config.dagger.round_steps)
    what = f"{own.rounds} rounds of {own.episodes:,} episodes, {updates:,} updates"
    tokens = updates * (config.sft.batch_tokens or config.sft.batch_size * _item(config))
    count = own.rounds * own.episodes
    return _sampled(PhasePlan("dagger", what, trained_tokens=tokens), count, _batches(count, config), config)


def _reinforce(name: str, config: SkillTTRLConfig) -> PhasePlan:
    rl, rollout = config.rl, config.rollout
    greedy = _greedy_rollouts(config) if name == "rl" else 0
    each = rl.prompts_per_step * (rollout.n_votes_per_prompt + greedy)
    what = f"{rl.steps:,} steps of {rl.prompts_per_step} tasks x {rollout.n_votes_per_prompt}"
    found = _sampled(
        PhasePlan(name, f"{what} + {greedy} greedy" if greedy else what),
        rl.steps * each,
        rl.steps * (_batches(rl.prompts_per_step * rollout.n_votes_per_prompt, config) + greedy),
        config,
    )
    learned = rl.steps * rl.prompts_per_step * rollout.n_samples_per_prompt * items_of_episode(config)
    trained = learned * _item(config) * rl.ppo_epochs * update_thirds(rl) // 3
    asked = rl.steps // config.evolve.every if config.evolve is not None and config.evolve.teacher == OPENAI else 0
    tokens = 0 if config.evolve is None else config.evolve.prompt_max_tokens
    return replace(found, trained_tokens=trained, requests=asked, cost=_cost(asked, tokens, config.endpoints.teacher))


def _further_rounds(config: SkillTTRLConfig) -> list[str]:
    """A line where a step may sample more than once."""
    settings = config.rl.dynamic_sampling if "rl" in config.phases else None
    if settings is None or settings.max_rounds == 1:
        return []
    return [
        f"rl counts one round of samples a step; rl.dynamic_sampling may sample up to {settings.max_rounds} times as many, as many as "
        "groups that all earn the same ask for"
    ]


def _greedy_rollouts(config: SkillTTRLConfig) -> int:
    """Greedy rollouts of each task in a step."""
    from skill_ttrl.rl.algorithms import build_algorithm, requirements

    return int("greedy" in requirements(build_algorithm(config.rl.algorithm)))


def _is_scripted(agent: str) -> bool:
    """True for a scripted agent; any other is a policy, which samples."""
    return agent in scripted_agent_names() or (":" in agent and not agent.startswith(REMOTE) and not is_command(agent))


def _sampled(found: PhasePlan, episodes: int, batches: int, config: SkillTTRLConfig) -> PhasePlan:
    turns = config.agent.max_turns
    return replace(
        found,
        episodes=episodes,
        prompt_tokens=episodes * turns * _prompt(config),
        answer_tokens=episodes * turns * config.rollout.max_new_tokens,
        rounds=batches * turns * config.rollout.max_new_tokens if episodes else 0,
    )


def _batches(rows: int, config: SkillTTRLConfig) -> int:
    """Batches in which so many rows are sampled, one after another: each rank, or each server, decodes as many as it may at once."""
    facts = backend_facts(config)
    if facts.is_learner or facts.is_copy:
        at_once = config.rollout.max_batch_size * planned_ranks(config)
    elif config.rollout.backend == "vllm":
        at_once = config.vllm.max_num_seqs * (
            len(config.vllm.servers) if asks_servers(config) else planned_ranks(config)
        )
    else:
        return 1
    return -(-rows // max(1, at_once))


def _prompt(config: SkillTTRLConfig) -> int:
    skills = config.skills
    return config.data.max_prompt_tokens + (
        skills.prompt_max_tokens if skills is not None and skills.prompt_top_k else 0
    )


def _item(config: SkillTTRLConfig) -> int:
    return _prompt(config) + config.rollout.max_new_tokens


def _timed(phase: PhasePlan, speed: Speed | None, config: SkillTTRLConfig) -> PhasePlan:
    if speed is None or not (phase.prompt_tokens or phase.trained_tokens):
        return phase
    turns = USUAL["turns"] if config.agent.max_turns > 1 else 1.0
    prompt, answer = _prompt(config), config.rollout.max_new_tokens
    length = (prompt * USUAL["prompt"] + answer * USUAL["answer"]) / (prompt + answer)
    sampled = phase.prompt_tokens / speed.reading + phase.rounds / speed.rounds
    usually = turns * (
        USUAL["prompt"] * phase.prompt_tokens / speed.reading + USUAL["answer"] * phase.rounds / speed.rounds
    )
    if speed.cached is not None:  # each answer token reads the keys and values of all before it
        sampled += phase.answer_tokens * (prompt + answer / 2) / speed.cached
        before = prompt * USUAL["prompt"] + answer * USUAL["answer"] / 2
        usually += turns * USUAL["answer"] * phase.answer_tokens * before / speed.cached
    learned = phase.trained_tokens / speed.training
    steps = turns if phase.phase != "sft" else 1.0
    return replace(phase, hours=(sampled + learned) / 3600, usual_hours=(usually + steps * length * learned) / 3600)


def planned_model(config: SkillTTRLConfig, assumptions: list[str], missing: list[SkillTTRLError]) -> Any:
    """The transformers config of the planned model; the published one, with a line in both lists, where no file of it is reached.

    Raises:
        ModelError: it can be had nowhere.
    """
    try:
        return load_model_config(config.model)
    except ModelError:
        known = published_config(config.model.path)
        if known is None:
            raise
        missing.append(
            ModelError(
                f"The model {config.model.path} is no folder here and not in the Hugging Face cache, and the hub was not reached. Allow the "
                "network, or download the model and set model.path to its folder"
            )
        )
        assumptions.append(f"the shape of {config.model.path} is the published one: its config.json was not reached")
        return known


def planned_device(config: SkillTTRLConfig, assumptions: list[str], ranks: int) -> Device | None:
    """The GPU that is planned for; None: the CPU."""
    if config.runtime.device == "cpu" or (config.model.path == BUILTIN and not gpus()):
        return None
    here = gpus()
    known = device_of(here[0]) if here else None
    if known is None:
        found = f"{here[0]} is not in the table" if here else "there is no GPU here"
        what = f"one {PLANNED.name}" if ranks == 1 else f"{ranks} {PLANNED.name}s, one a rank, each"
        assumptions.append(f"{found}: reckoned for {what} of {PLANNED.memory / 1e9:.0f} GB")
    return known or PLANNED


def _speed(
    config: SkillTTRLConfig, model_config: Any, device: Device | None, memory: MemoryEstimate, assumptions: list[str]
) -> Speed | None:
    if device is not None:
        assumptions.append(f"speed is reckoned from the data sheet of the {device.name}, not measured")
        shape = read_shape(model_config, config.model.lora)
        cache = 2 * shape.key_value * shape.layers * 2  # keys and values in bf16
        return reckoned(memory.parameters, device, memory.ranks, trainable=memory.trainable, cache_bytes=cache)
    if memory.parameters > MEASURED_PARAMETERS:
        assumptions.append("nothing is known of the speed of this model on this CPU: no hours are given")
        return None
    assumptions.append(
        "speed is measured here, now, with random weights of this shape; a busy machine gives other hours"
    )
    rows = min(config.rl.micro_batch_size, 16)
    return measured(model_config, tokens=min(_item(config), 256), rows=rows, threads=config.runtime.threads)


def _cost(
    requests: int, prompt_tokens: int, endpoint: EndpointConfig | None, *, answer: int = TEACHER_ANSWER
) -> float | None:
    if not requests or endpoint is None or not endpoint.priced:
        return None
    return requests * (prompt_tokens * (endpoint.price_in or 0.0) + answer * (endpoint.price_out or 0.0)) / 1e6


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _count(episodes: int) -> str:
    return f"{episodes:,} episodes" if episodes else "all tasks"
