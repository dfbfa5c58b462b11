"""Contracts of the clustering estimator; the notebook holds the mathematics."""
import math
import os
import pickle
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from robust_general.clustering import RobustContinuousClustering, _pynndescent, edge_loss, edge_scale, edge_weight, mutual_graph, nearest, preprocess


@parametrize_with_checks([RobustContinuousClustering()])
def test_sklearn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    return load_digits().data[:500]


@pytest.fixture(scope="module")
def fitted(digits):
    return RobustContinuousClustering().fit(digits)


def test_what_is_learnt(digits, fitted):
    n, d = digits.shape
    assert fitted.labels_.shape == (n,) and set(fitted.labels_) == set(range(fitted.n_clusters_))
    assert list(dict.fromkeys(fitted.labels_)) == list(range(fitted.n_clusters_))  # numbered as they appear
    assert fitted.representatives_.shape == (n, d) and np.isfinite(fitted.representatives_).all()
    assert sp.issparse(fitted.graph_) and fitted.graph_.shape == (n, n) and (fitted.graph_ != fitted.graph_.T).nnz == 0
    assert {len(v) for v in fitted.history_.values()} == {fitted.n_iter_}
    assert isinstance(fitted.n_clusters_, int)


def test_representatives_of_a_cluster_gather(digits, fitted):
    spread = lambda Z: sum(((Z[fitted.labels_ == k] - Z[fitted.labels_ == k].mean(0)) ** 2).sum() for k in range(fitted.n_clusters_))
    unit = digits * (digits.shape[1] ** 0.5 / np.linalg.norm(digits, axis=1, keepdims=True))
    assert spread(fitted.representatives_) < 0.1 * spread(unit)


def test_fit_twice_and_pickle_and_clone(digits, fitted):
    assert (pickle.loads(pickle.dumps(fitted)).labels_ == fitted.labels_).all()
    assert (clone(fitted).fit_predict(digits) == fitted.labels_).all()


@pytest.mark.parametrize("make", [np.float32, sp.csr_matrix, sp.csc_matrix, sp.coo_matrix, np.asfortranarray, np.ndarray.tolist])
def test_any_kind_of_input(digits, fitted, make):
    assert adjusted_rand_score(RobustContinuousClustering().fit_predict(make(digits)), fitted.labels_) == 1


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("solver", ["cg", "direct"])
def test_solvers_and_threads_agree(digits, fitted, solver, n_jobs):
    assert (RobustContinuousClustering(solver=solver, n_jobs=n_jobs).fit_predict(digits) == fitted.labels_).all()


def test_more_dimensions_than_points():
    X, y = make_blobs(60, 300, centers=3, cluster_std=2.0, random_state=0)
    labels = [RobustContinuousClustering(n_neighbors=5, solver=s).fit_predict(X) for s in ("cg", "direct")]
    assert (labels[0] == labels[1]).all() and adjusted_rand_score(labels[0], y) == 1


@pytest.mark.parametrize("dtype, value", [(np.float32, 1e-40), (bool, True), (int, 1), (float, -0.5), (np.uint8, 128), (np.uint8, 255), (np.int8, -128)])
def test_connectivity(digits, fitted, dtype, value):
    """Any entry but 0 is an edge, also one whose double overflows."""
    graph = (fitted.graph_ > 0).astype(dtype)
    graph.data[:] = value
    for g in (graph, graph.toarray(), sp.triu(graph), graph + sp.eye(len(digits), dtype=dtype)):
        assert (RobustContinuousClustering().fit(digits, connectivity=g).labels_ == fitted.labels_).all()


def test_no_edges_no_clusters(digits):
    n = len(digits)
    assert (RobustContinuousClustering().fit(digits, connectivity=sp.csr_matrix((n, n))).labels_ == np.arange(n)).all()


