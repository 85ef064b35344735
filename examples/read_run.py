"""Read a run back: its outcome and its data frames. Works while the run is still going on.

Run it: python examples/read_run.py [RUN]        (default: runs/quickstart, which `make quickstart` writes)
"""

from __future__ import annotations

import sys

from skill_ttrl import read_run


def main(path: str) -> None:
    run = read_run(path)
    print(run.config.name, "| seed", run.config.seed, "| reward", run.config.rl.reward)
    if run.summary is not None:
        print("avg@k before and after:", run.summary.accuracy_before, run.summary.accuracy_after)
        for warning in run.summary.warnings:
            print("warning:", warning)

    steps = run.metrics[run.metrics["phase"] == "rl"]
    columns = [
        name for name in ("step", "majority_ratio", "label_accuracy", "answer_entropy", "flip_rate") if name in steps
    ]
    print(steps[columns].tail(3).to_string(index=False))

    votes = run.votes  # one row a vote; `classes` has every answer with its count
    last = votes[votes["step"] == votes["step"].max()]
    print(last[["task_id", "answer", "majority_ratio", "tie"]].head(3).to_string(index=False))

    if not run.trajectories.empty:  # one row a try, with token ids and log-probs inside `steps`
        first = run.trajectories.iloc[0]
        print("a first try:", first["steps"][0]["action"], "→ reward", first["reward"])
    for note in run.notes:
        print("note:", note)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart")
