"""The rules: every reason why a run of a config cannot start.

`refusals` lists them from the config and this machine, `task_refusals` from the tasks. `train` and the commands of its phases, `evaluate` and
the other commands that sample, `--dry-run` and `doctor` all ask here, before anything is played, paid for or written. To add a rule,
yield an error in the function of its subject. The rules call experts, teachers, algorithms and backends by their names, so they stand
above all of these; what a section says of its own values alone is a validator of the config (`skill_ttrl.config.schema`). Left to the moment
when a model is loaded is what only its tokenizer and its positions tell (`policy.check_context`).

What needs torch is imported where it is looked up: `doctor` reports on each name where torch is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from skill_ttrl.agents.observations import find_observations
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.agents.scripted import check_adviser, find_scripted_agent, make_scripted_agent
from skill_ttrl.answers import conditions
from skill_ttrl.config import BUILTIN, BuiltinConfig, Phase, Role, SkillTTRLConfig
from skill_ttrl.cores import free_memory
from skill_ttrl.data.tasks import CHECK, find_family, longest_series
from skill_ttrl.envs.lookup import check_arguments, resolve_env
from skill_ttrl.envs.text_env import names_states
from skill_ttrl.errors import ConfigError, EnvError, ModelError, SkillTTRLError
from skill_ttrl.llm.backend import BackendContext, runs_ahead
from skill_ttrl.llm.backends import BACKENDS, REMOTE, backend_facts, is_remote, untrainable
from skill_ttrl.llm.openai.client import make_client
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.rl.parallel.environment import launched, local_world_size, strategy, world_size
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.info import failure, reset_options
from skill_ttrl.runs.stop_rules import find_rule
from skill_ttrl.runs.tracker import check_tracker
from skill_ttrl.signals import FAILURES
from skill_ttrl.skills.embedders import EMBEDDERS
from skill_ttrl.skills.mergers import make_merger
from skill_ttrl.skills.querying import OPENAI
from skill_ttrl.skills.retrieval import check_packages
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.stages.inputs.leak import named, run_of
from skill_ttrl.stages.inputs.selection import training_selection
from skill_ttrl.stages.inputs.tasks import gate_of, is_held_out, split_tasks
from skill_ttrl.stages.setup.defaults import with_algorithm_defaults, with_defaults, with_env_defaults
from skill_ttrl.stages.setup.open_bank import starting_skills
from skill_ttrl.stages.training.run_bank import models_of
from skill_ttrl.types import Task
from skill_ttrl.voting import check_strategy
from skill_ttrl.voting.rewards import MODEL_REWARD, VERIFY, build_reward
from skill_ttrl.voting.strategies import SEQUENTIAL, SequentialTest

PROCESS_BYTES = 450_000_000
"""Resident memory of a CPU process that has imported torch, transformers, accelerate and peft and computed a little."""
ROLLING: tuple[Phase, ...] = ("rl", "vote_sft", "dagger")
"""Phases of training that roll out."""
DATA_PHASES: tuple[Phase, ...] = ("collect", "distill")
"""Phases that change no weights."""


def check_run(config: SkillTTRLConfig, *, asks_ranks: bool = False, begun: bool = False) -> None:
    """Refuse a run that cannot start; arguments as for `refusals`.

    Raises:
        SkillTTRLError: the only reason, or a `ConfigError` that lists all of them.
    """
    raise_all(refusals(config, asks_ranks=asks_ranks, begun=begun))


def check_policy(config: SkillTTRLConfig) -> None:
    """Refuse a policy that cannot sample, for a command that trains nothing.

    Raises:
        SkillTTRLError: see `check_run`.
    """
    raise_all(refusals(config, trains=False))


def raise_all(errors: Iterator[SkillTTRLError]) -> None:
    """Raise what there is to raise.

    Raises:
        SkillTTRLError: the only error, or a `ConfigError` with a line for each.
    """
    if error := combined([*errors]):
        raise error


def combined(errors: Sequence[SkillTTRLError]) -> SkillTTRLError | None:
    """One error for all of them, with the exit code of a wrong config if one is about that; None where there are none."""
    if len(errors) <= 1:
        return errors[0] if errors else None
    lines = "\n".join(f"  {error}" for error in errors)
    found = ConfigError(f"The config has {len(errors)} problems:\n{lines}")
    found.exit_code = min(error.exit_code for error in errors)
    return found


def refusals(
    config: SkillTTRLConfig, *, trains: bool = True, asks_ranks: bool = False, begun: bool = False
) -> Iterator[SkillTTRLError]:
    """Every reason why a config cannot be run, as far as it and this machine tell, each once.

    Args:
        config: The config as given.
        trains: False: it is only measured, so rules on its phases do not apply.
        asks_ranks: The command line says how many ranks; without any GPU they then share the CPU.
        begun: The run has checkpoints, and its bank with them.
    """
    if config.requires:
        yield ConfigError(f"The config {config.name!r} cannot run: it requires {config.requires}.")
    names = [*_unknown_names(config, trains)]
    yield from names
    if names:  # what else is wrong may be their fault
        return
    try:
        config = with_defaults(config) if trains else with_env_defaults(config)
    except SkillTTRLError as error:
        yield error
        return
    yield from _of_prompts(config, trains)
    if trains:
        yield from _of_phases(config)
        yield from _of_model(config)
        yield from _of_votes(config)
        yield from _of_skills(config, begun)
        yield from _of_processes(config, asks_ranks)


def _failing(look: Callable[[], object]) -> Iterator[SkillTTRLError]:
    """The error of a lookup or a check that raises."""
    try:
        look()
    except SkillTTRLError as error:
        yield error


def _unknown_names(config: SkillTTRLConfig, trains: bool) -> Iterator[SkillTTRLError]:
    """Everything that the phases of a config call by a name that nothing has, each once."""
    env_id = None
    try:
        found = resolve_env(config.env.id)
        check_arguments(config.env.id, config.env.kwargs)
        config = with_env_defaults(config)
        env_id = found  # the environment may have brought the template
    except SkillTTRLError as error:
        yield error
    with suppress(SkillTTRLError):  # an unknown algorithm is found by its lookup
        config = with_algorithm_defaults(config)
    seen = set[str]()
    for look in _lookups(config, env_id, trains):
        for wrong in _failing(look):
            if str(wrong) not in seen:
                yield wrong
            seen.add(str(wrong))


def _lookups(config: SkillTTRLConfig, env_id: str | None, trains: bool) -> Iterator[Callable[[], object]]:
    agent, rl, skills, phases = config.agent, config.rl, config.skills, config.phases
    yield partial(find_observations, agent.observations)
    yield partial(BACKENDS.get, config.rollout.backend)
    if env_id is not None:
        if agent.windowed:
            yield lambda: Templates(agent.prompts).get(agent.template, of_a_turn=True)
        else:
            yield partial(PromptFormatter.from_config, agent)
        yield from (partial(make_scripted_agent, name, env_id, agent) for name in config.eval.controls)
        if trains and {"collect", "dagger"} & {*phases}:
            yield partial(find_scripted_agent, config.collect.agent, env_id)
    if not trains:
        return
    shown = config.demonstration_source if config.imitates else None
    yield from (
        partial(find_family, each) for each in (config.train_source, config.eval_source, shown) if each is not None
    )
    yield partial(check_tracker, config.run.report_to)
    models = models_of(config)
    if "distill" in phases:
        yield partial(make_teacher, config.distill.teacher, models=models)
    if skills is not None and skills.embeds:
        yield partial(EMBEDDERS.get, skills.embedder)
    if not config.reinforces:
        return
    yield partial(check_strategy, config.vote.strategy, config.vote.options)
    for name in (rl.reward, *rl.extra_rewards):
        if name != "label" and not name.startswith(MODEL_REWARD):  # these need answers or a model
            yield partial(build_reward, name, {})
    from skill_ttrl.rl.checks import check_algorithm, check_correction
    from skill_ttrl.rl.losses import build_loss

    facts, rollout = backend_facts(config), config.rollout
    yield partial(build_loss, rl.loss)
    yield partial(
        check_correction,
        rl,
        backend=rollout.backend,
        sampler_is_learner=facts.is_learner,
        gives_log_probs=facts.log_probs,
        truncates_sampling=rollout.top_p < 1 or rollout.top_k > 0,
    )
    yield partial(
        check_algorithm,
        rl,
        vote_strategy=config.vote.strategy,
        action_parser=agent.action_parser,
        multi_turn=agent.max_turns > 1,
    )
    if rl.stop_rule is not None:
        yield partial(find_rule, rl.stop_rule, rl.stop_options)
    if skills is not None and skills.update == "merge":
        yield partial(make_merger, skills.merger, models=models)
    if config.evolve is not None:
        yield partial(make_teacher, config.evolve.teacher, models=models)


def _of_prompts(config: SkillTTRLConfig, trains: bool) -> Iterator[SkillTTRLError]:
    """Forms of observations and actions, and what the backend must be able to do for them."""
    agent, name, facts = config.agent, config.rollout.backend, backend_facts(config)
    form = find_observations(agent.observations)
    if form is not None and form.actions is not None:
        others = {
            "agent.actions=numbered": agent.actions == "numbered",
            "agent.action_order=words": agent.action_order == "words",
            f"agent.hidden_verbs={agent.hidden_verbs}": bool(agent.hidden_verbs),
            "demonstrations.rationale=next_subgoal": config.demonstrations.rationale == "next_subgoal",
        }
        if found := [key for key, asked in others.items() if asked]:
            yield ConfigError(
                f"agent.observations={agent.observations} has its own form of actions, which {' and '.join(found)} would change. "
                f"Leave {'it' if len(found) == 1 else 'them'} out."
            )
    if agent.whole_episodes and (facts.remote or not facts.grows):
        yield ConfigError(
            f"agent.context_mode=episode needs a backend that takes tokens and has encode_next (skill_ttrl.llm.backend.Backend); "
            f"rollout.backend={name} does not. Use hf or vllm, or set agent.context_mode=conversation."
        )
    if agent.structured_actions and not facts.structured:
        yield ConfigError(
            f"agent.structured_actions needs a backend that can restrict a completion to given texts; rollout.backend={name} cannot. Use "
            "hf or vllm, or set agent.structured_actions=false."
        )
    elif agent.structured_actions and trains and not (facts.is_learner or facts.is_copy):
        yield ConfigError(
            f"agent.structured_actions with rollout.backend={name} works for evaluation only: the backend does not report which tokens "
            "were allowed, so the learner cannot score them. Train with rollout.backend=hf, or with agent.structured_actions=false."
        )


def _of_phases(config: SkillTTRLConfig) -> Iterator[SkillTTRLError]:
    """Phases that nothing feeds, or that train nothing."""
    phases, shown = config.phases, config.demonstrations
    yield from _failing(partial(learning_phases, config))
    if config.agent.whole_episodes and config.imitates and shown.rationale == "openai":
        yield ConfigError(
            "demonstrations.rationale=openai needs single steps, but agent.context_mode=episode imitates whole episodes. Set "
            "demonstrations.rationale to none, skill or next_subgoal, or agent.context_mode=conversation."
        )
    if "collect" in phases:
        yield from _failing(partial(training_selection, config))
    elif "distill" in phases and shown.trajectories is None:
        yield ConfigError(
            "The phase distill needs episodes: add the phase collect before it, or name a file in demonstrations.trajectories."
        )
    elif config.imitates and config.sft.data is None and shown.trajectories is None:
        yield ConfigError(
            "The phase sft needs something to imitate (and dagger too): put the phase collect before it, name a file of episodes in "
            "demonstrations.trajectories, or demonstrations in sft.data.path (see `skillttrl configs quickstart`)."
        )
    if "dagger" not in phases:
        return
    expert = find_scripted_agent(config.collect.agent, resolve_env(config.env.id))
    if expert is None:
        yield ConfigError(
            f"The phase dagger asks an expert in every state, but collect.agent={config.collect.agent} is a policy. Name a scripted "
            "agent, such as expert."
        )
    else:
        yield from _failing(partial(check_adviser, expert))


def _of_model(config: SkillTTRLConfig) -> Iterator[SkillTTRLError]:
    """The weights that learn, what samples with them, and the tokens that both have room for."""
    model, sft, facts = config.model, config.sft, backend_facts(config)
    if not facts.trainable:
        yield ConfigError(untrainable(config.rollout.backend))
    if model.lora is not None and model.path == BUILTIN:
        yield ConfigError(
            "model.lora needs a trained model; the built-in one starts from random weights. Leave model.lora out, or "
            "set model.path to a trained model."
        )
    intended = model.path == BUILTIN or model.builtin == BuiltinConfig() or run_of(model.path)
    if "sft" in config.phases and not intended:
        yield ConfigError(
            f"The cold start of this config (phase sft, {sft.steps} steps at learning rate {sft.learning_rate:g}) is made for the built-in "
            f"model and would overwrite what {model.path} knows. Train with the recipe quickstart_pretrained, or set phases=[rl]. To "
            "imitate all the same, set model.builtin={}."
        )
    if facts.remote:
        return
    if config.runtime.device not in ("auto", "cpu"):
        from skill_ttrl.rl.device import resolve_device

        bad_device = [*_failing(partial(resolve_device, config.runtime.device))]
        yield from bad_device
        if bad_device:
            return
    from skill_ttrl.llm.models.load import load_model_config

    try:
        text = load_model_config(model).get_text_config()
    except SkillTTRLError as error:
        yield error
        return
    engine = config.vllm.max_model_len if facts.engine else None
    known = [each for each in (getattr(text, "max_position_embeddings", None), engine) if each is not None]
    yield from _failing(lambda: refuse_length(config, context_parts(config), min(known, default=None)))
    if facts.engine:
        from skill_ttrl.llm.vllm.checks import check_fits
        from skill_ttrl.rl.device import resolve_device

        def nothing() -> Any:
            raise AssertionError("the rules load no model")

        device = str(resolve_device(config.runtime.device))
        yield from _failing(lambda: check_fits(BackendContext(config, nothing, device, trains=config.reinforces)))


def _of_votes(config: SkillTTRLConfig) -> Iterator[SkillTTRLError]:
    """Groups that are too small to vote or to compare, and rounds that save nothing."""
    rollout, rl, votes = config.rollout, config.rl, config.rollout.n_votes_per_prompt
    if votes == 1 and config.votes and "majority" in (rl.reward, *rl.extra_rewards):
        yield ConfigError(
            "The reward majority needs several votes, but rollout.n_votes_per_prompt is 1, and a single vote always agrees with "
            "itself. Raise it (TTRL: 64), or set another rl.reward."
        )
    if not config.reinforces:
        return
    if rollout.n_samples_per_prompt == 1:
        from skill_ttrl.rl.algorithms import GroupRelative, build_algorithm

        algorithm = build_algorithm(rl.algorithm)
        # Some algorithms give a group of one sample an advantage; an estimate tells.
        if isinstance(algorithm, GroupRelative) and not algorithm.estimate([1.0, 0.0], [0, 1]).any():
            yield ConfigError(
                f"rl.algorithm={rl.algorithm['type']} compares the samples of a group, but rollout.n_samples_per_prompt is 1, so "
                "every advantage would be 0. Raise it, or set rl.algorithm=reinforce_plus_plus."
            )
    if config.vote.strategy != SEQUENTIAL:
        return
    if (first := SequentialTest(**config.vote.options).first) >= votes:
        yield ConfigError(
            f"vote.strategy={SEQUENTIAL} looks after {first} samples (vote.options.first), but rollout.n_votes_per_prompt is {votes}, so "
            "nothing would be saved. Lower the first, raise the other, or set vote.strategy=majority."
        )
    if rl.reward == "env":
        yield ConfigError(
            f"vote.strategy={SEQUENTIAL} stops where answers agree, but rl.reward=env rewards no answers. Set vote.strategy=majority, "
            "or rl.reward=majority."
        )


def _of_skills(config: SkillTTRLConfig, begun: bool) -> Iterator[SkillTTRLError]:
    """The bank to begin with, its packages, and the language models that are asked. Nothing is sent."""
    skills, used = config.skills, roles_used(config)
    if skills is not None and not begun:
        yield from _failing(partial(starting_skills, skills))
    if skills is not None:
        yield from _failing(partial(check_packages, skills))
    edits = config.reinforces and config.optimize is not None and config.optimize.every is not None
    if edits and (skills is None or not skills.enabled):
        yield ConfigError(
            "optimize.every edits the run's skill bank, and this run has none in use. Add a skills section, or remove it."
        )
    if edits and config.optimize is not None and config.optimize.lr_scheduler in ("autonomous", "none"):
        yield ConfigError(
            f"optimize.every needs a schedule, and optimize.lr_scheduler is {config.optimize.lr_scheduler}. Set it to cosine."
        )
    if not edits:
        used.discard("optimizer")  # only the command optimize queries it
    for role in sorted(used):
        yield from _failing(lambda role=role: make_client(config.endpoints, role).shut())  # type: ignore[misc]


def _of_processes(config: SkillTTRLConfig, asks_ranks: bool) -> Iterator[SkillTTRLError]:
    """Ranks that train together, rollouts ahead of the learner, and workers of a cluster."""
    ranks, device, backend = planned_ranks(config), config.runtime.device, config.rollout.backend
    how = None
    try:
        how = strategy(config.runtime, ranks, on_gpu=device not in ("cpu", "mps") and bool(_gpus()))
    except SkillTTRLError as error:
        yield error
    if ranks > 1:
        if ":" in device or device == "mps":
            yield ConfigError(
                f"runtime.device is {device!r}, a single device, but there are {ranks} ranks. Set it to cuda, cpu or auto: each rank "
                "uses the GPU of its number."
            )
        if backend == "vllm" and config.vllm.mode == "colocate":
            yield ConfigError(
                f"vllm.mode=colocate puts an engine into the learner's process, but there are {ranks} ranks. Start servers (skillttrl "
                "serve) and set vllm.mode=server, or use rollout.backend=hf."
            )
        if how == "fsdp" and backend not in ("hf", "vllm"):
            yield ConfigError(
                f"rollout.backend={backend} samples with one process's weights, but runtime.parallel=fsdp spreads them over {ranks}. "
                "Set runtime.parallel=ddp, or use hf or vllm."
            )
        yield from _failing(partial(check_gpus, config, asked=asks_ranks))
    if runs_ahead(config):
        facts, skills = backend_facts(config), config.skills
        needs = {
            "a sampler in another process than the learner's (vllm.mode=server, or rollout.backend=hf)": facts.engine,
            "a sampler with weights of its own, so none with is_learner (rollout.backend=hf, or vLLM servers)": facts.is_learner,
            "vllm.enable_sleep_mode=false": backend == "vllm" and config.vllm.enable_sleep_mode,
            "runtime.nproc=1": ranks > 1,
            "rl.dynamic_sampling=0": config.rl.dynamic_sampling > 0,
            "skills.gate=null": skills is not None and skills.gate is not None,
        }
        if found := [need for need, lacks in needs.items() if lacks]:
            yield ConfigError(
                f"rl.max_staleness={config.rl.max_staleness} samples while the learner computes. It needs {', and '.join(found)}. Or "
                "set rl.max_staleness=0."
            )
    if config.scale.address is not None:
        yield from _of_workers(config)


def _of_workers(config: SkillTTRLConfig) -> Iterator[SkillTTRLError]:
    """A cluster that no phase would use, or could not use."""
    address, rollout, count = config.scale.address, config.rollout, config.rl.prompts_per_step
    if "collect" not in config.phases and not rolls_out_on_workers(config):
        yield ConfigError(
            f"scale.address={address} distributes the phases collect, {', '.join(ROLLING)}, and the commands collect, evaluate and "
            f"vote, but phases is {config.phases}. Leave it out. For several GPUs here: --nproc."
        )
        return
    shares = rolls_out_on_workers(config)
    # False where nobody is asked, None where a policy is.
    asks_agent = "collect" in config.phases and find_scripted_agent(config.collect.agent, resolve_env(config.env.id))
    if asks_agent is None or shares:
        yield from _failing(partial(check_shared_policy, config))
    if shares and rollout.backend != "hf":
        yield ConfigError(
            f"scale.address={address} samples with hf on the workers, but rollout.backend is {rollout.backend}. Leave it out; vLLM "
            "has its own servers (vllm.servers)."
        )
    elif shares and (rollout.prompts_per_batch is None or (1 < count <= rollout.prompts_per_batch and config.votes)):
        yield ConfigError(
            f"scale.address={address} gives each worker one batch of prompts, but with "
            f"rollout.prompts_per_batch={rollout.prompts_per_batch or 'null'} all {count} prompts of a step are one batch. Lower "
            f"it, for example to {max(1, count // 8)} (it changes which samples a seed gives)."
        )


def check_shared_policy(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where workers on other machines would send requests that no ledger here records and no budget bounds."""
    remote = backend_facts(config).remote
    if remote or (config.skills is not None and config.skills.embedder == OPENAI):
        what = f"rollout.backend={config.rollout.backend}" if remote else f"skills.embedder={OPENAI}"
        raise ConfigError(
            f"scale.address={config.scale.address} distributes policies that workers load. {what} calls a remote model, whose cost "
            "one process must count: leave out scale.address."
        )


