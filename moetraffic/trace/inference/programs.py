"""Group steps of all ranks by their sequence of calls, to analyze equal ones together.

A call sequence lists all-to-alls, transfers between pipeline stages, and routings.  It
is independent of the rank: groups are numbered in the order of first use.  Splits of
two calls are compared in all steps of all ranks with the sequence, so that equality by
chance is improbable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Bool, Int64, UInt64
from moetraffic.trace.model import ALL_TO_ALL, ROUTING

from .calls import FEW, Calls
from .period import NumberedSteps

EXCHANGE, BETWEEN, ROUTER = "exchange", "between", "router"
INTEGERS = frozenset({"int64", "int32", "int16", "uint64", "uint32", "uint16"})
BYTES_OF = {"float64": 8, "float32": 4, "int64": 8, "int32": 4}


@dataclass(frozen=True, kw_only=True)
class Token:
    """One call of a call sequence, without rank-specific attributes."""

    kind: str  # EXCHANGE, BETWEEN or ROUTER
    group: int = -1  # in the rank's order of first use
    width: int = 0  # ranks of the group
    dtype: str = ""
    row_bytes: int = 0  # 0 where calls of this kind have many sizes
    direction: str = "forward"
    phase: str = ""  # phase, layer and label as annotated
    layer: int = -1
    label: str = ""

    @property
    def sort(self) -> tuple[object, ...]:
        """Key that the calls of a tensor and of its gradient share."""
        return (self.group, self.width, self.dtype, self.row_bytes)

    @property
    def counts(self) -> bool:
        """Whether the call sends integers."""
        return self.dtype in INTEGERS


@dataclass(frozen=True, kw_only=True)
class CallSequence:
    """Call sequence, with all steps of all ranks that have it."""

    word: tuple[Token, ...]  # [n]
    rank: Int64  # [N] of each step
    step: Int64  # [N]
    place: tuple[Int64, ...]  # N times [n]: the rank's call of each token
    volume: UInt64  # [N, n, 2] fingerprints of the bytes sent and received
    share: UInt64  # [N, n, 2] fingerprints of their proportions
    size: Int64  # [N, n] bytes
    even: Bool  # [n] in all steps
    partner: Int64  # [n] forward call of a backward one, by link; -1: unknown
    block: Int64  # [N, n] calling block, see EVENT; 0: unknown
    order: bool  # one thread made all forward all-to-alls of each step

    def turned(self, one: int, other: int) -> bool:
        """Return whether ``other`` has the reversed splits of ``one``, in all steps."""
        same = (self.share[:, one] == self.share[:, other, ::-1]).all()
        if same and self.word[one].dtype == self.word[other].dtype:
            same = (self.volume[:, one] == self.volume[:, other, ::-1]).all()
        return bool(same)

    def proportional(self, one: int, other: int) -> bool:
        """Return whether the splits of two calls are proportional in all steps."""
        return bool((self.share[:, one] == self.share[:, other]).all())

    def equal(self, one: int, other: int) -> bool:
        """Return whether the splits of two calls are equal in all steps."""
        return bool((self.volume[:, one] == self.volume[:, other]).all())

    def bytes_of(self, token: int) -> int:
        """Return the bytes of a call, summed over all steps."""
        return int(self.size[:, token].sum())


def gather_programs(
    every: Sequence[Calls], numbered: Mapping[int, NumberedSteps]
) -> list[CallSequence]:
    """Collect the distinct call sequences of all ranks' steps, most frequent first."""
    tokens: dict[Token, int] = {}
    found: dict[bytes, list[tuple[Calls, int, Int64]]] = {}
    for calls in every:
        number, kept = _tokens(calls, tokens)
        if not len(kept):
            continue
        steps = numbered[calls.rank].step
        for places in np.split(kept, np.flatnonzero(np.diff(steps[kept])) + 1):
            word = number[places].astype(np.int32).tobytes()
            found.setdefault(word, []).append((calls, int(steps[places[0]]), places))
    names = list(tokens)
    programs = [
        _program(tuple(names[t] for t in np.frombuffer(word, np.int32)), steps)
        for word, steps in found.items()
    ]
    return sorted(programs, key=lambda p: -len(p.rank))


