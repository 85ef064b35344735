"""Values by SymPy: exact normal forms where there are some, else fifty digits at fixed points. Runs in the worker only.

SymPy's own parsers are not used: expressions are built node by node from a tree, with the operations of `_build` and no
others, so there is no text to evaluate. What would be too large is refused before SymPy is asked for it; what is slow all
the same is stopped from outside (`worker`).

| value | key | exact |
|---|---|---|
| a rational number | the fraction | yes |
| a Gaussian rational | both fractions | yes |
| a rational function over ℚ | its reduced numerator and denominator, primitive, with their factor | yes |
| any other number | its first 50 digits; one that agrees with a fraction is proved equal to it or undecided | to 50 digits |
| any other function | its first 50 digits at five fixed points of either sign, up to 20,000 | to 50 digits there |

The last row is a strong test and no proof: two functions that differ nowhere near those points would be one. Steps are such
functions, so floors and ceilings of what is no number are not decided.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import sympy
from sympy.functions.elementary.trigonometric import TrigonometricFunction
from sympy.polys.polyerrors import BasePolynomialError

from skill_ttrl.answers.grammar import Tree
from skill_ttrl.answers.keys import Undecided, number_key

DIGITS = 50
_WORKING_DIGITS = 80
_SCALES = (1, 1, 30, 1_000, 20_000)
"""Sizes of the points at which functions are looked at: a kink or a step between them is seen."""
_LARGEST_POWER_BITS = 20_000
_LARGEST_FACTORIAL = 1000
_FEWEST_VALUES = 2
_MOST_TERMS = 3000
_MOST_DIGITS = 40
_FUNCTIONS: dict[str, Any] = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "arcsec": sympy.asec, "arccsc": sympy.acsc,
    "arccot": sympy.acot, "arcsinh": sympy.asinh, "arccosh": sympy.acosh, "arctanh": sympy.atanh, "sinh": sympy.sinh, "cosh": sympy.cosh,
    "tanh": sympy.tanh, "exp": sympy.exp, "ln": sympy.log, "sqrt": sympy.sqrt, "abs": sympy.Abs, "floor": sympy.floor,
    "ceil": sympy.ceiling,
}  # fmt: skip
_OF_ANGLES = frozenset(["sin", "cos", "tan", "cot", "sec", "csc"])
_CONSTANTS: dict[str, Any] = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}


class Expressions:
    """The algebra of everything that SymPy can be asked for (see `keys.Algebra`)."""

    def value(self, tree: Tree) -> str:
        """Key of a value."""
        return _value_key(_build(tree))

    def equation(self, left: Tree, right: Tree, *, signed: bool) -> str:
        """Key of `left - right` up to a constant factor and, unless `signed`, its denominator."""
        difference = _build(left) - _build(right)
        if not difference.free_symbols:
            raise Undecided("an equation between numbers")
        exact = _rational_function(difference)
        if exact is not None and (exact[2].is_ground or not signed):  # y = 1/x is xy = 1
            factor, above, _ = exact
            return f"{above.as_expr()}" if not signed or factor > 0 else f"-({above.as_expr()})"
        values = _at_points(difference)
        scale = values[0]
        if scale is None or scale == 0 or sympy.im(scale) != 0:
            raise Undecided("an equation that vanishes at all sampled points")
        scale = abs(scale) if signed else scale
        return _shown([None if value is None else value / scale for value in values])


def _value_key(expression: Any) -> str:
    if expression.is_Rational:
        return number_key(Fraction(int(expression.p), int(expression.q)))
    if expression.has(sympy.zoo, sympy.nan, sympy.oo, -sympy.oo):
        raise Undecided("infinite or undefined")
    if not expression.free_symbols:
        return _constant_key(expression)
    exact = _rational_function(expression)
    if exact is None:
        _refuse_extremes(expression)
        simpler = _simpler(expression)
        if not simpler.free_symbols:
            return _value_key(simpler)
        exact = _rational_function(simpler)
    if exact is not None:
        factor, above, below = exact
        if above.is_ground and below.is_ground:
            return number_key(factor)
        if factor == 1 and below.is_ground and len(str(above.as_expr())) == 1:
            return f"text {str(above.as_expr()).casefold()}"  # one letter: the class of that letter as an answer
        return f"function {factor} * ({above.as_expr()}) / ({below.as_expr()})"
    values = _shown(_at_points(expression)).split(" ")
    if len(set(values)) == 1:  # a constant in disguise belongs to that constant's class, or to none
        return _constant_in_disguise(expression, values[0])
    return f"function {' '.join(values)}"


def _constant_in_disguise(expression: Any, digits: str) -> str:
    try:
        near = Fraction(digits).limit_denominator(10**12)
    except ValueError:  # complex
        near = None
    if near is None or not expression.equals(sympy.Rational(near.numerator, near.denominator)):
        raise Undecided("perhaps a constant, but not proved")
    return number_key(near)


def _simpler(expression: Any) -> Any:
    """Without functions that cancel: sin² + cos², (n+1)!/n!. What is left may be a rational function."""
    if expression.has(sympy.factorial):
        return sympy.combsimp(expression)
    return sympy.trigsimp(expression) if expression.has(TrigonometricFunction) else expression


def _constant_key(expression: Any) -> str:
    _refuse_extremes(expression)
    value = sympy.N(expression, _WORKING_DIGITS, maxn=400)
    real, imaginary = value.as_real_imag()
    if not (real.is_Float or real.is_zero) or not (imaginary.is_Float or imaginary.is_zero):
        raise Undecided("no digits")
    parts = expression.as_real_imag() if imaginary != 0 else (expression, sympy.Integer(0))
    keys = [_real_key(part, digits) for part, digits in zip(parts, (real, imaginary), strict=True)]
    if keys[1] == number_key(Fraction(0)):
        return keys[0]
    return f"complex {keys[0]} + {keys[1]}"


def _real_key(expression: Any, digits: Any) -> str:
    """Fifty digits, unless they are those of a fraction: then it has to be proved."""
    if expression.is_Rational:
        return number_key(Fraction(int(expression.p), int(expression.q)))
    near = Fraction(str(digits)).limit_denominator(10**12)
    if abs(near - Fraction(str(digits))) < Fraction(1, 10**DIGITS):
        fraction = sympy.Rational(near.numerator, near.denominator)
        if expression.equals(fraction):
            return number_key(near)
        raise Undecided("perhaps a fraction, but not proved")
    return f"value {_digits(digits)}"


def _rational_function(expression: Any) -> tuple[Fraction, Any, Any] | None:
    """(c, P, Q) with `expression = c * P / Q`, P and Q coprime, primitive, of positive leading coefficient; else None."""
    symbols = sorted(expression.free_symbols, key=lambda symbol: str(symbol.name))
    if not expression.is_rational_function(*symbols) or expression.has(sympy.I, sympy.pi, sympy.E):
        return None
    if math.comb(max(_degrees(expression)) + len(symbols), len(symbols)) > _MOST_TERMS:
        raise Undecided("too many terms")
    above, below = sympy.fraction(sympy.cancel(sympy.together(expression)))
    try:
        polynomials = [sympy.Poly(part, *symbols, domain="QQ") for part in (above, below)]
    except BasePolynomialError:  # a coefficient such as π
        return None
    factor = Fraction(1)
    primitive = []
    for polynomial, power in zip(polynomials, (1, -1), strict=True):
        content, reduced = polynomial.clear_denoms(convert=True)[1].primitive()
        content = sympy.Rational(content) / polynomial.clear_denoms()[0]
        if reduced.LC() < 0:
            content, reduced = -content, -reduced
        factor *= Fraction(int(content.p), int(content.q)) ** power
        primitive.append(reduced)
    return factor, primitive[0], primitive[1]


def _degrees(expression: Any) -> tuple[int, int]:
    """Bounds on the total degrees of numerator and denominator."""
    if expression.is_Symbol:
        return 1, 0
    if expression.is_Pow and expression.exp.is_Integer:
        above, below = _degrees(expression.base)
        times = int(expression.exp)
        return (above * times, below * times) if times >= 0 else (below * -times, above * -times)
    parts = [_degrees(part) for part in expression.args]
    common = sum(below for _, below in parts)
    if expression.is_Add:
        return max(above + common - below for above, below in parts), common
    return sum(above for above, _ in parts), common


def _at_points(expression: Any) -> list[Any]:
    """Values at points that depend on the symbols' names alone; None where there is none (a factorial left of zero)."""
    _refuse_extremes(expression)
    values = []
    for number, scale in enumerate(_SCALES):
        point = {symbol: _coordinate(str(symbol.name), number, scale) for symbol in expression.free_symbols}
        # Not `subs`: it would work out rational powers exactly, whatever their size.
        value = expression.evalf(_WORKING_DIGITS, subs=point, maxn=400)
        undefined = value.has(sympy.zoo, sympy.nan, sympy.oo, -sympy.oo) or not value.is_number
        values.append(None if undefined else value)
    if sum(value is not None for value in values) < _FEWEST_VALUES:
        raise Undecided("undefined almost everywhere")
    return values


