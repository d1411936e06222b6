"""File of a rank's commits: where in its record log each segment ends.

The file ``commits`` in the rank's folder begins with a checkpoint of the committer, and
has one line for each segment after it: the segment's index and the position in the log
at which it ends.  The line precedes the segment, and counts once the segment exists,
whose name appears atomically.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moetraffic.errors import CaptureError
from moetraffic.trace.segments.segment import PATTERN
from moetraffic.trace.segments.store import COMMITS

from .checkpoint import Position
from .record_log import log_numbers, log_path


class CommitFile:
    """File with the positions of a rank's commits in its record log."""

    def __init__(self, own: Path) -> None:
        self._own, self._path = own, own / COMMITS
        self._checkpoint = 0  # number of the log's file that the checkpoint is in
        self._first = 0  # index of the first segment after the checkpoint
        self.start: tuple[Position, dict[str, Any]] | None = None
        self.ends: list[tuple[int, Position]] = []

    def read(self) -> None:
        """Read the checkpoint and the ends of later segments that exist."""
        ends: dict[int, Position] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in self._path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # killed while it was written
                    noted = json.loads(line)
                    position = (int(noted["file"]), int(noted["records"]))
                    if "state" in noted:
                        self._checkpoint = position[0]
                        self._first = int(noted["state"]["index"])
                        self.start = position, noted["state"]
                    else:
                        ends[int(noted["index"])] = position
        last = _last_segment(self._own)
        if last >= self._first and last not in ends:
            raise CaptureError(
                f"the record log in {self._own} cannot be continued: its commits after "
                "the last segment are not known"
            )
        self.ends = [(i, ends[i]) for i in sorted(ends) if self._first <= i <= last]

    @property
    def file(self) -> int:
        """Number of the file of the log that the checkpoint is in."""
        return self._checkpoint

    def committing(self, index: int, position: Position) -> None:
        """Append where a segment ends that is written next."""
        with contextlib.suppress(OSError), self._path.open("a") as file:
            # after a line that was not written to its end
            file.write("\n" + _line(position, index=index))

    def committed(
        self, position: Position, state: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Write a checkpoint in each file of the log, and delete earlier files."""
        if position[0] <= self._checkpoint:
            return
        text = _line(position, state=state())
        aside = self._path.with_suffix(".tmp")
        try:
            aside.write_text(text)
            os.replace(aside, self._path)
        except OSError:
            return  # the next commit tries again
        self._checkpoint = position[0]
        delete_logs(self._own, before=self._checkpoint)


def delete_logs(own: Path, *, before: int | None = None) -> None:
    """Delete the files of a rank's log, or those before a number."""
    for number in log_numbers(own):
        if before is None or number < before:
            log_path(own, number).unlink(missing_ok=True)
    if before is None:
        (own / COMMITS).unlink(missing_ok=True)


def _last_segment(own: Path) -> int:
    """Return the index of the last segment in a rank's folder, -1 for none."""
    numbers = [path.stem.rpartition("-")[2] for path in own.glob(PATTERN)]
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def _line(position: Position, **fields: Any) -> str:
    return json.dumps({"file": position[0], "records": position[1], **fields}) + "\n"
