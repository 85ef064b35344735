"""The built-in policy: a small Qwen2 in Hugging Face format and a tokenizer made on the spot.

It exists so that everything can be run without a download: it is a real transformer that really learns, and it knows
nothing but what its cold start taught it. The tokenizer is byte-level, so it has tokens for text of any kind, which it reads in
Unicode's normal form C, as Qwen2's does; digits are one token each, so that arithmetic is written digit by digit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.config import BuiltinConfig
from skill_ttrl.llm.models import ACTIONS, MESSAGES

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

UNKNOWN, PAD, ACT, END = "<unk>", "<pad>", "<act>", "<obs>"
CONTROL = (PAD, ACT, END)
TAG_WORDS = ("<task>", "<room>", "<skill>", "<won>", "nothing", "closed", "ok", "fail")
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
    words, highest, beyond = set(TAG_WORDS), dict[str, int](), set[str]()
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
    return _finished(tokenizer, END, PAD, UNKNOWN, ACTIONS, auto_map=AS_SAVED)


def _finished(
    tokenizer: Tokenizer, eos: str, pad: str, unknown: str, template: str, **options: Any
) -> PreTrainedTokenizerBase:
    """A tokenizer as transformers has it."""
    make: Any = PreTrainedTokenizerFast  # its constructor has no types
    finished: PreTrainedTokenizerBase = make(
        tokenizer_object=tokenizer,
        eos_token=eos,
        pad_token=pad,
        unk_token=unknown,
        chat_template=template,
        clean_up_tokenization_spaces=False,
        **options,
    )
    return finished


MARK = "shared_embeddings"
"""Of a model's config."""
_NUMBERED = re.compile(r"(.+) (\d+)")


def embedding_parts(tokenizer: PreTrainedTokenizerBase) -> tuple[Float[Tensor, "V K"], list[str]]:
    """(A, what each row stands for), with embeddings = A @ rows: 1 where a row of `K` is part of a token's embedding.

    A token "KIND NUMBER" is the row of its kind plus the row of its number, any other the row of its kind plus one for "no number", so that
    "mug" and "mug 2" share a row. Special and added tokens have a row of their own. A row is of a `special` token, a `kind` or a `number`.
    """
    alone = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    numbers: dict[tuple[str, str], int] = {}
    places: list[tuple[int, int]] = []
    for token, text in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        found = _NUMBERED.fullmatch(text)
        names = [("special", text)]
        if token not in alone:
            names = [("kind", found[1] if found else text), ("number", found[2] if found else "")]
        places += [(token, numbers.setdefault(name, len(numbers))) for name in names]
    membership = torch.zeros(len(tokenizer), len(numbers))
    membership[tuple(torch.tensor(places).T)] = 1.0
    return membership, [what for what, _ in numbers]


@torch.no_grad()
def draw_shared_embeddings(model: Any, tokenizer: PreTrainedTokenizerBase, number_scale: float = 1.0) -> None:
    """Draw a new model's embeddings as sums of rows, each value with the standard deviation of the config, and mark the model.

    `number_scale` is the deviation of the rows of numbers as a share of that of the others: below 1, "mug 1" is more like "mug 2" than like
    "plate 1".
    """
    membership, parts = embedding_parts(tokenizer)
    embeddings = model.get_input_embeddings().weight
    wider = math.hypot(1.0, number_scale)  # a sum of two rows would be wider than one
    share = {"special": 1.0, "kind": 1.0 / wider, "number": number_scale / wider}
    deviations = torch.tensor([share[part] * model.config.initializer_range for part in parts])
    drawn = torch.randn(len(deviations), embeddings.shape[1]) * deviations[:, None]
    embeddings.copy_(membership @ drawn)
    setattr(model.config, MARK, True)


@torch.no_grad()
def attend_to_alike(model: Any, scale: float) -> None:
    """Let the first layer of a new model attend to tokens like each one: its keys are its queries, both `scale` times as large as drawn.

    A model that has read nothing must find out that "mug" in the task and "mug 2" in an observation are to be compared. That comes late
    and suddenly in training (as induction heads do, arXiv 2209.11895); here it is there from the start, and is learnt from as all else.
    """
    attention = model.get_decoder().layers[0].self_attn
    for query, key in (
        (attention.q_proj.weight, attention.k_proj.weight),
        (attention.q_proj.bias, attention.k_proj.bias),
    ):
        query.mul_(scale)
        key.copy_(query)


SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NUMBER_SCALE = 0.3
"""Of the rows of numbers where the first layer is to find things of one kind (`model.builtin.attend_to_alike`)."""
TAGS = ("think", "answer", "action", "skill", "skill_ops")
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is taken apart before merges. transformers gives this pattern, and the normaliser NFC, to every tokenizer that it loads
with a Qwen2 model, whatever the tokenizer's file says: with others, the same text would have other ids once the policy is saved."""


def build_tokenizer(corpus: Iterable[str] = (), shape: BuiltinConfig | None = None) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer: 256 bytes, one token a digit and a tag, and merges for the words of `corpus`; or one of its entities.

    The same corpus in the same order gives the same tokenizer. `shape` says how many merges there are, and how many numbers in
    brackets are tokens of their own.
    """
    shape = shape or BuiltinConfig()
    if shape.vocabulary == "entities":
        return build_entity_tokenizer(corpus)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()  # see WORDS
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(SPECIAL_TOKENS) + shape.merges,
        min_frequency=8,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    words = ["system user assistant"] * trainer.min_frequency
    tokenizer.train_from_iterator([*words, *corpus], trainer)
    tokenizer.add_tokens([f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")])
    tokenizer.add_tokens([f"[{number}]" for number in range(1, shape.numbers + 1)])
    # Unknown as Qwen2's; every byte has a token, so it is never used.
    return _finished(tokenizer, "<|im_end|>", "<|endoftext|>", "<|endoftext|>", MESSAGES)


def build_model(shape: BuiltinConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A Qwen2 of the given shape with random weights drawn from `seed`; embeddings are tied."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size or 3 * shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        initializer_range=0.05,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
        if shape.shared_embeddings:
            draw_shared_embeddings(model, tokenizer, NUMBER_SCALE if shape.attend_to_alike else 1.0)
        if shape.attend_to_alike:
            attend_to_alike(model, shape.attend_to_alike)
    return model
