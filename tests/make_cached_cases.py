"""make_cached_cases.py - the cases of tests/make_cases.py with a past, with rotary embedding, and
of the operators of onnxruntime.
SPDX-License-Identifier: MIT
"""
import math
import random

from case_writer import (INF, Tensor, attention, f32_scale, heads_first, normal, rounded, rows_of,
                         write)

TOLERANCE = (1e-4, 1e-6)


def joined(old, new, lengths):
    """Keys of entry b: lengths[b] of the past (Tensor or None), then the new ones (a function)."""
    return lambda b, h, s, d: (old.at(b, h, s, d) if s < lengths[b]
                               else new(b, h, s - lengths[b], d))


def present(name, keys, shape, lengths, kind="f32"):
    """All keys; 0 beyond lengths[b], where the stored numbers mean nothing."""
    batch, heads, rows, size = shape
    return Tensor(name, kind, shape,
                  [keys(b, h, s, d) if s < lengths[b] else 0.0 for b in range(batch)
                   for h in range(heads) for s in range(rows) for d in range(size)])


def turned(x, cosines, sines, interleaved):
    """A row with its first 2 * len(cosines) elements turned in pairs."""
    half, y = len(cosines), list(x)
    for n, (c, s) in enumerate(zip(cosines, sines)):
        i, j = (2 * n, 2 * n + 1) if interleaved else (n, n + half)
        y[i], y[j] = c * x[i] - s * x[j], s * x[i] + c * x[j]
    return y


def turned_heads(f, size, place, cosines, sines, interleaved):
    """A function of (batch, head, position, dimension) turned to table line place(batch, position),
    as f32 storage would hold it."""
    rows = {}

    def at(b, h, s, d):
        if (b, h, s) not in rows:
            line = place(b, s)
            rows[b, h, s] = turned([f(b, h, s, e) for e in range(size)],
                                   [cosines.at(line, n) for n in range(cosines.shape[1])],
                                   [sines.at(line, n) for n in range(sines.shape[1])], interleaved)
        return rows[b, h, s][d]
    return at


def tables(lines, half, kind="f32", shape=None):
    """cos_cache and sin_cache of the usual angles, moved a little, so that no line is trivial."""
    angles = [(line + 0.25) * 10000.0 ** (-n / half) for line in range(lines) for n in range(half)]
    shape = shape or [lines, half]
    return (Tensor("cos_cache", kind, shape, [math.cos(a) for a in angles]),
            Tensor("sin_cache", kind, shape, [math.sin(a) for a in angles]))


def rank3_past(folder, rng):
    batch, heads, groups, rows, past, new, dim, dim_v = 2, 4, 2, 3, 5, 4, 8, 6
    q = normal(rng, "Q", [batch, rows, heads * dim])
    k = normal(rng, "K", [batch, new, groups * dim])
    v = normal(rng, "V", [batch, new, groups * dim_v])
    pk = normal(rng, "past_key", [batch, groups, past, dim])
    pv = normal(rng, "past_value", [batch, groups, past, dim_v])
    (kf, _), (vf, _) = heads_first(k, groups), heads_first(v, groups)
    total = past + new
    kb, vb = joined(pk, kf, [past] * batch), joined(pv, vf, [past] * batch)
    scale = f32_scale(0.4)
    r = attention(heads_first(q, heads), (kb, [batch, groups, total, dim]),
                  (vb, [batch, groups, total, dim_v]), scale,
                  visible=lambda b, h, i, j: j <= i + past)
    y = Tensor("Y", "f32", [batch, rows, heads * dim_v],
               rows_of(r, batch, heads, rows, lambda e: e[0], True))
    shown = [present(n, f, [batch, groups, total, size], [total] * batch)
             for n, f, size in (("present_key", kb, dim), ("present_value", vb, dim_v))]
    return write(folder, "rank3_gqa_causal_past", "[b, s, h*d] layout, offset from the past",
                 "Attention", 24,
                 [("is_causal", "int", 1), ("scale", "float", scale), ("q_num_heads", "int", heads),
                  ("kv_num_heads", "int", groups)],
                 [(0, q), (1, k), (2, v), (4, pk), (5, pv)],
                 [(0, y), (1, shown[0]), (2, shown[1])], TOLERANCE)


