"""The FFN census against the NumPy forward pass, on the default model with its weights dequantised.

Owns: the limits. Uses the dequantised copy of the model that test_resid_truth.py keeps in the build folder.
Environment: TS_BUILD_DIR, TS_CLI, TS_MODEL. A census holds sums of |a|: one pass of one prompt is the activations
of its last token, a text those of all its tokens. Prints the largest errors, exits 1 on a failure.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# One thread everywhere: on a busy machine threads that wait for each other cost ten times the work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import forward

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TS_BUILD_DIR", ROOT / "build"))
CLI = os.environ.get("TS_CLI", BUILD / "bin/turbospark")
MODEL = os.environ.get("TS_MODEL", ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf")

PROMPTS = ["The capital of France is", "Grüße aus Köln, 世界! 🙂 int main(void) { return 0; }"]
TEXT = ("Once upon a time, in a small village by the sea, there lived an old fisherman who told the same story every "
        "evening: how the wind had once carried his boat beyond the edge of every map.")
BLOCKS = (0, 7, 29)
LIMIT = 2e-3

failures = []


def check(ok, what):
    if not ok:
        failures.append(what)
        print(f"FAILED: {what}")


def relative_error(got, want):
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    return error if np.isfinite(error) else np.inf


def turbospark(command, model, path, *arguments):
    subprocess.run([CLI, command, "-m", model, "-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32", *arguments],
                   check=True, stdout=subprocess.DEVNULL)
    census = json.loads(Path(path).read_text(encoding="utf-8"))
    detail = json.loads(Path(path).with_suffix(".detail").read_text(encoding="utf-8"))
    return census, detail


def prompt_tokens(model, prompt, folder):
    """The ids that the tokenizer makes of a prompt, from the provenance of a capture."""
    path = Path(folder) / "ids.json"
    subprocess.run([CLI, "run", "-m", model, "-t", "1", "-p", prompt, "-n", "0", "--resid-capture", str(path)],
                   check=True, stdout=subprocess.DEVNULL)
    return json.loads(path.with_suffix(".meta").read_text(encoding="utf-8"))["generations"][0]["prompt_tokens"]


def compare(name, census, detail, acts, n_prefill):
    """acts [block][pass][n_ff]: what the census counted."""
    n_passes = acts.shape[1]
    check(census["decode_passes"] == n_passes, f"{name}: {n_passes} passes, got {census['decode_passes']}")
    check(census["prefill_passes"] == n_prefill, f"{name}: {n_prefill} prompt tokens before them")
    worst = 0
    for il in range(acts.shape[0]):
        want = np.abs(acts[il]).sum(axis=0)
        errors = [relative_error(np.array(rows), want) for rows in (detail["dense"][il]["mass"], census["mass"][il])]
        worst = max(worst, *errors)
        if il in BLOCKS:
            print(f"{name}: block {il}: mass within {errors[0]:.2e}")
        check(max(errors) <= LIMIT, f"{name}: block {il} within {LIMIT:.0e}, got {max(errors):.2e}")
        largest = detail["dense"][il]["max_abs"]
        check(abs(largest / np.abs(acts[il]).max() - 1) <= LIMIT, f"{name}: block {il}: largest magnitude {largest}")
        compare_histogram(f"{name}: block {il}", census, il, acts[il])
    print(f"{name}: worst block {worst:.2e}")


def compare_histogram(name, census, il, acts):
    """Counts by the exponent; values next to an edge may fall on its other side."""
    exponent = np.frexp(np.abs(acts))[1] + 32  # 2^(b-33) <= |a| < 2^(b-32)
    want = np.bincount(np.clip(exponent, 1, 62).ravel(), minlength=64)
    got = np.array(census["hist_count"][il])
    near = np.abs(np.abs(acts) / np.exp2(np.round(np.log2(np.abs(acts) + 1e-30))) - 1) < 0.05
    check(got.sum() == acts.size, f"{name}: every activation is counted")
    check(np.abs(got - want).sum() <= 2 * near.sum(), f"{name}: magnitudes")


def main():
    model = str(BUILD / "oracle" / f"{Path(MODEL).stem}.f32.gguf")
    forward.write_dequantised(MODEL, model)
    oracle = forward.load(model)
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "census.json")
        for prompt in PROMPTS:
            ids = prompt_tokens(model, prompt, folder)
            (Path(folder) / "prompts.jsonl").write_text(json.dumps({"prompt": prompt}), encoding="utf-8")
            got = turbospark("census", model, out, "-i", f"{folder}/prompts.jsonl", "-n", "1", "-o", out, "--overwrite")
            compare(repr(prompt[:20]), *got, oracle.run(ids)["ffn"][:, -1:], len(ids) - 1)
        (Path(folder) / "text.txt").write_text(TEXT, encoding="utf-8")
        ids = prompt_tokens(model, TEXT, folder)
        got = turbospark("census", model, out, "--text", f"{folder}/text.txt", "-o", out, "--overwrite", "-q")
        compare(f"text of {len(ids)} tokens", *got, oracle.run(ids)["ffn"], 0)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