def check_gpus(config: SkillTTRLConfig, *, asked: bool = False) -> None:
    """Check that this machine has a GPU for each rank, or memory for all of them on the CPU.

    Args:
        config: The whole config.
        asked: The command line says how many ranks; without any GPU they then share the CPU. Ranks that were started are asked for.

    Raises:
        ModelError: there are fewer GPUs than ranks, or the ranks alone take more memory than the CPU has.
    """
    ranks, device = local_world_size() if launched() else config.runtime.nproc or 1, config.runtime.device
    found = 0 if device == "cpu" else _gpus()
    if device == "cpu" or (not found and device == "auto" and (asked or launched())):
        needed, available = ranks * PROCESS_BYTES, free_memory()
        if needed > available and not launched():  # else they are here
            raise ModelError(
                f"{ranks} ranks on the CPU (runtime.nproc) need {needed / 1e9:.1f} GB of memory even without a model; "
                f"{available / 1e9:.1f} GB are free. Start fewer: --nproc."
            )
        return
    if found >= ranks or device == "mps":
        return
    here = {0: "no CUDA device", 1: "one GPU"}.get(found, f"{found} GPUs")
    fewer = f"--nproc {found}" if found > 1 else "--nproc 1 --set runtime.parallel=auto"
    raise ModelError(
        f"{ranks} ranks (runtime.nproc) need one GPU each, and torch finds {here} on this machine. Start fewer: {fewer}; or "
        "choose a smaller config (skillttrl configs). Ranks of a small model can share the CPU: --set runtime.device=cpu."
    )


