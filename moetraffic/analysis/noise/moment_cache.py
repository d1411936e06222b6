"""Keep simulated moments in the user's cache, one file a configuration.

A cached value is the computed one to the last bit.  Without a folder that can be
written, or with a file that cannot be read, moments are computed again.
"""

from __future__ import annotations

import json
import os
import tempfile
from hashlib import sha256
from pathlib import Path

import numpy as np

from moetraffic.user_cache import user_cache

from .null_model import Moments

VERSION = 4
"""Version of the simulation; one that changes results needs a new number."""


def cache_file(**configuration: object) -> Path | None:
    """Return the file of a configuration; None for a user without a home.

    ``configuration``: All that moments depend on but numpy, whose random streams
    change, and :data:`VERSION`: numbers, text, None, or sequences of these.
    """
    folder = user_cache()
    if folder is None:
        return None
    key = json.dumps([VERSION, np.__version__, configuration], sort_keys=True)
    return folder / "noise-floors" / f"{sha256(key.encode()).hexdigest()[:32]}.json"


def load(file: Path | None) -> Moments | None:
    """Read moments; None if there are none, or the file is damaged."""
    if file is None:
        return None
    try:
        found = json.loads(file.read_bytes())
        return {str(name): (float(m), float(s)) for name, (m, s) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def store(file: Path | None, moments: Moments) -> None:
    """Write moments, if the folder can be written; a file is complete or absent."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
    except OSError:  # a home that is read-only, or full
        return
    try:
        with os.fdopen(handle, "w") as part:
            json.dump(dict(moments), part)
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
