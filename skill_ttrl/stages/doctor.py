"""What this machine can run: `diagnose` looks, changes nothing, and says what to do where something will not work.

Checks of the machine are in `machine`, those of a config here. Each is a function that gives a `Check`; to add one, write
it and name it in `diagnose` or `check_machine`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skill_ttrl.config import SkillTTRLConfig, SourceConfig
from skill_ttrl.errors import SkillTTRLError
from skill_ttrl.stages.machine import Check, Status, check_machine, installed_version

if TYPE_CHECKING:
    from skill_ttrl.rl.memory import MemoryEstimate

TIGHT = 0.9
"""Share of the available memory above which an estimate is called tight."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, and the memory estimate where a config was given."""

    checks: list[Check]
    memory_parts: dict[str, int] = field(default_factory=dict)
    """Bytes of each part (see `rl.memory`); empty without a config."""
    memory_phases: dict[str, int] = field(default_factory=dict)
    """Peak of each phase in bytes; empty without a config."""

    @property
    def failed(self) -> bool:
        """Whether something will not work."""
        return any(check.status == "fail" for check in self.checks)


def diagnose(config: SkillTTRLConfig | None = None) -> Diagnosis:
    """Look at this installation and machine, and at what `config` needs of it."""
    checks = check_machine()
    if config is None:
        return Diagnosis([*checks, _env("math")])
    checks += [
        _env(config.env.id),
        *_waits(config),
        _template(config),
        _vote(config),
        *_data(config),
        *_optional(config),
        *_skills(config),
    ]
    model, estimate, plan = _model(config)
    checks.append(model)
    if estimate is None:
        return Diagnosis(checks)
    checks += [_memory(config, estimate), *plan]
    return Diagnosis(checks, dict(estimate.parts), dict(estimate.phases))


def _env(name: str) -> Check:
    from skill_ttrl.envs import resolve_env

    return _tried("environment", lambda: f"{name} is {resolve_env(name)}")


def _waits(config: SkillTTRLConfig) -> list[Check]:
    if not config.waits_for:
        return []
    advice = "A run of it refuses to start. --set waits_for=null starts it all the same."
    return [Check("recipe", "fail", f"{config.name} waits for {config.waits_for}", advice)]


def _template(config: SkillTTRLConfig) -> Check:
    from skill_ttrl.agents.prompt import PromptFormatter

    def found() -> str:
        PromptFormatter.from_config(config.agent)
        return config.agent.template

    return _tried("prompt template", found)


def _vote(config: SkillTTRLConfig) -> Check:
    from skill_ttrl.stages.ballots import check_vote

    return _tried("vote", lambda: check_vote(config))


def _data(config: SkillTTRLConfig) -> list[Check]:
    from skill_ttrl.envs.math.tasks import load_demonstrations, load_tasks

    def tasks(source: SourceConfig, split: str) -> str:
        loaded = load_tasks(source, split=split)
        labelled = sum(task.reference is not None for task in loaded)
        return f"{source.path}: {len(loaded)} problems, {labelled} of them with a true answer"

    checks = []
    for name, source, split in (("train", config.data.train, "train"), ("eval", config.data.eval, "test")):
        if source is not None:
            checks.append(_tried(f"data.{name}", lambda source=source, split=split: tasks(source, split)))  # type: ignore[misc]
    demos = config.sft.data
    if demos is not None and "sft" in config.phases:
        checks.append(_tried("sft.data", lambda: f"{demos.path}: {len(load_demonstrations(demos))} demonstrations"))
    return checks


def _optional(config: SkillTTRLConfig) -> list[Check]:
    from skill_ttrl.llm.engine import BACKENDS

    checks = [
        _tried("backend", lambda: f"{config.rollout.backend} is {BACKENDS.get(config.rollout.backend).__module__}")
    ]
    tracker = config.run.tracker
    if tracker != "none" and installed_version(tracker) is None:
        command = f"pip install {tracker}" if tracker == "mlflow" else "pip install 'skill-ttrl[trackers]'"
        checks.append(Check("tracker", "fail", f"{tracker} is not installed", f"{command}, or --set run.tracker=none"))
    return checks


