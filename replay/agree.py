"""Agreement of the ranks through a store that is independent of the backend.

Before any group of the backend is made, every rank stores its versions, options and the
digest of its plan, which covers every size.  Rank 0 compares them, so that an error
names a rank with other operations before any rank hangs in them.  Memory, clocks, times
and the first failure pass through the store as well: the backend under test carries
only what is replayed.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._C._distributed_c10d import PrefixStore, Store

from moetraffic.capture.clock_offset import measure_offset
from moetraffic.launch.blame import Namer, pid_namespace
from moetraffic.launch.board import Board, Cause, State, own
from moetraffic.launch.environment import RankEnvironment
from moetraffic.trace.model import CLOCK
from moetraffic.units import byte_size, rank_span

from .failure import RankError, Watchdog, first_line, reporting
from .store import PLACE, connected, served_by_agent

AGREEMENT = "the agreement on the plan"
PLAN = "plan"
"""Setting that is the digest of the plan: of groups, times and all bytes."""

GATHERED = 64
"""Ranks whose arrays are in the store at a time."""
CHUNK_BYTES = 4 << 20
"""Largest value that is stored: torch's server refuses more than 8 MiB."""
POLL_S = 0.002, 0.2  # interval between two reads: at first, at most
SPARE_S = 2.0  # of the start timeout, at most: kept to report who is missing

Array = npt.NDArray[Any]


@contextmanager
def meeting(
    rank_env: RankEnvironment,
    namer: Namer,
    *,
    start_s: float,
    silence_s: float,
    grace_s: float,
) -> Iterator[Meeting]:
    """Be a rank: meet the others, report failures, keep the deadlines of a watchdog.

    ``namer`` names operations of this and other ranks; deadlines are those of
    :class:`~moetraffic.replay.failure.Watchdog`, which a supervisor replaces.
    """
    began_s = time.monotonic()
    torch.set_num_threads(1)
    own().note(PLACE, State.STARTING)
    watchdog = None
    if not own().supervised:
        # rank 0 may have started later, by as much
        watchdog = Watchdog(
            namer, start_s=2 * start_s, silence_s=silence_s, grace_s=grace_s
        )
    met = Meeting(rank_env, start_s, began_s)
    own().note("start-up")
    with reporting(met, namer):
        yield met
    own().note("", State.DONE)
    if watchdog is not None:
        watchdog.stop()


