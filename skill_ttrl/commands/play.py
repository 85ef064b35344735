"""A policy outside of a run: its answers to one question, an episode to watch, the test of a bank's changes, and its weights in a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium

from skill_ttrl.agents.scripted import ScriptedAgent, WalkthroughAgent
from skill_ttrl.commands.reports.summary_text import transcript
from skill_ttrl.commands.resolve import EvalTarget, env_kwargs, in_env, resolve_target, with_fitting
from skill_ttrl.config import GateConfig
from skill_ttrl.envs import make_env, prepare_env, resolve_env
from skill_ttrl.envs.lookup import env_question_option, refuse_split, split_argument
from skill_ttrl.envs.tools import with_tools
from skill_ttrl.errors import ConfigError, EndpointError, EnvError, RunFolderError, SplitError
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.llm.chat import template_warning, write_sampling
from skill_ttrl.llm.openai.ledger import annotate_budget_error, track_usage
from skill_ttrl.optimize.paired import GateOutcome
from skill_ttrl.progress import OPENING, SILENT, Counting, Progress, telling_warnings
from skill_ttrl.rollout.episode import EnvPool, Stopped, TextEnvironment, text_of
from skill_ttrl.rollout.rollout import RolloutSettings, refuse_failure, rollout, run_scripted_episode
from skill_ttrl.runs.checkpoint import MANIFEST, STATE, TENSORS, load_state, model_card
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.storage.files import remove_unfinished, unfinished, wrap_os_errors
from skill_ttrl.train.bank_changes import BankGate, TestChange
from skill_ttrl.train.build import PolicyBundle, build_for_eval, build_policy
from skill_ttrl.train.defaults import with_env_defaults
from skill_ttrl.train.rules import check_graded
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.train.tasks import ConfigTasks, split_tasks
from skill_ttrl.types import Task, Trajectory, VoteResult, derive_seed
from skill_ttrl.voting import majority_vote


@dataclass(frozen=True, slots=True)
class Reply:
    """Answers of a policy to one question."""

    question: str
    texts: tuple[str, ...]
    answers: tuple[str | None, ...]
    vote: VoteResult
    retrieved: tuple[tuple[str, ...], ...] = ()
    """For each text, the ids of the skills that it retrieved."""
    warnings: tuple[str, ...] = ()
    """Warnings about the answers."""


def find_asked(
    source: str, overrides: Sequence[str] = (), *, config: str | None = None, use_bank: bool = True
) -> EvalTarget:
    """Find the policy for `skillttrl ask`: see `resolve_target`; what a plain model's config does not state is the environment's.

    Raises:
        ConfigError: a run is given another config.
        RunFolderError: `source` is none of these.
    """
    found = with_fitting(resolve_target(source, overrides, config=config, use_bank=use_bank))
    return found if found.run is not None else replace(found, config=with_env_defaults(found.config))


def ask(
    trained: EvalTarget,
    question: str,
    *,
    samples: int = 1,
    temperature: float | None = 0.0,
    use_bank: bool = True,
) -> Reply:
    """Put a question to a trained policy, in the words of its training template, as its training episodes go.

    The answer is what the environment takes for it.

    Args:
        trained: which policy.
        question: the task, as the training data words it.
        samples: how many answers; more than one are put to a vote.
        temperature: 0 is greedy; None: 0 for one answer, 1 for several.
        use_bank: False answers without the run's skill bank, to see what the skills are worth; so does `skills.enabled: false`.

    Raises:
        ConfigError: the question is empty, or no valid Unicode; or the environment takes none (`math` and `qa` do).
        EndpointError: the model gave no answer, with the reason.
        EnvError: the environment failed.
    """
    if not question.strip():
        raise ConfigError("The question is empty.")
    if replace_surrogates(question) != question:
        raise ConfigError("The question is not valid Unicode: it holds an unpaired surrogate.")
    if temperature is None:
        temperature = 0.0 if samples == 1 else 1.0
    config, option = trained.config, env_question_option(trained.config.env.id)
    if option is None:
        raise ConfigError(
            f"{config.env.id} takes no question of yours. To watch an episode: skillttrl envs play {config.env.id} --policy {trained.name}."
        )
    task = Task("question", resolve_env(config.env.id), {option: question})
    settings = RolloutSettings(Sampling.of(config.rollout, temperature), config.seed, max_turns=config.agent.max_turns)
    with (
        track_usage(None, config.endpoints) as ledger,
        ledger.phase("ask"),
        annotate_budget_error("Raise it, or ask for fewer answers."),
        load_policy(trained, use_bank) as parts,
        closing(EnvPool(lambda: with_tools(make_env(config.env.id, **config.env.kwargs), config.agent))) as envs,
    ):
        agent = replace(parts.agent, tools=envs.schemas)
        asked = rollout([task], samples, envs=envs, agent=agent, backend=parts.backend, settings=settings)
        (group,) = wait_for(asked)
        refuse_failure([group])
        unformatted = template_warning(parts.backend, parts.agent.formatter.messages("?"))
    retrieved = tuple(trajectory.retrieved for trajectory in group.trajectories)
    return Reply(
        question,
        tuple(_whole_answer(each) for each in group.trajectories if each.steps),
        tuple(group.answers),
        majority_vote(group.answers),
        retrieved,
        (unformatted,) if unformatted else (),
    )


def _whole_answer(trajectory: Trajectory) -> str:
    """The last turn as it was written, after the earlier turns as `transcript` shows them; all of them if the last one calls tools."""
    *earlier, last = trajectory.steps
    if last.calls:
        return "\n".join(transcript(trajectory))
    said = last.action if last.completion is None else last.completion.text
    return "\n".join([*transcript(replace(trajectory, steps=tuple(earlier))), said])


@contextmanager
def load_policy(trained: EvalTarget, use_bank: bool = True) -> Iterator[PolicyBundle]:
    """Its sampler, and its agent with the skill bank as it is now; both are closed at the end.

    Args:
        trained: which policy.
        use_bank: False leaves its skill bank out; so does `skills.enabled: false`.
    """
    trained.check(use_bank=use_bank)
    parts = build_policy(trained.config, weights=trained.weights)
    with ExitStack() as stack:
        stack.callback(parts.backend.close)
        bank = trained.bank() if use_bank else None
        if bank is not None:
            stack.callback(bank.close)
        yield replace(parts, agent=parts.agent.with_bank(bank.view() if bank else None))


def find_policy(name: str, env: str, overrides: Sequence[str] = (), *, use_bank: bool = True) -> EvalTarget:
    """The policy that is meant, as it plays in an environment (`with_env_defaults`).

    Args:
        env: what it is to play.
        name: a run folder, a checkpoint, a model's folder, `owner/name`, `openai` or `openai:MODEL`.
        overrides: changes to its config.
        use_bank: False where it plays without its skill bank.

    Raises:
        ConfigError, RunFolderError, ModelError: see `resolve_target`.
    """
    found = resolve_target(name, overrides, use_bank=use_bank)
    return in_env(found, env, env_kwargs(overrides, resolve_env(env), found.config.env), overrides)


@dataclass(frozen=True, slots=True)
class Scene:
    """State of the episode to show: at the start, and after every step."""

    step: int
    """Steps played so far; 0 at the start."""
    limit: int | None
    """Steps of an episode; None where the environment sets no bound."""
    action: str | None
    """Action that led here; None at the start."""
    observation: str
    over: bool
    """True if the environment has ended the episode."""


Watch = Callable[[Scene], None]


class WatchedEnv(gymnasium.Wrapper[str, str, str, str]):
    """Environment wrapper that calls `watch` after every reset and step."""

    def __init__(self, env: TextEnvironment, watch: Watch) -> None:
        super().__init__(env)
        own = getattr(env.unwrapped, "max_steps", None)
        registered = env.spec.max_episode_steps if env.spec is not None else None
        self._watch, self._limit = watch, own if isinstance(own, int) else registered
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset the environment and show where it begins."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._steps = 0
        self._show(None, observation, over=False)
        return observation, info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Step the environment and show where that led."""
        observation, _, terminated, truncated, _ = answer = self.env.step(action)
        self._steps += 1
        self._show(action, observation, over=bool(terminated or truncated))
        return answer

    def _show(self, action: str | None, observation: str, *, over: bool) -> None:
        seen = text_of(observation)
        try:
            self._watch(Scene(self._steps, self._limit, action, seen, over))
        except Exception as error:  # a screen that fails is no outcome of the environment
            raise Stopped from error


