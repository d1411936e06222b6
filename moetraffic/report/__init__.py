"""Figures and tables of traces and analyses."""

from __future__ import annotations