def shuffled(X):
    """The same matrix with unsorted columns, and entries in two parts; neither may be written to."""
    X = sp.csr_matrix(X, dtype=float)
    g = np.random.default_rng(0)
    order = np.concatenate([a + g.permutation(b - a) for a, b in zip(X.indptr, X.indptr[1:])])
    out = sp.csr_matrix((np.repeat(X.data[order] / 2, 2), np.repeat(X.indices[order], 2), 2 * X.indptr), X.shape)
    for a in (out.data, out.indices, out.indptr):
        a.setflags(write=False)
    return out


def test_sparse_input_stays_as_it_is(digits, fitted):
    X, graph = shuffled(digits), shuffled(fitted.graph_)
    kept = [o.indices.copy() for o in (X, graph)]
    assert not X.has_canonical_format and not graph.has_canonical_format
    assert adjusted_rand_score(RobustContinuousClustering().fit_predict(X), fitted.labels_) == 1
    assert (RobustContinuousClustering().fit(digits, connectivity=graph).labels_ == fitted.labels_).all()
    assert adjusted_rand_score(RobustContinuousClustering().fit_predict(X, connectivity=graph), fitted.labels_) == 1
    assert all((o.indices == k).all() for o, k in zip((X, graph), kept))


@pytest.mark.parametrize("shape", [(3, 3), (500, 499)])
def test_connectivity_of_the_wrong_shape(digits, shape):
    with pytest.raises(ValueError, match=f"500 by 500, got {shape[0]} by {shape[1]}"):
        RobustContinuousClustering().fit(digits, connectivity=np.ones(shape))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_approximate_neighbours(digits, metric):
    """The real package, which compiles for a while when it is first asked."""
    pytest.importorskip("pynndescent")
    exact, found = (RobustContinuousClustering(neighbors=how, metric=metric).fit(digits) for how in ("exact", "pynndescent"))
    common = (exact.graph_ > 0).multiply(found.graph_ > 0).nnz
    assert common > 0.97 * exact.graph_.nnz and adjusted_rand_score(exact.labels_, found.labels_) > 0.9
    i, d = _pynndescent(digits, 10, metric)
    assert i.shape == d.shape == (len(digits), 10) and not (i == np.arange(len(digits))[:, None]).any() and (np.diff(d, axis=1) >= 0).all()


def test_approximate_neighbours_of_duplicates():
    """So many that a point is not among its own neighbours; they stay together all the same."""
    pytest.importorskip("pynndescent")
    X = np.repeat(np.eye(4, 8), 30, 0)
    assert (RobustContinuousClustering(neighbors="pynndescent").fit_predict(X) == np.repeat(range(4), 30)).all()


def test_approximate_neighbours_of_a_sparse_matrix(digits):
    pytest.importorskip("pynndescent")
    exact, found = (RobustContinuousClustering(neighbors=how).fit(sp.csr_matrix(digits)) for how in ("exact", "pynndescent"))
    assert (exact.graph_ > 0).multiply(found.graph_ > 0).nnz > 0.97 * exact.graph_.nnz


def test_approximate_neighbours_that_are_missing(digits, monkeypatch):
    """pynndescent marks those it has not found with -1."""

    class Fails:
        def __init__(self, X, n_neighbors, **kw):
            i, d = nearest(X, n_neighbors)
            i[:3, -1] = -1
            self.neighbor_graph = i, d

    monkeypatch.setitem(sys.modules, "pynndescent", SimpleNamespace(NNDescent=Fails))
    with pytest.raises(RuntimeError, match="fewer than 10 neighbours for 3 of 500 points"):
        RobustContinuousClustering(neighbors="pynndescent").fit(digits)


