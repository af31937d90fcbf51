#!/bin/sh
# opencl_gate.sh - checks what compilers for GPUs make of kernels.cl, on a machine without a GPU.
# SPDX-License-Identifier: MIT
#
#     sh tools/opencl_gate.sh [folder for files, default build/opencl_gate]
#
# 1. kernels.cl is OpenCL C 1.2, 2.0 and 3.0 without a warning and without double precision.
# 2. Each variant of the table below is compiled for each device: NVIDIA by clang, libclc and ptxas;
#    AMD by clang and rocm-device-libs; Intel by ocloc. The drivers' own compilers are only near
#    relatives of these, so the gate shows errors and not the speed of a kernel.
# 3. Registers, spills, stack and local memory of each kernel are compared with opencl_gate.txt.
#    Spills and stack are 0 unless a line there says why not.
# 4. Planted bugs are noticed.
#
# A compiler makes equal code of equal text. So the table has a sum of itself, kernels.cl, this file
# and the compilers, with which all of it held. While that sum is right, each variant is compiled
# for one device of each vendor, in turn, and each device so has a variant. ALL=1 compiles everything. Of
# what is left EVERY=N compiles one in N, another N-th for each commit.
#
# A compiler that is not installed is skipped with a sentence. WRITE=1 writes the table anew, with
# the reasons of lines that keep their place, WRITE=sum only the sum; both need all compilers for that.
# JOBS=N compiles N at a time (default 2). CLANG, PTXAS and OCLOC name the compilers.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-${1:-build/opencl_gate}}
export OUT="$out"
table=tools/opencl_gate.txt
jobs=${JOBS:-2}
kernels=${KERNELS:-kernels.cl}

first() { # first COMMAND...: the first that is there
    for name in "$@"; do
        command -v "$name" && return
    done
}

first_file() {
    for name in "$@"; do
        [ ! -e "$name" ] || { echo "$name"; return; }
    done
}

# Older ones do not know all targets, and those before 15 cannot read the libraries.
clang=${CLANG:-$(first clang-19 clang-18 clang-17 clang)}
ptxas=$(first "${PTXAS:-ptxas}" /usr/local/cuda/bin/ptxas)
ocloc=${OCLOC:-$(first ocloc)}
libclc=$(first_file /usr/lib/clc/nvptx64--nvidiacl.bc \
    /usr/lib/llvm-*/share/clc/nvptx64--nvidiacl.bc)
