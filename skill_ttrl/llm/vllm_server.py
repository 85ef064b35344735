"""The `vllm` backend with servers: tokens go out and come back over HTTP, weights pass through a folder that both sides see.

The servers live in processes, and if need be in an environment, of their own (`skillttrl serve`). Every process of a server that
is asked was given the learner's weights and compared with the learner on a probe; one that was started again is given them again
before it is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from skill_ttrl.errors import ConfigError, EndpointError, ModelError
from skill_ttrl.llm.base import Generation, Request, Sampling
from skill_ttrl.llm.chat import encode_chat, encode_plain, end_ids
from skill_ttrl.llm.load import EMBEDDED, load_tokenizer
from skill_ttrl.llm.probe import Gap, Probe
from skill_ttrl.llm.vllm_dispatch import POLL, Dispatch, unanswered
from skill_ttrl.llm.vllm_fleet import Fleet
from skill_ttrl.llm.vllm_http import Server, ServerLost, open_async_client, open_client
from skill_ttrl.types import Completion, FinishReason, Message, derive_seed

if TYPE_CHECKING:
    from skill_ttrl.llm.engine import BackendContext

SEEDS = 2**62
"""vLLM adds a sample's number to the seed of its request and keeps the sum in 64 bits."""
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class VLLMServerBackend:
    """Samples from running vLLM servers.

    With `top_p` below 1 or `top_k` the log-probs are those of the truncated distribution, as vLLM gives them: enough to
    measure with, refused for a policy that learns.

    Args:
        context: what it is made from.

    Raises:
        ConfigError: the config names no server, or asks for what they cannot do.
        EndpointError: a server does not answer within `vllm.start_timeout`, or is no vLLM server.
    """

    def __init__(self, context: BackendContext) -> None:
        self._context, self._config = context, context.config.vllm
        _check(context)
        self.constrains = True
        self.policy_version = 0
        self._client = open_client()
        try:
            self._meet([Server(address, self._client) for address in self._config.servers])
        except BaseException:
            self._client.close()
            raise

    def _meet(self, servers: list[Server]) -> None:
        """Find out what the servers serve."""
        found = [self._wait_for(server) for server in servers]
        self.context: int | None = min(length for _, _, length in found)
        self._check_length(self.context)
        self.tokenizer, self.eos_ids = _tokenizer(self._context)
        self._probe = Probe(len(self.tokenizer), self.context - 1)
        self._fleet = Fleet(self._context, servers, self._probe)
        policy = self._context.weights or self._context.config.model.path
        if not self._context.trains and all(_same(root, policy) for _, root, _ in found):
            self._fleet.keep_original()

    @property
    def last_gap(self) -> Gap | None:
        """Between servers and learner after the last update, the largest of all servers."""
        return self._fleet.last_gap

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt tokens by the tokenizer's chat template; without one, the contents joined by blank lines."""
        return encode_chat(self.tokenizer, messages)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Tokens of a text inside an answer; see `Backend.encode_text`."""
        return encode_plain(self.tokenizer, text)

    def count(self, messages: Sequence[Message]) -> int:
        """See `Backend.count`."""
        return len(self.encode(messages))

    def count_text(self, text: str) -> int:
        """See `Backend.count_text`."""
        return len(self.encode_text(text))

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request; see `Backend.generate`.

        Requests of a server that dies are sent to another one, or wait for it to come back, up to `vllm.start_timeout`.

        Raises:
            ModelError: a prompt is empty or too long.
            EndpointError: no server came back, or one refuses a request.
            WeightSyncError: a server that came back does not take the weights.
        """
        if self._fleet.present is None:
            await asyncio.to_thread(self.sync, self.policy_version)
        prompts = [self.encode(each.messages) if each.token_ids is None else each.token_ids for each in requests]
        bodies = [
            self._body(prompt, request, sampling, derive_seed(seed, "request", number) % SEEDS)
            for number, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
        ]
        dispatch = Dispatch(
            self._fleet.servers,
            bodies,
            bring_up=self._fleet.bring_up,
            still=self._fleet.still,
            room=2 * self._config.max_num_seqs,  # as many again as are decoded: a server is never without work
            patience=self._config.start_timeout,
            notice=self._context.notice,
        )
        version = self.policy_version
        async with open_async_client() as client:
            answers = await dispatch.run(client)
        found = [
            Generation(tuple(prompt), self._completions(answer, request.n, int(body["n"]), version))
            for prompt, request, body, answer in zip(prompts, requests, bodies, answers, strict=True)
        ]
        self._probe.take(found)
        return found

    def sync(self, policy_version: int) -> None:
        """Hand the learner's weights to every server and compare; see `Backend.sync`.

        A server that does not answer is given them when it does, before it is asked for anything. Nothing is done where nothing
        trains and the servers have the policy's weights.
        """
        if self._context.trains or self._fleet.present is None:
            self._fleet.hand_over(policy_version)
        self.policy_version = policy_version

    def rest(self) -> None:
        """Let the servers sleep where `vllm.sleep` says so; the next `sync` wakes them. On a CPU vLLM gives nothing back."""
        self._fleet.rest()

    def close(self) -> None:
        """Remove what was put into the folder; the servers go on."""
        self._fleet.close()
        self._client.close()

    def _wait_for(self, server: Server) -> tuple[str, str, int]:
        began, told = time.monotonic(), False
        while True:
            try:
                server.get("/health")
                found = server.served()
                server.model = found[0]
                return found
            except ServerLost as lost:
                if time.monotonic() - began > self._config.start_timeout:
                    raise unanswered(server.address, self._config.start_timeout, str(lost)) from None
                if not told:
                    self._context.notice(
                        f"Waiting for {server.address}, up to {self._config.start_timeout:.0f} s (vllm.start_timeout)."
                    )
                    told = True
                time.sleep(POLL)

    def _check_length(self, length: int) -> None:
        asked = self._config.max_model_len
        if asked is not None and asked > length:
            raise ConfigError(
                f"vllm.max_model_len is {asked}, but a server takes {length} tokens. Start it with --max-model-len {asked}, or "
                "lower the setting."
            )

    def _body(self, prompt: Sequence[int], request: Request, sampling: Sampling, seed: int) -> dict[str, Any]:
        assert self.context is not None
        if not prompt:
            raise ModelError("A prompt has no tokens; a model can only continue a text that has begun.")
        if len(prompt) >= self.context:
            raise ModelError(
                f"A prompt of {len(prompt)} tokens does not fit the server's {self.context} (--max-model-len)."
            )
        limit = min(sampling.max_new_tokens, request.max_new_tokens or sampling.max_new_tokens)
        body = {
            "prompt": list(prompt),
            "n": request.n if sampling.temperature > 0 else 1,  # vLLM takes one of equal samples
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": seed,
            "max_tokens": min(limit, self.context - len(prompt)),
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": sorted(self.eos_ids),
            "logprobs": 0,
            "return_token_ids": True,
        }
        return body | ({"structured_outputs": {"choice": list(request.choices)}} if request.choices else {})

    def _completions(self, answer: dict[str, Any], n: int, asked: int, version: int) -> tuple[Completion, ...]:
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            ids = [tuple(int(token) for token in choice["token_ids"]) for choice in choices]
            logprobs = [tuple(float(value) for value in choice["logprobs"]["token_logprobs"]) for choice in choices]
            reasons: list[FinishReason] = [REASONS.get(choice["finish_reason"], "error") for choice in choices]
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(f"it lacks token ids or log-probs ({error!r})") from None
        if len(choices) != asked or any(len(a) != len(b) for a, b in zip(ids, logprobs, strict=True)):
            raise _malformed(f"it holds {len(choices)} samples of {asked}, or not one log-prob for each token")
        texts = self.tokenizer.batch_decode([list(row) for row in ids], skip_special_tokens=True)
        found = tuple(
            Completion(text, row, values, reason, version, mask=(True,) * len(row))
            for text, row, values, reason in zip(texts, ids, logprobs, reasons, strict=True)
        )
        return found * n if asked < n else found


