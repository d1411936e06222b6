"""The compiled hook: found, refused, built; test_capture.py compares what it notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from moetraffic.capture.hook import native
from moetraffic.errors import CaptureError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is built yet, and what is built lies here."""
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(native.VARIABLE, raising=False)
    return tmp_path


def test_without_a_compiled_hook_python_notes() -> None:
    assert native.load() is None


def test_a_compiled_hook_that_is_asked_for_must_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(native.VARIABLE, "native")
    with pytest.raises(CaptureError, match="run moetraffic build"):
        native.load()


def test_another_kind_of_hook_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, "rust")
    with pytest.raises(CaptureError, match="python or native, not 'rust'"):
        native.load()


def test_without_a_compiler_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CaptureError, match=r"C\+\+ compiler .* install it"):
        native.build()


def test_a_launcher_builds_at_most_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []

    def build() -> None:
        folder = native.folders()[0]
        folder.mkdir(parents=True)
        (folder / f"{native._name()}.so").write_bytes(b"library")

    monkeypatch.setattr(native, "build", build)
    native.build_if_possible(said.append)
    native.build_if_possible(said.append)
    assert said == ["compiling the hook, once for this torch (about 30 s)"]


def test_a_launcher_goes_on_without_a_compiled_hook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []

    def build() -> None:
        raise CaptureError("the hook does not compile")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "build", build)
        native.build_if_possible(said.append)
    assert said[1:] == ["the hook does not compile"]
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler: nothing to say
    native.build_if_possible(said.append)
    monkeypatch.setenv(native.VARIABLE, "python")
    native.build_if_possible(said.append)
    assert len(said) == 2


def test_a_broken_library_is_named(tmp_path: Path) -> None:
    folder = native.folders()[0]
    folder.mkdir(parents=True)
    (folder / f"{native._name()}.so").write_bytes(b"no library")
    with pytest.raises(CaptureError, match="build it again with moetraffic build"):
        native.load()
    # it may be overruled without building
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, "python")
        assert native.load() is None


def test_a_library_of_another_source_is_never_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = native._name()
    changed = tmp_path / "native.cpp"
    changed.write_bytes(native.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(native, "SOURCE", changed)
    assert native._name() != before


@pytest.mark.slow
def test_a_source_that_does_not_compile_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "native.cpp"
    broken.write_text("int wrong = nothing;\n")
    monkeypatch.setattr(native, "SOURCE", broken)
    with pytest.raises(CaptureError, match=r"does not compile .* goes on with"):
        native.build()
    assert list(native.folders()[0].iterdir()) == []
