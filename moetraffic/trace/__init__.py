"""Network traffic trace of a training run: data model, file format, reading, saving."""

from .matrix import Matrix
from .model import (
    ALL_TO_ALL,
    DIRECTIONS,
    PHASES,
    ROUTING,
    UNKNOWN_TIME,
    DroppedForm,
    Group,
    Meta,
    Occurrences,
    Program,
    Site,
    Source,
    Steps,
    WireForm,
)
from .trace import Trace

__all__ = [
    "ALL_TO_ALL",
    "DIRECTIONS",
    "PHASES",
    "ROUTING",
    "UNKNOWN_TIME",
    "DroppedForm",
    "Group",
    "Matrix",
    "Meta",
    "Occurrences",
    "Program",
    "Site",
    "Source",
    "Steps",
    "Trace",
    "WireForm",
]
