"""The faults of the campaign in replay_faults.py, as they are laid into a rank.

Every Python process of a run loads this file when it starts; :func:`arm` changes the
one rank that the environment names, and does nothing anywhere else.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULT = "MOETRAFFIC_FAULT"
"""The fault as JSON; its run's name in it marks every process of the run."""

LAUNCHERS = ("replay", "torchrun", "shell")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault in one run."""

    run: str
    kind: str
    launcher: str
    ranks: int
    rank: int
    operation: int  # n-th of the rank's program, counted over both passes
    verify: str
    number: int  # the signal, for those that end a rank by one
    options: tuple[str, ...]  # of all ranks


class Tripwire:
    """A rank's counter of operations, that does something before the n-th."""

    def __init__(self, counter: Any, operation: int, then: Callable[[], object]):
        self._counter, self._at, self._then = counter, 2 * operation + 1, then

    def __getitem__(self, at: int) -> int:
        return int(self._counter[at])

    def __setitem__(self, at: int, value: int) -> None:
        self._counter[at] = value
        if value == self._at:
            self._then()


def arm() -> None:
    """Lay the fault into this process, if it is the rank that shall have it."""
    said = os.environ.get(FAULT)
    if not said or "RANK" not in os.environ:
        return
    fault = Fault(**json.loads(said))
    rank = int(os.environ["RANK"])
    if rank == fault.rank or (rank > fault.rank and FAULTS[fault.kind].and_above):
        FAULTS[fault.kind].arm(fault)


def at_operation(then: Callable[[Fault], object]) -> Callable[[Fault], None]:
    """A fault that strikes when the rank enters an operation."""

    def lay(fault: Fault) -> None:
        from moetraffic.launch.board import Board, OwnRow

        plain = OwnRow._map

        def mapped(row: OwnRow, board: Board) -> None:
            plain(row, board)
            row.counter = Tripwire(  # type: ignore[assignment]
                row.counter, fault.operation, lambda: then(fault)
            )

        OwnRow._map = mapped  # type: ignore[method-assign]

    return lay


def kill(fault: Fault) -> None:
    """End without a word."""
    os.kill(os.getpid(), fault.number)
    time.sleep(1000)


def stop(_: Fault) -> None:
    """Stand still."""
    os.kill(os.getpid(), signal.SIGSTOP)


def interrupt(_: Fault) -> None:
    """Press Ctrl-C: the launcher gets it, as the ranks have sessions of their own."""
    os.kill(os.getppid(), signal.SIGINT)


def crash(_: Fault) -> None:
    """Fail for a reason that nobody foresaw."""
    raise KeyError("laid by the campaign")


def other_trace(name: str) -> Callable[[Fault], None]:
    """Have another file where the trace should be."""

    def lay(_: Fault) -> None:
        from moetraffic.trace.trace import Trace

        plain = Trace.open

        def opened(path: Path, **named: Any) -> Trace:
            return plain(Path(path).with_name(name), **named)

        Trace.open = opened  # type: ignore[method-assign,assignment]

    return lay


def other_version(_: Fault) -> None:
    """Be another version of moetraffic."""
    import moetraffic

    moetraffic.__version__ = "0.0.1"


def other_option(_: Fault) -> None:
    """Be started with another option."""
    from moetraffic.replay.options import Options

    plain = Options.common
    Options.common = lambda self: {  # type: ignore[method-assign]
        **plain(self),
        "timeout_s": "2.5",
    }


def little_memory(_: Fault) -> None:
    """See next to no free memory."""
    from moetraffic.launch import devices

    devices.available_bytes = lambda: 100


def full_disk(_: Fault) -> None:
    """Have no room for the output, when it comes to writing it."""
    plain = os.pwrite

    def pwrite(fd: int, data: Any, at: int) -> int:
        if "/out/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(28, "No space left on device")
        return plain(fd, data, at)

    os.pwrite = pwrite


def laid_outside(_: Fault) -> None:
    """Laid by the campaign: another program at MASTER_PORT, or a rank not started."""


