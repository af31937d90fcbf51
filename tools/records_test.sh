#!/bin/sh
# records_test.sh BENCH - JSON and CSV of one run, read by Python's own readers, say the same.
# SPDX-License-Identifier: MIT
# RUN: an emulator. Names with commas and quotes are among what is written; one row is skipped.
set -u
bench=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}

if ! command -v "$python" > /dev/null 2>&1; then
    echo "records_test: skipped: no $python here"
    exit 0
fi
tuning=$work/'a "name", with \ and commas'
printf 'attn-tuning 1\nend\n' > "$tuning"
${RUN:-} "$bench" --shape 1,4,2,64,96,32,16 --causal --iters 5 --impl naive,tiled \
    --tuning "$tuning" --json "$work/run.json" --csv "$work/run.csv" > "$work/printed" ||
    { cat "$work/printed"; exit 1; }

"$python" - "$work" "$tuning" <<'PYTHON'
import csv, json, math, sys

work, tuning = sys.argv[1:]
passed = failed = 0


def expect(held, what):
    global passed, failed
    passed += bool(held)
    failed += not held
    if not held:
        print("FAILED:", what)


def same(text, value):
    """A cell of CSV and a value of JSON: the same text, the same number, or neither known."""
    if isinstance(value, str):
        return text == value
    if value is None:
        return text == "" or not math.isfinite(float(text))
    return float(text) == value


def no_constant(name):
    raise ValueError(name + " is no JSON")


with open(work + "/run.json") as f:
    record = json.load(f, parse_constant=no_constant)
with open(work + "/run.csv", newline="") as f:
    rows = list(csv.DictReader(f, strict=True))
results = record["results"]
expect(len(rows) == len(results) == 2, "two rows in either")
for row, result in zip(rows, results):
    expect(None not in row and None not in row.values(), "as many values as columns")
    expect(list(row) == list(result), "the same columns in the same order")
    for key, value in result.items():
        expect(same(row.get(key, ""), value), "%s: %r and %r" % (key, row.get(key), value))
expect(rows[0]["case"] == "1,4,2,64,96,32,16", "a name with commas")
expect(rows[0]["tuning"] == tuning, "a name with commas and quotes")
expect([r["impl"] for r in results] == ["naive", "tiled"], "naive before tiled")

# The formulas, from the record itself.
for r in results:
    pairs = 4 * sum(i + 96 - 64 + 1 for i in range(64))
    flops = 2 * pairs * (32 + 16)
    expect(math.isclose(r["gflops"] * 1e6 * r["ms_p50"], flops, rel_tol=1e-6), "GFLOP/s")
    expect(math.isclose(r["tokens_per_s"] * r["ms_p50"] / 1e3, 64, rel_tol=1e-6), "tokens/s")
    expect(r["ms_min"] <= r["ms_p50"] <= r["ms_p95"] <= r["ms_p99"], "order of percentiles")
    expect(r["samples"] == 5, "samples")
with open(work + "/printed") as f:
    printed = f.read()
for r in results:
    expect(record["console"].count("%.3f" % r["ms_p50"]) > 0, "P50 is in the console's copy")
    expect("%.3f" % r["ms_p50"] in printed, "P50 is printed")
print("records: %d passed, %d failed" % (passed, failed))
sys.exit(failed != 0)
PYTHON
