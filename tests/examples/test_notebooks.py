"""The notebooks run, and print what they are stored with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def printed(cells: list[Any]) -> list[str]:
    """Texts of all outputs; figures have none that is always the same."""
    texts = []
    for cell in cells:
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error"
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            texts.append("".join(text))
    return [text for text in texts if not text.startswith("<Figure")]


def test_there_is_one_for_each_user() -> None:
    names = {notebook.stem for notebook in NOTEBOOKS}
    assert names == {"training", "network", "scheduler"}
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text())["cells"]
        assert len(printed(cells)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    import nbformat

    ran = nbformat.read(notebook, as_version=4)
    wanted = printed(ran.cells)
    place = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(ran, timeout=200, resources=place).execute()
    assert printed(ran.cells) == wanted
