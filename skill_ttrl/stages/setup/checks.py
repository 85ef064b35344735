"""Every rule on how a run's settings fit together, for `train`, `--dry-run` and `doctor`; all mistakes are listed at once.

To add a name that a config calls, add its lookup to `lookups`; to add a rule on a combination of settings, write a function that
raises `SkillTTRLError` and name it in `RULES`. Rules that need tasks or a backend are called where those are made:
`check_cut_series`, `check_states`, `check_training_tasks`, `check_constrained`, `check_grows`. Rules on values alone are validators of the config
(`skill_ttrl.config.schema`). What needs torch is imported where it is looked up: `doctor` reports on each name where torch is
broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium

from skill_ttrl.agents.observations import find_observations
from skill_ttrl.agents.prompt import PromptFormatter
from skill_ttrl.agents.scripted import check_adviser, find_scripted_agent, make_scripted_agent
from skill_ttrl.answers import conditions
from skill_ttrl.config import BUILTIN, BuiltinConfig, Phase, Role, SkillTTRLConfig
from skill_ttrl.config.scale import AUTO
from skill_ttrl.cores import free_memory
from skill_ttrl.data.tasks import CHECK, find_family, longest_series
from skill_ttrl.envs.lookup import check_arguments, resolve_env
from skill_ttrl.envs.text_env import names_states
from skill_ttrl.errors import ConfigError, ModelError, SkillTTRLError
from skill_ttrl.llm.backend import Backend, runs_ahead
from skill_ttrl.llm.backends import BACKENDS, REMOTE, backend_facts, check_trainable, is_remote
from skill_ttrl.llm.openai.client import make_client
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.rl.parallel.environment import launched, local_world_size, strategy, world_size
from skill_ttrl.runs.stop_rules import find_rule
from skill_ttrl.runs.tracker import check_tracker
from skill_ttrl.skills.merge.make import MERGERS, make_merger
from skill_ttrl.skills.querying import OPENAI
from skill_ttrl.skills.retrieval.make import EMBEDDERS, check_packages
from skill_ttrl.skills.teachers.make import TEACHERS, make_teacher
from skill_ttrl.stages.inputs.leak import run_of
from skill_ttrl.stages.inputs.selection import training_selection
from skill_ttrl.stages.setup.defaults import with_algorithm_defaults, with_defaults, with_env_defaults
from skill_ttrl.stages.setup.open_bank import check_start
from skill_ttrl.stages.training.run_bank import models_of
from skill_ttrl.stages.training.votes import check_vote
from skill_ttrl.types import Message, Task
from skill_ttrl.voting import shapes_advantages
from skill_ttrl.voting.rewards import MODEL_REWARD, VERIFY, build_reward
from skill_ttrl.voting.strategies import SEQUENTIAL, SequentialTest

PROCESS_BYTES = 450_000_000
"""Resident memory of a CPU process that has imported torch, transformers, accelerate and peft and computed a little."""


def planned_ranks(config: SkillTTRLConfig) -> int:
    """Number of ranks of a run: those that were started, else those that `skillttrl train` would start."""
    return world_size() if launched() else config.runtime.nproc or 1


def check_ranks(config: SkillTTRLConfig) -> None:
    """Check that the ranks of a run have devices, weights and a sampler.

    Raises:
        ConfigError: settings that do not fit together, or not with this number of ranks.
        ModelError: there are fewer GPUs than ranks.
    """
    ranks, device = planned_ranks(config), config.runtime.device
    how = strategy(config.runtime, ranks, on_gpu=_on_gpu(device))
    if ranks == 1:
        return
    if ":" in device or device == "mps":
        raise ConfigError(
            f"runtime.device is {device!r}, a single device, but there are {ranks} ranks. Set it to cuda, cpu or auto: each rank "
            "uses the GPU of its number."
        )
    backend = config.rollout.backend
    if backend == "vllm" and config.vllm.mode == "colocate":
        raise ConfigError(
            f"vllm.mode=colocate puts an engine into the learner's process, but there are {ranks} ranks. Start servers (skillttrl "
            "serve) and set vllm.mode=server, or use rollout.backend=hf."
        )
    if how == "fsdp" and backend not in ("hf", "vllm"):
        raise ConfigError(
            f"rollout.backend={backend} samples with one process's weights, but runtime.parallel=fsdp spreads them over {ranks}. "
            "Set runtime.parallel=ddp, or use hf or vllm."
        )


def check_started(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where a run is to have several ranks and this process is alone: in Python nothing starts the others."""
    if (asked := config.runtime.nproc or 1) > 1 and not launched():
        raise ConfigError(
            f"runtime.nproc is {asked}, but this process runs alone. Start the run with skillttrl train or torchrun, or set "
            "runtime.nproc=1."
        )


