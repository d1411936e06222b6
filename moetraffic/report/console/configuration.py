"""Read command line options from a TOML configuration file.

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

import os
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from moetraffic.errors import MoetrafficError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "MOETRAFFIC_CONFIG"
"""Environment variable with the path of the configuration file."""

FILE = "moetraffic.toml"
"""Name of the configuration file in a folder."""


def read(
    path: Path, verbs: Iterable[str], *, strict: bool = True
) -> dict[str, dict[str, Any]]:
    """Read a TOML configuration file with one table of options per verb.

    ``path`` is the file, or the folder that contains ``moetraffic.toml``. With
    ``strict``, tables of verbs other than ``verbs`` are rejected.

    Raises
    ------
    MoetrafficError
        If the file cannot be read, is not TOML, or has a table of an unknown verb.
    """
    if path.is_dir():
        path = path / FILE
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MoetrafficError(
            f"the configuration {path} cannot be read ({error.strerror or error}): "
            "give --config a TOML file, or leave it out"
        ) from None
    except (ValueError, RecursionError) as error:
        # also for numbers of thousands of digits, and lists nested too deeply
        raise MoetrafficError(
            f"a configuration is a TOML file, but {path} is none "
            f"({' '.join(str(error).split())[:200]}): mend it"
        ) from None
    known = sorted(verbs)
    for name, table in told.items():
        if name not in known:
            if not strict:
                continue
            raise MoetrafficError(
                f"a configuration has a table for each verb, but {path} has "
                f"{name!r}: {_nearest(name, known, '[{}]')}"
            )
        if not isinstance(table, dict):
            raise MoetrafficError(
                f"a configuration has a table for each verb, but in {path} {name} is "
                f"a single value: write [{name}] and the options below it"
            )
    return told


def defaults(
    table: Mapping[str, Any], verb: str, parameters: Iterable[Any], path: object
) -> dict[str, Any]:
    """Convert the configured options of a verb to click's ``default_map``.

    ``parameters`` are the verb's parameters, as click describes them; ``verb`` and
    ``path`` are for messages.

    Raises
    ------
    MoetrafficError
        If the verb has no such option, or a value has the wrong type.
    """
    options: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.param_type_name == "option" and not parameter.hidden:
            for spelling in parameter.opts:
                options[spelling.lstrip("-")] = parameter
    found = {}
    for key, value in table.items():
        option = options.get(key.replace("_", "-"))
        if option is None or key in ("help", "config"):
            raise MoetrafficError(
                f"{path} gives moetraffic {verb} an option {key!r}, which it does not "
                f"have: {_nearest(key, sorted(options), '{}')}"
            )
        if option.name in found:
            raise MoetrafficError(
                f"{path} gives moetraffic {verb} the option {key!r} in two spellings: "
                "leave out one"
            )
        found[option.name] = _value(option, value, f"{path} [{verb}] {key}")
    return found


def asked() -> str:
    """Remove the configuration path from the environment, and return it."""
    return os.environ.pop(VARIABLE, "")


def _value(option: Any, value: Any, where: str) -> Any:
    """Convert a TOML value to the text or flag that the command line would give."""
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise MoetrafficError(f"{where} is true or false, not {value!r}: change it")
    values = value if isinstance(value, list) else [value]
    # options take neither booleans, tables nor dates as text
    if any(isinstance(v, bool) or not isinstance(v, str | int | float) for v in values):
        raise MoetrafficError(
            f"{where} is a number, a text or a list of these, not {value!r}: change it"
        )
    texts = [str(v) for v in values]
    if option.multiple:
        return texts
    if isinstance(value, list):
        raise MoetrafficError(f"{where} is one value, not a list: give one of them")
    return texts[0]


def _nearest(name: str, known: list[str], form: str) -> str:
    close = get_close_matches(name.replace("_", "-"), known, 1)
    if close:
        return f"did you mean {form.format(close[0])}?"
    return f"there are {', '.join(known)}"
