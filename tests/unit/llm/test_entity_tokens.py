"""The tokenizer of entities: one token a thing with its number, and the same one after it was saved with a model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from skill_ttrl.config import BuiltinConfig, ModelConfig
from skill_ttrl.llm.chat import count_unknown, encode_chat, encode_next, encode_plain, turn_end
from skill_ttrl.llm.models.builtin import CONTROL, build_model, build_tokenizer, entity_vocabulary
from skill_ttrl.llm.models.load import load_tokenizer, save_model
from skill_ttrl.types import Message

CORPUS = [
    "<task> put keychain in armchair <room> armchair 2 sofa 1 dresser 27",
    "go to dresser 1", "take keychain 1 from coffeetable 2", "Cool the MUG, please!", "plate 700",
]  # fmt: skip
SHAPE = BuiltinConfig(hidden_size=16, heads=2, layers=1, vocabulary="entities")
PIECES = st.lists(
    st.sampled_from(
        ["<act>", "<obs>", "<unk>", "<task>", "dresser 26", "Mug", " ", "\n", "dresser 99", "go to", "7", "é", "."]
    ),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def made() -> Any:
    return build_tokenizer(CORPUS, SHAPE)


@pytest.fixture(scope="module")
def saved(made: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """As read from a checkpoint, from a checkpoint of that, and by transformers alone."""
    model, found = build_model(SHAPE, made, 0), [made]
    for generation in range(2):
        folder = tmp_path_factory.mktemp(f"entities-{generation}")
        save_model(model, found[-1], folder)
        found.append(load_tokenizer(ModelConfig(path=str(folder))))
    alone = AutoTokenizer.from_pretrained(folder)
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert again.config.model_type == "qwen2" and again.config.eos_token_id == alone.eos_token_id
    return [*found[1:], alone]


def test_a_thing_is_one_token_with_every_number_up_to_the_highest() -> None:
    vocabulary = entity_vocabulary(CORPUS)
    assert len(set(vocabulary)) == len(vocabulary) and vocabulary[0] == "<unk>"
    assert {f"dresser {number}" for number in range(1, 28)} | {"dresser", "keychain 3", "mug", "go to"} < {*vocabulary}
    assert {"dresser 28", "plate 4", "<act>", "mug 1", "go"} & {*vocabulary} == set()
    assert {"plate 700", "plate"} < {*vocabulary} and "plate 699" not in vocabulary  # nobody fills in hundreds
    assert entity_vocabulary(reversed(CORPUS)) == vocabulary


def test_an_episode_is_a_token_a_word_and_reads_back(made: Any) -> None:
    first = Message("user", "<task> put keychain in armchair <room> armchair 2 sofa 1")
    ids = [*encode_chat(made, [first]), *encode_plain(made, "go to dresser 26"), turn_end(made)]
    ids += encode_next(made, Message("user", "mug nothing"))
    text = "<task> put keychain in armchair <room> armchair 2 sofa 1 <act> go to dresser 26 <obs> mug nothing <act>"
    assert made.decode(ids) == text and len(ids) == 15
    said = Message("assistant", "go to dresser 26")
    assert tuple(ids) == encode_chat(made, [first, said, Message("user", "mug nothing")])
    command = "take keychain 1 from coffeetable 2"
    assert made.decode([*encode_plain(made, command), turn_end(made)], skip_special_tokens=True) == command


def test_other_words_are_unknown_and_counted(made: Any) -> None:
    ids = encode_plain(made, "put the frobnicator on dresser 28, please")
    assert made.decode(ids) == "put the <unk> <unk> <unk> please"
    assert count_unknown(made, [ids, ids[:2]]) == (3, 8) and count_unknown(made, []) == (0, 0)
    assert count_unknown(build_tokenizer(), [[0, 1]]) == (0, 0)  # it knows every text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=PIECES)
def test_the_same_text_has_the_same_tokens_and_no_control_tokens(text: str, made: Any, saved: list[Any]) -> None:
    plain, chat = encode_plain(made, text), encode_chat(made, [Message("user", text)])
    control = {made.convert_tokens_to_ids(token) for token in CONTROL}
    assert not control & {*plain} and len(control & {*chat}) == 1
    for again in saved:
        assert encode_plain(again, text) == plain and encode_chat(again, [Message("user", text)]) == chat
        assert again.decode(plain) == made.decode(plain)
        assert again.chat_template == made.chat_template
