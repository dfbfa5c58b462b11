"""Contracts of the bounds; the notebook holds the mathematics."""
import inspect
import math
import warnings

import numpy as np
import pytest
import torch

from robust_general import bounds

OF_ALPHA = [bounds.gradient_bound, bounds.inflection, bounds.quadratic_radius, bounds.curvature_bounds]
SPECIAL = [-math.inf, -2.0, 0.0, 1.0, 2.0, math.inf]
EXTREME = [-math.inf, -1e308, -5e-324, 0.0, -0.0, 5e-324, 1 - 2**-53, 1.0, 2 - 2**-52, 2.0, 2 + 2**-51, 1e308, math.inf]


def parts(out):
    return out if isinstance(out, tuple) else (out,)


def call(fn, alpha, scale=1.0):
    return parts(bounds.curvature(1.5, alpha, scale) if fn is bounds.curvature else fn(alpha, scale))


@pytest.mark.parametrize("fn", [*OF_ALPHA, bounds.curvature])
def test_arrays_broadcast_and_agree_with_scalars(fn):
    alpha, scale = np.array(SPECIAL)[:, None], np.array([0.3, 1.0, 7.0])
    for k, out in enumerate(call(fn, alpha, scale)):
        assert type(out) is np.ndarray and out.shape == (6, 3) and out.dtype == np.float64
        assert [[call(fn, a, c)[k] for c in scale] for a in SPECIAL] == out.tolist()


@pytest.mark.parametrize("fn", [*OF_ALPHA, bounds.curvature])
@pytest.mark.parametrize("alpha", [0.5, 0, True, np.float64(0.5), np.int32(-2)])
def test_numbers_give_float64_scalars(fn, alpha):
    assert all(type(o) is np.float64 for o in call(fn, alpha))
    assert type(bounds.loss_bound(alpha)) is np.float64


@pytest.mark.parametrize("fn", [*OF_ALPHA, bounds.loss_bound])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_keeps_the_float_type_of_the_first_argument(fn, dtype):
    alpha = np.array([-2.0, 0.0, 0.3], dtype=dtype)
    for out, ref in zip(parts(fn(alpha)), parts(fn(alpha.astype(np.float64))), strict=True):
        assert out.dtype == dtype and np.array_equal(out, ref.astype(dtype))  # computed in float64, rounded once
    assert all(o.dtype == np.float64 for o in parts(fn(np.array([-2, 0]))))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_curvature_keeps_the_float_type_of_the_residual(dtype):
    x = np.array([0.0, 0.7, 3.0], dtype=dtype)
    out = bounds.curvature(x, np.zeros(1), 2.0)
    assert out.dtype == dtype and np.array_equal(out, bounds.curvature(x.astype(np.float64), 0.0, 2.0).astype(dtype))
    assert bounds.curvature(1, x).dtype == np.float64


@pytest.mark.parametrize("fn", [*OF_ALPHA, bounds.curvature])
def test_lists_and_empty_arrays(fn):
    assert all(o.shape == (2,) for o in call(fn, [0.0, 1.0]))
    assert all(o.shape == (0, 3) for o in call(fn, np.empty((0, 3))))


def test_curvature_broadcasts_all_three():
    out = bounds.curvature(np.ones((4, 1, 1)), np.zeros((3, 1)), np.ones(2))
    assert out.shape == (4, 3, 2)


@pytest.mark.parametrize("fn", [*OF_ALPHA, bounds.curvature])
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, [1.0, -3.0]])
def test_bad_scale_is_named(fn, scale):
    value = scale[1] if isinstance(scale, list) else scale
    with pytest.raises(ValueError, match=f"scale must be positive and finite, got {value}"):
        call(fn, 0.0, scale)


@pytest.mark.parametrize("fn", [*OF_ALPHA, bounds.curvature])
def test_bad_alpha_is_named(fn):
    with pytest.raises(ValueError, match="alpha must not be nan, got nan"):
        call(fn, [0.0, math.nan])
    with pytest.raises(ValueError, match="broadcast"):
        call(fn, np.zeros(2), np.ones(3))
    for bad, shown in (("1", "1"), (None, "None"), (1j, "1j"), (np.array([2 + 1j]), "2")):
        with pytest.raises(TypeError, match=f"alpha must be real numbers, got .*{shown}"):
            call(fn, bad)


@pytest.mark.parametrize("tol", [0.0, 1.0, -0.1, math.nan, 2.0])
def test_bad_tolerance_is_named(tol):
    with pytest.raises(ValueError, match=f"tol must be .*, got {tol}"):
        bounds.quadratic_radius(0.0, tol=tol)


@pytest.mark.parametrize("fn", [*OF_ALPHA, bounds.curvature])
def test_tensors_are_refused(fn):
    with pytest.raises(TypeError, match="alpha must be a number or a NumPy array, got a Tensor"):
        call(fn, torch.zeros(2))
    with pytest.raises(TypeError, match="x must be a number or a NumPy array, got a Tensor"):
        bounds.curvature(torch.zeros(2, requires_grad=True), 0.0)


@pytest.mark.parametrize("fn", [*OF_ALPHA, bounds.curvature])
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_extremes_give_numbers_without_warnings(fn, scale):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for alpha in EXTREME:
            assert not any(np.isnan(o) for o in call(fn, alpha, scale)), alpha


@pytest.mark.parametrize("alpha", EXTREME)
def test_curvature_at_the_ends_of_the_line(alpha):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = bounds.curvature([-math.inf, -1e308, 0.0, 5e-324, 1e308, math.inf], alpha)
        assert math.isnan(bounds.curvature(math.nan, alpha))
    assert not np.isnan(got).any() and got[2] == got[3] == 1
    assert got[0] == got[-1] == (0 if alpha < 2 else 1 if alpha == 2 else math.inf)


def test_inputs_are_left_alone():
    alpha, scale, x = np.array([0.0, 1.0]), np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for fn in OF_ALPHA:
        fn(alpha, scale)
    bounds.curvature(x, alpha, scale)
    assert (alpha.tolist(), scale.tolist(), x.tolist()) == ([0.0, 1.0], [1.0, 2.0], [3.0, 4.0])


@pytest.mark.parametrize("name", bounds.__all__)
def test_every_name_is_documented(name):
    fn = getattr(bounds, name)
    names = list(inspect.signature(fn).parameters)
    assert fn.__doc__ and names == [o for o in ("x", "alpha", "scale", "tol") if o in names]
