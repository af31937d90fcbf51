# peer.py - what all peers have in common: variants, and what may go wrong with them.
# SPDX-License-Identifier: MIT
#
# A peer is a class with a name, a title for pictures, and gemm_rule: whether a slow matrix product
# makes it VOID. Its constructor takes a Machine, raises PeerMissing where the peer is not here, and
# sets version and remarks. gemm() returns a matrix product of GEMM_SIZE, variants() the ways in
# which the peer computes a Case. QUANTISED is set where it reads K and V in units, and rounds
# queries as attn does in whole numbers.
import collections

GEMM_SIZE = 2048

# name: shown; run: one call; output: a ctypes array [head][token][dim] of the last result, or dq,
# dk and dv one after the other; allowed: tolerances that it may differ by, more than one where the
# peer sums in less than binary32
Variant = collections.namedtuple("Variant", "name run output allowed", defaults=[1])


class Wrong(Exception):
    """A result that differs, or a call that failed."""


class PeerMissing(Exception):
    """A peer that is not installed or does not work here; the text says why."""


def must_work(function, handle):
    def run():
        if function(handle):
            raise Wrong("%s failed" % function.__name__)
    return run