def test_approximate_neighbours_not_installed(digits, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynndescent", None)
    with pytest.raises(ImportError, match="needs the package pynndescent"):
        RobustContinuousClustering(neighbors="pynndescent").fit(digits)


def test_neighbours_of_ones_own(digits, fitted):
    asked = []

    def mine(X, n_neighbors, metric, n_jobs):
        asked.append((n_neighbors, metric))
        return nearest(X, n_neighbors, metric)

    assert (RobustContinuousClustering(neighbors=mine).fit_predict(digits) == fitted.labels_).all()
    assert asked == [(10, "cosine")]


@pytest.mark.parametrize(
    "answer, said",
    [
        (lambda i, d: (i[:-1], d[:-1]), r"500 rows and equal shapes, got \(499, 10\) and \(499, 10\)"),
        (lambda i, d: (i, d[:, 1:]), r"equal shapes, got \(500, 10\) and \(500, 9\)"),
        (lambda i, d: (i - i[3, 4] - 1, d), "indices from 0 to 499, got -"),
        (lambda i, d: (i + 0.5, d), "indices from 0 to 499, got .*5"),
        (lambda i, d: (i + 500, d), "indices from 0 to 499, got"),
        (lambda i, d: (i, d * math.nan), "finite distances, got nan"),
    ],
)
def test_neighbours_that_cannot_be(digits, answer, said):
    with pytest.raises(ValueError, match=said):
        RobustContinuousClustering(neighbors=lambda *a: answer(*nearest(*a))).fit(digits)


def test_neighbours_as_lists_or_tensors(digits, fitted):
    for make in (lambda a: a.tolist(), torch.as_tensor):
        assert (RobustContinuousClustering(neighbors=lambda *a: map(make, nearest(*a))).fit_predict(digits) == fitted.labels_).all()


def test_verbose(capsys):
    X = load_iris().data
    n = RobustContinuousClustering(verbose=True).fit(X).n_iter_
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "150 points in 4 dimensions" and lines[1].endswith("edges")
    assert len(lines) == n + 2 and all(l.startswith("iteration") and "objective" in l for l in lines[2:])
    RobustContinuousClustering().fit(X)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "parameters, error, said",
    [
        (dict(alpha=2.5), ValueError, "at most 2, got 2.5"),
        (dict(alpha=math.nan), ValueError, "at most 2, got nan"),
        (dict(alpha="robust"), TypeError, "got 'robust'"),
        (dict(alpha=-math.inf, scale_map="knee"), ValueError, "finite alpha below 2, got -inf"),
        (dict(alpha=2.0, scale_map="knee"), ValueError, "finite alpha below 2, got 2.0"),
        (dict(scale_map="other"), ValueError, "got 'other'"),
        (dict(metric="manhattan"), ValueError, "got 'manhattan'"),
        (dict(preprocessing="unit"), ValueError, "got 'unit'"),
        (dict(solver="lu"), ValueError, "got 'lu'"),
        (dict(neighbors="guess"), ValueError, "got 'guess'"),
        (dict(n_neighbors=0), ValueError, "n_neighbors must be an integer of at least 1, got 0"),
        (dict(n_neighbors=2.5), ValueError, "got 2.5"),
        (dict(n_neighbors=True), ValueError, "n_neighbors must be an integer of at least 1, got True"),
        (dict(neighbors=["exact"]), ValueError, r"got \['exact'\]"),
        (dict(lam_min=None), TypeError, "lam_min must be a number, got None"),
        (dict(solver_tol="small"), TypeError, "solver_tol must be a number, got 'small'"),
        (dict(max_iter=0), ValueError, "max_iter"),
        (dict(inner_iter=-1), ValueError, "inner_iter"),
        (dict(solver_tol=0.0), ValueError, "solver_tol must be below 1 and at least 1e-7, single precision, got 0.0"),
        (dict(solver_tol=1e-30), ValueError, "got 1e-30"),
        (dict(objective_tol=-1.0), ValueError, "objective_tol"),
        (dict(lam_min=-1.0), ValueError, "lam_min"),
    ],
)
def test_bad_parameters(parameters, error, said):
    with pytest.raises(error, match=said):
        RobustContinuousClustering(**parameters).fit(load_iris().data)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_not_finite(bad, make):
    X = load_iris().data.copy()
    X[3, 1] = bad
    with pytest.raises(ValueError, match="NaN|infinity"):
        RobustContinuousClustering().fit(make(X))


