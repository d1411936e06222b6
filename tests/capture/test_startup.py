"""The start-up hook: invisible until torch.distributed comes, and then in its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from moetraffic.launch import hook_environment

TORCH = {
    "torch/__init__.py": "",
    "torch/distributed/__init__.py": "from .distributed_c10d import *\n",
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
        if name in ("moetraffic", "h5py"):
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
    place: Path,
    program: str,
    *,
    hook: bool = True,
    notes: bool = True,
    executable: str = sys.executable,
    **extra: str,
) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(place), **extra}
    if hook:
        told = hook_environment.variables(place / "run.h5", force=False, names={})
        if notes:
            told[hook_environment.NOTES] = str(place.parent / "notes")
        env = hook_environment.environment(told, env)
    ran = subprocess.run(
        [executable, "-c", textwrap.dedent(program)],
        env=env,
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


@pytest.mark.slow
def test_a_process_without_torch_is_what_it_would_be(place: Path) -> None:
    program = """
        import sys
        told = [sorted(sys.modules), sys.path, len(sys.meta_path)]
        import json
        print(json.dumps(told))
    """
    (modules, path, finders), (bare, bare_path, bare_finders) = (
        said(place, program, hook=hook) for hook in (True, False)
    )
    assert set(modules) - set(bare) <= {"__future__"}
    assert path == bare_path
    assert finders == bare_finders + 1
    assert notes(place) == {"python"}


@pytest.mark.slow
def test_the_programs_own_sitecustomize_and_usercustomize_run(place: Path) -> None:
    (place / "sitecustomize.py").write_text("MINE = __file__\n")
    (place / "usercustomize.py").write_text("import sys\nsys.mine = 1\n")
    program = """
        import json, sys, sitecustomize
        print(json.dumps([sitecustomize.MINE, sitecustomize.__spec__.origin, sys.mine]))
    """
    at = str(place / "sitecustomize.py")
    # a virtual environment has no usercustomize
    base = getattr(sys, "_base_executable", sys.executable)
    bare = said(place, program, hook=False, executable=base)
    assert said(place, program, executable=base) == bare == [at, at, 1]
    (place / "sitecustomize.py").write_text("raise KeyError('mine')\n")
    with_hook, without = (
        python(place, "pass", hook=hook).stderr for hook in (True, False)
    )
    assert with_hook == without != ""


def test_both_functions_are_wrapped_under_every_name(place: Path) -> None:
    program = """
        import inspect, json
        import torch.distributed as dist
        from torch.distributed import init_process_group as early
        from torch.distributed import distributed_c10d as c10d
        same = dist.init_process_group is c10d.init_process_group is early
        signature = str(inspect.signature(early))
        source = inspect.getsource(c10d).count("def init_process_group")
        own = "exec_module" in vars(c10d.__loader__)
        try:
            early("none")
        except ValueError as error:
            refused = str(error)
        print(json.dumps(
            [same, signature, early.__doc__, source, own, refused, early("gloo"),
             dist.destroy_process_group(), c10d.destroy_process_group(group=7)]
        ))
    """
    (place / "sitecustomize.py").write_text(BLOCK)
    assert said(place, program) == [
        *(True, "(backend=None)", "Make the ranks meet.", 1, False, "none", "met"),
        *(["destroyed", None], ["destroyed", 7]),
    ]
    assert {"python", "distributed", "initialized"} <= notes(place)


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
    assert "No module named 'h5py'" in errors[0]
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
        import json, sys
        finders = len(sys.meta_path)
        import torch.distributed as dist
        print(json.dumps([finders, hasattr(dist.init_process_group, "__wrapped__")]))
    """
    found, wrapped = said(place, program, MOETRAFFIC_OUT="")
    bare, _ = said(place, program, hook=False)
    assert found == bare + 1  # hooked: environment() sets the variable again
    assert wrapped
    path = os.pathsep.join([str(hook_environment.hook_folder()), str(place)])
    assert said(place, program, hook=False, PYTHONPATH=path) == [bare, False]
