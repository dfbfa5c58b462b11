"""Contracts of the colour conversion; the notebook holds the mathematics."""
import numpy as np
import pytest
import torch

from robust_general.color import _linear, rgb_to_yuv, yuv_to_rgb

BOTH = [rgb_to_yuv, yuv_to_rgb]


@pytest.mark.parametrize("fn", BOTH)
@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 5, 4), (2, 3, 4, 6), (2, 1, 3, 4, 4), (0, 3, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_keeps_shape_and_dtype(fn, shape, dtype):
    x = torch.rand(shape).to(dtype)
    out = fn(x)
    assert (out.shape, out.dtype) == (x.shape, dtype) and out.is_contiguous()
    eps = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), fn(x.double()), rtol=eps, atol=eps)
    assert fn(x.to("meta")).shape == x.shape and fn(x.to("meta")).is_meta


@pytest.mark.parametrize("fn", BOTH)
def test_strides_do_not_matter(fn):
    x = torch.rand(2, 5, 6, 3).movedim(-1, -3)
    assert torch.equal(fn(x), fn(x.contiguous()))
    assert torch.equal(fn(x.mT), fn(x).mT)


def test_arrays_come_back_as_arrays():
    x = np.random.default_rng(0).random((3, 4, 5), dtype=np.float32)
    out = rgb_to_yuv(x)
    assert isinstance(out, np.ndarray) and out.dtype == np.float32
    np.testing.assert_array_equal(out, rgb_to_yuv(torch.tensor(x)).numpy())
    pixels = np.full((3, 2, 2), 255, np.uint8)
    assert yuv_to_rgb(rgb_to_yuv(pixels)).dtype == np.float64


def test_compiles_to_the_same_numbers_at_every_size():
    def fn(x):
        return yuv_to_rgb(rgb_to_yuv(x).square())

    torch._dynamo.reset()
    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")
    for shape in ((2, 3, 4, 4), (2, 3, 7, 5), (1, 3, 16, 3)):
        x, g = torch.rand(shape, requires_grad=True), torch.rand(shape)
        assert torch.equal(compiled(x), fn(x))
        assert torch.equal(torch.autograd.grad(compiled(x), x, g)[0], torch.autograd.grad(fn(x), x, g)[0])


@pytest.mark.parametrize("fn", BOTH)
def test_function_transforms(fn):
    x, t = torch.rand(2, 4, 3, 5, 6)
    torch.testing.assert_close(torch.func.vmap(fn, in_dims=-1, out_dims=-1)(x.movedim(0, -1)), fn(x).movedim(0, -1))
    torch.testing.assert_close(torch.func.jvp(fn, (x,), (t,))[1], fn(t))
    torch.testing.assert_close(torch.func.jacfwd(fn)(x[0, :, :2, :2]), torch.func.jacrev(fn)(x[0, :, :2, :2]))


def test_autocast_does_not_reach_the_matrix():
    x = torch.rand(2, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, half = rgb_to_yuv(x), rgb_to_yuv(x.bfloat16())
    assert torch.equal(inside, rgb_to_yuv(x)) and half.dtype == torch.float32


def test_operator_registration():
    _linear("test_scale", ", float by", lambda x, adjoint, by: (x * by).contiguous())
    op = torch.ops.robust_general.test_scale.default
    torch.library.opcheck(op, (torch.rand(3, requires_grad=True), False, 2.0))
    torch.library.opcheck(torch.ops.robust_general.yuv.default, (torch.rand(2, 3, 4, 4, requires_grad=True), False, True))


@pytest.mark.parametrize("fn", BOTH)
@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 4, 4), (8, 4, 4, 3), (3, 0, 4)])
def test_wrong_shapes_are_named(fn, shape):
    with pytest.raises(ValueError) as error:
        fn(torch.rand(shape))
    assert str(shape) in str(error.value)


def test_wrong_types_are_named():
    for dtype in (torch.uint8, torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=r"\(3, 4, 4\)"):
            rgb_to_yuv(torch.zeros(3, 4, 4, dtype=dtype))
    with pytest.raises(TypeError, match="x must be"):
        rgb_to_yuv(np.full((3, 4, 4), "a"))
