"""make_gradient_cases.py - the cases of tests/make_cases.py with gradients.
SPDX-License-Identifier: MIT

Gradients by reverse-mode differentiation of the recorded computation, one number at a time: no
formula for the gradient of attention stands here. Each case is checked, before it is written,
against a central difference of the loss sum(dY * Y), which case_writer.attention computes.
"""
import math
import random

from case_writer import INF, Tensor, attention, f32_scale, normal, write

TOLERANCE = (1e-4, 1e-5)


class Tape:
    """Numbers in the order in which they were computed, each with (index, derivative) of those
    that it was computed from."""

    def __init__(self):
        self.values, self.sources = [], []

    def record(self, value, *sources):
        self.values.append(value)
        self.sources.append(sources)
        return len(self.values) - 1

    def add(self, a, b):
        return self.record(self.values[a] + self.values[b], (a, 1.0), (b, 1.0))

    def shift(self, a, constant):
        return self.record(self.values[a] + constant, (a, 1.0))

    def times(self, a, constant):
        return self.record(self.values[a] * constant, (a, constant))

    def multiply(self, a, b):
        x, y = self.values[a], self.values[b]
        return self.record(x * y, (a, y), (b, x))

    def divide(self, a, b):
        x, y = self.values[a], self.values[b]
        return self.record(x / y, (a, 1.0 / y), (b, -x / (y * y)))

    def exp(self, a):
        y = math.exp(self.values[a])
        return self.record(y, (a, y))

    def tanh(self, a):
        y = math.tanh(self.values[a])
        return self.record(y, (a, 1.0 - y * y))

    def sum(self, terms):
        return self.record(sum(self.values[t] for t in terms), *[(t, 1.0) for t in terms])

    def dot(self, a, b):
        return self.sum([self.multiply(x, y) for x, y in zip(a, b)])

    def gradients(self, seeds):
        """Of sum(weight * number) over seeds, (number, weight), by every number."""
        result = [0.0] * len(self.values)
        for at, weight in seeds:
            result[at] += weight
        for at in range(len(result) - 1, -1, -1):
            for source, derivative in self.sources[at]:
                result[source] += result[at] * derivative
        return result


class Problem:
    """Inputs of one case. mask: Tensor aligned at the right to [batch, head, row, key], or None;
    offset: causal_offset, None = not causal."""

    def __init__(self, q, k, v, dy, mask=None, offset=None, scale=None, softcap=0.0):
        self.q, self.k, self.v, self.dy, self.mask = q, k, v, dy, mask
        self.offset, self.softcap, self.given_scale = offset, softcap, scale
        self.scale = f32_scale(scale) if scale is not None else 1 / math.sqrt(q.shape[3])
        self.has_bias = mask is not None and mask.kind != "bool"

    def mask_index(self, *at):
        """Of a pair in the flat list of the mask."""
        shape, flat = self.mask.shape, 0
        for x, n in zip(at[4 - len(shape):], shape):
            flat = flat * n + (x if n > 1 else 0)
        return flat

    def visible(self, b, h, i, j):
        held = self.offset is None or j <= i + self.offset
        if self.mask is not None and not self.has_bias:
            held = held and bool(self.mask.values[self.mask_index(b, h, i, j)])
        return held


def sees_a_key(problem, b, h, i):
    return any(problem.visible(b, h, i, j) and
               not (problem.has_bias and
                    problem.mask.values[problem.mask_index(b, h, i, j)] == -INF)
               for j in range(problem.k.shape[2]))


def final_logit(tape, problem, q, k, bias, hidden):
    x = tape.times(tape.dot(q, k), problem.scale)
    if problem.softcap > 0:
        x = tape.times(tape.tanh(tape.times(x, 1 / problem.softcap)), problem.softcap)
    x = tape.add(x, bias) if bias is not None else x
    return tape.shift(x, -INF) if hidden else x


