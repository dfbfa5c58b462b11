"""Contracts of schedules and of reweighted least squares; the notebook holds the mathematics."""
import copy
import math
import pickle
from math import inf, nan

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch import nn

from robust_general.annealing import (
    PAPER_ALPHAS,
    AlphaSchedule,
    anneal,
    efficiency,
    efficient_scale,
    irls,
    mad,
)
from robust_general.loss import GeneralLoss, rho

# Schedules.


@pytest.mark.parametrize("space", ["linear", "log", "shape", "hold"])
@pytest.mark.parametrize("num", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("every", [1, 3])
def test_ends_are_exact(space, num, every):
    values = anneal((2.0, 0.7, 0.1), num, space, every)
    assert len(values) == num and all(isinstance(v, float) for v in values)
    if space != "hold":
        assert values[-1] == 0.1
    if num > every:
        assert values[0] == 2.0
    assert values == sorted(values, reverse=True)


def test_the_papers_values():
    assert anneal() == list(PAPER_ALPHAS) and len(PAPER_ALPHAS) == 13
    assert anneal(np.array([2, 1]), every=2) == [2.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize("arguments, message", [
    (((), 3), "at least one"),
    (((2.0, nan), 3), "must not be nan"),
    (((2.0, 0.0), 0), "num must be a positive integer, got 0"),
    (((2.0, 0.0), 2.5), "got 2.5"),
    (((2.0, 0.0), 3, "cubic"), "got 'cubic'"),
    (((2.0, 0.0), 3, "log"), "positive"),
    (((2.0, -inf), 3, "linear"), "take 'shape'"),
    (((2.0, 0.0), 3, "linear", 0), "every must be a positive integer"),
])
def test_bad_schedules(arguments, message):
    with pytest.raises(ValueError, match=message):
        anneal(*arguments)
    with pytest.raises(ValueError, match=message):
        AlphaSchedule(GeneralLoss(1.0), *arguments)


@pytest.mark.parametrize("alpha", [1.0, torch.tensor(1.0), torch.ones(3)])
def test_schedule_is_the_list(alpha):
    loss = GeneralLoss(alpha)
    schedule = AlphaSchedule(loss, (2.0, -inf), 9, "shape")
    for value in [*anneal((2.0, -inf), 9, "shape"), -inf, -inf]:
        assert schedule.value == value and torch.all(torch.as_tensor(loss.alpha) == torch.tensor(value))
        schedule.step()
    assert type(loss.alpha) is type(alpha)


def test_scale_and_alpha_together():
    loss = GeneralLoss(2.0, torch.tensor(4.0))
    a, c = AlphaSchedule(loss, (2.0, 0.0), 3), AlphaSchedule(loss, (4.0, 1.0), 3, "log", name="scale")
    a.step(), c.step()
    assert (loss.alpha, loss.scale.item()) == (1.0, 2.0)
    with pytest.raises(ValueError, match="scale must be positive, got -1.0"):
        AlphaSchedule(loss, (4.0, -1.0), 3, name="scale")
    with pytest.raises(ValueError, match="got 'beta'"):
        AlphaSchedule(loss, (4.0, 1.0), 3, name="beta")


def test_resumes_through_a_file(tmp_path):
    first = AlphaSchedule(GeneralLoss(torch.tensor(2.0)), (2.0, 0.0), 10, every=2)
    for _ in range(5):
        first.step()
    torch.save({"schedule": first.state_dict(), "loss": first.loss.state_dict()}, tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    second = AlphaSchedule(GeneralLoss(torch.tensor(2.0)), (1.0,))
    second.load_state_dict(saved["schedule"])
    for _ in range(7):
        assert second.value == first.value == second.loss.alpha.item()
        first.step(), second.step()
    with pytest.raises(ValueError, match="last_step"):
        second.load_state_dict({"values": (1.0,)})


def test_copies_are_independent():
    one = AlphaSchedule(GeneralLoss(2.0), (2.0, 0.0), 5)
    for two in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        two.step()
        assert (one.loss.alpha, two.loss.alpha) == (2.0, 1.5)


def test_refuses_what_is_learned_or_missing():
    class Adaptive(nn.Module):
        def __init__(self):
            super().__init__()
            self.latent = nn.Parameter(torch.zeros(()))

        @property
        def alpha(self):
            return self.latent.sigmoid()

    for loss in (GeneralLoss(nn.Parameter(torch.tensor(1.0))), Adaptive(), nn.MSELoss()):
        with pytest.raises(ValueError, match="must be a number or a buffer"):
            AlphaSchedule(loss, (2.0, 0.0), 5)


def test_a_buffer_is_not_compiled_again():
    counter = torch._dynamo.testing.CompileCounter()
    loss = GeneralLoss(torch.tensor(2.0))
    schedule = AlphaSchedule(loss, (2.0, -2.0), 9)
    f, x = torch.compile(loss, backend=counter, fullgraph=True), torch.linspace(-2, 2, 5)
    for _ in range(9):
        torch.testing.assert_close(f(x, torch.zeros(5)), rho(x, schedule.value).mean())
        schedule.step()
    assert counter.frame_count == 1
    torch._dynamo.reset()


# Reweighted least squares.

T = np.linspace(0, 2, 30)
Y = 2 * np.exp(-T) + np.where(np.arange(30) % 5, 0.0, 3.0)


def curve(p):
    exp = torch.exp if isinstance(p, torch.Tensor) else np.exp
    t, y = (torch.tensor(T, dtype=p.dtype), torch.tensor(Y, dtype=p.dtype)) if exp is torch.exp else (T, Y)
    return p[0] * exp(-p[1] * t) - y


def test_types_follow_the_start():
    path = anneal((2.0, -2.0), 8)
    a = irls(curve, [1.0, 0.5], path, 0.2)
    assert all(isinstance(o, np.ndarray) for o in (a.x, a.fun, a.weights)) and a.x.dtype == np.float64
    for dtype in (torch.float32, torch.float64):
        b = irls(curve, torch.tensor([1.0, 0.5], dtype=dtype), path, 0.2)
        assert {o.dtype for o in (b.x, b.fun, b.weights)} == {dtype}
        np.testing.assert_allclose(a.x, b.x, rtol=2e-3 if dtype == torch.float32 else 1e-6)
    assert b.weights.shape == (30,) and not b.x.requires_grad
    assert a.nit == len(a.history) and a.nfev >= a.nit and a.success and isinstance(a.message, str)


def test_start_is_not_changed_and_may_need_grad():
    start = torch.tensor([1.0, 0.5], requires_grad=True)
    irls(curve, start, -2.0, 0.2)
    assert start.tolist() == [1.0, 0.5] and start.grad is None


def test_given_jacobian_and_args():
    def fun(p, t, y):
        return p[0] * np.exp(-p[1] * t) - y

    def jac(p, t, y):
        return np.stack([np.exp(-p[1] * t), -p[0] * t * np.exp(-p[1] * t)], 1)

    a = irls(fun, [1.0, 0.5], 1.0, 0.2, jac=jac, args=(T, Y))
    b = irls(fun, [1.0, 0.5], 1.0, 0.2, args=(T, Y))
    np.testing.assert_allclose(a.x, b.x, rtol=1e-6)
    with pytest.raises(ValueError, match="30 x 2 elements, got"):
        irls(fun, [1.0, 0.5], 1.0, jac=np.ones((3, 2)), args=(T, Y))


def test_any_shape_of_x_and_vector_residuals():
    g = np.random.default_rng(0)
    A, B = g.normal(size=(50, 3)), g.normal(size=(3, 2))
    Y2 = A @ B
    Y2[:15] += 10
    shared = irls(lambda x: A @ x - Y2, np.zeros((3, 2)), anneal((2.0, -inf), 20, "shape"), 1.0, jac=A)
    derived = irls(lambda x: A @ x - Y2, np.zeros((3, 2)), anneal((2.0, -inf), 20, "shape"), 1.0)
    assert shared.x.shape == (3, 2) and shared.weights.shape == (50,) and shared.fun.shape == (50, 2)
    np.testing.assert_allclose(shared.x, B, atol=1e-6)
    np.testing.assert_allclose(derived.x, shared.x, atol=1e-6)
    np.testing.assert_allclose(shared.cost, rho(np.linalg.norm(shared.fun, axis=1), -inf).sum(), rtol=1e-12)
    one = irls(lambda x: x - 3.0 + np.zeros(4), 0.0, 1.0)  # a number as start
    assert one.x.shape == () and abs(one.x - 3) < 1e-9


def test_weights_are_repetitions():
    w = np.random.default_rng(0).integers(0, 3, 30)
    a = irls(curve, [1.0, 0.5], 1.0, 0.2, weight=w)
    b = irls(lambda p: np.repeat(curve(p), w), [1.0, 0.5], 1.0, 0.2)
    np.testing.assert_allclose(a.x, b.x, rtol=1e-6)
    np.testing.assert_allclose(a.cost, b.cost, rtol=1e-9)


def test_callback_and_verbose(capsys):
    seen = []

    def stop(state):
        seen.append(state.x)
        return len(seen) == 3

    fit = irls(curve, [1.0, 0.5], anneal((2.0, -2.0), 8), 0.2, callback=stop, verbose=1)
    assert (fit.nit, fit.success, fit.message) == (3, False, "stopped by the callback")
    assert len(capsys.readouterr().out.splitlines()) == 3
    np.testing.assert_array_equal(seen[-1], fit.x)


def test_scale_schedules_and_functions():
    path = anneal((2.0, -2.0), 5)
    fit = irls(curve, [1.0, 0.5], path, anneal((1.0, 0.1), 5, "log"))
    assert [h["scale"] for h in fit.history[:5]] == anneal((1.0, 0.1), 5, "log") and fit.scale == fit.history[-1]["scale"] == 0.1
    asked = []
    fit = irls(curve, [1.0, 0.5], path, lambda size: asked.append(size) or mad(size) + 1e-3)
    assert all((s >= 0).all() for s in asked) and len(asked) >= 5 and fit.success
    with pytest.raises(ValueError, match="scale must be positive, got 0.0"):
        irls(curve, [1.0, 0.5], path, lambda size: 0.0)


def test_steps_into_the_undefined_are_damped():
    fit = irls(lambda x: np.log(x) - np.log([5.0, 5.1, 80.0]), [0.01], -2.0, 0.5, jac=lambda x: np.full((3, 1), 1 / x[0]))
    assert fit.success and abs(fit.x[0] - 5.05) < 0.1
    with np.errstate(invalid="ignore"):
        far = irls(lambda x: np.sqrt(x) - np.array([1.0, 1.1]), [100.0], 1.0, 1.0)
    assert far.success and all(h["decrease"] >= 0 for h in far.history)


@pytest.mark.parametrize("kw, message", [
    (dict(alpha=nan), "must not be nan"),
    (dict(scale=0.0), "scale must be positive"),
    (dict(alpha=[]), "at least one alpha"),
    (dict(maxiter=0), "maxiter must be at least 1"),
    (dict(weight=np.ones(3)), r"weight must have shape \(30,\)"),
    (dict(weight=-np.ones(30)), "negative"),
])
def test_bad_arguments(kw, message):
    with pytest.raises(ValueError, match=message):
        irls(curve, [1.0, 0.5], **kw)


def test_bad_functions():
    with pytest.raises(ValueError, match=r"\(m,\) or \(m, d\), got \(1, 1, 1\)"):
        irls(lambda x: np.ones((1, 1, 1)), [1.0])
    with pytest.raises(TypeError, match="int64"):
        irls(curve, torch.tensor([1, 2]))


def test_tries_no_lapack_driver_that_misjudges_rank():
    g = np.random.default_rng(0)
    X = g.normal(size=(80, 2))
    A, y = np.hstack([X, X, np.ones((80, 1))]), g.normal(size=80) + 4
    fit = irls(lambda x: A @ x - y, np.zeros(5), 2.0, jac=A)
    np.testing.assert_allclose(A @ fit.x, A @ np.linalg.lstsq(A, y, rcond=None)[0], atol=1e-12)


# Scales.


def test_mad():
    assert mad(torch.tensor([1.0, -1.0, 5.0])) == mad([1.0, 1.0, 5.0]) == pytest.approx(1 / 0.6744897501960817)
    assert isinstance(mad(np.ones(3, dtype=np.float32)), float)
    g = np.random.default_rng(0)
    for n in (5, 6):
        x, w = g.normal(size=n), g.integers(0, 4, n)
        assert mad(x, w) == pytest.approx(mad(np.repeat(x, w)))
    for bad in ([], np.ones((2, 2, 2))):
        with pytest.raises(ValueError, match="shape"):
            mad(bad)
    with pytest.raises(ValueError, match="all be zero"):
        mad([1.0], [0.0])


def test_efficiency_domain():
    assert efficiency(2.0, 1.0) == 1.0
    assert all(0 < efficiency(a, c) < 1 for a in (-inf, -2.0, 0.0, 1.0, 1.99) for c in (1e-3, 1.0, 1e3))
    for a in (2.1, nan):
        with pytest.raises(ValueError, match="at most 2"):
            efficiency(a, 1.0)
    with pytest.raises(ValueError, match="strictly between"):
        efficient_scale(0.0, 1.0)
    assert efficient_scale(0.0, 0.99) > efficient_scale(0.0) > efficient_scale(0.0, 0.8) > 0
    assert math.isclose(efficiency(0.0, efficient_scale(0.0, 0.9, dim=4), dim=4), 0.9, rel_tol=1e-9)
