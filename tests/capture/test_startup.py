"""The start-up hook: nothing until torch comes, and then around the process group."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from moetraffic.capture import command
from moetraffic.errors import CaptureError

# as torch calls the entry points of its backends
AUTOLOAD = """
from importlib.metadata import entry_points
import torch.distributed
for entry in entry_points(group="torch.backends"):
    try:
        entry.load()()
    except Exception as error:
        raise RuntimeError("import torch fails") from error
"""
TORCH = {
    "torch/__init__.py": AUTOLOAD,
    "torch/distributed/__init__.py": (
        "from . import distributed_c10d, device_mesh\n"
        "from .distributed_c10d import *\n"
        "def is_available(): return True\n"
    ),
    "torch/distributed/device_mesh.py": (
        "from .distributed_c10d import init_process_group\n"
        "def make(): return init_process_group()\n"
    ),
    "torch/distributed/distributed_c10d.py": '''
class GroupMember:
    WORLD = None
def init_process_group(backend=None):
    """Make the ranks meet."""
    if backend == "none":
        raise ValueError(backend)
    return "met"
def destroy_process_group(group=None):
    return ("destroyed", group)
''',
}
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name in ("moetraffic", "numpy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder on the path with something like torch in it."""
    for name, text in TORCH.items():
        file = tmp_path / "place" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "notes").mkdir()
    return tmp_path / "place"


def python(
    place: Path, program: str, *, hook: bool = True, notes: bool = True, **extra: str
) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(place)}
    if hook:
        variables = command.variables(place / "run.h5", force=False, names={})
        if notes:
            variables[command.NOTES] = str(place.parent / "notes")
        env = command.environment(variables, env)
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=env | extra,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran


def said(place: Path, program: str, **named: Any) -> Any:
    return json.loads(python(place, program, **named).stdout)


def notes(place: Path) -> set[str]:
    return {note.name for note in (place.parent / "notes").iterdir()}


def test_the_folder_declares_one_entry_point_that_exists() -> None:
    folder = command.HOOK_FOLDER
    (hook,) = importlib.metadata.distributions(path=[str(folder)])
    (entry,) = hook.entry_points
    assert entry.group == "torch.backends"
    assert hook.metadata["Name"] == "moetraffic-startup"
    module, _, function = entry.value.partition(":")
    assert f"def {function}() -> None:" in (folder / f"{module}.py").read_text()


@pytest.mark.slow
def test_a_process_without_torch_is_what_it_would_be(place: Path) -> None:
    (place / "sitecustomize.py").write_text("MINE = __file__\n")
    program = """
        import sys
        modules, finders = sorted(sys.modules), len(sys.meta_path)
        import json, sitecustomize
        print(json.dumps([modules, finders, sys.path[:2], sitecustomize.MINE]))
    """
    with_hook, without = (said(place, program, hook=hook) for hook in (True, False))
    assert with_hook == without
    assert with_hook[3] == str(place / "sitecustomize.py")
    assert notes(place) == set()


def test_both_functions_are_wrapped_under_every_name(place: Path) -> None:
    program = """
        import inspect, json
        import torch.distributed as dist
        from torch.distributed import init_process_group as early
        from torch.distributed import distributed_c10d as c10d, device_mesh
        same = dist.init_process_group is c10d.init_process_group is early
        same &= device_mesh.init_process_group is early
        try:
            early("none")
        except ValueError as error:
            refused = str(error)
        print(json.dumps(
            [same, str(inspect.signature(early)), early.__doc__, refused,
             early("gloo"), device_mesh.make(), dist.destroy_process_group(),
             c10d.destroy_process_group(group=7)]
        ))
    """
    (place / "sitecustomize.py").write_text(BLOCK)
    assert said(place, program) == [
        *(True, "(backend=None)", "Make the ranks meet.", "none", "met", "met"),
        *(["destroyed", None], ["destroyed", 7]),
    ]
    assert notes(place) == {"torch", "initialized", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "messages"),
    [("del init_process_group", 1), ("del is_available", 1), ("unavailable", 0)],
)
def test_a_torch_that_cannot_be_hooked_is_imported(
    place: Path, broken: str, messages: int
) -> None:
    file = place / "torch" / "distributed" / "__init__.py"
    text = file.read_text()
    if broken == "unavailable":
        file.write_text(text.replace("True", "False"))
    elif broken == "del is_available":
        file.write_text(text + broken)
    else:
        file.write_text(f"{text}del distributed_c10d.init_process_group\n")
    errors = python(place, "import torch").stderr
    assert errors.count("this torch cannot be captured") == messages


@pytest.mark.slow
def test_an_interpreter_without_moetraffic_is_named_once_a_host(place: Path) -> None:
    (place / "sitecustomize.py").write_text(BLOCK)
    program = "import torch.distributed as d; d.init_process_group()"
    errors = [python(place, program).stderr for _ in range(2)]
    assert errors[1] == ""
    assert errors[0].startswith("moetraffic: this run is not captured on ")
    assert errors[0].count("\n") == 1
    assert sys.executable in errors[0]
    # moetraffic itself was found beside the hook; it lacks what it stands on
    assert "No module named 'numpy'" in errors[0]
    assert "install it there" in errors[0]
    assert "refused" in notes(place)


@pytest.mark.slow
def test_without_a_launcher_the_first_rank_of_a_host_speaks(place: Path) -> None:
    (place / "sitecustomize.py").write_text(BLOCK)
    program = "import torch.distributed as d; d.init_process_group()"
    first, second = (
        python(place, program, notes=False, LOCAL_RANK=rank).stderr for rank in "01"
    )
    assert "not captured" in first
    assert second == ""


@pytest.mark.slow
def test_without_its_variable_the_hook_does_nothing(place: Path) -> None:
    program = """
        import json
        import torch.distributed as dist
        print(json.dumps(hasattr(dist.init_process_group, "__wrapped__")))
    """
    assert said(place, program) is True
    assert said(place, program, MOETRAFFIC_OUT="") is False


def test_what_keeps_torch_from_loading_the_hook_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(command.AUTOLOAD, "0")
    with pytest.raises(CaptureError, match="TORCH_DEVICE_BACKEND_AUTOLOAD=0"):
        command.variables(Path("run.h5"), force=False, names={})
