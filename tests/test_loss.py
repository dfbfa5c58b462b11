"""Contracts of the loss: accuracy through autograd, dtypes, shapes, transforms, compilers, bad input."""
import copy
import math
import pickle
import random
from math import inf

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import robust_general
from robust_general.elementwise import _block, _partial, _worst
from robust_general.loss import GeneralLoss, _exact_influence, _exact_rho, _exact_slope, influence, rho

F32, F64 = torch.float32, torch.float64
HARD = [-inf, -1e6, -100., -2., -1e-3, -1e-9, 0., 1e-12, 1e-3, .5, 1., 2 - 1e-9, 2., 2 + 1e-9, 2.5, 4., 100., 1e6, inf]
_rng = random.Random(0)
RANDOM = ([_rng.uniform(-10, 10) for _ in range(12)] + [2 + s*10**_rng.uniform(-6, 0) for s in (-1, 1) for _ in range(4)]
          + [s*10**_rng.uniform(-8, 0) for s in (-1, 1) for _ in range(4)] + [s*10**_rng.uniform(0, 8) for s in (-1, 1) for _ in range(4)])
XS = [0.] + [10**(e/2) for e in range(-16, 17)]
EXTREME = [1e10, 1e19, 1e20, 1e25, 1e30, 1e37]


# Accuracy. Bars: 2e-14 / 2e-6 for rho, d/dx and d/dscale, 1e-11 / 1e-4 for d/dalpha, per 1 + |log| of the true value.

def derivative(which, fn=rho): return lambda x, alpha: _partial(fn, which)(x, alpha, 1.)


def exact_scale(x, alpha): return -x*_exact_influence(x, alpha)


@pytest.mark.parametrize('dtype,bar', [(F64, 2e-14), (F32, 2e-6)])
@pytest.mark.parametrize('fn,exact', [(rho, _exact_rho), (derivative(0), _exact_influence), (derivative(2), exact_scale), (influence, _exact_influence)],
                         ids=['rho', 'dx', 'dscale', 'influence'])
def test_accuracy_in_a_tensor(fn, exact, dtype, bar):
    assert _worst(fn, exact, HARD + RANDOM, XS, dtype) < bar


@pytest.mark.parametrize('dtype,bar', [(F64, 2e-14), (F32, 2e-6)])
def test_accuracy_of_one_number(dtype, bar):
    assert _worst(rho, _exact_rho, HARD + RANDOM, XS, dtype, static=True) < bar
    assert _worst(influence, _exact_influence, HARD + RANDOM, XS, dtype, static=True) < bar

    def module(x, alpha):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(GeneralLoss(alpha, reduction='sum')(x, torch.zeros_like(x)), x)[0]
    assert _worst(module, _exact_influence, HARD + RANDOM, XS, dtype, static=True) < bar


@pytest.mark.parametrize('dtype,bar,gap', [(F64, 1e-11, 1e-10), (F32, 1e-4, 2**-22)])
def test_accuracy_in_alpha(dtype, bar, gap):
    alphas = [a for a in HARD + RANDOM if abs(a - 2) >= gap or (a != 2 and dtype == F64)]
    assert _worst(derivative(1), _exact_slope, alphas + [2 - gap, 2 + gap], XS, dtype) < bar


@pytest.mark.parametrize('static', [True, False])
def test_squares_that_overflow(static):
    alphas = HARD + RANDOM
    assert _worst(rho, _exact_rho, alphas, EXTREME, F32, static=static) < 2e-6
    assert _worst(influence, _exact_influence, alphas, EXTREME, F32, static=static) < 2e-6
    if not static:
        assert _worst(derivative(1), _exact_slope, [a for a in alphas if abs(a - 2) > 1e-6], EXTREME, F32) < 1e-4


@pytest.mark.parametrize('x', [0., 1e-45, 1e-30, 1e-20, 1e-10, 1., 1e10, 1e25, 3e38])
@pytest.mark.parametrize('alpha', HARD + [2 - 2**-23, 2 + 2**-22])
def test_gradients_are_never_nan(x, alpha):
    args = [torch.tensor(v, requires_grad=True) for v in (x, alpha, 1.)]
    out = rho(*args)
    grads = torch.autograd.grad(out, args)
    assert not any(g.isnan() for g in (out, *grads)), (out, grads)
    if float(_exact_influence(x, args[1].item())) < 3e38: assert grads[0].isfinite()


