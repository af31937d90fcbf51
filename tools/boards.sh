#!/bin/sh
# boards.sh - builds the library for boards and other machines than this one, runs it by emulators, and
# prints one row of docs/boards.md for each target of tools/boards.txt.
# SPDX-License-Identifier: MIT
#
# usage: tools/boards.sh BUILD [TARGET...]       (make boards, TARGETS='...')
#        tools/boards.sh --packages              the packages of Debian 12 that all targets need
#
#   JOBS=N    targets at a time, as many as there are CPUs by default
#   WRITE=1   writes the table to docs/boards.md, too (only with all targets)
#
# ports/board.c and examples/keyword.c say what runs. A target passes if its programs print the hashes and checks that they print
# on this machine, compiled by `cc`. Each target compiles the library once. A target whose compiler or
# emulator is missing is skipped with a sentence.
set -u
cd "$(dirname "$0")/.." || exit 1
list=tools/boards.txt
page=docs/boards.md
short_most=20480 # bytes of flash of short calls only, compiled by -Os
required="-std=c99 -pedantic -Wall -Wextra -Werror -ffp-contract=off -ffunction-sections -fdata-sections"

fail()
{
    echo "boards.sh: $*" >&2
    exit 1
}

# column N: of the rows on stdin, without the blanks around it
column()
{
    awk -F'|' -v n="$1" '!/^#/ { gsub(/^ +| +$/, "", $n); print $n }'
}

names()
{
    column 1 < "$list"
}

packages()
{
    column 7 < "$list" | tr ' ' '\n' | awk '!seen[$0]++' | tr '\n' ' '
}

# ---- one target. Options are words, so that their variables are not quoted.

# target NAME: sets the variables of its row.
target()
{
    row=$(awk -F'|' -v name="$1" '{ own = $1; gsub(/ /, "", own) } own == name' "$list")
    [ -n "$row" ] || fail "$list has no target '$1'"
    work=$out/$1
    kind=$(echo "$row" | column 2)
    runner=$(echo "$row" | column 3)
    compiler=$(echo "$row" | column 4)
    flags=$(echo "$row" | column 5)
    sets=$(echo "$row" | column 6 | cut -d: -f1)
    own=$(echo "$row" | column 6 | cut -s -d: -f2)
    needs=$(echo "$row" | column 7)
    system="ports/print.c ports/board_os.c"
    link=-static
    libraries=
    case $kind in
    arm* | riscv*)
        cpu=${kind% *}
        system="ports/print.c ports/bare/start.c ports/bare/count_$cpu.c ports/bare/start_$cpu.S"
        link="-nostartfiles -Lports/bare -T ports/bare/${kind#* }.ld"
        libraries=--specs=$([ "$cpu" = arm ] && echo nano.specs || echo picolibc.specs)
        runner="$runner -icount shift=0 -nographic -monitor none -serial none
            -semihosting-config enable=on,target=native -kernel"
        ;;
    wasm) link=-Wl,-s ;;
    esac
}

# compiled FILE OPTION...: the name of its object
compiled()
{
    file=$1
    shift
    object=$work/$(basename "$file").o
    # shellcheck disable=SC2086
    "$compiler" $required $flags $libraries "$@" -c "$file" -o "$object" && echo "$object"
}

# linked NAME OBJECT...: every program is an .exe, whatever the system.
linked()
{
    program=$work/$1.exe
    shift
    # shellcheck disable=SC2086
    "$compiler" $flags $libraries $link -Wl,--gc-sections "$@" -lm -o "$program"
}

build()
{
    defines=
    library=
    for set in $sets; do
        defines="$defines -DATTN_SIMD_$(echo "$set" | tr '[:lower:]' '[:upper:]')"
        # shellcheck disable=SC2086
        library="$library $(compiled "attn_simd_$set.c" $own)" || return 1
    done
    # shellcheck disable=SC2086
    library="$(compiled attn.c $defines) $library" || return 1
    objects=
    for file in $system; do
        objects="$objects $(compiled "$file")" || return 1
    done
    call=$(compiled ports/call.c) && without=$(compiled ports/call_without.c) &&
        board=$(compiled ports/board.c) && keyword=$(compiled examples/keyword.c) || return 1
    # shellcheck disable=SC2086
    linked board "$board" $objects $library && linked keyword "$keyword" $objects $library &&
        linked call "$call" $objects $library && linked without "$call" $objects "$without" &&
        linked short $required -DATTN_WITHOUT_LONG_CALLS "$call" $objects attn.c
}