def _coordinate(name: str, number: int, scale: int) -> Any:
    drawn = int.from_bytes(hashlib.blake2b(f"{name}/{number}".encode(), digest_size=8).digest(), "big")
    share = sympy.Rational(2**62 + (drawn >> 2), 2**63)
    # The far points are whole: floors and ceilings differ there alone.
    size = sympy.floor(scale * share) if scale >= 1000 else scale * share
    return size if number == 0 or drawn & 1 else -size


def _shown(values: Sequence[Any]) -> str:
    return " ".join("none" if value is None else _digits(value) for value in values)


def _digits(value: Any) -> str:
    """Fifty significant digits of a number, real and imaginary part; a part that is noise next to the other is zero."""
    real, imaginary = (sympy.Float(part, _WORKING_DIGITS) for part in value.as_real_imag())
    largest = max(abs(real), abs(imaginary))
    if largest < sympy.Float(10, _WORKING_DIGITS) ** -DIGITS:
        return "0"
    shown = []
    for part in (real, imaginary):
        noise = abs(part) < largest * sympy.Float(10, _WORKING_DIGITS) ** -DIGITS
        shown.append("0" if noise else str(sympy.Float(part, DIGITS)))
    return shown[0] if shown[1] == "0" else f"{shown[0]}+{shown[1]}i"


