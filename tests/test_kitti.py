"""Contracts of the KITTI readers: layouts, damaged and missing files, batches; the notebook holds the formulas."""
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from robust_general.kitti import (
    MINI_STILL,
    Sequence,
    Snippets,
    average_error,
    depth_metrics,
    eigen_test,
    eigen_train,
    evaluate_depth,
    folder_sequence,
    mini_sequence,
    mini_sequences,
    project_lidar,
    raw_sequence,
    read_depth,
    read_split,
)
from robust_general.monodepth_experiment import find_depth_data, load_depth_data

SIZE = (20, 60)
P = np.array([[40.0, 0, 31, 2], [0, 40, 11, 0.1], [0, 0, 1, 0.003]])
R = np.array([[0.0, -1, 0], [0, 0, -1], [1, 0, 0]])  # the laser's forward, left, up to right, down, forward
T = np.array([0.01, -0.08, -0.27])
K = [[40, 0, 31], [0, 40, 11], [0, 0, 1]]


def numbers(name, x):
    return f"{name}: {' '.join(f'{v:.12e}' for v in np.ravel(x))}\n"


def scan(seed):
    """A scan, and the depth map that the mini set's recipe makes of it: nearest wins, 256ths of a metre, 0 for nothing."""
    rng = np.random.default_rng(seed)
    n, (h, w) = 400, SIZE
    u, v, z = rng.uniform(-5, w + 5, n), rng.uniform(-5, h + 5, n), rng.uniform(-10, 90, n)
    camera = np.linalg.solve(P[:, :3], np.stack([u, v, np.ones(n)]) * z - P[:, 3:])
    points = (R.T @ (camera - T[:, None])).T.astype(np.float32)
    depth = np.zeros(SIZE)
    for a, b, d in zip(u, v, z):
        i, j = int(np.round(b)) - 1, int(np.round(a)) - 1
        if d > 0 and 0 <= i < h and 0 <= j < w and (depth[i, j] == 0 or d < depth[i, j]):
            depth[i, j] = d
    return np.concatenate([points, np.ones((n, 1), np.float32)], 1), np.round(depth * 256).astype(np.uint16)


def write_frames(folder, n, size=SIZE, suffix="png", digits=10):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(n):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{i:0{digits}d}.{suffix}")


@pytest.fixture
def raw(tmp_path):
    """Two drives of four frames in the published layout, without depth for the last frame of the first."""
    root = tmp_path / "kitti"
    for drive in ("2011_09_26_drive_0001", "2011_09_26_drive_0013"):
        folder = root / "2011_09_26" / f"{drive}_sync"
        for camera in ("02", "03"):
            write_frames(folder / f"image_{camera}/data", 4)
        scans = folder / "velodyne_points/data"
        scans.mkdir(parents=True)
        for i in range(3):
            scan(i)[0].tofile(scans / f"{i:010d}.bin")
    cams = "calib_time: 09-Jan-2012 13:57:47\n" + numbers("R_rect_00", np.eye(3))
    for camera in ("02", "03"):
        cams += numbers(f"S_rect_{camera}", [SIZE[1], SIZE[0]]) + numbers(f"P_rect_{camera}", P)
    (root / "2011_09_26/calib_cam_to_cam.txt").write_text(cams)
    (root / "2011_09_26/calib_velo_to_cam.txt").write_text(numbers("R", R) + numbers("T", T))
    return root


@pytest.fixture
def mini(tmp_path):
    """A mini set of a training and a test drive; frames a third of the size that the calibration is for."""
    root = tmp_path / "kitti_mini"
    for drive in ("2011_09_26_drive_0005", "odometry_04_part"):
        write_frames(root / drive / "image_02", 4, (7, 20), "jpg")
        (root / drive / "depth_02").mkdir()
        for i in range(4):
            Image.fromarray(scan(i)[1]).save(root / drive / f"depth_02/{i:010d}.png")
        (root / drive / "calib.txt").write_text(numbers("P_rect_02", P) + f"full_size: {SIZE[1]} {SIZE[0]}\n")
    write_frames(root / "2011_09_26_drive_0005/image_03", 4, (7, 20), "jpg")
    with (root / "2011_09_26_drive_0005/calib.txt").open("a") as f:
        f.write(numbers("P_rect_03", P))
    return root


