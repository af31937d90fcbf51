#!/bin/sh
# mutants.sh - every planted one-line bug must be noticed by the tests.
# SPDX-License-Identifier: MIT
#
#     sh tools/mutants.sh [folder for builds, default build/mutants] [word in a line ...]
#     sh tools/mutants.sh --check        whether every text can be planted, and ids are distinct
#
# tools/mutants.txt lists substitutions. Each is applied to a copy of src/. Only the file of the root
# that holds the changed room is made anew, compiled (with the assertions of attn.c) and linked with
# the tests. The groups that the list names then run with the kernel set that it names, to their first
# failure. The unchanged tree must pass these groups. A text that does not occur exactly once, a
# mutant that does not compile and a mutant that no group notices are failures, printed last. With
# words, only mutants whose line contains one of them run. EVERY=N runs one in N, another N-th of the
# list for each commit: what `.ci/run` has time for. JOBS=N runs N at a time (default 2). CC is the
# compiler; clang, if installed, compiles the files without optimisation.
#
# tools/mutants_cases.txt names, for most mutants by their ids, the test case that noticed it. That
# case runs first, because it takes next to nothing and whole groups take seconds. The list saves time
# and decides nothing: a mutant that its case does not notice goes through the groups. WRITE=1 writes
# the list anew, for the mutants that ran.
#
# A mutant without end is killed by its CPU time, which other load on the machine hardly changes:
# see `unchanged`.
#
# Mutants of a set that this machine cannot run are left out with a sentence. Those of NEON are
# built by CROSS (default aarch64-linux-gnu-gcc) and run by qemu-aarch64-static, where both exist; those of
# NEON of 32-bit ARM by CROSS_32 (default arm-linux-gnueabihf-gcc) and qemu-arm-static; those of
# RISC-V by RISCV_CC (default clang-19) and qemu-riscv64-static; those of
# WebAssembly by WASM_CC with WASM_AR, and run by WASM_RUN: .ci/run names what it fetches.

cd "$(dirname "$0")/.." || exit 1
list=tools/mutants.txt
cases=tools/mutants_cases.txt
jobs=${JOBS:-2}
defines="-DATTN_SIMD_AVX512 -DATTN_SIMD_AVX2 -DATTN_SIMD_NEON -DATTN_SIMD_RVV -DATTN_SIMD_SSE2 -DATTN_SIMD_WASM"
# gcc 12 takes 1.8 s for attn.c and 1.5 s for a SIMD file with -Og, twice that with -O1; with -O0 the
# portable kernels would need up to 15 times as long, and all else is compiled in half of it, by
# clang 14 in 0.3 s.
flags="-std=c99 -ffp-contract=off -Og -w"

# What the Makefile says, where it finds this compiler.
wasi="-D_WASI_EMULATED_SIGNAL -D_WASI_EMULATED_PROCESS_CLOCKS -Wl,-z,stack-size=8388608"
wasi="$wasi -lwasi-emulated-signal -lwasi-emulated-process-clocks"

# Prints lines "id ## file ## old ## new ## set:groups ## note" of list $1.
mutants() {
    grep '^[^#].* ## ' "$1"
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

# ---- machines: this one, and "arm", "arm32", "riscv" and "wasm" for sets that it cannot run but others can

compiler_of() {
    case $1 in
    arm) echo "${CROSS:-aarch64-linux-gnu-gcc} -static" ;;
    arm32) echo "${CROSS_32:-arm-linux-gnueabihf-gcc} -static" ;;
    riscv) echo "${RISCV_CC:-clang-19 --target=riscv64-linux-gnu} -static" ;;
    wasm) echo "${WASM_CC:-no-compiler} $wasi" ;;
    *) echo "${CC:-cc}" ;;
    esac
}

archiver_of() {
    case $1 in wasm) echo "${WASM_AR:-ar}" ;; *) echo "${AR:-ar}" ;; esac
}

relaxed_of() {
    case $1 in wasm) echo 1 ;; esac
}

# compiler_for MACHINE OPTION...: of one file.
compiler_for() {
    case $1-$* in
    here-*-O0*) command -v clang || compiler_of here ;;
    *) compiler_of "$1" ;;
    esac
}

