# attn.py - attn's own calls on a case, and a loop that only reads.
# SPDX-License-Identifier: MIT
import ctypes

from .peer import Variant, Wrong, must_work
from .shapes import array_of


def reading(case):
    """Returns a loop that only reads K and V."""
    lib = case.machine.lib
    handle = lib.compare_reading_open(case.k, case.v, ctypes.sizeof(case.k))
    if not handle:
        raise Wrong("no memory")
    case.opened.append((lib.compare_reading_close, handle))
    return Variant("reading", must_work(lib.reading_run, handle), None)


def forward(case, impl, integer=0, fast=0):
    """integer: 1 = scores of quantised keys in whole numbers; fast: 1 = products of bf16"""
    lib, why = case.machine.lib, ctypes.create_string_buffer(200)
    out = array_of(case.query, case.size)
    handle = lib.compare_attn_open(ctypes.byref(case.c_shape_of(integer, fast)), b"impl=" + impl.encode(),
                                   case.q, case.k, case.v, out, why, len(why))
    if not handle:
        raise Wrong("attn impl=%s: %s" % (impl, why.value.decode()))
    case.opened.append((lib.compare_attn_close, handle))
    case.flops = lib.compare_attn_flops(handle)
    case.kernels = lib.compare_attn_kernels(handle).decode()
    return Variant(impl, must_work(lib.compare_attn_run, handle), lambda: case.floats_at(out))


def backward(case):
    """The gradients in one array, as output() has them."""
    lib, why = case.machine.lib, ctypes.create_string_buffer(200)
    outs = [array_of(case.storage, n) for n in (case.size, case.kv_size, case.kv_size)]
    handle = lib.compare_backward_open(ctypes.byref(case.c_shape), b"impl=tiled", case.q, case.k,
                                       case.v, case.dout, *outs, why, len(why))
    if not handle:
        raise Wrong("attn's gradients: %s" % why.value.decode())
    case.opened.append((lib.compare_backward_close, handle))
    case.flops = lib.compare_backward_flops(handle)
    case.kernels = lib.compare_backward_kernels(handle).decode()
    return Variant("tiled", must_work(lib.compare_backward_run, handle),
                   lambda: case.joined(outs, [len(x) for x in outs]))
