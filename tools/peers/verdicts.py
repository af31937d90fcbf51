# verdicts.py - what the ratios of a run decide.
# SPDX-License-Identifier: MIT
from .peer import GEMM_SIZE
from .shapes import ARRAYS, QUANTISED
from .timing import BUSY_BELOW, CPU_TIME

VOID_BELOW = 0.85  # of the FMA peak at GEMM_SIZE cubed: the peer does not run as it should
NAIVE_GOAL = 0.60

# A label, the results that it is about, and what each peer's time over attn's is to reach there.
GOALS = (
    ("full, 512 rows or more", lambda r: prefills(r, "full") and r["sizes"]["rows"] >= 512, 1.12),
    ("full, up to 384 rows", lambda r: prefills(r, "full") and r["sizes"]["rows"] < 512, 1.05),
    ("causal, 512 rows or more", lambda r: prefills(r, "causal") and r["sizes"]["rows"] >= 512,
     1.30),
    ("causal, up to 384 rows", lambda r: prefills(r, "causal") and r["sizes"]["rows"] < 512, 1.20),
    ("boolean mask, bias", lambda r: r["mask"] in ARRAYS, 1.10),
    ("backward, full", lambda r: r["mask"] == "full backward", 1.15),
    ("backward, causal", lambda r: r["mask"] == "causal backward", 1.50),
    ("decode, f32, up to 512 keys", lambda r: decodes(r, "f32") and r["sizes"]["seq"] <= 512, 1.50),
    ("decode, f32, more keys", lambda r: decodes(r, "f32") and r["sizes"]["seq"] > 512, 2.50),
    ("decode, f16", lambda r: decodes(r, "f16"), 2.50),
    ("decode, bf16", lambda r: decodes(r, "bf16"), 2.50),
)
QUANTISED_GOALS = [
    ("%s, %s" % (what, storage), lambda r, s=storage, d=decode: r["storage"] == s
     and (r["mask"] == "decode") == d, goal)
    for storage in QUANTISED for what, decode, goal in (("prefill", False, 2.50),
                                                        ("decode", True, 1.50))]


def prefills(result, mask):
    return result["mask"] == mask and result["storage"] == "f32"


def decodes(result, storage):
    return result["mask"] == "decode" and result["storage"] == storage


def ratios(results, names):
    return [(r["ratio"][n], n, r) for r in results for n in names if n in r["ratio"]]


def whole_numbers(result):
    """The result with ratios over attn's calls in whole numbers."""
    cycles = result["cycles"]
    return dict(result, ratio={n: cycles[n] / cycles["integer"] for n in result["ratio"]})


def verdict(label, found, goal, void):
    """found: (ratio, name, result) of every valid peer; a void peer leaves only a 'no' certain."""
    if not found:
        return "%s: no verdict, no valid peer" % label
    ratio, name, result = min(found, key=lambda f: f[0])
    word = "no" if ratio < goal else "undecided, VOID: " + ", ".join(void) if void else "yes"
    return "%s, at least %.2f: %s (least: %.2f, %s at %s)" % (label, goal, word, ratio, name,
                                                             result["shape"])


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
    whole = [whole_numbers(r) for r in results if "integer" in r["cycles"]]
    for kind, among, goals in (("", results, GOALS), ("", results, QUANTISED_GOALS),
                               (", whole numbers", whole, QUANTISED_GOALS)):
        for label, is_about, goal in goals:
            about = [r for r in among if is_about(r)]
            if about:
                lines.append(verdict(label + kind, ratios(about, valid), goal, void))
    if any(p.name == "openblas" for p in peers):
        shares_of_blas = [(r["cycles"]["openblas"] / r["cycles"]["naive"], "naive", r)
                          for r in results if prefills(r, "full")]
        if shares_of_blas:
            lines.append(verdict("naive, of unfused OpenBLAS's speed", shares_of_blas, NAIVE_GOAL,
                                 [n for n in void if n == "openblas"]))
    return lines, void
