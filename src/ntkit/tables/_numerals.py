"""Numbers in text: decimal points, decimal commas and thousands separators."""

from __future__ import annotations

import re
from collections.abc import Iterable

STYLES = ("point", "comma", "thousands")
"""Ways to write numbers: 1234.5; 1234,5 or 1.234,5; 1,234.5."""
_COMMA = re.compile(r"\s*[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d*)?\s*|\s*[+-]?,\d+\s*")
_THOUSANDS = re.compile(r"\s*[+-]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d*)?\s*")
_CODE = re.compile(r"\s*0\d+\s*")


def is_numeral(text: str) -> bool:
    """Tell whether a text is a number, with a decimal point if any."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_code(text: str) -> bool:
    """Tell whether a text is a code such as 007: digits with leading zeros, which a number would lose."""
    return _CODE.fullmatch(text) is not None


def numeral_style(texts: Iterable[str]) -> str | None:
    """Return how a column writes numbers, or None if it holds other text or codes.

    The result is "either" if all commas may be decimal commas or thousands separators, as in 1,234.

    Examples
    --------
    >>> [numeral_style(texts) for texts in (["1.5", "2"], ["1,5", "2"], ["1,234", "7"], ["1,234,567"], ["007", "1"])]
    ['point', 'comma', 'either', 'thousands', None]
    """
    texts = list(texts)
    if not texts or any(is_code(text) for text in texts):
        return None
    if all(is_numeral(text) for text in texts):
        return "point"
    comma, thousands = (all(form.fullmatch(text) for text in texts) for form in (_COMMA, _THOUSANDS))
    if comma and thousands:
        return "either"
    return "comma" if comma else "thousands" if thousands else None


def to_float(text: str, style: str) -> float:
    """Convert a text to a number. Raise a ValueError if it is not a number of the given style."""
    if style == "comma" and _COMMA.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif style == "comma":
        raise ValueError(text)
    elif style == "thousands" and _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return float(text)
