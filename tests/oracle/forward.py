"""Forward pass of the llama architecture in NumPy, independent of llama.cpp's code.

Owns: the arithmetic (float64 throughout, weights as stored or dequantised to float32) and, on the side, a
copy of a GGUF file with every tensor dequantised. Refuses: other architectures, experts, scaled RoPE.
"""

import os

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize


class Model:
    """Weights [out][in] in float32, and the sizes of the model."""

    def __init__(self, path):
        reader = GGUFReader(path)
        arch = reader.fields["general.architecture"].contents()
        if arch != "llama":
            raise ValueError(f"'{path}': architecture '{arch}', expected 'llama'")

        def key(name, default=None):
            field = reader.fields.get(f"llama.{name}")
            return default if field is None else field.contents()

        self.weights = {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors}
        self.n_layer = key("block_count")
        self.n_embd = key("embedding_length")
        self.n_ff = key("feed_forward_length")
        self.n_head = key("attention.head_count")
        self.n_head_kv = key("attention.head_count_kv", self.n_head)
        self.head_dim = key("attention.key_length", self.n_embd // self.n_head)
        self.eps = float(key("attention.layer_norm_rms_epsilon"))
        self.rope_base = float(key("rope.freq_base", 10000.0))
        if key("expert_count", 0) or key("rope.scaling.type", "none") != "none":
            raise ValueError(f"'{path}': experts or scaled rope, neither is implemented")
        if key("rope.dimension_count", self.head_dim) != self.head_dim:
            raise ValueError(f"'{path}': partial rope is not implemented")

    def weight(self, name):
        return self.weights[f"{name}.weight"].astype(np.float64)

    def block_weight(self, il, name):
        return self.weight(f"blk.{il}.{name}")

    def rms_norm(self, x, gain):
        """x * gain / sqrt(mean(x^2) + eps) over the last axis."""
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * gain

    def rope(self, x):
        """Rotate neighbouring pairs (2i, 2i + 1) of x [token][head][dim] by position * base^(-2i / dim)."""
        n_tokens, _, dim = x.shape
        freq = self.rope_base ** (-np.arange(0, dim, 2) / dim)
        factors = self.weights.get("rope_freqs.weight")
        if factors is not None:
            freq = freq / factors
        angle = np.arange(n_tokens)[:, None, None] * freq  # [token][1][dim / 2]
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
        out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
        return out

    def attention(self, il, x):
        """Causal attention; each key/value head serves n_head / n_head_kv query heads. x [token][n_embd]."""
        n = x.shape[0]
        q = self.rope((x @ self.block_weight(il, "attn_q").T).reshape(n, self.n_head, self.head_dim))
        k = self.rope((x @ self.block_weight(il, "attn_k").T).reshape(n, self.n_head_kv, self.head_dim))
        v = (x @ self.block_weight(il, "attn_v").T).reshape(n, self.n_head_kv, self.head_dim)
        group = self.n_head // self.n_head_kv
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head_dim)
        scores[:, np.triu(np.ones((n, n), dtype=bool), 1)] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", scores, v).reshape(n, -1)
        return mixed @ self.block_weight(il, "attn_output").T

    def activation(self, il, x):
        """What ffn_down reads: silu(gate) * up. x [token][n_embd], already normed."""
        gate = x @ self.block_weight(il, "ffn_gate").T
        up = x @ self.block_weight(il, "ffn_up").T
        return gate / (1.0 + np.exp(-gate)) * up

    def head(self, x):
        """Logits of residual rows x [..., n_embd] taken after the last block."""
        tied = "output.weight" not in self.weights
        return self.rms_norm(x, self.weight("output_norm")) @ self.weight("token_embd" if tied else "output").T

    def run(self, tokens):
        """Returns resid [layer][token][n_embd] after each block's FFN join, ffn [layer][token][n_ff] as read
        by ffn_down, and logits [n_vocab] of the last token."""
        x = self.weights["token_embd.weight"][np.asarray(tokens)].astype(np.float64)
        resid, ffn = [], []
        for il in range(self.n_layer):
            x = x + self.attention(il, self.rms_norm(x, self.block_weight(il, "attn_norm")))
            act = self.activation(il, self.rms_norm(x, self.block_weight(il, "ffn_norm")))
            x = x + act @ self.block_weight(il, "ffn_down").T
            resid.append(x)
            ffn.append(act)
        return {"resid": np.stack(resid), "ffn": np.stack(ffn), "logits": self.head(x[-1])}


def load(path):
    return Model(path)


def write_dequantised(source, target):
    """Write source as target with all tensors in float32 and the same metadata, unless target is newer."""
    if os.path.exists(target) and os.path.getmtime(target) > os.path.getmtime(source):
        return
    reader = GGUFReader(source)
    partial = f"{target}.part"
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    writer = GGUFWriter(partial, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        is_array = field.types[0] == GGUFValueType.ARRAY
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if is_array else None)
    writer.add_file_type(LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(partial, target)
