"""The page 'Explore' in a real browser: its numbers are the package's, and its controls do what they say."""
from math import inf

import numpy as np
import pytest
import torch
from test_site import CHROMIUM, browser, site  # noqa: F401 (fixtures)

from robust_general import General, influence, irls_weight, log_partition, rho
from robust_general.bounds import gradient_bound, inflection, loss_bound

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")

NEAR = [2.0**-52, 1e-12, 1e-9, 1e-6, 1e-3, 2.0**-6, 0.1]
ALPHAS = sorted({-inf, -1e30, -1e9, -1e3, -7.3, -2, -1, 0, 1e-300, 0.5, 1, 1.5, 2, 2.5, 4, 10, 1e3, 1e9, 1e30, inf,
                 *(s * d for d in NEAR for s in (-1, 1)), *(2 + s * d for d in NEAR for s in (-1, 1))})
SCALES = [0.01, 0.3, 1.0, 7.0, 100.0]
XS = [0.0, *np.logspace(-9, 6, 76).tolist(), *(-np.logspace(-3, 6, 19)).tolist()]


@pytest.fixture(scope="module")
def page(browser, site):  # noqa: F811
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)  # for a busy machine
    page = context.new_page()
    page.goto(f"{site.as_uri()}/explore.html")
    yield page
    context.close()


@pytest.fixture
def fresh(page):
    page.locator("#explore-reset").click()
    return page


def in_browser(page, name: str) -> np.ndarray:
    """A function of the page's script on the whole grid: shapes, scales, residuals."""
    return np.array(page.evaluate(f"([as, cs, xs]) => as.map((a) => cs.map((c) => xs.map((x) => robust.{name}(x, a, c))))", [ALPHAS, SCALES, XS]), float)


def on_grid(fn, alphas=ALPHAS) -> np.ndarray:
    return np.array([[fn(np.array(XS), a, c) for c in SCALES] for a in alphas])


def density(x, alpha, c):
    x = torch.tensor(x)
    return General(x.new_zeros(()), c, alpha).log_prob(x).exp().numpy()


def off(got, want) -> float:
    """Largest relative difference; numbers beyond the range of float64, on either side of it, have to be so in both."""
    assert not np.isnan(got).any() and not np.isnan(want).any()
    tiny, huge = np.abs(want) < 1e-290, np.abs(want) > 1e290
    assert (np.abs(got[tiny]) < 1e-289).all()
    assert (np.abs(got[huge]) > 1e289).all() and (np.sign(got[huge]) == np.sign(want[huge])).all()
    rest = ~(tiny | huge)
    return np.abs(got[rest] / want[rest] - 1).max()


@pytest.mark.parametrize("name, fn", [("rho", rho), ("influence", influence), ("weight", irls_weight)])
def test_values_agree_to_1e_12(page, name, fn):
    assert off(in_browser(page, name), on_grid(fn)) < 1e-12


def test_densities_agree_to_1e_11(page):
    some = [i for i, a in enumerate(ALPHAS) if a >= 0]
    assert off(in_browser(page, "density")[some], on_grid(density, [ALPHAS[i] for i in some])) < 1e-11


def test_there_is_no_density_below_0(page):
    assert np.isnan(in_browser(page, "density")[: ALPHAS.index(0)]).all()


def test_the_table_gives_log_z_to_1e_12(page):
    """Also between the points it was fitted to, and next to 2, where the derivative is infinite."""
    near = np.logspace(-15, 0, 301)
    alphas = np.concatenate([np.linspace(0, 4, 1001), 2 - near, 2 + near, near, np.logspace(0, 20, 201), [inf]])
    got = np.array(page.evaluate("(as) => as.map(robust.logPartition)", alphas.tolist()))
    assert np.abs(got - log_partition(alphas)).max() < 1e-12


def test_the_sentences_quote_the_right_bounds(page):
    alphas = [a for a in ALPHAS if abs(a - 1) > 1e-6 or a == 1]
    for name, fn in (("inflection", inflection), ("gradientBound", gradient_bound)):
        got = page.evaluate(f"(as) => as.map((a) => robust.{name}(a, 0.3))", alphas)
        np.testing.assert_allclose(got, [fn(a, 0.3) for a in alphas], rtol=1e-12)
    np.testing.assert_allclose(page.evaluate("(as) => as.map((a) => robust.lossBound(a))", alphas), [loss_bound(a) for a in alphas], rtol=1e-12)


def test_the_slider_reaches_every_shape(page):
    ends = page.evaluate("() => [-4, -2, 0, 1, 2, 4].map(robust.fromSlider)")
    assert ends == [-inf, -2, 0, 1, 2, inf]
    steps = page.evaluate("() => Array.from({length: 801}, (_, k) => robust.fromSlider((k - 400) / 100))")
    assert (np.diff(steps[1:-1]) > 0).all()
    back = page.evaluate("(as) => as.map(robust.toSlider)", steps)
    np.testing.assert_allclose(back, np.linspace(-4, 4, 801), atol=1e-12)


def curves(page) -> list[str]:
    return page.evaluate("() => [...document.querySelectorAll('.explore-panels .curve')].map((e) => e.getAttribute('d'))")


