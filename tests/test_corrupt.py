"""Every file that the package reads, cut short and with bits flipped: refused by its name, or read as it was.

Where a format has no checksum, a changed number may pass for a number; then what is read must at least be sound.
"""
import importlib.util
import io
import json
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Callable

import numpy as np
import pytest
import torch

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("sklearn")
from robust_general import clustering_experiment as clusters
from robust_general import figures, images, kitti, monodepth_experiment, registration, registration_experiment, spline, training, vae_experiment

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (24, 32, 3), np.uint8)


def picture(path: Path, pixels=PIXELS):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def text(path: Path, content: str):
    path.write_text(content)
    return path


def arrays(path: Path, **content):
    np.savez_compressed(path, **content)
    return path


@dataclass
class Reader:
    make: Callable  # From a folder to the path of a good file in it
    read: Callable  # From the path to what is read
    sound: Callable | None = None  # For formats without checksum: whether what was read can be true


# One file each -----------------------------------------------------------------------------------------------------


def make_spline(folder):
    path = folder / "log_partition.npy"
    path.write_bytes(spline._shipped())
    return path


def read_spline(path):
    """The module, imported once more from a package whose table is this one."""
    spec = importlib.util.spec_from_file_location("robust_general._spline_again", spline.__file__)
    module, files = importlib.util.module_from_spec(spec), resources.files
    resources.files = lambda name: path.parent
    try:
        spec.loader.exec_module(module)
    finally:
        resources.files = files
    return module._TABLES["float64"].numpy()


def make_table(folder):
    return text(folder / "tab_x.json", json.dumps({"rows": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], "provenance": {"data": "none", "seeds": 1}}))


def read_table(path):
    with pytest.MonkeyPatch.context() as m:
        m.setenv("ROBUST_GENERAL_FIGURES", str(path.parent))
        table = figures.load_table("tab_x")
    return [table.rows, table.provenance]


X, Y = RNG.normal(size=(30, 4)).astype(np.float32), RNG.integers(0, 3, 30)
CELL = {"data": "iris", "alpha": -2.0, "map": "curvature", "seed": 0, "AMI": 0.5, "clusters": 3, "labels": np.arange(30, dtype=np.int32)}


def nothing(name):
    raise AssertionError("what is kept should have been read")


def make_celeba(folder):
    text(folder / "list_eval_partition.txt", "000001.jpg 0\n000002.jpg 0\n000003.jpg 1\n")
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as z:
        for k in range(3):
            out = io.BytesIO()
            Image.fromarray(np.random.default_rng(k).integers(0, 256, (218, 178, 3), np.uint8)).save(out, "jpeg", quality=20)
            z.writestr(f"img_align_celeba/00000{k + 1}.jpg", out.getvalue())
    return folder / "img_align_celeba.zip"


def make_partition(folder):
    make_celeba(folder)
    return folder / "list_eval_partition.txt"


def make_cached(folder):
    picture(folder / "photos/a.png"), picture(folder / "photos/b.png", PIXELS[::-1])
    return next(iter([images.load_folder(folder / "photos", size=8, held_out=0.0, cache=folder / "cache"), *(folder / "cache").glob("*.npy")][1:]))


def read_cached(path):
    return images.load_folder(path.parent.parent / "photos", size=8, held_out=0.0, cache=path.parent)[:].numpy()


def make_run(folder, name="run.json"):
    read_run(folder / name)
    return folder / name


def read_run(path):
    """A run of two steps, or what is kept of it."""
    torch.manual_seed(0)

    class Model(torch.nn.Linear):
        def forward(self, x):
            return {"loss": super().forward(x).square().mean()}

    model = Model(3, 1)
    history = training.train(model, training.Batches(torch.ones(4, 3), 2), steps=2, folder=path.parent, log_every=1, device="cpu", progress=False)
    return [history, model.weight.detach().numpy()]


def make_trained(model, config):
    def make(folder):
        torch.save({"model": model().state_dict()}, folder / "checkpoint.pt")
        text(folder / "run.json", json.dumps({"finished": True, "training": {}, "config": config}))
        return folder / "checkpoint.pt"

    return make


def weights(model):
    return [v.numpy() for v in model.state_dict().values()]


VAE = make_trained(lambda: vae_experiment.make_model("normal", "pixel", "quick"), {"family": "normal", "representation": "pixel", "preset": "quick"})
DEPTH = make_trained(lambda: monodepth_experiment.make_monodepth("fixed 1", (32, 104), 0.03),
                     {**monodepth_experiment.PRESETS["quick"], "variant": "fixed 1", "size": [32, 104], "width": 0.03})
