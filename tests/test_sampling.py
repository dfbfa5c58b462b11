"""Contracts of the samplers; the notebook holds the mathematics."""
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from robust_general import sampling
from robust_general.sampling import _BITS, _ROWS, _UNIT, _evaluate, _quintics, _random_integers, _standard_sample, acceptance_rate, rejection_sample
from robust_general.tails import _drift, _isf

INF = math.inf
SPECIAL = [0.0, 1e-9, 0.5, 1.0, 2 - 1e-9, 2.0, 2 + 1e-9, 3.0, 1e6, INF]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

pytestmark = pytest.mark.usefixtures("one_thread")


def double(values, **kw) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, **kw)


def inverted(alpha, shape, generator) -> torch.Tensor:
    """What a sampler without a table would return."""
    v = _random_integers(shape, alpha, generator).double() + 0.5
    return torch.copysign(_isf(v.abs() * _UNIT, alpha), v)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (_ROWS + 1,), (3, _ROWS)])
def test_shape_and_dtype(dtype, shape):
    x = _standard_sample(torch.tensor(1.5, dtype=dtype), shape)
    assert (x.shape, x.dtype) == (shape, dtype) and x.isfinite().all()


def test_alpha_broadcasts():
    alpha = double([[0.5], [1.0], [2.0]])
    for n in (4, _ROWS + 1):
        x = _standard_sample(alpha, (2, 3, n), seeded())
        assert x.shape == (2, 3, n)
        torch.testing.assert_close(x, inverted(alpha, (2, 3, n), seeded()), rtol=1e-9, atol=0)


@pytest.mark.parametrize("alpha", SPECIAL)
def test_table_and_inversion_agree(alpha):
    a, n = double(alpha), _ROWS + 100
    torch.testing.assert_close(_standard_sample(a, (n,), seeded()), inverted(a, (n,), seeded()), rtol=2e-10, atol=0)
    single = _standard_sample(a.float(), (n,), seeded())
    torch.testing.assert_close(single.double(), inverted(a.float(), (n,), seeded()).double(), rtol=2e-6, atol=0)


def test_large_samples_are_looked_up_in_blocks_alike(monkeypatch):
    alpha, shape = double([1.0, 3.0]), (2**15 + 7, 2)
    blocks = _standard_sample(alpha, shape, seeded())
    monkeypatch.setattr(sampling, "_plain", lambda t: False)
    assert torch.equal(blocks, _standard_sample(alpha, shape, seeded()))


@pytest.mark.parametrize("n", [10, 3000])
def test_expanded_alpha_counts_once(n, monkeypatch):
    seen, look_up = [], sampling._look_up
    monkeypatch.setattr(sampling, "_look_up", lambda k, alpha: seen.append(alpha.shape) or look_up(k, alpha))
    alpha = double([1.0, 2.0], requires_grad=True)
    x = _standard_sample(alpha.expand(n, 2), (n, 2), seeded())
    assert torch.equal(x, _standard_sample(alpha, (n, 2), seeded())) and seen == ([(1, 2), (2,)] if n > _ROWS else [])
    expanded, = torch.autograd.grad(x.sum(), alpha)
    plain, = torch.autograd.grad(_standard_sample(alpha, (n, 2), seeded()).sum(), alpha)
    torch.testing.assert_close(expanded, plain, rtol=1e-12, atol=0)


@pytest.mark.parametrize("n", [10, 3000])
def test_a_generator_decides_everything(n):
    alpha = torch.tensor([0.5, 2.0])
    for draw in (lambda g: _standard_sample(alpha, (n, 2), g), lambda g: rejection_sample(alpha, (n,), g)):
        first = draw(seeded(1))
        assert torch.equal(first, draw(seeded(1))) and not torch.equal(first, draw(seeded(2)))
        torch.manual_seed(5)
        second = draw(None)
        torch.manual_seed(5)
        assert torch.equal(second, draw(None))
        state = torch.get_rng_state()
        draw(seeded(1))
        assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", SPECIAL)
