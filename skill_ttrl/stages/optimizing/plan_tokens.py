"""Tokens and cost of a planned optimization: what is known beforehand, rendered; the rest as bounds. A token is taken for 4 characters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skill_ttrl.agents.document import DocumentSlot
from skill_ttrl.agents.prompt import PromptFormatter, estimate_tokens
from skill_ttrl.config import EndpointConfig, OptimizeConfig, SkillTTRLConfig
from skill_ttrl.llm.backends import backend_facts
from skill_ttrl.optimize.documents.update_modes import MODES
from skill_ttrl.optimize.engines.gepa import FIELD_CHARS, GepaOptions
from skill_ttrl.optimize.lessons.comparison import SHOWN_CHARS
from skill_ttrl.optimize.reflection.llm_optimizer import RANKING_TOKENS
from skill_ttrl.optimize.reflection.writer import DECISION_TOKENS
from skill_ttrl.optimize.transcript import EDIT_CHARS, ROLLOUT_CHARS
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.stages.optimizing.plan import (
    GEPA,
    LLM,
    LOOP,
    NONE,
    REFLECT,
    Counted,
    Kind,
    Sizes,
    Span,
    count,
    count_gepa,
    count_unknown,
    exactly,
)
from skill_ttrl.types import Task

GEPA_FIELDS = 3
"""Fields of a rollout in the prompt of gepa."""
CONTEXT_CHARS = 20_000
"""Most characters taken for the further sections of a request: rejected edits, memory of the optimizer."""
SHARES = 4
"""Characters taken for a token."""
JSON_OVERHEAD = 2
"""Times a patch's own length that it may have as indented JSON."""
ROLES = {"rollout": "train", "comparison": "train", "selection": "selection", "test": "test"}
REQUESTS = {
    "analyst": "analyst_request",
    "merge_final": "merge_final_request",
    "merge": "merge_patches_request",
    "ranking": "ranking_request",
    **{
        name: f"{name}_request"
        for name in ("lr_autonomous", "rewrite_skill", "slow_update", "meta_skill", "appendix_consolidate")
    },
}
"""Begin the names of stages; the template of the request."""


@dataclass(frozen=True)
class PlannedWork:
    """Work of one kind."""

    kind: Kind
    stage: str
    total: Span
    a_step: Span | None = None
    """None: it is no part of a step."""
    prompt_tokens: Span | None = None
    answer_tokens: Span | None = None


@dataclass(frozen=True)
class Plan:
    """The predicted work of an optimization."""

    name: str
    epochs: int
    steps: int
    work: list[PlannedWork]
    rollouts: Span
    """In all."""
    calls: Span
    """Of the optimizer's model, in all; narrower than the sum over stages."""
    cost: Span | None = None
    """By the prices of the endpoints; None: nothing has a price."""
    assumptions: list[str] = field(default_factory=list)


def make_plan(
    config: SkillTTRLConfig,
    tasks: Mapping[str, Sequence[Task]],
    document: str,
    templates: Templates,
    *,
    success: float | None,
    reuses: bool,
) -> Plan:
    """The plan of an optimization. Nothing is loaded and nothing is sent.

    Args:
        config: resolved, with its section `optimize`.
        tasks: by role.
        document: the first one.
        templates: the optimizer's prompts.
        success: see `plan.count`.
        reuses: see `plan.count`.
    """
    options = config.optimize
    assert options is not None
    sizes = Sizes(*(len(tasks.get(role, ())) for role in ("train", "selection", "test")))
    counted = _counted(options, sizes, success, reuses=reuses)
    longest = _longest(options, document, len(counted.steps))
    known = options.engine == GEPA or (options.engine == LOOP and options.optimizer == LLM)
    work = [
        PlannedWork(
            "rollouts", stage, total, _a_step(counted, stage), *_rollout_tokens(config, tasks, stage, total, longest)
        )
        for stage, total in counted.rollouts().items()
    ]
    for stage, total in counted.calls().items() if known else ():
        work.append(
            PlannedWork(
                "calls",
                stage,
                total,
                _a_step(counted, stage),
                *_call_tokens(options, templates, document, stage, total, longest),
            )
        )
    return Plan(
        config.name,
        options.epochs,
        len(counted.steps),
        work,
        sum((each.total for each in work if each.kind == "rollouts"), NONE),
        counted.all_calls() if known else NONE,
        _cost(config, work),
        _assumptions(config, options, success, reuses=reuses, known=known),
    )


