"""Contracts of the adaptive losses; the notebooks hold the mathematics."""
import copy
import io
import math
import pickle
import socket

import pytest
import torch
from torch import nn

from robust_general import adaptive
from robust_general.adaptive import AdaptiveLoss, StudentTLoss
from robust_general.imageloss import AdaptiveImageLoss

SHAPE = (3, 16, 12)
LOSSES = {
    "scalar": lambda: AdaptiveLoss(),
    "channel": lambda: AdaptiveLoss((3, 1, 1), alpha_bounds=(0, 3), scale_init=0.01),
    "pixel": lambda: AdaptiveLoss(SHAPE),
    "student": lambda: StudentTLoss(SHAPE),
    "wavelet": lambda: AdaptiveImageLoss(SHAPE, levels=3),
    "dct": lambda: AdaptiveImageLoss(SHAPE, representation="dct", color=None),
    "band": lambda: AdaptiveImageLoss(SHAPE, levels=2, per="band"),
}


@pytest.fixture(params=LOSSES)
def loss(request):
    torch.manual_seed(0)
    out = LOSSES[request.param]()
    with torch.no_grad():
        for p in out.parameters():
            p += 0.5 * torch.randn_like(p)
    return out


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.rand(5, *SHAPE), torch.rand(5, *SHAPE)


def gradients(fn, loss, x, y):
    x = x.clone().requires_grad_()
    value = fn(x, y)
    return [value, *torch.autograd.grad(value, [x, *loss.parameters()])]


def test_state_dict_copy_and_pickle_agree_and_share_nothing(loss, batch):
    value = loss(*batch)
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    fresh = copy.deepcopy(loss)
    with torch.no_grad():
        for p in fresh.parameters():
            p.zero_()
    assert not torch.equal(fresh(*batch), value) and torch.equal(loss(*batch), value)  # nothing is shared
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(fresh(*batch), value)
    assert torch.equal(pickle.loads(pickle.dumps(loss))(*batch), value)


def test_state_holds_parameters_only(loss):
    assert set(loss.state_dict()) == {n for n, _ in loss.named_parameters()}


def test_moves_with_to(loss, batch):
    double = copy.deepcopy(loss).double()
    value = double(*(o.double() for o in batch))
    assert value.dtype == torch.float64
    torch.testing.assert_close(value.float(), loss(*batch), rtol=2e-5, atol=1e-5)
    meta = copy.deepcopy(loss).to("meta")
    out = meta(*(o.to("meta").requires_grad_() for o in batch))
    out.backward()
    assert out.device.type == "meta" and all(p.grad.device.type == "meta" for p in meta.parameters())


def test_compiled_equals_eager_at_several_batch_sizes(loss, batch):
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for n in (5, 2, 3):
        part = [o[:n] for o in batch]
        for got, want in zip(gradients(compiled, loss, *part), gradients(loss, loss, *part)):
            torch.testing.assert_close(got, want, rtol=2e-4, atol=1e-6)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["pixel", "student", "wavelet"])
def test_inductor_equals_eager(name, batch):
    torch._dynamo.reset()
    loss = LOSSES[name]()
    for got, want in zip(gradients(torch.compile(loss, fullgraph=True), loss, *batch), gradients(loss, loss, *batch)):
        torch.testing.assert_close(got, want, rtol=2e-4, atol=1e-6)
    torch._dynamo.reset()


