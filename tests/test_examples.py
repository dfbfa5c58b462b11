"""The three examples keep their promises: short, without downloads, and the twenty lines work when copied."""
import pickle
import re
import socket

import numpy as np
import pytest
import torch

from tools.book import NBS, read_cells

PAGES = "80_example_regression", "81_example_network", "82_example_measurements"


def cells(page: str):
    return read_cells(NBS / f"{page}.ipynb")


@pytest.mark.parametrize("page", PAGES)
def test_takes_five_minutes_to_read(page):
    prose = " ".join(c.source for c in cells(page) if c.kind == "markdown")
    code = [c.code for c in cells(page) if c.kind == "code" and not c.has("hide")]
    assert len(prose.split()) < 900
    assert sum(c.count("\n") + 1 for c in code) < 120


@pytest.mark.parametrize("page", PAGES)
def test_figures_and_tables_carry_the_number_of_the_page(page):
    code = "\n".join(c.code for c in cells(page) if c.kind == "code")
    saved = re.findall(r"save_(figure|table)\('(\w+)'", code)
    assert {kind for kind, _ in saved} == {"figure", "table"}
    assert all(re.match(rf"(fig|tab){page[:2]}_", name) for _, name in saved)


def test_data_need_no_download(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("an example asks for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    from matplotlib import cbook
    from sklearn.datasets import load_diabetes, load_digits
    from statsmodels.datasets import statecrime

    assert statecrime.load_pandas().data.shape == (51, 7)
    assert load_diabetes().data.shape == (442, 10) and load_digits().images.shape == (1797, 8, 8)
    assert len(cbook.get_sample_data("goog.npz")["price_data"]) == 1047


def twenty_lines() -> str:
    (code,) = [c.code for c in cells("81_example_network") if c.code.startswith("import") and "def train(" in c.code]
    return code


def test_twenty_lines_are_twenty_and_work_when_copied():
    code = twenty_lines()
    assert len(code.splitlines()) <= 20
    names: dict = {}
    exec(compile(code, "twenty lines", "exec"), names)
    for loss in (torch.nn.MSELoss(), names["AdaptiveLoss"]()):
        net, errors = names["train"](loss, steps=5)
        assert errors.shape == (597,) and errors.isfinite().all()
    assert loss.alpha.item() != 1  # the optimizer knows it
    assert net(torch.zeros(2, 64)).shape == (2, 1)


def test_saved_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    from robust_general import AdaptiveLoss

    def fresh():
        torch.manual_seed(0)
        net, loss = torch.nn.Linear(3, 1), AdaptiveLoss()
        return net, loss, torch.optim.Adam([*net.parameters(), *loss.parameters()], lr=0.01)

    def steps(net, loss, optimizer, numbers):
        for k in numbers:
            x = torch.randn(16, 3, generator=torch.Generator().manual_seed(k))
            optimizer.zero_grad()
            loss(net(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()

    whole, first, second = fresh(), fresh(), fresh()
    steps(*whole, range(20))
    steps(*first, range(10))
    torch.save([o.state_dict() for o in first], tmp_path / "run.pt")
    for o, state in zip(second, torch.load(tmp_path / "run.pt", weights_only=True)):
        o.load_state_dict(state)
    steps(*second, range(10, 20))
    for a, b in zip([*whole[0].parameters(), *whole[1].parameters()], [*second[0].parameters(), *second[1].parameters()]):
        assert torch.equal(a, b)


def test_pipeline_and_search_survive_pickling():
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from robust_general import RobustRegressor

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = X @ [1.0, -2.0] + 0.1 * rng.normal(size=60)
    y[:10] += 30
    search = GridSearchCV(make_pipeline(StandardScaler(), RobustRegressor()), {"robustregressor__alpha": [2.0, 0.0]},
                          scoring="neg_median_absolute_error", cv=3).fit(X, y)
    assert search.best_params_ == {"robustregressor__alpha": 0.0}
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))
    assert np.abs(again.predict(X) - X @ [1.0, -2.0]).max() < 0.2
