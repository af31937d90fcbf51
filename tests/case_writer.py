"""case_writer.py - the textbook formula over lists of numbers, and folders of cases.
SPDX-License-Identifier: MIT

For make_cases.py, make_cached_cases.py and make_gradient_cases.py; standard library only.
"""
import math
import os
import struct

INF = math.inf
DOMAINS = {"SdpaGrad": "textbook", "FlexAttention": "ai.onnx.preview",
           "GroupQueryAttention": "com.microsoft", "MultiHeadAttention": "com.microsoft"}
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


def softmax(logits, sink=-INF):
    """Probabilities and the log of the sum; zeros and -inf for a row without a visible key. The
    sink is one more logit without a value."""
    top = max(logits + [sink])
    if top == -INF:
        return [0.0] * len(logits), -INF
    weights = [math.exp(x - top) for x in logits]
    total = math.fsum(weights + [math.exp(sink - top)])
    return [w / total for w in weights], top + math.log(total)


def attention(q, k, v, scale, softcap=0.0, visible=None, bias=None, score=None, sinks=None):
    """q, k, v: (function, sizes); sinks: one a head. Returns per (b, h, i): output row, lse, the
    four logit stages."""
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
                p, lse = softmax(final, sinks[h] if sinks else -INF)
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
             "op " + op, "domain " + DOMAINS.get(op, "ai.onnx")]
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
