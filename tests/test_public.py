"""The public names, and how notebooks show what they return."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from typer.main import get_command

import moetraffic
from moetraffic.cli.app import app
from moetraffic.data import path as shipped
from moetraffic.fabric import assess
from moetraffic.tables import Table
from moetraffic.trace import Trace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


class Cells(HTMLParser):
    """Texts of cells, with every tag closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag not in ("script", "link", "img", "style", "a")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def golden() -> Trace:
    return Trace.open(shipped("golden.h5"))


def test_every_public_name_is_there_and_told() -> None:
    assert set(moetraffic.__all__) <= set(dir(moetraffic))
    for name in moetraffic.__all__:
        found = getattr(moetraffic, name)
        assert name.startswith("__") or found.__doc__, name
        assert name.startswith("__") or name in (moetraffic.__doc__ or "")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = moetraffic.nothing


def test_no_submodule_takes_the_place_of_a_public_name() -> None:
    """Importing a subpackage binds its name in the package."""
    submodules = {module.name for module in pkgutil.iter_modules(moetraffic.__path__)}
    assert {"gating", "models", "replay", "data"} <= submodules
    assert submodules & set(moetraffic.__all__) == {"capture", "errors"}


def test_importing_the_package_is_cheap() -> None:
    """And a verb waits for nothing that another one needs."""
    heavy = {"scipy", "networkx", "torch", "pandas", "matplotlib", "xarray"}
    code = (
        "import sys, moetraffic; "
        "assert not {'torch', 'numpy', 'h5py'} & set(sys.modules); "
        "import moetraffic.cli.app; "
        f"sys.exit(bool({heavy} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_trace_and_its_matrix(golden: Trace) -> None:
    texts = Cells(golden._repr_html_()).texts
    assert texts[0].startswith(f"{golden.name}: captured, 2 ranks")
    assert "dispatch" in texts
    first = int(golden.iterations[0])
    matrix = golden.matrix(first, golden.layers[0], "dispatch")
    shown = Cells(matrix._repr_html_()).texts
    assert shown[0] == matrix.label
    for value in matrix.values.ravel().tolist():
        assert f"{value:,}" in shown


def test_results(golden: Trace) -> None:
    result = moetraffic.analyze(golden, parts="evenness", layers=golden.layers[0])
    texts = Cells(result._repr_html_()).texts
    assert {result.head, "busiest expert", "early"} <= set(texts)
    texts = Cells(moetraffic.compare(golden, golden)._repr_html_()).texts
    assert {"transfer p50", "ratio"} <= set(texts)


GOLDEN = str(shipped("golden.h5"))
AS_TYPED = {"iterations": "2:8", "layers": "1"}
AS_OBJECTS = {"iterations": range(2, 8), "layers": (1,)}
BOTH_WAYS: dict[str, Callable[..., object]] = {
    "analyze": lambda run, **asked: moetraffic.analyze(
        run, parts="evenness", **asked
    ).frame("measures"),
    "compare": lambda run, **asked: moetraffic.compare(run, run, **asked).to_dict(),
    "circuits": moetraffic.circuits,
    "place": lambda run, **_: moetraffic.place(run, ep=1).meta.ep,
    "anonymize": lambda run, **_: moetraffic.anonymize(run).removed,
}


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_paths_and_texts_are_taken_as_on_the_command_line(
    name: str, golden: Trace
) -> None:
    compute = BOTH_WAYS[name]
    typed, given = compute(GOLDEN, **AS_TYPED), compute(golden, **AS_OBJECTS)
    assert str(typed) == str(given)


@pytest.mark.slow
def test_outputs_and_options_are_texts(golden: Trace, tmp_path: Path) -> None:
    page = f"{tmp_path}/page.html"
    moetraffic.write_report(GOLDEN, page, replay=GOLDEN, **AS_TYPED)  # type: ignore[arg-type]
    assert "plotly" in Path(page).read_text()
    moetraffic.export_trace(GOLDEN, f"{tmp_path}/run.csv", "csv")
    again = f"{tmp_path}/again.h5"
    moetraffic.replay_trace(golden, again, verify="none", factor="x0.5", **AS_TYPED)  # type: ignore[arg-type]
    with Trace.open(again) as replayed:
        assert replayed.iterations.tolist() == [*range(2, 8)]
        assert replayed.layers == (1,)


REFUSED: dict[str, Callable[[Trace], object]] = {
    "Trace.find": lambda run: run.demand(0),  # type: ignore[arg-type]
    "from 0 to 311": lambda run: run.wire([312]),  # type: ignore[arg-type]
    "'5'": lambda run: run.matrix("5", 3, "dispatch"),  # type: ignore[arg-type]
    "path of its file": lambda run: moetraffic.analyze(None),  # type: ignore[arg-type]
    "no file": lambda run: moetraffic.analyze("nothing.h5"),
    "A:B": lambda run: moetraffic.circuits(run, iterations="8:2"),
    "one is 'first'": lambda run: moetraffic.circuits(run, layers="first"),
    "30 iterations": lambda run: moetraffic.generate_trace(GOLDEN, iterations=5),
    "choose one": lambda run: moetraffic.replay_trace(run, nproc=2),
    "full, none": lambda run: moetraffic.replay_trace(run, verify="all"),
    "40 iterations": lambda run: moetraffic.compare_with_runs(run, [run]),
    "16 iterations": lambda run: moetraffic.evaluate(GOLDEN, "birkhoff"),
    "from 1 on": lambda run: moetraffic.place(run, ep="1"),  # type: ignore[arg-type]
    "Workload": lambda run: moetraffic.capture_run("small", "x.h5"),  # type: ignore[arg-type]
    "a Layout": lambda run: moetraffic.estimate("gpt3", "a100"),  # type: ignore[arg-type]
    "neither": lambda run: [*moetraffic.watch_run("no.h5", layers="1", follow=False)],
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_wrong_argument_is_one_sentence(why: str, golden: Trace) -> None:
    with pytest.raises(moetraffic.errors.MoetrafficError, match=re.escape(why)) as told:
        REFUSED[why](golden)
    assert "\n" not in str(told.value)


def test_a_fabric_result_is_a_frame(golden: Trace) -> None:
    network = moetraffic.load_fabric("single", 2, capacity="100Gbps")
    matrices = [golden.matrix(i, 1, "dispatch", of="wire").values for i in (2, 3, 4)]
    result = assess(network, matrices)
    frame = result.frame("loads")
    assert len(frame) == 3 * len(network.links)
    slowest = frame.groupby("iteration")["time_s"].max()
    assert slowest.tolist() == result.data["bottleneck_s"].tolist()
    sent = frame[frame.link == "host0.nic0 -> switch"]
    assert sent.bytes.tolist() == [m[0, 1] for m in matrices]


PAGE = (Path(__file__).parents[1] / "docs" / "python-api.md").read_text()
FRAMES: dict[str, Callable[[Trace], pd.DataFrame]] = {
    "Trace.calls": lambda run: run.calls(),
    "Trace.demand_frame": lambda run: run.demand_frame(),
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_columns_of_a_frame_are_documented(name: str, golden: Trace) -> None:
    text = PAGE.partition(f"\n`{name}()`")[2]
    text = re.split(r"\n`\w+\.\w+\(\)`|\n```|\nThe demand of", text)[0]
    columns = set(FRAMES[name](golden).columns)
    cells = " ".join(re.findall(r"^\| (`.*?) \|", text, re.M))
    assert {*re.findall(r"`(\w+)`", cells)} <= columns
    if "json.md" in text:
        text += (ROOT / "docs" / "json.md").read_text().partition("A score has:")[2]
    named = {*re.findall(r"`(\w+)`", text)}
    if "each with `_low`" in text:
        named |= {n + end for n in named for end in ("_low", "_high")}
    assert columns <= named


def test_texts_are_escaped_and_numbers_are_numbers() -> None:
    rows = [["<script>", 1_234, 0.123456, float("nan"), True]]
    made = Table(title="<i>", rows=rows).to_html()
    assert Cells(made).texts == ["<i>", "<script>", "1,234", "0.1235", "yes"]


def test_everything_the_command_line_does_is_a_function() -> None:
    """The page's table: each verb once, each function there and told."""
    page = (ROOT / "docs" / "command-line.md").read_text()
    table = page[page.index("| verb | function |") :]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.M)
    verbs = get_command(app).commands  # type: ignore[attr-defined]
    assert [verb for verb, _ in rows] == sorted(verbs)
    for verb, told in rows:
        for name in re.findall(r"`(moetraffic\.[\w.]+)`", told):
            module, _, function = name.rpartition(".")
            found = getattr(importlib.import_module(module), function)
            assert callable(found), (verb, name)
            assert found.__doc__, (verb, name)


def test_every_dependency_has_its_reason() -> None:
    """CONTRIBUTING's table names what pyproject asks for, and nothing else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for texts in project["optional-dependencies"].values():
        asked += [t for t in texts if not t.startswith("moetraffic[")]
    wanted = {re.match(r"[\w-]+", text)[0] for text in asked}  # type: ignore[index]
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page[page.index("| dependency | why |") :]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.M)[1:]
    named = [name for names, _ in rows for name in re.split(r", ", _bare(names))]
    assert sorted(named) == sorted(wanted)
    assert all(len(why.split()) > 1 for _, why in rows)


def _bare(names: str) -> str:
    """Without the extra that brings them."""
    return re.sub(r" \(.*\)", "", names).strip()


def test_a_copy_of_a_shipped_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from moetraffic.data.__main__ import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["__main__.py", "top2-balanced"])
    assert main() == 0
    assert capsys.readouterr().out == "written: top2-balanced.h5\n"
    assert len(Trace.open("top2-balanced.h5").iterations)
    again = ["__main__.py", "top2-balanced"]
    for argv, code, said in (
        (again, 2, "moetraffic: top2-balanced.h5 exists: give --force"),
        ([*again, "--force"], 0, ""),
        (["__main__.py", "top2"], 2, "moetraffic: a shipped run is one of"),
    ):
        monkeypatch.setattr(sys, "argv", argv)
        assert main() == code
        assert capsys.readouterr().err.startswith(said)
    monkeypatch.setattr(sys, "argv", ["__main__.py", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert "usage: python -m moetraffic.data " in capsys.readouterr().out
