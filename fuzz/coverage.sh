#!/bin/sh
# coverage.sh FOLDER [GROUP...] - what `make fuzz-coverage` does: which lines and branches of the
# library the groups of the test program reach, the kept inputs of the fuzzer among them.
# SPDX-License-Identifier: MIT
#
# FOLDER holds the test program, built by clang with -fprofile-instr-generate -fcoverage-mapping.
# FOLDER/missed.txt has the lines that nothing reached. LLVM names a suffix of the tools, e.g. -14.
set -eu
folder=$1
shift
LLVM=${LLVM-}
rm -f "$folder"/*.profraw
OCL_ICD_VENDORS=/nonexistent LLVM_PROFILE_FILE="$folder/%p.profraw" "$folder/test" "$@" |
    tail -n 1
"llvm-profdata$LLVM" merge -sparse "$folder"/*.profraw -o "$folder/profile"
"llvm-cov$LLVM" report "$folder/test" -instr-profile="$folder/profile" -show-branch-summary |
    awk '/^attn|^TOTAL/ && $8 > 0 { printf "%-20s %6d lines %8s   %6d branches %8s\n", $1, $8, $10,
        $11, $13 }'
"llvm-cov$LLVM" show "$folder/test" -instr-profile="$folder/profile" |
    grep -E '^ *[0-9]+\| +0\|' > "$folder/missed.txt" || true
echo "$(wc -l < "$folder/missed.txt") lines that nothing reached: $folder/missed.txt"
