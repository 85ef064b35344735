"""`skillttrl distill` by counting, on episodes that were really played, and on files that are not what they should be."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from skill_ttrl.cli.main import main
from skill_ttrl.config import DistillConfig, SkillTTRLConfig, load_config
from skill_ttrl.data.episodes import read_episodes
from skill_ttrl.errors import ConfigError, DataError, SkillBankError
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.skills.querying import LLMEndpoints
from skill_ttrl.skills.teachers import cases as distill_cases
from skill_ttrl.skills.types import Case, Draft, TeacherResult
from skill_ttrl.stages import collect
from skill_ttrl.stages.collecting.collection import TaskSelection
from skill_ttrl.stages.distill import distill_into, run
from skill_ttrl.types import Task, Trajectory, from_json, to_json

TYPES = ("pick_clean_then_place_in_recep", "look_at_obj_in_light")


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of an expert and of chance, in generated kitchens."""
    folder = tmp_path_factory.mktemp("played")
    whole = folder / "episodes.jsonl"
    with whole.open("wb") as out:
        for agent in ("expert", "random"):
            part = folder / f"{agent}.jsonl"
            kwargs = {"data": "generated"}
            collect.run(TaskSelection("alfworld", "train", kwargs, TYPES, 12), agent=agent, jobs=1, output=part)
            out.write(part.read_bytes())
    return whole


def test_real_episodes_become_skills_that_are_true_of_them(played: Path, tmp_path: Path) -> None:
    found = run(played, tmp_path / "bank")
    assert {kind: each["won"] >= 1 and each["lost"] >= 1 for kind, each in found.episodes.items()} == dict.fromkeys(
        found.episodes, True
    )
    chains = {skill.task_type: skill.text for skill in found.skills if "order" in skill.title}
    lamp = "Do these in this order: `take X from ...`, then `use desklamp`."
    assert any(text.startswith(lamp) for text in chains.values())
    won = {each.task.id for each in read_episodes(played) if each.is_success}
    lost = {each.task.id for each in read_episodes(played) if not each.is_success}
    for skill in found.skills:
        assert skill.evidence and set(skill.evidence) <= (lost if skill.tier == "mistake" else won)
        assert skill.source == "distill" and not skill.flags and len(skill.text) < 500
    with SkillBank.open(tmp_path / "bank", read_only=True) as bank:
        (update,) = bank.history()
        assert (update.reason, bank.settings.embedder, list(bank)) == (
            "distill",
            "hash",
            sorted(found.skills, key=lambda each: each.id),
        )
        assert set(update.evidence) == {task for skill in found.skills for task in skill.evidence}
        assert bank.retrieve("examine the pen with the desklamp")


def test_a_file_that_is_cut_off_is_used_as_far_as_it_is_whole_and_it_is_said(played: Path, tmp_path: Path) -> None:
    lines = played.read_bytes().splitlines(keepends=True)
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(b"".join(lines[:-1]) + lines[-1][:100])
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(b"".join(lines[:-1]))
    found = run(torn, tmp_path / "bank")
    assert any(f"({len(lines)}, 100 bytes) was cut off" in note for note in found.notes)
    assert found.skills == run(whole, tmp_path / "other").skills


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"problem": "1+1?", "responses": ["2"]}\n', r"episodes\.jsonl:1 is not an episode: task: Field required"),
        (b"no JSON\n", r"episodes\.jsonl:1 is not an episode"),
        (b"", r"holds no episode\."),
        (b'{"task": {"id": "1"', r"holds no episode but a line that was cut off"),
    ],
)
def test_a_file_of_another_schema_is_named_and_nothing_is_written(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=said):
        run(tmp_path / "episodes.jsonl", tmp_path / "bank")
    assert [path.name for path in tmp_path.iterdir()] == ["episodes.jsonl"]


