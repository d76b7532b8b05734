#!/usr/bin/env python3
"""Writes a control vector for the command's tests, in the layout llama.cpp reads, with nothing but the standard library.

    direction.py OUT [width=576] [blocks=1:29] [seed=1] [length=1] [zero=BLOCK] [rows=FILE.f32] [u32=1]
                 [KEY.WITH.DOT=TEXT]...

Directions are random, of this length, one a block; `zero` makes one of them zero, `rows` takes those of a capture's first
snapshot instead. `u32` writes the count unsigned. A key with a dot is written as a string: turbospark.mode=ablate.
"""
import random
import struct
import sys


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def main(out, *words):
    options = dict(width="576", blocks="1:29", seed="1", length="1", zero="-1", rows="", u32="0")
    options.update(word.split("=", 1) for word in words)
    keys = {"general.architecture": "controlvector", **{k: v for k, v in options.items() if "." in k}}
    first, last = (int(x) for x in options["blocks"].split(":"))
    blocks = range(first, last + 1)
    width = int(options["width"])
    pick = random.Random(int(options["seed"]))
    captured = open(options["rows"], "rb").read() if options["rows"] else b""

    header = b"".join(text(k) + struct.pack("<I", 8) + text(v) for k, v in keys.items())
    header += text("controlvector.layer_count") + struct.pack("<II", 4 if options["u32"] == "1" else 5, len(blocks))
    stride = (4 * width + 31) // 32 * 32
    data = b""
    for i, block in enumerate(blocks):
        row = [pick.gauss(0, 1) for _ in range(width)]
        if captured:
            row = struct.unpack_from(f"<{width}f", captured, 4 * width * block)
        size = sum(x * x for x in row) ** 0.5
        scale = 0.0 if block == int(options["zero"]) else float(options["length"]) / size
        header += text(f"direction.{block}") + struct.pack("<IQIQ", 1, width, 0, i * stride)
        data += struct.pack(f"<{width}f", *(scale * x for x in row)).ljust(stride, b"\0")
    start = b"GGUF" + struct.pack("<IQQ", 3, len(blocks), len(keys) + 1) + header
    with open(out, "wb") as f:
        f.write(start.ljust((len(start) + 31) // 32 * 32, b"\0") + data)


if __name__ == "__main__":
    main(*sys.argv[1:])
