#!/bin/sh
# every_function.sh - a program of attn.h and attn.c alone calls every function that attn.h declares.
# SPDX-License-Identifier: MIT
#
#     sh tests/every_function.sh build/obj/attn_alone.o        (CC, RUN from the environment)
#
# Compiles tests/every_function.c in a folder with attn.h and nothing else, links it with this object
# alone and runs it. The functions that it calls are compared with the declarations: one that is
# missing there fails, and so does a planted one.
set -u
object=${1:?"usage: every_function.sh OBJECT"}
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-every.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
. "tests/expect.sh"

declared() # declared HEADER
{
    sed -n 's/^ATTN_API .*[ *]\(attn_[a-z0-9_]*\)(.*/\1/p' "$1" | sort
}

called() # without comments
{
    sed -e 's|/\*.*\*/||' -e '/^\/\*/,/\*\//d' tests/every_function.c |
        grep -oE '\battn_[a-z0-9_]+\(' | tr -d '(' | sort -u
}

all_called() # all_called HEADER
{
    declared "$1" > "$work/declared"
    called > "$work/called"
    comm -23 "$work/declared" "$work/called" > "$work/missing"
    sed 's/.*/declared in attn.h, not called in tests\/every_function.c: &/' "$work/missing"
    [ -s "$work/declared" ] && [ ! -s "$work/missing" ]
}

planted_is_noticed()
{
    { cat attn.h; echo 'ATTN_API int attn_planted(void);'; } > "$work/planted.h"
    all_called "$work/planted.h" | grep -q attn_planted
}

builds()
{
    # shellcheck disable=SC2086 # words
    (cp attn.h tests/every_function.c "$work" && cd "$work" &&
        ${CC:-cc} -std=c99 every_function.c -c -o every_function.o) &&
        ${CC:-cc} ${LDFLAGS:-} "$work/every_function.o" "$object" -o "$work/program"
}

# shellcheck disable=SC2086 # words
expect "every function that attn.h declares is called" all_called attn.h
expect "a function that is not called is noticed" planted_is_noticed
expect "attn.h and attn.c alone make the program" builds
expect "every call says what it must" ${RUN:-} "$work/program"
summary "every function of attn.h, $(declared attn.h | grep -c .)"
