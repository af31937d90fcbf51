# compare_peers.py - measures prefill, gradients and decoding of attn and its peers in one process,
# in turn, on the same data.
# SPDX-License-Identifier: MIT
#
# tools/compare_peers starts it. A peer offers variants (block sizes, operators, backends): each is
# compared with attn's result first, then the fastest is timed. A repetition counts clock cycles,
# which are seconds times the clock measured right before and after it, because the clocks of
# shared machines wander. Processor time is read beside the wall clock: less of it means that other
# work had the core, more that a peer used a second thread.
import argparse
import collections
import csv
import ctypes
import ctypes.util
import datetime
import json
import math
import statistics
import sys
import time

# Inputs are standard normal, and outputs are weighted means of them, at most about 4. All
# libraries sum in binary32, in different orders: the largest difference seen is 3e-6, and 8e-6 in
# gradients, which are sums over 4096 rows. In f16 and bf16 it is 6e-5 and 5e-4 with 4096 keys,
# because peers may also round probabilities.
TOLERANCE = {"f32": 2e-5, "f16": 1e-3, "bf16": 8e-3}
BREAK_BY = 50  # tolerances: what --break adds to one number
VOID_BELOW = 0.85  # of the FMA peak at GEMM_SIZE cubed: the peer does not run as it should
GEMM_SIZE, GEMM_ROUNDS = 2048, 7
MIN_ROUNDS = 15
TRIES = 3  # runs of each variant before one is chosen
BUSY_BELOW, THREADS_ABOVE = 0.97, 1.10  # processor time over wall time
CAUSAL_GOAL, NAIVE_GOAL, DECODE_GOAL = 1.15, 0.60, 2.5
EXIT_WRONG, EXIT_VOID = 1, 3

Shape = collections.namedtuple("Shape", "heads_q heads_kv rows seq dim")
LENGTHS = [Shape(8, 8, s, s, 64) for s in (64, 128, 256, 512, 1024, 2048, 4096)]
OTHERS = [Shape(hq, hkv, s, s, d) for hq, hkv, s, d in (
    (4, 4, 2048, 128), (2, 2, 4096, 128), (2, 2, 2048, 256), (32, 8, 512, 128))]
PREFILLS = LENGTHS + OTHERS
GRADIENTS = [s for s in LENGTHS if s.seq in (512, 1024)] + OTHERS
DECODES = [Shape(32, 8, 1, s, 128) for s in (256, 1024, 4096, 16384)]
STORAGE = {"f32": ctypes.c_float, "f16": ctypes.c_uint16, "bf16": ctypes.c_uint16}

WALL_TIME, CPU_TIME = "wall time", "processor time"
MASKS = ("full", "causal")
BACKWARD = ("full backward", "causal backward")

# mask: of MASKS or BACKWARD, or "decode"; storage: of STORAGE
Kind = collections.namedtuple("Kind", "shape mask storage")

# Seconds of one call by the wall clock and of processor time, and the clock's rate beside it
Sample = collections.namedtuple("Sample", "wall cpu hertz")

# name: shown; run: one call; output: a ctypes array [head][token][dim] of the last result, or dq,
# dk and dv one after the other
Variant = collections.namedtuple("Variant", "name run output")


class Wrong(Exception):
    """A result that differs, or a call that failed."""


class PeerMissing(Exception):
    """A peer that is not installed or does not work here; the text says why."""


class CShape(ctypes.Structure):
    _fields_ = [(f, ctypes.c_int) for f in Shape._fields + ("causal", "dtype")]


SGEMM = ctypes.CFUNCTYPE(
    None, *[ctypes.c_int] * 6, ctypes.c_float, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p,
    ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_int)