def _counted(options: OptimizeConfig, sizes: Sizes, success: float | None, *, reuses: bool) -> Counted:
    if options.engine == LOOP:
        return count(options, sizes, success, reuses=reuses)
    if options.engine != GEPA:
        return count_unknown(options, sizes)
    own = GepaOptions.of(options.engine_options)
    iterations = own.iterations or options.epochs * math.ceil(sizes.train / own.minibatch_size)
    return count_gepa(options, sizes, minibatch=own.minibatch_size, iterations=iterations, reuses=reuses)


def _a_step(counted: Counted, stage: str) -> Span | None:
    """The work of one step: over all steps the least and the most."""
    spans = [{**step.rollouts, **step.calls}.get(stage) for step in counted.steps]
    there = [span for span in spans if span is not None]
    return Span(min(span.least for span in there), max(span.most for span in there)) if there else None


def _rollout_tokens(
    config: SkillTTRLConfig, tasks: Mapping[str, Sequence[Task]], stage: str, total: Span, longest: int
) -> tuple[Span, Span]:
    """Tokens that the policy reads and writes."""
    own, turns = tasks.get(ROLES[stage], ()), config.agent.max_turns
    bare = [_prompt(config, task) for task in own]
    known = [tokens for tokens in bare if tokens is not None]
    bound = config.data.max_prompt_tokens
    least = min(known, default=0) if len(known) == len(bare) else 0
    most = min(bound, max(known, default=bound) + longest) if len(known) == len(bare) and turns == 1 else bound * turns
    return total.times(Span(least, most)), total.times(Span(0, config.rollout.max_new_tokens * turns))


def _prompt(config: SkillTTRLConfig, task: Task) -> int | None:
    """Tokens of a task's first prompt without a document; None where it is not known beforehand."""
    question = task.options.get("question")
    if not isinstance(question, str) or config.agent.context_mode == "window":
        return None
    formatter = PromptFormatter.from_config(config.agent)
    formatter = formatter.with_document(DocumentSlot(formatter.templates, config.agent.document_as))
    return sum(estimate_tokens(message.content) for message in formatter.messages(question))