def _tokens(calls: Calls, tokens: dict[Token, int]) -> tuple[Int64, Int64]:
    """Return the token number of each call, and the indices of calls that have one."""
    kept = np.flatnonzero(calls.exchange | calls.between_stages | calls.routing)
    groups: dict[int, int] = {}
    sizes: dict[tuple[object, ...], set[int]] = {}
    for site in calls.sites:
        sizes.setdefault((site.group, site.dtype), set()).add(site.row_bytes)
    used, first = np.unique(calls.table["site"][kept], return_index=True)
    by_site = np.full(len(calls.sites), -1, np.int64)
    for number in used[np.argsort(first)].tolist():
        site = calls.sites[number]
        token = Token(kind=BETWEEN)
        if site.operation == ALL_TO_ALL:
            rows = sizes[(site.group, site.dtype)]
            token = Token(
                kind=EXCHANGE,
                group=groups.setdefault(site.group, len(groups)),
                width=len(calls.groups[site.group].ranks),
                dtype=site.dtype,
                row_bytes=site.row_bytes if len(rows) <= FEW else 0,
                direction=site.direction,
                phase=site.phase,
                layer=site.layer,
                label=site.label,
            )
        elif site.operation == ROUTING:
            token = Token(kind=ROUTER, layer=site.layer, direction=site.direction)
        by_site[number] = tokens.setdefault(token, len(tokens))
    return by_site[calls.table["site"]], kept


def _program(
    word: tuple[Token, ...], steps: Sequence[tuple[Calls, int, Int64]]
) -> CallSequence:
    """Join the attributes of all steps with one call sequence."""
    return CallSequence(
        word=word,
        rank=np.array([c.rank for c, _, _ in steps]),
        step=np.array([s for _, s, _ in steps]),
        place=tuple(p for _, _, p in steps),
        volume=np.stack([c.volume[p] for c, _, p in steps]),
        share=np.stack([c.share[p] for c, _, p in steps]),
        size=np.stack([c.size[p] for c, _, p in steps]),
        even=np.asarray(np.stack([c.even[p] for c, _, p in steps]).all(axis=0), bool),
        partner=_partners(word, steps),
        block=np.stack([c.table["block"][p] for c, _, p in steps]).astype(np.int64),
        order=_ordered(word, steps),
    )


def _ordered(
    word: tuple[Token, ...], steps: Sequence[tuple[Calls, int, Int64]]
) -> bool:
    """Return whether the forward all-to-alls of each step were made by one thread.

    A call of unknown direction was made by a thread that is not the training's.
    """
    exchanges = [t for t in word if t.kind == EXCHANGE]
    if any(not t.direction for t in exchanges):
        return False
    ahead = [t.kind == EXCHANGE and t.direction == "forward" for t in word]
    threads = np.stack([c.table["thread"][p][ahead] for c, _, p in steps])
    return bool((threads == threads[:, :1]).all())


def _partners(
    word: tuple[Token, ...], steps: Sequence[tuple[Calls, int, Int64]]
) -> Int64:
    """Match backward with forward calls by autograd link, if equal in all steps."""
    links = np.stack([c.table["link"][p] for c, _, p in steps])
    partner = np.full(len(word), -1, np.int64)
    exchanges = np.array([t.kind == EXCHANGE for t in word], bool)
    backward = np.array([t.direction == "backward" for t in word], bool) & exchanges
    ahead = exchanges & ~backward
    for at in np.flatnonzero(backward):
        mine = links[:, at]
        if (mine < 0).any():
            continue
        same = (links[:, :at] == mine[:, None]).all(axis=0) & ahead[:at]
        again = (links == mine[:, None]).all(axis=0) & backward
        # calls of one autograd function share a link: then they are ambiguous
        if same.sum() == 1 and again.sum() == 1:
            partner[at] = int(np.argmax(same))
    return partner
