"""Evaluation targets: a run, one of its checkpoints, or a plain model, with the config that sets prompts and sampling."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skill_ttrl.config import EnvConfig, ModelConfig, SkillTTRLConfig, Source, load_config, recipe_names
from skill_ttrl.data.tasks import MATH_ENV_ID
from skill_ttrl.envs import resolve_env
from skill_ttrl.errors import ConfigError, DataError, EnvError, ModelError, RunFolderError, TrustError
from skill_ttrl.llm.backends import NO_MODEL, REMOTE, backend_facts, is_frozen
from skill_ttrl.llm.models.gguf import is_gguf, model_folder
from skill_ttrl.rollout.programs import file_digests
from skill_ttrl.runs.checkpoint import MANIFEST, load_state, newest, verify
from skill_ttrl.runs.episode_logs import SampleFolder
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.skills.embedders import with_endpoint
from skill_ttrl.storage.jsonl import parse_json
from skill_ttrl.train.defaults import load_checked, with_env_defaults
from skill_ttrl.train.open_run import bank_in_memory, bank_version, read_run_bank
from skill_ttrl.train.rules import Rules
from skill_ttrl.train.run_bank import RunBank
from skill_ttrl.train.tasks import FOLDER_DIGEST, ConfigTasks, Seen, folder_digest, pin_policy, pinned_source

SAMPLE_FILES = (".json", ".jsonl", ".parquet")
"""Endings of files with samples."""
MODEL_FILES = ("config.json", "adapter_config.json")
"""One of them makes a folder a model."""


@dataclass(frozen=True, slots=True)
class EvalDataset:
    """Where the problems of one table come from."""

    name: str
    """As it was asked for; empty for the subject's own problems."""
    source: Source | None
    """None: the environment's own."""
    split: str
    """Name of the part that they are."""
    limit: int | None = None
    """Of the environment's own: only so many, spread over all (`envs.lookup.spread`); None: all."""


def with_limit(problems: Sequence[EvalDataset], limit: int | None) -> list[EvalDataset]:
    """Return the datasets with at most `limit` problems each; None: all of them."""
    if limit is None:
        return list(problems)
    return [
        replace(each, limit=limit)
        if each.source is None
        else replace(each, source=each.source.model_copy(update={"limit": limit}))
        for each in problems
    ]


