r"""From an answer's text to tokens. A character or a word that mathematics does not have is refused."""

from __future__ import annotations

import re

MAX_TOKENS = 400
MAX_LETTERS = 3
"""Longer runs of letters are words."""
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh arcsinh arccosh arctanh exp ln log sqrt root "
    "abs floor ceil factorial binom sum prod".split()
)
_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "binomial": "binom", "cosec": "csc"}
_CONSTANTS = {"pi": "pi", "infty": "oo", "inf": "oo", "infinity": "oo", "oo": "oo"}
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma tau phi varphi chi psi "
    "omega Gamma Delta Theta Lambda Sigma Phi Psi Omega ell".split()
)
_OPERATORS = {
    "cdot": "*", "times": "*", "ast": "*", "div": "/", "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=",
    "geqslant": ">=", "ne": "!=", "neq": "!=", "lt": "<", "gt": ">", "in": "in", "cup": "cup", "pm": "pm", "mp": "mp",
    "{": "\\{", "}": "\\}", "lbrace": "\\{", "rbrace": "\\}", "langle": "<<", "rangle": ">>", "lvert": "|", "rvert": "|",
    "vert": "|", "mid": "|", "lfloor": "floor(", "rfloor": ")floor", "lceil": "ceil(", "rceil": ")ceil", "%": "%",
    "\\": "row", "cr": "row", "or": "or", "and": "and",
    **dict.fromkeys("to rightarrow prime".split(), "mark"),
    **dict.fromkeys(
        "cap setminus perp partial arg bmod mod Re Im det dim ker deg gcd max min lim liminf limsup int iint iiint oint Pr angle triangle overline bar vec hat widehat dots ldots "
        "cdots |".split(),
        "quantity",
    ),
}  # fmt: skip
"""A `quantity` is nothing that is computed: it names the value behind an equals sign. A `mark` has its place in one only."""

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?<!_)(?!log|ln|lg)(?=[A-Za-z]{2}|\d+[A-Z]|[A-Z]\d)(?P<digits>[0-9A-Za-z]+)\s?_\s?(?P<based>\d+|\{\s?\d+\s?\})"
    r"|(?P<dots>\.{3})|(?P<repeating>\d*\.\d*\(\d+\))|(?P<num>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3}(?!\d))?)|\\(?P<env>begin|end)\s?\{(?P<envname>[a-z]+\*?)\}"
    r"|\\operatorname\s?\{(?P<operator>[a-zA-Z]+)\}|\\mathbb\s?\{(?P<measure>[EP])\}"
    r"|\\(?:text(?:rm|bf|it)?|mathrm|mbox|operatorname|mathbf|boldsymbol|mathit)\s?\{(?P<text>[^{}]*)\}"
    r"|\\(?:mathbb|mathbf)\s?(?:\{R\}|R(?![a-zA-Z]))(?P<reals>)"
    r"|\\(?P<command>[a-zA-Z]+|[{}%\\|])|(?P<word>[a-zA-Z]+)|(?P<op>\*\*|<=|>=|!=|==|[-+*/^_=<>()\[\]{},;|!%&'])",
    re.ASCII,
)
_EXPONENT = re.compile(r"[eE][-+]?\d")
"""Texts behind a number that would be read as `e` times something, and mean something else."""
_DIFFERENTIAL = re.compile(r"d[a-z]|\wd[t-z]")
_NO_PRODUCT = re.compile(
    r"l[ng]\w|(?i:no|on|is|it|of|to|th|nd|rd|yes|all|any|the|not|but|for|has|was|are|one|two|six|ten|odd)"
)
"""Short runs of letters that are a function without its backslash or an English word."""
_NO_NAME = re.compile(
    r"if|when|where|only|except|unless|neither|never|none|false|true|about|approx\w*|over|under|than|less|more",
    re.IGNORECASE,
)
"""Words that say something about the value before or behind them."""


class Refused(ValueError):
    """The text is not in the grammar, or too large for it."""


def tokens(text: str) -> list[tuple[str, str]]:
    """(kind, value): kinds are `num`, `sym`, `const`, `fn`, `based`, `frac`, `begin`, `end`, or the operator itself."""
    found: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or len(found) > MAX_TOKENS:
            raise Refused("a character that is not in the grammar" if match is None else "too many tokens")
        place = match.end()
        kind = match.lastgroup
        if kind == "num":
            if _EXPONENT.match(text, place):
                raise Refused("an exponent that is too long")
            found.append(("num", match["num"]))
        elif kind == "repeating":
            found.append(("num", _repeating(match["repeating"])))
        elif kind == "dots":
            found.append(("quantity", "dots"))
        elif kind == "based":
            found.append(("based", f"{match['digits']} {match['based'].strip('{} ')}"))
        elif kind == "envname":
            found.append((match["env"], match["envname"]))
        elif kind == "reals":
            found.append(("reals", ""))
        elif kind == "text":
            words = match["text"].split()
            found += [("mark", "d")] if words == ["d"] else [_word(word, alone=len(words) == 1) for word in words]
        elif kind in ("operator", "measure"):
            word = match[kind]
            found.append(("fn", word) if word in FUNCTIONS else ("quantity", word))
        elif kind == "word":
            found += _letters(match["word"])
        elif kind == "command":
            found.append(_command(match["command"]))
        elif kind == "op":
            found.append(({"**": "^", "==": "=", ";": ",", "'": "mark"}.get(match["op"], match["op"]), ""))
    found.append(("end of text", ""))
    return found


def _command(name: str) -> tuple[str, str]:
    if name in _OPERATORS:
        return _OPERATORS[name], name if _OPERATORS[name] == "quantity" else ""
    if name in _CONSTANTS:
        return "const", _CONSTANTS[name]
    if name in _GREEK:
        return "sym", name
    name = _NAMES.get(name, name)
    if name in FUNCTIONS:
        return "fn", name
    if name in ("frac", "circ", "emptyset", "varnothing", "over", "choose"):
        return name, ""
    raise Refused(f"the command {name!r}")


def _repeating(decimal: str) -> str:
    """`0.1(6)` as the fraction that it is."""
    whole, _, rest = decimal.rstrip(")").partition(".")
    fixed, _, period = rest.partition("(")
    nines = (10 ** len(period) - 1) * 10 ** len(fixed)
    return f"{int(whole + fixed + period) - int(whole + fixed or '0')}/{nines}"


def _letters(word: str) -> list[tuple[str, str]]:
    """A run of letters: a name that means something, or single symbols side by side."""
    if _DIFFERENTIAL.fullmatch(word):
        return [("mark", word)]
    try:
        return [_word(word, alone=len(word) > MAX_LETTERS)]
    except Refused:
        if len(word) > MAX_LETTERS or _NO_PRODUCT.fullmatch(word):
            raise
        return [("sym", letter) for letter in word]


def _word(word: str, *, alone: bool) -> tuple[str, str]:
    """A word of mathematics, or, where it stands `alone`, one that may name a value."""
    lower = _NAMES.get(word.lower(), word.lower())
    if lower in ("or", "and"):
        return lower, ""
    if lower in _CONSTANTS:
        return "const", _CONSTANTS[lower]
    if lower in FUNCTIONS:
        return "fn", lower
    if len(word) == 1 and word.isalpha() and word.isascii():
        return "sym", word
    if alone and word.isalpha() and not _NO_NAME.fullmatch(word) and not _NO_PRODUCT.fullmatch(word):
        return "name", word
    raise Refused(f"the word {word!r}")
