"""Start-up hook of ``moetraffic run``: record processes that use torch.distributed.

``moetraffic run`` puts this folder at the front of PYTHONPATH, so that every Python
process of the command, however it is started, imports this file first.  It imports
nothing: an import finder waits for the module that defines ``init_process_group`` and
wraps that function.  Once a process group exists,
:mod:`moetraffic.capture.attached_recorder` records it.  This module then imports the
``sitecustomize`` that Python would have found without it.

Environment variables configure the hook; :mod:`moetraffic.launch.hook_environment`
sets them, and docs/run.md describes them.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as starting the interpreter
    from importlib.machinery import ModuleSpec
    from typing import Any

AWAITED = "torch.distributed.distributed_c10d"
OUT = "MOETRAFFIC_OUT"
NOTES = "MOETRAFFIC_NOTES"
# environment variables with the local rank: torchrun, srun, Open MPI and MPICH
LOCAL_RANKS = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
)


def note(word: str, text: str = "") -> bool | None:
    """Create a note for the launcher; False if it exists, None without a launcher."""
    folder = os.environ.get(NOTES)
    if not folder:
        return None
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(os.path.join(folder, word), flags, 0o666)
    except FileExistsError:
        return False
    except OSError:
        return None  # the launcher runs on another host, or has ended
    os.write(file, text.encode(errors="replace"))
    os.close(file)
    return True


def say(word: str, text: str) -> None:
    """Print a message to standard error, once per host."""
    first = note(word, text)
    if first is None:
        first = next((os.environ[n] for n in LOCAL_RANKS if n in os.environ), "") in (
            "0",
            "",
        )
    if first:
        try:
            print(f"moetraffic: {text}", file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            return  # standard error is closed


class ImportFinder:
    """Import finder that wraps the module of ``init_process_group`` on its import."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        """Find the module with the other import finders, and wrap its loader."""
        if name != AWAITED:
            return None
        sys.meta_path.remove(self)
        from importlib import util

        spec = util.find_spec(name)
        if spec is not None:
            attach_when_executed(spec.loader)
        return spec


def attach_when_executed(loader: Any) -> None:
    """Patch a module loader to wrap the process-group functions after execution."""

    def exec_module(module: Any) -> None:
        del loader.exec_module
        execute(module)
        note("distributed")
        try:
            attach(module)
        except AttributeError as error:
            say("refused", f"this torch cannot be captured: {error}")

    try:
        execute = loader.exec_module
        loader.exec_module = exec_module
    except (AttributeError, TypeError):
        say("refused", f"torch is loaded by {loader!r}, which cannot be hooked")


def attach(module: Any) -> None:
    """Wrap ``init_process_group`` and ``destroy_process_group`` of a module."""
    import functools

    start, stop = module.init_process_group, module.destroy_process_group

    @functools.wraps(start)
    def init_process_group(*args: Any, **named: Any) -> Any:
        result = start(*args, **named)
        begin()
        return result

    @functools.wraps(stop)
    def destroy_process_group(group: Any = None) -> Any:
        if group is None or group is module.GroupMember.WORLD:
            end()
        return stop(group)

    module.init_process_group = init_process_group
    module.destroy_process_group = destroy_process_group


def begin() -> None:
    """Start recording the new process group; on failure, print the reason."""
    note("initialized")
    try:
        attached = import_attached()
    except Exception as error:
        # in the user's environment any package may be missing or too old
        host = os.uname().nodename
        say(
            "refused",
            f"this run is not captured on {host}, because moetraffic is not installed "
            f"for {sys.executable} ({type(error).__name__}: {error}): install it there",
        )
        return
    attached.begin(say=say, note=note)


def end() -> None:
    """Close the recorder before the process group is destroyed."""
    attached = sys.modules.get("moetraffic.capture.attached_recorder")
    if attached is not None:
        attached.end(sys.exc_info()[1])


def import_attached() -> Any:
    """Import the attached recorder as installed, or from this file's package."""
    import importlib

    try:
        importlib.import_module("moetraffic")
    except ModuleNotFoundError as error:
        if error.name != "moetraffic":
            raise
        # not installed for this interpreter: try with its own numpy and h5py
        from importlib import util

        package = os.path.dirname(os.path.dirname(HERE))
        spec = util.spec_from_file_location(
            "moetraffic",
            os.path.join(package, "__init__.py"),
            submodule_search_locations=[package],
        )
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        sys.modules["moetraffic"] = module
        try:
            spec.loader.exec_module(module)
            return importlib.import_module("moetraffic.capture.attached_recorder")
        except BaseException:
            for name in [n for n in sys.modules if n.split(".")[0] == "moetraffic"]:
                del sys.modules[name]
            raise
    return importlib.import_module("moetraffic.capture.attached_recorder")


HERE = os.path.dirname(os.path.abspath(__file__))

if os.environ.get(OUT):
    note("python")
    if AWAITED in sys.modules:
        attach(sys.modules[AWAITED])
    else:
        sys.meta_path.insert(0, ImportFinder())

# restore the program's path, and import its own sitecustomize.  If there is none, the
# import raises the exception that site expects, and leaves no module of this name.
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != HERE]
sys.modules.pop(__name__, None)
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