def _gpus() -> int:
    from skill_ttrl.rl.device import gpu_count

    return gpu_count()


def task_refusals(
    config: SkillTTRLConfig, train: Sequence[Task] | None, evaluated: Sequence[Task] | None, envs: EnvPool | None
) -> Iterator[SkillTTRLError]:
    """Every reason why a run cannot start with its tasks.

    Args:
        config: The config, with its defaults (`with_defaults`).
        train: The tasks to train on; None: not known yet.
        evaluated: The held-out tasks; None: the run is measured on its training tasks, or they are not known yet.
        envs: Environments that can play them.
    """
    rl = config.rl
    if not is_held_out(config):
        same, instead = (
            "and this run evaluates on the same tasks.",
            "separate evaluation tasks (data.eval), or remove it.",
        )
        if config.evolve is not None and config.reinforces:
            yield ConfigError(f"evolve learns from success on the training tasks, {same} Give it {instead}")
        if config.optimize is not None and config.optimize.every is not None and config.reinforces:
            yield ConfigError(
                f"optimize.every edits the bank by results on the training tasks, {same} Give it {instead}"
            )
        if gate_of(config) is not None:
            yield ConfigError(f"skills.gate decides by success on training tasks, {same} Give it {instead}")
    if train is None or not config.votes:
        return
    rewards = (rl.reward, *rl.extra_rewards)
    yield from _failing(partial(check_training_tasks, config, train))
    if not config.reinforces:
        return
    missing = [task.id for task in train if task.ground_truth is None]
    if "label" in rewards and missing:
        yield ConfigError(
            f"The reward label needs a true answer for every training task; {len(missing)} of {len(train)} have none, first "
            f"{missing[0]!r}. Use rl.reward=majority, or remove those tasks."
        )
    gate = gate_of(config)
    if gate is not None and gate.data is None:
        yield from _failing(partial(split_tasks, train, gate.tasks, config.seed))
    if envs is None:
        return
    from skill_ttrl.rl.algorithms import build_algorithm, requirements

    if "states" in requirements(build_algorithm(rl.algorithm)) and not names_states(envs.acquire(1)[0], train[0]):
        yield ConfigError(
            f"rl.algorithm={rl.algorithm['type']} compares steps from the same exact state, but {config.env.id} does not "
            'report its state (info["state"], see skill_ttrl.envs.state_digest). Use alfworld, webshop or another environment that '
            "does, or rl.algorithm=gigpo, which compares observations."
        )
    graded = {
        "The reward env": "env" in rewards,
        "evolve": config.evolve is not None,
        "skills.gate": gate is not None and gate.data is None,
    }
    if asking := [name for name, asked in graded.items() if asked]:
        yield from _failing(partial(check_graded, train[0].without_ground_truth(), envs, " and ".join(asking)))


