"""Contracts of the weights and the outlier process; the notebook holds the mathematics."""
import math
import random

import mpmath as mp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from robust_general.elementwise import _partial, _worst
from robust_general.loss import influence, rho
from robust_general.weights import (
    _exact_psi,
    _exact_psi_slopes,
    _exact_weight,
    _exact_weight_slopes,
    irls_weight,
    outlier_process,
)

INF = math.inf
HALF, FULL = [torch.float16, torch.bfloat16], [torch.float32, torch.float64]
SPECIAL = [-INF, -2.0, -1e-9, 0.0, 1e-12, 1.0, 2 - 1e-9, 2.0]
HARD = [-INF, -1e6, -100, -2, -1e-3, -1e-9, 0, 1e-12, 1e-3, 0.5, 1, 2 - 1e-9, 2, 2 + 1e-9, 2.5, 4, 100, 1e6, INF]
BELOW = [a for a in HARD if a < 2] + [1.5]
FUNCTIONS = [irls_weight, outlier_process]


def arguments(fn, dtype=torch.float64, grad=False, shape=()):
    """Ordinary arguments: residual, shape and scale, or weight and shape."""
    values = (0.8, 0.3, 0.7) if fn is irls_weight else (0.4, 0.3)
    return [torch.full(shape, v, dtype=dtype, requires_grad=grad) for v in values]


# What goes in, what comes out.


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("dtype", HALF + FULL)
@pytest.mark.parametrize("alpha", SPECIAL)
def test_keeps_dtype(fn, dtype, alpha):
    x = torch.tensor([0.125, 0.5, 1.0], dtype=dtype)
    for a in (alpha, torch.tensor(alpha)):
        out = fn(x, a)
        assert out.dtype == dtype and not out.isnan().any()
        wide = fn(x.float() if dtype in HALF else x, a)
        assert torch.equal(out, wide.to(dtype))  # half precision is computed in float32 and rounded once


@pytest.mark.parametrize("dtype", HALF + FULL)
def test_gradients_have_the_dtype_of_their_argument(dtype):
    x = torch.tensor([0.25, 0.5], dtype=dtype, requires_grad=True)
    alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for fn in FUNCTIONS:
        dx, dalpha = torch.autograd.grad(fn(x, alpha).sum(), (x, alpha))
        assert (dx.dtype, dalpha.dtype) == (dtype, torch.float64)
        assert (dx.shape, dalpha.shape) == ((2,), ())


def test_broadcasts():
    x, alpha, scale = torch.rand(4, 1, 1), torch.rand(3, 1), torch.rand(2) + 0.5
    out = irls_weight(x, alpha, scale)
    assert out.shape == (4, 3, 2)
    assert out[1, 2, 0] == irls_weight(x[1, 0, 0], alpha[2, 0], scale[0])
    out = outlier_process(x[..., 0], alpha[:, 0])
    assert out.shape == (4, 3) and out[3, 1] == outlier_process(x[3, 0, 0], alpha[1, 0])


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_numpy_in_numpy_out(fn):
    assert type(fn(0.5, 1)) is np.float64
    assert type(fn(1, 0)) is np.float64
    for dtype in (np.float16, np.float32, np.float64):
        out = fn(np.array([0.25, 0.5], dtype=dtype), np.array([[0.0], [1.0]]))
        assert type(out) is np.ndarray and (out.shape, out.dtype) == ((2, 2), dtype)
    assert fn(np.array([0, 1]), 0.5).dtype == np.float64
    assert fn([0.25, 0.5], -2).shape == (2,)
    assert fn(np.empty((0, 3)), 0.5).shape == (0, 3)
    assert fn(torch.empty(0, 3), torch.zeros(3)).shape == (0, 3)


