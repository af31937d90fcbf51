# __main__.py - measures prefill, gradients and decoding of attn and its peers in one process, in
# turn, on the same data.
# SPDX-License-Identifier: MIT
#
# tools/compare_peers starts it. A peer offers variants (block sizes, operators, backends): each is
# compared with attn's result first, then the fastest is timed.
import argparse
import datetime
import json
import sys

from .case import BREAK_BY, run_case
from .ggml import Ggml
from .onednn import OneDnn
from .onnxruntime import OnnxRuntime
from .openblas import OpenBlas
from .peer import GEMM_SIZE, PeerMissing, Wrong
from .shapes import chosen_cases
from .tables import facts_lines, print_report, titles_of, write_csv, write_markdown
from .timing import CPU_TIME, WALL_TIME, Machine, gemm_share
from .torch import Torch
from .verdicts import busy, verdicts

MIN_ROUNDS = 15
EXIT_WRONG, EXIT_VOID = 1, 3

# OpenBLAS comes first: a library that loads later cannot then shadow its symbols.
PEERS = [OpenBlas, Torch, OnnxRuntime, OneDnn, Ggml]


def find_peers(machine, wanted):
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
    o.add_argument("--break", dest="broken", choices=names + ["naive", "fast"],
                   help="spoil this peer's results by %d tolerances: they must be refused"
                   % BREAK_BY)
    o.add_argument("--cpu-time", action="store_true", help="count processor time instead of wall "
                   "time: for a core that others use, whose caches they use, too")
    o.add_argument("--markdown", metavar="FILE")
    o.add_argument("--json", metavar="FILE")
    o.add_argument("--csv", metavar="FILE", help="times, for `make plot CSV=FILE`")
    return o.parse_args()


def largest(results, what):
    """Returns the largest difference, or the largest allowed one, for each storage."""
    found = {}
    for r in results:
        found[r["storage"]] = max([found.get(r["storage"], 0), *r[what].values()])
    return found


def main():
    options = parse_options()
    cases = chosen_cases(options.only)
    machine = Machine(options.library, options.cpu_time)
    peers, missing = find_peers(machine, options.peer)
    if options.broken not in [None, "naive", "fast"] + [p.name for p in peers]:
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
    for r in results:
        missing.update(r["without"])
    record["core"] = min(r["core"] for r in results)
    record["kernels"] = ", ".join(sorted({r["kernels"] for r in results}))
    record.update((what, largest(results, what)) for what in ("difference", "allowed"))
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