bitcode=$(first_file /usr/lib/*/amdgcn/bitcode /opt/rocm/amdgcn/bitcode)

# Device | who compiles for it | the library with its constants, or the nearest; lanes of a wave
targets() {
    cat <<'TABLE'
sm_75   nvidia
sm_80   nvidia
sm_89   nvidia
sm_90   nvidia
sm_100  nvidia
sm_120  nvidia
gfx906  amd 906 64
gfx90a  amd 90a 64
gfx942  amd 940 64
gfx1030 amd 1030 32
gfx1100 amd 1036 32
gfx1201 amd 1036 32
skl     intel
tgllp   intel
dg2     intel
pvc     intel
TABLE
}

# Name, by whose compilers, options: what plan_device of attn_opencl.c chooses. ocloc takes longest.
# A part that is new needs a line here and, with WRITE=1, its lines in the table.
variants() {
    cat <<'TABLE'
exact,64x64      nvidia,amd,intel PART_FORWARD=1 EXACT=1 KV_TYPE=0 BM=64 DVB=64 PAIRS=0
exact,64x128,ask nvidia,amd       PART_FORWARD=1 EXACT=1 KV_TYPE=1 BM=64 DVB=128 PAIRS=1
exact,16x128,ask nvidia,amd       PART_FORWARD=1 EXACT=1 KV_TYPE=1 BM=16 DVB=128 PAIRS=1
exact,4x128      nvidia,amd,intel PART_FORWARD=1 EXACT=1 KV_TYPE=0 BM=4 DVB=128 PAIRS=0
exact,32x256,ask nvidia,amd       PART_FORWARD=1 EXACT=1 KV_TYPE=8 BM=32 DVB=256 PAIRS=1
free,64x128      nvidia,amd,intel PART_FORWARD=1 EXACT=0 KV_TYPE=1 BM=64 DVB=128 PAIRS=0
free,16x64       nvidia           PART_FORWARD=1 EXACT=0 KV_TYPE=0 BM=16 DVB=64 PAIRS=0
whole,64x128,ask nvidia,amd       PART_FORWARD=1 EXACT=1 KV_TYPE=5 BM=64 DVB=128 PAIRS=1 WHOLE=1
whole,4x128      nvidia,amd,intel PART_FORWARD=1 EXACT=1 KV_TYPE=7 BM=4 DVB=128 PAIRS=0 WHOLE=1
q8_0,64x128      nvidia,amd       PART_FORWARD=1 EXACT=0 KV_TYPE=5 BM=64 DVB=128 PAIRS=0
gradients,64x64  nvidia,amd,intel PART_BACKWARD=1 EXACT=1 KV_TYPE=8 BM=64 DVB=64 PAIRS=1
gradients,64x128 nvidia,amd       PART_BACKWARD=1 EXACT=0 KV_TYPE=8 BM=64 DVB=128 PAIRS=0
others           nvidia,amd,intel PART_ROWS=1 PART_ROTATE=1 PART_NAIVE=1 PART_CHECK=1 KV_TYPE=8
TABLE
}

local_cap() { # of a work-group: what NVIDIA gives a kernel without asking, and 64 KiB
    case $1 in sm_*) echo 49152 ;; *) echo 65536 ;; esac
}

defines() { # -D for each option, and what attn_opencl.c asks of GPUs
    printf -- ' -DINLINE=1'
    for option in "$@"; do
        printf ' -D%s' "$option"
    done
}

# Tells whether the compilers of $1 are there; says what is not.
has() {
    case $1 in
    nvidia) [ -n "$clang" ] && [ -n "$ptxas" ] && [ -n "$libclc" ] ;;
    amd) [ -n "$clang" ] && [ -n "$bitcode" ] ;;
    intel) [ -n "$ocloc" ] ;;
    esac
}

needs() {
    case $1 in
    nvidia) echo "clang, ptxas (of CUDA) and libclc" ;;
    amd) echo "clang and rocm-device-libs" ;;
    intel) echo "ocloc (of intel-opencl-icd)" ;;
    esac
}

# What decides the rows.
sum_of_all() {
    {
        cat "$kernels" "$0" "$libclc" "$bitcode"/*.bc
        grep -v '^# checked: ' "$table"
        "$clang" --version
        "$ptxas" --version
        "$ocloc" --help
        ls /usr/lib/*/libigc.so.*
    } 2>&1 | cksum | tr ' ' -
}

# ---- one compilation: lines "target variant kernel registers spill stack local"

# Makes the text of the PTX for the least of the targets; each then gets its own code, as from a
# driver.
to_ptx() { # to_ptx FILE OPTION...
    to=$1
    shift
    # shellcheck disable=SC2046 # words
    "$clang" -target nvptx64-nvidia-nvcl -Xclang -target-cpu -Xclang sm_75 \
        -Xclang -target-feature -Xclang +ptx63 -nogpulib -x cl -cl-std=CL1.2 \
        -Xclang -finclude-default-header -O3 -Wno-linker-warnings $(defines "$@") \
        '-Dnative_exp2(x)=__nvvm_ex2_approx_ftz_f(x)' \
        -Xclang -mlink-builtin-bitcode -Xclang "$libclc" -S "$kernels" -o "$to"
}

read_ptxas() { # functions that are called count with their callers: "cumulative"
    awk -v target="$1" -v variant="$2" '
        /Compiling entry function/ { split($0, part, "\047"); kernel = part[2] }
        /Function properties for/ { mine = $NF == kernel }
        / bytes stack frame/ && mine { stack = $1; spill = $5 + $9 }
        / Used [0-9]+ registers/ {
            local = 0
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^registers/) registers = $(i - 1)
                if ($i ~ /^smem/) local = $(i - 2)
                if ($i == "cumulative") stack = $(i - 2)
            }
            print target, variant, kernel, registers, spill, stack, local
        }'
}