def test_number_and_tensor_agree():
    x = torch.linspace(0, 1, 41, dtype=torch.float64)
    for fn in FUNCTIONS:
        for a in SPECIAL:
            assert torch.equal(fn(x, a), fn(x, torch.tensor(a, dtype=torch.float64))), (fn, a)
            assert np.array_equal(fn(x.numpy(), a), fn(x, a).numpy())


def test_inputs_are_left_alone():
    x, a, c = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([-INF, 0.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])
    before = [o.clone() for o in (x, a, c)]
    irls_weight(x, a, c), outlier_process(x, a)
    assert all(map(torch.equal, (x, a, c), before))


# What may not go in.


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, torch.tensor([1.0, -1.0]), np.array([1.0, -1.0])])
def test_bad_scale(scale):
    value = scale if isinstance(scale, float) else -1.0
    with pytest.raises(ValueError, match=f"scale must be positive, got {value}"):
        irls_weight(torch.ones(2), 0.0, scale)


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("alpha", [math.nan, torch.tensor([0.0, math.nan]), np.array([0.0, math.nan])])
def test_nan_alpha(fn, alpha):
    with pytest.raises(ValueError, match="alpha must not be nan, got nan"):
        fn(torch.ones(2), alpha)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_types_and_shapes(fn):
    with pytest.raises(TypeError, match="floating-point tensor, got torch.int64"):
        fn(torch.ones(2, dtype=torch.int64), 0.0)
    with pytest.raises(TypeError, match="alpha must be a floating-point tensor, got torch.int32"):
        fn(torch.ones(2), torch.ones(2, dtype=torch.int32))
    with pytest.raises(TypeError, match="alpha must be .*, got str"):
        fn(torch.ones(2), "0")
    with pytest.raises(ValueError, match="do not broadcast"):
        fn(torch.ones(2), torch.ones(3))


@pytest.mark.parametrize("z", [-1e-9, 1 + 1e-9, math.nan, INF])
def test_bad_weight(z):
    for bad in (z, np.array([0.5, z]), torch.tensor([0.5, z], dtype=torch.float64)):
        with pytest.raises(ValueError, match=f"z must lie in \\[0, 1\\], got {z}"):
            outlier_process(bad, 0.0)


@pytest.mark.parametrize("alpha", [2 + 1e-9, 3.0, INF])
def test_no_process_above_two(alpha):
    for bad in (alpha, np.array([0.0, alpha]), torch.tensor([0.0, alpha], dtype=torch.float64)):
        with pytest.raises(ValueError, match=f"alpha must be at most 2 for an outlier process, got {alpha}"):
            outlier_process(torch.tensor([0.5, 0.5], dtype=torch.float64), bad)


def test_nan_where_values_cannot_be_read():
    f = torch.compile(outlier_process, fullgraph=True, backend="eager")
    z, alpha = torch.tensor([-0.5, 1.5, 0.5, 0.0, 1.0, 0.5]), torch.tensor([0.0, 0.0, 2.5, 3.0, 3.0, 0.0])
    assert f(z, alpha).isnan().tolist() == [True] * 5 + [False]
    g = torch.compile(irls_weight, fullgraph=True, backend="eager")
    assert g(torch.ones(3), torch.tensor([0.0, 2.0, math.nan]), torch.tensor([-1.0, -1.0, 1.0])).isnan().all()


# Ends of the range.


def test_ends_of_the_process():
    z = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    for alpha, ends in ((-INF, (1, 0)), (-2.0, (2, 0)), (0.0, (INF, 0)), (-0.0, (INF, 0)), (1.5, (INF, 0)), (2.0, (INF, 0))):
        for a in (alpha, torch.tensor(alpha, dtype=torch.float64)):
            out = outlier_process(z, a).tolist()
            assert (out[0], out[2]) == ends and out[1] > 0
    assert outlier_process(0.5, 2.0) == INF and outlier_process(np.nextafter(1, 0), 2.0) == INF
    assert outlier_process(0.0, -1e-9) == pytest.approx(2e9 + 1, rel=1e-15)


