"""Published studies of training traffic, recomputed: one module and command each.

``python -m moetraffic.studies NAME`` prints one.  A study is a module of this folder
with a function ``reproduce() -> Result``.
"""

from __future__ import annotations

import importlib

from moetraffic.errors import LayoutError
from moetraffic.result import Result
from moetraffic.spelling import check_choice

STUDIES = ("apnet24", "sigmetrics24", "merced", "gpt350m", "iteration_times")


def reproduce(name: str) -> Result:
    """Recompute the tables of a published study by its name.

    Raises
    ------
    LayoutError
        If there is no study of that name.
    """
    check_choice("a study", name, STUDIES, LayoutError)
    result: Result = importlib.import_module(f"{__name__}.{name}").reproduce()
    return result
