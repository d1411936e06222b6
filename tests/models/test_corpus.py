from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch

from moetraffic.errors import LayoutError
from moetraffic.models.corpus import Corpus
from moetraffic.models.corpus import batch as sample
from moetraffic.patterns import ModelShape
from moetraffic.workload.text import STANDARD_LIBRARY_BYTES, check, read


def load(where: str = "", *, sequence: int = 1, vocabulary: int = 256) -> torch.Tensor:
    found = read(where, sequence=sequence, vocabulary=vocabulary)
    return torch.frombuffer(found.data, dtype=torch.uint8)


def text_of(text: torch.Tensor) -> bytes:
    return bytes(text.tolist())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "b.txt").write_bytes(b"bbbb")
    (tmp_path / "a.txt").write_bytes(b"aaaa")
    (tmp_path / "sub" / "c.md").write_bytes(b"cccc")
    (tmp_path / ".hidden" / "d.txt").write_bytes(b"dddd")
    return tmp_path


def test_a_file_a_folder_and_a_glob(folder: Path) -> None:
    assert text_of(load(str(folder / "b.txt"))) == b"bbbb"
    assert text_of(load(str(folder))) == b"aaaabbbbcccc"
    assert text_of(load(str(folder / "*.txt"))) == b"aaaabbbb"
    assert text_of(load(str(folder / "**" / "*.md"))) == b"cccc"


def test_the_default_is_the_standard_library() -> None:
    text = load()
    assert len(text) == STANDARD_LIBRARY_BYTES
    library = Path(sysconfig.get_path("stdlib"))
    first = min(p.name for p in library.glob("*.py"))
    start = (library / first).read_bytes()[:200]
    assert text_of(text[: len(start)]) == start
    assert torch.equal(load(), text)
    check(sequence=1000)


def test_random_tokens_have_no_context_and_stay_below_the_vocabulary() -> None:
    drawn = load("random", vocabulary=50)
    assert torch.equal(load("random", vocabulary=50), drawn)
    check("random", vocabulary=50)
    pairs = torch.bincount(drawn[:-1].long() * 50 + drawn[1:], minlength=2500).double()
    expected = pairs.mean()  # of each pair of neighbors
    chi2 = float(((pairs - expected) ** 2 / expected).sum())
    assert abs(chi2 - 2499) < 5 * (2 * 2499) ** 0.5
    assert len(load("random").unique()) == 256


@pytest.mark.parametrize(
    ("name", "sequence", "said"),
    [
        ("nowhere", 4, "is none of them: check --corpus"),
        ("*.nothing", 4, "is none of them"),
        ("empty", 4, "is none of them"),  # a folder without files
        ("void.txt", 4, "has 0: give --corpus more text"),
        ("b.txt", 3, "needs at least 5 bytes for sequences of 3 tokens"),
    ],
)
def test_a_corpus_that_cannot_be_used(
    folder: Path, name: str, sequence: int, said: str
) -> None:
    (folder / "empty").mkdir()
    (folder / "void.txt").touch()
    with pytest.raises(LayoutError, match=said) as refused:
        load(str(folder / name), sequence=sequence)
    assert "\n" not in str(refused.value)
    with pytest.raises(LayoutError, match=said):
        check(str(folder / name), sequence=sequence)


def test_bytes_outside_the_vocabulary(tmp_path: Path) -> None:
    file = tmp_path / "latin"
    file.write_bytes(bytes([65, 66, 200]) * 5)
    with pytest.raises(LayoutError, match="holds 200 and the vocabulary is 128"):
        load(str(file), vocabulary=128)
    with pytest.raises(LayoutError, match="holds 200 and the vocabulary is 128"):
        check(str(file), vocabulary=128)
    check(str(file), vocabulary=201)
    assert len(load(str(file), vocabulary=201)) == 15


def batch(corpus: Corpus, **changed: int) -> tuple[torch.Tensor, torch.Tensor]:
    key = {"seed": 0, "iteration": 0, "micro_batch": 0, "rank": 0, **changed}
    return sample(corpus, ModelShape(sequence=8), sequences=3, **key)


def test_targets_follow_the_tokens() -> None:
    text = torch.arange(100, dtype=torch.uint8)
    tokens, targets = batch(Corpus(text=text, source="numbers"))
    assert tokens.shape == targets.shape == (3, 8)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(tokens + 1, targets)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_a_batch_depends_on_its_key_alone() -> None:
    corpus = Corpus(text=torch.arange(200, dtype=torch.uint8), source="numbers")
    first, _ = batch(corpus)
    torch.rand(10)  # the global generator plays no part
    assert torch.equal(batch(corpus)[0], first)
    for other in ("seed", "iteration", "micro_batch", "rank"):
        assert not torch.equal(batch(corpus, **{other: 1})[0], first), other


def test_every_place_of_a_short_text_is_drawn() -> None:
    corpus = Corpus(text=torch.arange(10, dtype=torch.uint8), source="numbers")
    begins = {
        int(begin) for i in range(20) for begin in batch(corpus, iteration=i)[0][:, 0]
    }
    assert begins == {0, 1}  # 10 bytes hold two windows of 8 tokens and a target