def check_cut_series(config: SkillTTRLConfig, tasks: Iterable[Task]) -> None:
    """Raise `ConfigError` where an episode would end before its last problem: the answer to another one would be judged."""
    longest = longest_series(tasks)
    if longest > config.agent.max_turns:
        raise ConfigError(
            f"A series has up to {longest} problems, but agent.max_turns is {config.agent.max_turns}, so the last would never be "
            f"shown. Set agent.max_turns={longest}."
        )


def check_graded(task: Task, envs: EnvPool, asking: str) -> None:
    """Raise `ConfigError` where the environment says that it cannot grade a task as it is given."""
    env = envs.acquire(1)[0]
    try:
        env.reset(seed=task.seed, options=reset_options(task))
        graded = env.step("")[4].get("graded")
    except FAILURES as raised:
        raise EnvError(f"{task.env_id} failed on task {task.id!r}: {failure(raised)}") from raised
    if graded is False:
        raise ConfigError(
            f"{asking} needs the environment's own success, but {task.env_id} cannot grade without true answers, which these tasks "
            "lack. Remove it (rl.reward: majority or label), or name tasks with their answers (skills.gate.data)."
        )


def check_training_tasks(config: SkillTTRLConfig, tasks: Sequence[Task]) -> None:
    """Raise `ConfigError` where a step takes more tasks than there are to train on, or one has no check for the reward `verify`."""
    if VERIFY in (config.rl.reward, *config.rl.extra_rewards):
        for task in tasks:
            try:
                conditions(task.options[CHECK])
            except (KeyError, TypeError, ValueError) as error:
                found = "has none" if isinstance(error, KeyError) else f"has one that cannot be read: {error}"
                raise ConfigError(
                    f"The reward verify needs a check for every training task; {named(task)} {found}. Add the field `check`, for example "
                    '"x + 7 = 25", or set rl.reward=majority.'
                ) from None
    if config.rl.prompts_per_step > len(tasks):
        raise ConfigError(
            f"rl.prompts_per_step is {config.rl.prompts_per_step}, but the number of training tasks is {len(tasks)}. Lower it, or add "
            "tasks."
        )


