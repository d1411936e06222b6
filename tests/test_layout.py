"""The house: one import name, every folder in the wheel, layers that stand."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import networkx as nx
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]
WINGS = {name: at for name, at in FOLDERS.items() if name != "moetraffic"}


def sources(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
    ]


def test_every_package_on_disk_is_in_the_wheel() -> None:
    found = {
        ".".join([name, *path.parent.relative_to(ROOT / folder).parts])
        for name, folder in FOLDERS.items()
        for path in sources(folder)
        if path.name == "__init__.py"
    }
    assert found == set(SETUPTOOLS["packages"])


@pytest.mark.parametrize(("name", "folder"), WINGS.items())
def test_a_link_shows_each_root_folder_under_its_import_name(
    name: str, folder: str
) -> None:
    link = ROOT / "moetraffic" / name.removeprefix("moetraffic.")
    assert link.is_symlink(), f"{link} must be a link: git config core.symlinks true"
    assert link.resolve() == ROOT / folder


def test_root_folders_are_imported_under_one_name_only() -> None:
    bare = re.compile(r"^\s*(?:from|import)\s+(?:gating|models|replay|data)\b", re.M)
    everywhere = sources(*FOLDERS.values(), "tests", "benchmarks")
    assert len(everywhere) > 50
    assert [str(p) for p in everywhere if bare.search(p.read_text())] == []


def test_layers_stand_as_the_contract_says() -> None:
    ran = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


def _constants(tree: ast.AST) -> set[str]:
    """Texts of a module, which may name another one to import."""
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def imports(modules: Mapping[str, Path]) -> nx.DiGraph[str]:
    """Return which module imports which, also inside functions, not for types alone.

    Of a module that calls ``import_module``, also for a lazy ``__getattr__``, each
    text that names a module, whole or below its package, is an import.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module, path in modules.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        package = module.rpartition(".")[0]
        named: list[tuple[str, ...]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                above = module.split(".")[: -node.level] if node.level else []
                source = ".".join([*above, *([node.module] if node.module else [])])
                named += [(f"{source}.{alias.name}", source) for alias in node.names]
            elif isinstance(node, ast.Import):
                named += [(alias.name,) for alias in node.names]
        if "import_module" in path.read_text():
            named += [(text, f"{package}.{text}") for text in _constants(tree)]
        for names in named:
            forms = [form for name in names for form in (name, f"{name}.__init__")]
            graph.add_edges_from(
                (module, form) for form in [f for f in forms if f in modules][:1]
            )
    return graph


def circles(graph: nx.DiGraph[str]) -> list[set[str]]:
    return [
        found for found in nx.strongly_connected_components(graph) if len(found) > 1
    ]


@pytest.mark.parametrize(
    "importing",
    [
        "from .upper import f",
        "def f():\n    from house import upper",
        "import house.upper",
        "upper = import_module('house.upper')",
        "upper = importlib.import_module('house.upper')",
        "M = {'f': 'upper'}\ndef __getattr__(n): return import_module('house.' + M[n])",
    ],
)
def test_a_circle_is_found_in_each_way_to_import(
    importing: str, tmp_path: Path
) -> None:
    (tmp_path / "upper.py").write_text("from house.lower import g")
    (tmp_path / "lower.py").write_text(importing)
    modules = {f"house.{path.stem}": path for path in tmp_path.iterdir()}
    assert circles(imports(modules)) == [set(modules)]


ALLOWED = ("moetraffic.trace.trace", "moetraffic.trace.routed")
"""An import inside of a function: a method that makes a trace of arrays."""


def test_there_is_no_circle_of_imports() -> None:
    """The package itself shows names of every floor, imported when they are asked for;
    a result or a trace that a notebook shows imports how it is shown."""
    modules = {
        ".".join([name, *path.relative_to(ROOT / at).with_suffix("").parts]): path
        for name, at in FOLDERS.items()
        for path in sources(at)
    }
    graph = imports(modules)
    graph.remove_node("moetraffic.__init__")
    graph.remove_edge("moetraffic.tables", "moetraffic.report.notebook")
    graph.remove_edge("moetraffic.trace.trace", "moetraffic.report.views.info")
    graph.remove_edge(*ALLOWED)
    assert graph.size() > 1000
    assert circles(graph) == []


def test_no_message_names_a_file_that_only_the_repository_has() -> None:
    """An installed package has neither the pages nor the examples."""
    named = []
    for path in sources(*FOLDERS.values()):
        tree = ast.parse(path.read_text())
        unprinted = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        named += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in unprinted
            and re.search(r"\b(docs|examples|benchmarks|tests)/|\w\.md\b", node.value)
        ]
    assert not named


def test_the_map_of_folders_is_that_of_the_tree() -> None:
    house = (ROOT / "CONTRIBUTING.md").read_text().split("```")[1]
    folders = {
        path.parent.name
        for path in (ROOT / "moetraffic").glob("*/__init__.py")
        if not path.parent.is_symlink()
    }
    assert folders == set(re.findall(r"^  (\w+)/", house.split("gating/")[0], re.M))
