"""Environment variables that enable the capture hook in every Python process.

``PYTHONPATH`` begins with the folder of the start-up hook
(``capture/startup/sitecustomize.py``), and the variables below tell it what to do.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

OUT = "MOETRAFFIC_OUT"
"""The trace, as an absolute path: the hook does nothing without it."""
FORCE = "MOETRAFFIC_OUT_FORCE"
"""1: the trace may be replaced."""
NOTES = "MOETRAFFIC_NOTES"
"""A folder of this host in which processes leave words for the launcher."""
NAMES = {
    "model": "MOETRAFFIC_MODEL",
    "router": "MOETRAFFIC_ROUTER",
    "k": "MOETRAFFIC_K",
}
"""What the user calls the model and its router, and the experts of a token."""


def hook_folder() -> Path:
    """The folder of the hook's ``sitecustomize.py``."""
    spec = find_spec("moetraffic")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).absolute().parent / "capture" / "startup"


def variables(
    output: Path, *, force: bool, told: Mapping[str, object]
) -> dict[str, str]:
    """Environment variables of the hook, without PYTHONPATH.

    Parameters
    ----------
    output
        The trace.
    force
        It may be replaced.
    told
        By the names of :data:`NAMES`; what is empty or 0 is left out.
    """
    found = {OUT: str(output.absolute())}
    if force:
        found[FORCE] = "1"
    return found | {NAMES[n]: str(value) for n, value in told.items() if value}


def environment(
    hook: Mapping[str, str], base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment of a command: the current one with the hook added.

    Parameters
    ----------
    hook
        From :func:`variables`.
    base
        What to extend; ``os.environ`` by default.
    """
    found = dict(os.environ if base is None else base)
    for name in (OUT, FORCE, NOTES, *NAMES.values()):
        found.pop(name, None)  # of a run around this one
    path = str(hook_folder())
    earlier = found.get("PYTHONPATH", "")
    # an empty part means the working directory: none may arise that was not there
    found["PYTHONPATH"] = f"{path}{os.pathsep}{earlier}" if earlier else path
    return found | dict(hook)


def exports(hook: Mapping[str, str]) -> str:
    """Format the hook's environment as ``export`` lines for a POSIX shell."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in hook.items()]
    path = shlex.quote(str(hook_folder()))
    return "\n".join(
        [*lines, f'export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"']
    )
