"""Rendezvous of the ranks: handshake, memory check and failure reports.

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from moetraffic.launch import RankEnvironment, heartbeat
from moetraffic.launch.rank_process import pid_namespace, state_of
from moetraffic.replay.failure import RankError, backend_error
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.process_exit import error_fields

from .handshake import (
    AGREEMENT,
    Handshake,
    MemoryNeed,
    find_memory_shortage,
    find_mismatch,
)
from .root_cause import Report, find_root_cause
from .store import PLACE, Store, served_by_agent, where

_GRACE_S = 3.0  # for the reports of other ranks
_POLL_S = 0.05
_SAME_S = 1.0  # time within which all ranks fail for a common reason

Row = TypeVar("Row", Handshake, MemoryNeed)


class Rendezvous:
    """Communication of one rank with the others, independent of the backend.

    Parameters
    ----------
    rank_env
        Rank of this process.
    patience_s
        Timeout of each wait for other ranks.

    Raises
    ------
    RankError
        If the store cannot be reached, or another program uses its port.
    """

    def __init__(self, rank_env: RankEnvironment, patience_s: float) -> None:
        self._rank_env = rank_env
        self._patience_s = patience_s
        self._store = Store(rank_env, patience_s)
        self._round = "terms"  # the next round that rank 0 answers
        self._handshakes: list[Handshake] = []

    # ---- agreement ---------------------------------------------------------------

    def agree(self, plan: Plan, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Check that all ranks have the same plan, options and versions.

        Parameters
        ----------
        plan
            Plan of this rank.
        settings
            Settings that must be equal on all ranks, by name, most important first.

        Returns
        -------
        tuple of str
            Host of each rank.

        Raises
        ------
        RankError
            Naming the rank that differs and the setting or, if plans differ, the first
            operation that differs; or naming the rank that does not arrive.
        """
        own = Handshake(
            terms={**settings, "plan": plan.digest},
            node=platform.node(),
            pid=os.getpid(),
            space=pid_namespace(),
            nonce=uuid.uuid4().hex,
        )

        def judge(handshakes: list[Handshake]) -> dict[str, Any]:
            found = find_mismatch(handshakes)
            if isinstance(found, tuple):
                return {"compare": list(found)}
            return (
                _failure(found) if found else {"rows": [asdict(o) for o in handshakes]}
            )

        answer = self._round_of(own, judge)
        if "compare" in answer:
            self._raise_failure(self._compare(plan, answer["compare"]))
        handshakes = [Handshake(**row) for row in answer["rows"]]
        if handshakes[self._rank_env.rank].nonce != own.nonce:
            raise RankError(
                f"met another replay at {where()} instead of rank 0: give each its own "
                "MASTER_PORT",
                rank=self._rank_env.rank,
                operation=PLACE,
                cause="own",
            )
        self._handshakes, self._round = handshakes, "needs"
        return tuple(o.node for o in handshakes)

    def announce(self, *, pool: str, needs: int, free: int | None) -> None:
        """Check that each host has enough free memory for the buffers of its ranks.

        Parameters
        ----------
        pool
            Name of the memory: ranks of a host with the same name share it.
        needs
            Bytes that this rank will allocate.
        free
            Bytes that are free; None if unknown.

        Raises
        ------
        RankError
            Naming a rank of the host without enough memory.
        """
        own = MemoryNeed(
            node=platform.node(),
            pool=pool,
            needs=needs,
            free=-1 if free is None else free,
        )

        def judge(every: list[MemoryNeed]) -> dict[str, Any]:
            found = find_memory_shortage(every)
            return _failure(found) if found else {"rows": []}

        self._round_of(own, judge)
        self._round = ""

    def _round_of(
        self, own: Row, judge: Callable[[list[Row]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Store this rank's row, let rank 0 check all rows, and return its answer."""
        name = self._round
        self._store.put(f"{name}/{self._rank_env.rank}", asdict(own))
        if self._rank_env.rank == 0:
            answer = self._collect(name, type(own), judge)
            self._store.put(f"{name}/answer", answer)
        else:
            # rank 0 waits for others only once it has arrived itself
            arrived = self._store.expect(f"{name}/0")
            found = arrived and self._store.expect(
                f"{name}/answer", 2 * self._patience_s
            )
            answer = found or _failure(self._absent(0))
        self._raise_failure(answer)
        return answer

    def _collect(
        self,
        name: str,
        kind: type[Row],
        judge: Callable[[list[Row]], dict[str, Any]],
    ) -> dict[str, Any]:
        """Collect and check, on rank 0, the rows of all ranks."""
        rows: list[Row] = []
        until = time.monotonic() + self._patience_s
        for rank in range(self._rank_env.world):
            row = self._store.expect(f"{name}/{rank}", until - time.monotonic())
            if row is None:
                return _failure(self._absent(rank))
            if "failure" in row:
                return row
            try:
                rows.append(kind(**row))
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
        return judge(rows)

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
        if self._rank_env.rank in pair:
            sums = plan.checksum.astype("<u4").tobytes()
            self._store.put_bytes(f"plan/{self._rank_env.rank}", sums)
        if self._rank_env.rank != 0:
            return self._store.expect("difference") or _failure(self._absent(0))
        found = []
        for rank in pair:
            if not self._store.wait(f"plan/{rank}", self._patience_s):
                return _failure(self._absent(rank))
            found.append(np.frombuffer(self._store.get_bytes(f"plan/{rank}"), "<u4"))
        usual, other = found
        both = min(len(usual), len(other))
        differ = np.flatnonzero(usual[:both] != other[:both])
        first = int(differ[0]) if len(differ) else both
        answer = _failure(
            RankError(
                f"has another plan than rank {pair[0]} ({len(other)} operations, not "
                f"{len(usual)}; this is the first that differs): give every rank the "
                "same trace",
                rank=pair[1],
                operation=plan.name(first) if first < len(plan) else "the plan's end",
                cause="mismatch",
            )
        )
        self._store.put("difference", answer)
        return answer

    def _absent(self, rank: int) -> RankError:
        return RankError(
            f"did not arrive within {self._patience_s:g} s: start all ranks at about "
            "the same time, or raise --start-timeout",
            rank=rank,
            operation=PLACE,
            cause="peer",
        )

    # ---- failure -----------------------------------------------------------------

    @contextmanager
    def reporting(
        self, position: Callable[[], int], namer: Callable[[int], str]
    ) -> Iterator[None]:
        """Report errors in the block to the other ranks, and find the root cause.

        Parameters
        ----------
        position
            Number of operations entered and left by this rank, as the heartbeat
            counts them.
        namer
            Returns the name of the n-th operation that this rank entered, for errors
            that do not name one; not used under a supervisor.

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
            self._linger()
            if mine.cause == "peer" and self._handshakes:
                raise self._root_cause(mine) from error
            if isinstance(error, RankError) or not self._is_only_failure(mine):
                raise
            raise RankError(
                f"failed: {mine.message}",
                rank=mine.rank,
                operation=mine.operation,
                cause="own",
            ) from error

    def _linger(self) -> None:
        """Delay the exit of rank 0, so that others can read its report in the store."""
        if self._rank_env.rank or not self._round:
            return
        until = time.monotonic() + _GRACE_S
        try:
            for rank in range(1, self._rank_env.world):
                here = f"{self._round}/{rank}"
                self._store.wait(here, max(0.0, until - time.monotonic()))
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
                other = self._store.expect(f"report/{rank}", patience_s)
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
            self._store.put(f"report/{report.rank}", asdict(report))
            if self._round:  # rank 0 waits for this rank, or all ranks for rank 0
                failure = _failure(
                    RankError(
                        f"failed: {report.message}",
                        rank=report.blames,
                        operation=report.operation,
                        cause="own",
                    ),
                    told=True,
                )
                self._store.put(f"{self._round}/{report.rank}", failure)
                if report.rank == 0:
                    self._store.put(f"{self._round}/answer", failure)
        except RankError:
            return report  # the store ended with the host that served it
        return report

    def _lost_neighbors(self) -> dict[str, str]:
        """Find ranks of this host whose processes have stopped or ended."""
        states = {
            rank: state_of(self._handshakes[rank].pid) for rank in self._neighbors()
        }
        return {str(r): state for r, state in states.items() if state != "running"}

    def _neighbors(self) -> list[int]:
        """List the ranks whose processes this rank can see, after the handshake."""
        mine = self._handshakes[self._rank_env.rank] if self._handshakes else None
        return [
            rank
            for rank, handshake in enumerate(self._handshakes)
            if mine and (handshake.node, handshake.space) == (mine.node, mine.space)
        ]

    def _root_cause(self, mine: Report) -> RankError:
        """Wait briefly for the reports of the other ranks, and find the root cause."""
        reports = {mine.rank: mine}
        missing = set(range(self._rank_env.world)) - {mine.rank}
        until = time.monotonic() + _GRACE_S
        try:
            while missing and time.monotonic() < until:
                for rank in sorted(missing):
                    if self._store.wait(f"report/{rank}", 0.0):
                        reports[rank] = Report(**self._store.get(f"report/{rank}"))
                        missing.discard(rank)
                if any(r.cause != "peer" for r in reports.values()):
                    break
                time.sleep(_POLL_S)
        except RankError:
            # the others are ending as well, and cannot report it
            missing = missing if served_by_agent() else {0}
            reports.pop(0, None)
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
