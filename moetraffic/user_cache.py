"""Folder of moetraffic in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path | None:
    """Return moetraffic's folder in the user's cache; None for a user without a home.

    A container with an arbitrary user ID has neither HOME nor a passwd entry.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "moetraffic" if os.path.isabs(home) else None