@pytest.mark.parametrize("how", ["scale", "minmax"])
def test_no_columns_of_a_sparse_matrix(how):
    with pytest.raises(ValueError, match=f"{how!r} is not defined for a sparse X"):
        RobustContinuousClustering(preprocessing=how).fit(sp.csr_matrix(load_iris().data))


@pytest.mark.parametrize("n", [2, 3, 9, 10, 11])
def test_fewer_samples_than_neighbours(n):
    """All others are neighbours then."""
    found = RobustContinuousClustering().fit(np.random.default_rng(0).normal(size=(n, 5)))
    assert found.labels_.shape == (n,) and found.graph_.nnz == (n * (n - 1) if n <= 11 else None)


@pytest.mark.filterwarnings("ignore:the longest edge")
def test_one_cluster():
    X = 100 + np.random.default_rng(0).normal(size=(200, 20))
    assert RobustContinuousClustering().fit(X).n_clusters_ == 1


@pytest.mark.parametrize("copies", [2, 15, 60])  # more than neighbours, more than a leaf of the tree
@pytest.mark.parametrize("dimensions", [4, 40])  # tree and blocks
def test_duplicates_stay_together(copies, dimensions):
    X = np.random.default_rng(0).normal(size=(6, dimensions))
    labels = RobustContinuousClustering().fit_predict(np.tile(X, (copies, 1))).reshape(copies, 6)
    assert (labels == labels[0]).all()


def test_all_equal():
    found = RobustContinuousClustering().fit(np.ones((50, 3)))
    assert found.n_clusters_ == 1 and found.n_iter_ == 1 and len(found.history_["mu"]) == 0


@pytest.mark.parametrize("how", ["scale", "minmax"])
def test_constant_columns(how):
    """They become zeros, and all else is as without them."""
    X = load_iris().data
    plain, more = (RobustContinuousClustering(metric="euclidean", preprocessing=how).fit(Z) for Z in (X, np.hstack([X, np.full((150, 2), 7.0)])))
    assert (plain.labels_ == more.labels_).all()
    assert np.allclose(more.representatives_[:, :4], plain.representatives_, atol=1e-5) and np.allclose(more.representatives_[:, 4:], 0, atol=1e-6)


@pytest.mark.parametrize("noise", [1e-5, 1e-4, 1e-3])
def test_near_duplicates(noise):
    """Every edge is short against the points themselves: clumps, not as many clusters as points."""
    X = np.repeat(np.eye(3, 8), 40, 0) + noise * np.random.default_rng(0).normal(size=(120, 8))
    assert (RobustContinuousClustering().fit_predict(X) == np.repeat(range(3), 40)).all()


@pytest.mark.filterwarnings("ignore:the longest edge")
@pytest.mark.parametrize("offset", [100, 150, 1000])
@pytest.mark.parametrize("make", [np.asarray, np.float32, sp.csr_matrix])
def test_far_from_the_origin(offset, make):
    X = offset + np.random.default_rng(0).normal(size=(200, 20))
    assert RobustContinuousClustering().fit(make(X)).n_clusters_ == 1


@pytest.mark.parametrize("make", [np.asarray, np.float32, sp.csr_matrix, lambda X: sp.csr_matrix(X.astype(np.float32))])
@pytest.mark.parametrize("gap, offset", [(2e4, 0.0), (20.0, 1000.0)])
def test_neighbours_in_tiny_clusters(gap, offset, make):
    """Clusters small against the distance between them, or from the origin: rounding must not lose a neighbour."""
    X = np.random.default_rng(0).normal(size=(300, 40)) + offset + gap * (np.arange(300) < 150)[:, None]
    X = make(X)
    full = (X.toarray() if sp.issparse(X) else X).astype(np.float64)
    d = np.linalg.norm(full[:, None] - full, axis=2) + 1e9 * np.eye(300)
    i, _ = nearest(X, 10, "euclidean")
    assert np.allclose(np.sort(np.take_along_axis(d, i, 1)), np.sort(d)[:, :10], rtol=1e-3 * np.finfo(X.dtype).eps / 1e-7)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("gap, offset, unit", [(1e8, 0, 1), (0, 1e12, 1), (0, 0, 1e-30), (0, 0, 1e25), (0, 0, 1e-200), (0, 0, 1e200)])
