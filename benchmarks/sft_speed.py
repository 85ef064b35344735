"""Supervised steps of a small policy on whole episodes: this project's learner and a bare PyTorch loop, in turn in one process.

    python benchmarks/sft_speed.py            # real tokens per CPU second, forward, backward and optimizer

The shape is that of docs/imitation.md's policy: 0.33M parameters, a vocabulary of 588, sequences of 85 to 118 tokens of which about a third are
learnt, 2,048 tokens a step, Muon and AdamW, one thread. The loop pads, computes the head where a token is learnt, and does nothing else.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.config import RuntimeConfig, SFTConfig
from skill_ttrl.rl.batch import EncodedDemonstration
from skill_ttrl.rl.device import make_accelerator
from skill_ttrl.rl.optim import Muon
from skill_ttrl.rl.policy import Packing, Policy
from skill_ttrl.rl.sft_learner import SFTLearner

VOCABULARY, PROMPT, BUDGET = 588, 30, 2048
Step = Callable[[Sequence[EncodedDemonstration]], float]


def make_model() -> Any:
    """The model, the same weights at each call."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 3}
    config = Qwen2Config(vocab_size=VOCABULARY, **shape, **heads, tie_word_embeddings=True, initializer_range=0.05)
    return Qwen2ForCausalLM(config)


def make_batches(count: int) -> list[list[EncodedDemonstration]]:
    """Batches of sequences of about one length."""
    rng = random.Random(0)
    batches = []
    for _ in range(count):
        length = rng.randrange(85, 117)
        batch = []
        for extra in (rng.randrange(2) for _ in range(BUDGET // (length + 1))):
            ids = [rng.randrange(VOCABULARY) for _ in range(length + extra)]
            mask = [rng.random() < 0.45 for _ in ids[PROMPT:]]
            batch.append(EncodedDemonstration(ids[:PROMPT], ids[PROMPT:], mask))
        batches.append(batch)
    return batches


def bare_loop() -> Step:
    """Plain PyTorch."""
    model = make_model().train()
    hidden = [each for name, each in model.named_parameters() if each.ndim == 2 and "embed" not in name]
    taken = {id(each) for each in hidden}
    rest = [each for each in model.parameters() if id(each) not in taken]
    adamw = torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    optimizers: list[torch.optim.Optimizer] = [Muon(hidden, lr=0.02), adamw]

    def step(batch: Sequence[EncodedDemonstration]) -> float:
        longest = max(len(each.prompt_ids) + len(each.response_ids) for each in batch)
        ids, labels = torch.zeros(len(batch), longest, dtype=torch.long), torch.full((len(batch), longest), -100)
        for row, each in enumerate(batch):
            sequence = torch.tensor([*each.prompt_ids, *each.response_ids])
            ids[row, : len(sequence)] = sequence
            learnt = torch.tensor([*[False] * len(each.prompt_ids), *(each.mask or ())])
            labels[row, : len(sequence)][learnt] = sequence[learnt]
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        known = labels[:, 1:] != -100
        loss = torch.nn.functional.cross_entropy(model.lm_head(states[known]), labels[:, 1:][known])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach())

    return step


def learner(packing: Packing) -> Step:
    """The project's learner."""
    policy = Policy(make_model(), SimpleNamespace(pad_token_id=0), "cpu", packing=packing)
    rates: dict[str, Any] = {"learning_rate": 3e-3, "betas": (0.9, 0.95), "warmup_steps": 0, "lr_scheduler": "constant"}
    config = SFTConfig(optimizer="muon", **rates)
    made = SFTLearner(policy, config, make_accelerator(RuntimeConfig(device="cpu")))
    return lambda batch: made.step(batch, 0)["loss"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80, help="of each (default: 80)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps: dict[str, Step] = {"bare loop": bare_loop(), "padded": learner("off"), "packed": learner("auto")}
    batches = make_batches(options.steps)
    spent, losses = dict.fromkeys(steps, 0.0), dict.fromkeys(steps, 0.0)
    for number, batch in enumerate(batches):
        for name, step in steps.items():
            began = time.process_time()
            losses[name] = step(batch)
            spent[name] += (time.process_time() - began) * (number > 0)  # the first warms up
    tokens = sum(len(each.prompt_ids) + len(each.response_ids) for batch in batches[1:] for each in batch)
    for name, seconds in spent.items():
        share = spent["bare loop"] / seconds
        print(f"{name:10} {tokens / seconds:8,.0f} tokens/CPU s, {share:.2f} of the loop, last loss {losses[name]:.5f}")


if __name__ == "__main__":
    main()