runner_of() {
    case $1 in
    arm) echo qemu-aarch64-static ;;
    arm32) echo qemu-arm-static ;;
    riscv) echo "qemu-riscv64-static -cpu rv64,v=true,vlen=128,vext_spec=v1.0" ;;
    wasm) echo "${WASM_RUN:-}" ;;
    esac
}

machine_of() { # of kernel set $1
    case $1-$(uname -m) in
    neon32*) echo arm32 ;;
    neon*-aarch64) echo here ;;
    neon*) echo arm ;;
    rvv*) echo riscv ;;
    wasm*) echo wasm ;;
    *) echo here ;;
    esac
}

compile() { # machine, source, object, more options; the last one of -O counts
    # As the Makefile does with ASSERT=1.
    case $2 in
    */attn.c) set -- "$@" $defines -include assert.h '-DATTN_ASSERT(x)=assert(x)' ;;
    */attn_simd_wasm.c) set -- "$@" -mrelaxed-simd ;;
    esac
    machine=$1 source=$2 object=$3
    shift 3
    $(compiler_for "$machine" "$@") $flags "$@" -I"$out/tree" -I"$out/$machine" -c "$source" -o "$object"
}

link() { # machine, program, objects
    machine=$1 program=$2
    shift 2
    $(compiler_of "$machine") "$@" -o "$program" -lm -lpthread
}

# Makes the unchanged test program of a machine, in $out/MACHINE with its objects in obj.
build_machine() {
    MAKEFLAGS='' make -s -j"$jobs" BUILD="$out/$1" CC="$(compiler_of "$1")" CFLAGS="-Og -w" LDFLAGS= \
        AR="$(archiver_of "$1")" ASSERT=1 OPENMP= RELAXED="$(relaxed_of "$1")" SIMD="avx512 avx2 neon rvv sse2 wasm" "$out/$1/test" > /dev/null
}

# Tells whether the tests of a machine can run: this one has to.
machine_runs() {
    [ "$1" = here ] || {
        command -v "$(compiler_of "$1" | sed 's/ .*//')" && command -v "$(runner_of "$1" | sed 's/ .*//')"
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

# Prints "group case" of mutant $1, if it is known.
known_case() {
    sed -n "s/^$1 //p" "$out/tree/cases"
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

# Prints the file of the root that holds room $1, or its kernels for set $2.
unit_of() {
    case $1 in
    src/simd.h) echo "attn_simd_${2%_narrow}.c" ;;
    src/opencl/*) echo attn_opencl.c ;;
    src/*) echo attn.c ;;
    *) echo "$1" ;;
    esac
}

# Plants line $2 of the list, a change of file $3, in folder $1, and makes there what is to be compiled
# of unit $4; fails unless the text is there exactly once.
plant() {
    case $3 in
    src/*)
        mkdir "$1/tools" && cp "$out/tree/tools/amalgamate.sh" "$1/tools" &&
            cp -r "$out/tree/src" "$1/src" || return 1
        ;;
    esac
    substitute "$out/tree/$3" "$1/$3" "$(field "$2" 3)" "$(field "$2" 4)" || return 1
    case $3 in
    src/simd.h)
        cp "$out/tree/$4" "$1" && sh "$1/tools/amalgamate.sh" --room src/simd.h > "$1/attn_simd.h"
        ;;
    src/*) sh "$1/tools/amalgamate.sh" --room "src/$(room_of "$4")" > "$1/$4" ;;
    esac
}

# Prints where in src/ the rooms of file $1 come together.
room_of() {
    case $1 in attn_opencl.c) echo opencl/attn_opencl.c ;; *) echo "$1" ;; esac
}

# Compiles file $3 of folder $1 for machine $2 and set $4 and links it with the unchanged rest.
build_mutant() {
    rest=$(find "$out/$2/obj" -name '*.o' ! -path "$out/$2/obj/${3%.c}.o")
    case $3-$4 in
    attn_simd_* | attn.c-portable*) level=-Og ;;
    *) level=-O0 ;;
    esac
    # shellcheck disable=SC2086 # words
    compile "$2" "$1/$3" "$1/unit.o" $level > "$1/log" 2>&1 &&
        link "$2" "$1/test" "$1/unit.o" $rest >> "$1/log" 2>&1
}

# Mutant $1: its verdict goes to $out/at/ID/verdict.
one() {
    line=$(grep "^$1 ## " "$out/tree/list")
    at=$out/at/$1
    rm -rf "$at"
    mkdir -p "$at"
    file=$(field "$line" 2)
    where=$(field "$line" 5)
    kernels=$(sed -n "s/^${where%%:*} //p" "$out/sets")
    machine=$(machine_of "$kernels")
    unit=$(unit_of "$file" "$kernels")
    verdict=SURVIVED
    if [ -z "$kernels" ]; then # check_list has looked for its text
        verdict=skipped
    elif ! plant "$at" "$line" "$file" "$unit"; then
        verdict="NOT APPLIED: the text is not there exactly once"
    elif ! build_mutant "$at" "$machine" "$unit" "$kernels"; then
        verdict="NOT BUILT"
    else
        known=$(known_case "$1")
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
    rm -rf "$at/test" "$at/unit.o" "$at/output" "$at/src" "$at/tools"
    printf '%-32s %s: %s\n' "$verdict" "$1" "$(field "$line" 6)" > "$at/verdict"
}

# Tells of each line whose text does not occur exactly once in its file, or whose id is not its own.
check_list() {
    awk -F ' ## ' '
        function wrong(what) {
            print "mutants.txt: " $1 ": " what
            bad = 1
        }
        /^# section:/ { section = $0; sub(/^# section: /, "", section); sub(/ .*/, "", section) }
        /^#/ || NF < 2 { next }
        {
            if (NF != 6)
                wrong(NF " fields, not 6")
            if (seen[$1]++ || index($1, section "-") != 1)
                wrong("its id is not of its own, or not of section " section)
            if (!($2 in lines))
                while ((getline text[$2, ++lines[$2]] < $2) > 0)
                    ;
            count = 0
            for (i = 1; i < lines[$2]; i++)
                for (rest = text[$2, i]; (at = index(rest, $3)) > 0; count++)
                    rest = substr(rest, at + length($3))
            if (count != 1)
                wrong("its text occurs " count " times in " $2)
        }
        END { exit bad }' "$list"
}

