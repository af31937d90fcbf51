#!/bin/sh
# mutants.sh - every planted one-line bug must be noticed by the tests.
# SPDX-License-Identifier: MIT
#
#     sh tools/mutants.sh [folder for builds, default build/mutants] [word in a line ...]
#
# tools/mutants.txt lists substitutions. Each is applied to a copy of its file. Only that file is
# compiled again (with the assertions of attn.c) and linked with the tests. The groups that the
# list names then run with the kernel set that it names, to their first failure. The unchanged tree
# must pass these groups. A text that does not occur exactly once, a mutant that does not compile
# and a mutant that no group notices are failures, printed last. With words, only mutants whose
# line contains one of them run. JOBS=N runs N at a time (default 2). CC is the compiler; clang, if
# installed, compiles the files without optimisation.
#
# tools/mutants_cases.txt names, for most mutants, the test case that noticed it. That case runs
# first, because it takes next to nothing and whole groups take seconds. The list saves time and
# decides nothing: a mutant that its case does not notice goes through the groups. WRITE=1 writes
# the list anew, for the mutants that ran.
#
# A mutant without end is killed by its CPU time, which other load on the machine hardly changes:
# see `unchanged`.
#
# Mutants of a set that this machine cannot run are left out with a sentence. Those of NEON are
# built by CROSS (default aarch64-linux-gnu-gcc) and run by qemu-aarch64-static, where both exist.

cd "$(dirname "$0")/.." || exit 1
list=tools/mutants.txt
cases=tools/mutants_cases.txt
jobs=${JOBS:-2}
library=$(ls attn*.c | grep -vx attn_mpi.c) # which needs an MPI
defines="-DATTN_SIMD_AVX512 -DATTN_SIMD_AVX2 -DATTN_SIMD_NEON -DATTN_SIMD_SSE2"
# gcc 12 takes 0.7 s for attn.c and 1.5 s for a SIMD file with -Og, 1.2 s and 2.5 s with -O1; with
# -O0 the portable kernels would need up to 15 times as long, and all else is compiled in 0.6 of it,
# by clang in 0.2.
flags="-std=c99 -ffp-contract=off -Og -w"

# Prints list $1 as numbered lines "N ## file ## old ## new ## set:groups ## note ## section".
mutants() {
    awk '
        /^# section:/ { section = $3 }
        / ## / && !/^#/ { print ++n " ## " $0 " ## " section }' "$1"
}

field() {
    printf '%s\n' "$1" | awk -v n="$2" '{ split($0, part, " ## "); print part[n] }'
}

# Copies file $1 to $2 with text $3 replaced by $4; fails unless $3 occurs exactly once.
substitute() {
    OLD=$3 NEW=$4 awk '
        BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"] }
        {
            line = $0
            out = ""
            while ((at = index(line, old)) > 0) {
                out = out substr(line, 1, at - 1) new
                line = substr(line, at + length(old))
                count++
            }
            print out line
        }
        END { exit count != 1 }' "$1" > "$2"
}

# Runs a command for 300 seconds at most: tests that wait for each other take no CPU time.
limited() {
    if command -v timeout > /dev/null; then timeout 300 "$@"; else "$@"; fi
}

# ---- machines: this one, and "arm" for sets that it cannot run but an emulator can

compiler_of() {
    case $1 in arm) echo "${CROSS:-aarch64-linux-gnu-gcc} -static" ;; *) echo "${CC:-cc}" ;; esac
}

# compiler_for MACHINE OPTION...: of one file.
compiler_for() {
    case $1-$* in
    here-*-O0*) command -v clang || compiler_of here ;;
    *) compiler_of "$1" ;;
    esac
}

runner_of() {
    case $1 in arm) echo qemu-aarch64-static ;; esac
}

machine_of() { # of kernel set $1
    case $1-$(uname -m) in neon*-aarch64) echo here ;; neon*) echo arm ;; *) echo here ;; esac
}

