"""Merge the logs that the ranks of a command recorded into traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from moetraffic.errors import CaptureError
from moetraffic.files import remove_folder
from moetraffic.launch.environment import current_rank
from moetraffic.trace.merge.log_folder import (
    alone,
    clear,
    log_folder,
    members,
    recording,
)
from moetraffic.trace.merge.log_format import log_files, ranks_of
from moetraffic.trace.merge.merging import NothingRecorded, merge

from .command import AUTOLOAD, HOOK_FOLDER

PATIENCE_S = 5.0
"""Longest wait, in s, for ranks that outlive the command."""

_REASONS = {
    "own": "the program's own Recorder writes the trace",
    "refused": "a rank reported the reason above",
    "lost": "a rank reported the reason above",
    "begun": "its ranks ended before a collective was on the disk",
    "initialized": "its process group sends nothing (backend fake)",
    "torch": "no process that imported torch completed init_process_group",
}
"""Reasons for an empty capture by the last note that a start-up hook left."""


def merge_logs(
    output: Path,
    began: float,
    notes: Path,
    *,
    force: bool,
    say: Callable[[str], None],
) -> list[Path]:
    """Merge the logs of all captures of a command into traces; return these, in order.

    Several launchers may share one output, each with some of the ranks: on several
    hosts, or one per rank under srun.  The last one to end finds no rank that still
    records, and merges.  Traces written after ``began``, in seconds since the epoch,
    are those of another launcher, made from fewer logs.  ``notes`` is the folder with
    the notes of the command's processes; ``say`` is called with each message.
    """
    shared = current_rank() is not None
    made: list[Path] = []
    quiet = shared
    deadline = time.monotonic() + PATIENCE_S
    while any(recording(log_folder(path)) for path in members(output)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    with alone(output):
        # the first holds the list of the others, so it is merged last
        for path in reversed(members(output)):
            folder, fresh = log_folder(path), _written_s(path) >= began
            if not ranks_of(folder):
                quiet |= fresh  # another launcher was faster
            elif ranks := recording(folder):
                quiet = True
                if not shared:
                    say(
                        f"ranks {ranks} still record into {folder}: what runs them "
                        "makes the trace; where nothing does, run "
                        f"moetraffic merge {folder}"
                    )
            elif _merge(folder, path, fresh=fresh, force=force, say=say):
                made.insert(0, path)
        if not quiet and not made:
            clear(output)
    if not made and not quiet:
        say(f"nothing was recorded by run: {explain_nothing_recorded(notes)}")
    return made


def _written_s(path: Path) -> float:
    """Return when a file was written, in seconds since the epoch; 0 if it was not."""
    return path.stat().st_mtime if path.exists() else 0.0


def _merge(
    folder: Path, path: Path, *, fresh: bool, force: bool, say: Callable[[str], None]
) -> bool:
    """Merge a folder of logs; return False if nothing is recorded in it."""
    logs = [log for rank in ranks_of(folder) for log in log_files(folder, rank)]
    if fresh and _written_s(path) >= max(map(_written_s, logs), default=0.0):
        return True  # another launcher merged it, with data missing
    try:
        merged = merge(folder)
    except NothingRecorded:
        remove_folder(folder)
        return False
    if path.exists() and not (force or fresh):
        raise CaptureError(
            f"{path} was written by something else while the command ran, and is "
            f"not overwritten: run moetraffic merge {folder} -o another output"
        )
    merged.trace.save(path, force=True)
    if not merged.missing and not merged.contradictions:
        remove_folder(folder)
    for sentence in merged.contradictions:
        say(f"contradiction: {sentence}")
    return True


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
        f"contain {HOOK_FOLDER}, or the command runs in a container or on a host "
        "without that folder (see moetraffic run --env)"
    )
