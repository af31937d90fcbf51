#!/bin/sh
# plot.sh BENCH FOLDER [FILE.csv...] - draws the CSV of the bench, or of tools/compare_peers, as PNG
# and SVG in FOLDER.
# SPDX-License-Identifier: MIT
#
# Without files it first measures the presets that the pictures need, with --quick, for some
# minutes. RUN names an emulator, GNUPLOT the program (gnuplot). If gnuplot is missing, one
# sentence says so and nothing is wrong. The exit status is 2 when a file is not a CSV of the bench
# or gives no picture.
set -u
[ $# -ge 2 ] || { echo "usage: plot.sh BENCH FOLDER [FILE.csv...]" >&2; exit 2; }
bench=$1
folder=$2
shift 2
tools=$(cd "$(dirname "$0")" && pwd)
gnuplot=${GNUPLOT:-gnuplot}
pictures='latency memory peers roofline percentiles threads decode'

if ! command -v "$gnuplot" > /dev/null 2>&1; then
    echo "plot: no pictures: there is no gnuplot here (on Debian: apt-get install gnuplot-nox)"
    exit 0
fi
mkdir -p "$folder" || exit 2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Each preset runs by itself, so that each has the time of --quick.
measure() { # measure NAME: a preset or command that this bench offers, to FOLDER/NAME.csv
    ${RUN:-} "$bench" --help > "$work/help"
    grep -E "^(preset)? *$1 " "$work/help" | grep -qv 'not available' || return 0
    rm -f "$folder/$1.csv"
    ${RUN:-} "$bench" "$1" --quick --csv "$folder/$1.csv" ||
        echo "plot: bench $1 found something wrong, see above" >&2
    if [ -f "$folder/$1.csv" ]; then measured="$measured $1"; fi
}

if [ $# -eq 0 ]; then
    measured=
    for name in latency factors decode threads memory; do measure "$name"; done
    for name in $measured; do set -- "$@" "$folder/$name.csv"; done
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
