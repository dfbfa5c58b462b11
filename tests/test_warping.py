"""Contracts of warping: shapes, types, devices, points that are not in front; the notebook holds the mathematics."""
import pytest
import torch

from robust_general.warping import backproject, pose_matrix, project, sample, scale_intrinsics, transform_points, warp

K = torch.tensor([[6.0, 0, 3.2], [0, 5, 2.1], [0, 0, 1]])


def random_problem(*batch, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    source = torch.rand(*batch, 3, 5, 7, generator=g, dtype=dtype)
    depth = 1 + torch.rand(*batch, 5, 7, generator=g, dtype=dtype)
    pose = 0.1 * torch.randn(*batch, 6, generator=g, dtype=dtype)
    return source, depth, pose


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_shapes_and_types(dtype, batch):
    source, depth, pose = random_problem(*batch, dtype=dtype)
    image, valid = warp(source, depth, pose_matrix(pose), K)  # K of another precision follows the images
    assert image.shape == source.shape and image.dtype == dtype
    assert valid.shape == depth.shape and valid.dtype == torch.bool


def test_a_batch_is_its_members():
    source, depth, pose = random_problem(2, 3)
    image, valid = warp(source, depth, pose_matrix(pose), K)
    for i in range(2):
        for j in range(3):
            one, ok = warp(source[i, j], depth[i, j], pose_matrix(pose[i, j]), K)
            torch.testing.assert_close(image[i, j], one)
            assert valid[i, j].equal(ok)


def test_one_depth_for_many_sources():
    source, depth, pose = random_problem(2, 3)
    image, valid = warp(source, depth[:, :1], pose_matrix(pose), K.expand(2, 1, 3, 3))
    again, ok = warp(source, depth[:, :1].expand(2, 3, 5, 7).contiguous(), pose_matrix(pose), K)
    torch.testing.assert_close(image, again)
    assert valid.equal(ok)


def test_target_and_source_may_differ_in_size_and_camera():
    source = torch.rand(3, 10, 14)
    image, valid = warp(source, torch.full((5, 7), 2.0), torch.eye(4), K, scale_intrinsics(K, 2, 2))
    assert image.shape == (3, 5, 7) and valid.all()
    torch.testing.assert_close(image, torch.nn.functional.interpolate(source[None], (5, 7), mode="bilinear")[0])


@pytest.mark.parametrize("distance", [-1.5, -3.0, -1e6])
def test_points_behind_have_finite_gradients(distance):
    source, depth, pose = random_problem(2)
    depth.requires_grad_(), pose.requires_grad_()
    moved = pose_matrix(pose + torch.tensor([0, 0, distance, 0, 0, 0]))
    image, _ = warp(source, depth, moved, K)
    for g in torch.autograd.grad(image.square().sum(), (depth, pose)):
        assert g.isfinite().all()


def test_infinite_and_tiny_depths_have_finite_gradients():
    depth = torch.tensor([[torch.inf, 1e-30, 1.0, 1e30]]).expand(3, 4).clone().requires_grad_()
    pose = torch.full((6,), 0.1, requires_grad=True)
    image, _ = warp(torch.rand(3, 3, 4), depth, pose_matrix(pose), K)
    image.sum().backward()
    assert pose.grad.isfinite().all() and depth.grad.isfinite()[:, [0, 2, 3]].all()


def test_mask_is_exact_at_the_border():
    x = torch.tensor([0.0, 6.0, 6.001, -0.001])
    coordinates = torch.stack([x, torch.full((4,), 2.0)]).view(2, 1, 4)
    assert sample(torch.rand(3, 5, 7), coordinates)[1].tolist() == [[True, True, False, False]]


def test_no_stray_tensor_on_another_device():
    source, depth, pose = (x.to("meta").requires_grad_() for x in random_problem(2))
    image, valid = warp(source, depth, pose_matrix(pose), K.to("meta"))
    image.sum().backward()
    assert image.device.type == valid.device.type == depth.grad.device.type == "meta"


def test_compiles_without_graph_break():
    source, depth, pose = random_problem(2)
    fn = lambda s, d, p: warp(s, d, pose_matrix(p), K)[0]  # noqa: E731
    compiled = torch.compile(fn, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(source, depth, pose), fn(source, depth, pose))
    torch._dynamo.reset()


def test_intrinsics_may_be_arrays_and_lists():
    depth = torch.ones(5, 7)
    want = backproject(depth, K)
    assert backproject(depth, K.numpy()).equal(want) and backproject(depth, K.tolist()).equal(want)
    assert scale_intrinsics(K.numpy(), 2.0, 0.5).equal(scale_intrinsics(K, 2.0, 0.5))


@pytest.mark.parametrize("call, said", [
    (lambda: backproject(torch.ones(5), K), r"depth must have shape \(..., H, W\), got \(5,\)"),
    (lambda: backproject(torch.ones(5, 7), K[0]), r"intrinsics must have shape \(..., 3, 3\), got \(3,\)"),
    (lambda: transform_points(torch.eye(3), torch.ones(4, 5, 7)), r"transform must have shape \(..., 4, 4\), got \(3, 3\)"),
    (lambda: project(torch.ones(4, 5, 7), torch.eye(4)), r"got \(4, 4\)"),
    (lambda: pose_matrix(torch.ones(5)), r"pose must have shape \(..., 6\), got \(5,\)"),
    (lambda: sample(torch.ones(3, 5, 7), torch.ones(3, 5, 7)), r"got shapes \(3, 5, 7\) and \(3, 5, 7\)"),
])
def test_bad_shapes_are_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize("call, said", [
    (lambda: backproject([[1.0]], K), "depth must be a floating-point tensor, got list"),
    (lambda: pose_matrix(torch.ones(6, dtype=torch.long)), "pose must be a floating-point tensor, got torch.int64"),
    (lambda: sample(torch.ones(3, 5, 7, dtype=torch.uint8), torch.ones(2, 5, 7)), "image must be a floating-point tensor, got torch.uint8"),
])
def test_bad_types_are_named(call, said):
    with pytest.raises(TypeError, match=said):
        call()
