"""A case of `learner_speed.py`, measured in processes of its own: a model with random weights, random tokens, updates of it.

    python benchmarks/learner_cases.py '{"kind": "ours", "steps": 2}'

prints one line of JSON. A process that ends otherwise is reported with its exit code or signal, its peak of memory, what the machine has
left and the end of what it wrote.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
KINDS = ("ours", "padded", "trl", "trl_compact")
SHARED = ("ddp", "fsdp")
"""Kinds that say what each rank holds."""
Row = dict[str, float]
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of `ru_maxrss`."""
POLL_S = 0.02


@dataclass(frozen=True)
class Case:
    """A model and a batch, `ranks` processes, and `device` of each. The default model has 102M parameters, 78M of them its head."""

    kind: str = "ours"
    hidden: int = 512
    intermediate: int = 1536
    layers: int = 8
    heads: int = 8
    key_value_heads: int = 2
    vocabulary: int = 151_936
    prompts: int = 1
    samples: int = 8
    prompt_tokens: int = 512
    shortest: int = 32
    longest: int = 256
    micro_batch: int = 8
    steps: int = 3
    threads: int = 1
    device: str = "cpu"
    ranks: int = 1


class WorkerDied(RuntimeError):
    """A process of a measurement has ended without its figures; the message says how."""


def measured(case: Case) -> list[Row]:
    """Figures of each rank, measured in fresh processes.

    Raises:
        WorkerDied: one of them ended otherwise.
    """
    return run_workers([sys.executable, str(HERE), json.dumps(asdict(case))], case.ranks)


