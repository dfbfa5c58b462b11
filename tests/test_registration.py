"""Contracts of registration: kinds of input, batches, seeds, damaged files; the notebook holds the mathematics."""
import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch

from robust_general.registration import (
    Registration,
    consistent_triples,
    make_pair,
    mutual_nearest,
    read_features,
    read_log,
    read_pair,
    register,
)

PAIR = make_pair(200, outliers=0.7, noise=0.01, random_state=0)
ARRAYS = ["rotation", "translation", "transform", "weights", "inliers", "rmse", "cost", "scale"]


def close(a, b, eps=1e-12):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("restarts", [None, 3])
def test_output_is_what_the_input_was(dtype, tensors, restarts):
    p, q, c = PAIR.p.astype(dtype), PAIR.q.astype(dtype), PAIR.correspondences
    args = [torch.tensor(o) for o in (p, q, c)] if tensors else [p, q, c]
    found = register(*args, restarts=restarts, random_state=0)
    kind = torch.Tensor if tensors else (np.ndarray, np.generic)
    for name in ARRAYS:
        a = getattr(found, name)
        assert isinstance(a, kind), name
        want = "bool" if name == "inliers" else np.dtype(dtype).name
        assert str(a.dtype).split(".")[-1] == want, name
    lead = () if restarts is None else (restarts,)
    shapes = dict(rotation=(3, 3), translation=(3,), transform=(4, 4), weights=(200,), inliers=(200,), rmse=(), cost=())
    for name, shape in shapes.items():
        assert tuple(getattr(found, name).shape) == lead + shape, name
    assert {k: tuple(v.shape) for k, v in found.history.items()} == {
        "alpha": (64,), "scale": (64,), **{k: lead + (64,) for k in ("cost", "turn", "shift")}}
    close(found.transform, register(PAIR.p, PAIR.q, c, restarts=restarts, random_state=0).transform, 1e-4)


@pytest.mark.parametrize("make", [list, torch.tensor, lambda o: np.asarray(o, np.float16)])
def test_other_kinds_of_points(make):
    p = [[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3]]
    found = register(make(p), make(p), random_state=0)
    close(np.asarray(found.transform, float), np.eye(4), 1e-3)


def test_tensors_that_require_grad():
    found = register(torch.tensor(PAIR.p, requires_grad=True), PAIR.q, PAIR.correspondences, random_state=0)
    assert isinstance(found.transform, torch.Tensor) and not found.transform.requires_grad


def test_seeds():
    run = lambda seed: register(*PAIR[:3], restarts=2, random_state=seed).transform  # noqa: E731
    np.testing.assert_array_equal(run(3), run(3))
    np.testing.assert_array_equal(run(3), run(np.random.default_rng(3)))
    assert not np.array_equal(run(3), run(4))
    assert not np.array_equal(*run(3))


def test_many_pairs_are_one_batch():
    pairs = [make_pair(n, outliers=0.6, random_state=n) for n in (100, 150, 40)]
    p, q, c, _ = (list(o) for o in zip(*pairs))
    together = register(p, q, c, restarts=2, random_state=5)
    assert [type(o) for o in together] == [Registration] * 3
    for o, pair, rng in zip(together, pairs, np.random.default_rng(5).spawn(3)):
        alone = register(*pair[:3], restarts=2, random_state=rng)
        for name in ARRAYS:
            close(getattr(o, name), getattr(alone, name), 1e-9)


def test_many_pairs_with_their_own_weights_scales_and_schedules():
    pairs = [make_pair(n, outliers=0.5, noise=0.01, random_state=n) for n in (100, 60)]
    p, q, c, _ = (list(o) for o in zip(*pairs))
    scales, weights = [0.02, np.full(60, 0.1)], [np.linspace(0, 1, 100), None]
    together = register(p, q, c, scale=scales, weight=weights, triples=None)
    for i, o in enumerate(together):
        alone = register(p[i], q[i], c[i], scale=scales[i], weight=weights[i], triples=None)
        close(o.transform, alone.transform, 1e-9)
        assert o.history["alpha"].shape == alone.history["alpha"].shape
    assert len(together[0].history["alpha"]) > len(together[1].history["alpha"])  # a smaller scale takes longer
    with pytest.raises(ValueError, match="2 clouds p, but 1 q"):
        register(p, q[:1], c)


def test_units_do_not_matter():
    a = register(*PAIR[:3], random_state=0)
    b = register(PAIR.p * 1e3 + 7, PAIR.q * 1e3, PAIR.correspondences, random_state=0)
    close(a.rotation, b.rotation, 1e-9)
    close(a.weights, b.weights, 1e-9)
    assert b.rmse == pytest.approx(a.rmse * 1e3) and b.scale == pytest.approx(a.scale * 1e3)


