"""Contracts of the depth model: variants, sizes, checkpoints, devices, training; the notebook holds the formulas."""
import pickle

import numpy as np
import pytest
import torch

from robust_general.monodepth import (
    VARIANTS,
    DisparityNet,
    Monodepth,
    PixelLoss,
    PoseNet,
    WaveletLoss,
    make_monodepth,
    predict_depth,
    score_depth,
)
from robust_general.monodepth_experiment import PRESETS
from robust_general.training import Batches, meta_step, train

SIZE = (32, 64)


def random_batch(n=2, size=SIZE, sources=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    h, w = size
    K = torch.tensor([[0.6 * w, 0, w / 2], [0, 0.6 * w, h / 2], [0, 0, 1]])
    return {"target": torch.rand(n, 3, h, w, generator=g), "sources": torch.rand(n, sources, 3, h, w, generator=g), "intrinsics": K.repeat(n, 1, 1)}


def small(variant="adaptive", size=SIZE, **kwargs):
    return make_monodepth(variant, size, width=0.0625, **kwargs)


@pytest.fixture(scope="module")
def batch():
    return random_batch()


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradients(variant, batch):
    model = small(variant)
    out = model(batch)
    assert set(out) == {"loss", "l1", "valid"} and all(v.shape == () for v in out.values())
    assert 0 <= out["valid"] <= 1 and not out["l1"].requires_grad
    out["loss"].backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name


@pytest.mark.parametrize("variant", ["baseline", "adaptive"])
@pytest.mark.parametrize("size", [(32, 64), (33, 47), (20, 16)])
@pytest.mark.parametrize("sources", [2, 4])
def test_sizes_and_snippets(variant, size, sources):
    model = small(variant, size, sources=sources)
    assert model(random_batch(1, size, sources))["loss"].isfinite()
    assert model.depth(torch.rand(3, 3, *size)).shape == (3, *size)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_is_the_mean_of_its_members(variant, batch):
    model = small(variant).double()
    double = {k: v.double() for k, v in batch.items()}
    alone = [model({k: v[i : i + 1] for k, v in double.items()})["loss"] for i in range(2)]
    torch.testing.assert_close(model(double)["loss"], sum(alone) / 2, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_left_on_the_cpu(variant, batch):
    assert all(v.device.type == "meta" for v in meta_step(small(variant), batch).values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_step_of_the_paper(variant):
    """At its size, width and batch, without arithmetic: shapes fit, and all of it would follow to a GPU."""
    p = PRESETS["paper"]
    model = make_monodepth(variant, p["size"], p["width"], smooth=p["smooth"], normalize=p["normalize"], augment=True)
    assert set(meta_step(model, random_batch(p["batch"], p["size"]))) >= {"loss"}


@pytest.mark.parametrize("variant", ["baseline", "annealed", "adaptive"])
def test_checkpoints(variant, batch, tmp_path):
    model, other = small(variant), small(variant, seed=1)
    model.set_step(3, 9)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert other(batch)["loss"].equal(model(batch)["loss"])
    copy = pickle.loads(pickle.dumps(model))
    assert copy(batch)["loss"].equal(model(batch)["loss"])


def test_a_seed_decides_the_weights_and_leaves_the_generator_alone():
    torch.manual_seed(5)
    want = torch.rand(1)
    torch.manual_seed(5)
    a, b, c = small(seed=1), small(seed=1), small(seed=2)
    assert torch.rand(1).equal(want)
    same = lambda x, y: all(p.equal(q) for p, q in zip(x.parameters(), y.parameters()))  # noqa: E731
    assert same(a, b) and not same(a, c)


def test_annealing_follows_the_training_loop(batch, tmp_path):
    model, seen = small("annealed"), []
    hook = model.register_forward_pre_hook(lambda m, _: seen.append(m.loss.alpha.item()))
    train(model, lambda step: batch, steps=5, folder=tmp_path, progress=False, device="cpu")
    hook.remove()
    assert seen == pytest.approx([2, 1.5, 1, 0.5, 0])


def test_training_learns_and_resumes(tmp_path):
    data = random_batch(6)
    args = dict(steps=8, lr=1e-3, log_every=1, save_every=3, progress=False, device="cpu")
    broken = []

    def batches(step):
        if step in broken:
            raise KeyboardInterrupt
        return Batches(data, 2)(step)

    whole = train(small(), batches, folder=tmp_path / "whole", **args)
    assert whole["loss"][-1] < whole["loss"][0]
    broken.append(5)
    with pytest.raises(KeyboardInterrupt):
        train(small(), batches, folder=tmp_path / "parts", **args)
    broken.clear()
    parts = train(small(), batches, folder=tmp_path / "parts", **args)
    np.testing.assert_array_equal(parts["loss"], whole["loss"])


def test_only_the_adaptive_loss_has_parameters():
    count = {v: len(list(small(v).loss.parameters())) for v in VARIANTS}
    assert count == {**dict.fromkeys(VARIANTS, 0), "adaptive": 1}


def test_shapes_learn(batch):
    model = small()
    optimizer = torch.optim.Adam(model.loss.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(batch)["loss"].backward()
        optimizer.step()
    alpha = model.loss.alpha
    assert alpha.shape == (3, *SIZE) and 0 < alpha.min() < 0.9 and 1.1 < alpha.max() < 2


def test_mixed_precision_keeps_the_geometry_exact(batch):
    model = small()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(batch)
    assert out["loss"].dtype == torch.float32 and out["loss"].isfinite()
    torch.testing.assert_close(out["loss"], model(batch)["loss"], rtol=0.05, atol=0.01)


def test_mask_leaves_out_what_is_not_seen(batch):
    plain, masked = small(), small(mask=True)
    motion = torch.eye(4).repeat(2, 2, 1, 1)
    motion[..., 0, 3] = 0.5
    args = batch["target"], batch["sources"], batch["intrinsics"], torch.ones(2, *SIZE), motion
    (a, valid), (b, _) = plain.rebuild(*args), masked.rebuild(*args)
    assert 0.1 < valid.float().mean() < 0.9
    hidden = ~valid.unsqueeze(2).expand_as(a)
    assert (b[hidden] == 0).all() and b[~hidden].equal(a[~hidden]) and a[hidden].abs().mean() > 0.1


def test_scores_and_predictions():
    model, images = small(), torch.rand(5, 3, *SIZE)
    assert model.training
    depth = predict_depth(model, images, batch_size=2)
    assert depth.shape == (5, *SIZE) and model.training and not depth.requires_grad
    torch.testing.assert_close(predict_depth(model, (images * 255).round().byte(), 5), depth, rtol=0.02, atol=0.02)
    own = score_depth(model, images, [d.numpy() * 3 for d in depth], max_depth=1e3)
    assert own["AbsRel"] < 1e-6 and own["a1"] == 1
    with pytest.raises(ValueError, match="shorter"):
        score_depth(model, images, [d.numpy() for d in depth[:3]])


@pytest.mark.parametrize("call, said", [
    (lambda: make_monodepth("l2"), "got 'l2'"),
    (lambda: WaveletLoss(SIZE, "warm"), "got 'warm'"),
    (lambda: WaveletLoss(SIZE, scale=0.0), "got 0.0"),
    (lambda: WaveletLoss(SIZE, levels=9), r"shape \(32, 64\) allows 0 to 5 levels, got 9"),
    (lambda: WaveletLoss(SIZE, levels=0), "at least 1, got 0"),
    (lambda: WaveletLoss(SIZE)([torch.zeros(1, 2, 3, 32, 60)]), r"images must have shape \(..., 3, 32, 64\), got \(1, 2, 3, 32, 60\)"),
    (lambda: PoseNet(2)(torch.zeros(1, 3, *SIZE), torch.zeros(1, 3, 3, *SIZE)), r"got \(1, 3, 3, 32, 64\)"),
    (lambda: predict_depth(small(), torch.zeros(3, *SIZE)), r"got \(3, 32, 64\)"),
])
def test_bad_input_is_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_own_losses_fit(batch):
    model = Monodepth(PixelLoss(scales=2, smooth=0.0), width=0.0625)
    assert model(batch)["loss"].isfinite()


def test_widths():
    sizes = [sum(p.numel() for p in DisparityNet(w).parameters()) for w in (0.01, 0.125, 0.25)]
    assert sizes == sorted(sizes) and 3.5 < sizes[2] / sizes[1] < 4.1


def test_augment_belongs_to_training_and_to_the_seed(batch):
    plain, other = small("adaptive"), small("adaptive", augment=True)

    def loss(model, seed):
        torch.manual_seed(seed)
        return model(batch)["loss"].item()

    assert loss(other, 3) == loss(other, 3) != loss(other, 4)
    assert loss(other.eval(), 3) == loss(plain, 3)
    before = random_batch()
    assert all(v.equal(before[k]) for k, v in batch.items())


def test_normalize_keeps_the_state_dict():
    plain, other = small("baseline"), small("baseline", normalize=True)
    other.load_state_dict(plain.state_dict())
    image = torch.rand(2, 3, 32, 64)
    assert torch.allclose(other.depth(image).reciprocal().mean((-2, -1)), torch.tensor(5.0), rtol=1e-5)
    ratio = other.depth(image) / plain.depth(image)
    assert torch.allclose(ratio, ratio[:, :1, :1].expand_as(ratio), rtol=1e-5)