def _skills(config: SkillTTRLConfig) -> list[Check]:
    from skill_ttrl.skills.embed import make_embedder
    from skill_ttrl.stages.bank import starting_skills

    skills = config.skills
    if skills is None:
        return []

    def begun() -> str:
        return f"{skills.bank or 'an empty bank'}: {len(starting_skills(skills))} skills"

    def embedder() -> str:
        return make_embedder(skills.embedder, skills.embedder_model, skills.embedder_revision).name

    checks = [_tried("skill bank", begun)]
    if skills.retrieval != "keyword":
        checks.append(_tried("embedder", embedder))
    packages = {"hybrid": ["bm25s"], "keyword": ["bm25s"]}.get(skills.retrieval, [])
    packages += ["chromadb"] if skills.index == "chroma" and skills.retrieval != "keyword" else []
    for name in packages:
        if installed_version(name) is None:
            checks.append(Check("skills", "fail", f"{name} is not installed", "pip install 'skill-ttrl[skills]'"))
    return checks


def _model(config: SkillTTRLConfig) -> tuple[Check, MemoryEstimate | None, list[Check]]:
    """Whether the model can be read, what it will take here, and what it would take on a GPU where this has none."""
    from skill_ttrl.llm.load import EMBEDDED
    from skill_ttrl.llm.model_config import load_model_config
    from skill_ttrl.rl.memory import estimate_memory

    path = config.model.path
    try:
        model_config = load_model_config(config.model)
        estimate = estimate_memory(config, model_config)
    except SkillTTRLError as error:
        return Check("model", "fail", path, str(error)), None, []
    found = f"{path}: {model_config.model_type}, {estimate.parameters / 1e6:,.2f}M parameters"
    check = Check("model", "ok", f"{found}, {estimate.trainable / 1e6:,.2f}M of them learn")
    if estimate.device != "cpu" or path == EMBEDDED:
        return check, estimate, []
    planned = estimate_memory(config, model_config, device="cuda", precision="bf16")
    advice = "For planning; the figures of the parts are those of this machine."
    return check, estimate, [Check("memory on a GPU", "ok", f"{_gigabytes(planned.peak)} in bf16", advice)]


def _memory(config: SkillTTRLConfig, estimate: MemoryEstimate) -> Check:
    from skill_ttrl.rl.device import resolve_device
    from skill_ttrl.rl.memory import device_memory

    available = device_memory(str(resolve_device(config.runtime.device)))
    phase = max(estimate.phases, key=lambda name: estimate.phases[name])
    parts = ", ".join(f"{name} {_gigabytes(size)}" for name, size in estimate.parts.items() if size)
    found = (
        f"{_gigabytes(estimate.peak)} at most, in {phase} ({estimate.device}, {estimate.precision}); "
        f"{_gigabytes(available)} available. Parts: {parts}"
    )
    if estimate.peak <= TIGHT * available:
        return Check("memory", "ok", found)
    status: Status = "fail" if estimate.peak > available else "warn"
    return Check("memory", status, found, _memory_advice(config, estimate, phase, available))


def _memory_advice(config: SkillTTRLConfig, estimate: MemoryEstimate, phase: str, available: int) -> str:
    parts = estimate.parts
    fixed = parts["weights"] + parts["gradients"] + parts["optimizer"] + parts["reference"] + parts["runtime"]
    if fixed > available:
        if config.model.lora is None:
            return "Weights, gradients and optimiser alone do not fit. Train adapters (--set model.lora.r=16), or a smaller model."
        return "The weights alone do not fit. Take a smaller model."
    if phase == "sample":
        fewer = max(1, config.rollout.max_batch_size // 2)
        return f"Sample fewer rows at once: --set rollout.max_batch_size={fewer}."
    if not config.model.gradient_checkpointing:
        return "Recompute activations: --set model.gradient_checkpointing=true."
    section = "sft" if phase == "sft" else "rl"
    return f"Take fewer sequences at once: --set {section}.micro_batch_size=1; the result stays the same."


def _tried(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except SkillTTRLError as error:
        return Check(name, "fail", "not usable", str(error))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
