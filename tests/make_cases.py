#!/usr/bin/env python3
"""make_cases.py - writes tests/cases/: small conformance cases of our own, in double precision.
SPDX-License-Identifier: MIT

    python3 tests/make_cases.py tests/cases

The textbook formula over lists of numbers with the standard library only. It shares nothing with
attn.c or with the oracle of the tests. The files it writes are part of the repository, so that
the tests need no Python; running it again gives the same bytes.
"""
import math
import os
import random
import struct
import sys

INF = math.inf
CODES = {"f16": "e", "f32": "f", "f64": "d", "bool": "B", "i32": "i", "i64": "q"}


def rounded(kind, value):
    """The value as its storage type holds it."""
    return struct.unpack("<" + CODES[kind], struct.pack("<" + CODES[kind], value))[0]


class Tensor:
    """A name, a type, a shape and a flat list of numbers in row-major order."""

    def __init__(self, name, kind, shape, values):
        self.name, self.kind, self.shape = name, kind, list(shape)
        self.values = [rounded(kind, v) for v in values]
        assert len(self.values) == math.prod(shape), name

    def at(self, *index):
        flat = 0
        for i, n in zip(index, self.shape):
            flat = flat * n + i
        return self.values[flat]


def normal(rng, name, shape, kind="f32", factor=1.0):
    return Tensor(name, kind, shape,
                  [rng.gauss(0, factor) for _ in range(math.prod(shape))])


def heads_first(t, heads):
    """The tensor as a function of (batch, head, position, dimension), and its four sizes."""
    if len(t.shape) == 4:
        return t.at, t.shape
    size = t.shape[2] // heads
    return (lambda b, h, s, d: t.at(b, s, h * size + d)), [t.shape[0], heads, t.shape[1], size]


def softmax(logits):
    """Probabilities and the log of the sum; zeros and -inf for a row without a visible key."""
    top = max(logits, default=-INF)
    if top == -INF:
        return [0.0] * len(logits), -INF
    weights = [math.exp(x - top) for x in logits]
    total = math.fsum(weights)
    return [w / total for w in weights], top + math.log(total)


def attention(q, k, v, scale, softcap=0.0, visible=None, bias=None, score=None):
    """q, k, v: (function, sizes). Returns per (b, h, i): output row, lse, the four logit stages."""
    (qf, (batch, heads, rows, dim)), (kf, (_, kv_heads, keys, _)), (vf, v_sizes) = q, k, v
    result = {}
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // kv_heads)
            for i in range(rows):
                raw = [scale * math.fsum(qf(b, h, i, d) * kf(b, g, j, d) for d in range(dim))
                       for j in range(keys)]
                capped = [softcap * math.tanh(x / softcap) if softcap > 0 else x for x in raw]
                final = []
                for j, x in enumerate(capped):
                    x = score(i, j, x) if score else x
                    x = x + bias(b, h, i, j) if bias else x
                    final.append(x if visible is None or visible(b, h, i, j) else -INF)
                p, lse = softmax(final)
                row = [math.fsum(p[j] * vf(b, g, j, d) for j in range(keys) if p[j] != 0)
                       for d in range(v_sizes[3])]
                result[b, h, i] = row, lse, (raw, capped, final, p)
    return result


def rows_of(result, batch, heads, rows, pick, by_token=False):
    """What pick(entry) gives for every row, in [b, h, i] or (rank 3) in [b, i, h] order."""
    order = [(b, h, i) for b in range(batch) for h in range(heads) for i in range(rows)]
    if by_token:
        order = [(b, h, i) for b in range(batch) for i in range(rows) for h in range(heads)]
    return [x for at in order for x in pick(result[at])]


def write(folder, name, comment, op, opset, attributes, inputs, outputs, tolerance, half=()):
    """One case folder. inputs and outputs: (slot, Tensor)."""
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    lines = ["format attncase 1", "case " + name, "# " + comment, "source tests/make_cases.py",
             "op " + op, "domain " + {"SdpaGrad": "textbook",
                                      "FlexAttention": "ai.onnx.preview"}.get(op, "ai.onnx")]
    lines += ["opset %d" % opset] if opset else []
    lines += ["rtol %g" % tolerance[0], "atol %g" % tolerance[1]]
    for key, kind, value in attributes:
        text = "%.17g" % value if kind == "float" else str(value)
        lines.append("attr %s %s %s set" % (key, kind, text))
    for word, tensors in (("input", inputs), ("output", outputs)):
        for slot, t in tensors:
            file = "%s_%d_%s.bin" % (word, slot, t.name)
            shape = " ".join(str(n) for n in [len(t.shape)] + t.shape)
            lines.append("%s %d %s %s %s %s" % (word, slot, t.name, t.kind, shape, file))
            data = struct.pack("<%d%s" % (len(t.values), CODES[t.kind]), *t.values)
            assert len(data) < 4096, (name, t.name)
            with open(os.path.join(path, file), "wb") as out:
                out.write(data)
    lines += ["tol %s 1e-3 1e-3" % n for n in half] + ["end"]
    with open(os.path.join(path, "case.txt"), "w", newline="\n") as out:
        out.write("\n".join(lines) + "\n")
    return name