def _call_tokens(
    options: OptimizeConfig, templates: Templates, document: str, stage: str, total: Span, longest: int
) -> tuple[Span, Span]:
    """Tokens that the optimizer's model reads and writes."""
    if stage == REFLECT:
        rollouts = GepaOptions.of(options.engine_options).minibatch_size * GEPA_FIELDS * FIELD_CHARS // SHARES
        return total.times(Span(0, longest + rollouts + CONTEXT_CHARS // SHARES)), total.times(
            Span(0, options.max_answer_tokens)
        )
    request = next(name for start, name in REQUESTS.items() if stage.startswith(start))
    mode = MODES[options.update_mode]
    name = f"{stage}{mode.suffix}" if stage.startswith(("analyst", "merge", "ranking")) else stage
    rules = estimate_tokens(templates.render(name)) + estimate_tokens(templates.get(request).template)
    least = estimate_tokens(templates.render(name)) + estimate_tokens(templates.get(request).template) // 2
    patches = _answer(options, "merge") * JSON_OVERHEAD
    edits = max(1, options.max_answer_tokens // 8) * EDIT_CHARS // SHARES
    shown = {
        "analyst": options.minibatches_per_request * options.minibatch_size * ROLLOUT_CHARS // SHARES,
        "merge_final": 2 * patches,
        "merge": options.merge_batch_size * patches,
        "ranking": edits,
        "lr_autonomous": edits,
        "rewrite_skill": patches,
        "slow_update": longest + SHOWN_CHARS // SHARES,
        "meta_skill": longest + SHOWN_CHARS // SHARES,
        "appendix_consolidate": longest,
    }
    part = next(tokens for start, tokens in shown.items() if stage.startswith(start))
    most = rules + _added_rules(options, templates, stage) + longest + part + CONTEXT_CHARS // SHARES
    return total.times(Span(least, most)), total.times(Span(0, _answer(options, stage)))


def _answer(options: OptimizeConfig, stage: str) -> int:
    """Tokens of the longest answer."""
    several = options.minibatches_per_request if stage.startswith("analyst") else 1
    whole = not MODES[options.update_mode].ranks and stage.startswith(("analyst", "merge"))
    if whole or stage == "rewrite_skill":
        return options.max_rewrite_tokens * several
    short = {"ranking": RANKING_TOKENS, "lr_autonomous": DECISION_TOKENS}
    return min(short.get(stage, options.max_answer_tokens), options.max_answer_tokens) * several


def _added_rules(options: OptimizeConfig, templates: Templates, stage: str) -> int:
    """Tokens of the instructions that are added to an analyst's: of skill-aware reflection, and of several minibatches."""
    added = [stage.replace("analyst", "skill_aware")] if options.skill_aware.enabled else []
    added += ["analyst_joint"] if options.minibatches_per_request > 1 else []
    return sum(estimate_tokens(templates.render(name)) for name in added) if stage.startswith("analyst") else 0


def _longest(options: OptimizeConfig, document: str, steps: int) -> int:
    """Tokens that the document has at most."""
    if options.max_document_tokens is not None:
        return options.max_document_tokens
    answer = options.max_answer_tokens if options.update_mode == "patch" else options.max_rewrite_tokens
    return math.ceil(len(document) / SHARES) + (steps + options.epochs) * answer


def _cost(config: SkillTTRLConfig, work: Sequence[PlannedWork]) -> Span | None:
    """The cost by the prices of the config; None where nothing has one."""
    remote = backend_facts(config).remote
    of = {"rollouts": config.endpoints.policy if remote else None, "calls": config.endpoints.optimizer}
    priced = [(each, of[each.kind]) for each in work]
    spans = [_priced(each, endpoint) for each, endpoint in priced if endpoint is not None and endpoint.priced]
    return sum(spans, NONE) if spans else None


def _priced(work: PlannedWork, endpoint: EndpointConfig) -> Span:
    prompt, answer = work.prompt_tokens or NONE, work.answer_tokens or NONE
    price_in, price_out = exactly((endpoint.price_in or 0.0) / 1e6), exactly((endpoint.price_out or 0.0) / 1e6)
    return prompt.times(price_in) + answer.times(price_out)


def _assumptions(
    config: SkillTTRLConfig, options: OptimizeConfig, success: float | None, *, reuses: bool, known: bool
) -> list[str]:
    found = ["a token is taken for 4 characters; answers are counted from nothing to their limit"]
    if options.engine != LOOP:
        found.append(f"of the engine {options.engine!r} no assumed success makes one number, only bounds are known")
    elif success is None:
        found.append(
            "at least and at most: by how many rollouts succeed, which answers can be used and which candidates pass; one number with --success RATE"
        )
        if options.gate.enabled and options.gate.early_stop:
            found.append(
                "a candidate that cannot pass any more is rolled out on fewer selection tasks (optimize.gate.early_stop)"
            )
        if reuses:
            found.append("rollouts of an unchanged document are not repeated in later epochs (optimize.reuse_rollouts)")
    else:
        found.append(
            f"{success:.0%} of the rollouts succeed, no candidate passes, every evaluation is whole, no rollout is reused, and every answer is a patch of "
            f"{options.edit_budget} edits"
        )
    if not known:
        found.append(
            f"calls of the engine {options.engine!r} with the optimizer {options.optimizer!r} are not predicted"
        )
    if options.max_document_tokens is None:
        found.append(
            "the document has no bound (optimize.max_document_tokens), so the most tokens are far above what is usual"
        )
    return found