def test_the_slope_at_two_is_that_of_the_number_below():
    for dtype in (F32, F64):
        two = torch.tensor(2., dtype=dtype, requires_grad=True)
        got, = torch.autograd.grad(rho(torch.tensor(3., dtype=dtype), two), two)
        true = float(_exact_slope(3., 2 - torch.finfo(dtype).eps))
        assert got.item() == pytest.approx(true, rel=1e-5 if dtype == F32 else 1e-12)


# Dtypes, shapes, containers.

@pytest.mark.parametrize('fn', [rho, influence])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, F32, F64])
@pytest.mark.parametrize('alpha', HARD)
def test_keeps_dtype_and_broadcasts(fn, dtype, alpha):
    x, scale = torch.linspace(-3, 3, 4, dtype=dtype).view(4, 1), torch.tensor([.5, 1., 2.], dtype=dtype)
    for a in (alpha, torch.tensor(alpha), torch.full((3,), alpha)):
        out = fn(x, a, scale)
        assert (out.shape, out.dtype) == ((4, 3), dtype)
        wide = fn(x.double(), alpha if isinstance(a, float) else a.double(), scale.double()).to(dtype).double()
        blur = 4*torch.finfo(dtype).eps*(1 + wide.abs().clamp(min=torch.finfo(dtype).tiny).log().abs())
        assert ((out.double() - wide).abs() <= blur*wide.abs() + torch.finfo(dtype).tiny)[wide.isfinite()].all()
        assert torch.equal(out.isinf(), wide.isinf())


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_is_computed_in_float32(dtype):
    x = torch.randn(100).to(dtype)
    alpha = torch.tensor(.3, requires_grad=True)
    out = rho(x.requires_grad_(), alpha, .5)
    assert torch.equal(out, rho(x.float(), alpha, .5).to(dtype))
    gx, ga = torch.autograd.grad(out.sum(), (x, alpha))
    assert (gx.dtype, ga.dtype) == (dtype, F32)
    assert torch.equal(gx, influence(x.detach().float(), .3, .5).to(dtype))


def test_numpy_and_numbers():
    assert isinstance(rho(3., 1.), np.float64) and rho(3, 2) == 4.5
    for dtype in (np.float16, np.float32, np.float64):
        out = rho(np.ones((2, 1), dtype), np.array([0., 1., 2.]), 2)
        assert isinstance(out, np.ndarray) and (out.dtype, out.shape) == (dtype, (2, 3))
    assert rho(np.arange(3), .5).dtype == np.float64
    x = np.linspace(-2, 2, 9)[::-2]
    x.setflags(write=False)
    np.testing.assert_array_equal(influence(x, .5), influence(torch.tensor(x.copy()), .5).numpy())


def test_tensors_lead():
    assert isinstance(rho(1., torch.tensor(.5)), torch.Tensor)
    assert rho(torch.ones(2), np.array([.5, 1.])).dtype == F32
    assert rho(torch.ones(2), torch.tensor(.5, dtype=F64)).dtype == F32


@pytest.mark.parametrize('shape', [(), (0,), (0, 3), (1,), (5, 0, 2)])
def test_small_and_empty(shape):
    x = torch.ones(shape, requires_grad=True)
    for alpha in (0., .5, torch.tensor(.5, requires_grad=True)):
        out = rho(x, alpha)
        assert out.shape == shape
        assert torch.autograd.grad(out.sum(), x)[0].shape == shape


def test_mean_of_nothing_is_nan_as_in_torch():
    nothing = torch.ones(0)
    assert GeneralLoss(1.)(nothing, nothing).isnan() and GeneralLoss(1., reduction='sum')(nothing, nothing) == 0


