"""What the page 'Explore' is made of: its controls (explore.html), and log Z as two short polynomials for its script.

The script is assets/explore.js. tests/test_explore.py compares its values with the package's, in a browser.
"""
from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

MARK = "<!-- explore -->"  # stands in nbs/explore.ipynb where the controls and pictures go

# Chapter 11's form of log Z: with b = |alpha-2|, beta = b/(p + q*b) and w = log(beta),
# log Z = log(2*pi)/2 + beta*(lead*w + K(v)), v = w/(w-4) in [0, 1]. K is smooth, so few Chebyshev terms will do.
SIDES = {"below": (-1, 42, -20, 48), "above": (1, 1, 1, 28)}  # sign, p, q, terms


def _chebyshev(sign: int, p: int, q: int, terms: int, points: int = 2000) -> list[float]:
    """Coefficients of K on one side of 2, by least squares on log Z itself, as the package computes it."""
    from robust_general.spline import log_partition

    v = (1 + np.cos(np.pi * (np.arange(points) + 0.5) / points)) / 2
    beta = np.exp(-4 * v / (1 - v))
    beta = beta[beta > 2.0**-52]  # closer to 2 there are no numbers
    alpha = np.maximum(2 + sign * p * beta / (1 - q * beta), 0)
    b = np.abs(alpha - 2)  # of the number that was rounded to
    beta = b / (p + q * b)
    w = np.log(beta)
    rest = log_partition(alpha) - math.log(2 * math.pi) / 2 - beta * sign * p / 4 * w
    basis = np.polynomial.chebyshev.chebvander(2 * w / (w - 4) - 1, terms - 1) * beta[:, None]
    return np.linalg.lstsq(basis, rest, rcond=1e-15)[0].tolist()


def log_partition_table() -> dict[str, list[float]]:
    """Both sides of 2: sign, p, q and then the coefficients."""
    return {side: [sign, p, q, *_chebyshev(sign, p, q, terms)] for side, (sign, p, q, terms) in SIDES.items()}


def panel() -> str:
    """The part of the page that moves, as HTML."""
    html = Path(__file__).with_name("explore.html").read_text(encoding="utf-8")
    return html.replace("{log_partition}", json.dumps(log_partition_table(), separators=(",", ":"))).strip()
