"""Names, numbers, codes and places as text.

Numbers have as many digits as it takes to tell them from what they are compared with; codes are in hex at the width of their format;
characters a terminal or an XML file cannot show are replaced by visible ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from accuracy_eval.errors import UsageError
from accuracy_eval.formats import get_format

REFERENCE = "reference"  # what a side is judged by, where a dump's label would stand
USUAL_CANDIDATES = ("", "default")  # not named: the framework's own choice
# C0, DEL, C1, surrogates, bidirectional overrides, BOM and non-characters: invisible, or illegal in XML 1.0, or able to rewrite a line
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")


def visible(text: str, *, lines: bool = False) -> str:
    r"""`text` on one line, unprintable characters written as escapes: \n, \t, \x1b, \u202e.

    With `lines`, tabs and line feeds stay as they are (CR LF becomes LF).
    """
    if text.isascii() and text.isprintable():
        return text
    text = _INVISIBLE.sub(_escape, text.replace("\r\n", "\n"))
    return text if lines else text.replace("\n", r"\n").replace("\t", r"\t")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def number(value: Any, digits: int = 4) -> str:
    """`value` with up to `digits` significant digits: 0.5703, 3.1e-4, 214, NaN, Inf, -Inf; "n/a" for None."""
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return visible(value)
    x = float(value)
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else ("Inf" if x > 0 else "-Inf")
    if not 0 < abs(x) < 1e-3:
        return re.sub(r"e\+?(-?)0*(\d)", r"e\1\2", f"{x:.{digits}g}")
    mantissa, _, exponent = f"{x:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"


def of_candidate(text: str, candidate: str) -> str:
    """Text about a result, followed by the candidate that made it where that is not the framework's own choice."""
    return visible(text) + ("" if candidate in USUAL_CANDIDATES else f" ({visible(candidate)})")


def exact(value: float) -> str:
    """A number that is compared for equality: a count in full, anything else as `number` prints it."""
    return str(int(value)) if float(value).is_integer() else number(value)


def numbers_apart(value: Any, other: Any, digits: int = 4) -> tuple[str, str]:
    """Both numbers with the fewest digits (at least `digits`) that print them differently, if they differ."""
    for n in range(digits, 18):
        texts = number(value, n), number(other, n)
        if texts[0] != texts[1]:
            return texts
    return number(value, digits), number(other, digits)


def code_text(code: int | None, fmt: str) -> str:
    """A code in hex at the width of its format ("0x3F12"); "" for None. A format this version does not know gets the digits it needs."""
    if code is None:
        return ""
    try:
        digits = get_format(fmt).code_digits
    except UsageError:
        digits = 1
    return f"0x{code:0{digits}X}"


def index_text(index: Iterable[int]) -> str:
    return "[" + ", ".join(str(i) for i in index) + "]"
