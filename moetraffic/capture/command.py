"""Run a training command with the capture hook, as a shell would run it.

``PYTHONPATH`` ends with the folder of the start-up hook
(``capture/startup/moetraffic_startup.py``), which torch finds there when it is
imported; the hook reads its settings from the other variables.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
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
HOOK_FOLDER = Path(__file__).absolute().parent / "startup"

TYPED = (signal.SIGINT, signal.SIGQUIT)  # a terminal sends these to its whole group
FORWARDED = (*TYPED, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of a shell


def variables(
    output: Path, *, force: bool, names: Mapping[str, object]
) -> dict[str, str]:
    """Return the environment variables of the capture hook, without PYTHONPATH.

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
    hook = {OUT: str(output.absolute())} | ({FORCE: "1"} if force else {})
    return hook | {NAMES[n]: str(value) for n, value in names.items() if value}


def environment(
    hook: Mapping[str, str], base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a command: ``base``, or this one, with the hook."""
    env = dict(os.environ if base is None else base)
    for name in (OUT, FORCE, NOTES, *NAMES.values()):
        env.pop(name, None)  # inherited from an enclosing run
    # an empty part would add the working directory to the path
    earlier = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env["PYTHONPATH"] = os.pathsep.join([*earlier, str(HOOK_FOLDER)])
    return env | dict(hook)


def exports(hook: Mapping[str, str]) -> str:
    """Format the hook's environment as ``export`` lines for a POSIX shell."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in hook.items()]
    path = f'"${{PYTHONPATH:+$PYTHONPATH:}}"{shlex.quote(str(HOOK_FOLDER))}'
    return "\n".join([*lines, f"export PYTHONPATH={path}"])


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in the foreground until it exits; return its exit code.

    The command shares this process's group and terminal, whose signals (Ctrl-C) reach
    it directly; those of other processes are forwarded.  The code is 128 + n after
    signal n.  Raises OSError if the command cannot be started.
    """
    early: list[int] = []
    # handlers, and not SIG_IGN, which the command would inherit; signals that this
    # process was started to ignore (nohup), the command ignores as well
    before = {
        number: signal.signal(number, lambda n, _: early.append(n))
        for number in FORWARDED
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    awaited = {signal.SIGCHLD, *before}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # the command inherits descriptors above 2, which a shell may have opened
        process = subprocess.Popen(command, env=dict(environment), close_fds=False)
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        while process.poll() is None:
            # signals that arrived outside sigtimedwait ran a handler, which has no
            # sender: forward those that a terminal does not send
            while early:
                if (number := early.pop(0)) not in TYPED:
                    process.send_signal(number)
            info = signal.sigtimedwait(awaited, 1.0)
            # signals from the kernel, which a terminal causes, have a positive code
            if info and info.si_signo != signal.SIGCHLD and info.si_code <= 0:
                process.send_signal(info.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    code = process.returncode
    return code if code >= 0 else 128 - code