def test_the_jam_is_for_neither(mini):
    shutil.copytree(mini / "2011_09_26_drive_0005", mini / MINI_STILL[0])
    assert {s.name.split()[0] for split in ("train", "test") for s in mini_sequences(split, mini)} == {"2011_09_26_drive_0005", "odometry_04_part"}


def test_eigen_split_of_the_experiment(raw, monkeypatch):
    """The branch of the paper's preset: KITTI's own folder with the three files of the split."""
    (raw / "test_scenes_eigen.txt").write_text("2011_09_26_drive_0013\n")
    (raw / "static_frames.txt").write_text("2011_09_26 2011_09_26_drive_0001_sync 0000000000\n")
    (raw / "test_files_eigen.txt").write_text("2011_09_26/2011_09_26_drive_0013_sync/image_02/data/0000000001.png\n")
    monkeypatch.setenv("ROBUST_GENERAL_DATA", str(raw.parent))
    assert find_depth_data() == str(raw)
    data = load_depth_data("quick")
    assert len(data["train"]) == 2 and data["images"].shape == (1, 3, 32, 104) and data["crop"] and data["data"] == "KITTI, Eigen's split"
    ours, laser = raw_sequence(raw, "2011_09_26_drive_0013").truth(1), data["truths"][0]
    points = scan(1)[0]
    seen = (ours > 0) & (laser > 0)
    assert seen.sum() > 100 and np.isin(laser[seen].astype(np.float32), points[:, 0]).all() and not np.isin(ours[seen].astype(np.float32), points[:, 0]).all()


def test_frames_are_counted(tmp_path):
    film = tmp_path / "film"
    write_frames(film, 3)
    for i, p in enumerate(sorted(film.iterdir())):
        p.rename(film / f"frame{(2, 10, 1)[i]}.png")
    assert [p.name for p in folder_sequence(film, np.eye(3)).frames] == ["frame1.png", "frame2.png", "frame10.png"]


def test_lidar_agrees_with_the_depth_maps(raw, mini):
    ours, theirs = raw_sequence(raw, "2011_09_26_drive_0001"), mini_sequence(mini / "2011_09_26_drive_0005")
    for i in range(3):
        a, b = ours.truth(i), theirs.truth(i)
        assert a.shape == b.shape == SIZE
        assert ((a > 0) == (b > 0)).all() and 100 < (a > 0).sum() < 400
        np.testing.assert_allclose(a, b, atol=1 / 512 + 1e-4)
    assert ours.truth(3) is None and theirs.truth(3) is not None


def test_intrinsics_follow_the_size(mini):
    s = mini_sequence(mini / "2011_09_26_drive_0005")
    np.testing.assert_allclose(s.camera(SIZE), P[:, :3])
    K = s.camera((10, 30))
    np.testing.assert_allclose([K[0, 0], K[0, 2], K[1, 2]], [20, 31.5 / 2 - 0.5, 11.5 / 2 - 0.5])


def test_mini_splits(mini, monkeypatch):
    monkeypatch.setenv("ROBUST_GENERAL_DATA", str(mini.parent))
    assert [s.name for s in mini_sequences("train")] == ["2011_09_26_drive_0005 camera 02", "2011_09_26_drive_0005 camera 03"]
    assert [s.name for s in mini_sequences("test")] == ["odometry_04_part camera 02"]
    assert len(mini_sequences("train", cameras=["02"])) == 1
    with pytest.raises(ValueError, match="got 'val'"):
        mini_sequences("val")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        mini_sequences("train", mini / "nowhere")


def test_eigen_split(raw, tmp_path):
    (tmp_path / "scenes.txt").write_text("2011_09_26_drive_0013\n")
    (tmp_path / "static.txt").write_text("2011_09_26 2011_09_26_drive_0001_sync 0000000000\n\n")
    train = eigen_train(raw, tmp_path / "scenes.txt", tmp_path / "static.txt")
    assert [(s.name, len(s)) for s in train] == [("2011_09_26_drive_0001 camera 02", 3), ("2011_09_26_drive_0001 camera 03", 3)]
    lines = ["2011_09_26/2011_09_26_drive_0013_sync/image_02/data/0000000002.png", "2011_09_26/2011_09_26_drive_0013_sync 1 r",
             "2011_09_26/2011_09_26_drive_0013_sync/image_02/data/0000000000.jpg 2011_09_26/2011_09_26_drive_0013_sync/image_03/data/0000000000.jpg"]
    (tmp_path / "test.txt").write_text("\n".join(lines) + "\n")
    assert [o[1:] for o in read_split(tmp_path / "test.txt")] == [("02", 2), ("03", 1), ("02", 0)]
    left, right = eigen_test(raw, tmp_path / "test.txt")
    assert [p.stem[-1] for p in left.frames] == ["2", "0"] and [p.stem[-1] for p in right.frames] == ["1"]
    assert left.truth(1) is not None


