"""`SkillTTRLTrainer` and `RolloutEngine`: the first Skill-TTRL's names over the commands and the backends, for data held in Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from skill_ttrl.commands.merge import answered
from skill_ttrl.commands.train import run
from skill_ttrl.config import ModelConfig, SkillsConfig, SkillTTRLConfig, SourceConfig
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.llm.backend import BackendContext, Request, Sampling, refuse_error, wait_for
from skill_ttrl.llm.backends import REMOTE, make_backend
from skill_ttrl.progress import SILENT, Progress
from skill_ttrl.runs.summary import Summary
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.merge import merge_groups
from skill_ttrl.skills.mergers import HeuristicMerger, Merged, Merger, make_merger
from skill_ttrl.skills.ops import ParsedOutput
from skill_ttrl.skills.querying import LLMEndpoints
from skill_ttrl.storage.files import wrap_os_errors, write_atomic
from skill_ttrl.train.open_run import Resume, starting_skills
from skill_ttrl.train.run_bank import models_of
from skill_ttrl.types import Group, Message, Task, derive_seed
from skill_ttrl.voting import ballot_of, batch_vote, label_metrics

Records = Sequence[Mapping[str, Any]]


class SkillTTRLTrainer:
    """Trains by votes.

    Args:
        config: what to do; its `data` section is used where no data are given to `train`.
        output: run folder of `train`.
        progress: reports the state of a run.
    """

    def __init__(
        self, config: SkillTTRLConfig, output: str | Path = "runs/trainer", *, progress: Progress = SILENT
    ) -> None:
        self.config = config
        self.output = Path(output)
        self.progress = progress
        self.merger = OfflineMerger(config.skills, models_of(config))
        """Merger of `train_offline`; with `use_api = False` it counts, whatever `skills.merger` names."""
        self.skill_bank: SkillBank | None = None
        """Bank in memory that the winners of `train_offline` change. The config's `skills` section sets its first skills; None
        without one. A run of `train` stores its bank in its folder."""
        if config.skills is not None:
            self.skill_bank = SkillBank.from_config(config.skills)
            if first := starting_skills(config.skills):
                self.skill_bank.import_skills(first)

    def train(
        self, train_data: Records | None = None, val_data: Records | None = None, *, resume: Resume | None = None
    ) -> Summary:
        """Run the config's phases.

        Records are written to `<output>-data/`, which the run's config then names and pins: it can be resumed and
        evaluated like any other.

        Args:
            train_data: problems, each with `prompt` and, where known, `answer` (measured, never rewarded) and `id`.
            val_data: held-out problems of the same form.
            resume: see `commands.train.run`.
        """
        config = self.config.model_copy(deep=True)
        if train_data is not None:
            config.data.train, config.data.eval = self._write("train", train_data), None
        if val_data is not None:
            config.data.eval = self._write("validation", val_data)
        return run(config, self.output, resume=resume, progress=self.progress)

    def _write(self, name: str, records: Records) -> SourceConfig:
        file = self.output.with_name(f"{self.output.name}-data") / f"{name}.jsonl"
        lines = "".join(f"{json.dumps(dict(record), ensure_ascii=False)}\n" for record in records)
        with wrap_os_errors("write", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, lines.encode())
        return SourceConfig(path=str(file))

    def train_offline(
        self,
        problems: Sequence[str],
        all_responses: Sequence[Sequence[str]],
        ground_truths: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """One step on responses that are there already: extract, vote, reward, advantages, merge. Needs no model.

        Votes are held as the config's `vote` section says, where texts alone suffice for it.

        Where the config has skills (and `skills.update: merge`), the operations of the winners change `skill_bank`; texts
        are fused by their words alone, `skills.dedup_threshold` is for runs.

        Args:
            problems: one text each.
            all_responses: the responses to each problem, in the same order.
            ground_truths: true answer of each problem, which measures and rewards nothing; None: unknown.

        Returns:
            `rewards` and `advantages` (a list for each problem), `majority_answers`, `agreement_ratios`, the means `mean_reward` and
            `mean_agreement`, and `skill_bank_size` (0 without a bank); with true answers the metrics of `label_metrics`, `label_accuracy`
            among them; where a skill bank learns also `bank_update` (None when nothing changed) and
            `bank_report` (a `MergeReport`: counts, and what was left out).

        Raises:
            ValueError: the two differ in length, or a problem has no response.
            ConfigError: the voting strategy needs more than texts (log-probs).
        """
        if len(problems) != len(all_responses) or not all(all_responses):
            raise ValueError(
                f"Each of the {len(problems)} problems needs at least one response; found {len(all_responses)} lists of lengths "
                f"{[len(responses) for responses in all_responses]}."
            )
        from skill_ttrl.rl.algorithms import TrainingSamples, build_algorithm

        config, groups = self.config, [offline_group(*pair) for pair in zip(problems, all_responses, strict=True)]
        ballots = [ballot_of(group) for group in groups]
        name, options = config.vote.chosen
        votes = batch_vote(name, ballots, options)
        rewards = [list(vote.sample_rewards) for vote in votes]
        rewarded = [group.with_rewards(row) for group, row in zip(groups, rewards, strict=True)]
        estimate: Any = build_algorithm(config.rl.algorithm).advantages(TrainingSamples(rewarded, votes))
        # A response is one step; an algorithm gives a number for it, or one for each of its tokens.
        given = getattr(estimate, "advantages", estimate)
        values = iter(float(each[0] if isinstance(each, Sequence) else each) for each in given)
        shares = [vote.majority_ratio for vote in votes]
        found: dict[str, Any] = {
            "rewards": rewards,
            "advantages": [list(islice(values, len(row))) for row in rewards],
            "majority_answers": [vote.answer for vote in votes],
            "agreement_ratios": shares,
            "mean_reward": fmean(value for group in rewards for value in group) if rewards else 0.0,
            "mean_agreement": fmean(shares) if shares else 0.0,
        }
        if ground_truths is not None:
            found |= label_metrics(votes, ground_truths, [group.answers for group in groups])
        skills, bank = config.skills, self.skill_bank
        if skills is not None and bank is not None and skills.update == "merge":
            matches = [list(vote.matches) for vote in votes]
            changes, report = merge_groups(groups, matches, bank.snapshot(), skills, self.merger)
            update = bank.apply(changes, reason="merge") if changes else None
            found |= {"bank_update": update, "bank_report": report}
        return found | {"skill_bank_size": 0 if bank is None else len(bank)}


class OfflineMerger:
    """Merger that the config's `skills` section names, made when it is first needed: a language model's takes a key.

    Args:
        skills: the section; None: count.
        models: endpoints of a language model's merger.
    """

    def __init__(self, skills: SkillsConfig | None, models: LLMEndpoints) -> None:
        self._name, self._models = "heuristic" if skills is None else skills.merger, models
        self.use_api = True
        """False: count (`HeuristicMerger`) and use no language model."""

    def merge(self, outputs: Sequence[ParsedOutput], **given: Any) -> Merged:
        """Merge the winners' operations."""
        return (self._named if self.use_api else HeuristicMerger()).merge(outputs, **given)

    @cached_property
    def _named(self) -> Merger:
        return make_merger(self._name, models=self._models)


