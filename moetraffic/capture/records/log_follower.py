"""Feed the record log of a rank to its committer, from the last commit on."""

from __future__ import annotations

import json
from pathlib import Path

from moetraffic.capture.record_format import WORDS, words_of
from moetraffic.trace.segments.store import SegmentWriter

from .commit_file import CommitFile
from .committer import Committer
from .record_log import LogReader, read_header


class LogFollower:
    """Reader of a rank's record log that feeds it to the rank's committer.

    ``own`` is the rank's folder; ``writer`` receives the segments.

    Raises
    ------
    CaptureError, OSError
        If the log cannot be continued after the last segment.
    """

    def __init__(self, own: Path, writer: SegmentWriter) -> None:
        self._writer = writer
        self._commits = CommitFile(own)
        self._commits.read()
        self._reader = LogReader(own, self._commits.file)
        self._file = -1
        self.committer: Committer | None = None
        self.acknowledged = (self._commits.file, 0)
        """File and offset in bytes before which all records are committed."""

    def read(self) -> None:
        """Feed the frames that are in the log to the committer."""
        start = self._reader.number, self._reader.offset
        for number, kind, body in self._reader.frames():
            index = self.committer.index if self.committer else 0
            if number != self._file:
                self._begin(number, body)
            elif self.committer is not None and not self.committer.closed:
                if kind == WORDS:
                    self.committer.take(words_of(body))
                else:
                    self.committer.receive(json.loads(body))
            if self.committer is not None and self.committer.index != index:
                self.acknowledged = start
            start = self._reader.number, self._reader.offset
        if self.committer is not None and not self.committer.closed:
            index = self.committer.index
            self.committer.commit_if_full()
            if self.committer.index != index:
                self.acknowledged = start

    def close(self) -> None:
        """Close the log."""
        self._reader.close()

    def _begin(self, number: int, header: bytes) -> None:
        """Begin a file; its header repeats what earlier files have defined."""
        self._file = number
        about, messages = read_header(header)
        if self.committer is None:
            self.committer = Committer(about, self._writer, self._commits)
            self.committer.resume(self._commits.start, self._commits.ends)
            for message in messages:
                self.committer.receive(message)
        self.committer.begin_file(number)
