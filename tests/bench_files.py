#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads what the bench wrote as others would: JSON against docs/bench.schema.json by a stock
validator, CSV by the csv module, and recomputes what follows from the shape of a case.

    bench_files.py FILE.json FILE.csv              exit status 1 when something is not right
    bench_files.py --damage FILE.json FILE.csv     damaged copies of them must be refused

Without the module jsonschema all but the schema is checked, and a sentence says so.
"""
import copy
import csv
import json
import math
import os
import re
import sys

try:
    import jsonschema
except ImportError:
    jsonschema = None

WIDTH = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1,
         "q8_0": 34 / 32, "q5_0": 22 / 32, "q4_0": 18 / 32, "i8": 1}
SCALE = {"i8": 4}  # bytes of a row beside its numbers
SCHEMA = os.path.join(os.path.dirname(__file__), "..", "docs", "bench.schema.json")


def fail(sentence):
    raise ValueError(sentence)


def refuse_constant(name):
    fail("JSON has no %s" % name)


def unique(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        fail("a key stands twice: %s" % sorted(k for k in keys if keys.count(k) > 1))
    return dict(pairs)


def validator():
    with open(SCHEMA, encoding="utf-8") as f:
        schema = json.load(f)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check_keys(document):
    """The schema describes the columns that the bench writes, each once, and no others; and which of
    them are texts."""
    with open(SCHEMA, encoding="utf-8") as f:
        described = json.load(f)["$defs"]["result"]
    for names in (described["required"], list(described["properties"])):
        for result in document["results"]:
            if sorted(names) != sorted(result):
                fail("columns that are not those of the schema: %s"
                     % ", ".join(sorted(set(names) ^ set(result))))
    for result in document["results"]:
        for name, column in described["properties"].items():
            if isinstance(result[name], str) != (column["type"] == "string"):
                fail("%s is %r, of type %s in the schema" % (name, result[name], column["type"]))


def check_schema(document):
    check_keys(document)
    if not jsonschema:
        return
    errors = list(validator().iter_errors(document))
    if errors:
        where = "/".join(str(part) for part in errors[0].absolute_path)
        fail("%d errors against the schema, the first at %s: %s"
             % (len(errors), where or "the top", errors[0].message[:200]))


def check_csv(document, rows):
    """Both files hold the same columns in the same order and the same figures."""
    results = document["results"]
    if len(rows) - 1 != len(results):
        fail("%d rows in the CSV, %d results in the JSON" % (len(rows) - 1, len(results)))
    for row, result in zip(rows[1:], results):
        if rows[0] != list(result):
            fail("the columns are not the keys")
        for key, text in zip(rows[0], row):
            value = result[key]
            same = text == value if isinstance(value, str) else float(text) == value
            if not same:
                fail("%s is %r in the CSV, %r in the JSON" % (key, text, value))


def near(result, key, want, tolerance=1e-6):
    if abs(result[key] - want) > tolerance * abs(want):
        fail("%s: %s is %r, not %r" % (result["case"], key, result[key], want))


def check_bytes(r):
    """Of keys and values; batch entries share pages in one scenario alone, whose names say how many
    keys: "b8 kv4096+256 f16 shared pages"."""
    token = r["heads_kv"] * (r["head_dim"] * WIDTH[r["k_dtype"]] + SCALE.get(r["k_dtype"], 0)
                             + r["head_dim_v"] * WIDTH[r["v_dtype"]] + SCALE.get(r["v_dtype"], 0))
    near(r, "kv_token_bytes", token)
    once = 0
    if r["keys"] == "paged" and r["scenario"] == "shared":
        once = int(re.search("kv([0-9]+)[+]", r["case"]).group(1))
    near(r, "kv_bytes", token * (once + r["batch"] * (r["seq_kv"] - once)))


def branches_of(r):
    """Segment, dilation, heads of each branch."""
    pairs = [tuple(map(int, text.split("/"))) for text in r["branches"].split()]
    n, heads = len(pairs), r["heads_q"]
    for i, (segment, dilation) in enumerate(pairs):
        grouped = r["branch_heads"] == "groups"
        yield segment, dilation, range(heads * i // n if grouped else 0,
                                       heads * (i + 1) // n if grouped else heads)


def dilated_pairs(r):
    """Positions of a segment that take part, each with those up to it, or with all of them."""
    pairs = 0
    for segment, dilation, heads in branches_of(r):
        for head in heads:
            first = head % dilation if r["branch_heads"] == "turned" else 0
            for begin in range(0, r["seq_kv"], segment):
                n = len(range(begin + first, min(begin + segment, r["seq_kv"]), dilation))
                pairs += n * (n + 1) // 2 if r["mask"] == "causal" else n * n
    return r["batch"] * pairs


def reads_all(r):
    """Whether every key is seen by some row, as far as the bench knows."""
    if not r["branches"]:
        return True
    return r["branch_heads"] != "groups" and any(d == 1 for _, d, _ in branches_of(r))


def visible_pairs(r):
    if r["mask"] == "none":
        return 0
    if r["branches"]:
        return dilated_pairs(r) if r["seq_q"] == r["seq_kv"] else None
    if r["mask"] not in ("full", "causal"):
        return None
    last = [i + r["seq_kv"] - r["seq_q"] if r["mask"] == "causal" else r["seq_kv"] - 1
            for i in range(r["seq_q"])]
    return r["batch"] * r["heads_q"] * sum(max(0, j + 1) for j in last)


def share_of_peak(r, machine):
    """Percent of what as many threads could compute; in clock cycles where they are known."""
    if r["cycles_p50"] > 0 and machine["fma_peak_flops_per_cycle"] > 0:
        flops = r["gflops"] * 1e6 * r["ms_p50"]
        one_thread = flops / r["cycles_p50"] / machine["fma_peak_flops_per_cycle"]
    elif machine["fma_peak_gflops"] > 0:
        one_thread = r["gflops"] / machine["fma_peak_gflops"]
    else:
        return 0
    return 100 * one_thread / min(r["threads"], machine["cpus"])


def check_processes(r):
    """Threads of one process are not told how long messages take alone."""
    awaited, alone = r["exchange_awaited_ms"], r["exchange_alone_ms"]
    if r["processes"] < 2:
        if alone or r["overlap"]:
            fail("%s: figures of messages, of which there are none" % r["case"])
        return
    hidden = max(0, 1 - awaited / alone)  # Of nearly equal times few digits are left.
    if abs(r["overlap"] - hidden) > 1e-6:
        fail("%s: overlap is %r, not %r" % (r["case"], r["overlap"], hidden))
    if not 1 <= r["compute_balance"] <= r["processes"] or awaited > r["exchange_ms"] * (1 + 1e-6):
        fail("%s: balance is %s, %s of %s ms are awaited"
             % (r["case"], r["compute_balance"], awaited, r["exchange_ms"]))


def check_ranks(r):
    """Every rank's keys reach all others; a backward call moves gradients as well."""
    if bool(r["ranks"]) != (r["path"].startswith("ring") or r["path"] == "all_gather"):
        fail("%s: %d ranks by %s" % (r["case"], r["ranks"], r["path"]))
    if not r["ranks"]:
        if r["moved_bytes"] or r["exchange_ms"] or r["rank_balance"]:
            fail("%s: figures of ranks, of which there are none" % r["case"])
        return
    near(r, "ranks", r["processes"] or r["threads"])
    check_processes(r)
    least = (r["ranks"] - 1) * r["kv_bytes"] if r["mask"] == "full" or r["path"] == "all_gather" else 0
    if r["moved_bytes"] < least or (r["ranks"] == 1 and r["moved_bytes"]):
        fail("%s: %d bytes were moved" % (r["case"], r["moved_bytes"]))
    if not 1 <= r["rank_balance"] <= r["ranks"]:
        fail("%s: the balance is %r" % (r["case"], r["rank_balance"]))


