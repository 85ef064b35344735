"""Policies asked and watched: answers to one question, one episode that is watched, and the test of a bank's changes outside of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from skill_ttrl.config import GateConfig
from skill_ttrl.envs import TextEnv, make_env, resolve_env
from skill_ttrl.envs.lookup import env_question_option
from skill_ttrl.errors import ConfigError
from skill_ttrl.llm.backend import Sampling, wait_for
from skill_ttrl.llm.chat import template_warning
from skill_ttrl.llm.openai.ledger import annotate_budget_error, track_usage
from skill_ttrl.optimize.paired import GateOutcome
from skill_ttrl.progress import Progress, SilentProgress
from skill_ttrl.rollout.env_pool import EnvPool
from skill_ttrl.rollout.rollout import refuse_failure, rollout
from skill_ttrl.rollout.turns import RolloutSettings
from skill_ttrl.sanitize import replace_surrogates
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.settings import BankSettings
from skill_ttrl.skills.snapshot import Snapshot
from skill_ttrl.stages.collecting.watch import Stopped, TextEnvironment, Watch, WatchedEnv, ended, env_kwargs
from skill_ttrl.stages.inputs.tasks import own_training_tasks, source_tasks, split_tasks
from skill_ttrl.stages.setup.build import build_for_eval, check_graded
from skill_ttrl.stages.setup.defaults import with_env_defaults
from skill_ttrl.stages.setup.policy import PolicyBundle, build_policy
from skill_ttrl.stages.targets.resolve import (
    EvalTarget,
    TrainedPolicy,
    find_trained,
    in_env,
    is_trained,
    refuse_config,
    resolve_target,
    with_fitting,
)
from skill_ttrl.stages.training.bank_gate import BankGate, TestChange
from skill_ttrl.stages.training.run_bank import NoBank, RunBank
from skill_ttrl.types import Task, Trajectory, VoteResult, derive_seed
from skill_ttrl.voting import majority_vote

Policy = TrainedPolicy | EvalTarget
"""Source of answers: a trained policy, or whatever `resolve_target` finds."""
FIRST_TURN = (
    "Episodes in {env} have several turns. This is the first turn, with your question as the observation and without listed "
    "actions. To watch a whole episode: skillttrl envs play {env} --policy RUN."
)


class Question(TextEnv):
    """One turn that shows a question in place of what an environment would show.

    Args:
        question: what is shown.
        grader: an environment of one turn, which finds the answer in what is written (`info["answer"]`). None: all of it, the
            action where the agent reads one, is the answer.
    """

    def __init__(self, question: str, grader: gymnasium.Env[str, str] | None) -> None:
        super().__init__()
        self._question, self._grader = question, grader

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        if self._grader is not None:
            self._grader.reset(seed=seed)
        return self._question, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`; nothing is rewarded: the question is none of the grader's own."""
        if self._grader is None:
            return "", 0.0, True, False, {"answer": action}
        _, _, _, _, info = self._grader.step(action)
        return "", 0.0, True, False, {"answer": info["answer"]} if "answer" in info else {}

    def close(self) -> None:
        """See `gymnasium.Env.close`."""
        if self._grader is not None:
            self._grader.close()


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
) -> Policy:
    """Find the policy for `skillttrl ask`: see `resolve_target`; what a plain model's config does not state is the environment's.

    Raises:
        ConfigError: a run is given another config.
        RunFolderError: `source` is none of these.
    """
    if not is_trained(source):
        found = with_fitting(resolve_target(source, overrides, config=config, use_bank=use_bank))
        return replace(found, config=with_env_defaults(found.config))
    refuse_config(source, config)
    return find_trained(source, overrides)