def offline_group(problem: str, responses: Sequence[str]) -> Group:
    """Wrap external responses as the rollouts of one task. Parses their skill-bank operations, but does not answer queries."""
    task = Task(problem, MATH_ENV_ID, {"question": problem})
    return Group(task, tuple(answered(task, problem, text) for text in responses))


class RolloutEngine:
    """Samples `n` texts for each prompt.

    Args:
        model_path: Hugging Face id or folder; for `openai` the name of a model at `OPENAI_BASE_URL`.
        engine: a backend by name: `hf`, `vllm`, `openai`, or `module:attribute` of your own.
        temperature, top_p, max_new_tokens: how to sample.
        seed: the same seed and the same calls give the same texts, as far as the backend promises it.
        device: "cpu", "cuda", …
    """

    def __init__(
        self,
        model_path: str,
        engine: str = "hf",
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 512,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        from skill_ttrl.llm.models.load import load_model

        config = SkillTTRLConfig(model=ModelConfig(path=model_path))
        config.rollout.backend, config.rollout.max_new_tokens = engine, max_new_tokens
        if engine == REMOTE:
            config.endpoints.model = model_path
        load = partial(load_model, config.model, device=device, seed=seed)
        self.backend = make_backend(BackendContext(config, load, device))
        self.sampling = Sampling(temperature=temperature, top_p=top_p, max_new_tokens=max_new_tokens)
        self._seed, self._calls = seed, 0

    def generate(
        self,
        prompts: Sequence[str],
        n_samples: int = 64,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> list[list[str]]:
        """`n_samples` texts for each prompt, in order; a prompt is a user's message.

        Args:
            prompts: user's messages.
            n_samples: texts for each.
            temperature: of this call; None: the engine's own.
            top_p: likewise.
            max_tokens: longest text of this call; None: the engine's `max_new_tokens`.

        Raises:
            EndpointError: a remote model gave no answer.
        """
        given: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_tokens}
        sampling = replace(self.sampling, **{name: value for name, value in given.items() if value is not None})
        requests = [Request((Message("user", prompt),), n=n_samples) for prompt in prompts]
        self._calls += 1
        seed = derive_seed(self._seed, "engine", self._calls)
        generations = wait_for(self.backend.generate(requests, sampling, seed=seed))
        refuse_error(generations)
        return [[done.text for done in found.completions] for found in generations]

    def close(self) -> None:
        """Stop what the backend has started."""
        self.backend.close()
