"""Merge the logs that the ranks of a command recorded into traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from moetraffic.errors import CaptureError
from moetraffic.files import remove_folder
from moetraffic.trace.merge.log_folder import (
    alone,
    clear,
    log_folder,
    members,
    recording,
)
from moetraffic.trace.merge.log_format import log_files, ranks_of
from moetraffic.trace.merge.merging import NothingRecorded, merge

from .environment import current_rank
from .hook_environment import AUTOLOAD, hook_folder

PATIENCE_S = 5.0
"""Longest wait, in s, for ranks that outlive the command."""


class LogMerger:
    """Merges the logs that the ranks of a command have recorded.

    Several launchers may share one output, each with some of the ranks: on several
    hosts, or one per rank under srun.  The last one to end finds no rank that still
    records, and merges.  Traces written after ``began``, in seconds since the epoch,
    are those of another launcher, made from fewer logs.  ``say`` is called with each
    message for the user.
    """

    def __init__(
        self, output: Path, began: float, *, force: bool, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._output, self._began, self._force = output, began, force
        self._shared = current_rank() is not None

    def gather(self, notes: Path) -> list[Path]:
        """Merge the logs of all captures of the command into traces, in order.

        ``notes`` is the folder with the notes of the command's processes.
        """
        made: list[Path] = []
        quiet = self._shared
        self._wait()
        with alone(self._output):
            # the first holds the list of the others, so it is merged last
            for path in reversed(members(self._output)):
                folder = log_folder(path)
                if not ranks_of(folder):
                    quiet |= self._is_fresh(path)  # another launcher was faster
                elif ranks := recording(folder):
                    quiet = True
                    if not self._shared:
                        self._say(
                            f"ranks {ranks} still record into {folder}: what runs them "
                            "makes the trace; where nothing does, run "
                            f"moetraffic merge {folder}"
                        )
                elif self._merge(folder, path):
                    made.insert(0, path)
            if not quiet and not made:
                clear(self._output)
        if not made and not quiet:
            self._say(f"nothing was recorded by run: {explain_nothing_recorded(notes)}")
        return made

    def _merge(self, folder: Path, path: Path) -> bool:
        """Merge a folder of logs; return False if nothing is recorded in it."""
        logs = [log for rank in ranks_of(folder) for log in log_files(folder, rank)]
        newest = max((log.stat().st_mtime for log in logs), default=0.0)
        if self._is_fresh(path) and path.stat().st_mtime >= newest:
            return True  # another launcher merged it, with data missing
        try:
            merged = merge(folder)
        except NothingRecorded:
            remove_folder(folder)
            return False
        if path.exists() and not (self._force or self._is_fresh(path)):
            raise CaptureError(
                f"{path} was written by something else while the command ran, and is "
                f"not overwritten: run moetraffic merge {folder} -o another output"
            )
        merged.trace.save(path, force=True)
        if not merged.missing and not merged.contradictions:
            remove_folder(folder)
        for sentence in merged.contradictions:
            self._say(f"contradiction: {sentence}")
        return True

    def _is_fresh(self, path: Path) -> bool:
        """Whether a trace was written since the command began."""
        return path.exists() and path.stat().st_mtime >= self._began

    def _wait(self) -> None:
        """Wait until no rank records: some may outlive the command."""
        folders = [log_folder(path) for path in members(self._output)]
        deadline = time.monotonic() + PATIENCE_S
        while any(map(recording, folders)) and time.monotonic() < deadline:
            time.sleep(0.1)


_REASONS = {
    "own": "the program's own Recorder writes the trace",
    "refused": "a rank reported the reason above",
    "lost": "a rank reported the reason above",
    "begun": "its ranks ended before a collective was on the disk",
    "initialized": "its process group sends nothing (backend fake)",
    "torch": "no process that imported torch completed init_process_group",
}
"""Reasons for an empty capture by the last note that a start-up hook left."""


def explain_nothing_recorded(notes: Path) -> str:
    """Explain why no process recorded, from the notes of its start-up hooks."""
    words = {note.name for note in notes.iterdir()}
    for word, reason in _REASONS.items():
        if word in words:
            return reason
    return (
        "no process of the command imported torch with the start-up hook: it does not "
        f"use torch, its torch is older than 2.5, a script sets {AUTOLOAD}=0, Python's "
        "options -I or -E disable the hook, a script replaces PYTHONPATH, which must "
        f"contain {hook_folder()}, or the command runs in a container or on a host "
        "without that folder (see moetraffic run --env)"
    )
