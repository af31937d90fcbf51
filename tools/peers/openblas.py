# openblas.py - unfused attention over OpenBLAS's matrix product, by tools/peer_openblas.c.
# SPDX-License-Identifier: MIT
import ctypes
import ctypes.util

from .library import SGEMM
from .peer import GEMM_SIZE, PeerMissing, Variant, Wrong, must_work
from .shapes import ARRAYS, floats


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
        sizes = [] if case.backward or case.mask in ARRAYS else self.DECODE_ROWS if case.decode else self.ROWS
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