def context_parts(config: SkillTTRLConfig) -> dict[str, int]:
    """Tokens that the longest prompt and answer may take together, by the settings that bound them."""
    parts = {
        "data.max_prompt_tokens": config.data.max_prompt_tokens,
        "rollout.max_new_tokens": config.rollout.max_new_tokens,
    }
    if (skills := config.skills) is not None and skills.enabled:
        parts["skills.prompt_max_tokens"] = skills.prompt_max_tokens if skills.prompt_top_k else 0
        parts["skills.max_retrievals x skills.retrieval_max_tokens"] = (
            skills.max_retrievals * skills.retrieval_max_tokens
        )
    return parts


def refuse_length(config: SkillTTRLConfig, parts: Mapping[str, int], positions: int | None) -> None:
    """Raise `ConfigError` where `parts` have more tokens together than there are positions; the message says what to set."""
    needed = sum(parts.values())
    if positions is None or needed <= positions:
        return
    sums = " + ".join(f"{name} ({tokens})" for name, tokens in parts.items() if tokens)
    bound = " by vllm.max_model_len" if positions == config.vllm.max_model_len else ""
    builtin = f", or set model.builtin.max_positions={needed}" if config.model.path == BUILTIN else ""
    raise ConfigError(f"{sums} = {needed} tokens, but the model has {positions} positions{bound}. Lower one{builtin}.")


