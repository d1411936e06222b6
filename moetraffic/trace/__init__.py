"""Network traffic trace of a training run: data model, file format, what-ifs."""

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
    Site,
    Source,
    Steps,
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
    "Site",
    "Source",
    "Steps",
    "Trace",
]
