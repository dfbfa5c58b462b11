"""The experiment: presets, what a folder keeps, killed and continued runs, several processes, the command line."""
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")
pytest.importorskip("skimage")
from robust_general import vae_experiment as experiment
from robust_general.images import load_images
from robust_general.vae_experiment import PRESETS, evaluate, load_model, main, make_model, paper_elbos, run, run_all, run_folder, sweep_models, table1_models

TINY = dict(PRESETS["quick"], steps=8, decay=2, depth=4, eval_images=8)


@pytest.fixture
def tiny(monkeypatch, one_thread):
    monkeypatch.setitem(PRESETS, "quick", TINY)


def test_presets_have_the_same_keys():
    assert len({tuple(p) for p in PRESETS.values()}) == 1
    assert set(PRESETS) == {"quick", "cpu", "paper"} and PRESETS["cpu"]["size"] >= 32 and PRESETS["cpu"]["steps"] >= 2000


def test_models_of_the_paper():
    assert len(set(table1_models())) == 12 == len(paper_elbos()) and {(r, f) for f, r in table1_models()} == set(paper_elbos())
    assert not set(sweep_models()) & set(table1_models()) and all(0 < a < 2 for a, _ in sweep_models())


def test_a_run_says_what_it_is(tiny, tmp_path):
    out = run("student", "dct", "quick", "free", device="cpu", seed=3, root=tmp_path, progress=False)
    folder = run_folder(tmp_path, "quick", "free", "student", "dct")
    about = json.loads((folder / "run.json").read_text())
    assert about["finished"] and about["device"].startswith("cpu") and about["training"]["seed"] == 3 and about["versions"]["torch"]
    assert any(k in about for k in ("duration", "seconds"))
    assert about["config"]["preset"] == "quick" and "free photographs" in about["config"]["data"] and about["config"]["family"] == "student"
    assert out["finite"] and np.isfinite(out["elbo"]) and out["se"] > 0
    model, _ = load_model(folder)
    assert model.output.family == "student" and not model.training
    assert evaluate(model, load_images("free", "test", 16)[:8], 4)["elbo"] == pytest.approx(out["elbo"], abs=100)


def test_finished_runs_are_read(tiny, tmp_path, monkeypatch):
    first = run_all([("general", "wavelet"), (1.25, "wavelet")], "quick", "free", root=tmp_path, progress=False)
    monkeypatch.setattr(experiment.VAE, "forward", None)
    assert run_all([("general", "wavelet"), (1.25, "wavelet")], "quick", "free", root=tmp_path, progress=False) == first


def test_another_preset_does_not_continue(tiny, tmp_path, monkeypatch):
    run("normal", "pixel", "quick", "free", root=tmp_path, progress=False)
    monkeypatch.setitem(PRESETS, "quick", dict(TINY, lr=5e-3))
    with pytest.raises(ValueError, match="lr"):
        run("normal", "pixel", "quick", "free", root=tmp_path, progress=False)


def test_unfinished_runs_are_not_shown(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "evaluate", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run("normal", "pixel", "quick", "free", root=tmp_path, progress=False)
    with pytest.raises(ValueError, match="is not finished"):
        load_model(run_folder(tmp_path, "quick", "free", "normal", "pixel"))


def test_all_families_begin_alike(tiny):
    """The same weights for the same seed, so that the families differ by the output alone."""
    models = [make_model(f, "wavelet", "quick", seed=1) for f in ("normal", "cauchy", "student", "general")]
    for part in ("encoder", "decoder", "prior"):
        states = [getattr(m, part).state_dict() for m in models]
        assert all(torch.equal(v, s[k]) for s in states[1:] for k, v in states[0].items())
    scales = [m.output.loss.scale for m in models]
    assert all(torch.equal(scales[0], s) for s in scales[1:])


def test_unknown_preset(tmp_path):
    with pytest.raises(ValueError, match="preset must be one of .* got 'fast'"):
        run("general", "wavelet", "fast", "free", root=tmp_path)


CHILD = """
import sys, torch
from robust_general import vae_experiment as e
torch.set_num_threads(1)
e.PRESETS['quick'] = dict(e.PRESETS['quick'], steps=int(sys.argv[2]), decay=4, depth=4, eval_images=8)
print(e.run('general', 'wavelet', 'quick', 'free', root=sys.argv[1], progress=False))
"""


def test_killed_and_continued(tmp_path, monkeypatch, one_thread):
    """kill -9 in the middle; the result is the one of a run that was left alone, to the last bit."""
    monkeypatch.setitem(PRESETS, "quick", dict(PRESETS["quick"], steps=60, decay=4, depth=4, eval_images=8))
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "a"), "60"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    folder = run_folder(tmp_path / "a", "quick", "free", "general", "wavelet")
    for _ in range(6000):
        time.sleep(0.01)
        if (folder / "run.json").exists() and json.loads((folder / "run.json").read_text())["step"] > 0:
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not json.loads((folder / "run.json").read_text())["finished"]
    a, b = (run("general", "wavelet", "quick", "free", root=tmp_path / k, progress=False) for k in "ab")
    assert a == b
    weights = [load_model(run_folder(tmp_path / k, "quick", "free", "general", "wavelet"))[0].state_dict() for k in "ab"]
    assert all(torch.equal(v, weights[1][k]) for k, v in weights[0].items())


def test_command_line(tmp_path, capsys, tiny):
    args = ["--preset", "quick", "--data", "free", "--root", str(tmp_path), "--models", '[["normal", "pixel"], [0.5, "wavelet"], ["cauchy", "dct"]]']
    main([*args, "--part", "1/2"])
    assert capsys.readouterr().out.startswith("0.5 wavelet: ") and len(list((tmp_path / "quick" / "free").iterdir())) == 1
    main(args)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["normal pixel", "0.5 wavelet", "cauchy dct"]


@pytest.mark.skipif(sys.platform == "win32", reason="counts on POSIX processes")
def test_two_processes(tmp_path, one_thread):
    models = [("normal", "pixel"), ("general", "pixel")]
    both = run_all(models, "quick", "free", root=tmp_path / "a", jobs=2)
    assert [(o["family"], o["representation"]) for o in both] == models
    assert both == run_all(models, "quick", "free", root=tmp_path / "b", progress=False)
