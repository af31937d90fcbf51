#!/usr/bin/env python3
"""make_cases.py - writes tests/cases/: small conformance cases of our own, in double precision.
SPDX-License-Identifier: MIT

    python3 tests/make_cases.py tests/cases

The textbook formula (case_writer.py) with the standard library only. It shares nothing with attn.c
or with the oracle of the tests. Those with a past, with rotary embedding or from onnxruntime's
operators are in make_cached_cases.py, those with gradients in make_gradient_cases.py. The files it
writes are part of the repository, so that the tests need no Python; running it again gives the same
bytes.
"""
import math
import os
import random
import sys

import make_cached_cases
import make_gradient_cases
from case_writer import (INF, Tensor, attention, f32_scale, heads_first, normal, rows_of, write)


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
    names = [make_cached_cases.rank3_past(folder, rng), flex(folder, rng),
             textbook_nan(folder, rng)]
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
    names += make_cached_cases.write_all(folder)
    names += make_gradient_cases.write_all(folder)
    with open(os.path.join(folder, "cases.list"), "w", newline="\n") as out:
        out.write("".join(n + "\n" for n in sorted(names)))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "cases"))
