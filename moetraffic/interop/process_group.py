"""Process groups that a torch profile or execution trace lists.

torch writes them as a list of ``{"pg_name", "pg_desc", "ranks", "group_size"}``: in
``distributedInfo.pg_config`` of a profile, in the node ``## process_group:init ##`` of
an execution trace.  There, an empty list of ranks means all ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from moetraffic.errors import TraceError
from moetraffic.trace.model import Group

from .json_reader import MOST_RANKS, integers, whole

KINDS = {  # Megatron-Core's descriptions
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "DATA_PARALLEL_GROUP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
}
MESH = re.compile(r"mesh_(ep|edp|tp|dp|pp|cp)\w*")  # a dimension of a DeviceMesh

UNKNOWN = "unknown"
"""Kind of a group of which only the ranks that it may contain are known."""

BY_WIDTH = "the calls have a part for each rank"
BY_GROUP = "other calls on this process group have a part for each rank"
BY_DEFAULT = "the files list no group, and have no call of a part of the ranks"
AMBIGUOUS = "the files list no group, but have calls of parts of the ranks"
BY_THREAD = "all other calls of this thread of Gloo are on it"
BY_SIZE = "no other listed group has this size"


class ProfileGroups:
    """Process groups of the calls in the file of one rank.

    ``told`` is the list that torch writes; other values are treated as an empty list.
    ``stated`` is the number of ranks according to the file, ``assumed`` that according
    to the user or to other files, which takes precedence; 0 if unknown.
    """

    def __init__(self, told: Any, stated: int = 0, assumed: int = 0) -> None:
        entries = (
            [e for e in told if isinstance(e, dict)] if isinstance(told, list) else []
        )
        # an empty list means all ranks
        everyone = [whole(e.get("group_size"), 1) for e in entries if not _ranks(e)]
        self.stated = stated or max((n or 0 for n in everyone), default=0)
        self.world = assumed or self.stated
        self.listed = bool(entries)
        self.widths: defaultdict[str, set[int]] = defaultdict(set)
        if self.world > MOST_RANKS:
            raise TraceError(
                f"a run has at most {MOST_RANKS} ranks, but a file has "
                f"{self.world}: take a whole copy of it"
            )
        self._named: list[tuple[set[str], Group]] = []
        for entry in entries:
            ranks = _ranks(entry)
            size = whole(entry.get("group_size", entry.get("pg_size")), 1)
            if not ranks:
                if size not in (None, self.stated, self.world):
                    continue  # the ranks of a proper subgroup are unknown
                ranks = tuple(range(size or self.stated or self.world))
            names = {
                str(entry[key])
                for key in ("pg_name", "pg_id", "backend_id", "uid")
                if key in entry
            }
            if ranks:
                group = self.group(ranks, str(entry.get("pg_desc", "")))
                self._named.append((names, group))

    def group(self, ranks: Sequence[int], described: str = "") -> Group:
        """Create the process group of the given ranks, with the described kind."""
        kind = KINDS.get(described, "")
        if mesh := MESH.fullmatch(described):
            kind = mesh[1]
        if not kind:
            everyone = self.world and tuple(ranks) == tuple(range(self.world))
            kind = "world" if everyone else "other"
        return Group(kind=kind, ranks=tuple(ranks))

    def named(self, name: str) -> Group | None:
        """Look up a process group by name."""
        return next((group for names, group in self._named if name in names), None)

    def described(self, told: Mapping[str, Any]) -> Group | None:
        """Find the group of a ``record_param_comms`` by ranks, name, size or range.

        ``told`` has ``pg_ranks``, ``pg_name``, ``pg_size``, ``pg_desc``,
        ``global_rank_start`` and ``global_rank_stride``, as far as the file contains
        them.
        """
        kind = str(told.get("pg_desc", ""))
        size = whole(told.get("pg_size"), 1)
        ranks, cut = integers(told.get("pg_ranks")) or ([], True)
        if ranks and not cut and len(set(ranks)) == len(ranks):
            return self.group(ranks, kind)
        named = self.named(str(told.get("pg_name", "")))
        if named is not None and size in (None, len(named.ranks)):
            return named
        if size is not None and size == self.world:
            return self.group(range(size), kind)
        first = whole(told.get("global_rank_start"))
        stride = whole(told.get("global_rank_stride"), 1)
        if first is None or stride is None or not size or not self.world:
            return None
        strided = range(first, first + stride * size, stride)
        return self.group(strided, kind) if strided[-1] < self.world else None

    def of_width(self, width: int, rank: int) -> Group | None:
        """Return the only group of this size that contains a rank; 0 matches any size.

        None if there is no such group, or more than one.
        """
        fits = {
            group.ranks: group
            for _, group in self._named
            if rank in group.ranks and width in (0, len(group.ranks))
        }
        return next(iter(fits.values())) if len(fits) == 1 else None

    def observe(self, identity: str, width: int) -> None:
        """Add the size of the group of a call, 0 if unknown, to the evidence.

        ``identity`` is the file's identification of the group, "" for none.
        """
        self.widths[identity] |= {width} - {0}

    @property
    def widest(self) -> int:
        """Size of the largest group of a call, 0 if unknown."""
        return max((w for found in self.widths.values() for w in found), default=0)

    def inferred(self, identity: str, width: int) -> tuple[Group | None, str]:
        """Infer the group of a call from a file that lists no groups, and the reason.

        The group is that of all ranks if the evidence of :meth:`observe` shows it, or
        if no call shows another group.  Its kind is "unknown" if the file has calls of
        other groups, but does not contain the group of this one; it is None if the call
        is known to be of a part of the ranks.
        """
        sizes = {width} - {0} or (self.widths[identity] if identity else set())
        if self.listed or not self.world or sizes - {self.world}:
            return None, ""
        if sizes:
            return self._everyone, BY_WIDTH if width else BY_GROUP
        others = {w for found in self.widths.values() for w in found} - {self.world}
        if others or len(self.widths) > 1:
            return Group(kind=UNKNOWN, ranks=self._everyone.ranks), AMBIGUOUS
        return self._everyone, BY_DEFAULT

    @cached_property
    def _everyone(self) -> Group:
        """Process group of all ranks."""
        return self.group(range(self.world))


def _ranks(entry: dict[str, Any]) -> tuple[int, ...]:
    """Parse the ranks of a listed group, () for none; older torch wrote an object."""
    told = entry.get("ranks", [])
    if isinstance(told, dict):
        told = sorted(whole(k) if whole(k) is not None else -1 for k in told)
    found = integers(told)
    if found is None or found[1] or len(set(found[0])) != len(found[0]):
        return ()
    return tuple(found[0]) if max(found[0], default=0) < MOST_RANKS else ()