def said(page) -> list[str]:
    return page.locator(".explore-panels output").all_inner_texts()


def test_keys_move_the_sliders_and_the_pictures_follow(fresh):
    before = curves(fresh)
    assert len(before) == 4 and all(d.startswith("M") for d in before)
    fresh.locator("#explore-alpha").focus()
    fresh.keyboard.press("ArrowRight")
    moved = curves(fresh)
    assert all(a != b for a, b in zip(before, moved))
    assert fresh.locator("#explore-alpha-text").input_value() == "0.01"
    fresh.locator("#explore-scale").focus()
    fresh.keyboard.press("ArrowLeft")
    assert all(a != b for a, b in zip(moved, curves(fresh)))
    fresh.locator("#explore-alpha").focus()
    fresh.keyboard.press("Home")
    assert fresh.locator("#explore-alpha-text").input_value() == "-inf"
    assert "Welsch" in fresh.locator("#explore-name").inner_text()
    assert "Welsch" in fresh.locator("#explore-alpha").get_attribute("aria-valuetext")


def test_the_curve_goes_through_the_numbers(fresh):
    """The picture of the loss, read back: its points lie where the package says."""
    for alpha in (-2, 0.5, 2):
        fresh.locator("#explore-alpha-text").fill(str(alpha))
        d = curves(fresh)[0]
        xy = np.array([[float(v) for v in o.split()] for o in d[1:].split("L")])
        x, y = (xy[:, 0] - 40) / 312 * 12 - 6, (1 - (xy[:, 1] - 8) / 188) * 6
        inside = y < 6
        np.testing.assert_allclose(y[inside], rho(x[inside], float(alpha)), atol=2e-2)  # points are placed to 0.01
        assert inside.sum() > 200


def test_members_have_buttons_and_names(fresh):
    for label, name in (("−2 Geman-McClure", "Geman and McClure"), ("1 Charbonnier", "pseudo-Huber"), ("2 L2", "least squares"), ("0 Cauchy", "Lorentzian")):
        button = fresh.get_by_role("button", name=label)
        button.click()
        assert name in fresh.locator("#explore-name").inner_text()
        assert button.get_attribute("aria-pressed") == "true"
    fresh.locator("#explore-alpha-text").fill("0.5")
    assert "between Cauchy and Charbonnier" in fresh.locator("#explore-name").inner_text()


def test_below_0_it_says_that_there_is_no_density(fresh):
    missing = fresh.locator(".explore-panels .none")
    assert [missing.nth(i).is_visible() for i in range(4)] == [False] * 4
    fresh.get_by_role("button", name="−2 Geman-McClure").click()
    assert [missing.nth(i).is_visible() for i in range(4)] == [False, False, False, True]
    assert said(fresh)[3] == "none" and curves(fresh)[3] == ""
    assert "no density" in fresh.locator("#explore-facts").inner_text()


def test_the_pointer_reads_off_values(fresh):
    picture = fresh.locator(".explore-panels svg").first
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    fresh.mouse.move(box["x"] + box["width"] * (40 + 312 * 0.25) / 360, box["y"] + box["height"] / 2)
    x = float(fresh.locator("#explore-x-text").input_value())
    assert abs(x + 3) < 0.1
    got = [float(v.replace("−", "-")) for v in said(fresh)]
    want = [float(fn(x, 0.0, 1.0)) for fn in (rho, influence, irls_weight)] + [density([x], 0.0, 1.0).item()]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_the_address_holds_the_state(fresh, site):  # noqa: F811
    fresh.locator("#explore-alpha").focus()
    fresh.keyboard.press("Home")
    assert fresh.evaluate("location.hash") == "#alpha=-inf&scale=1&x=3"
    other = fresh.context.new_page()
    other.goto(f"{site.as_uri()}/explore.html#alpha=1&scale=2&x=-1.5")
    assert other.locator("#explore-name").inner_text().startswith("α = 1 is Charbonnier")
    assert [float(v.replace("−", "-")) for v in said(other)[:2]] == pytest.approx([0.25, -0.3], rel=1e-5)
    other.evaluate("location.hash = '#alpha=nonsense&scale=-1&x=2'")
    other.wait_for_function("document.getElementById('explore-x-text').value == '2'")
    assert [other.locator(f"#explore-{k}-text").input_value() for k in ("alpha", "scale")] == ["1", "2"]
    other.close()


@pytest.mark.parametrize("field, text", [("alpha", "one"), ("alpha", "nan"), ("scale", "0"), ("scale", "-1"), ("scale", "inf"), ("x", "inf"), ("x", "")])
def test_what_makes_no_sense_is_marked_and_changes_nothing(fresh, field, text):
    before, box = curves(fresh), fresh.locator(f"#explore-{field}-text")
    box.fill(text)
    assert box.get_attribute("aria-invalid") == "true" and curves(fresh) == before
    box.press("Enter")
    assert box.input_value() in "0 1 3".split() and box.get_attribute("aria-invalid") is None


def test_every_control_has_a_name(page):
    nameless = page.evaluate("""() => [...document.querySelectorAll(".explore :is(input, button, svg)")]
        .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim())).map((e) => e.outerHTML)""")
    assert nameless == []
