"""The known name that is nearest to a wrong one, and the error that names it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the beginning of a remedy: "did you mean ..., or ", or nothing.

    Examples
    --------
    >>> nearest("gpt-3", ["gpt-3b", "tiny"])
    'did you mean gpt-3b, or '
    >>> nearest("h100", ["v100", "dgx-h100"])
    'did you mean dgx-h100, or '
    """
    every = list(known)
    ends = [one for one in every if one.endswith(f"-{name.lower()}")]
    near = ends or difflib.get_close_matches(name, every, 1)
    return f"did you mean {near[0]}, or " if near else ""


def check_choice(
    what: str, name: object, known: Iterable[str], error: type[Exception]
) -> None:
    """Raise an ``error`` for a name that is none of those that are known.

    It names these, and the nearest one; "" may be among them.
    """
    names = list(known)
    if name not in names:
        named = list(filter(None, names))
        given = name[:40] if isinstance(name, str) else name
        raise error(
            f"{what} is one of {', '.join(named)}, not {given!r}: "
            f"{nearest(str(given), named)}choose one"
        )
