"""Map the ranks of a trace to other ranks: fold, expand, select, or list them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import ReplayError
from moetraffic.spelling import check_choice
from moetraffic.trace.iterations import listed_numbers
from moetraffic.trace.model import Meta

MOST_RANKS = 10_000_000  # more are taken for a typing error

RankMap = tuple[tuple[int, ...], ...]
"""New ranks of each rank, ``[R]``, ascending: one, several that share it, or none."""


def rank_map(meta: Meta, way: str, text: str) -> RankMap:
    """Map the ranks of a trace by ``fold``, ``expand``, ``ranks`` or ``rank-map``.

    ``text`` is the value of that option; any other ``way`` keeps all ranks.

    Examples
    --------
    >>> rank_map(Meta(world=5), "fold", "2")
    ((0,), (0,), (0,), (1,), (1,))
    >>> rank_map(Meta(world=5), "fold", "2:strided")
    ((0,), (1,), (0,), (1,), (0,))
    >>> rank_map(Meta(world=2), "expand", "3")
    ((0, 1), (2,))
    >>> rank_map(Meta(world=4), "rank-map", "1,0,-,1")
    ((1,), (0,), (), (1,))
    """
    world = meta.world
    where = list(range(world))  # the new rank of each, -1 for none
    if way == "fold" and text == "nodes":
        if not meta.nodes or not all(meta.nodes):
            raise ReplayError(
                "a fold by nodes needs the node of every rank, but the trace names "
                f"{sum(map(bool, meta.nodes))}: give --fold a number"
            )
        names = list(dict.fromkeys(meta.nodes))
        where = [names.index(node) for node in meta.nodes]
    elif way == "fold":
        count, _, rule = text.partition(":")
        ranks = _count(count, way, range(1, world + 1))
        if rule:
            check_choice("the rule", rule, ("contiguous", "strided"), ReplayError)
        strided = [rank % ranks for rank in range(world)]
        where = strided if rule == "strided" else _contiguous(world, ranks).tolist()
    elif way == "expand":
        whose = _contiguous(_count(text, way, range(world, MOST_RANKS)), world)
        return tuple(tuple(np.flatnonzero(whose == r).tolist()) for r in where)
    elif way == "ranks":
        listed = listed_numbers(text, "ranks", ReplayError)
        place = {old: new for new, old in enumerate(sorted(listed))}
        if len(place) < len(listed) or max(place, default=world) >= world:
            raise ReplayError(
                f"a choice of ranks names some of 0 to {world - 1}, each once, but "
                f"--ranks is {text[:40]}: change it"
            )
        where = [place.get(old, -1) for old in where]
    elif way == "rank-map":
        where = _listed(text, world)
    return tuple((new,) * (new >= 0) for new in where)


def _contiguous(many: int, few: int) -> Int64:
    """Divide ``many`` ranks among ``few``, in order; the first ones get one more."""
    each, over = divmod(many, few)
    return np.repeat(np.arange(few), [each + (rank < over) for rank in range(few)])


def _count(text: str, way: str, within: range) -> int:
    if not _is_rank(text) or int(text) not in within:
        raise ReplayError(
            f"--{way} is a number of ranks from {within[0]} to {within[-1]} for this "
            f"trace, not {text[:40]!r}: --fold is onto fewer ranks, --expand onto more"
        )
    return int(text)


def _listed(text: str, world: int) -> list[int]:
    """Read a rank map, given as the text or its file; ``#`` begins a comment."""
    if os.path.isfile(text):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ReplayError(
                f"the rank map {text} cannot be read ({error}): name a text file"
            ) from None
    lines = (line.partition("#")[0] for line in text.splitlines())
    entries = " ".join(lines).replace(",", " ").split()
    valid = all(entry == "-" or _is_rank(entry) for entry in entries)
    where = [-1 if entry == "-" else int(entry) for entry in entries if valid]
    new = {*where} - {-1}
    if len(where) != world or not new or max(new) >= len(new):
        raise ReplayError(
            f"a rank map has an entry for each of the trace's {world} ranks: its new "
            "rank, numbered from 0 without a gap, or - to leave it out, but --rank-map "
            f"has {len(entries)}, {','.join(entries)[:40]}: change them"
        )
    return where


def _is_rank(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= 7
