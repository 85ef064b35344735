"""The `vllm` backend with servers: tokens go out and come back over HTTP, weights pass through a folder.

The servers live in processes, and if need be in an environment, of their own (`skillttrl serve`). Every process of a server that
is asked was given the learner's weights and compared with the learner on a probe; one that was started again is given them again
before it is asked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skill_ttrl.errors import ConfigError, EndpointError
from skill_ttrl.llm.backend import Generation, Request, Sampling
from skill_ttrl.llm.chat import TokenizerMixin
from skill_ttrl.llm.event_loop import BackgroundEventLoop
from skill_ttrl.llm.vllm.checks import check_learnable
from skill_ttrl.llm.vllm.probe import LogprobDiff, Probe
from skill_ttrl.llm.vllm.requests import check_prompt, completions, read_policy, request_seed, sampling_fields
from skill_ttrl.llm.vllm.servers.http import Server, open_client
from skill_ttrl.llm.vllm.servers.pool import ServerPool, answer_all
from skill_ttrl.types import Completion

if TYPE_CHECKING:
    from skill_ttrl.llm.context import BackendContext

MOST_CONNECTIONS = 256
"""Requests to one server at the same time; it puts further ones into its own queue."""


class VLLMServerBackend(TokenizerMixin):
    """Samples from running vLLM servers. Log-probs with `top_p` below 1 or `top_k` are as those of `VLLMBackend`.

    Raises:
        ConfigError: the config names no server, or asks for what they cannot do.
        EndpointError: a server does not answer within `vllm.start_timeout`, or is no vLLM server.
    """

    is_learner, trainable, blocking = False, True, False

    def __init__(self, context: BackendContext) -> None:
        self._context, self._config = context, context.settings.vllm
        if not self._config.servers:
            raise ConfigError(
                "vllm.mode=server, but vllm.servers names none. Start one (skillttrl serve MODEL) and set "
                "vllm.servers=[http://127.0.0.1:8000]."
            )
        check_learnable(context.settings, context.model)
        self.supports_structured_outputs = True
        self.policy_version = 0
        self._client = open_client()
        self._first = threading.Lock()
        self._asking = BackgroundEventLoop("The sampler of the vLLM servers")
        try:
            self._handshake([Server(address, self._client) for address in self._config.servers])
        except BaseException:
            self._client.close()
            raise

    def _handshake(self, servers: list[Server]) -> None:
        """Find out what the servers serve."""
        waiting = ServerPool(self._context, servers, Probe(2))  # for how many tokens it must be is not known yet
        found = [waiting.wait_for(server, partial(self._served, server)) for server in servers]
        self.max_model_len: int | None = min(length for _, _, length in found)
        asked = self._config.max_model_len
        if asked is not None and asked > self.max_model_len:
            raise ConfigError(
                f"vllm.max_model_len is {asked}, but a server takes {self.max_model_len} tokens. Start it with --max-model-len "
                f"{asked}, or lower the setting."
            )
        self.tokenizer, _, self.eos_ids = read_policy(self._context)
        self._probe = Probe(len(self.tokenizer), self.max_model_len - 1)
        self._pool = ServerPool(self._context, servers, self._probe)
        policy = self._context.model.weights or self._context.model.config.path
        same = (root == str(policy) or Path(root).resolve() == Path(policy).resolve() for _, root, _ in found)
        if not self._context.model.trains and all(same):
            self._pool.keep_original()

    @property
    def last_logprob_diff(self) -> LogprobDiff | None:
        """Between servers and learner after the last update, the largest of all servers."""
        return self._pool.last_logprob_diff

    async def generate(self, requests: Sequence[Request], sampling: Sampling, *, seed: int) -> list[Generation]:
        """Sample every request; see `Backend.generate`.

        Where a server dies, its requests wait for it to come back, up to `vllm.start_timeout`.

        Raises:
            ModelError: a prompt is empty or too long.
            EndpointError: a server did not come back, or refuses a request; the message names it.
            WeightSyncError: a server that came back does not take the weights.
        """
        if self._pool.present is None or self._first.locked():
            await asyncio.to_thread(self.start)
        prompts = self.prompts(requests)
        bodies = [
            self._body(prompt, request, sampling, request_seed(seed, number))
            for number, (prompt, request) in enumerate(zip(prompts, requests, strict=True))
        ]
        version, connections = self.policy_version, MOST_CONNECTIONS * len(self._pool.servers)
        answers = await self._asking.run(answer_all(self._pool, bodies, connections))
        found = [
            Generation(tuple(prompt), self._completions(answer, request.n, int(body["n"]), version))
            for prompt, request, body, answer in zip(prompts, requests, bodies, answers, strict=True)
        ]
        self._probe.take(found)
        return found

    def update_weights(self, policy_version: int) -> None:
        """Hand the learner's weights to every server and compare; see `Backend.update_weights`.

        Nothing is done where nothing trains and the servers have the policy's weights.
        """
        if self._context.model.trains or self._pool.present is None:
            self._pool.broadcast_weights(policy_version)
        self.policy_version = policy_version

    def start(self) -> None:
        """Give the servers the policy's weights where they have others and were given none yet; whoever comes meanwhile waits.

        Raises as `update_weights`.
        """
        with self._first:
            if self._pool.present is None:
                self.update_weights(self.policy_version)

    def sleep(self) -> None:
        """Let the servers sleep where `vllm.enable_sleep_mode` says so; the next update of weights wakes them. On a CPU vLLM gives nothing back."""
        self._pool.sleep()

    def close(self) -> None:
        """Remove what was put into the folder; the servers go on."""
        self._asking.close()
        self._pool.close()
        self._client.close()

    def _served(self, server: Server) -> tuple[str, str, int]:
        server.get("/health")
        found = server.served()
        server.model = found[0]
        return found

    def _body(self, prompt: Sequence[int], request: Request, sampling: Sampling, seed: int) -> dict[str, Any]:
        assert self.max_model_len is not None
        check_prompt(prompt, self.max_model_len, "the server's {} (--max-model-len)")
        body = {
            "prompt": list(prompt),
            "return_token_ids": True,
            **sampling_fields(request, sampling, seed, eos_ids=self.eos_ids, room=self.max_model_len - len(prompt)),
        }
        return body | ({"structured_outputs": {"choice": list(request.choice)}} if request.choice else {})

    def _completions(self, answer: dict[str, Any], n: int, asked: int, version: int) -> tuple[Completion, ...]:
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
            ids = [tuple(int(token) for token in choice["token_ids"]) for choice in choices]
            logprobs = [tuple(float(value) for value in choice["logprobs"]["token_logprobs"]) for choice in choices]
            samples = list(zip(ids, logprobs, [choice["finish_reason"] for choice in choices], strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(f"it lacks token ids or log-probs ({error!r})") from None
        if len(choices) != asked or any(len(a) != len(b) for a, b in zip(ids, logprobs, strict=True)):
            raise _malformed(f"it holds {len(choices)} samples of {asked}, or not one log-prob for each token")
        return completions(self.tokenizer, samples, n, version)


def _malformed(what: str) -> EndpointError:
    return EndpointError(
        f"A vLLM server's answer cannot be used: {what}. Start servers with `skillttrl serve`.", kind="malformed"
    )
