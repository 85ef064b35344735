"""Diagnose what this machine can run, without changing anything, and name a remedy for whatever will not work.

Checks of the machine are in `machine`, those of a config's samplers in `backends`, the others here; what a run checks too is in `setup.checks`.
Each is a function that gives a text or a `Check` and is called through `tried`; to add one, name it in `diagnose` or `check_machine`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from skill_ttrl.config import BUILTIN, SkillTTRLConfig, SourceConfig
from skill_ttrl.errors import ModelError
from skill_ttrl.llm.backends import COMMAND, backend_facts
from skill_ttrl.stages.doctor import version_sets
from skill_ttrl.stages.doctor.backends import chroma_checks, context_checks, endpoint_checks, memory_checks, vllm_checks
from skill_ttrl.stages.doctor.machine import Check, Status, check_machine, installed_version, tried

if TYPE_CHECKING:
    from skill_ttrl.stages.doctor.memory import MemoryEstimate

TIGHT = 0.9
"""Share of the available memory above which an estimate is called tight."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, and the memory estimate where a config was given."""

    checks: list[Check]
    memory_parts: dict[str, int] = field(default_factory=dict)
    """Bytes of each part (see `doctor.memory`); empty without a config."""
    memory_phases: dict[str, int] = field(default_factory=dict)
    """Peak of each phase in bytes; empty without a config."""

    @property
    def failed(self) -> bool:
        """True if something will not work."""
        return any(check.status == "fail" for check in self.checks)


def diagnose(config: SkillTTRLConfig | None = None) -> Diagnosis:
    """Look at this installation and machine, and at what `config` needs of it. Whatever is wrong is found, never raised."""
    checks = check_machine()
    if config is None:
        return Diagnosis([*checks, *_env(SkillTTRLConfig())])
    checks += [
        *_waits(config),
        *_names(config),
        *_data(config),
        *_tracker(config),
        *tried("skills", lambda: _skills(config)),
        *tried("chroma server", lambda: chroma_checks(config)),
        *tried("endpoints", lambda: endpoint_checks(config)),
    ]
    if backend_facts(config).remote:
        asks = "runs command.argv" if config.rollout.backend == COMMAND else "asks endpoints.policy"
        found = f"none is loaded: rollout.backend={config.rollout.backend} {asks}"
        return Diagnosis([*checks, Check("model", "ok", found)])
    model_config, model = _read_model(config)
    checks += [
        model,
        *tried("device", lambda: _device(config)),
        *tried("ranks", lambda: _ranks_here(config)),
        *vllm_checks(config, model_config),
    ]
    if model_config is None:
        return Diagnosis(checks)
    checks += tried("context", lambda: context_checks(config, model_config))
    estimates: list[MemoryEstimate] = []
    checks += tried("memory", lambda: _memory(config, model_config, estimates))
    if not estimates:
        return Diagnosis(checks)
    return Diagnosis(checks, dict(estimates[0].parts), dict(estimates[0].phases))


def _names(config: SkillTTRLConfig) -> list[Check]:
    """Look up everything a config calls by name, as a run would."""
    from skill_ttrl.stages.setup.checks import lookups

    env = _env(config)
    found = lookups(config, env=env[0].status == "ok")
    return env + [check for name, look in found.items() for check in tried(name, look)]


def _env(config: SkillTTRLConfig) -> list[Check]:
    from skill_ttrl.stages.setup.checks import check_env

    return tried("environment", lambda: check_env(config))


def _waits(config: SkillTTRLConfig) -> list[Check]:
    if not config.requires:
        return []
    advice = "A run of it refuses to start. --set requires=null starts it all the same."
    return [Check("recipe", "fail", f"{config.name} waits for {config.requires}", advice)]


def _data(config: SkillTTRLConfig) -> list[Check]:
    from skill_ttrl.data.tasks import load_demonstrations, load_tasks

    def tasks(source: SourceConfig, split: str) -> str:
        loaded = load_tasks(source, split=split)
        labelled = sum(task.ground_truth is not None for task in loaded)
        return f"{source.path}: {len(loaded)} problems, {labelled} of them with a true answer"

    checks: list[Check] = []
    for name, source, split in (("train", config.data.train, "train"), ("eval", config.data.eval, "test")):
        if source is not None:
            checks += tried(f"data.{name}", lambda source=source, split=split: tasks(source, split))  # type: ignore[misc]
    demos = config.sft.data
    if demos is not None and config.imitates:
        checks += tried("sft.data", lambda: f"{demos.path}: {len(load_demonstrations(demos))} demonstrations")
    return checks