def load_library(path):
    lib = ctypes.CDLL(path)
    pointer, double, text = ctypes.c_void_p, ctypes.c_double, ctypes.c_char_p
    four = [pointer] * 4
    for name, result, arguments in (
            ("clock_seconds", double, []), ("clock_hertz", double, []),
            ("compare_flops_per_cycle", double, [text, ctypes.c_size_t]),
            ("compare_machine", None, [text, ctypes.c_size_t]),
            ("compare_difference", double, [pointer, pointer, ctypes.c_size_t]),
            ("compare_reading_open", pointer, [pointer, pointer, ctypes.c_size_t]),
            ("reading_run", ctypes.c_int, [pointer]), ("compare_reading_close", None, [pointer]),
            ("attn_convert", None, [pointer, ctypes.c_int, pointer, ctypes.c_int,
                                    ctypes.c_size_t]),
            ("compare_attn_open", pointer, [pointer, text] + four + [text, ctypes.c_size_t]),
            ("compare_attn_run", ctypes.c_int, [pointer]),
            ("compare_attn_kernels", text, [pointer]), ("compare_attn_flops", double, [pointer]),
            ("compare_attn_close", None, [pointer]),
            ("compare_backward_open", pointer, [pointer, text] + four + [pointer] * 3
             + [text, ctypes.c_size_t]),
            ("compare_backward_run", ctypes.c_int, [pointer]),
            ("compare_backward_kernels", text, [pointer]),
            ("compare_backward_flops", double, [pointer]),
            ("compare_backward_close", None, [pointer]),
            ("peer_openblas_open", pointer, [pointer, SGEMM, ctypes.c_int] + four),
            ("peer_openblas_run", ctypes.c_int, [pointer]),
            ("peer_openblas_close", None, [pointer]),
            ("data_fill", None, [pointer, ctypes.c_int, ctypes.c_size_t, ctypes.c_int,
                                 ctypes.c_int, ctypes.c_uint64])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Machine:
    """The C library, and what it says of the machine."""

    def __init__(self, path, cpu_time):
        self.lib, self.cpu_time = load_library(path), cpu_time
        text = ctypes.create_string_buffer(2048)
        self.lib.compare_machine(text, len(text))
        self.facts = dict(line.split("=", 1) for line in text.value.decode().splitlines())
        self.flops_per_cycle = self.lib.compare_flops_per_cycle(text, len(text))
        self.facts["unit"] = text.value.decode()

    def measure(self, call):
        """Returns the Sample of one call."""
        before = self.lib.clock_hertz()
        start, cpu_start = self.lib.clock_seconds(), time.process_time()
        call()
        cpu, wall = time.process_time() - cpu_start, self.lib.clock_seconds() - start
        return Sample(wall, cpu, 0.5 * (before + self.lib.clock_hertz()))

    def median(self, samples):
        """Returns the median of cycles, by the clock that --cpu-time chooses."""
        return statistics.median(s[self.cpu_time] * s.hertz for s in samples)

    def milliseconds(self, samples):
        """Returns the median time, by the same clock."""
        return 1e3 * statistics.median(s[self.cpu_time] for s in samples)

    def quickest(self, call):
        """Returns cycles by processor time, so that a disturbance cannot choose a slow variant."""
        return min(s.cpu * s.hertz for s in (self.measure(call) for _ in range(TRIES)))

    def share(self, flops, cycles):
        return flops / (cycles * self.flops_per_cycle)

    def random(self, n, which, storage="f32"):
        """Returns n standard normal numbers, those of bench/cases/data.c."""
        data = (STORAGE[storage] * n)()
        self.lib.data_fill(data, number_of(storage), n, which, 1, 1)
        return data

    def as_floats(self, address, n, storage):
        out = floats(n)
        self.lib.attn_convert(out, 0, address, number_of(storage), n)
        return out


def number_of(storage):
    """The attn_dtype."""
    return list(STORAGE).index(storage)


def shape_name(s):
    heads = "%d" % s.heads_q if s.heads_q == s.heads_kv else "%d/%d" % (s.heads_q, s.heads_kv)
    return "%s x %d x %d" % (heads, s.seq, s.dim)


def kind_name(kind):
    return " ".join((shape_name(kind.shape), kind.storage, kind.mask))


def floats(n):
    return (ctypes.c_float * n)()


class Case:
    """One shape with one mask and storage, its data, and attn's calls on it."""

    def __init__(self, machine, kind):
        self.machine, self.shape, self.storage = machine, kind.shape, kind.storage
        self.causal, self.decode = kind.mask.startswith("causal"), kind.mask == "decode"
        self.backward = kind.mask in BACKWARD
        self.name, self.mask = shape_name(kind.shape), kind.mask
        self.kv_size = kind.shape.heads_kv * kind.shape.seq * kind.shape.dim
        self.size = kind.shape.heads_q * kind.shape.rows * kind.shape.dim
        self.q = machine.random(self.size, 0, kind.storage)
        self.k, self.v = (machine.random(self.kv_size, n, kind.storage) for n in (1, 2))
        self.dout = machine.random(self.size, 3, kind.storage) if self.backward else None
        self.result_size = self.size + (2 * self.kv_size if self.backward else 0)
        self.c_shape = CShape(*kind.shape, self.causal, number_of(kind.storage))
        self.f32 = kind.storage == "f32"
        self.opened = []

    def views(self):
        """The shape by how it is told; a decoding one also with the heads of a group as rows."""
        hq, hkv, rows, seq, dim = self.shape
        stacked = [(", heads as rows", Shape(hkv, hkv, rows * (hq // hkv), seq, dim))]
        return [("", self.shape)] + (stacked if self.decode else [])

    def floats_at(self, address):
        """Returns the result as f32."""
        return self.machine.as_floats(address, self.size, self.storage)

    def reading(self):
        """Returns a loop that only reads K and V."""
        lib = self.machine.lib
        handle = lib.compare_reading_open(self.k, self.v, ctypes.sizeof(self.k))
        if not handle:
            raise Wrong("no memory")
        self.opened.append((lib.compare_reading_close, handle))
        return Variant("reading", must_work(lib.reading_run, handle), None)

    def attn(self, impl):
        lib, why = self.machine.lib, ctypes.create_string_buffer(200)
        out = (STORAGE[self.storage] * self.size)()
        handle = lib.compare_attn_open(ctypes.byref(self.c_shape), b"impl=" + impl.encode(),
                                       self.q, self.k, self.v, out, why, len(why))
        if not handle:
            raise Wrong("attn impl=%s: %s" % (impl, why.value.decode()))
        self.opened.append((lib.compare_attn_close, handle))
        self.flops = lib.compare_attn_flops(handle)
        self.kernels = lib.compare_attn_kernels(handle).decode()
        return Variant(impl, must_work(lib.compare_attn_run, handle), lambda: self.floats_at(out))

    def attn_backward(self):
        """The gradients in one array, as output() has them."""
        lib, why = self.machine.lib, ctypes.create_string_buffer(200)
        outs = [(STORAGE[self.storage] * n)() for n in (self.size, self.kv_size, self.kv_size)]
        handle = lib.compare_backward_open(ctypes.byref(self.c_shape), b"impl=tiled", self.q,
                                           self.k, self.v, self.dout, *outs, why, len(why))
        if not handle:
            raise Wrong("attn's gradients: %s" % why.value.decode())
        self.opened.append((lib.compare_backward_close, handle))
        self.flops = lib.compare_backward_flops(handle)
        self.kernels = lib.compare_backward_kernels(handle).decode()
        return Variant("tiled", must_work(lib.compare_backward_run, handle),
                       lambda: self.joined(outs, [len(x) for x in outs]))

    def joined(self, addresses, sizes):
        """Returns the elements in order, as f32."""
        out, at = floats(self.result_size), 0
        for address, n in zip(addresses, sizes):
            self.machine.lib.attn_convert(ctypes.byref(out, 4 * at), 0, address,
                                          number_of(self.storage), n)
            at += n
        return out

    def close(self):
        for close, handle in self.opened:
            close(handle)


def must_work(function, handle):
    def run():
        if function(handle):
            raise Wrong("%s failed" % function.__name__)
    return run


# ---- the peers: name, version and remarks, a matrix product of GEMM_SIZE, variants of a case


class OpenBlas:
    name, title, gemm_rule = "openblas", "OpenBLAS %s (unfused)", True
    NAMES = ["libopenblas.so.0", "libopenblas.so", "libopenblas.dylib"]
    ROWS = [64, 128, 256, 512, 0]  # of a block of logits; 0 = all
    DECODE_ROWS = [1, 0]

    def __init__(self, machine):
        self.machine = machine
        found = ctypes.util.find_library("openblas")
        self.blas = self.load(self.NAMES + ([found] if found else []))
        self.sgemm = ctypes.cast(self.blas.cblas_sgemm, SGEMM)
        core, config = self.blas.openblas_get_corename, self.blas.openblas_get_config
        core.restype = config.restype = ctypes.c_char_p
        self.blas.openblas_set_num_threads(1)
        self.version = config().decode().split()[1]
        self.remarks = "core %s" % core().decode()

    @staticmethod
    def load(names):
        for name in names:
            try:
                return ctypes.CDLL(name)
            except OSError:
                pass
        raise PeerMissing("no %s (Debian: libopenblas-serial-dev)" % names[0])

    def gemm(self, a, b):
        n, c = GEMM_SIZE, floats(GEMM_SIZE * GEMM_SIZE)
        return lambda: self.sgemm(101, 111, 111, n, n, n, 1, a, n, b, n, 0, c, n)

    def variants(self, case):
        hq, hkv, count, _, _ = case.shape
        most = count if case.causal else count * (hq // hkv)  # heads that share keys stack up
        sizes = [] if case.backward else self.DECODE_ROWS if case.decode else self.ROWS
        return [self.variant(case, rows) for rows in sizes if rows < most and case.f32]

    def variant(self, case, rows):
        lib, out = self.machine.lib, floats(case.size)
        handle = lib.peer_openblas_open(ctypes.byref(case.c_shape), self.sgemm, rows, case.q,
                                        case.k, case.v, out)
        if not handle:
            raise Wrong("no memory for the logits")
        case.opened.append((lib.peer_openblas_close, handle))
        return Variant("%s rows" % (rows or "all"), must_work(lib.peer_openblas_run, handle),
                       lambda: out)


class Torch:
    name, title, gemm_rule = "torch", "PyTorch %s", True

    def __init__(self, machine):
        try:
            import torch
        except (ImportError, OSError) as error:
            raise PeerMissing("import torch: %s" % error)
        self.torch = torch
        torch.set_num_threads(1)
        self.version = torch.__version__
        parts = [line.strip(" -") for line in torch.__config__.show().splitlines()]
        self.remarks = "; ".join(
            [p.split(" for ")[0] for p in parts if "Math Kernel" in p or "MKL-DNN" in p]
            + ["capability " + torch.backends.cpu.get_cpu_capability(),
               "mkldnn %s" % torch.backends.mkldnn.is_available()])

    def tensor(self, data, *shape, storage="f32"):
        types = {"f32": self.torch.float32, "f16": self.torch.float16, "bf16": self.torch.bfloat16}
        return self.torch.frombuffer(data, dtype=types[storage]).reshape(shape)

    def gemm(self, a, b):
        n = GEMM_SIZE
        x, y, out = self.tensor(a, n, n), self.tensor(b, n, n), self.torch.empty(n, n)
        return lambda: self.torch.mm(x, y, out=out)

    def variants(self, case):
        from torch.nn.attention import SDPBackend
        ways = {}
        for how, (hq, hkv, rows, s, d) in case.views():
            q = self.tensor(case.q, 1, hq, rows, d, storage=case.storage)
            k, v = (self.tensor(x, 1, hkv, s, d, storage=case.storage) for x in (case.k, case.v))
            ways[how] = (q, k, v, hq != hkv)
            if hq != hkv:
                ways[how + ", K and V expanded"] = (q,) + tuple(
                    x.repeat_interleave(hq // hkv, 1) for x in (k, v)) + (False,)
        backends = (("default", None), ("flash", SDPBackend.FLASH_ATTENTION),
                    ("math", SDPBackend.MATH))
        make = self.backward if case.backward else self.variant
        return [make(case, name + how, backend, *tensors)
                for name, backend in backends for how, tensors in ways.items()]

    def backward(self, case, name, backend, q, k, v, gqa):
        """The backward pass alone, of a forward pass that is kept. Heads that were expanded are
        added up again by the graph, where there is one: k and v are leaves of its own else."""
        from torch.nn.attention import sdpa_kernel
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        hq, hkv, rows, s, d = case.shape
        leaves = [self.tensor(x, 1, h, n, d, storage=case.storage).clone().requires_grad_()
                  for x, h, n in ((case.q, hq, rows), (case.k, hkv, s), (case.v, hkv, s))]
        dout = self.tensor(case.dout, 1, hq, rows, d, storage=case.storage)
        expand = hq != hkv and not gqa
        wide = [x.repeat_interleave(hq // hkv, 1) if expand else x for x in leaves[1:]]
        last = []

        def forward():
            return sdpa(leaves[0], *wide, is_causal=bool(case.causal), enable_gqa=gqa)

        if backend:
            with sdpa_kernel(backend):
                o = forward()
        else:
            o = forward()

        def call():
            last[:] = self.torch.autograd.grad(o, leaves, dout, retain_graph=True)

        def output():
            kept = [x.contiguous() for x in last]
            return case.joined([x.data_ptr() for x in kept], [x.numel() for x in kept])

        return Variant(name, call, output)

    def variant(self, case, name, backend, q, k, v, gqa):
        from torch.nn.attention import sdpa_kernel
        sdpa = self.torch.nn.functional.scaled_dot_product_attention
        last = []

        def call():
            with self.torch.inference_mode():
                last[:] = [sdpa(q, k, v, is_causal=bool(case.causal), enable_gqa=gqa)]

        def run_backend():
            with sdpa_kernel(backend):
                call()

        def output():
            o = last[0].contiguous()  # a name of its own: the address must outlive the copying
            return case.floats_at(o.data_ptr())

        return Variant(name, run_backend if backend else call, output)


class OnnxRuntime:
    name, title, gemm_rule = "onnxruntime", "ONNX Runtime %s", False
    OPSETS = [("", 23), ("com.microsoft", 1)]

    def __init__(self, machine):
        try:
            import numpy
            import onnx
            import onnxruntime
        except (ImportError, OSError) as error:
            raise PeerMissing("import onnxruntime, onnx, numpy: %s" % error)
        self.numpy, self.onnx, self.runtime = numpy, onnx, onnxruntime
        onnxruntime.set_default_logger_severity(4)
        self.version = onnxruntime.__version__
        self.remarks = "CPUExecutionProvider"

    def session(self, node, inputs, outputs, shared=()):
        """A call of a model of one node; inputs and outputs: name to array; shared: pairs of an
        output and the input in whose memory it lies."""
        helper, types = self.onnx.helper, self.onnx.helper.np_dtype_to_tensor_dtype

        def infos(arrays):
            return [helper.make_tensor_value_info(n, types(a.dtype), a.shape)
                    for n, a in arrays.items()]

        model = helper.make_model(
            helper.make_graph([node], "g", infos(inputs), infos(outputs)), ir_version=10,
            opset_imports=[helper.make_opsetid(*o) for o in self.OPSETS])
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = self.runtime.InferenceSession(model.SerializeToString(), options,
                                                providers=["CPUExecutionProvider"])
        binding, value = session.io_binding(), self.runtime.OrtValue.ortvalue_from_numpy
        given = {n: value(a) for n, a in inputs.items()}
        results = {n: value(a) for n, a in outputs.items() if n not in dict(shared)}
        results.update((out, given[into]) for out, into in shared)
        for n, a in given.items():
            binding.bind_ortvalue_input(n, a)
        for n, a in results.items():
            binding.bind_ortvalue_output(n, a)

        def run(_kept=(inputs, outputs)):  # the binding shares the arrays' memory, owning none
            session.run_with_iobinding(binding)

        return run, results

    def array(self, data, *shape, storage="f32"):
        types = {"f32": self.numpy.float32, "f16": self.numpy.float16}
        return self.numpy.frombuffer(data, dtype=types[storage]).reshape(shape)

    def gemm(self, a, b):
        n = GEMM_SIZE
        node = self.onnx.helper.make_node("MatMul", ["a", "b"], ["c"])
        return self.session(node, {"a": self.array(a, n, n), "b": self.array(b, n, n)},
                            {"c": self.numpy.zeros((n, n), self.numpy.float32)})[0]

    def variants(self, case):
        """numpy has no bf16, onnxruntime no gradients."""
        if case.storage == "bf16" or case.backward:
            return []
        offers = [(self.attention, how, view) for how, view in case.views()]
        if case.decode:
            offers += [(self.multi_head, *case.views()[-1]), (self.cached, "", case.shape)]
        else:
            offers += [(self.multi_head, "", case.shape)]
        if case.causal:
            offers += [(self.grouped, "", case.shape)]
        return [self.variant(case, how, view, *maker(case, view)) for maker, how, view in offers]

    def variant(self, case, how, view, name, node, inputs, outputs, shared=()):
        run, results = self.session(node, inputs, outputs, shared)
        hq, _, rows, _, d = view

        def output():
            o = results["o"].numpy()
            if o.ndim == 3:
                o = self.numpy.ascontiguousarray(o.reshape(rows, hq, d).transpose(1, 0, 2))
            return case.floats_at(o.ctypes.data)

        return Variant(name + how, run, output)

    def heads(self, case, view):
        hq, hkv, rows, s, d = view
        return [self.array(x, h, n, d, storage=case.storage)
                for x, h, n in ((case.q, hq, rows), (case.k, hkv, s), (case.v, hkv, s))]

    def tokens_first(self, x):
        return self.numpy.ascontiguousarray(x.transpose(1, 0, 2)).reshape(1, x.shape[1], -1)

    def attention(self, case, view):
        node = self.onnx.helper.make_node("Attention", ["q", "k", "v"], ["o"],
                                          is_causal=int(case.causal))
        inputs = {n: x[None] for n, x in zip("qkv", self.heads(case, view))}
        return "Attention", node, inputs, {"o": self.numpy.zeros_like(inputs["q"])}

    def multi_head(self, case, view):
        """A cache keeps the heads apart: tokens first would be transposed in every call."""
        q, k, v = self.heads(case, view)
        k, v = (self.numpy.repeat(x, view.heads_q // view.heads_kv, 0) for x in (k, v))
        k, v = (x[None] if case.decode else self.tokens_first(x) for x in (k, v))
        inputs = {"q": self.tokens_first(q), "k": k, "v": v}
        node = self.onnx.helper.make_node(
            "MultiHeadAttention", list("qkv"), ["o"], domain="com.microsoft",
            num_heads=view.heads_q, unidirectional=int(case.causal))
        return "MultiHeadAttention", node, inputs, {"o": self.numpy.zeros_like(inputs["q"])}

    def grouped_node(self, view, past):
        return self.onnx.helper.make_node(
            "GroupQueryAttention", ["q", "k", "v", *past, "last", "total"],
            ["o", "present_k", "present_v"], domain="com.microsoft", num_heads=view.heads_q,
            kv_num_heads=view.heads_kv)

    def grouped_inputs(self, q, k, v, keys):
        inputs = {n: self.tokens_first(x) for n, x in zip("qkv", (q, k, v))}
        inputs["last"] = self.numpy.array([keys - 1], self.numpy.int32)
        inputs["total"] = self.numpy.array(keys, self.numpy.int32)
        return inputs

    def grouped(self, case, view):
        inputs = self.grouped_inputs(*self.heads(case, view), view.seq)
        present = self.numpy.zeros((1, view.heads_kv, view.seq, view.dim), self.numpy.float32)
        return "GroupQueryAttention", self.grouped_node(view, ["", ""]), inputs, {
            "o": self.numpy.zeros_like(inputs["q"]), "present_k": present,
            "present_v": present.copy()}

    def cached(self, case, view):
        """The last key is the new one: put where it is already, in a cache of its own. Past and
        present share their memory, else each call copies the whole cache."""
        q, k, v = self.heads(case, view)
        inputs = self.grouped_inputs(q, k[:, -1:], v[:, -1:], view.seq)
        inputs.update(past_k=k[None].copy(), past_v=v[None].copy())
        outputs = {"o": self.numpy.zeros_like(inputs["q"]), "present_k": inputs["past_k"],
                   "present_v": inputs["past_v"]}
        shared = ("present_k", "past_k"), ("present_v", "past_v")
        node = self.grouped_node(view, ["past_k", "past_v"])
        return "GroupQueryAttention", node, inputs, outputs, shared


PEERS = [OpenBlas, Torch, OnnxRuntime]


def find_peers(machine, wanted):
    """OpenBLAS first: a library that loads later cannot then shadow its symbols."""
    peers, missing = [], {}
    for peer in PEERS:
        if wanted and peer.name not in wanted:
            missing[peer.name] = "not asked for"
            continue
        try:
            peers.append(peer(machine))
        except PeerMissing as error:
            missing[peer.name] = str(error)
    return peers, missing


def gemm_share(machine, peer, matrices):
    n = GEMM_SIZE
    product = peer.gemm(*matrices)
    product()
    cycles = machine.median([machine.measure(product) for _ in range(GEMM_ROUNDS)])
    return machine.share(2.0 * n * n * n, cycles)


# ---- one case


def check(case, who, variant, want, broken):
    """Runs the variant once; its largest difference from attn's result."""
    allowed = TOLERANCE[case.storage]
    variant.run()
    got = variant.output()
    if broken:
        got[case.result_size // 2] += BREAK_BY * allowed
    difference = case.machine.lib.compare_difference(want, got, case.result_size)
    if not difference <= allowed:
        raise Wrong("%s (%s) differs from attn's default by %.3g at %s %s %s, allowed is %.3g; not "
                    "timed" % (who, variant.name, difference, case.name, case.storage, case.mask,
                               allowed))
    return difference


def offers_of(case, peers):
    """All variants that are to be compared and timed, by peer; not of a peer that has none."""
    offers = {"naive": [case.attn("naive")]} if case.mask == "full" else {}
    offers.update((p.name, p.variants(case)) for p in peers)
    return {name: variants for name, variants in offers.items() if variants}


def time_in_turn(machine, entrants, rounds, led_in):
    """Medians by entrant: clock cycles, milliseconds, and the processor's share of the wall time.
    led_in: an untimed call before each timed one, so that caches are as its own repetition leaves
    them."""
    samples = {name: [] for name in entrants}
    for _ in range(rounds):
        for name, variant in entrants.items():
            if led_in:
                variant.run()
            samples[name].append(machine.measure(variant.run))
    cycles = {name: machine.median(s) for name, s in samples.items()}
    ms = {name: machine.milliseconds(s) for name, s in samples.items()}
    core = {n: statistics.median(x.cpu / x.wall for x in s) for n, s in samples.items()}
    for name, share in core.items():
        if share > THREADS_ABOVE:
            raise Wrong("%s (%s) takes %.2f s of processor time a second: more than one thread"
                        % (name, entrants[name].name, share))
    return cycles, ms, core


def shares_of(case, cycles):
    """Of the FMA peak, or, of decoding, of the rate at which a plain loop reads K and V."""
    if case.decode:
        return {n: cycles["reading"] / c for n, c in cycles.items()}
    return {n: case.machine.share(case.flops, c) for n, c in cycles.items()}


def run_case(machine, kind, peers, rounds, broken):
    case = Case(machine, kind)
    entrants = {"attn": case.attn_backward() if case.backward else case.attn("tiled")}
    entrants["attn"].run()
    want, offers, tries = entrants["attn"].output(), offers_of(case, peers), {}
    differences = {name: max(check(case, name, v, want, broken == name) for v in variants)
                   for name, variants in offers.items()}
    for name, variants in offers.items():
        tries[name] = {v.name: machine.quickest(v.run) for v in variants}
        entrants[name] = min(variants, key=lambda v: tries[name][v.name])
    if case.decode:
        entrants["reading"] = case.reading()
    cycles, ms, core = time_in_turn(machine, entrants, rounds, case.decode)
    case.close()
    return {"shape": case.name, "mask": case.mask, "storage": case.storage,
            "kernels": case.kernels, "flops": case.flops, "cycles": cycles, "ms": ms,
            "sizes": kind.shape._asdict(),
            "variant": {n: v.name for n, v in entrants.items()}, "core": min(core.values()),
            "variant_cycles": tries, "difference": differences, "share": shares_of(case, cycles),
            "ratio": {n: c / cycles["attn"] for n, c in cycles.items()
                      if n not in ("attn", "reading")}}


# ---- verdicts


def ratios(results, mask, names):
    """Returns the ratios in f32."""
    return [(r["ratio"][n], n, r) for r in results
            if r["mask"] == mask and r["storage"] == "f32" for n in names if n in r["ratio"]]


def verdict(label, found, goal, void):
    """found: (ratio, name, result) of every valid peer; a void peer leaves only a 'no' certain."""
    if not found:
        return "%s: no verdict, no valid peer" % label
    ratio, name, result = min(found, key=lambda f: f[0])
    won = ratio > goal if goal == 1 else ratio >= goal
    word = "no" if not won else "undecided, VOID: " + ", ".join(void) if void else "yes"
    return "%s: %s (least: %.2f, %s at %s)" % (label, word, ratio, name, result["shape"])


def busy(record, results):
    """A sentence where other work had the core, which makes wall-clock figures worthless."""
    worst = min(results, key=lambda r: r["core"])
    if worst["core"] >= BUSY_BELOW or record["time"] == CPU_TIME:
        return []
    return ["VOID: other work ran on this core (%.0f %% of the time was ours at %s %s): no "
            "verdict; take an idle core, or --cpu-time for a rough answer"
            % (100 * worst["core"], worst["shape"], worst["mask"])]


def verdicts(results, peers, shares):
    void = [p.name for p in peers if p.gemm_rule and shares[p.name] < VOID_BELOW]
    valid = [p.name for p in peers if p.name not in void]
    lines = ["VOID: %s reaches %.1f %% of the FMA peak at %d^3, below %.0f %%: it does not run as "
             "it should here, its figures are no comparison"
             % (n, 100 * shares[n], GEMM_SIZE, 100 * VOID_BELOW) for n in void]
    lines.append(verdict("full: faster than every peer on every shape",
                         ratios(results, "full", valid), 1, void))
    lines.append(verdict("causal: at least %.2fx the best peer" % CAUSAL_GOAL,
                         ratios(results, "causal", valid), CAUSAL_GOAL, void))
    lines.append(verdict("backward: faster than every peer on every shape",
                         [f for mask in BACKWARD for f in ratios(results, mask, valid)], 1, void))
    lines.append(verdict("decode, f32: at least %.1fx the best peer" % DECODE_GOAL,
                         ratios(results, "decode", valid), DECODE_GOAL, void))
    if any(p.name == "openblas" for p in peers):
        shares_of_blas = [(r["cycles"]["openblas"] / r["cycles"]["naive"], "naive", r)
                          for r in results if r["mask"] == "full"]
        lines.append(verdict("naive: at least %.0f %% of unfused OpenBLAS's speed"
                             % (100 * NAIVE_GOAL), shares_of_blas, NAIVE_GOAL,
                             [n for n in void if n == "openblas"]))
    return lines, void


# ---- report


def cell(result, name):
    if name not in result["ratio"]:
        return "-"
    ratio = result["ratio"][name]
    return "%.1f %% / %.2f%s (%s)" % (100 * result["share"][name], ratio,
                                      " slower" if ratio < 1 else "", result["variant"][name])


def cell_of_attn(result):
    return "%.3g ms, %.1f %%" % (result["ms"]["attn"], 100 * result["share"]["attn"])


def main_table(results, names, masks):
    rows = [["shape", "mask", "attn"] + names]
    for r in results:
        if r["mask"] in masks:
            rows.append([r["shape"], r["mask"], cell_of_attn(r)]
                        + [cell(r, n) for n in names])
    return rows if len(rows) > 1 else []


def decode_table(results, names):
    rows = [["one row against", "storage", "attn"] + names]
    for r in results:
        if r["mask"] == "decode":
            rows.append([r["shape"], r["storage"], cell_of_attn(r)]
                        + [cell(r, n) for n in names])
    return rows if len(rows) > 1 else []


def naive_table(results, names):
    """Empty where OpenBLAS or the full mask is not among the cases."""
    rows = [["shape", "naive", "openblas", "naive's speed / openblas's"]]
    for r in results:
        if r["mask"] == "full" and "openblas" in names:
            rows.append([r["shape"]] + ["%.1f %%" % (100 * r["share"][n])
                                        for n in ("naive", "openblas")]
                        + ["%.2f" % (r["cycles"]["openblas"] / r["cycles"]["naive"])])
    return rows if len(rows) > 1 else []


def plain(rows):
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows)


def markdown(rows):
    lines = ["| " + " | ".join(r) + " |" for r in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0])] + lines[1:])


def facts_lines(record):
    m = record["machine"]
    lines = ["%s, revision %s, attn %s (%s), %s %s" % (
        record["date"], m["revision"], m["attn"], record["kernels"], m["compiler"], m["flags"]),
             "%s; FMA peak %.1f f32 flops a cycle (%s, measured); one thread, batch 1" % (
                 m["cpu"], record["flops_per_cycle"], m["unit"]),
             "%s; at least %.0f %% of the core was ours" % (record["time"], 100 * record["core"])]
    for name, p in record["peers"].items():
        lines.append("%s %s: %s; matrix product of %d^3 at %.0f %% of the peak" % (
            name, p["version"], p["remarks"], GEMM_SIZE, 100 * p["gemm_share"]))
    return lines + ["%s skipped: %s" % m for m in record["missing"].items()]


LEGEND = ("A cell of attn: time of a call, share of the FMA peak. A peer's cell: share of the peak "
          "/ its time over attn's (its fastest variant); slower: attn is the slower one.")
DECODE_LEGEND = ("Decoding. Shares are of the rate at which a plain loop reads K and V, timed in "
                 "turn with the others; else as above.")


def differences(record):
    return "largest difference of a result from attn's: " + ", ".join(
        "%.2g in %s (allowed: %.2g)" % (d, storage, TOLERANCE[storage])
        for storage, d in record["difference"].items())


def tables_of(results, names):
    """(what its numbers mean, rows) of each table that has rows."""
    tables = [("Prefill, f32. " + LEGEND, main_table(results, names, MASKS)),
              ("Gradients dq, dk, dv, f32; the backward pass alone, after a forward pass. FLOPs "
               "are those of five products for each visible pair. " + LEGEND,
               main_table(results, names, BACKWARD)),
              ("The textbook path against unfused OpenBLAS.", naive_table(results, names)),
              (DECODE_LEGEND, decode_table(results, names))]
    return [(legend, rows) for legend, rows in tables if rows]


def write_markdown(path, record, results, names):
    parts = ["### " + record["machine"]["cpu"], "\n".join("- " + f for f in facts_lines(record)),
             "Medians of %d rounds in turn, in clock cycles; %s."
             % (record["rounds"], differences(record))]
    for legend, rows in tables_of(results, names):
        parts += [legend, markdown(rows)]
    parts.append("\n".join("- " + v for v in record["verdicts"]))
    with open(path, "w") as f:
        f.write("\n\n".join(parts) + "\n")


CSV_HEAD = ("preset case impl path variant dtype mask pass batch heads_q heads_kv seq_q seq_kv "
            "head_dim threads samples ms_p50 difference allowed cpu revision date").split()


def write_csv(path, record, results, titles):
    """A row for attn and for each peer of a case. Columns that the bench's CSV has, too, are named
    as there."""
    with open(path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(CSV_HEAD)
        for r in results:
            for name in [n for n in titles if n in r["ms"]]:
                out.writerow(
                    ["peers", r["shape"], name, titles[name], r["variant"][name], r["storage"],
                     "causal" if r["mask"].startswith("causal") else "full",
                     "backward" if r["mask"] in BACKWARD else "forward", 1,
                     *r["sizes"].values(), 1, record["rounds"],
                     "%.6g" % r["ms"][name], "%.3g" % r["difference"].get(name, 0),
                     TOLERANCE[r["storage"]], record["machine"]["cpu"],
                     record["machine"]["revision"], record["date"]])


def titles_of(peers):
    """How attn and each peer are called in a picture; of a version only the release."""
    return dict({"attn": "attn"}, **{p.name: p.title % p.version.split("+")[0] for p in peers})


def print_report(record, results, names):
    for legend, rows in tables_of(results, names):
        print(legend + "\n\n" + plain(rows) + "\n")
    for name in names:
        among = [r for r in results if name in r["ratio"]]
        if among:
            worst = min(among, key=lambda r: r["ratio"][name])
            print("worst ratio against %s: %.2f at %s %s %s" % (
                name, worst["ratio"][name], worst["shape"], worst["storage"], worst["mask"]))
    print(differences(record))
    print("\n".join(record["verdicts"]))


# ---- program


def rounds_of(text):
    if int(text) < MIN_ROUNDS:
        raise argparse.ArgumentTypeError("at least %d" % MIN_ROUNDS)
    return int(text)


def parse_options():
    names = [p.name for p in PEERS]
    o = argparse.ArgumentParser(
        prog="compare_peers", epilog="Exit status: 0 = measured, whatever the verdicts; %d = a "
        "wrong result, nothing timed; %d = a peer is VOID." % (EXIT_WRONG, EXIT_VOID))
    o.add_argument("library", help="build/libpeers.so")
    o.add_argument("--rounds", type=rounds_of, default=MIN_ROUNDS, help="at least %(default)s")
    o.add_argument("--only", action="append", metavar="TEXT", help="cases whose name, such as "
                   "'8 x 512 x 64 f32 causal', contains TEXT; repeatable")
    o.add_argument("--peer", action="append", choices=names, help="this peer only; repeatable")
    o.add_argument("--break", dest="broken", choices=names + ["naive"],
                   help="spoil this peer's results by %d tolerances: they must be refused"
                   % BREAK_BY)
    o.add_argument("--cpu-time", action="store_true", help="count processor time instead of wall "
                   "time: for a core that others use, whose caches they use, too")
    o.add_argument("--markdown", metavar="FILE")
    o.add_argument("--json", metavar="FILE")
    o.add_argument("--csv", metavar="FILE", help="times, for `make plot CSV=FILE`")
    return o.parse_args()


def chosen_cases(only):
    kinds = [Kind(s, mask, "f32") for mask in MASKS for s in PREFILLS]
    kinds += [Kind(s, mask, "f32") for mask in BACKWARD for s in GRADIENTS]
    kinds += [Kind(s, "decode", storage) for storage in STORAGE for s in DECODES]
    found = [k for k in kinds if not only or any(text in kind_name(k) for text in only)]
    if not found:
        sys.exit("compare_peers: no case's name contains '%s'" % "' or '".join(only))
    return found


def largest_differences(results):
    """Returns the largest difference for each storage."""
    largest = {}
    for r in results:
        found = max(r["difference"].values(), default=0)
        largest[r["storage"]] = max(found, largest.get(r["storage"], 0))
    return largest


def main():
    options = parse_options()
    cases = chosen_cases(options.only)
    machine = Machine(options.library, options.cpu_time)
    peers, missing = find_peers(machine, options.peer)
    if options.broken not in [None, "naive"] + [p.name for p in peers]:
        sys.exit("compare_peers: --break %s, which is skipped" % options.broken)
    matrices = [machine.random(GEMM_SIZE * GEMM_SIZE, which) for which in (0, 1)]
    shares = {p.name: gemm_share(machine, p, matrices) for p in peers}
    record = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
              "machine": machine.facts, "flops_per_cycle": machine.flops_per_cycle,
              "rounds": options.rounds, "missing": missing,
              "time": CPU_TIME if options.cpu_time else WALL_TIME,
              "peers": {p.name: {"version": p.version, "remarks": p.remarks,
                                 "gemm_share": shares[p.name]} for p in peers}}
    results = [run_case(machine, kind, peers, options.rounds, options.broken) for kind in cases]
    record["core"] = min(r["core"] for r in results)
    record["kernels"] = ", ".join(sorted({r["kernels"] for r in results}))
    record["difference"] = largest_differences(results)
    void = record["verdicts"] = busy(record, results)
    if not void:
        record["verdicts"], void = verdicts(results, peers, shares)
    if options.cpu_time:
        record["verdicts"].append("rough: by processor time, on a core that others may use")
    print("\n".join(facts_lines(record)) + "\n")
    names = [p.name for p in peers]
    print_report(record, results, names)
    if options.markdown:
        write_markdown(options.markdown, record, results, names)
    if options.csv:
        write_csv(options.csv, record, results, titles_of(peers))
    if options.json:
        with open(options.json, "w") as f:
            json.dump(dict(record, results=results), f, indent=1)
    return EXIT_VOID if void else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as error:
        print("compare_peers: %s" % error, file=sys.stderr)
        sys.exit(EXIT_WRONG)
