"""Facts about every public name, for whatever hypothesis can think of: dtypes, shapes, extreme values, special shapes of the loss.

The same examples in every run. `HYPOTHESIS_PROFILE=thorough` tries twenty times as many, other ones each time.
"""
import ast
import importlib
import math
import os
import re
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.extra import numpy as hnp

import robust_general as rg
from robust_general import (
    adapters, annealing, bounds, clustering, clustering_experiment, figures, fit, images, kitti, loss, monodepth, registration,
    sampling, scene, spline, training, vae, vae_experiment, warping, weights)

set_hypothesis_home_dir(Path(__file__).parent.parent / ".cache/hypothesis")
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


pytestmark = pytest.mark.usefixtures("one_thread")


def tries(n):
    """Settings for `n` examples."""
    return settings(max_examples=n * (20 if THOROUGH else 1), derandomize=not THOROUGH, database=None, deadline=None,
                    suppress_health_check=list(HealthCheck))


HALF, WIDE = [torch.float16, torch.bfloat16], [torch.float32, torch.float64]
SPECIAL = [-inf, -1e30, -2.0, -1.0, -1e-12, -5e-324, 0.0, 5e-324, 1e-12, 0.5, 1.0, 1.999, math.nextafter(2, 0), 2.0, math.nextafter(2, 3), 2.001, 3.0, 1e30, inf]


def alphas(low=-inf, high=inf):
    within = st.floats(max(low, -1e6), min(high, 1e6))
    return st.sampled_from([a for a in SPECIAL if low <= a <= high]) | st.floats(max(low, -4), min(high, 4)) | within


def arrays(shape, elements):
    return hnp.arrays(np.float64, shape, elements=elements)


def largest(dtype):
    return torch.finfo(dtype).max


@st.composite
def arguments(draw, low=-inf, high=inf, dtypes=(*HALF, *WIDE), beyond=False):
    """Residuals, shapes and scales that broadcast; residuals as large as their dtype and the scale allow, or `beyond` that."""
    dtype = draw(st.sampled_from(dtypes))
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, min_side=0, max_side=3)).input_shapes
    narrow = 2.0 if dtype in HALF else 4.0
    top = largest(dtype) * (1 if beyond else 10**-narrow)
    x = draw(arrays(shapes[0], st.floats(-top, top) | st.floats(-10, 10) | st.sampled_from([0.0, torch.finfo(dtype).tiny, top, -top])))
    alpha = draw(arrays(shapes[1], alphas(low, high)))
    reach = 30.0 if beyond and dtype in WIDE else narrow
    scale = 10 ** draw(arrays(shapes[2], st.floats(-reach, reach)))
    x, alpha, scale = (torch.tensor(a, dtype=torch.float64).to(dtype) for a in (x, alpha, scale))
    # Rounding must not leave the range.
    return x, alpha.clamp(low, high), scale


def out_shape(*tensors):
    return torch.broadcast_shapes(*(t.shape for t in tensors))


def sound(out, dtype, shape):
    assert out.dtype == dtype and out.shape == shape and not out.isnan().any()
    return out


def eps(dtype):
    return torch.finfo(dtype).eps


def no_nan_gradients(fn, *args):
    """The value, and gradients without nan, in the dtype and the shape of the arguments."""
    args = [a.detach().requires_grad_() for a in args]
    out = fn(*args)
    grads = torch.autograd.grad(out.sum(), args)
    for a, g in zip(args, grads):
        sound(g, a.dtype, a.shape)
    return out.detach(), grads


# The loss ----------------------------------------------------------------------------------------------------------


@tries(150)
@given(arguments())
def test_loss(args):
    check_loss(args)


@tries(150)
@given(arguments(beyond=True))
def test_loss_where_the_ratio_overflows(args):
    check_loss([a.contiguous() for a in torch.broadcast_tensors(*args)])  # or opposite infinities would meet in one gradient


def check_loss(args):
    x, alpha, scale = args
    shape = out_shape(*args)
    loss, pull, weight = (sound(f(*args), x.dtype, shape) for f in (rg.rho, rg.influence, rg.irls_weight))
    for f in (rg.rho, rg.influence, rg.irls_weight):
        value, _ = no_nan_gradients(f, *args)
        sound(value, x.dtype, shape)
    assert (loss >= 0).all() and (weight >= 0).all()
    assert torch.equal(rg.rho(-x, alpha, scale), loss) and torch.equal(rg.irls_weight(-x, alpha, scale), weight)
    assert torch.equal(rg.influence(-x, alpha, scale), -pull)
    # How large they can be, by the chapter of bounds, rounded as they are.
    alpha, scale = (a.double().expand(shape).numpy() for a in (alpha, scale))
    for got, bound in ((loss, bounds.loss_bound(alpha)), (pull.abs(), bounds.gradient_bound(alpha, scale)), (weight, np.where(alpha <= 2, scale**-2.0, inf))):
        bound = torch.as_tensor(bound * (1 + 8 * eps(x.dtype)) + torch.finfo(x.dtype).tiny)
        assert (got <= bound.to(x.dtype)).all()


@tries(60)
@given(arguments(dtypes=WIDE), st.floats(0, 1))
def test_loss_rises_with_the_residual_and_with_alpha(args, part):
    x, alpha, scale = args
    loss = rg.rho(x, alpha, scale)
    slack = 1 + 64 * eps(x.dtype)
    assert (rg.rho(x * part, alpha, scale) <= loss * slack).all()
    lower = torch.where(alpha.isfinite(), alpha - part, alpha)
    # Of huge residuals the loss is known to so many digits as its logarithm has.
    size = 1 + torch.where(loss.isfinite() & (loss > 0), loss, 1.0).log().abs()
    assert (rg.rho(x, lower, scale) <= loss * (1 + 64 * eps(x.dtype) * size)).all()


@tries(60)
@given(arguments(dtypes=WIDE))
def test_numbers_and_arrays_are_as_tensors(args):
    x, alpha, scale = args
    for f in (rg.rho, rg.influence, rg.irls_weight):
        got = f(*(a.numpy() for a in args))
        assert isinstance(got, (np.ndarray, np.floating)) and got.dtype == x.numpy().dtype and got.shape == out_shape(*args)
        np.testing.assert_allclose(got, f(*args).numpy(), rtol=1e-4 if x.dtype == torch.float32 else 1e-12, atol=0)
        assert f(3, 1, 2).dtype == np.float64 and isinstance(f(3, 1, 2), np.floating)
    if x.numel() and alpha.numel() and scale.numel():
        a, c = alpha.flatten()[0].item(), scale.flatten()[0].item()
        for f in (rg.rho, rg.influence, rg.irls_weight):
            torch.testing.assert_close(f(x, a, c), f(x, torch.tensor(a, dtype=x.dtype), torch.tensor(c, dtype=x.dtype)), rtol=1e-4 if x.dtype == torch.float32 else 1e-11, atol=0)


