"""Validation: two-sample tests and classifiers of synthetic against real runs."""

from .acceptance import Acceptance, validate

__all__ = ["Acceptance", "validate"]
