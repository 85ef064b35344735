"""GraphGPO's parts (arXiv 2605.26684, section 4): a graph of a task's rollouts, and how far each state is from success."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable
from itertools import count
from typing import NamedTuple

SUCCESS = "success"
"""The node that the last step of a successful rollout leads to."""


class Edge(NamedTuple):
    """One step of a rollout."""

    state: Hashable
    next_state: Hashable
    """`SUCCESS` where the step ended a successful rollout."""
    cost: float = 1.0


def distances_to_success(edges: Iterable[Edge]) -> dict[Hashable, float]:
    """Compute d(s) = min over edges (c + d(s')), d(success) = 0, of all nodes: one Dijkstra from success backwards.

    A node from which no rollout reached success has d_max + 1, d_max the largest distance of the others.

    Args:
        edges: Of one graph; costs are positive.

    Returns:
        Distance of every node; empty where no rollout succeeded.
    """
    back: dict[Hashable, list[tuple[Hashable, float]]] = defaultdict(list)
    for edge in edges:
        back[edge.next_state].append((edge.state, edge.cost))
    if SUCCESS not in back:
        return {}
    nodes = {*back, *(state for sources in back.values() for state, _ in sources)}
    found: dict[Hashable, float] = {}
    order = count()  # nodes need not be comparable
    queue: list[tuple[float, int, Hashable]] = [(0.0, next(order), SUCCESS)]
    while queue:
        distance, _, node = heapq.heappop(queue)
        if node not in found:
            found[node] = distance
            for state, cost in back.get(node, ()):
                heapq.heappush(queue, (distance + cost, next(order), state))
    unreached = max(found.values()) + 1
    return {node: found.get(node, unreached) for node in nodes}


def edge_returns(edges: Iterable[Edge], success_return: float = 10.0, omega: float = 0.1) -> list[float]:
    """Compute the return of each edge: success_return * omega^d(s'); 0 for all where no rollout of the graph succeeded.

    The paper's exponent (equation 4) is d(s') + c; the authors' code leaves c out. With equal costs that is one factor for all edges,
    which the z-score takes out again.
    """
    edges = list(edges)
    distances = distances_to_success(edges)
    return [success_return * omega ** distances[edge.next_state] if distances else 0.0 for edge in edges]
