"""One step on responses that are there already: votes, rewards and advantages. Needs no model and writes nothing.

Run it: python examples/train_offline.py
"""

from __future__ import annotations

from skill_ttrl import SkillTTRLConfig, SkillTTRLTrainer

PROBLEMS = ["What is 6 times 7?", "What is 9 plus 8?"]
RESPONSES = [
    ["The answer is 42", r"\boxed{42}", "<answer>48</answer>", "No idea."],
    ["The answer is 17", "The answer is 17", r"\boxed{17}", "<answer>17.0</answer>"],
]


def main() -> None:
    found = SkillTTRLTrainer(SkillTTRLConfig()).train_offline(PROBLEMS, RESPONSES)
    for place, problem in enumerate(PROBLEMS):
        print(problem, "→", found["majority_answers"][place], f"(agreement {found['agreement_ratios'][place]:.2f})")
        print("  rewards   ", found["rewards"][place])
        # All four agree in the second group: nobody is better than the others, so there is nothing to learn from it.
        print("  advantages", [round(value, 3) for value in found["advantages"][place]])
    print("means: reward", found["mean_reward"], "agreement", found["mean_agreement"])


if __name__ == "__main__":
    main()