@pytest.mark.parametrize('alpha', [2., 1., .5, 0., -2., -9., -inf, 2.001])
def test_blocks_change_nothing(alpha):
    n = _block() + 17
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    parts = [x[i:i + 1000] for i in range(0, n, 1000)]
    assert torch.equal(rho(x, alpha, .7), torch.cat([rho(p, alpha, .7) for p in parts]))
    a, c = (torch.tensor(v, requires_grad=True) for v in (alpha, .7))
    x.requires_grad_()
    whole = torch.autograd.grad(rho(x, a, c).sum(), (x, a, c))
    each = [torch.autograd.grad(rho(p, a, c).sum(), (p, a, c)) for p in (q.detach().requires_grad_() for q in parts)]
    torch.testing.assert_close(whole[0], torch.cat([g[0] for g in each]), rtol=1e-6, atol=0)
    for i in (1, 2): torch.testing.assert_close(whole[i].double(), sum(g[i].double() for g in each), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize('param', [(300,), (3000, 1), (3000, 300), (1, 1), ()])
def test_blocks_with_parameters(param):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 300, generator=g, dtype=F64, requires_grad=True)
    a = (3*torch.rand(param, generator=g, dtype=F64) - 1).requires_grad_()
    c = (torch.rand(param, generator=g, dtype=F64) + .5).requires_grad_()
    w = torch.randn(3000, 300, generator=g, dtype=F64)
    blocked = torch.autograd.grad((w*rho(x, a, c)).sum(), (x, a, c))
    whole = torch.autograd.grad((w*rho(x, a, c)).sum(), (x, a, c), create_graph=True)    # differentiable: no blocks
    for one, other in zip(blocked, whole): torch.testing.assert_close(one, other.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize('layout', ['transposed', 'channels_last', 'strided', 'expanded'])
def test_memory_layouts(layout):
    x = torch.randn(2, 3, 40, 50, dtype=F64)
    y = {'transposed': x.transpose(1, 3), 'channels_last': x.contiguous(memory_format=torch.channels_last),
         'strided': x[:, :, ::2], 'expanded': x[:, :1].expand(2, 3, 40, 50)}[layout]
    loss = GeneralLoss(.5, .7)
    for t in (torch.zeros_like(y), torch.zeros(y.shape, dtype=F64)):
        a, b = (v.detach().clone(memory_format=f).requires_grad_() for v, f in ((y, torch.preserve_format), (y, torch.contiguous_format)))
        ga, gb = (torch.autograd.grad(loss(v, t), v)[0] for v in (a, b))
        torch.testing.assert_close(ga, gb)


# Autograd and transforms.

@pytest.mark.parametrize('fn', [rho, influence])
@pytest.mark.parametrize('alpha', [-3., -2., -1e-2, 0., .3, 1., 1.7, 2.4, 5.])
def test_gradcheck(fn, alpha):
    g = torch.Generator().manual_seed(1)
    x = (2*torch.randn(3, 4, generator=g, dtype=F64)).requires_grad_()
    a = torch.tensor(alpha, dtype=F64, requires_grad=True)
    c = (torch.rand(4, generator=g, dtype=F64) + .5).requires_grad_()
    assert gradcheck(fn, (x, a, c), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(fn, (x, a, c))
    assert gradcheck(lambda x: fn(x, alpha, .7), (x,), check_forward_ad=True) and gradgradcheck(lambda x: fn(x, alpha, .7), (x,))


@pytest.mark.parametrize('alpha', [-inf, -2., 0., .3, 1., 2.])
@pytest.mark.parametrize('reduction', ['mean', 'sum', 'none'])
def test_gradcheck_module(alpha, reduction):
    x, t = (torch.randn(3, 4, dtype=F64, requires_grad=True) for _ in range(2))
    loss = GeneralLoss(alpha, .7, reduction)
    assert gradcheck(loss, (x, t), check_forward_ad=True, check_batched_grad=True) and gradgradcheck(loss, (x, t))


@pytest.mark.parametrize('dims', [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (1, None, 0)])
def test_vmap(dims):
    n = 5
    args = [torch.rand(*((n, 3) if d == 0 else (3, n) if d == 1 else (3,)), dtype=F64) + .5 for d in dims]
    each = torch.stack([rho(*(a if d is None else a.select(d, i) for a, d in zip(args, dims))) for i in range(n)])
    torch.testing.assert_close(vmap(rho, dims)(*args), each)
    total = lambda *a: rho(*a).sum()
    for which in range(3):
        torch.testing.assert_close(vmap(grad(total, which), dims)(*args), torch.stack(
            [grad(total, which)(*(a if d is None else a.select(d, i) for a, d in zip(args, dims))) for i in range(n)]))


def test_grad_jvp_hessian():
    v = torch.tensor([.7, .3, 1.2], dtype=F64)
    f = lambda v: rho(v[0], v[1], v[2])
    g = jacrev(f)(v)
    torch.testing.assert_close(g, jacfwd(f)(v))
    torch.testing.assert_close(jvp(f, (v,), (torch.ones_like(v),))[1], g.sum())
    h = hessian(f)(v)
    torch.testing.assert_close(h, h.T, rtol=1e-10, atol=1e-12)
    step = 1e-5
    numeric = torch.stack([(jacrev(f)(v + step*e) - jacrev(f)(v - step*e))/(2*step) for e in torch.eye(3, dtype=F64)])
    torch.testing.assert_close(h, numeric, rtol=1e-6, atol=1e-8)
    assert hessian(lambda v: GeneralLoss(.5)(v, torch.zeros(3, dtype=F64)))(v).diagonal().gt(0).any()


def test_vmap_module():
    x, t = torch.randn(4, 3, dtype=F64), torch.randn(4, 3, dtype=F64)
    loss = GeneralLoss(.5, .7)
    torch.testing.assert_close(vmap(loss)(x, t), torch.stack([loss(a, b) for a, b in zip(x, t)]))
    torch.testing.assert_close(vmap(grad(loss), (0, None))(x, t[0]), torch.stack([grad(loss)(a, t[0]) for a in x]))


def saved(fn, inputs):
    "Bytes that autograd keeps beyond the inputs"
    own, kept = {t.untyped_storage().data_ptr() for t in inputs}, []
    def pack(t):
        kept.append(0 if t.untyped_storage().data_ptr() in own else t.nbytes)
        return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t): out = fn(*inputs)
    assert out.requires_grad and kept
    return sum(kept)


@pytest.mark.parametrize('alpha', [2., 1., .5, 0., -2., -inf])
@pytest.mark.parametrize('n', [1000, 2*_block()])
def test_nothing_is_saved_but_the_inputs(alpha, n):
    x, t = torch.randn(n, requires_grad=True), torch.randn(n)
    a, c = torch.tensor(alpha, requires_grad=True), torch.tensor(.7, requires_grad=True)
    assert saved(GeneralLoss(alpha, .7), (x, t)) == 0
    assert saved(rho, (x, a, c)) == 0
    assert saved(lambda x: rho(x, alpha, .7), (x,)) == 0


@pytest.mark.parametrize('alpha', [1., 0.])
def test_the_backward_pass_knows_what_overflowed(alpha):
    n = 4*_block() + 5                                          # two pieces; the square of the last residual is not representable
    x = torch.ones(n)
    x[-1] = 1e25
    x.requires_grad_()
    GeneralLoss(alpha, .7, 'sum')(x, torch.zeros(n)).backward()
    exact = [float(_exact_influence(v, alpha, .7)) for v in (1., 1e25)]
    torch.testing.assert_close(x.grad[[0, -1]].double(), torch.tensor(exact, dtype=F64), rtol=1e-6, atol=0)


# Compilers and tracers.

@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize('alpha', [2., 1., 0., -2., -inf, inf, .5, 1.995])
def test_compile_module(alpha):
    loss = GeneralLoss(alpha, .7)
    x, t = torch.linspace(-5, 5, 101, requires_grad=True), torch.zeros(101)
    compiled = torch.compile(loss, fullgraph=True, backend='aot_eager')
    (one, g1), (two, g2) = ((out, torch.autograd.grad(out, x)[0]) for out in (compiled(x, t), loss(x, t)))
    torch.testing.assert_close(one, two)
    torch.testing.assert_close(g1, g2)


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
@pytest.mark.parametrize('dynamic', [None, True])
def test_compiled_sums_by_rows(reduction, dynamic):
    loss = GeneralLoss(1., .7, reduction)
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend='aot_eager')
    for shape in ((3, 5), (2048,), (4, 1000), (7, 11, 13), (0, 64)):
        x, t = torch.linspace(-5, 5, math.prod(shape)).reshape(shape).requires_grad_(), torch.zeros(shape)
        one, two = compiled(x, t), loss(x, t)
        torch.testing.assert_close(one, two, equal_nan=True)
        if x.numel(): torch.testing.assert_close(*(torch.autograd.grad(out, x)[0] for out in (one, two)))


