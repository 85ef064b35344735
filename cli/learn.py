"""`skillttrl distill` and `merge`: distill episodes into a skill bank; merge the operations of winning samples into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType

from skill_ttrl.cli import options
from skill_ttrl.cli.display import RunView, prints_aside, show, text_table
from skill_ttrl.sanitize import one_line

if TYPE_CHECKING:
    from skill_ttrl.commands.distill import Distilled
    from skill_ttrl.commands.merge import MergeResult
    from skill_ttrl.config import SkillTTRLConfig
    from skill_ttrl.train.bank_changes import TestChange
    from skill_ttrl.types import Skill

GatePolicy = Annotated[
    str | None,
    options.policy_option(
        f"Gate the change with this policy ({options.POLICIES}): it rolls out held-out training tasks with the bank before and after the change, "
        "which is applied if `skills.gate` accepts it."
    ),
]
GateSet = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Override one key of the policy's config, e.g. skills.gate.tasks=50. Can be repeated."
    ),
]
Trajectories = Annotated[
    Path,
    typer.Option(
        metavar="FILE.jsonl", help="Episodes: the output of `skillttrl collect`, or a run's `trajectories.jsonl`."
    ),
]
NewBank = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="BANK", help="Folder of the bank. Must not exist, except with --append."),
]
Teacher = Annotated[
    str | None,
    typer.Option(
        help="`heuristic` (statistics of the episodes, no language model), `openai` (the model of endpoints), or your own as "
        "`module:attribute`. Default: the config's, else `heuristic`."
    ),
]
Append = Annotated[bool, typer.Option("--append", help="Add the skills to an existing bank.")]
Config = Annotated[
    str | None,
    options.config_option(
        "How many skills, by which teacher or merger (`skills.merger`), and what a failed call means."
    ),
]
Samples = Annotated[
    Path,
    typer.Argument(
        metavar="SAMPLES",
        help="A run or its `trajectories.jsonl`, or records with `problem` and `responses` to vote on.",
    ),
]
Bank = Annotated[Path, typer.Option(help="Folder of the bank. It is made if it does not exist.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the update and change nothing.")]
MAX_SKILL, MAX_CHANGE = 90, 60
"""Longest text of a skill in a cell in characters, in the tables of `distill` and of `merge`."""
MAX_NOTES, MAX_SKIPPED = 20, 10
"""Most notes, and most of the operations that were skipped, that are listed."""


def distill(
    trajectories: Trajectories,
    output: NewBank,
    teacher: Teacher = None,
    append: Append = False,
    config: Config = None,
    overrides: options.Overrides = None,
    policy: GatePolicy = None,
    agent: options.Program = None,
    gate_set: GateSet = None,
    as_json: options.AsJson = False,
) -> None:
    """Distill episodes into skills: general principles, skills by task type, and mistakes to avoid.

    The bank is written completely or not at all. Its skills are retrieved by words (embedder `hash`, no download), unless the config's
    `skills` section names another embedder. Until it is written, answers of a language model are in BANK.usage.jsonl: the same command
    repeats only the missing calls.

    Example: `skillttrl distill --trajectories expert.jsonl -o bank`
    """
    from skill_ttrl.commands.distill import run

    asked, view = _checked(config, overrides), RunView(Console(stderr=True), f"distill {trajectories}", transient=True)
    if not append:
        options.refuse({"--policy": policy, "--agent": agent}, "needs --append")
    with view, _gate(policy, options.with_short(gate_set, {"program.argv": agent})) as gate:
        found = run(trajectories, output, teacher=teacher, merge=append, config=asked, progress=view, gate=gate)
    show(found, as_json, distilled_view, distilled_lines)


def merge(
    source: Samples,
    bank: Bank,
    dry_run: DryRun = False,
    config: Config = None,
    overrides: options.Overrides = None,
    policy: GatePolicy = None,
    gate_set: GateSet = None,
    as_json: options.AsJson = False,
) -> None:
    """Merge the skill operations of winning samples into a bank: new skills, improved skills, and credit for the ones that were used.

    Each step of a run is one update. Where no winner wrote a skill, one is extracted from what the winning solutions share.

    Example: `skillttrl merge runs/quickstart_skills --bank bank --dry-run`
    """
    from skill_ttrl.commands.merge import run

    asked = _checked(config, overrides)
    with prints_aside(), _gate(policy, gate_set) as gate:
        found = run(source, bank, dry_run=dry_run, config=asked, gate=gate)
    show(found, as_json, merged_view, merged_lines)


@contextmanager
def _gate(policy: str | None, overrides: Sequence[str] | None) -> Iterator[TestChange | None]:
    """Open the gate of `--policy`; None without one."""
    if policy is None:
        options.refuse({"--gate-set (or --agent)": overrides or None}, "needs --policy")
        yield None
        return
    options.check_model(policy, "a gate")
    from skill_ttrl.commands.play import open_gate

    with open_gate(policy, overrides or ()) as test:
        yield test


def _checked(config: str | None, overrides: Sequence[str] | None) -> SkillTTRLConfig | None:
    """Load the config that is given; None without one."""
    from skill_ttrl.train.defaults import load_checked

    return load_checked(config or {}, overrides or ()) if config or overrides else None


def distilled_view(found: Distilled) -> RenderableType:
    """The new skills, control characters escaped."""
    rows = []
    for each in found.skills:
        text = one_line(each.text, MAX_SKILL)
        rows.append((each.tier, each.task_type or None, each.title, text, len(each.evidence), _flags(each)))
    return text_table("Skills", ("tier", "type", "title", "text", "tasks", "flags"), rows) if rows else Group()


def merged_view(found: MergeResult) -> RenderableType:
    """The changes of each update. Skill texts are shown as text, their control characters as pictures."""
    rows = []
    for version, change in ((update.version, change) for update in found.updates for change in update.changes):
        skill = change.after or change.before
        if skill is None:
            continue
        old = f"{change.before.id} → " if change.before is not None and change.before.id != skill.id else ""
        uses = f"{skill.stats.successes}/{skill.stats.uses}"
        text = one_line(skill.text, MAX_CHANGE)
        rows.append((version, change.kind, f"{old}{skill.id}", text, uses, _flags(skill)))
    title = "Update (dry run)" if found.dry_run else f"Merged into {found.bank}"
    columns = ("version", "change", "skill", "text", "successes/uses", "flags")
    return text_table(title, columns, rows) if rows else Group()


def _flags(skill: Skill) -> str | None:
    return ", ".join(skill.flags) or None


def distilled_lines(found: Distilled) -> list[str]:
    """Lines about the episodes, those that were skipped, the cost, and the bank."""
    from skill_ttrl.llm.openai.ledger import usage_lines

    won, lost = (sum(each.get(name, 0) for each in found.episodes.values()) for name in ("won", "lost"))
    lines = [f"Episodes: {won} successes, {lost} failures."]
    lines += [one_line(note, 300) for note in found.notes[:MAX_NOTES]] + _more(len(found.notes) - MAX_NOTES)
    if found.requests:
        lines.append(f"LLM calls to the teacher: {found.requests}, without a usable answer: {found.failed}.")
    lines += usage_lines(found.usage)
    new = f"{len(found.skills)} new skills" if found.skills else "nothing was added"
    lines.append(f"{found.bank}: {new}, version {found.version}; found by {found.retrieval}.")
    return [*lines, f"Show them: skillttrl skills show {found.bank}"]


def merged_lines(found: MergeResult) -> list[str]:
    """Lines about the counts, the operations that were skipped, and the bank."""
    from skill_ttrl.llm.openai.ledger import usage_lines

    skipped = found.report.skipped
    lines = [", ".join(f"{name} {count}" for name, count in found.report.counts().items()) + "."]
    lines += [f"Skipped: {one_line(reason, 200)}" for reason in skipped[:MAX_SKIPPED]]
    lines += _more(len(skipped) - MAX_SKIPPED)
    change = f"{found.bank}: {found.skills_before} → {found.skills_after} skills, version {found.version}."
    if not found.version and not found.dry_run:
        change = f"No bank was made at {found.bank}."
    lines += usage_lines(found.usage)
    asked = " (but the language models were called)" if found.usage else ""
    return [*lines, *found.notes, f"Dry run, nothing was changed{asked}. {change}" if found.dry_run else change]


def _more(count: int) -> list[str]:
    return [f"… and {count} more (--json lists them)."] if count > 0 else []
