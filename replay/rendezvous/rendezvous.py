"""Rendezvous of the ranks: handshake and failure reports.

The ranks communicate through a store that is independent of the backend.  Before any
group of the backend is made, every rank stores its versions, options and the digest of
its plan.  Rank 0 compares them, and all ranks read its answer, so that an error names a
rank with different groups before any rank hangs in them.  A rank that fails stores a
report, and without a supervisor of all ranks (torchrun, srun), the others find from the
reports which rank failed first.

Keys and fields in the store must not be renamed: other versions read them.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moetraffic.launch import RankEnvironment, heartbeat
from moetraffic.launch.rank_process import pid_namespace, state_of
from moetraffic.replay.failure import RankError, backend_error, error_fields
from moetraffic.replay.plan.program import Plan
from moetraffic.units import rank_span

from .root_cause import Report, find_root_cause
from .store import PLACE, Store, served_by_agent, where

AGREEMENT = "the agreement on the plan"
_GRACE_S = 3.0  # for the reports of other ranks
_DIAGNOSIS_S = 6 * _GRACE_S
_POLL_S = 0.05
_SAME_S = 1.0  # time within which all ranks fail for a common reason
_SPARE = 0.2  # share of the start timeout kept to report who is missing, at most
_SPARE_S = 2.0  # this


@dataclass(frozen=True, kw_only=True)
class Handshake:
    """Settings and process identity that one rank sends in the handshake."""

    terms: Mapping[str, str]  # by name, the most important first; equal on all ranks
    node: str
    pid: int
    space: str  # namespace of the pid
    nonce: str  # distinguishes this rank from one of another run


class Rendezvous:
    """Communication of one rank with the others, independent of the backend.

    Ranks are awaited until shortly before ``start_timeout_s`` after ``began_s``, a time
    of ``time.monotonic()``, at which a watchdog ends this rank.

    Raises
    ------
    RankError
        If the store cannot be reached, or another program uses its port.
    """

    def __init__(
        self,
        rank_env: RankEnvironment,
        start_timeout_s: float,
        began_s: float | None = None,
    ) -> None:
        self._rank_env = rank_env
        self._start_timeout_s = start_timeout_s
        spare = min(_SPARE * start_timeout_s, _SPARE_S)
        began_s = time.monotonic() if began_s is None else began_s
        self._until = began_s + start_timeout_s - spare
        self.store = Store(rank_env, self._left_s, start_timeout_s)
        self._handshakes: list[Handshake] = []  # of all ranks, once they agree
        self.ready = False  # whether all ranks are ready for the first operation

    # ---- agreement ---------------------------------------------------------------

    def agree(self, plan: Plan, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Check that all ranks have the same plan, options and versions; return hosts.

        ``settings`` must be equal on all ranks; the most important comes first.

        Raises
        ------
        RankError
            Naming the rank that differs and the setting or, if plans differ, the first
            operation that differs; or naming the rank that does not arrive.
        """
        rank, store = self._rank_env.rank, self.store
        own = Handshake(
            terms={**settings, "plan": plan.digest},
            node=platform.node(),
            pid=os.getpid(),
            space=pid_namespace(),
            nonce=uuid.uuid4().hex,
        )
        store.put(f"terms/{rank}", asdict(own))
        if rank == 0:
            answer = self._collect()
            store.put("terms/answer", answer)
        else:
            # rank 0, which may start later, waits for others once it has arrived
            arrived = store.expect("terms/0", self._left_s)
            found = arrived and store.expect(
                "terms/answer", self._left_s + self._start_timeout_s
            )
            if found is None:
                raise self._absent()
            answer = found
        if "compare" in answer:
            answer = self._compare(plan, answer["compare"])
        self._raise_failure(answer)
        handshakes = [Handshake(**row) for row in answer["rows"]]
        if handshakes[rank].nonce != own.nonce:
            raise RankError(
                f"met another replay at {where()} instead of rank 0: give each its own "
                "MASTER_PORT",
                rank=rank,
                operation=PLACE,
            )
        self._handshakes = handshakes
        return tuple(o.node for o in handshakes)

    def _collect(self) -> dict[str, Any]:
        """Collect and compare, on rank 0, the handshakes of all ranks."""
        handshakes: list[Handshake] = []
        for rank in range(self._rank_env.world):
            row = self.store.expect(f"terms/{rank}", self._left_s)
            if row is None:
                return _failure(self._absent())
            if "failure" in row:
                return row
            try:
                handshakes.append(Handshake(**row))
            except TypeError:
                version = row.get("terms", {}).get("moetraffic", "of another version")
                return _failure(
                    RankError(
                        f"has moetraffic {version}, whose handshake differs from "
                        "rank 0's: install the same version on every host",
                        rank=rank,
                        operation=AGREEMENT,
                        cause="mismatch",
                    )
                )
        found = find_mismatch(handshakes)
        if found is None:
            return {"rows": [asdict(o) for o in handshakes]}
        return {"compare": found} if isinstance(found, tuple) else _failure(found)

    def _raise_failure(self, answer: Mapping[str, Any]) -> None:
        if "failure" not in answer:
            return
        failure = answer["failure"]
        # printed by rank 0, which found it, and by the rank at fault
        first = not failure["told"] and self._rank_env.rank in (0, failure["rank"])
        raise RankError(
            failure["message"],
            rank=failure["rank"],
            operation=failure["operation"],
            cause="mismatch" if first else "peer",
        )

    def _compare(self, plan: Plan, pair: Sequence[int]) -> dict[str, Any]:
        """Find the first operation in which two plans differ; called by all ranks."""
        rank = self._rank_env.rank
        if rank in pair:
            self.store.put(f"plan/{rank}", {"checksums": plan.checksum.tolist()})
        if rank != 0:
            return self.store.expect("difference") or _failure(self._silent(0))
        found = []
        for other in pair:
            row = self.store.expect(f"plan/{other}")
            if row is None:
                return _failure(self._silent(other))
            found.append(np.array(row["checksums"]))
        usual, odd = found
        both = min(len(usual), len(odd))
        differ = np.flatnonzero(usual[:both] != odd[:both])
        first = int(differ[0]) if len(differ) else both
        reason, place = (
            f"has another plan than rank {pair[0]} ({len(odd)} operations, not "
            f"{len(usual)}; this is the first that differs)",
            plan.name(first) if first < len(plan) else "the plan's end",
        )
        if not len(differ) and len(odd) == len(usual):
            reason = (
                "has the same bytes, but other groups or other captured times than "
                f"rank {pair[0]}"
            )
            place = AGREEMENT
        answer = _failure(
            RankError(
                f"{reason}: give every rank the same trace",
                rank=pair[1],
                operation=place,
                cause="mismatch",
            )
        )
        self.store.put("difference", answer)
        return answer

    @property
    def _left_s(self) -> float:
        """Time for which others are still awaited, s."""
        return max(self._until - time.monotonic(), _POLL_S)

    def _absent(self) -> RankError:
        """Build the error that names all ranks that have not arrived."""
        world = range(self._rank_env.world)
        here = [rank for rank in world if self.store.wait(f"terms/{rank}", 0.0)]
        missing = sorted(set(world) - set(here)) or [0]  # else: rank 0 has no answer
        others = f" (with it, missing: {rank_span(missing)})" * (len(missing) > 1)
        return RankError(
            f"did not arrive within {self._start_timeout_s:g} s{others}, while "
            f"{len(here)} of {len(world)} ranks did: start all ranks at about the same "
            "time, look at the hosts of those that are missing, or raise "
            "--start-timeout",
            rank=missing[0],
            operation=PLACE,
            cause="peer",
            reporter=min(here, default=self._rank_env.rank),
        )

    def _silent(self, rank: int) -> RankError:
        return RankError(
            f"did not send its plan within {self._start_timeout_s:g} s: look at its "
            "host, or raise --start-timeout",
            rank=rank,
            operation=AGREEMENT,
            cause="peer",
        )

    # ---- failure -----------------------------------------------------------------

    @contextmanager
    def reporting(
        self, position: Callable[[], int], namer: Callable[[int], str]
    ) -> Iterator[None]:
        """Report errors in the block to the other ranks, and find the root cause.

        ``position`` counts operations entered and left by this rank, as the heartbeat
        does; ``namer`` names the n-th of them, for errors that do not name one.

        Raises
        ------
        RankError
            Instead of an error that another rank is lost: naming the rank that failed
            first, as far as known.  Under a supervisor, which has more information,
            the error is unchanged.
        """
        try:
            yield
        except Exception as error:
            mine = self._report(error, position(), namer)
            if heartbeat.supervised():
                raise
            # the watchdog counts from here: this rank waits for others' reports
            heartbeat.send("step", mine.operation, within_s=_DIAGNOSIS_S)
            self._linger()
            if mine.cause == "peer" and self._handshakes:
                raise self._root_cause(mine) from error
            if isinstance(error, RankError) or not self._is_only_failure(mine):
                raise
            raise RankError(
                f"failed: {mine.message}",
                rank=mine.rank,
                operation=mine.operation,
            ) from error

    def _linger(self) -> None:
        """Delay the exit of rank 0, so that others can read its report in the store."""
        if self._rank_env.rank or self.ready:
            return
        awaited = "report" if self._handshakes else "terms"
        until = time.monotonic() + _GRACE_S
        try:
            for rank in range(1, self._rank_env.world):
                self.store.wait(f"{awaited}/{rank}", max(0.0, until - time.monotonic()))
        except RankError:
            return
        time.sleep(_POLL_S * 4)  # time to read it

    def _is_only_failure(self, mine: Report) -> bool:
        """Whether this failure is of this rank only, and not of all ranks.

        Rank 0 prints failures of all ranks.
        """
        others = range(1, self._rank_env.world) if mine.rank == 0 else (0,)
        patience_s = 0.0 if mine.rank == 0 else _SAME_S
        try:
            for rank in others:
                other = self.store.expect(f"report/{rank}", patience_s)
                if other is None or mine.message not in other["message"]:
                    return True
                if other["blames"] == mine.rank:
                    return True  # the other rank repeats this rank's report
                if mine.rank == 0 and other["cause"] == "peer":
                    return True  # the other rank repeats an error that rank 0 found
        except RankError:
            return False  # the store ended with rank 0, which printed its error
        return False

    def _report(
        self, error: Exception, entered: int, namer: Callable[[int], str]
    ) -> Report:
        place, fields = error_fields(error)
        if entered and not place and not heartbeat.supervised():
            place = namer(entered // 2)
        if isinstance(error, RuntimeError):
            fields["cause"] = backend_error(self._rank_env.rank, place, error).cause
        report = Report(
            rank=self._rank_env.rank,
            operation=place,
            message=str(fields["message"]),
            cause=str(fields["cause"]),
            blames=int(fields.get("blames", self._rank_env.rank)),
            entered=entered,
            seen=self._lost_neighbors(),
        )
        try:
            self.store.put(f"report/{report.rank}", asdict(report))
            if not self._handshakes:  # rank 0 waits for this rank, or all for rank 0
                failure = _failure(
                    RankError(
                        f"failed: {report.message}",
                        rank=report.blames,
                        operation=report.operation,
                    ),
                    told=True,
                )
                self.store.put(f"terms/{report.rank}", failure)
                if report.rank == 0:
                    self.store.put("terms/answer", failure)
        except RankError:
            return report  # the store ended with the host that served it
        return report

    def _lost_neighbors(self) -> dict[str, str]:
        """Find ranks of this host whose processes have stopped or ended."""
        pids = self._neighbors()
        states = {str(rank): state_of(pid) for rank, pid in pids.items()}
        return {rank: state for rank, state in states.items() if state != "running"}

    def _neighbors(self) -> dict[int, int]:
        """Return the ranks whose processes this rank can see, and their ids."""
        places = [(h.node, h.space) for h in self._handshakes]
        return {
            rank: self._handshakes[rank].pid
            for rank, place in enumerate(places)
            if place == places[self._rank_env.rank]
        }

    def _root_cause(self, mine: Report) -> RankError:
        """Wait briefly for the reports of the other ranks, and find the root cause."""
        reports = {mine.rank: mine}
        missing = set(range(self._rank_env.world)) - {mine.rank}
        until = time.monotonic() + _GRACE_S
        try:
            while missing and time.monotonic() < until:
                for rank in sorted(missing):
                    if row := self.store.expect(f"report/{rank}", 0.0):
                        reports[rank] = Report(**row)
                        missing.discard(rank)
                if any(r.cause != "peer" for r in reports.values()):
                    break
                time.sleep(_POLL_S)
        except RankError:
            # the store ended with its host: if rank 0 has reported, after its own
            # diagnosis; otherwise rank 0 failed first, as the others cannot report it
            if 0 not in reports and not served_by_agent():
                missing = {0}
        return find_root_cause(reports, missing, self._neighbors_at_end(missing, until))

    def _neighbors_at_end(
        self, missing: Collection[int], until: float
    ) -> dict[str, str]:
        """Wait for the ranks of this host that are ending; return their process states.

        A process that is killed closes its connections before it is gone, so other
        ranks may notice its failure too early.
        """
        near = {str(r) for r in self._neighbors() if r in missing}
        while True:
            states = self._lost_neighbors()
            if near <= states.keys() or time.monotonic() >= until:
                return states
            time.sleep(_POLL_S)


def _failure(error: RankError, *, told: bool = False) -> dict[str, Any]:
    """Encode an error as an answer; ``told``: reported by its rank, not by rank 0."""
    failure = {"rank": error.rank, "operation": error.operation}
    return {"failure": {**failure, "message": error.reason, "told": told}}


def find_mismatch(
    handshakes: Sequence[Handshake],
) -> RankError | tuple[int, int] | None:
    """Find a rank whose settings differ from those of most other ranks.

    Returns an error that names the rank; or (usual, other) ranks if only the plans
    differ; None if all agree.
    """
    names = list(dict.fromkeys(name for o in handshakes for name in o.terms))
    for name in names:
        values = [o.terms.get(name, "none") for o in handshakes]
        if len(set(values)) == 1:
            continue
        most = Counter(values).most_common(1)[0][1]
        usual = next(v for v in values if values.count(v) == most)
        common = values.index(usual)
        other = next(r for r, v in enumerate(values) if v != usual)
        if name == "plan":
            return common, other
        return RankError(
            f"has {name} {values[other]}, while rank {common} has {usual}: give every "
            "rank the same software and the same options",
            rank=other,
            operation=AGREEMENT,
            cause="mismatch",
        )
    return None
