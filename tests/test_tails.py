"""Contracts of the distribution function and its inverse; the notebook holds the mathematics."""
import math

import pytest
import scipy.stats
import torch
from torch.autograd import gradcheck, gradgradcheck

from robust_general.tails import _CHUNK, _cdf, _drift, _icdf, _isf, _logsf, _sf

INF = math.inf
OF_X, OF_P = [_cdf, _sf, _logsf], [_icdf, _isf]
SPECIAL = [0.0, 1e-9, 0.5, 1.0, 2 - 1e-9, 2.0, 2 + 1e-9, 3.0, 1e6, INF]
X, P = [-3.0, -1.0, -0.1, 0.2, 0.7, 1.5, 2.5], [0.01, 0.2, 0.4, 0.6, 0.9, 0.999]

pytestmark = pytest.mark.usefixtures("one_thread")


def double(values, **kw) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, **kw)


def argument(fn, **kw) -> torch.Tensor:
    return double(X if fn in OF_X else P, **kw)


# What comes out.


@pytest.mark.parametrize("fn", OF_X + OF_P)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_keeps_dtype_and_is_computed_in_float64(fn, dtype):
    x = argument(fn).to(dtype)
    for a in (1.5, torch.tensor(1.5), torch.tensor(1.5, dtype=torch.float64)):
        out = fn(x, a)
        assert out.dtype == dtype and torch.equal(out, fn(x.double(), a).to(dtype))


@pytest.mark.parametrize("fn", OF_X + OF_P)
def test_broadcasts(fn):
    x, alpha = argument(fn)[:, None], double([0.0, 0.3, 2.0, INF])
    out = fn(x, alpha)
    assert out.shape == (len(x), 4)
    for j, a in enumerate(alpha):
        torch.testing.assert_close(out[:, j], fn(x[:, 0], a), rtol=1e-13, atol=0)
        torch.testing.assert_close(out[:, j], fn(x[:, 0], a.item()), rtol=1e-13, atol=0)
    assert fn(x[0, 0], 1.0).shape == () and fn(x[:0], alpha).shape == (0, 4)


@pytest.mark.parametrize("fn", OF_X + OF_P)
def test_inputs_are_left_alone(fn):
    x, a = argument(fn), double([[0.0], [2.0], [INF]])
    before = x.clone(), a.clone()
    fn(x, a)
    assert torch.equal(x, before[0]) and torch.equal(a, before[1])


@pytest.mark.parametrize("fn", [_cdf, _icdf, _drift])
def test_large_tensors_are_worked_in_chunks_alike(fn):
    x = torch.linspace(0.01, 0.99, _CHUNK + 9, dtype=torch.float64)
    for a in (double(0.7), torch.linspace(0, 3, len(x), dtype=torch.float64)):
        whole, last = fn(x, a), fn(x[-9:], a[-9:] if a.dim() else a)
        torch.testing.assert_close(whole[-9:], last, rtol=1e-14, atol=0)
    grid = fn(x.view(-1, 1), double([0.7, 1.7]))
    torch.testing.assert_close(grid[:, 0], fn(x, 0.7), rtol=1e-14, atol=0)


@pytest.mark.parametrize("fn", OF_X + OF_P)
def test_meta_device(fn):
    out = fn(torch.empty(3, 1, device="meta"), torch.empty(4, device="meta"))
    assert (out.device.type, out.shape, out.dtype) == ("meta", (3, 4), torch.float32)


# Ends of the range.


@pytest.mark.parametrize("alpha", SPECIAL)
def test_ends(alpha):
    x = double([-INF, 0.0, -0.0, INF])
    assert _cdf(x, alpha).tolist() == [0, 0.5, 0.5, 1] and _sf(x, alpha).tolist() == [1, 0.5, 0.5, 0]
    assert _logsf(x, alpha).tolist() == [0, math.log(0.5), math.log(0.5), -INF]
    assert _icdf(double([0.0, 0.5, 1.0]), alpha).tolist() == [-INF, 0, INF]
    assert _isf(double([0.0, 0.5, 1.0]), alpha).tolist() == [INF, 0, -INF]
    assert _icdf(double([-1e-9, 1 + 1e-9, math.nan, INF]), alpha).isnan().all()
    assert all(fn(double(math.nan), alpha).isnan() for fn in OF_X)