def test_half_precision_and_autocast(loss, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        auto = loss(*batch)
    torch.testing.assert_close(auto.float(), loss(*batch), rtol=2e-2, atol=2e-2)
    half = loss(*(o.bfloat16() for o in batch))
    torch.testing.assert_close(half.float(), loss(*(o.bfloat16().float() for o in batch)), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("name", ["scalar", "pixel", "student"])
def test_reductions_weights_and_masks(name, batch):
    x, y = batch
    each, mean, total = (LOSSES[name]() for _ in range(3))
    each.reduction, total.reduction = "none", "sum"
    values = each(x, y)
    assert values.shape == x.shape
    torch.testing.assert_close(mean(x, y), values.mean())
    torch.testing.assert_close(total(x, y), values.sum())
    mask = torch.rand_like(x) > 0.5
    hidden = torch.where(mask, x, math.nan)
    torch.testing.assert_close(mean(hidden, y, weight=mask), values[mask].mean())
    weight = torch.rand_like(x)
    torch.testing.assert_close(mean(x, y, weight=weight), (values * weight).sum() / weight.sum())
    (grad,) = torch.autograd.grad(mean(leaf := hidden.requires_grad_(), y, weight=mask), leaf)
    assert grad.isfinite().all()


def test_the_log_partition_is_taken_once_per_parameter(monkeypatch, batch):
    seen = []
    original = adaptive.log_partition
    monkeypatch.setattr(adaptive, "log_partition", lambda a: seen.append(a.numel()) or original(a))
    for name in ("scalar", "channel", "pixel"):
        LOSSES[name]()(*batch)
    assert seen == [1, 3, math.prod(SHAPE)]


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_saves_at_most_12_bytes_per_element(alpha):
    x, y = torch.randn(2, 256, 300)
    x.requires_grad_()
    saved = {}
    loss = AdaptiveLoss((300,), alpha_init=alpha)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t.nbytes) and t, lambda t: t):
        loss(x, y)
    assert sum(saved.values()) <= 12 * x.numel()


@pytest.mark.parametrize("extreme", [1e25, 1e-30, 0.0])
@pytest.mark.parametrize("alpha", [1e-6, 0.5, 1.0, 1.9999])
def test_extreme_residuals_give_finite_gradients(extreme, alpha):
    loss = AdaptiveLoss(alpha_init=alpha)
    x = torch.tensor([extreme, 1.0, -extreme], requires_grad=True)
    value = loss(x)
    if value.isfinite():  # the square may really overflow
        value.backward()
        assert all(g.isfinite().all() for g in (x.grad, *(p.grad for p in loss.parameters())))
    else:
        assert extreme > 1 and alpha > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("df", [1e-30, 1e-6, 1.0, 1e12, 1e30])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_extreme_residuals_and_degrees_of_freedom_give_no_nan(dtype, df, reduction):
    """Up to the largest number that there is; what is finite has a finite gradient, also the second."""
    big = torch.finfo(dtype).max
    for scale in (1e-6, 1.0, 1e6):
        loss = StudentTLoss(df_init=df, scale_init=scale, reduction=reduction).to(dtype if dtype == torch.float64 else torch.float32)
        for v in (0.0, torch.finfo(dtype).tiny, 1.0, 1e4, big):
            x = torch.tensor([v, -v], dtype=dtype, requires_grad=True)
            value = loss(x).sum()
            grads = torch.autograd.grad(value, [x, *loss.parameters()], create_graph=True)
            assert value == math.inf or value.isfinite()
            assert not any(g.isnan().any() for g in grads) and grads[0].dtype == dtype
            if df < 1e3:
                assert all(g.isfinite().all() for g in grads[1:])
                again = torch.autograd.grad(sum(g.float().sum() for g in grads[1:]), [x, *loss.parameters()], allow_unused=True)
                assert not any(g.isnan().any() for g in again if g is not None)


@pytest.mark.parametrize("latent", [-1e4, -100.0, 100.0, 1e4])
def test_runaway_degrees_of_freedom_stay_finite(latent):
    loss = StudentTLoss((2,))
    nn.init.constant_(loss.df_latent, latent)
    value = loss(torch.randn(100, 2))
    value.backward()
    assert value.isfinite() and (loss.df > 0).all() and all(p.grad.isfinite().all() for p in loss.parameters())
    assert (loss.df_latent.grad <= 1e-6).all() and (latent > 0 or (loss.df_latent.grad < -0.1).all())  # it leads back


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [AdaptiveLoss, StudentTLoss])
def test_dtype_of_the_result(make, dtype):
    """As torch promotes residuals and parameters; computed in float32 on the way."""
    x = torch.tensor([300.0, -1.0, 0.5], dtype=dtype)
    for shape, each in (((), dtype), ((3,), torch.float32)):
        assert make(shape, reduction="none")(x).dtype == each
        for reduction in ("mean", "sum"):
            loss = make(shape, reduction=reduction)
            assert loss(x).dtype == torch.float32
            torch.testing.assert_close(loss(x), loss(x.float()), rtol=0, atol=0)
            torch.testing.assert_close(loss(x, weight=torch.ones(3)), loss(x.float()), rtol=1e-6, atol=1e-6)


