"""The first Skill-TTRL's published snippets, each with its import line changed and nothing else, and what its README promises of names."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from skill_ttrl import (
    PromptFormatter,
    RewardManager,
    RolloutEngine,
    Skill,
    SkillBank,
    SkillTTRLConfig,
)
from skill_ttrl.compat import trainer as trainers
from skill_ttrl.config import SkillsConfig
from skill_ttrl.config.seed_keys import FIRST_SKILL_TTRL
from skill_ttrl.errors import ConfigError
from skill_ttrl.skills.ops import OutputParser
from skill_ttrl.types import from_json, to_json
from tests.scripted_backend import ScriptedBackend

README = Path(__file__).parents[2] / "data" / "first_seed_snippets.md"
SNIPPETS = dict(re.findall(r"^## (.+?)\n\n```python\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL))
"""By the README's section."""
TheirSkill: Any = Skill
"""The constructor by their names, which type checkers do not know."""
WINNER = "<skill_ops><generate>Check {}.</generate><evolve base='#12'>Better.</evolve></skill_ops><answer>2</answer>"


def run_snippet(section: str, **names: Any) -> dict[str, Any]:
    """Names after a snippet that begins with these."""
    exec(compile(SNIPPETS[section], section, "exec"), names)
    return names


def seed_bank(**stats: Any) -> SkillBank:
    bank = SkillBank(retrieval_mode="keyword")
    bank.add(TheirSkill(skill_id="a", title="Primes", content="Use Fermat.", task_type="number_theory", **stats))
    bank.add(TheirSkill(skill_id="b", title="Angles", content="Draw it.", task_type="geometry"))
    bank.add(TheirSkill(skill_id="c", title="Units", content="Check the units.", task_type="general"))
    return bank


def test_skill_bank() -> None:
    results = run_snippet("1. Skill Bank")["results"]
    assert [skill.skill_id for skill in results] == ["sk_001"] and results[0].content.startswith("Use Fermat's")


def test_output_parser(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_snippet("2. Output Parser")
    assert capsys.readouterr().out.split("\n")[:4] == ["2", "True", "number theory", "12"]
    assert names["result"].skill_ops.ops_summary == ["generate", "retrieve", "evolve"]


def test_majority_voting() -> None:
    names = run_snippet("3. Majority Voting")
    assert (names["majority"], names["agreement"], list(names["matches"][:4])) == ("42", 0.625, [True] * 3 + [False])
    assert names["rewards"] == [1, 1, 1, 0, 0, 1, 0, 1] and (names["maj"], names["agr"]) == ("42", 0.625)


def test_skill_merger() -> None:
    outputs = [OutputParser().parse(WINNER.format(word)) for word in ("parity", "parity", "signs")]
    merged = run_snippet("4. Skill Merger", winning_parsed_outputs=outputs)["merged"]
    assert [draft.text for draft in merged.new_skills] == ["Check parity.", "Check signs."]
    assert [rewrite.base for rewrite in merged.evolved_skills] == ["12"] and merged.useful_retrieval_ids == ()


def test_grpo_algorithm() -> None:
    zeros, mask = torch.zeros(4, 3), torch.ones(4, 3)
    names = run_snippet(
        "5. GRPO Algorithm",
        per_sample_rewards=torch.tensor([1.0, 0.0, 1.0, 1.0]),
        prompt_group_ids=torch.tensor([0, 0, 1, 1]),
        response_mask=mask,
        log_probs=zeros,
        old_log_probs=zeros,
        ref_log_probs=zeros - 0.1,
    )
    assert names["advantages"][2:].eq(0).all() and names["advantages"][0, 0] > 0 > names["advantages"][1, 0]
    assert names["info"]["policy_loss"].item() == names["loss"].item() and 0 < names["kl_value"] < 0.01


def test_prompt_formatter() -> None:
    names = run_snippet("6. Prompt Formatter", bank=seed_bank())
    assert "take, go, look" in names["prompt"] and len(names["prompts"]) == 2
    formatter = PromptFormatter(skill_bank=seed_bank(), task_type="geometry")
    assert "Draw it." in formatter.format_prompt("2^100?") and "Use Fermat." not in formatter.format_prompt("2^100?")
    assert "Use Fermat." in formatter.format_prompt("2^100?", "number_theory")
    assert "Use Fermat." in formatter.format_batch(["2^100?"], "number_theory")[0]
    assert "Use Fermat." in formatter.format_agent_prompt("2^100?", "", "", "number_theory")


def test_training_pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainers, "run", lambda config, output, **_: config.data)
    given = {"data": [{"prompt": "1+1?", "solution": r"It is \boxed{2}."}], "val_data": [{"prompt": "1+2?"}]}
    metrics = run_snippet("7. Training Pipeline", **given)["metrics"]
    assert metrics["mean_reward"] == pytest.approx(2 / 3) and metrics["skill_bank_size"] == 0


def test_rollout_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "make_backend", lambda context: ScriptedBackend(["a", "b"]))
    names = run_snippet("8. Rollout Engine", prompts=["p", "q"])
    assert [len(texts) for texts in names["responses"]] == [64, 64]


