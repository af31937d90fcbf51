#!/bin/sh
# numerics.sh - measures the error over the number of keys, compares the tables with those of
# docs/numerics.md.
# SPDX-License-Identifier: MIT
#
# usage: tools/numerics.sh [BUILD] [LENGTHS]      (make numerics; BUILD holds error_table)
#
#   LENGTHS         how many of 1K, 4K ... 1M keys are measured; other columns are not compared
#   RUN             a command that runs a program
#   WRITE=1         writes the tables to the page instead (only with all lengths)
#
# The figures are the same on every machine. When a table differs, the library's bits have changed.
set -u
build=${1:-build}
lengths=${2:-6}
page=$(dirname "$0")/../docs/numerics.md
begin='<!-- tables -->' end='<!-- /tables -->'

fail()
{
    echo "numerics.sh: $*" >&2
    exit 1
}

# The tables of stdin, but for the columns beyond the length asked for.
tables()
{
    awk -F'|' -v last=$((lengths + 3)) '/^\|/ {
        for (i = 2; i <= last; i++) printf "|%s", $i
        print "|" }'
}

for marker in "$begin" "$end"; do
    grep -qxF -- "$marker" "$page" || fail "$page has no line '$marker'"
done
# shellcheck disable=SC2086 # RUN is words
${RUN:-} "$build/error_table" "$lengths" > "$build/numerics.md" || fail "an error is too large"

if [ -n "${WRITE:-}" ]; then
    [ "$lengths" = 6 ] || fail "WRITE needs all 6 lengths"
    awk -v begin="$begin" -v end="$end" -v tables="$build/numerics.md" '
        $0 == end { on = 0 }
        !on { print }
        $0 == begin { on = 1; while ((getline line < tables) > 0) print line }' "$page" \
        > "$build/numerics_page.md" || fail "cannot write $build/numerics_page.md"
    mv "$build/numerics_page.md" "$page" || fail "cannot write $page"
fi

sed -n "/^$begin\$/,\|^$end\$|p" "$page" | tables > "$build/numerics_stated"
tables < "$build/numerics.md" > "$build/numerics_measured"
[ -s "$build/numerics_measured" ] || fail "no tables"
diff "$build/numerics_stated" "$build/numerics_measured" ||
    fail "$page (<) is not what was measured (>): make numerics WRITE=1 writes it"
echo "numerics: $(grep -c . "$build/numerics_measured") lines of tables as docs/numerics.md has them"
