"""The files beside the replayed trace: the fidelity as JSON, and metrics."""

from __future__ import annotations

from moetraffic.errors import ReplayError
from moetraffic.replay.request import Request
from moetraffic.trace.hdf5.durable import remedy, write_whole

from .metrics import result_metrics, write_metrics
from .records import to_json
from .result import Summary


def write_reports(request: Request, summary: Summary) -> None:
    """Write what was asked for.

    Raises
    ------
    ReplayError
        If the system refuses.
    """
    if request.fidelity is not None and summary.fidelity is not None:
        text = to_json("moetraffic replay fidelity", summary.fidelity, indent=2)
        try:
            write_whole(request.fidelity, text.encode() + b"\n")
        except OSError as error:
            raise ReplayError(
                f"{request.fidelity} cannot be written ({error.strerror}): "
                f"{remedy(error)}"
            ) from None
    if request.metrics is not None:
        write_metrics(
            request.metrics, result_metrics(summary), common_labels(summary.source)
        )


def common_labels(source: str) -> dict[str, str]:
    """Labels of every sample: one file may be one of several replays' in a folder."""
    return {"trace": source}