@tries(100)
@given(arguments(high=2.0), st.data())
def test_outlier_process(args, data):
    x, alpha, _ = args
    z = torch.tensor(data.draw(arrays(tuple(x.shape), st.floats(0, 1) | st.sampled_from([0.0, 1.0, 5e-324, 1e-12]))), dtype=torch.float64).to(x.dtype)
    price = sound(rg.outlier_process(z, alpha), x.dtype, out_shape(z, alpha))
    assert (price >= 0).all() and (rg.outlier_process(torch.ones_like(z), alpha) == 0).all()
    no_nan_gradients(rg.outlier_process, z, alpha)
    # The loss is the least of weighted least squares plus the price.
    x, z, alpha = x.double().clamp(-1e100, 1e100), z.double(), alpha.double()
    bound, loss = z * x * x / 2 + rg.outlier_process(z, alpha), rg.rho(x, alpha)
    assert (loss <= bound * (1 + 1e-11) + 1e-14).all()


@tries(60)
@given(arguments(), st.sampled_from(["none", "mean", "sum"]))
def test_general_loss(args, reduction):
    x, alpha, scale = args
    target = torch.zeros_like(x)
    each = rg.rho(x, alpha, scale)
    got = rg.GeneralLoss(alpha, scale, reduction)(x, target)
    assert got.dtype == x.dtype and got.shape == (each.shape if reduction == "none" else ())
    expect = each if reduction == "none" else getattr(each, reduction)()
    assert torch.equal(got, expect) or reduction == "mean" and not each.numel() and got.isnan()  # of nothing the mean is nan, as in torch


@tries(60)
@given(arguments(), st.sampled_from(["mean", "sum"]), st.data())
def test_fused_loss_agrees_with_its_elements(args, reduction, data):
    x, alpha, scale = args
    assume(x.numel() and alpha.numel() and scale.numel())
    alpha, scale = alpha.flatten()[0].item(), scale.flatten()[0].item()
    each = rg.rho(x.double(), alpha, scale)
    assume(each.sum() < largest(x.dtype) / 2)
    loss = rg.GeneralLoss(alpha, scale, reduction)
    got, _ = no_nan_gradients(lambda x: loss(x, torch.zeros_like(x)), x)
    torch.testing.assert_close(got.double(), getattr(each, reduction)(), rtol=1e-9 if x.dtype == torch.float64 else max(1e-3, 4 * eps(x.dtype)), atol=4 * torch.finfo(x.dtype).tiny)
    mask = torch.tensor(data.draw(hnp.arrays(bool, tuple(x.shape))), dtype=torch.bool)
    spoilt = torch.where(mask, x, math.nan)
    hidden = rg.GeneralLoss(alpha, scale, "sum")(spoilt, torch.zeros_like(x), mask)
    sound(hidden, x.dtype, ())


@pytest.mark.parametrize("loss", [rg.GeneralLoss(1.0), rg.GeneralNLLLoss(1.0), rg.AdaptiveLoss(), rg.StudentTLoss()], ids=lambda o: type(o).__name__)
def test_shapes_that_do_not_broadcast_are_refused(loss):
    for a, b in (((3,), (4,)), ((2, 3), (3, 2))):
        with pytest.raises(ValueError, match=re.escape(str(a))):
            loss(torch.zeros(a), torch.zeros(b))
    with pytest.raises(ValueError, match="shape"):
        loss(torch.zeros(3), torch.zeros(3), torch.ones(4))


@tries(40)
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=3, min_side=1, max_side=3))
def test_no_silent_broadcast(shapes):
    """Where residuals would have neither the input's nor the target's shape, or weights would stretch residuals, something was not meant."""
    (a, b), out = shapes.input_shapes, shapes.result_shape
    for loss in (rg.GeneralLoss(1.0), rg.GeneralNLLLoss(1.0), rg.AdaptiveLoss(), rg.StudentTLoss()):
        if out not in (a, b):
            with pytest.raises(ValueError, match="shape"):
                loss(torch.zeros(a), torch.zeros(b))
        if out != a:
            with pytest.raises(ValueError, match="shape"):
                loss(torch.zeros(a), torch.zeros(a), torch.ones(b))


# The distribution --------------------------------------------------------------------------------------------------


@tries(80)
@given(arguments(low=0.0))
def test_log_partition(args):
    _, alpha, _ = args
    value = sound(rg.log_partition(alpha), alpha.dtype, alpha.shape)
    ends = math.log(math.pi * math.sqrt(2)), float(rg.log_partition(inf))
    assert ((value <= ends[0] + 4 * eps(alpha.dtype)) & (value >= ends[1] - 4 * eps(alpha.dtype))).all()
    _, (slope,) = no_nan_gradients(rg.log_partition, alpha)
    assert slope.isfinite().all() and (slope <= 0).all()
    wide = alpha.double()
    assert (rg.log_partition(wide * 0.9) >= rg.log_partition(wide) - 1e-14).all()
    near = wide[wide <= 1e3]
    assert (spline.hermite_log_partition(near) - rg.log_partition(near)).abs().le(1.4e-6).all()
    assert (spline.curve(wide * 0.9) <= spline.curve(wide)).all()
    rate = sampling.acceptance_rate(wide)
    assert ((rate > 0.4556) & (rate < 1 + 1e-12)).all()


