# turns.sh - one in EVERY of what a script does, another part of it for each commit.
# SPDX-License-Identifier: MIT
#
# To be sourced in the repository's root. every: EVERY, or 1. turn: whether it is the turn of what follows.
every=${EVERY:-1}
turns=$(git rev-list --count HEAD 2> /dev/null || echo 0)

turn()
{
    turns=$((turns + 1))
    [ $((turns % every)) -eq 0 ]
}