def planned_ranks(config: SkillTTRLConfig) -> int:
    """Number of ranks of a run: those that were started, else those that `skillttrl train` would start."""
    return world_size() if launched() else config.runtime.nproc or 1


def learning_phases(config: SkillTTRLConfig) -> list[Phase]:
    """The phases in which weights change.

    Raises:
        ConfigError: there are none.
    """
    found = [phase for phase in config.phases if phase not in DATA_PHASES]
    if not found:
        raise ConfigError(
            f"None of the phases trains: phases is {config.phases}. To only collect or distill: skillttrl collect, skillttrl "
            "distill."
        )
    return found


def roles_used(config: SkillTTRLConfig) -> set[Role]:
    """The endpoints that a run of the config sends requests to."""
    phases, skills = config.phases, config.skills
    rationales = config.imitates and config.sft.data is None and config.demonstrations.rationale == OPENAI
    evolves = config.reinforces and config.evolve is not None and config.evolve.teacher == OPENAI
    merges = config.reinforces and skills is not None and skills.update == "merge" and skills.merger == OPENAI
    uses: dict[Role, bool] = {
        "policy": config.rollout.backend == REMOTE or ("collect" in phases and is_remote(config.collect.agent)),
        "merger": merges,
        "teacher": rationales or evolves or ("distill" in phases and config.distill.teacher == OPENAI),
        "embeddings": skills is not None and skills.embeds and skills.embedder == OPENAI,
        "optimizer": config.optimize is not None and config.optimize.optimizer == OPENAI,
    }
    return {role for role, used in uses.items() if used}


def uncorrected_staleness(config: SkillTTRLConfig) -> str | None:
    """Return the warning of a run that takes the log-probs of older weights for those of the present ones; None where it does not."""
    if not runs_ahead(config) or config.rl.rollout_correction != "none":
        return None
    return (
        f"rl.max_staleness={config.rl.max_staleness} with rl.rollout_correction=none treats the log-probs of older weights "
        "as the learner's: nothing corrects the difference, and no effective sample size is logged. Set "
        "rl.rollout_correction=auto."
    )


def rolls_out_on_workers(config: SkillTTRLConfig) -> bool:
    """True if a phase of training rolls out, so that workers can."""
    return any(phase in config.phases for phase in ROLLING)
