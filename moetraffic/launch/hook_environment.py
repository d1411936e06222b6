"""Environment variables that enable the capture hook in every Python process.

``PYTHONPATH`` ends with the folder of the start-up hook
(``capture/startup/moetraffic_startup.py``), which torch finds there when it is
imported; the hook reads its settings from the other variables.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from moetraffic.errors import CaptureError

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
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Variable of torch that, unless it is 1, keeps it from loading the hook."""


def hook_folder() -> Path:
    """Return the folder of the start-up hook."""
    return Path(__file__).absolute().parents[1] / "capture" / "startup"


def variables(
    output: Path, *, force: bool, names: Mapping[str, object]
) -> dict[str, str]:
    """Return the environment variables of the capture hook, without PYTHONPATH.

    ``names`` has values by the keys of :data:`NAMES`; empty ones and 0 are left out.

    Raises
    ------
    CaptureError
        If the environment keeps torch from loading the hook.
    """
    if (autoload := os.environ.get(AUTOLOAD, "1")) != "1":
        raise CaptureError(
            "torch loads the capture hook as it loads the extensions of devices, which "
            f"{AUTOLOAD}={autoload} turns off: unset it"
        )
    hook = {OUT: str(output.absolute())}
    if force:
        hook[FORCE] = "1"
    return hook | {NAMES[n]: str(value) for n, value in names.items() if value}


def environment(
    hook: Mapping[str, str], base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a command: ``base``, or this one, with the hook added.

    ``hook`` are the variables from :func:`variables`.
    """
    env = dict(os.environ if base is None else base)
    for name in (OUT, FORCE, NOTES, *NAMES.values()):
        env.pop(name, None)  # inherited from an enclosing run
    # an empty part would add the working directory to the path
    earlier = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env["PYTHONPATH"] = os.pathsep.join([*earlier, str(hook_folder())])
    return env | dict(hook)


def exports(hook: Mapping[str, str]) -> str:
    """Format the hook's environment as ``export`` lines for a POSIX shell."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in hook.items()]
    path = f'"${{PYTHONPATH:+$PYTHONPATH:}}"{shlex.quote(str(hook_folder()))}'
    return "\n".join([*lines, f"export PYTHONPATH={path}"])
