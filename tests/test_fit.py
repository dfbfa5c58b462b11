"""Contracts of the fit; the notebook holds the mathematics."""
import copy
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from robust_general.distribution import General
from robust_general.fit import Fit, _GRID

INF = math.inf


def draw(n, alpha, loc=0.0, scale=1.0, seed=0):
    torch.manual_seed(seed)
    return General(torch.tensor(loc, dtype=torch.float64), scale, alpha).sample((n,))


def values(fit):
    return [getattr(fit.distribution, k).item() for k in ("loc", "scale", "alpha")]


def test_tensor_array_list_and_shape_do_not_matter():
    x = draw(120, 1.0)
    fits = [General.fit(o) for o in (x, x.numpy(), x.tolist(), x.view(4, 30), x.flip(0))]
    for f in fits[1:]:
        assert values(f) == pytest.approx(values(fits[0]), rel=1e-9) and f.log_likelihood == pytest.approx(fits[0].log_likelihood)


def test_dtype_follows_the_data_and_the_work_is_done_in_double():
    x = draw(200, 1.5)
    fit = General.fit(x.float())
    assert fit.distribution.loc.dtype == torch.float32 and fit.covariance.dtype == torch.float64
    assert values(fit) == pytest.approx(values(General.fit(x.float().double())), rel=1e-6)
    assert General.fit((x * 10).round().int()).distribution.loc.dtype == torch.float64
    assert General.fit(x.clone().requires_grad_()).distribution.loc.grad_fn is None


def test_subclass():
    class Mine(General):
        pass

    fit = Mine.fit(draw(100, 1.0))
    assert type(fit.distribution) is Mine and repr(fit).startswith("Mine fitted to 100 points")


@pytest.mark.parametrize("held", [{"loc": 0.1}, {"scale": 1.3}, {"alpha": 0.7}, {"loc": 0.1, "scale": 1.3}, {"loc": 0.1, "alpha": 0.7}, {"scale": 1.3, "alpha": INF},
                                  {"loc": 0.1, "scale": 1.3, "alpha": 2.0}])
def test_what_is_held_fixed_stays(held):
    x = draw(300, 1.0).clamp(-5, 5)
    fit = General.fit(x, **held)
    for k, v in held.items():
        assert getattr(fit.distribution, k).item() == v and fit.stderr[k] == 0
    assert fit.converged and fit.log_likelihood == pytest.approx(fit.distribution.log_prob(x).sum().item(), rel=1e-12)
    assert fit.log_likelihood <= General.fit(x).log_likelihood + 1e-9
    for k in {"loc", "scale", "alpha"} - set(held):
        p = dict(zip(("loc", "scale", "alpha"), (torch.tensor(v, dtype=torch.float64) for v in values(fit))))
        for d in (-1e-3, 1e-3):
            assert General(**{**p, k: p[k] + d}).log_prob(x).sum() < fit.log_likelihood
    if "alpha" in held:
        assert fit.interval() == (held["alpha"],) * 2
    assert f"{list(held)[0]} " in repr(fit) and repr(fit).count("fixed") == len(held)


def test_weights_count_like_repetitions():
    x = draw(80, 1.0)
    weight = torch.arange(80) % 4
    a, b = General.fit(x, weight), General.fit(x.repeat_interleave(weight))
    assert values(a) == pytest.approx(values(b), rel=1e-6, abs=1e-7) and a.count == b.count == 120
    assert list(a.stderr.values()) == pytest.approx(list(b.stderr.values()), rel=1e-5)
    assert a.interval() == pytest.approx(b.interval(), rel=1e-4)


@pytest.mark.parametrize("n", [3, 4, 7])
@pytest.mark.parametrize("seed", range(5))
def test_few_points(n, seed):
    fit = General.fit(draw(n, 1.0, seed=seed))
    assert math.isfinite(fit.log_likelihood) and values(fit)[1] > 0
    repr(fit)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 2.0, 6.0, INF])
def test_units_do_not_matter(alpha):
    x = draw(300, alpha, seed=3)
    a, b = General.fit(x), General.fit(1e-12 * x)
    assert values(b)[2] == pytest.approx(values(a)[2], rel=1e-6) and values(b)[1] * 1e12 == pytest.approx(values(a)[1], rel=1e-6)


