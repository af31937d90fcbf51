#!/bin/sh
# page_cost.sh - builds and runs tools/page_cost.c, which compares pages of 16 keys with contiguous
# keys.
# SPDX-License-Identifier: MIT
#
#     sh tools/page_cost.sh [library, default build/libattn.a]     (from the root, after make)
set -eu
library=${1:-build/libattn.a}
program=$(mktemp "${TMPDIR:-/tmp}/attn-page-cost.XXXXXX")
trap 'rm -f "$program"' EXIT
"${CC:-cc}" -std=c99 -O2 -Wall -Wextra tools/page_cost.c "$library" -o "$program"
"$program"
