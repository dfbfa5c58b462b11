"""The sweep: what is kept, what is computed again, and that a cluster of workers gets the same table."""
import math
import os
import signal
import subprocess
import sys
import time

import joblib
import numpy as np
import pytest

pytest.importorskip("sklearn")
from robust_general import clustering_experiment as experiment
from robust_general.clustering_experiment import baseline, by_data, choose, finished, load_data, sweep, sweep_cell, sweep_grid, table4

GRID = sweep_grid(["iris", "wine"], (1.0, -2.0), ("curvature",))


def plain(rows):
    return [{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in r.items() if k != "cpu"} for r in rows]


_CHILD = """
import sys
from robust_general.clustering_experiment import sweep, sweep_grid
sweep(sweep_grid(["iris", "wine"], (1.0, -2.0), ("curvature",)), sys.argv[1])
"""


def test_a_killed_sweep_goes_on(tmp_path, monkeypatch):
    """A process of its own, killed for real once it has finished a cell."""
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(tmp_path)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    while child.poll() is None and not finished(tmp_path):
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = len(finished(tmp_path))
    assert 0 < before < len(GRID)
    done, fit = [], experiment.RobustContinuousClustering.fit

    def counted(self, X, **kw):
        done.append(self.alpha)
        return fit(self, X, **kw)

    monkeypatch.setattr(experiment.RobustContinuousClustering, "fit", counted)
    rows = sweep(GRID, tmp_path)
    assert len(done) + before == len(GRID) == len(rows)  # nothing twice
    monkeypatch.undo()
    assert plain(rows) == plain(sweep(GRID))


def test_cells_of_other_settings_are_refused(tmp_path, monkeypatch):
    """As after a change of the preprocessing or of a default; nothing is lost, and another folder works."""
    first = sweep_cell("iris", -2.0, "curvature", folder=tmp_path)
    path = tmp_path / "iris-0-curvature--2.0.npz"
    with monkeypatch.context() as m:
        m.setitem(experiment._PREPROCESSING, "iris", "minmax")
        with pytest.raises(ValueError, match=f"{path} was made with preprocessing=norm, not minmax: move it away, or use another folder"):
            sweep_cell("iris", -2.0, "curvature", folder=tmp_path)
        with pytest.raises(ValueError, match="iris-0-graph.npz was made with preprocessing=norm, not minmax"):
            sweep_cell("iris", 0.0, "curvature", folder=tmp_path)
        sweep_cell("iris", -2.0, "curvature", folder=tmp_path / "other")
    assert len(finished(tmp_path / "other")) == 1
    with monkeypatch.context() as m:
        m.setattr(experiment, "__version__", "9.9")
        with pytest.raises(ValueError, match="was made with version=.*, not 9.9"):
            sweep_cell("iris", -2.0, "curvature", folder=tmp_path)
    assert plain([sweep_cell("iris", -2.0, "curvature", folder=tmp_path)]) == plain([first])
    np.savez(path, a=1)
    with pytest.raises(ValueError, match="was made with version=unknown"):
        sweep_cell("iris", -2.0, "curvature", folder=tmp_path)


def test_shapes_that_hardly_differ_are_two_cells(tmp_path):
    rows = sweep([("iris", a, "curvature", 0) for a in (-2, np.float32(-2), -2.0000001)], tmp_path)
    assert [r["alpha"] for r in rows] == [-2, -2, -2.0000001] and len(finished(tmp_path)) == 2


@pytest.mark.parametrize("cell, said", [(("iris", 3.0, "curvature", 0), "at most 2, got 3.0"), (("iris", 0.0, "bend", 0), "got 'bend'"), (("iris", -math.inf, "knee", 0), "got -inf")])
def test_a_cell_that_cannot_be_is_found_at_once(tmp_path, cell, said):
    with pytest.raises(ValueError, match=said):
        sweep([*GRID, cell], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("copies", [1, 30])
def test_a_cell_is_what_the_estimator_finds(copies):
    """Also where there are more equal points than neighbours."""
    g = np.random.default_rng(0)
    X = np.vstack([np.repeat(g.normal(size=(8, 5)), copies, 0), g.normal(size=(60, 5))])
    row = sweep_cell("iris", -2.0, "curvature", load=lambda name: (X, np.arange(len(X)) % 3))
    assert (row["labels"] == experiment.estimator("iris").fit(X).labels_).all()


def test_half_a_file_is_never_there(tmp_path, monkeypatch):
    def fails(*a, **kw):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError):
        sweep(GRID[:1], tmp_path)
    assert not list(tmp_path.glob("*")) and finished(tmp_path) == []


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_two_workers_share_a_folder(tmp_path, backend):
    """They may write the same cell and the same graph at the same moment."""
    with joblib.parallel_config(backend=backend):
        rows = sweep(GRID * 2, tmp_path, n_jobs=2 if backend == "loky" else 8)
    assert plain(rows[: len(GRID)]) == plain(rows[len(GRID) :]) and len(finished(tmp_path)) == len(GRID)


