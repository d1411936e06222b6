"""Where the ranks of a replay meet: a store beside the backend.

Before any group of the backend is made, every rank lays down its *terms*: versions,
options, the digest of its plan.  Rank 0 compares them, and all ranks read its answer;
so a rank that would make other groups, or hang in them, is named first.  A rank that
fails leaves a report, and where no supervisor looks at all ranks (torchrun, srun), the
others read from the reports who failed first.

The names of the store's keys must stay what they are: another version reads them.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from moetraffic.launch import RankEnvironment, heartbeat
from moetraffic.launch.rank_process import pid_namespace, state_of
from moetraffic.replay.failure import RankError, lost
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.process_exit import told

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
_LOOK_S = 0.05
_SAME_S = 1.0  # ranks meet the same obstacle within this time

Row = TypeVar("Row", Handshake, MemoryNeed)


@dataclass(frozen=True, kw_only=True)
class _Failure:
    rank: int
    operation: str
    message: str
    told: bool  # by that rank itself, which says it; else found by rank 0


class Rendezvous:
    """What the ranks tell each other beside the backend.

    Parameters
    ----------
    rank_env
        Which rank this is.
    patience_s
        How long to wait for other ranks, each time.

    Raises
    ------
    RankError
        If the place to meet cannot be reached, or another program has it.
    """

    def __init__(self, rank_env: RankEnvironment, patience_s: float) -> None:
        self._rank_env = rank_env
        self._patience_s = patience_s
        self._store = Store(rank_env, patience_s)
        self._round = "terms"  # the next in which rank 0 answers
        self._handshakes: list[Handshake] = []

    # ---- agreement ---------------------------------------------------------------

    def agree(self, plan: Plan, terms: Mapping[str, str]) -> tuple[str, ...]:
        """Make sure that all ranks replay the same in the same way.

        Parameters
        ----------
        plan
            This rank's.
        terms
            What must be the same on all ranks, by name, the most telling first.

        Returns
        -------
        tuple of str
            Each rank's host.

        Raises
        ------
        RankError
            Naming the rank that differs and in what, for another plan the first
            operation; or the rank that does not come.
        """
        own = Handshake(
            terms={**terms, "plan": plan.digest},
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

        answer = self._meet(own, judge)
        if "compare" in answer:
            self._refuse(self._compare(plan, answer["compare"]))
        handshakes = [Handshake(**row) for row in answer["rows"]]
        if handshakes[self._rank_env.rank].nonce != own.nonce:
            raise self._foreign()
        self._handshakes, self._round = handshakes, "needs"
        return tuple(o.node for o in handshakes)

    def announce(self, *, pool: str, needs: int, free: int | None) -> None:
        """Make sure that what all ranks will allocate is there.

        Parameters
        ----------
        pool
            Which memory: ranks of a host whose pools have one name share it.
        needs
            Bytes that this rank will allocate.
        free
            Bytes that are free; None if the system does not tell.

        Raises
        ------
        RankError
            Naming a rank of the host where they are not.
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

        self._meet(own, judge)
        self._round = ""

    def _meet(
        self, own: Row, judge: Callable[[list[Row]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Lay down something; rank 0 judges what all have laid down; all are told."""
        name = self._round
        self._store.put(f"{name}/{self._rank_env.rank}", asdict(own))
        if self._rank_env.rank == 0:
            answer = self._collect(name, type(own), judge)
            self._store.put(f"{name}/answer", answer)
        else:
            # rank 0 waits for others only when it is here itself
            here = self._store.expect(f"{name}/0")
            told = here and self._store.expect(f"{name}/answer", 2 * self._patience_s)
            answer = told or _failure(self._absent(0))
        self._refuse(answer)
        return answer

    def _collect(
        self,
        name: str,
        kind: type[Row],
        judge: Callable[[list[Row]], dict[str, Any]],
    ) -> dict[str, Any]:
        """Rank 0: what all ranks are told."""
        rows: list[Row] = []
        until = time.monotonic() + self._patience_s
        for rank in range(self._rank_env.world):
            said = self._store.expect(f"{name}/{rank}", until - time.monotonic())
            if said is None:
                return _failure(self._absent(rank))
            if "failure" in said:
                return said
            try:
                rows.append(kind(**said))
            except TypeError:
                version = said.get("terms", {}).get("moetraffic", "of another version")
                return _failure(
                    RankError(
                        f"has moetraffic {version}, which does not speak as rank 0's "
                        "does: install the same version on every host",
                        rank=rank,
                        operation=AGREEMENT,
                        cause="mismatch",
                    )
                )
        return judge(rows)

    def _refuse(self, answer: Mapping[str, Any]) -> None:
        if "failure" not in answer:
            return
        failure = _Failure(**answer["failure"])
        # rank 0, which has found it, and the culprit say it; the others were told
        first = not failure.told and self._rank_env.rank in (0, failure.rank)
        raise RankError(
            failure.message,
            rank=failure.rank,
            operation=failure.operation,
            cause="mismatch" if first else "peer",
        )

    def _compare(self, plan: Plan, pair: Sequence[int]) -> dict[str, Any]:
        """All ranks: find where two plans differ, and read what rank 0 found."""
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
            f"did not come within {self._patience_s:g} s: start all ranks at about the "
            "same time, or raise --start-timeout",
            rank=rank,
            operation=PLACE,
            cause="peer",
        )

    def _foreign(self) -> RankError:
        return RankError(
            f"met another replay at {where()} instead of rank 0: give each its own "
            "MASTER_PORT",
            rank=self._rank_env.rank,
            operation=PLACE,
            cause="own",
        )

    # ---- failure -----------------------------------------------------------------

    @contextmanager
    def reporting(
        self, position: Callable[[], int], namer: Callable[[int], str]
    ) -> Iterator[None]:
        """Inside, an error is left for the other ranks, and theirs are read.

        Parameters
        ----------
        position
            How many operations this rank has entered and left, as the heartbeat
            counts them.
        namer
            Names the n-th operation that it entered, for errors that do not say where
            they happened; a supervisor knows better.

        Raises
        ------
        RankError
            Instead of one that only says that another rank is lost: naming who failed
            first, as far as the ranks know.  Under a supervisor, which knows more, it
            stays as it is.
        """
        try:
            yield
        except Exception as error:
            mine = self._leave(error, position(), namer)
            if heartbeat.supervised():
                raise
            self._linger()
            if mine.cause == "peer" and self._handshakes:
                raise self._ask(mine) from error
            if isinstance(error, RankError) or not self._alone(mine):
                raise
            raise RankError(
                f"failed: {mine.message}",
                rank=mine.rank,
                operation=mine.operation,
                cause="own",
            ) from error

    def _linger(self) -> None:
        """Rank 0, who may have the store: let others hear why it ends, for a moment."""
        if self._rank_env.rank or not self._round:
            return
        until = time.monotonic() + _GRACE_S
        try:
            for rank in range(1, self._rank_env.world):
                here = f"{self._round}/{rank}"
                self._store.wait(here, max(0.0, until - time.monotonic()))
        except RankError:
            return
        time.sleep(_LOOK_S * 4)  # to read it

    def _alone(self, mine: Report) -> bool:
        """Whether this happens to this rank alone; if to all, rank 0 says it."""
        others = range(1, self._rank_env.world) if mine.rank == 0 else (0,)
        patience_s = 0.0 if mine.rank == 0 else _SAME_S
        try:
            for rank in others:
                told = self._store.expect(f"report/{rank}", patience_s)
                if told is None or mine.message not in told["message"]:
                    return True
                if told["blames"] == mine.rank:
                    return True  # it heard of it from this rank, and tells it again
                if mine.rank == 0 and told["cause"] == "peer":
                    return True  # it was told what rank 0 lacks, and has it itself
        except RankError:
            return False  # the store ended with rank 0, which has said why
        return False

    def _leave(
        self, error: Exception, entered: int, namer: Callable[[int], str]
    ) -> Report:
        place, fields = told(error)
        if entered and not place and not heartbeat.supervised():
            place = namer(entered // 2)
        if isinstance(error, RuntimeError):
            fields["cause"] = lost(self._rank_env.rank, place, error).cause
        report = Report(
            rank=self._rank_env.rank,
            operation=place,
            message=str(fields["message"]),
            cause=str(fields["cause"]),
            blames=int(fields.get("blames", self._rank_env.rank)),
            entered=entered,
            seen=self._look_around(),
        )
        try:
            self._store.put(f"report/{report.rank}", asdict(report))
            if self._round:  # rank 0 waits for this rank, or all for rank 0
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
            return report  # the store is gone with its host: nobody reads it
        return report

    def _look_around(self) -> dict[str, str]:
        """What became of the ranks of this host, where that can be seen."""
        states = {rank: state_of(self._handshakes[rank].pid) for rank in self._near()}
        return {str(r): state for r, state in states.items() if state != "running"}

    def _near(self) -> list[int]:
        """The ranks whose processes can be seen from here, once all have met."""
        mine = self._handshakes[self._rank_env.rank] if self._handshakes else None
        return [
            rank
            for rank, handshake in enumerate(self._handshakes)
            if mine and (handshake.node, handshake.space) == (mine.node, mine.space)
        ]

    def _ask(self, mine: Report) -> RankError:
        """Wait a moment for the other ranks' reports, and judge."""
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
                time.sleep(_LOOK_S)
        except RankError:
            # the others are leaving as well, and cannot say so
            missing = missing if served_by_agent() else {0}
            reports.pop(0, None)
        return find_root_cause(reports, missing, self._last_sight(missing, until))

    def _last_sight(self, missing: Collection[int], until: float) -> dict[str, str]:
        """What became of the ranks of this host, those that are ending included.

        A process that is killed closes its connections before it is gone: who hears
        of it by them may look too early.
        """
        near = {str(r) for r in self._near() if r in missing}
        while True:
            seen = self._look_around()
            if near <= seen.keys() or time.monotonic() >= until:
                return seen
            time.sleep(_LOOK_S)


def _failure(error: RankError, *, told: bool = False) -> dict[str, Any]:
    failure = _Failure(
        rank=error.rank, operation=error.operation, message=error.reason, told=told
    )
    return {"failure": asdict(failure)}