def _refuse_extremes(expression: Any) -> None:
    """Raise `Undecided` where digits prove nothing: for long literals, and for powers too large or too small for them."""
    longest = max((len(str(number.p)) + len(str(number.q)) for number in expression.atoms(sympy.Rational)), default=0)
    if longest > _MOST_DIGITS:
        raise Undecided("literals too long to distinguish by digits")
    for part in expression.atoms(sympy.Pow, sympy.exp):
        if part.is_number and not -_MOST_DIGITS < sympy.log(sympy.Abs(sympy.N(part, 5)), 10) < _MOST_DIGITS:
            raise Undecided("a value too large or too small to distinguish by digits")


def _build(tree: Tree) -> Any:
    kind = tree[0]
    if kind == "num":
        value = Fraction(str(tree[1]))
        return sympy.Rational(value.numerator, value.denominator)
    if kind == "sym":
        return sympy.Symbol(str(tree[1]))
    if kind == "const":
        if tree[1] not in _CONSTANTS:
            raise Undecided("an infinity inside of a value")
        return _CONSTANTS[str(tree[1])]
    if kind == "fn":
        return _function(str(tree[1]), tree[2:])
    if kind not in ("add", "mul", "neg", "div", "pow", "deg"):
        raise Undecided(f"a {kind} inside of a value")
    parts = [_build(part) for part in tree[1:]]
    if kind == "add":
        return sympy.Add(*parts)
    if kind == "mul":
        return sympy.Mul(*parts)
    if kind == "neg":
        return -parts[0]
    if kind == "deg":
        return parts[0]
    return _divide(*parts) if kind == "div" else _power(*parts)


def _divide(above: Any, below: Any) -> Any:
    if below.is_zero:
        raise Undecided("a division by zero")
    return above / below


def _power(base: Any, exponent: Any) -> Any:
    if base.is_Rational and exponent.is_Rational:
        bits = max(int(base.p).bit_length(), int(base.q).bit_length())
        if bits * abs(exponent) > _LARGEST_POWER_BITS:
            raise Undecided("a power that is too large")
        if base.is_zero and exponent <= 0:
            raise Undecided("zero to a power that is not positive")
    elif exponent.is_Rational and abs(exponent) > _LARGEST_POWER_BITS:
        raise Undecided("a power that is too large")
    return sympy.Pow(base, exponent)


def _function(name: str, arguments: Sequence[Tree]) -> Any:
    if name in ("sum", "prod"):  # not worked out: the same if all its parts are
        return sympy.Symbol(
            f"{name}[{arguments[0][1]}; {'; '.join(_value_key(_build(part)) for part in arguments[1:])}]"
        )
    values = [_build(part) for part in arguments]
    if name in _OF_ANGLES:
        values = [
            value * sympy.pi / 180 if part[0] == "deg" else value for part, value in zip(arguments, values, strict=True)
        ]
    if name in _FUNCTIONS and len(values) == 1:
        if name in ("sinh", "cosh", "tanh", "exp") and values[0].is_Rational and abs(values[0]) > _LARGEST_FACTORIAL:
            raise Undecided("a power that is too large")
        if name in ("floor", "ceil") and values[0].free_symbols:
            raise Undecided("a step function: a few points do not show where its steps are")
        if name == "arccot" and not values[0].is_nonnegative:
            raise Undecided("an inverse cotangent, which has two conventions")
        return _FUNCTIONS[name](values[0])
    if name == "root" and len(values) == 2:
        inside, index = values
        power = _divide(sympy.Integer(1), index)
        if index.is_Integer and index.is_odd and inside.is_number and inside.is_negative:
            return -_power(-inside, power)  # the real root: an odd root of a negative number is negative
        return _power(inside, power)
    if name == "log" and len(values) in (1, 2):
        if len(values) == 2 and values[1].is_number and not (values[1].is_positive and values[1] != 1):
            raise Undecided("a logarithm to an invalid base")
        return sympy.log(values[0], values[1] if len(values) == 2 else 10)
    if name in ("factorial", "binom"):
        return _counted(name, values)
    raise Undecided(f"{name} of {len(values)} arguments")


def _counted(name: str, values: Sequence[Any]) -> Any:
    if any(value.is_number and not (value.is_Integer and 0 <= value <= _LARGEST_FACTORIAL) for value in values):
        raise Undecided(f"{name} of something large or not whole")
    if name == "factorial" and len(values) == 1:
        return sympy.factorial(values[0])
    if name == "binom" and len(values) == 2:
        above, below = values
        if below.is_Integer and not above.is_number:
            return sympy.ff(above, below) / sympy.factorial(below)
        return sympy.binomial(above, below)
    raise Undecided(f"{name} of {len(values)} arguments")
