"""The house: one import name, every folder in the wheel, layers that stand."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
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
SAYS_NOTHING = re.compile(r"(^|_)(utils?|common|helpers?|misc|manager)(_|$)")


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


def test_modules_are_nouns_of_the_field_and_short() -> None:
    for path in sources(*FOLDERS.values()):
        assert not SAYS_NOTHING.search(path.stem), path
        assert len(path.read_text().splitlines()) <= 500, f"split {path} by idea"


LEAVES = {"moetraffic/interop/export", "moetraffic/interop"}
"""Folders of one file a format may be long."""


def _named() -> list[Path]:
    """Product modules with a name of their own, relative to the checkout."""
    found = [path.relative_to(ROOT) for path in sources(*FOLDERS.values())]
    return [path for path in found if path.stem not in ("__init__", "__main__")]


def test_folders_are_small_enough_to_read_at_a_glance() -> None:
    sizes = Counter(str(path.parent) for path in _named())
    assert {k: n for k, n in sizes.items() if n > 20 and k not in LEAVES} == {}


def test_a_file_name_is_used_at_most_twice() -> None:
    verbs = {path.stem for path in sources("moetraffic/cli")}
    names = Counter(path.stem for path in _named() if path.stem not in verbs)
    assert {name: n for name, n in names.items() if n > 2} == {}


def test_a_class_name_is_used_at_most_twice() -> None:
    names = Counter(
        node.name
        for path in _named()
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name: n for name, n in names.items() if n > 2} == {}


def test_array_types_are_defined_once() -> None:
    alias = re.compile(r"^\w+(?:: TypeAlias)? = (?:npt\.)?NDArray\[np\.", re.M)
    found = [p for p in _named() if alias.search((ROOT / p).read_text())]
    assert found == [Path("moetraffic/arrays.py")]


def test_there_is_no_circle_of_imports() -> None:
    """Imports under TYPE_CHECKING and inside functions count, too.

    The package itself shows names of every floor, each imported when it is asked for.
    """
    modules = {
        ".".join([name, *path.relative_to(ROOT / at).with_suffix("").parts]): path
        for name, at in FOLDERS.items()
        for path in sources(at)
    }
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            above = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                named = (f"{source}.{alias.name}", source, f"{source}.__init__")
                found = [each for each in named if each in modules]
                graph.add_edges_from((module, each) for each in found[:1])
    graph.remove_node("moetraffic.__init__")
    assert graph.size() > 1000
    assert [c for c in nx.strongly_connected_components(graph) if len(c) > 1] == []
