#!/bin/sh
# symbols.sh - what an object of the library shows to the linker, and what it asks of it.
# SPDX-License-Identifier: MIT
#
#     sh tests/symbols.sh build/obj/attn_alone.o          (NM names another nm)
#
# 1. Every exported symbol begins with attn_.
# 2. At most one writable object of static storage, one word: the CPU features. (None where there is
#    nothing to find out about the CPU.)
# 3. Undefined are only the mem functions and strlen, which compilers call unasked, and compiler
#    support: no malloc, stdio, getenv, errno or libm, and nothing of another file of the library.
set -u
NM=${NM:-nm}
object=${1:?"usage: symbols.sh OBJECT"}
failed=0

fail()
{
    echo "FAILED symbols of $object: $*"
    failed=1
}

listing=$("$NM" -f sysv "$object" 2>/dev/null | tr -d ' ') || listing=
if [ -z "$listing" ]; then
    echo "FAILED symbols: $NM cannot read $object"
    exit 1
fi

# name|value|class|type|size|line|section; capital classes are global
exported=$(echo "$listing" | awk -F'|' '$3 ~ /^[TDBRCVWSG]$/ && NF > 5 {print $1}')
[ -n "$exported" ] || fail "nothing is exported"
foreign=$(echo "$exported" | grep -v -e '^_\{0,1\}attn_[a-z0-9_]*$' -e '^__x86\.get_pc')
[ -z "$foreign" ] || fail "exported without attn_:" $foreign

# Tables of pointers that are const, but hold relocations, lie in .data.rel.ro: not writable.
writable=$(echo "$listing" | awk -F'|' '
    $7 ~ /^\.(data|bss|tdata|tbss|sdata|sbss)/ && $7 !~ /^\.data\.rel\.ro/ && $3 != "N" ||
    $3 == "C" || $7 == "*COM*" {print $1 ":" $5}')
count=$(echo "$writable" | grep -c .)
[ "$count" -le 1 ] || fail "$count writable objects, not one:" $writable
size=$(echo "$writable" | head -n 1 | sed 's/.*://; s/^0*//')
case $size in
''|1|2|4|8) ;;
*) fail "the writable object has 0x$size bytes: more than a word" ;;
esac

allowed='^_\{0,1\}\(memcpy\|memset\|memcmp\|memmove\|strlen\|__stack_chk_fail\|__stack_chk_guard\)$'
support='^_GLOBAL_OFFSET_TABLE_$\|^GOMP_\|^omp_\|^__kmpc_\|^__x86\.get_pc_thunk\|^__aeabi_'
runtime='^__u\{0,1\}\(div\|mod\|mul\|ashl\|ashr\|lshr\|cmp\|fix\|float\)[a-z]*[0-9]*$'
undefined=$("$NM" -u "$object" | awk '{print $NF}')
strange=$(echo "$undefined" | grep . | grep -v -e "$allowed" -e "$support" -e "$runtime")
[ -z "$strange" ] || fail "asks the linker for:" $strange

[ "$failed" -eq 0 ] && echo "symbols of $object: $(echo "$exported" | grep -c .) exported," \
    "$count writable word, $(echo "$undefined" | grep -c .) undefined"
exit "$failed"
