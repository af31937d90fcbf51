# case.py - one case: its data, the check of each peer's result, and its timing.
# SPDX-License-Identifier: MIT
import ctypes

from . import attn
from .library import CShape
from .peer import Wrong
from .shapes import ARRAYS, BACKWARD, MASKS, QUANTISED, Shape, floats, number_of, shape_name
from .timing import time_in_turn

# Inputs are standard normal, and outputs are weighted means of them, at most about 4. All
# libraries sum in binary32, in different orders: the largest difference seen is 3e-6, and 8e-6 in
# gradients, which are sums over 4096 rows. In f16 and bf16 it is 6e-5 and 5e-4 with 4096 keys,
# because peers may also round probabilities.
TOLERANCE = {"f32": 2e-5, "f16": 1e-3, "bf16": 8e-3}
SHOWN_ABOVE = -0.43  # of a standard normal number: 2 of 3 pairs of a boolean mask
OWN = ("attn", "integer", "fast", "reading")  # entrants that are no peers
BREAK_BY = 50  # tolerances: what --break adds to one number


class Case:
    """One shape with one mask and storage, its data, and what attn says of them (flops, kernels)
    once one of its calls is opened. query: the storage of q and o"""

    def __init__(self, machine, kind):
        self.machine, self.shape, self.storage = machine, kind.shape, kind.storage
        self.causal, self.decode = kind.mask.startswith("causal"), kind.mask == "decode"
        self.backward = kind.mask in BACKWARD
        self.name, self.mask = shape_name(kind.shape), kind.mask
        self.kv_size = kind.shape.heads_kv * kind.shape.seq * kind.shape.dim
        self.size = kind.shape.heads_q * kind.shape.rows * kind.shape.dim
        self.quantised = kind.storage in QUANTISED
        self.query = "f32" if self.quantised else kind.storage
        self.q = machine.random(self.size, 0, self.query)
        self.k, self.v = (machine.random(self.kv_size, n, kind.storage) for n in (1, 2))
        self.dout = machine.random(self.size, 3, kind.storage) if self.backward else None
        self.result_size = self.size + (2 * self.kv_size if self.backward else 0)
        self.bias = self.visible = None  # [rows][seq] for all heads
        if kind.mask in ARRAYS:
            self.set_pairs(kind.mask, kind.shape.rows * kind.shape.seq)
        self.c_shape = self.c_shape_of()
        self.f32 = kind.storage == "f32"
        self.rounds = kind.storage == "bf16" and kind.mask in MASKS  # p.fast is compared, too
        self.without = {}  # why calls of attn that other machines have are left out
        self.opened = []

    def c_shape_of(self, integer=0, fast=0):
        return CShape(*self.shape, self.causal, number_of(self.query), number_of(self.storage),
                      integer, fast, *(x and ctypes.addressof(x) for x in (self.visible, self.bias)))

    def set_pairs(self, mask, n):
        numbers = self.machine.random(n, 4)
        if mask == "bias":
            self.bias = numbers
        else:
            self.visible = (ctypes.c_ubyte * n)()
            self.machine.lib.compare_above(self.visible, numbers, SHOWN_ABOVE, n)

    def views(self):
        """The shape by how it is told; a decoding one also with the heads of a group as rows."""
        hq, hkv, rows, seq, dim = self.shape
        stacked = [(", heads as rows", Shape(hkv, hkv, rows * (hq // hkv), seq, dim))]
        return [("", self.shape)] + (stacked if self.decode else [])

    def floats_at(self, address):
        """Returns the result as f32."""
        return self.machine.as_floats(address, self.size, self.query)

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


def check(case, who, variant, want, broken):
    """Runs the variant once; its largest difference from attn's result."""
    allowed = TOLERANCE[case.query] * variant.allowed
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
    naive = case.mask == "full" and case.f32
    offers = {"naive": [attn.forward(case, "naive")]} if naive else {}
    offers.update((p.name, p.variants(case)) for p in peers
                  if not case.quantised or getattr(p, "QUANTISED", False))
    return {name: variants for name, variants in offers.items() if variants}


def allowed_of(case, offers):
    """What a result may differ by, of attn in other variants and of each peer."""
    most = {name: max(v.allowed for v in variants) for name, variants in offers.items()}
    return {name: TOLERANCE[case.query] * n for name, n in dict(most, attn=1, integer=1, fast=1).items()}


def shares_of(case, cycles):
    """Of the FMA peak, or, of decoding, of the rate at which a plain loop reads K and V."""
    if case.decode:
        return {n: cycles["reading"] / c for n, c in cycles.items()}
    return {n: case.machine.share(case.flops, c) for n, c in cycles.items()}


def add_fast(case, entrants, want, broken):
    """attn with p.fast, compared with its exact result, where that rounds: where the kernels are
    others."""
    exact = case.kernels
    variant = attn.forward(case, "tiled", fast=1)
    if case.kernels == exact:
        case.without["bf16 fast"] = ("no unit for products of bf16 (p.fast) here: kernels %s are "
                                     "exact" % exact)
    else:
        check(case, "fast", variant, want, broken == "fast")
        entrants["fast"] = variant


def run_attn(case, broken):
    """attn's variants by name, and the result that peers are compared with: of quantised keys that
    of rounded queries, as peers round theirs. Both are compared with the textbook path first."""
    if not case.quantised:
        variant = attn.backward(case) if case.backward else attn.forward(case, "tiled")
        variant.run()
        entrants, want = {"attn": variant}, variant.output()
        if case.rounds:
            add_fast(case, entrants, want, broken)
        return entrants, want
    entrants, want = {}, None
    for integer, name in enumerate(("attn", "integer")):
        entrants[name] = attn.forward(case, "tiled", integer)
        entrants[name].run()
        want = entrants[name].output()
        check(case, "naive", attn.forward(case, "naive", integer), want, broken == "naive")
    return entrants, want


def run_case(machine, kind, peers, rounds, broken):
    case = Case(machine, kind)
    entrants, want = run_attn(case, broken)
    offers, tries = offers_of(case, peers), {}
    differences = {name: max(check(case, name, v, want, broken == name) for v in variants)
                   for name, variants in offers.items()}
    for name, variants in offers.items():
        tries[name] = {v.name: machine.quickest(v.run) for v in variants}
        entrants[name] = min(variants, key=lambda v: tries[name][v.name])
    if case.decode:
        entrants["reading"] = attn.reading(case)
    cycles, ms, core = time_in_turn(machine, entrants, rounds, case.decode)
    case.close()
    return {"shape": case.name, "mask": case.mask, "storage": case.storage,
            "kernels": case.kernels, "flops": case.flops, "cycles": cycles, "ms": ms,
            "sizes": kind.shape._asdict(), "without": case.without,
            "variant": {n: v.name for n, v in entrants.items()}, "core": min(core.values()),
            "variant_cycles": tries, "difference": differences,
            "allowed": allowed_of(case, offers), "share": shares_of(case, cycles),
            "ratio": {n: c / cycles["attn"] for n, c in cycles.items()
                      if n not in OWN}}
