"""The `vllm` backend: a vLLM engine inside this process that follows the learner's weights.

All prompts that anybody asks for at the same time are one batch, whatever their lengths; what prompts have in common is read
once. After every update of the weights engine and learner score the same tokens, and a difference that is more than
rounding ends the run (`checks.check_sync`).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from skill_ttrl.config import BUILTIN
from skill_ttrl.errors import ConfigError, WeightSyncError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.chat import TokenizerMixin, open_thoughts
from skill_ttrl.llm.models.gguf import on_disk
from skill_ttrl.llm.models.load import save_model
from skill_ttrl.llm.models.weights import full_weights, is_sharded, trained_weights
from skill_ttrl.llm.vllm.checks import (
    LORA_RANKS,
    MAX_LOGPROB_DIFF,
    LogprobDiff,
    Probe,
    check_fits,
    check_prompt,
    check_sync,
    completions,
    engine_length,
    hands_adapters,
    is_adapter,
    learner_logprobs,
    read_policy,
    request_seed,
    runs_on_cpu,
    sampling_fields,
)
from skill_ttrl.llm.vllm.engine import Engine, Work, adapted_layers, reason, reload_weights, score, set_environment
from skill_ttrl.llm.vllm.plugin.launch import BATCHED_TOKENS, CPU_CACHE_GB

if TYPE_CHECKING:
    from skill_ttrl.llm.backend import BackendContext


class VLLMBackend(TokenizerMixin):
    """Samples with vLLM in this process. The engine starts at the first `generate` or `update_weights`; until then only the tokenizer
    and the model's config are read.

    With `top_p` below 1 or `top_k` the log-probs are those of the truncated distribution, as vLLM gives them: enough to
    measure with, refused for a policy that learns.

    Raises:
        MissingDependencyError: vLLM is not installed.
        ConfigError: the config asks for what vLLM cannot do here.
        ModelError: the model is not there.
    """

    is_learner, trainable, blocking, supports_structured_outputs = False, True, False, False

    def __init__(self, context: BackendContext) -> None:
        self._context, self._config = context, context.settings.vllm
        check_fits(context)  # says what is missing before a model is loaded
        set_environment()
        self.tokenizer, model_config, self.eos_ids = read_policy(context)
        text = getattr(model_config, "text_config", model_config)
        positions = getattr(text, "max_position_embeddings", None)
        self.max_model_len = engine_length(self._config.max_model_len, context.settings.longest_sequence, positions)
        self.policy_version = 0
        self.dtype = str(context.autocast or torch.float32).removeprefix("torch.")
        self.last_logprob_diff: LogprobDiff | None = None
        """Between engine and learner, after the last update."""
        self.cached_tokens = 0
        """Tokens of all prompts so far that the prefix cache had."""
        known = len(self.tokenizer)
        self._probe = Probe(min(known, getattr(text, "vocab_size", known)), self.max_model_len - 1)
        self._engine: Engine | None = None
        self._starting = threading.Lock()
        self._resting = False
        self._lora: Any = None
        self._adapters = 0
        self._folder = tempfile.TemporaryDirectory(prefix="skillttrl-vllm-")

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request; see `Backend.generate`. Several calls at once share one batch.

        Raises:
            ModelError: a prompt is empty or too long, or the engine failed.
        """
        if self._resting:
            raise RuntimeError("The engine is asleep: update its weights before sampling.")
        engine, version = self.engine(), self.policy_version
        work = self.work(requests, sampling, seed)
        waiting = [asyncio.wrap_future(future) for future in engine.submit(work)]
        try:
            found = await asyncio.gather(
                *(
                    self._generation(each.prompt_ids, request.n, future, version)
                    for each, request, future in zip(work, requests, waiting, strict=True)
                )
            )
        finally:
            for future in waiting:  # where one failed, or the caller was stopped, nobody waits for the others
                future.cancel()
        self._probe.take(found)
        return open_thoughts(self.tokenizer, requests, found)

    def start(self) -> None:
        """Start the engine where it is not there yet.

        Raises:
            ModelError: vLLM could not start.
            WeightSyncError: it does not take the policy's weights.
        """
        self.engine()

    def engine(self) -> Engine:
        """The engine, with the policy's weights; whoever comes while another starts it waits."""
        with self._starting:
            if self._engine is None:
                self._engine = self._start()
                if self._context.trains or is_adapter(self._context.weights):  # not what the files say
                    self._take_over(self._engine)
            return self._engine

    def work(self, requests: Sequence[Request], sampling: Sampling, seed: int) -> list[Work]:
        """The requests as the engine takes them; each draws from a seed of its own.

        Raises:
            ModelError: a prompt is empty or too long.
        """
        prompts = self.prompts(requests)
        for prompt in prompts:
            check_prompt(prompt, self.max_model_len, "the engine's {} (vllm.max_model_len)")
        return [
            Work(prompt, self._params(prompt, request, sampling, request_seed(seed, number)), self._lora)
            for number, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
        ]

    def update_weights(self, policy_version: int) -> None:
        """Take over the learner's weights; see `Backend.update_weights`. Nothing is done where nothing trains."""
        if self._context.trains:
            with self._starting:
                self._engine = self._engine or self._start()
                self._take_over(self._engine)
        self.policy_version = policy_version

    def sleep(self) -> None:
        """Let the engine sleep where `vllm.enable_sleep_mode` says so; the next update of weights wakes it.

        On a GPU its memory becomes the learner's: weights that will be sent again are thrown away (level 2), those under an
        adapter wait in the CPU's memory (level 1). On a CPU vLLM takes the call and gives nothing back.
        """
        if self._config.enable_sleep_mode and self._engine is not None and not self._resting:
            level = 1 if hands_adapters(self._context) else 2
            self._engine.call(lambda llm: llm.sleep(level=level))
            self._resting = True

    def close(self) -> None:
        """End the engine; see `Backend.close`."""
        with self._starting:
            if self._engine is not None:
                self._engine.close()
            self._folder.cleanup()

    def _start(self) -> Engine:
        model, weights = self._context.settings.model, self._context.weights
        files, revision = on_disk(model).path, model.revision
        # The built-in model, and one in pieces, are no folder that vLLM could read.
        if (weights is None and files == BUILTIN) or is_sharded(weights or Path(files)):
            files, revision = self._folder.name, None
            save_model(self._context.loaded.model, self._context.loaded.tokenizer, Path(files))
        elif weights is not None and not is_adapter(weights):
            files, revision = str(weights), None
        self._context.notice("Starting vLLM ...")
        return Engine({"model": files, "revision": revision, **self._arguments()})

    def _arguments(self) -> dict[str, Any]:
        """Arguments of `vllm.LLM` whatever the weights are.

        On a CPU a prompt is read in one step: where a step ends within the prompt of a request with a seed, vLLM rewinds the request's
        generator, which torch does not support on a CPU ("CPU Generator does not use offset"), and the engine dies.
        """
        on_cpu, lora = runs_on_cpu(), self._context.settings.model.lora
        arguments: dict[str, Any] = {
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self._config.max_num_seqs,
            "enforce_eager": on_cpu,
            "enable_prefix_caching": True,
            "gpu_memory_utilization": self._config.gpu_memory_utilization,
            "generation_config": "vllm",  # the model's own would change how is sampled
            "logprobs_mode": "processed_logprobs",  # at the sampling temperature
            "use_tqdm_on_load": False,
        }
        if on_cpu:
            arguments |= {
                "kv_cache_memory_bytes": CPU_CACHE_GB * 2**30,
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(BATCHED_TOKENS, self.max_model_len),
            }
        else:
            arguments["enable_sleep_mode"] = self._config.enable_sleep_mode
        if lora is not None and hands_adapters(self._context):
            arguments |= {
                "enable_lora": True,
                "max_loras": 1,
                "max_lora_rank": min(rank for rank in LORA_RANKS if rank >= lora.r),
                "lora_target_modules": adapted_layers(self._context.loaded.model),
            }
        return arguments

    def _params(self, prompt: Sequence[int], request: Request, sampling: Sampling, seed: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        room = self.max_model_len - len(prompt)
        try:
            return SamplingParams(
                **sampling_fields(request, sampling, seed, eos_ids=self.eos_ids, room=room),
                detokenize=bool(sampling.stop),  # only to find stop texts: ours is the tokenizer that makes the text
                flat_logprobs=True,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
        except Exception as error:  # vLLM's own class, which was a ValueError in older versions
            raise ConfigError(
                f"vLLM does not support these sampling settings: {reason(error)}. rollout.backend=hf does."
            ) from None

    async def _generation(self, prompt: Sequence[int], n: int, future: asyncio.Future[Any], version: int) -> Generation:
        output = await future
        self.cached_tokens += output.num_cached_tokens or 0
        samples = []
        for sample in sorted(output.outputs, key=lambda sample: int(sample.index)):
            ids = tuple(sample.token_ids)
            if tuple(sample.logprobs.token_ids) != ids:
                raise RuntimeError("vLLM returned log-probs of tokens that it did not sample.")
            samples.append((ids, tuple(sample.logprobs.logprobs), sample.finish_reason))
        return Generation(tuple(prompt), completions(self.tokenizer, samples, n, version))

    def _take_over(self, engine: Engine) -> None:
        """Hand the learner's weights to the engine, drop what it computed with others, and check that it has them."""
        model = self._context.loaded.model
        if self._resting:
            engine.call(lambda llm: llm.wake_up(tags=["weights"]))
        if hands_adapters(self._context):
            self._swap_adapters(engine, model)
        else:
            weights = self._context.on_learner(full_weights)
            self._tell(engine, "reload_weights", lambda llm: reload_weights(llm, weights))
        if self._resting:
            engine.call(lambda llm: llm.wake_up(tags=["kv_cache"]))
            self._resting = False
        if not engine.call(lambda llm: llm.reset_prefix_cache()):
            raise WeightSyncError("vLLM did not drop its prefix cache, so it would mix old and new weights.")
        sequences = self._probe.sequences
        ours = self._context.on_learner(learner_logprobs, sequences, self._context.autocast)
        theirs, update = score(engine, sequences, self._lora), f"vllm.weight_sync={self._config.weight_sync}"
        self.last_logprob_diff = check_sync(ours, theirs, MAX_LOGPROB_DIFF[self.dtype], update)

    def _swap_adapters(self, engine: Engine, model: Any) -> None:
        from vllm.lora.request import LoRARequest

        self._adapters += 1
        folder = Path(self._folder.name, f"adapters-{self._adapters}")
        model.save_pretrained(folder, state_dict=self._context.on_learner(trained_weights))
        old, new = self._lora, LoRARequest(folder.name, self._adapters, str(folder))

        def swap(llm: Any) -> None:
            if old is not None:
                llm.llm_engine.remove_lora(old.lora_int_id)
            if not llm.llm_engine.add_lora(new):
                raise RuntimeError("the adapters were not accepted")

        self._tell(engine, "add_lora", swap)
        self._lora = new
        if old is not None:  # a long run would fill the disk
            shutil.rmtree(old.lora_path)

    def _tell(self, engine: Engine, what: str, function: Callable[[Any], None]) -> None:
        try:
            engine.call(function)
        except Exception as error:
            raise WeightSyncError(
                f"vLLM did not accept the learner's weights ({what}): {reason(error)}. Try another vllm.weight_sync, or "
                "rollout.backend=hf."
            ) from error
