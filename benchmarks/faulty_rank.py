"""The faults of the campaign in replay_faults.py, as they are laid into a rank.

Every Python process of a run loads this file when it starts; :func:`arm` changes the
one rank that the environment names, and does nothing anywhere else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
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
        from moetraffic.launch import heartbeat

        plain = heartbeat.counter
        heartbeat.counter = lambda: Tripwire(  # type: ignore[assignment,return-value]
            plain(), fault.operation, lambda: then(fault)
        )

    return lay


def kill(fault: Fault) -> None:
    """End without a word."""
    os.kill(os.getpid(), fault.number)
    time.sleep(1000)


def stop(_: Fault) -> None:
    """Stand still."""
    os.kill(os.getpid(), signal.SIGSTOP)


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


def wrong_splits(fault: Fault) -> None:
    """Send eight bytes more than the others expect, in one operation."""
    from dataclasses import replace

    from moetraffic.replay import request

    plain = request.make_plan

    def make(*given: Any, **named: Any) -> Any:
        plan = plain(*given, **named)
        program = plan.programs[fault.rank]
        n = fault.operation % len(program)
        sends, sizes = program.send_bytes.copy(), program.send_size.copy()
        sends[program.first[n]] += 8
        sizes[n] += 8
        mine = replace(program, send_bytes=sends, send_size=sizes)
        return replace(plan, programs={fault.rank: mine})

    request.make_plan = make


def other_version(_: Fault) -> None:
    """Be another version of moetraffic."""
    import moetraffic

    moetraffic.__version__ = "0.0.1"


def other_option(_: Fault) -> None:
    """Be started with another option."""
    sys.argv += ["--timeout", "2.5"]


def little_memory(_: Fault) -> None:
    """See next to no free memory."""
    from moetraffic.launch import machine_resources

    machine_resources.available_bytes = lambda: 100


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
    said: str  # after rank and operation; a regular expression
    place: str = ""  # the operation, where it is not the one at which it strikes
    launchers: tuple[str, ...] = LAUNCHERS
    rank: int | None = None  # the only rank that can have it
    weight: float = 1.0
    and_above: bool = False  # whether the ranks above have it too
    start_timeout_s: float = 45.0  # torch alone may take 20 s to import
    options: tuple[str, ...] = ()  # of all ranks


# torchrun and the shell have no supervisor that sees how a rank ended
GONE = "was ended by SIG|ended without an error report|did not answer"
ABSENT = "did not arrive within"
FAULTS = {
    "killed": Kind(arm=at_operation(kill), said=GONE, weight=3),
    "stopped": Kind(
        arm=at_operation(stop),
        said="was stopped by a signal",
        launchers=("replay", "torchrun"),  # srun ends what is left; a shell does not
        weight=2,
    ),
    "late": Kind(
        arm=at_operation(lambda _: time.sleep(1000)),
        said="did not answer|did not go on",  # by others, or by its own watchdog
        weight=2,
    ),
    "crashed": Kind(arm=at_operation(crash), said="KeyError"),
    "left": Kind(
        arm=at_operation(lambda _: os._exit(0)),
        said=f"ended early, without an error|{GONE}",
    ),
    "wrong splits": Kind(arm=wrong_splits, said="sends [0-9]+ bytes to rank", weight=3),
    "other trace": Kind(
        arm=other_trace("other.h5"), said="another plan than rank", place="iteration 0"
    ),
    "missing file": Kind(
        arm=other_trace("gone.h5"), said="gone.h5", place="start-up", weight=3
    ),
    "damaged file": Kind(
        arm=other_trace("damaged.h5"), said="damaged.h5", place="start-up", weight=2
    ),
    "other version": Kind(
        arm=other_version, said="has moetraffic 0.0.1", place="the agreement"
    ),
    "other option": Kind(
        arm=other_option, said="has timeout_s 2.5", place="the agreement"
    ),
    "no memory": Kind(
        arm=little_memory,
        said="has too little memory",
        place="start-up",
        rank=0,  # the first of the host, whichever of its ranks sees too little
    ),
    "full disk": Kind(
        arm=full_disk,
        said="No space left on device.*is kept as",
        place="the writing of the trace",
        rank=0,
        weight=3,
    ),
    "port in use": Kind(
        arm=laid_outside,
        said="cannot listen on port",
        place="the rendezvous",
        launchers=("shell",),
        rank=0,
    ),
    "not started": Kind(
        arm=laid_outside,
        said=ABSENT,
        place="the rendezvous",
        launchers=("shell",),
        weight=3,
        start_timeout_s=25.0,
    ),
    "late start": Kind(
        arm=late_start,
        said=f"{ABSENT}|did not answer",
        place="(the rendezvous|start-up)",
        weight=2,
        start_timeout_s=25.0,
    ),
    "mixed traces": Kind(
        arm=other_trace("other.h5"),
        said="another plan than rank",
        place="iteration 0",
        and_above=True,
        weight=3,
    ),
    "other times": Kind(
        arm=other_trace("times.h5"),
        said="other captured times than rank",
        place="the agreement",
        weight=2,
        options=("--pace", "captured"),
    ),
}