@dataclass(frozen=True, slots=True)
class EvalTarget:
    """Policy to evaluate."""

    name: str
    """Of the checkpoint, the model's folder, or the model on the hub."""
    config: SkillTTRLConfig
    weights: Path | None
    """Folder of the weights; None: `config.model` says what to load."""
    run: Path | None
    """The folder of the run that trained it; None for a plain model."""
    origin: str | Path | Mapping[str, Any]
    """Source of the config."""
    overrides: tuple[str, ...]
    note: str = ""
    """Settings that were chosen for the model (`with_fitting`); empty: none were."""

    def check(self, *, use_bank: bool = True) -> None:
        """Check the rules for sampling it, before anything is sampled, paid for or written; `use_bank`: with its skill bank.

        Raises:
            SkillTTRLError: it cannot be sampled.
        """
        config = self.config if use_bank else self.config.model_copy(update={"skills": None})
        Rules(config, "sample", output=self.run).check()

    def bank(self) -> RunBank | None:
        """The skill bank, open for reading: a run's as it was at the checkpoint, unless `skills.bank` is not what the run began with."""
        skills = with_endpoint(self.config.skills, self.config.endpoints)
        if self.run is not None and self.weights is not None:
            began = load_config(self.run / "config.yaml", trust=True).skills
            if skills is None or (began is not None and skills.bank == began.bank):
                return read_run_bank(skills, self.run, bank_version(load_state(self.weights)["state"]))
        return bank_in_memory(skills) if skills is not None else None

    def problems(self, data: Sequence[str]) -> list[EvalDataset]:
        """Return the problems to evaluate on: each file or data set of `data`, or the target's own problems. Pins revisions.

        `data.eval…` of the overrides, such as `data.eval.limit=100`, holds for each of `data`.

        Raises:
            ConfigError: a plain model without a recipe has no problems of its own; or `data` names one twice.
            DataError: a data set cannot be read, or is not the one that the run has pinned.
        """
        if not data:
            own = self.config.data
            if self.run is None and self.origin == {} and own.eval is None and own.train is None:
                raise ConfigError(
                    f"{self.name} is a plain model without its own problems. Set --data FILE, or --config CONFIG to use the config's."
                )
            if own.eval is not None:
                return [EvalDataset("", pinned_source(self.config.eval_source), "test")]
            if own.train is not None:
                return [EvalDataset("", pinned_source(self.config.train_source), "train")]
            return [EvalDataset("", None, self.config.evaluation_split, self.config.env.eval_tasks)]
        if len(set(data)) < len(data):
            raise ConfigError(f"--data names the same problems twice: {', '.join(data)}.")
        found = []
        for name in data:
            config = load_config(self.origin, [*_measured_on(name), *self.overrides])
            found.append(EvalDataset(name, pinned_source(config.eval_source), "test"))
        return found

    def trained_on(self) -> tuple[Seen | None, str]:
        """All that the run was trained on, the prompts of its demonstrations included, and why it is not known.

        It is None, with a reason, for a plain model and where the run's data can no longer be read.
        """
        if self.run is not None and backend_facts(self.config).remote:
            return None, "an endpoint does not say which weights it serves, nor what they were trained on"
        if self.run is None:
            return None, "the training data of a plain model are not known"
        try:
            return ConfigTasks.of_run(self.run).learned_from(), ""
        except (DataError, EnvError, TrustError) as error:
            return None, f"the run's training data can no longer be read ({error})"

    def decisive(self) -> dict[str, Any]:
        """Return the settings that decide which samples are drawn from given weights, apart from the ways of sampling."""
        config, whole = self.config, self.config.model_dump(mode="json")
        asked: dict[str, Any] = {}
        if backend_facts(config).remote:
            policy = config.endpoints.of("policy")
            asked = {"endpoints": {"policy": policy and policy.model_dump(mode="json", include=set(DECISIVE))}}
        if config.program is not None:
            asked["program"] = whole["program"]
        return (
            {name: whole[name] for name in KEPT}
            | asked
            | {
                "rollout": {name: whole["rollout"][name] for name in ("backend", "max_batch_size")},
                "data": {"max_prompt_tokens": whole["data"]["max_prompt_tokens"]},
                "model": {name: whole["model"][name] for name in ("revision", "chat_template")},
            }
        )

    def fingerprint(self) -> str:
        """Return a text that identifies the policy: the same for the same weights and no others. For a remote model it is only its name.

        Where a program plays, its command line follows, with the digest of each file that it names.
        """
        program, played = self.config.program, ""
        if program is not None:
            files = [f"{name} {digest}" for name, digest in file_digests(program).items()]
            played = f" as {shlex.join(program.argv)}" + (f" [{'; '.join(files)}]" if files else "")
        return self._weights() + played

    def _weights(self) -> str:
        if self.config.rollout.backend == NO_MODEL:
            return NO_MODEL
        policy = self.config.endpoints.of("policy")
        if backend_facts(self.config).remote and policy is not None:
            return f"{REMOTE}:{policy.model}"
        if self.weights is None:
            return f"{self.config.model.path}@{self.config.model.revision}"
        manifest = self.weights / MANIFEST
        if manifest.is_file():  # it holds the hash of every file
            return f"sha256:{hashlib.sha256(manifest.read_bytes()).hexdigest()}"
        return f"{FOLDER_DIGEST}{folder_digest(self.weights)}"


def find_checkpoint(path: str | Path) -> tuple[Path, Path]:
    """The run and the checkpoint that `path` means: the newest one of a run, or the one that it is.

    Raises:
        RunFolderError: it is neither, or the run has no checkpoint yet.
        CheckpointError: the checkpoint is damaged.
    """
    path = Path(path)
    if RunFolder.exists(path):
        checkpoint = newest(RunFolder.open(path, lock=False))
        if checkpoint is None:
            raise RunFolderError(f"{path} has no checkpoint yet.")
        return path, checkpoint.path
    run = path.resolve().parent.parent
    if path.is_dir() and (path / "manifest.json").is_file() and RunFolder.exists(run):
        verify(path)
        return run, path
    raise RunFolderError(
        f"{path} is neither a run folder nor a checkpoint of one. `skillttrl train` makes runs; list yours with: skillttrl "
        "inspect runs."
    )


def find_trained(path: str | Path, overrides: Sequence[str] = ()) -> EvalTarget:
    """The policy of a run or a checkpoint (`find_checkpoint`), with the config of its training."""
    run, weights = find_checkpoint(path)
    origin = run / "config.yaml"
    return EvalTarget(weights.name, load_config(origin, overrides), weights, run, origin, tuple(overrides))


