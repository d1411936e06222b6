"""Process of one rank, in a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_WRAPPER = str(Path(__file__).with_name("parent_death_signal.py"))
_LAST_LINES = 60
_LONGEST_LINE = 2000  # characters
_CHUNK = 1 << 16
_LOOK_S = 0.005


class RankProcess:
    """Process of a running rank and the last lines of its stderr.

    In a session of its own, the rank does not receive the terminal's Ctrl-C (the
    supervisor forwards it), and all processes that it starts end with it.

    Raises
    ------
    OSError
        If the process cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        inherited: Sequence[int],
    ) -> None:
        # -I -S: the guard needs no site-packages, and starts in half the time
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _WRAPPER, str(os.getpid()), *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=inherited,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self.stderr: IO[bytes] = self._process.stderr
        os.set_blocking(self.stderr.fileno(), False)
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._unfinished = b""

    @property
    def pid(self) -> int:
        """Process id of the rank."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit status of the rank, negative for a signal; None while it runs."""
        return self._process.returncode

    def poll(self) -> int | None:
        """Return the exit code once the process has ended, and kill its children."""
        if self._process.returncode is not None:
            return self._process.returncode
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.pid, flags) is None:
            return None
        # not reaped yet, so no other process group can have this number
        self._signal_group(signal.SIGKILL)
        return self._process.wait()

    def stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped the rank."""
        return state_of(self.pid) == "stopped"

    def send(self, number: int) -> None:
        """Send a signal to the rank, not to its child processes."""
        if self.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the rank and all processes that it started."""
        if self._process.returncode is None:
            self._signal_group(signal.SIGKILL)
            self._process.wait()

    def outlast(self, until_s: float) -> None:
        """Wait for the end of all killed processes, until a time of time.monotonic().

        A killed process exists until it is scheduled, and only its own parent, the
        ended rank, is notified of its end.
        """
        while _group_lives(self.pid) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)

    def read(self) -> bool:
        """Read available lines of stderr; return False at its end."""
        while True:
            try:
                chunk = os.read(self.stderr.fileno(), _CHUNK)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            *lines, rest = (self._unfinished + chunk).split(b"\n")
            self._lines.extend(_text(line) for line in lines if line.strip())
            self._unfinished = rest[-_LONGEST_LINE * 4 :]

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines of the rank's stderr, without blank ones."""
        rest = (_text(self._unfinished),) if self._unfinished.strip() else ()
        return (*self._lines, *rest)

    def close(self) -> None:
        """Close stderr, which a surviving child process may keep open."""
        self.stderr.close()

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return  # nothing of the group is left


def _group_lives(group: int) -> bool:
    """Whether any process of a process group runs, except zombies."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    for process in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = _stat(process)
        except OSError:
            continue  # it has just ended, or belongs to another user
        if int(fields[2]) == group and fields[0] not in "ZX":
            return True
    return False


def state_of(pid: int) -> str:
    """Return the state of a process: "running", "stopped" or "ended"."""
    try:
        letter = _stat(Path(f"/proc/{pid}/stat"))[0]
    except (FileNotFoundError, ProcessLookupError):
        return "ended"
    except OSError:
        return "running"
    names = {"T": "stopped", "t": "stopped", "Z": "ended", "X": "ended"}
    return names.get(letter, "running")


def _stat(path: Path) -> list[str]:
    """Read the fields of a process after its name: state, parent, process group ..."""
    return path.read_text().rpartition(")")[2].split()


def pid_namespace() -> str:
    """Return the identifier of this process's PID namespace; "" if unknown.

    Containers on one host may have equal host names but different processes.
    """
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _text(line: bytes) -> str:
    return line[:_LONGEST_LINE].decode(errors="replace").rstrip()