def f32_scale(x):
    return rounded("f32", x)


def rank3_past(folder, rng):
    batch, heads, groups, rows, past, new, dim, dim_v = 2, 4, 2, 3, 5, 4, 8, 6
    q = normal(rng, "Q", [batch, rows, heads * dim])
    k = normal(rng, "K", [batch, new, groups * dim])
    v = normal(rng, "V", [batch, new, groups * dim_v])
    pk = normal(rng, "past_key", [batch, groups, past, dim])
    pv = normal(rng, "past_value", [batch, groups, past, dim_v])
    (kf, _), (vf, _) = heads_first(k, groups), heads_first(v, groups)

    def both(old, new_keys):
        return lambda b, h, s, d: (old.at(b, h, s, d) if s < past
                                   else new_keys(b, h, s - past, d))

    kb, vb, total = both(pk, kf), both(pv, vf), past + new
    scale = f32_scale(0.4)
    r = attention(heads_first(q, heads), (kb, [batch, groups, total, dim]),
                  (vb, [batch, groups, total, dim_v]), scale,
                  visible=lambda b, h, i, j: j <= i + past)
    y = Tensor("Y", "f32", [batch, rows, heads * dim_v],
               rows_of(r, batch, heads, rows, lambda e: e[0], True))
    present = [Tensor(n, "f32", [batch, groups, total, size],
                      [f(b, h, s, d) for b in range(batch) for h in range(groups)
                       for s in range(total) for d in range(size)])
               for n, f, size in (("present_key", kb, dim), ("present_value", vb, dim_v))]
    return write(folder, "rank3_gqa_causal_past", "[b, s, h*d] layout, offset from the past",
                 "Attention", 24,
                 [("is_causal", "int", 1), ("scale", "float", scale), ("q_num_heads", "int", heads),
                  ("kv_num_heads", "int", groups)],
                 [(0, q), (1, k), (2, v), (4, pk), (5, pv)],
                 [(0, y), (1, present[0]), (2, present[1])], (1e-4, 1e-6))


def plain(folder, rng, name, comment, opset, sizes, kind="f32", attributes=(), mask=None,
          nonpad=None, causal=False, window=None, softcap=0.0, stage=None, scale=None):
    """A rank 4 Attention case without a past. mask: Tensor, right-aligned."""
    batch, heads, groups, rows, keys, dim, dim_v = sizes
    q = normal(rng, "Q", [batch, heads, rows, dim], kind)
    k = normal(rng, "K", [batch, groups, keys, dim], kind)
    v = normal(rng, "V", [batch, groups, keys, dim_v], kind)
    used_scale = f32_scale(scale) if scale else 1 / math.sqrt(dim)

    def in_mask(b, h, i, j):
        index = [b, h, i, j][4 - len(mask.shape):]
        return mask.at(*[x if n > 1 else 0 for x, n in zip(index, mask.shape)])

    def visible(b, h, i, j):
        offset = nonpad[b] - rows if nonpad else 0
        held = j < nonpad[b] if nonpad else True
        if mask is not None:
            held = held and j < mask.shape[-1]
            held = held and (mask.kind != "bool" or bool(in_mask(b, h, i, j)))
        held = held and (not causal or j <= i + offset)
        if window:
            left, right = window
            held = held and (left < 0 or j >= i + offset - left)
            held = held and (right < 0 or j <= i + offset + right)
        return held

    bias = None
    if mask is not None and mask.kind != "bool":
        bias = lambda b, h, i, j: in_mask(b, h, i, j) if j < mask.shape[-1] else 0.0
    r = attention(heads_first(q, heads), heads_first(k, groups), heads_first(v, groups),
                  used_scale, softcap, visible, bias)
    y = Tensor("Y", kind, [batch, heads, rows, dim_v],
               rows_of(r, batch, heads, rows, lambda e: e[0]))
    outputs, listed = [(0, y)], list(attributes)
    if stage is not None:
        outputs.append((3, Tensor("qk_matmul_output", kind, [batch, heads, rows, keys],
                                  rows_of(r, batch, heads, rows, lambda e: e[2][stage]))))
        listed.append(("qk_matmul_output_mode", "int", stage))
    listed += [("is_causal", "int", 1)] if causal else []
    listed += [("scale", "float", used_scale)] if scale else []
    listed += [("softcap", "float", softcap)] if softcap else []
    if window:
        listed += [("left_window_size", "int", window[0]), ("right_window_size", "int", window[1])]
    inputs = [(0, q), (1, k), (2, v)] + ([(3, mask)] if mask is not None else [])
    if nonpad:
        inputs.append((6, Tensor("nonpad_kv_seqlen", "i64", [batch], nonpad)))
    return write(folder, name, comment, "Attention", opset, listed, inputs, outputs,
                 (1e-4, 1e-6), [t.name for _, t in outputs] if kind == "f16" else [])