def test_large_data_take_the_short_way_to_the_same_end():
    x = draw(50_000, 1.4)
    fit = General.fit(x)
    weighted = General.fit(x[:1], torch.ones(1), scale=1.0, alpha=1.0)  # one point is enough where little is free
    assert weighted.distribution.loc.item() == x[0].item()
    p = torch.tensor(values(fit), dtype=torch.float64)
    slope = torch.autograd.functional.jacobian(lambda p: General(*p).log_prob(x).sum(), p)
    assert (slope.abs() * torch.tensor(list(fit.stderr.values()))).max() < 1e-3
    assert abs(p[2] - 1.4) < 4 * fit.stderr["alpha"] < 0.2


def test_normal_data_with_outliers_end_far_from_normal():
    x = draw(500, 2.0)
    assert values(General.fit(x))[2] > 1.5
    x[::20] += 50
    fit = General.fit(x)
    assert values(fit)[2] < 0.5 and abs(values(fit)[0]) < 0.2


def test_the_answer_does_not_depend_on_the_grid(monkeypatch):
    x = draw(400, 0.9, seed=7)
    want = values(General.fit(x))
    monkeypatch.setattr("robust_general.fit._GRID", [0.0, 0.45, 1.0, 1.7, 2.2, 8.0, 1e6])
    assert values(General.fit(x)) == pytest.approx(want, rel=1e-6, abs=1e-7) and 1.0 in _GRID and 2.0 not in _GRID


def test_interval_nests_and_holds_the_estimate():
    fit = General.fit(draw(300, 1.0))
    (a, b), (c, d) = fit.interval(0.5), fit.interval(0.99)
    assert 0 <= c < a < values(fit)[2] < b < d
    for level in (0, 1, 95):
        with pytest.raises(ValueError, match="level must lie between 0 and 1"):
            fit.interval(level)


def test_fit_can_be_stored():
    fit = General.fit(draw(100, 1.0))
    for other in (pickle.loads(pickle.dumps(fit)), copy.deepcopy(fit)):
        assert isinstance(other, Fit) and repr(other) == repr(fit) and other.interval() == pytest.approx(fit.interval())


@pytest.mark.parametrize("x, weight, held, error, words", [
    ([], None, {}, ValueError, "x must not be empty"),
    ([1.0, INF, 2.0], None, {}, ValueError, "x must be finite, got inf"),
    (["a", "b"], None, {}, TypeError, "x must be numbers"),
    (np.array([1 + 2j, 0, 3]).tolist(), None, {}, TypeError, "x must be numbers"),
    ([3.0] * 5, None, {}, ValueError, "all of x is 3"),
    ([3.0] * 5, None, {"alpha": 1.0}, ValueError, "all of x is 3"),
    ([3.0, 3.0, 1.0, 2.0], None, {}, ValueError, "at least half of x is 3"),
    ([3.0, 1.0, 2.0], [9.0, 1.0, 1.0], {}, ValueError, "at least half of x is 3"),
    ([1.0, 2.0], None, {}, ValueError, "at least half of x is"),
    ([1.0, 2.0, 4.0], [1.0, -2.0, 1.0], {}, ValueError, "weight must not be negative, got -2"),
    ([1.0, 2.0, 4.0], [0.0, 0.0, 0.0], {}, ValueError, "weight must not be 0 throughout"),
    ([1.0, 2.0, 4.0], [1.0, math.nan, 0.0], {}, ValueError, "weight must be finite, got nan"),
    ([1.0, 2.0, 4.0], [1.0, 1.0], {}, ValueError, r"weight must have the shape of x, \(3,\), got \(2,\)"),
    ([1.0, 2.0, 4.0], None, {"alpha": -1.0}, ValueError, "the density does not exist for alpha < 0"),
    ([1.0, 2.0, 4.0], None, {"loc": math.nan}, ValueError, "loc must be finite, got nan"),
    ([1.0, 2.0, 4.0], None, {"scale": INF}, ValueError, "scale must be finite, got inf"),
    ([1.0, 2.0, 4.0], None, {"scale": 0.0}, ValueError, "scale must be positive, got 0"),
])
def test_bad_input(x, weight, held, error, words):
    with pytest.raises(error, match=words):
        General.fit(x, weight, **held)


def test_ties_are_fine_where_they_do_no_harm():
    x = [0.0, 0.0, 0.0, 1.0, 5.0]
    assert General.fit(x, alpha=1.0).converged and General.fit(x, scale=1.0).converged
    assert General.fit(x, loc=2.0).converged
    assert General.fit([2.0, 2.0, 2.0], scale=1.0).distribution.loc == pytest.approx(2.0)


def test_scipy_stats_stays_out():
    code = "import sys; from robust_general.fit import General; General.fit([1., 2., 4., 9., 11.]).interval(); assert 'scipy.stats' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
