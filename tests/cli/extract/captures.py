"""Small captures for extract.bats, in every form that extract reads, and a look into what it writes.

captures.py pair FILE.json [rows=N layers=N hidden=N shift=X seed=N nan=ROW:LAYER:VALUE inf=..]
captures.py safetensors FROM.json TO.safetensors [ids=0,1,..]      the same rows, with block numbers
captures.py vllm FROM.json FOLDER          one file a row, which is the last of three tokens
captures.py split FROM.json FOLDER pair|safetensors                one file a row
captures.py meta FILE.json [hash= architecture= description= bos= template= steering=]
captures.py means P.json N.json            differences of means of blocks 1 and on
captures.py rows FILE.gguf [N]             the last N (2) directions, 8 values each
"""

import json
import random
import struct
import sys
from pathlib import Path


def number(text):
    return json.loads(text) if text not in ("true", "false") else text == "true"


def write_pair(path, layers, hidden, rows):
    path = Path(path)
    path.with_suffix(".f32").write_bytes(b"".join(struct.pack(f"<{layers * hidden}f", *row) for row in rows))
    path.write_text(json.dumps({
        "layers": layers, "hidden": hidden, "snapshots": len(rows), "dtype": "float32",
        "layout": "[snapshot][layer][hidden]", "hook": "residual stream at the OUTPUT of each layer (post-FFN join)",
        "data": path.with_suffix(".f32").name, "positions": [7] * len(rows)}, indent=2))


def read_pair(path):
    head = json.loads(Path(path).read_text())
    data = Path(path).with_suffix(".f32").read_bytes()
    n = head["layers"] * head["hidden"]
    return head["layers"], head["hidden"], [struct.unpack_from(f"<{n}f", data, 4 * n * i) for i in range(head["snapshots"])]


def write_safetensors(path, tensors):
    head, data = {}, b""
    for name, dtype, shape, raw in tensors:
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def numbered(path, layers, hidden, rows, ids):
    write_safetensors(path, [
        ("hidden_states", "F32", [len(rows), layers, hidden], b"".join(struct.pack(f"<{layers * hidden}f", *r) for r in rows)),
        ("layer_ids", "I32", [layers], struct.pack(f"<{layers}i", *ids)),
        ("positions", "I32", [len(rows)], struct.pack(f"<{len(rows)}i", *[7] * len(rows)))])


def make_pair(path, options):
    o = {"rows": 6, "layers": 3, "hidden": 8, "shift": 0, "seed": 1}
    o.update({k: number(v) for k, v in options.items() if k in o})
    rng = random.Random(o["seed"])
    n = o["layers"] * o["hidden"]
    rows = [[rng.gauss(0, 1) + 3 + o["shift"] * ((j * 7) % 5 - 1) for j in range(n)] for _ in range(o["rows"])]
    for name in ("nan", "inf"):
        if name in options:
            row, layer, value = (int(w) for w in options[name].split(":"))
            rows[row][layer * o["hidden"] + value] = float(name)
    write_pair(path, o["layers"], o["hidden"], rows)


def make_meta(path, o):
    head = json.loads(Path(path).read_text())
    data = Path(path).with_suffix(".f32")
    Path(path).with_suffix(".meta").write_text(json.dumps({
        "format_version": 1, "kind": "resid",
        "model": {"architecture": o.get("architecture", "llama"), "name": "tiny",
                  "description": o.get("description", "llama tiny"), "size_bytes": 1,
                  "shards": [{"file": "tiny.gguf", "bytes": 1, "xxh3_128": o.get("hash")}]},
        "adds_bos": number(o.get("bos", "false")), "chat_template": o.get("template"), "steering": o.get("steering"),
        "snapshots": head["snapshots"],
        "data": {"file": data.name, "bytes": data.stat().st_size, "xxh3_128": None}, "generations": []}))


def split(path, folder, form):
    layers, hidden, rows = read_pair(path)
    for i, row in enumerate(rows):
        if form == "pair":
            write_pair(Path(folder) / f"{i}.json", layers, hidden, [row])
        elif form == "safetensors":
            numbered(Path(folder) / f"{i}.safetensors", layers, hidden, [row], range(layers))
        else:
            other = [[x + 1 + t for x in rows[i - 1]] for t in range(2)]
            raw = b"".join(struct.pack(f"<{layers * hidden}f", *r) for r in (*other, row))
            write_safetensors(Path(folder) / f"{i}.safetensors", [
                ("hidden_states", "F32", [3, layers, hidden], raw), ("token_ids", "I64", [3], struct.pack("<3q", 1, 2, 3))])


def show(rows):
    for row in rows:
        print(" ".join(f"{x:.6f}" for x in row))


def main(verb, *args):
    options = dict(a.split("=", 1) for a in args if "=" in a)
    if verb == "pair":
        make_pair(args[0], options)
    elif verb == "safetensors":
        layers, hidden, rows = read_pair(args[0])
        numbered(args[1], layers, hidden, rows, [int(w) for w in options["ids"].split(",")])
    elif verb == "vllm":
        split(args[0], args[1], "vllm")
    elif verb == "split":
        split(*args)
    elif verb == "meta":
        make_meta(args[0], options)
    elif verb == "means":
        (layers, hidden, a), (_, _, b) = read_pair(args[0]), read_pair(args[1])
        d = [sum(r[j] for r in a) / len(a) - sum(r[j] for r in b) / len(b) for j in range(layers * hidden)]
        show(struct.unpack(f"<{hidden}f", struct.pack(f"<{hidden}f", *d[l * hidden:(l + 1) * hidden])) for l in range(1, layers))
    elif verb == "rows":
        n = int(args[1]) if len(args) > 1 else 2
        data = Path(args[0]).read_bytes()[-n * 32:]
        show(struct.unpack_from("<8f", data, 32 * i) for i in range(n))


if __name__ == "__main__":
    main(*sys.argv[1:])
