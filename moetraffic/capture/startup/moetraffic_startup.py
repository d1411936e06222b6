"""Start-up hook of ``moetraffic run``: record processes that use torch.distributed.

``moetraffic run`` puts this folder on PYTHONPATH.  ``import torch`` calls the entry
points of the group ``torch.backends``; the folder's ``dist-info`` declares
:func:`attach` as one.  Nothing of moetraffic is imported until a process group exists;
then :mod:`moetraffic.capture.attached_recorder` records it.

Environment variables configure the hook; :mod:`moetraffic.capture.command` sets them,
and docs/run.md describes them.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OUT = "MOETRAFFIC_OUT"
NOTES = "MOETRAFFIC_NOTES"
RECORDER = "moetraffic.capture.attached_recorder"
# environment variables with the local rank: torchrun, srun, Open MPI and MPICH
LOCAL_RANKS = (
    *("LOCAL_RANK", "SLURM_LOCALID"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
)


def attach() -> None:
    """Wrap the functions of the process group; no exception stops ``import torch``."""
    if not os.environ.get(OUT):
        return
    try:
        note("torch")
        distributed = importlib.import_module("torch.distributed")
        if distributed.is_available():
            wrap(distributed.distributed_c10d)
    except Exception as error:
        say("refused", f"this torch cannot be captured: {error!r}")


def wrap(module: Any) -> None:
    """Wrap ``init_process_group`` and ``destroy_process_group`` wherever they are."""
    start, stop = module.init_process_group, module.destroy_process_group

    @functools.wraps(start)
    def init_process_group(*args: Any, **named: Any) -> Any:
        result = start(*args, **named)
        begin()
        return result

    @functools.wraps(stop)
    def destroy_process_group(group: Any = None) -> Any:
        recorder = sys.modules.get(RECORDER)
        if recorder and (group is None or group is module.GroupMember.WORLD):
            recorder.end(sys.exc_info()[1])
        return stop(group)

    for path, loaded in list(sys.modules.items()):
        if path.startswith("torch.distributed"):
            names = getattr(loaded, "__dict__", {})
            for name, old, new in (
                ("init_process_group", start, init_process_group),
                ("destroy_process_group", stop, destroy_process_group),
            ):
                if names.get(name) is old:
                    names[name] = new


def begin() -> None:
    """Start recording the new process group; on failure, print the reason."""
    note("initialized")
    try:
        recorder = import_recorder()
    except Exception as error:
        # in the user's environment any package may be missing or too old
        say(
            "refused",
            f"this run is not captured on {os.uname().nodename}, because moetraffic is "
            f"not installed for {sys.executable} ({type(error).__name__}: {error}): "
            "install it there",
        )
    else:
        recorder.begin(say=say, note=note)


def import_recorder() -> Any:
    """Import the attached recorder as installed, or from the package of this file."""
    try:
        return importlib.import_module(RECORDER)
    except ModuleNotFoundError as error:
        if error.name != "moetraffic":
            raise
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    spec = importlib.util.spec_from_file_location(
        "moetraffic",
        os.path.join(package, "__init__.py"),
        submodule_search_locations=[package],
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["moetraffic"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return importlib.import_module(RECORDER)
    except BaseException:
        for name in [n for n in sys.modules if n.split(".")[0] == "moetraffic"]:
            del sys.modules[name]
        raise


def note(word: str, text: str = "") -> bool | None:
    """Create a note for the launcher; False if it exists, None without a launcher."""
    folder = os.environ.get(NOTES)
    if not folder:
        return None
    try:
        with open(os.path.join(folder, word), "x", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError:
        return None  # the launcher runs on another host, or has ended
    return True


def say(word: str, text: str) -> None:
    """Print a message to standard error, once per host."""
    first = note(word, text)
    if first is None:
        ranks = [os.environ[name] for name in LOCAL_RANKS if name in os.environ]
        first = ranks[:1] in ([], ["0"])
    if first:
        try:
            print(f"moetraffic: {text}", file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            return  # standard error is closed
