// The page 'Explore': the loss, its influence, its weight and its density, drawn as the sliders move.
// First the mathematics (chapters 1, 3 and 11, compared with the Python package by tests/test_explore.py), then the drawing.
"use strict";

const robust = (() => {
  const TABLE = JSON.parse(document.getElementById("explore-table").textContent);
  const CAP = 2 ** 84; // beyond this |alpha| the loss equals its limit to the last digit

  // alpha/2, (alpha-2)/2 and b = |alpha-2|, infinite alpha capped and b kept off 0.
  function shape(alpha) {
    const a = Math.min(Math.max(alpha, -CAP), CAP);
    return [a / 2, (a - 2) / 2, Math.max(Math.abs(a - 2), 2 ** -52)];
  }

  // log(1 + z²/b), also where z²/b overflows.
  function logp(z, b) {
    const t = (z * z) / b;
    return t < 2 ** 900 ? Math.log1p(t) : 2 * Math.log1p(Math.abs(z)) - Math.log(b);
  }

  function rho(x, alpha, c = 1) {
    const z = x / c, [q, p, b] = shape(alpha), y = logp(z, b), near2 = b < 2 ** -6;
    if (Math.abs(q) < 2 ** -60) return (b / 2) * y;
    const h = Math.expm1(((near2 ? p : q) * y) / 2), e = h * (h + 2); // (1+t)^p - 1 or (1+t)^q - 1, by halves: squares overflow later
    return near2 ? (z * (z * (1 + e)) + b * e) / (2 * q) : (b / (2 * q)) * e;
  }

  function weight(x, alpha, c = 1) {
    const [, p, b] = shape(alpha), root = Math.exp((p / 2) * logp(x / c, b)) / c;
    return root * root;
  }

  function influence(x, alpha, c = 1) {
    const [, p, b] = shape(alpha), root = Math.exp((p / 2) * logp(x / c, b));
    return (((x / c) * root) / c) * root;
  }

  // log Z, for alpha >= 0; nan below, where the integral diverges.
  function logPartition(alpha) {
    if (!(alpha >= 0)) return NaN;
    const [sign, p, q, ...k] = TABLE[alpha > 2 ? "above" : "below"];
    const b = Math.abs(alpha - 2), beta = b < CAP ? b / (p + q * b) : 1 / q, w = Math.log(Math.max(beta, 2 ** -58));
    const u = (4 * w) / (w - 4) - 2; // Clenshaw's recurrence, u = 2(2v - 1)
    let [b1, b2] = [0, 0];
    for (let i = k.length - 1; i > 0; i--) [b1, b2] = [u * b1 - b2 + k[i], b1];
    return Math.log(2 * Math.PI) / 2 + beta * (((sign * p) / 4) * w + k[0] + (u / 2) * b1 - b2);
  }

  const density = (x, alpha, c = 1) => Math.exp(-rho(x, alpha, c) - logPartition(alpha)) / c;

  // Chapter 2: what the loss cannot exceed, how hard a residual can pull, and where it pulls hardest.
  const lossBound = (alpha) => (alpha < 0 ? 1 - 2 / alpha : Infinity);
  const inflection = (alpha, c = 1) => (alpha < 1 ? c * Math.sqrt(1 + 1 / (1 - alpha)) : Infinity);
  const gradientBound = (alpha, c = 1) => (alpha < 1 ? influence(inflection(alpha, c), alpha, c) : alpha === 1 ? 1 / c : Infinity);

  // The slider of alpha, from -4 to 4: itself up to 2, from there bent so that infinity is at the end.
  const fromSlider = (s) => (Math.abs(s) <= 2 ? s : Math.abs(s) < 4 ? (Math.sign(s) * 4) / (4 - Math.abs(s)) : Math.sign(s) * Infinity);
  const toSlider = (alpha) => (Math.abs(alpha) <= 2 ? alpha : Math.sign(alpha) * (4 - 4 / Math.abs(alpha)));

  return { rho, influence, weight, density, logPartition, lossBound, inflection, gradientBound, fromSlider, toSlider };
})();
window.robust = robust;