def window_past(folder, rng):
    batch, heads, rows, past, dim = 2, 3, 4, 6, 8
    total = past + rows
    q, k, v = (normal(rng, n, [batch, heads, rows, dim]) for n in "QKV")
    pk, pv = (normal(rng, n, [batch, heads, past, dim]) for n in ("past_key", "past_value"))
    mask = Tensor("attn_mask", "bool", [batch, 1, rows, 8],
                  [int((b + i + j) % 4 > 0) for b in range(batch) for i in range(rows)
                   for j in range(8)])
    kb, vb = joined(pk, k.at, [past] * batch), joined(pv, v.at, [past] * batch)
    r = attention((q.at, q.shape), (kb, [batch, heads, total, dim]),
                  (vb, [batch, heads, total, dim]), 1 / math.sqrt(dim),
                  visible=lambda b, h, i, j: (j < 8 and mask.at(b, 0, i, j) == 1 and
                                              i + past - 4 <= j <= i + past + 1))
    y = Tensor("Y", "f32", q.shape, rows_of(r, batch, heads, rows, lambda e: e[0]))
    logits = Tensor("qk_matmul_output", "f32", [batch, heads, rows, total],
                    rows_of(r, batch, heads, rows, lambda e: e[2][0]))
    return write(folder, "window_past_short_mask_logits",
                 "8 columns of mask for 10 keys; all logits", "Attention", 25,
                 [("left_window_size", "int", 4), ("right_window_size", "int", 1),
                  ("qk_matmul_output_mode", "int", 0)],
                 [(0, q), (1, k), (2, v), (3, mask), (4, pk), (5, pv)],
                 [(0, y), (1, present("present_key", kb, [batch, heads, total, dim], [total] * 2)),
                  (3, logits)], TOLERANCE)


def rotary(folder, rng, name, comment, shape, heads, half, interleaved, ids, kind="f32"):
    """ids: list of [batch][row], or None for tables of rank 3."""
    x = normal(rng, "X", shape, kind)
    f, (batch, heads, rows, size) = heads_first(x, heads)
    lines = batch * rows if ids is None else 9
    cosines, sines = tables(lines, half, kind)
    at = turned_heads(f, size, lambda b, s: ids[b][s] if ids else b * rows + s, cosines, sines,
                      interleaved)
    if len(shape) == 4:
        order = [(b, h, s) for b in range(batch) for h in range(heads) for s in range(rows)]
    else:
        order = [(b, h, s) for b in range(batch) for s in range(rows) for h in range(heads)]
    y = Tensor("Y", kind, shape, [at(b, h, s, d) for b, h, s in order for d in range(size)])
    inputs = [(0, x), (1, cosines), (2, sines)]
    if ids:
        inputs.append((3, Tensor("position_ids", "i64", [batch, rows], sum(ids, []))))
    else:
        cosines.shape = sines.shape = [batch, rows, half]
    attributes = [("interleaved", "int", int(interleaved)), ("num_heads", "int", heads)]
    attributes += [("rotary_embedding_dim", "int", 2 * half)] if 2 * half < size else []
    return write(folder, name, comment, "RotaryEmbedding", 23, attributes, inputs, [(0, y)],
                 TOLERANCE, ["Y"] if kind == "f16" else [])


def scatter(folder, rng, name, comment, shape, axis, rows, indices, mode, kind="f32"):
    past = normal(rng, "past_cache", shape, kind)
    at = axis % len(shape)
    update = normal(rng, "update", shape[:at] + [rows] + shape[at + 1:], kind)
    values = list(past.values)
    inner = math.prod(shape[at + 1:])
    outer = math.prod(shape[1:at])
    for b in range(shape[0]):
        for o in range(outer):
            for t in range(rows):
                to = indices[b] + t if mode == "linear" else (indices[b] + t) % shape[at]
                for d in range(inner):
                    values[((b * outer + o) * shape[at] + to) * inner + d] = \
                        update.values[((b * outer + o) * rows + t) * inner + d]
    inputs = [(0, past), (1, update),
              (2, Tensor("write_indices", "i64", [shape[0]], indices))]
    return write(folder, name, comment, "TensorScatter", 24,
                 [("mode", "string", mode), ("axis", "int", axis)], inputs,
                 [(0, Tensor("present_cache", kind, shape, values))], (1e-3, 1e-7))


def past_tensors(rng, batch, heads, rows, sizes):
    """past_key and past_value, or None without rows."""
    if rows == 0:
        return [None, None]
    return [normal(rng, n, [batch, heads, rows, size])
            for n, size in zip(("past_key", "past_value"), sizes)]


