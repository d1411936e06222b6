"""The programs that capture reruns and judge generators by them: what they compute."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from moetraffic.validation.downstream import FIGURES

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import reruns
import synthetic


def test_drawn_settings_are_trainings_and_halves_are_balanced() -> None:
    for base in range(40):
        settings = reruns.drawn(base, 12)
        assert len({s.name for s in settings}) == 12
        for share in ("dev", "final"):
            half = [s for s in settings if s.name.startswith(share)]
            assert len(half) == 6
            assert {s.router for s in half} == set(reruns.ROUTERS)
            assert set(Counter(s.period for s in half).values()) == {2}
            assert set(Counter(s.corpus for s in half).values()) == {3}
        for s in settings:
            work = reruns.workload(s, *s.captures()["run"])  # refuses what cannot be
            assert s.ranks * s.sequence * s.micro_batch <= reruns.TOKENS
            assert 2 * work.gating.k < s.experts
            assert s.experts % s.ep == s.ranks % s.ep == 0


def test_reruns_share_the_seed_and_others_do_not() -> None:
    (setting,) = reruns.drawn(1, 1)
    captures = setting.captures()
    assert len(captures) == 7
    seed, data = captures["run"]
    assert data is None
    assert {captures[f"rerun{n}"][0] for n in (1, 2, 3)} == {seed}
    assert len({captures[f"rerun{n}"][1] for n in (1, 2, 3)}) == 3
    assert len({captures[f"seed{n}"] for n in (1, 2, 3)} | {(seed, None)}) == 4


def test_all_dev_reruns_come_before_other_seeds_and_final_settings() -> None:
    order = [
        (s.name[:3], name[:4] == "seed")
        for s, name in reruns.wanted(reruns.drawn(2, 12))
    ]
    assert order == sorted(
        order, key=[("dev", 0), ("dev", 1), ("fin", 0), ("fin", 1)].index
    )
    assert len(order) == 84


def test_a_capture_is_claimed_by_one_process(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    with reruns.claimed(path) as mine, reruns.claimed(path) as again:
        assert (mine, again) == (True, False)
    with reruns.claimed(path) as later:
        assert later
    assert not list(tmp_path.iterdir())


def counts(seed: int, shape: tuple[int, ...] = (60, 2, 4, 6)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(shape[3]), shape[:2])[:, :, None].repeat(shape[2], axis=2)
    return rng.multinomial(64, p)


def test_a_copy_has_no_distance_whatever_its_labels_and_order() -> None:
    run, other = counts(0), counts(1)
    relabeled = run[..., np.random.default_rng(2).permutation(6)]
    distance, in_order = synthetic._copied(relabeled, run)
    assert distance < 1e-6
    assert in_order == 1
    distance, in_order = synthetic._copied(other, run)
    assert distance > 0.5
    assert in_order < 0.1
    distance, in_order = synthetic._copied(np.roll(relabeled, 30, axis=0), run)
    assert distance < 0.3  # but for the windows where the order is cut
    assert 0.5 < in_order < 1
    assert synthetic._equal_rows(relabeled, run) == 1
    assert synthetic._equal_rows(run, other) < 0.01
    assert synthetic._equal_rows(relabeled[:30], run) == 1  # at any time


def test_the_course_of_a_run_correlates_with_itself_alone() -> None:
    run, other = (synthetic._course(counts(seed)) for seed in (0, 1))
    assert synthetic._correlation(run, run) == pytest.approx(1)
    assert abs(synthetic._correlation(run, other)) < 0.5


def judged(setting: str, generator: str, **values: object) -> synthetic.Judgment:
    figures = dict.fromkeys(FIGURES, 0.01)
    given = {
        **{"differences": figures, "signed": figures, "course": 0.6, "nearest": 1.2},
        **{"accepted": dict.fromkeys(FIGURES, 0.02), "equal_rows": 0.0, "fit_s": 0.0},
        "in_order": 0.0,
        "auc": {kind: [0.5, 0.52] for kind in synthetic.CLASSIFIERS},
        **values,
    }
    return synthetic.Judgment(setting=setting, generator=generator, **given)


def test_tables_name_the_worst_setting_and_count_what_is_kept() -> None:
    far = dict.fromkeys(FIGURES, 0.01) | {"change": 0.5}
    copied = {"nearest": 0.1, "course": 0.75}
    in_order = {"in_order": 0.06, "equal_rows": 1.0}
    text = synthetic.tables(
        [
            *(judged("a", "rerun"), judged("a", "x", differences=far)),
            *(judged("b", "rerun"), judged("b", "x", **copied)),
            *(judged("c", "rerun"), judged("c", "x", **in_order)),
        ]
    )
    rows = {line.split("|")[1].strip(): line for line in text.splitlines()}
    assert "1.0% (50.0% a)" in rows[FIGURES["change"]]
    assert "27 of 27 | 26 of 27" in rows["figures accepted"]
    assert "3 of 3 | 2 of 3" in rows["settings with all figures accepted"]
    assert "3 of 3 | 3 of 3" in rows["settings with both mean AUC at most 0.55"]
    course = "settings with the correlation of reruns to within 0.1"
    assert "3 of 3 | 2 of 3" in rows[course]
    assert "3 of 3 | 1 of 3" in rows["settings whose movement is not copied"]
    assert "3 of 3 | 2 of 3" in rows["settings whose rows are not copied"]


@pytest.mark.parametrize(
    "kind", ["logistic", pytest.param("boosting", marks=pytest.mark.slow)]
)
def test_classifiers_find_a_shift_and_nothing_else(kind: str) -> None:
    rng = np.random.default_rng(5)
    same = [rng.normal(size=(120, 4)) for _ in range(6)]
    moved = [x + 3 for x in same[:3]]
    assert synthetic._auc(kind, moved, same[3:], 2) > 0.95
    found = [synthetic._auc(kind, same[:3], same[3:], held) for held in range(3)]
    assert abs(np.mean(found) - 0.5) < 0.1
