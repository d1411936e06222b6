"""Import every module with an interpreter that has no packages: stand-ins replace them.

The test environment has its packages for one version of Python only.  What our modules
do when they are imported is run: syntax, names of the standard library, dataclasses,
and the options that are derived from their annotations.

    python3.10 import_everything.py FOLDER_OF_MOETRAFFIC
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class StandIn(type):
    """Class that may be a base, a type, a decorator or a number."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name != "__code__":
            raise AttributeError(name)
        return StandIn(name, (Root,), {})

    def __call__(cls, /, *_: Any, **__: Any) -> Any:
        return cls

    def __getitem__(cls, _: Any = None) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())

    def __int__(cls) -> int:
        return 1

    def __float__(cls) -> float:
        return 1.0

    __or__ = __ror__ = __getitem__
    __add__ = __sub__ = __mul__ = __truediv__ = __rmul__ = __pow__ = __getitem__
    __neg__ = __rtruediv__ = __radd__ = __rsub__ = __getitem__
    __index__ = __int__


class Root(metaclass=StandIn):
    """Base of all stand-ins."""


class Package(ModuleType):
    """Module with every name and every submodule."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (Root,), {})


class Finder:
    """Finds every module that is neither moetraffic's nor of the standard library."""

    @classmethod
    def find_spec(cls, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] == "moetraffic":
            return None
        return ModuleSpec(name, cls, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return Package(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


def main() -> None:
    """Import all modules; the first that fails ends the program with its traceback."""
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.append(Finder)
    package, number = importlib.import_module("moetraffic"), 0

    def stop(_: str) -> None:
        raise

    for found in pkgutil.walk_packages(package.__path__, "moetraffic.", stop):
        if found.name.endswith("__main__"):
            continue  # it runs when it is imported
        importlib.import_module(found.name)
        number += 1
    print(number)


if __name__ == "__main__":
    main()
