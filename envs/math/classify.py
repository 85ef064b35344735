r"""What kind of problem a text poses, by keywords; used only where the data has no type column.

The first rule whose pattern is found wins, so the narrow ones stand first. It is for breaking figures down by type, not
for scoring: on MATH-500 it agrees with the authors' subject (algebra, intermediate algebra and prealgebra taken as one)
on about three problems in four (`tests/unit/test_math_tasks.py` measures it).
"""

from __future__ import annotations

import re

OTHER = "other"

_RULES: tuple[tuple[str, str], ...] = (
    (
        "precalculus",
        r"\\(?:sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|cis)\b|\bpolar coordinates|\bspherical coordinates"
        r"|\bcylindrical coordinates|\bmatri(?:x|ces)\b|\\begin\{[pv]matrix\}|\\mathbf|\bvectors?\b|\bdot product"
        r"|\bcross product|\bdeterminant",
    ),
    (
        "counting_probability",
        r"\bprobability|\bexpected (?:value|number)|\bat random\b|\brandomly|\bhow many (?:different |distinct )?ways"
        r"|\bin how many ways|\bpermutations?\b|\bcombinations?\b|\barrangements?\b|\barranged\b|\\binom|\bdice\b|\bdie\b"
        r"|\bcoins? (?:is|are) (?:flipped|tossed)|\bfair coin|\bcommittee|\bhow many (?:different|distinct) (?!prime|factor)",
    ),
    (
        "geometry",
        r"\btriangles?\b|\bcircles?\b|\bsquares? (?:\$?[A-Z]{4}|with side)|\brectangles?\b|\bpolygons?\b|\bhexagons?\b"
        r"|\boctagons?\b|\bpentagons?\b|\btrapezoids?\b|\bparallelograms?\b|\bquadrilaterals?\b|\btetrahedr|\bpyramids?\b"
        r"|\bprisms?\b|\bcones?\b|\bcylinders?\b|\bspheres?\b|\bcubes? (?:with|has|of)|\bradius|\bradii|\bdiameter"
        r"|\bperimeter|\bcircumference|\\angle|\bangles?\b|\\overline|\btangent\b|\bdiagonals?\b|\bvolume\b|\bpolyhedr",
    ),
    (
        "number_theory",
        r"\bdivisors?\b|\bdivisible|\bremainders?\b|\bprimes?\b|\bprime factor|\bmodulo\b|\\pmod|\bmod\b|\bcongruent to"
        r"|\bgreatest common|\bleast common|\bgcd\b|\blcm\b|\\gcd|\bbase[- ](?:\$?\d|two|three|five|eight|ten|b\b)"
        r"|\bdigits?\b|_\{?\d+\}?\$ (?:in|as|to) |\bmultiples? of|\bperfect (?:square|cube)s?\b|\bintegers? (?:is|are|less|between)"
        r"|\bfactors? (?:of|does)\b|\bpositive integers?\b",
    ),
    (
        "algebra",
        r"\bequations?\b|\bpolynomials?\b|\bfunctions?\b|\bsolve\b|\broots?\b|\bfactor\b|\bexpand\b|\bsimplif|\bgraph"
        r"|\bslope|\bparabola|\bellipse|\bhyperbola|\basymptote|\bcoordinates?\b|\\log|\blogarithm|\\sqrt|\bsequence"
        r"|\bseries\b|\bcomplex numbers?|\breal numbers?|\binequalit|\bquadratic|\bf\(|\bevaluate\b|\\sum|\bvariables?\b"
        r"|[a-z]\s*\^|\d\s*[xyz]\b|\b[xyz]\s*[-+=]",
    ),
    ("arithmetic", r"^\W*(?:compute|calculate|what is|evaluate|find)?\W*[\d\s.,+*/()^$\\-]*(?:times|div|cdot|frac)?[\d\s.,+*/()^$\\{}-]+\W*$"),
    (
        "word_problem",
        r"\bhow (?:many|much|long|far|old|fast|tall)\b|\bdollars?\b|\bcents?\b|\\\$|\bhours?\b|\bminutes?\b|\bmiles?\b"
        r"|\bpercent|\\%|\bcosts?\b|\bprice|\baverage\b|\bearns?\b|\bbuys?\b|\bsells?\b",
    ),
)  # fmt: skip
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _RULES)
_SCANNED_CHARACTERS = 4000


def classify(question: str) -> str:
    """The kind of a problem: precalculus, counting_probability, geometry, number_theory, algebra, arithmetic, word_problem
    or "other". Looks at the first 4,000 characters.
    """
    head = question[:_SCANNED_CHARACTERS]
    return next((kind for kind, pattern in _COMPILED if pattern.search(head)), OTHER)