to_amd() { # to_amd FILE TARGET OPTION...
    to=$1
    target=$2
    shift 2
    # shellcheck disable=SC2046 # words
    set -- $(defines "$@")
    lanes=$(targets | awk -v target="$target" '$1 == target { print $4 }')
    for library in opencl ocml ockl oclc_correctly_rounded_sqrt_off oclc_daz_opt_off \
        oclc_finite_only_off oclc_unsafe_math_off oclc_abi_version_500 \
        "oclc_isa_version_$(targets | awk -v target="$target" '$1 == target { print $3 }')" \
        "oclc_wavefrontsize64_$([ "$lanes" = 64 ] && echo on || echo off)"; do
        set -- "$@" -Xclang -mlink-builtin-bitcode -Xclang "$bitcode/$library.bc"
    done
    "$clang" -target amdgcn-amd-amdhsa -mcpu="$target" -nogpulib -x cl -cl-std=CL1.2 \
        -Xclang -finclude-default-header -O3 "$@" -S "$kernels" -o "$to"
}

# Scalar registers are spilled to lanes of the others, which takes no memory by itself.
read_amd() {
    awk -v target="$1" -v variant="$2" '
        /^amdhsa.kernels:/ { on = 1 }
        on && /^    \.group_segment_fixed_size:/ { local = $2 }
        on && /^    \.name:/ { kernel = $2 }
        on && /^    \.private_segment_fixed_size:/ { stack = $2 }
        on && /^    \.uses_dynamic_stack: *true/ { stack = 999999 }
        on && /^    \.vgpr_count:/ { registers = $2 }
        on && /^    \.vgpr_spill_count:/ {
            print target, variant, kernel, registers, $2, stack, local
        }' "$3"
}

to_intel() { # to_intel FILE TARGET OPTION...: what it printed in FILE.log
    to=$1
    target=$2
    shift 2
    "$ocloc" compile -file "$kernels" -device "$target" --format zebin \
        -options "-cl-std=CL1.2$(defines "$@")" -output "${to##*/}" -output_no_suffix \
        -out_dir "${to%/*}" > "$to.log" 2>&1 || { cat "$to.log"; return 1; }
}

# The text .ze_info is a section of the file. Stack is the scratch memory of a thread.
read_intel() {
    {
        sed -n 's/.*kernel \([a-z_]*\) *compiled.*spilled around \([0-9]*\).*/spilled \1 \2/p' \
            "$3.log"
        tr -cd '\12\40-\176' < "$3"
    } | awk -v target="$1" -v variant="$2" '
        function flush() {
            if (kernel != "")
                print target, variant, kernel, registers, spilled[kernel] + 0, stack + 0, local + 0
            kernel = ""
            stack = local = 0
        }
        $1 == "spilled" { spilled[$2] = $3 }
        /kernels: *$/ { on = 1 }
        /^kernels_misc_info:/ { flush(); on = 0 }
        on && /^  - name: / { flush(); kernel = $3 }
        on && /^      grf_count: / { registers = $2 }
        on && /^      slm_size: / { local = $2 }
        on && /^      - type: *scratch/ { scratch = 1 }
        on && /^        size: / && scratch { stack += $2; scratch = 0 }
        END { flush() }'
}

# compile TARGET VENDOR VARIANT FILE OPTION...: writes lines to FILE.rows; fails where the kernels
# do not compile, with the reason in FILE.log.
compile() {
    target=$1 vendor=$2 variant=$3 file=$4
    shift 4
    case $vendor in
    nvidia)
        [ -s "$file.ptx" ] || to_ptx "$file.ptx" "$@" > "$file.log" 2>&1 || return 1
        "$ptxas" -v -arch="$target" "$file.ptx" -o "$file.cubin" > "$file.log" 2>&1 &&
            read_ptxas "$target" "$variant" < "$file.log" >> "$file.rows"
        ;;
    amd)
        to_amd "$file.s" "$target" "$@" > "$file.log" 2>&1 &&
            read_amd "$target" "$variant" "$file.s" >> "$file.rows"
        ;;
    intel)
        to_intel "$file.bin" "$target" "$@" > "$file.log" 2>&1 &&
            read_intel "$target" "$variant" "$file.bin" >> "$file.rows"
        ;;
    esac
}

