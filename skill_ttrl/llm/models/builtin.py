"""The built-in policy: a small Qwen2 in Hugging Face format and a tokenizer made on the spot.

It exists so that everything can be run without a download: it is a real transformer that really learns, and it knows
nothing but what its cold start taught it. The tokenizer is byte-level, so it has tokens for text of any kind, which it reads in
Unicode's normal form C, as Qwen2's does; digits are one token each, so that arithmetic is written digit by digit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from skill_ttrl.config import BuiltinConfig
from skill_ttrl.llm.models.entities import build_entity_tokenizer
from skill_ttrl.llm.models.token_rows import attend_to_alike, draw_shared_embeddings
from skill_ttrl.llm.template import MESSAGES

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

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
    make: Any = PreTrainedTokenizerFast  # its constructor has no types
    finished: PreTrainedTokenizerBase = make(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",  # as Qwen2's; every byte has a token, so it is never used
        chat_template=MESSAGES,
        clean_up_tokenization_spaces=False,
    )
    return finished


def build_model(
    shape: BuiltinConfig, tokenizer: PreTrainedTokenizerBase, seed: int, attention: str | None = None
) -> PreTrainedModel:
    """A Qwen2 of the given shape with random weights drawn from `seed`; embeddings are tied.

    `attention` is transformers' `attn_implementation`; None lets it choose.
    """
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
        attn_implementation=attention,  # type: ignore[call-arg]  # every config takes it
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
        if shape.shared_embeddings:
            draw_shared_embeddings(model, tokenizer, NUMBER_SCALE if shape.attend_to_alike else 1.0)
        if shape.attend_to_alike:
            attend_to_alike(model, shape.attend_to_alike)
    return model