# executed ARGUMENT...: a program by the target's emulator. Semihosting prints to stderr.
executed()
{
    # shellcheck disable=SC2086
    WINEDEBUG=-all WINEPREFIX=${WINEPREFIX:-$work/wine} timeout 300 $runner "$@" 2>&1
}

# bytes PROGRAM: code and constants, and variables. WebAssembly has one file for all.
bytes()
{
    case $kind in
    wasm) wc -c < "$work/$1.exe" | awk '{ print $1, 0 }' ;;
    *)
        sizer=$(command -v "${compiler%gcc}size" || echo size)
        "$sizer" "$work/$1.exe" | awk 'NR == 2 { print $1, $2 + $3 }'
        ;;
    esac
}

# emulated ATTN-OR-LOOP SHAPE: instructions of a program, each of which QEMU logs as a block of its own.
# Those of WebAssembly are counted by wasmtime, if Python has it.
emulated()
{
    case $kind in
    wasm) timeout 300 python3 tests/wasi.py --fuel "$work/board.exe" "$1" "$2" | sed -n 's/^instructions: //p' ;;
    # shellcheck disable=SC2086
    *) timeout 300 $runner -singlestep -d exec,nochain -D /dev/stdout "$work/board.exe" "$1" "$2" | wc -l ;;
    esac
}

can_count()
{
    case $kind in
    linux) ;;
    wasm) python3 -c 'import wasmtime' 2> /dev/null ;;
    *) false ;;
    esac
}

# Lines `count SHAPE WORK INSTRUCTIONS`, by the program itself or by its emulator.
counts()
{
    if ! can_count; then
        grep '^count' "$work/printed"
        return
    fi
    start=$(emulated nothing 0)
    for shape in 0 1 3; do
        for what in attn loop; do
            echo "count $shape $what $(($(emulated "$what" "$shape") - start))"
        done
    done
}

# The lines that must be equal everywhere.
results()
{
    grep -E '^(hash|passed|failed) ' "$1"
}

# cells: what was measured, as the end of a row
cells()
{
    counts > "$work/counts"
    {
        sed 's/^/board /' "$work/printed"
        sed 's/^/counted /' "$work/counts"
        echo "size $(bytes call) $(bytes without) $(bytes short)"
        results "$out/here" | grep -vxFf "$work/printed" | sed 's/^/missing /'
        echo "all $(results "$out/here" | grep -c .)"
        case "$kind $flags" in arm*-Os* | riscv*-Os*) echo "most $short_most" ;; esac
    } | awk '
        $1 == "board" && $2 == "kernels" { chosen = $3; for (i = 4; i <= NF; i++) sets = sets ", " $i }
        $1 == "board" { value[$2] = $3 }
        $1 == "counted" { count[$3, $4] = $5 }
        $1 == "size" { flash = $2 - $4; static = $3 - $5; short = $6 - $4 }
        $1 == "missing" { missing++; if ($2 == "hash") differ = differ " " $3 }
        $1 == "all" { all = $2 }
        $1 == "most" && short > $2 { differ = differ " flash of short calls" }
        function ratio(shape) {
            if (!count[shape, "loop"])
                return "-"
            return sprintf("%d / %d = %.1f", count[shape, "attn"], count[shape, "loop"],
                           count[shape, "attn"] / count[shape, "loop"])
        }
        END {
            stack = value["stack"] ? " + " value["stack"] + value["params"] : ""
            printf "**%s**%s | %d of %d | %s | %d | %d | %d + %d%s | %s | %s | %s |\n", chosen, sets, all - missing,
                all, differ == "" ? "=" : "differ:" differ, flash, short, static, value["workspace"], stack,
                ratio(0), ratio(1), ratio(3)
        }'
}

# integer_cells: the same of examples/keyword.c and of calls in whole numbers, for the second table
integer_cells()
{
    differ=$(grep '^hash keyword' "$out/here" | grep -vxFf "$work/printed" | awk '{ printf " %s", $2 }')
    { cat "$work/printed"; echo "flash $(bytes keyword)"; } | awk -v bits="${differ:+differ:$differ}" '
        $1 == "keyword" { value[$2, ++times[$2]] = $3 }
        $1 == "count" { count[$2, $3] = $4 }
        $1 == "flash" { flash = $2 }
        function calls(shape) {
            return count[shape, "integer"] " / " count[shape, "attn"] " / " count[shape, "bytes"]
        }
        END {
            printf "%s | %.2f %% | %d | %d + %d + %d | %.1f | %.1f | %.1f | %s | %s |\n", bits ? bits : "=",
                value["error", 1] / 1e4, flash, value["arrays", 1], value["workspace", 1], value["stack", 1],
                value["attention", 1] / 1e6, value["attention", 2] / 1e6, value["projections", 1] / 1e6,
                calls(2), calls(3)
        }'
}

