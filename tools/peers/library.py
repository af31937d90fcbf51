# library.py - the functions of build/libpeers.so.
# SPDX-License-Identifier: MIT
import ctypes

from .shapes import Shape


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