def ask(
    trained: Policy,
    question: str,
    *,
    samples: int = 1,
    temperature: float | None = 0.0,
    max_new_tokens: int | None = None,
    use_bank: bool = True,
) -> Reply:
    """Put a question to a trained policy, in the words of its training template, as its training episodes go.

    In an environment of one turn the answer is what that environment takes for it. Of a policy that was trained in episodes of
    several turns the reply is the first turn, with the question as what is seen, and the answer its action.

    Args:
        trained: which policy.
        question: the task, as the training data words it.
        samples: how many answers; more than one are put to a vote.
        temperature: 0 is greedy; None: 0 for one answer, 1 for several.
        max_new_tokens: longest answer; None takes the config's.
        use_bank: False answers without the run's skill bank, to see what the skills are worth; so does `skills.enabled: false`.

    Raises:
        ConfigError: the question is empty, or no valid Unicode.
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

    def make() -> gymnasium.Env[str, str]:
        if option is not None:
            return make_env(config.env.id, **config.env.kwargs)
        grader = make_env(config.env.id, **config.env.kwargs) if config.agent.max_turns == 1 else None
        return Question(question, grader)

    task = Task("question", resolve_env(config.env.id), {} if option is None else {option: question})
    sampling = Sampling.of(config.rollout, temperature)
    if max_new_tokens:
        sampling = replace(sampling, max_new_tokens=max_new_tokens)
    settings = RolloutSettings(sampling, config.seed)
    with (
        track_usage(None, config.endpoints) as ledger,
        ledger.phase("ask"),
        annotate_budget_error("Raise it, or ask for fewer answers."),
        load_policy(trained, use_bank) as parts,
        closing(EnvPool(make)) as envs,
    ):
        asked = rollout([task], samples, envs=envs, agent=parts.agent, backend=parts.backend, settings=settings)
        (group,) = wait_for(asked)
        refuse_failure([group])
        unformatted = template_warning(parts.backend, parts.agent.formatter.messages("?"))
    completions = [step.completion for trajectory in group.trajectories for step in trajectory.steps if step.completion]
    retrieved = tuple(trajectory.retrieved for trajectory in group.trajectories)
    whole = config.agent.max_turns == 1 or option is not None
    first = "" if whole else FIRST_TURN.format(env=config.env.id)
    return Reply(
        question,
        tuple(completion.text for completion in completions),
        tuple(group.answers),
        majority_vote(group.answers),
        retrieved,
        tuple(text for text in (unformatted, first) if text),
    )


@contextmanager
def load_policy(trained: Policy, use_bank: bool = True) -> Iterator[PolicyBundle]:
    """Its sampler, and its agent with the skill bank as it is now; both are closed at the end.

    Args:
        trained: which policy.
        use_bank: False leaves its skill bank out; so does `skills.enabled: false`.
    """
    parts = build_policy(trained.config, weights=trained.weights)
    agent = parts.agent
    bank: RunBank | NoBank = NoBank()
    try:
        bank = trained.bank() if use_bank else NoBank()
        agent = agent.with_bank(bank.view())
        yield replace(parts, agent=agent)
    finally:
        parts.backend.close()
        bank.close()


def find_policy(
    name: str, env: str, overrides: Sequence[str] = (), *, config: str | None = None, use_bank: bool = True
) -> EvalTarget:
    """The policy that is meant, as it plays in an environment (`with_env_defaults`).

    Args:
        env: what it is to play.
        name: a run folder, a checkpoint, a model's folder, `owner/name`, `openai` or `openai:MODEL`.
        overrides: changes to its config.
        config: a plain model's recipe.
        use_bank: False where it plays without its skill bank.

    Raises:
        ConfigError, RunFolderError, ModelError: see `resolve_target`.
    """
    found = resolve_target(name, overrides, config=config, use_bank=use_bank)
    return in_env(found, env, env_kwargs(overrides, resolve_env(env), found.config), overrides)


def play_policy(
    env: TextEnvironment,
    task: Task,
    policy: Policy,
    *,
    seed: int,
    watch: Watch,
    temperature: float = 0.0,
    use_bank: bool = True,
) -> Trajectory:
    """Let a policy play `task`, as its training episodes go.

    Args:
        env: is reset; stays open.
        task: what is played.
        policy: a trained policy, a plain model or a remote one. Its config sets prompts and sampling.
        seed: of its random choices.
        watch: called with every scene.
        temperature: 0 is greedy.
        use_bank: False plays without its skill bank.

    Raises:
        ConfigError, ModelError: it cannot be asked like this.
    """
    config, watched = policy.config, WatchedEnv(env, task, watch)
    with (
        track_usage(None, config.endpoints) as ledger,
        ledger.phase("play"),
        annotate_budget_error("Raise it, or play a shorter game."),
        load_policy(policy, use_bank) as parts,
    ):
        work = rollout(
            [task],
            1,
            envs=EnvPool(lambda: watched),
            agent=parts.agent,
            backend=parts.backend,
            settings=RolloutSettings(
                Sampling.of(config.rollout, temperature),
                seed,
                max_turns=config.agent.max_turns,
                max_prompt_tokens=config.data.max_prompt_tokens,
                constrain=config.agent.structured_actions,
                schedule="sync",
            ),
        )
        try:
            (group,) = wait_for(work)
        except Stopped as stopped:
            return ended(watched, stopped)
    return group.trajectories[0]


@contextmanager
def open_gate(
    policy: str,
    overrides: Sequence[str] = (),
    *,
    config: str | None = None,
    progress: Progress | None = None,
) -> Iterator[TestChange]:
    """Load a policy, and yield the test of bank changes that `merge` and `distill` take. Its `skills.gate` sets how the test decides.

    Args:
        policy: a run, a checkpoint, a model, or `openai` (`resolve_target`). Its `skills` section says how prompts show skills.
        overrides: changes to its config, such as `skills.gate.tasks=100`.
        config: a plain model's recipe.
        progress: reports what was left out.

    Raises:
        ConfigError: the policy has no `skills` section, too few tasks, or an environment that cannot grade them.
        SkillTTRLError: a part cannot be made; the message names it.
    """
    progress = progress or SilentProgress()
    target = resolve_target(policy, overrides, config=config)
    skills = target.config.skills
    if skills is None:
        raise ConfigError(
            f"{policy} uses no skills (its config has no skills section), so it cannot test the bank. Name another policy, or add "
            "the section, e.g. --gate-set skills.embedder=hash."
        )
    gate = skills.gate or GateConfig()
    with ExitStack() as stack:
        chosen = _tasks(target, gate)
        worker, tasks_of = build_for_eval(target.config, {"gate": chosen}, progress, weights=target.weights)
        stack.callback(worker.close)
        instead = "Set tasks with true answers: --gate-set skills.gate.data.path=FILE."
        check_graded(tasks_of["gate"][0], worker.envs, "The change must pass a gate", instead)
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
        return split_tasks(own_training_tasks(config), gate.tasks, config.seed)[1]
    return source_tasks(config, resolve_env(config.env.id), gate.data, "train")[: gate.tasks]