@pytest.mark.parametrize("alpha", SPECIAL)
def test_nothing_breaks_at_the_ends_of_floating_point(alpha):
    info = torch.finfo(torch.float64)
    x = double([5e-324, info.tiny, 1e-150, 1e150, info.max])
    assert not any(fn(x * s, alpha).isnan().any() for fn in OF_X for s in (-1, 1))
    log = _logsf(x, alpha)
    assert (log[1:] <= log[:-1]).all()
    p = double([5e-324, info.tiny, 1e-100, 0.5 - 2**-54])
    assert (_isf(p, alpha).diff() < 0).all() and (_isf(p, alpha)[-1] > 0)


@pytest.mark.parametrize("alpha", [a for a in SPECIAL if a])
def test_monotone_where_body_and_tail_meet(alpha):
    x = _isf(torch.linspace(0.2, 0.01, 4001, dtype=torch.float64), alpha)
    assert (_cdf(x, alpha).diff() > 0).all() and (_sf(x, alpha).diff() < 0).all() and (x.diff() > 0).all()


def test_against_scipy():
    x = double([-30.0, -5, -1, -1e-3, 1e-9, 0.3, 2, 8, 35])
    for alpha, dist in ((0.0, scipy.stats.cauchy(scale=2**0.5)), (2.0, scipy.stats.norm())):
        for fn, name in ((_cdf, "cdf"), (_sf, "sf"), (_logsf, "logsf")):
            torch.testing.assert_close(fn(x, alpha), torch.from_numpy(getattr(dist, name)(x.numpy())), rtol=3e-13, atol=0)
        p = double([1e-300, 1e-9, 0.3, 0.499, 0.9])
        torch.testing.assert_close(_icdf(p, alpha), torch.from_numpy(dist.ppf(p.numpy())), rtol=3e-13, atol=0)


# What may not go in.


@pytest.mark.parametrize("fn", OF_X + OF_P)
@pytest.mark.parametrize("bad", [-1.0, -5e-324, -INF, math.nan])
def test_bad_alpha_is_named(fn, bad):
    for alpha in (bad, double(bad), double([1.0, bad])):
        with pytest.raises(ValueError, match=f"the density does not exist for alpha < 0, got {bad}"):
            fn(double([0.3, 0.4]), alpha)


@pytest.mark.parametrize("fn", [_cdf, _icdf])
def test_bad_alpha_is_named_by_compiled_code(fn):
    with pytest.raises(ValueError, match="the density does not exist for alpha < 0, got -1.0"):
        torch.compile(fn, fullgraph=True, backend="eager")(double([0.3, 0.3]), double([1.0, -1.0]))


# Derivatives and transforms.


