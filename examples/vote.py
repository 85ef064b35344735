"""Votes and rewards on plain strings: no model, no files, no network.

Run it: python examples/vote.py
"""

from __future__ import annotations

from skill_ttrl import RewardManager, batch_majority_vote, compute_reward, grade_answer, majority_vote
from skill_ttrl.answers import extract


def main() -> None:
    # Answers vote for the same thing when they are the same number, or the same text apart from case and spacing.
    vote = majority_vote(["1/2", "0.5", "7", None, r"\frac{1}{2}"])
    print("winner:", vote.answer, "| majority ratio:", vote.majority_ratio, "| without an answer:", vote.abstained)
    print("who agrees:", vote.matches)
    answer, majority_ratio, matches = vote  # a result unpacks as these three
    assert (answer, majority_ratio, sum(matches)) == ("1/2", 0.6, 3)

    # A tie goes to the answer that came first, and says so. An empty answer cannot win.
    for result in batch_majority_vote([["a", "b"], ["", None, " "]]):
        print("winner:", result.answer, "| tie:", result.tie)

    # From whole texts: find the answer, then vote within each prompt's responses.
    responses = [r"So it is \boxed{42}.", "The answer is 42", "<answer>41</answer>", "I do not know."]
    print("answers:", [extract(text) for text in responses])
    print(RewardManager().compute_majority_rewards(responses, n_per_prompt=4))

    # With a true answer at hand: grade one answer, or a whole text.
    print(grade_answer("1,000", "1000.0"))
    print(compute_reward(r"\boxed{1000}", "1000"))


if __name__ == "__main__":
    main()
