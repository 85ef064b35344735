"""Every reason why a run of a config, or a command that uses a part of one, cannot start.

`Rules.refusals` lists them from the config, this machine and the run's folder, `Rules.of_tasks` from the tasks, and `Rules.of_policy` from the
backend and its agent. `train` and the commands of its phases, `evaluate` and the other commands that sample, `--dry-run` and `doctor` check
the first of these before anything is sampled, paid for or written. To add a rule, yield an error, or the text of a `ConfigError`, in the
method of its subject. A rule on the values of one section alone is a validator of the config (`skill_ttrl.config.schema`).

Modules that need torch are imported inside the functions, so that `doctor` can report on every name where torch is broken.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from skill_ttrl.agents.agent import Agent, AgentInput, PromptFormatter
from skill_ttrl.agents.observations import find_observations
from skill_ttrl.agents.scripted import check_adviser, find_scripted_agent, make_scripted_agent
from skill_ttrl.answers import conditions
from skill_ttrl.config import (
    BUILTIN,
    ROLLING,
    AgentConfig,
    BuiltinConfig,
    RLConfig,
    Role,
    SkillsConfig,
    SkillTTRLConfig,
)
from skill_ttrl.data.tasks import CHECK, find_family
from skill_ttrl.envs.lookup import placed, resolve_env
from skill_ttrl.envs.text_env import names_states
from skill_ttrl.errors import ConfigError, EnvError, MissingDependencyError, ModelError, SkillTTRLError
from skill_ttrl.llm.backend import Backend, BackendContext
from skill_ttrl.llm.backends import BACKENDS, NO_MODEL, REMOTE, backend_facts, is_remote, untrainable
from skill_ttrl.llm.openai.client import make_client
from skill_ttrl.optimize.engines import asks_endpoint
from skill_ttrl.prompts.templates import Templates
from skill_ttrl.rl.parallel.launch import launched, local_world_size, strategy, world_size
from skill_ttrl.rollout.episode import EnvPool, failure, reset_options
from skill_ttrl.rollout.programs import found_program, passed_environment
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.signals import FAILURES
from skill_ttrl.skills.embedders import EMBEDDERS
from skill_ttrl.skills.mergers import make_merger
from skill_ttrl.skills.querying import OPENAI
from skill_ttrl.skills.retrieval import TIERS, check_packages
from skill_ttrl.skills.teachers import make_teacher
from skill_ttrl.train.defaults import with_algorithm_defaults, with_defaults, with_env_defaults
from skill_ttrl.train.metrics import find_rule
from skill_ttrl.train.open_run import Resume, reused_baseline, starting_file
from skill_ttrl.train.run import check_document
from skill_ttrl.train.run_bank import models_of
from skill_ttrl.train.tasks import ConfigTasks, run_of, split_tasks
from skill_ttrl.types import Message, Skill, Task
from skill_ttrl.voting import check_strategy
from skill_ttrl.voting.rewards import MODEL_REWARD, VERIFY, build_reward
from skill_ttrl.voting.strategies import SEQUENTIAL, SequentialTest

Use = Literal["train", "sample", "collect", "distill", "merge"]
Found = Iterator[SkillTTRLError | str]
"""Errors, or the texts of errors in the config."""


def combined(found: Iterable[SkillTTRLError | str]) -> SkillTTRLError | None:
    """One error for all that was found, with the exit code of a wrong config if one is about that; None where nothing was."""
    errors = errors_of(found)
    if len(errors) <= 1:
        return errors[0] if errors else None
    lines = "\n".join(f"  {error}" for error in errors)
    whole = ConfigError(f"The config has {len(errors)} problems:\n{lines}")
    whole.exit_code = min(error.exit_code for error in errors)
    return whole


def errors_of(found: Iterable[SkillTTRLError | str]) -> list[SkillTTRLError]:
    """Return the errors, with a `ConfigError` for each text."""
    return [ConfigError(each) if isinstance(each, str) else each for each in found]


def _failing(look: Callable[..., object], *args: Any, **options: Any) -> Iterator[SkillTTRLError]:
    """The error of a lookup or a check that raises."""
    try:
        look(*args, **options)
    except SkillTTRLError as error:
        yield error


def tool_refusal(agent: AgentConfig, offered: str) -> str:
    """Describe why an agent cannot use the tools that it is `offered`; empty where it can."""
    needs = {
        "agent.max_turns of at least 2": agent.max_turns < 2,
        "agent.context_mode=conversation": agent.context_mode != "conversation",
        "agent.structured_actions=false": agent.structured_actions,
    }
    if not (found := [need for need, lacks in needs.items() if lacks]):
        return ""
    return f"{offered}: a call is a turn, and later prompts show its result. That needs {', and '.join(found)}."


@dataclass(frozen=True)
class Rules:
    """The rules on one config."""

    config: SkillTTRLConfig
    """As given; `of_tasks` and `of_policy` take it with its defaults (`with_defaults`)."""
    use: Use = "train"
    """Use of the config. `train`: its phases run. `sample`: a command samples from its policy. `collect`: its scripted agent
    plays. `distill`, `merge`: a bank is written from what was sampled."""
    asks_ranks: bool = False
    """The command line says how many ranks; without any GPU they then share the CPU."""
    output: Path | None = None
    """The folder of the run; None: it is not looked at."""
    resume: Resume | None = None
    """"auto": the folder may hold a run, which is continued."""

    @property
    def begun(self) -> bool:
        """True if the run has checkpoints, and with them its bank and its baseline."""
        return self.output is not None and (self.output / "checkpoints").is_dir()

    def check(self) -> None:
        """Refuse what cannot start.

        Raises:
            SkillTTRLError: the only reason, or a `ConfigError` that lists all of them.
        """
        if error := combined(self.refusals()):
            raise error

    def refusals(self) -> Iterator[SkillTTRLError]:
        """Every reason why it cannot start, as far as the config and this machine tell, each once."""
        config, rules = self.config, self
        if config.requires:
            yield ConfigError(f"The config {config.name!r} cannot run: it requires {config.requires}.")
        unknown = [*self._unknown_names()]
        yield from dict(zip(map(str, unknown), unknown, strict=True)).values()
        if unknown:  # what else is wrong may be their fault
            yield from errors_of(self._of_folder() if self.use == "train" else ())
            return
        if self.use in ("train", "sample"):
            defaults = with_defaults if self.use == "train" else with_env_defaults
            try:
                rules = replace(self, config=defaults(config))
            except SkillTTRLError as error:
                yield error
                return
        parts = {
            "train": (
                *(rules._of_prompts, rules._of_phases, rules._of_model, rules._of_algorithm),
                *(rules._of_votes, rules._of_skills, rules._of_processes, rules._of_output),
            ),
            "sample": (rules._of_prompts, rules._of_model, rules._of_skills, rules._of_shared_policy),
        }
        for part in parts.get(self.use, (rules._of_skills,)):
            yield from errors_of(part())

    def _unknown_names(self) -> Iterator[SkillTTRLError]:
        """Everything that is called by a name that nothing has, in the parts of the config that are used."""
        config, env_id = self.config, None
        if self.use in ("distill", "merge"):
            yield from self._of_bank()
            return
        try:
            found = resolve_env(config.env.id)
            placed(config.env.id, config.env.kwargs)
            if self.use != "collect":
                config = with_env_defaults(config)
            env_id = found  # the environment may have brought the template
        except SkillTTRLError as error:
            yield error
        with suppress(SkillTTRLError):  # an unknown algorithm is found by its lookup
            config = config.model_copy(update={"rl": with_algorithm_defaults(config.rl)})
        yield from replace(self, config=config)._lookups(env_id)

    def _of_bank(self) -> Iterator[SkillTTRLError]:
        """Lookups of what writes a bank: the teacher, the merger, and the embedder that a new bank is to have."""
        config, skills, models = self.config, self.config.skills, models_of(self.config)
        if self.use == "distill" or (self.use == "train" and "distill" in config.phases):
            yield from _failing(make_teacher, config.distill.teacher, models=models)
        if self.use != "merge" and skills is not None and skills.embeds:
            yield from _failing(EMBEDDERS.get, skills.embedder)
        merges = self.use == "train" and config.reinforces and skills is not None and skills.update == "merge"
        if merges or self.use == "merge":
            yield from _failing(make_merger, (skills or SkillsConfig()).merger, models=models)
        if self.use == "train" and config.reinforces and config.evolve is not None:
            yield from _failing(make_teacher, config.evolve.teacher, models=models)

    def _lookups(self, env_id: str | None) -> Iterator[SkillTTRLError]:
        config = self.config
        agent, rl, phases, rollout = config.agent, config.rl, config.phases, config.rollout
        if env_id is not None and (
            self.use == "collect" or (self.use == "train" and {"collect", "dagger"} & {*phases})
        ):
            look = make_scripted_agent if self.use == "collect" else find_scripted_agent
            yield from _failing(look, config.collect.agent, env_id)
        if self.use == "collect":
            return
        yield from _failing(find_observations, agent.observations)
        yield from _failing(BACKENDS.get, rollout.backend)
        if env_id is not None:
            if agent.windowed:
                yield from _failing(lambda: Templates(agent.prompts).get(agent.template, of_a_turn=True))
            else:
                yield from _failing(PromptFormatter.from_config, agent)
            for name in config.eval.controls:
                yield from _failing(make_scripted_agent, name, env_id, agent)
        yield from self._of_bank()
        if self.use == "sample":
            return
        shown = config.demonstration_source if config.imitates else None
        for source in (config.train_source, config.eval_source, shown):
            if source is not None:
                yield from _failing(find_family, source)
        if not config.reinforces:
            return
        yield from _failing(check_strategy, *config.vote.chosen)
        for name in (rl.reward, *rl.extra_rewards):
            if name != "label" and not name.startswith(MODEL_REWARD):  # these need answers or a model
                yield from _failing(build_reward, name, {})
        from skill_ttrl.rl.algorithms import build_algorithm
        from skill_ttrl.rl.losses import build_loss

        yield from _failing(build_loss, rl.loss)
        yield from _failing(build_algorithm, rl.algorithm)
        if rl.stop_rule is not None:
            yield from _failing(find_rule, *rl.stop)

    def _of_prompts(self) -> Found:
        """Forms of observations and actions, and what the backend must be able to do for them."""
        config, trains = self.config, self.use == "train"
        agent, name, facts = config.agent, config.rollout.backend, backend_facts(config)
        form = find_observations(agent.observations)
        if form is not None and form.actions is not None:
            changes = {
                "agent.actions=numbered": agent.actions == "numbered",
                "agent.action_order=words": agent.action_order == "words",
                f"agent.hidden_verbs={agent.hidden_verbs}": bool(agent.hidden_verbs),
            }
            if found := [key for key, asked in changes.items() if asked]:
                yield f"agent.observations={agent.observations} has its own form of actions: leave out {' and '.join(found)}."
        own = config.skills is not None and config.skills.enabled and config.skills.as_tools
        offered = [key for key, asked in (("agent.tools", agent.tools), ("skills.as_tools", own)) if asked]
        if offered and (refused := tool_refusal(agent, " and ".join(offered))):
            yield refused
        if agent.whole_episodes and (facts.remote or not facts.grows):
            yield f"agent.context_mode=episode needs a backend with tokens and encode_next, such as hf or vllm; {name} is none."
        if agent.structured_actions and not facts.structured:
            yield f"agent.structured_actions: rollout.backend={name} cannot restrict a completion. Use hf or agent.structured_actions=false."
        elif agent.structured_actions and trains and not (facts.is_learner or facts.is_copy):
            yield (
                f"agent.structured_actions with rollout.backend={name} works for evaluation only: the learner does not get to know which "
                "tokens were allowed. Train with rollout.backend=hf, or with agent.structured_actions=false."
            )
        yield from self._of_program()

    def _of_program(self) -> Found:
        """The program that plays, and what it cannot play with."""
        config, agent, program = self.config, self.config.agent, self.config.program
        if program is None:
            if config.rollout.backend == NO_MODEL:
                yield f'rollout.backend={NO_MODEL} has no model: a program has to play. Name it: --agent "python my_agent.py" (program.argv).'
            return
        yield from _failing(found_program, program)
        yield from _failing(passed_environment, program, os.environ)
        needs = {
            "agent.max_turns=1": agent.max_turns > 1,
            "agent.tools=[]": bool(agent.tools),
            "skills.as_tools=false": config.skills is not None and config.skills.as_tools,
            "agent.structured_actions=false": agent.structured_actions,
            "another agent.context_mode than window": agent.windowed,
            "scale.address=null": config.scale.address is not None,
        }
        if found := [need for need, lacks in needs.items() if lacks]:
            yield f"program.argv: a program answers once, in an environment of one turn, and calls the model as it likes. It needs {', '.join(found)}."

    def _of_phases(self) -> Found:
        """Phases that nothing feeds, or that train nothing."""
        config, phases, shown = self.config, self.config.phases, self.config.demonstrations
        if not config.learning_phases:
            yield f"None of the phases trains: phases is {phases}. To only collect or distill: skillttrl collect, skillttrl distill."
        if config.agent.whole_episodes and config.imitates and shown.rationale == "openai":
            yield "demonstrations.rationale=openai needs single steps, but agent.context_mode=episode imitates whole episodes."
        if "collect" in phases:
            yield from _failing(ConfigTasks(config).selection)
        elif "distill" in phases and shown.trajectories is None:
            yield "The phase distill needs episodes: put the phase collect before it, or set demonstrations.trajectories."
        elif config.imitates and config.sft.data is None and shown.trajectories is None:
            yield (
                "The phases sft and dagger need something to imitate: put the phase collect before them, or set "
                "demonstrations.trajectories or sft.data.path (see `skillttrl configs quickstart`)."
            )
        if "dagger" not in phases:
            return
        expert = find_scripted_agent(config.collect.agent, resolve_env(config.env.id))
        if expert is None:
            yield f"The phase dagger asks an expert, but collect.agent={config.collect.agent} is a policy. Name a scripted agent."
        else:
            yield from _failing(check_adviser, expert)

    def _of_model(self) -> Found:
        """The weights that learn, what samples with them, and the tokens that both have room for."""
        config, trains = self.config, self.use == "train"
        model, sft, facts = config.model, config.sft, backend_facts(config)
        if trains and not facts.trainable:
            yield untrainable(config.rollout.backend)
        if trains and model.lora is not None and model.path == BUILTIN:
            yield "model.lora needs a trained model in model.path; the built-in one starts from random weights."
        intended = model.path == BUILTIN or model.builtin == BuiltinConfig() or run_of(model.path)
        if trains and "sft" in config.phases and not intended:
            yield (
                f"The cold start of this config (phase sft, {sft.steps} steps at learning rate {sft.learning_rate:g}) is made for the built-in "
                f"model and would overwrite what {model.path} knows. Train with the recipe quickstart_pretrained, or set phases=[rl]. To "
                "imitate all the same, set model.builtin={}."
            )
        if facts.remote:
            return
        if config.runtime.device not in ("auto", "cpu"):
            from skill_ttrl.rl.device import resolve_device

            bad_device = [*_failing(resolve_device, config.runtime.device)]
            yield from bad_device
            if bad_device:
                return
        if trains:  # what only samples may be weights that are not where the config says
            from skill_ttrl.llm.models.load import load_model_config

            try:
                text = load_model_config(model).get_text_config()
            except SkillTTRLError as error:
                yield error
                return
            engine = config.vllm.max_model_len if facts.engine else None
            known = [each for each in (getattr(text, "max_position_embeddings", None), engine) if each is not None]
            yield from self._of_length(config.context_parts, min(known, default=None))
        if facts.engine:
            from skill_ttrl.llm.vllm.checks import check_fits

            def nothing() -> Any:
                raise AssertionError("the rules load no model")

            yield from _failing(
                lambda: check_fits(BackendContext(config, nothing, trains=trains and config.reinforces))
            )

    def _of_length(self, parts: Mapping[str, int], positions: int | None) -> Found:
        """Parts of prompts and answers that have more tokens together than the model has positions."""
        needed = sum(parts.values())
        if positions is None or needed <= positions:
            return
        sums = " + ".join(f"{name} ({tokens})" for name, tokens in parts.items() if tokens)
        bound = " by vllm.max_model_len" if positions == self.config.vllm.max_model_len else ""
        builtin = f", or set model.builtin.max_positions={needed}" if self.config.model.path == BUILTIN else ""
        yield f"{sums} = {needed} tokens, but the model has {positions} positions{bound}. Lower one{builtin}."

    def _of_algorithm(self) -> Found:
        """Inputs that the algorithm does not get, parts of the reward that it would ignore or misread, and settings without effect."""
        config, rl, rollout = self.config, self.config.rl, self.config.rollout
        if not config.reinforces:
            return
        from skill_ttrl.rl.algorithms import ALGORITHMS, build_algorithm, requirements
        from skill_ttrl.rl.learner import corrects

        named, kind = f"rl.algorithm={rl.algorithm['type']}", ALGORITHMS.get(rl.algorithm["type"])
        needs, facts = requirements(build_algorithm(rl.algorithm)), backend_facts(config)
        if not facts.log_probs:
            yield (
                f"rollout.backend={rollout.backend} returns no log-probs, which the policy ratio and rl.rollout_correction need. Train with "
                "hf, vllm, or a backend of your own that returns them."
            )
        truncates, own = rollout.top_p < 1 or rollout.top_k > 0, facts.is_learner
        if truncates and not own and corrects(rl, sampler_is_learner=own):
            yield (
                f"rl.rollout_correction compares the log-probs of {rollout.backend} with the learner's, but with rollout.top_p below 1 or "
                "rollout.top_k above 0 they come from a truncated distribution. Set rollout.top_p=1 and rollout.top_k=0, or "
                "rl.rollout_correction=none."
            )
        if "votes" in needs and not rl.voted:
            yield f"{named} learns from votes, but rl.reward is {rl.reward!r}. Set rl.reward=majority."
        if "critic" in needs and rl.critic is None:
            yield (
                f"{named} needs a critic. Set rl.critic: {{}} for a value head on the policy's own decoder, or name a model in "
                "rl.critic.model; rl.algorithm=grpo and reinforce_plus_plus need none."
            )
        if rl.critic is not None and "critic" not in needs:
            yield f"rl.critic is set, but {named} does not use a critic. Set rl.algorithm=gae, or remove rl.critic."
        if {"episodes", "states"} & needs and config.agent.max_turns == 1:
            yield (
                f"{named} compares steps of episodes, but agent.max_turns is 1: each rollout has a single step. Use an environment "
                "of several turns (alfworld, webshop), or rl.algorithm=grpo."
            )
        known: frozenset[str] | None = getattr(kind, "vote_strategies", None)
        if rl.voted and known is not None and config.vote.chosen[0] not in known:
            yield (
                f"{named} cannot follow vote.strategy={config.vote.chosen[0]}. Set vote.strategy to one of {', '.join(sorted(known))}, or "
                "rl.algorithm=grpo, which follows all."
            )
        bonus = sum(max(0.0, weight) for weight in rl.extra_rewards.values())
        if bonus > 1 and rl.algorithm["type"] in ("nsr", "w_reinforce"):
            yield (
                f"The weights of rl.extra_rewards add up to {bonus:g}. A wrong sample could then earn more than 1, and {named} would raise "
                "its probability. Let them add up to 1 at most."
            )
        if rl.reward in rl.extra_rewards:
            yield f"rl.extra_rewards names {rl.reward} again, which is rl.reward with the weight 1. Remove it."
        if rl.invalid_action_penalty_coef and config.agent.action_parser == "none":
            yield (
                f"rl.invalid_action_penalty_coef={rl.invalid_action_penalty_coef:g}, but with agent.action_parser=none no action is ever "
                "found invalid. Set agent.action_parser=action, or rl.invalid_action_penalty_coef=0."
            )
        loss = rl.loss["type"]
        meant = getattr(kind, "defaults", {}).get("loss", {}).get("type", loss)
        if meant not in (loss, "ppo_clip"):  # values for the default loss are no reason to refuse another
            yield f"{named} is GRPO with the loss {meant}, but rl.loss is {loss}. Set rl.loss.type={meant}, or rl.algorithm=grpo, which works with any loss."

    def _of_votes(self) -> Found:
        """Groups that are too small to vote or to compare, and rounds that save nothing."""
        config = self.config
        rl, votes = config.rl, config.rollout.n_votes_per_prompt
        if votes == 1 and config.votes and "majority" in (rl.reward, *rl.extra_rewards):
            yield "The reward majority needs several votes: raise rollout.n_votes_per_prompt (TTRL: 64), or set another rl.reward."
        if not config.reinforces:
            return
        strategy, options = config.vote.chosen
        if strategy != SEQUENTIAL:
            return
        if (first := SequentialTest(**options).first) >= votes:
            yield (
                f"vote.strategy={SEQUENTIAL} looks after {first} samples (vote.strategy.first), but rollout.n_votes_per_prompt is {votes}, so "
                "nothing would be saved. Lower the first, or raise the other."
            )
        if rl.reward == "env":
            yield f"vote.strategy={SEQUENTIAL} stops where answers agree, but rl.reward=env rewards no answers. Change one of them."

    def _of_skills(self) -> Found:
        """The initial bank, its packages, and the language models that get requests. Nothing is sent."""
        config, skills, optimize, roles = self.config, self.config.skills, self.config.optimize, self.roles
        if self.use in ("train", "sample") and skills is not None:
            if not self.begun:
                yield from _failing(starting_file, skills)
            yield from _failing(check_packages, skills)
        if self.use == "train" and config.reinforces and optimize is not None and optimize.every is not None:
            if skills is None or not skills.enabled:
                yield "optimize.every edits the run's skill bank, and this run has none in use. Add a skills section, or remove it."
            if optimize.lr_scheduler == "none":
                yield "optimize.every needs a schedule, and optimize.lr_scheduler is none. Set it to cosine."
        else:
            roles.discard("optimizer")  # only the command optimize queries it
        for role in sorted(roles):
            yield from _failing(lambda role=role: make_client(config.endpoints, role).shut())

    @property
    def roles(self) -> set[Role]:
        """The endpoints that requests are sent to."""
        config, skills, trains = self.config, self.config.skills, self.use == "train"
        rationales = config.imitates and config.sft.data is None and config.demonstrations.rationale == OPENAI
        evolves = config.reinforces and config.evolve is not None and config.evolve.teacher == OPENAI
        distills = self.use == "distill" or (trains and "distill" in config.phases)
        merges = trains and config.reinforces and skills is not None and skills.update == "merge"
        collects = trains and "collect" in config.phases and is_remote(config.collect.agent)
        samples = trains or self.use == "sample"
        uses: dict[Role, bool] = {
            "policy": (samples and config.rollout.backend == REMOTE) or collects,
            "merger": (merges or self.use == "merge") and (skills or SkillsConfig()).merger == OPENAI,
            "teacher": (trains and (rationales or evolves)) or (distills and config.distill.teacher == OPENAI),
            "embeddings": samples and skills is not None and skills.embeds and skills.embedder == OPENAI,
            "optimizer": trains and config.optimize is not None and asks_endpoint(config.optimize, config.endpoints),
        }
        return {role for role, used in uses.items() if used}

    def _of_processes(self) -> Found:
        """Ranks that train together, rollouts ahead of the learner, and workers of a cluster."""
        config, device, backend = self.config, self.config.runtime.device, self.config.rollout.backend
        ranks = world_size() if launched() else config.runtime.nproc or 1  # those that `skillttrl train` would start
        how = None
        try:
            how = strategy(config.runtime, ranks, on_gpu=device not in ("cpu", "mps") and bool(_gpus()))
        except SkillTTRLError as error:
            yield error
        if ranks > 1:
            if ":" in device or device == "mps":
                yield f"runtime.device is {device!r}, a single device, but there are {ranks} ranks. Set it to cuda, cpu or auto."
            if backend == "vllm" and config.vllm.mode == "colocate":
                yield (
                    f"vllm.mode=colocate puts an engine into the learner's process, but there are {ranks} ranks. Start servers (skillttrl "
                    "serve) and set vllm.mode=server, or use rollout.backend=hf."
                )
            if how == "fsdp" and backend not in ("hf", "vllm"):
                yield (
                    f"rollout.backend={backend} samples with one process's weights, but runtime.parallel=fsdp spreads them over {ranks}. "
                    "Set runtime.parallel=ddp, or use hf or vllm."
                )
            local = local_world_size() if launched() else ranks
            gpus = 0 if device == "cpu" else _gpus()
            # Without any GPU, ranks that were asked for or started share the CPU.
            on_cpu = device in ("cpu", "mps") or (not gpus and device == "auto" and (self.asks_ranks or launched()))
            if gpus < local and not on_cpu:
                here = {0: "no CUDA device", 1: "one GPU"}.get(gpus, f"{gpus} GPUs")
                fewer = f"--nproc {gpus}" if gpus > 1 else "--nproc 1 --set runtime.parallel=auto"
                yield ModelError(
                    f"{local} ranks (runtime.nproc) need one GPU each, and torch finds {here} on this machine. Start fewer: {fewer}; or "
                    "choose a smaller config (skillttrl configs). Ranks of a small model can share the CPU: --set runtime.device=cpu."
                )
        if config.runs_ahead:
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
                yield f"rl.max_staleness={config.rl.max_staleness} samples while the learner computes. It needs {', and '.join(found)}."
        if config.scale.address is not None:
            yield from self._of_workers()

    def _of_workers(self) -> Found:
        """A cluster that no phase would use, or could not use."""
        config, shares = self.config, self.config.rolls_out
        address, rollout, count = config.scale.address, config.rollout, config.rl.prompts_per_step
        size = rollout.prompts_per_batch
        if "collect" not in config.phases and not shares:
            yield f"scale.address={address} distributes the phases collect, {', '.join(ROLLING)}; phases is {config.phases}. Leave it out."
            return
        # False: there is no phase collect. None: a policy collects.
        player = "collect" in config.phases and find_scripted_agent(config.collect.agent, resolve_env(config.env.id))
        if player is None or shares:
            yield from self._of_shared_policy()
        if shares and rollout.backend != "hf":
            yield (
                f"scale.address={address} samples with hf on the workers, but rollout.backend is {rollout.backend}. Leave it out; vLLM "
                "has its own servers (vllm.servers)."
            )
        elif shares and (size is None or (1 < count <= size and config.votes)):
            yield (
                f"scale.address={address} gives each worker one batch of prompts, but with "
                f"rollout.prompts_per_batch={size or 'null'} all {count} prompts of a step are one batch. Lower "
                f"it, for example to {max(1, count // 8)} (it changes which samples a seed gives)."
            )

    def _of_shared_policy(self) -> Found:
        """Workers on other machines that would send requests which no ledger here records and no budget bounds."""
        config, remote = self.config, backend_facts(self.config).remote
        if config.scale.address is None:
            return
        if remote or (config.skills is not None and config.skills.embedder == OPENAI):
            what = f"rollout.backend={config.rollout.backend}" if remote else f"skills.embedder={OPENAI}"
            yield f"{what} calls a remote model, whose cost one process must count: leave out scale.address={config.scale.address}."

    def _of_output(self) -> Found:
        """The folder and the trackers that a run writes to, and the run whose evaluation it takes over."""
        tracker = self.config.run.report_to
        if tracker != "none" and importlib.util.find_spec(tracker) is None:
            yield MissingDependencyError.for_extra(f"The tracker {tracker!r}", "trackers")
        if not self.begun:
            yield from _failing(reused_baseline, self.config)
        yield from self._of_folder()

    def _of_folder(self) -> Found:
        """The folder that a run writes to."""
        if self.output is not None and (self.resume is None or not RunFolder.exists(self.output)):
            yield from _failing(RunFolder.check_new, self.output)

    def of_policy(self, backend: Backend, agent: Agent) -> Found:
        """Every reason why a policy cannot be sampled that is known only once its backend is made."""
        config, name = self.config, self.config.rollout.backend
        encode_next = getattr(backend, "encode_next", lambda message: None)
        if config.agent.whole_episodes and encode_next(Message("user", "next")) is None:
            yield (
                "agent.context_mode=episode needs a backend with encode_next (skill_ttrl.llm.backend.Backend); "
                f"rollout.backend={name} has none. Add it, or set agent.context_mode=conversation."
            )
        if agent.offered and not (backend_facts(config).remote or hasattr(backend, "tool_calls")):
            yield (
                "agent.tools needs a backend that reads calls (tool_calls of skill_ttrl.llm.chat.TokenizerMixin); "
                f"rollout.backend={name} has none. Add it, or leave the tools out."
            )
        yield from _failing(check_document, agent, backend, config.data.max_prompt_tokens)
        if backend.max_model_len is not None:
            parts = config.context_parts
            if config.skills is not None:
                parts["the templates around skills"] = _around_skills(config.skills, backend, agent)
            yield from self._of_length(parts, backend.max_model_len)

    def of_tasks(self, train: Sequence[Task] | None, envs: EnvPool | None) -> Found:
        """Every reason why a run cannot start with its tasks.

        Args:
            train: The tasks to train on; None: not known yet.
            envs: Environments that can play them.
        """
        config, rl, gate = self.config, self.config.rl, self.config.gate
        if not config.data.held_out:
            edits = config.optimize is not None and config.optimize.every is not None
            uses = {
                "evolve learns from success": config.evolve is not None and config.reinforces,
                "optimize.every edits the bank by results": edits and config.reinforces,
                "skills.gate decides by success": gate is not None,
            }
            for use in (use for use, has in uses.items() if has):
                yield f"{use} on the training tasks, and this run evaluates on the same tasks. Set data.eval, or remove it."
        if train is None or not config.votes:
            return
        rewards = (rl.reward, *rl.extra_rewards)
        for task in train if VERIFY in rewards else ():
            try:
                conditions(task.options[CHECK])
            except (KeyError, TypeError, ValueError) as error:
                wrong = "has none" if isinstance(error, KeyError) else f"has one that cannot be read: {error}"
                yield (
                    f"The reward verify needs a check for every training task; {task.id!r} {wrong}. Add the field `check`, for example "
                    '"x + 7 = 25", or set rl.reward=majority.'
                )
                break
        if few := too_few(rl, train):
            yield few
        if not config.reinforces:
            return
        missing = [task.id for task in train if task.ground_truth is None]
        if "label" in rewards and missing:
            yield (
                f"The reward label needs a true answer for every training task; {len(missing)} of {len(train)} have none, first "
                f"{missing[0]!r}. Use rl.reward=majority, or remove those tasks."
            )
        if gate is not None and gate.data is None:
            yield from _failing(split_tasks, train, gate.tasks, config.seed)
        if envs is None:
            return
        from skill_ttrl.rl.algorithms import build_algorithm, requirements

        if "states" in requirements(build_algorithm(rl.algorithm)) and not names_states(envs.acquire(), train[0]):
            yield (
                f"rl.algorithm={rl.algorithm['type']} compares steps from the same exact state, but {config.env.id} does not "
                'report its state (info["state"], see skill_ttrl.envs.state_digest). rl.algorithm=gigpo compares observations.'
            )
        graded = {
            "The reward env": "env" in rewards and config.program is None,  # a program may state its own
            "evolve": config.evolve is not None,
            "skills.gate": gate is not None and gate.data is None,
        }
        if asking := [name for name, asked in graded.items() if asked]:
            yield from _failing(check_graded, train[0].without_ground_truth(), envs, " and ".join(asking))


def _gpus() -> int:
    from skill_ttrl.rl.device import gpu_count

    return gpu_count()


def check_graded(task: Task, envs: EnvPool, asking: str) -> None:
    """Raise `ConfigError` where the environment says that it cannot grade a task as it is given."""
    env = envs.acquire()
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


def too_few(rl: RLConfig, tasks: Sequence[Task]) -> str:
    """Describe that a step takes more tasks than there are to train on; empty where it does not."""
    if rl.prompts_per_step <= len(tasks):
        return ""
    return f"rl.prompts_per_step is {rl.prompts_per_step}, but the number of training tasks is {len(tasks)}. Lower it, or add tasks."


def _around_skills(skills: SkillsConfig, backend: Backend, agent: Agent) -> int:
    """Tokens of the templates that skills are put into; the budgets are of the skills alone."""
    every = tuple(Skill("skill", "skill", "skill", tier=tier) for tier in TIERS)
    shown = every[1:2] if agent.window is None else every  # each tier has a heading of its own there
    render = agent.formatter.render_skill if agent.window is None else agent.window.skill
    with_skills, without = (
        backend.count(agent.prompt(AgentInput("question", skills=few)).messages) for few in (shown, ())
    )
    alone = sum(backend.count_text(render(each)) for each in shown)
    prompt = with_skills - without - alone + skills.prompt_top_k  # a line break for each
    bare = backend.count_text(agent.formatter.render_skill(every[1]))
    wrapped = backend.count_text(agent.formatter.render_retrieved([every[1]]))
    return max(0, prompt) + skills.max_retrievals * max(0, wrapped - bare + skills.retrieval_top_k - 1)


def uncorrected_staleness(rl: RLConfig, phases: Sequence[str]) -> str | None:
    """Return the warning of a run that takes the log-probs of older weights for those of the present ones; None where it does not."""
    if "rl" not in phases or not rl.max_staleness or rl.rollout_correction != "none":
        return None
    return (
        f"rl.max_staleness={rl.max_staleness} with rl.rollout_correction=none treats the log-probs of older weights "
        "as the learner's: nothing corrects the difference. Set rl.rollout_correction=auto."
    )