def test_snippets(mini):
    data = Snippets(mini_sequences("train", mini), size=(8, 24))
    assert len(data) == 4
    one, many = data[1], data[np.array([1, 3])]
    assert one["target"].shape == (3, 8, 24) and one["sources"].shape == (2, 3, 8, 24)
    assert {k: v.dtype for k, v in many.items()} == {k: torch.float32 for k in ("target", "sources", "intrinsics")}
    for k in one:
        assert many[k][0].equal(one[k]) and data[torch.tensor([1, 3])][k].equal(many[k]) and data[[1, 3]][k].equal(many[k])
    assert 0 <= many["target"].min() and many["target"].max() <= 1
    five = Snippets(mini_sequences("test", mini)[0][:3], size=(8, 24), cache=False)
    assert len(five) == 1 and not five._frames and five[0:1]["sources"].shape == (1, 2, 3, 8, 24)


def test_batches_of_the_training_chapter(mini):
    training = pytest.importorskip("robust_general.training")
    batches = training.Batches(Snippets(mini_sequences("train", mini), size=(8, 24)), 3, seed=1)
    assert batches(0)["sources"].shape == (3, 2, 3, 8, 24)
    assert all(a.equal(b) for a, b in zip(batches(5).values(), batches(5).values()))


def test_frames_of_other_kinds(tmp_path):
    folder = tmp_path / "film"
    folder.mkdir()
    Image.fromarray(np.zeros(SIZE, np.uint8)).save(folder / "a.png")  # grey
    Image.fromarray(np.zeros((*SIZE, 4), np.uint8)).save(folder / "b.PNG")  # with transparency
    Image.fromarray(np.zeros((*SIZE, 3), np.uint8)).save(folder / "c.jpeg")
    (folder / "notes.txt").write_text("no frame")
    (tmp_path / "K.txt").write_text("40,0,31\n0 40 11\n0 0 1\n")
    s = folder_sequence(folder, tmp_path / "K.txt")
    assert len(s) == 3 and all(s.frame(i).shape == (3, *SIZE) for i in range(3)) and s.truth(0) is None
    np.testing.assert_array_equal(s.intrinsics, K)


def error(kind, said, call):
    with pytest.raises(kind, match=said):
        call()


def test_missing_calibration_is_named(raw, mini, tmp_path):
    (mini / "odometry_04_part/calib.txt").unlink()
    error(FileNotFoundError, r"odometry_04_part/calib\.txt", lambda: mini_sequences("test", mini))
    (raw / "2011_09_26/calib_velo_to_cam.txt").unlink()
    error(FileNotFoundError, r"2011_09_26/calib_velo_to_cam\.txt", lambda: raw_sequence(raw, "2011_09_26_drive_0001"))
    error(FileNotFoundError, r"K\.txt", lambda: folder_sequence(mini / "odometry_04_part/image_02", tmp_path / "K.txt"))


def test_damaged_calibration_is_named(raw, tmp_path, mini):
    file = raw / "2011_09_26/calib_cam_to_cam.txt"
    file.write_text(file.read_text().replace("P_rect_02", "P_rect_01"))
    error(ValueError, r"calib_cam_to_cam\.txt has no entry 'P_rect_02'", lambda: raw_sequence(raw, "2011_09_26_drive_0001"))
    file.write_text("what is this\n")
    error(ValueError, r"calib_cam_to_cam\.txt, line 1: expected 'name: numbers', got 'what is this'", lambda: raw_sequence(raw, "2011_09_26_drive_0001"))
    (tmp_path / "K.txt").write_text("1 2 three")
    error(ValueError, r"K\.txt must hold nine numbers", lambda: folder_sequence(mini / "odometry_04_part/image_02", tmp_path / "K.txt"))


