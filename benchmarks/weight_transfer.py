"""Seconds to hand all weights to vLLM servers, by file and by broadcast in turn.

Start a server of the model in another shell, with the folder that the file way takes:

    python benchmarks/weight_transfer.py --make MODEL                  # random weights, 0.2B parameters
    skillttrl serve MODEL --python .venv-vllm/bin/python --port 8100 --weight-transfer-dir FOLDER
    python benchmarks/weight_transfer.py MODEL FOLDER http://127.0.0.1:8100 [ADDRESS ...]

Each figure is one hand-over up to the moment in which the last server samples again, without the probe that follows; the first of
each way, which opens the groups, is told apart.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

from skill_ttrl.config import BuiltinConfig, SkillTTRLConfig
from skill_ttrl.llm.context import BackendContext
from skill_ttrl.llm.models.builtin import build_model, build_tokenizer
from skill_ttrl.llm.models.load import load_model, save_model
from skill_ttrl.llm.vllm.servers.backend import VLLMServerBackend

REPEATS = 6
SHAPE = BuiltinConfig(hidden_size=1024, layers=16, heads=16, max_positions=512)
CORPUS = ["Compute 12+34."]


def make(folder: Path) -> None:
    tokenizer = build_tokenizer(CORPUS)
    save_model(build_model(SHAPE, tokenizer, seed=0), tokenizer, folder)


def measure(model: Path, folder: str, servers: list[str]) -> None:
    config = SkillTTRLConfig.model_validate({"model": {"path": str(model)}})
    loaded = load_model(config.model, device="cpu")
    bytes_ = sum(each.numel() * each.element_size() for each in loaded.model.parameters())
    print(f"{sum(each.numel() for each in loaded.model.parameters()):,} parameters, {bytes_ / 1e9:.2f} GB")
    ways = {"file": {"weight_transfer_dir": folder}, "broadcast": {"weight_transfer": "broadcast"}}
    pools, seconds = {}, {way: list[float]() for way in ways}
    for way, how in ways.items():
        vllm = config.vllm.model_validate({"mode": "server", "servers": servers, **how})
        context = BackendContext.of(config.model_copy(update={"vllm": vllm}), lambda: loaded, trains=True)
        backend = VLLMServerBackend(context)
        began = time.perf_counter()
        backend.update_weights(0)  # with the probe: the figures below are of weights that arrive
        print(f"{way}: first update with its probe {time.perf_counter() - began:.2f} s")
        pools[way] = backend._pool
    for _ in range(REPEATS):
        for way, pool in pools.items():
            began = time.perf_counter()
            with pool._delivery() as delivery:
                delivery.run(lambda server, send=delivery.send: send(server, "measured"), pool.servers)
            seconds[way].append(time.perf_counter() - began)
    for way, found in seconds.items():
        print(f"{way}: median {median(found):.2f} s of {', '.join(f'{each:.2f}' for each in found)}")


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(Path(sys.argv[2]))
    else:
        measure(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
