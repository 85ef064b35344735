"""From a config to the parts that act: policy, sampler, environments, tasks.

torch and its family are imported only where weights are: a model behind an address is asked without them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.agents.action_list import Listing
from skill_ttrl.agents.action_parser import projection
from skill_ttrl.agents.agent import Agent, Scene
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.agents.turn_prompt import Window
from skill_ttrl.config import EMBEDDED, DataConfig, SkillsConfig, SkillTTRLConfig, SourceConfig, load_config
from skill_ttrl.data.episodes import episode_corpus
from skill_ttrl.data.tasks import load_tasks, tokenizer_corpus
from skill_ttrl.envs import check_text_env, env_tasks, make_env, prepare_unit, resolve_env
from skill_ttrl.errors import ConfigError, DataError, EnvError, SplitError, TrustError, annotate_error
from skill_ttrl.llm.backend import Backend
from skill_ttrl.llm.backends import backend_facts, make_backend
from skill_ttrl.llm.chat import template_warning
from skill_ttrl.llm.context import BackendContext
from skill_ttrl.progress import OPENING, Counting, Progress, SilentProgress
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.skills.retrieval.bank_view import TIERS
from skill_ttrl.stages.evaluation.controls import check_controls, lists_actions
from skill_ttrl.stages.setup.checks import check_cut_series, check_ready, context_parts
from skill_ttrl.stages.setup.env_defaults import warn_unlisted
from skill_ttrl.stages.setup.leak import leaked, run_of, seen_by_run, seen_tasks, settle
from skill_ttrl.stages.setup.pin import data_revision
from skill_ttrl.stages.training.context import TrainingComponents
from skill_ttrl.stages.training.run_bank import RunBank
from skill_ttrl.types import Skill, Task, derive_seed

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skill_ttrl.llm.models.load import LoadedModel
    from skill_ttrl.rl.policy import Policy

Notice = Callable[[str], None]
_SPLITS = "A run trains on the split that env.train_split names, and is measured on that of env.eval_split."


@dataclass(frozen=True)
class Parts:
    """What it takes to put questions to a policy."""

    accelerator: Accelerator | None
    """Where weights compute; None of a remote model."""
    context: BackendContext
    """Loads the learner's model where it is looked at: a sampler that lives elsewhere needs none here."""
    backend: Backend
    agent: Agent