def check_gpus(config: SkillTTRLConfig, *, asked: bool = False) -> None:
    """Check that this machine has a GPU for each rank; called where a run starts, not where one is planned.

    Args:
        config: The whole config.
        asked: The command line says how many ranks; without any GPU they then share the CPU. Ranks that were started are asked for.

    Raises:
        ModelError: there are fewer GPUs than ranks, or the ranks alone take more memory than the CPU has.
    """
    ranks, device = local_world_size() if launched() else config.runtime.nproc or 1, config.runtime.device
    if ranks == 1:
        return
    if device == "cpu":
        check_processes(ranks)
        return
    from skill_ttrl.rl.device import gpu_count

    found = gpu_count()
    if found >= ranks or device == "mps":
        return
    if not found and device == "auto" and (asked or launched()):
        check_processes(ranks)
        return
    here = {0: "no CUDA device", 1: "one GPU"}.get(found, f"{found} GPUs")
    fewer = f"--nproc {found}" if found > 1 else "--nproc 1 --set runtime.parallel=auto"
    raise ModelError(
        f"{ranks} ranks (runtime.nproc) need one GPU each, and torch finds {here} on this machine. Start fewer: {fewer}; or "
        "choose a smaller config (skillttrl configs). Ranks of a small model can share the CPU: --set runtime.device=cpu."
    )


def check_processes(ranks: int) -> None:
    """Raise `ModelError` where the CPU's memory does not hold so many processes, whatever their model is."""
    if launched():  # they are here
        return
    needed, available = ranks * PROCESS_BYTES, free_memory()
    if needed > available:
        raise ModelError(
            f"{ranks} ranks on the CPU (runtime.nproc) need {needed / 1000000000.0:.1f} GB of memory even without a model; "
            f"{available / 1000000000.0:.1f} GB are free. Start fewer: --nproc."
        )


def _on_gpu(device: str) -> bool:
    if device in ("cpu", "mps"):
        return False
    from skill_ttrl.rl.device import gpu_count

    return bool(gpu_count())


ROLLING: tuple[Phase, ...] = ("rl", "vote_sft", "dagger")
"""Phases of training that roll out."""
DATA_PHASES: tuple[Phase, ...] = ("collect", "distill")
"""Phases that change no weights."""


