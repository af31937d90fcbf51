#!/bin/sh
# coverage.sh FOLDER [GROUP...] - what `make fuzz-coverage` does: which lines and branches of the
# library the groups of the test program reach, the kept inputs of the fuzzer among them.
# SPDX-License-Identifier: MIT
#
# FOLDER holds the test program, built by clang with -fprofile-instr-generate -fcoverage-mapping.
# FOLDER/missed.txt has the lines that nothing reached. LLVM names a suffix of the tools, e.g. -14.
# Without GROUP the groups of a device run on PoCL, too, where VENDORS/pocl.icd is (default
# /etc/OpenCL/vendors); its kernels are not optimised, as only the library's lines count.
set -eu
folder=$(cd "$1" && pwd)
shift
LLVM=${LLVM-}
pocl=${VENDORS:-/etc/OpenCL/vendors}/pocl.icd
rm -f "$folder"/*.profraw
export LLVM_PROFILE_FILE="$folder/%p.profraw" POCL_CACHE_DIR="$folder/pocl"

groups() { # groups OPTION-OR-GROUP...
    "$folder/test" "$@" | tail -n 1
}

OCL_ICD_VENDORS=/nonexistent groups "$@"
if [ $# -eq 0 ] && [ -e "$pocl" ]; then
    mkdir -p "$POCL_CACHE_DIR"
    export OCL_ICD_VENDORS="$pocl" ATTN_TEST_BUILD_OPTIONS=-cl-opt-disable
    groups opencl opencl_smoke opencl_programs
    groups --impl opencl masks outputs poison laws
    groups --impl opencl_free masks
    groups --impl opencl_naive masks
fi
"llvm-profdata$LLVM" merge -sparse "$folder"/*.profraw -o "$folder/profile"
"llvm-cov$LLVM" report "$folder/test" -instr-profile="$folder/profile" -show-branch-summary |
    awk '/^attn|^TOTAL/ && $8 > 0 { printf "%-20s %6d lines %8s   %6d branches %8s\n", $1, $8, $10,
        $11, $13 }'
"llvm-cov$LLVM" show "$folder/test" -instr-profile="$folder/profile" |
    grep -E '^ *[0-9]+\| +0\|' > "$folder/missed.txt" || true
echo "$(wc -l < "$folder/missed.txt") lines that nothing reached: $folder/missed.txt"