def build_policy(
    config: SkillTTRLConfig,
    *,
    weights: Path | None = None,
    trains: bool = False,
    notice: Notice = lambda text: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Parts:
    """Sampler and agent of a config; `weights` is a checkpoint to use in place of `model.path`.

    With `trains` the weights will change: the sampler must be able to follow them.
    """
    check_ready(config)
    accelerator: Accelerator | None = None
    place: dict[str, Any] = {}
    if not backend_facts(config).remote:
        from skill_ttrl.rl.device import autocast_dtype, make_accelerator

        accelerator = make_accelerator(config.runtime)
        place = {"device": str(accelerator.device), "autocast": autocast_dtype(accelerator)}
    context = BackendContext.of(
        config,
        partial(load_policy, config, accelerator, weights),
        **place,
        weights=weights,
        trains=trains,
        notice=notice,
        stopping=stopping,
    )
    backend = make_backend(context)
    try:
        refuse_unconstrained(config, backend, trains)
        return Parts(accelerator, context, backend, make_agent(config, backend))
    except BaseException:
        backend.close()
        raise


def refuse_unconstrained(config: SkillTTRLConfig, backend: Backend, trains: bool) -> None:
    """Raise `ConfigError` where actions are to be constrained, and the backend cannot, or the policy is to learn from them."""
    if not config.agent.constrain_actions:
        return
    if not backend.constrains:
        raise ConfigError(
            f"agent.constrain_actions needs a backend that can keep a completion to given texts; rollout.backend="
            f"{config.rollout.backend} cannot. Use vllm, or --set agent.constrain_actions=false."
        )
    if trains:
        raise ConfigError(
            "agent.constrain_actions is for measuring: the log-probs of constrained tokens are not the policy's, so nothing "
            "can be learnt from them. Train with --set agent.constrain_actions=false."
        )


def make_agent(config: SkillTTRLConfig, backend: Backend) -> Agent:
    """The agent that a config asks for; its prompts have skills where the config has a skills section."""
    numbered = config.agent.actions == "numbered"
    project = projection(config.agent.projection, resolve_env(config.env.id), numbered=numbered)
    listing = Listing.of(config.agent)
    window = make_window(config, backend) if config.agent.memory == "window" else None
    agent = config.agent if window is None else config.agent.model_copy(update={"template": "plain"})
    skills, formatter = config.skills, PromptFormatter.from_config(agent)
    if skills is not None:
        formatter = PromptFormatter.from_config(agent, skill_tokens=skills.prompt_tokens, count=backend.count_text)
    return Agent(formatter, agent.memory, window, skills, project=project, listing=listing)


def make_window(config: SkillTTRLConfig, backend: Backend) -> Window:
    """What makes the prompts of `agent.memory: window`."""
    return Window(
        Templates(config.agent.prompts),
        config.agent.template,
        system=config.agent.system,
        history=config.agent.history,
        observation_tokens=config.agent.observation_tokens,
        max_tokens=config.data.max_prompt_tokens,
        count=backend.count,
        count_text=backend.count_text,
        numbered=config.agent.actions == "numbered",
        asks=config.skills is not None and config.skills.max_retrievals > 0,
    )


def build(
    config: SkillTTRLConfig,
    progress: Progress,
    *,
    weights: Path | None = None,
    bank: RunBank | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> TrainingComponents:
    """Everything that a run needs.

    Args:
        config: the whole config.
        progress: told of what was left out.
        weights: a checkpoint folder to take the policy from, in place of `model.path`.
        bank: the run's skill bank, where its config has one.
        stopping: whether the user wants to leave; see `BackendContext`.

    Raises:
        SkillTTRLError: a part cannot be made; the message names it.
    """
    env_id = resolve_env(config.env.id)
    check_controls(config)
    train = training_tasks(config, env_id, config.data.train, progress)
    held_out = config.data.eval is not None or config.data.train is None
    evaluated = train
    if held_out:
        evaluated = source_tasks(
            config, env_id, config.data.eval, evaluation_split(config), config.env.eval_tasks, progress
        )
    check_cut_series(config, [*train, *evaluated])
    envs = EnvPool(lambda: make_env(env_id, **config.env.kwargs))
    check_text_env(envs.take(1)[0], train[0])

    warnings: list[str] = []
    parts = build_policy(config, weights=weights, trains=True, notice=progress.notice, stopping=stopping)
    try:
        policy = _policy(config, parts)
        _check_context(config, parts)
        train = fit_prompts(train, config.data, parts.backend, parts.agent, progress)
        if held_out:
            evaluated = fit_prompts(evaluated, config.data, parts.backend, parts.agent, progress)
            warnings = leaks(config, train, evaluated)
        else:
            evaluated = train
    except BaseException:
        parts.backend.close()
        raise
    if bank is not None and (unshown := bank.unshown([*train, *evaluated])):
        progress.notice(unshown, warning=True)
    return TrainingComponents(
        config=config,
        computes=parts.accelerator,
        learns=policy,
        backend=parts.backend,
        envs=envs,
        agent=parts.agent,
        train_tasks=[task.without_reference() for task in train],
        references={task.id: task.reference for task in train if task.reference is not None},
        eval_tasks=evaluated,
        transductive=not held_out,
        bank=bank,
        warnings=warnings,
    )


def build_for_eval(
    config: SkillTTRLConfig,
    problems: Mapping[str, Sequence[Task]],
    progress: Progress,
    *,
    weights: Path | None = None,
    bank: RunBank | None = None,
) -> tuple[TrainingComponents, dict[str, list[Task]]]:
    """What it takes to put problems to a policy that learns nothing from them, and those whose prompts fit.

    Args:
        config: the whole config; its `data` says no more than how long a prompt may be.
        problems: tasks by source, each with at least one.
        progress: told of what was left out.
        weights: as for `build`.
        bank: the skill bank to ask.

    Raises:
        SkillTTRLError: a part cannot be made; the message names it.
    """
    env_id = resolve_env(config.env.id)
    check_controls(config)
    every = [task for tasks in problems.values() for task in tasks]
    check_cut_series(config, every)
    envs = EnvPool(lambda: make_env(env_id, **config.env.kwargs))
    check_text_env(envs.take(1)[0], every[0])
    warn_unlisted(config, lists_actions(envs.take(1)[0], every, config.seed), progress)
    parts = build_policy(config, weights=weights, notice=progress.notice)
    if unformatted := template_warning(parts.backend):
        progress.notice(unformatted, warning=True)
    try:
        _check_context(config, parts)
        kept = {
            name: fit_prompts(tasks, config.data, parts.backend, parts.agent, progress)
            for name, tasks in problems.items()
        }
    except BaseException:
        parts.backend.close()
        raise
    bench = TrainingComponents(
        config=config,
        computes=parts.accelerator,
        learns=None,
        backend=parts.backend,
        envs=envs,
        agent=parts.agent,
        train_tasks=[],
        references={},
        eval_tasks=[],
        transductive=False,
        bank=bank,
    )
    return bench, kept


def _policy(config: SkillTTRLConfig, parts: Parts) -> Policy:
    from skill_ttrl.rl.policy import Policy

    return Policy(
        parts.context.loaded.model,
        parts.context.loaded.tokenizer,
        parts.context.device,
        gradient_checkpointing=config.model.gradient_checkpointing,
    )


def load_policy(config: SkillTTRLConfig, accelerator: Accelerator | None, weights: Path | None) -> LoadedModel:
    """The policy of a config, or of a checkpoint of it; `accelerator` None makes one.

    Weights that learn stay in float32, whatever the precision of the forward; frozen ones under LoRA need not.
    """
    from skill_ttrl.llm.models.load import load_checkpoint, load_model
    from skill_ttrl.rl.device import make_accelerator, weight_dtype

    accelerator = accelerator or make_accelerator(config.runtime)
    device = str(accelerator.device)
    dtype = weight_dtype(accelerator, frozen=config.model.lora is not None)
    if weights is not None:
        return load_checkpoint(weights, device=device, dtype=dtype, base=config.model)
    corpus = []
    if config.model.path == EMBEDDED and config.sft.data is not None:
        corpus = tokenizer_corpus(config.sft.data, seed=derive_seed(config.seed, "demonstrations"))
    elif config.model.path == EMBEDDED and config.demonstrations.trajectories is not None:
        corpus = episode_corpus(config.demonstrations.trajectories)
    return load_model(config.model, device=device, dtype=dtype, seed=derive_seed(config.seed, "model"), corpus=corpus)


def source_tasks(
    config: SkillTTRLConfig,
    env_id: str,
    source: SourceConfig | None,
    split: str,
    limit: int | None = None,
    progress: Progress | None = None,
) -> list[Task]:
    """The tasks of a source, or the environment's own where there is none; of these `limit`, spread over all (`envs.tasks.spread`).

    Raises:
        DataError: there are none, or they cannot be read.
    """
    if source is not None:
        tasks = load_tasks(source, env_id, split=split)
    else:
        told = Counting(progress or SilentProgress(), OPENING, prepare_unit(env_id, config.env.kwargs))
        with annotate_error(SplitError, _SPLITS):
            tasks = env_tasks(env_id, config.env.kwargs, split, limit, told)
    if not tasks:
        raise DataError(f"There are no {split} tasks in {source.path if source else env_id}.")
    return tasks


def training_tasks(
    config: SkillTTRLConfig, env_id: str, source: SourceConfig | None, progress: Progress | None = None
) -> list[Task]:
    """What a run is trained on: the tasks of `source`, or `env.train_tasks` of those of `env.train_split`.

    Raises:
        DataError, EnvError: there are none, or they cannot be read.
    """
    split = config.env.train_split if source is None else "train"
    return source_tasks(config, env_id, source, split, config.env.train_tasks, progress)


def evaluation_split(config: SkillTTRLConfig) -> str:
    """The name of what a run is measured on: the environment's own split, or "test" where the tasks come from files."""
    return config.env.eval_split if config.data.eval is None and config.data.train is None else "test"


def fit_prompts(
    tasks: Sequence[Task],
    config: DataConfig,
    backend: Backend,
    agent: Agent,
    progress: Progress,
) -> list[Task]:
    """Tasks whose prompt fits `max_prompt_tokens`; longer ones are left out, cut or refused as `overlong` says.

    Only tasks that state their question can be looked at beforehand; others pass. Skills have a budget of their own and
    are not counted here.
    """

    def length(question: str) -> int:
        return backend.count(agent.prompt(Scene(question)).messages)

    kept: list[Task] = []
    long: list[str] = []
    for task in tasks:
        question = task.options.get("question")
        if not isinstance(question, str) or length(question) <= config.max_prompt_tokens:
            kept.append(task)
            continue
        long.append(task.id)
        if config.overlong == "truncate":
            # The longest end of the question that fits: a prompt's tokens grow with its characters.
            start = bisect_left(
                range(len(question)), True, key=lambda i: length(question[i:]) <= config.max_prompt_tokens
            )
            kept.append(replace(task, options={**task.options, "question": question[start:]}))
    if long:
        found = f"{len(long)} of {len(tasks)} prompts are longer than {config.max_prompt_tokens} tokens"
        if config.overlong == "refuse":
            raise DataError(f"{found}, first {long[0]!r}. Raise data.max_prompt_tokens or set data.overlong=filter.")
        done = "left out" if config.overlong == "filter" else "cut at the left"
        progress.notice(f"{found} and were {done} (data.overlong={config.overlong}).", warning=True)
    if not kept:
        raise DataError(f"No prompt of {len(tasks)} fits data.max_prompt_tokens={config.max_prompt_tokens}.")
    return kept


def _check_context(config: SkillTTRLConfig, made: Parts) -> None:
    positions = made.backend.context
    parts = context_parts(config)
    if config.skills is not None:
        parts["the templates around skills"] = _around_skills(config.skills, made)
    needed = sum(parts.values())
    if positions is not None and needed > positions:
        sums = " + ".join(f"{name} ({tokens})" for name, tokens in parts.items())
        asked = " by vllm.max_model_len" if positions == config.vllm.max_model_len else ""
        raise ConfigError(f"{sums} = {needed} tokens, but the model has {positions} positions{asked}. Lower one.")


def _around_skills(skills: SkillsConfig, made: Parts) -> int:
    """Tokens of the templates that skills are put into; the budgets are of the skills alone."""
    backend, agent = made.backend, made.agent
    every = tuple(Skill("skill", "skill", "skill", tier=tier) for tier in TIERS)
    shown = every[1:2] if agent.window is None else every  # each tier has a heading of its own there
    render = agent.formatter.render_skill if agent.window is None else agent.window.skill
    with_skills, without = (backend.count(agent.prompt(Scene("question", skills=few)).messages) for few in (shown, ()))
    alone = sum(backend.count_text(render(each)) for each in shown)
    prompt = with_skills - without - alone + skills.in_prompt  # a line break for each
    found = backend.count_text(agent.formatter.render_skill(every[1]))
    told = backend.count_text(agent.formatter.render_retrieved([every[1]]))
    return max(0, prompt) + skills.max_retrievals * max(0, told - found + skills.retrieve_k - 1)


def leaks(config: SkillTTRLConfig, train: Sequence[Task], evaluated: Sequence[Task]) -> list[str]:
    """Lines that report held-out tasks that this run, or the run its weights come from, learns from.

    Raises:
        DataError: they are, and that is not to be reported but refused.
    """
    where = "data.train" if config.data.train is not None else f"env.train_split ({config.env.train_split})"
    found = settle(config, leaked(config, evaluated, seen_tasks(train), where))
    began = run_of(config.model.path)
    if began is None:
        return found
    try:
        seen = seen_by_run(load_config(began / "config.yaml"), own_training_tasks)
    except (DataError, EnvError, TrustError) as error:
        return [*found, f"What the run of {config.model.path} was trained on cannot be read any more ({error})."]
    return [*found, *settle(config, leaked(config, evaluated, seen, f"what {began} was trained on (model.path)"))]


def own_training_tasks(config: SkillTTRLConfig) -> list[Task]:
    """The training tasks of a config, from the very data that it has pinned.

    Raises:
        DataError, EnvError: they cannot be read.
    """
    source = config.data.train
    if source is not None:
        source = source.model_copy(update={"revision": data_revision(source)})
    return training_tasks(config, resolve_env(config.env.id), source)
