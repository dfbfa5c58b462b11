"""Contracts of the wavelet transform, and agreement with PyWavelets; the notebook holds the mathematics."""
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from robust_general.wavelet import (
    _WAVELETS,
    _analyse,
    _check_levels,
    _log_det,
    _most_levels,
    _synthesise,
    wavelet_decompose,
    wavelet_flatten,
    wavelet_reconstruct,
    wavelet_unflatten,
)

WAVELETS = list(_WAVELETS)
SHAPES = [(8, 8), (7, 9), (2, 3, 12, 5), (1, 140, 6), (2, 2), (3, 1, 4), (0, 6, 6)]


def bands(pyramid):
    """All tensors of a pyramid."""
    return [pyramid[0], *(b for level in pyramid[1:] for b in level)]


# What goes in, what comes out.


@pytest.mark.parametrize("wavelet", WAVELETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_keeps_shape_and_dtype(wavelet, shape, dtype):
    x = torch.randn(shape).to(dtype)
    pyramid = wavelet_decompose(x, wavelet=wavelet)
    assert len(pyramid) == _most_levels(*shape[-2:]) + 1
    assert all(b.dtype == dtype and b.shape[:-2] == x.shape[:-2] for b in bands(pyramid))
    assert sum(b.numel() for b in bands(pyramid)) == x.numel()
    back = wavelet_reconstruct(pyramid, wavelet)
    assert (back.shape, back.dtype) == (x.shape, dtype) and back.is_contiguous()
    eps = 8 * torch.finfo(dtype).eps
    if x.numel():
        assert (back.double() - x.double()).abs().max() < eps * x.abs().max()
        true = _analyse(x.double(), wavelet=wavelet)
        assert (wavelet_flatten(pyramid).double() - true).abs().max() < eps * true.abs().max()
    assert [b.shape for b in bands(wavelet_decompose(x.to("meta"), wavelet=wavelet))] == [b.shape for b in bands(pyramid)]


def test_levels_are_those_of_the_rule():
    for h in range(1, 70):
        for w in (1, 2, 7, 64, 65):
            most = math.ceil(math.log2(min(h, w)))
            assert _check_levels((h, w), None) == most == _check_levels((3, h, w), np.int64(most))
            low = wavelet_decompose(torch.zeros(h, w))[0]
            assert min(low.shape) == 1
            with pytest.raises(ValueError, match=rf"shape \(3, {h}, {w}\) allows 0 to {most} levels, got {most + 1}"):
                wavelet_decompose(torch.zeros(3, h, w), most + 1)


@pytest.mark.parametrize("shape", [(3, 17, 20), (2, 150, 131)])
def test_strides_and_batch_do_not_matter(shape):
    x = torch.randn(5, *shape, dtype=torch.float64)
    y = _analyse(x, 3)
    torch.testing.assert_close(_analyse(x.mT, 3), y.mT)
    torch.testing.assert_close(_analyse(x.transpose(0, 1), 3), y.transpose(0, 1))
    torch.testing.assert_close(_analyse(x[1, 1], 3), y[1, 1])
    torch.testing.assert_close(_analyse(x[..., 1:, 2:].contiguous(), 2), _analyse(x[..., 1:, 2:], 2))


def test_chunks_of_a_large_batch_agree(monkeypatch):
    x = torch.randn(10, 24, 20)
    y = _analyse(x, 4)
    monkeypatch.setattr("robust_general.wavelet._CHUNK", 3 * 24 * 20)
    torch.testing.assert_close(_analyse(x, 4), y)
    torch.testing.assert_close(_synthesise(y, 4), x, rtol=0, atol=3e-6)


def test_strips_agree_with_the_whole_matrix(monkeypatch):
    from robust_general import wavelet

    x = torch.randn(2, 131, 264, dtype=torch.float64)
    for name in WAVELETS:
        for options in ((False, False), (False, True), (True, False), (True, True)):
            wavelet._strips.cache_clear()
            strips = wavelet._transform(x, options[0], 3, name, options[1], False)
            monkeypatch.setattr(wavelet, "_LONG", 10**6)
            wavelet._strips.cache_clear()
            whole = wavelet._transform(x, options[0], 3, name, options[1], False)
            monkeypatch.undo()
            torch.testing.assert_close(strips, whole, rtol=0, atol=1e-13)
    wavelet._strips.cache_clear()


def test_inputs_are_left_alone():
    x = torch.randn(2, 9, 8)
    before = x.clone()
    mosaic = _analyse(x)
    kept = mosaic.clone()
    _synthesise(mosaic)
    wavelet_reconstruct(wavelet_unflatten(mosaic))
    assert torch.equal(x, before) and torch.equal(mosaic, kept)
    still = wavelet_decompose(x, 0)[0]
    still += 1
    assert torch.equal(x, before)


def test_arrays_come_back_as_arrays():
    x = np.random.default_rng(0).random((2, 9, 8), dtype=np.float32)
    pyramid = wavelet_decompose(x, 2)
    assert all(isinstance(b, np.ndarray) and b.dtype == np.float32 for b in bands(pyramid))
    np.testing.assert_allclose(wavelet_reconstruct(pyramid), x, atol=1e-6)
    assert wavelet_decompose(np.eye(8, dtype=np.uint8))[0].dtype == np.float64


def test_tuples_and_pickles_are_pyramids():
    x = torch.randn(8, 8)
    low, *details = pickle.loads(pickle.dumps(wavelet_decompose(x, 2)))
    torch.testing.assert_close(wavelet_reconstruct((low, *map(list, details))), x)


# Derivatives.


@pytest.mark.parametrize("wavelet", WAVELETS)
@pytest.mark.parametrize("normalize", [False, True])
def test_gradients(wavelet, normalize):
    x = torch.randn(1, 5, 6, dtype=torch.float64, requires_grad=True)
    decompose = lambda x: tuple(bands(wavelet_decompose(x, 2, wavelet, normalize)))  # noqa: E731
    assert gradcheck(decompose, x, check_forward_ad=True) and gradgradcheck(decompose, x, fast_mode=True)
    pieces = [b.detach().requires_grad_() for b in decompose(x)]

    def reconstruct(low, *rest):
        return wavelet_reconstruct([low, rest[:3], rest[3:]], wavelet, normalize)

    assert gradcheck(reconstruct, pieces, fast_mode=True) and gradgradcheck(reconstruct, pieces, fast_mode=True)


def test_bands_without_gradient_count_as_zero():
    x = torch.randn(6, 7, requires_grad=True)
    wavelet_decompose(x, 2)[2][1].sum().backward()
    y = x.detach().requires_grad_()
    mask = wavelet_unflatten(torch.zeros(6, 7), 2)
    mask[2][1].fill_(1)
    (_analyse(y, 2) * wavelet_flatten(mask)).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_function_transforms():
    x, t = torch.randn(2, 4, 9, 6, dtype=torch.float64)
    f = lambda x: _analyse(x, 3)  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(f, in_dims=-1, out_dims=-1)(x.movedim(0, -1)), f(x).movedim(0, -1))
    torch.testing.assert_close(torch.func.vmap(torch.func.vmap(f))(x[None])[0], f(x))
    torch.testing.assert_close(torch.func.jvp(f, (x,), (t,))[1], f(t))
    torch.testing.assert_close(torch.func.jacfwd(f)(x[0]), torch.func.jacrev(f)(x[0]))
    quadratic = lambda x: wavelet_flatten(wavelet_decompose(x, 3)).square().sum()  # noqa: E731
    hessian = torch.func.hessian(quadratic)(x[0])
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(quadratic, x[0]))
    each = torch.func.vmap(torch.func.grad(quadratic))(x)
    torch.testing.assert_close(each[2], torch.func.grad(quadratic)(x[2]))


