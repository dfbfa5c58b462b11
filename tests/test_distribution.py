"""Contracts of the distribution, its SciPy twin and its loss; the notebooks hold the mathematics."""
import copy
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.distributions import Cauchy, Independent, MixtureSameFamily, Categorical, Normal, biject_to, constraints, kl_divergence

import robust_general.distribution as module
from robust_general.distribution import General, GeneralNLLLoss
from robust_general.loss import GeneralLoss, rho
from robust_general.moments import _entropy, _in_pieces, _kl, _moment

INF = math.inf
SHAPES = [0.0, 1e-3, 0.5, 1.0, 2 - 1e-9, 2.0, 2 + 1e-9, 3.0, 32.0, INF]
FULL = [torch.float32, torch.float64]


def f64(*values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


@pytest.fixture(autouse=True)
def validated():
    """The first torch.compile of a process turns torch's validation of arguments off."""
    torch.distributions.Distribution.set_default_validate_args(True)


# One of torch's own.


@pytest.mark.parametrize("dtype", FULL)
@pytest.mark.parametrize("alpha", SHAPES)
def test_everything_has_the_dtype_and_the_batch_shape(dtype, alpha):
    d = General(torch.zeros(4, 1, dtype=dtype), torch.ones(3, dtype=dtype), torch.tensor(alpha, dtype=dtype))
    x = d.sample((2,))
    assert (d.batch_shape, d.event_shape) == ((4, 3), ()) and (x.shape, x.dtype) == ((2, 4, 3), dtype)
    for fn in (d.log_prob, d.cdf, d.sf, d.log_sf):
        out = fn(x)
        assert (out.shape, out.dtype) == ((2, 4, 3), dtype) and not out.isnan().any()
    back = d.icdf(torch.full((2, 4, 3), 0.3, dtype=dtype))
    assert (back.shape, back.dtype) == ((2, 4, 3), dtype)
    for out in (d.entropy(), d.mean, d.mode, d.variance, d.stddev, kl_divergence(d, d)):
        assert (out.shape, out.dtype) == ((4, 3), dtype)


def test_numbers_make_a_scalar_of_the_default_dtype():
    d = General(0, 1, 2)
    assert d.batch_shape == () and d.sample().shape == () and d.log_prob(torch.tensor(0.5)).dtype == torch.float32
    assert repr(d) == "General(loc: 0.0, scale: 1.0, alpha: 2.0)"
    assert d.rsample((5, 2)).shape == (5, 2)


def test_expand_is_a_view():
    d = General(torch.zeros(3), torch.ones(3), torch.tensor([0.5, 1.0, 2.0])).expand((7, 3))
    assert d.batch_shape == (7, 3) and d.alpha.stride() == (0, 1)
    assert d.sample((2,)).shape == (2, 7, 3)
    assert d.entropy().shape == d.variance.shape == (7, 3)
    assert Independent(d, 2).log_prob(torch.zeros(7, 3)).shape == ()


def test_constraints():
    assert General.arg_constraints["alpha"].check(f64(0.0, 3.0, INF)).all()
    assert not General.arg_constraints["alpha"].check(f64(-1e-9, math.nan)).any()
    assert (biject_to(General.arg_constraints["alpha"])(torch.randn(9)) >= 0).all()  # how libraries find parameters
    assert General.support is constraints.real


@pytest.mark.parametrize("alpha", [-1e-9, -INF, torch.tensor([1.0, -2.0])])
def test_negative_alpha(alpha):
    for make in (lambda: General(0.0, 1.0, alpha), lambda: GeneralNLLLoss(alpha), lambda: General(0.0, 1.0, alpha, validate_args=True)):
        with pytest.raises(ValueError, match="the density does not exist for alpha < 0"):
            make()


@pytest.mark.parametrize("args", [(0.0, -1.0, 1.0), (0.0, 0.0, 1.0), (math.nan, 1.0, 1.0), (0.0, 1.0, math.nan)])
def test_other_bad_arguments(args):
    with pytest.raises(ValueError):
        General(*args)


def test_validation_of_values_and_its_absence():
    with pytest.raises(ValueError, match="support"):
        General(0.0, 1.0, 1.0).log_prob(torch.tensor(math.nan))
    assert General(0.0, 1.0, 1.0, validate_args=False).log_prob(torch.tensor(math.nan)).isnan()
    with pytest.raises(ValueError, match="does not exist"):  # log Z still knows
        General(0.0, 1.0, -1.0, validate_args=False).log_prob(torch.tensor(0.0))


def test_mean_and_variance_as_torch_has_them():
    ours, theirs = General(torch.zeros(2), torch.ones(2), 0.0), Cauchy(torch.zeros(2), torch.ones(2))
    for name in ("mean", "variance", "mode", "stddev"):
        assert torch.equal(getattr(ours, name).nan_to_num(7.0), getattr(theirs, name).nan_to_num(7.0)), name
    d = General(f64(3.0), f64(2.0), f64(1e-4))
    assert d.mean == 3 and d.variance == INF  # finite, but not as a number


def test_pickle_and_deepcopy():
    d = General(torch.zeros(3), torch.ones(1), torch.tensor([0.5, 1.0, INF]))
    for other in (pickle.loads(pickle.dumps(d)), copy.deepcopy(d)):
        assert repr(other) == repr(d) and torch.equal(other.log_prob(torch.ones(3)), d.log_prob(torch.ones(3)))


def test_log_z_once_per_parameter(monkeypatch):
    sizes = []
    honest = module.log_partition
    monkeypatch.setattr(module, "log_partition", lambda a: sizes.append(torch.as_tensor(a).numel()) or honest(a))
    d = General(torch.zeros(1000, 5, requires_grad=True), torch.ones(5), torch.tensor([0.5, 1.0, 2.0, 3.0, INF]))
    d.log_prob(torch.zeros(1000, 5)).sum().backward()
    d.expand((20, 1000, 5)).log_prob(torch.zeros(20, 1000, 5))
    assert sizes == [5, 5]
    sizes.clear()
    General(torch.zeros(1000), 1.0, 1.0).log_prob(torch.zeros(1000))
    Independent(General(torch.zeros(1000), torch.ones(1000), nn.Parameter(torch.ones(1))), 1).log_prob(torch.zeros(8, 1000))
    MixtureSameFamily(Categorical(torch.ones(3)), General(torch.zeros(3), 1.0, torch.ones(3))).log_prob(torch.zeros(1000))
    GeneralNLLLoss(torch.tensor([1.0, 2.0, 3.0]))(torch.zeros(1000, 3), torch.zeros(1000, 3))
    module._scipy_general().logpdf(np.zeros(1000), 0.5)
    assert sizes == [1, 1, 3, 3, 1]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 1.7, 2.6, 5.0])