def flex(folder, rng):
    q, k, v = (normal(rng, n, [1, 2, 5, 8]) for n in "QKV")
    scale, add, times = f32_scale(0.25), 0.5, 2.5
    r = attention(heads_first(q, 2), heads_first(k, 2), heads_first(v, 2), scale,
                  score=lambda i, j, x: x + i - j)
    y = Tensor("Y", "f32", [1, 2, 5, 8],
               rows_of(r, 1, 2, 5, lambda e: [times * x for x in e[0]]))
    return write(folder, "flex_distance_times_constant", "score and probability both modified",
                 "FlexAttention", 1,
                 [("scale", "float", scale), ("score_mod", "string", "add_q_minus_k"),
                  ("prob_mod", "string", "multiply_constant:%g" % times)],
                 [(0, q), (1, k), (2, v)], [(0, y)], (1e-4, 1e-6))


def textbook_nan(folder, rng):
    rows, keys = 6, 7
    q, k, v = (normal(rng, n, [1, 2, s, 8]) for n, s in (("Q", rows), ("K", keys), ("V", keys)))
    mask = Tensor("attn_mask", "bool", [rows, keys],
                  [int(i != 2 and (i + j) % 3 > 0) for i in range(rows) for j in range(keys)])
    r = attention(heads_first(q, 2), heads_first(k, 2), heads_first(v, 2), f32_scale(0.35),
                  visible=lambda b, h, i, j: bool(mask.at(i, j)))
    shape = [1, 2, rows, 8]
    zero = Tensor("Y_zero_rows", "f64", shape, rows_of(r, 1, 2, rows, lambda e: e[0]))
    y = Tensor("Y", "f64", shape, rows_of(
        r, 1, 2, rows, lambda e: e[0] if e[1] > -INF else [math.nan] * 8))
    lse = Tensor("lse", "f64", [1, 2, rows], rows_of(r, 1, 2, rows, lambda e: [e[1]]))
    return write(folder, "sdpa_empty_row_zero_twin", "row 2 sees no key", "SdpaGrad", 0,
                 [("scale", "float", f32_scale(0.35))], [(0, q), (1, k), (2, v), (3, mask)],
                 [(0, y), (1, lse), (6, zero)], (1e-4, 1e-6))


def main(folder):
    rng = random.Random(20)
    names = [rank3_past(folder, rng), flex(folder, rng), textbook_nan(folder, rng)]
    empty = Tensor("attn_mask", "bool", [4, 6], [int(i != 1 and (i * j) % 4 < 3)
                                                for i in range(4) for j in range(6)])
    names.append(plain(folder, rng, "bool_mask_empty_row_softmax",
                       "probabilities; row 1 sees no key", 23, [2, 2, 1, 4, 6, 8, 8],
                       mask=empty, stage=3))
    short = normal(rng, "attn_mask", [2, 1, 4, 6])
    names.append(plain(folder, rng, "float_mask_short_nonpad_window",
                       "mask of 6 columns for 9 keys, lengths 5 and 9", 25, [2, 3, 3, 4, 9, 8, 8],
                       mask=short, nonpad=[5, 9], causal=True, window=(2, -1)))
    per_head = normal(rng, "attn_mask", [3, 1, 7])
    per_head.values[4] = -INF
    names.append(plain(folder, rng, "softcap_scale_rank3_mask_logits",
                       "logits after softcap and bias, one -inf", 24, [1, 3, 1, 4, 7, 12, 8],
                       mask=per_head, softcap=1.5, scale=-0.7, stage=2))
    names.append(plain(folder, rng, "negative_offset_softcap_logits",
                       "more queries than keys in use: empty rows; unmasked logits", 24,
                       [2, 2, 2, 5, 6, 8, 8], nonpad=[3, 6], causal=True, softcap=2.0, stage=1))
    half = normal(rng, "attn_mask", [5, 8], "f16")
    names.append(plain(folder, rng, "half_top_left_window_mask", "f16 storage, right window", 25,
                       [1, 4, 2, 5, 8, 16, 16], "f16", mask=half, window=(-1, 1)))
    with open(os.path.join(folder, "cases.list"), "w", newline="\n") as out:
        out.write("".join(n + "\n" for n in sorted(names)))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "cases"))