def check_device(r, machine):
    """A device has no share of the CPU's peak; the parts of its calls are of calls of their own,
    whose sum is about the time of the others. The CPU has no such parts."""
    parts = [r[key] for key in ("launch_ms", "to_device_ms", "compute_ms", "to_host_ms")]
    if not r["device"]:
        near(r, "pct_fma_peak", 0 if r["processes"] else share_of_peak(r, machine))
        if any(parts) or r["launches"]:
            fail("%s: parts of a call on a device, by %s" % (r["case"], r["path"]))
        return
    if machine["opencl_device"] is None or not r["path"].startswith("opencl"):
        fail("%s: %s ran on a device" % (r["case"], r["path"]))
    for key in ("pct_fma_peak", "fma_peak_gflops", "cycles_p10", "pct_running"):
        near(r, key, 0)
    if not 0.05 * r["ms_min"] < sum(parts) < 20 * r["ms_p99"]:
        fail("%s: the parts of a call are %s ms, the call is %s ms" % (r["case"], parts, r["ms_p50"]))


def check_figures(document):
    """What follows from the shape, by formulas written here a second time."""
    for r in document["results"]:
        width = r["head_dim"] + r["head_dim_v"]
        heads = r["batch"] * r["heads_q"]
        q_and_o = heads * r["seq_q"] * width * WIDTH[r["dtype"]] if r["impl"] != "append" else 0
        check_bytes(r)
        matrix = 4.0 * r["seq_q"] * r["seq_kv"]
        near(r, "matrix_share", r["workspace_bytes"] / (heads * matrix))
        backward = r["pass"] == "backward"
        if backward != (r["gemms"] > 0):
            fail("%s: %d products in a call %s" % (r["case"], r["gemms"], r["pass"]))
        if r["impl"] == "naive":
            at_once = min(r["threads"], r["batch"] * r["heads_kv"] if backward else heads)
            near(r, "theory_bytes", at_once * matrix * (1 + backward))
        if r["mask"] != "q-lengths":  # which leaves out rows
            near(r, "tokens_per_s", r["batch"] * r["seq_q"] / r["ms_p50"] * 1e3)
        check_device(r, document["machine"])
        check_ranks(r)
        if r["efficiency"] or r["preset"] == "threads":
            near(r, "efficiency", r["speedup"] / (r["processes"] or r["threads"]))
        if not r["ms_min"] <= r["ms_p50"] <= r["ms_p95"] <= r["ms_p99"]:
            fail("%s: percentiles out of order" % r["case"])
        pairs = visible_pairs(r)
        if pairs is None:
            continue
        products = 3 * r["head_dim"] + 2 * r["head_dim_v"] if backward else width
        flops = 2.0 * pairs * products
        gradients = q_and_o + r["kv_bytes"] + 8 * heads * r["seq_q"] if backward else 0
        near(r, "gflops", flops / r["ms_p50"] * 1e-6)
        near(r, "visible", pairs / (heads * r["seq_q"] * r["seq_kv"]))
        if not reads_all(r):
            near(r, "intensity", 0)
            continue
        near(r, "intensity", flops / (q_and_o + r["kv_bytes"] + gradients))
        near(r, "gbytes_per_s", r["kv_bytes"] / r["ms_p50"] * 1e-6)
        if r["compute_ms"]:
            near(r, "compute_gflops", flops / r["compute_ms"] * 1e-6)
        if r["device"]:
            continue
        bound = r["intensity"] * r["read_peak_gbytes_per_s"] < r["fma_peak_gflops"]
        if r["roof"] != ("memory" if bound else "compute"):
            fail("%s: the roof is %s" % (r["case"], r["roof"]))