def play(
    env: TextEnvironment,
    task: Task,
    player: ScriptedAgent | EvalTarget,
    *,
    seed: int,
    watch: Watch,
    use_bank: bool = True,
) -> Trajectory:
    """Let a scripted agent or a policy play `task`, and watch.

    Args:
        env: is reset; stays open.
        task: what is played.
        player: a scripted agent, which may raise `Stopped` to leave; or a policy, whose config sets prompts, and which answers greedily.
        seed: of its random choices.
        watch: called with every scene, before it acts on it.
        use_bank: False: a policy plays without its skill bank.

    Raises:
        EnvError: the walkthrough is to be played, and the environment has none.
        ConfigError, ModelError: the policy cannot be asked like this.
    """
    watched = WatchedEnv(env, watch)
    if not isinstance(player, EvalTarget):
        played = run_scripted_episode(watched, task, player, seed=seed)
        if isinstance(player, WalkthroughAgent) and not played.steps:
            raise EnvError(
                f"{task.env_id} has no walkthrough of {task.id} ({played.error}). Watch another policy with --policy."
            )
        return played
    config = player.config
    with (
        track_usage(None, config.endpoints) as ledger,
        ledger.phase("play"),
        annotate_budget_error("Raise it, or play a shorter game."),
        load_policy(player, use_bank) as parts,
        ExitStack() as stack,
    ):
        settings = RolloutSettings(
            Sampling.of(config.rollout, 0.0),
            seed,
            max_turns=config.agent.max_turns,
            max_prompt_tokens=config.data.max_prompt_tokens,
            constrain=config.agent.structured_actions,
        )
        tool_env = with_tools(watched, config.agent)
        stack.callback(getattr(tool_env, "abandon", lambda: None))  # ends MCP servers; `env` stays open
        envs = EnvPool(lambda: tool_env)
        agent = replace(parts.agent, tools=envs.schemas)
        (group,) = wait_for(rollout([task], 1, envs=envs, agent=agent, backend=parts.backend, settings=settings))
    return group.trajectories[0]