def test_log_prob_is_differentiable_in_everything(alpha):
    args = [f64(*v, grad=True) for v in ((0.7, -3.0), (0.1, 0.3), (0.8, 1.5), (alpha + 0.05, alpha + 0.2))]
    assert gradcheck(lambda x, *p: General(*p).log_prob(x), args)


@pytest.mark.parametrize("alpha", SHAPES)
@pytest.mark.parametrize("dtype", FULL)
def test_gradients_are_finite(alpha, dtype):
    p = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (0.1, 0.8, alpha)]
    x = torch.tensor([-5.0, 0.1, 2.0], dtype=dtype, requires_grad=True)
    torch.manual_seed(0)
    d = General(*p)
    draws = d.rsample((50,))
    for out in (d.log_prob(x).sum(), d.entropy(), d.cdf(x).sum(), draws[draws.abs() < 100].sum()):
        for g in torch.autograd.grad(out, [x, *p], allow_unused=True, retain_graph=True):
            assert g is None or g.isfinite().all(), (g, out)
    if alpha > 1e-2:
        assert all(g.isfinite() for g in torch.autograd.grad(d.variance, p[1:]))


def test_rsample_gradient_is_that_of_the_quantile():
    alpha = torch.linspace(0.05, 1.9, 400, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(1)
    d = General(f64(0.0), f64(1.0), alpha)
    x = d.rsample()
    (slope,) = torch.autograd.grad(x.sum(), alpha)
    with torch.no_grad():
        tail, h = d.sf(x.abs()), 1e-5
        finite = -(General(0.0, 1.0, alpha + h).icdf(tail) - General(0.0, 1.0, alpha - h).icdf(tail)) / (2 * h) * x.sign()
    assert ((slope - finite).abs() <= 1e-5 * (1 + finite.abs())).all()


def test_rsample_obeys_the_seed():
    d = General(torch.zeros(3), 1.0, torch.tensor([0.0, 1.0, 2.0]))
    torch.manual_seed(5)
    a = d.sample((100,))
    torch.manual_seed(5)
    assert torch.equal(a, d.sample((100,))) and not torch.equal(a, d.sample((100,)))


def test_log_prob_compiles_without_graph_break():
    x, alpha = torch.linspace(-3, 3, 5), torch.tensor([0.0, 1.0, 2.0, 3.3, INF])
    d = General(torch.zeros(5), torch.ones(5), alpha)
    f = torch.compile(lambda x: d.log_prob(x), fullgraph=True, backend="eager")
    torch.testing.assert_close(f(x), d.log_prob(x))

    def build(x, *p):
        return General(*p, validate_args=False).log_prob(x)

    p = [torch.zeros(5, requires_grad=True), torch.ones(5, requires_grad=True), alpha.requires_grad_()]
    got = torch.autograd.grad(torch.compile(build, fullgraph=True, backend="aot_eager")(x, *p).sum(), p)
    for a, b in zip(got, torch.autograd.grad(build(x, *p).sum(), p)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_half_precision_and_the_meta_device():
    for dtype in (torch.float16, torch.bfloat16):
        d = General(torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype), torch.ones(3, dtype=dtype))
        assert d.log_prob(torch.ones(3, dtype=dtype)).dtype == dtype
    d = General(torch.zeros(3, device="meta"), torch.ones(3, device="meta"), torch.ones(3, device="meta"), validate_args=False)
    assert d.log_prob(torch.ones(2, 3, device="meta")).shape == (2, 3) and d.entropy().device.type == "meta"


# Expectations and divergences.


def test_expectations_in_pieces_and_whole():
    alpha = torch.linspace(0.1, 4, 2500, dtype=torch.float64, requires_grad=True)
    for fn in (_entropy, _moment):
        whole = fn(alpha)
        (g,) = torch.autograd.grad(whole.sum(), alpha)
        few = alpha[1000:1003].detach().requires_grad_()
        (h,) = torch.autograd.grad(fn(few).sum(), few)
        torch.testing.assert_close(whole[1000:1003], fn(few), rtol=1e-14, atol=0)
        torch.testing.assert_close(g[1000:1003], h, rtol=1e-12, atol=0)
    assert _in_pieces(lambda a: a, torch.empty(0)).shape == (0,)


@pytest.mark.parametrize("fn", [_entropy, _moment])
def test_expectations_are_twice_differentiable(fn):
    alpha = f64(0.4, 1.3, 2.7, 6.0, grad=True)
    assert gradcheck(fn, alpha, eps=1e-5, rtol=1e-6) and torch.autograd.gradgradcheck(fn, alpha, eps=1e-5, rtol=1e-4)


def test_divergence_broadcasts_and_dispatches():
    p = General(torch.zeros(4, 1, dtype=torch.float64), f64(1.0), f64(0.5))
    q = General(f64(0.0, 1.0, 2.0), f64(1.0), f64(1.0))
    assert kl_divergence(p, q).shape == (4, 3)
    for other in (Normal(f64(1.0), f64(2.0)), Cauchy(f64(1.0), f64(2.0))):
        for pair in ((p, other), (other, q)):
            assert kl_divergence(*pair).shape == torch.broadcast_shapes(pair[0].batch_shape, pair[1].batch_shape)
    assert kl_divergence(Independent(p, 2), Independent(p, 2)).abs() < 1e-13
    assert kl_divergence(Cauchy(f64(0.0), f64(1.0)), q).isinf().all() and kl_divergence(q, Cauchy(f64(0.0), f64(1.0))).isfinite().all()


@pytest.mark.parametrize("a", SHAPES)
@pytest.mark.parametrize("b", SHAPES)
def test_divergence_is_nonnegative_or_infinite_where_it_should_be(a, b):
    kl = _kl(*f64(0.3, 1.7, a, -0.2, 1.1, b))
    infinite = (a == 0 and b >= 1) or (b == INF and a <= 2)
    overflows = a == 1e-3 and b > 2.6
    assert kl == INF if infinite or overflows else 0 < kl < INF


# The loss.


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", FULL)
def test_nll_is_the_negative_log_prob(reduction, dtype):
    torch.manual_seed(0)
    x, y = torch.randn(50, 3, dtype=dtype), torch.randn(50, 3, dtype=dtype)
    weight = torch.rand(50, 1, dtype=dtype)
    alpha, scale = torch.tensor([0.5, 1.0, 2.0], dtype=dtype), torch.tensor([1.0, 2.0, 0.1], dtype=dtype)
    for a, c in ((alpha, scale), (1.5, 0.3), (alpha, 0.3), (1.5, scale)):
        nll, loss = -General(0.0, c, torch.as_tensor(a, dtype=dtype)).log_prob(x - y), GeneralNLLLoss(a, c, reduction)
        weighted = (nll * weight).sum() / weight.expand(50, 3).sum() if reduction == "mean" else nll * weight
        for got, want in ((loss(x, y), nll), (loss(x, y, weight), weighted)):
            if reduction != "none" and want.dim():
                want = getattr(want, reduction)()
            assert got.dtype == dtype
            torch.testing.assert_close(got, want, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_nll_broadcasts_counts_every_element():
    x, y = torch.randn(7, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    alpha = torch.rand(3, 1, 1, dtype=torch.float64)
    total = GeneralNLLLoss(alpha, 2.0, "sum")(x, y)
    torch.testing.assert_close(total, GeneralNLLLoss(alpha, 2.0, "none")(x, y).sum())
    torch.testing.assert_close(total, 105 * GeneralNLLLoss(alpha, 2.0)(x, y))


def test_nll_gradient_in_the_prediction_is_that_of_the_loss():
    x = torch.randn(100, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(100, dtype=torch.float64)
    grads = [torch.autograd.grad(loss(x, y), x)[0] for loss in (GeneralLoss(0.7, 2.0), GeneralNLLLoss(0.7, 2.0), GeneralNLLLoss(0.7, 2.0, offset=True))]
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])


def test_nll_mask_hides_nan():
    x, mask = torch.tensor([1.0, math.nan]), torch.tensor([True, False])
    loss = GeneralNLLLoss(1.0, 0.5)
    assert loss(x, torch.zeros(2), mask) == loss(x[:1], torch.zeros(1))


def test_nll_parameters_buffers_and_state():
    loss = GeneralNLLLoss(nn.Parameter(torch.ones(3)), torch.ones(3), "sum")
    assert [n for n, _ in loss.named_parameters()] == ["alpha"] and [n for n, _ in loss.named_buffers()] == ["scale"]
    for other in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss)):
        assert torch.equal(other(torch.ones(2, 3), torch.zeros(3)), loss(torch.ones(2, 3), torch.zeros(3)))
    assert repr(loss) == "GeneralNLLLoss(alpha=(3,), scale=(3,), reduction=sum)"
    assert repr(GeneralNLLLoss(1.0, offset=True)) == "GeneralNLLLoss(alpha=1.0, scale=1.0, reduction=mean, offset=True)"
    with pytest.raises(ValueError, match="reduction"):
        GeneralNLLLoss(1.0, reduction="max")
    with pytest.raises(TypeError, match="input must be a tensor"):
        GeneralNLLLoss(1.0)(1.0, torch.zeros(1))


