"""Captured residuals against the NumPy forward pass, on the default model with its weights dequantised.

Environment: TS_CLI, TS_MODEL, TS_LOGITS_OF (built from tests/e2e/logits_of.c), TS_ORACLE_CACHE (where the
dequantised model, half a gigabyte, is kept). Prints the largest error of each prompt, exits 1 on a failure.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import forward
import readers

ROOT = Path(__file__).resolve().parents[2]
CLI = os.environ.get("TS_CLI", str(ROOT / "build/bin/turbospark"))
MODEL = os.environ.get("TS_MODEL", str(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
LOGITS_OF = os.environ.get("TS_LOGITS_OF", str(ROOT / "build/tests/logits_of"))
CACHE = Path(os.environ.get("TS_ORACLE_CACHE", str(ROOT / "build/oracle")))

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
        + ["-fa", "off", "-ctk", kv, "-ctv", kv],
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


def compare(oracle, model, prompt, kv, folder):
    rows, entry = capture(model, prompt, kv, folder)
    ids = entry["prompt_tokens"]
    name = f"{kv} KV, {len(ids)} tokens, {prompt[:20]!r}"
    check(1 <= len(ids) <= MAX_TOKENS, f"{name}: from 1 to {MAX_TOKENS} tokens")
    check(entry["position"] == len(ids) - 1 and entry["token"] == ids[-1], f"{name}: row of the last prompt token")
    check(rows.shape == (oracle.n_layer, oracle.n_embd), f"{name}: a row of every block, got {rows.shape}")

    want = oracle.run(ids)
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
    model = str(CACHE / f"{Path(MODEL).stem}.f32.gguf")
    forward.write_dequantised(MODEL, model)
    oracle = forward.load(model)
    with tempfile.TemporaryDirectory() as folder:
        lengths = [compare(oracle, model, prompt, kv, folder) for kv in BLOCK_LIMIT for prompt in PROMPTS]
    check(max(lengths) >= 48, "a prompt of 48 tokens or more")
    print(f"{len(lengths)} captures, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