def test_sampling_settings_of_one_call() -> None:
    engine = RolloutEngine("builtin", max_new_tokens=3)
    greedy = partial(engine.generate, ["a"], n_samples=2, temperature=0.0)
    assert greedy()[0] == greedy()[0] and len({*greedy()[0]}) == 1 and engine.sampling.temperature == 1.0
    assert len(greedy(max_tokens=1)[0][0]) <= len(greedy()[0][0])


def test_reward_manager() -> None:
    responses = ["<answer>1</answer>"] * 40 + ["<answer>2</answer>"] * 24
    result = run_snippet("9. Reward Manager", responses=responses, prompt_ids=[7] * 64)["result"]
    assert (
        sum(result["rewards"]) == 40 and result["majority_answers"] == ["1"] and result["agreement_ratios"] == [0.625]
    )
    manager = RewardManager()
    assert manager.compute_gt_metrics(responses[38:42], ["1"] * 4) == {
        "accuracy": 0.5,
        "scores": [1.0, 1.0, 0.0, 0.0],
        "mean_score": 0.5,
    }


def test_math_grader() -> None:
    names = run_snippet("10. Math Grader")
    assert (
        names["grade_answer"]("42.0", "42")["match_type"]
        == names["grade_answer"]("1/2", "0.5")["match_type"]
        == "numeric"
    )
    graded = names["compute_reward"](r"The answer is \boxed{42}.", ground_truth="42")
    assert graded["score"] == 1.0 and graded["predicted_answer"] == "42"


def test_configuration_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = run_snippet("11. Configuration System")["config"]
    assert config.algorithm.clip_ratio == config.rl.loss["clip_ratio"] == 0.2


def test_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_snippet("Quick Start")
    assert capsys.readouterr().out == "Reward: 0.75\nSkills: 1\n"
    again = names["trainer"].train_offline(["q"], [["<answer>3</answer>"]], ground_truths=["3"])
    assert again["label_accuracy"] == 1.0 and again["skill_bank_size"] == 1


def test_every_setting_of_theirs_is_read_and_set_or_says_what_to_set() -> None:
    config = SkillTTRLConfig()
    config.merger.model = "gpt-4o"
    for path, key in FIRST_SKILL_TTRL.items():
        section, name = path.split(".")
        if section in ("data", "model", "rollout"):
            continue
        view = getattr(config, section)
        if key.paths:
            setattr(view, name, key.default)
            assert getattr(view, name) == key.default or name in ("embedding_model", "skill_bank_path"), path
        else:
            with pytest.raises(ConfigError, match=f"{name} has no counterpart here. "):
                setattr(view, name, key.default)
    assert config.rl.total_epochs == 80 and config.skill_bank.embedding_model.endswith("/all-MiniLM-L6-v2")
    config.skill_bank.enable_retrieve = False
    assert config.skills is not None and config.skills.max_retrievals == 0
    with pytest.raises(ConfigError, match="Did you mean 'total_epochs'"):
        config.trainer.total_epoch = 3
    assert not hasattr(config.trainer, "total_epoch") and "total_epochs" in dir(config.trainer)


def test_fields_of_a_skill_by_their_names() -> None:
    skill = TheirSkill(
        skill_id="a",
        title="t",
        content="c",
        usage_count=4,
        success_count=1,
        created_at_round=2,
        last_used_round=3,
        parent_id="z",
    )
    assert skill == Skill("a", "t", "c", parents=("z",), stats=skill.stats)
    assert (skill.skill_id, skill.content, skill.usage_count, skill.success_count) == ("a", "c", 4, 1)
    assert (skill.success_rate, skill.created_at_round, skill.last_used_round, skill.parent_id) == (0.25, 2, 3, "z")
    fresh = TheirSkill(skill_id="a", title="t", content="c", usage_count=0, last_used_round=0)
    assert fresh.stats.last_used_step is None and (fresh.success_rate, fresh.last_used_round, fresh.parent_id) == (
        0.0,
        0,
        None,
    )
    assert from_json(Skill, to_json(skill)) == skill
    with pytest.raises(TypeError):
        TheirSkill(skill_id="a", id="b", title="t")


def test_keywords_that_no_skill_has_find_the_most_useful_of_the_type() -> None:
    bank = seed_bank(usage_count=4, success_count=0)
    hits = bank.search("2^100 mod 7", task_type="number_theory")
    assert [(hit.skill.id, hit.score, hit.fallback) for hit in hits] == [("c", 0.0, True), ("a", 0.0, True)]
    assert [hit.skill.id for hit in bank.search("2^100", task_type="geometry", top_k=1)] == ["b"]
    assert [hit.fallback for hit in bank.search("Fermat")] == [False]  # a shared word: no more than that
    assert (
        bank.retrieve("") == bank.retrieve("!?") == [] and SkillBank(retrieval_mode="keyword").retrieve("2^100") == []
    )
    assert SkillBank.from_config(SkillsConfig()).settings.fallback == "none"
