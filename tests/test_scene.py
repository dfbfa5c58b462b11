"""Contracts of the rendered street: seeds, sizes, types, bad input; the notebook holds the geometry."""
import math
import pickle

import pytest
import torch

from robust_general.scene import Frame, Street, make_street, relative_pose, render_snippets, street_intrinsics, visible
from robust_general.warping import warp

SIZE = (24, 78)


@pytest.fixture(scope="module")
def street() -> Street:
    return make_street(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(24, 78), (7, 5), (1, 1)])
def test_frames(street, dtype, size):
    f = street.render(3, size, dtype=dtype)
    assert isinstance(f, Frame)
    assert (f.image.shape, f.depth.shape, f.surface.shape, f.static.shape) == ((3, *size), size, size, size)
    assert f.image.dtype == f.depth.dtype == f.pose.dtype == f.intrinsics.dtype == dtype
    assert f.image.min() >= 0 and f.image.max() <= 1 and (f.depth > 0).all() and not f.depth.isnan().any()
    assert ((f.depth == math.inf) == (f.surface == 0)).all()


def test_a_seed_decides_everything(street):
    again, other = make_street(1), make_street(2)
    assert all(a.equal(b) for a, b in zip(street.render(8, SIZE), again.render(8, SIZE)))
    assert not street.render(8, SIZE).image.equal(other.render(8, SIZE).image)


def test_a_street_travels(street):
    copy = pickle.loads(pickle.dumps(street))
    assert copy.render(2, SIZE).image.equal(street.render(2, SIZE).image)


def test_depth_does_not_depend_on_light_or_blur():
    a, b = make_street(0, lighting=0.0).render(9, SIZE), make_street(0, lighting=0.3).render(9, SIZE, blur=2.0)
    assert a.depth.equal(b.depth) and a.surface.equal(b.surface) and not a.image.equal(b.image)


def test_without_traffic_nothing_moves():
    assert make_street(0, traffic=0).render(5, SIZE).static.all()
    frames = [make_street(s, traffic=8).render(5, SIZE) for s in range(4)]
    assert any((~f.static).any() for f in frames)


def test_the_camera_is_outside_of_all_boxes():
    for seed in range(6):
        s = make_street(seed, traffic=8)
        for i in range(0, 80, 4):
            eye = s.pose(i)[:3, 3]
            inside = ((s.low + i * s.speed < eye) & (eye < s.high + i * s.speed)).all(1)
            assert not inside.any(), (seed, i)


def test_a_frame_sees_all_of_itself(street):
    f = street.render(6, SIZE, dtype=torch.float64)
    inner = slice(1, -1), slice(1, -1)  # at the border itself rounding decides
    assert visible(f, f)[inner].equal(f.static[inner])
    torch.testing.assert_close(relative_pose(f, f), torch.eye(4, dtype=torch.float64))


def test_single_precision_is_enough():
    s = make_street(0, lighting=0.0)
    errors = []
    for dtype in (torch.float32, torch.float64):
        a, b = (s.render(i, (48, 156), dtype=dtype) for i in (10, 11))
        image, _ = warp(b.image, a.depth, relative_pose(a, b), a.intrinsics)
        errors.append((image - a.image)[:, visible(a, b)].abs().mean().item())
    assert errors[0] == pytest.approx(errors[1], rel=1e-2)


def test_camera_can_be_chosen(street):
    K = street_intrinsics(SIZE)
    zoomed = K.clone()
    zoomed[[0, 1], [0, 1]] *= 2
    a, b = street.render(4, SIZE, intrinsics=K), street.render(4, SIZE, intrinsics=zoomed.numpy())
    assert a.image.equal(street.render(4, SIZE).image) and not a.image.equal(b.image)


def test_snippets():
    d = render_snippets(range(2), frames=6, size=(8, 26), length=5)
    assert {k: tuple(v.shape) for k, v in d.items()} == {
        "target": (4, 3, 8, 26), "sources": (4, 4, 3, 8, 26), "intrinsics": (4, 3, 3), "depth": (4, 8, 26)}
    assert d["sources"][0, 2].equal(d["target"][1])


@pytest.mark.parametrize("call, said", [
    (lambda: make_street(0).render(0, (8,)), r"got \(8,\)"),
    (lambda: make_street(0).render(0, (0, 8)), r"got \(0, 8\)"),
    (lambda: make_street(0, traffic=-1), "got -1"),
    (lambda: render_snippets(0, length=2), "got 2"),
    (lambda: render_snippets(0, frames=2), "a drive of 2 frames is shorter than a snippet of 3"),
])
def test_bad_input_is_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()
