"""Contracts of the regressor; the notebook holds its accuracy."""
import pickle
import subprocess
import sys
import warnings
from math import inf, nan

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from robust_general.regression import RobustRegressor

@parametrize_with_checks([RobustRegressor()])
def test_sklearn_accepts_it(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


@parametrize_with_checks([RobustRegressor(alpha="learned", scale="learned")],
                         expected_failed_checks=lambda _: {"check_regressor_multioutput": "one target"})
def test_sklearn_accepts_the_likelihood(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


def line(n=80, outliers=20, d=None, seed=0):
    g = np.random.default_rng(seed)
    X = g.normal(size=(n, 2))
    B = np.array([[1.0, -2.0], [0.5, 3.0]])
    y = X @ B + 4 + g.normal(size=(n, 2)) * 0.1
    y[:outliers] += 20
    return X, y if d else y[:, 0]


def test_attributes():
    X, y = line()
    r = RobustRegressor().fit(X, y)
    assert r.coef_.shape == (2,) and np.ndim(r.intercept_) == 0
    assert (r.alpha_, r.n_features_in_, r.n_iter_) == (-inf, 2, len(r.history_))
    assert 0.05 < r.scale_ < 0.5
    assert r.weights_.shape == (80,) and r.weights_[:20].max() < 1e-9 < 0.05 < r.weights_[20:].min()
    assert {"alpha", "scale", "cost", "decrease", "step", "inliers"} <= set(r.history_[0])


def test_alpha_two_is_least_squares():
    X, y = line()
    w = np.random.default_rng(1).uniform(size=80)
    for intercept in (True, False):
        ours = RobustRegressor(2.0, fit_intercept=intercept).fit(X, y, w)
        theirs = LinearRegression(fit_intercept=intercept).fit(X, y, w)
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-9)
        assert np.shape(ours.intercept_) == ()


def test_several_targets_share_the_weights():
    X, y = line(d=2)
    r = RobustRegressor().fit(X, y)
    assert r.coef_.shape == (2, 2) and r.intercept_.shape == (2,) and r.weights_.shape == (80,)
    np.testing.assert_allclose(r.coef_, [[1, 0.5], [-2, 3]], atol=0.1)
    one = RobustRegressor().fit(X, y[:, :1])
    flat = RobustRegressor().fit(X, y[:, 0])
    assert one.predict(X).shape == (80, 1)
    np.testing.assert_allclose(one.predict(X)[:, 0], flat.predict(X), rtol=1e-12)


@pytest.mark.parametrize("parameters", [{}, {"alpha": 1.0, "scale": "learned"}, {"alpha": "learned", "scale": "learned"}])
def test_weights_are_repetitions(parameters):
    X, y = line(d=None, outliers=10)
    w = np.random.default_rng(2).integers(0, 4, 80)
    a = RobustRegressor(**parameters).fit(X, y, w)
    b = RobustRegressor(**parameters).fit(np.repeat(X, w, axis=0), np.repeat(y, w))
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-5)
    np.testing.assert_allclose(a.scale_, b.scale_, rtol=1e-4)


def test_equivariance():
    X, y = line()
    r = RobustRegressor().fit(X, y)
    moved = RobustRegressor().fit(X * 100, y * 1e4 + 7)
    np.testing.assert_allclose(moved.coef_, r.coef_ * 100, rtol=1e-6)
    np.testing.assert_allclose(moved.scale_, r.scale_ * 1e4, rtol=1e-5)


def test_exact_majority():
    X, y = np.arange(20.0)[:, None], 3 * np.arange(20.0) + 1
    y[::3] = 1000
    r = RobustRegressor().fit(X, y)
    np.testing.assert_allclose([r.coef_[0], r.intercept_], [3, 1], rtol=1e-9)
    same = RobustRegressor().fit(X, np.zeros(20))
    assert same.coef_[0] == 0 == same.intercept_


def test_collinear_and_wide():
    X, y = line()
    double = RobustRegressor().fit(np.hstack([X, X]), y)
    np.testing.assert_allclose(double.predict(np.hstack([X, X])), RobustRegressor().fit(X, y).predict(X), rtol=1e-6)
    g = np.random.default_rng(0)
    wide, z = g.normal(size=(5, 20)), g.normal(size=5)
    np.testing.assert_allclose(RobustRegressor().fit(wide, z).predict(wide), z, atol=1e-9)


def test_lives_in_sklearn():
    X, y = line()
    r = RobustRegressor(alpha=-2.0, anneal=10).fit(X, y)
    again = pickle.loads(pickle.dumps(r))
    np.testing.assert_array_equal(r.predict(X), again.predict(X))
    assert clone(r).get_params() == r.get_params()
    grid = GridSearchCV(make_pipeline(StandardScaler(), RobustRegressor()), {"robustregressor__alpha": [-inf, 0.0]},
                        cv=KFold(2, shuffle=True, random_state=0), scoring="neg_median_absolute_error").fit(X, y)
    assert grid.best_score_ > -0.3


def test_seeded_starts():
    X, y = line()
    a, b = (RobustRegressor(n_starts=30, random_state=1).fit(X, y).coef_ for _ in range(2))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("parameters, message", [
    ({"alpha": 2.5}, "at most 2"),
    ({"alpha": nan}, "at most 2"),
    ({"alpha": "auto"}, "'learned'"),
    ({"scale": 0.0}, "positive"),
    ({"scale": "std"}, "'mad'"),
    ({"alpha": "learned"}, "needs scale"),
    ({"alpha": -1.0, "scale": "learned"}, "no density"),
])
def test_bad_parameters(parameters, message):
    X, y = line()
    with pytest.raises(ValueError, match=message):
        RobustRegressor(**parameters).fit(X, y)


def test_bad_weights():
    X, y = line()
    for w, message in ((np.ones(3), "shape"), (-np.ones(80), "negative"), (np.zeros(80), "zero")):
        with pytest.raises(ValueError, match=message):
            RobustRegressor().fit(X, y, w)
    with pytest.raises(ValueError, match="one target"):
        RobustRegressor(alpha=0.0, scale="learned").fit(X, line(d=2)[1])


def test_warns_when_it_has_not_converged():
    X, y = line()
    with pytest.warns(ConvergenceWarning, match="3 iterations"):
        RobustRegressor(max_iter=3).fit(X, y)


def test_package_does_not_import_sklearn():
    code = "import sys, robust_general, robust_general.annealing, robust_general.adapters; print('sklearn' in sys.modules, 'statsmodels' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]
