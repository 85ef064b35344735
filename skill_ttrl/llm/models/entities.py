"""The built-in policy's tokenizer of entities: one token a thing with its number ("cabinet 27"), one a word.

Texts that name things of a small world are a few tokens long with it, and every thing has an embedding of its own. It knows the words
of its corpus alone: any other word is `<unk>`, and what is no word (signs, line breaks) has no token. Texts are read in lower case.

An episode is the user's text, then `<act>`, the action, `<obs>`, what is seen, `<act>` and so on: `<obs>` ends an answer. The control
tokens are no words of the vocabulary, so a text that spells one has `<unk>` there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from skill_ttrl.llm.template import ACTIONS
from skill_ttrl.storage.jsonl import parse_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNKNOWN, PAD, ACT, END = "<unk>", "<pad>", "<act>", "<obs>"
CONTROL = (PAD, ACT, END)
WORDS = ("<task>", "<room>", "<skill>", "<won>", "nothing", "closed", "ok", "fail")
"""In every vocabulary: the tags of prompts, and the words that stand for an observation."""
PATTERN = r"<[a-z]+>|[a-z]+ \d+|go to(?![a-z])|[a-z]+|\d+"
"""A tag, a thing with its number, the one verb of two words, a word, a number."""
FEWEST, MOST = 3, 100
"""A thing that has a number has all those from 1 to this, and to the highest that was seen with it, if that is no higher than `MOST`."""
AS_SAVED = {"AutoTokenizer": [None, None]}
"""Saved as the `auto_map` of its `tokenizer_config.json`. transformers (5.16 to 5.23) replaces the tokenizer that is saved with a Qwen2
model by one of its own class, which would keep the vocabulary and nothing else. One that says it has code of its own is spared that, and
where such code is not trusted, or there is none, it is read as it was saved."""
_TOKEN = re.compile(PATTERN)
_ENTITY = re.compile(r"([a-z]+) (\d+)")


def entity_vocabulary(corpus: Iterable[str]) -> list[str]:
    """The tokens of a vocabulary, in the order of their ids: words, then things by kind and number.

    Of a kind that is seen with a number the bare word is a token too, and all numbers up to the highest one seen: a thing that the corpus
    happens not to hold ("drawer 7") is known where a later one ("drawer 9") was seen.
    """
    words, highest, beyond = set(WORDS), dict[str, int](), set[str]()
    for text in set(corpus):
        for token in _TOKEN.findall(text.lower()):
            thing = _ENTITY.fullmatch(token)
            if thing is None:
                words.add(token)
                continue
            words.add(thing[1])
            if int(thing[2]) > MOST:
                beyond.add(token)
            else:
                highest[thing[1]] = max(highest.get(thing[1], FEWEST), int(thing[2]))
    words -= {UNKNOWN, *CONTROL}
    things = [f"{kind} {number}" for kind in sorted(highest) for number in range(1, highest[kind] + 1)]
    return [UNKNOWN, *sorted(words), *things, *sorted(beyond)]


def build_entity_tokenizer(corpus: Iterable[str] = ()) -> PreTrainedTokenizerBase:
    """The tokenizer of a corpus. The same texts give the same tokenizer, in any order."""
    vocabulary = {token: index for index, token in enumerate(entity_vocabulary(corpus))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), "removed", invert=True)
    tokenizer.add_special_tokens([*CONTROL])
    make: Any = PreTrainedTokenizerFast  # its constructor has no types
    finished: PreTrainedTokenizerBase = make(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        chat_template=ACTIONS,
        auto_map=AS_SAVED,
        clean_up_tokenization_spaces=False,
    )
    return finished


def saved_as_is(folder: Path) -> bool:
    """True if the tokenizer of a model's folder says `AS_SAVED`."""
    try:
        return bool(
            parse_json((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("auto_map") == AS_SAVED
        )
    except (OSError, ValueError, AttributeError):
        return False