def open_env(
    env_id: str,
    kwargs: Mapping[str, Any],
    split: str | None,
    progress: Progress = SILENT,
    *,
    name: str | None = None,
) -> TextEnvironment:
    """The environment; one that takes a `split` is made for this one, so that it looks for no other.

    Args:
        env_id: its id.
        kwargs: its arguments.
        split: None: the one that `name` begins with, as ALFWorld's ids do; else its own.
        progress: reports how far it is where opening takes long.
        name: of the task that it is opened for.

    Raises:
        ConfigError: there is a split among the arguments too.
        EnvError: it cannot be made with these arguments.
    """
    there, slash, _ = (name or "").partition("/")
    if split is None and slash and "split" not in kwargs:
        with suppress(SplitError):  # what stands before the slash need be no split
            return open_env(env_id, kwargs, there, progress)
    if split is not None:
        refuse_split(kwargs)
    arguments = {**kwargs, **({} if split is None else split_argument(env_id, split))}
    with telling_warnings(progress):
        prepare_env(env_id, arguments, Counting(progress, OPENING, "item"))
        return make_env(env_id, **arguments)


def refuse_error(trajectory: Trajectory) -> None:
    """Raise `EnvError`, or `EndpointError` of a model that gave no answer, with what went wrong in an episode."""
    if trajectory.error is not None:
        place = f"at step {len(trajectory.steps) + 1}" if trajectory.steps else "before the first step"
        kind = EndpointError if trajectory.stop_reason == "no_answer" else EnvError
        raise kind(f"The episode in {trajectory.task.env_id} failed {place}: {trajectory.error}")