@pytest.mark.parametrize("kw", [{}, {"anneal": "shape"}, {"anneal": [2.0, (0.0, 2.0), -2.0]}, {"alpha": -math.inf}, {"alpha": 2.0, "anneal": None},
                                {"alpha": 0.0, "polish": 5}, {"scale": 1e-9, "alpha": -math.inf, "anneal": None}, {"iterations": 1}])
def test_everything_stays_finite(kw):
    found = register(*PAIR[:3], random_state=0, **kw)
    for name in ("transform", "weights", "cost"):
        assert np.isfinite(getattr(found, name)).all(), name
    for k, v in found.history.items():
        if k != "alpha":
            assert np.isfinite(v).all(), k
    close(found.rotation @ found.rotation.T, np.eye(3))
    assert np.isfinite(found.rmse) or not found.inliers.any()


def test_no_triple_agrees():
    rng = np.random.default_rng(0)
    p = rng.normal(size=(4, 3))
    with pytest.warns(UserWarning, match="all of them are used"):
        found = register(p, 10 * rng.normal(size=(4, 3)), random_state=0)
    assert found.weights.shape == (4,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register(p, p, random_state=0)


def test_fields_and_pickling():
    runs = register(*PAIR[:3], restarts=3, random_state=0)
    best = runs.best()
    i = int(np.argmin(runs.cost))
    np.testing.assert_array_equal(best.transform, runs.transform[i])
    np.testing.assert_array_equal(best.history["turn"], runs.history["turn"][i])
    assert best.best() is best
    close(best(PAIR.q), PAIR.q @ best.rotation.T + best.translation)
    assert runs(PAIR.q).shape == (3, 200, 3)
    np.testing.assert_array_equal(best.inliers, np.linalg.norm(PAIR.p[PAIR.correspondences[:, 0]] - best(PAIR.q)[PAIR.correspondences[:, 1]], axis=1) <= best.scale)
    for other in (pickle.loads(pickle.dumps(best)), copy.deepcopy(best)):
        np.testing.assert_array_equal(other.weights, best.weights)
    with pytest.raises(AttributeError):
        best.rmse = 0


def test_input_is_left_alone():
    args = [o.copy() for o in PAIR[:3]]
    register(*args, weight=np.ones(200), polish=2, random_state=0)
    for a, b in zip(args, PAIR):
        np.testing.assert_array_equal(a, b)


P = PAIR.p
LINE = np.arange(5.0)[:, None] * [[1, 2, 3]]


@pytest.mark.parametrize("args, kw, error, said", [
    ((P, P[:2]), {}, ValueError, "200 and 2"),
    ((P[:2], P[:2]), {}, ValueError, "at least 3 correspondences are needed, got 2"),
    ((P, P, np.empty((0, 2), int)), {}, ValueError, "got 0"),
    ((P[:3], P[:3]), {"weight": [1, 1, 0]}, ValueError, "of positive weight are needed, got 2"),
    ((LINE, P[:5]), {}, ValueError, "p are collinear"),
    ((P[:5], (LINE + 1000).astype(np.float32)), {}, ValueError, "q are collinear"),
    ((P[:5], np.ones((5, 3))), {}, ValueError, "q coincide"),
    ((P, P, [[0, 0], [0, 1], [0, 2]]), {}, ValueError, "p coincide"),
    ((np.where(P == P[3], np.inf, P), P), {}, ValueError, "p must be finite, got inf in row 3"),
    ((P[:, :2], P), {}, ValueError, r"p must have shape \(n, 3\), got \(200, 2\)"),
    ((P, P[None]), {}, ValueError, r"q must have shape \(n, 3\), got \(1, 200, 3\)"),
    ((P, P, [[0, 0], [1, 1], [2, 200]]), {}, ValueError, r"correspondences\[2, 1\] is 200, but q has 200 points"),
    ((P, P, [[0, 0], [-1, 1], [2, 2]]), {}, ValueError, r"correspondences\[1, 0\] is -1"),
    ((P, P, np.eye(3, 2)), {}, TypeError, "integers"),
    ((P, P, np.eye(3, dtype=int)), {}, ValueError, r"shape \(k, 2\), got \(3, 3\)"),
    ((P.astype(complex), P), {}, TypeError, "real numbers, got complex"),
    ((P, P), {"features": (P, P[1:])}, ValueError, "q has 200 points but 199 features"),
    ((P, P), {"features": (P, P[:, :2])}, ValueError, r"b must have shape \(n, 3\)"),
    ((P, P, [[0, 0]]), {"features": (P, P)}, ValueError, "not both"),
    ((P, P), {"scale": -1.0}, ValueError, "scale must be finite and positive, got -1.0"),
    ((P, P), {"scale": np.ones(3)}, ValueError, r"scale must be a number or have shape \(200,\)"),
    ((P, P), {"weight": np.full(200, np.nan)}, ValueError, "weight must be finite and not negative, got nan"),
    ((P, P), {"alpha": math.nan}, ValueError, "at most 2, where every match counts alike, got nan"),
    ((P, P), {"anneal": "alpha"}, ValueError, "got 'alpha'"),
    ((P, P), {"anneal": [(0.0, -1.0)]}, ValueError, r"got \(0.0, -1.0\)"),
    ((P, P), {"iterations": 0}, ValueError, "iterations must be at least 1, got 0"),
    ((P, P), {"restarts": 0}, ValueError, "restarts must be at least 1, got 0"),
])
def test_bad_input(args, kw, error, said):
    with pytest.raises(error, match=said):
        register(*args, **kw)


def test_matching_kinds():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 8)).astype(np.float32), rng.normal(size=(40, 8)).astype(np.float32)
    m = mutual_nearest(a, b)
    t = mutual_nearest(torch.tensor(a), torch.tensor(b))
    assert isinstance(t, torch.Tensor) and t.dtype == torch.int64
    np.testing.assert_array_equal(m, t)
    np.testing.assert_array_equal(m[:, ::-1], sorted(map(tuple, mutual_nearest(b, a)), key=lambda r: r[1]))
    np.testing.assert_array_equal(mutual_nearest(a, a), np.arange(30)[:, None].repeat(2, 1))
    np.testing.assert_array_equal(mutual_nearest(a[:1], b[:1]), [[0, 0]])
    np.testing.assert_array_equal(mutual_nearest(a + 1e6, b + 1e6)[:, 0], np.unique(mutual_nearest(a + 1e6, b + 1e6)[:, 0]))
    with pytest.raises(ValueError, match="nothing to match"):
        mutual_nearest(a[:0], b)


