"""Environment variables that enable the capture hook in every Python process.

``PYTHONPATH`` begins with the folder of the start-up hook
(``capture/startup/sitecustomize.py``), which reads its settings from these variables.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

OUT = "MOETRAFFIC_OUT"
"""Variable with the absolute path of the trace; without it the hook is inactive."""
FORCE = "MOETRAFFIC_OUT_FORCE"
"""Variable that is 1 if an existing trace may be replaced."""
NOTES = "MOETRAFFIC_NOTES"
"""Variable with a folder in which processes write notes for the launcher."""
NAMES = {
    "model": "MOETRAFFIC_MODEL",
    "router": "MOETRAFFIC_ROUTER",
    "k": "MOETRAFFIC_K",
    "every": "MOETRAFFIC_EVERY",
    "most_bytes": "MOETRAFFIC_MAX_SIZE",
    "token_sample": "MOETRAFFIC_TOKEN_SAMPLE",
}
"""Variables with the names of the model and its router, experts per token, and limits
of what is recorded."""


def hook_folder() -> Path:
    """Return the folder of the start-up hook's ``sitecustomize.py``."""
    return Path(__file__).absolute().parents[1] / "capture" / "startup"


def variables(
    output: Path, *, force: bool, names: Mapping[str, object]
) -> dict[str, str]:
    """Return the environment variables of the capture hook, without PYTHONPATH.

    ``names`` has values by the keys of :data:`NAMES`; empty ones and 0 are left out.
    """
    found = {OUT: str(output.absolute())}
    if force:
        found[FORCE] = "1"
    return found | {NAMES[n]: str(value) for n, value in names.items() if value}


def environment(
    hook: Mapping[str, str], base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a command: ``base``, or this one, with the hook added.

    ``hook`` are the variables from :func:`variables`.
    """
    found = dict(os.environ if base is None else base)
    for name in (OUT, FORCE, NOTES, *NAMES.values()):
        found.pop(name, None)  # inherited from an enclosing run
    path = str(hook_folder())
    earlier = found.get("PYTHONPATH", "")
    # an empty part would add the working directory to the path
    found["PYTHONPATH"] = f"{path}{os.pathsep}{earlier}" if earlier else path
    return found | dict(hook)


def exports(hook: Mapping[str, str]) -> str:
    """Format the hook's environment as ``export`` lines for a POSIX shell."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in hook.items()]
    path = shlex.quote(str(hook_folder()))
    return "\n".join(
        [*lines, f'export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"']
    )