(() => {
  const MEMBERS = [
    [-Infinity, "−∞", "Welsch", "Welsch's loss, also called Leclerc's"],
    [-2, "−2", "Geman-McClure", "Geman and McClure's loss"],
    [0, "0", "Cauchy", "Cauchy's loss, also called Lorentzian; its density is Cauchy's of scale √2 c"],
    [1, "1", "Charbonnier", "Charbonnier's loss, also called pseudo-Huber or L1-L2"],
    [2, "2", "L2", "least squares; its density is the normal one of standard deviation c"],
    [Infinity, "+∞", "", "exp(x²/2c²) − 1, the other end, which has no name"],
  ];
  // Title, function, and the vertical range, which follows the scale but not the shape.
  const PANELS = [
    ["Loss", "what a residual costs", robust.rho, () => [0, 6]],
    ["Influence", "how hard it pulls", robust.influence, (c) => [-1.6 / c, 1.6 / c]],
    ["Weight", "how much it counts", robust.weight, (c) => [0, 1.6 / c / c]],
    ["Density", "how likely it is", robust.density, (c) => [0, 0.6 / c]],
  ];
  const START = { alpha: 0, scale: 1, x: 3 };
  const W = 360, H = 220, LEFT = 40, RIGHT = 8, TOP = 8, BOTTOM = 24; // of a panel, in its own units
  const $ = (id) => document.getElementById(`explore-${id}`);
  const state = { ...START };

  const svg = (name, attributes, parent) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    parent?.append(e);
    return e;
  };
  const html = (name, attributes, parent) => {
    const e = Object.assign(document.createElement(name), attributes);
    parent?.append(e);
    return e;
  };

  // Numbers as people write them.
  function show(v, digits = 6) {
    if (Number.isNaN(v)) return "none";
    if (!Number.isFinite(v)) return v > 0 ? "∞" : "−∞";
    const size = Math.abs(v), text = size && (size < 1e-4 || size >= 1e6) ? v.toExponential(digits - 1) : v.toPrecision(digits);
    return text.replace(/(\.\d*?)0+(?=e|$)/, "$1").replace(/\.(?=e|$)/, "").replace("e+", "e").replaceAll("-", "−");
  }
  const plain = (v) => (Number.isFinite(v) ? String(v) : v > 0 ? "inf" : "-inf"); // for text fields and the address
  function read(text) {
    const t = text.trim().replaceAll("−", "-").toLowerCase().replace("∞", "inf").replace("infinity", "inf");
    if (/^[+-]?inf$/.test(t)) return t[0] === "-" ? -Infinity : Infinity;
    return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/.test(t) ? Number(t) : NaN;
  }
  const VALID = {
    alpha: (v) => !Number.isNaN(v),
    scale: (v) => v >= 1e-6 && v <= 1e6,
    x: (v) => Number.isFinite(v) && Math.abs(v) <= 1e9,
  };

  // Half the width of the horizontal axis: 6, unless the scale is far from 1.
  const reach = (c) => 6 * Math.max(1, c / 4) * Math.min(1, 4 * c);
  const range = {
    alpha: { to: (v) => Math.round(100 * robust.toSlider(v)), from: (k) => robust.fromSlider(k / 100) },
    scale: { to: (v) => Math.round(100 * Math.log2(v)), from: (k) => (k % 100 ? Number((2 ** (k / 100)).toPrecision(4)) : 2 ** (k / 100)) },
    x: { to: (v) => Math.round((600 * v) / reach(state.scale)), from: (k) => Number(((reach(state.scale) * k) / 600).toPrecision(6)) },
  };

  function ticks(lo, hi, about) {
    const raw = (hi - lo) / about, ten = 10 ** Math.floor(Math.log10(raw));
    const step = ten * [1, 2, 5, 10].find((m) => m * ten >= raw * 0.999);
    const out = [];
    for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi * (1 + 1e-9); i++) out.push(i * step);
    return out;
  }

  const panels = PANELS.map(([title, says, f, limits], i) => {
    const figure = html("figure", {}, document.querySelector(".explore-panels"));
    const caption = html("figcaption", {}, figure);
    html("b", { textContent: title }, caption);
    caption.append(` ${says}`);
    const value = html("output", { htmlFor: "explore-alpha explore-scale explore-x" }, caption);
    value.setAttribute("aria-live", "off");
    const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" }, figure);
    const frame = svg("clipPath", { id: `explore-clip-${i}` }, picture);
    svg("rect", { x: LEFT, y: TOP, width: W - LEFT - RIGHT, height: H - TOP - BOTTOM }, frame);
    const grid = svg("g", { class: "grid" }, picture);
    const inside = svg("g", { "clip-path": `url(#explore-clip-${i})` }, picture);
    const ghosts = MEMBERS.slice(0, 5).map(() => svg("path", { class: "ghost" }, inside));
    const cursor = svg("path", { class: "cursor" }, inside);
    const curve = svg("path", { class: "curve" }, inside);
    const dot = svg("circle", { class: "dot", r: 4 }, inside);
    const none = svg("text", { class: "none", x: (LEFT + W - RIGHT) / 2, y: (TOP + H - BOTTOM) / 2 }, picture);
    none.textContent = "no density: the integral diverges for α < 0";
    return { title, f, limits, figure, value, picture, grid, ghosts, cursor, curve, dot, none };
  });

  function draw(panel) {
    const { alpha, scale, x } = state, half = reach(scale), [lo, hi] = panel.limits(scale);
    const px = (v) => LEFT + ((v + half) / (2 * half)) * (W - LEFT - RIGHT);
    const py = (v) => TOP + (1 - (Math.min(Math.max(v, lo - 9 * (hi - lo)), hi + 9 * (hi - lo)) - lo) / (hi - lo)) * (H - TOP - BOTTOM);
    const path = (a) => {
      const points = [];
      for (let i = -240; i <= 240; i++) {
        const v = panel.f((i * half) / 240, a, scale);
        if (Number.isNaN(v)) return "";
        points.push(`${px((i * half) / 240).toFixed(2)} ${py(v).toFixed(2)}`);
      }
      return `M${points.join("L")}`;
    };
    panel.grid.replaceChildren();
    for (const v of ticks(-half, half, 6)) {
      svg("path", { d: `M${px(v)} ${TOP}V${H - BOTTOM}` }, panel.grid);
      svg("text", { x: px(v), y: H - BOTTOM + 15, "text-anchor": "middle" }, panel.grid).textContent = show(v, 3);
    }
    for (const v of ticks(lo, hi, 5)) {
      svg("path", { d: `M${LEFT} ${py(v)}H${W - RIGHT}`, class: Math.abs(v) < hi * 1e-9 ? "zero" : "" }, panel.grid);
      svg("text", { x: LEFT - 5, y: py(v) + 4, "text-anchor": "end" }, panel.grid).textContent = show(v, 3);
    }
    panel.ghosts.forEach((g, i) => g.setAttribute("d", path(MEMBERS[i][0])));
    const d = path(alpha), value = panel.f(x, alpha, scale);
    panel.curve.setAttribute("d", d);
    panel.none.style.display = d ? "none" : "";
    panel.cursor.setAttribute("d", `M${px(x)} ${TOP}V${H - BOTTOM}`);
    panel.dot.style.display = d ? "" : "none";
    panel.dot.setAttribute("cx", px(x));
    panel.dot.setAttribute("cy", py(value || 0));
    panel.value.value = show(value);
    panel.picture.setAttribute("aria-label", `${panel.title} for residuals from ${show(-half)} to ${show(half)}; at ${show(x)} it is ${show(value)}`);
  }

  function place(alpha) {
    const member = MEMBERS.find(([a]) => a === alpha);
    if (member) return `is ${member[3]}`;
    const i = MEMBERS.findIndex(([a]) => a > alpha), above = MEMBERS[i][2];
    return above ? `lies between ${MEMBERS[i - 1][2]} and ${above}` : "lies beyond least squares: large residuals count more, not less";
  }

  function facts({ alpha, scale }) {
    const bound = robust.lossBound(alpha), pull = robust.gradientBound(alpha, scale), top = robust.inflection(alpha, scale);
    return [
      bound < Infinity ? `No residual costs more than ${show(bound)}.` : "The loss grows without bound.",
      top < Infinity ? `The pull is hardest, ${show(pull)}, at |x| = ${show(top)}, and fades beyond.`
        : pull < Infinity ? `The pull grows towards ${show(pull)} and stays below it.` : "The pull grows without bound.",
      alpha >= 0 ? `The density is exp(−ρ)/(cZ), log Z = ${show(robust.logPartition(alpha))}.`
        : "For α < 0 the loss levels off, exp(−ρ) has no finite integral, and there is no density.",
    ].join(" ");
  }

  function render() {
    panels.forEach(draw);
    for (const [key, { to }] of Object.entries(range)) {
      const slider = $(key), text = $(`${key}-text`);
      slider.value = to(state[key]);
      slider.setAttribute("aria-valuetext", `${show(state[key])}${key === "alpha" ? `, ${place(state.alpha)}` : ""}`);
      if (document.activeElement !== text) text.value = plain(state[key]);
      text.removeAttribute("aria-invalid");
    }
    const name = $("name"), says = `α = ${show(state.alpha)} ${place(state.alpha)}.`;
    if (name.textContent !== says) name.textContent = says;
    $("facts").textContent = facts(state);
    document.querySelectorAll(".explore-stops button").forEach((b, i) => b.setAttribute("aria-pressed", MEMBERS[i][0] === state.alpha));
  }

  // The address holds the state: #alpha=-2&scale=1&x=3.
  function recall() {
    const hash = new URLSearchParams(location.hash.slice(1));
    for (const key of Object.keys(START)) {
      const v = hash.has(key) ? read(hash.get(key)) : NaN;
      if (VALID[key](v)) state[key] = v;
    }
    render();
  }
  function save() {
    history.replaceState(null, "", `#${Object.keys(START).map((k) => `${k}=${plain(state[k])}`).join("&")}`);
  }

  for (const key of Object.keys(range)) {
    const slider = $(key), text = $(`${key}-text`);
    let held = false; // by a pointer, which is too coarse to hit a member by itself; keys go step by step
    slider.addEventListener("pointerdown", () => { held = true; });
    for (const end of ["pointerup", "pointercancel", "keydown"]) slider.addEventListener(end, () => { held = false; });
    slider.addEventListener("input", () => {
      let k = Number(slider.value);
      if (held && key === "alpha") k = MEMBERS.map(([a]) => range.alpha.to(a)).find((stop) => Math.abs(stop - k) < 7) ?? k;
      state[key] = range[key].from(k);
      render();
    });
    slider.addEventListener("change", save);
    text.addEventListener("input", () => {
      const v = read(text.value);
      if (VALID[key](v)) { state[key] = v; render(); } else text.setAttribute("aria-invalid", "true");
    });
    text.addEventListener("change", () => { text.blur(); render(); save(); });
  }

  for (const [alpha, label, name] of MEMBERS) {
    const button = html("button", { type: "button" }, document.querySelector(".explore-stops"));
    html("b", { textContent: label }, button);
    if (name) button.append(` ${name}`);
    button.addEventListener("click", () => { state.alpha = alpha; render(); save(); });
  }
  $("reset").addEventListener("click", () => { Object.assign(state, START); render(); save(); });

  // The pointer over a picture says which residual is meant.
  for (const { picture } of panels) {
    const point = (event) => {
      const box = picture.getBoundingClientRect(), half = reach(state.scale);
      const v = ((((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT)) * 2 * half - half;
      if (Math.abs(v) <= half) { state.x = Number(v.toPrecision(3)); render(); }
    };
    picture.addEventListener("pointermove", point);
    picture.addEventListener("pointerdown", point);
    picture.addEventListener("pointerup", save);
  }

  window.addEventListener("hashchange", recall);
  recall();
})();
