r"""Other ways to write an answer, all of the same value.

Every function takes an answer as it stands in the data and yields texts; one that does not apply yields nothing. Only exact
fractions are computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction

Rewrite = Callable[[str], Iterator[str]]

_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)")
_FRAC = re.compile(r"\\[dt]?frac\s?(?:\{([^{}]*)\}|(\d))\s?(?:\{([^{}]*)\}|(\d))")
_SIMPLE_FRAC = re.compile(r"(-?)\\d?frac\{(-?\d+)\}\{(\d+)\}")
_UNIT = re.compile(r"\s*(?:\^\\circ|\\(?:text|mbox)\{ ?[a-z]+ ?\}(?:\^2)?)$")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_OPEN, _CLOSE = "([{", ")]}"


def value(answer: str) -> Fraction | None:
    """The exact value of an integer, decimal or fraction of integers; None for anything else."""
    if _NUMBER.fullmatch(answer):
        return Fraction(answer)
    match = _SIMPLE_FRAC.fullmatch(answer)
    return None if match is None else Fraction(int(match[1] + "1") * int(match[2]), int(match[3]))


def without_unit(answer: str) -> str | None:
    """The number of an answer that is one with a unit."""
    bare = _UNIT.sub("", answer).removeprefix("\\$")
    return bare if bare != answer and (value(bare) is not None or bare == r"\frac{270}7") else None


def split(text: str, marks: str) -> list[str]:
    """`text` cut before every mark that stands outside of brackets and is not a sign of a factor or an exponent."""
    pieces, depth, begin = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if (
            depth == 0
            and character in marks
            and place > begin
            and text[:place].rstrip()[-1:] not in ("", "^", "*", "/", "=")
        ):
            pieces.append(text[begin:place].strip())
            begin = place
    return [*pieces, text[begin:].strip()]


def is_value(answer: str) -> bool:
    """Whether the answer is one number or expression: no list, relation, text, unit or bracketed whole."""
    if any(
        mark in answer for mark in ("=", ",", "pm", "text", "mbox", "in ", "circ", "_", "begin", "infty", "$", "[", "]")
    ):
        return False
    return not re.search(r"\d+\\?d?frac|\d \\frac", answer)


def terms(answer: str) -> list[str]:
    """Top-level summands with their signs."""
    return split(answer, "+-") if is_value(answer) else [answer]


def factors(answer: str) -> list[str]:
    r"""Factors of a single term such as `3\sqrt{13}`, `12\pi`, `(a+5)(b+2)`, `5r^5`; empty where it is none."""
    if not is_value(answer) or answer.startswith("-"):
        return []
    found = re.findall(r"\d+(?![\d^])|\\sqrt\{\w+\}|\\sqrt\d|\\pi|[a-zA-Z](?:\^\d)?(?![a-zA-Z])|\([^()]*\)", answer)
    return found if "".join(found) == answer.replace(" ", "") and len(found) > 1 else []


def entries(answer: str) -> list[str]:
    """Elements of a bare list."""
    if re.search(r"[()\[\]=]|\\[{}]|text|pmatrix", answer) or re.search(r",(\\!)?\s*\d{3}\b", answer):
        return []
    found = [entry.strip() for entry in answer.split(",")]
    return found if len(found) > 1 else []


def white_space(answer: str) -> Iterator[str]:
    yield f"  {answer} "
    yield answer.replace(" ", "  ")
    yield f"{answer}\n"
    if "text" not in answer and "mbox" not in answer:
        yield re.sub(r"(?<=[\w}])\s*([+=])\s*", r" \1 ", answer)
        yield re.sub(r"\s*([+=&{}()\[\]])\s*", r"\1", answer)
    if "\\!" not in answer and "," in answer and not re.search(r"\d,\d{3}", answer):
        yield re.sub(r"\s*,\s*", " ,  ", answer)
        yield re.sub(r"\s*,\s*", r",\\, ", answer)


def left_right(answer: str) -> Iterator[str]:
    if "\\left" in answer:
        yield re.sub(r"\\(?:left|right)\s?", "", answer)
    elif re.search(r"[(\[]", answer) and "text" not in answer:
        yield re.sub(r"([(\[])", r"\\left\1", re.sub(r"([)\]])", r"\\right\1", answer))
        yield re.sub(r"([(\[])", r"\\left\1 ", re.sub(r"([)\]])", r" \\right\1", answer))
    if answer.startswith(r"\{"):
        yield rf"\left{answer[:-2]}\right\}}"


def fraction_style(answer: str) -> Iterator[str]:
    if "frac" not in answer:
        return
    for style in ("dfrac", "tfrac", "frac"):
        other = re.sub(r"\\[dt]?frac", rf"\\{style}", answer)
        if other != answer:
            yield other
    yield _FRAC.sub(lambda match: rf"\frac{{{match[1] or match[2]}}}{{{match[3] or match[4]}}}", answer)
    yield re.sub(r"\\[dt]?frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", answer)
    yield re.sub(r"\\[dt]?frac\{(\d)\}\{(\d)\}", r"\\frac \1 \2", answer)
    yield re.sub(r"\\[dt]?frac\{(\d+)\}\{", r"\\frac{ \1 }{ ", answer)


def slash(answer: str) -> Iterator[str]:
    match = re.fullmatch(r"(-?)\\d?frac\{(-?\d+|\\sqrt\{\d+\}|\\pi)\}\{(\d+)\}", answer)
    if match:
        yield f"{match[1]}{match[2]}/{match[3]}"
        yield f"{match[1]}{match[2]} / {match[3]}"
        yield rf"\frac{{{match[1]}{match[2]}}}{{{match[3]}}}"
    elif is_value(answer) and r"\frac{" in answer and answer.startswith((r"\frac{", r"\dfrac{")):
        whole = _FRAC.fullmatch(answer)
        if whole:
            yield f"({whole[1]})/({whole[3]})"
    if "pmatrix" in answer and "/" in answer:
        yield re.sub(r"(-?)(\d+)/(\d+)", r"\1\\frac{\2}{\3}", answer)


def decimals(answer: str) -> Iterator[str]:
    number = value(answer)
    if number is None:
        return
    exact = Fraction(str(float(number))) if "e" not in str(float(number)) else None
    if exact == number:
        text = str(float(number))
        yield text
        yield f"{text}0"
        if text.startswith(("0.", "-0.")):
            yield text.replace("0.", ".", 1)
    if number.denominator != 1:
        yield rf"\frac{{{number.numerator}}}{{{number.denominator}}}"
    if answer.startswith("."):
        yield f"0{answer}"


def scaled_fraction(answer: str) -> Iterator[str]:
    number = value(answer)
    if number is not None and "." not in answer and number:
        yield rf"\frac{{{2 * number.numerator}}}{{{2 * number.denominator}}}"
        yield f"{3 * number.numerator}/{3 * number.denominator}"


def mixed_number(answer: str) -> Iterator[str]:
    number = value(answer)
    if number is not None and number.denominator != 1 and number > 1 and "." not in answer:
        whole, rest = divmod(number, 1)
        yield rf"{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}"
        yield rf"{whole} \dfrac{{{rest.numerator}}}{{{rest.denominator}}}"
    match = re.fullmatch(r"(\d+) ?\\frac\{(\d+)\}\{(\d+)\}", answer)
    if match:
        whole, above, below = int(match[1]), int(match[2]), int(match[3])
        yield rf"\frac{{{whole * below + above}}}{{{below}}}"
        yield f"{whole * below + above}/{below}"


def reordered_sum(answer: str) -> Iterator[str]:
    parts = terms(answer)
    if len(parts) < 2:
        return
    parts = [part if part[0] in "+-" else f"+{part}" for part in parts]
    for order in (parts[::-1], parts[1:] + parts[:1]):
        yield " ".join(order).removeprefix("+").strip()
        yield (
            "".join(order).replace(" ", "").removeprefix("+")
            if "\\" not in answer
            else " ".join(order).removeprefix("+")
        )


def reordered_product(answer: str) -> Iterator[str]:
    found = factors(answer)
    if found:
        yield r" \cdot ".join(found)
        yield r" \cdot ".join(reversed(found))
        yield r" \times ".join(reversed(found))
        if not found[0].isdigit() or found[1].startswith("("):
            yield "".join(reversed(found))


def roots(answer: str) -> Iterator[str]:
    if "sqrt" not in answer:
        return
    yield re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", answer)
    yield re.sub(r"\\sqrt(\d)", r"\\sqrt{\1}", answer)
    yield re.sub(r"\\sqrt\{(\d+)\}", r"\\sqrt{ \1 }", answer)
    yield re.sub(r"\\sqrt\{(\d+)\}", r"\1^{1/2}", answer) if not re.search(r"\d ?\\sqrt", answer) else answer
    match = re.fullmatch(r"(\d+) ?\\sqrt\{?(\d+)\}?", answer)
    if match:
        yield rf"\sqrt{{{int(match[1]) ** 2 * int(match[2])}}}"
    match = re.fullmatch(r"\\frac\{\\sqrt\{(\d+)\}\}\{(\d+)\}", answer)
    if match and int(match[2]) % int(match[1]) == 0 and match[1] == match[2]:
        yield rf"\frac{{1}}{{\sqrt{{{match[1]}}}}}"


def exponents(answer: str) -> Iterator[str]:
    if re.search(r"\^\d", answer) and "text" not in answer and "mbox" not in answer:
        yield re.sub(r"\^(\d)", r"^{\1}", answer)
        yield re.sub(r"([a-zA-Z])\^(\d)", r"\1 ^ \2", answer)


def texts(answer: str) -> Iterator[str]:
    if answer.startswith(r"\text{") and answer.endswith("}") and answer[-2] != "s":
        word = answer[6:-1]
        for command in ("mathrm", "textbf", "mbox"):
            yield rf"\{command}{{{word}}}"
        yield word
        yield rf"\text{{ {word} }}"
    elif value(answer) is not None and "frac" not in answer:
        yield rf"\text{{{answer}}}"


def units(answer: str) -> Iterator[str]:
    bare = without_unit(answer)
    if bare is not None:
        yield bare
        yield rf"{bare} \text{{ units}}"
    elif value(answer) is not None:
        for unit in (r" \text{ cm}", r"\text{ square inches}", r"\ \text{hours}", r" \text{ dollars}", r"\mbox{ m}^2"):
            yield f"{answer}{unit}"
        if "frac" not in answer:
            yield f"{answer}^\\circ"
            yield f"{answer}^{{\\circ}}"
            yield rf"\${answer}" if answer[0] != "-" else f"{answer} cm"
            yield f"{answer} cm"


def thousands(answer: str) -> Iterator[str]:
    bare = re.sub(r",\\!\s*|(?<=\d),(?=\d{3})|\\\$", "", answer)
    if bare != answer and bare.isdigit():
        yield bare
    if bare.lstrip("-").isdigit() and abs(int(bare)) >= 1000:
        yield f"{int(bare):,}"
        yield f"{int(bare):,}".replace(",", "{,}")
        yield f"{int(bare):,}".replace(",", r",\!")


def scientific(answer: str) -> Iterator[str]:
    number = value(answer.lstrip("0") or answer)
    if number is None or not number or "frac" in answer:
        return
    digits = f"{abs(number).numerator / abs(number).denominator:.12e}"
    mantissa, exponent = digits.split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    if Fraction(mantissa) * Fraction(10) ** int(exponent) == abs(number) and abs(int(exponent)) >= 2:
        yield rf"{'-' if number < 0 else ''}{mantissa} \times 10^{{{int(exponent)}}}"
        yield rf"{'-' if number < 0 else ''}{mantissa} \cdot 10^{{{int(exponent)}}}"


def percentages(answer: str) -> Iterator[str]:
    number = value(answer)
    if number is not None and number.denominator != 1 and 0 < number < 1 and (number * 100).denominator == 1:
        yield rf"{number * 100}\%"


def assigned(answer: str) -> Iterator[str]:
    if answer.startswith("x="):
        yield answer[2:]
        yield answer.replace("=", " = ")
    elif (
        is_value(answer)
        and not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", answer).replace("i", ""))
        and answer != r"\cot x"
    ):
        yield f"x = {answer}"
        yield f"n={answer}"


def membership(answer: str) -> Iterator[str]:
    if re.fullmatch(r"(?:\\left)?[(\[].*(?:[\])])", answer) and ("infty" in answer or answer[-1] == "]"):
        yield rf"x \in {answer}"
    if answer.startswith(r"x \in "):
        yield answer.removeprefix(r"x \in ")
    if r"\cup" in answer:
        yield r" \cup ".join(reversed([part.strip() for part in answer.split(r"\cup")]))
        yield rf"x \in {answer}"


def math_marks(answer: str) -> Iterator[str]:
    yield f"${answer}$"
    yield rf"\({answer}\)"
    yield f"$${answer}$$"


def boxed(answer: str) -> Iterator[str]:
    yield rf"\boxed{{{answer}}}"
    yield rf"$\boxed{{{answer}}}$"


def lists(answer: str) -> Iterator[str]:
    found = entries(answer)
    if found:
        yield ", ".join(reversed(found))
        yield ",".join(found[1:] + found[:1])
        yield rf"\{{{', '.join(found)}\}}"
        if len(found) == 2:
            yield rf"{found[0]} \text{{ or }} {found[1]}"
            yield rf"{found[0]} \text{{ and }} {found[1]}"
            yield f"{found[0]} or {found[1]}"
    if answer == r"\{1\pm\sqrt{5},-2\}":
        yield r"-2, 1+\sqrt{5}, 1-\sqrt{5}"
        yield r"\{-2, 1\pm\sqrt{5}\}"


def plus_minus(answer: str) -> Iterator[str]:
    match = re.fullmatch(r"([^,{}]+) \\pm (.+)", answer)
    if match:
        yield f"{match[1]} + {match[2]}, {match[1]} - {match[2]}"
        yield f"{match[1]} - {match[2]}, {match[1]} + {match[2]}"
        yield rf"\{{{match[1]} - {match[2]}, {match[1]} + {match[2]}\}}"


def matrices(answer: str) -> Iterator[str]:
    if "pmatrix" in answer:
        yield answer.replace("pmatrix", "bmatrix")
        yield answer.replace(r"\\", r" \\ ").replace("  ", " ")
        yield re.sub(r"\s+", "", answer)
        yield answer.replace(" ", "\n")


def equations(answer: str) -> Iterator[str]:
    sides = [side.strip() for side in answer.split("=")]
    if len(sides) == 2 and len(re.findall(r"[a-z]", answer)) > 1:
        yield f"{sides[1]} = {sides[0]}"
        left = sides[0] if sides[1] == "0" else f"{sides[0]} - ({sides[1]})"
        yield f"{left} = 0"
        yield f"2({left}) = 0"
        yield f"0 = -({left})"


def choices(answer: str) -> Iterator[str]:
    match = re.fullmatch(r"\\text\{\((.)\)\}", answer)
    if match:
        yield from (
            f"({match[1]})",
            match[1],
            rf"\text{{{match[1]}}}",
            rf"\mathrm{{({match[1]})}}",
            rf"\textbf{{({match[1]})}}",
        )


def unicode_signs(answer: str) -> Iterator[str]:
    text = answer.replace(r"\pi", "π").replace("-", "−") if "text" not in answer and "begin" not in answer else answer
    if text != answer:
        yield text


REWRITES: dict[str, Rewrite] = {
    "white space": white_space, r"\left, \right": left_right, r"\dfrac, \tfrac, \frac without braces": fraction_style,
    "slash for a fraction": slash, "decimal for a fraction": decimals, "unreduced fraction": scaled_fraction,
    "mixed number": mixed_number, "reordered sum": reordered_sum, "reordered product": reordered_product, "roots": roots,
    "exponents": exponents, r"\text{} and its like": texts, "units": units, "thousands separators": thousands,
    "scientific notation": scientific, "percentage of a fraction": percentages, "x = value": assigned,
    "membership and order of a union": membership, "math marks": math_marks, r"\boxed{}": boxed,
    "order and notation of a list": lists, "± spelled out": plus_minus, "matrix": matrices, "equation": equations,
    "choice letter": choices, "Unicode signs": unicode_signs,
}  # fmt: skip