@pytest.mark.parametrize("dtype", FULL)
def test_ends_of_the_weight(dtype):
    top = torch.finfo(dtype).max
    x = torch.tensor([0.0, torch.finfo(dtype).tiny, top, INF, -INF], dtype=dtype)
    for alpha in (-INF, -2.0, 1.0, 2.0, 4.0, INF):
        for a in (alpha, torch.tensor(alpha, dtype=dtype)):
            w = irls_weight(x, a).tolist()
            assert w[:2] == [1, 1] and w[3:] == [1 if alpha == 2 else 0 if alpha < 2 else INF] * 2
            assert w[2] == (1 if alpha == 2 else 0 if alpha < 0 else pytest.approx(1 / top) if alpha == 1 else INF)
    assert irls_weight(torch.tensor(math.nan), 2.0).isnan()


def test_weight_is_representable_where_its_factors_are_not():
    assert irls_weight(torch.tensor(1.0), 0.0, 1e-25).item() == pytest.approx(2, rel=3e-5)  # W and 1/c**2 are not
    assert irls_weight(1.0, 0.0, 1e-200) == pytest.approx(2, rel=1e-12)


@pytest.mark.parametrize("dtype", FULL)
@pytest.mark.parametrize("alpha", HARD)
@pytest.mark.parametrize("x", [0.0, 1e-20, 1.0, 1e6, 1e25])
def test_gradients_of_the_weight_are_numbers(dtype, alpha, x):
    args = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (x, alpha, 1.0)]
    w = irls_weight(*args)
    grads = torch.autograd.grad(w, args)
    assert not any(g.isnan() for g in grads), grads
    assert not w.isfinite() or all(g.isfinite() for g in grads) or alpha > 2, grads


@pytest.mark.parametrize("dtype", FULL)
@pytest.mark.parametrize("alpha", BELOW)
@pytest.mark.parametrize("z", [1e-30, 1e-3, 0.5, 1 - 1e-6, 1.0])
def test_gradients_of_the_process_are_numbers(dtype, alpha, z):
    args = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (z, alpha)]
    out = outlier_process(*args)
    grads = torch.autograd.grad(out, args, create_graph=True)
    assert not any(g.isnan() for g in grads), grads
    if out.isfinite() and all(g.isfinite() for g in grads):
        second = torch.autograd.grad(sum(grads), args)
        assert not any(g.isnan() for g in second), second


# Accuracy.


@pytest.mark.parametrize("dtype,far,tol,tol_scale", [(torch.float64, [], 1e-15, 1e-14), (torch.float32, [1e12, 1e19, 1e20, 1e25], 5e-7, 2e-6)])
def test_accuracy_of_the_weight(dtype, far, tol, tol_scale):
    rng = random.Random(1)
    alphas = HARD + [rng.uniform(-6, 6) for _ in range(10)] + [2 + s * 10 ** rng.uniform(-6, 0) for s in (-1, 1) for _ in range(4)]
    xs = [0.0] + [10**e for e in np.linspace(-8, 8, 25)] + [-1.7] + far
    assert _worst(irls_weight, _exact_weight, alphas, xs, dtype) < tol
    assert _worst(irls_weight, _exact_weight, alphas, xs, dtype, static=True) < tol
    for i, t in ((0, tol), (1, tol), (2, tol_scale)):  # the last changes sign, and is small near there
        shapes = [a for a in alphas if i != 1 or torch.tensor(a, dtype=dtype) != 2]
        got = lambda x, a: _partial(irls_weight, i)(x, a, 1.0)  # noqa: E731
        assert _worst(got, lambda x, a: _exact_weight_slopes(x, a)[i], shapes, xs, dtype) < t, i


