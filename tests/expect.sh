# expect.sh - checks that are counted, for scripts that read this file; they have a folder $work.
# SPDX-License-Identifier: MIT
passed=0
failed=0

expect() # expect WHAT COMMAND...: what the command prints is shown when it fails
{
    what=$1
    shift
    if "$@" > "$work/expected" 2>&1; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1))
    echo "FAILED: $what"
    sed 's/^/    /' "$work/expected"
}

summary() # summary NAME: the last line of a script, and its exit status
{
    echo "$1: $passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
