"""Environments that are made once and lent: to one thread at a time, and closed whatever happens."""

from __future__ import annotations

from typing import Any

import pytest

from skill_ttrl.envs import TextEnv
from skill_ttrl.rollout.env_pool import EnvPool


class Counted(TextEnv):
    closed = 0

    def close(self) -> None:
        Counted.closed += 1


def test_those_that_were_made_before_one_fails_are_closed() -> None:
    made: list[Any] = []

    def make() -> Any:
        if len(made) == 2:
            raise OSError("no more")
        made.append(Counted())
        return made[-1]

    pool = EnvPool(make)
    with pytest.raises(OSError, match="no more"):
        pool.acquire(3)
    Counted.closed = 0
    pool.close()
    assert Counted.closed == 2


def test_what_is_lent_is_nobody_else_s() -> None:
    pool = EnvPool(Counted)
    with pool.lend(2) as mine, pool.lend(1) as other:
        assert not set(map(id, mine)) & set(map(id, other))
    assert len(pool.acquire(3)) == 3