def test_saturated_parameters_stay_finite():
    loss = AdaptiveLoss((4,), alpha_bounds=(0, 2))
    with torch.no_grad():
        loss.alpha_latent.copy_(torch.tensor([-200.0, -20.0, 20.0, 200.0]))
        loss.scale_latent.copy_(torch.tensor([-200.0, 0.0, 0.0, 50.0]))
    x = torch.randn(100, 4) * 1e-8
    value = loss(x)
    value.backward()
    assert value.isfinite() and all(p.grad.isfinite().all() for p in loss.parameters())


@pytest.mark.parametrize("make, said", [
    (lambda: AdaptiveLoss(alpha_bounds=(2, 1)), r"\(2, 1\)"), (lambda: AdaptiveLoss(alpha_init=2.0), "got 2.0"),
    (lambda: AdaptiveLoss(alpha_bounds=(0, math.inf)), "finite"), (lambda: AdaptiveLoss(scale_init=-1), "got -1.0"),
    (lambda: AdaptiveLoss(scale_min=-1), "got -1"), (lambda: AdaptiveLoss(reduction="max"), "'max'"),
    (lambda: AdaptiveLoss((3,), alpha_init=torch.ones(2)), r"\(2,\)"), (lambda: StudentTLoss(df_init=math.inf), "inf"),
    (lambda: AdaptiveImageLoss((16, 16)), r"\(16, 16\)"), (lambda: AdaptiveImageLoss(SHAPE, representation="fft"), "'fft'"),
    (lambda: AdaptiveImageLoss(SHAPE, per="pixel"), "'pixel'"), (lambda: AdaptiveImageLoss(SHAPE, levels=9), "got 9"),
    (lambda: AdaptiveImageLoss(SHAPE)(torch.zeros(3, 16)), r"\(3, 16\)"), (lambda: AdaptiveImageLoss(SHAPE)(torch.zeros(16, 12, 3)), r"\(16, 12, 3\)"),
    (lambda: AdaptiveLoss((3,))(torch.zeros(4)), r"\(4,\)")])
def test_bad_values_are_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_wrong_types_are_named():
    with pytest.raises(TypeError, match="int64"):
        AdaptiveLoss()(torch.ones(3, dtype=torch.long))
    with pytest.raises(TypeError, match="list"):
        AdaptiveLoss()([1.0])


def _train(rank, world, port, steps, path):
    torch.manual_seed(0)
    model = nn.ModuleDict({"net": nn.Linear(6, 4), "loss": AdaptiveLoss((4,))})
    x, y = torch.randn(8, 6), torch.randn(8, 4)
    if world > 1:
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        x, y = x[rank::world], y[rank::world]

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, y):
            return self.model["loss"](self.model["net"](x), y)

    step = Step()
    step = nn.parallel.DistributedDataParallel(step) if world > 1 else step
    optimizer = torch.optim.SGD(step.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        step(x, y).backward()
        optimizer.step()
    if rank == 0:
        torch.save(model.state_dict(), path)
    if world > 1:
        del step, optimizer  # what outlives the group may abort the process when it ends (a race in torch)
        torch.distributed.destroy_process_group()


def test_two_processes_train_as_one(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    _train(0, 1, port, 10, tmp_path / "one")
    torch.multiprocessing.spawn(_train, (2, port, 10, tmp_path / "two"), nprocs=2)
    one, two = (torch.load(tmp_path / n, weights_only=True) for n in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(one["loss.alpha_latent"], torch.zeros(4))