compile() { # machine, source, object, more options; the last one of -O counts
    # Only attn.c gets assert.h, which would fix the feature macros that test sources choose.
    case $2 in
    */attn.c) set -- "$@" $defines -include assert.h '-DATTN_ASSERT(x)=assert(x)' ;;
    esac
    machine=$1 source=$2 object=$3
    shift 3
    $(compiler_for "$machine" "$@") $flags "$@" -I"$out/tree" -c "$source" -o "$object"
}

link() { # machine, program, objects
    machine=$1 program=$2
    shift 2
    $(compiler_of "$machine") "$@" -o "$program" -lm -lpthread
}

# Makes objects of the library and the tests, and the unchanged test program, in $out/MACHINE.
build_machine() {
    mkdir -p "$out/$1/tests" || return 1
    rm -f "$out/$1"/*.o "$out/$1/tests"/*.o
    for source in $library; do
        compile "$1" "$out/tree/$source" "$out/$1/${source%.c}.o" || return 1
    done
    for source in $(sed -n '/^TESTS *:=/,/[^\\]$/p' Makefile | tr -d '\\' | sed 's/TESTS *:=//'); do
        compile "$1" "$source" "$out/$1/tests/$(basename "$source")".o || return 1
    done
    link "$1" "$out/$1/test" "$out/$1"/*.o "$out/$1/tests"/*.o
}

# Tells whether the tests of a machine can run: this one has to.
machine_runs() {
    [ "$1" = here ] || {
        command -v "$(compiler_of "$1" | sed 's/ .*//')" && command -v "$(runner_of "$1")"
    } > /dev/null
}

has_set() { # machine, set
    $(runner_of "$1") "$out/$1/test" --kernels "$2" --list > /dev/null 2>&1
}

# Prints the set that the list calls $1: "best", "plain" (the best portable one) or itself.
set_named() {
    case $1 in
    best) "$out/here/test" explain | sed -n 's/.*kernel sets \([a-z0-9_]*\).*/\1/p' ;;
    plain) has_set here portable_fma && echo portable_fma || echo portable ;;
    *) echo "$1" ;;
    esac
}

# Runs test program $2 of machine $1 on group $4 with kernel set $3, to its first failure and within
# $5 seconds of CPU time; all of it or case $6. It prints the cases as they begin, and last a line
# "status N".
run_group() {
    (
        ulimit -S -t "$5"
        limited $(runner_of "$1") "$2" --first --verbose --kernels "$3" ${6:+--case "$6"} "$4" 2>&1
        echo "status $?"
    ) 2> /dev/null
}

# Prints the first failure in the output of run_group, or nothing. 152: the CPU time is over.
first_failure() {
    awk '
        /FAILED/ && !found { found = $0 }
        { before = last; last = $0 }
        END {
            if (found) print found
            else if (last == "status 124") print "waits without end"
            else if (last == "status 152") print "runs without end"
            else if (last != "status 0" || before !~ /passed, 0 failed/)
                print "ended with: " before ", " last
        }'
}

# ---- the tree as it is

# Prints the CPU time that mutants may take for group $2 with kernel set $1: 5 seconds and three
# times that of the unchanged tree. The tree must pass, or else a line "FAILED" goes to
# $out/unchanged.
limit_of() {
    limit=$out/limits/$1.$2
    if [ ! -s "$limit" ]; then # two at once find the same
        machine=$(machine_of "$1")
        run_group "$machine" "$out/$machine/test" "$1" "$2" 2000 > "$limit.$$"
        failure=$(first_failure < "$limit.$$")
        [ -z "$failure" ] ||
            echo "FAILED: the unchanged tree in $1:$2: $failure" >> "$out/unchanged"
        sed -n 's/^  [0-9]* passed,.*; \([0-9]*\)[.][0-9]* s$/\1/p' "$limit.$$" |
            awk '{ sum += $1 + 1 } END { print 5 + 3 * sum }' > "$limit.$$.limit"
        rm "$limit.$$"
        mv "$limit.$$.limit" "$limit"
    fi
    cat "$limit"
}

# ---- one mutant

