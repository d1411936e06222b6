"""``moetraffic run``: capture a command that knows nothing of it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from moetraffic.errors import CaptureError, MoetrafficError
from moetraffic.launch import current_rank, hooked, passthrough
from moetraffic.report.terminal import Paper, say
from moetraffic.trace import Trace
from moetraffic.trace.durable import remove_folder
from moetraffic.trace.merge import NothingRecorded, merge
from moetraffic.trace.segment import PATTERN
from moetraffic.trace.series import alone, clear, make_room, members
from moetraffic.trace.spool import RANKS, recording, segments_folder

from .info import show
from .output import WIDTH

CONTEXT = {"allow_interspersed_args": False}
PATIENCE_S = 5.0
"""How long ranks that outlive the command are waited for."""


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="What to run, best after --."),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Trace to write.")
    ] = Path("run.h5"),
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    model: Annotated[str, typer.Option(help="A name for the model.")] = "",
    router: Annotated[str, typer.Option(help="A name for its router.")] = "",
    k: Annotated[
        int, typer.Option(min=0, help="Experts of a token: noise floors need it.")
    ] = 0,
    environment: Annotated[
        bool,
        typer.Option(
            "--env",
            help="Start nothing, but print what a shell must export where the command "
            "runs: in batch scripts, over ssh, in containers.",
        ),
    ] = False,
) -> None:
    """Run a training command as it is, and record every collective of all its ranks.

    Streams, signals and the exit code are the command's own; what there is to say of
    the trace is said on standard error.

    Example: moetraffic run -o run.h5 -- torchrun --nproc-per-node 4 train.py
    """
    if bool(command) == environment:
        raise CaptureError(
            "run takes one command, or --env without a command, but "
            + ("both were given" if command else "there is neither")
            + ": give the command after --"
        )
    make_room(output, force=force)
    hook = hooked.variables(
        output, force=force, told={"model": model, "router": router, "k": k}
    )
    if environment:
        print(hooked.exports(hook))
        return
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as notes:
        began = time.time()
        hook[hooked.NOTES] = notes
        try:
            code = passthrough.run(command, hooked.environment(hook))
        except OSError as error:
            clear(output)
            say(f"moetraffic: {command[0]} cannot be run: {error.strerror}")
            raise typer.Exit(
                passthrough.NOT_FOUND
                if isinstance(error, FileNotFoundError)
                else passthrough.NOT_EXECUTABLE
            ) from None
        try:
            Harvest(output, began, force=force).gather(Path(notes))
        except (MoetrafficError, OSError) as error:
            # the command has its exit code, whatever became of the trace
            say(f"moetraffic: {' '.join(str(error).split())}")
    raise typer.Exit(code)


class Harvest:
    """Makes traces of what the ranks of a command have left.

    Several launchers may share one output, each with some of the ranks: on several
    hosts, or one a rank under srun.  Whoever ends last finds no rank that still
    records, and merges.

    Parameters
    ----------
    output
        The trace that was asked for.
    began
        When the command began, in seconds since the epoch: what was written since
        then is another launcher's, and made from fewer segments.
    force
        What is there may be replaced.
    """

    def __init__(self, output: Path, began: float, *, force: bool) -> None:
        self._output, self._began, self._force = output, began, force
        self._fellows = current_rank() is not None

    def gather(self, notes: Path) -> None:
        """Merge every capture of the command, and say what there is to say.

        Parameters
        ----------
        notes
            What the command's processes have left a word in.
        """
        made: list[Path] = []
        quiet = self._fellows
        self._wait()
        with alone(self._output):
            # the first holds the list of the others: it goes last
            for name in reversed(members(self._output)):
                folder = segments_folder(name)
                if not any(folder.glob(f"{RANKS}/*")):
                    quiet |= self._is_fresh(name)  # another launcher was faster
                    continue
                if still := recording(folder):
                    quiet = True
                    if not self._fellows:
                        say(
                            f"moetraffic: ranks {still} still record into {folder}: "
                            "what runs them makes the trace; where nothing does, run "
                            f"moetraffic merge {folder}"
                        )
                elif self._merge(folder, name):
                    made.insert(0, name)
            if not quiet and not made:
                clear(self._output)
        paper = Paper(stderr=True, highlight=False, width=WIDTH)
        for name in made:
            with Trace.open(name) as trace:
                show(trace, name, paper)
        if not made and not quiet:
            say(f"moetraffic: nothing was recorded: {why_nothing(notes)}")

    def _merge(self, folder: Path, path: Path) -> bool:
        """Make a trace of a folder of segments; False where nothing is in them."""
        if self._is_fresh(path) and path.stat().st_mtime >= _newest(folder):
            return True  # another launcher has done it, and something was missing
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
            paper = Paper(stderr=True, highlight=False)
            paper.print(Text(f"contradiction: {sentence}", style="red"))
        return True

    def _is_fresh(self, path: Path) -> bool:
        """Whether a trace was written since the command began."""
        return path.exists() and path.stat().st_mtime >= self._began

    def _wait(self) -> None:
        """Wait until no rank records: what a killed one left is still being written."""
        folders = [segments_folder(name) for name in members(self._output)]
        deadline = time.monotonic() + PATIENCE_S
        while any(map(recording, folders)) and time.monotonic() < deadline:
            time.sleep(0.1)


def _newest(folder: Path) -> float:
    """When the last of a folder's segments was written."""
    return max(
        (p.stat().st_mtime for p in folder.glob(f"{RANKS}/{PATTERN}")), default=0.0
    )


def why_nothing(notes: Path) -> str:
    """Why no process of a command recorded, by the words that its hooks have left."""
    told = {note.name: note.read_text() for note in notes.iterdir()}
    if "own" in told:
        return "the program records by itself, see the output of its own recorder"
    if "refused" in told:
        return "a rank said why above"
    if "begun" in told:
        return "its ranks ended before a collective was on the disk"
    if "initialised" in told:
        return "its process group sends nothing (backend fake)"
    if "distributed" in told:
        return (
            "torch.distributed was imported, but no process got through "
            "init_process_group"
        )
    if "python" in told:
        return "no process of the command imported torch.distributed"
    return (
        "no Python process of the command ran the start-up hook: it is not Python, "
        "Python's options -I, -E or -S keep the hook out, a script sets PYTHONPATH "
        f"without keeping what is in it ({hooked.hook_folder()}), or the command runs "
        "in a container or on a host without that folder (see moetraffic run --env)"
    )
