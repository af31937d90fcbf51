# tables.py - the results as text, Markdown and CSV.
# SPDX-License-Identifier: MIT
import csv

from .peer import GEMM_SIZE
from .shapes import ARRAYS, BACKWARD, MASKS, PLAIN, QUANTISED

LEGEND = ("A cell of attn: time of a call, share of the FMA peak. A peer's cell: share of the peak "
          "/ its time over attn's (its fastest variant); slower: attn is the slower one.")
DECODE_LEGEND = ("Decoding. Shares are of the rate at which a plain loop reads K and V, timed in "
                 "turn with the others; else as above.")
QUANTISED_LEGEND = ("K and V in units of 32 numbers, q and o in f32. attn: exactly, and with scores "
                    "in whole numbers (p.integer). A peer's cell: its time, and that over "
                    "attn's exactly / in whole numbers. Peers round their queries: they are compared with the "
                    "second.")
FAST_LEGEND = ("Prefill, q, k, v and o in bf16. attn: exactly, and with products of numbers rounded to "
               "bf16 (p.fast), where the CPU has units for that. A peer's cell: its time, and that "
               "over attn's exactly / with p.fast.")
CSV_HEAD = ("preset case impl path variant dtype mask pass batch heads_q heads_kv seq_q seq_kv "
            "head_dim threads samples ms_p50 difference allowed cpu revision date").split()


def cell(result, name):
    if name not in result["ratio"]:
        return "-"
    ratio = result["ratio"][name]
    return "%.1f %% / %.2f%s (%s)" % (100 * result["share"][name], ratio,
                                      " slower" if ratio < 1 else "", result["variant"][name])


def cell_of_attn(result):
    return "%.3g ms, %.1f %%" % (result["ms"]["attn"], 100 * result["share"]["attn"])


def main_table(results, names, masks):
    rows = [["shape", "mask", "attn"] + names]
    for r in results:
        if r["mask"] in masks and r["storage"] == "f32":
            rows.append([r["shape"], r["mask"], cell_of_attn(r)]
                        + [cell(r, n) for n in names])
    return rows if len(rows) > 1 else []


def decode_table(results, names):
    rows = [["one row against", "storage", "attn"] + names]
    for r in results:
        if r["mask"] == "decode" and r["storage"] in PLAIN:
            rows.append([r["shape"], r["storage"], cell_of_attn(r)]
                        + [cell(r, n) for n in names])
    return rows if len(rows) > 1 else []


def twofold_table(results, names, title, other):
    """attn is timed twice, exactly and as the entrant `other`, which may be missing."""
    names = [n for n in names if any(n in r["ratio"] for r in results)]
    rows = [["shape", "mask", "storage", "attn, ms", title] + names]

    def over(r, n):
        return "%.2f" % (r["cycles"][n] / r["cycles"][other]) if other in r["cycles"] else "-"

    for r in results:
        rows.append([r["shape"], r["mask"], r["storage"]]
                    + ["%.3g" % r["ms"][n] if n in r["ms"] else "-" for n in ("attn", other)]
                    + ["%.3g ms, %.2f / %s (%s)" % (r["ms"][n], r["ratio"][n], over(r, n),
                                                    r["variant"][n])
                       if n in r["ratio"] else "-" for n in names])
    return rows if len(rows) > 1 else []


def quantised_table(results, names):
    return twofold_table([r for r in results if r["storage"] in QUANTISED], names,
                         "whole numbers, ms", "integer")


def fast_table(results, names):
    return twofold_table([r for r in results if r["storage"] == "bf16" and r["mask"] in MASKS],
                         names, "p.fast, ms", "fast")


def naive_table(results, names):
    """Empty where OpenBLAS or the full mask is not among the cases."""
    rows = [["shape", "naive", "openblas", "naive's speed / openblas's"]]
    for r in results:
        if r["mask"] == "full" and r["storage"] == "f32" and "openblas" in names:
            rows.append([r["shape"]] + ["%.1f %%" % (100 * r["share"][n])
                                        for n in ("naive", "openblas")]
                        + ["%.2f" % (r["cycles"]["openblas"] / r["cycles"]["naive"])])
    return rows if len(rows) > 1 else []


