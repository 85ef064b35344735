"""The learner's side of a broadcast, against servers that are threads of this process: no vLLM, real groups."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

from skill_ttrl.config import LoraConfig, load_config
from skill_ttrl.errors import ConfigError, WeightSyncError
from skill_ttrl.llm.models.load import add_lora
from skill_ttrl.llm.models.weights import full_weights, weight_shapes
from skill_ttrl.llm.vllm.plugin.skillttrl_group import WeightGroup, join
from skill_ttrl.llm.vllm.servers.broadcast import Broadcast, Groups
from skill_ttrl.llm.vllm.servers.http import PROCESS_HEADER, Server, ServerLost

CPU = torch.device("cpu")
WEIGHTS = [("a", torch.arange(6.0).view(2, 3)), ("b", torch.full((4,), 2, dtype=torch.bfloat16)), ("c", torch.zeros(9))]
OLDER = "Invalid init_info for FileTransferEngine: FileInit.__init__() got an unexpected keyword argument 'group'"


class Fake:
    """A server, as far as it takes weights. `fails` is a tensor over which it loses its connection; `refuses` what it says to a group."""

    def __init__(self, name: str) -> None:
        self.address, self.process, self.version = f"http://{name}", "1", "default"
        self.well, self.refuses, self.fails = True, "", ""
        self.group: WeightGroup | None = None
        self.weights: dict[str, torch.Tensor] = {}
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        self.asked.append(path)
        headers = {PROCESS_HEADER: self.process}
        if not self.well:
            raise httpx.ReadError("gone")
        try:
            self.answer(path, body)
        except (ValueError, RuntimeError) as error:
            return httpx.Response(500, text=str(error), headers=headers)
        return httpx.Response(200, json={"success": True, "weight_version": self.version}, headers=headers)

    def answer(self, path: str, body: dict[str, Any]) -> None:
        if path == "/init_weight_transfer_engine":
            told = body["init_info"]
            if self.refuses:
                raise ValueError(self.refuses)
            if "address" in told:
                self.group = join(told["group"], told["address"], told["port"], told["sender"], 1, 2, CPU)
            elif self.group is None or self.group.name != told["group"]:
                raise ValueError("not in that group")
            else:
                self.group.check()
        elif path == "/update_weights":
            self.take(**body["update_info"])
        elif path == "/finish_weight_update":
            self.version = body["weight_version"]

    def take(self, names: list[str], dtype_names: list[str], shapes: list[list[int]]) -> None:
        assert self.group is not None
        for name, dtype, shape in zip(names, dtype_names, shapes, strict=True):
            if name == self.fails:
                self.restart()
                self.well = False
                raise httpx.ReadError("gone")
            self.weights[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.start(self.weights[name])
            self.group.finish()

    def restart(self) -> None:
        assert self.group is not None
        self.group.close()
        self.group, self.process, self.fails, self.version = None, self.process + "1", "", "default"


@pytest.fixture
def groups() -> Iterator[Groups]:
    found = Groups(None, "cpu")
    yield found
    found.close()


def hand_over(groups: Groups, *fakes: Fake, version: str = "v") -> list[Any]:
    """What came of giving `WEIGHTS` to these servers: True, or the error."""

    def work(server: Server) -> Any:
        try:
            broadcast.send(server, version)
        except (ServerLost, WeightSyncError) as error:
            return error
        return True

    shapes = [(name, tensor.dtype, list(tensor.shape)) for name, tensor in WEIGHTS]
    broadcast = Broadcast(groups, lambda: iter(WEIGHTS), shapes)
    servers = [Server(fake.address, httpx.Client(transport=httpx.MockTransport(fake))) for fake in fakes]
    return broadcast.run(work, servers)


def has_weights(fake: Fake) -> bool:
    return all(torch.equal(fake.weights[name], tensor) for name, tensor in WEIGHTS)


def test_all_servers_take_the_weights_and_keep_their_groups(groups: Groups) -> None:
    first, second = Fake("first"), Fake("second")
    assert hand_over(groups, first, second, version="one") == [True, True]
    assert has_weights(first) and has_weights(second) and first.version == second.version == "one"
    before = first.group, second.group
    second.weights.clear()
    assert hand_over(groups, first, second, version="two") == [True, True]
    assert has_weights(second) and (first.group, second.group) == before
    assert first.asked.count("/resume") == 2


def test_a_group_is_opened_again_where_the_process_is_another_or_has_left_it(groups: Groups) -> None:
    fake, other = Fake("one"), Groups(None, "cpu")
    assert hand_over(groups, fake) == [True]
    fake.restart()
    assert hand_over(groups, fake) == [True]
    assert hand_over(other, fake) == [True], "another learner takes its place"
    fake.weights.clear()
    assert hand_over(groups, fake) == [True] and has_weights(fake)


@pytest.mark.parametrize("tensor", ["a", "c"])
def test_a_server_that_dies_leaves_the_others_alone_and_is_given_the_weights_later(groups: Groups, tensor: str) -> None:
    well, dying = Fake("well"), Fake("dying")
    dying.fails = tensor
    done, lost = hand_over(groups, well, dying)
    assert done is True and has_weights(well) and isinstance(lost, ServerLost)
    dying.well = True
    assert hand_over(groups, dying) == [True] and has_weights(dying)


def test_an_older_server_and_one_that_does_not_answer_leave_the_others_alone(groups: Groups) -> None:
    older, gone, well = Fake("older"), Fake("gone"), Fake("well")
    older.refuses, gone.well = OLDER, False
    refused, lost, done = hand_over(groups, older, gone, well)
    assert isinstance(refused, WeightSyncError) and isinstance(lost, ServerLost) and done is True
    assert OLDER in str(refused) and "vllm.weight_transfer=file" in str(refused)
    assert "127.0.0.1 (vllm.weight_transfer_address)" in str(refused)
    assert "/update_weights" not in older.asked and older.asked[-2:] == ["/resume", "/health"]
    assert older.version == "default", "its weights were not touched"


def test_a_learner_that_fails_half_way_ends_what_servers_wait_for(groups: Groups) -> None:
    fake = Fake("one")
    shapes = [(name, tensor.dtype, list(tensor.shape)) for name, tensor in WEIGHTS]
    server = Server(fake.address, httpx.Client(transport=httpx.MockTransport(fake)))

    def fails() -> Iterator[tuple[str, torch.Tensor]]:
        yield WEIGHTS[0]
        raise KeyboardInterrupt

    broadcast = Broadcast(groups, fails, shapes)
    with pytest.raises(KeyboardInterrupt):
        broadcast.run(lambda server: broadcast.send(server, "v"), [server])
    broadcast = Broadcast(groups, lambda: iter(WEIGHTS[::-1]), shapes)
    with pytest.raises(WeightSyncError, match="another type or shape than it said"):
        broadcast.run(lambda server: broadcast.send(server, "v"), [server])
    assert "/finish_weight_update" not in fake.asked
    assert hand_over(groups, fake) == [True]


@pytest.mark.parametrize("adapters", [False, True])
def test_what_is_told_of_the_weights_is_what_comes(tiny_model: tuple[Any, Any], adapters: bool) -> None:
    model = add_lora(copy.deepcopy(tiny_model[0]), LoraConfig(r=2), seed=0) if adapters else tiny_model[0]
    told = weight_shapes(model)
    assert told == [(name, tensor.dtype, list(tensor.shape)) for name, tensor in full_weights(model)]


def test_an_address_of_another_machine_is_refused_at_the_start() -> None:
    for address in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(
            ConfigError, match=rf"vllm\.weight_transfer_address is {address}, where this machine cannot"
        ):
            Groups(address, "cpu")


@pytest.mark.parametrize(
    ("vllm", "said"),
    [
        ("{mode: server, weight_transfer: broadcast, weight_sync: lora}", "cannot go with weight_transfer=broadcast"),
        ("{weight_transfer: broadcast}", "for mode=server"),
        ("{mode: server, weight_transfer_address: localhost}", "for weight_transfer=broadcast"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(vllm: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config({}, [f"vllm={vllm}"])
