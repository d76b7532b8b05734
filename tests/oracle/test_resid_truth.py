"""Captured residuals against the NumPy forward pass, on the default model with its weights dequantised.

Owns: the limits, and the dequantised copy of the model (half a gigabyte, kept in the build folder).
Environment: TS_BUILD_DIR, TS_CLI, TS_MODEL, TS_LOGITS_OF (built from tests/e2e/logits_of.c).
Prints the largest error of each prompt, exits 1 on a failure.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# One thread everywhere: on a busy machine threads that wait for each other cost ten times the work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import forward
import readers

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TS_BUILD_DIR", ROOT / "build"))
CLI = os.environ.get("TS_CLI", BUILD / "bin/turbospark")
MODEL = os.environ.get("TS_MODEL", ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
LOGITS_OF = os.environ.get("TS_LOGITS_OF", BUILD / "tests/bin/logits_of")

PROMPTS = [
    "Hello",
    "The capital of France is",
    "Grüße aus Köln, 世界! 🙂 Ça va?\n\tIndented, 3.14159 and 1e-7.",
    "int main(void) { for (int i = 0; i < 10; i++) printf(\"%d\\n\", i * i); return 0; }",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who told the same story "
    "every evening: how the wind had once carried his boat beyond the edge of every map, and what he had "
    "found there, and why, although he never tired of telling it, he would not sail again",
]
MAX_TOKENS = 64
BLOCK_LIMIT = {"f16": 3e-3, "f32": 1e-4}
HEAD_LIMIT = 1e-4

failures = []


def check(ok, what):
    if not ok:
        failures.append(what)
        print(f"FAILED: {what}")


def relative_error(got, want):
    """|got - want| / |want| over the last axis; infinite where a value is not finite."""
    error = np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
    return np.where(np.isfinite(error), error, np.inf)


def capture(model, prompt, kv, folder):
    """Runs the command; returns its row of each block [layer][hidden] and the entry of .meta."""
    path = Path(folder) / "x.json"
    subprocess.run(
        [CLI, "run", "-m", model, "-p", prompt, "-n", "1", "--resid-capture", str(path)]
        + ["-t", "1", "-fa", "off", "-ctk", kv, "-ctv", kv],
        check=True, stdout=subprocess.DEVNULL,
    )
    head, rows = readers.read_residuals(path)
    (entry,) = readers.read_meta(path)["generations"]
    check(head["snapshots"] == 1 and head["positions"] == [entry["position"]], f"one snapshot of {prompt!r}")
    return rows[0], entry


def engine_logits(model, ids, kv, folder):
    path = Path(folder) / "ids"
    path.write_text(" ".join(map(str, ids)))
    raw = subprocess.run([LOGITS_OF, model, str(path), kv], check=True, stdout=subprocess.PIPE).stdout
    return np.frombuffer(raw, dtype="<f4")


def compare(oracle, truth, model, prompt, kv, folder):
    """truth: the oracle's results so far, by token ids."""
    rows, entry = capture(model, prompt, kv, folder)
    ids = entry["prompt_tokens"]
    name = f"{kv} KV, {len(ids)} tokens, {prompt[:20]!r}"
    check(1 <= len(ids) <= MAX_TOKENS, f"{name}: from 1 to {MAX_TOKENS} tokens")
    check(entry["position"] == len(ids) - 1 and entry["token"] == ids[-1], f"{name}: row of the last prompt token")
    check(rows.shape == (oracle.n_layer, oracle.n_embd), f"{name}: a row of every block, got {rows.shape}")

    if tuple(ids) not in truth:
        truth[tuple(ids)] = oracle.run(ids)
    want = truth[tuple(ids)]
    error = relative_error(rows.astype(np.float64), want["resid"][:, -1])
    block = int(error.argmax())
    logits = engine_logits(model, ids, kv, folder)
    head_error = relative_error(oracle.head(rows[-1].astype(np.float64)), logits)
    print(
        f"{name}: largest error {error[block]:.2e} in block {block}, median {np.median(error):.2e}; "
        f"head on the last row against the engine's logits {head_error:.2e}, "
        f"oracle's own logits {relative_error(want['logits'], logits):.2e}"
    )
    check(error[block] <= BLOCK_LIMIT[kv], f"{name}: every block within {BLOCK_LIMIT[kv]:.0e}")
    check(head_error <= HEAD_LIMIT, f"{name}: logits within {HEAD_LIMIT:.0e}")
    return len(ids)


def main():
    model = str(BUILD / "oracle" / f"{Path(MODEL).stem}.f32.gguf")
    forward.write_dequantised(MODEL, model)
    oracle = forward.load(model)
    truth, lengths = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for kv in BLOCK_LIMIT:
            lengths += [compare(oracle, truth, model, prompt, kv, folder) for prompt in PROMPTS]
    check(max(lengths) >= 48, "a prompt of 48 tokens or more")
    print(f"{len(lengths)} captures, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