def test_triples_stop():
    p = PAIR.p
    assert len(consistent_triples(p, p, limit=7, random_state=0)) == 7
    assert consistent_triples(p, p * 2, random_state=0).shape == (0, 3)
    assert len(consistent_triples(p, p, draws=1, random_state=0)) <= len(p)


@pytest.fixture
def cloud(tmp_path):
    f = tmp_path / "features_0000.bin"
    f.write_bytes(np.array([5, 4], "<i4").tobytes() + np.arange(35, dtype="<f4").tobytes())
    return f


def test_features(cloud):
    p, f = read_features(str(cloud))
    assert (p.shape, f.shape, p.dtype) == ((5, 3), (5, 4), np.float32)
    p[0] = 1  # not a view of read-only bytes


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 147])
def test_truncated_features(cloud, cut):
    cloud.write_bytes(cloud.read_bytes()[:cut])
    with pytest.raises(ValueError, match=f"features_0000.bin: .*ends.*, at byte {cut}$"):
        read_features(cloud)


@pytest.mark.parametrize("head", [(-1, 33), (5, -4), (5, 0), (0, 33), (5, 2**30)])
def test_foreign_features(cloud, head):
    cloud.write_bytes(np.array(head, "<i4").tobytes() + cloud.read_bytes()[8:])
    with pytest.raises(ValueError, match="not a file of features, at byte [04]$"):
        read_features(cloud)


GOOD = "0 1 2\n1 0 0 .5\n0 1 0 0\n0 0 1 0\n0 0 0 1\n"


def test_log(tmp_path):
    f = tmp_path / "gt.log"
    f.write_text(GOOD + GOOD.replace("0 1 2", "1 2 3") + "\n")
    got = read_log(f)
    assert list(got) == [(0, 1), (1, 2)] and got[0, 1][0, 3] == 0.5


@pytest.mark.parametrize("text, said", [
    (b"", "empty, in line 1 at byte 0"),
    (GOOD[:20].encode(), "in line"),
    (GOOD.encode() + b"1 2\n", "in line 6 at byte 39"),
    (GOOD.replace(".5", "x").encode(), "in line 2 at byte 6"),
    (GOOD.replace("1 0 0 .5", "1 0 0 nan").encode(), "in line 2 at byte 6"),
    (GOOD.replace("0 0 0 1", "0 0 0 2").encode(), "in line 5 at byte 31"),
    (GOOD.replace("0 1 0 0", "0 3 0 0").encode(), "not a rotation, in line 2"),
    (bytes(range(256)), "in line 1 at byte 0"),
])
def test_damaged_log(tmp_path, text, said):
    f = tmp_path / "gt.log"
    f.write_bytes(text)
    with pytest.raises(ValueError, match=f"gt.log: .*{said}"):
        read_log(f)


def test_pairs(tmp_path):
    f = tmp_path / "pair.npz"
    np.savez(f, p=PAIR.p, q=PAIR.q, corr=PAIR.correspondences.astype(np.uint16), T=PAIR.transform)
    got = read_pair(f)
    np.testing.assert_array_equal(got.correspondences, PAIR.correspondences)
    np.savez(f, p=PAIR.p)
    with pytest.raises(ValueError, match="pair.npz: not a matched pair"):
        read_pair(f)
    f.write_bytes(b"PK")
    with pytest.raises(ValueError, match="pair.npz: not a matched pair"):
        read_pair(f)
    with pytest.raises(FileNotFoundError):
        read_pair(tmp_path / "none.npz")
