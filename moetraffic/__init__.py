"""Record, analyse and replay the AllToAll traffic of mixture-of-experts training."""

from __future__ import annotations

__version__ = "0.1.0"
