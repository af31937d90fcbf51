# onednn.py - attention as a partition of oneDNN's graph API, by tools/peer_onednn.c.
# SPDX-License-Identifier: MIT
import ctypes

from .library import FOUR, POINTER, TEXT, CShape, declare, load_beside
from .peer import GEMM_SIZE, PeerMissing, Variant, Wrong, must_work
from .shapes import ARRAYS, Shape, array_of, floats

WHY = [TEXT, ctypes.c_size_t]
FUNCTIONS = (("peer_onednn_open", POINTER, [POINTER] + FOUR + WHY),
             ("peer_onednn_product", POINTER, [ctypes.c_int] + [POINTER] * 3 + WHY),
             ("peer_onednn_run", ctypes.c_int, [POINTER]),
             ("peer_onednn_close", None, [POINTER]), ("peer_onednn_version", None, WHY),
             ("peer_onednn_runtime", TEXT, []), ("peer_onednn_isa", TEXT, []))


class OneDnn:
    name, title, gemm_rule = "onednn", "oneDNN %s", False
    SOURCE = "Debian 13: libdnnl-dev, PREFIX /usr"
    RUNTIME = "OpenMP"  # others have no fused attention on a CPU, and some take every core

    def __init__(self, machine):
        self.machine, self.lib = machine, load_beside(machine.path, "onednn", self.SOURCE)
        declare(self.lib, FUNCTIONS)
        version, runtime = ctypes.create_string_buffer(40), self.lib.peer_onednn_runtime().decode()
        self.lib.peer_onednn_version(version, len(version))
        self.version = version.value.decode()
        self.remarks = "CPU engine, %s, %s" % (runtime, self.lib.peer_onednn_isa().decode())
        if runtime != self.RUNTIME:
            raise PeerMissing("this build of %s has the runtime %s; the one for %s fuses attention "
                              "on a CPU (%s)" % (self.version, runtime, self.RUNTIME, self.SOURCE))

    def opened(self, function, *arguments):
        """Returns a handle, or None where oneDNN has no kernels on this CPU."""
        why = ctypes.create_string_buffer(200)
        handle = function(*arguments, why, len(why))
        if not handle and why.value:
            raise Wrong("oneDNN: %s" % why.value.decode())
        return handle

    def gemm(self, a, b):
        n, c = GEMM_SIZE, floats(GEMM_SIZE * GEMM_SIZE)
        run = must_work(self.lib.peer_onednn_run,
                        self.opened(self.lib.peer_onednn_product, n, a, b, c))

        def product(_kept=(a, b, c)):  # oneDNN reads and writes the arrays' memory, owning none
            run()

        return product

    def variants(self, case):
        """Of gradients oneDNN has parts only, which no partition holds together. Version 3.7 fuses
        no heads that share keys: prefill also has them expanded."""
        left_out = case.backward or case.mask in ARRAYS
        ways = [] if left_out else [(how, view, case.k, case.v) for how, view in case.views()]
        hq, hkv, rows, seq, dim = case.shape
        if ways and hq != hkv and not case.decode:
            ways.append((", K and V expanded", Shape(hq, hq, rows, seq, dim),
                         *(self.expanded(x, hkv, hq // hkv) for x in (case.k, case.v))))
        return [v for v in (self.variant(case, *way) for way in ways) if v]

    @staticmethod
    def expanded(x, heads, group):
        """Returns each head `group` times."""
        data, n = bytes(x), ctypes.sizeof(x) // heads
        wide = b"".join(data[h * n:(h + 1) * n] * group for h in range(heads))
        return (x._type_ * (len(x) * group)).from_buffer_copy(wide)

    def variant(self, case, how, view, k, v):
        out = array_of(case.storage, case.size)
        shape = CShape(*view, case.causal, case.c_shape.dtype)
        handle = self.opened(self.lib.peer_onednn_open, ctypes.byref(shape), case.q, k, v, out)
        if not handle:
            return None
        case.opened.append((self.lib.peer_onednn_close, handle))
        run = must_work(self.lib.peer_onednn_run, handle)

        def call(_kept=(k, v)):  # oneDNN reads the arrays' memory, owning none
            run()

        return Variant("SDPA" + how, call, lambda: case.floats_at(out))
