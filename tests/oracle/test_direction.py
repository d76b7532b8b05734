"""Extraction against NumPy: every method, narrow and wide, with and without a control direction.

Owns: the limits. Environment: TS_BUILD_DIR, TS_DIRECTION_OF (built from tests/oracle/direction_of.c).
Exits 1 on a mismatch, 77 where the driver is not built.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# One thread everywhere: on a busy machine threads that wait for each other cost ten times the work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import direction_ref as ref

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TS_BUILD_DIR", ROOT / "build"))
DRIVER = Path(os.environ.get("TS_DIRECTION_OF", BUILD / "tests/bin/direction_of"))

METHODS = ("mean", "pca", "pca-repeng", "svd", "lda")
failures = []


def check(ok, what):
    if not ok:
        failures.append(what)
        print(f"FAILED: {what}")


def cosine(x, y):
    return x @ y / np.linalg.norm(x) / np.linalg.norm(y)


def rows(rng, n, layers, hidden, shift, base):
    """Rows as a stream has them: a large common offset, two dimensions that dwarf the others, falling variances."""
    scale = 1.0 / np.sqrt(1 + np.arange(hidden) * 8 / hidden)
    mix = np.linalg.qr(np.random.default_rng(5).normal(size=(hidden, hidden)))[0]
    x = (rng.normal(size=(n, layers, hidden)) * scale) @ mix
    x[..., :2] += rng.normal(size=(n, layers, 2)) * [3, 2]
    return (x + base + shift).astype("<f4")


def extract(method, a, b, control=None):
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder) / n) for n in ("positive", "negative", "out", "control")]
        a.tofile(names[0])
        b.tofile(names[1])
        if control is not None:
            control.astype("<f4").tofile(names[3])
        args = [method, str(a.shape[1]), str(a.shape[2])] + names[: 4 if control is not None else 3]
        text = subprocess.run([DRIVER] + args, check=True, capture_output=True, text=True).stdout
        d = np.fromfile(names[2], dtype="<f4").reshape(a.shape[1:])
    return d.astype(np.float64), np.array([[float(w) for w in line.split()] for line in text.splitlines()])


def compare(what, method, a, b, control=None, folds=True):
    d, got = extract(method, a, b, control)
    worst = 1.0
    for layer in range(a.shape[1]):
        x, y = a[:, layer].astype(np.float64), b[:, layer].astype(np.float64)
        v = None if control is None else control[layer].astype("<f4").astype(np.float64)
        want, gap = ref.direction(method, x, y, v)
        name = f"{what} {method} layer {layer}"
        cos = cosine(d[layer], want)
        worst = min(worst, cos)
        check(cos > 1 - 1e-5, f"{name}: cosine {cos}")
        check(np.linalg.norm(d[layer] - want) <= (1e-6 if method == "mean" else 1e-4) * np.linalg.norm(want),
              f"{name}: not the same vector")
        norm, separation, share, removed, mean_a, mean_b = ref.figures(want, x, y)
        figures = np.array([norm, separation, share, removed, mean_a, mean_b])
        check(np.allclose(got[layer][[0, 1, 2, 3, 7, 8]], figures, rtol=1e-4, atol=1e-6), f"{name}: figures {figures}")
        if folds:
            auc = ref.auc(method, x, y, v)
            check(abs(got[layer][4] - auc) < 2e-3, f"{name}: auc {got[layer][4]}, expected {auc}")
        previous = cosine(d[layer], d[layer - 1]) if layer else np.nan
        check(np.isclose(got[layer][5], previous, rtol=1e-6, equal_nan=True), f"{name}: cos_previous")
        check(np.isclose(got[layer][6], gap, rtol=0.03, atol=1e-6, equal_nan=True),
              f"{name}: eigen-gap {got[layer][6]}, expected {gap}")
        if v is not None:
            check(abs(cosine(d[layer], v)) < 1e-6, f"{name}: not orthogonal")
    print(f"{what:<24} {method:<11} 1 - cosine {1 - worst:.1e}")


def main():
    if not DRIVER.exists():
        print(f"'{DRIVER}' is not built")
        return 77
    rng = np.random.default_rng(11)
    shapes = [("few rows", 12, 12, 3, 64), ("many rows", 70, 70, 2, 48), ("unequal", 31, 18, 2, 40),
              ("one of each fold", 3, 4, 1, 16), ("wide", 24, 24, 2, 300)]
    for what, n, m, layers, hidden in shapes:
        base = rng.normal(size=(layers, hidden)) * 4
        shift = rng.normal(size=(layers, hidden)) * 0.3
        a, b = rows(rng, n, layers, hidden, shift, base), rows(rng, m, layers, hidden, 0, base)
        control = rng.normal(size=(layers, hidden)) + shift
        for method in METHODS:
            if method in ref.PAIRED and n != m:
                continue
            if what == "one of each fold":
                compare(what, method, a, b, folds=False)
                continue
            compare(what, method, a, b)
            compare(what + ", control", method, a, b, control)
    # past the size where rows are walked instead of a Gram matrix made; svd by its algebra, checked above
    n, hidden = 1100, 1040
    base, shift = rng.normal(size=(1, hidden)) * 4, rng.normal(size=(1, hidden)) * 0.1
    a, b = rows(rng, n, 1, hidden, shift, base), rows(rng, n, 1, hidden, 0, base)
    for method in ("pca", "pca-repeng", "lda"):
        compare("large", method, a, b, folds=method == "lda")
    x, y = a[:, 0].astype(np.float64), b[:, 0].astype(np.float64)
    stacked = np.concatenate([x - x.mean(0), y - y.mean(0)])
    d, _ = extract("svd", a, b)
    check(abs(cosine(d[0], np.linalg.svd(stacked, full_matrices=False)[2][0])) > 1 - 1e-5, "large svd")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
