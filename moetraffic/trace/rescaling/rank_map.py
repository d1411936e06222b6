"""Which ranks of a replay carry which ranks of a trace: fold, expand, choose, name.

A map says of each rank of the trace which ranks of the replay carry its traffic: one of
them (several ranks of the trace may meet on it), several that share it, or none, which
leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import ReplayError
from moetraffic.spelling import check_choice

LEFT_OUT = "-"
"""What stands in a rank map for a rank that is left out."""

_MOST_BYTES = 8 << 20  # of a file that holds a rank map


@dataclass(frozen=True, kw_only=True)
class RankMap:
    """Ranks of the replay that carry each rank of the trace."""

    rule: str  # in words
    targets: tuple[tuple[int, ...], ...]  # [R] ranks of the replay, ascending

    def __post_init__(self) -> None:
        used = {new for of in self.targets for new in of}
        idle = sorted(set(range(max(used, default=0) + 1)) - used)
        if idle:
            raise ReplayError(
                "every rank of a replay carries a rank of the trace, but of the "
                f"{self.world} ranks by {self.rule} rank {idle[0]} carries none: "
                "number the new ranks from 0 on, without a gap"
            )

    @property
    def world(self) -> int:
        """Ranks of the replay."""
        return max((new for of in self.targets for new in of), default=-1) + 1

    @cached_property
    def origins(self) -> tuple[tuple[int, ...], ...]:
        """For each rank of the replay the ranks of the trace on it, ascending."""
        found: list[list[int]] = [[] for _ in range(self.world)]
        for old, of in enumerate(self.targets):
            for new in of:
                found[new].append(old)
        return tuple(map(tuple, found))

    @property
    def merges(self) -> bool:
        """Whether ranks of the trace meet on one of the replay."""
        return any(len(of) > 1 for of in self.origins)

    @property
    def splits(self) -> bool:
        """Whether a rank of the trace is shared by several of the replay."""
        return any(len(of) > 1 for of in self.targets)


# ---- rules ----------------------------------------------------------------------


def contiguous(world: int, ranks: int) -> Int64:
    """Neighbors meet; where ranks do not divide, the first get one more.

    ``[world]`` int64: of each of the larger number the one of the smaller.

    Examples
    --------
    >>> contiguous(8, 3).tolist()
    [0, 0, 0, 1, 1, 1, 2, 2]
    """
    each, over = divmod(world, ranks)
    return np.repeat(
        np.arange(ranks, dtype=np.int64), [each + (r < over) for r in range(ranks)]
    )


def strided(world: int, ranks: int) -> Int64:
    """Rank r goes to r mod n: what was apart meets, as where nodes are dealt in turn.

    Examples
    --------
    >>> strided(8, 3).tolist()
    [0, 1, 2, 0, 1, 2, 0, 1]
    """
    return np.arange(world, dtype=np.int64) % ranks


FOLDS: Mapping[str, Callable[[int, int], Int64]] = {
    "contiguous": contiguous,
    "strided": strided,
}
"""Rules by which ranks meet, or, read backwards, are shared."""


def identity_map(world: int) -> RankMap:
    """Every rank carries itself."""
    return RankMap(rule="rank for rank", targets=tuple((r,) for r in range(world)))


def fold(world: int, ranks: int, rule: str = "contiguous") -> RankMap:
    """Ranks of the trace, ``world``, meet on fewer, by one of :data:`FOLDS`."""
    check_choice("the rule", rule, FOLDS, ReplayError)
    if not 1 <= ranks <= world:
        raise ReplayError(
            f"a fold is onto 1 to {world} ranks, as many as the trace has, but --fold "
            f"is {ranks}: give a number between these, or --expand"
        )
    where = FOLDS[rule](world, ranks).tolist()
    return RankMap(
        rule=f"fold of {world} ranks onto {ranks}, {rule}",
        targets=tuple((new,) for new in where),
    )


def fold_nodes(nodes: Sequence[str]) -> RankMap:
    """Ranks of a node meet on one rank, nodes in the order of their first rank."""
    if not nodes or not all(nodes):
        raise ReplayError(
            "a fold by nodes needs the node of every rank, but the trace names "
            f"{sum(map(bool, nodes))}: give --fold a number"
        )
    number = {node: n for n, node in enumerate(dict.fromkeys(nodes))}
    return RankMap(
        rule=f"fold of {len(nodes)} ranks onto their {len(number)} nodes",
        targets=tuple((number[node],) for node in nodes),
    )


def expand(world: int, ranks: int) -> RankMap:
    """Each of ``world`` ranks is shared by neighbors; the first by one more."""
    if ranks < world:
        raise ReplayError(
            f"an expansion is onto {world} ranks, as many as the trace has, or more, "
            f"but --expand is {ranks}: raise it, or use --fold"
        )
    whose = contiguous(ranks, world)
    return RankMap(
        rule=f"expansion of {world} ranks onto {ranks}, contiguous",
        targets=tuple(
            tuple(np.flatnonzero(whose == old).tolist()) for old in range(world)
        ),
    )


def subset(world: int, ranks: Sequence[int]) -> RankMap:
    """Some ranks alone, renumbered in ascending order."""
    chosen = sorted(set(ranks))
    if (
        not chosen
        or len(chosen) < len(ranks)
        or not 0 <= chosen[0] <= chosen[-1] < world
    ):
        raise ReplayError(
            f"a choice of ranks names some of 0 to {world - 1}, each once, but --ranks "
            f"is {_listed(ranks)}: change it"
        )
    place = {old: (new,) for new, old in enumerate(chosen)}
    return RankMap(
        rule=f"{len(chosen)} of {world} ranks",
        targets=tuple(place.get(old, ()) for old in range(world)),
    )


def explicit(world: int, where: Sequence[int | None]) -> RankMap:
    """The rank of the replay for each rank of the trace, None for none."""
    if len(where) != world:
        raise ReplayError(
            f"a rank map says for each of the {world} ranks of the trace where it "
            f"goes, but --rank-map has {len(where)} places: give {world}"
        )
    if all(new is None for new in where):
        raise ReplayError(
            "a rank map keeps at least one rank, but --rank-map leaves out all of "
            f"{world}: name a rank"
        )
    return RankMap(
        rule="the rank map",
        targets=tuple(() if new is None else (new,) for new in where),
    )


# ---- as people write them ----------------------------------------------------------


def map_of(text: str) -> tuple[int | None, ...]:
    """A rank map, from a file of that name, or as the text itself.

    Places are separated by commas, blanks or line ends; ``#`` begins a comment.  The
    n-th says where rank n of the trace goes; ``-`` leaves it out.

    Examples
    --------
    >>> map_of("1,0,-,1")
    (1, 0, None, 1)
    """
    path = Path(text)
    try:
        if len(text) < 4096 and "\0" not in text and path.is_file():
            if path.stat().st_size > _MOST_BYTES:
                raise ReplayError(
                    f"a rank map has at most {_MOST_BYTES} bytes, but {path} has "
                    f"{path.stat().st_size}: name another file"
                )
            text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(
            f"the rank map {path} cannot be read ({error}): name a text file"
        ) from None
    lines = (line.partition("#")[0] for line in text.splitlines())
    places = " ".join(lines).replace(",", " ").split()
    for place in places:
        if place != LEFT_OUT and not _is_rank(place):
            raise ReplayError(
                "a rank map holds numbers of ranks, and - for a rank that is left "
                f"out, but a place is {place[:40]!r}: give a file of these, or a list "
                "with commas"
            )
    return tuple(None if place == LEFT_OUT else int(place) for place in places)


def count_of(text: str, option: str) -> int:
    """Read a number of ranks."""
    if not _is_rank(text) or not int(text):
        raise ReplayError(
            f"{option} is a number of ranks from 1 on, not {text[:40]!r}: give a "
            "number such as 4"
        )
    return int(text)


def _is_rank(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= 7


def _listed(ranks: Sequence[int]) -> str:
    shown = ",".join(map(str, ranks[:8]))
    return shown + (f",... ({len(ranks)})" if len(ranks) > 8 else "")
