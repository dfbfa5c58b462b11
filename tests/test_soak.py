"""A hundred thousand training steps with everything learned that can be, driven to where it must not go."""
import gc
import io
import math
import os

import pytest
import torch
from torch import nn

from robust_general import AdaptiveLoss, StudentTLoss

STEPS = 100_000


pytestmark = pytest.mark.usefixtures("one_thread")


def resident():
    """Memory of this process in MB, or None where there is no /proc."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return None


def residuals(dtype, low, high):
    """Sixteen residuals by the number of the step: all zero, all equal, normal, Cauchy, of two values or uniform, a thousand steps each, of sizes from 10**low to 10**high."""
    u = torch.rand(64, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(1e-3, 1 - 1e-3)
    kinds = [torch.zeros_like(u), torch.ones_like(u), torch.special.ndtri(u), torch.tan(math.pi * (u - 0.5)), torch.where(u < 0.5, -1.0, 1.0), u]
    table = [(kind * 10.0**size).to(dtype) for size in range(low, high + 1) for kind in kinds]
    return lambda step: table[step // 1000 % len(table)][step % 64]


def within_bounds(loss):
    """Parameters are finite, and what they stand for lies where it was promised to."""
    assert all(p.isfinite().all() for p in loss.parameters())
    assert (loss.scale >= loss.scale_min).all() and loss.scale.isfinite().all()
    if isinstance(loss, AdaptiveLoss):
        lo, hi = loss.alpha_bounds
        assert ((loss.alpha >= lo) & (loss.alpha <= hi)).all()
    else:
        assert (loss.df > 0).all() and loss.df.isfinite().all()


def run(loss, x, optimizer, steps, first=0):
    """Minimise over the loss's parameters, the residuals being what `x(step)` says, all of it finite; how small and large they became."""
    seen, ends = [], []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        value = loss(x(step))
        value.backward()
        optimizer.step()
        seen.append(value.detach())
        if len(seen) == 500:  # looked at together: one by one, looking would take as long as the steps
            assert torch.stack(seen).isfinite().all(), (step, torch.stack(seen))
            within_bounds(loss)
            assert all(v.isfinite().all() for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)), step
            ends.append((loss._shape_parameter().item(), loss.scale.item()))
            seen.clear()
    return [(min(o), max(o)) for o in zip(*ends)]


def adam(loss, lr=0.05):
    return torch.optim.Adam(loss.parameters(), lr=lr, foreach=False)  # so few parameters are quicker one by one


def test_a_hundred_thousand_steps():
    """In float32, at a learning rate that is far too large. Sizes and least scale keep squares of gradients, which Adam needs, below the largest number."""
    make = lambda: AdaptiveLoss(alpha_init=1.5, scale_min=1e-4)  # noqa: E731
    x, loss = residuals(torch.float32, -3, 2), make()
    optimizer = adam(loss)
    run(loss, x, optimizer, 5000)
    gc.collect()
    before, objects = resident(), len(gc.get_objects())
    (least, most), (narrow, wide) = run(loss, x, optimizer, STEPS - 5000, 5000)
    gc.collect()
    assert len(gc.get_objects()) - objects < 500  # nothing was left behind
    assert before is None or resident() - before < 16  # MB
    assert least < 0.01 and most > 1.99 and narrow < 1.01e-4 and wide > 10  # it was everywhere
    # A checkpoint continues bit for bit.
    file = io.BytesIO()
    torch.save({"loss": loss.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state, other = torch.load(file, weights_only=True), make()
    again = adam(other, lr=1.0)
    other.load_state_dict(state["loss"])
    again.load_state_dict(state["optimizer"])
    for o, opt in ((loss, optimizer), (other, again)):
        run(o, x, opt, 500, STEPS)
    for a, b in zip(loss.parameters(), other.parameters()):
        assert torch.equal(a, b)


def test_wilder_in_double_precision():
    """Scales down to 1e-8 and residuals up to 1e8, shapes up to 4."""
    loss = AdaptiveLoss(alpha_bounds=(0, 4), alpha_init=2.5).double()
    x = residuals(torch.float64, -6, 6)
    run(loss, lambda step: x(11 * step), adam(loss), 15_000)


def always(x):
    return lambda step: x


T = torch.tensor
ENDS = {
    # To residuals of one size the likeliest shape is the largest; a mass at 0 with one far away wants the smallest.
    "largest alpha": (dict(alpha_bounds=(0, 3)), T([-1.0, 1.0]), lambda o: o.alpha > 2.99),
    "smallest alpha": (dict(), T([1e-3, -1e-3, 2e-3, -2e-3, 1e3]), lambda o: o.alpha < 0.01),
    "least scale": (dict(scale_min=1e-4), T([0.0, 0.0]), lambda o: o.scale < 1.01e-4),
    "huge scale": (dict(alpha_bounds=(1, 1)), T([-1e4, 1e4]), lambda o: o.scale > 20),
    "fixed alpha": (dict(alpha_bounds=(2, 2)), T([0.5, -0.5]), lambda o: (o.scale - 0.5).abs() < 0.05),
    "fixed scale": (dict(scale_min=1.0, scale_init=1.0), T([5.0, -5.0]), lambda o: o.scale == 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ENDS)
def test_driven_to_an_end(name, dtype):
    options, x, reached = ENDS[name]
    loss = AdaptiveLoss(**options).to(dtype)
    run(loss, always(x.to(dtype)), adam(loss, 0.1), 2000)
    assert reached(loss), (loss.alpha, loss.scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_student_loss(dtype):
    loss = StudentTLoss().to(dtype)
    x = residuals(dtype, -3, 2)
    run(loss, lambda step: x(23 * step), adam(loss), 2000)


@pytest.mark.parametrize("latent", [-1e4, -100.0, -30.0, 30.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_latent_variables_far_outside(latent, dtype):
    """Where a runaway optimiser can leave them: value and gradient stay finite, and inside the bounds."""
    x = torch.tensor([0.0, 1e-3, 1.0, -50.0], dtype=dtype)
    for make, name in ((AdaptiveLoss, "alpha_latent"), (AdaptiveLoss, "scale_latent"), (StudentTLoss, "df_latent"), (StudentTLoss, "scale_latent")):
        loss = make().to(dtype)
        nn.init.constant_(getattr(loss, name), latent)
        value = loss(x)
        value.backward()
        within_bounds(loss)
        assert value.isfinite() and all(p.grad.isfinite().all() for p in loss.parameters())
