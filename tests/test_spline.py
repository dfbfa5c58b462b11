"""Contracts of log_partition; the notebook holds the mathematics."""
import math

import numpy as np
import pytest
import torch

from robust_general.spline import hermite_log_partition, log_partition

SHAPES = [0.0, 1e-3, 0.5, 1.0, 2 - 1e-6, 2.0, 2 + 1e-6, 3.0, 1e6, math.inf]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_keeps_dtype_and_shape(dtype):
    alpha = torch.tensor(SHAPES, dtype=dtype).view(2, 5)
    out = log_partition(alpha)
    assert (out.shape, out.dtype) == ((2, 5), dtype)
    exact = log_partition(alpha.double())
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=2 * torch.finfo(dtype).eps)


def test_numpy_and_numbers():
    assert isinstance(log_partition(1), float)
    assert log_partition(np.float32([1, 2])).dtype == np.float32
    assert log_partition(np.array([[1, 2]])).dtype == np.float64
    assert log_partition(torch.ones(0)).shape == (0,)


@pytest.mark.parametrize("bad, error, said", [
    (-1.0, ValueError, "got -1.0"), (math.nan, ValueError, "got nan"), (torch.tensor([1.0, -0.5]), ValueError, "alpha < 0, got -0.5"),
    (torch.tensor([1, 2]), TypeError, "int64"), ("one", TypeError, "real numbers")])
def test_bad_input_is_named(bad, error, said):
    with pytest.raises(error, match=said):
        log_partition(bad)


def test_where_nobody_can_look_a_bad_shape_gives_nan():
    got = torch.compile(log_partition, fullgraph=True, backend="eager")(torch.tensor([-1.0, math.nan, 1.0]))
    assert got.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_to_second_order(dtype):
    alpha = torch.tensor(SHAPES, dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(log_partition(alpha).sum(), alpha, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), alpha)
    assert slope.isfinite().all() and (slope <= 0).all() and bend.isfinite().all()


def test_compiles_whole_and_agrees():
    alpha = torch.tensor(SHAPES, requires_grad=True)
    out = torch.compile(log_partition, fullgraph=True)(alpha)
    torch.testing.assert_close(out, log_partition(alpha))
    got = torch.autograd.grad(out.sum(), alpha)[0]
    torch.testing.assert_close(got, torch.autograd.grad(log_partition(alpha).sum(), alpha)[0], rtol=3e-5, atol=0)
    torch._dynamo.reset()


def test_transforms():
    alpha = torch.linspace(0.1, 5, 7, dtype=torch.float64)
    slope = torch.func.vmap(torch.func.grad(log_partition))(alpha)
    _, jvp = torch.func.jvp(log_partition, (alpha,), (torch.ones_like(alpha),))
    torch.testing.assert_close(jvp, slope)
    assert torch.func.hessian(lambda a: log_partition(a).sum())(alpha).isfinite().all()


def test_export_runs_outside():
    class Module(torch.nn.Module):
        def forward(self, alpha):
            return log_partition(alpha)

    alpha = torch.tensor(SHAPES)
    torch.testing.assert_close(torch.export.export(Module(), (alpha,)).module()(alpha), log_partition(alpha))


def test_tensors_without_values():
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert log_partition(torch.ones(3, device="meta", requires_grad=True)).device.type == "meta"
    with FakeTensorMode():
        assert log_partition(torch.ones(3)).shape == (3,)
    assert log_partition(torch.ones(3)).isfinite().all()  # and nothing of it stayed behind


def test_large_inputs_run_in_blocks_and_agree():
    alpha = torch.linspace(0, 9, 2**19 + 11, requires_grad=True)
    log_partition(alpha).sum().backward()
    part = alpha.detach()[-100:].clone().requires_grad_()
    log_partition(part).sum().backward()
    torch.testing.assert_close(alpha.grad[-100:], part.grad)


def test_the_papers_spline_is_differentiable_and_close():
    alpha = torch.linspace(0, 9, 101, requires_grad=True)
    out = hermite_log_partition(alpha)
    torch.testing.assert_close(out, log_partition(alpha), rtol=0, atol=2e-6)
    assert torch.autograd.grad(out.sum(), alpha)[0].isfinite().all()
    with pytest.raises(ValueError, match="got -1.0"):
        hermite_log_partition(torch.tensor(-1.0))
