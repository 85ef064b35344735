"""The embedder `hash`: counts character n-grams; needs no model and nothing but numpy."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skill_ttrl.skills.retrieval.embedders import EMBED_CHARS, Vectors, normalised

NGRAMS = (3, 4, 5)
HASH_DIMENSION = 384
HASH_VERSION = 1  # part of the fingerprint: another way of counting must not meet vectors made by this one
BLOCK_TEXTS = 256  # texts hashed at once: bounds the memory to tens of megabytes
WORDS = re.compile(r"[^\W_]+|[+*/=<>^%]|(?<!\w)-")  # words and operators: "x-axis" is two words, "x - 3" has a minus
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
_HASH_BITS = np.uint64(48)  # of a feature; the text's number within its block takes the other 16


class HashEmbedder:
    """Signed hashing of character n-grams and whole words, with sublinear term frequency (1 + ln tf).

    Texts are NFKC-normalised and lower-cased; n-grams of 3 to 5 characters stay within a word and know its edges, so that
    "multiply" and "multiplying" share most of theirs. Signed hashing into a fixed number of dimensions: Weinberger et al.
    2009, "Feature Hashing for Large Scale Multitask Learning", section 2.
    """

    def __init__(self, dimension: int = HASH_DIMENSION) -> None:
        self.dimension = dimension
        self.name = f"hash:v{HASH_VERSION}:{dimension}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder.embed`."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(texts), BLOCK_TEXTS):
            block = [words_of(text[:EMBED_CHARS]) for text in texts[start : start + BLOCK_TEXTS]]
            vectors[start : start + len(block)] = self._embed_block(block)
        return vectors

    def _embed_block(self, texts_N: list[list[str]]) -> Vectors:
        features, counts = np.unique(_features(texts_N), return_counts=True)
        owner = (features >> _HASH_BITS).astype(np.int64)
        hashed = (features & np.uint64((1 << 48) - 1)).astype(np.int64)
        sign = 1.0 - 2.0 * (hashed & 1)
        cell = owner * self.dimension + (hashed >> 1) % self.dimension
        weight = sign * (1.0 + np.log(counts))
        sums = np.bincount(cell, weights=weight, minlength=len(texts_N) * self.dimension).astype(np.float64)
        return normalised(sums.reshape(len(texts_N), self.dimension))


def words_of(text: str) -> list[str]:
    """Lower-case words, numbers and arithmetic signs of a text; other signs and underscores only divide."""
    return WORDS.findall(unicodedata.normalize("NFKC", text).lower())


def _features(texts_N: list[list[str]]) -> NDArray[np.uint64]:
    """One number for each n-gram and word of each text: 16 bits for the text, 48 bits of a hash.

    The hash of characters l..r is a polynomial in their code points, taken from differences of one running sum.
    """
    joined = [f" {' '.join(words)} " if words else "" for words in texts_N]
    sizes = [len(text) for text in joined]
    codes = np.frombuffer("".join(joined).encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    if not len(codes):
        return np.zeros(0, dtype=np.uint64)
    owner = np.repeat(np.arange(len(joined), dtype=np.uint64), sizes) << _HASH_BITS
    # With s[i] = sum over j < i of c[j] * B^-j, the polynomial of l..r is (s[r + 1] - s[l]) * B^r, modulo 2^64.
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(codes * _powers(_INVERSE, len(codes)))])
    powers = _powers(_BASE, len(codes))
    space = np.flatnonzero(codes == ord(" "))
    word = np.flatnonzero(np.diff(space) > 1)
    spans = [(space[word], space[word + 1], np.uint64(0))]  # whole words with both edges
    spaces_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(codes == ord(" "))])
    for n in NGRAMS:
        left = np.arange(len(codes) - n + 1)
        inner_spaces = spaces_before[left + n - 1] - spaces_before[left + 1]  # an edge may be first or last only
        left = left[inner_spaces == 0]
        spans.append((left, left + n - 1, np.uint64(n)))
    found = []
    for left, right, kind in spans:
        polynomial = (running[right + 1] - running[left]) * powers[right]
        found.append(owner[left] | (_mixed(polynomial + kind) >> np.uint64(16)))
    return np.concatenate(found)


def _powers(base: np.uint64, count: int) -> NDArray[np.uint64]:
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of the input moves every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