class Meeting:
    """Store shared by all ranks of a replay, as seen by one of them.

    Ranks are awaited until shortly before ``start_timeout_s`` after ``began_s``, a time
    of ``time.monotonic()``, at which a watchdog ends this rank.  Every method raises a
    RankError if the store is lost, or if a rank has failed that this one waits for.
    """

    def __init__(
        self, rank_env: RankEnvironment, start_timeout_s: float, began_s: float
    ) -> None:
        self.rank, self.world, _ = rank_env
        self.start_timeout_s = start_timeout_s
        self.until_s = began_s + start_timeout_s - min(0.2 * start_timeout_s, SPARE_S)
        self.hosts: list[str] = []  # by rank, once all agree
        self.pids: dict[int, int] = {}  # of the other ranks on this host's board
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = connected(rank_env, self._left_s(), start_timeout_s)
        self.store: Store = PrefixStore(f"moetraffic/replay/{restart}", store)

    def _left_s(self) -> float:
        """Time for which others are still awaited, s."""
        return max(self.until_s - time.monotonic(), 0.05)

    # ---- values ------------------------------------------------------------------

    def put(self, key: str, value: bytes | str = "") -> None:
        """Store a value."""
        with self._reached():
            self.store.set(key, value)  # type: ignore[arg-type]

    def wait(self, key: str, within_s: float) -> bool:
        """Wait for a key; return whether it was stored in time.

        Unlike the wait of torch's stores, it can be interrupted, and it ends by the
        failure of another rank.
        """
        until_s = time.monotonic() + within_s
        pause, longest = POLL_S
        while True:
            with self._reached():
                if self.store.check([key]):
                    return True
            if (failed := self.failure()) is not None:
                raise failed
            if time.monotonic() + pause > until_s:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, longest)

    def get(self, key: str, sender: int = 0) -> bytes:
        """Wait for the value of a key, stored by a rank, and return it."""
        if not self.wait(key, self.start_timeout_s):
            raise RankError(
                f"did not send {key} within {self.start_timeout_s:g} s: look at its "
                "host, or raise --start-timeout",
                rank=sender,
                operation=AGREEMENT,
                cause=Cause.PEER,
                reporter=self.rank,
            )
        with self._reached():
            return bytes(self.store.get(key))

    def put_array(self, key: str, array: Array) -> None:
        """Store the bytes of an array, in values of at most CHUNK_BYTES."""
        raw = np.ascontiguousarray(array).tobytes()
        pieces = range(0, len(raw), CHUNK_BYTES)
        for number, first in enumerate(pieces):
            self.put(f"{key}/{number}", raw[first : first + CHUNK_BYTES])
        self.put(key, str(len(pieces)))

    def take_array(self, key: str, rank: int, like: Array) -> Array:
        """Take an array of a rank out of the store, of type and row shape as given."""
        keys = [f"{key}/{number}" for number in range(int(self.get(key, rank)))]
        raw = b"".join(self.get(piece, rank) for piece in keys)
        with self._reached():
            for piece in (key, *keys):
                self.store.delete_key(piece)
        return np.frombuffer(raw, like.dtype).reshape(-1, *like.shape[1:])

    def gather(self, name: str, array: Array) -> list[Array]:
        """Gather arrays of one type and row shape on rank 0; empty on other ranks.

        ``name`` is used once.  At most GATHERED ranks store theirs at a time.
        """
        if self.rank:
            self.get(f"{name}/from {self.rank // GATHERED}")
            self.put_array(f"{name}/{self.rank}", array)
            return []
        gathered = [array]
        for rank in range(1, self.world):
            if rank == 1 or rank % GATHERED == 0:
                self.put(f"{name}/from {rank // GATHERED}")
            gathered.append(self.take_array(f"{name}/{rank}", rank, array))
        return gathered

    def answer(self, name: str, find: Callable[[], str] = str) -> str:
        """Return on every rank what rank 0 finds; if it raises, others raise it too."""
        if self.rank == 0:
            found = find()
            self.put(f"{name}/answer", found)
            return found
        return self.get(f"{name}/answer").decode()

    # ---- the first failure -------------------------------------------------------

    def failure(self) -> RankError | None:
        """Return the first failure that a rank has claimed; None so far."""
        with self._reached():
            if not self.store.check(["failure"]):
                return None
            return self._read(self.store.get("failure"))

    def claim(self, error: RankError) -> RankError:
        """Claim that an error is the first failure of all ranks; return the first."""
        fields = [error.reason, error.rank, error.operation, self.rank]
        try:
            return self._read(self.store.compare_set("failure", "", json.dumps(fields)))
        except RuntimeError:
            return error  # the store ended with the host that served it

    def _read(self, text: bytes) -> RankError:
        reason, rank, operation, reporter = json.loads(bytes(text))
        return RankError(
            reason,
            rank=rank,
            operation=operation,
            cause=Cause.OWN if reporter == self.rank else Cause.PEER,
            reporter=reporter,
        )

    def mark_failed(self) -> None:
        """Tell the other ranks that this one has noticed a failure, and will end."""
        with suppress(RuntimeError):  # the store ended with the host that served it
            self.store.set(f"failed/{self.rank}", "")
            self.store.add("failed", 1)

    def missing(self, error: RankError, grace_s: float) -> RankError:
        """Name a rank that has noticed nothing, after a failure that nobody explains.

        One rank looks for it, and the others wait for its result.
        """
        try:
            own_number = str(self.rank)
            if self.store.compare_set("scan", "", own_number) != own_number.encode():
                self.wait("failure", 2 * grace_s)
                return self.failure() or error
            lost = self._without("failed/{}")
        except RankError as reported:
            return reported
        except RuntimeError:
            return error  # the store ended with the host that served it
        if not lost:
            return self.claim(error)
        rest = f" (nor did {rank_span(lost[1:])})" if lost[1:] else ""
        host = f", {self.hosts[lost[0]]}" if self.hosts else ""
        reason = f"did not answer{rest}: look at its host{host}"
        return self.claim(RankError(reason, rank=lost[0], operation=error.operation))

    def linger(self, first: RankError, grace_s: float) -> None:
        """Delay the exit of the rank that serves the store, so that others can read."""
        until_s = time.monotonic() + 2 * grace_s
        if self.rank or served_by_agent():
            return
        with suppress(RuntimeError):
            while time.monotonic() < until_s:
                silent = not self.store.check([f"failed/{first.rank}"])
                if self.store.add("failed", 0) + silent >= self.world:
                    break
                time.sleep(0.05)
            time.sleep(0.3)  # time to read it

    def _without(self, key: str) -> list[int]:
        """List the ranks for which a key, formatted with the rank, is not stored."""
        return [r for r in range(self.world) if not self.store.check([key.format(r)])]

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"is lost, and with it the rendezvous: {first_line(error)}",
                rank=0,
                operation=PLACE,
                cause=Cause.PEER,
                reporter=self.rank,
            ) from error

    # ---- agreements --------------------------------------------------------------

    def handshake(self, settings: Mapping[str, str]) -> list[str]:
        """Check that all ranks have the same settings; return hosts by rank.

        The most important comes first; the digest of the plan is one of them.

        Raises
        ------
        RankError
            Naming the rank that differs and the setting, or the ranks that did not
            arrive.
        """
        place = platform.node(), pid_namespace(), os.getpid()
        self.put(f"rank/{self.rank}", json.dumps([settings, place]))
        if self.rank and not self.wait("rank/0", self._left_s()):
            raise self._absent()

        def collect() -> str:
            rows = []
            for rank in range(self.world):
                if not self.wait(f"rank/{rank}", self._left_s()):
                    raise self._absent()
                rows.append(json.loads(self.get(f"rank/{rank}", rank)))
            check_equal([settings for settings, _ in rows])
            return json.dumps([place for _, place in rows])

        places = json.loads(self.answer("handshake", collect))
        self.hosts = [host for host, *_ in places]
        *here, _ = places[self.rank]
        pids = {r: pid for r, (*there, pid) in enumerate(places) if there == here}
        if not own().supervised and len(pids) > 1:
            self._share_board(pids)
        return self.hosts

    def _share_board(self, pids: dict[int, int]) -> None:
        """Move the row of this rank to a board of all ranks of this host."""
        first = min(pids)
        try:
            if self.rank == first:
                own().move(Board(self.world), self.rank)
                self.put(f"board/{first}", own().board.path)
            else:
                path = self.get(f"board/{first}", first).decode()
                own().move(Board(path=path), self.rank)
        except OSError:
            return  # without it, others name a failure of this host's ranks
        self.pids = {rank: pid for rank, pid in pids.items() if rank != self.rank}

    def _absent(self) -> RankError:
        """Build the error that names all ranks that have not arrived."""
        with self._reached():
            missing = self._without("rank/{}") or [0]
        others = f" (with it, missing: {rank_span(missing)})" * (len(missing) > 1)
        return RankError(
            f"did not arrive within {self.start_timeout_s:g} s{others}, while "
            f"{self.world - len(missing)} of {self.world} ranks did: start all ranks "
            "at about the same time, look at the hosts of those that are missing, or "
            "raise --start-timeout",
            rank=missing[0],
            operation=PLACE,
            cause=Cause.MISMATCH,
        )

    def memory(self, need: int, free: int | None) -> None:
        """Check that the ranks of each host find enough memory for their buffers.

        ``need`` bytes are allocated by this rank, where ``free`` are; None if unknown.
        """
        row = np.array([[need, np.iinfo(np.int64).max if free is None else free]])
        gathered = self.gather("memory", row)

        def check() -> str:
            table = np.concatenate(gathered)
            for host in dict.fromkeys(self.hosts):
                ranks = [r for r, other in enumerate(self.hosts) if other == host]
                needed, least = int(table[ranks, 0].sum()), int(table[ranks, 1].min())
                if needed <= least:
                    continue
                rest = f" and those of {len(ranks) - 1} more ranks"
                raise RankError(
                    f"has too little memory: its buffers{rest * (len(ranks) > 1)} need "
                    f"{byte_size(needed)} on {host}, where {byte_size(least)} are "
                    "free: replay on more or larger hosts, or fewer bytes",
                    rank=ranks[0],
                    operation="start-up",
                    cause=Cause.MISMATCH,
                )
            return ""

        self.answer("memory", check)

    def clocks(self, moment: str) -> npt.NDArray[Any]:
        """Measure the clock offsets of all ranks to rank 0; every rank must call it.

        Measured before and after a pass, they give the drift of each clock during it,
        which :func:`moetraffic.trace.clock.to_common` interpolates.  ``moment`` is used
        once.  ``[R]`` of type CLOCK on rank 0, ``[0]`` elsewhere.

        Raises
        ------
        RankError
            If the clock of a host could not be read: times of its ranks would be
            compared with those of others that are hours apart.
        """
        knot, _ = measure_offset(self.store, self.rank, self.world, moment)
        gathered = self.gather(f"clocks of {moment}", knot)
        for rank, rows in enumerate(gathered):
            if not len(rows):
                raise RankError(
                    "and rank 0 could not compare their clocks (host "
                    f"{self.hosts[rank]}): allow connections between the hosts on any "
                    "port",
                    rank=rank,
                    operation="the measurement of clocks",
                    cause=Cause.MISMATCH,
                )
        return np.concatenate([np.zeros(0, CLOCK), *gathered])


def check_equal(settings: Sequence[Mapping[str, str]]) -> None:
    """Check that the settings of all ranks are the same.

    Raises
    ------
    RankError
        Naming a rank that differs from most others, and what differs.
    """
    for name in dict.fromkeys(name for row in settings for name in row):
        values = [row.get(name, "none") for row in settings]
        (usual, _), *others = Counter(values).most_common()  # ties: the first
        if not others:
            continue
        common = values.index(usual)
        other = next(r for r, value in enumerate(values) if value != usual)
        what = f"{name} {values[other]}, while rank {common} has {usual}"
        if name == PLAN:
            what = f"another plan than rank {common}"
        raise RankError(
            f"has {what}: give every rank the same trace, software and options",
            rank=other,
            operation=AGREEMENT,
            cause=Cause.MISMATCH,
        )