@tries(60)
@given(arguments(low=0.0, dtypes=WIDE))
def test_distribution(args):
    x, alpha, scale = args
    d, shape = rg.General(torch.zeros_like(x), scale, alpha), out_shape(*args)
    tight = 1e-5 if x.dtype == torch.float32 else 1e-10
    log_prob, cdf, sf, log_sf = (sound(getattr(d, f)(x), x.dtype, shape) for f in ("log_prob", "cdf", "sf", "log_sf"))
    assert ((cdf >= 0) & (cdf <= 1) & (sf >= 0) & (sf <= 1) & (log_sf <= 0)).all()
    assert (cdf + sf - 1).abs().le(tight).all() and (d.cdf(-x) - sf).abs().le(tight).all()
    assert (d.log_prob(torch.zeros_like(x)) >= log_prob).all()
    assert (d.cdf(x / 2) <= torch.maximum(cdf, d.cdf(-x)) + tight).all()
    big = sf > torch.finfo(x.dtype).tiny
    assert (log_sf.exp() - sf).abs().le(10 * tight * sf)[big].all()
    assert sound(d.entropy(), x.dtype, shape).isfinite().all()
    assert (sound(d.variance, x.dtype, shape) > 0).all() and torch.equal(d.mode, d.loc)
    assert torch.equal(d.mean.isnan(), d.alpha == 0)
    no_nan_gradients(lambda x, alpha, scale: rg.General(0.0, scale, alpha).log_prob(x), *args)
    assume((x / scale / scale).isfinite().all())  # the derivative of the ratio in the scale
    for f in ("cdf", "sf", "log_sf"):
        no_nan_gradients(lambda x, alpha, scale: getattr(rg.General(0.0, scale, alpha), f)(x), *args)


@tries(40)
@given(arguments(low=0.0, dtypes=HALF))
def test_distribution_in_half_precision(args):
    x, alpha, scale = args
    d, shape = rg.General(torch.zeros_like(x), scale, alpha), out_shape(*args)
    log_prob, cdf, sf, log_sf = (sound(getattr(d, f)(x), x.dtype, shape) for f in ("log_prob", "cdf", "sf", "log_sf"))
    assert ((cdf >= 0) & (cdf <= 1) & (sf >= 0) & (sf <= 1) & (log_sf <= 0)).all() and (cdf + sf - 1).abs().le(2 * eps(x.dtype)).all()
    assert (d.log_prob(torch.zeros_like(x)) >= log_prob).all() and sound(d.entropy(), x.dtype, shape).isfinite().all()
    sound(d.icdf(torch.full(shape, 0.25, dtype=x.dtype)), x.dtype, shape)
    torch.manual_seed(0)
    sound(d.rsample((2,)), x.dtype, (2, *shape))
    no_nan_gradients(lambda x, alpha, scale: rg.General(0.0, scale, alpha).log_prob(x), *args)


def numbers(*values, dtype=torch.float64):
    return [torch.tensor(v, dtype=dtype, requires_grad=True) for v in values]


@pytest.mark.parametrize("name", ["cdf", "sf"])
@pytest.mark.parametrize(("x", "alpha"), [(36.0, 1e30), (1e3, inf), (1e7, 100.0), (1e104, 3.0)])
def test_gradients_of_probabilities_where_the_loss_overflows(name, x, alpha):
    x, alpha = numbers(x, alpha)
    value = getattr(rg.General(0.0, torch.ones_like(x), alpha), name)(x)
    assert [g.item() for g in torch.autograd.grad(value, (x, alpha))] == [0, 0]


def test_gradient_in_alpha_where_nodes_of_the_tail_overflow():
    x, alpha = numbers(5.5564e292, 0.0)
    value = rg.General(0.0, torch.ones_like(x), alpha).cdf(x)
    assert not torch.autograd.grad(value, alpha)[0].isnan()


@pytest.mark.parametrize(("x", "alpha"), [(1e9, 2.0), (20.0, inf)])
def test_gradient_of_log_sf_far_out(x, alpha):
    """The hazard of the normal distribution at x is nearly x; at alpha = inf it is nearly the influence."""
    x, alpha = numbers(x, alpha)
    slope, = torch.autograd.grad(rg.General(0.0, torch.ones_like(x), alpha.detach()).log_sf(x), x)
    assert math.isclose(-slope.item(), rg.influence(x.detach(), alpha.detach()).item(), rel_tol=1e-12)


FAR = [(torch.float32, 3e38, 0.1), (torch.float32, -1e37, 1 / 16), (torch.float32, 1e20, 1e-25), (torch.float64, 1e308, 1e-5), (torch.float64, -1e200, 1e-150)]


@pytest.mark.parametrize("alpha", [-inf, -2.0, -0.5, 0.0, 1e-9, 0.5, 0.9, 1.0, 1.5, 1.999, 2.0, 2.5, inf])
@pytest.mark.parametrize(("dtype", "x", "scale"), FAR)
def test_residuals_whose_ratio_to_the_scale_overflows(dtype, x, scale, alpha):
    """Values, gradients and the fused loss are those of fifty digits, for tensors and for numbers."""
    x, alpha, scale = numbers(x, alpha, scale, dtype=dtype)
    at = x.item(), alpha.item(), scale.item()
    pull, slopes = loss._exact_influence(*at), weights._exact_weight_slopes(*at)
    true = {rg.rho: (loss._exact_rho(*at), pull, loss._exact_slope(*at), -pull * x.item() / scale.item()),
            rg.influence: (pull, None, None, None), rg.irls_weight: (weights._exact_weight(*at), slopes[0], None if at[1] == 2 else slopes[1], slopes[2])}
    for fn, expect in true.items():
        value, grads = no_nan_gradients(fn, x, alpha, scale)
        number, (slope,) = no_nan_gradients(lambda x: fn(x, *at[1:]), x)
        for got, exact in zip((value, *grads, number, slope), (*expect, *expect[:2])):
            assert exact is None or same_number(got, exact), (fn, got, exact)
    total, (slope,) = no_nan_gradients(lambda x: rg.GeneralLoss(*at[1:])(torch.stack([x, x]), torch.zeros(2, dtype=dtype)), x)
    assert same_number(total, true[rg.rho][0], 50) and same_number(slope, pull)  # a sum that is finite is left alone


def same_number(got, exact, slack=1):
    """As large numbers are infinite and small ones have few digits."""
    info = torch.finfo(got.dtype)
    if abs(exact) > info.max:
        return got.item() == math.copysign(inf, exact)
    return abs(got.item() - exact) <= slack * (2e-7 if got.dtype == torch.float32 else 1e-12) * abs(exact) + 2 * info.tiny