def test_nll_learns_alpha_and_scale_where_the_loss_cannot():
    torch.manual_seed(0)
    x = General(f64(0.0), f64(3.0), f64(1.0)).sample((4000,))
    alpha, scale = nn.Parameter(f64(2.5)), nn.Parameter(f64(1.0))
    loss = GeneralNLLLoss(alpha, scale)
    optimizer = torch.optim.LBFGS(loss.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(x, torch.zeros_like(x))
        value.backward()
        return value

    optimizer.step(closure)
    assert abs(alpha.item() - 1) < 0.15 and abs(scale.item() - 3) < 0.3
    assert rho(x, 0.0, 1e6).mean() < 1e-4 < rho(x, 1.0, 3.0).mean()  # what the loss alone would prefer


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_nll_compiles_without_graph_break(reduction):
    x, y = torch.randn(6, 3), torch.randn(6, 3)
    for loss in (GeneralNLLLoss(1.0, 0.5, reduction), GeneralNLLLoss(nn.Parameter(torch.rand(3)), torch.ones(3), reduction, offset=True)):
        torch.testing.assert_close(torch.compile(loss, fullgraph=True, backend="eager")(x, y), loss(x, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nll_keeps_half_precision(dtype):
    x = torch.ones(4, dtype=dtype)
    for reduction in ("none", "mean", "sum"):
        assert GeneralNLLLoss(1.0, 0.5, reduction)(x, x).dtype == dtype
        assert GeneralNLLLoss(1.0, 0.5, reduction)(x, x, torch.ones(4)).dtype == dtype


# SciPy.


@pytest.fixture(scope="module")
def general():
    return module.general


def test_scipy_stats_is_not_imported_until_asked_for():
    code = "import sys, robust_general.distribution as d; assert 'scipy.stats' not in sys.modules; d.general; assert 'scipy.stats' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert module.general is module.general
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing


def test_scipy_pickles(general):
    for o in (general, general(0.7, loc=1.0)):
        other = pickle.loads(pickle.dumps(o))
        args = () if o is not general else (0.7,)
        assert other.cdf(0.3, *args) == o.cdf(0.3, *args)


def test_scipy_broadcasts_and_checks(general):
    out = general.pdf(np.zeros((4, 1)), np.array([0.0, 1.0, INF]), scale=2.0)
    assert out.shape == (4, 3) and np.isfinite(out).all()
    assert np.isnan(general.cdf(0.0, [-1.0, math.nan])).all() and np.isnan(general.ppf([-0.1, 1.1], 1.0)).all()
    assert general.ppf(0.0, 1.0) == -INF and general.ppf(1.0, 1.0) == INF
    with pytest.raises(ValueError):
        general.rvs(-1.0)
    a = np.array([0.5, 1.0, 2.0])
    assert general.var(a).shape == general.entropy(a).shape == (3,)
    assert general.rvs(a, size=(5, 3), random_state=0).shape == (5, 3)
    assert general.moment(3, 1.0) == 0 and general.moment(6, 2.0) == pytest.approx(15)


def test_scipy_agrees_with_torch(general):
    x = np.linspace(-8, 8, 41)
    for a in SHAPES:
        d = General(f64(0.5), f64(2.0), f64(a))
        for theirs, ours in (("logpdf", "log_prob"), ("cdf", "cdf"), ("sf", "sf"), ("logsf", "log_sf")):
            assert np.array_equal(getattr(general(a, 0.0, 1.0), theirs)(x), getattr(General(f64(0.0), f64(1.0), f64(a)), ours)(torch.tensor(x)).numpy())
        np.testing.assert_allclose(general(a, 0.5, 2.0).entropy(), d.entropy().item(), rtol=1e-14)
        np.testing.assert_allclose(general(a, 0.5, 2.0).var(), d.variance.item(), rtol=1e-14)


def test_scipy_draws_obey_their_generator(general):
    a, b = (general.rvs(0.5, size=10, random_state=np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(a, b)
