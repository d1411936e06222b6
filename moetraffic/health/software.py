"""Check the installed versions of the packages that moetraffic uses."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import moetraffic
from moetraffic.errors import install_command

from .finding import Finding, State, finding

_check = partial(finding, "software")


class Package(NamedTuple):
    """A required or optional package and its purpose."""

    name: str
    least: str  # version
    purpose: str
    extra: str = ""  # the extra that installs it; "": always required


PACKAGES = (
    Package("torch", "2.5", "training, the dispatcher of the capture hook, gloo, NCCL"),
    Package("fairscale", "0.4.13", "fairscale's MoE, tensor and ZeRO layers"),
    Package("numpy", "1.26", "arrays"),
    Package("scipy", "1.11", "statistics, matchings"),
    Package("networkx", "3.2", "graphs of networks"),
    Package("h5py", "3.11", "the file format"),
    Package("typer", "0.12", "the command line"),
    Package("rich", "13", "tables and progress"),
    Package("matplotlib", "3.8", "figures"),
    Package("pandas", "2", "data frames"),
    Package("plotly", "6", "the HTML report"),
    Package("scikit-learn", "1.4", "classifier tests of synthetic traffic"),
    Package("statsmodels", "0.14.2", "stationarity tests, multiple testing"),
    Package("prometheus-client", "0.20", "metrics files of watch"),
    Package("numba", "0.60", "evaluate: compiled times of flows", "fast"),
    Package("ninja", "1.11", "compiling the capture hook", "hook"),
    Package("pyarrow", "16", "Parquet", "tables"),
    Package("openpyxl", "3.1", "Excel files", "tables"),
    Package("tensorboard", "2.15", "event files of watch", "tensorboard"),
    Package("wandb", "0.17", "runs of watch in Weights & Biases", "wandb"),
    Package("threadpoolctl", "3", "one BLAS thread an analysis"),
    Package("dask", "2024.8", "statistics on a cluster", "dask"),
    Package("distributed", "2024.8", "statistics on a cluster", "dask"),
    Package("xarray", "2024.6", "labeled arrays", "xarray"),
    Package("h5netcdf", "1.3", "reading traces with xarray", "xarray"),
)
"""The run-time requirements of ``pyproject.toml``."""


def software() -> Iterator[Finding]:
    """Yield findings on the versions of Python, moetraffic and its dependencies."""
    yield _check(
        *("python", State.OK),
        f"{platform.python_version()} ({platform.python_implementation()}, "
        f"{platform.system()} {platform.release()}, {platform.machine()})",
    )
    yield _check("moetraffic", State.OK, moetraffic.__version__)
    yield from map(_package, PACKAGES)


def newer(have: str, least: str) -> bool:
    """Whether a version is at least another, compared by their leading numbers.

    Examples
    --------
    >>> newer("2.13.0+cpu", "2.4"), newer("2.3.1", "2.4")
    (True, False)
    """
    return _numbers(have) >= _numbers(least)


def _package(package: Package) -> Finding:
    install = (
        install_command(package.extra)
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
    return _check(package.name, state, said, install)


def _numbers(text: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(n) for n in leading.group().split(".")) if leading else ()
