#!/bin/sh
# bench_files.sh - what the bench writes, read by others: JSON against its schema, CSV against JSON.
# SPDX-License-Identifier: MIT
#
#     sh tests/bench_files.sh BUILD        (RUN, PYTHON from the environment)
#
# Also that a wrong kernel is refused and gets no time.
set -u
build=$1
PYTHON=${PYTHON:-python3}
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
passed=0
failed=0

expect() # expect WHAT COMMAND...
{
    what=$1
    shift
    if "$@"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1))
    echo "FAILED: $what"
}

bench() { ${RUN:-} "$build/bench" "$@" > "$work/out" 2> "$work/err"; }

# files NAME ARGUMENT...: a run of the bench that writes NAME.json and NAME.csv
files()
{
    name=$1
    shift
    bench "$@" --json "$work/$name.json" --csv "$work/$name.csv" && return
    cat "$work/out" "$work/err"
    return 1
}

status() # status WANTED COMMAND...
{
    wanted=$1
    shift
    "$@"
    [ $? -eq "$wanted" ]
}

says() { grep -q -- "$1" "$work/out" "$work/err"; }
lacks() { ! grep -q -- "$1" "$2"; }

# ---- files

expect "a run" files plain --shape 1,4,2,64,96,32,16 --causal --iters 3 --dtype bf16
expect "a run on threads" files threads --shape 2,4,2,1,3000,32 --threads 2 --iters 3
expect "a preset" files preset latency --quick --iters 2
expect "what the machine is" files info info

if "$PYTHON" -c 'import jsonschema' 2> "$work/err"; then
    for name in plain threads preset info; do
        expect "$name.json and $name.csv are right" \
            "$PYTHON" tests/bench_files.py "$work/$name.json" "$work/$name.csv"
    done
    expect "damaged files are refused" \
        "$PYTHON" tests/bench_files.py --damage "$work/preset.json" "$work/preset.csv"
else
    echo "schema and CSV not checked: $PYTHON has no module jsonschema (Debian: python3-jsonschema)"
fi

echo "bench files: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
