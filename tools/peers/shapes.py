# shapes.py - the shapes, masks and storage types that are compared.
# SPDX-License-Identifier: MIT
import collections
import ctypes
import sys

Shape = collections.namedtuple("Shape", "heads_q heads_kv rows seq dim")
LENGTHS = [Shape(8, 8, s, s, 64) for s in (64, 128, 256, 512, 1024, 2048, 4096)]
OTHERS = [Shape(hq, hkv, s, s, d) for hq, hkv, s, d in (
    (4, 4, 2048, 128), (2, 2, 4096, 128), (2, 2, 2048, 256), (32, 8, 512, 128))]
SHORT = [Shape(h, h, s, s, 64) for h, s in ((1, 64), (12, 128), (16, 197), (12, 384))]
PREFILLS = LENGTHS + OTHERS + SHORT
WITH_ARRAYS = [Shape(8, 8, 1024, 1024, 64), Shape(4, 4, 2048, 2048, 128)]
GRADIENTS = [s for s in LENGTHS if s.seq in (512, 1024)] + OTHERS
DECODES = [Shape(32, 8, 1, s, 128) for s in (256, 512, 1024, 4096, 16384)]
WITH_UNITS = Shape(4, 4, 2048, 2048, 128)
IN_BF16 = WITH_ARRAYS + [Shape(32, 8, 512, 512, 128)]  # for p.fast

# The attn_dtype, the type of a unit, the numbers of a unit
Storage = collections.namedtuple("Storage", "number unit numbers")
STORAGE = {"f32": Storage(0, ctypes.c_float, 1), "f16": Storage(1, ctypes.c_uint16, 1),
           "bf16": Storage(2, ctypes.c_uint16, 1), "q8_0": Storage(5, ctypes.c_ubyte * 34, 32),
           "q4_0": Storage(7, ctypes.c_ubyte * 18, 32)}
PLAIN, QUANTISED = ("f32", "f16", "bf16"), ("q8_0", "q4_0")  # of q, k, v, o; of k and v alone

MASKS = ("full", "causal")
ARRAYS = ("boolean", "bias")  # a byte or a number for each pair of a row and a key
BACKWARD = ("full backward", "causal backward")

# mask: of MASKS, ARRAYS or BACKWARD, or "decode"; storage: of STORAGE, that of K and V
Kind = collections.namedtuple("Kind", "shape mask storage")


def number_of(storage):
    return STORAGE[storage].number


def array_of(storage, n):
    return (STORAGE[storage].unit * (n // STORAGE[storage].numbers))()


def shape_name(s):
    heads = "%d" % s.heads_q if s.heads_q == s.heads_kv else "%d/%d" % (s.heads_q, s.heads_kv)
    return "%s x %d x %d" % (heads, s.seq, s.dim)


def kind_name(kind):
    return " ".join((shape_name(kind.shape), kind.storage, kind.mask))


def floats(n):
    return (ctypes.c_float * n)()


def chosen_cases(only):
    kinds = [Kind(s, mask, "f32") for mask in MASKS for s in PREFILLS]
    kinds += [Kind(s, mask, "f32") for mask in ARRAYS for s in WITH_ARRAYS]
    kinds += [Kind(s, mask, "f32") for mask in BACKWARD for s in GRADIENTS]
    kinds += [Kind(s, "decode", storage) for storage in PLAIN for s in DECODES]
    kinds += [Kind(s, mask, "bf16") for mask in MASKS for s in IN_BF16]
    for storage in QUANTISED:
        kinds += [Kind(WITH_UNITS, mask, storage) for mask in MASKS]
        kinds += [Kind(s, "decode", storage) for s in DECODES if s.seq >= 4096]
    found = [k for k in kinds if not only or any(text in kind_name(k) for text in only)]
    if not found:
        sys.exit("compare_peers: no case's name contains '%s'" % "' or '".join(only))
    return found