def forward(tape, problem, leave_out):
    """Records it. Leaves of Q, K, V and the bias; per (b, h, i) the numbers of Y's row and lse.
    leave_out: rows that see no key are no part of the problem; else they are NaN."""
    q, k, v = ([tape.record(x) for x in t.values] for t in (problem.q, problem.k, problem.v))
    bias = [tape.record(x) for x in problem.mask.values] if problem.has_bias else []
    batch, heads, rows, dim = problem.q.shape
    _, groups, keys, dim_v = problem.v.shape
    result = {}
    for b, h, i in all_rows(problem):
        if leave_out and not sees_a_key(problem, b, h, i):
            continue
        at, g = ((b * heads + h) * rows + i) * dim, b * groups + h // (heads // groups)
        logits = [final_logit(tape, problem, q[at:at + dim],
                              k[(g * keys + j) * dim:(g * keys + j + 1) * dim],
                              bias[problem.mask_index(b, h, i, j)] if bias else None,
                              not problem.visible(b, h, i, j)) for j in range(keys)]
        top = max(tape.values[x] for x in logits)
        weights = [tape.exp(tape.shift(x, -top)) for x in logits]
        total = tape.sum(weights)
        p = [tape.divide(w, total) for w in weights]
        y = [tape.dot(p, [v[(g * keys + j) * dim_v + d] for j in range(keys)])
             for d in range(dim_v)]
        lse = top + math.log(tape.values[total]) if top > -INF else -INF
        result[b, h, i] = y, lse
    return (q, k, v, bias), result


def all_rows(problem):
    batch, heads, rows, _ = problem.q.shape
    return [(b, h, i) for b in range(batch) for h in range(heads) for i in range(rows)]


def solve(problem, leave_out):
    """Lists: Y, lse, and the gradients of Q, K, V and the bias."""
    tape = Tape()
    leaves, result = forward(tape, problem, leave_out)
    dim_v = problem.v.shape[3]
    y, lse, seeds = [], [], []
    for n, at in enumerate(all_rows(problem)):
        row, row_lse = result.get(at, (None, -INF))
        lse.append(row_lse)
        y += [tape.values[x] for x in row] if row else [0.0] * dim_v
        seeds += zip(row, problem.dy.values[n * dim_v:]) if row else []
    gradients = tape.gradients(seeds)
    return [y, lse] + [[gradients[x] for x in part] for part in leaves]


def loss(problem, moves, step):
    """sum(dY * Y), zero rows left out, with inputs moved by step times moves."""
    starts = [t.values for t in (problem.q, problem.k, problem.v)]
    starts.append(problem.mask.values if problem.has_bias else [])
    lists = [[x + step * m for x, m in zip(start, move)] for start, move in zip(starts, moves)]

    def view(t, values):
        _, b, c, d = t.shape
        return (lambda w, x, y, z: values[((w * b + x) * c + y) * d + z]), t.shape
    bias = (lambda *at: lists[3][problem.mask_index(*at)]) if problem.has_bias else None
    r = attention(view(problem.q, lists[0]), view(problem.k, lists[1]), view(problem.v, lists[2]),
                  problem.scale, problem.softcap, problem.visible, bias)
    y = [x for at in all_rows(problem) for x in r[at][0]]
    return math.fsum(a * b for a, b in zip(y, problem.dy.values))


def check(problem, gradients):
    """The derivative along a random direction, against the two sides of the loss."""
    rng = random.Random(1)
    for _ in range(3):
        moves = [[rng.gauss(0, 1) for _ in part] for part in gradients]
        slope = math.fsum(m * g for move, part in zip(moves, gradients)
                          for m, g in zip(move, part))
        difference = (loss(problem, moves, 1e-5) - loss(problem, moves, -1e-5)) / 2e-5
        assert abs(slope - difference) < 1e-7 * (1 + abs(slope)), (slope, difference)


def outputs_of(problem, lists, kind, suffix=""):
    """(slot, Tensor): Y, lse, dQ, dK, dV, dMask."""
    batch, heads, rows, _ = problem.q.shape
    shapes = [[batch, heads, rows, problem.v.shape[3]], [batch, heads, rows], problem.q.shape,
              problem.k.shape, problem.v.shape, problem.mask.shape if problem.has_bias else None]
    names = ["Y", "lse", "dQ", "dK", "dV", "dMask"]
    return [(slot, Tensor(name + suffix, "f64" if name in ("lse", "dMask") else kind, shape, x))
            for slot, (name, shape, x) in enumerate(zip(names, shapes, lists)) if shape]