@pytest.mark.parametrize("alpha", [-inf, -2.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, inf])
@pytest.mark.parametrize("dtype", [torch.float16, *WIDE])
def test_infinite_residuals(dtype, alpha):
    """The loss is its supremum, the pull its limit, and no gradient is nan."""
    for sign in (1, -1):
        x, shape, scale = numbers(sign * inf, alpha, 0.5, dtype=dtype)
        top = 1.0 if alpha == -inf else (alpha - 2) / alpha if alpha < 0 else inf
        pull = sign * (0.0 if alpha < 1 else 2.0 if alpha == 1 else inf)
        for args in ((x, shape, scale), (x, alpha, 0.5), (x, alpha, scale), (x, shape, 0.5)):
            tensors = [a for a in args if torch.is_tensor(a)]
            for f, expect in ((rg.rho, top), (rg.influence, pull), (rg.irls_weight, 0.0 if alpha < 2 else 4.0 if alpha == 2 else inf)):
                value = f(*args)
                grads = torch.autograd.grad(value, tensors)
                assert value == expect and not any(g.isnan() for g in grads)
                assert f is not rg.rho or grads[0] == pull
        total = rg.GeneralLoss(alpha, 0.5)(x.view(1), torch.zeros(1, dtype=dtype))
        assert total == top and torch.autograd.grad(total, x)[0] == pull


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-45, 1e-39, 1e38, 1e45, 1e308])
@pytest.mark.parametrize("alpha", [-inf, -2.0, 0.0, 0.5, 1.0, 2.0, inf])
def test_scales_whose_inverse_overflows(alpha, scale):
    for dtype in (*HALF, *WIDE):
        zero = torch.zeros(3, dtype=dtype, requires_grad=True)
        for f, expect in ((rg.rho, 0.0), (rg.influence, 0.0), (rg.irls_weight, (1 / scale) * (1 / scale))):
            assert torch.equal(f(zero, alpha, scale), torch.tensor([expect] * 3, dtype=torch.float64).to(dtype))
        total = rg.GeneralLoss(alpha, scale)(zero, zero.detach())
        assert total == 0 and torch.equal(torch.autograd.grad(total, zero)[0], zero)
    x = torch.tensor([1e-45, 1e-42, 1e-30])
    for got, v in zip(rg.rho(x, alpha, scale), x.tolist()):
        assert same_number(got, loss._exact_rho(v, alpha, scale))
    torch.testing.assert_close(torch.compile(rg.rho, fullgraph=True, backend="eager")(x, alpha, scale), rg.rho(x, alpha, scale))


@tries(40)
@given(arguments(low=0.0, dtypes=WIDE), st.floats(1e-6, 1 - 1e-6))
def test_quantiles_and_draws(args, p):
    _, alpha, scale = args
    d = rg.General(0.0, scale, alpha)
    at = sound(d.icdf(torch.full(out_shape(alpha, scale), p, dtype=alpha.dtype)), alpha.dtype, out_shape(alpha, scale))
    assert (d.cdf(at) - p).abs().le(1e-5 if alpha.dtype == torch.float32 else 1e-11).all()
    torch.manual_seed(0)
    draws = sound(d.rsample((2,)), alpha.dtype, (2, *out_shape(alpha, scale)))
    assert draws.isfinite().all()
    assert sound(sampling.rejection_sample(alpha, (2,)), alpha.dtype, (2, *alpha.shape)).isfinite().all()


@tries(25)
@given(alphas(0.0), alphas(0.0), st.floats(0.1, 10), st.floats(-3, 3))
def test_divergence(alpha, other, scale, loc):
    one = torch.tensor(1.0, dtype=torch.float64)
    p, q = rg.General(0 * one, one, alpha * one), rg.General(loc * one, scale * one, other * one)
    kl = torch.distributions.kl_divergence(p, q)
    assert not kl.isnan() and kl >= -1e-10
    assert abs(torch.distributions.kl_divergence(p, p)) < 1e-9


@tries(25)
@given(arrays(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3), st.floats(-1e6, 1e6)), alphas(0.0), st.floats(0.01, 100))
def test_scipy_distribution(x, alpha, scale):
    d = rg.general(alpha, scale=scale)
    for f in (d.pdf, d.cdf, d.sf, d.logpdf, d.logcdf, d.logsf):
        assert np.shape(f(x)) == x.shape and not np.isnan(f(x)).any()
    mine = rg.General(0.0, torch.tensor(scale, dtype=torch.float64), alpha).log_prob(torch.tensor(x))
    np.testing.assert_allclose(d.logpdf(x), mine.numpy(), rtol=1e-10, atol=1e-10)


# Losses with parameters --------------------------------------------------------------------------------------------


def adaptive(kind, shape, alpha, scale, reduction="mean", offset=False):
    if kind == "student":
        return rg.StudentTLoss(shape, scale_init=scale, reduction=reduction, offset=offset)
    return rg.AdaptiveLoss(shape, (0.0, 4.0), min(max(alpha, 1e-3), 3.999), scale_init=scale, reduction=reduction, offset=offset)


@tries(80)
@given(st.sampled_from(["general", "student"]), arguments(low=0.0, high=4.0), st.booleans(), st.booleans())
def test_adaptive_losses(kind, args, own, offset):
    x, alpha, scale = args
    assume(x.numel() and alpha.numel() and scale.numel() and x.dim())
    x = x.clamp(-1e4, 1e4) if x.dtype in HALF else x  # where a sum of squares could not be represented
    shape = x.shape[1:] if own else ()
    a, c = alpha.flatten()[0].item(), max(scale.flatten()[0].item(), 0.1)
    each = adaptive(kind, shape, a, c, "none", offset)
    assert each(x).shape == x.shape and not each(x).isnan().any()
    for reduction in ("mean", "sum"):
        loss = adaptive(kind, shape, a, c, reduction, offset)
        value = loss(x.double())
        assert value.dtype == torch.float64 and value.shape == ()
        torch.testing.assert_close(value, getattr(each(x.double()), reduction)(), rtol=1e-5, atol=1e-5)
        leaf = x.detach().requires_grad_()
        grads = torch.autograd.grad(loss(leaf), [leaf, *loss.parameters()])
        assert not any(g.isnan().any() for g in grads) and grads[0].dtype == x.dtype
    assert (each.scale >= each.scale_min).all()
    if kind == "general":
        assert ((each.alpha >= 0) & (each.alpha <= 4)).all() and each.distribution().alpha.shape == each.shape


def test_student_loss_in_half_precision():
    x = torch.tensor([256.0], dtype=torch.float16, requires_grad=True)
    value = rg.StudentTLoss()(x)
    assert value.isfinite() and torch.autograd.grad(value, x)[0].isfinite().all()