missing_tool()
{
    for tool in "$compiler" "${runner%% *}"; do
        command -v "$tool" > /dev/null || { echo "$tool: apt-get install $needs"; return; }
    done
    case $runner in *wasi.py) can_count || echo "wasmtime: pip install wasmtime" ;; esac
}

# one NAME: leaves a row, or a sentence why there is none.
one()
{
    target "$1"
    mkdir -p "$work"
    rm -f "$work/row" "$work/integer_row" "$work/skipped"
    tool=$(missing_tool)
    if [ -n "$tool" ]; then
        echo "$1: skipped, there is no $tool" > "$work/skipped"
        return
    fi
    build > "$work/log" 2>&1 || { tail -5 "$work/log"; fail "$1 does not build: $work/log"; }
    { executed "$work/board.exe"; executed "$work/keyword.exe"; } | tr -d '\r' > "$work/printed"
    grep -q '^hash' "$work/printed" || { tail -5 "$work/printed"; fail "$1 does not run: $work/printed"; }
    measured=$(cells)
    [ -n "$measured" ] || fail "$1 cannot be measured"
    echo "| $1 | \`$compiler $flags\`${own:+, kernels \`$own\`} | $measured" > "$work/row"
    case $kind in
    arm* | riscv*) echo "| $1 | $(integer_cells)" > "$work/integer_row" ;;
    esac
}

# ---- all of them

here() # what this machine prints
{
    : > "$out/here"
    for program in ports/board.c examples/keyword.c; do
        cc -std=c99 -O2 -ffp-contract=off "$program" ports/print.c ports/board_os.c attn.c -lm -o "$out/here.exe" &&
            "$out/here.exe" >> "$out/here" || return 1
    done
}

# rows FILE NAME...: what the targets left
rows()
{
    file=$1
    shift
    for name in "$@"; do
        cat "$out/$name/$file" 2> /dev/null
    done
}

table()
{
    echo "| target | compiler | kernels | tests | bits | flash | short calls only | RAM |" \
        "1 row, 64 keys | 16 rows, 16 keys | 64 rows, 64 keys |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|"
    rows row "$@"
}

integer_table()
{
    echo "| target | bits | error | flash | RAM | attention, 4 frames a call | 1 frame a call | projections |" \
        "1 row, 64 keys | 64 rows, 64 keys |"
    echo "|---|---|---|---|---|---|---|---|---|---|"
    rows integer_row "$@"
}

# put NAME FILE: the page with that file between its marks NAME
put()
{
    awk -v begin="<!-- $1 -->" -v end="<!-- /$1 -->" -v table="$2" '
        $0 == end { on = 0 }
        !on { print }
        $0 == begin { on = 1; while ((getline line < table) > 0) print line }' "$page" \
        > "$out/page" || fail "cannot write $out/page"
    mv "$out/page" "$page" || fail "cannot write $page"
}

case ${1:-} in
--packages) packages; echo; exit ;;
--one) out=$2; one "$3"; exit ;;
esac
build=${1:-build}
[ $# -eq 0 ] || shift
out=$build/boards
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
# shellcheck disable=SC2046
[ $# -gt 0 ] || { all=1; set -- $(names); }
for package in $(packages); do
    grep -qw -- "$package" "$page" || fail "$page does not name the package $package"
done
here || fail "the program does not build or run on this machine"
failed=0
printf '%s\n' "$@" | xargs -P "${JOBS:-$(nproc 2> /dev/null || echo 2)}" -I NAME \
    sh tools/boards.sh --one "$out" NAME || failed=1
table "$@" > "$out/table"
integer_table "$@" > "$out/integers"
cat "$out/table" "$out/integers"
for name in "$@"; do
    cat "$out/$name/skipped" 2> /dev/null
done
rows=$(grep -c '| = |' "$out/table")
echo "boards: $rows of $# targets have every bit of this machine"
if [ -n "${WRITE:-}" ]; then
    if [ -z "${all:-}" ] || [ "$rows" -ne $# ]; then fail "WRITE needs all targets"; fi
    put table "$out/table"
    put integers "$out/integers"
fi
[ "$failed" -eq 0 ] && ! grep -q 'differ:' "$out/table"