CASE_SECONDS=10 # of CPU time for a case

# Prints "group case" of mutants like line $1 of the list, if it is known.
known_case() {
    KEY=$(printf '%s\n' "$1" | awk -F ' ## ' '{ print $2 " ## " $3 " ## " $4 " ## " $5 }') awk '
        substr($0, 1, length(ENVIRON["KEY"]) + 4) == ENVIRON["KEY"] " ## " {
            n = split($0, part, " ## ")
            print part[n]
        }' "$out/tree/cases"
}

# Tells whether what follows $1 fails, as run_group takes it; the first failure and "group case" go
# to files in folder $1.
noticed() {
    at=$1
    shift
    run_group "$@" > "$at/output"
    first_failure < "$at/output" > "$at/failure"
    [ -s "$at/failure" ] || return 1
    sed -n "s/^  case \\([0-9]*\\): .*/$4 \\1/p" "$at/output" | tail -n 1 > "$at/case"
}

# Tells whether the case that noticed it before, $4 of group $3, does so, and passes in the
# unchanged tree.
noticed_again() { # machine, set, group, case
    ! noticed "$at" "$1" "$out/$1/test" "$2" "$3" "$CASE_SECONDS" "$4" &&
        noticed "$at" "$1" "$at/test" "$2" "$3" "$CASE_SECONDS" "$4"
}

# Prints the file that is compiled again for a change of file $1 that set $2 is to show.
unit_of() {
    case $1 in
    attn.h) echo attn.c ;;
    attn_simd.h) echo "attn_simd_${2%_narrow}.c" ;;
    *) echo "$1" ;;
    esac
}

