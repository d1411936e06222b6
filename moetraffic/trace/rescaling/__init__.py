"""The trace of the same run on other ranks, or with other bytes."""

from .ledger import Ledger
from .rescaling import Scaling, rescale
from .trace_scaling import TraceScale

__all__ = ["Ledger", "Scaling", "TraceScale", "rescale"]
