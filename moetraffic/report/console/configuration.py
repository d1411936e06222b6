"""Read options of the command line from a TOML file, as click's ``default_map``.

The file has one table per verb, and one key per option, without dashes::

    [capture]
    nproc = 4
    experts = 8
    router-option = ["groups=4"]

The file is read only if ``--config FILE`` or the environment variable
``MOETRAFFIC_CONFIG`` names it: no other file in a folder changes what a command does.
Options on the command line override the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moetraffic.errors import MoetrafficError
from moetraffic.spelling import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "MOETRAFFIC_CONFIG"
"""Environment variable with the path of the configuration file."""


def read(path: Path) -> dict[str, Any]:
    """Read the tables of a configuration file; MoetrafficError: it is no TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MoetrafficError(
            f"--config is a TOML file, but {path} cannot be read as one "
            f"({' '.join(str(error).split())[:200]}): change it, or leave it out"
        ) from None


def defaults(table: Any, verb: str, parameters: Iterable[Any]) -> dict[str, Any]:
    """Convert a verb's table to defaults by parameter, as texts that click parses.

    ``parameters`` are the verb's, as click describes them.

    Raises
    ------
    MoetrafficError
        If the table is a single value, or the verb has no such option.
    """
    if not isinstance(table, Mapping):
        raise MoetrafficError(
            f"the configuration file has a table for each verb, but {verb} is "
            f"{table!r:.60}: write [{verb}], and its options below"
        )
    options = {
        flag.lstrip("-"): parameter
        for parameter in parameters
        if parameter.param_type_name == "option" and not parameter.hidden
        for flag in parameter.opts
    }
    found: dict[str, Any] = {}
    for key, value in table.items():
        option = options.get(key.replace("_", "-"))
        if option is None:
            raise MoetrafficError(
                f"moetraffic {verb} has no option {key!r} of the configuration file: "
                f"{nearest(key, options)}leave it out"
            )
        values = value if isinstance(value, list) else [value]
        found[option.name] = list(map(str, values)) if option.multiple else str(value)
    return found