def test_sizes_that_disagree_are_named(raw, mini):
    image = raw / "2011_09_26/2011_09_26_drive_0001_sync/image_02/data/0000000002.png"
    Image.fromarray(np.zeros((20, 61, 3), np.uint8)).save(image)
    s = raw_sequence(raw, "2011_09_26_drive_0001")
    error(ValueError, r"0000000002\.png has 61 by 20 pixels, expected 60 by 20", lambda: Snippets(s, SIZE)[0])
    Image.fromarray(np.zeros((20, 61, 3), np.uint8)).save(image.with_name("0000000000.png"))
    error(ValueError, r"0000000000\.png has 61 by 20 pixels, but .*calib_cam_to_cam\.txt says 60 by 20", lambda: raw_sequence(raw, "2011_09_26_drive_0001"))
    depth = mini / "odometry_04_part/depth_02/0000000000.png"
    Image.fromarray(np.zeros((5, 5), np.uint16)).save(depth)
    error(ValueError, r"depth_02/0000000000\.png has 5 by 5 pixels", lambda: mini_sequences("test", mini)[0].truth(0))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"not a picture" * 20])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_unreadable_frames_are_named(tmp_path, damage, suffix):
    write_frames(tmp_path / "film", 3, suffix=suffix)
    bad = tmp_path / f"film/0000000002.{suffix}"
    bad.write_bytes(damage(bad.read_bytes()))
    data = Snippets(folder_sequence(tmp_path / "film", K), SIZE)
    error(OSError, rf"cannot read the frame .*0000000002\.{suffix}", lambda: data[0])
    bad.unlink()
    error(FileNotFoundError, rf"no frame .*0000000002\.{suffix}", lambda: data[0])


def test_short_sequences_are_named(mini, tmp_path):
    s = mini_sequences("test", mini)[0]
    error(ValueError, r"odometry_04_part camera 02: a snippet has 5 frames, but there are only 4 .*image_02", lambda: Snippets(s, length=5))
    error(ValueError, "got 4", lambda: Snippets(s, length=4))
    (tmp_path / "empty").mkdir()
    error(FileNotFoundError, "no frames .* in .*empty", lambda: folder_sequence(tmp_path / "empty", K))


def test_damaged_scans_and_maps_are_named(raw, mini):
    scan_file = raw / "2011_09_26/2011_09_26_drive_0001_sync/velodyne_points/data/0000000000.bin"
    scan_file.write_bytes(b"\0" * 28)
    error(ValueError, r"0000000000\.bin is no scan", lambda: raw_sequence(raw, "2011_09_26_drive_0001").truth(0))
    image = raw / "2011_09_26/2011_09_26_drive_0001_sync/image_02/data/0000000002.png"
    error(ValueError, "is no depth map", lambda: read_depth(image))


def test_a_sequence_is_not_indexed_by_one_number(mini):
    s = mini_sequences("test", mini)[0]
    assert isinstance(s[1:3], Sequence) and len(s[1:3]) == 2 and len(s[[0, 3]].truths) == 2
    error(TypeError, "use frame", lambda: s[1])


def test_an_empty_scan():
    assert (project_lidar(np.zeros((0, 4)), P, SIZE) == 0).all()


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor, lambda x: torch.as_tensor(x).float()])
def test_scores_of_arrays_and_tensors(make):
    rng = np.random.default_rng(0)
    p, t = rng.uniform(1, 10, (7, 20)), rng.uniform(1, 100, SIZE) * (rng.random(SIZE) > 0.5)
    want = evaluate_depth(p, t)
    got = evaluate_depth(make(p), t)
    assert got.keys() == want.keys() and all(got[k] == pytest.approx(want[k], rel=1e-5) for k in want)


def test_scores_ignore_what_was_not_measured():
    t = np.full(SIZE, 5.0)
    t[10:, ::2], t[11] = np.nan, np.inf
    assert evaluate_depth(np.ones(SIZE), t)["AbsRel"] == 0


def test_a_perfect_score_has_an_average():
    m = depth_metrics(np.ones(3), np.ones(3))
    assert m["AbsRel"] == 0 and m["a1"] == 1 and 0 <= average_error(m) < 1e-200
