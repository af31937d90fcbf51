# verdicts.py - what the ratios of a run decide.
# SPDX-License-Identifier: MIT
from .peer import GEMM_SIZE
from .shapes import BACKWARD
from .timing import BUSY_BELOW, CPU_TIME

VOID_BELOW = 0.85  # of the FMA peak at GEMM_SIZE cubed: the peer does not run as it should
CAUSAL_GOAL, NAIVE_GOAL, DECODE_GOAL = 1.15, 0.60, 2.5


def ratios(results, mask, names):
    """Returns the ratios in f32."""
    return [(r["ratio"][n], n, r) for r in results
            if r["mask"] == mask and r["storage"] == "f32" for n in names if n in r["ratio"]]


def verdict(label, found, goal, void):
    """found: (ratio, name, result) of every valid peer; a void peer leaves only a 'no' certain."""
    if not found:
        return "%s: no verdict, no valid peer" % label
    ratio, name, result = min(found, key=lambda f: f[0])
    won = ratio > goal if goal == 1 else ratio >= goal
    word = "no" if not won else "undecided, VOID: " + ", ".join(void) if void else "yes"
    return "%s: %s (least: %.2f, %s at %s)" % (label, word, ratio, name, result["shape"])


def busy(record, results):
    """A sentence where other work had the core, which makes wall-clock figures worthless."""
    worst = min(results, key=lambda r: r["core"])
    if worst["core"] >= BUSY_BELOW or record["time"] == CPU_TIME:
        return []
    return ["VOID: other work ran on this core (%.0f %% of the time was ours at %s %s): no "
            "verdict; take an idle core, or --cpu-time for a rough answer"
            % (100 * worst["core"], worst["shape"], worst["mask"])]


def verdicts(results, peers, shares):
    void = [p.name for p in peers if p.gemm_rule and shares[p.name] < VOID_BELOW]
    valid = [p.name for p in peers if p.name not in void]
    lines = ["VOID: %s reaches %.1f %% of the FMA peak at %d^3, below %.0f %%: it does not run as "
             "it should here, its figures are no comparison"
             % (n, 100 * shares[n], GEMM_SIZE, 100 * VOID_BELOW) for n in void]
    lines.append(verdict("full: faster than every peer on every shape",
                         ratios(results, "full", valid), 1, void))
    lines.append(verdict("causal: at least %.2fx the best peer" % CAUSAL_GOAL,
                         ratios(results, "causal", valid), CAUSAL_GOAL, void))
    lines.append(verdict("backward: faster than every peer on every shape",
                         [f for mask in BACKWARD for f in ratios(results, mask, valid)], 1, void))
    lines.append(verdict("decode, f32: at least %.1fx the best peer" % DECODE_GOAL,
                         ratios(results, "decode", valid), DECODE_GOAL, void))
    if any(p.name == "openblas" for p in peers):
        shares_of_blas = [(r["cycles"]["openblas"] / r["cycles"]["naive"], "naive", r)
                          for r in results if r["mask"] == "full"]
        lines.append(verdict("naive: at least %.0f %% of unfused OpenBLAS's speed"
                             % (100 * NAIVE_GOAL), shares_of_blas, NAIVE_GOAL,
                             [n for n in void if n == "openblas"]))
    return lines, void