def _tracker(config: SkillTTRLConfig) -> list[Check]:
    tracker = config.run.report_to
    if tracker == "none" or installed_version(tracker) is not None:
        return []
    command = f"pip install {tracker}" if tracker == "mlflow" else "pip install 'skill-ttrl[trackers]'"
    return [Check("tracker", "fail", f"{tracker} is not installed", f"{command}, or --set run.report_to=none")]


def _skills(config: SkillTTRLConfig) -> list[Check]:
    from skill_ttrl.skills.retrieval.make import check_packages, make_embedder
    from skill_ttrl.stages.setup.open_bank import check_start

    skills = config.skills
    if skills is None:
        return []
    began = skills.bank or "an empty bank"
    checks = tried("skill bank", lambda: f"{began}: {check_start(skills)} skills")
    if skills.embeds and skills.embedder != "openai":  # its address is looked at apart
        model, revision = skills.embedder_model, skills.embedder_revision
        checks += tried("embedder", lambda: make_embedder(skills.embedder, model, revision).name)
    return checks + tried("skill packages", lambda: check_packages(skills))


def _read_model(config: SkillTTRLConfig) -> tuple[Any | None, Check]:
    """The model's config, and whether it can be read."""
    found: list[Any] = []

    def read() -> str:
        from skill_ttrl.llm.models.model_config import load_model_config

        found.append(load_model_config(config.model))
        return f"{config.model.path}: {found[0].model_type}"

    [check] = tried("model", read)
    return (found[0] if found else None), check


def _device(config: SkillTTRLConfig) -> str:
    from skill_ttrl.rl.device import resolve_device, resolve_precision

    device = resolve_device(config.runtime.device)
    return f"{device}, {resolve_precision(config.runtime.precision, device)}"


def _ranks_here(config: SkillTTRLConfig) -> str:
    from skill_ttrl.stages.setup.ranks import check_gpus, check_ranks, planned_ranks

    check_ranks(config)
    check_gpus(config)
    count = planned_ranks(config)
    return "one process" if count == 1 else f"{count} processes (runtime.nproc)"


def _memory(config: SkillTTRLConfig, model_config: Any, estimates: list[MemoryEstimate]) -> list[Check]:
    """Estimate the memory here (appended to `estimates`), and on a GPU where this machine has none."""
    from skill_ttrl.rl.device import device_memory, resolve_device
    from skill_ttrl.stages.doctor.advice import gigabytes
    from skill_ttrl.stages.doctor.memory import PLANNED_GPU_BYTES, estimate_memory

    checks: list[Check] = []
    try:
        device = str(resolve_device(config.runtime.device))
        estimate = estimate_memory(config, model_config)
        estimates.append(estimate)
        checks.append(_fits(config, estimate, device_memory(device)))
        if estimate.device != "cpu" or config.model.path == BUILTIN:
            return checks + memory_checks(estimate, "of the GPU" if estimate.device == "cuda" else "of this machine")
        if version_sets.this_environment().engines:
            checks += memory_checks(estimate, "of this machine")
    except ModelError as error:
        checks.append(Check("memory", "fail", "unknown for this machine", str(error)))
    planned = estimate_memory(config, model_config, device="cuda", precision="bf16", total=PLANNED_GPU_BYTES)
    found = f"{_parameters(planned)}; {gigabytes(planned.peak)} in bf16{_ranks(planned)}"
    if planned.parts["engine"]:
        found += f", {gigabytes(planned.parts['engine'])} of it the engine's share of a GPU of {gigabytes(PLANNED_GPU_BYTES)}"
    checks.append(Check("memory on a GPU", "ok", found, "For planning: no GPU is here to hold it to."))
    return checks


def _parameters(estimate: MemoryEstimate) -> str:
    return f"{estimate.parameters / 1e6:,.2f}M parameters, {estimate.trainable / 1e6:,.2f}M of them learn"


def _fits(config: SkillTTRLConfig, estimate: MemoryEstimate, available: int) -> Check:
    from skill_ttrl.stages.doctor.advice import gigabytes, memory_advice

    phase = max(estimate.phases, key=lambda name: estimate.phases[name])
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in estimate.parts.items() if size)
    found = (
        f"{gigabytes(estimate.on_device)} at most, in {phase} ({estimate.device}, {estimate.precision}{_ranks(estimate)}); "
        f"{gigabytes(available)} available. {_parameters(estimate)}. Parts: {parts}"
    )
    if estimate.on_device <= TIGHT * available:
        return Check("memory", "ok", found)
    status: Status = "fail" if estimate.on_device > available else "warn"
    return Check("memory", status, found, memory_advice(config, estimate, phase, available))


def _ranks(estimate: MemoryEstimate) -> str:
    """Words on the ranks that the figures are of; nothing for one."""
    if estimate.ranks == 1:
        return ""
    return f", {estimate.ranks} ranks with {estimate.parallel}{' together' if estimate.device == 'cpu' else ', each'}"
