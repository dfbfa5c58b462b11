"""The training loop in real processes, killed, resumed, two at a time; its files; devices, precisions, bad input."""
import csv
import json
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from robust_general import training
from robust_general.adaptive import AdaptiveLoss
from robust_general.training import Batches, meta_step, train

pytestmark = pytest.mark.usefixtures("one_thread")  # sums in the same order everywhere


class Model(nn.Module):
    """What could be forgotten between two steps: dropout, running statistics, a schedule, a parameter without gradient."""

    def __init__(self, kind):
        super().__init__()
        more = [] if kind == "plain" else [nn.BatchNorm1d(16), nn.Dropout(0.2)]
        self.net = nn.Sequential(nn.Linear(3, 16), *more, nn.Tanh(), nn.Linear(16, 1))
        self.loss, self.unused, self.size = AdaptiveLoss(), nn.Parameter(torch.ones(2)), 1.0

    def set_step(self, step, steps):
        self.size = 1 + step / steps

    def forward(self, batch):
        x, y = batch
        fit = self.net(x) * self.size
        return {"mae": (fit - y).abs().mean(), "loss": self.loss(fit, y), "alpha": self.loss.alpha}


class Hanging(Batches):
    """Stays in one step, so that whoever is to be killed before the end is."""

    hang = -1

    def __call__(self, step):
        if step == self.hang:
            time.sleep(600)
        return super().__call__(step)


def run(folder, kind="random", batch_size=8, hang=-1, spoil=None):
    """200 steps with clipping, decay, groups, rows that lie across checkpoints, and evaluations that draw random numbers."""
    torch.set_num_threads(1)
    dtype, g = torch.float64 if kind == "plain" else torch.float32, torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=g, dtype=dtype)
    y = x.sum(1, keepdim=True) ** 2 + torch.randn(50, 1, generator=g, dtype=dtype)
    if spoil is not None:
        y[spoil] = math.nan
    torch.manual_seed(5)
    model = Model(kind).to(dtype)
    groups = [{"params": [p for n, p in model.named_parameters() if not n.startswith("loss")]}, {"params": model.loss.parameters(), "lr": 0.02}]
    batches = Hanging((x, y), batch_size, seed=1)
    batches.hang = hang
    torch.manual_seed(time.time_ns())  # must not matter
    return train(model, batches, steps=200, folder=folder, lr=0.01, param_groups=groups, decay_steps=80, clip=1.0, seed=2, log_every=7, save_every=20,
                 evaluate=lambda m: {"mae": (m.net(x + 0.1 * torch.randn_like(x)) - y).abs().mean()}, evaluate_every=30, progress=False, config={"kind": kind})


