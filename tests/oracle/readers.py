"""Readers of this project's files that use nothing but NumPy and json.

Owns: the residual pair, its .meta, safetensors. Refuses: files whose size or layout is not what they say.
"""

import json
from pathlib import Path

import numpy as np

SAFETENSORS_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "<i1", "U8": "<u1", "U32": "<u4", "U64": "<u8", "BOOL": "?",
}


def read_residuals(path):
    """The header, and the rows as [snapshot][layer][hidden]."""
    head = json.loads(Path(path).read_text(encoding="utf-8"))
    shape = (head["snapshots"], head["layers"], head["hidden"])
    return head, np.fromfile(Path(path).with_name(head["data"]), dtype="<f4").reshape(shape)


def read_meta(path):
    """The provenance beside a residual pair or census; path names either of the files."""
    return json.loads(Path(path).with_suffix(".meta").read_text(encoding="utf-8"))


def read_safetensors(path):
    """Tensors by name, and the metadata (strings by name)."""
    raw = Path(path).read_bytes()
    n_head = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or n_head > len(raw) - 8:
        raise ValueError(f"'{path}': header of {n_head} bytes in a file of {len(raw)}")
    head = json.loads(raw[8 : 8 + n_head])
    meta = head.pop("__metadata__", {})
    body = raw[8 + n_head :]
    tensors, end_of_last = {}, 0
    for name, entry in sorted(head.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        dtype = np.dtype(SAFETENSORS_TYPES[entry["dtype"]])
        if begin != end_of_last or end > len(body):
            raise ValueError(f"'{path}': tensor '{name}' at {begin}:{end}, expected it at {end_of_last}")
        if end - begin != dtype.itemsize * int(np.prod(entry["shape"], dtype=np.int64)):
            raise ValueError(f"'{path}': tensor '{name}': {end - begin} bytes do not fill its shape")
        tensors[name] = np.frombuffer(body[begin:end], dtype=dtype).reshape(entry["shape"])
        end_of_last = end
    if end_of_last != len(body):
        raise ValueError(f"'{path}': {len(body) - end_of_last} bytes after the last tensor")
    return tensors, meta