def times_of(document, winner, path):
    """Case -> P50, workspace and mean, of the first row of each case by that path."""
    rows = {}
    for r in document["results"]:
        if (r["preset"], r["scenario"], r["path"]) == (winner["preset"], winner["scenario"], path):
            rows.setdefault(r["case"], (r["ms_p50"], r["workspace_bytes"] + 1, r["ms_mean"]))
    return rows


def check_winners(document):
    for w in document["winners"]:
        ours, theirs = (times_of(document, w, w[key]) for key in ("winner", "over"))
        both = [(ours[case], theirs[case]) for case in ours if case in theirs]
        want = {"cases": len(both), "won": sum(x[0] < y[0] for x, y in both)}
        for i, key in enumerate(("speedup", "workspace_ratio")):
            want[key] = math.exp(sum(math.log(y[i] / x[i]) for x, y in both) / len(both))
        want["ms_mean"] = sum(x[2] for x, _ in both) / len(both)
        for key, value in want.items():
            near(dict(w, case=w["scenario"]), key, value)
    paths = {}
    for r in document["results"]:
        paths.setdefault((r["preset"], r["scenario"], r["case"]), set()).add(r["path"])
    compared = {case[:2] for case, names in paths.items() if len(names) > 1}
    if compared != {(w["preset"], w["scenario"]) for w in document["winners"]}:
        fail("the winners are not those of the scenarios in which paths are compared")


