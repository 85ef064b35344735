"""Metrics of a step's votes: signs without labels, and what true answers measure."""

from __future__ import annotations

from skill_ttrl.metrics.metric import COUNT, FLAG, NATS, NOT_NEGATIVE, REWARD, SHARE, Metric, Section

VOTED = "where answers are voted on"
SHAPED = "`vote.strategy` other than `majority`"
LABELLED = "where every problem of the step has a true answer"
TRAINED = f"{LABELLED} and any is trained on"
STOP = "stop; measure the checkpoint before it: `skillttrl evaluate RUN/checkpoints/rl-000010`"

VOTES = Section(
    "Votes",
    "What they mean for a run is in [voting.md](voting.md#signs-of-a-collapse). All but the count `undecided_answers` are means over the step's "
    "prompts. True answers only measure: no reward sees them.",
    (
        Metric(
            "majority_ratio",
            *SHARE,
            "share of the winner among the samples",
            VOTED,
            healthy="[0.3, 1]",
            trouble="below 0.3 in the first 3 steps, where votes are rewarded: the base is not sure of anything, and its majority may be mostly "
            "wrong; high is no sign of accuracy",
            change="a stronger base, a longer cold start (`sft.steps`), easier problems, more votes (`rollout.n_votes_per_prompt`), a lower "
            "`rollout.temperature`",
        ),
        Metric("majority_voting_reward", *REWARD, "mean vote reward", VOTED),
        Metric(
            "abstained",
            *SHARE,
            "share of samples without an answer",
            VOTED,
            healthy="[0, 1)",
            trouble="high: the policy does not write its answer in the asked form; 1: nothing votes",
            change='the form that `agent.template` asks for; `rollout.max_new_tokens` (`completions/clipped_ratio`); an environment of your own: `info["answer"]`',
        ),
        Metric("ties", *SHARE, "share of prompts with a tie", VOTED),
        Metric(
            "distinct_winners", *SHARE, "different winners over prompts that have one", "where a prompt has a winner"
        ),
        Metric(
            "answer_entropy",
            *NATS,
            "entropy of the answers to a prompt; each sample without an answer is a class of its own",
            VOTED,
            trouble="below a quarter of that of the first steps: little is left to vote on, after good training and after a collapse alike",
            change="`rl.stop_rule: entropy` ends the run there",
        ),
        Metric(
            "undecided_answers",
            *COUNT,
            "different answers that are compared as texts only ([answers.md](answers.md#limits))",
            VOTED,
            trouble="many (the run warns above 5 % of the different answers): each equals its own text only, so its votes may be split",
            change="the reasons in [answers.md](answers.md#limits)",
        ),
        Metric(
            "flip_rate",
            *SHARE,
            "share of prompts seen before whose winner changed",
            "where a prompt came round again",
            healthy="[0, 0.2]",
            trouble="above 0.2 over the latest 5 steps that have it: winners change when a prompt comes round again, a possible collapse where "
            "votes are rewarded",
            change=STOP,
        ),
        Metric(
            "prompt_flip_rate",
            *SHARE,
            "mean of each prompt's flips over its returns in the whole run",
            "where a prompt came round again",
        ),
        Metric(
            "collapse_warning",
            *FLAG,
            "1 where a sign of a collapse is there after this step",
            VOTED,
            healthy="[0, 0]",
            trouble="1: the first votes were weak (`majority_ratio`), or winners change (`flip_rate`)",
            change=STOP,
        ),
        Metric("vote_weight", *NOT_NEGATIVE, "mean factor of a prompt", SHAPED),
        Metric("vote_penalty", *NOT_NEGATIVE, "mean penalty of a prompt", SHAPED),
        Metric("vote_bonus", *SHARE, "share of samples with a bonus", SHAPED),
        Metric(
            "vote_skipped",
            *SHARE,
            "share of prompts skipped",
            SHAPED,
            healthy="[0, 1)",
            trouble="near 1: what is skipped teaches nothing",
            change="a lower `threshold` of `gated`, or the strategy's other `vote.options`",
        ),
        Metric(
            "vote_<flag>",
            *SHARE,
            "share of prompts that the strategy flagged so: `flip`, `high_risk`, `stable`, `minority`, `weak`, `gated`; absent where none",
            SHAPED,
        ),
        Metric(
            "label_accuracy",
            *SHARE,
            "share of prompts whose winner is the true answer",
            LABELLED,
            trouble="under 5 % while `majority_ratio` has risen by 0.1 or more: the policy learns to agree on wrong answers",
            change="a longer cold start (`sft.steps`), easier problems",
        ),
        Metric(
            "reward_accuracy",
            *SHARE,
            "share of samples that are of the winner's class exactly if they are true",
            LABELLED,
            trouble="falls while `majority_ratio` rises: the vote has settled on something wrong",
            change="[signs of a collapse](voting.md#signs-of-a-collapse)",
        ),
        Metric("ground_truth_ratio", *SHARE, "share of true samples", LABELLED),
        Metric("pass@<n>", *SHARE, "share of prompts with a true answer among n samples", LABELLED),
        Metric(
            "ground_truth_split_ratio",
            *SHARE,
            "share of samples that are true and stand outside of the largest class of true ones: true answers in other words, whose votes are "
            "lost",
            LABELLED,
        ),
        Metric("post_reward_accuracy", *SHARE, "`reward_accuracy` over the samples that are trained on", TRAINED),
        Metric("post_ground_truth_ratio", *SHARE, "`ground_truth_ratio` over the samples that are trained on", TRAINED),
        Metric("post_pass@<n>", *SHARE, "`pass@<n>` over the samples that are trained on", TRAINED),
    ),
)
