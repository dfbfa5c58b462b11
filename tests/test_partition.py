"""Contracts of the exact partition function; the notebook holds the mathematics."""
import math
import subprocess
import sys
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy.integrate import quad

from robust_general import partition
from robust_general.loss import _exact_rho
from robust_general.partition import (
    _exact_integrals,
    _exact_log_partition,
    _exact_partition,
    _exact_partition_slope,
    _meijer_partition,
    _residue_partition,
    _series_around_2,
    _series_at_0,
    _series_at_infinity,
)

OF_ALPHA = [_exact_partition, _exact_log_partition, _exact_partition_slope]
SHAPES = [0.0, 1e-6, 0.5, 1.0, 2 - 2**-52, 2.0, 2 + 2**-51, 3.0, 1e6, math.inf]


@pytest.fixture(autouse=True)
def plenty():
    """The tests compare at more digits than they ask for."""
    with mp.workdps(80):
        yield


@pytest.mark.parametrize("fn", [*OF_ALPHA, _residue_partition])
@pytest.mark.parametrize("alpha", [-5e-324, -1.0, -math.inf, math.nan])
def test_bad_alpha_is_named(fn, alpha):
    with pytest.raises(ValueError, match=f"alpha must be at least 0, got {alpha}: for less, exp.-rho. has no finite integral"):
        fn(alpha)


@pytest.mark.parametrize("fn", OF_ALPHA)
@pytest.mark.parametrize("one", [1, 1.0, True, np.float64(1), mp.mpf(1)])
def test_any_real_number_will_do(fn, one):
    assert fn(one, 20) == fn(1.0, 20)


@pytest.mark.parametrize("fn", OF_ALPHA)
def test_negative_zero_is_zero(fn):
    assert fn(-0.0, 15) == fn(0.0, 15)


@pytest.mark.parametrize("alpha", SHAPES)
@pytest.mark.parametrize("digits", [5, 15, 40])
def test_digits_are_digits(alpha, digits):
    want = _exact_partition(alpha, 60)
    assert abs(_exact_partition(alpha, digits) / want - 1) < mp.mpf(10) ** -digits
    assert abs(_exact_log_partition(alpha, digits) - mp.log(want)) < mp.mpf(10) ** -digits


@pytest.mark.parametrize("alpha", [0.5, 2 - 2**-52, 2 + 2**-51, 3.0])
def test_slope_digits(alpha):
    want = _exact_partition_slope(alpha, 40)
    assert all(abs(_exact_partition_slope(alpha, d) / want - 1) < mp.mpf(10) ** -d for d in (5, 15, 30))


def test_alpha_is_exact_whatever_the_precision():
    alpha = 2 - mp.mpf(10) ** -40
    quotient = (_exact_log_partition(alpha, 70) - mp.log(2 * mp.pi) / 2) * mp.mpf(10) ** 40
    assert abs(quotient - (40 * mp.log(10) - mp.euler - mp.log(2) + 1) / 4) < 1e-28
    assert abs(_exact_partition_slope(alpha, 10) + (40 * mp.log(10) - mp.euler - mp.log(2)) / 4) < 1e-8


def test_the_precision_of_the_caller_is_left_alone():
    before = mp.mp.prec
    with mp.workprec(77):
        for fn in OF_ALPHA:
            fn(0.5, 20)
        _meijer_partition(3, 2)
        _series_around_2(1, 2), _series_at_0(3), _series_at_infinity(2)
        with pytest.raises(ValueError):
            _exact_integrals(lambda x: [x**4], 0.0, 10)
        assert mp.mp.prec == 77
    assert mp.mp.prec == before


@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.7, 2.0, 2.6, 5.0, 40.0, math.inf])
def test_agrees_with_scipy(alpha):
    top = 6.0 if alpha >= 2 else math.inf
    value, error = quad(lambda x: math.exp(-min(_exact_rho(x, alpha, digits=15), 800)), 0, top, epsabs=1e-11, epsrel=1e-11, limit=200)
    assert abs(2 * value - _exact_partition(alpha, 15)) < max(2 * error, 1e-8)


@pytest.mark.parametrize("alpha", [0.0, 0.7, 2 + 1e-9, 9.0, math.inf])
def test_integrals_are_linear_and_share_nodes(alpha):
    f, g, both = (lambda x: [mp.exp(-x * x)]), (lambda x: [1 / mp.cosh(x)]), (lambda x: [mp.exp(-x * x), 1 / mp.cosh(x)])
    apart = [_exact_integrals(o, alpha, 30)[0] for o in (f, g)]
    assert all(abs(p / q - 1) < 1e-29 for p, q in zip(_exact_integrals(both, alpha, 30), apart, strict=True))


@pytest.mark.parametrize("alpha", [0.0, 1e-9])
def test_a_divergent_integral_is_refused(alpha):
    with pytest.raises(ValueError, match="does not fall off fast enough"):
        _exact_integrals(lambda x: [x * x], alpha, 15)


def test_slope_at_the_special_shapes():
    assert _exact_partition_slope(2.0) == -mp.inf and _exact_partition_slope(math.inf) == 0


@pytest.mark.parametrize("n, d", [(1, 1), (7, 4), (9, 4)])
def test_meijer_does_not_depend_on_the_fraction(n, d):
    assert abs(_meijer_partition(n, d) / _meijer_partition(2 * n, 2 * d) - 1) < 1e-29
    assert abs(_meijer_partition(n, d) / _exact_partition(mp.mpf(n) / d, 30) - 1) < 1e-29
    assert all(isinstance(o, Fraction) for part in partition._meijer_sets(n, d) for o in part)


@pytest.mark.parametrize("order", [0, 1, 3])
def test_series_have_the_order_asked_for(order):
    assert len(_series_at_0(order)) == len(_series_at_infinity(order)) == order + 1
    for side in (-1, 1):
        regular, half = _series_around_2(side, order)
        assert all(i + j <= order for i, j in regular) and all(i + j <= max(order - 2, 0) for i, j in half)


def test_higher_orders_leave_the_lower_coefficients_alone():
    for series in (_series_at_0, _series_at_infinity):
        assert all(abs(p - q) < 1e-30 * max(1, abs(q)) for p, q in zip(series(3), series(6)))
    for side in (-1, 1):
        for low, high in zip(_series_around_2(side, 3), _series_around_2(side, 5)):
            assert all(abs(c - high[o]) < 1e-30 for o, c in low.items())


def test_mpmath_is_imported_only_when_needed():
    code = "import sys; sys.modules['mpmath'] = None; import robust_general.partition"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
