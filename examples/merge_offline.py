"""What winners wrote becomes skills: a vote over responses that are there already, and a bank that learns from it.

Run it: python examples/merge_offline.py
"""

from __future__ import annotations

from skill_ttrl import OutputParser, PromptFormatter, SkillTTRLConfig, SkillTTRLTrainer

PROBLEM = "What is 2^10 mod 7?"
RESPONSES = [
    "<skill_ops><generate>Use Fermat's theorem.</generate></skill_ops><answer>2</answer>",
    "<skill_ops><generate>use Fermat's theorem</generate></skill_ops> so it is \\boxed{2}",
    "<skill_ops><generate>Guess.</generate></skill_ops><answer>3</answer>",
    "The answer is 2",
]


def main() -> None:
    asked = OutputParser().parse(RESPONSES[0])
    print("a response asks:", asked.skill_ops.generate, "and answers", asked.answer)

    trainer = SkillTTRLTrainer(SkillTTRLConfig.model_validate({"skills": {"embedder": "hash"}}))
    found = trainer.train_offline([PROBLEM], [RESPONSES])
    print("the vote:", found["majority_answers"], "rewards", found["rewards"])
    for change in found["bank_update"].changes:  # one skill: two winners wrote the same, the loser is not heard
        print(change.kind, change.after.id, repr(change.after.text))

    again = trainer.train_offline([PROBLEM], [RESPONSES])
    for change in again["bank_update"].changes:  # it is there already, so it is credited
        print(change.kind, change.after.id, "won", change.after.stats.successes, "of", change.after.stats.uses)

    question = "Which theorem gives 3^6 mod 7?"  # the embedder hash finds by words, so one word is the skill's
    print(PromptFormatter("plain", prompts="tiny", skill_bank=trainer.skill_bank).format_prompt(question))


if __name__ == "__main__":
    main()