def slope(points):
    """Least squares of the logarithms."""
    points = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in range(2))
    return (sum((x - mean_x) * (y - mean_y) for x, y in points)
            / sum((x - mean_x) ** 2 for x, y in points))


def check_exponents(document):
    for e in document["exponents"]:
        rows = [r for r in document["results"]
                if all(r[key] == e[key] for key in ("preset", "scenario", "path"))]
        lengths = [r["seq_kv"] for r in rows]
        want = {"cases": len(rows), "shortest": min(lengths), "longest": max(lengths)}
        for key, figure in (("pairs", lambda r: r["visible"] * r["seq_q"] * r["seq_kv"]),
                            ("time", lambda r: r["ms_p50"]),
                            ("workspace", lambda r: r["workspace_bytes"] + 1)):
            want[key] = slope([(r["seq_kv"], figure(r)) for r in rows])
        for key, value in want.items():
            if abs(e[key] - value) > 1e-6 * max(1, abs(value)):
                fail("%s: exponent %s is %r, not %r" % (e["scenario"], key, e[key], value))


def check_console(document):
    """The copy of what was printed has the times; `bench memory` prints none. Nine digits may lie on
    the other side of what rounds up than the time that was printed."""
    for r in document["results"]:
        if r["preset"] != "memory" and r["ms_p50"] < 999:
            shown = {"%.3f" % (r["ms_p50"] * (1 + e)) for e in (-1e-8, 0, 1e-8)}
            if not any(text in document["console"] for text in shown):
                fail("%s: its P50 is not in the console's copy" % r["case"])


def check(json_text, csv_text):
    document = json.loads(json_text, parse_constant=refuse_constant, object_pairs_hook=unique)
    check_schema(document)
    if csv_text is not None:
        check_csv(document, list(csv.reader(csv_text.splitlines())))
    check_figures(document)
    check_winners(document)
    check_exponents(document)
    check_console(document)


def remove(document, *path):
    for part in path[:-1]:
        document = document[part]
    del document[path[-1]]


def replace(document, value, *path):
    for part in path[:-1]:
        document = document[part]
    document[path[-1]] = value


