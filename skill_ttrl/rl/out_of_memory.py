"""Allocations that failed, and which phase of a step they were for."""

from __future__ import annotations

import traceback

import torch

_WORDS = ("can't allocate memory", "not enough memory", "out of memory")
_PLACES = (("/llm/", "sample"), ("/rl/", "update"))
"""Part of a file's path, and the phase that its code computes; the innermost frame that is in one of them decides."""


def out_of_memory(error: BaseException) -> str | None:
    """The phase (`sample`, `update`, `sft`) in which an allocation failed: on a GPU, in torch's memory of the CPU, or in Python's.

    None: the error is of another kind.
    """
    allocators = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    if not allocators and not (type(error) is RuntimeError and any(words in str(error) for words in _WORDS)):
        return None
    files = [frame.f_code.co_filename.replace("\\", "/") for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any("/sft_learner.py" in file for file in files):
        return "sft"
    if any(frame.f_code.co_name == "sample_share" for frame, _ in traceback.walk_tb(error.__traceback__)):
        return "sample"  # it gathers sharded weights first
    found = (phase for file in reversed(files) for part, phase in _PLACES if part in file)
    return next(found, "update")
