"""The embedded Chroma: it saves work and changes no list. Rebuilt, reopened, deleted, damaged, out of date, foreign."""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from skill_ttrl.errors import SkillBankError
from skill_ttrl.skills.changes import Snapshot
from skill_ttrl.skills.chroma import ChromaIndex
from skill_ttrl.skills.embedders import HashEmbedder, Vectors
from skill_ttrl.skills.log import BankSettings, Mode
from skill_ttrl.skills.retrieval import MemoryIndex, Retriever, make_retriever
from skill_ttrl.types import Skill
from tests.preloaded import run_code

SUBJECTS = ["fraction", "equation", "drawer", "fridge", "triangle", "boundary", "prime", "mug", "remainder", "receipt"]
VERBS = ["check", "simplify", "open", "carry", "compare", "count", "multiply", "examine", "substitute", "clean"]
HINTS = ["first", "twice", "before moving on", "when stuck", "with care", "from the left", "at the end", "modulo ten"]
QUERIES = ["how to simplify a fraction", "open the fridge", "prime remainder modulo", "stuck", "count 17", "mugs"]

Lists = list[list[tuple[str, float]]]


class Counting(HashEmbedder):
    """A hash embedder that counts the skills it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = 0

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += sum(text not in QUERIES for text in texts)
        return super().embed(texts)


def bank(size: int, version: int = 1, start: int = 0) -> Snapshot:
    """Skills of a few words each; every 50th has the text of the one before."""
    rng = np.random.default_rng(0)
    pairs = [
        f"{VERBS[v]} the {SUBJECTS[s]} {HINTS[h]}, then {VERBS[w]} {number}"
        for number, (v, s, h, w) in enumerate(rng.integers(8, size=(start + size, 4)))
    ]
    skills = [
        Skill(id=f"s{number:05}", title="", text=pairs[number - (number % 50 == 49)])
        for number in range(start, start + size)
    ]
    return Snapshot.of(version, skills)


def lists(retriever: Retriever, snapshot: Snapshot, k: int = 6) -> Lists:
    return [[(hit.skill.id, hit.score) for hit in hits] for hits in retriever.search(snapshot, QUERIES, k=k)]


def chroma(folder: Path, embedder: HashEmbedder | None = None) -> Retriever:
    made = embedder or HashEmbedder()
    return Retriever("embedding", made, ChromaIndex(made.name, folder=folder))


def memory(mode: Mode = "embedding") -> Retriever:
    return Retriever(mode, HashEmbedder(), MemoryIndex())


def test_two_builds_a_reopened_one_and_brute_force_agree(tmp_path: Path) -> None:
    snapshot = bank(1200)  # past Chroma's sync_threshold
    expected = lists(memory(), snapshot)
    assert all(len(hits) == 6 for hits in expected)
    for name in ("one", "two"):
        for _ in range(2):  # built, then opened again
            embedder = Counting()
            retriever = chroma(tmp_path / name, embedder)
            assert lists(retriever, snapshot) == expected
            retriever.close()
        assert embedder.texts == 0


def damage_database(folder: Path) -> None:
    (file,) = folder.rglob("chroma.sqlite3")
    file.write_bytes(b"not a database " * 1000)


def damage_graph(folder: Path) -> None:
    files = list(folder.rglob("*.bin"))
    assert files
    for file in files:
        file.write_bytes(b"x" * 10)


@pytest.mark.parametrize("damage", [damage_database, damage_graph])
def test_a_damaged_folder_is_made_again_with_a_notice(tmp_path: Path, damage: object) -> None:
    snapshot = bank(1200)  # past Chroma's sync_threshold: the graph is on the disk
    retriever = chroma(tmp_path)
    expected = lists(retriever, snapshot)
    retriever.close()
    assert callable(damage)
    damage(tmp_path / "chroma")
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        again = chroma(tmp_path)
        assert lists(again, snapshot) == expected
        assert lists(again, snapshot) == expected
        again.close()
    assert "is damaged and is rebuilt from the bank" in str(notices[0].message) and len(notices) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        healed = chroma(tmp_path)
        assert lists(healed, snapshot) == expected
        healed.close()


def test_an_embedder_that_a_foreign_folder_names_is_not_loaded(tmp_path: Path) -> None:
    snapshot, model = bank(20), tmp_path / "model"
    first = chroma(tmp_path)
    expected = lists(first, snapshot)
    first.close()
    model.mkdir()
    (model / "modules.json").write_text('[{"idx": 0, "name": "0", "path": "", "type": "theirs.Module"}]')
    (model / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    made_by = {"model_name": str(model), "device": "cpu", "normalize_embeddings": False}
    theirs = {
        "type": "known",
        "name": "sentence_transformer",
        "config": {**made_by, "kwargs": {"trust_remote_code": True}},
    }
    (file,) = (tmp_path / "chroma").rglob("chroma.sqlite3")
    with sqlite3.connect(file) as database:
        (kept,) = database.execute("select schema_str from collections").fetchone()
        assert '{"type":"legacy"}' in kept
        changed = kept.replace('{"type":"legacy"}', json.dumps(theirs))
        database.execute("update collections set schema_str = ?", (changed,))
    database.close()
    with pytest.warns(UserWarning, match="has its own embedder"):
        again = chroma(tmp_path)
    assert lists(again, snapshot) == expected
    again.close()
    assert not (tmp_path / "ran").exists()


def test_another_embedder_is_refused_and_both_are_named(tmp_path: Path) -> None:
    retriever = chroma(tmp_path)
    lists(retriever, bank(20))
    retriever.close()
    with pytest.raises(SkillBankError) as caught:
        chroma(tmp_path, HashEmbedder(128))
    for part in ("hash:v1:384", "hash:v1:128", "skills.embedder", str(tmp_path / "chroma")):
        assert part in str(caught.value)
    still = chroma(tmp_path)  # the refusal has freed the folder and left it whole
    assert len(lists(still, bank(20))[0]) == 6
    still.close()


@pytest.mark.slow
def test_one_process_owns_a_folder(tmp_path: Path) -> None:
    owner = make_retriever(BankSettings(), tmp_path)
    with pytest.raises(SkillBankError, match="already open in this process"):
        make_retriever(BankSettings(), tmp_path)
    code = (
        "import sys; from pathlib import Path; from skill_ttrl.errors import SkillBankError\n"
        "from skill_ttrl.skills.chroma import ChromaIndex\n"
        "try: ChromaIndex('hash:v1:384', folder=Path(sys.argv[1]))\n"
        "except SkillBankError as error: print(error); sys.exit(7)"
    )
    second = run_code(code, tmp_path)
    assert second.returncode == 7, second.stderr
    assert "Another process" in second.stdout and "skills.index: memory" in second.stdout
    owner.close()
    owner.close()
    assert run_code(code, tmp_path).returncode == 0