def launch(folder, *args, launcher=()):
    """`run` in a process of its own."""
    here = Path(__file__).parent
    script = folder.with_suffix(".py")
    script.write_text("import sys\nfrom test_training import run\nrun(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *launcher, str(script), str(folder), *map(str, args)], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def step_reached(folder):
    path = folder / "run.json"
    return json.loads(path.read_text())["step"] if path.exists() else -1  # it is never half a file


def wait_for_step(folder, step, alive):
    end = time.monotonic() + 300
    while step_reached(folder) < step:
        assert alive() and time.monotonic() < end
        time.sleep(0.005)
    time.sleep(0.03)  # some steps further, which will be lost


def everything(folder):
    """The checkpoint, without what the clock says."""
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    return {k: v for k, v in state.items() if k != "seconds"}


def same(a, b):
    """Equal bit for bit, and in type, shape and dtype."""
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for k in a:
            same(a[k], b[k])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for o in zip(a, b):
            same(*o)
    else:
        assert a == b


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.loss = nn.Linear(1, 1), AdaptiveLoss()

    def forward(self, batch):
        x, y = batch
        return {"loss": self.loss(self.line(x), y)}


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(64, 1, generator=g)
    return x, 2 * x + 1 + 0.1 * torch.randn(64, 1, generator=g)


def quick(model, data, folder, **kw):
    return train(model, Batches(data, 16), **{**dict(steps=20, folder=folder, lr=0.01, log_every=5, save_every=5, progress=False), **kw})


# -- killed and resumed


def test_killed_twice_resumes_bit_for_bit(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(whole)
    for step in (40, 120):
        child = launch(cut, "random", 8, step + 17)
        wait_for_step(cut, step, lambda: child.poll() is None)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        assert child.returncode == -signal.SIGKILL and step_reached(cut) == step
    history = run(cut)
    a, b = everything(whole), everything(cut)
    same(a, b)
    assert a["step"] == 200 and len(a["optimizer"]["state"]) == 8  # all but the parameter that has no gradient
    assert (whole / "metrics.csv").read_bytes() == (cut / "metrics.csv").read_bytes()
    rows = list(csv.DictReader((cut / "metrics.csv").open()))
    assert [int(r["step"]) for r in rows] == sorted({*range(7, 201, 7), *range(30, 201, 30), 200})
    assert [int(r["step"]) for r in rows if r["eval_mae"]] == [*range(30, 181, 30), 200]
    for name, column in history.items():
        assert [float(r[name] or "nan") for r in rows] == pytest.approx(column.tolist(), rel=0, abs=0, nan_ok=True)


fork = pytest.mark.skipif(sys.platform != "linux", reason="children are forked")


def killing_itself(folder, data, where, count):
    """In a forked child: die in the middle of the count-th call of one of the functions that write."""
    calls, real = [], {"write": Path.write_bytes, "fsync": os.fsync, "replace": os.replace}[where]

    def dies(*args):
        calls.append(args)
        if len(calls) == count:
            if where == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    setattr(*{"write": (Path, "write_bytes"), "fsync": (os, "fsync"), "replace": (os, "replace")}[where], dies)
    torch.manual_seed(0)
    quick(Line(), data, folder)


@fork
@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_killed_while_writing(tmp_path, data, where):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    torch.manual_seed(0)
    quick(Line(), data, whole)
    kills = 0
    for count in (1, 2, 3, 4, 5, 6, 7, 8):  # at a different file each time
        child = multiprocessing.get_context("fork").Process(target=killing_itself, args=(cut, data, where, count))
        child.start()
        child.join(120)
        assert child.exitcode in (-signal.SIGKILL, 0)
        kills += child.exitcode != 0
        if (cut / "checkpoint.pt").exists():
            assert training._load(cut / "checkpoint.pt")["step"] >= step_reached(cut)
        if (cut / "metrics.csv").exists():
            lines = (cut / "metrics.csv").read_text().splitlines()
            assert len({l.count(",") for l in lines}) == 1
    assert kills >= 5
    torch.manual_seed(0)
    quick(Line(), data, cut)
    same(everything(whole), everything(cut))
    assert {p.name: p.read_bytes() for p in cut.glob("*.csv")} == {p.name: p.read_bytes() for p in whole.glob("*.csv")}
    assert sorted(p.name for p in cut.iterdir()) == ["checkpoint.pt", "metrics.csv", "run.json"]  # nothing is left over


def test_killed_in_the_first_step_begins_with_the_same_weights(tmp_path, data):
    def killed(step):
        raise KeyboardInterrupt

    torch.manual_seed(0)
    first, second, third = Line(), Line(), Line()
    third.load_state_dict(first.state_dict())
    assert first.line.weight != second.line.weight
    with pytest.raises(KeyboardInterrupt):
        train(first, killed, steps=3, folder=tmp_path / "a", progress=False)
    train(second, lambda step: data, steps=3, folder=tmp_path / "a", progress=False)
    train(third, lambda step: data, steps=3, folder=tmp_path / "b", progress=False)
    same(second.state_dict(), third.state_dict())


def test_killed_after_the_last_checkpoint(tmp_path, data, monkeypatch):
    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(training._Files, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            quick(Line(), data, tmp_path)
    assert not json.loads((tmp_path / "run.json").read_text())["finished"]
    quick(Line(), data, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["finished"]


def test_a_finished_run_is_only_read(tmp_path, data):
    model, again = Line(), Line()
    history = quick(model, data, tmp_path)
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.iterdir()}
    repeated = quick(again, data, tmp_path, evaluate=lambda m: 1 / 0)
    same(model.state_dict(), again.state_dict())
    assert before == {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.iterdir()}
    assert list(history) == list(repeated) and all((history[k] == repeated[k]).all() for k in history)
    (tmp_path / "checkpoint.pt").unlink()  # unless one wants to begin again
    quick(Line(), data, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["finished"] and (tmp_path / "checkpoint.pt").exists()


def test_a_finished_run_has_the_schedule_of_its_last_step(tmp_path):
    for model in (Model("random"), Model("random")):
        train(model, lambda step: (np.ones((4, 3), np.float32), np.zeros((4, 1), np.float32)), steps=4, folder=tmp_path, progress=False)
        assert model.size == 1.75


# -- several processes


def test_torchrun_with_two_processes_matches_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    run(one, "plain", 7)
    child = launch(two, "plain", 7, launcher=["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"])
    said = child.communicate(timeout=300)[0]
    assert child.returncode == 0, said
    assert json.loads((two / "run.json").read_text())["processes"] == 2
    matches(one, two)


def matches(one, two):
    a, b = everything(one), everything(two)
    for part in (("model",), ("optimizer", "state")):
        o, p = a, b
        for k in part:
            o, p = o[k], p[k]
        torch.testing.assert_close(o, p, rtol=0, atol=1e-10)
    for r, s in zip(a["rows"], b["rows"], strict=True):
        assert list(r) == list(s)
        assert all(math.isclose(r[k], s[k], rel_tol=1e-9, abs_tol=1e-11) for k in r), (r, s)


def member(rank, world, meeting, fn, args, answers):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        fn(*args)
        answers.put((rank, None))
    except Exception as e:
        answers.put((rank, f"{type(e).__name__}: {e}"))
    dist.destroy_process_group()


def group(meeting, fn, *args, world=2):
    """`fn` in forked processes that know each other."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    children = [context.Process(target=member, args=(r, world, meeting, fn, args, answers)) for r in range(world)]
    for child in children:
        child.start()
    return children, answers


def said_by(children, answers):
    said = dict(answers.get() for _ in children)
    for child in children:
        child.join(120)
    return [said[r] for r in range(len(children))]


@fork
@pytest.mark.parametrize(("batch_size", "world"), [(8, 2), (7, 3)])
def test_processes_match_one(tmp_path, batch_size, world):
    run(tmp_path / "one", "plain", batch_size)
    assert said_by(*group(tmp_path / "meeting", run, tmp_path / "two", "plain", batch_size, world=world)) == [None] * world
    matches(tmp_path / "one", tmp_path / "two")


@fork
def test_two_processes_killed_resume_bit_for_bit(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert said_by(*group(tmp_path / "a", run, whole)) == [None, None]
    children, _ = group(tmp_path / "b", run, cut, "random", 8, 77)
    wait_for_step(cut, 60, children[0].is_alive)
    for child in children:
        child.kill()
        child.join(120)
    assert step_reached(cut) == 60
    assert said_by(*group(tmp_path / "c", run, cut)) == [None, None]
    same(everything(whole), everything(cut))
    read = run(cut)  # by one process
    assert read["step"][-1] == 200 and json.loads((cut / "run.json").read_text())["processes"] == 2


@fork
def test_processes_fail_together(tmp_path):
    """Whichever process has the bad sample, or cannot have any, or reads a bad file."""
    for n, sample in enumerate((3, 17, 31)):
        folder = tmp_path / f"{n}"
        errors = said_by(*group(tmp_path / f"a{n}", run, folder, "random", 8, -1, sample))
        failed = torch.load(folder / "failed.pt", weights_only=True)
        assert failed["batch"][1].shape == (8, 1) and failed["batch"][1].isnan().sum() == 1  # the whole batch
        assert errors[0] == errors[1] and errors[0].startswith(f"FloatingPointError: step {failed['step']} is not finite (loss nan")
    errors = said_by(*group(tmp_path / "b", run, tmp_path / "small", "random", 1))
    assert errors == ["ValueError: a batch of 1 cannot be shared by 2 processes"] * 2
    (tmp_path / "0" / "checkpoint.pt").write_bytes(b"nonsense")
    errors = said_by(*group(tmp_path / "c", run, tmp_path / "0"))
    assert errors[0] == errors[1] and "checkpoint.pt is damaged" in errors[0]


# -- files


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b.replace(b"line.weight", b"line.wEight", 1)])
def test_damaged_checkpoint_is_named(tmp_path, data, damage):
    quick(Line(), data, tmp_path)
    path = tmp_path / "checkpoint.pt"
    good = path.read_bytes()
    path.write_bytes(damage(good))
    with pytest.raises(ValueError, match=r"checkpoint.pt is damaged \(.+\): put a copy in its place, or delete it"):
        quick(Line(), data, tmp_path)
    path.unlink()
    quick(Line(), data, tmp_path)
    assert len(path.read_bytes()) > 1000


def test_damaged_or_missing_run_json_is_named(tmp_path, data):
    quick(Line(), data, tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="run.json is damaged"):
        quick(Line(), data, tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ValueError, match="run.json is missing"):
        quick(Line(), data, tmp_path)


@pytest.mark.parametrize("old, new", [('"finished"', '"finirhed"'), ("true", '"tru"'), ('"config"', '"konfig"'), ('"training"', '"draining"')])
def test_changed_letters_of_run_json_are_named(tmp_path, data, old, new):
    quick(Line(), data, tmp_path)
    path = tmp_path / "run.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=r"run.json is damaged \(its '(finished|config|training)' is missing or no (bool|dict)\)"):
        quick(Line(), data, tmp_path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="run.json is damaged"):
        quick(Line(), data, tmp_path)


def test_run_json_says_what_was_run(tmp_path, data):
    quick(Line(), data, tmp_path, config={"preset": "quick", "alpha": -math.inf, "size": (3, 4), "data": Path("photographs")}, amp=True)
    text = (tmp_path / "run.json").read_text()
    about = json.loads(text, parse_constant=pytest.fail)  # strict: no Infinity
    assert about["config"] == {"preset": "quick", "alpha": "-inf", "size": [3, 4], "data": "photographs"}
    assert about["training"]["batches"] == {"size": 64, "batch_size": 16, "seed": 0} and about["training"]["seed"] == 0
    assert (about["device"], about["finished"], about["step"]) == ("cpu", True, 20) and about["duration"] > 0 and "torch" in about["versions"]
    with pytest.raises(TypeError, match="numbers and text, got <object"):
        quick(Line(), data, tmp_path / "b", config={"x": object()})


def test_another_configuration_is_refused(tmp_path, data):
    quick(Line(), data, tmp_path, config={"preset": "cpu"})
    for kw, what in (({"config": {"preset": "paper"}}, "preset is 'cpu' there and 'paper' here"), ({"steps": 30, "config": {"preset": "cpu"}}, "steps is 20 there and 30 here"),
                     ({}, r"preset is 'cpu' there and '\(nothing\)' here")):
        with pytest.raises(ValueError, match=what):
            quick(Line(), data, tmp_path, **kw)
    quick(Line(), data, tmp_path, config={"preset": "cpu"}, save_every=7, progress=True)  # these make no other run


def test_metrics_can_be_read_while_it_runs(tmp_path, data, monkeypatch):
    monkeypatch.setattr(training.time, "monotonic", iter(range(10**6)).__next__)  # a second or more between two rows
    seen = []

    class Curious(Batches):
        def __call__(self, step):
            header, *rows = csv.reader((tmp_path / "metrics.csv").open())
            assert header[:3] == ["step", "lr", "loss"] and all(len(r) == len(header) for r in rows)
            seen.append(len(rows))
            return super().__call__(step)

    train(Line(), Curious(data, 16), steps=10, folder=tmp_path, log_every=2, save_every=100, progress=False)
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_rows_after_the_checkpoint_are_gone_when_it_goes_on(tmp_path, data):
    class Killed(Batches):
        def __call__(self, step):
            if step == 18:
                raise KeyboardInterrupt
            return super().__call__(step)

    class Curious(Batches):
        def __call__(self, step):
            if step == 10:
                seen.append([r["step"] for r in csv.DictReader((tmp_path / "metrics.csv").open())])
            return super().__call__(step)

    seen, kw = [], dict(steps=20, folder=tmp_path, log_every=4, save_every=10, progress=False)
    with pytest.raises(KeyboardInterrupt):
        train(Line(), Killed(data, 16), **kw)
    (tmp_path / "metrics.csv").write_text("step,lr,loss\n4,0,0\n8,0,0\n12,0,0\n16,0,0\n")  # what it had a second later
    history = train(Line(), Curious(data, 16), **kw)
    assert seen == [["4", "8"]] and history["step"].tolist() == [4, 8, 12, 16, 20]


def test_no_room_fails_before_the_first_step(tmp_path, data, monkeypatch):
    def full(*a):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        train(Line(), lambda step: pytest.fail("a step was taken"), steps=3, folder=tmp_path / "deep" / "er", progress=False)


# -- not finite


def test_gradient_not_finite_although_the_loss_is(tmp_path):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.sound, self.root = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return {"loss": (self.root * x).abs().sqrt().sum() + self.sound.sum()}

    with pytest.raises(FloatingPointError, match=r"step 2 is not finite \(loss [0-9.]+, norm of the gradient nan, first in root\); .*failed.pt"):
        train(Root(), lambda step: torch.tensor(0.0 if step == 2 else 1.0), steps=5, folder=tmp_path, clip=1.0, progress=False)
    failed = torch.load(tmp_path / "failed.pt", weights_only=True)
    assert failed["step"] == 2 and failed["batch"] == 0 and all(v.isfinite().all() for v in failed["model"].values())


def test_infinite_loss_without_gradient(tmp_path, data):
    class Flat(Line):
        def forward(self, batch):
            return {"loss": super().forward(batch)["loss"].clamp(min=-1e9, max=1e9) + math.inf}

    with pytest.raises(FloatingPointError, match="step 0 is not finite .loss inf, norm of the gradient [0-9.]+.;"):
        quick(Flat(), data, tmp_path)


def test_a_metric_may_be_nan(tmp_path, data):
    class Odd(Line):
        def forward(self, batch):
            return {**super().forward(batch), "odd": math.nan, "one": np.float64(1)}

    history = quick(Odd(), data, tmp_path)
    assert np.isnan(history["odd"]).all() and (history["one"] == 1).all()


# -- precision and devices


@pytest.mark.parametrize("amp", [True, "bfloat16", "float16"])
def test_mixed_precision(tmp_path, data, amp):
    seen = []

    class Watched(Line):
        def forward(self, batch):
            seen.append(self.line(batch[0]).dtype)
            return super().forward(batch)

    torch.manual_seed(0)
    model, cut = Watched(), Watched()
    cut.load_state_dict(model.state_dict())
    quick(model, data, tmp_path / "whole", amp=amp, clip=1.0)
    assert set(seen) == {torch.float16 if amp == "float16" else torch.bfloat16} and model.line.weight.dtype == torch.float32

    class Killed(Batches):
        def __call__(self, step):
            if step == 13:
                raise KeyboardInterrupt
            return super().__call__(step)

    with pytest.raises(KeyboardInterrupt):
        train(cut, Killed(data, 16), steps=20, folder=tmp_path / "cut", lr=0.01, log_every=5, save_every=5, progress=False, amp=amp, clip=1.0)
    quick(cut, data, tmp_path / "cut", amp=amp, clip=1.0)
    state = everything(tmp_path / "cut")
    same(everything(tmp_path / "whole"), state)
    assert state["scaler"].get("_growth_tracker") == (20 if amp == "float16" else None)  # the scaler, too, has counted every step


def test_half_precision_skips_an_overflow_but_not_for_ever(tmp_path, data):
    class Steep(Line):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, batch):
            return {"loss": self.line(batch[0]).float().mean() * self.factor}

    model = Steep(1.0)
    before = model.line.weight.item()
    state = quick(model, data, tmp_path / "a", amp="float16")
    assert model.line.weight.item() != before and np.isfinite(state["grad_norm"][-1])
    with pytest.raises(FloatingPointError, match="norm of the gradient"):
        quick(Steep(1e30), data, tmp_path / "b", amp="float16", steps=200)


def test_meta_step_leaves_the_model_alone(data):
    model = Model("random")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    out = meta_step(model.eval(), (torch.randn(4, 3), np.zeros((4, 1), np.float32)))
    assert all(v.is_meta and v.shape == () for v in out.values()) and list(out) == ["mae", "loss", "alpha"]
    same(before, dict(model.state_dict()))
    assert not model.training and model.size == 1


@pytest.mark.parametrize("where", ["forward", "backward", "convolution", "attribute", "into"])
def test_meta_step_finds_a_stray_tensor(where):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g @ (2 * torch.eye(3))

    class Stray(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.kernel = nn.Parameter(torch.ones(3)), torch.ones(1, 1, 2)

        def forward(self, x):
            y = x * self.weight
            if where == "forward":
                y = y + torch.arange(3.0)
            if where == "backward":
                y = Doubled.apply(y)
            if where == "convolution":
                y = nn.functional.conv1d(y[:, None], torch.ones(1, 1, 2))
            if where == "attribute":
                y = nn.functional.conv1d(y[:, None], self.kernel)
            if where == "into":
                y = torch.zeros(5, 3)[y.long()]
            return {"loss": y.mean() + self.weight.sum()}

    x = torch.ones(4, 3)
    assert Stray()(x)["loss"].isfinite()
    with pytest.raises(RuntimeError, match="on cpu"):
        meta_step(Stray(), x)


def test_meta_step_allows_what_cuda_allows():
    class Fine(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            y = x[torch.tensor([0, 2])] * self.weight * torch.tensor(2.0)
            y = y + torch.tensor([1.0, 2.0, 3.0]).to(x.device) + torch.rand(3, device=x.device)
            return {"loss": y.mean()}

    meta_step(Fine(), torch.ones(4, 3))


# -- courtesy


def test_random_numbers_of_the_caller_are_left_alone(tmp_path, data):
    torch.manual_seed(1)
    a = torch.rand(3)
    torch.manual_seed(1)
    quick(Model("random"), (torch.randn(64, 3, generator=torch.Generator().manual_seed(0)), data[1]), tmp_path)
    model_draws = torch.get_rng_state()
    torch.manual_seed(1)
    Model("random")
    assert torch.equal(torch.get_rng_state(), model_draws) and a.shape == (3,)


def test_progress_is_shown_if_tqdm_is_there(tmp_path, data, capsys, monkeypatch):
    quick(Line(), data, tmp_path / "a", progress=True)
    assert "20/20" in capsys.readouterr().err
    quick(Line(), data, tmp_path / "b", progress=False)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    quick(Line(), data, tmp_path / "c", progress=True)
    assert capsys.readouterr().err == ""


def test_batches_of_all_kinds():
    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, i):
            return torch.tensor(i), i**2

    class Lazy:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return {"i": np.asarray(index), "square": index**2}

    index = Batches(torch.arange(10), 4).indices(7)
    i, square = Batches(Squares(), 4)(7)
    assert i.tolist() == index.tolist() and square.tolist() == (index**2).tolist()
    out = Batches(Lazy(), 4)(7)
    assert out["i"].tolist() == index.tolist() and torch.equal(out["square"], out["i"] ** 2)
    assert Batches(np.arange(10.0), 4)(7).tolist() == index.tolist()
    batches = Batches({"a": torch.arange(10)}, 25)  # more than two epochs in a batch
    assert np.bincount(batches(0)["a"]).tolist().count(3) == 5 and torch.equal(pickle.loads(pickle.dumps(batches))(1)["a"], batches(1)["a"])


@pytest.mark.parametrize(("kw", "what"), [
    ({"steps": 0}, "steps must be an integer of at least 1, got 0"), ({"steps": 2.5}, "got 2.5"), ({"decay_steps": 21}, "decay_steps must be at most steps=20, got 21"),
    ({"lr": math.nan}, "lr must be finite and not negative, got nan"), ({"clip": -1.0}, "clip must be positive or None, got -1.0"), ({"amp": "int8"}, "got 'int8'"),
    ({"seed": -1}, "seed must be an integer of at least 0, got -1"), ({"log_every": 0}, "log_every must be"), ({"device": "meta"}, "meta_step")])
def test_bad_arguments_are_named(tmp_path, data, kw, what):
    with pytest.raises(ValueError, match=what):
        quick(Line(), data, tmp_path, **kw)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("answer", "what"), [
    (lambda l: l, "a dict with a tensor 'loss', got Tensor"), (lambda l: {"los": l}, r"got \['los'\]"), (lambda l: {"loss": l.expand(3)}, r"'loss' must be a scalar, got shape \(3,\)"),
    (lambda l: {"loss": l, "map": [1, 2]}, r"'map' must be a scalar, got shape \(2,\)"), (lambda l: {"loss": 1.0}, "a dict with a tensor 'loss'"),
    (lambda l: {"loss": l, "lr": 1.0}, "'lr' is a column of the loop's own")])
def test_bad_answers_are_named(tmp_path, data, answer, what):
    class Bad(Line):
        def forward(self, batch):
            return answer(super().forward(batch)["loss"])

    with pytest.raises(ValueError, match=what):
        quick(Bad(), data, tmp_path)


def test_metrics_must_not_change_between_rows(tmp_path, data):
    class Fickle(Line):
        count = 0

        def forward(self, batch):
            self.count += 1
            return {**super().forward(batch), **({"more": 1.0} if self.count > 2 else {})}

    with pytest.raises(ValueError, match=r"changed from \['loss', 'grad_norm'\] to \['loss', 'more', 'grad_norm'\]"):
        quick(Fickle(), data, tmp_path)


def test_nothing_to_train(tmp_path, data):
    with pytest.raises(ValueError, match="no parameter to train"):
        quick(Line().requires_grad_(False), data, tmp_path)
