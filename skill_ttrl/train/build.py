"""From a config to the parts of a run: the policy with its sampler, its agent and its weights; environments, tasks, meter.

torch and its family are imported only where weights are: a remote model is queried without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.agents.action_parser import ActionList, projection
from skill_ttrl.agents.agent import Agent, AgentInput, PromptFormatter, task_skills
from skill_ttrl.agents.observations import find_observations
from skill_ttrl.agents.turn_prompt import TurnPromptBuilder
from skill_ttrl.config import BUILTIN, AgentConfig, EnvConfig, SkillTTRLConfig
from skill_ttrl.config.rl import COPY
from skill_ttrl.data.episodes import Files, episode_corpus, read_episodes
from skill_ttrl.data.tasks import longest_series, tokenizer_corpus
from skill_ttrl.envs import check_text_env, make_env, resolve_env
from skill_ttrl.envs.tools import with_tools
from skill_ttrl.errors import ConfigError, ModelError, on_error
from skill_ttrl.llm.backend import Backend, BackendContext, OnLearner, TokenCounter
from skill_ttrl.llm.backends import backend_facts, make_backend
from skill_ttrl.llm.chat import template_warning
from skill_ttrl.progress import Progress
from skill_ttrl.prompts.templates import Templates, read_document
from skill_ttrl.rl.parallel.launch import strategy
from skill_ttrl.rollout.episode import EnvPool
from skill_ttrl.train.open_run import starting_skills
from skill_ttrl.train.rules import Rules, check_graded, combined, too_few, tool_refusal
from skill_ttrl.train.run import GateTasks, Meter, RolloutWorker, TrainingComponents
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.train.tasks import FOLDER_DIGEST, ConfigTasks, fit_prompts
from skill_ttrl.types import Skill, Task, derive_seed
from skill_ttrl.voting.rewards import MODEL_REWARD, OVERLONG, Reward, RewardSet, build_reward

if TYPE_CHECKING:
    from accelerate import Accelerator

    from skill_ttrl.llm.models.load import LoadedModel
    from skill_ttrl.rl.parallel.driver import Driver, Replica
    from skill_ttrl.rl.parallel.shard import Sharding
    from skill_ttrl.rl.policy import Policy


Notice = Callable[[str], None]


@dataclass(frozen=True)
class PolicyBundle:
    """Parts needed to query a policy."""

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
    load: Callable[[], LoadedModel] | None = None,
    over_ranks: OnLearner | None = None,
    tools: tuple[str, ...] = (),
) -> PolicyBundle:
    """Sampler and agent of a config; `weights` is a checkpoint to use in place of `model.path`, `tools` are the environment's (`EnvPool.schemas`).

    With `trains` the weights will change: the sampler must be able to follow them. `load` loads the policy in another way than
    `PolicyLoader`, and `over_ranks` reaches a model that spans several ranks (see `BackendContext`).
    """
    accelerator: Accelerator | None = None
    place: dict[str, Any] = {}
    if not backend_facts(config).remote:
        from skill_ttrl.rl.device import autocast_dtype, make_accelerator

        accelerator = make_accelerator(config.runtime)
        place = {"device": str(accelerator.device), "autocast": autocast_dtype(accelerator)}
    context = BackendContext(
        config,
        load or partial(PolicyLoader(config, weights).load, accelerator),
        **place,
        over_ranks=over_ranks,
        weights=weights,
        trains=trains,
        notice=notice,
        stopping=stopping,
    )
    backend = make_backend(context)
    with on_error(backend.close):
        agent = make_agent(config, backend, tools)
        if error := combined(Rules(config).of_policy(backend, agent)):
            raise error
        return PolicyBundle(context, backend, agent)


def make_agent(config: SkillTTRLConfig, counter: TokenCounter, tools: tuple[str, ...] = ()) -> Agent:
    """The agent that a config asks for; its prompts have skills where the config has a skills section."""
    numbered = config.agent.actions == "numbered"
    project = projection(config.agent.action_parser, numbered=numbered)
    listing = ActionList.of(config.agent)
    agent, skills, window = config.agent, config.skills, None
    if agent.windowed:
        window = TurnPromptBuilder(
            Templates(agent.prompts),
            agent.template,
            system=agent.system,
            history=agent.history_length,
            observation_tokens=agent.max_observation_tokens,
            max_tokens=config.data.max_prompt_tokens,
            count=counter.count,
            count_text=counter.count_text,
            numbered=numbered,
            asks=skills is not None and skills.max_retrievals > 0,
            document=read_document(agent.document),
        )
        agent = agent.model_copy(update={"template": "plain"})
    formatter = PromptFormatter.from_config(agent)
    if skills is not None:
        formatter = PromptFormatter.from_config(agent, skill_tokens=skills.prompt_max_tokens, count=counter.count_text)
    form = find_observations(config.agent.observations)
    parts: dict[str, Any] = {"project": project, "listing": listing, "form": form, "tools": tools}
    return Agent(formatter, agent.context_mode, window, skills, **parts, program=config.program)


_PLACE = re.compile(r"\$\w+")
_OF_SKILLS = ("skill", "skills", "skills_empty", "retrieved", "no_results")


@dataclass(frozen=True)
class PolicyLoader:
    """Loads the weights that `model` names, or a checkpoint in their place; the built-in model takes its words from what is imitated."""

    config: SkillTTRLConfig
    weights: Path | None = None
    """The checkpoint."""

    def load(
        self, accelerator: Accelerator | None = None, *, device: str | None = None, empty: bool = False
    ) -> LoadedModel:
        """Load the policy.

        Weights that learn stay in float32, whatever the precision of the forward; frozen ones under LoRA need not.

        Args:
            accelerator: Where it computes, and how precisely; None: one is made.
            device: Where the weights go; None: where the accelerator computes.
            empty: They are not read: the caller fills them in.
        """
        from skill_ttrl.llm.models.load import load_checkpoint, load_model
        from skill_ttrl.rl.device import make_accelerator, weight_dtype

        config, model = self.config, self.config.model
        accelerator = accelerator or make_accelerator(config.runtime)
        place: Any = {"device": device or str(accelerator.device), "empty": empty}
        place["dtype"] = weight_dtype(accelerator, frozen=model.lora is not None)
        if self.weights is not None:
            return load_checkpoint(self.weights, base=model, **place)
        return load_model(model, seed=derive_seed(config.seed, "model"), corpus=self._corpus(), **place)

    def tokenizer(self) -> Any:
        """Load the tokenizer of `model` alone.

        Raises:
            ModelError: It is not there or cannot be read.
            DataError: The demonstrations that the built-in one takes its words from cannot be read.
        """
        from skill_ttrl.llm.models.builtin import build_tokenizer
        from skill_ttrl.llm.models.load import load_tokenizer

        model = self.config.model
        return build_tokenizer(self._corpus(), model.builtin) if model.path == BUILTIN else load_tokenizer(model)

    def _corpus(self) -> Collection[str]:
        """Texts that the built-in tokenizer takes its words from."""
        config, source = self.config, self.config.demonstration_source
        if config.model.path != BUILTIN:
            return []
        if config.model.builtin.vocabulary == "entities":
            return self.prompt_texts(() if config.skills is None else tuple(starting_skills(config.skills)))
        if source is not None:
            return tokenizer_corpus(source, seed=derive_seed(config.seed, "demonstrations"))
        files = config.demonstrations.trajectories
        return [] if files is None else episode_corpus(files)

    def prompt_texts(self, skills: tuple[Skill, ...] = ()) -> set[str]:
        """Texts that stand in the prompts and answers of a run: of its demonstrations, its templates, and of these skills.

        Raises:
            DataError: the demonstrations cannot be read.
            ConfigError, DocumentError: a template or the document cannot.
        """
        config, agent = self.config, self.config.agent
        templates, form = Templates(agent.prompts), find_observations(agent.observations)
        shown = [templates.get(agent.template, of_a_turn=agent.windowed)]
        shown += [templates.get(name) for name in _OF_SKILLS if skills]
        found = {_PLACE.sub(" ", each.template) for each in shown} | {agent.system or "", read_document(agent.document)}
        found |= set(() if form is None else form.vocabulary)
        found |= {text for skill in skills for text in (skill.title, skill.text, skill.when_to_apply)}
        if config.demonstration_source is not None:
            found.update(tokenizer_corpus(config.demonstration_source, seed=derive_seed(config.seed, "demonstrations")))
        elif config.demonstrations.trajectories is not None:
            found.update(_of_episodes(config.demonstrations.trajectories, agent))
        return found


def _of_episodes(files: Files, agent: AgentConfig) -> Iterator[str]:
    """Observations as prompts write them, tasks, what was done and what could have been (but for forms of actions, which say their words)."""
    form = find_observations(agent.observations)
    for trajectory in read_episodes(files):
        for skill in task_skills(trajectory.task) or ():
            yield from (skill.title, skill.text, skill.when_to_apply)
        if agent.windowed:  # whose prompts have a place for it
            yield trajectory.goal
        for place, step in enumerate(trajectory.steps):
            seen = step.observation
            if form is not None:
                seen = form.observe(
                    AgentInput(seen, trajectory.steps[:place], trajectory.goal, step.admissible_actions)
                )
            yield seen
            if form is None or form.actions is None:
                yield from step.admissible_actions or (step.action,)  # a model may have written anything


@dataclass(frozen=True)
class RunTasks:
    """The tasks of a run, with environments that can play them."""

    train: list[Task]
    evaluated: list[Task]
    """The held-out tasks; `train` itself where there are none."""
    envs: EnvPool
    notes: list[str]
    """Lines for the summary on held-out tasks that are learned from."""


def open_tasks(config: SkillTTRLConfig, progress: Progress) -> RunTasks:
    """Read the tasks of a run, and refuse what no run can do with them before anything is played or paid for.

    Raises:
        SkillTTRLError: they cannot be read, or a rule on them (`Rules.of_tasks`) does not hold.
    """
    tasks, held_out = ConfigTasks(config, progress), config.data.held_out
    train = tasks.training()
    evaluated = tasks.evaluated() if held_out else train
    envs = make_envs(config.env, config.agent, [*train, *evaluated])
    with on_error(envs.close):
        if error := combined(Rules(config).of_tasks(train, envs)):
            raise error
        notes = tasks.leaks(train, evaluated) if held_out else []
    return RunTasks(train, evaluated, envs, notes)


def build(
    config: SkillTTRLConfig,
    progress: Progress,
    *,
    weights: Path | None = None,
    bank: RunBank | None = None,
    stopping: Callable[[], bool] = lambda: False,
    warnings: list[str] | None = None,
    driver: Driver | None = None,
    tasks: RunTasks | None = None,
) -> tuple[TrainingComponents, Meter]:
    """Build the parts that act, and the meter, which alone holds the true answers.

    Args:
        config: the whole config.
        progress: reports what was left out.
        weights: a checkpoint folder to take the policy from, in place of `model.path`.
        bank: the run's skill bank; None: the config has none.
        stopping: returns True once the user wants to stop; see `BackendContext`.
        warnings: gets lines for the summary on held-out tasks that are learned from.
        driver: the ranks that train together; None: this process alone.
        tasks: what `open_tasks` gave; None: they are read now.

    Raises:
        SkillTTRLError: a part cannot be made; the message names it.
    """
    from skill_ttrl.llm.hf import HFBackend
    from skill_ttrl.rl.parallel.driver import Driver, RanksBackend, Replica
    from skill_ttrl.rl.parallel.ranks import ALONE

    driver = driver or Driver(ALONE)
    tasks = tasks or open_tasks(config, progress)
    found = [] if warnings is None else warnings
    found += tasks.notes
    held_out, envs = config.data.held_out, tasks.envs
    over_ranks: Any = partial(driver.run, Replica.on_model)  # type: ignore[call-arg]  # the others come with the call
    parts = build_policy(
        config,
        weights=weights,
        trains=True,
        notice=progress.notice,
        stopping=stopping,
        load=lambda: driver.run(ReplicaLoader(config, weights)),  # the replicas of all ranks get the policy
        over_ranks=over_ranks if driver.ranks.several else None,
        tools=envs.schemas,
    )
    assert parts.context.loaded is not None  # a sampler that lives elsewhere has not looked at it yet
    if refused := driver.replica.policy.packing_refused:
        progress.notice(f"Sequences are padded, not packed (model.packing): {refused}.")
    if driver.ranks.several and type(parts.backend) is HFBackend:
        parts = replace(parts, backend=RanksBackend(driver, parts.backend))
    with on_error(parts.backend.close):
        train = fit_prompts(tasks.train, config.data, parts.backend, parts.agent, progress)
        evaluated = train
        if held_out:
            evaluated = fit_prompts(tasks.evaluated, config.data, parts.backend, parts.agent, progress)
        train, gate = ConfigTasks(config, progress).hold_out(train, evaluated)
        if config.votes and (few := too_few(config.rl, train)):  # without those that do not fit
            raise ConfigError(few)
    if bank is not None and (unshown := bank.unshown([*train, *evaluated])):
        progress.notice(unshown, warning=True)
    # An environment keeps what it was reset with: one that saw a true answer is not trained in.
    answered = any(task.ground_truth is not None for task in evaluated)
    known = {task.id: task.ground_truth for task in train if task.ground_truth is not None}
    meter = Meter(known, evaluated, make_envs(config.env, config.agent, evaluated) if answered else envs, not held_out)
    worker = RolloutWorker(config, parts.backend, parts.agent, envs)
    tested = GateTasks(gate, make_envs(config.env, config.agent, gate)) if gate else None
    return TrainingComponents(worker, driver, [task.without_ground_truth() for task in train], bank, tested), meter


def build_for_eval(
    config: SkillTTRLConfig,
    problems: Mapping[str, Sequence[Task]],
    progress: Progress,
    *,
    weights: Path | None = None,
    bank: RunBank | None = None,
) -> tuple[RolloutWorker, dict[str, list[Task]]]:
    """Build the worker that evaluates a policy without training it; also returns the problems whose prompts fit.

    Args:
        config: the whole config; of its `data`, only the maximum prompt length is used.
        problems: tasks by source, each with at least one.
        progress: reports what was left out.
        weights: as for `build`.
        bank: the skill bank, which the agent sees as it is now.

    Raises:
        SkillTTRLError: a part cannot be made; the message names it.
    """
    every = [task for tasks in problems.values() for task in tasks]
    envs = make_envs(config.env, config.agent, every)
    parts = build_policy(config, weights=weights, notice=progress.notice, tools=envs.schemas)
    if unformatted := template_warning(parts.backend, parts.agent.formatter.messages("?")):
        progress.notice(unformatted, warning=True)
    with on_error(parts.backend.close):
        fitting = {
            name: fit_prompts(tasks, config.data, parts.backend, parts.agent, progress)
            for name, tasks in problems.items()
        }
        worker = RolloutWorker(config, parts.backend, parts.agent, envs)
        return worker.with_bank(bank.view() if bank else None), fitting


def make_envs(env: EnvConfig, agent: AgentConfig, tasks: Sequence[Task]) -> EnvPool:
    """Environments for these tasks, one made to see that it can play them.

    Raises:
        ConfigError, EnvError: it cannot, or episodes would end before their last problem.
    """
    longest = longest_series(tasks)
    if longest > agent.max_turns:  # the answer to another problem would be judged
        raise ConfigError(
            f"A series has up to {longest} problems: raise agent.max_turns from {agent.max_turns} to {longest}."
        )
    env_id = resolve_env(env.id)
    envs = EnvPool(lambda: with_tools(make_env(env_id, **env.kwargs), agent))
    check_text_env(envs.acquire(), tasks[0])
    if envs.schemas and (refused := tool_refusal(agent, f"{env.id} with tools")):
        envs.close()
        raise ConfigError(refused)
    return envs


@dataclass(frozen=True)
class ReplicaLoader(PolicyLoader):
    """Loads the policy on a rank, whole or this rank's shard of it; each rank calls it at the same time."""

    def __call__(self, replica: Replica) -> LoadedModel:
        """Load it.

        Args:
            replica: This rank's; gets `policy`, `accelerator`, `critic` where `rl.critic` names a model, and on the other ranks than the driver what samples, `backend`.

        Raises:
            SkillTTRLError: the policy cannot be made.
        """
        from skill_ttrl.rl.device import autocast_dtype, make_accelerator

        config = self.config
        accelerator = replica.accelerator = make_accelerator(config.runtime)
        loaded, replica.policy = self._policy(replica)
        critic = config.rl.critic if config.reinforces else None
        if critic is not None and critic.model == COPY:
            replica.policy.check_copy()  # the copy is made when the phase begins
        elif critic is not None and critic.model is not None:
            # A resumed run fills in what it learned.
            named = {"path": critic.model, "revision": config.data.revisions.get(critic.model)}
            changed = config.model_copy(update={"model": config.model.model_copy(update=named)})
            _, replica.critic = ReplicaLoader(changed)._policy(replica)
            if replica.critic.tokenizer.get_vocab() != replica.policy.tokenizer.get_vocab():
                raise ModelError(
                    f"rl.critic.model={critic.model} has a different vocabulary from the policy. Use a model of the same family, "
                    "rl.critic.model=policy for a copy of the policy, or null for a head on it."
                )
        if not replica.ranks.is_driver and backend_facts(config).is_learner:
            place: dict[str, Any] = {"device": str(accelerator.device), "autocast": autocast_dtype(accelerator)}
            place["weights"] = self.weights
            replica.backend = make_backend(BackendContext(config, lambda: loaded, **place, trains=True))
        return loaded

    def _policy(self, replica: Replica) -> tuple[LoadedModel, Policy]:
        """The weights on every rank, whole or this rank's shard of them."""
        from skill_ttrl.rl.policy import Policy

        ranks, accelerator, runtime = replica.ranks, replica.accelerator, self.config.runtime
        sharding: Sharding | None = None
        if strategy(runtime, ranks.size, on_gpu=accelerator.device.type == "cuda") == "fsdp":
            loaded, sharding = self._shard(replica)
        else:
            loaded = self.load(accelerator)
            ranks.copy_from_driver_([*loaded.model.parameters(), *loaded.model.buffers()])
        options = self.config.model.model_dump(include={"gradient_checkpointing", "packing"})
        return loaded, Policy(loaded.model, loaded.tokenizer, accelerator.device, sharding=sharding, **options)

    def _shard(self, replica: Replica) -> tuple[LoadedModel, Sharding]:
        """This rank's shard of the weights. They are read once: by the driver, or each piece of a sharded checkpoint where it belongs."""
        from skill_ttrl.llm.models.weights import is_sharded, read_shards, weights_of
        from skill_ttrl.rl.device import autocast_dtype
        from skill_ttrl.rl.parallel.shard import Sharding

        ranks, accelerator, config = replica.ranks, replica.accelerator, self.config
        source = self.weights or Path(config.model.path)
        in_pieces = is_sharded(source) and config.model.lora is None  # adapters rename what they adapt
        loaded = self.load(accelerator, device="cpu", empty=in_pieces or not ranks.is_driver)
        whole = {name: parameter.detach() for name, parameter in loaded.model.named_parameters()}
        sharding = Sharding(loaded.model, accelerator.device, ranks.size, compute=autocast_dtype(accelerator))
        if in_pieces:
            read_shards(source, weights_of(loaded.model), ranks.control)
            ranks.copy_from_driver_(list(loaded.model.buffers()))
        else:
            sharding.fill(whole if ranks.is_driver else {}, ranks)
        return loaded, sharding