# Compiles file $3 of folder $1 for machine $2 and set $4 and links it with the unchanged rest.
build_mutant() {
    rest=$(ls "$out/$2"/*.o | grep -v "/${3%.c}\.o$")
    case $3-$4 in
    attn_simd_* | attn.c-portable*) level=-Og ;;
    *) level=-O0 ;;
    esac
    compile "$2" "$1/$3" "$1/unit.o" $level > "$1/log" 2>&1 &&
        link "$2" "$1/test" "$1/unit.o" $rest "$out/$2/tests"/*.o >> "$1/log" 2>&1
}

# Its verdict goes to $out/N/verdict.
one() {
    line=$(sed -n "${1}p" "$out/tree/list")
    at=$out/$1
    rm -rf "$at"
    mkdir -p "$at"
    file=$(field "$line" 2)
    where=$(field "$line" 5)
    kernels=$(sed -n "s/^${where%%:*} //p" "$out/sets")
    machine=$(machine_of "$kernels")
    unit=$(unit_of "$file" "$kernels")
    verdict=SURVIVED
    [ "$unit" = "$file" ] || [ -z "$kernels" ] || cp "$out/tree/$unit" "$at"
    if ! substitute "$out/tree/$file" "$at/$file" "$(field "$line" 3)" "$(field "$line" 4)"; then
        verdict="NOT APPLIED: the text is not there exactly once"
    elif [ -z "$kernels" ]; then
        verdict=skipped
    elif ! build_mutant "$at" "$machine" "$unit" "$kernels"; then
        verdict="NOT BUILT"
    else
        known=$(known_case "$line")
        # shellcheck disable=SC2086 # two words
        if [ -n "$known" ] && noticed_again "$machine" "$kernels" $known; then
            verdict="killed by $kernels:${known% *}"
        else
            for group in $(echo "${where#*:}" | tr ',' ' '); do
                limit=$(limit_of "$kernels" "$group")
                if noticed "$at" "$machine" "$at/test" "$kernels" "$group" "$limit"; then
                    verdict="killed by $kernels:$group"
                    break
                fi
            done
        fi
    fi
    rm -f "$at/test" "$at/unit.o" "$at/output"
    printf '%-32s %s: %s: %s\n' "$verdict" "$1" "$(field "$line" 7)" "$(field "$line" 6)" \
        > "$at/verdict"
}

case $1 in
--one)
    out=$2
    one "$3"
    exit 0
    ;;
esac

# ---- all of them

# Writes the list of cases: anew for mutants that ran, unchanged for others that still exist.
write_cases() {
    while IFS= read -r line; do
        at=$out/${line%% *}
        if [ -d "$at" ]; then known=$(cat "$at/case" 2> /dev/null); else known=; fi
        [ -n "$known" ] || known=$(known_case "$line")
        [ -z "$known" ] || printf '%s ## %s\n' "$line" "$known" |
            awk -F ' ## ' '{ print $2 " ## " $3 " ## " $4 " ## " $5 " ## " $NF }'
    done < "$out/tree/list" > "$out/cases"
    {
        echo "# mutants_cases.txt - which case notices which mutant: WRITE=1 tools/mutants.sh wrote it."
        echo "# SPDX-License-Identifier: MIT"
        cat "$out/cases"
    } > "$cases"
}

out=${1:-build/mutants}
[ $# -gt 0 ] && shift
mkdir -p "$out/tree" || exit 1
rm -rf "$out"/[0-9]* "$out/arm/test" "$out/limits" "$out/unchanged" # no verdict of an earlier run
mkdir "$out/limits" || exit 1
cp attn*.h kernels.cl $library "$out/tree" || exit 1
od -An -v -tu1 kernels.cl | sed 's|[0-9][0-9]*|&,|g' > "$out/tree/kernels_cl.inc"
cat "$cases" > "$out/tree/cases" 2> /dev/null
mutants "$list" > "$out/tree/list"
chosen=$(if [ $# -gt 0 ]; then grep -F "$(printf '%s\n' "$@")"; else cat; fi < "$out/tree/list")
[ -n "$chosen" ] || { echo "mutants: no line contains any of: $*"; exit 1; }
wanted=$(echo "$chosen" | awk '{ split($0, part, " ## "); print part[5] }' | sort -u)

build_machine here || exit 1

# Prints lines "name set" of the sets that can run, and a sentence for each other set.
: > "$out/sets"
for name in $(echo "$wanted" | sed 's/:.*//' | sort -u); do
    kernels=$(set_named "$name")
    machine=$(machine_of "$kernels")
    if ! machine_runs "$machine"; then
        echo "skipped: mutants for $name need $(compiler_of "$machine") and $(runner_of "$machine")"
        continue
    fi
    [ -x "$out/$machine/test" ] || build_machine "$machine" || exit 1
    if has_set "$machine" "$kernels"; then
        echo "$name $kernels" >> "$out/sets"
    else
        echo "skipped: mutants for $name, a kernel set that this machine cannot run"
    fi
done

numbers=$(echo "$chosen" | sed 's/ .*//')
echo "$numbers" | xargs -P "$jobs" -L 1 sh tools/mutants.sh --one "$out"
for n in $numbers; do
    cat "$out/$n/verdict" 2> /dev/null || echo "ENDED EARLY $n"
done > "$out/table.txt"
[ -z "${WRITE:-}" ] || write_cases
# Prints the last error: a log is read from its end.
grep -E '^(killed|skipped)' "$out/table.txt" | sort
grep -vE '^(killed|skipped)' "$out/table.txt" | sort
awk '
    /^# section:/ { section = $3; least[section] = $4; count[section] = 0 }
    / ## / && !/^#/ { count[section]++ }
    END {
        for (s in count)
            if (count[s] < least[s]) {
                print "too few mutants in section " s ": " count[s] ", not " least[s]
                bad = 1
            }
        exit bad
    }' "$list"
enough=$?
if [ -s "$out/unchanged" ]; then
    cat "$out/unchanged"
    enough=1
fi
total=$(wc -l < "$out/table.txt")
killed=$(grep -c '^killed' "$out/table.txt")
skipped=$(grep -c '^skipped' "$out/table.txt")
echo "mutants: $total planted, $killed killed, $skipped skipped, $((total - killed - skipped)) not"
[ "$enough" = 0 ] && [ $((killed + skipped)) = "$total" ]