MOTION = "0 1 2\n1 0 0 .5\n0 1 0 .25\n0 0 1 -.125\n0 0 0 1\n"
CALIBRATION = "calib_time: 09-Jan-2012 13:57:47\nP_rect_02: 40 0 31 2 0 40 11 .1 0 0 1 .003\nfull_size: 60 20\n"
CAMERAS = "calib_time: 09-Jan-2012 13:57:47\nR_rect_00: 1 0 0 0 1 0 0 0 1\nS_rect_02: 32 24\nP_rect_02: 40 0 31 2 0 40 11 .1 0 0 1 .003\n"
LASER = "calib_time: 15-Mar-2012 11:37:16\nR: 0 -1 0 0 0 -1 1 0 0\nT: .1 .2 .3\n"


def make_drive(folder):
    picture(folder / "image_02/0.png")
    return text(folder / "calib.txt", CALIBRATION)


def read_drive(path):
    drive = kitti.mini_sequence(path.parent)
    return [drive.intrinsics, drive.size]


def make_laser(name):
    def make(folder):
        text(folder / "calib_cam_to_cam.txt", CAMERAS), text(folder / "calib_velo_to_cam.txt", LASER)
        return folder / name

    return make


def make_metrics(folder):
    rows = [{"step": k, "lr": 1e-3, "loss": 0.5 / (k + 1), **({"eval_Avg": 0.4 - 0.01 * k} if k % 2 else {})} for k in range(6)]
    return text(folder / "metrics.csv", training._csv(rows))


def kept(path, found, **parameters):
    clusters._kept(path, lambda: found, **parameters)
    return path


def finite(*shape):
    return lambda x: np.shape(x) == shape and bool(np.isfinite(x).all())


READERS = {
    "table of log Z": Reader(make_spline, read_spline),
    "saved table": Reader(make_table, read_table, lambda t: all(list(r) == list(t[0][0]) for r in t[0])),
    "clustering data": Reader(lambda f: arrays(f / "pendigits.npz", X=X, y=Y), lambda p: list(clusters.load_data("pendigits", p.parent))),
    "cell": Reader(lambda f: kept(clusters._path(f, "iris", -2.0, "curvature", 0), CELL, components=None, **clusters.estimator("iris").get_params()), lambda p: clusters.sweep_cell("iris", -2.0, "curvature", 0, p.parent, nothing)),
    "all cells": Reader(lambda f: kept(f / "iris-0-curvature--2.0.npz", CELL), lambda p: clusters.finished(p.parent)),
    "graph": Reader(lambda f: kept(f / "iris-0-graph.npz", {"indices": np.roll(np.arange(30), -1), "indptr": np.arange(31)}, preprocessing="norm", components=None),
                    lambda p: clusters._graph("iris", 0, X, p.parent).toarray()),
    "baseline": Reader(lambda f: kept(f / "iris-baseline-Ward.npz", dict(data="iris", method="Ward", AMI=0.5, clusters=3), preprocessing="norm"), lambda p: clusters.baseline("iris", "Ward", p.parent, nothing)),
    "cache of pictures": Reader(make_cached, read_cached),
    "png": Reader(lambda f: picture(f / "photos/a.png"), lambda p: images.load_folder(p.parent, size=8, held_out=0.0)[:].numpy()),
    "jpg": Reader(lambda f: picture(f / "photos/a.jpg"), lambda p: images.load_folder(p.parent, size=8, held_out=0.0)[:].numpy(), finite(1, 3, 8, 8)),
    "archive of CelebA": Reader(make_celeba, lambda p: images.load_celeba(p.parent, size=8)[:].numpy()),
    "partition of CelebA": Reader(make_partition, lambda p: images.celeba_splits(p.parent), lambda s: set(s) <= {"train", "valid", "test"}),
    "frame, png": Reader(lambda f: picture(f / "a.png"), lambda p: kitti.read_frame(p, expect=(24, 32)).numpy()),
    "frame, jpg": Reader(lambda f: picture(f / "a.jpg"), lambda p: kitti.read_frame(p, expect=(24, 32)).numpy(), finite(3, 24, 32)),
    "depth map": Reader(lambda f: picture(f / "a.png", PIXELS[..., 0].astype(np.uint16) * 99), kitti.read_depth),
    "scan": Reader(lambda f: [p := f / "a.bin", RNG.normal(size=(40, 4)).astype(np.float32).tofile(p)][0], kitti.read_lidar, lambda x: bool(np.isfinite(x).all())),
    "calibration": Reader(lambda f: text(f / "calib.txt", CALIBRATION), kitti.read_calibration, lambda c: all(np.isfinite(v).all() for v in c.values())),
    "camera of a drive": Reader(make_drive, read_drive, lambda d: bool(np.isfinite(d[0]).all()) and min(d[1]) > 0),
    "cameras of a laser": Reader(make_laser("calib_cam_to_cam.txt"), lambda p: kitti.lidar_projection(p.parent), finite(3, 4)),
    "place of a laser": Reader(make_laser("calib_velo_to_cam.txt"), lambda p: kitti.lidar_projection(p.parent), finite(3, 4)),
    "metrics of a run": Reader(make_metrics, lambda p: list(monodepth_experiment.learning_curve(p.parent)), lambda v: bool(np.isfinite(v).all())),
    "intrinsics": Reader(lambda f: [picture(f / "film/a.png"), text(f / "K.txt", "40 0 31\n0 40 11\n0 0 1\n")][1],
                         lambda p: kitti.folder_sequence(p.parent / "film", p).intrinsics, finite(3, 3)),
    "split": Reader(lambda f: text(f / "test.txt", "2011_09_26/2011_09_26_drive_0002_sync 69 l\n" * 3), kitti.read_split, lambda s: all(len(o) == 3 for o in s)),
    "features": Reader(lambda f: [p := f / "features_0000.bin", p.write_bytes(np.array([5, 4], "<i4").tobytes() + RNG.normal(size=(5, 7)).astype("<f4").tobytes())][0],
                       lambda p: list(registration.read_features(p)), lambda v: all(np.isfinite(o).all() for o in v)),
    "motions": Reader(lambda f: text(f / "gt.log", MOTION), registration.read_log, lambda m: all(np.isfinite(T).all() for T in m.values())),
    "matched pair": Reader(lambda f: arrays(f / "pair.npz", p=X[:, :3], q=X[:, :3], corr=np.zeros((4, 2), np.uint16), T=np.eye(4)), lambda p: list(registration.read_pair(p))),
    "answers": Reader(lambda f: text(f / "answers.json", json.dumps({"answers": {"a": [1.0, 2.0], "b": [3.0]}})), lambda p: registration_experiment.Answers(p).known,
                      lambda k: isinstance(k, dict) and all(np.isfinite(v).all() for v in k.values())),
    "run.json": Reader(make_run, read_run),
    "checkpoint": Reader(lambda f: make_run(f, "checkpoint.pt"), read_run),
    "weights of an autoencoder": Reader(VAE, lambda p: weights(vae_experiment.load_model(p.parent)[0])),
    "weights of a depth network": Reader(DEPTH, lambda p: weights(monodepth_experiment.load_model(p.parent))),
    "run.json of an autoencoder": Reader(lambda f: VAE(f).with_name("run.json"), lambda p: weights(vae_experiment.load_model(p.parent)[0])),
    "run.json of a depth network": Reader(lambda f: DEPTH(f).with_name("run.json"), lambda p: weights(monodepth_experiment.load_model(p.parent))),
}


