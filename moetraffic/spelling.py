"""Map British option names of earlier versions to the current American spelling."""

from __future__ import annotations

import logging
from functools import cache

RENAMED = {
    "renormalise": "renormalize",
    "synchronisation": "synchronization",
    "utilisation": "utilization",
}
"""Current option names by their earlier spelling."""


def current_name(name: str) -> str:
    """Return the current spelling of an option's name.

    An earlier spelling is reported once, as one line on standard error.

    Examples
    --------
    >>> current_name("utilization")
    'utilization'
    """
    if name in RENAMED:
        _warn(name)
    return RENAMED.get(name, name)


@cache
def _warn(name: str) -> None:
    logging.getLogger("moetraffic").warning(
        "the option %r is now spelled %r; the earlier spelling is still read",
        name,
        RENAMED[name],
    )