def test_episodes_that_teach_nothing_make_no_bank_and_the_next_call_makes_it(
    played: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = list(read_episodes(played))
    failed = [replace(each, stop_reason="error", error="the engine died") for each in episodes]
    (tmp_path / "failed.jsonl").write_text("".join(f"{to_json(each)}\n" for each in failed))
    bank = tmp_path / "bank"
    monkeypatch.setattr(
        sys, "argv", ["skillttrl", "distill", "--trajectories", str(tmp_path / "failed.jsonl"), "-o", str(bank)]
    )
    with pytest.raises(SystemExit) as leaving:
        main()
    said = " ".join(capfd.readouterr().err.split())
    assert leaving.value.code == DataError.exit_code
    assert (
        f"all {len(failed)} episodes ended by an error or before a step." in said
        and f"No bank was made at {bank}" in said
    )
    assert [path.name for path in tmp_path.iterdir()] == ["failed.jsonl"]
    assert run(played, bank).skills
    assert run(tmp_path / "failed.jsonl", bank, merge=True).skills == ()  # a bank that is there stays as it is


def test_episodes_of_evaluation_tasks_are_refused(played: Path, tmp_path: Path) -> None:
    lines = played.read_text().splitlines()
    seen = from_json(Trajectory, lines[-1])
    other = replace(seen, task=replace(seen.task, split="valid_seen"))
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("\n".join([*lines, to_json(other), to_json(other)]) + "\n")
    with pytest.raises(DataError, match=r"2 of the split 'valid_seen'.*Training uses train only"):
        run(mixed, tmp_path / "bank")
    assert not (tmp_path / "bank").exists()
    named = load_config({}, ["env.train_split=valid_seen"])  # what a run trains on it may learn from
    assert run(mixed, tmp_path / "bank", config=named).skills


def test_episodes_of_several_environments_and_failed_ones_are_said(played: Path) -> None:
    trajectories = list(read_episodes(played))
    odd = replace(trajectories[0], task=Task("t", "Other/Env-v0"), error="it broke", stop_reason="error")
    found = distill_into(SkillBank(), [*trajectories, odd], SkillTTRLConfig(), LLMEndpoints())
    assert found.envs == ("Other/Env-v0", "SkillTTRL/ALFWorld-v0")
    assert found.notes[0].startswith("The episodes come from 2 environments (Other/Env-v0, SkillTTRL/ALFWorld-v0)")
    assert found.notes[1].startswith(f"1 of {len(trajectories) + 1} episodes failed with an error")


def test_of_very_many_episodes_a_bounded_number_is_looked_at_the_same_each_time(
    played: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill_cases, "MOST_CASES", 3)
    banks = [SkillBank(), SkillBank()]
    found = [distill_into(bank, read_episodes(played), SkillTTRLConfig(), LLMEndpoints()) for bank in banks]
    assert found[0] == found[1] and any("3 of " in note and "drawn evenly" in note for note in found[0].notes)
    assert sum(sum(each.values()) for each in found[0].episodes.values()) == len(list(read_episodes(played)))


def test_a_bank_that_is_there_is_added_to_only_when_asked(played: Path, tmp_path: Path) -> None:
    bank = tmp_path / "bank"
    with SkillBank(bank, embedder="hash", max_skills=50) as kept:
        kept.add_from_dict({"text": "Mine.", "title": "Mine"})
    with pytest.raises(SkillBankError, match=r"There is a bank at .* already.*--append"):
        run(played, bank)
    found = run(played, bank, merge=True)
    again = run(played, bank, merge=True)
    with SkillBank.open(bank, read_only=True) as kept:
        assert len(kept) == 1 + len(found.skills) and kept.version == 2 and kept.settings.max_skills == 50
    assert not again.skills and sum("says that already" in note for note in again.notes) == len(found.skills) + 1
    assert "more were refused: " in again.cause
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(SkillBankError, match=r"There is something at .* already"):
        run(played, tmp_path / "other")
    with pytest.raises(SkillBankError, match=r"There is no bank at .*Leave out --append"):
        run(played, tmp_path / "none", merge=True)


def test_the_config_names_types_numbers_and_the_embedder(played: Path, tmp_path: Path) -> None:
    names = "skills.type_names={look_at_obj_in_light: look, pick_clean_then_place_in_recep: clean}"
    config = load_config(
        {},
        [names, "distill.max_mistakes=1", "distill.max_general=0", "skills.retrieval=keyword", "skills.max_skills=2"],
    )
    found = run(played, tmp_path / "bank", config=config)
    assert set(found.episodes) == {"look", "clean"} and len(found.skills) == 2 and found.retrieval == "keyword"
    assert any("skills.max_skills=2" in note for note in found.notes)
    with SkillBank.open(tmp_path / "bank", read_only=True) as kept:
        assert (kept.settings.retrieval_mode, kept.settings.embedder, kept.settings.max_skills) == (
            "keyword",
            "hash",
            2,
        )


class Own:
    """A teacher of the user's."""

    def distill(self, cases: list[Case], config: DistillConfig) -> TeacherResult:
        good = Draft("Own", "My own words.", tier="general", evidence=(cases[0].task_id,))
        return TeacherResult((good, Draft("Empty", " "), Draft("Better", "Text.", base="sk-1")))

    def evolve(self, failures: object, skills: object, config: object) -> TeacherResult:
        return TeacherResult()


class Wordy(Own):
    def distill(self, cases: list[Case], config: DistillConfig) -> TeacherResult:
        return "Try harder."  # type: ignore[return-value]  # what a user's own may do


def test_a_teacher_of_the_user_s_own_is_called_and_its_drafts_are_checked(played: Path, tmp_path: Path) -> None:
    found = run(played, tmp_path / "bank", teacher=f"{__name__}:Own")
    assert [skill.text for skill in found.skills] == ["My own words."]
    assert any("the text is empty" in note for note in found.notes) and any("only adds" in note for note in found.notes)
    with pytest.raises(ConfigError, match="must return a TeacherResult, not str"):
        run(played, tmp_path / "b", teacher=f"{__name__}:Wordy")
    assert not (tmp_path / "b").exists()


def test_the_command_shows_what_was_found(
    played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def skillttrl(*words: object) -> int:
        monkeypatch.setattr("sys.argv", ["skillttrl", "distill", "--trajectories", str(played), *map(str, words)])
        try:
            main()
        except SystemExit as leaving:
            return int(leaving.code or 0)
        return 0

    assert skillttrl("-o", tmp_path / "bank", "--set", "distill.max_general=1") == 0
    told = capsys.readouterr()
    assert "general" in told.out and "Episodes: " in told.out
    assert f"skillttrl skills show {tmp_path / 'bank'}" in told.out and "found by embedding, hash" in told.out
    assert skillttrl("-o", tmp_path / "bank") == SkillBankError.exit_code
    assert "--append" in capsys.readouterr().err
    assert skillttrl("-o", tmp_path / "b", "--json") == 0
    found: Mapping[str, object] = json.loads(capsys.readouterr().out)
    assert found["teacher"] == "heuristic" and found["version"] == 1
    assert skillttrl("-o", tmp_path / "c", "--set", "distill.max_generel=1") == ConfigError.exit_code
    assert "max_general" in capsys.readouterr().err and not (tmp_path / "c").exists()


KILL = """
import os, signal
from skill_ttrl.skills.bank.bank import SkillBank
from skill_ttrl.stages.distill import run
close = SkillBank.close
def killed(self):
    close(self)
    os.kill(os.getpid(), signal.SIGKILL)
SkillBank.close = killed
run({source!r}, {bank!r})
"""