# What happens to them ----------------------------------------------------------------------------------------------


def same(a, b):
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b)


def restored(path, before):
    """The folder as it was, whatever reading has made or removed."""
    for p in path.parent.glob("*"):
        if p.is_file() and p not in before:
            p.unlink()
    for p, data in before.items():
        p.write_bytes(data)


def damages(reader, folder, versions):
    """What is wrong with how the reader takes each version of the bytes."""
    path = reader.make(folder)
    before = {p: p.read_bytes() for p in path.parent.glob("*") if p.is_file()}
    good, wrong = reader.read(path), []
    assert same(reader.read(path), good)
    for what, data in versions(before[path]):
        restored(path, before)
        path.write_bytes(data)
        try:
            got = reader.read(path)
        except Exception as e:
            named = [path.name, str(path.parent)] + [".jpg"] * (path.suffix == ".zip")  # the file, its folder, or the picture in an archive
            if not any(n in str(e) for n in named):
                wrong.append(f"{what}: {type(e).__name__} does not name it: {e}")
            continue
        if not same(got, good) and not (reader.sound and reader.sound(got)):
            wrong.append(f"{what}: read as something else")
    return wrong


def shorter(data):
    """Empty, a byte, a third, a half, all but three, all but one."""
    n = len(data)
    return [(f"first {k} of {n} bytes", data[:k]) for k in sorted({0, 1, n // 3, n // 2, n - 3, n - 1})]


def flipped(data, count=24):
    rng = np.random.default_rng(1)
    for at in rng.choice(len(data), min(count, len(data)), replace=False):
        bit = int(rng.integers(8))
        yield f"bit {bit} of byte {at} of {len(data)}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@pytest.mark.parametrize("name", READERS)
def test_truncated(tmp_path, name):
    assert damages(READERS[name], tmp_path, shorter) == []


@pytest.mark.parametrize("name", READERS)
def test_flipped_bits(tmp_path, name):
    assert damages(READERS[name], tmp_path, flipped) == []


def test_every_bit_of_finished(tmp_path):
    """The word by which a run is known to be over: any bit of it."""

    def versions(data):
        at = data.index(b'"finished"')
        return [(f"bit {bit} of byte {i}", data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]) for i in range(at, at + 16) for bit in range(8)]

    assert damages(READERS["run.json"], tmp_path, versions) == []