def added_bias(rng, first, rows, total):
    """attention_bias of first two dimensions `first`, and it as a function; None: 0."""
    if first is None:
        return None, lambda b, h, i, j: 0.0
    t = normal(rng, "attention_bias", first + [rows, total])
    return t, lambda b, h, i, j: t.at(b % first[0], h % first[1], i, j)


def listed(slots):
    """(slot, Tensor) of those that are there."""
    return [(slot, t) for slot, t in slots if t is not None]


def group_query_inputs(rng, sizes, packed):
    """The tensors query, key, value (None when packed), and three functions."""
    batch, heads, groups, rows, size = sizes
    if packed:
        query = normal(rng, "query", [batch, rows, (heads + 2 * groups) * size])
        f, _ = heads_first(query, heads + 2 * groups)
        return [query, None, None], [lambda b, h, s, d, n=n: f(b, n + h, s, d)
                                     for n in (0, heads, heads + groups)]
    tensors = [normal(rng, n, [batch, rows, h * size])
               for n, h in (("query", heads), ("key", groups), ("value", groups))]
    return tensors, [heads_first(t, h)[0] for t, h in zip(tensors, (heads, groups, groups))]


def group_query_outputs(r, sizes, total, used, qk_output):
    """output and output_qk; 0 in unused rows and for hidden keys."""
    batch, heads, _, rows, size = sizes
    y = Tensor("output", "f32", [batch, rows, heads * size],
               [x if i < used[b] else 0.0 for b in range(batch) for i in range(rows)
                for h in range(heads) for x in r[b, h, i][0]])
    if not qk_output:
        return y, None
    return y, Tensor("output_qk", "f32", [batch, heads, rows, total],
                     [0.0 if x == -INF or i >= used[b] else x for b in range(batch)
                      for h in range(heads) for i in range(rows)
                      for x in r[b, h, i][2][qk_output + 1]])


def group_query(folder, rng, name, comment, sizes, ends, past_rows=0, packed=False, rope=None,
                ids=None, window=-1, causal=1, softcap=0.0, smooth=0, sinks=None, bias=None,
                qk_output=0, scale=None):
    """sizes: batch, heads, kv heads, rows, size. ends: seqlens_k. rope: (half, interleaved). bias:
    the first two dimensions of attention_bias."""
    batch, heads, groups, rows, size = sizes
    lengths = [e + 1 for e in ends]
    total = max(lengths)
    past = [max(0, n - rows) for n in lengths]
    (query, key, value), (qf, kf, vf) = group_query_inputs(rng, sizes, packed)
    pk, pv = past_tensors(rng, batch, groups, past_rows, (size, size))
    cosines, sines = tables(total + 3, rope[0]) if rope else (None, None)

    def place(b, s):
        if ids is None:
            return past[b] + s
        return ids[0][0] + s if rows == total else ids[b][s]

    if rope:
        qf, kf = (turned_heads(f, size, place, cosines, sines, rope[1]) for f in (qf, kf))
    added, bias_at = added_bias(rng, bias, rows, total)
    kb, vb = joined(pk, kf, past), joined(pv, vf, past)

    def visible(b, h, i, j):
        at = past[b] + i
        return (j < lengths[b] and (not causal or j <= at) and
                (window < 0 or at - window < j <= at))

    def key_or_zero(f):
        return (lambda b, h, s, d: f(b, h, s, d) if s < lengths[b] else 0.0,
                [batch, groups, total, size])

    r = attention((qf, [batch, heads, rows, size]), key_or_zero(kb), key_or_zero(vb),
                  f32_scale(scale) if scale else 1 / math.sqrt(size), softcap, visible, bias_at,
                  sinks=sinks or ([0.0] * heads if smooth else None))
    y, logits = group_query_outputs(r, sizes, total, [n - p for n, p in zip(lengths, past)],
                                    qk_output)
    shown = [batch, groups, max(total, past_rows), size]
    attributes = [("num_heads", "int", heads), ("kv_num_heads", "int", groups),
                  ("causal", "int", causal), ("local_window_size", "int", window),
                  ("softcap", "float", f32_scale(softcap)), ("smooth_softmax", "int", smooth),
                  ("qk_output", "int", qk_output)]
    attributes += [("do_rotary", "int", 1), ("rotary_interleaved", "int", rope[1])] if rope else []
    attributes += [("scale", "float", f32_scale(scale))] if scale else []
    positions = Tensor("position_ids", "i64", [batch, rows], sum(ids, [])) if ids else None
    sink = Tensor("head_sink", "f32", [heads], sinks) if sinks else None
    inputs = [query, key, value, pk, pv, Tensor("seqlens_k", "i32", [batch], ends),
              Tensor("total_sequence_length", "i32", [1], [total]), cosines, sines, positions,
              added, sink]
    outputs = [y, present("present_key", kb, shown, lengths),
               present("present_value", vb, shown, lengths), logits]
    return write(folder, name, comment, "GroupQueryAttention", 1, attributes,
                 listed(enumerate(inputs)), listed(enumerate(outputs)), TOLERANCE)


