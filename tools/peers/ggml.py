# ggml.py - ggml's flash attention and its unfused attention, by tools/peer_ggml.c.
# SPDX-License-Identifier: MIT
import ctypes

from .library import POINTER, TEXT, CShape, declare, load_beside
from .peer import GEMM_SIZE, Variant, Wrong, must_work
from .shapes import ARRAYS, floats

FUNCTIONS = (("peer_ggml_open", POINTER, [POINTER, ctypes.c_int] + [POINTER] * 3),
             ("peer_ggml_product", POINTER, [ctypes.c_int, POINTER, POINTER]),
             ("peer_ggml_run", ctypes.c_int, [POINTER]),
             ("peer_ggml_output", None, [POINTER, POINTER]),
             ("peer_ggml_close", None, [POINTER]), ("peer_ggml_version", TEXT, []),
             ("peer_ggml_remarks", None, [TEXT, ctypes.c_size_t]))


class Ggml:
    name, title, gemm_rule = "ggml", "ggml %s", False
    SOURCE = "sources: in llama-cpp-python's, see docs/benchmarks.md"
    WAYS = [("flash_attn_ext", 1), ("mul_mat, soft_max_ext", 0)]
    QUANTISED = True
    F16_SUMS = 4  # tolerances: flash attention of a single row sums values of f16 in f16
    # of quantised keys: the scales of rounded queries are in f16; prefill has more numbers
    F16_SCALES, F16_SCALES_DECODE = 50, 5

    def __init__(self, machine):
        self.machine, self.lib = machine, load_beside(machine.path, "ggml", self.SOURCE)
        declare(self.lib, FUNCTIONS)
        self.version = self.lib.peer_ggml_version().decode()
        remarks = ctypes.create_string_buffer(200)
        self.lib.peer_ggml_remarks(remarks, len(remarks))
        self.remarks = remarks.value.decode()

    def gemm(self, a, b):
        handle = self.lib.peer_ggml_product(GEMM_SIZE, a, b)
        if not handle:
            raise Wrong("no memory for ggml's product")
        return must_work(self.lib.peer_ggml_run, handle)

    def variants(self, case):
        """ggml has no gradients of attention, takes masks as f16 numbers only, and a V in
        units with flash attention only."""
        if case.backward or case.mask in ARRAYS:
            return []
        return [self.variant(case, way + how, flash, view)
                for way, flash in self.WAYS if flash or not case.quantised
                for how, view in case.views()]

    def variant(self, case, name, flash, view):
        """ggml takes queries and gives results as f32 only."""
        shape = CShape(*view, case.causal, case.c_shape.dtype, case.c_shape.kv_dtype)
        q = case.machine.as_floats(case.q, case.size, case.query)
        handle = self.lib.peer_ggml_open(ctypes.byref(shape), flash, q, case.k, case.v)
        if not handle:
            raise Wrong("no memory for ggml")
        case.opened.append((self.lib.peer_ggml_close, handle))

        def output():
            out = floats(case.size)
            self.lib.peer_ggml_output(handle, out)
            return out

        return Variant(name, must_work(self.lib.peer_ggml_run, handle), output,
                       self.allowed(case, flash))

    def allowed(self, case, flash):
        if case.quantised:
            return self.F16_SCALES_DECODE if case.decode else self.F16_SCALES
        return self.F16_SUMS if case.storage == "f16" and flash else 1
