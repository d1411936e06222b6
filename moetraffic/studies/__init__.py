"""Published studies of training traffic, recomputed: one module per study.

A study is a module of this folder with a function ``reproduce() -> Study``;
:data:`STUDIES` names them in the order of the output.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

from moetraffic.patterns.rules import choose

from .study import Study

STUDIES = (
    "apnet24",
    "sigmetrics24",
    "merced",
    "gpt350m",
    "sc21",
    "iteration_times",
)


def there() -> tuple[str, ...]:
    """Return the names of the studies whose module is installed."""
    return tuple(n for n in STUDIES if importlib.util.find_spec(f"{__name__}.{n}"))


def reproduce(name: str) -> Study:
    """Recompute the tables of a published study by its name.

    Raises
    ------
    LayoutError
        If there is no study of that name.
    """
    choose("a study", name, there())
    made: Callable[[], Study] = importlib.import_module(f"{__name__}.{name}").reproduce
    return made()


__all__ = ["STUDIES", "Study", "reproduce", "there"]
