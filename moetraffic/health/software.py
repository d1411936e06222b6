"""The packages that moetraffic stands on, which of them are there, and what for."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import moetraffic

from .finding import Finding, State

AREA = "software"


class Package(NamedTuple):
    """A package, and what cannot be done without it."""

    name: str
    least: str  # version
    purpose: str
    extra: str = ""  # of moetraffic, that brings it; none: it is always needed


PACKAGES = (
    Package("torch", "2.4", "training, the dispatcher the hook stands on, gloo, NCCL"),
    Package("fairscale", "0.4.13", "expert and model parallelism of others"),
    Package("numpy", "1.26", "arrays"),
    Package("scipy", "1.11", "statistics, matchings"),
    Package("networkx", "3.2", "graphs of networks"),
    Package("h5py", "3.11", "the file format"),
    Package("typer", "0.12", "the command line"),
    Package("rich", "13", "tables and progress"),
    Package("matplotlib", "3.8", "pictures"),
    Package("isal", "1.6", "inflating traces two to three times as fast", "fast"),
    Package("numba", "0.60", "statistics of many matrices at once", "fast"),
    Package("ruptures", "1.1.9", "change points", "analysis"),
    Package("plotly", "6", "the page of moetraffic report", "report"),
    Package("ninja", "1.11", "compiling the hook", "hook"),
    Package("pandas", "2", "data frames", "tables"),
    Package("pyarrow", "16", "Parquet", "tables"),
    Package("dask", "2024.8", "statistics on a cluster", "dask"),
    Package("distributed", "2024.8", "statistics on a cluster", "dask"),
    Package("xarray", "2024.6", "labeled arrays", "xarray"),
    Package("h5netcdf", "1.3", "traces read by xarray", "xarray"),
)
"""Those that ``pyproject.toml`` names for running."""


def software() -> Iterator[Finding]:
    """Python, moetraffic and every package: version, or what is lost without it."""
    yield Finding(
        area=AREA,
        name="python",
        state=State.OK,
        said=f"{platform.python_version()} ({platform.python_implementation()}, "
        f"{platform.system()} {platform.release()}, {platform.machine()})",
    )
    yield Finding(
        area=AREA, name="moetraffic", state=State.OK, said=moetraffic.__version__
    )
    yield from map(_package, PACKAGES)


def newer(have: str, least: str) -> bool:
    """Whether a version is at least another; only its leading numbers count.

    Examples
    --------
    >>> newer("2.13.0+cpu", "2.4"), newer("2.3.1", "2.4")
    (True, False)
    """
    return _numbers(have) >= _numbers(least)


def _package(package: Package) -> Finding:
    install = (
        f"pip install 'moetraffic[{package.extra}]'"
        if package.extra
        else f"pip install '{package.name}>={package.least}'"
    )
    worse = State.NOTE if package.extra else State.STOP
    try:
        have = version(package.name)
    except PackageNotFoundError:
        state, said = worse, f"not installed: {package.purpose}"
    else:
        sound = newer(have, package.least)
        state = State.OK if sound else worse
        said = have if sound else f"{have}, but {package.least} or newer is needed"
    return Finding(
        area=AREA,
        name=package.name,
        state=state,
        said=said,
        remedy="" if state is State.OK else install,
    )


def _numbers(text: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(n) for n in leading.group().split(".")) if leading else ()
