"""Contracts of the depth experiment: data that is or is not there, runs that are kept, the command line."""
import json

import numpy as np
import pytest
from PIL import Image

from robust_general import monodepth_experiment as exp


@pytest.fixture
def tiny(monkeypatch):
    """A preset of seconds; no data but the street."""
    preset = dict(size=(16, 32), width=0.0625, batch=2, steps=4, street_steps=4, decay=0.5, lr=1e-3, alpha_lr=1e-2, smooth=0.05, normalize=True, streets=2, frames=4, tests=1)
    monkeypatch.setitem(exp.PRESETS, "quick", preset)
    monkeypatch.delenv("ROBUST_GENERAL_DATA", raising=False)


@pytest.fixture
def mini(tmp_path):
    """A mini set of one training and one test drive."""
    rng, root = np.random.default_rng(0), tmp_path / "kitti_mini"
    for drive in ("2011_09_26_drive_0005", "odometry_04_part"):
        (root / drive / "image_02").mkdir(parents=True)
        (root / drive / "depth_02").mkdir()
        (root / drive / "calib.txt").write_text("P_rect_02: 40 0 32 0 0 40 16 0 0 0 1 0\nfull_size: 64 32\n")
        for i in range(4):
            Image.fromarray(rng.integers(0, 256, (16, 32, 3), dtype=np.uint8)).save(root / drive / f"image_02/{i:010d}.jpg")
            Image.fromarray(rng.integers(256, 10000, (32, 64)).astype(np.uint16)).save(root / drive / f"depth_02/{i:010d}.png")
    return root


def test_runs_are_kept(tiny, tmp_path):
    args = dict(preset="quick", source="street", root=tmp_path, device="cpu", progress=False)
    first = exp.run("annealed", **args)
    folder = exp.run_folder(tmp_path, "quick", "street", "annealed", 0)
    assert json.loads((folder / "run.json").read_text())["finished"]
    before = (folder / "checkpoint.pt").read_bytes()
    assert exp.run("annealed", **args) == first and (folder / "checkpoint.pt").read_bytes() == before
    assert exp.load_model(folder).loss.alpha.item() == 0
    assert set(first) == {"variant", "seed", "Avg", "AbsRel", "SqRel", "RMS", "logRMS", "a1", "a2", "a3"}


def test_seeds_differ(tiny, tmp_path):
    a, b = (exp.run("fixed 1", "quick", "street", s, "cpu", tmp_path, progress=False) for s in (0, 1))
    assert a["Avg"] != b["Avg"]


def test_unfinished_runs_are_not_read(tiny, tmp_path):
    exp.run("fixed 1", "quick", "street", root=tmp_path, device="cpu", progress=False)
    file = exp.run_folder(tmp_path, "quick", "street", "fixed 1", 0) / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "finished": False}))
    with pytest.raises(ValueError, match="fixed-1-0 is not finished"):
        exp.load_model(file.parent)


def test_mini_set(tiny, mini, tmp_path, monkeypatch):
    assert exp.find_depth_data() == "street"
    with pytest.raises(FileNotFoundError, match="no mini set"):
        exp.find_depth_data("mini")
    monkeypatch.setenv("ROBUST_GENERAL_DATA", str(mini.parent))
    assert exp.find_depth_data() == exp.find_depth_data("mini") == str(mini)
    data = exp.load_depth_data("quick")
    assert len(data["train"]) == 2 and data["images"].shape == (4, 3, 16, 32) and data["truths"][0].shape == (32, 64) and data["crop"]
    out = exp.run("adaptive", "quick", None, root=tmp_path, device="cpu", data=data, progress=False)
    assert np.isfinite(out["Avg"]) and exp.best_constant(data) < exp.flat_score(data)["AbsRel"]


def test_command_line(tiny, tmp_path, capsys):
    exp.main(["--preset", "quick", "--data", "street", "--root", str(tmp_path), "--variants", "fixed 0", "--device", "cpu"])
    assert capsys.readouterr().out.startswith("fixed 0 0: Avg ")
    with pytest.raises(SystemExit):
        exp.main(["--variants", "huber"])


def test_plan():
    plan = exp.plan()
    assert len(plan) == len(set(plan)) == 10 and {v for v, _ in plan[:6]} == set(exp.VARIANTS)
    assert all([s for o, s in plan if o == v] == [0, 1, 2] for v in ("baseline", "adaptive"))
