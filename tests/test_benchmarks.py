"""Benchmarks, which no type checker reads, import what there is."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_imports_names_that_exist(path: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(path.read_text(), path.name)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "moetraffic"
        ):
            module = import_module(str(node.module))
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if not hasattr(module, alias.name) and find_spec(name) is None:
                    missing.append(name)
    assert not missing