def make_rewards(components: TrainingComponents, meter: Meter) -> RewardSet:
    """The rewards of a run (`reward_set`). The `label` control is the only one that holds the true answers.

    Raises:
        ConfigError: one cannot be computed in this run.
        EnvError: the environment fails at the first task.
    """
    if components.gate is not None:
        check_graded(components.gate.tasks[0], components.gate.envs, "skills.gate")
    return reward_set(components.config, meter.references, str(components.policy.device))


def reward_set(config: SkillTTRLConfig, references: Mapping[str, str], device: str = "cpu") -> RewardSet:
    """The rewards that `rl.reward` and `rl.extra_rewards` name.

    Args:
        config: The run's.
        references: True answers by task id, for `label` alone.
        device: Where a reward model computes.

    Raises:
        ConfigError: one cannot be computed.
    """
    rl = config.rl
    rewards: dict[str, Reward] = {}
    for name in (rl.reward, *rl.extra_rewards):
        scorer = None
        if name.startswith(MODEL_REWARD):
            from skill_ttrl.llm.reward_model import RewardModel

            path = name.removeprefix(MODEL_REWARD)
            commit = config.data.revisions.get(path) or ""
            commit = "" if commit.startswith(FOLDER_DIGEST) else commit
            scorer = RewardModel(path, revision=commit or None, device=device)
        rewards[name] = build_reward(name, references if name == "label" else {}, scorer)
    if rl.overlong_penalty:
        from skill_ttrl.rl.learner import overlong_penalties

        limit = config.rollout.max_new_tokens
        rewards[OVERLONG] = lambda group, vote, seed: overlong_penalties(group, rl.overlong_penalty, limit)
    return RewardSet(rewards, rl.extra_rewards)
