"""Machines that lack what most have: a home, a temporary folder, open streams, GPUs."""

from __future__ import annotations

import json
import os
import pwd
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from moetraffic.capture.hook import native
from moetraffic.capture.log_merging import explain_nothing_recorded
from moetraffic.cli import main
from moetraffic.data import path as shipped
from moetraffic.errors import CaptureError, LayoutError
from moetraffic.health import Finding, State, machine
from moetraffic.launch.devices import own_gpu
from moetraffic.trace.merge.log_folder import SMALLEST_LIMIT, prepare

PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + __file__ + ".store", rank=0,
                        world_size=1)
for _ in range(20):
    dist.all_to_all_single(torch.empty(8, 4), torch.ones(8, 4))
dist.destroy_process_group()
"""


def found(folder: Path, name: str) -> Finding:
    checks = [*machine.backends(), *machine.files(folder)]
    (one,) = [f for f in checks if f.name == name]
    return one


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence with which bad input ends."""
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("moetraffic: ")
    assert told.count("\n") == 1
    return told


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with an arbitrary user ID."""

    def getpwuid(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", getpwuid)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_has_no_cache_and_captures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert native.folders() == (tmp_path / "share" / "moetraffic",)
    assert native.load() is None


def test_a_library_is_neither_loaded_from_nor_built_on_a_noexec_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(native.VARIABLE, raising=False)
    folder = native.folders()[0]
    folder.mkdir(parents=True)
    folder.joinpath(f"{native._name()}.so").write_bytes(b"not loaded")
    mount = SimpleNamespace(f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda _: mount)
    assert native.load() is None
    with pytest.raises(CaptureError, match=r"permits executables.*set XDG_CACHE_HOME"):
        native._writable_folder()


def test_a_limit_on_file_sizes_is_told_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real, size = resource.getrlimit, [1024]

    def getrlimit(kind: int) -> tuple[int, int]:
        return (size[0], -1) if kind == resource.RLIMIT_FSIZE else real(kind)

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    assert found(tmp_path, "file size").state is State.STOP
    output = tmp_path / "run.h5"
    told = refused(["run", "-o", str(output), "--", "true"], capsys)
    assert "limit on file sizes is 1024 bytes: raise it with ulimit -f" in told
    size[0] = SMALLEST_LIMIT
    limit = found(tmp_path, "file size")
    assert (limit.state, limit.remedy) == (State.NOTE, "ulimit -f unlimited")
    prepare(output, force=False)


def test_a_missing_temporary_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere() -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", nowhere)
    assert found(tmp_path, "temporary folder").state is State.STOP
    told = refused(["run", "-o", str(tmp_path / "run.h5"), "--", "true"], capsys)
    assert "set TMPDIR to a folder" in told


def test_a_folder_without_write_access_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/proc")  # not even root can create a file there
    assert "cannot be written" in refused(["run", "--", "true"], capsys)
    assert "cannot be written" in refused(["capture"], capsys)
    assert found(Path.cwd(), "folder").state is State.STOP


@pytest.mark.parametrize(
    ("local", "visible", "shown", "gpu"),
    [
        (0, 1, None, 0),
        (3, 4, None, 3),
        (3, 1, "3", 0),  # the launcher shows each rank its own GPU only
        (3, 1, "GPU-8f6c", 0),
        (3, 1, None, None),
        (2, 2, "0,1", None),
        (0, 0, "", None),
    ],
)
def test_a_rank_takes_a_gpu_of_its_own_or_none(
    local: int,
    visible: int,
    shown: str | None,
    gpu: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    if gpu is not None:
        assert own_gpu(local, visible) == gpu
        return
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "a100:1")
    if visible == 1:  # --gpus-per-task=1
        assert own_gpu(local, visible) == 0
    monkeypatch.delenv("SLURM_GPUS_PER_TASK")
    with pytest.raises(LayoutError, match=f"local rank {local} sees {visible} GPUs"):
        own_gpu(local, visible)


def test_a_rank_without_its_gpu_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimpleNamespace(name="GPU", total_memory=80e9)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: gpu)
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    one = found(tmp_path, "GPU of this rank")
    assert one.state is State.STOP
    assert (
        "local rank 2 sees 2 GPUs and has none of its own: start at most 2 ranks"
        in one.said
    )


def test_lost_records_are_the_reason_of_an_empty_capture(tmp_path: Path) -> None:
    for name in ("torch", "initialized", "begun", "lost"):
        tmp_path.joinpath(name).touch()
    assert explain_nothing_recorded(tmp_path) == "a rank reported the reason above"


def with_closed_streams(*given: str) -> int:
    verb = [sys.executable, "-m", "moetraffic", *given]
    ran = subprocess.run(
        ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *verb], check=False, timeout=100
    )
    return ran.returncode


def test_closed_streams_do_not_stop_a_verb() -> None:
    assert with_closed_streams("--version") == 0


@pytest.mark.slow
def test_nothing_is_printed_into_a_file_in_the_place_of_a_stream(
    tmp_path: Path,
) -> None:
    placed, golden = str(tmp_path / "placed.h5"), str(shipped("golden.h5"))
    assert with_closed_streams("place", golden, "--ep", "1", "-o", placed) == 0
    assert main(["info", placed, "--json"]) == 0


@pytest.mark.slow
def test_a_full_standard_output_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "moetraffic", "models"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=100,
        )
    assert ran.returncode == 2
    assert ran.stderr.startswith("moetraffic: the output cannot be written (No space")
    assert ran.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can take another user ID",
)
def test_an_unknown_user_captures_and_is_examined(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    # the interpreter may lie in root's home
    reads = "+dac_read_search"
    user = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    user += [f"--inh-caps={reads}", f"--ambient-caps={reads}"]

    def ran(*given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*user, sys.executable, "-m", "moetraffic", *given],
            env={"PATH": os.environ["PATH"]},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    doctor = ran("doctor", "--json", "--no-exchange")
    assert doctor.returncode == 0, doctor.stderr
    assert json.loads(doctor.stdout)["stops"] == []
    captured = ran("run", "-o", "run.h5", "--", sys.executable, str(program))
    assert captured.returncode == 0, captured.stderr
    info = ran("info", "run.h5", "--json")
    assert info.returncode == 0, info.stderr
    assert "Traceback" not in captured.stderr