def plain(rows):
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows)


def markdown(rows):
    lines = ["| " + " | ".join(r) + " |" for r in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0])] + lines[1:])


def facts_lines(record):
    m = record["machine"]
    lines = ["%s, revision %s, attn %s (%s), %s %s" % (
        record["date"], m["revision"], m["attn"], record["kernels"], m["compiler"], m["flags"]),
             "%s; FMA peak %.1f f32 flops a cycle (%s, measured); one thread, batch 1" % (
                 m["cpu"], record["flops_per_cycle"], m["unit"]),
             "%s; at least %.0f %% of the core was ours" % (record["time"], 100 * record["core"])]
    for name, p in record["peers"].items():
        lines.append("%s %s: %s; matrix product of %d^3 at %.0f %% of the peak" % (
            name, p["version"], p["remarks"], GEMM_SIZE, 100 * p["gemm_share"]))
    return lines + ["%s skipped: %s" % m for m in record["missing"].items()]


def differences(record):
    return "largest difference of a result from attn's: " + ", ".join(
        "%.2g in %s (allowed: %.2g)" % (d, storage, record["allowed"][storage])
        for storage, d in record["difference"].items())


def tables_of(results, names):
    """(what its numbers mean, rows) of each table that has rows."""
    tables = [("Prefill, f32. " + LEGEND, main_table(results, names, MASKS + ARRAYS)),
              ("Gradients dq, dk, dv, f32; the backward pass alone, after a forward pass. FLOPs "
               "are those of five products for each visible pair. " + LEGEND,
               main_table(results, names, BACKWARD)),
              ("The textbook path against unfused OpenBLAS.", naive_table(results, names)),
              (DECODE_LEGEND, decode_table(results, names)),
              (FAST_LEGEND, fast_table(results, names)),
              (QUANTISED_LEGEND, quantised_table(results, names))]
    return [(legend, rows) for legend, rows in tables if rows]


def write_markdown(path, record, results, names):
    parts = ["### " + record["machine"]["cpu"], "\n".join("- " + f for f in facts_lines(record)),
             "Medians of %d rounds in turn, in clock cycles; %s."
             % (record["rounds"], differences(record))]
    for legend, rows in tables_of(results, names):
        parts += [legend, markdown(rows)]
    parts.append("\n".join("- " + v for v in record["verdicts"]))
    with open(path, "w") as f:
        f.write("\n\n".join(parts) + "\n")


def write_csv(path, record, results, titles):
    """A row for attn and for each peer of a case. Columns that the bench's CSV has, too, are named
    as there."""
    with open(path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(CSV_HEAD)
        for r in results:
            for name in [n for n in titles if n in r["ms"]]:
                out.writerow(
                    ["peers", r["shape"], name, titles[name], r["variant"][name], r["storage"],
                     r["mask"] if r["mask"] in ARRAYS else
                     "causal" if r["mask"].startswith("causal") else "full",
                     "backward" if r["mask"] in BACKWARD else "forward", 1,
                     *r["sizes"].values(), 1, record["rounds"],
                     "%.6g" % r["ms"][name], "%.3g" % r["difference"].get(name, 0),
                     r["allowed"][name], record["machine"]["cpu"],
                     record["machine"]["revision"], record["date"]])


def titles_of(peers):
    """How attn and each peer are called in a picture; of a version only the release."""
    return dict({"attn": "attn", "integer": "attn, whole numbers", "fast": "attn, p.fast"},
                **{p.name: p.title % p.version.split("+")[0] for p in peers})


def print_report(record, results, names):
    for legend, rows in tables_of(results, names):
        print(legend + "\n\n" + plain(rows) + "\n")
    for name in names:
        among = [r for r in results if name in r["ratio"]]
        if among:
            worst = min(among, key=lambda r: r["ratio"][name])
            print("worst ratio against %s: %.2f at %s %s %s" % (
                name, worst["ratio"][name], worst["shape"], worst["storage"], worst["mask"]))
    print(differences(record))
    print("\n".join(record["verdicts"]))
