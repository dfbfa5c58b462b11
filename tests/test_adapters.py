"""The adapters at work in the real libraries; the notebook holds the derivatives."""
import pickle
from math import inf, nan, sqrt

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.optimize import curve_fit, least_squares
from statsmodels.robust import norms

from robust_general.adapters import scipy_loss, statsmodels_norm
from robust_general.loss import rho
from robust_general.weights import irls_weight

HARD = [-inf, -1e300, -1e6, -2.0, -1e-12, 0.0, 1e-300, 1.0, 2 - 1e-12, 2.0, 2 + 1e-12, 3.0, inf]
T = np.linspace(0, 3, 40)
Y = 2 * np.exp(-T) + 0.05 * np.sin(40 * T) + np.where(np.arange(40) % 5, 0.0, 1.5)


def residual(p):
    return p[0] * np.exp(-p[1] * T) - Y


@pytest.mark.parametrize("alpha", HARD)
def test_scipy_rows_are_finite_and_fresh(alpha):
    loss, z = scipy_loss(alpha), np.array([0.0, 5e-324, 1e-20, 1.0, 50.0])
    with np.errstate(all="raise", under="ignore"):
        out = loss(z)
    assert out.shape == (3, 5) and out.dtype == np.float64 and np.isfinite(out).all()
    assert out[:2, 0].tolist() == [0.0, 1.0] and abs(out[2, 0]) == (0.0 if alpha == 2 else 0.5)
    out[:] = 7  # scipy scales the array in place
    assert loss(z)[1, 0] == 1.0
    assert loss(z.astype(np.float32)).dtype == np.float64 and loss([]).shape == (3, 0)


@pytest.mark.parametrize("alpha", [a for a in HARD if a < 2])
def test_scipy_far_residuals(alpha):
    out = scipy_loss(alpha)(np.array([1e100, 1e300]))
    assert np.isfinite(out).all() and (out[1] >= 0).all() and (out[2] <= 0).all()


@pytest.mark.parametrize("alpha", [-inf, -2.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("method", ["trf", "dogbox"])
def test_scipy_fits(alpha, method):
    fit = least_squares(residual, [2.0, 1.0], loss=scipy_loss(alpha), f_scale=0.2, method=method)
    assert fit.success
    np.testing.assert_allclose(fit.cost, 0.2**2 * rho(residual(fit.x), alpha, 0.2).sum(), rtol=1e-9)


def test_scipy_loss_pickles():
    fit = pickle.loads(pickle.dumps(scipy_loss(-2.0)))
    np.testing.assert_array_equal(fit(np.ones(2)), scipy_loss(-2.0)(np.ones(2)))


def test_curve_fit():
    p, cov = curve_fit(lambda t, a, k: a * np.exp(-k * t), T, Y, [2.0, 1.0], method="trf", loss=scipy_loss(-inf), f_scale=0.2)
    np.testing.assert_allclose(p, [2, 1], atol=0.1)
    assert np.isfinite(cov).all()


@pytest.mark.parametrize("make", [scipy_loss, statsmodels_norm])
def test_bad_alpha(make):
    with pytest.raises(ValueError, match="must not be nan"):
        make(nan)
    with pytest.raises((TypeError, ValueError)):
        make("cauchy")


@pytest.mark.parametrize("alpha", HARD)
def test_norm_is_finite_and_shaped(alpha):
    norm, z = statsmodels_norm(alpha, 2.0), np.array([[0.0, -1.0, 3.0]])
    assert isinstance(norm, norms.RobustNorm)
    for f in (norm, norm.rho, norm.psi, norm.weights, norm.psi_deriv):
        assert f(z).shape == (1, 3) and np.isfinite(f(z)).all()
        assert np.ndim(f(1.0)) == 0 and np.isfinite(f(1))
    assert (norm.rho(0.0), norm.psi(0.0), norm.weights(0.0), norm.psi_deriv(0.0)) == (0, 0, 1, 1)
    np.testing.assert_allclose(norm.psi(z), z * norm.weights(z), rtol=1e-12)


def test_norm_pickles_and_retunes():
    norm = pickle.loads(pickle.dumps(statsmodels_norm(-2.0, 1.5)))
    assert (norm.alpha, norm.scale, norm.redescending) == (-2.0, 1.5, "soft")
    assert norm._set_tuning_param(3.0).scale == 3.0 and norm.scale == 1.5
    assert norm._set_tuning_param(3.0, inplace=True) is norm and norm.scale == 3.0
    with pytest.raises(ValueError, match="scale must be positive, got -1.0"):
        statsmodels_norm(0.0, -1.0)


@pytest.mark.parametrize("alpha", [-inf, -2.0, 0.0, 1.0])
@pytest.mark.parametrize("cov", ["H1", "H2", "H3"])
def test_rlm_runs_with_every_covariance(alpha, cov):
    g = np.random.default_rng(0)
    X = sm.add_constant(g.normal(size=(60, 2)))
    y = X @ [1.0, 2.0, -1.0] + g.normal(size=60) * 0.1
    y[:6] += 10
    res = sm.RLM(y, X, M=statsmodels_norm(alpha, 1.5)).fit(cov=cov)
    np.testing.assert_allclose(res.params, [1, 2, -1], atol=0.1)
    assert np.isfinite(res.bse).all() and "GeneralNorm" in str(res.summary())
    np.testing.assert_allclose(res.weights, irls_weight(res.sresid, alpha, 1.5) * 1.5**2, atol=1e-3)


def test_rlm_results_can_be_saved(tmp_path):
    X = sm.add_constant(np.arange(20.0))
    res = sm.RLM(X @ [1.0, 2.0] + np.sin(np.arange(20)), X, M=statsmodels_norm(0.0)).fit()
    res.save(str(tmp_path / "fit.pickle"))
    again = sm.load(str(tmp_path / "fit.pickle"))
    np.testing.assert_array_equal(again.params, res.params)
    assert again.model.M.alpha == 0.0


def test_open3d_weights():
    """The rows of the conventions table that are transcriptions, where the library is there."""
    registration = pytest.importorskip("open3d").pipelines.registration
    for k in (0.3, 2.0):
        for r in (0.0, 0.1, 1.0, 7.0):
            assert registration.CauchyLoss(k).weight(r) == pytest.approx(k * k / 2 * irls_weight(r, 0.0, k / sqrt(2)))
            assert registration.GMLoss(k).weight(r) == pytest.approx(irls_weight(r, -2.0, sqrt(k) / 2) / 4)