def multi_head_inputs(rng, sizes, form):
    """The tensors query, key, value (None when packed), and three functions."""
    batch, heads, rows, keys, size, size_v = sizes
    if form == "qkv":
        query = normal(rng, "query", [batch, keys, heads, 3, size])
        return [query, None, None], [lambda b, h, s, d, n=n: query.at(b, s, h, n, d)
                                     for n in range(3)]
    query = normal(rng, "query", [batch, rows, heads * size])
    qf, _ = heads_first(query, heads)
    if form == "kv":
        key = normal(rng, "key", [batch, keys, heads, 2, size])
        return [query, key, None], [qf] + [lambda b, h, s, d, n=n: key.at(b, s, h, n, d)
                                           for n in range(2)]
    key, value = (normal(rng, n, [batch, heads, keys, x] if form == "rank4"
                         else [batch, keys, heads * x])
                  for n, x in (("key", size), ("value", size_v)))
    return [query, key, value], [qf, heads_first(key, heads)[0], heads_first(value, heads)[0]]


def projected(rng, functions, heads, sizes):
    """Input `bias` and the functions with it added, as f32 storage holds the sums."""
    add = normal(rng, "bias", [heads * sum(sizes)])

    def plus(f, first, width):
        return lambda b, h, s, d: rounded("f32", f(b, h, s, d) + add.at(first + h * width + d))
    return add, [plus(f, heads * sum(sizes[:n]), sizes[n]) for n, f in enumerate(functions)]


def multi_head(folder, rng, name, comment, sizes, form, past=0, projection=False, padding=None,
               bias=None, filter_value=-10000.0, scale=None, causal=0, logits=False):
    """sizes: batch, heads, rows, keys, size, size of values. form: "apart", "rank4" (keys and
    values), "kv", "qkv" (packed). padding: (Tensor, whether (batch, row, key) is padding)."""
    batch, heads, rows, keys, size, size_v = sizes
    total = past + keys
    (query, key, value), (qf, kf, vf) = multi_head_inputs(rng, sizes, form)
    row = None
    if projection:
        row, (qf, kf, vf) = projected(rng, (qf, kf, vf), heads, (size, size, size_v))
    mask, is_padding = padding or (None, lambda b, i, j: False)
    added, added_at = added_bias(rng, bias, rows, total)
    pk, pv = past_tensors(rng, batch, heads, past, (size, size_v))
    kb, vb = joined(pk, kf, [past] * batch), joined(pv, vf, [past] * batch)
    r = attention((qf, [batch, heads, rows, size]), (kb, [batch, heads, total, size]),
                  (vb, [batch, heads, total, size_v]),
                  f32_scale(scale) if scale else 1 / math.sqrt(size),
                  bias=lambda b, h, i, j: (added_at(b, h, i, j) +
                                           (filter_value if is_padding(b, i, j) else 0.0)),
                  visible=lambda b, h, i, j: not causal or j <= past + i)
    attributes = [("num_heads", "int", heads), ("unidirectional", "int", causal),
                  ("mask_filter_value", "float", filter_value)]
    attributes += [("scale", "float", f32_scale(scale))] if scale else []
    outputs = [Tensor("output", "f32", [batch, rows, heads * size_v],
                      rows_of(r, batch, heads, rows, lambda e: e[0], True)), None, None, None]
    if past:
        outputs[1:3] = [present(n, f, [batch, heads, total, x], [total] * batch)
                        for n, f, x in (("present_key", kb, size), ("present_value", vb, size_v))]
    if logits:
        outputs[3] = Tensor("qk", "f32", [batch, heads, rows, total],
                            rows_of(r, batch, heads, rows, lambda e: e[2][2]))
    return write(folder, name, comment, "MultiHeadAttention", 1, attributes,
                 listed(enumerate([query, key, value, row, mask, added, pk, pv])),
                 listed(enumerate(outputs)), TOLERANCE)


