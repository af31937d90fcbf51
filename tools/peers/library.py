# library.py - the functions of build/libpeers.so, and how other libraries are loaded.
# SPDX-License-Identifier: MIT
import ctypes
import os

from .peer import PeerMissing
from .shapes import Shape


class CShape(ctypes.Structure):
    _fields_ = [(f, ctypes.c_int) for f in Shape._fields + (
        "causal", "dtype", "kv_dtype", "integer", "fast")] + [
        (f, ctypes.c_void_p) for f in ("visible", "bias")]


SGEMM = ctypes.CFUNCTYPE(
    None, *[ctypes.c_int] * 6, ctypes.c_float, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p,
    ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_int)

POINTER, DOUBLE, TEXT = ctypes.c_void_p, ctypes.c_double, ctypes.c_char_p
FOUR = [POINTER] * 4
FUNCTIONS = (
    ("clock_seconds", DOUBLE, []), ("clock_hertz", DOUBLE, []),
    ("compare_flops_per_cycle", DOUBLE, [TEXT, ctypes.c_size_t]),
    ("compare_machine", None, [TEXT, ctypes.c_size_t]),
    ("compare_above", None, [POINTER, POINTER, ctypes.c_float, ctypes.c_size_t]),
    ("compare_difference", DOUBLE, [POINTER, POINTER, ctypes.c_size_t]),
    ("compare_reading_open", POINTER, [POINTER, POINTER, ctypes.c_size_t]),
    ("reading_run", ctypes.c_int, [POINTER]), ("compare_reading_close", None, [POINTER]),
    ("attn_convert", None, [POINTER, ctypes.c_int, POINTER, ctypes.c_int,
                            ctypes.c_size_t]),
    ("compare_attn_open", POINTER, [POINTER, TEXT] + FOUR + [TEXT, ctypes.c_size_t]),
    ("compare_attn_run", ctypes.c_int, [POINTER]),
    ("compare_attn_kernels", TEXT, [POINTER]), ("compare_attn_flops", DOUBLE, [POINTER]),
    ("compare_attn_close", None, [POINTER]),
    ("compare_backward_open", POINTER, [POINTER, TEXT] + FOUR + [POINTER] * 3
     + [TEXT, ctypes.c_size_t]),
    ("compare_backward_run", ctypes.c_int, [POINTER]),
    ("compare_backward_kernels", TEXT, [POINTER]),
    ("compare_backward_flops", DOUBLE, [POINTER]),
    ("compare_backward_close", None, [POINTER]),
    ("peer_openblas_open", POINTER, [POINTER, SGEMM, ctypes.c_int] + FOUR),
    ("peer_openblas_run", ctypes.c_int, [POINTER]),
    ("peer_openblas_close", None, [POINTER]),
    ("data_fill", None, [POINTER, ctypes.c_int, ctypes.c_size_t, ctypes.c_int,
                         ctypes.c_int, ctypes.c_uint64]))


def declare(lib, functions):
    """functions: (name, type of the result, types of the arguments)"""
    for name, result, arguments in functions:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def load_beside(path, peer, source):
    """Returns the library of a peer that the Makefile builds where it finds the peer's headers.
    source: where those come from"""
    beside = os.path.join(os.path.dirname(path), "libpeer_%s.so" % peer)
    if not os.path.exists(beside):
        raise PeerMissing("no %s: `make compare-peers %s=PREFIX` builds it where PREFIX has the "
                          "headers (%s)" % (beside, peer.upper(), source))
    try:
        return ctypes.CDLL(beside)
    except OSError as error:
        raise PeerMissing("%s: %s" % (beside, error))


def load_library(path):
    lib = ctypes.CDLL(path)
    declare(lib, FUNCTIONS)
    return lib
