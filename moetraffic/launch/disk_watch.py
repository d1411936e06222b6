"""Report the disk space that a long capture will need, while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moetraffic.trace.segments.disk_forecast import disk_forecast
from moetraffic.trace.segments.store import segments_folder

BEGIN_S = 30.0  # a shorter run needs no forecast
AGAIN_S = 10.0


@contextmanager
def forecasting(
    output: Path,
    say: Callable[[str], None],
    *,
    iterations: int = 0,
    begin_s: float = BEGIN_S,
) -> Iterator[None]:
    """Report a forecast once, as soon as a rank has committed two windows.

    ``say`` is called with the sentence, from another thread.  The run has
    ``iterations``, 0 if unknown; its segments are looked at for the first time after
    ``begin_s``.
    """
    ended = threading.Event()

    def look() -> None:
        patience = begin_s
        while not ended.wait(patience):
            patience = min(begin_s, AGAIN_S)
            found = disk_forecast(segments_folder(output))
            if found is not None:
                say(found.sentence(iterations))
                return

    thread = threading.Thread(target=look, name="moetraffic-disk", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