def damages(json_text, csv_text):
    """Name, JSON, CSV of files of which something is wrong; CSV None: the JSON alone shows it."""
    needs_csv = ("another time than in the CSV", "a result too few")
    edits = [
        ("another schema version", lambda d: replace(d, 2, "schema")),
        ("no timestamp", lambda d: remove(d, "timestamp")),
        ("a local time", lambda d: replace(d, "yesterday", "timestamp")),
        ("a key that is not described", lambda d: replace(d, 1, "more")),
        ("no compiler", lambda d: remove(d, "machine", "compiler")),
        ("a number as text", lambda d: replace(d, "8", "machine", "cpus")),
        ("half a CPU", lambda d: replace(d, 0.5, "machine", "cpus")),
        ("no median", lambda d: remove(d, "results", 0, "ms_p50")),
        ("a negative time", lambda d: replace(d, -1, "results", 0, "ms_min")),
        ("an unknown storage type", lambda d: replace(d, "f8", "results", 0, "dtype")),
        ("a wrong result", lambda d: replace(d, 1.5, "results", 0, "err_tolerance")),
        ("a field too many", lambda d: replace(d, 1, "results", 0, "more")),
        ("a result that is a list", lambda d: replace(d, [], "results", 0)),
        ("another time than in the CSV", lambda d: replace(d, 123.25, "results", 0, "cold_ms")),
        ("other bytes of a token", lambda d: replace(d, 4, "results", 0, "kv_token_bytes")),
        ("other bytes of keys", lambda d: replace(d, 4, "results", 0, "kv_bytes")),
        ("half a whole number", lambda d: replace(d, 0.5, "results", 0, "integer")),
        ("a storage type of keys", lambda d: replace(d, "f16", "results", 0, "k_dtype")),
        ("percentiles out of order", lambda d: replace(d, 0, "results", 0, "ms_p99")),
        ("other tokens per second", lambda d: replace(d, 1, "results", 0, "tokens_per_s")),
        ("another pass", lambda d: replace(d, "backward", "results", 0, "pass")),
        ("another share of the peak", lambda d: replace(d, 0.01, "results", 0, "pct_fma_peak")),
        ("another number won", lambda d: replace(d, 99, "winners", 0, "won")),
        ("a winner too few", lambda d: remove(d, "winners", 0)),
        ("another console", lambda d: replace(d, "", "console")),
        ("a result too few", lambda d: remove(d, "results", 0)),
        ("a device without a name", lambda d: replace(d, 1, "results", 0, "launch_ms")),
        ("another roof", lambda d: replace(d, "", "results", 0, "roof")),
        ("other branches", lambda d: replace(d, "64/1", "results", 0, "branches")),
        ("ranks of a call in one process", lambda d: replace(d, 2, "results", 0, "ranks")),
        ("another share, in both files", None),
    ]
    document = json.loads(json_text)
    for name, edit in edits:
        changed = copy.deepcopy(document)
        if edit:
            edit(changed)
            yield name, json.dumps(changed), csv_text if name in needs_csv else None
    share = document["results"][0]["matrix_share"]
    replace(document, 0.5, "results", 0, "matrix_share")
    yield edits[-1][0], json.dumps(document), csv_text.replace("%.9g" % share, "0.5", 1)
    yield "a NaN", json_text.replace('"samples": ', '"samples": NaN, "s": ', 1), csv_text
    yield "a key twice", json_text.replace('"cpu":', '"cpu": "x", "cpu":', 1), csv_text
    for share in (0.1, 0.5, 0.9, 0.999):
        yield "a part of the file", json_text[:int(share * len(json_text))], csv_text
    yield "a part of the CSV", json_text, csv_text[:len(csv_text) // 2]
    yield "columns in another order", json_text, csv_text.replace("preset,scenario", "x,y", 1)


# What follows from no other figure of the file.
SEEN_BY_SCHEMA_ALONE = (
    "another schema version", "no timestamp", "a local time", "a key that is not described",
    "no compiler", "a number as text", "half a CPU", "a negative time", "an unknown storage type",
    "a wrong result", "a field too many")


def check_damaged(json_text, csv_text):
    refused = kept = 0
    for name, damaged_json, damaged_csv in damages(json_text, csv_text):
        if not jsonschema and name in SEEN_BY_SCHEMA_ALONE:
            continue
        try:
            check(damaged_json, damaged_csv)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            refused += 1
            continue
        kept += 1
        print("not refused: %s" % name)
    if kept or refused < (25 if jsonschema else 15):
        fail("%d damaged files were refused, %d were not" % (refused, kept))


def main():
    names = [name for name in sys.argv[1:] if name != "--damage"]
    texts = []
    for name in names:
        with open(name, encoding="utf-8", newline="") as f:
            texts.append(f.read())
    check(*texts)
    if not jsonschema:
        print("not checked against the schema: %s has no module jsonschema (Debian: "
              "python3-jsonschema)" % os.path.basename(sys.executable))
    if "--damage" in sys.argv:
        check_damaged(*texts)


try:
    main()
except (ValueError, KeyError, OSError) as error:
    sys.exit("bench_files.py: %s" % error)