def resolve_target(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    config: str | Mapping[str, Any] | None = None,
    data: Sequence[str] = (),
    use_bank: bool = True,
) -> EvalTarget:
    """The run, checkpoint or model that `source` names.

    Args:
        source: a run folder (its newest checkpoint), a checkpoint, a model's folder in Hugging Face format, a model on the hub
            (`owner/name`), `openai` or `openai:MODEL` for the model of the role `policy` (`endpoints`), or `none` for a program that
            brings its own model (section `program`).
        overrides: changes to the config.
        config: recipe, file or content of one with a plain model's template and lengths; None: the defaults. A run has its own.
        data: what it will be measured on (`EvalTarget.problems`): `data.eval…` of the overrides is about that.
        use_bank: False where its skill bank is left out: then no embedder is looked for.

    Raises:
        ConfigError: a run is given another config.
        RunFolderError: `source` is none of these, or the run has no checkpoint yet.
        ModelError: there is no such model on the hub.
    """
    if not str(source).strip():
        raise RunFolderError("Name a policy: a run folder, a checkpoint, a model's folder or owner/name.")
    if is_gguf(str(source)):
        source = model_folder(str(source))
    path, now, stated = Path(source), [*_measured_on(*data[:1]), *overrides], tuple(overrides)
    base: str | Path | Mapping[str, Any] = {} if config is None else config
    name, weights, run = str(source), None, None
    if is_frozen(source):
        name, asked, own = _not_loaded(name, now, base)
        stated += own
    elif is_trained(path):
        if config is not None:
            raise ConfigError(
                f"{source} has the config of its run; --config is for plain models. Change settings with --set."
            )
        found = find_trained(path, now)
        name, asked, weights, run, base = found.name, found.config, found.weights, found.run, found.origin
    else:
        asked = load_checked(base, now)
        asked.model.lora = None
        if path.is_dir():
            if not any((path / file).is_file() for file in MODEL_FILES):
                raise _nothing_at(path)
            asked.model.path, asked.model.revision = _base_model(path)
            name, weights = path.resolve().name, path
        elif _is_meant_as_path(path):
            raise _nothing_at(path)
        else:
            if not any(override.startswith("model.revision=") for override in overrides):
                asked.model.revision = None  # a recipe's is of its own model
            asked.model.path = name
    if run is None:
        asked.requires = None  # what a recipe still needs, it needs to train
    # Data sets are pinned where they are read.
    pinned = pin_policy(asked, use_bank=use_bank and asked.skills is not None and asked.skills.enabled)
    return EvalTarget(name, pinned, weights, run, base, stated)


def is_trained(source: str | Path) -> bool:
    """True if `source` is a run or one of its checkpoints; both have the config of their training."""
    return RunFolder.exists(Path(source)) or (Path(source).is_dir() and (Path(source) / MANIFEST).is_file())


def _not_loaded(
    source: str, now: Sequence[str], base: str | Path | Mapping[str, Any]
) -> tuple[str, SkillTTRLConfig, tuple[str, ...]]:
    """A remote model or `none`, its config, and the overrides that name it: what follows the colon takes the place of the config's."""
    kind, _, name = source.partition(":")
    own, name = [f"rollout.backend={kind}"], name.strip()
    if name:
        own.insert(0, f"endpoints.roles.policy.model={json.dumps(name)}")
    asked = load_checked(base, [*now, *own])
    if kind == NO_MODEL:  # a rule finds out where there is no program
        for key in {*ONCE} - asked.eval.model_fields_set:
            setattr(asked.eval, key, ONCE[key])
        return NO_MODEL if asked.program is None else shlex.join(asked.program.argv), asked, tuple(own)
    policy = asked.endpoints.of("policy")
    if policy is None:
        raise ConfigError(
            f"{source} needs the section endpoints.roles.policy, which the config lacks. Write {REMOTE}:MODEL, or give a --config with it."
        )
    return policy.model, asked, tuple(own)


ONCE = {"samples": 1, "greedy": False}
"""How a program with a model of its own is measured, unless `eval` says otherwise: it costs money, and no temperature reaches it."""
KEPT = ("seed", "env", "agent", "skills", "runtime")
"""Sections of a config that samples depend on as a whole; of others only what `decisive` names."""
DECISIVE = ("model", "provider", "base_url", "server_type", "logprobs", "extra_body")
"""Fields of an endpoint that samples depend on."""

SMALL = 300_000_000
"""Parameters of a model below which `with_fitting` chooses: too small to reason in steps."""
FEW_SHOT = {"agent.template": "few_shot", "model.chat_template": "none", "rollout.stop": ["\n"]}
"""Worked examples that the model continues with one line."""
SHORT = {"rollout.max_new_tokens": 256}


