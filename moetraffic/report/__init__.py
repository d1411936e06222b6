"""Tables, charts and the HTML report of traces and analyses."""

from __future__ import annotations
