#!/bin/sh
# all.sh BUILD - what `make test` runs: the test program, its cases, damaged copies of them, the
# symbols of the library, a call of every function, the examples, and what the pages of docs/ must hold.
# SPDX-License-Identifier: MIT
#
# The groups of the test program run in as many processes as there are CPUs, four at most, while the
# rest runs here; what a process printed comes when it has ended. CC, RUN, NM from the environment.
set -u
build=$1
jobs=$(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 1)
[ "$jobs" -le 4 ] || jobs=4
begin=$(date +%s)
failed=0
pids=

echo "make test: $(${RUN:-} "$build/test" --list | grep -c .) groups of tests for each kernel set of this" \
    "CPU in $jobs processes, cases, symbols, every function of attn.h, examples, pages: about" \
    "$((6 / jobs)) minutes; make check has the rest"

trap 'kill $pids 2> /dev/null; exit 1' INT TERM
i=1
while [ "$i" -le "$jobs" ]; do
    # shellcheck disable=SC2086 # words
    ${RUN:-} "$build/test" --share "$i/$jobs" > "$build/test_$i.log" 2>&1 &
    pids="$pids $!"
    i=$((i + 1))
done

part() { # part COMMAND...
    "$@" || failed=1
}

# shellcheck disable=SC2086 # words
part ${RUN:-} "$build/test" --cases tests/cases
part sh tests/damaged_cases.sh "$build"
part sh tests/symbols.sh "$build/obj/attn_alone.o"
part sh tests/every_function.sh "$build/obj/attn_alone.o"
part sh examples/check.sh "$build"
part sh docs/check.sh

i=1
for pid in $pids; do
    wait "$pid" || failed=1
    cat "$build/test_$i.log"
    i=$((i + 1))
done
# shellcheck disable=SC2046 # words
echo "make test: $(tail -q -n 1 $(seq -f "$build/test_%g.log" "$jobs") |
    awk '{ p += $1; f += $3; s += $5 } END { print p " passed, " f " failed, " s " skipped" }')" \
    "by the groups, $([ "$failed" -eq 0 ] && echo all well || echo FAILED) after $(($(date +%s) - begin)) s"
exit "$failed"
