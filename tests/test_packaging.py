"""Wheel and sdist: built, installed, used where others have `models/` too."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from moetraffic.data import path

ROOT = Path(__file__).parents[1]
MINE = "def f():\n    return 'the repository has models of its own'\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist of a clean copy of what git tracks."""
    base = tmp_path_factory.mktemp("build")
    copy = base / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        here, there = ROOT / name, copy / name
        there.parent.mkdir(parents=True, exist_ok=True)
        if here.is_symlink():
            there.symlink_to(os.readlink(here))
        elif here.is_file():
            there.write_bytes(here.read_bytes())
    ran = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", base / "dist"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return base / "dist"


def test_wheel_and_sdist_hold_every_module_once(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    inside = zipfile.ZipFile(wheel).namelist()
    assert len(inside) == len(set(inside))
    tops = {name.split("/")[0] for name in inside}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"moetraffic"}
    for name in (
        "moetraffic/py.typed",
        "moetraffic/models/gpt.py",
        "moetraffic/capture/startup/moetraffic_startup.py",
        "moetraffic/capture/startup/moetraffic_startup-1.dist-info/entry_points.txt",
        "moetraffic/gating/topk.py",
        "moetraffic/replay/execution/engine.py",
        "moetraffic/data/golden.h5",
    ):
        assert name in inside
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {"models/gpt.py", "data/golden.h5", "LICENSE", "README.md"} <= names


@pytest.mark.slow
def test_installed_wheel_works_in_a_repository_with_its_own_models(
    built: Path, tmp_path: Path
) -> None:
    place = tmp_path / "venv"
    venv.EnvBuilder().create(place)
    python = place / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", python]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True)
    # what it depends on is large: it is borrowed, and moetraffic itself is not
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "moetraffic" not in entry.name and not entry.name.endswith(".pth"):
            (borrowed / entry.name).symlink_to(entry)
    site = next((place / "lib").glob("python3*")) / "site-packages"
    (site / "borrowed.pth").write_text(f"{borrowed}\n")

    repository = tmp_path / "repository"
    for name in ("models", "gating", "replay", "data"):
        (repository / name).mkdir(parents=True)
        (repository / name / "__init__.py").write_text(MINE)
    program = (
        "import models, moetraffic, moetraffic.models, moetraffic.gating\n"
        "import moetraffic.replay, moetraffic.data\n"
        "from moetraffic import Trace\n"
        "assert models.f().startswith('the repository')\n"
        "assert 'venv' in moetraffic.__file__, moetraffic.__file__\n"
        "trace = Trace.open(moetraffic.data.path('golden.h5'))\n"
        "print(len(trace.iterations), hasattr(moetraffic.models, 'train'))\n"
    )

    def run(*arguments: str) -> str:
        return subprocess.run(
            [*arguments], cwd=repository, check=True, capture_output=True, text=True
        ).stdout

    assert run(str(python), "-c", program).split() == ["12", "True"]
    command = str(place / "bin" / "moetraffic")
    small = ("--layers", "2", "--hidden", "16", "--heads", "1", "--sequence", "16")
    run(command, "capture", "-o", "r.h5", "--nproc", "2", "--iterations", "4", *small)
    assert "captured" in run(command, "info", "r.h5")


@pytest.mark.slow
def test_a_script_beside_a_folder_called_like_the_package_imports_the_package(
    tmp_path: Path,
) -> None:
    """Such a folder is the clone's; without __init__.py, a namespace package."""
    if not (Path(sysconfig.get_path("purelib")) / "moetraffic.pth").exists():
        pytest.skip("this environment was not made by make")
    (tmp_path / "moetraffic" / "data").mkdir(parents=True)
    script = tmp_path / "script.py"
    script.write_text(
        "import moetraffic.data, moetraffic.gating\n"
        "from moetraffic import Trace\n"
        "print(len(Trace.open(moetraffic.data.path('golden.h5')).iterations))\n"
    )
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.stdout == "12\n", ran.stderr


def interpreter(version: str) -> str:
    """Return the path of a version of Python, from the search path or from pyenv."""
    program = "import sys; print(sys.executable)"
    try:
        return subprocess.run(
            [f"python{version}", "-c", program],
            env={**os.environ, "PYENV_VERSION": version},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"there is no python{version}")


def test_the_oldest_supported_python_imports_every_module() -> None:
    """The packages that they import need not be there."""
    ran = subprocess.run(
        [interpreter("3.10"), "-B", ROOT / "tests" / "import_everything.py", ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) > 450


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_wheel_installs_in_an_empty_environment_of_each_python(
    version: str, built: Path, tmp_path: Path
) -> None:
    venv_of = [interpreter(version), "-m", "venv", tmp_path / "venv"]
    subprocess.run(venv_of, check=True)
    (wheel,) = built.glob("*.whl")
    pip = [tmp_path / "venv" / "bin" / "pip", "install", "--quiet", wheel]
    ran = subprocess.run(pip, capture_output=True, text=True, check=False)
    if "from versions: none" in ran.stderr:
        pytest.skip(f"packages cannot be downloaded: {ran.stderr.splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr[-2000:]
    command = tmp_path / "venv" / "bin" / "moetraffic"
    small = "--layers 2 --hidden 16 --heads 1 --sequence 16"
    for arguments, said in {
        f"info {path('golden.h5')}": "2 ranks",
        f"analyze {path('golden.h5')}": "busiest expert",
        f"capture -o r.h5 --nproc 2 --iterations 4 {small}": "r.h5",
        "replay r.h5 -o again.h5": "every size and byte verified",
        "plot r.h5 -o pictures": "entropy.png",
        "report r.h5 -o page.html": "page.html",
    }.items():
        ran = subprocess.run(
            [command, *arguments.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        assert said in ran.stdout, arguments