def with_fitting(found: EvalTarget) -> EvalTarget:
    """The target with a prompt that a small model can follow and a length that fits, if it is a plain model of less than `SMALL`
    parameters that answers questions, and no config says otherwise. A stated setting of the prompt keeps the whole prompt; `note` names
    what was chosen.
    """
    config = found.config.model_copy(deep=True)
    is_plain = found.run is None and found.origin == {} and not backend_facts(config).remote
    if not is_plain or resolve_env(config.env.id) != MATH_ENV_ID:
        return found
    stated = {f"{name}.{key}" for name in ("model", "rollout") for key in getattr(config, name).model_fields_set}
    shots = {} if config.agent.model_fields_set or config.skills or stated & {*FEW_SHOT} else FEW_SHOT
    chosen = {key: value for key, value in {**shots, **SHORT}.items() if key not in stated}
    if not chosen or not _is_small(config.model):
        return found
    for key, value in chosen.items():
        section, _, name = key.partition(".")
        setattr(getattr(config, section), name, value)
    listed = ", ".join(f"{key}={json.dumps(value)}" for key, value in chosen.items())
    note = (
        f"Chosen for a model of less than {SMALL / 1e6:.0f} million parameters: {listed}. For others: --set KEY=VALUE."
    )
    return replace(found, config=config, note=note)


def _is_small(model: ModelConfig) -> bool:
    from skill_ttrl.llm.models.load import count_parameters, load_model_config

    try:
        return count_parameters(load_model_config(model), None)[0] < SMALL
    except ModelError:  # it is reported where the model is loaded
        return False


def in_env(found: EvalTarget, env_id: str, kwargs: Mapping[str, Any], overrides: Sequence[str] = ()) -> EvalTarget:
    """The policy as it plays in an environment, whose defaults count where the policy's config is silent.

    Raises:
        ConfigError: an override names other tasks than the environment's own, which are played.
    """
    for each in overrides:
        whole = load_config({}, [each]).data.model_fields_set if each.startswith("data=") else ()
        if each.startswith(("data.train", "data.eval")) or {"train", "eval"} & {*whole}:
            raise ConfigError(
                f"--set {each} has no effect with --env {env_id}, whose own tasks are played. Leave one of them out."
            )
    settings = found.config.model_copy(deep=True)
    settings.env.id, settings.env.kwargs = env_id, dict(kwargs)
    return replace(found, config=with_env_defaults(settings, playing=overrides))


def env_kwargs(overrides: Sequence[str], env_id: str, trained: EnvConfig | None = None) -> dict[str, Any]:
    """Arguments of the environment: those that a run was trained with, where it was in the same one, then `env.kwargs`."""
    asked = load_config({}, [each for each in overrides if each.startswith("env.kwargs")]).env.kwargs
    own: dict[str, Any] = {}
    with suppress(EnvError):  # what it was trained in is not here: something else, then
        if trained is not None and resolve_env(trained.id) == env_id:
            own = trained.kwargs
    return {**own, **asked}


def _measured_on(*path: str) -> list[str]:
    """The override that puts a whole source in place of the config's: split and revision are not those of other data."""
    return [f"data.eval={json.dumps({'path': each})}" for each in path]


def is_stored(source: str | Path) -> bool:
    """True if `source` names a file or is a folder that stores samples; anything else is a policy to sample."""
    if not str(source).strip():  # as a path it would be the working directory
        return False
    path = Path(source)
    return path.is_file() or path.suffix in SAMPLE_FILES or SampleFolder.exists(path)


def _is_meant_as_path(path: Path) -> bool:
    """True if a name without a local model looks like a path that leads nowhere, and not like a model on the hub."""
    if path.exists() or path.is_absolute() or str(path).startswith((".", "~")) or len(path.parts) > 2:
        return True
    if len(path.parts) == 2:
        return path.parent.is_dir() or path.parts[0] == "runs"
    return RunFolder.exists(Path("runs") / path) or str(path) in recipe_names()


def is_hub_name(path: Path) -> bool:
    """True if a policy's name is that of a model on the hub, `owner/name`, and nothing local has it."""
    return len(path.parts) == 2 and not _is_meant_as_path(path)


def _nothing_at(path: Path) -> RunFolderError:
    if not path.exists() and str(path) in recipe_names():
        return RunFolderError(
            f"{path} is a recipe, not a policy: `skillttrl train {path}` trains one, in runs/{path}. For another model with this "
            f"recipe's settings: --config {path}."
        )
    there = "" if path.exists() else " (it does not exist)"
    return RunFolderError(
        f"{path} is neither a run folder nor a checkpoint of one, nor a model in Hugging Face format{there}. `skillttrl train` "
        "makes runs; list yours with: skillttrl inspect runs. A hub model is written OWNER/NAME."
    )


def _base_model(folder: Path) -> tuple[str, str | None]:
    """Return `model.path` and `model.revision` for a model's folder; adapters name their base model."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return str(folder), None
    try:
        described = parse_json(file.read_text(encoding="utf-8"))
        return str(described["base_model_name_or_path"]), described.get("revision")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"Cannot read {file}: {type(error).__name__}: {error}.") from None