case $1 in
--check)
    check_list
    exit
    ;;
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
        id=${line%% *}
        known=$(cat "$out/at/$id/case" 2> /dev/null)
        [ -n "$known" ] || known=$(known_case "$id")
        [ -z "$known" ] || echo "$id $known"
    done < "$out/tree/list" > "$out/cases"
    {
        echo "# mutants_cases.txt - which case notices which mutant: WRITE=1 tools/mutants.sh wrote it."
        echo "# SPDX-License-Identifier: MIT"
        cat "$out/cases"
    } > "$cases"
}

out=${1:-build/mutants}
[ $# -gt 0 ] && shift
out=$(mkdir -p "$out" && cd "$out" && pwd) || exit 1
rm -rf "$out/at" "$out/tree" "$out/arm/test" "$out/arm32/test" "$out/limits" "$out/unchanged" # of an earlier run
mkdir "$out/at" "$out/limits" "$out/tree" "$out/tree/tools" || exit 1
cp -r attn*.h attn*.c kernels.cl src "$out/tree" && cp tools/amalgamate.sh "$out/tree/tools" || exit 1
cat "$cases" > "$out/tree/cases" 2> /dev/null
mutants "$list" > "$out/tree/list"
every=${EVERY:-1}
commits=$(git rev-list --count HEAD 2> /dev/null || echo 0)
chosen=$(if [ $# -gt 0 ]; then grep -F "$(printf '%s\n' "$@")"; else cat; fi < "$out/tree/list" |
    awk -v every="$every" -v commits="$commits" '(NR + commits) % every == 0')
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

ids=$(echo "$chosen" | sed 's/ .*//')
echo "$ids" | xargs -P "$jobs" -L 1 sh tools/mutants.sh --one "$out"
for n in $ids; do
    cat "$out/at/$n/verdict" 2> /dev/null || echo "ENDED EARLY $n"
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
check_list || enough=1
if [ -s "$out/unchanged" ]; then
    cat "$out/unchanged"
    enough=1
fi
total=$(wc -l < "$out/table.txt")
killed=$(grep -c '^killed' "$out/table.txt")
skipped=$(grep -c '^skipped' "$out/table.txt")
echo "mutants: $total planted, $killed killed, $skipped skipped, $((total - killed - skipped)) not"
[ "$enough" = 0 ] && [ $((killed + skipped)) = "$total" ]
