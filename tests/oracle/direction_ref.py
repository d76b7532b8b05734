"""Directions by NumPy, straight from their definitions: every matrix is written out.

Owns: the methods and figures of src/stats/direction.h once more. Refuses: to be clever.
"""

import numpy as np

SHRINKAGE = 0.1
PAIRED = ("pca", "pca-repeng")


def top(matrix):
    """Leading right-singular vector and the relative gap of the two largest squared singular values."""
    _, s, vt = np.linalg.svd(matrix, full_matrices=False)
    second = s[1] ** 2 if len(s) > 1 else 0.0
    return vt[0], (s[0] ** 2 - second) / s[0] ** 2


def axis(method, a, b):
    delta = a.mean(0) - b.mean(0)
    if method == "mean":
        return delta, np.nan
    if method == "pca":
        return top(a - b)
    if method == "pca-repeng":
        return top((a - b) - (a - b).mean(0))
    if method == "svd":
        pairs = (a[:, None, :] - b[None, :, :]).reshape(-1, a.shape[1])
        return top(pairs - pairs.mean(0))
    within = np.concatenate([a - a.mean(0), b - b.mean(0)])
    s = within.T @ within / len(within)
    width = a.shape[1]
    return np.linalg.solve((1 - SHRINKAGE) * s + SHRINKAGE * np.trace(s) / width * np.eye(width), delta), np.nan


def direction(method, a, b, control=None):
    """d and the eigen-gap of one block; a, b: [n][hidden] f64."""
    u, gap = axis(method, a, b)
    if control is not None:
        v = control / np.linalg.norm(control)
        u = u / np.linalg.norm(u)
        u = u - (u @ v) * v
    u = u / np.linalg.norm(u)
    if method == "pca-repeng":
        votes = np.sign(a @ u - b @ u).sum()
        return u * np.sign(votes if votes else u @ (a.mean(0) - b.mean(0))), gap
    return u * (u @ (a.mean(0) - b.mean(0))), gap


def auc(method, a, b, control=None):
    """Five folds by index; every pair of a fold compared."""
    k = min(5, len(a), len(b))
    ordered = pairs = 0
    for f in range(k):
        in_a, in_b = np.arange(len(a)) % k == f, np.arange(len(b)) % k == f
        d, _ = direction(method, a[~in_a], b[~in_b], control)
        ca, cb = a[in_a] @ d, b[in_b] @ d
        ordered += (ca[:, None] > cb).sum() + (ca[:, None] == cb).sum() / 2
        pairs += ca.size * cb.size
    return ordered / pairs


def figures(d, a, b):
    """norm, separation, share, removed share, means of c."""
    norm = np.linalg.norm(d)
    ca, cb = a @ d / norm, b @ d / norm
    spread = np.sqrt((((ca - ca.mean()) ** 2).sum() + ((cb - cb.mean()) ** 2).sum()) / (len(a) + len(b) - 2))
    row = np.linalg.norm(np.concatenate([a, b]), axis=1).mean()
    removed = np.abs(np.concatenate([ca, cb])).mean() / row
    return norm, (ca.mean() - cb.mean()) / spread, norm / row, removed, ca.mean(), cb.mean()