def test_neighbours_where_products_cancel_or_overflow(gap, offset, unit, make):
    X = (np.random.default_rng(0).normal(size=(300, 40)) + offset + gap * (np.arange(300) < 150)[:, None]) * unit
    d = np.linalg.norm((X / unit)[:, None] - X / unit, axis=2) + 1e12 * np.eye(300)
    i, found = nearest(make(X), 10, "euclidean")
    # Far from the origin many distances are equal to the last digit, so it is they that are compared.
    assert np.allclose(np.take_along_axis(d, i, 1), np.sort(d)[:, :10], rtol=1e-9) and np.allclose(found / unit, np.sort(d)[:, :10], rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, bool, np.float16])
def test_neighbours_of_small_integers(digits, dtype):
    X = (digits[:200] * (7 if dtype != bool else 1)).astype(dtype)
    for metric in ("cosine", "euclidean"):
        got, want = nearest(X, 5, metric), nearest(X.astype(float), 5, metric)
        assert np.allclose(got[1], want[1]) and (got[1][:, 1:] >= got[1][:, :-1]).all()


@pytest.mark.parametrize("n_neighbors", [0, 30, 31])
@pytest.mark.parametrize("dimensions", [3, 30])
def test_as_many_neighbours_as_there_are(n_neighbors, dimensions):
    with pytest.raises(ValueError, match=f"less than the number of rows, 30, got {n_neighbors}"):
        nearest(np.random.default_rng(0).normal(size=(30, dimensions)), n_neighbors)


def test_directions_that_hardly_differ():
    X = np.ones((300, 40)) + 3e-5 * np.random.default_rng(0).normal(size=(300, 40))
    Z = X / np.linalg.norm(X, axis=1, keepdims=True)
    d = np.linalg.norm(Z[:, None] - Z, axis=2) + 9 * np.eye(300)
    assert (nearest(X, 10)[0] == np.argsort(d)[:, :10]).mean() > 0.999


@pytest.mark.parametrize("unit", [1e-9, 1e-14, 1e-30, 1e20, 1e-200, 1e200])
def test_units_do_not_matter_to_directions(digits, fitted, unit):
    for dtype in (np.float64,) if abs(math.log10(unit)) > 30 else (np.float32, np.float64):
        for make in (np.asarray, sp.csr_matrix):
            assert adjusted_rand_score(RobustContinuousClustering().fit_predict(make((digits * unit).astype(dtype))), fitted.labels_) > 0.99


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_units_of_rows_do_not_matter_to_directions(digits, fitted, dtype, make):
    """Some short, some long, all in one matrix."""
    far = 1e-30 if dtype == np.float32 else 1e-250
    units = np.array([1.0, 1e-9, far, 1e-14, 1 / far])[np.arange(len(digits)) % 5, None]
    X = make((digits * units).astype(dtype))
    assert np.allclose(np.linalg.norm(preprocess(X).toarray() if sp.issparse(X) else preprocess(X), axis=1), 8)
    assert adjusted_rand_score(RobustContinuousClustering().fit_predict(X), fitted.labels_) > 0.99