# Compilers, modes, devices.


def test_compiles_to_the_same_numbers_at_every_size():
    def loss(x):
        pyramid = wavelet_decompose(x, 2)
        mosaic = wavelet_flatten(pyramid)
        return mosaic.abs().mean() + pyramid[1][0].square().sum() + (wavelet_reconstruct(pyramid) - x).sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True)
    for shape in ((2, 8, 8), (2, 9, 14), (3, 16, 6), (2, 140, 5)):
        x = torch.randn(shape, requires_grad=True)
        value, true = compiled(x), loss(x)
        torch.testing.assert_close(value, true, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(torch.autograd.grad(value, x)[0], torch.autograd.grad(true, x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("levels, wavelet", [(2, "cdf97"), (1, "haar")])
def test_compiled_transform_is_equal_to_the_last_bit(levels, wavelet):
    def there_and_back(x):
        pyramid = wavelet_decompose(x, levels, wavelet)
        return wavelet_flatten(pyramid), wavelet_reconstruct(pyramid, wavelet)

    torch._dynamo.reset()
    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    for shape in ((2, 8, 8), (2, 11, 14), (5, 140, 9)):
        x, g = torch.randn(shape, requires_grad=True), torch.randn(shape)
        for got, true in zip(compiled(x), there_and_back(x)):
            assert torch.equal(got, true)
            assert torch.equal(torch.autograd.grad(got, x, g, retain_graph=True)[0], torch.autograd.grad(true, x, g, retain_graph=True)[0])


def test_exports_with_any_batch():
    class Model(torch.nn.Module):
        def forward(self, x):
            return wavelet_decompose(x, 2)

    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(Model(), (torch.randn(2, 8, 10),), dynamic_shapes=[{0: batch}])
    x = torch.randn(5, 8, 10)
    for got, true in zip(bands(program.module()(x)), bands(wavelet_decompose(x, 2))):
        assert torch.equal(got, true)


def test_operator_registration():
    for args in ((False, 2, "cdf97", False, False), (True, 1, "haar", True, True), (False, 0, "legall53", False, False)):
        torch.library.opcheck(torch.ops.robust_general.wavelet.default, (torch.randn(2, 5, 6, requires_grad=True), *args))


def test_fake_and_inference_tensors_leave_nothing_behind():
    from torch._subclasses.fake_tensor import FakeTensorMode

    from robust_general.wavelet import _strips

    _strips.cache_clear()
    with FakeTensorMode():
        assert wavelet_decompose(torch.randn(2, 20, 20), 2)[0].shape == (2, 5, 5)
    with torch.inference_mode():
        wavelet_decompose(torch.randn(2, 20, 20), 2)
    with torch.device("meta"):
        wavelet_decompose(torch.randn(2, 20, 20, device="cpu"), 3)
    x = torch.randn(2, 20, 20, requires_grad=True)
    wavelet_reconstruct(wavelet_decompose(x, 3)).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x), rtol=0, atol=1e-5)


def test_autocast_does_not_reach_the_products():
    x = torch.randn(2, 16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, half = _analyse(x), _analyse(x.bfloat16())
    assert torch.equal(inside, _analyse(x)) and half.dtype == torch.float32


def test_works_without_pywavelets():
    code = "import sys; sys.modules['pywt'] = None; from robust_general.wavelet import _analyse; import torch; _analyse(torch.ones(4, 4))"
    subprocess.run([sys.executable, "-c", code], check=True)


# Accuracy.


@pytest.mark.parametrize("wavelet", WAVELETS)
def test_determinant_is_one_at_every_size(wavelet):
    for h in range(2, 66):
        assert abs(_log_det((h, 64), None, wavelet)) < 1e-8 and abs(_log_det((h, 67 - h), None, wavelet)) < 1e-8


def exact_bank(pywt):
    """PyWavelets' bior4.4 with our digits: its own are rounded to about 5e-13."""
    taps = np.asarray(_analyse(torch.eye(32 * 32, dtype=torch.float64).view(-1, 32, 32), 1)[:, 8, 8].view(32, 32)).sum(1) / math.sqrt(2)
    details = np.asarray(_analyse(torch.eye(32 * 32, dtype=torch.float64).view(-1, 32, 32), 1)[:, 24, 8].view(32, 32)).sum(1) / math.sqrt(2)
    low, high = np.r_[0.0, taps[12:21]], np.r_[0.0, -details[14:21], 0.0, 0.0]
    sign = (-1.0) ** np.arange(10)
    return pywt.Wavelet("exact", filter_bank=[low, high, high * sign, -low * sign])


@pytest.mark.parametrize("shape", [(64, 64), (80, 96), (65, 81)])
@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("wavelet", ["bior4.4", "exact", "haar"])
def test_interior_agrees_with_pywavelets(shape, levels, wavelet):
    pywt = pytest.importorskip("pywt")
    x = torch.rand(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours = wavelet_decompose(x, levels, "haar" if wavelet == "haar" else "cdf97")
    theirs = pywt.wavedec2(x.numpy(), exact_bank(pywt) if wavelet == "exact" else wavelet, mode="periodization", level=levels)
    signs = [1] + [-1, -1, 1] * levels
    inner, pairs = (slice(None), slice(5, -5), slice(5, -5)), []
    for mine, their, sign in zip(bands(ours), bands(theirs), signs):
        h, w = mine.shape[-2:]  # at odd sizes PyWavelets has one row and column more
        pairs.append((mine.numpy()[inner].ravel(), sign * their[:, :h, :w][inner].ravel()))
    mine, their = map(np.concatenate, zip(*pairs))
    assert len(mine) > 500
    # PyWavelets' bior4.4 has 12 good digits: its highpass sums to 1.4e-12, its own round trip is off by 3e-12. With all digits it agrees to rounding.
    eps = 5e-12 if wavelet == "bior4.4" else 5e-15
    assert np.abs(mine - their).max() < eps * np.abs(their).max()


def test_one_level_is_part_of_pywavelets_reflecting_one():
    """Also at the border: PyWavelets computes more coefficients than there are samples, ours are among them."""
    pywt = pytest.importorskip("pywt")
    x = torch.rand(24, 30, dtype=torch.float64)
    low, (horizontal, vertical, diagonal) = wavelet_decompose(x, 1)
    their_low, (h, v, d) = pywt.dwt2(x.numpy(), exact_bank(pywt), mode="reflect")
    inner = (slice(2, 14), slice(2, 17))
    for mine, their, sign in ((low, their_low, 1), (horizontal, h, -1), (vertical, v, -1), (diagonal, d, 1)):
        np.testing.assert_allclose(mine.numpy(), sign * their[inner], rtol=0, atol=1e-14)


# What is refused.


@pytest.mark.parametrize("fn", [wavelet_decompose, _synthesise])
def test_wrong_input_is_named(fn):
    for shape in ((), (3,), (0, 4), (3, 4, 0)):
        with pytest.raises(ValueError) as error:
            fn(torch.rand(shape))
        assert str(shape) in str(error.value)
    for dtype in (torch.uint8, torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=r"\(4, 4\)"):
            fn(torch.zeros(4, 4, dtype=dtype))
    for levels in (-1, 4, 100):
        with pytest.raises(ValueError, match=rf"shape \(2, 7, 9\) allows 0 to 3 levels, got {levels}"):
            fn(torch.rand(2, 7, 9), levels)
    for levels in (1.0, "2", (1,)):
        with pytest.raises(TypeError, match="levels"):
            fn(torch.rand(8, 8), levels)
    with pytest.raises(ValueError, match="'sym4'"):
        fn(torch.rand(8, 8), wavelet="sym4")


def test_broken_pyramids_are_named():
    low, details = wavelet_decompose(torch.rand(2, 9, 7), 1)
    assert wavelet_flatten([low, details]).shape == (2, 9, 7)
    for broken in ([low, details[:2]], [low[..., 1:], details], [low[:1], details], [low, details[::-1]], [low[..., :0, :], details]):
        with pytest.raises(ValueError, match="bands"):
            wavelet_flatten(broken)
    with pytest.raises(ValueError, match=r"\(5,\)"):
        wavelet_unflatten(torch.zeros(5), 1)
