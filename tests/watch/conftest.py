"""Segments of these tests need not outlive a power failure."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def unsynchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
