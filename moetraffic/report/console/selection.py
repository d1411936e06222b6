"""Selection of the tables and sentences of a result that are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def selected(
    summary: Sequence[Any],
    parts: Mapping[str, Sequence[Any]],
    *,
    only: Sequence[str] = (),
    tables: bool = False,
) -> list[Any]:
    """Select what is printed: the summary, all, or some parts.

    A summary ends with the names of the parts that it leaves out.  Tables of the
    summary are not printed twice; a part without a table is named.  Parts that are
    named are printed whole, so that ``tables`` adds nothing to them.
    """
    if only:
        each = (parts.get(name) or [f"{name}: no table"] for name in only)
        return [one for part in each for one in part]
    shown = {id(one) for one in summary}
    left = {n: [one for one in p if id(one) not in shown] for n, p in parts.items()}
    if tables:
        return [*summary, *(one for part in left.values() for one in part)]
    more = [name for name, part in left.items() if part]
    hint = f"Tables: --tables, or --only {','.join(more)}"
    return [*summary, *([hint] if more else [])]