def check_ready(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` for a recipe that needs a part which is not there yet."""
    if config.requires:
        raise ConfigError(f"The config {config.name!r} cannot run: it requires {config.requires}.")


def check_names(config: SkillTTRLConfig) -> None:
    """Check that everything a config calls by name exists; all unknown names are in the message.

    Raises:
        SkillTTRLError: the error itself where there is one, a `ConfigError` with a line for each where there are several.
    """
    wrong = list(wrong_names(config))
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        lines = "\n".join(f"  {error}" for error in wrong)
        raise ConfigError(f"The config has {len(wrong)} problems:\n{lines}")


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
    phases, skills, rl = config.phases, config.skills, "rl" in config.phases
    rationales = config.imitates and config.sft.data is None and config.demonstrations.rationale == OPENAI
    evolves = rl and config.evolve is not None and config.evolve.teacher == OPENAI
    uses: dict[Role, bool] = {
        "policy": config.rollout.backend == REMOTE or ("collect" in phases and is_remote(config.collect.agent)),
        "merger": rl and skills is not None and skills.update == "merge" and skills.merger == OPENAI,
        "teacher": rationales or evolves or ("distill" in phases and config.distill.teacher == OPENAI),
        "embeddings": skills is not None and skills.embeds and skills.embedder == OPENAI,
        "optimizer": config.optimize is not None and config.optimize.optimizer == OPENAI,
    }
    return {role for role, used in uses.items() if used}


def check_models(config: SkillTTRLConfig) -> None:
    """Check endpoints, keys and packages of the language models that a run queries, and make its teachers and merger. Nothing is sent.

    Raises:
        ConfigError, MissingDependencyError: what is missing.
    """
    models, skills, used = models_of(config), config.skills, roles_used(config)
    if config.optimize is not None and config.optimize.every is None:
        used.discard("optimizer")  # only the command optimize queries it
    for role in sorted(used):
        make_client(config.endpoints, role).shut()
    if "distill" in config.phases:
        make_teacher(config.distill.teacher, models=models)
    if "rl" in config.phases and config.evolve is not None:
        make_teacher(config.evolve.teacher, models=models)
    if "rl" in config.phases and skills is not None and skills.update == "merge":
        make_merger(skills.merger, models=models)


def check_episodes(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where skills are to be distilled from episodes that nothing names, or thoughts asked for that have no place."""
    if config.agent.context_mode == "episode" and config.imitates and config.demonstrations.rationale == "openai":
        raise ConfigError(
            "demonstrations.rationale=openai needs single steps, but agent.context_mode=episode imitates whole episodes. Set "
            "demonstrations.rationale to none, skill or aim, or agent.context_mode=conversation."
        )
    if "distill" in config.phases and "collect" not in config.phases and config.demonstrations.trajectories is None:
        raise ConfigError(
            "The phase distill needs episodes: add the phase collect before it, or name a file in demonstrations.trajectories."
        )


def check_model(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where adapters are to be trained on random weights, and `ModelError` where the device is not there."""
    if config.model.lora is not None and config.model.path == BUILTIN:
        raise ConfigError(
            "model.lora needs a trained model; the built-in one starts from random weights. Leave model.lora out, or "
            "set model.path to a trained model."
        )
    intended = config.model.path == BUILTIN or config.model.builtin == BuiltinConfig() or run_of(config.model.path)
    if "sft" in config.phases and not intended:
        raise ConfigError(
            f"The cold start of this config (phase sft, {config.sft.steps} steps at learning rate {config.sft.learning_rate:g}) is made for the "
            f"built-in model and would overwrite what {config.model.path} knows. Train with the recipe quickstart_pretrained, or set "
            "phases=[rl]. To imitate all the same, set model.builtin={}."
        )
    if config.runtime.device not in ("auto", "cpu"):
        from skill_ttrl.rl.device import resolve_device

        resolve_device(config.runtime.device)


def check_bank(config: SkillTTRLConfig) -> None:
    """Raise `SkillBankError` or `MissingDependencyError` where the bank to begin with cannot be read or searched."""
    if config.skills is not None:
        check_start(config.skills)
        check_packages(config.skills)


def check_engine(config: SkillTTRLConfig) -> None:
    """Raise `MissingDependencyError` where vLLM is to run in this process and is not installed."""
    if backend_facts(config).engine:
        from skill_ttrl.llm.vllm.checks import runs_on_cpu

        runs_on_cpu()


def check_groups(config: SkillTTRLConfig) -> None:
    """Check that a vote has more than one voter, and that the algorithm can learn from groups of the trained size.

    Raises:
        ConfigError: each sample would win its own vote, or every advantage would be 0.
    """
    rollout, rl = config.rollout, config.rl
    if not {"rl", "vote_sft"} & {*config.phases}:
        return
    if rollout.n_votes_per_prompt == 1 and "majority" in (rl.reward, *rl.extra_rewards):
        raise ConfigError(
            "The reward majority needs several votes, but rollout.n_votes_per_prompt is 1, and a single vote always agrees with "
            "itself. Raise it (TTRL: 64), or set another rl.reward."
        )
    if "rl" not in config.phases or rollout.n_samples_per_prompt > 1:
        return
    from skill_ttrl.rl.algorithms import GroupRelative, build_algorithm

    algorithm = build_algorithm(rl.algorithm)
    # Some algorithms give a group of one sample an advantage; an estimate tells.
    if isinstance(algorithm, GroupRelative) and not algorithm.estimate([1.0, 0.0], [0, 1]).any():
        raise ConfigError(
            f"rl.algorithm={rl.algorithm['type']} compares the samples of a group, but rollout.n_samples_per_prompt is 1, so every "
            "advantage would be 0. Raise it, or set rl.algorithm=reinforce_plus_plus."
        )


def check_rounds(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where votes are to end sampling, and there is but one round, or nothing that votes."""
    if config.vote.strategy != SEQUENTIAL or "rl" not in config.phases:
        return
    first, most = SequentialTest(**config.vote.options).first, config.rollout.n_votes_per_prompt
    if first >= most:
        raise ConfigError(
            f"vote.strategy={SEQUENTIAL} looks after {first} samples (vote.options.first), but rollout.n_votes_per_prompt is {most}, so "
            "nothing would be saved. Lower the first, raise the other, or set vote.strategy=majority."
        )
    if config.rl.reward == "env":
        raise ConfigError(
            f"vote.strategy={SEQUENTIAL} stops where answers agree, but rl.reward=env rewards no answers. Set vote.strategy=majority, "
            "or rl.reward=majority."
        )


def check_memory(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where episodes are to be sequences of tokens and the backend knows texts alone."""
    if config.agent.context_mode == "episode" and backend_facts(config).remote:
        raise ConfigError(
            f"agent.context_mode=episode needs a backend that takes tokens; rollout.backend={config.rollout.backend} takes texts. "
            "Use hf or vllm, or set agent.context_mode=conversation."
        )


def check_grows(config: SkillTTRLConfig, backend: Backend) -> None:
    """Raise `ConfigError` where episodes are to be sequences of tokens, and the backend or its chat template cannot continue them."""
    if config.agent.context_mode != "episode":
        return
    if not hasattr(backend, "encode_next") or backend.encode_next(Message("user", "next")) is None:
        raise ConfigError(
            "agent.context_mode=episode needs a backend with encode_next (skill_ttrl.llm.backend.Backend); "
            f"rollout.backend={config.rollout.backend} has none. Add it, or set agent.context_mode=conversation."
        )


def check_form(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where actions have a form of their own, and another setting is about the environment's texts of them."""
    agent = config.agent
    form = find_observations(agent.observations)
    if form is None or form.actions is None:
        return
    others = {
        "agent.actions=numbered": agent.actions == "numbered",
        "agent.action_order=words": agent.action_order == "words",
        f"agent.hidden_verbs={agent.hidden_verbs}": bool(agent.hidden_verbs),
        "agent.action_parser=skillrl": agent.action_parser == "skillrl",
        "demonstrations.rationale=next_subgoal": config.demonstrations.rationale == "next_subgoal",
    }
    found = [name for name, asked in others.items() if asked]
    if found:
        raise ConfigError(
            f"agent.observations={agent.observations} has its own form of actions, which {' and '.join(found)} would change. Leave "
            f"{'it' if len(found) == 1 else 'them'} out."
        )


def check_constrained(config: SkillTTRLConfig, backend: Backend, trains: bool) -> None:
    """Raise `ConfigError` where actions are to be constrained and the backend cannot, or cannot report what the learner has to know."""
    agent, name = config.agent, f"rollout.backend={config.rollout.backend}"
    if not agent.structured_actions:
        return
    check_structured("agent.structured_actions", config, backend)
    facts = backend_facts(config)
    if trains and not (facts.is_learner or facts.is_copy):
        raise ConfigError(
            f"agent.structured_actions with {name} works for evaluation only: the backend does not report which tokens were "
            "allowed, so the learner cannot score them. Train with rollout.backend=hf, or with agent.structured_actions=false."
        )


def check_structured(key: str, config: SkillTTRLConfig, backend: Backend) -> None:
    """Raise `ConfigError` where the policy is to be constrained by the setting `key`, and its backend cannot."""
    if not backend.supports_structured_outputs:
        raise ConfigError(
            f"{key} needs a backend that can restrict a completion to given texts; rollout.backend={config.rollout.backend} "
            f"cannot. Use hf or vllm, or set {key}=false."
        )


def check_collected(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` or `EnvError` where the phase collect cannot play the tasks that the run trains on."""
    if "collect" in config.phases:
        training_selection(config)


def check_dagger(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where no expert can advise in the phase dagger."""
    if "dagger" not in config.phases:
        return
    expert = find_scripted_agent(config.collect.agent, resolve_env(config.env.id))
    if expert is None:
        raise ConfigError(
            f"The phase dagger asks an expert in every state, but collect.agent={config.collect.agent} is a policy. Name a scripted "
            "agent, such as expert."
        )
    check_adviser(expert)


def check_ahead(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where rollouts are to run ahead, and the sampler or another setting cannot; all reasons are in the message."""
    if not runs_ahead(config):
        return
    facts, backend, skills = backend_facts(config), config.rollout.backend, config.skills
    needs = {
        "a sampler in another process than the learner's (vllm.mode=server, or rollout.backend=hf)": facts.engine,
        "a sampler with weights of its own, so none with is_learner (rollout.backend=hf, or vLLM servers)": facts.is_learner,
        "vllm.enable_sleep_mode=false": backend == "vllm" and config.vllm.enable_sleep_mode,
        "runtime.nproc=1": planned_ranks(config) > 1,
        "rl.dynamic_sampling=null": config.rl.dynamic_sampling is not None,
        "skills.gate=null": skills is not None and skills.gate is not None,
    }
    if found := [need for need, lacks in needs.items() if lacks]:
        raise ConfigError(
            f"rl.max_staleness={config.rl.max_staleness} samples while the learner computes. It needs {', and '.join(found)}. Or set "
            "rl.max_staleness=0."
        )


def uncorrected_staleness(config: SkillTTRLConfig) -> str | None:
    """Return the warning of a run that takes the log-probs of older weights for those of the present ones; None where it does not."""
    settings = config.rl.rollout_correction
    if not runs_ahead(config) or settings.type != "none" or settings.reject is not None or not settings.rescore:
        return None
    return (
        f"rl.max_staleness={config.rl.max_staleness} with rl.rollout_correction.type=none treats the log-probs of older weights "
        "as the learner's: nothing corrects the difference, and no effective sample size is logged. Set "
        "rl.rollout_correction.type=auto."
    )


def rolls_out_on_workers(config: SkillTTRLConfig) -> bool:
    """True if a phase of training rolls out, so that workers can."""
    return any(phase in config.phases for phase in ROLLING)


def shares_rollouts(config: SkillTTRLConfig) -> bool:
    """True if workers sample the rollouts of training, and not only hold its environments."""
    return config.scale.training == "rollouts" or (config.scale.training == AUTO and config.rollout.backend == "hf")


def check_scale(config: SkillTTRLConfig) -> None:
    """Raise `ConfigError` where a run names a cluster that no phase of it would use, or could not use."""
    if config.scale.address is None:
        return
    if "collect" not in config.phases and not rolls_out_on_workers(config):
        raise ConfigError(
            f"scale.address={config.scale.address} distributes the phases collect, {', '.join(ROLLING)}, and the commands collect, "
            f"evaluate and vote, but phases is {config.phases}. Leave it out. For several GPUs here: --nproc."
        )
    # False where nobody is asked, None where a policy is.
    asks_agent = "collect" in config.phases and find_scripted_agent(config.collect.agent, resolve_env(config.env.id))
    if asks_agent is None or (rolls_out_on_workers(config) and shares_rollouts(config)):
        check_shared_policy(config)
    if rolls_out_on_workers(config) and shares_rollouts(config):
        _check_shared_rollouts(config)


def _check_shared_rollouts(config: SkillTTRLConfig) -> None:
    rollout = config.rollout
    if rollout.backend != "hf":
        raise ConfigError(
            f"scale.training=rollouts samples with hf on the workers, but rollout.backend is {rollout.backend}. Set "
            "scale.training=environments, so that this process samples and workers hold the environments. vLLM has its own servers "
            "(vllm.servers)."
        )
    count = config.rl.prompts_per_step
    if rollout.prompts_per_batch is None or (
        1 < count <= rollout.prompts_per_batch and {"rl", "vote_sft"} & {*config.phases}
    ):
        raise ConfigError(
            f"scale.address={config.scale.address} gives each worker one batch of prompts, but with "
            f"rollout.prompts_per_batch={rollout.prompts_per_batch or 'null'} all {count} prompts of a step are one batch. Lower "
            f"it, for example to {max(1, count // 8)} (it changes which samples a seed gives), or set scale.training=environments."
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


RULES: tuple[Callable[[SkillTTRLConfig], object], ...] = (
    learning_phases,
    check_trainable,
    check_model,
    check_models,
    check_episodes,
    check_bank,
    check_groups,
    check_rounds,
    check_memory,
    check_form,
    check_engine,
    check_collected,
    check_dagger,
    check_ranks,
    check_ahead,
    check_scale,
    lambda config: check_tracker(config.run.report_to),
)
"""Rules on combinations of settings, once every name is known. Those on the tasks follow when these have been read."""


def refusals(
    config: SkillTTRLConfig, *, asks_ranks: bool = False, without: Callable[[SkillTTRLConfig], object] | None = None
) -> Iterator[SkillTTRLError]:
    """Every reason why a run of `config` would not start, as far as the config and this machine tell: for `train`, `--dry-run` and `doctor`.

    Args:
        config: The config as given.
        asks_ranks: The command line says how many ranks (`check_gpus`).
        without: A rule that does not apply: `check_bank` for a run that has its bank already, `check_trainable` for a config that
            only measures.
    """

    def failed(check: Callable[..., object], *args: Any, **kwargs: Any) -> Iterator[SkillTTRLError]:
        try:
            check(*args, **kwargs)
        except SkillTTRLError as error:
            yield error

    yield from failed(check_ready, config)
    yield from failed(check_ranks, config)
    yield from failed(check_gpus, config, asked=asks_ranks)
    yield from (names := list(wrong_names(config)))
    try:
        config = with_defaults(config)
    except SkillTTRLError as error:
        if not names:
            yield error
        return
    for rule in RULES:
        if rule is not without:
            yield from failed(rule, config)


def check_cut_series(config: SkillTTRLConfig, tasks: Iterable[Task]) -> None:
    """Raise `ConfigError` where an episode would end before its last problem: the answer to another one would be judged."""
    longest = longest_series(tasks)
    if longest > config.agent.max_turns:
        raise ConfigError(
            f"A series has up to {longest} problems, but agent.max_turns is {config.agent.max_turns}, so the last would never be "
            f"shown. Set agent.max_turns={longest}."
        )


def check_states(config: SkillTTRLConfig, env: gymnasium.Env[Any, Any], task: Task) -> None:
    """Raise `ConfigError` where the algorithm needs exact states, and the environment names none with `task`."""
    from skill_ttrl.rl.algorithms import build_algorithm, requirements

    if "rl" not in config.phases or "states" not in requirements(build_algorithm(config.rl.algorithm)):
        return
    if not names_states(env, task):
        raise ConfigError(
            f"rl.algorithm={config.rl.algorithm['type']} compares steps from the same exact state, but {config.env.id} does not "
            'report its state (info["state"], see skill_ttrl.envs.state_digest). Use alfworld, webshop or another environment that '
            "does, or rl.algorithm=gigpo, which compares observations."
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
                    f"The reward verify needs a check for every training task; {task.id!r} {found}. Add the field `check`, for example "
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


def check_length(config: SkillTTRLConfig, model_config: Any | None = None) -> None:
    """Raise `ConfigError` where the longest prompt and answer have more tokens than the model has positions, as its config says.

    Args:
        config: the whole config.
        model_config: transformers' config of the model; None: it is read.
    """
    from skill_ttrl.llm.models.load import load_model_config

    text = (model_config or load_model_config(config.model)).get_text_config()
    engine = config.vllm.max_model_len if backend_facts(config).engine else None
    known = [each for each in (getattr(text, "max_position_embeddings", None), engine) if each is not None]
    refuse_length(config, context_parts(config), min(known, default=None))


def refuse_length(config: SkillTTRLConfig, parts: Mapping[str, int], positions: int | None) -> None:
    """Raise `ConfigError` where `parts` have more tokens together than there are positions; the message says what to set."""
    needed = sum(parts.values())
    if positions is None or needed <= positions:
        return
    sums = " + ".join(f"{name} ({tokens})" for name, tokens in parts.items() if tokens)
    bound = " by vllm.max_model_len" if positions == config.vllm.max_model_len else ""
    builtin = f", or set model.builtin.max_positions={needed}" if config.model.path == BUILTIN else ""
    raise ConfigError(f"{sums} = {needed} tokens, but the model has {positions} positions{bound}. Lower one{builtin}.")


def wrong_names(config: SkillTTRLConfig) -> Iterator[SkillTTRLError]:
    """Errors of the names that nothing has, each once."""
    env_id = None
    try:
        env_id = resolve_env(config.env.id)
        check_arguments(config.env.id, config.env.kwargs)
        config = with_env_defaults(config)
    except SkillTTRLError as error:
        yield error
        env_id = None
    with suppress(SkillTTRLError):  # an unknown algorithm is found by its lookup
        config = with_algorithm_defaults(config)
    seen = set[str]()
    for look in lookups(config, env_id):
        try:
            look()
        except SkillTTRLError as error:
            if str(error) not in seen:
                yield error
            seen.add(str(error))


def lookups(config: SkillTTRLConfig, env_id: str | None) -> Iterator[Callable[[], object]]:
    """Lookups of everything that the phases of a config call by name; each raises `SkillTTRLError` where nothing has the name.

    Args:
        config: with the defaults of its environment and its algorithm.
        env_id: the environment's Gymnasium id; None where there is none, which may have brought the template.
    """
    rl, skills, phases = config.rl, config.skills, config.phases
    yield partial(find_observations, config.agent.observations)
    yield partial(BACKENDS.get, config.rollout.backend)
    if env_id is not None:
        yield partial(_template, config)
        yield from (partial(make_scripted_agent, name, env_id, config.agent) for name in config.eval.controls)
        if {"collect", "dagger"} & {*phases}:
            yield partial(find_scripted_agent, config.collect.agent, env_id)
    shown = config.sft.data if config.imitates else None
    yield from (partial(find_family, each) for each in (config.data.train, config.data.eval, shown) if each is not None)
    if "distill" in phases:
        yield partial(TEACHERS.get, config.distill.teacher)
    if skills is not None and skills.embeds:
        yield partial(EMBEDDERS.get, skills.embedder)
    if "rl" not in phases:
        return
    yield partial(check_vote, config)
    for name in (rl.reward, *rl.extra_rewards):
        if name != "label" and not name.startswith(MODEL_REWARD):  # these need answers or a model; a run looks at them
            yield partial(build_reward, name, {})
    yield partial(_loss, config)
    yield partial(_correction, config)
    yield partial(_algorithm, config)
    if rl.stop_rule is not None:
        yield partial(find_rule, rl.stop_rule, rl.stop_options)
    if skills is not None and skills.update == "merge":
        yield partial(MERGERS.get, skills.merger)
    if config.evolve is not None:
        yield partial(TEACHERS.get, config.evolve.teacher)


def _template(config: SkillTTRLConfig) -> None:
    if config.agent.context_mode == "window":
        Templates(config.agent.prompts).get(config.agent.template, of_a_turn=True)
    else:
        PromptFormatter.from_config(config.agent)


def _loss(config: SkillTTRLConfig) -> None:
    from skill_ttrl.rl.losses import build_loss

    build_loss(config.rl.loss)


def _correction(config: SkillTTRLConfig) -> None:
    from skill_ttrl.rl.checks import check_correction

    facts, rollout = backend_facts(config), config.rollout
    check_correction(
        config.rl,
        backend=rollout.backend,
        sampler_is_learner=facts.is_learner,
        gives_log_probs=facts.log_probs,
        truncates_sampling=rollout.top_p < 1 or rollout.top_k > 0,
    )


def _algorithm(config: SkillTTRLConfig) -> None:
    from skill_ttrl.rl.checks import check_algorithm

    shapes = False
    with suppress(SkillTTRLError):  # an unknown strategy is found by its lookup
        shapes = shapes_advantages(config.vote.strategy)
    check_algorithm(
        config.rl,
        vote_strategy=config.vote.strategy,
        vote_shapes=shapes,
        action_parser=config.agent.action_parser,
        multi_turn=config.agent.max_turns > 1,
        whole_episodes=config.agent.context_mode == "episode",
    )
