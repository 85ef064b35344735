"""Metrics of `timings.jsonl`: times, rates, memory. They differ from run to run."""

from __future__ import annotations

from skill_ttrl.metrics.metric import SECONDS, SHARE, Metric, Section

STEPS = "phase `rl`"
SAMPLES = "phases `rl`, `vote_sft`"
RATE = ("a second", "[0, ∞)")
BYTES = ("bytes", "[0, ∞)")
GPU = f"{STEPS} on a GPU"

TIMINGS = Section(
    "timings.jsonl",
    "Times and rates, which differ from run to run. Further phases here are `collect`, `distill` and `evaluate`, one line each time.",
    (
        Metric("seconds", *SECONDS, "wall time of the whole step, or of the phase"),
        Metric(
            "cpu_seconds",
            *SECONDS,
            "processor time of the step in this process, all its threads together: what other work on the machine does not lengthen",
            "phases `sft`, `dagger`, `rl`, `vote_sft`",
        ),
        Metric(
            "sample_seconds",
            *SECONDS,
            "wall time of sampling; with `rl.max_staleness` it passes while earlier steps are learned from",
            SAMPLES,
        ),
        Metric(
            "wait_seconds",
            *SECONDS,
            "wall time that the learner waited for rollouts that run ahead",
            f"{STEPS}, `rl.max_staleness` above 0",
        ),
        Metric("update_seconds", *SECONDS, "wall time of the update, scoring included", STEPS),
        Metric(
            "skills_seconds",
            *SECONDS,
            "wall time of merging, evolving and testing skills",
            f"{STEPS}, with a skill bank",
        ),
        Metric("record_seconds", *SECONDS, "wall time of writing the step's records", STEPS),
        Metric("sync_seconds", *SECONDS, "wall time of handing the weights to the backend", STEPS),
        Metric("vote_seconds", *SECONDS, "wall time of the votes", STEPS),
        Metric("reward_seconds", *SECONDS, "wall time of the rewards", STEPS),
        Metric("rollouts_per_second", *RATE, "rollouts a second of the sampling alone", STEPS),
        Metric("tokens_per_second", *RATE, "sampled tokens a second of the sampling alone", STEPS),
        Metric("update_tokens_per_second", *RATE, "`all_tokens` a second of the update, scoring included", STEPS),
        Metric(
            "mfu",
            *SHARE,
            "operations of the update as a share of what the GPUs do at best in bf16",
            f"{STEPS}, only for known GPUs",
        ),
        Metric("gpu_peak_bytes", *BYTES, "peak of what torch handed out in this process", GPU),
        Metric(
            "gpu_used_bytes",
            *BYTES,
            "the most that all processes used of the device at the ends of the step's parts",
            GPU,
        ),
    ),
)