@pytest.mark.parametrize("dimensions, copies", [(3, 100), (3, 800), (20, 100), (40, 100)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("solver", ["cg", "direct"])
def test_points_of_one_direction_are_one(dimensions, copies, dtype, solver):
    """They differ by rounding alone, and there are more of them than neighbours."""
    g = np.random.default_rng(0)
    X = (np.repeat(g.normal(size=(6, dimensions)), copies, 0) * g.uniform(0.1, 10, (6 * copies, 1))).astype(dtype)
    for make in (np.asarray, sp.csr_matrix):
        assert (RobustContinuousClustering(solver=solver).fit_predict(make(X)) == np.repeat(range(6), copies)).all()


def test_distinct_points_far_from_the_origin_are_not_equal():
    """As coordinates on a map, in single precision: only directions are compared up to rounding."""
    y = np.repeat(range(3), 200)
    X = np.array([[0, 0], [6, 0], [0, 6]])[y] + 0.5 * np.random.default_rng(0).normal(size=(600, 2))
    for offset in (5e5, 5e6):
        Z = (X + offset).astype(np.float32)
        graph = RobustContinuousClustering(metric="euclidean", preprocessing=None).fit(Z).graph_.tocoo()
        assert (y[graph.row] == y[graph.col]).all()


@pytest.mark.parametrize("make", [lambda g: np.eye(300)[g.integers(0, 300, 2000)], lambda g: sp.random(2000, 500, 0.004, "csr", random_state=0)])
def test_ties_are_not_settled_one_by_one(make, monkeypatch):
    """Rows at right angles are all equally far: there is nothing to find out."""
    asked = []
    monkeypatch.setattr("robust_general.clustering._settle", lambda *a: asked.append(a))
    i, d = nearest(make(np.random.default_rng(0)))
    assert not asked and np.isfinite(d).all()


@pytest.mark.parametrize("unit", [1e-20, 1e20])
def test_units_beyond_single_precision(digits, unit):
    with pytest.raises(ValueError, match=f"entries of X reach 1.6e.{abs(int(math.log10(unit))) + int(math.copysign(1, unit - 1))}"):
        RobustContinuousClustering(metric="euclidean", preprocessing=None).fit(digits * unit)


def test_units_too_large_for_the_schedule(digits):
    with pytest.warns(UserWarning, match="the longest edge is .*give X a smaller unit and set preprocessing=None"):
        RobustContinuousClustering(metric="euclidean", preprocessing=None).fit(digits * 1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RobustContinuousClustering().fit(digits)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_rows_of_zeros(digits, make):
    X = np.vstack([digits[:200], np.zeros((20, 64))])
    labels = RobustContinuousClustering().fit_predict(make(X))
    assert len(set(labels[200:])) == 1 and labels[200] not in labels[:200]


@pytest.mark.parametrize("dimensions", [5, 50])
def test_zero_rows_are_far_from_all(dimensions):
    X = np.abs(np.random.default_rng(0).normal(size=(50, dimensions)))
    X[7] = 0
    i, d = nearest(X, 5)
    assert np.allclose(d[7], 2**0.5) and not (np.delete(i, 7, 0) == 7).any()


@pytest.mark.parametrize("alpha", [2.0, 1.0, 0.0, -2.0, -1e9, -math.inf])
def test_weights_of_long_and_short_edges_are_finite(alpha):
    d = np.array([0.0, 1e-300, 1e-10, 1.0, 1e10, 1e150])
    w, loss = edge_weight(d, 1e-3, alpha), edge_loss(d, 1e-3, alpha)
    assert np.isfinite(w).all() and w[0] == 1 and loss[0] == 0 and not np.isnan(loss).any()
    assert edge_scale(1e-3, alpha) > 0


def test_graph_spans_what_the_neighbours_span():
    X = np.random.default_rng(0).normal(size=(100, 2))
    i, d = nearest(X, 3, "euclidean")
    from scipy.sparse.csgraph import connected_components

    listed = sp.csr_matrix((np.ones(300), (np.repeat(np.arange(100), 3), i.ravel())), (100, 100))
    assert connected_components(mutual_graph(i, d), directed=False)[0] == connected_components(listed, directed=False)[0]


def test_import_without_sklearn():
    code = "import robust_general, sys; assert not any(m.split('.')[0] in ('sklearn', 'joblib', 'pynndescent', 'dask') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("alpha", [-1e3, -1e4, -1e300])
@pytest.mark.parametrize("solver", ["cg", "direct"])
def test_edges_that_all_stop_counting(digits, alpha, solver):
    """With a fixed knee and a power like that every weight is 0: no edge moves anything."""
    found = RobustContinuousClustering(alpha, scale_map="knee", solver=solver).fit(digits)
    assert found.n_clusters_ > 400 and np.isfinite(found.representatives_).all() and np.isfinite(found.history_["objective"]).all()


@pytest.mark.parametrize("inner_iter", [1, 2, 4])
def test_the_schedule_ends(digits, inner_iter):
    assert RobustContinuousClustering(inner_iter=inner_iter).fit(digits).n_iter_ < 100


def test_a_schedule_cut_short_says_so(digits):
    with pytest.warns(ConvergenceWarning, match="max_iter=5 iterations end the schedule at mu=.*raise max_iter"):
        RobustContinuousClustering(max_iter=5).fit(digits)


@pytest.mark.parametrize("solver_tol", [1e-6, 1e-7])
def test_more_than_single_precision_can_do(digits, solver_tol):
    """Asked for too much, conjugate gradients stop where they get no further."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = RobustContinuousClustering(solver="cg", solver_tol=solver_tol).fit(digits)
    assert (found.labels_ == RobustContinuousClustering(solver="direct").fit(digits).labels_).all()


_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread, current_thread
import numpy as np, torch
from threadpoolctl import threadpool_info
from robust_general import clustering

threads = lambda: (torch.get_num_threads(), sorted((o["user_api"], o["filepath"], o["num_threads"]) for o in threadpool_info()))
X, anneal, before = np.random.default_rng(0).normal(size=(300, 20)), clustering._anneal, threads()
fit = lambda: clustering.RobustContinuousClustering(solver="cg").fit(X).labels_
fit()
assert before[0] == 2 and {n for _, _, n in before[1]} == {2} and threads() == before, (before, threads())
"""

_ORDER = """
entered, leave, seen = {k: Event() for k in "ab"}, {k: Event() for k in "ab"}, {}

def waits(*a):
    me = current_thread().name
    seen[me] = torch.get_num_threads()
    entered[me].set()
    assert leave[me].wait(60)
    return anneal(*a)

def one(me):
    first = threads()[0]
    fit()
    seen[me + " after"] = first == threads()[0]

clustering._anneal = waits
fits = {k: Thread(target=one, args=(k,), name=k) for k in "ab"}
for k in "ab":
    fits[k].start()
    assert entered[k].wait(60)
for k in sys.argv[1]:
    leave[k].set()
    fits[k].join()
assert seen["a"] == seen["b"] == 1 and seen["a after"] and seen["b after"], seen
"""

_FAILS = """
def fails(*a):
    assert torch.get_num_threads() == 1 and {n for _, _, n in threads()[1]} == {1}, threads()
    raise RuntimeError("stop")

clustering._anneal = fails
try: fit()
except RuntimeError: pass
"""

_MANY = """
with ThreadPoolExecutor(4) as pool: labels = list(pool.map(lambda _: fit(), range(8)))
assert all((o == labels[0]).all() for o in labels)
"""


@pytest.mark.parametrize("code, arguments", [(_ORDER, ["ab"]), (_ORDER, ["ba"]), (_FAILS, []), (_MANY, [])], ids=["first ends first", "first ends last", "fails", "many"])
def test_threads_are_given_back(code, arguments):
    """A fit keeps torch and BLAS to one thread and gives them back: also when it fails, and however fits overlap."""
    code = _THREADS + code + "assert threads() == before, (before, threads())\n"
    env = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")}
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