@pytest.mark.parametrize("dtype,lowest,closest,tol,tol_alpha", [(torch.float64, 300, 15, 5e-15, 1e-13), (torch.float32, 37, 7, 1.5e-6, 1e-5)])
def test_accuracy_of_the_process(dtype, lowest, closest, tol, tol_alpha):
    rng = random.Random(2)
    alphas = BELOW + [2 - 10 ** rng.uniform(-closest, 1.5) for _ in range(25)] + [rng.choice((-1, 1)) * 10 ** rng.uniform(-6, 0) for _ in range(10)]
    for a in alphas:
        b = min(2 - float(torch.tensor(a, dtype=dtype)), 1e6) or 1.0
        zs = [10 ** -rng.uniform(0, lowest) for _ in range(8)] + [1 - 10 ** -rng.uniform(0, closest) for _ in range(8)]
        zs += [math.exp(-max(b / 2 * rng.uniform(0.01, 60), 1e-16)) or 1.0 for _ in range(10)] + [0.0, 1.0, 10.0**-lowest, 1 - 1e-8]
        assert _worst(outlier_process, _exact_psi, [a], zs, dtype) < tol, a
        assert _worst(outlier_process, _exact_psi, [a], zs, dtype, static=True) < tol, a
        for i, t in ((0, tol), (1, tol_alpha)):
            assert _worst(_partial(outlier_process, i), lambda z, a: _exact_psi_slopes(z, a)[i], [a], zs, dtype) < t, (a, i)


def test_the_exact_slopes_are_slopes():
    with mp.workdps(50):
        for a in (-3.0, -0.1, 0.2, 1.3, 3.0):
            for x in (0.3, 2.0):
                args = [x, a, 0.7]
                for i, d in enumerate(_exact_weight_slopes(*args)):
                    got = mp.diff(lambda v: _exact_weight(*args[:i], v, *args[i + 1:], digits=300), args[i])
                    assert abs(got - d) < 1e-15 * abs(d)
            if a < 2:
                dz, da = _exact_psi_slopes(0.3, a)
                assert abs(mp.diff(lambda z: _exact_psi(z, a, 300), 0.3) - dz) < 1e-15 * abs(dz)
                assert abs(mp.diff(lambda v: _exact_psi(0.3, v, 300), a) - da) < 1e-15 * abs(da)


# Derivatives and transforms.


