"""Write `learner_values.json`: what other libraries' own functions give for fixed small tensors.

The tests `test_field_*.py` hold this package against the file. A library is asked in an environment of its own, from the root
of the repository, and replaces its own part of the file:

    python -m venv /tmp/verl && /tmp/verl/bin/pip install torch==2.13.0 verl==0.9.1 cachetools fastapi uvicorn
    /tmp/verl/bin/python tests/golden/generate_learner_values.py verl
    python -m venv /tmp/trl && /tmp/trl/bin/pip install torch==2.13.0 trl==1.16.0
    /tmp/trl/bin/python tests/golden/generate_learner_values.py trl

GiGPO and PSR/NSR are in no package. Their two files are taken from the repositories and commits named in `sources_values.py`;
verl has to be there too, because they import it:

    /tmp/verl/bin/python tests/golden/generate_learner_values.py sources core_gigpo.py rlvr_core_algos.py

(verl imports cachetools, fastapi and uvicorn and does not ask for them.) Nothing here computes a value: the formulas are the
libraries'. All tensors are float64, and every number is written with nine digits. `inputs` writes the tensors alone.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TARGET = Path(__file__).with_name("learner_values.json")
Case = dict[str, Any]

# Eight sequences of the losses: ragged, row 3 with a token of an environment in its middle.
MASK = [
    *([1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 1, 1]),
    *([1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]),
]
ADVANTAGES = [1.2, -0.7, 0.4, -1.5, 0.0, 0.9, -0.8, 1.5]
# Nine sequences of the estimators: an ordinary group, one of two, one whose rewards are all equal, and one of a single sequence.
GROUPS = [0, 0, 0, 1, 1, 2, 2, 2, 3]
REWARDS = [1.0, 0.0, 0.5, 2.0, -1.0, 1.0, 1.0, 1.0, 3.0]
LENGTHS = [5, 3, 4, 5, 2, 1, 4, 3, 5]


def inputs() -> dict[str, Any]:
    """Every tensor by its name, as nested lists."""
    draw = torch.Generator().manual_seed(20261122)

    def normal(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64) * scale

    old = -normal(8, 5, scale=1.0).abs() - 0.3
    new = (old + normal(8, 5, scale=0.35)).clamp(max=-0.01)
    old[1, 0], new[1, 0] = -3.0, -1.4  # a ratio above 3 under a negative advantage: where a dual clip decides
    old[3, 3], new[3, 3] = -2.5, -0.9
    old[0, 1], new[0, 1] = -2.0, -1.2  # above every upper clip under a positive one
    new[6] = old[6] - torch.tensor(
        [0.1, 0.5, 0.3, 0.9, 0.2], dtype=torch.float64
    )  # below the lower under a negative one
    sampler = old + normal(8, 5, scale=0.3)
    sampler[0, 2], sampler[2, 1] = old[0, 2] - 1.9, old[2, 1] + 1.1  # beyond the bounds on both sides
    masks = torch.tensor(MASK, dtype=torch.float64)
    empty = masks.clone()
    empty[4] = 0.0
    far = old.clone()
    far[0, 0], far[1, 1], far[6, 0] = old[0, 0] + 30.0, old[1, 1] - 30.0, old[6, 0] + 80.0
    spans = torch.arange(5)[None, :] < torch.tensor(LENGTHS)[:, None]
    spans[3, 2] = False
    last = torch.zeros(9, 5, dtype=torch.float64)
    last[torch.arange(9), torch.tensor(LENGTHS) - 1] = torch.tensor(REWARDS, dtype=torch.float64)
    tensors = {
        "log_probs": new,
        "old_log_probs": old,
        "sampler_log_probs": sampler,
        "reference_log_probs": old + normal(8, 5, scale=0.4),
        "far_log_probs": far,
        "entropies": normal(8, 5, scale=0.5).abs() + 0.2,
        "mask": masks,
        "mask_with_empty_row": empty,
        "advantages": torch.tensor(ADVANTAGES, dtype=torch.float64)[:, None].expand(8, 5),
        "advantages_of_tokens": normal(8, 5, scale=1.0),
        "losses": normal(8, 5, scale=1.0),
        "logits": normal(8, 5, 4, scale=1.0),
        "groups": torch.tensor(GROUPS),
        "rewards": torch.tensor(REWARDS, dtype=torch.float64),
        "response_mask": spans.double(),
        "token_level_scores": last,
        "token_level_rewards": last - (normal(9, 5, scale=0.1) * spans),
        "values": normal(9, 5, scale=0.5),
        "new_values": normal(9, 5, scale=0.5),
        "returns": normal(9, 5, scale=0.8),
        "accuracy": torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64),
        "format": torch.tensor([0.5, 0.0, 0.0, 1.0, 0.25, 0.0, 1.0, 0.5, 1.0], dtype=torch.float64),
        "correctness": torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64),
        # TRL's groups are all of one size.
        "trl_rewards": torch.tensor([1.0, 0.0, 0.5, 2.0, -1.0, 0.25, 1.0, 1.0, 1.0], dtype=torch.float64),
        "trl_accuracy": torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64),
        "trl_format": torch.tensor([0.5, 0.0, 0.25, 1.0, 0.5, 0.0, 1.0, 0.0, 0.5], dtype=torch.float64),
    }
    return {name: plain(tensor) for name, tensor in tensors.items()}


def tensor(name: str, given: dict[str, Any]) -> Tensor:
    """An input by its name: float64, or integers."""
    values = torch.tensor(given[name])
    return values.double() if values.is_floating_point() else values


class Recorder:
    """Hands out inputs by name, and notes what a function made of them."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.cases: dict[str, Case] = {}

    def tensor(self, name: str) -> Tensor:
        """An input by its name."""
        return tensor(name, self.given)

    def arguments(self, named: dict[str, str]) -> dict[str, Any]:
        """Inputs by the names of a function's arguments; `index` as numpy's, because verl looks groups up by it."""
        found: dict[str, Any] = {key: self.tensor(name) for key, name in named.items()}
        return {key: value.numpy() if key == "index" else value for key, value in found.items()}

    def note(self, name: str, function: Any, named: dict[str, str], settings: dict[str, Any], values: Any) -> None:
        """File one case."""
        if name in self.cases:
            raise ValueError(f"There are two cases {name}.")
        where = function if isinstance(function, str) else f"{function.__module__}.{function.__qualname__}"
        self.cases[name] = {"function": where, "inputs": named, "settings": settings, "values": plain(values)}


