"""A run that has no memory left ends with the setting to change, and goes on from its newest checkpoint once it is changed."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import run_ranks

MORE_THAN_ANY = 10**15
WHERE = {
    "update": ("skill_ttrl.rl.policy", "Policy", "token_logprobs"),
    "sample": ("skill_ttrl.llm.hf.backend", "HFBackend", "sample"),
    "sft": ("skill_ttrl.rl.sft_learner", "SFTLearner", "step"),
}


def train(arguments: list[str], phase: str, from_call: int, on_rank: int) -> list[Any]:
    """(exit code, stderr) of the command on this rank; from its n-th call on a function asks for more memory than there is."""
    import torch

    from skill_ttrl.cli.main import main

    module, owner, name = WHERE[phase]
    kind = getattr(importlib.import_module(module), owner)
    original, calls = getattr(kind, name), 0

    def wasteful(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= from_call:
            torch.empty(MORE_THAN_ANY)
        return original(self, *args, **kwargs)

    if int(os.environ.get("RANK", "0")) == on_rank:
        # The frame that asks stands in the file of the real one.
        setattr(kind, name, _in_file_of(wasteful, original))
    sys.argv, err = ["skillttrl", *arguments], io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            main()
            code: Any = 0
        except SystemExit as leaving:
            code = leaving.code or 0
    return [code, err.getvalue()]


def _in_file_of(function: Any, original: Any) -> Any:
    function.__code__ = function.__code__.replace(co_filename=original.__code__.co_filename)
    return function


@pytest.mark.slow
def test_the_error_names_what_to_change_and_the_run_continues(
    tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["train", str(tiny_yaml), "-o", str(tmp_path / "run"), "--resume", "auto", "--set", "rl.steps=8"]
    arguments += ["--set", "rl.reward=random"]
    monkeypatch.setattr(sys, "argv", sys.argv)
    for phase, named, from_call, advice in (
        ("sft", "cold start", 6, "--set model.gradient_checkpointing=true"),
        ("update", "update", 15, "--set model.gradient_checkpointing=true"),
        ("sample", "sampling", 4, "rollout.max_batch_size"),
    ):
        module, owner, name = WHERE[phase]
        kind = getattr(importlib.import_module(module), owner)
        with monkeypatch.context() as restored:
            restored.setattr(kind, name, getattr(kind, name))
            code, err = train(arguments, phase, from_call, 0)
        words = " ".join(err.split())
        assert code == 5 and "Traceback" not in err, err
        assert f"Out of memory ({named})" in words and "4000000000000000 bytes" in words
        assert advice in words and "--resume auto" in words
    code, err = train([*arguments, "--set", "rollout.max_batch_size=512"], "sample", 10**9, 0)
    assert code == 0, err


@pytest.mark.slow
def test_another_rank_s_end_is_explained_as_well(tiny_yaml: Path, tmp_path: Path) -> None:
    arguments = ["train", str(tiny_yaml), "-o", str(tmp_path / "run"), "--set", "rl.reward=random"]
    code, err = run_ranks(train, 2, arguments, "update", 13, 1, may_fail=1)[0]
    assert code == 5 and "Out of memory on rank 1 (update)" in " ".join(err.split())