def test_compiled_accuracy():
    "The same bars as uncompiled: inductor rewrites elementary functions, not always for the better"
    f = torch.compile(rho, fullgraph=True)
    assert _worst(f, _exact_rho, HARD + RANDOM, XS + EXTREME, F32) < 2e-6
    assert _worst(derivative(0, f), _exact_influence, HARD + RANDOM, XS + EXTREME, F32) < 2e-6
    assert _worst(derivative(2, f), exact_scale, HARD + RANDOM, XS, F32) < 2e-6
    assert _worst(derivative(1, f), _exact_slope, [a for a in HARD + RANDOM if abs(a - 2) > 1e-6], XS, F32) < 1e-4


@pytest.mark.parametrize('alpha', [2., 1., 0., -2., -inf, inf, .5, 1.995])
def test_compiled_accuracy_of_one_number(alpha):
    f = torch.compile(lambda x: rho(x, alpha), fullgraph=True)
    assert _worst(lambda x, _: f(x), _exact_rho, [alpha], XS + EXTREME, F32, static=True) < 2e-6


def test_compile_influence_and_numbers():
    x = torch.randn(50, requires_grad=True)
    f = torch.compile(lambda x: influence(x, .5, 2.), fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(f(x), influence(x, .5, 2.))
    torch.testing.assert_close(torch.autograd.grad(f(x).sum(), x)[0], torch.autograd.grad(influence(x, .5, 2.).sum(), x)[0])


def test_export():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.loss, self.alpha = GeneralLoss(.5, .7), torch.nn.Parameter(torch.tensor(.3))
        def forward(self, x, t): return self.loss(x, t) + rho(x, self.alpha).mean()
    model, args = Model(), (torch.randn(5), torch.randn(5))
    torch.testing.assert_close(torch.export.export(model, args).module()(*args), model(*args))


def test_meta_and_fake_tensors():
    "A value that is read, or a stray CPU tensor, would fail here"
    from torch._subclasses.fake_tensor import FakeTensorMode
    def step(device):
        x, a, c = (torch.ones(s, device=device, requires_grad=True) for s in ((5, 3), (3,), ()))
        rho(x, a, c).sum().backward()
        for alpha in (1., .5, -inf): GeneralLoss(alpha, .5)(x, torch.zeros_like(x)).backward()
        (influence(x, a, c) + influence(x, .3)).sum().backward()
        assert x.grad.shape == (5, 3) and a.grad.shape == (3,) and c.grad.shape == () and x.grad.device.type == device
    step('meta')
    with FakeTensorMode(): step('cpu')


def test_autocast():
    x = torch.randn(5, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        loss = GeneralLoss(.5, .3)(x, torch.zeros(5))
        assert loss.dtype == F32 and rho(x, .5).dtype == F32
    loss.backward()
    assert x.grad.dtype == torch.bfloat16


# The module.

def test_reductions_and_weights():
    x, t, w = torch.randn(4, 3), torch.randn(4, 3), torch.rand(4, 3)
    each = rho(x - t, .5, 2.)
    loss = lambda reduction: GeneralLoss(.5, 2., reduction)
    torch.testing.assert_close(loss('none')(x, t), each)
    torch.testing.assert_close(loss('sum')(x, t), each.sum())
    torch.testing.assert_close(loss('mean')(x, t), each.mean())
    torch.testing.assert_close(loss('none')(x, t, w), each*w)
    torch.testing.assert_close(loss('sum')(x, t, w), (each*w).sum())
    torch.testing.assert_close(loss('mean')(x, t, w), (each*w).sum()/w.sum())
    torch.testing.assert_close(loss('mean')(x, t, w[:, :1]), (each*w[:, :1]).sum()/(3*w[:, :1].sum()))
    torch.testing.assert_close(loss('mean')(x, t[0]), rho(x - t[0], .5, 2.).mean())


def test_a_mask_hides_nan():
    x, t = torch.randn(6, requires_grad=True), torch.randn(6)
    t[2] = math.nan
    mask = ~t.isnan()
    loss = GeneralLoss(.5)(x, t, mask)
    torch.testing.assert_close(loss, rho((x - t)[mask], .5).mean())
    g, = torch.autograd.grad(loss, x)
    assert g.isfinite().all() and g[2] == 0


def test_nan_is_not_lost():
    x = torch.tensor([1., math.nan, 2.])
    for alpha in HARD + [torch.tensor(.5)]:
        assert rho(x, alpha).isnan().tolist() == [False, True, False] == influence(x, alpha).isnan().tolist()
    assert GeneralLoss(1.)(x, torch.zeros(3)).isnan()


@pytest.mark.parametrize('alpha,scale', [(.5, 2.), (torch.tensor([.5, 1.]), 2.), (.5, torch.tensor([1., 2.])), (torch.nn.Parameter(torch.tensor(.5)), 1.)])
def test_module_travels(alpha, scale):
    loss, x, t = GeneralLoss(alpha, scale), torch.randn(3, 2), torch.randn(3, 2)
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(twin(x, t), loss(x, t)) and repr(twin) == repr(loss)
    blank = copy.deepcopy(loss)
    for v in blank.state_dict().values(): v.zero_()
    blank.load_state_dict(loss.state_dict())
    assert torch.equal(blank(x, t), loss(x, t))
    assert loss.double()(x.double(), t.double()).dtype == F64


def test_public_names():
    assert {'rho', 'influence', 'GeneralLoss'} <= set(dir(robust_general))
    assert robust_general.rho is rho


# Bad input.

@pytest.mark.parametrize('call,error,says', [
    (lambda: rho(1., 1., 0.), ValueError, 'scale must be positive, got 0.0'),
    (lambda: rho(1., 1., -2), ValueError, 'got -2'),
    (lambda: rho(torch.ones(3), 1., torch.tensor([1., 0., 1.])), ValueError, 'scale must be positive, got 0.0'),
    (lambda: rho(torch.ones(3), 1., torch.tensor(math.nan)), ValueError, 'got nan'),
    (lambda: rho(np.ones(3), 1., np.array([1., 2., -3.])), ValueError, 'got -3.0'),
    (lambda: rho(torch.ones(3), math.nan), ValueError, 'alpha must not be nan'),
    (lambda: influence(torch.ones(3), torch.tensor([1., math.nan, 1.])), ValueError, 'alpha must not be nan'),
    (lambda: rho(torch.ones(3, dtype=torch.int32), 1.), TypeError, 'torch.int32'),
    (lambda: rho(torch.ones(3), torch.ones(3, dtype=torch.int64)), TypeError, 'alpha .* torch.int64'),
    (lambda: rho(torch.ones(3, dtype=torch.complex64), 1.), TypeError, 'complex64'),
    (lambda: rho(np.ones(3, complex), 1.), TypeError, 'complex128'),
    (lambda: rho('3', 1.), TypeError, 'x must be'),
    (lambda: rho(None, 1.), TypeError, 'x must be'),
    (lambda: rho(torch.ones(3), 'L2'), TypeError, 'alpha must be a number.*str'),
    (lambda: rho(torch.ones(3), torch.ones(4)), ValueError, r'x \(3,\), alpha \(4,\)'),
    (lambda: rho(np.ones(3), np.ones(4)), ValueError, r'x \(3,\), alpha \(4,\)'),
    (lambda: rho(torch.ones(3), torch.ones(3, device='meta')), ValueError, 'alpha is on meta'),
    (lambda: GeneralLoss(math.nan), ValueError, 'alpha must not be nan'),
    (lambda: GeneralLoss(1., -1.), ValueError, 'scale must be positive, got -1.0'),
    (lambda: GeneralLoss('1'), TypeError, 'alpha must be a number'),
    (lambda: GeneralLoss(1., reduction='avg'), ValueError, "got 'avg'"),
    (lambda: GeneralLoss(1.)(torch.ones(3), torch.ones(4)), ValueError, r'input \(3,\), target \(4,\)'),
    (lambda: GeneralLoss(1.)(torch.ones(3), [1., 1., 1.]), TypeError, 'target must be a tensor, got list'),
    (lambda: GeneralLoss(1.)(torch.ones(3, dtype=torch.int64), torch.ones(3)), TypeError, 'input .* torch.int64'),
    (lambda: GeneralLoss(1.)(torch.ones(3), torch.ones(3), torch.ones(2)), ValueError, r'weight of shape \(2,\)'),
])
def test_bad_input_is_named(call, error, says):
    with pytest.raises(error, match=says): call()


def test_bad_values_on_an_accelerator_give_nan():
    "Where values are not read (here: inside a compiled function) a bad scale or alpha must not give a plausible number"
    f = torch.compile(rho, fullgraph=True, backend='aot_eager')
    x = torch.ones(2)
    assert f(x, torch.tensor(.5), torch.tensor([-1., 0.])).isnan().all()
    assert f(x, torch.tensor(math.nan), torch.tensor(1.)).isnan().all()
