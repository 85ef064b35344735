"""The `hf` backend: batched sampling with a transformers model that lives in this process."""

from skill_ttrl.llm.hf.backend import HFBackend, HFCopyBackend
from skill_ttrl.llm.hf.decoding import row_uniforms, sample_seeds, sample_token, truncate

__all__ = ["HFBackend", "HFCopyBackend", "row_uniforms", "sample_seeds", "sample_token", "truncate"]