@contextmanager
def open_gate(policy: str, overrides: Sequence[str] = ()) -> Iterator[TestChange]:
    """Load a policy, and yield the test of bank changes that `merge` and `distill` take. Its `skills.gate` sets how the test decides.

    Args:
        policy: a run, a checkpoint, a model, or `openai` (`resolve_target`). Its `skills` section says how prompts show skills.
        overrides: changes to its config, such as `skills.gate.tasks=100`.

    Raises:
        ConfigError: the policy has no `skills` section, too few tasks, or an environment that cannot grade them.
        SkillTTRLError: a part cannot be made; the message names it.
    """
    target = resolve_target(policy, overrides)
    skills = target.config.skills
    if skills is None:
        raise ConfigError(
            f"{policy} uses no skills (its config has no skills section), so it cannot test the bank. Name another policy, or add "
            "the section, e.g. --gate-set skills.embedder=hash."
        )
    gate = skills.gate or GateConfig()
    target.check()
    with ExitStack() as stack:
        chosen = _tasks(target, gate)
        worker, tasks_of = build_for_eval(target.config, {"gate": chosen}, SILENT, weights=target.weights)
        stack.callback(worker.close)
        check_graded(tasks_of["gate"][0], worker.envs, "The gate")
        bank = stack.enter_context(SkillBank(None, BankSettings.from_config(skills)))
        opened, seed = RunBank(skills, bank), derive_seed(target.config.seed, "gate")
        tested = BankGate(gate, tasks_of["gate"], worker)

        def test(before: Snapshot, after: Snapshot) -> GateOutcome:
            return tested.test(opened, before, after, seed)

        yield test


def _tasks(target: EvalTarget, gate: GateConfig) -> list[Task]:
    """The tasks that a run of this config holds out for its gate."""
    config = target.config
    if gate.data is None:
        return split_tasks(ConfigTasks(config).training(pinned=True), gate.tasks, config.seed)[1]
    return ConfigTasks(config).read(config.data.source(gate.data), "train")[: gate.tasks]


TRAINER_FILES = {MANIFEST, STATE, TENSORS}
"""Files that are needed only to resume a run."""


def export(trained: EvalTarget, output: str | Path, *, merged: bool = False) -> Path:
    """Write the policy to `output`, which must not exist; it appears whole or not at all.

    Args:
        trained: which policy.
        output: folder to make.
        merged: fold LoRA adapters into the weights of their base model, so that no peft is needed to load it.

    Raises:
        RunFolderError: `output` exists or cannot be written.
        ConfigError: `merged` is asked for a policy without adapters.
    """
    from skill_ttrl.llm.models.load import load_checkpoint, load_tokenizer, save_model
    from skill_ttrl.llm.models.weights import SHARDS, is_sharded, merge_adapters

    output, weights = Path(output), trained.weights
    assert weights is not None
    if output.exists():
        raise RunFolderError(f"{output} exists already. Choose another --output.")
    adapters = (weights / "adapter_config.json").is_file()
    if merged and not adapters:
        raise ConfigError(f"{weights} has no adapters to merge. Leave out --merge-lora.")
    with wrap_os_errors("write", output):
        output.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(output.parent)  # weights are large: those of an export that was killed must not stay
        with unfinished(output.parent) as folder:
            building = folder / output.name
            building.mkdir()
            if merged or is_sharded(weights):
                loaded = load_checkpoint(weights, device="cpu", base=trained.config.model)
                model: Any = loaded.model
                save_model(merge_adapters(model) if merged else model, loaded.tokenizer, building)
            else:
                shutil.copytree(
                    weights, building, ignore=shutil.ignore_patterns(*TRAINER_FILES, SHARDS), dirs_exist_ok=True
                )
            if (building / "config.json").is_file():
                own = trained.config.model.model_copy(update={"path": str(building), "revision": None})
                write_sampling(building, load_tokenizer(own), trained.config.rollout)
            saved = load_state(weights)
            card = model_card(trained.config, phase=saved["phase"], step=saved["step"], merged=merged)
            (building / "README.md").write_text(card, encoding="utf-8")
            building.rename(output)
    return output