def padding_mask(shape, rule):
    """key_padding_mask of 2 or 3 dimensions: 0 where rule(b, i, j) says padding."""
    batch, rows, keys = shape[0], shape[1] if len(shape) == 3 else 1, shape[-1]
    values = [0 if rule(b, i, j) else 1 for b in range(batch) for i in range(rows)
              for j in range(keys)]
    return Tensor("key_padding_mask", "i32", shape, values), rule


def padding_lengths(lengths, more=()):
    return (Tensor("key_padding_mask", "i32", [len(lengths) + len(more)], lengths + list(more)),
            lambda b, i, j: j >= lengths[b])


def write_rotary(folder, rng):
    return [
        rotary(folder, rng, "rotary_half_partial_rank3", "6 of 10 elements turn, positions repeat",
               [2, 3, 20], 2, 3, False, [[8, 0, 3], [3, 3, 1]]),
        rotary(folder, rng, "rotary_interleaved_rank3_tables", "a line of the tables for every row",
               [2, 3, 4, 6], 3, 3, True, None),
        rotary(folder, rng, "rotary_half_f16", "f16 storage, tables too", [1, 2, 3, 8], 2, 4, False,
               [[1, 5, 2]], "f16")]


def write_scatter(folder, rng):
    return [
        scatter(folder, rng, "scatter_linear_axis2", "to the last row", [2, 2, 6, 3], 2, 2, [0, 4],
                "linear"),
        scatter(folder, rng, "scatter_circular_rank3", "around the end, and more than once around",
                [3, 5, 4], -2, 3, [4, 0, 13], "circular"),
        scatter(folder, rng, "scatter_axis1_f16", "heads behind rows", [2, 6, 2, 3], 1, 2, [3, 1],
                "linear", "f16")]


def write_group_query(folder, rng):
    return [
        group_query(folder, rng, "gqa_ragged_rotary_window",
                    "pasts of 8, 3 and 0 in room for 9; neighbours turn, 8 of 12; window",
                    [3, 4, 2, 1, 12], [8, 3, 0], past_rows=9, rope=(4, 1), window=3),
        group_query(folder, rng, "gqa_packed_sink_bias", "packed QKV, past, sink, probabilities",
                    [1, 4, 2, 3, 8], [7], past_rows=5, packed=True, softcap=2.5, ids=[[3, 1, 2]],
                    sinks=[0.5, -1.0, 2.0, 0.0], bias=[1, 1], qk_output=2, scale=0.5),
        group_query(folder, rng, "gqa_padded_prompt_smooth",
                    "prompts of 6 and 4 rows; positions from 2 on; logits of visible keys",
                    [2, 2, 1, 6, 8], [5, 3], rope=(4, 0), ids=[list(range(2, 8))] * 2, smooth=1,
                    window=4, softcap=3.0, bias=[2, 1], qk_output=1),
        group_query(folder, rng, "gqa_both_ways_positions",
                    "not causal, with a past and any positions", [1, 4, 1, 3, 8], [6], past_rows=4,
                    rope=(3, 0), ids=[[9, 4, 5]], causal=0)]


def write_multi_head(folder, rng):
    return [
        multi_head(folder, rng, "mha_past_padding_bias",
                   "projection bias, padding that adds -3, attention bias, past, logits",
                   [2, 2, 3, 4, 8, 6], "apart", past=5, projection=True, filter_value=-3.0,
                   padding=padding_mask([2, 9], lambda b, i, j: (j + b) % 4 == 1), bias=[1, 2],
                   scale=0.4, logits=True),
        multi_head(folder, rng, "mha_packed_qkv_unidirectional", "packed QKV, lengths of keys",
                   [2, 2, 5, 5, 8, 8], "qkv", padding=padding_lengths([5, 3]), causal=1),
        multi_head(folder, rng, "mha_packed_kv_mask_rank3", "packed KV, padding for every row",
                   [2, 2, 3, 6, 8, 8], "kv",
                   padding=padding_mask([2, 3, 6], lambda b, i, j: (i + 2 * j + b) % 3 == 0)),
        multi_head(folder, rng, "mha_rank4_keys_starts", "keys [b, h, s, d], lengths and starts",
                   [2, 3, 2, 5, 8, 4], "rank4",
                   padding=padding_lengths([2, 5], [0, 2, 4, 0, 2, 7]))]


def write_all(folder):
    rng = random.Random(60)
    return ([window_past(folder, rng)] + write_rotary(folder, rng) + write_scatter(folder, rng) +
            write_group_query(folder, rng) + write_multi_head(folder, rng))