@pytest.mark.parametrize("fn", OF_X + OF_P)
@pytest.mark.parametrize("alpha", [0.3, 3.0])
def test_gradcheck(fn, alpha):
    args = argument(fn)[::2].clone().requires_grad_(), double([[alpha]], requires_grad=True)
    assert gradcheck(fn, args, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(fn, args)


@pytest.mark.parametrize("fn", OF_X + OF_P)
@pytest.mark.parametrize("alpha", SPECIAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_numbers(fn, alpha, dtype):
    x = argument(fn).to(dtype).requires_grad_()
    a = torch.tensor(alpha, dtype=dtype, requires_grad=True)
    dx, da = torch.autograd.grad(fn(x, a).sum(), (x, a))
    assert (dx.dtype, da.dtype, dx.shape, da.shape) == (dtype, dtype, x.shape, ())
    assert dx.isfinite().all() and dx.all() and da.isfinite() and (da == 0) == (alpha == INF)


@pytest.mark.parametrize("fn", [_cdf, _sf, _logsf])
@pytest.mark.parametrize("alpha", SPECIAL)
def test_gradients_at_the_ends(fn, alpha):
    x, a = double([-INF, 0.0, INF], requires_grad=True), double(alpha, requires_grad=True).expand(3).clone()
    da, = torch.autograd.grad(fn(x, a).sum(), a)
    assert da[:2].tolist() == [0, 0]
    middle = double(0.0, requires_grad=True)
    slope, = torch.autograd.grad(_cdf(middle, a[0].detach().requires_grad_()), middle, create_graph=True)
    assert slope > 0.2 and torch.autograd.grad(slope, middle)[0] == 0


@pytest.mark.parametrize("fn", OF_X)
@pytest.mark.parametrize("alpha", SPECIAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_no_nan_at_the_ends_of_floating_point(fn, alpha, dtype):
    info = torch.finfo(dtype)
    x = torch.tensor([info.tiny, 1e-30, 1e3, 1e20, 1e37, info.max**0.5, info.max / 2, info.max], dtype=dtype)
    x = torch.cat([-x, x]).requires_grad_()
    a = torch.full_like(x, alpha).requires_grad_()
    dx, da = torch.autograd.grad(fn(x, a).sum(), (x, a))
    assert not dx.isnan().any() and not da.isnan().any()
    if fn is not _logsf:
        assert dx.isfinite().all() and da.isfinite().all()


@pytest.mark.parametrize("fn", OF_X + OF_P)
def test_second_derivative_in_an_expanded_alpha(fn):
    a = double(1.5, requires_grad=True)
    second = []
    for alpha in (a, a.expand(argument(fn).shape)):
        slope, = torch.autograd.grad(fn(argument(fn), alpha).sum(), a, create_graph=True)
        second += torch.autograd.grad(slope, a)
    torch.testing.assert_close(second[0], second[1], rtol=1e-13, atol=0)


@pytest.mark.parametrize("fn", OF_X + OF_P)
def test_vmap_and_func(fn):
    x, a = argument(fn)[:5], double([0.4, 1.0, 1.6, 2.3, 5.0])
    assert torch.equal(torch.vmap(fn)(x, a), fn(x, a))
    both = torch.vmap(torch.func.grad(fn, argnums=(0, 1)))(x, a)
    for i, x_i, a_i in zip(range(5), x, a, strict=True):
        each = torch.func.grad(fn, argnums=(0, 1))(x_i, a_i)
        torch.testing.assert_close((both[0][i], both[1][i]), each, rtol=1e-13, atol=1e-16)


COMPILED = [(_cdf, 2.0), (_logsf, double([0.0, 0.5, 1.0, 2.0, 3.0, INF])), (_isf, double(2.0))]


@pytest.mark.parametrize("fn,alpha", COMPILED)
def test_compiles_without_graph_break(fn, alpha):
    x = argument(fn)[:6].clone().requires_grad_()
    inputs = [x] if isinstance(alpha, float) else [x, alpha.clone().requires_grad_()]
    args = [x, alpha] if isinstance(alpha, float) else inputs
    out = torch.compile(fn, fullgraph=True, backend="aot_eager")(*args)
    torch.testing.assert_close(out, fn(*args), rtol=1e-14, atol=0)
    for got, want in zip(torch.autograd.grad(out.sum(), inputs), torch.autograd.grad(fn(*args).sum(), inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-13, atol=0)


@pytest.mark.parametrize("fn", OF_X)
def test_compiled_gradients_far_out(fn):
    x, a = (double(o, requires_grad=True) for o in ([1e300, -1e300, 1e9, 1e130, 1e7, 20.0], [0.0, 0.0, 2.0, 2.0, 100.0, INF]))
    got, want = (torch.autograd.grad(f(x, a).sum(), (x, a)) for f in (torch.compile(fn, fullgraph=True, backend="aot_eager"), fn))
    torch.testing.assert_close(got, want, rtol=1e-13, atol=0)


@pytest.mark.parametrize("alpha", [0.0, 0.001, 0.1, 0.5, 1.0, 1.25, 1.5, 1.9, 1.999, 2.0, 2.001, 2.5, 3.0, 4.0, 8.0, 32.0, 1000.0, INF])
def test_there_and_back_over_the_whole_line(alpha):
    x = _isf(double([1e-100, 1e-60, 1e-30, 1e-10, 1e-3, 0.1, 0.4]), alpha)
    torch.testing.assert_close(_icdf(_cdf(-x, alpha), alpha), -x, rtol=1e-9, atol=0)  # the lower tail, where a probability keeps its digits
    torch.testing.assert_close(_isf(_sf(x, alpha), alpha), x, rtol=1e-9, atol=0)
    body = x[-3:]  # near 1 a probability keeps few digits of what is left
    torch.testing.assert_close(_icdf(_cdf(body, alpha), alpha), body, rtol=1e-9, atol=0)
