"""Write problems of a reasoning-gym family and a prompt with four examples, for a small model without a chat template.

    pip install reasoning-gym==0.1.25
    python benchmarks/reasoning_gym_problems.py number_sorting sorting
    skillttrl train quickstart_pretrained --set 'data.train={path: sorting/train.jsonl}' --set 'data.eval={path: sorting/test.jsonl}' \\
        --set agent.template=sorting/prompt.md --set rollout.max_new_tokens=24

128 problems to train on, 64 to test, no question in two of the files; the same release of reasoning-gym gives the same ones.
`letter_counting` needs no more than 8 new tokens.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "gcd": ({"max_value": 30}, r"(numbers: .*?)\."),
    "leg_counting": ({"min_animals": 2, "max_animals": 2, "max_instances": 4}, r"how many (legs .*\?)"),
    "letter_counting": ({"min_words": 1, "max_words": 2}, r"(How many .*)"),
    "number_sorting": ({"min_numbers": 3, "max_numbers": 4, "max_decimals": 0, "min_value": 0}, r"(Sort .*?) Please"),
    "number_format": ({"max_num_candidates": 3, "max_n": 10_000}, r"the (\w+ number) of.*(: .*)"),
    "word_sequence_reversal": ({"min_words": 3, "max_words": 4}, r"(Reverse .*)"),
    "calendar_arithmetic": ({"tasks": ["weekday_offset"], "offset_upper_bound": 10}, r"(.*?\?)"),
}
"""Settings of a family, and the part of its question that is asked."""


def problems(family: str, count: int, seed: int = 0) -> list[dict[str, str]]:
    """`count` problems with different questions, each on one line; an answer in words stands in a box."""
    from reasoning_gym import create_dataset

    settings, asked = FAMILIES[family]
    found = dict[str, dict[str, str]]()
    for item in create_dataset(family, size=20 * count, seed=seed, **settings):
        question = re.search(asked, " ".join(item["question"].split()))
        answer = re.sub(r"[\[\]']|\.0\b", "", str(item["answer"]))
        number = re.fullmatch(r"-?\d+(\.\d+)?", answer)
        assert question is not None, item["question"]
        asks = "".join(question.groups()).strip()
        # The check for leaks compares questions without regard to case.
        found.setdefault(asks.casefold(), {"problem": asks, "answer": answer if number else rf"\boxed{{{answer}}}"})
    assert len(found) >= count, f"only {len(found)} different questions"
    return list(found.values())[:count]


def write(family: str, folder: Path, *, shots: int = 4, train: int = 128, test: int = 64) -> None:
    """Write the three files."""
    found = problems(family, shots + train + test)
    folder.mkdir(parents=True, exist_ok=True)
    examples = [
        f"Question: {each['problem']}\nAnswer: {each['answer']}\n\n".replace("$", "$$") for each in found[:shots]
    ]
    (folder / "prompt.md").write_text("".join(examples) + "Question: $question\nAnswer:", encoding="utf-8")
    for name, part in (("train", found[shots : shots + train]), ("test", found[shots + train :])):
        lines = "".join(json.dumps(each) + "\n" for each in part)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def main() -> None:
    """Write the files of the family that the command line names."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("family", choices=sorted(FAMILIES))
    arguments.add_argument("folder", type=Path)
    given = arguments.parse_args()
    write(given.family, given.folder)


if __name__ == "__main__":
    main()
