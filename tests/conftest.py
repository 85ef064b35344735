"""Shared by all tests: one CPU thread, no network, and the smallest config that goes through every phase."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

gc.disable()  # until all tests are loaded: there is nothing to collect
# Before torch is loaded: on a busy machine several threads wait for each other far longer than they compute.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ["HF_HUB_OFFLINE"] = "1"
# Runs are signed with a key that is kept there: never with the user's own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="skill-ttrl-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# How long an example takes is the benchmarks' business; the first that needs SymPy waits for its process to start.
# The same examples every time, so that a red run means a change: 20, or 100 with `pytest --hypothesis-profile=thorough`
# (make test-all); `explore` draws new ones.
settings.register_profile("skill-ttrl", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("thorough", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("skill-ttrl")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first test, where all of them are loaded and nothing is captured."""
    gc.freeze()  # what is loaded stays: it is not searched for garbage again and again, nor copied in children
    gc.enable()
    if preloaded := sys.modules.get("tests.preloaded"):
        preloaded.start()


TINY = """\
name: tiny
phases: [sft, rl]
env: {id: math}
data:
  train: {path: "synthetic:add", split: train, limit: 6}
  eval: {path: "synthetic:add", split: test, limit: 4}
  max_prompt_tokens: 48
agent: {template: plain}
model:
  path: builtin
  builtin: {hidden_size: 32, layers: 1, heads: 2, max_positions: 64}
sft:
  data: {path: "synthetic:add", split: demos, limit: 64}
  steps: 12
  batch_size: 8
  micro_batch_size: 8
  optimizer: muon
  learning_rate: 3.0e-3
  save_steps: 4
rollout: {n_votes_per_prompt: 4, n_samples_per_prompt: 4, max_new_tokens: 10}
rl:
  steps: 2
  prompts_per_step: 3
  learning_rate: 1.0e-3
  mini_batch_size: null
  kl_coef: 0.0
  save_steps: 1
eval: {samples: 2}
runtime: {device: cpu, threads: 1}
"""

TINY_SKILLS = TINY.replace("name: tiny", "name: tiny-skills").replace("synthetic:add", "synthetic:operators")
TINY_SKILLS = TINY_SKILLS.replace("split: demos, ", "").replace("max_positions: 64", "max_positions: 160")
TINY_SKILLS = TINY_SKILLS.replace("agent: {template: plain}", "agent: {template: plain, prompts: tiny}")
TINY_SKILLS += """\
skills:
  bank: "synthetic:operators"
  embedder: hash
  prompt_top_k: 1
  prompt_max_tokens: 24
  retrieval_top_k: 1
  retrieval_max_tokens: 24
"""


ALFWORLD_ARCHIVE = Path(__file__).parents[1].parent / "shared" / "data" / "alfworld" / "json_2.1.1.tar.xz"


@pytest.fixture(scope="session")
def official_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the official games of ALFWorld in `json_2.1.1/`: $ALFWORLD_DATA, or an archive beside the checkout."""
    given = os.environ.get("ALFWORLD_DATA", "")
    if given and (Path(given) / "json_2.1.1" / "valid_unseen").is_dir():
        return Path(given)
    if not ALFWORLD_ARCHIVE.is_file():
        pytest.skip("needs the official games: set ALFWORLD_DATA to the folder that holds json_2.1.1/")
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(ALFWORLD_ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


WEBSHOP_PRODUCTS = Path(__file__).parents[1].parent / "shared" / "data" / "webshop"


@pytest.fixture(scope="session")
def official_products() -> Path:
    """A folder with the 1,000 official products of WebShop: $WEBSHOP_DATA, or a folder beside the checkout."""
    for folder in (Path(os.environ.get("WEBSHOP_DATA") or os.devnull), WEBSHOP_PRODUCTS):
        if (folder / "items_shuffle_1000.json").is_file():
            return folder
    pytest.skip("needs the official products: set WEBSHOP_DATA to the folder that holds items_shuffle_1000.json")


SKILLRL_BANKS = Path(__file__).parents[1].parent / "shared" / "data" / "skillrl"


@pytest.fixture(scope="session")
def skillrl_banks() -> Path:
    """The folder of SkillRL's published skill banks: $SKILLRL_BANKS, or a folder beside the checkout."""
    for folder in (Path(os.environ.get("SKILLRL_BANKS") or os.devnull), SKILLRL_BANKS):
        if all((folder / f"{name}_skills.json").is_file() for name in ("alfworld", "webshop")):
            return folder
    pytest.skip(
        "needs SkillRL's banks: set SKILLRL_BANKS to the folder of alfworld_skills.json and webshop_skills.json"
    )


@pytest.fixture(scope="session")
def tiny_skills_yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a skill bank: every prompt shows a skill, so each step credits some and changes the bank."""
    path = tmp_path_factory.mktemp("config") / "tiny_skills.yaml"
    path.write_text(TINY_SKILLS, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config file of a whole run that takes a fraction of a second; its model learns next to nothing."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_model() -> tuple[Any, Any]:
    """(model, tokenizer): a random Qwen2 whose distributions are far from flat. Not to be trained."""
    from skill_ttrl.config import BuiltinConfig
    from skill_ttrl.llm.models.builtin import build_model, build_tokenizer

    tokenizer = build_tokenizer(["Compute 12+34.", "8;12;<answer>128</answer>"] * 20)
    model: Any = build_model(BuiltinConfig(hidden_size=32, layers=2, heads=4, max_positions=128), tokenizer, seed=3)
    for parameter in model.parameters():
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)
    return model.eval(), tokenizer


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache for the tests of a module: what one of them has made is there for the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
