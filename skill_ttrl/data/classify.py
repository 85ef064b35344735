r"""Classification of problems by keywords; used only where the data has no type column.

The first rule whose pattern is found wins. It is for metrics by type, not for scoring: on the 418 problems
of MATH-500 that are not prealgebra (which has no counterpart here) it agrees with the authors' subject on four in five,
algebra and intermediate algebra taken as one (`tests/unit/data/test_tasks.py` measures it).
"""

from __future__ import annotations

import re

OTHER = "other"

_RULES: tuple[tuple[str, str], ...] = (
    (
        "arithmetic",
        r"^\W*(?:compute|calculate|evaluate|find|what is)?[\s:$]*"
        r"(?:\\(?:frac|times|div|cdot|left|right)|[\d\s.,+*/^(){}$\\-])+\W*$",
    ),
    (
        "precalculus",
        r"\\(?:sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|cis)\b|\b(?:polar|spherical|cylindrical) coordinates"
        r"|\bmatri(?:x|ces)\b|\\begin\{[pv]matrix\}|\\mathbf|\bvectors?\b|\b(?:dot|cross) product|\bdeterminant"
        r"|\brotat(?:ed|ion) (?:around|about)|\bparameterized|\\theta",
    ),
    (
        "counting_probability",
        r"\bprobability|\bexpected (?:value|number)|\bat random\b|\brandomly|\bhow many (?:different |distinct |possible )?ways"
        r"|\bpermutations?\b|\bcombinations?\b|\barrangements?\b|\barranged?\b|\\binom|\bdice\b|\bcommittee|\bfair coin"
        r"|\bhow many (?:different|distinct|possible) (?!prime|factor|real|value|solution|integer)|\bbinomial",
    ),
    (
        "number_theory",
        r"\bdivisors?\b|\bdivisible|\bprimes?\b|\bprime factor|\bmodulo\b|\\pmod|\bmod\b|\bcongruent to \$?\d|\bunits digit"
        r"|\bgreatest common|\bleast common|\bgcd\b|\blcm\b|\\gcd|\bbase[- ](?:\$?\d|two|three|five|six|eight|ten|b\b)"
        r"|_\{?\d+\}?\$ (?:in|as|to) |\bpositive multiples?|\bremainder when \$?\d|\bwhole number|\bterminating decimal"
        r"|\bpositive factors?|\bfactors of \$?\d",
    ),
    (
        "algebra",
        r"\bequations? [\\$]|\bpolynomials?\b|\bfunctions?\b|\bsolve\b|\broots? of\b|\bfactor\b|\bexpand\b|\bsimplify|\bgraph"
        r"|\bslope|\bparabola|\bellipse|\bhyperbola|\basymptote|\\log|\blogarithm|\bgeometric (?:series|sequence)"
        r"|\barithmetic (?:series|sequence)|\bcomplex numbers?|\breal numbers?|\binequalit|\bquadratic|\bf\(|\\overline\{[a-z]\}",
    ),
    (
        "geometry",
        r"\btriangles?\b|\bcircles?\b|\bsquares? (?:\$?[A-Z]{4}|with side)|\brectang(?:le|ular)|\bpolygons?\b|\w+agons?\b"
        r"|\btrapezoids?\b|\bparallelograms?\b|\bquadrilaterals?\b|\btetrahedr|\bpyramids?\b|\bprisms?\b|\bcones?\b"
        r"|\bcylinders?\b|\bspheres?\b|\bcubes? (?:with|has|of)|\bradius|\bradii|\bdiameter|\bperimeter|\bcircumference"
        r"|\\angle|\bangles?\b|\\overline\{[A-Z]|\btangent\b|\bdiagonals?\b|\bvolume\b|\bpolyhedr|\barea of",
    ),
    ("number_theory", r"\bdigits?\b|\bremainders?\b|\bperfect (?:square|cube)s?\b|\bpositive integers?\b|\bmultiples? of"),
    (
        "word_problem",
        r"\bhow (?:much|long|far|old|fast|tall|many (?:\w+ )?(?:\w+ )?(?:does|did|do|will|are left|students|people|hours|miles))"
        r"|\bdollars?\b|\bcents?\b|\\\$|\bhours?\b|\bminutes?\b|\bmiles?\b|\bcosts?\b|\bprice|\bearns?\b|\bbuys?\b|\bsells?\b",
    ),
    (
        "algebra",
        r"\\sqrt|\bsequence|\bseries\b|\\sum|\bvariables?\b|[a-z]\s*\^|\d\s*[xyz]\b|\b[a-z]\s*[-+=]|\$[xyzabkn]\$"
        r"|\bcoordinate|\\frac",
    ),
    ("counting_probability", r"\bhow many\b"),
)  # fmt: skip
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _RULES)
_SCANNED_CHARACTERS = 4000
_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)


def classify(question: str) -> str:
    """The kind of a problem: precalculus, counting_probability, geometry, number_theory, algebra, arithmetic, word_problem
    or "other". Looks at the first 4,000 characters.
    """
    head = _DRAWING.sub(" ", question[:_SCANNED_CHARACTERS])
    return next((kind for kind, pattern in _COMPILED if pattern.search(head)), OTHER)
