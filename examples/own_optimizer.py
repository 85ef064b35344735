"""An optimizer of one's own, without a language model: it writes down the forms that the true answers of failures have:
skillttrl optimize --policy none --agent "python rules_program.py" --set env.id=qa --set optimize.optimizer=own_optimizer:Forms
"""

import re
from pathlib import Path

from skill_ttrl.commands.optimize import optimize_run
from skill_ttrl.optimize.types import Edit, Patch, RawPatch

FORMS = {
    r"\d{4}-\d\d-\d\d": "- Write dates as YYYY-MM-DD.",
    r"\d\d:\d\d": "- Write times on the 24-hour clock.",
    r"\d+ min": "- Write durations in whole minutes.",
    r"EUR \d+\.\d\d": "- Write amounts as EUR with two decimals.",
}


class Forms:
    def __init__(self, calls, config, templates): ...

    def reflect(self, view):
        failed = [each.reference_text for each in view.rollouts if not each.hard]
        seen = {FORMS[form] for form in FORMS for text in failed if re.fullmatch(form, text)}
        edits = [Edit("append", rule) for rule in sorted(seen) if rule not in view.document]
        return [RawPatch(Patch(edits), "failure", len(failed))] if edits else []

    def merge(self, view, patches):
        return patches[0].patch

    def select(self, view, patch, max_edits):
        return Patch(patch.edits[:max_edits])


if __name__ == "__main__":
    agent = {"argv": ["python3", str(Path(__file__).with_name("rules_program.py"))]}
    small = {"optimizer": "own_optimizer:Forms", "epochs": 1, "batch_size": 12}
    config = {"env": {"id": "qa", "train_tasks": 32, "eval_tasks": 8}, "optimize": small, "program": agent}
    found = optimize_run(config, policy="none", output="forms")
    print(f"test success {found.test_first.hard:.3f} -> {found.test_best.hard:.3f}, {found.actions}")
