"""Cost of an installation: packages, seconds, megabytes, and the import of the environments, in a fresh venv.

    python -m build                                                # a wheel from the sdist
    python benchmarks/install.py dist/*.whl                        # the core and [train] (4 GB, minutes)
    python benchmarks/install.py dist/*.whl --extras '' --python python3.12

Seconds are those of `pip install` with the pinned packages, from whatever cache or mirror pip has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def install(venv: Path, wheel: Path, extra: str = "", python: str = sys.executable) -> dict[str, float]:
    """Install the wheel into a new venv and measure; pip and setuptools, which a venv may have, are not counted."""
    subprocess.run([python, "-m", "venv", venv], check=True)
    run = venv / "bin" / "python"
    pip = [str(run), "-m", "pip", "--disable-pip-version-check"]
    started = time.monotonic()
    pinned = ["-c", str(ROOT / "constraints.txt"), f"{wheel}[{extra}]" if extra else str(wheel)]
    subprocess.run([*pip, "install", "--quiet", *pinned], check=True)
    seconds = time.monotonic() - started
    listed = subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True, text=True).stdout
    names = {each["name"] for each in json.loads(listed)} - {"pip", "setuptools"}
    files = [path for path in next((venv / "lib").glob("python*")).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files if not {"pip", "setuptools"} & set(path.parts))
    trace = [str(run), "-X", "importtime", "-c", "import skill_ttrl.envs"]
    traces = [subprocess.run(trace, check=True, capture_output=True, text=True).stderr for _ in range(6)]
    imports = [float(text.splitlines()[-1].split("|")[1]) / 1e6 for text in traces[1:]]  # the first compiles
    return {"packages": len(names), "seconds": seconds, "megabytes": size / 1e6, "import": min(imports)}


def main() -> None:
    """Install each extra in turn and print a table, Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--extras", nargs="*", default=["", "train"])
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    print("| installed | packages | seconds | MB | `import skill_ttrl.envs`, best of 5 |\n|---|---|---|---|---|")
    for extra in options.extras:
        with tempfile.TemporaryDirectory() as folder:
            found = install(Path(folder, "venv"), options.wheel.resolve(), extra, options.python)
        name = f"skill-ttrl[{extra}]" if extra else "skill-ttrl"
        cost = f"{found['packages']} | {found['seconds']:.0f} | {found['megabytes']:,.0f} | {found['import']:.2f} s |"
        print(f"| `{name}` | {cost}", flush=True)


if __name__ == "__main__":
    main()