@pytest.mark.parametrize("kind", ["general", "student"])
@pytest.mark.parametrize(("shape", "x"), [((3,), (3, 4)), ((3,), ()), ((2, 3), (3,)), ((3,), (4, 1)), ((4, 3), (4, 1))])
def test_adaptive_losses_do_not_broadcast_residuals(kind, shape, x):
    with pytest.raises(ValueError, match=re.escape(str(x))):
        adaptive(kind, shape, 1.0, 1.0)(torch.zeros(x))


@tries(40)
@given(arguments(low=0.0), st.sampled_from(["none", "mean", "sum"]))
def test_likelihood_loss(args, reduction):
    x, alpha, scale = args
    assume(out_shape(*args).numel())
    x = x.clamp(-1e3, 1e3)
    loss = rg.GeneralNLLLoss(alpha, scale, reduction)
    got, each = loss(x, torch.zeros_like(x)), -rg.General(0.0, scale.double(), alpha.double()).log_prob(x.double())
    assert got.dtype == x.dtype and not got.isnan().any()
    expect = each if reduction == "none" else getattr(each, reduction)()
    assume(expect.abs().max() < largest(x.dtype))
    size = rg.rho(x.double(), alpha.double(), scale.double()).sum() + 10 * each.numel()
    assert ((got.double() - expect).abs() <= 8 * eps(x.dtype) * size * (1 + each.numel())).all()


image_shapes = st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(1, 9))


@tries(60)
@given(st.sampled_from([*HALF, *WIDE]), image_shapes, st.integers(0, 2**31), st.floats(-1, 1))
def test_colour_cosines_wavelets(dtype, shape, seed, size):
    """Linear maps and their inverses, of images up to a hundredth of the largest number."""
    n, h, w = shape
    size = (largest(dtype) / 100) ** size
    x = (torch.rand(n, 3, h, w, generator=torch.Generator().manual_seed(seed)) * 2 - 1).double() * size
    x, slack = x.to(dtype), 32 * eps(dtype) * size + 32 * torch.finfo(dtype).tiny
    pairs = [(rg.rgb_to_yuv, rg.yuv_to_rgb), (rg.dct2, rg.idct2)]
    for wavelet in ("cdf97", "legall53", "haar"):
        pairs.append((lambda x: rg.wavelet_flatten(rg.wavelet_decompose(x, wavelet=wavelet)), lambda y: rg.wavelet_reconstruct(rg.wavelet_unflatten(y), wavelet=wavelet)))
    for there, back in pairs:
        y = there(x)
        assert y.dtype == dtype and y.shape == x.shape and y.isfinite().all()
        assert (back(y).double() - x.double()).abs().le(slack).all()
        g, = torch.autograd.grad(there(x.requires_grad_()).sum(), x)
        x = x.detach()
        assert g.dtype == dtype and g.isfinite().all()
    assert torch.equal(rg.wavelet_flatten(rg.wavelet_unflatten(x)), x) if x.numel() else True
    if dtype == torch.float64:
        assert abs((rg.dct2(x) / size).norm() - (x / size).norm()) <= 1e-12 * (x / size).norm()


@tries(25)
@given(st.sampled_from(WIDE), st.integers(1, 6), st.integers(1, 6), st.sampled_from(["wavelet", "dct", "pixel"]), st.sampled_from(["coefficient", "band"]),
       st.sampled_from(["yuv", None]), st.integers(0, 99))