def late_start(fault: Fault) -> None:
    """Begin after the others have given up."""
    time.sleep(FAULTS[fault.kind].start_timeout_s + 40)  # theirs begins later
    os._exit(1)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault: how it is laid, and what the sentence must say."""

    arm: Callable[[Fault], None]
    about: str  # what happens, for the table of docs/reliability.md
    reported: str  # in words, for that table
    said: str  # after rank and operation; a regular expression
    agreed: bool = False  # found by comparing ranks: of two, the second is named
    named: bool = True  # whether rank and operation are named
    code: int = 2  # of moetraffic replay, or of a rank that reports without it
    place: str = ""  # the operation, where it is not the one at which it strikes
    launchers: tuple[str, ...] = LAUNCHERS
    rank: int | None = None  # the only rank that can have it
    weight: float = 1.0
    and_above: bool = False  # whether the ranks above have it too
    start_timeout_s: float = 45.0  # torch alone may take 20 s to import
    options: tuple[tuple[str, ...], ...] = ((),)  # of all ranks; one is drawn


# torchrun and the shell have no supervisor that sees how a rank ended
GONE = "was ended by SIG|ended without an error report|did not answer"
ABSENT = "did not arrive within"
FAULTS = {
    "killed": Kind(
        arm=at_operation(kill),
        about="a rank is killed (KILL, SEGV, BUS or ABRT)",
        reported="the signal; without a supervisor, that the rank ended without a "
        "report",
        said=GONE,
        weight=3,
    ),
    "stopped": Kind(
        arm=at_operation(stop),
        about="a rank is stopped (SIGSTOP)",
        reported="that it was stopped",
        said="was stopped by a signal",
        launchers=("replay", "torchrun"),  # srun ends what is left; a shell does not
        weight=2,
    ),
    "late": Kind(
        arm=at_operation(lambda _: time.sleep(1000)),
        about="a rank does not go on",
        reported="that it did not respond",
        said="did not answer|did not go on",  # by others, or by its own watchdog
        weight=2,
    ),
    "crashed": Kind(
        arm=at_operation(crash),
        about="a rank fails by an unforeseen exception",
        reported="the exception",
        said="KeyError",
    ),
    "left": Kind(
        arm=at_operation(lambda _: os._exit(0)),
        about="a rank exits with code 0 in the middle",
        reported="that it ended early",
        said=f"ended early, without an error|{GONE}",
    ),
    "other trace": Kind(
        agreed=True,
        arm=other_trace("other.h5"),
        about="one rank has another trace",
        reported="that its plan differs",
        said="another plan than rank",
        place="the agreement",
    ),
    "missing file": Kind(
        arm=other_trace("gone.h5"),
        about="one rank has no file",
        reported="the missing file",
        said="gone.h5",
        place="start-up",
        weight=3,
    ),
    "damaged file": Kind(
        arm=other_trace("damaged.h5"),
        about="one rank has a damaged file",
        reported="the defect of the file",
        said="damaged.h5",
        place="start-up",
        weight=2,
    ),
    "other version": Kind(
        agreed=True,
        arm=other_version,
        about="one rank has another version of moetraffic",
        reported="both versions",
        said="has moetraffic 0.0.1",
        place="the agreement",
    ),
    "other option": Kind(
        agreed=True,
        arm=other_option,
        about="one rank has another option",
        reported="the option and its value",
        said="has timeout_s 2.5",
        place="the agreement",
    ),
    "no memory": Kind(
        arm=little_memory,
        about="too little memory for the buffers",
        reported="how much the ranks of that host need, and how much is free, before "
        "it is allocated",
        said="has too little memory",
        place="start-up",
        rank=0,  # the first of the host, whichever of its ranks sees too little
    ),
    "full disk": Kind(
        arm=full_disk,
        about="the disk is full when the trace is written",
        reported="where the trace is stored instead: no measurement is lost",
        said="No space left on device.*is kept as",
        place="the writing of the trace",
        rank=0,
        weight=3,
    ),
    "port in use": Kind(
        arm=laid_outside,
        about="another program listens at MASTER_PORT",
        reported="the port and its host",
        said="cannot listen on",
        place="the rendezvous",
        launchers=("shell",),
        rank=0,
    ),
    "not started": Kind(
        arm=laid_outside,
        about="a rank is not started",
        reported="which ranks did not arrive; rank 0, which serves the rendezvous, is "
        "named by each of the others",
        said=ABSENT,
        place="the rendezvous",
        launchers=("shell",),
        weight=3,
        start_timeout_s=25.0,
    ),
    "late start": Kind(
        arm=late_start,
        about="a rank starts after the others have given up",
        reported="the same",
        said=f"{ABSENT}|did not answer",
        place="(the rendezvous|start-up)",
        weight=2,
        start_timeout_s=25.0,
    ),
    "mixed traces": Kind(
        arm=other_trace("other.h5"),
        about="several ranks have another trace",
        reported="the lowest of the fewer ranks",
        said="another plan than rank",
        place="the agreement",
        and_above=True,
        weight=3,
    ),
    "other times": Kind(
        agreed=True,
        arm=other_trace("times.h5"),
        about="a trace with the same bytes and other times, at any pace",
        reported="the same",
        said="another plan than rank",
        place="the agreement",
        weight=2,
        options=((), ("--pace", "captured")),
    ),
    "interrupted": Kind(
        arm=at_operation(interrupt),
        about="Ctrl-C, or SIGINT to the launcher",
        reported="that it was interrupted",
        said="interrupted before it was done",
        named=False,
        code=130,
        launchers=("replay",),
        weight=2,
    ),
}

CODES = {"torchrun": 1}
"""Exit codes of launchers that have their own, whatever the fault."""


def table() -> list[str]:
    """Return the rows of the table of faults in docs/reliability.md."""
    names = {"replay": "`moetraffic replay`", "torchrun": "torchrun", "shell": "srun"}
    return [
        f"| {kind.about} | {', '.join(names[one] for one in kind.launchers)} | "
        f"{kind.reported} | {kind.code} |"
        for kind in FAULTS.values()
    ]
