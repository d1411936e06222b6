"""Experts, top-k, tokens and row bytes that the user states for tables and matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis import analyze
from moetraffic.errors import TraceError
from moetraffic.interop import ImportOptions, import_files
from moetraffic.trace import PHASES, Source, Trace

from .samples import routed_table

RANKS, EXPERTS, K, TOKENS, ROW = 4, 8, 2, 300, 64
MODEL = ImportOptions(experts=EXPERTS, k=K, row_bytes=ROW)


def rows(iterations: int = 40) -> np.ndarray:
    """Rows ``[T, R, R]`` of a balanced router: k distinct experts for each token."""
    rng = np.random.default_rng(1)
    keys = rng.random((iterations, RANKS, TOKENS, EXPERTS))
    chosen = np.argsort(keys, axis=-1)[..., :K] * RANKS // EXPERTS
    return np.stack([(chosen == rank).sum(axis=(2, 3)) for rank in range(RANKS)], -1)


def matrices(folder: Path, sent: np.ndarray) -> Path:
    path = folder / "matrix.txt"
    lines = ("\n".join(" ".join(f"{n * ROW}B" for n in row) for row in m) for m in sent)
    path.write_text("\n\n".join(lines) + "\n")
    return path


def table(folder: Path, sent: np.ndarray) -> Path:
    lines = ["iteration,layer,phase,source,destination,bytes"]
    for layer, phase in ((3, PHASES[0]), (3, PHASES[1])):
        lines += [
            f"{i},{layer},{phase},{s},{d},"
            f"{(sent[i, s, d] if phase == PHASES[0] else sent[i, d, s]) * ROW}"
            for i, s, d in np.ndindex(sent.shape)
        ]
    path = folder / "run.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def judged(trace: Trace) -> None:
    """The wire is that of a balanced router."""
    result = analyze(trace)
    wire = result.frame("measures").query("subject == 'wire'")
    for name in ("cv", "entropy"):
        curve = wire[wire.measure == name]
        error = curve.value.std() / np.sqrt(len(curve))
        assert abs(curve.value.mean() - curve.balanced.mean()) < 4 * error


def test_a_matrix_is_a_dispatch_with_a_noise_floor(tmp_path: Path) -> None:
    path = matrices(tmp_path, rows())
    _, merged = import_files([path], options=MODEL)
    trace = merged.trace
    assert (trace.meta.experts, trace.meta.k, trace.meta.ep) == (EXPERTS, K, RANKS)
    assert (trace.steps.tokens == TOKENS).all()
    (site,) = trace.sites
    assert (site.phase, site.layer, site.row_bytes) == ("dispatch", 0, ROW)
    assert site.source == Source.INFERRED
    assert trace.meta.inferred.split("; ") == [
        "4 ranks, from the rows of a matrix",
        "numbers read as KiB (--unit B for bytes)",
        "each matrix as the dispatch of layer 0, as --experts or --k is given",
        "tokens of each rank and iteration from the rows of dispatch, 2 for each token",
    ]
    judged(trace)
    _, plain = import_files([path])
    assert [s.phase for s in plain.trace.sites] == [""]


def test_a_table_takes_the_model(tmp_path: Path) -> None:
    path = table(tmp_path, rows())
    _, merged = import_files([path], options=MODEL)
    assert (merged.missing, merged.contradictions) == ((), ())
    assert (merged.trace.steps.tokens == TOKENS).all()
    assert {s.source for s in merged.trace.sites} == {Source.ANNOTATED}
    judged(merged.trace)
    stated = ImportOptions(experts=EXPERTS, k=K, row_bytes=ROW, tokens=500)
    _, merged = import_files([path], options=stated)
    assert (merged.trace.steps.tokens == 500).all()
    assert "iteration from --tokens" in merged.trace.meta.inferred
    _, merged = import_files([path], options=ImportOptions(k=3, row_bytes=ROW))
    assert (merged.trace.steps.tokens == TOKENS * 2 // 3).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ImportOptions(k=9, experts=8), "distinct experts, but --k is 9"),
        (ImportOptions(row_bytes=48), "no whole rows of 48 bytes: change --row-bytes"),
        (
            ImportOptions(row_bytes=ROW, k=2, tokens=9),
            "more than 2 for each of 9 tokens: change --tokens or --k",
        ),
        (ImportOptions(ranks=3), "of 4 ranks, but --ranks is 3: raise it"),
    ],
)
def test_what_a_table_contradicts_is_refused(
    tmp_path: Path, options: ImportOptions, said: str
) -> None:
    with pytest.raises(TraceError, match=said):
        import_files([table(tmp_path, rows(2))], options=options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ImportOptions(k=3), "100 token copies in a layer"),
        (ImportOptions(k=5), "k is 5 of 4 experts"),
        (ImportOptions(k=1, tokens=99), "sends 100 rows .* more than 1 for each of 99"),
    ],
)
def test_what_routed_tokens_contradict_is_refused(
    tmp_path: Path, options: ImportOptions, said: str
) -> None:
    with pytest.raises(TraceError, match=said):
        import_files([routed_table(tmp_path, np.full((2, 2, 4), 25))], options=options)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("{0}0,0,0,0,-5\n", "line 2 has '-5' for tokens: write an integer from 0 to"),
        ("{0}0,0,0,0,5.5\n", "line 2 has '5.5' for tokens: write an integer from 0"),
        ("{0}0,0,0,0,5\n0,0,0,0,6\n", "line 3 has the same rank and expert of"),
        (
            "iteration,layer,rank,expert,tokens,dropped\n0,0,0,0,5,5\n0,0,0,1,5,6\n",
            "line 3 has more dropped tokens than tokens",
        ),
        ("iter,layer,rank,expert,tokens\n", "its columns are iter,.*: name them iter"),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text.format("iteration,layer,rank,expert,tokens\n"))
    with pytest.raises(TraceError, match=said) as refused:
        import_files([path])
    assert "whole copy" not in str(refused.value)


def test_ranks_of_a_matrix_are_its_rows(tmp_path: Path) -> None:
    path = matrices(tmp_path, rows(1))
    with pytest.raises(
        TraceError, match="4 rows, one per rank, but --ranks is 8: leave it out"
    ):
        import_files([path], options=ImportOptions(ranks=8))
    _, merged = import_files([table(tmp_path, rows(1))], options=ImportOptions(ranks=8))
    assert merged.trace.meta.world == 8
    assert len(merged.trace.groups[0].ranks) == 8