def run_workers(command: Sequence[str], count: int) -> list[Row]:
    """The last line that each of `count` ranks writes, read as JSON."""
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(_free_port())} if count > 1 else {}
    with tempfile.TemporaryDirectory(prefix="skillttrl-speed-") as folder:
        running: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(count):
            own = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else None
            with open(Path(folder) / f"{rank}.out", "wb") as out, open(Path(folder) / f"{rank}.err", "wb") as err:
                running[rank] = subprocess.Popen(command, env=own, stdout=out, stderr=err)
        while running:
            time.sleep(POLL_S)
            for rank, process in list(running.items()):
                ended, status, used = os.wait4(process.pid, os.WNOHANG)
                if not ended:
                    continue
                process.returncode = os.waitstatus_to_exitcode(status)
                del running[rank]
                if process.returncode:
                    for other in running.values():
                        other.kill()
                        other.wait()
                    error = (Path(folder) / f"{rank}.err").read_text(encoding="utf-8", errors="replace")
                    raise WorkerDied(_death(command, rank, process.returncode, used, error))
        outputs = [(Path(folder) / f"{rank}.out").read_text(encoding="utf-8") for rank in range(count)]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _death(command: Sequence[str], rank: int, code: int, used: resource.struct_rusage, error: str) -> str:
    import psutil

    ended = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    hint = " (so the system ends a process when memory runs out)" if -code == signal.SIGKILL else ""
    memory = psutil.virtual_memory()
    return (
        f"Rank {rank} of {' '.join(command)} ended with {ended}{hint}. Its peak was {used.ru_maxrss * RSS_UNIT / 1e9:.1f} GB; "
        f"{memory.available / 1e9:.1f} of this machine's {memory.total / 1e9:.1f} GB are free now. The end of what it wrote:\n"
        f"{error[-3000:] or '(nothing)'}"
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def measured_here(case: Case) -> Row:
    """Medians over the counted steps of one case, and the peak of this process, or of its GPU."""
    import torch

    torch.set_num_threads(case.threads)
    steps, figures = (steps_trl if case.kind.startswith("trl") else steps_ours)(case)
    tokens = sum(len(prompt) + len(completion) for prompt, completion, _ in items(case))
    seconds = statistics.median(wall for wall, _ in steps[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    if case.device != "cpu":
        peak = torch.cuda.max_memory_allocated()
    if "operations" in figures:
        figures |= utilisation(figures["operations"], seconds, case.device)
    return {
        "seconds": seconds,
        "cpu_seconds": statistics.median(cpu for _, cpu in steps[1:]),
        "tokens_per_second": tokens / seconds,
        "peak_bytes": peak,
        **figures,
    }


def utilisation(operations: float, seconds: float, device: str) -> Row:
    """`mfu` of an update, and its `floor`: seconds at the peak of the data sheet. Nothing where the device has no known peak."""
    import torch

    from skill_ttrl.rl.learner import peak_flops

    known = None if device == "cpu" else peak_flops(torch.cuda.get_device_name())
    return {} if known is None else {"mfu": operations / seconds / known, "floor": operations / known}


def items(case: Case) -> list[tuple[list[int], list[int], float]]:
    """(prompt, completion, advantage) of each sample."""
    import random

    draw = random.Random(1)
    found = []
    for _ in range(case.prompts):
        prompt = [draw.randrange(case.vocabulary) for _ in range(case.prompt_tokens)]
        for _ in range(case.samples):
            length = draw.randint(case.shortest, case.longest)
            found.append((prompt, [draw.randrange(case.vocabulary) for _ in range(length)], draw.gauss(0, 1)))
    return found


def build_model(case: Case) -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=case.vocabulary,
            hidden_size=case.hidden,
            intermediate_size=case.intermediate,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            num_key_value_heads=case.key_value_heads,
            tie_word_embeddings=True,
        )
    )


def now(case: Case) -> tuple[float, float]:
    """(wall, CPU) seconds of this process, once the device is done."""
    if case.device != "cpu":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def timed(case: Case, run: Callable[[], Row]) -> tuple[tuple[float, float], Row]:
    began, found, ended = now(case), run(), now(case)
    return (ended[0] - began[0], ended[1] - began[1]), found


def steps_ours(case: Case) -> tuple[list[tuple[float, float]], Row]:
    """(wall, CPU) seconds of each update, and other figures of this rank."""
    import torch

    from skill_ttrl.config import RLConfig, RuntimeConfig
    from skill_ttrl.rl.batch import EncodedDemonstration, pack_demonstrations
    from skill_ttrl.rl.device import make_accelerator
    from skill_ttrl.rl.learner import LocalLearner
    from skill_ttrl.rl.parallel.ranks import join
    from skill_ttrl.rl.parallel.shard import Sharding
    from skill_ttrl.rl.policy import Policy

    ranks, rows = join(), items(case)
    batch = pack_demonstrations([EncodedDemonstration(prompt, completion) for prompt, completion, _ in rows])
    advantages = torch.tensor([advantage for _, _, advantage in rows])[batch.item_F] * batch.trained_F
    batch = replace(batch, advantages_F=advantages, prompt_index_N=torch.arange(len(rows)) // case.samples)
    model, sharding = build_model(case), None
    if case.kind == "fsdp":
        sharding = Sharding(model, torch.device(case.device), ranks.size)
    policy = Policy(model, None, case.device, packing="off" if case.kind == "padded" else "on", sharding=sharding)
    config = RLConfig(
        kl_coef=0.0,
        mini_batch_size=None,
        prompts_per_step=case.prompts,
        micro_batch_size=case.micro_batch,
        learning_rate=1e-6,
    )
    precision = "fp32" if case.device == "cpu" else "bf16"
    accelerator = make_accelerator(RuntimeConfig(device=case.device, precision=precision, threads=case.threads))
    learner = LocalLearner(policy, config, accelerator, total_steps=case.steps, ranks=ranks)
    batch = learner.score(batch, temperature=1.0, own=True, reference=False)
    if case.kind in SHARED:
        _forget_peak()  # before it the whole model stood here once
    update = partial(learner.update, batch, seed=0, temperature=1.0)
    found = [timed(case, partial(update, step=step)) for step in range(case.steps)]
    figures = {"operations": found[-1][1]["operations"]}
    if case.kind in SHARED:
        figures = _shares(learner, batch, config, ranks)
    return [seconds for seconds, _ in found], figures


def _forget_peak() -> None:
    """Let the peak of this process begin anew (Linux)."""
    path = Path("/proc/self/clear_refs")
    if path.exists():
        path.write_text("5", encoding="ascii")


def _shares(learner: Any, batch: Any, config: Any, ranks: Any) -> Row:
    """Bytes that this rank holds of weights and of the optimizer's state, and the tokens that it computes."""
    import torch
    from torch.utils._pytree import tree_leaves

    from skill_ttrl.rl.parallel.ranks import local, own_micro_batches

    def size(tensors: Any) -> float:
        parts = [local(each) for each in tensors if isinstance(each, torch.Tensor)]
        return float(sum(part.numel() * part.element_size() for part in parts))

    policy = learner.policy
    own = own_micro_batches(policy, batch, ranks=ranks, sequences=config.micro_batch_size)
    return {
        "weight_bytes": size(policy.trainable_parameters().values()),
        "optimizer_bytes": size(tree_leaves(learner.state_dict()["optimizer"])),
        "tokens": float(sum(policy.lay_out(batch, rows).computed_tokens for rows, counts in list(own) if counts)),
    }


def steps_trl(case: Case) -> tuple[list[tuple[float, float]], Row]:
    """The same for `trl.GRPOTrainer`, whose generation gives the stored completions."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import utils

    from skill_ttrl.llm.models.builtin import build_tokenizer

    if case.kind == "trl_compact":  # only where completions are picked; its kernels stay those of torch
        utils._use_triton = lambda device: True
    rows = items(case)
    longest = max(len(completion) for _, completion, _ in rows)
    mask = torch.tensor([[1] * len(completion) + [0] * (longest - len(completion)) for _, completion, _ in rows])
    columns = {
        "prompt_ids": torch.tensor([prompt for prompt, _, _ in rows]),
        "prompt_mask": torch.ones(len(rows), case.prompt_tokens, dtype=torch.long),
        "completion_ids": torch.tensor([ids + [0] * (longest - len(ids)) for _, ids, _ in rows]),
        "completion_mask": mask,
        "advantages": torch.tensor([advantage for _, _, advantage in rows]),
        "num_items_in_batch": mask.sum(),
    }
    stored = {name: column.to(case.device) for name, column in columns.items()}

    class Stored(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            return dict(stored)

    marks: list[tuple[float, float]] = []
    times: list[tuple[float, float]] = []

    class Stamp(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            marks.append(now(case))

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            wall, cpu = now(case)
            times.append((wall - marks[-1][0], cpu - marks[-1][1]))

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=case.micro_batch,
            gradient_accumulation_steps=len(rows) // case.micro_batch,
            num_generations=case.samples,
            max_completion_length=longest,
            max_steps=case.steps,
            learning_rate=1e-6,
            max_grad_norm=1.0,
            beta=0.0,
            temperature=1.0,
            use_cpu=case.device == "cpu",
            bf16=case.device != "cpu",
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        Stored(
            model=build_model(case),
            processing_class=build_tokenizer(()),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "x"}] * case.prompts),
            callbacks=[Stamp()],
        ).train()
    return times, {}


if __name__ == "__main__":
    print(json.dumps(measured_here(Case(**json.loads(sys.argv[1])))))
