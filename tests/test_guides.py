"""The pages that answer questions: every answer has code that can fail, every old name a new one, every public name a topic."""
import inspect
import json
import math
import re
from functools import partial

import pytest
import torch
from conftest import notebook
from torch.nn import functional as F

import robust_general
from robust_general import AdaptiveImageLoss, AdaptiveLoss
from robust_general._modidx import d
from tools import api
from tools.book import NBS, notebooks, page_name, read_cells

ASSERTS = re.compile(r"\bassert\b|\btest_\w+\(|\bassert_\w+\(")
GUIDES = ("faq", "from_robust_loss_pytorch", "conventions", "api")


def cells(page: str):
    return read_cells(NBS / f"{page}.ipynb")


@pytest.mark.parametrize("page", GUIDES)
def test_form(page):
    """A title and one line, and every cell that is more than imports asserts something."""
    first, *rest = cells(page)
    assert re.fullmatch(r"# .+\n\n> .+", first.source)
    ids = [c["id"] for c in json.loads((NBS / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]]
    assert len(set(ids)) == len(ids)
    for c in rest:
        if c.kind == "code" and not c.has("hide") and not all(re.match(r"(import|from) |[ )]", o) for o in c.code.splitlines()):
            assert ASSERTS.search(c.code) or c.code.startswith("def load_old("), c.code


def test_every_question_is_answered_with_code():
    """Between a question and the next there is prose and, last, a cell with an assertion."""
    asked, answered = [], []
    for c in cells("faq"):
        if c.kind == "markdown" and (found := re.findall(r"^### (.+)$", c.source, re.M)):
            assert len(found) == 1 and len(c.source.partition(found[0])[2].split()) > 15, found
            asked += found
        elif c.kind == "code" and asked and len(answered) < len(asked):
            assert ASSERTS.search(c.code), asked[-1]
            answered.append(asked[-1])
    assert answered == asked and len(asked) == len(set(asked)) >= 25


# What users of the author's PyTorch code may have called: its modules' functions, classes, methods and arguments.
OLD = """lossfun approximate epsilon AdaptiveLossFunction num_dims float_dtype device alpha_lo alpha_hi alpha_init scale_lo scale_init
StudentsTLossFunction AdaptiveImageLossFunction image_size color_space representation wavelet_num_levels wavelet_scale_base
use_students_t Distribution nllfun draw_samples log_base_partition_function analytical_base_partition_function
partition_spline_curve inv_partition_spline_curve interpolate1d log_safe log1p_safe exp_safe expm1_safe inv_softplus logit
affine_sigmoid inv_affine_sigmoid affine_softplus inv_affine_softplus students_t_nll rgb_to_syuv syuv_to_rgb image_dct image_idct
compute_jacobian construct collapse flatten rescale visualize get_max_num_levels generate_filters pad_reflecting
latent_alpha latent_scale log_df"""


def migration_rows() -> list[list[str]]:
    text = "\n".join(c.source for c in cells("from_robust_loss_pytorch") if c.kind == "markdown")
    return [[o.strip() for o in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ") and not line.startswith("| there")]


def test_every_old_name_is_in_the_tables():
    there = " ".join(row[0] for row in migration_rows())
    assert not [n for n in OLD.split() if not re.search(rf"\b{n}\b", there)]


def test_every_new_name_exists():
    """What the middle column calls is public, or an argument or a member of what is."""
    public = {n: m for m, names in api.public().items() for n in names}
    modules = [robust_general.rho, robust_general.General, AdaptiveLoss, AdaptiveImageLoss, robust_general.StudentTLoss]
    known = {p for m in modules for p in inspect.signature(m).parameters} | {n for m in modules for n in dir(m)}
    known |= {"alpha_latent", "scale_latent", "df_latent", "log_prob", "reduction", "torch", "func", "jacrev", "None", "x"}
    for _, here, _ in migration_rows():
        code = re.sub(r"'[^']*'", "", " ".join(re.findall(r"`([^`]+)`", here)))
        for name in re.findall(r"(?<!\w)[A-Za-z_]\w*", code):
            assert name in public or name in known, (name, here)


@pytest.fixture(scope="module")
def page() -> dict:
    """The functions that the page defines."""
    space = {}
    for c in cells("from_robust_loss_pytorch"):
        if c.kind == "code" and c.code.startswith(("import ", "def old_scale", "def load_old")):
            exec(c.code.partition("\n\nfor ")[0], space)
    return space


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prefix", ["", "adaptive_lossfun.", "module.criterion."])
@pytest.mark.parametrize("lo, hi, scale_lo, scale_init", [(0.001, 1.999, 1e-5, 1.0), (0.0, 3.0, 1e-3, 50.0), (0.5, 1.5, 1e-8, 0.01)])
def test_old_states_load(page, dtype, prefix, lo, hi, scale_lo, scale_init):
    alpha, scale = torch.linspace(-8, 8, 9, dtype=dtype)[None], torch.linspace(-6, 30, 9, dtype=dtype)[None]
    state = {f"{prefix}latent_alpha": alpha, f"{prefix}latent_scale": scale, "net.weight": torch.ones(2, 2)}
    loss = page["load_old"](state, partial(AdaptiveLoss, (9,)), lambda v: v.reshape(9), lo, hi, scale_lo, scale_init)
    want = lo + (hi - lo) / (1 + torch.exp(-alpha.double())), scale_lo + (scale_init - scale_lo) * torch.log1p((math.e - 1) * scale.double().exp())
    torch.testing.assert_close(loss.alpha.double(), want[0][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss.scale.double(), want[1][0], rtol=2e-6, atol=0)
    loss(torch.randn(20, 9)).backward()  # and it can be trained on
    assert all(p.grad is not None and p.grad.isfinite().all() for p in loss.parameters())


@pytest.mark.parametrize("size", [(8, 16), (16, 8), (9, 13)])
def test_old_images_load(page, size):
    h, w = size
    state = {f"adaptive_lossfun.latent_{n}": torch.randn(1, h * w * 3, generator=torch.Generator().manual_seed(i)) for i, n in enumerate(("alpha", "scale"))}
    loss = page["load_old"](state, partial(AdaptiveImageLoss, (3, h, w)), lambda v: v.reshape(h, w, 3).movedim(-1, 0))
    for r, c, k in [(0, 0, 0), (h - 1, 2, 1), (3, w - 1, 2)]:
        i = (r * w + c) * 3 + k  # place in the old vector
        latent = {n: state[f"adaptive_lossfun.latent_{n}"][0, i] for n in ("alpha", "scale")}
        torch.testing.assert_close(loss.alpha_image()[k, r, c], 0.001 + 1.998 * latent["alpha"].sigmoid(), rtol=1e-5, atol=0)
        torch.testing.assert_close(loss.scale_image()[k, r, c], 1e-5 + (1 - 1e-5) * F.softplus(latent["scale"] + math.log(math.e - 1)), rtol=1e-5, atol=0)


def test_fixed_parameters_stay_fixed(page):
    state = {"latent_scale": torch.zeros(1, 2)}
    loss = page["load_old"](state, partial(AdaptiveLoss, (2,)), lambda v: v.reshape(2), alpha_lo=1.0, alpha_hi=1.0)
    assert [n for n, _ in loss.named_parameters()] == ["scale_latent"] and loss.alpha.tolist() == [1.0, 1.0]


# API by topic.


def test_every_public_name_has_one_topic():
    bad = api.problems()
    assert not bad, "\n".join(bad)


def test_top_level_names_are_listed():
    tables = "\n".join(api.table(m) for m in api.marks())
    for name in dir(robust_general):
        if not inspect.ismodule(getattr(robust_general, name)):
            assert re.search(rf"^\| \[`{name}`\].* \| `robust_general` \|$", tables, re.M), name


def test_targets_exist():
    """Names link to a page of the book and, if nbdev documents them, to their place in it."""
    pages = {f"{page_name(nb)}.md" for nb in notebooks()}
    places = {place.replace(".html", ".md") for names in d["syms"].values() for place, _ in names.values()}
    for mark in api.marks():
        for full in api.expand(mark):
            target = api._target(full)
            assert target.partition("#")[0] in pages and ("#" not in target or target in places), full


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda t: t.replace("<!-- api: weights -->", ""), "weights.irls_weight has no topic"),
        (lambda t: t.replace("<!-- api: weights -->", "<!-- api: weights loss.rho -->"), "loss.rho is listed 2 times"),
        (lambda t: t.replace("<!-- api: weights -->", "<!-- api: weights loss.gone -->"), "loss.gone is listed in nbs/api.ipynb, but is not a public name"),
    ],
)
def test_problems_are_seen(tmp_path, monkeypatch, change, said):
    text = "\n\n".join(c.source for c in cells("api"))
    monkeypatch.setattr(api, "NBS", tmp_path)
    (tmp_path / "api.ipynb").write_text(notebook(change(text)))
    bad = "\n".join(api.problems())
    assert said in bad, bad
    (tmp_path / "api.ipynb").write_text(notebook(text))
    assert not api.problems()


def test_a_name_without_a_sentence_is_seen(monkeypatch):
    monkeypatch.setattr(robust_general.loss.rho, "__doc__", None)
    assert "loss.rho does not say what it is" in api.problems()
