"""What hypothesis can think of as JSON, and when two JSON values are the same one."""

from decimal import Decimal
from math import isinf

from hypothesis import strategies as st

# Any code point but the surrogates, U+0000 and the non-characters included.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
DIGITS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
)


def _number(digits: str) -> int | Decimal | None:
    if isinf(float(digits)):
        return None  # larger than a double: refused, and so no JSON of ours
    number = Decimal(digits)
    # 70e0 is written 70, and read as an integer from then on.
    return number if set(str(number)) & set(".E") else int(number)


NUMBERS = (
    st.integers()
    | st.integers(10**300, 10**400)
    | DIGITS.map(_number).filter(lambda number: number is not None)
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5)
    ),
    max_leaves=25,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=6)


def written(value: object) -> object:
    """`value` so that == tells 1, 1.0 and true apart; the order of keys is free."""
    if isinstance(value, dict):
        return {key: written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [written(item) for item in value]
    return (type(value).__name__, str(value))
