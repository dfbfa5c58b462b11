"""Contracts of the autoencoder: devices, dtypes, mixed precision, pickling, compile, and what is refused."""
import copy
import io
import math

import pytest
import torch

from robust_general.training import meta_step
from robust_general.vae import FAMILIES, REPRESENTATIONS, VAE, Decoder, Encoder, MixturePrior, OutputModel, jacobian, step_seconds

MODELS = [(f, r) for f in (*FAMILIES, 1.25) for r in REPRESENTATIONS]


def small(family="general", representation="wavelet", **kw):
    torch.manual_seed(0)
    return VAE(family, representation, 16, **{"latent": 4, "depth": 4, "components": 7, **kw})


@pytest.mark.parametrize("family, representation", MODELS)
@pytest.mark.parametrize("samples", [1, 3])
def test_meta_step(family, representation, samples):
    out = meta_step(small(family, representation, samples=samples), torch.rand(2, 3, 16, 16))
    assert out.keys() >= {"loss", "distortion", "rate"} and all(v.is_meta for v in out.values())


def test_meta_step_of_the_papers_size():
    assert meta_step(VAE("general", "wavelet", 64, samples=16), torch.rand(32, 3, 64, 64))["loss"].shape == ()


@pytest.mark.parametrize("family, representation", MODELS)
def test_every_parameter_gets_a_finite_gradient(family, representation):
    vae = small(family, representation)
    vae(torch.rand(4, 3, 16, 16))["loss"].backward()
    for name, p in vae.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_extreme_parameters_stay_finite(family):
    """Shapes at the ends of their range, tiny and huge scales, and images that are constant."""
    for scale in (1e-7, 1e3):
        vae = small(family, scale_init=scale)
        shape = getattr(vae.output.loss, {"student": "df_latent", "general": "alpha_latent"}.get(family, ""), None)
        for value in (-12.0, 12.0) if shape is not None else (0,):
            with torch.no_grad():
                if shape is not None:
                    shape.fill_(value)
            for x in (torch.zeros(2, 3, 16, 16), torch.ones(2, 3, 16, 16)):
                vae.zero_grad()
                out = vae(x)
                out["loss"].backward()
                assert out["loss"].isfinite() and vae.elbo(x, 2).isfinite().all()
                assert all(p.grad.isfinite().all() for p in vae.parameters())


@pytest.mark.parametrize("family, representation", MODELS)
def test_state_dict_and_deepcopy(family, representation):
    vae, other, x = small(family, representation), small(family, representation, scale_init=0.3), torch.rand(2, 3, 16, 16)
    buffer = io.BytesIO()
    torch.save(vae.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    values = []
    for m in (vae, other, copy.deepcopy(vae)):
        torch.manual_seed(1)
        values.append(m.elbo(x, 2))
    assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2])


def test_double_and_mixed_precision():
    x = torch.rand(4, 3, 16, 16)
    assert small().double()(x.double())["loss"].dtype == torch.float64
    vae = small(scale_init=0.2)
    torch.manual_seed(1)
    plain = vae(x)["loss"]
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = vae(x)["loss"]
    mixed.backward()
    assert mixed.dtype == torch.float32 and abs(mixed - plain) < 0.05 * abs(plain)
    assert all(p.grad.isfinite().all() for p in vae.parameters())


def test_sampling_is_seeded_and_bounded():
    vae = small()
    torch.manual_seed(3)
    a = vae.sample(5)
    torch.manual_seed(3)
    assert torch.equal(a, vae.sample(5)) and 0 <= a.min() and a.max() <= 1 and not a.requires_grad
    noisy = vae.sample(5, noise=True)
    assert noisy.shape == a.shape and noisy.dtype == a.dtype and noisy.isfinite().all()
    assert vae.reconstruct(a).shape == a.shape and vae.reconstruct(a, noise=True).shape == a.shape


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_have_the_scale_they_should(family):
    torch.manual_seed(0)
    model = OutputModel((3, 8, 8), family, "dct", scale_init=0.05)
    r = model.basis.transform(model.sample(torch.full((4000, 3, 8, 8), 0.5)) - 0.5)
    d = model.distribution()
    inside = (r.abs() < d.icdf(torch.tensor(0.75, dtype=torch.float64)) if family != "student" else r.abs() < 0.05).float().mean((0,))
    assert (inside - 0.5).abs().max() < 0.05  # half of the samples lie between the quartiles, for every coefficient


def test_volume_is_preserved():
    for r in REPRESENTATIONS:
        assert abs(torch.linalg.slogdet(jacobian(OutputModel((3, 16, 16), "normal", r)))[1]) < 1e-9


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: VAE(size=24), "power of 2, at least 8, got 24"),
        (lambda: VAE(size=4), "power of 2, at least 8, got 4"),
        (lambda: VAE(samples=0), "samples must be at least 1, got 0"),
        (lambda: VAE("laplace"), "got 'laplace'"),
        (lambda: VAE(representation="rgb"), "got 'rgb'"),
        (lambda: VAE(-1.0), "alpha_bounds"),
        (lambda: small()(torch.rand(2, 3, 8, 8)), r"got \(2, 3, 8, 8\)"),
        (lambda: small().elbo(torch.rand(3, 16, 16)), r"got \(3, 16, 16\)"),
    ],
)
def test_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize("size", [8, 16, 32, 64, 128])
def test_sizes(size):
    assert Encoder(size, 4, 2)(torch.rand(2, 3, size, size)).sample().shape == (2, 4)
    assert Decoder(size, 4, 2)(torch.zeros(2, 4)).shape == (2, 3, size, size)


def test_prior_is_a_density_of_its_samples():
    torch.manual_seed(0)
    p = MixturePrior(2, 5)()
    z = p.sample((20_000,))
    # E_p[uniform density on a box / p] is the part of the box: 1
    box = (z.abs() < 1).all(-1)
    assert math.isclose((box / (4 * p.log_prob(z).exp())).mean().item(), 1.0, abs_tol=0.05)


def test_step_seconds_is_in_turns():
    calls = []

    class Counted(torch.nn.Linear):
        def forward(self, x):
            calls.append(self)
            return {"loss": super().forward(x).sum()}

    models = {"a": Counted(2, 2), "b": Counted(2, 2)}
    out = step_seconds(models, torch.ones(1, 2), rounds=3)
    assert [len(v) for v in out.values()] == [3, 3] and calls == [models["a"], models["b"]] * 5