def plain(value: Any) -> Any:
    """A tensor or a number as plain JSON, nine digits."""
    if isinstance(value, Tensor):
        return plain(value.detach().tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int) else float(f"{value:.9g}")


def render(document: dict[str, Any]) -> str:
    """JSON with one input and one case on a line."""

    def block(entries: dict[str, Any], indent: str) -> str:
        rows = ",\n".join(f"{indent}  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
        return "{\n" + rows + "\n" + indent + "}"

    parts = [f'  "inputs": {block(document["inputs"], "  ")}']
    for source, part in document.items():
        if source == "inputs":
            continue
        facts = "".join(
            f"    {json.dumps(key)}: {json.dumps(value)},\n" for key, value in part.items() if key != "cases"
        )
        parts.append(f'  {json.dumps(source)}: {{\n{facts}    "cases": {block(part["cases"], "    ")}\n  }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(arguments: list[str]) -> None:
    """Ask one library, and write its part."""
    document: dict[str, Any] = json.loads(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {}
    fresh = inputs()
    if document.get("inputs") not in (None, fresh) and arguments[:1] != ["inputs"]:
        raise SystemExit("The inputs have changed: run `inputs` first, then every library again.")
    if arguments[:1] == ["inputs"]:
        document = {"inputs": fresh}
    else:
        # By its bare name: verl installs a package `tests`, which hides this folder's.
        module = import_module(f"{arguments[0]}_values")
        document = {"inputs": fresh} | document
        for source, (facts, collect) in module.SOURCES.items():
            recorder = Recorder(fresh)
            collect(recorder, *arguments[1:])
            document[source] = facts() | {"torch": torch.__version__, "cases": recorder.cases}
    TARGET.write_text(render(document), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