def test_the_rarest_draws_are_numbers(dtype, alpha):
    k = torch.tensor([-(2**_BITS), -(2**_BITS) + 1, -(2**40), -1, 0, 1, 2**40, 2**_BITS - 1])
    x = _evaluate(k, None, _quintics(torch.tensor(alpha, dtype=dtype)).to(dtype))
    assert x.isfinite().all() and torch.equal(x[3], -x[4])
    assert (x.sign() == double([0, 0, -1, -1, 1, 1, 1, 0])).all()          # the first and last round to V, the median
    want = _isf(torch.tensor([2**40 + 0.5, 1.5, 0.5], dtype=torch.float64) * _UNIT, torch.tensor(alpha, dtype=dtype))
    torch.testing.assert_close(x[[6, 5, 4]].double(), want, rtol=1e-10 if dtype == torch.float64 else 1e-5, atol=0)


@pytest.mark.parametrize("n", [40, _ROWS + 40])
@pytest.mark.parametrize("alpha", SPECIAL)
def test_gradient_is_that_of_the_quantile(n, alpha):
    a = double([alpha], requires_grad=True)
    x = _standard_sample(a, (n, 1), seeded())
    weight = torch.exp(-x.detach().abs())                                  # one far draw must not hide the others
    got, = torch.autograd.grad((weight * x).sum(), a)
    want = -(weight * _drift(x.detach(), a.detach())).sum()
    torch.testing.assert_close(got[0], want, rtol=1e-6, atol=1e-10)       # at alpha=2 the derivative is not smooth at the median


@pytest.mark.parametrize("n", [4, 3000])
def test_stand_ins(n):
    x = _standard_sample(torch.empty(3, device="meta"), (n, 3))
    assert (x.device.type, x.shape, x.dtype) == ("meta", (n, 3), torch.float32)
    with FakeTensorMode():
        x = _standard_sample(torch.ones(3, dtype=torch.float64), (n, 3))
    assert (x.shape, x.dtype) == ((n, 3), torch.float64)


def test_compiles_without_graph_break():
    draw, alpha = torch.compile(_standard_sample, fullgraph=True, backend="eager"), double([0.5, 2.0])
    for n in (4, 3000, 3100, 3200):                                        # from the second on, the size is a variable
        torch.manual_seed(n)
        x = draw(alpha, (n, 2))
        torch.manual_seed(n)
        torch.testing.assert_close(x, _standard_sample(alpha, (n, 2)), rtol=1e-13, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradient_compiles_without_graph_break(dynamic):
    draw = torch.compile(_standard_sample, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    alpha = double([0.5, 2.0], requires_grad=True)
    torch.manual_seed(3)
    x = draw(alpha, (3000, 2))
    torch.manual_seed(3)
    want = _standard_sample(alpha, (3000, 2))
    torch.testing.assert_close(torch.autograd.grad(x.sum(), alpha), torch.autograd.grad(want.sum(), alpha), rtol=1e-11, atol=0)


@pytest.mark.parametrize("bad", [-1.0, -INF, math.nan])
def test_bad_alpha_is_named(bad):
    for draw in (lambda a: _standard_sample(a, (5, 2)), lambda a: rejection_sample(a, (5,)), acceptance_rate):
        with pytest.raises(ValueError, match=f"the density does not exist for alpha < 0, got {bad}"):
            draw(torch.tensor([1.0, bad]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rejection_sampler_shapes(dtype):
    alpha = torch.tensor([[0.0], [2.0], [INF]], dtype=dtype)
    x = rejection_sample(alpha, (7, 2))
    assert (x.shape, x.dtype) == ((7, 2, 3, 1), dtype) and x.isfinite().all()
    assert rejection_sample(alpha[0, 0]).shape == () and rejection_sample(alpha, (0,)).shape == (0, 3, 1)
    assert not rejection_sample(alpha.requires_grad_()).requires_grad