wrong() { # wrong FILE TARGET VARIANT: it does not compile
    echo "WRONG $2 $3: does not compile:" \
        "$(grep -m 1 -iE 'error|fatal' "$1.log" || tail -n 1 "$1.log")"
}

# Runs line $1 of the jobs: a variant for one target, or for all of NVIDIA's.
one() {
    # shellcheck disable=SC2046 # words
    set -- $(sed -n "${1}p" "$out/jobs") "$1"
    vendor=$1 targets=$(echo "$2" | tr , ' ') variant=$3
    shift 3
    options=
    while [ $# -gt 1 ]; do
        options="$options $1"
        shift
    done
    for target in $targets; do
        # shellcheck disable=SC2086 # words
        compile "$target" "$vendor" "$variant" "$out/$1" $options ||
            wrong "$out/$1" "$target" "$variant"
    done > "$out/$1.wrong"
}

if [ "${1:-}" = --one ]; then
    one "$2"
    exit 0
fi

# ---- judgement

# judge ROWS TABLE: prints a line for each error.
judge() {
    for target in $(targets | awk '{ print $1 }'); do
        echo "cap $target $(local_cap "$target")"
    done | awk '
        FILENAME == "-" { cap[$2] = $3; next }
        /^#/ || NF == 0 { next }
        FILENAME == ARGV[2] && $1 == "reason" { reason[$2] = NF > 2; next }
        FILENAME == ARGV[2] {
            limit[$1, $2, $3] = $4 " " $5 " " $6 " " $7
            if ($5 + $6 > 0 && !reason[$8])
                printf "WRONG %s %s %s: the table allows spills or stack and does not say why\n",
                    $1, $2, $3
            next
        }
        function over(what, is, most) {
            if (is > most)
                printf "WRONG %s %s %s: %s %d, at most %d\n", $1, $2, $3, what, is, most
        }
        {
            if (!(($1, $2, $3) in limit)) {
                printf "WRONG %s %s %s: not in the table\n", $1, $2, $3
                split("9999 0 0 999999", most, " ")
            } else
                split(limit[$1, $2, $3], most, " ")
            over("registers", $4, most[1] + 0)
            over("spill", $5, most[2] + 0)
            over("bytes of stack", $6, most[3] + 0)
            over("bytes of local memory", $7, most[4] + 0)
            over("bytes of local memory on the device", $7, cap[$1] + 0)
            tried[$1, $2] = 1
            seen[$1, $2, $3] = 1
        }
        END {
            for (row in limit) {
                split(row, key, SUBSEP)
                if (tried[key[1], key[2]] && !seen[row])
                    printf "WRONG %s %s %s: no such kernel\n", key[1], key[2], key[3]
            }
        }' - "$2" "$1"
}

# Makes the table of these rows. Registers may grow a little, because compilers' versions differ.
write_table() {
    awk '
        FILENAME == ARGV[1] && (/^#/ || $1 == "reason" || NF == 0) { print; next }
        FILENAME == ARGV[1] { why[$1, $2, $3] = $8; next }
        {
            letter = why[$1, $2, $3]
            if ($5 + $6 == 0) letter = ""
            else if (letter == "") letter = "?"
            printf "%-7s %-16s %-15s %3d %4d %5d %5d %s\n", $1, $2, $3, int(($4 + 15) / 8) * 8,
                $5, $6, $7, letter
        }' "$table" "$1" | sed 's/ *$//' > "$out/table" && cp "$out/table" "$table"
}

# ---- the language

dialects="CL1.2 CL2.0 CL3.0"

language() { # language FILE: what is wrong
    for dialect in $dialects; do
        variants | sed 's/^[^ ]* *[^ ]* *//' | while read -r options; do
            # shellcheck disable=SC2046,SC2086 # words
            "$clang" -target spir64 -x cl -cl-std=$dialect -Xclang -finclude-default-header \
                -Xclang -cl-ext=-cl_khr_fp64,-__opencl_c_fp64 $(defines $options) \
                -fsyntax-only -Wall -Wextra -pedantic -Werror "$1" > "$out/language.log" 2>&1 ||
                echo "WRONG $dialect: $(grep -m 1 error "$out/language.log")"
        done
    done
}

# ---- planted bugs, in the kernel check: a small program

# plant NAME SED PATTERN: checks that each compiler at hand notices the bug.
plant() {
    sed "$2" kernels.cl > "$out/planted.cl"
    if cmp -s kernels.cl "$out/planted.cl"; then
        echo "WRONG nothing to plant '$1' in"
        return
    fi
    for target in $planted_targets; do
        vendor=$(targets | awk -v target="$target" '$1 == target { print $2 }')
        rm -f "$out/planted".*[!l]
        (
            kernels=$out/planted.cl
            compile "$target" "$vendor" others "$out/planted" PART_CHECK=1 ||
                wrong "$out/planted" "$target" others
        ) > "$out/planted.wrong" 2>&1
        [ ! -e "$out/planted.rows" ] || judge "$out/planted.rows" "$table" |
            grep -v 'no such kernel' >> "$out/planted.wrong"
        noticed "$1" "$3" "$target"
    done
}

noticed() { # noticed NAME PATTERN WHERE
    if grep -qiE "$2" "$out/planted.wrong"; then
        echo "opencl gate: noticed '$1', $3"
    else
        echo "WRONG '$1' was not noticed, $3: $(head -n 1 "$out/planted.wrong")"
    fi
}

r='float r = product + z;'
array='float m[64]; for (int k = 0; k < 64; k++) m[(k * kind + i) \& 63] = x + k;'
large='__local float m[20000]; m[i] = x; barrier(CLK_LOCAL_MEM_FENCE);'

plant_all() {
    plant "an array with a variable index" "s/$r/$array float r = product + z + m[i \& 63];/" \
        'bytes of stack'
    plant "80000 bytes of local memory" "s/$r/$large float r = product + z + m[i ^ 1];/" \
        'local memory|shared data|SLM'
    plant "a syntax error" "s/$r/float r = product z;/" 'does not compile'
    if [ -n "$clang" ]; then
        sed "s/$r/float r = (float)((double)product + z);/" kernels.cl > "$out/planted.cl"
        language "$out/planted.cl" > "$out/planted.wrong"
        noticed "double precision" 'cl_khr_fp64' language
    fi
    awk '!/^#/ && $1 != "reason" && NF { $4 = 1 } { print }' "$table" > "$out/planted.txt"
    judge "$out/rows" "$out/planted.txt" > "$out/planted.wrong"
    noticed "more registers than the table allows" ': registers' table
    # A turn may compile few kernels; the first of them is there.
    read -r target variant kernel _ < "$out/rows"
    awk -v row="$target $variant $kernel" '$1 " " $2 " " $3 == row { $3 = "x" $3 } { print }' \
        "$table" > "$out/planted.txt"
    judge "$out/rows" "$out/planted.txt" > "$out/planted.wrong"
    noticed "a kernel that the table lacks" 'not in the table' table
    noticed "a kernel that is gone" 'no such kernel' table
    awk '$1 != "reason"' "$table" > "$out/planted.txt"
    echo "sm_75 others check 99 4 0 0" >> "$out/planted.txt"
    judge "$out/rows" "$out/planted.txt" > "$out/planted.wrong"
    noticed "an exception without a reason" 'does not say why' table
}

# ---- all of it

begin=$(date +%s)
rm -rf "$out"
mkdir -p "$out" || exit 1
: > "$out/wrong"
if [ -n "$clang" ]; then
    language kernels.cl > "$out/wrong"
    echo "opencl gate: $dialects by $(basename "$clang"): $(grep -c . "$out/wrong") complaints"
else
    echo "opencl gate: language: skipped, there is no clang"
fi

all=${ALL:-${WRITE:-}}
[ "$(sed -n 's/^# checked: //p' "$table")" = "$(sum_of_all)" ] || all=1

# The devices of a variant: $1 is its number among those of the vendor, the others are devices.
chosen() {
    [ -z "$all" ] || { shift; echo "$@"; return; }
    turn=$(($1 % ($# - 1) + 2))
    eval "echo \${$turn}"
}

planted_targets=
for vendor in intel amd nvidia; do
    names=$(targets | awk -v vendor=$vendor '$2 == vendor { print $1 }')
    if ! has $vendor; then
        # shellcheck disable=SC2086 # in one line
        echo "opencl gate: $vendor: skipped," $names "need $(needs $vendor)"
        continue
    fi
    planted_targets="$planted_targets $(echo "$names" | tail -n 1)"
    variants | grep " [a-z,]*$vendor" | awk '{ print NR - 1, $0 }' |
        while read -r number variant _ options; do
            # shellcheck disable=SC2086 # words
            names_here=$(chosen "$number" $names)
            [ $vendor != nvidia ] || names_here=$(echo "$names_here" | tr ' ' ,)
            for name in $names_here; do
                echo "$vendor $name $variant $options"
            done
        done
done > "$out/found"
grep '^opencl gate' "$out/found"
every=${EVERY:-1}
[ -z "$all" ] || every=1
grep -v '^opencl gate' "$out/found" |
    awk -v every="$every" -v commits="$(git rev-list --count HEAD 2> /dev/null || echo 0)" \
        '(NR + commits) % every == 0' > "$out/jobs"
count=$(grep -c . "$out/jobs")
if [ "$count" -eq 0 ]; then
    echo "opencl gate: skipped, no compiler for a device is installed"
    [ ! -s "$out/wrong" ] || { cat "$out/wrong"; exit 1; }
    exit 0
fi
seq 1 "$count" | xargs -P "$jobs" -I '{}' sh tools/opencl_gate.sh --one '{}'
n=1
while [ "$n" -le "$count" ]; do
    if [ ! -e "$out/$n.wrong" ]; then
        echo "WRONG compilation $n ended early"
    elif [ ! -s "$out/$n.wrong" ] && [ ! -s "$out/$n.rows" ]; then
        echo "WRONG $(sed -n "${n}p" "$out/jobs"): no kernel in what it printed"
    fi
    n=$((n + 1))
done >> "$out/wrong"
cat "$out"/*.wrong >> "$out/wrong"
targets | awk '{ print NR, $1 }' > "$out/order"
cat "$out"/*.rows | awk 'FILENAME != "-" { place[$2] = $1; next } { print place[$1], $0 }' \
    "$out/order" - | sort -k1,1n -k3,4 | cut -d ' ' -f 2- > "$out/rows"
[ "${WRITE:-}" != 1 ] || write_table "$out/rows"
judge "$out/rows" "$table" >> "$out/wrong"

# Prints one line a target: the kernel forward in each variant.
awk '
    $3 == "forward" {
        if ($1 != last) printf "%s%-7s", last == "" ? "" : "\n", $1
        last = $1
        printf " %s %d", $2, $4
        if ($5) printf " spill %d", $5
        if ($6) printf " stack %d", $6
        printf " %.1fK;", $7 / 1024
    }
    END { print "" }' "$out/rows"
plant_all > "$out/plants"
grep -v '^WRONG' "$out/plants"
grep '^WRONG' "$out/plants" >> "$out/wrong"
cat "$out/wrong"
excused=$(awk '!/^#/ && $1 != "reason" && $5 + $6 > 0' "$table" | grep -c .)
echo "opencl gate: $(awk '{ print $1 }' "$out/rows" | sort -u | grep -c .) devices," \
    "$(grep -c . "$out/rows") kernels compiled, $(grep -c . "$out/wrong") wrong," \
    "$excused excused in $table$([ -n "$all" ] || echo ', a part, as nothing changed');" \
    "$(($(date +%s) - begin)) s"
[ ! -s "$out/wrong" ] || exit 1
[ -z "${WRITE:-}" ] || ! has nvidia || ! has amd || ! has intel ||
    sed -i "s/^# checked: .*/# checked: $(sum_of_all)/" "$table"
