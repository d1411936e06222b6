"""Merge the segments that the ranks of a command recorded into traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from moetraffic.errors import CaptureError
from moetraffic.trace.hdf5.durable import remove_folder
from moetraffic.trace.merge.merging import NothingRecorded, merge
from moetraffic.trace.segments.segment import PATTERN
from moetraffic.trace.segments.series import alone, clear, members
from moetraffic.trace.segments.store import RANKS, recording, segments_folder

from . import hook_environment
from .environment import current_rank

PATIENCE_S = 5.0
"""Longest wait, in s, for ranks that outlive the command."""


class SegmentMerger:
    """Merges the segments that the ranks of a command have recorded.

    Several launchers may share one output, each with some of the ranks: on several
    hosts, or one per rank under srun.  The last one to end finds no rank that still
    records, and merges.

    Parameters
    ----------
    output
        Path of the trace to write.
    began
        Start of the command, in seconds since the epoch: traces written later are
        those of another launcher, made from fewer segments.
    force
        Whether an existing trace may be replaced.
    say
        Called with each message for the user.
    """

    def __init__(
        self, output: Path, began: float, *, force: bool, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._output, self._began, self._force = output, began, force
        self._fellows = current_rank() is not None

    def gather(self, notes: Path) -> list[Path]:
        """Merge the segments of all captures of the command into traces.

        Parameters
        ----------
        notes
            Folder with the notes of the command's processes.

        Returns
        -------
        list of Path
            The traces that were made, in the order of the captures.

        Raises
        ------
        MoetrafficError
            If a trace cannot be written, or its segments are damaged.
        """
        made: list[Path] = []
        quiet = self._fellows
        self._wait()
        with alone(self._output):
            # the first holds the list of the others, so it is merged last
            for name in reversed(members(self._output)):
                folder = segments_folder(name)
                if not any(folder.glob(f"{RANKS}/*")):
                    quiet |= self._is_fresh(name)  # another launcher was faster
                    continue
                if still := recording(folder):
                    quiet = True
                    if not self._fellows:
                        self._say(
                            f"ranks {still} still record into {folder}: "
                            "what runs them makes the trace; where nothing does, run "
                            f"moetraffic merge {folder}"
                        )
                elif self._merge(folder, name):
                    made.insert(0, name)
            if not quiet and not made:
                clear(self._output)
        if not made and not quiet:
            self._say(f"nothing was recorded: {explain_nothing_recorded(notes)}")
        return made

    def _merge(self, folder: Path, path: Path) -> bool:
        """Merge a folder of segments; return False if it is empty."""
        if self._is_fresh(path) and path.stat().st_mtime >= _newest(folder):
            return True  # another launcher merged it, with data missing
        if not any(folder.glob(f"{RANKS}/{PATTERN}")):
            remove_folder(folder)
            return False
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
        """Wait until no rank records, as data of a killed rank may still be written."""
        folders = [segments_folder(name) for name in members(self._output)]
        deadline = time.monotonic() + PATIENCE_S
        while any(map(recording, folders)) and time.monotonic() < deadline:
            time.sleep(0.1)


def _newest(folder: Path) -> float:
    """Return the modification time of the newest segment of a folder."""
    return max(
        (p.stat().st_mtime for p in folder.glob(f"{RANKS}/{PATTERN}")), default=0.0
    )


def explain_nothing_recorded(notes: Path) -> str:
    """Explain why no process recorded, from the notes of its start-up hooks."""
    told = {note.name: note.read_text() for note in notes.iterdir()}
    if "own" in told:
        return "the program records by itself, see the output of its own recorder"
    if "refused" in told:
        return "a rank said why above"
    if "begun" in told:
        return "its ranks ended before a collective was on the disk"
    if "initialized" in told:
        return "its process group sends nothing (backend fake)"
    if "distributed" in told:
        return (
            "torch.distributed was imported, but no process got through "
            "init_process_group"
        )
    if "python" in told:
        return "no process of the command imported torch.distributed"
    return (
        "no Python process of the command ran the start-up hook: the command is not "
        "Python, Python's options -I, -E or -S disable the hook, a script replaces "
        f"PYTHONPATH, which must contain {hook_environment.hook_folder()}, or the "
        "command runs in a container or on a host without that folder (see moetraffic "
        "run --env)"
    )
