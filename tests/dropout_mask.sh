#!/bin/sh
# dropout_mask.sh - the lines of Python in docs/canon.md say which pairs dropout keeps, as the
# library does.
# SPDX-License-Identifier: MIT
#
#     sh tests/dropout_mask.sh BUILD        (RUN, PYTHON from the environment)
#
# Runs these lines as they stand, and their function for other seeds, probabilities and numbers.
set -u
build=$1
PYTHON=${PYTHON:-python3}
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-mask.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
. "tests/expect.sh"

awk '/^```/ { on = $0 == "```python"; next } on' docs/canon.md > "$work/lines.py"
expect "five lines" test "$(grep -c . "$work/lines.py")" = 5
if ! "$PYTHON" -c '' 2> /dev/null; then
    echo "dropout mask: Python's lines not compared, there is no $PYTHON"
    summary "dropout mask"
    exit
fi

same() # same FILE SEED P N POS HEAD BATCH: what Python printed is what the library says
{
    file=$1
    shift
    ${RUN:-} "$build/dropout_mask" "$@" > "$work/library" && diff "$file" "$work/library"
}

"$PYTHON" "$work/lines.py" > "$work/python"
expect "the lines as they stand" same "$work/python" 0x0123456789abcdef 0.25 0 0 1 0
expect "some pairs are dropped, some not" grep -q '0 .*1' "$work/python"

# other SEED P N POS HEAD BATCH; the P of attn_params is a float
other()
{
    {
        sed '$d' "$work/lines.py"
        echo 'import struct, sys'
        echo 'seed, n, y, head, batch = (int(sys.argv[i], 0) for i in (1, 3, 4, 5, 6))'
        echo 'p = struct.unpack("f", struct.pack("f", float(sys.argv[2])))[0]'
        echo 'for y in range(y, y + 4):'
        echo '    print(*(int(keep(seed, p, x, y, head, batch)) for x in range(n, n + 16)))'
    } > "$work/other.py"
    "$PYTHON" "$work/other.py" "$@" > "$work/python"
    expect "$*" same "$work/python" "$@"
}

other 0 0.5 0 0 0 0
other 0xffffffffffffffff 0.1 1021 1024 31 3
other 0x8000000000000000 0.99 1000000 2000000 7 65535
other 1 1e-9 0 0 0 0
other 0 0.3990464508533478 0 0 0 0 # the binary32 numbers beside the first word, 6627e8d5
other 0 0.39904648065567017 0 0 0 0
other 42 0.3 4294967280 4294967290 0 1
summary "dropout mask"