def _malformed(what: str) -> EndpointError:
    return EndpointError(
        f"A vLLM server's answer cannot be used: {what}. Start servers with `skillttrl serve`.", kind="malformed"
    )


def _check(context: BackendContext) -> None:
    """Raise `ConfigError` for what servers cannot do."""
    config = context.config
    if not config.vllm.servers:
        raise ConfigError(
            "vllm.mode=server, but vllm.servers names none. Start one (skillttrl serve MODEL) and set "
            "vllm.servers=[http://127.0.0.1:8000]."
        )
    if context.trains and (config.rollout.top_p < 1 or config.rollout.top_k > 0):
        raise ConfigError(
            f"rollout.top_p={config.rollout.top_p:g}, rollout.top_k={config.rollout.top_k}: vLLM gives log-probs of the "
            "truncated distribution, and the learner needs those of the whole one. Train with rollout.top_p=1 and "
            "rollout.top_k=0, or with rollout.backend=hf."
        )
    if context.trains and config.vllm.updates == "lora" and config.model.lora is None:
        raise ConfigError(
            "vllm.updates=lora hands adapters over, and this policy has none. Set model.lora, or vllm.updates=weights."
        )


def _tokenizer(context: BackendContext) -> tuple[Any, set[int]]:
    """The policy's tokenizer and the tokens that end a completion; its weights are loaded only where they are needed anyway."""
    config = context.config.model
    if context.trains or (context.weights is None and config.path == EMBEDDED):
        loaded: Any = context.loaded
        return loaded.tokenizer, end_ids(loaded.model, loaded.tokenizer)
    from transformers import GenerationConfig

    own = config.model_copy(update={"path": str(context.weights), "revision": None})
    tokenizer = load_tokenizer(config if context.weights is None else own)
    adapter = context.weights is not None and (context.weights / "adapter_config.json").is_file()
    files = config if context.weights is None or adapter else own
    try:
        generation: Any = GenerationConfig.from_pretrained(files.path, revision=files.revision or "main")
    except OSError:  # many a model has none
        generation = None
    return tokenizer, end_ids(SimpleNamespace(generation_config=generation), tokenizer)


def _same(root: str, policy: Path | str) -> bool:
    """Whether a server serves the very files of the policy."""
    return root == str(policy) or Path(root).resolve() == Path(policy).resolve()
