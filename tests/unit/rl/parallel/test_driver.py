from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skill_ttrl.llm.backend import Request
from skill_ttrl.llm.hf import sample_seeds
from skill_ttrl.rl.parallel.driver import shares


@given(samples=st.lists(st.integers(1, 5), min_size=1, max_size=6), ranks=st.integers(1, 4))
def test_the_ranks_draw_the_samples_of_one(samples: list[int], ranks: int) -> None:
    requests = [Request(token_ids=(place,), n=n) for place, n in enumerate(samples)]
    found: dict[int, list[int]] = {place: [] for place in range(len(requests))}
    of_ranks = shares(requests, 7, ranks)
    counts = [sum(map(len, seeds)) for _, _, seeds in of_ranks]
    assert max(counts) - min(counts) <= 1
    for places, own, seeds in of_ranks:
        for place, request, of_request in zip(places, own, seeds, strict=True):
            assert request.token_ids == (place,) and request.n == len(of_request) > 0
            found[place] += of_request
    assert [*found.values()] == sample_seeds(requests, 7)
