"""Contracts of the registration experiment: what is kept, what is resumed, what is refused."""
import json

import numpy as np
import pytest

from robust_general.registration import make_pair
from robust_general.registration_experiment import (
    FGR,
    NOISE,
    SHAPE,
    Answers,
    Setting,
    benchmark_levels,
    disagreement,
    draw_all,
    make_task,
    mean_max,
    run_setting,
    sweep,
)

TASKS = [make_task(make_pair(60, outliers=0.5, noise=0.01, random_state=k), None) for k in range(2)]


def test_answers_are_computed_once(tmp_path):
    calls, file = [], tmp_path / "deep" / "answers.json"
    ask = lambda: Answers(file)("a", lambda: calls.append(1) or [1.0, 2.5])  # noqa: E731
    np.testing.assert_array_equal(ask(), [1.0, 2.5])
    np.testing.assert_array_equal(ask(), [1.0, 2.5])
    assert len(calls) == 1 and [o.name for o in file.parent.iterdir()] == ["answers.json"]


def test_a_failure_leaves_the_file_whole(tmp_path):
    answers = Answers(tmp_path / "a.json")
    answers("good", lambda: [1.0])
    with pytest.raises(ZeroDivisionError):
        answers("bad", lambda: 1 / 0)
    assert json.loads((tmp_path / "a.json").read_text()) == {"answers": {"good": [1.0]}}


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"answers"'])
def test_foreign_file(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match="a.json does not hold the answers of a sweep"):
        Answers(tmp_path / "a.json")


def test_changed_questions_are_not_answered_from_the_file(tmp_path):
    answers = Answers(tmp_path / "a.json")
    for runs, tasks, setting in ((2, TASKS, FGR), (3, TASKS, FGR), (2, TASKS[:1], FGR), (2, TASKS, SHAPE), (2, TASKS, FGR._replace(polish=1))):
        sweep({"x": tasks}, [setting], runs=runs, answers=answers)
    assert len(answers.known) == 5


def test_a_pair_does_not_depend_on_its_neighbours():
    both, one = (run_setting(t, draw_all(t, 2, 7), FGR) for t in (TASKS, TASKS[:1]))
    np.testing.assert_allclose(both[:1], one, rtol=0, atol=1e-9)


def test_sweep_keys_and_progress():
    seen = []
    out = sweep({"x": TASKS}, [FGR, SHAPE, FGR], seeds=(0, 1), runs=2, progress=lambda jobs: seen.append(len(jobs)) or jobs)
    assert seen == [4] and set(out) == {("x", o, s) for o in (FGR, SHAPE) for s in (0, 1)}
    assert mean_max(out, "x", FGR).shape == (2, 2)


def test_disagreement_is_reproducible():
    a, b = (disagreement(TASKS, Setting(polish=2), splits=2, seed=3) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert a.shape == (2, 2) and (a > 0).all()


def test_no_point_to_judge_by():
    with pytest.raises(ValueError, match="no point is nearer than 1e-09"):
        make_task(make_pair(50, noise=0.1, random_state=0), limit=1e-9)


def test_missing_benchmark(tmp_path):
    with pytest.raises(FileNotFoundError):
        benchmark_levels(tmp_path)
    assert list(NOISE.values()) == [0.0, 0.0025, 0.005]