@pytest.mark.parametrize("workers, threads", [(2, 1), (1, 4)])
def test_dask_gets_the_same_table(tmp_path, workers, threads):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=workers, threads_per_worker=threads, processes=True, dashboard_address=None, local_directory=str(tmp_path)) as cluster:
        with distributed.Client(cluster), joblib.parallel_config(backend="dask"):
            rows = sweep(GRID, tmp_path / "cells")
    assert plain(rows) == plain(sweep(GRID))
    assert len(finished(tmp_path / "cells")) == len(GRID)


def test_seed_shuffles_the_points_only():
    a, b = (sweep_cell("iris", -2.0, "curvature", seed) for seed in (0, 3))
    order = np.random.default_rng(3).permutation(150)
    from sklearn.metrics import adjusted_rand_score

    assert (a["labels"] != b["labels"]).any() and adjusted_rand_score(a["labels"][order], b["labels"]) > 0.9


def test_infinite_alpha_has_a_file(tmp_path):
    row = sweep_cell("iris", -math.inf, "curvature", folder=tmp_path)
    assert plain([sweep_cell("iris", -math.inf, "curvature", folder=tmp_path)]) == plain([row]) and row["alpha"] == -math.inf


def test_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUST_GENERAL_DATA", str(tmp_path))
    for name in ("ytf", "rcv1", "pendigits"):
        with pytest.raises(FileNotFoundError, match="no data here"):
            load_data(name)


@pytest.mark.parametrize("name", ["ytf", "reuters", "rcv1", "mice", "yaleb", "coil100", "mnist"])
def test_loader_reads_what_the_data_looks_like(tmp_path, name):
    g, folder = np.random.default_rng(0), tmp_path / "clustering"
    folder.mkdir()
    X, y = g.integers(0, 255, (40, 1024)).astype(np.uint8), np.arange(40) % 4
    if name in ("reuters", "rcv1"):
        import scipy.sparse as sp

        s = sp.random(40, 30, 0.3, "csr", random_state=0)
        np.savez(folder / f"{name}.npz", data=s.data, indices=s.indices, indptr=s.indptr, shape=s.shape, y=y)
    elif name == "mice":
        Z = g.normal(size=(40, 77))
        Z[3, :50], Z[4, 0] = math.nan, math.nan
        np.savez(folder / f"{name}.npz", X=Z, y=y)
    else:
        np.savez(folder / f"{'mnist70k' if name == 'mnist' else name}.npz", X=X.reshape(40, 32, 32), y=y)
    Z, labels = load_data(name, folder)
    assert Z.shape[0] == len(labels) == (39 if name == "mice" else 40)
    assert np.isfinite(Z.data if name in ("reuters", "rcv1") else Z).all()


def test_baseline_is_kept(tmp_path):
    first = baseline("iris", "k-means", tmp_path)
    assert baseline("iris", "k-means", tmp_path, load=None) == first and finished(tmp_path) == []


def test_table_of_what_there_is():
    rows = [dict(data="mice", map="curvature", alpha=a, seed=0, AMI=v, modularity=-v, agreement=-v) for a, v in ((-2.0, 0.6), ("-inf", 0.7), (0.0, 0.7))]
    done = by_data(rows)
    assert choose(done["mice"])["alpha"] == 0.0 and choose(done["mice"], "modularity")["alpha"] == -2.0
    with pytest.raises(ValueError, match="no cell has the map 'knee'"):
        choose(done["mice"], scale_map="knee")
    table = {r["data"]: r for r in table4(done, {("mice", "Ward"): 0.5})}
    assert len(table) == 9 and table["YTF"]["RCC"] == table["MNIST"]["RCC"] == "no data here"
    mice = table["Mice Protein"]
    assert (mice["RCC"], mice["gRCC*"], mice["Ward"], mice["paper RCC"], mice["gRCC* knee"]) == (0.6, 0.7, 0.5, 0.649, None)
    assert mice["Rel. Impr. %"] == pytest.approx(25)


def test_neighbours_of_text_come_from_its_principal_components(tmp_path):
    import scipy.sparse as sp
    from sklearn.decomposition import PCA

    from robust_general.clustering import mutual_graph, nearest, preprocess

    X = sp.random(300, 150, 0.1, "csr", random_state=0)
    row = sweep_cell("reuters", -2.0, "curvature", folder=tmp_path, load=lambda name: (X, np.arange(300) % 3))
    axes = PCA(100).fit_transform(preprocess(X).toarray())
    assert len(row["labels"]) == 300
    found = experiment._graph("reuters", 0, X, tmp_path)
    of_axes, of_words = (mutual_graph(*nearest(Z)) for Z in (axes, preprocess(X)))
    assert found.multiply(of_axes).nnz > 0.999 * found.nnz > 0.99 * of_axes.nnz and (found != of_words).nnz > 0.1 * found.nnz


def test_mnist_is_scaled_as_its_authors_do(tmp_path):
    g = np.random.default_rng(0)
    X, y = g.integers(0, 256, (200, 30)).astype(np.float32) * np.linspace(0.1, 1, 30, dtype=np.float32), np.arange(200) % 2
    kept = sweep_cell("mnist", -2.0, "curvature", folder=tmp_path, load=lambda name: (X, y))
    assert (kept["labels"] == experiment.estimator("mnist").fit(X).labels_).all()
    assert experiment.estimator("mnist").preprocessing == "minmax" and experiment.estimator("yaleb").preprocessing == "norm"