def write_gradients(folder, name, comment, problem, kind="f64"):
    """kind: storage type of Y, dQ, dK, dV."""
    wanted = solve(problem, True)
    check(problem, wanted[2:])
    outputs = outputs_of(problem, solve(problem, False), kind)
    if any(x == -INF for x in wanted[1]):
        zero_rows = [t for slot, t in outputs_of(problem, wanted, kind, "_zero_rows") if slot != 1]
        outputs += [(6 + n, t) for n, t in enumerate(zero_rows)]
    attributes = [("is_causal", "int", 1), ("causal_offset", "int", problem.offset)]
    attributes = attributes if problem.offset is not None else []
    if problem.given_scale is not None:
        attributes.append(("scale", "float", problem.scale))
    attributes += [("softcap", "float", problem.softcap)] if problem.softcap else []
    inputs = [(0, problem.q), (1, problem.k), (2, problem.v), (4, problem.dy)]
    inputs += [(3, problem.mask)] if problem.mask is not None else []
    return write(folder, name, comment, "SdpaGrad", 0, attributes, sorted(inputs, key=slot_of),
                 outputs, TOLERANCE, [t.name for _, t in outputs if t.kind == "f16"])


def slot_of(entry):
    return entry[0]


def tensors(rng, sizes, kind="f32"):
    """Q, K, V, dY of [batch, heads, groups, rows, keys, dim, dim_v]."""
    batch, heads, groups, rows, keys, dim, dim_v = sizes
    return (normal(rng, "Q", [batch, heads, rows, dim], kind),
            normal(rng, "K", [batch, groups, keys, dim], kind),
            normal(rng, "V", [batch, groups, keys, dim_v], kind),
            normal(rng, "dY", [batch, heads, rows, dim_v], kind))


def bias_with_hidden(rng, shape, hidden, kind="f32"):
    mask = normal(rng, "attn_mask", shape, kind)
    for at in hidden:
        mask.values[at] = -INF
    return mask


def write_all(folder):
    """In an order of its own random numbers, so that a case more changes no other."""
    rng = random.Random(22)
    names = [write_gradients(
        folder, "sdpa_grad_gqa_offset_dims", "groups of 2 heads, causal from key 3 on, other "
        "dimension of values", Problem(*tensors(rng, [2, 4, 2, 5, 9, 6, 10]), offset=3))]
    names.append(write_gradients(
        folder, "sdpa_grad_softcap_bias_heads", "one kv head; softcap; bias [head, 1, key], whose "
        "gradient is summed over batch and rows",
        Problem(*tensors(rng, [2, 3, 1, 4, 7, 8, 8]), mask=normal(rng, "attn_mask", [3, 1, 7]),
                scale=-0.7, softcap=1.5)))
    names.append(write_gradients(
        folder, "sdpa_grad_empty_rows_bias_keys", "causal from key -2 on: rows 0 and 1 see no key; "
        "bias [key]", Problem(*tensors(rng, [1, 4, 2, 5, 6, 4, 3]),
                              mask=normal(rng, "attn_mask", [6]), offset=-2)))
    seen = [int((b + 2 * h + i + j * j) % 4 > 0) for b in range(2) for h in range(2)
            for i in range(5) for j in range(8)]
    names.append(write_gradients(
        folder, "sdpa_grad_half_bool_mask", "f16 storage of inputs and results; boolean mask "
        "[batch, head, row, key]",
        Problem(*tensors(rng, [2, 2, 1, 5, 8, 8, 8], "f16"),
                mask=Tensor("attn_mask", "bool", [2, 2, 5, 8], seen)), "f16"))
    names.append(write_gradients(
        folder, "sdpa_grad_half_bias_padding", "f16 inputs; bias [batch, 1, 1, key] with -inf; "
        "causal; softcap", Problem(*tensors(rng, [2, 4, 2, 6, 6, 8, 8], "f16"),
                                   mask=bias_with_hidden(rng, [2, 1, 1, 6], [5, 10, 11], "f16"),
                                   offset=0, softcap=2.0)))
    names.append(write_gradients(
        folder, "sdpa_grad_bias_every_axis", "bias [batch, head, row, key] with -inf, more queries "
        "than keys", Problem(*tensors(rng, [2, 2, 2, 7, 5, 4, 4]),
                             mask=bias_with_hidden(rng, [2, 2, 7, 5], [3, 5, 38, 66, 139]))))
    names.append(write_gradients(
        folder, "sdpa_grad_scale_zero_bias_rows", "scale 0: the bias [row, key] alone decides, dQ "
        "and dK are 0", Problem(*tensors(rng, [2, 2, 1, 4, 5, 6, 6]),
                                mask=normal(rng, "attn_mask", [4, 5]), scale=0.0)))
    names.append(write_gradients(
        folder, "sdpa_grad_bias_by_row", "bias [head, row, 1] shifts whole rows: its gradient is 0",
        Problem(*tensors(rng, [1, 3, 3, 4, 6, 5, 5]), mask=normal(rng, "attn_mask", [3, 4, 1]))))
    return names