def test_image_loss(dtype, h, w, representation, per, color, seed):
    loss = rg.AdaptiveImageLoss((3, h, w), color, representation, per=per)
    x = torch.randn(2, 3, h, w, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    assert loss(x).dtype == dtype and loss(x).shape == () and loss(x, torch.zeros_like(x)) == loss(x)
    assert (loss.inverse(loss.transform(x)) - x).abs().max() < (1e-4 if dtype == torch.float32 else 1e-12)
    assert loss.alpha_image().shape == loss.scale_image().shape == (3, h, w)
    each = -loss.distribution().log_prob(loss.transform(x.float())).mean()
    assert abs(each.item() - loss(x).item()) < 1e-4
    for bad in ((3, h), (2, 2, h, w), (2, 3, h + 1, w) if per == "coefficient" else (3,)):
        with pytest.raises(ValueError, match="shape"):
            loss(torch.zeros(bad, dtype=dtype))


# Bounds, schedules, fits -------------------------------------------------------------------------------------------


@tries(80)
@given(arguments(dtypes=[torch.float64]))
def test_bounds(args):
    x, alpha, scale = (a.numpy() for a in args)
    shape = np.broadcast_shapes(alpha.shape, scale.shape)
    radius, turn, steep = bounds.quadratic_radius(alpha, scale), bounds.inflection(alpha, scale), bounds.gradient_bound(alpha, scale)
    low, high = bounds.curvature_bounds(alpha, scale)
    for o in (radius, turn, steep, low, high):
        assert o.shape == shape and not np.isnan(o).any()
    assert (radius > 0).all() and (turn >= scale).all() and (steep > 0).all() and (low <= high).all()
    bend = bounds.curvature(x, alpha, scale)
    assert bend.shape == np.broadcast_shapes(x.shape, shape) and not np.isnan(bend).any()
    assert (bend <= high * (1 + 1e-9)).all() and (bend >= low - 1e-9 / scale**2).all()
    assert (bounds.loss_bound(alpha) >= 1).all()


@tries(40)
@given(st.lists(alphas(), min_size=1, max_size=5), st.integers(1, 30) | st.none(), st.integers(1, 3))
def test_schedules(values, num, every):
    path = rg.anneal(values, num, "shape" if num else None, every)
    assert len(path) == (num or len(values) * every) and not any(map(math.isnan, path))
    ends, way = ([annealing._to_shape(a) for a in o] for o in (values, path))  # where infinities are numbers
    assert min(ends) - 1e-14 <= min(way) and max(way) <= max(ends) + 1e-14 and path[-1] == values[-1]
    schedule = rg.AlphaSchedule(rg.GeneralLoss(1.0), values, num, "shape" if num else None, every)
    for a in path:
        assert schedule.value == schedule.loss.alpha == a
        schedule.step()
    assert annealing.PAPER_ALPHAS == registration.SHAPES


@tries(25)
@given(alphas(high=2.0), st.floats(0.05, 50), st.integers(1, 4), st.floats(0.55, 0.99))
def test_efficiency(alpha, scale, dim, target):
    assert 0 < annealing.efficiency(alpha, scale, dim) <= 1 + 1e-12
    c = annealing.efficient_scale(alpha, target, dim)
    assert c >= 0 and (c == 0 or annealing.efficiency(alpha, c, dim) >= target - 1e-6)


@tries(30)
@given(arrays(st.integers(1, 20), st.floats(-1e3, 1e3)), st.floats(1e-3, 1e3))
def test_median_deviation(x, factor):
    assert annealing.mad(x) >= 0 and math.isclose(annealing.mad(x * factor), annealing.mad(x) * factor, rel_tol=1e-12, abs_tol=1e-300)
    times = np.arange(len(x)) % 3 + 1  # a weight counts like repetitions
    assert annealing.mad(np.repeat(x, times)) == annealing.mad(x, times.astype(float))


@tries(15)
@given(st.integers(0, 99), alphas(high=2.0), st.floats(0.1, 10), st.booleans())
def test_reweighted_least_squares(seed, alpha, scale, tensors):
    rng = np.random.default_rng(seed)
    A, y = rng.normal(size=(12, 2)), rng.normal(size=12) * 10 ** rng.uniform(-2, 3)
    start = np.zeros(2)
    if tensors:
        A, y, start = map(torch.tensor, (A, y, start))
    fit = rg.irls(lambda p: A @ p - y, start, alpha, scale, maxiter=40)
    costs = [row["cost"] for row in fit.history]
    assert all(b <= a * (1 + 1e-12) for a, b in zip(costs, costs[1:])) and type(fit.x) is type(start) and np.isfinite(np.asarray(fit.x)).all()
    assert ((np.asarray(fit.weights) >= 0) & (np.asarray(fit.weights) <= 1 + 1e-12)).all()


@tries(8)
@given(st.integers(0, 99), alphas(high=2.0), st.integers(1, 2))
def test_regression(seed, alpha, targets):
    rng = np.random.default_rng(seed)
    X, B = rng.normal(size=(40, 2)), rng.normal(size=(2, targets))
    Y = X @ B + 3
    Y[:8] += 100
    y = Y if targets > 1 else Y[:, 0]
    fit = rg.RobustRegressor(alpha).fit(X, y)
    assert fit.predict(X).shape == y.shape and np.isfinite(fit.predict(X)).all() and fit.weights_.shape == (40,)
    if alpha <= 0:  # a fifth of outliers, far away
        np.testing.assert_allclose(fit.coef_, B.T if targets > 1 else B[:, 0], atol=1e-4 if alpha < -1e-3 else 0.5)


@tries(20)
@given(st.integers(0, 999), st.integers(5, 30), st.sampled_from([*HALF, *WIDE]), st.floats(-1, 1), st.none() | alphas(0.0), st.booleans())
def test_fit(seed, n, dtype, magnitude, alpha, weighted):
    """Of any size, in the dtype of the data, and no less likely than what the data were drawn from."""
    rng = np.random.default_rng(seed)
    size = (largest(dtype) ** 0.5 / 1e2) ** magnitude
    x = torch.tensor(rng.normal(size=n) * size, dtype=dtype)
    assume(len(x.unique()) > n // 2 + 1)
    weight = torch.tensor(rng.uniform(0.5, 2, n)) if weighted else None
    found = fit.fit_general(x, weight, alpha=alpha)
    d = found.distribution
    assert d.loc.dtype == d.scale.dtype == d.alpha.dtype == dtype and d.loc.isfinite() and d.scale > 0 and d.scale.isfinite() and d.alpha >= 0
    assert isinstance(found, fit.Fit) and math.isfinite(found.log_likelihood) and math.isclose(found.count, weight.sum() if weighted else n)
    mass = torch.ones(n, dtype=torch.float64) if weight is None else weight
    truth = rg.General(0.0, torch.tensor(size, dtype=torch.float64), 2.0 if alpha is None else alpha).log_prob(x.double())
    assert found.log_likelihood >= (truth * mass).sum() - 1e-6


@tries(40)
@given(arrays(hnp.array_shapes(min_dims=1, max_dims=1, min_side=0, max_side=5), st.floats(0, 1e150) | st.floats(0, 10)), alphas(), st.floats(0.01, 100))
def test_adapters(z, alpha, scale):
    rows = rg.scipy_loss(alpha)(z)
    assert rows.shape == (3, len(z)) and not np.isnan(rows).any() and (rows[:2] >= 0).all()
    pytest.importorskip("statsmodels")
    norm = adapters.statsmodels_norm(alpha, scale)
    x = np.sqrt(z)
    for f in (norm.rho, norm.psi, norm.weights, norm.psi_deriv):
        assert np.shape(f(x)) == z.shape and not np.isnan(f(x)).any()
    assert (norm.rho(x) <= norm.max_rho() * (1 + 1e-12)).all()


# Clouds, clusters, frames ------------------------------------------------------------------------------------------


@tries(10)
@given(st.integers(0, 999), st.integers(30, 80), st.floats(0, 0.5), alphas(high=0.0), st.sampled_from([np.float32, np.float64]), st.floats(-3, 3))
def test_registration(seed, n, outliers, alpha, dtype, magnitude):
    pair = registration.make_pair(n, outliers, random_state=seed)
    size = 10**magnitude
    p, q = (pair.p * size).astype(dtype), (pair.q * size).astype(dtype)
    found = rg.register(p, q, pair.correspondences, alpha=alpha, random_state=0)
    R = found.rotation
    assert R.dtype == found.weights.dtype == dtype and found.weights.shape == (n,) and np.isfinite(found.transform).all()
    np.testing.assert_allclose(R @ R.T, np.eye(3), atol=1e-5)
    assert np.linalg.det(R) > 0 and ((found.weights >= 0) & (found.weights <= 1)).all()
    triples = registration.consistent_triples(pair.p, pair.q, 10, random_state=seed)
    assert triples.shape[1] == 3 and len(triples) <= 10
    pairs = registration.mutual_nearest(pair.p, pair.p[::-1])
    np.testing.assert_array_equal(pairs, np.stack([np.arange(n), np.arange(n)[::-1]], 1))


@tries(6)
@given(st.integers(0, 99), st.integers(2, 40), st.sampled_from([-inf, -8.0, -2.0, 0.0, 1.0, 2.0]), st.booleans())
def test_clustering(seed, n, alpha, repeat):
    X = np.random.default_rng(seed).normal(size=(n, 3))
    if repeat:
        X[n // 2 :] = X[: n - n // 2]
    fit = rg.RobustContinuousClustering(alpha, max_iter=15).fit(X)
    assert fit.labels_.shape == (n,) and set(fit.labels_) == set(range(fit.n_clusters_)) and np.isfinite(fit.representatives_).all()
    i, d = clustering.nearest(X, min(3, n - 1))
    assert (d >= 0).all() and (np.diff(d) >= 0).all() and (i != np.arange(n)[:, None]).all()
    g = clustering.mutual_graph(i, d)
    assert (g != g.T).nnz == 0
    assert -1 <= clustering_experiment.modularity(g, fit.labels_) <= 1 and -1 <= clustering_experiment.ami(fit.labels_, np.arange(n) % 2) <= 1 + 1e-9
    for how in ("norm", "scale", "minmax"):
        assert clustering.preprocess(X, how).shape == X.shape and np.isfinite(clustering.preprocess(X, how)).all()


@tries(40)
@given(arrays(st.integers(0, 4), st.floats(0, 1e100)), st.floats(1e-6, 1e6), alphas(high=2.0))
def test_edges(d, mu, alpha):
    weight, loss = clustering.edge_weight(d, mu, alpha), clustering.edge_loss(d, mu, alpha)
    assert ((weight >= 0) & (weight <= 1)).all() and (loss >= 0).all() and (loss <= d * d / 2 * (1 + 1e-12)).all()
    assert clustering.edge_scale(mu, alpha) == math.sqrt(mu / 4)
    assert clustering_experiment.relative_improvement(0.5, 0.5) == 0


@tries(40)
@given(st.sampled_from(WIDE), arrays((2, 6), st.floats(-3, 3)), st.integers(1, 5), st.integers(1, 5), st.floats(0.1, 100))
def test_warping(dtype, pose, h, w, depth):
    T = warping.pose_matrix(torch.tensor(pose, dtype=dtype))
    slack = 1e-5 if dtype == torch.float32 else 1e-12
    assert T.dtype == dtype and (T[:, :3, :3] @ T[:, :3, :3].mT - torch.eye(3)).abs().max() < slack
    K, z = torch.tensor([[5.0, 0, 2], [0, 6, 1], [0, 0, 1]], dtype=dtype), torch.full((h, w), depth, dtype=dtype)
    points = warping.backproject(z, K)
    back = warping.transform_points(torch.linalg.inv(T[0]), warping.transform_points(T[0], points))
    assert (back - points).abs().max() < 100 * slack * (1 + 1 / depth)
    at = warping.project(points, K)
    grid = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(h), indexing="xy")).to(dtype)
    assert at.shape == (2, h, w) and (at - grid).abs().max() < 100 * slack
    image = torch.rand(3, h, w, generator=torch.Generator().manual_seed(0)).to(dtype)
    same, seen = warping.warp(image, z, torch.eye(4), K)
    assert same.dtype == dtype and (same - image).abs().max() < 100 * slack and seen.shape == (h, w)
    far, _ = warping.warp(image, z, T[1], K)
    assert far.isfinite().all() and far.min() >= 0 and far.max() <= 1
    assert warping.sample(image, at)[0].shape == image.shape
    torch.testing.assert_close(warping.scale_intrinsics(warping.scale_intrinsics(K, 2.0, 3.0), 0.5, 1 / 3), K, rtol=1e-5, atol=1e-5)


@tries(40)
@given(st.integers(1, 30), st.integers(0, 99), st.floats(0.01, 100))
def test_depth_scores(n, seed, factor):
    rng = np.random.default_rng(seed)
    truth = np.exp(rng.normal(size=(n, 3)))
    perfect, other = kitti.evaluate_depth(truth * factor, truth, crop=False), kitti.depth_metrics(truth * factor, truth)
    assert max(perfect[k] for k in ("AbsRel", "RMS", "logRMS")) < 1e-9 and perfect["a1"] == 1
    assert all(v >= 0 and math.isfinite(v) for v in other.values()) and other["a1"] <= other["a2"] <= other["a3"] <= 1
    assert kitti.mean_metrics([other, None])["Avg"] == kitti.average_error({k: float(v) for k, v in other.items()})
    rows, columns = kitti.garg_crop(128, 416)
    assert 0 <= rows.start < rows.stop <= 128 and 0 <= columns.start < columns.stop <= 416
    points = rng.normal(size=(n, 3)) * 10
    depth = kitti.project_lidar(points, np.array([[20.0, 0, 8, 0], [0, 20, 4, 0], [0, 0, 1, 0]]), (8, 16))
    assert depth.shape == (8, 16) and (depth >= 0).all() and (depth > 0).sum() <= (points[:, 2] > 0).sum()
    assert monodepth.smoothness(torch.arange(12.0).view(3, 4) * factor) < 1e-3 * factor


@tries(40)
@given(st.integers(1, 20), st.integers(1, 25), st.integers(0, 99), st.integers(0, 50), st.integers(1, 50))
def test_batches_and_pictures(size, batch, seed, step, steps):
    batches = training.Batches(torch.arange(size), batch, seed)
    seen = torch.cat([batches(k) for k in range(size)])  # `batch` epochs
    assert torch.equal(seen.sort().values, torch.arange(size).repeat_interleave(batch))
    assert 0 <= training.cosine_decay(min(step, steps), steps, steps) <= 1 and training.cosine_decay(0, steps, 0) == 1
    x = torch.rand(2, 3, size, batch, generator=torch.Generator().manual_seed(seed))
    side = min(size, batch)
    assert images.center_crop(x, side).shape == (2, 3, side, side)
    small = images.resize(x, (3, 2))
    assert small.shape == (2, 3, 3, 2) and small.min() >= 0 and small.max() <= 1 + 1e-6
    assert images.resize((x * 255).byte(), 4, antialias=True).dtype == torch.float32
    assert vae_experiment.tile(x, 2).shape == (size, 2 * batch, 3)
    assert scene.street_intrinsics((size, batch)).shape == (3, 3)


@tries(20)
@given(st.sampled_from([*vae.FAMILIES, 0.0, 1.5, 2.0, 3.0]), st.sampled_from(list(vae.REPRESENTATIONS)), st.integers(1, 5), st.integers(1, 5), st.sampled_from(WIDE), st.integers(0, 99))
def test_output_models(family, representation, h, w, dtype, seed):
    torch.manual_seed(seed)
    x, mean = torch.rand(2, 2, 3, h, w, dtype=dtype)
    model = vae.OutputModel((3, h, w), family, representation, 0.1)
    loss, each = model(x, mean), sound(model.log_prob(x, mean), torch.float64, (2,))
    assert loss.dtype == dtype and abs(loss + each.sum()) <= 1e-4 * (1 + each.abs().sum())
    assert abs(abs(torch.linalg.det(vae.jacobian(model))) - 1) < 1e-12 * 3 * h * w
    assert sound(model.sample(mean), dtype, mean.shape).isfinite().all()
    prior = vae.MixturePrior(3, 4)()
    assert sound(prior.log_prob(prior.sample((5,))), torch.float32, (5,)).isfinite().all()


def depth_loss(alpha, residual):
    """The loss of a residual, with gradients."""
    loss = monodepth.WaveletLoss(residual.shape[-2:], alpha, levels=2)
    residual = residual.requires_grad_()
    value = loss([residual])
    grads = torch.autograd.grad(value, [residual, *loss.parameters()])
    assert value.shape == () and not value.isnan() and not any(g.isnan().any() for g in grads)
    return value


@tries(20)
@given(st.sampled_from([0.0, 1.0, 2.0, -2.0, "annealed", (0.0, 2.0), (0.0, 1.0)]), st.integers(4, 9), st.integers(4, 9), st.floats(-15, 15), st.integers(0, 99))
def test_depth_losses(alpha, h, w, magnitude, seed):
    torch.manual_seed(seed)
    residual, disparity = 10**magnitude * torch.randn(2, 2, 3, h, w), torch.rand(2, h, w)
    assert depth_loss(alpha, residual) >= (0 if isinstance(alpha, (float, str)) else -inf)
    assert depth_loss(alpha, residual * 0).isfinite()
    assert monodepth.PixelLoss(1)([residual], [disparity]) >= 0 == monodepth.PixelLoss(1)([residual * 0], [disparity * 0])
    target, sources, K = monodepth.augment(torch.rand(2, 3, h, w), torch.rand(2, 2, 3, h, w), torch.eye(3).repeat(2, 1, 1))
    assert target.shape == (2, 3, h, w) and sources.shape == (2, 2, 3, h, w) and K.shape == (2, 3, 3) and 0 <= target.min() and target.max() <= 1


def test_depth_loss_of_residuals_whose_squares_overflow():
    depth_loss((0.0, 2.0), torch.full((1, 1, 3, 4, 4), 1e20))


@tries(10)
@given(st.integers(0, 999), st.integers(1, 9), st.integers(1, 9), st.floats(0, 30), st.sampled_from(WIDE))
def test_streets(seed, h, w, time, dtype):
    street = scene.make_street(seed)
    a, b = (street.render(t, (h, w), dtype=dtype) for t in (time, time + 1))
    assert isinstance(street, scene.Street) and isinstance(a, scene.Frame) and a.image.dtype == a.depth.dtype == a.pose.dtype == dtype
    assert a.image.shape == (3, h, w) and 0 <= a.image.min() and a.image.max() <= 1 and (a.depth > 0).all() and torch.equal(a.depth == inf, a.surface == 0)
    there, back = scene.relative_pose(a, b), scene.relative_pose(b, a)
    assert (there @ back - torch.eye(4)).abs().max() < (1e-4 if dtype == torch.float32 else 1e-12)
    seen = scene.visible(a, b)
    assert seen.dtype == torch.bool and seen.shape == (h, w) and not (seen & ~a.static).any()


cells = st.integers(-(10**9), 10**9) | st.floats() | st.text("ab|\u03b1 ", max_size=5) | st.booleans() | st.none()


@tries(40)
@given(st.lists(st.lists(cells, min_size=2, max_size=2), min_size=1, max_size=4), st.sampled_from([np.float32, np.float64, torch.tensor]))
def test_tables_come_back(tmp_path_factory, rows, kind):
    """Numbers and text to the last digit, infinities and nan as text; one line for each row."""
    rows = [{"x": kind(r[0]) if type(r[0]) is float else r[0], "y": r[1]} for r in rows]
    with pytest.MonkeyPatch.context() as m:
        m.setenv("ROBUST_GENERAL_FIGURES", str(tmp_path_factory.getbasetemp() / "tables"))
        saved, loaded = figures.save_table("tab_x", rows, seeds=0), figures.load_table("tab_x")
    assert loaded.rows == saved.rows and loaded.provenance == saved.provenance and isinstance(loaded, figures.Table)
    for r, o in zip(rows, loaded.rows):
        for v, got in zip(r.values(), o.values()):
            v = v.item() if hasattr(v, "item") else v
            assert type(got) is type(v) and got == v or type(v) is float and not math.isfinite(v) and got == str(v)
    assert len(loaded._repr_markdown_().split("\n")) == 2 + len(rows)


# Is anything left out? ---------------------------------------------------------------------------------------------

# Tested by files of their own and by the assertions of their pages: networks and what trains them, readers of files, experiments, benchmarks, figures.
ELSEWHERE = {"benchmarks", "vae_experiment", "monodepth_experiment", "registration_experiment", "clustering_experiment"}
NAMES = {
    "Real", "Pair", "Registration", "read_features", "read_log", "read_pair", "train", "load_run", "meta_step", "Images", "celeba_splits", "stream_celeba", "load_celeba",
    "load_folder", "free_photographs", "load_free", "find_data", "load_images", "MINI_TEST", "MINI_STILL", "PAPER_TABLE", "read_calibration", "read_frame", "read_depth",
    "read_lidar", "lidar_projection", "Sequence", "folder_sequence", "raw_sequence", "mini_sequence", "mini_sequences", "read_split", "eigen_test",
    "eigen_train", "Snippets", "COLORS", "atomic_write", "style", "save_figure", "show_small", "Encoder", "Decoder", "VAE", "step_seconds", "VARIANTS", "DisparityNet",
    "PoseNet", "Monodepth", "make_monodepth", "predict_depth", "score_depth", "render_snippets"}


def test_every_public_name_is_here(root):
    """As a name of the code: a word of a comment or of a string does not count."""
    tree = ast.parse(Path(__file__).read_text())
    here = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} | {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    names = {n for n in dir(rg) if not hasattr(getattr(rg, n), "__path__") and type(getattr(rg, n)).__name__ != "module"}
    for p in (root / "robust_general").glob("[a-z]*.py"):
        if p.stem not in ELSEWHERE:
            names |= set(importlib.import_module(f"robust_general.{p.stem}").__all__)
    assert sorted(names - NAMES - here) == [] and sorted(NAMES & here - {"train"}) == []