@pytest.mark.parametrize("alpha", [-30.0, -2.0, -0.3, 0.4, 1.0, 1.8, 2.3, 5.0])
def test_gradcheck_weight(alpha):
    x = torch.tensor([-2.0, -0.5, 0.0, 0.1, 1.5], dtype=torch.float64, requires_grad=True)
    args = (x, torch.tensor([[alpha]], dtype=torch.float64, requires_grad=True), torch.tensor(0.7, dtype=torch.float64, requires_grad=True))
    assert gradcheck(irls_weight, args, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(irls_weight, args)


@pytest.mark.parametrize("alpha", [-300.0, -30.0, -2.0, -0.3, 0.0, 0.4, 1.0, 1.6])
def test_gradcheck_process(alpha):
    z = torch.tensor([0.02, 0.2, 0.5, 0.9] if alpha < 1 else [0.5, 0.7, 0.9], dtype=torch.float64, requires_grad=True)
    args = (z, torch.tensor([[alpha]], dtype=torch.float64, requires_grad=True))
    kw = dict(eps=1e-7, atol=1e-4, rtol=1e-4)  # third derivatives in z reach 1e6 here
    assert gradcheck(outlier_process, args, check_forward_ad=True, check_batched_grad=True, **kw)
    assert gradgradcheck(outlier_process, args, **kw)


def test_weight_is_influence_over_residual():
    x, c = torch.tensor([-3.0, 0.2, 1.0], dtype=torch.float64), 0.7
    for a in HARD:
        torch.testing.assert_close(irls_weight(x, a, c) * x, influence(x, a, c), rtol=1e-13, atol=0)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_vmap_over_every_argument(fn):
    args = arguments(fn)
    for i, batched in enumerate(args):
        stack = batched + torch.linspace(0, 0.3, 5, dtype=torch.float64)
        dims = [0 if j == i else None for j in range(len(args))]
        now = [stack if j == i else a for j, a in enumerate(args)]
        assert torch.equal(torch.vmap(fn, in_dims=tuple(dims))(*now), fn(*now))
        d = torch.vmap(torch.func.grad(fn, argnums=i), in_dims=tuple(dims))(*now)
        each = torch.stack([torch.func.grad(fn, argnums=i)(*[v if j == i else a for j, a in enumerate(args)]) for v in stack])
        torch.testing.assert_close(d, each, rtol=1e-14, atol=0)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_jvp_and_hessian(fn):
    args = arguments(fn)
    n = tuple(range(len(args)))
    grads = torch.func.grad(fn, argnums=n)(*args)
    for i, g in enumerate(grads):
        tangents = tuple(torch.ones_like(a) if j == i else torch.zeros_like(a) for j, a in enumerate(args))
        assert torch.func.jvp(fn, tuple(args), tangents)[1] == pytest.approx(g.item(), rel=1e-14)
    hessian = torch.func.hessian(fn, argnums=n)(*args)
    reverse = torch.func.jacrev(torch.func.jacrev(fn, argnums=n), argnums=n)(*args)
    for i in n:
        for j in n:
            assert hessian[i][j].item() == pytest.approx(hessian[j][i].item(), rel=1e-12)
            assert hessian[i][j].item() == pytest.approx(reverse[i][j].item(), rel=1e-12)


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("alpha", [-INF, 1.3, 2.0, None])
def test_compiles_without_graph_break(fn, alpha):
    x, *rest = arguments(fn, grad=True, shape=(7,))
    rest[0] = rest[0] if alpha is None else alpha
    tensors = [a for a in (x, *rest) if isinstance(a, torch.Tensor)]
    out = torch.compile(fn, fullgraph=True, backend="aot_eager")(x, *rest)
    torch.testing.assert_close(out, fn(x, *rest), rtol=1e-14, atol=0)
    if out.isfinite().all():
        for got, true in zip(torch.autograd.grad(out.sum(), tensors), torch.autograd.grad(fn(x, *rest).sum(), tensors), strict=True):
            torch.testing.assert_close(got, true, rtol=1e-14, atol=0)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_inductor(fn):
    args = arguments(fn, torch.float32, grad=True, shape=(17,))
    out = torch.compile(fn, fullgraph=True)(*args)
    torch.testing.assert_close(out, fn(*args), rtol=2e-6, atol=0)
    for got, true in zip(torch.autograd.grad(out.sum(), args), torch.autograd.grad(fn(*args).sum(), args), strict=True):
        torch.testing.assert_close(got, true, rtol=1e-5, atol=0)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_meta_device(fn):
    args = [a.to("meta") for a in arguments(fn, torch.float32, shape=(3, 1))]
    args[1] = args[1].expand(3, 4)
    out = fn(*args)
    assert (out.device.type, out.shape, out.dtype) == ("meta", (3, 4), torch.float32)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_large_tensors_are_worked_in_blocks_alike(fn):
    x = torch.linspace(0, 1, 2**18 + 7, dtype=torch.float32)
    alpha = torch.tensor(0.3)
    whole, tail = fn(x, alpha), fn(x[-9:].clone(), alpha)
    assert whole.shape == x.shape
    torch.testing.assert_close(whole[-9:], tail, rtol=1e-6, atol=0)


@pytest.mark.parametrize("alpha", [-INF, -100.0, -2.0, -1e-9, 0.0, 0.7, 1.9, 2 - 1e-9, 2.0])
def test_duality(alpha):
    x = torch.linspace(0.01, 9, 300, dtype=torch.float64)
    w = irls_weight(x, alpha)
    torch.testing.assert_close(x**2 * w / 2 + outlier_process(w, alpha), rho(x, alpha), rtol=1e-14, atol=0)
