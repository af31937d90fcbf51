#!/bin/sh
# plot.sh BENCH FOLDER [FILE.csv...] - pictures of the bench's CSV, as PNG and SVG, in FOLDER.
# SPDX-License-Identifier: MIT
#
# Without files it measures: the presets that the pictures need, with --quick. GNUPLOT: the program
# (gnuplot); where it is missing one sentence says so and nothing is wrong. Exit status 2 when a
# file is no such CSV or no picture can be made of it.
set -u
[ $# -ge 2 ] || { echo "usage: plot.sh BENCH FOLDER [FILE.csv...]" >&2; exit 2; }
bench=$1
folder=$2
shift 2
tools=$(cd "$(dirname "$0")" && pwd)
gnuplot=${GNUPLOT:-gnuplot}
pictures='latency memory roofline percentiles threads decode'

if ! command -v "$gnuplot" > /dev/null 2>&1; then
    echo "plot: no pictures: there is no gnuplot here (on Debian: apt-get install gnuplot-nox)"
    exit 0
fi
mkdir -p "$folder" || exit 2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

offers() { # offers NAME: the bench has such a preset
    "$bench" --list | grep "^preset $1 " | grep -qv 'not available'
}

if [ $# -eq 0 ]; then
    presets=
    for preset in latency decode threads factors; do
        if offers "$preset"; then presets="$presets $preset"; fi
    done
    # shellcheck disable=SC2086 # words
    ${RUN:-} "$bench" $presets --quick --csv "$folder/bench.csv" || exit 1
    set -- "$folder/bench.csv"
    if "$bench" --help | grep -q '^  memory '; then
        ${RUN:-} "$bench" memory --quick --csv "$folder/memory.csv" || exit 1
        set -- "$@" "$folder/memory.csv"
    fi
fi

for file in "$@"; do
    [ -r "$file" ] || { echo "plot: cannot read $file" >&2; exit 2; }
done
awk -v folder="$work" -f "$tools/plot.awk" "$@" || exit 2

drawn=0
for picture in $pictures; do
    [ -f "$work/$picture.set" ] || continue
    for type in png svg; do
        "$gnuplot" -e "picture='$picture'; type='$type'; folder='$work'" \
            -e "out='$folder/$picture.$type'" "$tools/plot.gp" || exit 1
        drawn=$((drawn + 1))
    done
done
[ "$drawn" -gt 0 ] || { echo "plot: nothing to draw in $*" >&2; exit 2; }
echo "plot: $drawn files in $folder"
