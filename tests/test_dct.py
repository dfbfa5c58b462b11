"""Contracts of the cosine transform; the notebook holds the mathematics."""
import numpy as np
import pytest
import scipy.fft
import torch

from robust_general.dct import dct2, idct2

BOTH = [dct2, idct2]


@pytest.mark.parametrize("fn", BOTH)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (8, 7), (2, 3, 6, 5), (0, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_keeps_shape_and_dtype(fn, shape, dtype):
    x = torch.randn(shape).to(dtype)
    out = fn(x)
    assert (out.shape, out.dtype) == (x.shape, dtype) and out.is_contiguous()
    eps = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), fn(x.double()), rtol=eps, atol=eps)
    assert fn(x.to("meta")).shape == x.shape and fn(x.to("meta")).is_meta


@pytest.mark.parametrize("dtype, eps", [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_agrees_with_scipy_at_every_size(dtype, eps):
    for h in range(1, 40):
        x = torch.randn(2, h, 41 - h, dtype=dtype)
        true = scipy.fft.dctn(x.double().numpy(), axes=(-2, -1), norm="ortho")
        assert np.abs(dct2(x).numpy() - true).max() < eps * np.abs(true).max()
        assert (idct2(dct2(x)) - x).abs().max() < eps * x.abs().max()


@pytest.mark.parametrize("fn", BOTH)
def test_strides_do_not_matter(fn):
    x = torch.randn(5, 6, 3).movedim(-1, 0)
    torch.testing.assert_close(fn(x), fn(x.contiguous()))
    torch.testing.assert_close(fn(x.mT), fn(x).mT)


def test_arrays_come_back_as_arrays():
    x = np.random.default_rng(0).random((4, 5), dtype=np.float32)
    assert isinstance(dct2(x), np.ndarray) and dct2(x).dtype == np.float32
    assert idct2(dct2(np.eye(3, dtype=int))).dtype == np.float64


def test_the_default_device_does_not_matter():
    with torch.device("meta"):
        x = dct2(torch.ones(5, 11, device="cpu"))
    assert x.device.type == "cpu"


def test_compiles_to_the_same_numbers_at_every_size():
    def fn(x):
        return idct2(dct2(x).square())

    torch._dynamo.reset()
    compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")
    for shape in ((2, 4, 4), (2, 7, 5), (1, 16, 3)):
        x, g = torch.rand(shape, requires_grad=True), torch.rand(shape)
        assert torch.equal(compiled(x), fn(x))
        assert torch.equal(torch.autograd.grad(compiled(x), x, g)[0], torch.autograd.grad(fn(x), x, g)[0])


@pytest.mark.parametrize("fn", BOTH)
def test_function_transforms(fn):
    x, t = torch.rand(2, 4, 5, 6)
    torch.testing.assert_close(torch.func.vmap(fn, in_dims=-1, out_dims=-1)(x.movedim(0, -1)), fn(x).movedim(0, -1))
    torch.testing.assert_close(torch.func.jvp(fn, (x,), (t,))[1], fn(t))
    torch.testing.assert_close(torch.func.jacfwd(fn)(x[0]), torch.func.jacrev(fn)(x[0]))
    torch.library.opcheck(getattr(torch.ops.robust_general, fn.__name__).default, (x.requires_grad_(), False))


@pytest.mark.parametrize("fn", BOTH)
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (3, 4, 0)])
def test_wrong_shapes_are_named(fn, shape):
    with pytest.raises(ValueError) as error:
        fn(torch.rand(shape))
    assert str(shape) in str(error.value)


def test_wrong_types_are_named():
    for dtype in (torch.uint8, torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=r"\(4, 4\)"):
            dct2(torch.zeros(4, 4, dtype=dtype))
