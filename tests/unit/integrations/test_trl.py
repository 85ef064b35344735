from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skill_ttrl.envs import make_env
from skill_ttrl.errors import ConfigError
from skill_ttrl.integrations.trl import (
    OVER,
    Environment,
    Environments,
    alfworld,
    environment_reward,
    majority_vote_reward,
    math,
    vote_reward,
    webshop,
)
from skill_ttrl.voting import compute_voting_rewards


def test_the_completions_of_a_prompt_vote_wherever_they_stand_and_in_any_form() -> None:
    said = [r"\boxed{2}", r"\boxed{7}", [{"role": "assistant", "content": "The answer is 2."}], r"\boxed{4/2}"]
    assert majority_vote_reward(["a", "b", "a", "a"], said, completion_ids=[[1]] * 4) == [1, 1, 1, 1]
    turns = [{"role": "assistant", "content": r"\boxed{3}"}, {"role": "tool", "content": "9"}, {"role": "assistant"}]
    assert majority_vote_reward(["a"] * 3, [turns, "no answer", r"\boxed{3}"]) == [1, 0, 1]
    anchored = vote_reward("anchored", weight=1.0)
    assert anchored(["a"] * 2, [r"\boxed{3}", r"\boxed{4}"], base_answers=[["4"]] * 2) == [0, 1]
    with pytest.raises(ConfigError, match="no option"):
        vote_reward("majority", weight=1.0)


def played(factory: Environments, tool: str, *said: str) -> Environment:
    """The environment after a tool was called with each of the texts in its first task."""
    env = factory()
    env.reset(task=next(iter(factory.tasks)), prompt=[])
    env.last = [getattr(env, tool)(text) for text in said][-1]  # type: ignore[attr-defined]
    return env


def test_environments_pay_for_what_the_tools_do() -> None:
    games, sums, goals = alfworld(count=1), math(count=1), webshop(count=1)
    (game,) = games.tasks
    walk = make_env("alfworld").reset(options={"task": game, "walkthrough": True})[1]["walkthrough"]
    for after in ([], ["look"]):  # nothing is paid twice
        won = played(games, "act", *walk, *after)
        assert won.last.endswith(OVER) and won.reward == 1  # type: ignore[attr-defined]
    won.reset(task=game)
    assert environment_reward([won, played(games, "act", "look")]) == [0, 0]
    (problem,) = sums.tasks.values()
    tries = [played(sums, "submit", answer) for answer in (str(problem.ground_truth), "0", "0")]
    assert environment_reward(tries) == [1, 0, 0]
    assert majority_vote_reward(["a"] * 3, [[]] * 3, environments=tries) == [0, 1, 1]
    assert "Page 1" in played(goals, "search", "shoes").last  # type: ignore[attr-defined]
    assert "Instruction" in played(goals, "click", "Back to Search").last  # type: ignore[attr-defined]


# With TRL, in an environment of its own: tests/integration/test_trainers_of_others.py.


def tiny() -> tuple[Any, Any]:
    """A random Qwen2 on bytes, with the chat template of Qwen2.5."""
    import trl
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

    byte = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({each: place for place, each in enumerate(byte)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    marks = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=plain, eos_token=marks[1], pad_token=marks[2])
    tokenizer.add_special_tokens({"additional_special_tokens": marks[:1]})
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    set_seed(0)
    shape: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, **shape)), tokenizer


def trained(folder: Path, rows: Any, reward: Any, *, factory: Any = None, script: Any = None, **settings: Any) -> Any:
    """Two steps of `GRPOTrainer`; its log. The weights must have changed."""
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = tiny()
    before = model.lm_head.weight.detach().clone()
    settings |= {"max_steps": 2, "report_to": "none", "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
    config = GRPOConfig(str(folder), use_cpu=True, bf16=False, learning_rate=1e-3, **settings)
    trainer = GRPOTrainer(model, reward, config, rows, processing_class=tokenizer, environment_factory=factory)
    if script is not None:
        trainer._generate_single_turn = script(tokenizer)
    trainer.train()
    assert not before.equal(trainer.model.lm_head.weight)
    return trainer.state.log_history


def train_on_votes(folder: Path) -> None:
    """Votes on random digits. Each of two processes has three completions, so the second pair is in both."""
    from datasets import Dataset

    judge, seen = vote_reward(last_number=True), []

    def reward(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        seen.append([prompts, completions, judge(prompts, completions, **columns)])
        return list(seen[-1][2])

    digits = tiny()[1].convert_tokens_to_ids(["1", "2"])
    rows = Dataset.from_list([{"prompt": f"{task.options['question']} "} for task in math(count=9).tasks.values()])
    settings = {"per_device_train_batch_size": 3, "num_generations": 2, "max_completion_length": 1}
    others = [token for token in range(259) if token not in digits]
    log = trained(folder, rows, reward, generation_kwargs={"suppress_tokens": others}, **settings)
    rank = os.environ["RANK"]
    folder.joinpath(f"seen-{rank}.json").write_text(json.dumps({"seen": seen, "log": log}))


def test_two_processes_of_trl_train_two_steps_on_our_votes(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(tmp_path.joinpath(f"seen-{rank}.json").read_text()) for rank in (0, 1))
    agreements = []
    for step, (one, two) in enumerate(zip(first["seen"], second["seen"], strict=True)):
        prompts, said, rewards = ([*mine, *theirs] for mine, theirs in zip(one, two, strict=True))
        assert prompts[2] == prompts[3]
        pairs = [compute_voting_rewards(said[place : place + 2]) for place in (0, 2, 4)]
        assert rewards == [reward for pair in pairs for reward in pair[0]]
        agreements.append(sum(pair[2] for pair in pairs) / 3)
        assert first["log"][step]["majority_ratio"] == pytest.approx(agreements[-1])
        assert first["log"][step]["rewards/reward/mean"] == pytest.approx(sum(rewards) / 6)
    assert len(agreements) == 2 and min(agreements) < 1


def test_trl_trains_two_steps_on_games(tmp_path: Path) -> None:
    """Every other rollout of a game is played by its walkthrough, the others look around once; the model learns from both."""
    pytest.importorskip("trl")
    games = alfworld(count=3)
    env, plans = make_env("alfworld"), {}
    for task in games.tasks:
        seen, info = env.reset(options={"task": task, "walkthrough": True})
        plans[seen] = info["walkthrough"]

    def script(tokenizer: Any) -> Any:
        def say(prompts: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
            said = []
            for place, text in enumerate(tokenizer.batch_decode(prompts)):
                plan = next(plan for seen, plan in plans.items() if seen in text)
                turn = text.count("<tool_response>")
                begun = f'"command": "{plan[0]}"' in text
                commands = plan if begun or (turn == 0 and place % 2 == 0) else ["look"]
                call = {"name": "act", "arguments": {"command": commands[turn]}} if turn < len(commands) else None
                answer = "Done." if call is None else f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
                said.append(tokenizer(f"{answer}<|im_end|>")["input_ids"])
            return said, None

        return say

    settings = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 9000}
    log = trained(tmp_path, games.dataset(), environment_reward, factory=games, script=script, **settings)
    for step in log[:2]:
        assert step["rewards/environment_reward/mean"] == 0.5 and step["tools/failure_frequency"] == 0
        assert step["grad_norm"] > 0


if __name__ == "__main__":
    train_on_votes(Path(sys.argv[1]))
