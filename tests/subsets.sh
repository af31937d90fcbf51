#!/bin/sh
# subsets.sh - the files that a project takes, in the ways in which projects build them.
# SPDX-License-Identifier: MIT
#
#     sh tests/subsets.sh        (from the root of the repository)
#
# EVERY=N lets gcc and clang take turns: each has one of N commits, N at least 2.
#
# Copies just the two files, and builds with each compiler at hand a program that prints a hash of
# one small call's output: no flags, every standard, optimisation levels, as C++ caller, static,
# under two prefixes in one program, in a project built with -Ofast. All hashes must be equal. A
# build may be refused by #error instead only where the compiler breaks IEEE arithmetic (-Ofast).
# Builds here are silent but for one note: gcc and clang say it where attn.c is not optimised, as
# strict C99 with -Werror too, unless ATTN_UNOPTIMIZED is defined.
#
# Then what src/ gives beside the two files: every level alone, as LEVELS=... tools/amalgamate.sh makes
# it, compiles without a word, defines all that its attn.h declares, and nothing that only another
# level's attn.h does; a program of each level links with that subset, with the whole, and with the
# subset included as ATTN_STATIC; and attn_opencl.c links with the two files and kernels.cl, whose bytes
# are made as its header says.
#
# Then every subset of the attn_simd_*.c files beside the two, attn.c with the ATTN_SIMD_ macros of
# just these: such a program has their kernel sets and no others, and each set gives a golden hash.
# Files without their macros are linked in vain, but linked. Last the CPU time that compiling takes,
# beside that of another file.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
. tests/turns.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-subsets.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cp attn.c attn.h "$work" || exit 1
simd=$(ls attn_simd_*.c | sed 's/^attn_simd_//; s/[.]c$//')
cd "$work" || exit 1
failed=0
count=0
expected=
unoptimized=-DATTN_UNOPTIMIZED

# ---- the programs

# One call with GQA, a causal mask and a softcap, 70 keys; FNV-1a over o and lse.
cat > call.h <<'END'
static unsigned long long hash_call(void)
{
    static float q[4 * 9 * 16], k[2 * 70 * 16], v[2 * 70 * 16], o[4 * 9 * 16], lse[4 * 9];
    static char workspace[1 << 18];
    unsigned long long hash = 0xcbf29ce484222325ull;
    unsigned state = 1;
    size_t i, need = 0;
    attn_params p = {0};
    float *all[3] = {q, k, v};
    const size_t sizes[3] = {sizeof q / 4, sizeof k / 4, sizeof v / 4};
    int t;
    for (t = 0; t < 3; t++)
        for (i = 0; i < sizes[t]; i++) {
            state = state * 1664525u + 1013904223u;
            all[t][i] = (float)(int)(state >> 8) / 4194304.0f - 2.0f;
        }
    p.batch = 1;
    p.num_heads_q = 4;
    p.num_heads_kv = 2;
    p.seq_len_q = 9;
    p.seq_len_kv = 70;
    p.head_dim = 16;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    p.lse.data = lse;
    p.causal = 1;
    p.softcap = 3.0f;
    if (attn_workspace_size(&p, &need) != ATTN_OK || need > sizeof workspace ||
        attn_forward(&p, workspace, sizeof workspace) != ATTN_OK)
        return 0;
    for (i = 0; i < sizeof o + sizeof lse; i += 4) {
        unsigned bits;
        memcpy(&bits, i < sizeof o ? (char *)o + i : (char *)lse + (i - sizeof o), 4);
        hash = (hash ^ bits) * 0x100000001b3ull;
    }
    return hash;
}
END
cat > main.c <<'END'
#include "attn.h"
#include <stdio.h>
#include <string.h>
#include "call.h"
int main(void)
{
    if (strcmp(attn_version(), ATTN_VERSION_STRING) || attn_params_size() != sizeof(attn_params))
        return 1;
    printf("%llx\n", hash_call());
    return 0;
}
END
cp main.c main.cc
cat > static.c <<'END'
#define ATTN_STATIC
#include "attn.c"
#include <stdio.h>
#include "call.h"
int main(void)
{
    printf("%llx\n", hash_call());
    return 0;
}
END
cat > merge.c <<'END'
#include "attn.h"
#include <stdio.h>
int main(void)
{
    const float a = 1.0f, b = 3.0f, lse = 0.0f;
    float o = 0.0f, both = 0.0f;
    if (attn_lse_merge(1, 1, &a, &lse, &b, &lse, &o, &both) != ATTN_OK || o != 2.0f)
        return 1;
    printf("%.6f", (double)both); /* log 2 */
    return 0;
}
END
cat > words.c <<'END'
#include "attn.h"
#include <stdio.h>
int main(void)
{
    attn_params p = {0};
    attn_info info = {0};
    char text[1024];
    if (attn_params_from_string(&p, "impl=naive workers=3", NULL, 0) != ATTN_OK)
        return 1;
    info.impl_name = info.kernels_name = info.backend_name = attn_impl_name(p.impl);
    printf("%d %.23s", p.num_workers, attn_info_format(&info, text, sizeof text));
    return 0;
}
END
cat > explain.c <<'END'
#include "attn.h"
#include <stdio.h>
int main(void)
{
    attn_params p = {0};
    attn_info info;
    p.batch = p.num_heads_q = 1;
    p.seq_len_q = p.seq_len_kv = 100;
    p.head_dim = 64;
    p.causal = 1;
    if (attn_explain(&p, &info) != ATTN_OK)
        return 1;
    printf("%s %.0f", info.impl_name, info.pairs);
    return 0;
}
END
cat > rope.c <<'END'
#include "attn.h"
#include <stdio.h>
int main(void)
{
    static float x[8] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, 8.0f};
    const int64_t position = 1000;
    attn_rope rope = {0};
    attn_rope_rows rows = {0};
    rows.batch = rows.num_heads = rows.seq_len = 1;
    rows.head_dim = 8;
    rows.x.data = rows.y.data = x;
    rows.first = &position;
    if (attn_rope_apply(&rope, &rows, NULL, 0) != ATTN_OK)
        return 1;
    printf("%.9g %.9g", (double)x[0], (double)x[7]);
    return 0;
}
END
cat > cache.c <<'END'
#include "attn.h"
#include <stdio.h>
int main(void)
{
    static float x[24], y[8];
    static char memory[4096], workspace[1 << 18];
    attn_rope rope = {0};
    attn_cache c = {0};
    attn_cache_step s = {0};
    attn_params p = {0};
    int i;
    for (i = 0; i < 24; i++)
        x[i] = (float)i;
    c.num_sequences = c.num_heads_kv = s.batch = 1;
    c.head_dim = 8;
    c.capacity = c.page_size = s.seq_len = 3;
    s.k.data = s.v.data = p.q.data = x;
    s.rope = &rope;
    if (attn_cache_init(&c, memory, sizeof memory, NULL, 0) != ATTN_OK ||
        attn_cache_append(&c, &s, NULL, 0) != ATTN_OK ||
        attn_cache_view(&c, 0, NULL, 1, &p, NULL, 0, NULL, 0) != ATTN_OK)
        return 1;
    p.num_heads_q = p.seq_len_q = 1;
    p.o.data = y;
    p.scale = 0.01f;
    if (attn_forward(&p, workspace, sizeof workspace) != ATTN_OK)
        return 1;
    printf("%.9g", (double)y[0]);
    return 0;
}
END
cat > backward.c <<'END'
#include "attn.h"
#include <stdio.h>
int main(void)
{
    static float x[24], o[24], lse[3], dq[24], dk[24];
    static char workspace[1 << 20];
    attn_params p = {0};
    attn_gradients g = {0};
    int i;
    for (i = 0; i < 24; i++)
        x[i] = (float)(i % 5);
    p.batch = p.num_heads_q = p.causal = 1;
    p.seq_len_q = p.seq_len_kv = 3;
    p.head_dim = 8;
    p.q.data = p.k.data = p.v.data = g.dout.data = x;
    p.o.data = o;
    p.lse.data = lse;
    g.dq.data = dq;
    g.dk.data = dk;
    if (attn_forward(&p, workspace, sizeof workspace) != ATTN_OK ||
        attn_backward(&p, &g, workspace, sizeof workspace) != ATTN_OK)
        return 1;
    printf("%.9g %.9g", (double)dq[9], (double)dk[0]);
    return 0;
}
END
cat > long.c <<'END'
#include "attn.h"
#include <stdio.h>
int main(void)
{
    static float x[24], o[24], lse[3], dq[24];
    static char workspace[1 << 20];
    attn_pattern t = attn_pattern_longformer(1, 0);
    attn_pattern_info info;
    attn_dilated_branch branches[2] = {{0}};
    attn_dilated d = {0};
    attn_params p = {0};
    attn_gradients g = {0};
    int i;
    for (i = 0; i < 24; i++)
        x[i] = (float)(i % 5);
    t.seq_len_q = t.seq_len_kv = 1000;
    p.batch = p.num_heads_q = p.causal = 1;
    p.seq_len_q = p.seq_len_kv = 3;
    p.head_dim = 8;
    p.q.data = p.k.data = p.v.data = g.dout.data = x;
    p.o.data = o;
    p.lse.data = lse;
    g.dq.data = dq;
    branches[1].dilation = 2;
    d.num_branches = 2;
    d.branches = branches;
    if (attn_pattern_measure(&t, &info, NULL, 0) != ATTN_OK ||
        attn_dilated_forward(&p, &d, workspace, sizeof workspace) != ATTN_OK ||
        attn_dilated_backward(&p, &d, &g, workspace, sizeof workspace) != ATTN_OK)
        return 1;
    printf("%d %.9g %.9g", (int)info.num_columns, (double)o[17], (double)dq[17]);
    return 0;
}
END
cat > ring.c <<'END'
#include "attn.h"
#include <stdio.h>
static int agree(void *user, int value)
{
    (void)user;
    return value;
}
static int begin(void *user, const void *send, size_t sent, void *receive, size_t received)
{
    (void)user, (void)send, (void)sent, (void)receive, (void)received;
    return 1;
}
static int end(void *user)
{
    (void)user;
    return 1;
}
static void cancel(void *user)
{
    (void)user;
}
int main(void)
{
    static float x[24], o[24], lse[3], dk[24];
    static char workspace[1 << 20];
    attn_params p = {0};
    attn_gradients g = {0};
    attn_transport alone = {0};
    attn_ring ring = {0};
    int i;
    for (i = 0; i < 24; i++)
        x[i] = (float)(i % 5);
    alone.size = 1;
    alone.agree = agree;
    alone.begin = begin;
    alone.end = end;
    alone.cancel = cancel;
    ring.transport = &alone;
    p.batch = p.num_heads_q = p.causal = 1;
    p.seq_len_q = p.seq_len_kv = 3;
    p.head_dim = 8;
    p.q.data = p.k.data = p.v.data = g.dout.data = x;
    p.o.data = o;
    p.lse.data = lse;
    g.dk.data = dk;
    if (attn_ring_forward(&p, &ring, workspace, sizeof workspace) != ATTN_OK ||
        attn_ring_backward(&p, &g, &ring, workspace, sizeof workspace) != ATTN_OK)
        return 1;
    printf("%.9g", (double)dk[0]);
    return 0;
}
END
cat > far.c <<'END'
#include "attn.h"
#include <stdio.h>
static int agree(void *user, int value)
{
    (void)user;
    return value;
}
static int begin(void *user, const void *send, size_t sent, void *receive, size_t received)
{
    (void)user, (void)send, (void)sent, (void)receive, (void)received;
    return 1;
}
static int end(void *user)
{
    (void)user;
    return 1;
}
static void cancel(void *user)
{
    (void)user;
}
int main(void)
{
    static float x[24], o[24];
    static char workspace[1 << 20];
    attn_dilated_branch branches[2] = {{0}};
    attn_dilated d = {0};
    attn_params p = {0};
    attn_transport alone = {0};
    attn_ring ring = {0};
    int i;
    for (i = 0; i < 24; i++)
        x[i] = (float)(i % 5);
    alone.size = 1;
    alone.agree = agree;
    alone.begin = begin;
    alone.end = end;
    alone.cancel = cancel;
    ring.transport = &alone;
    p.batch = p.num_heads_q = p.causal = 1;
    p.seq_len_q = p.seq_len_kv = 3;
    p.head_dim = 8;
    p.q.data = p.k.data = p.v.data = x;
    p.o.data = o;
    branches[1].dilation = 2;
    d.num_branches = 2;
    d.branches = branches;
    if (attn_dilated_ring_forward(&p, &d, &ring, workspace, sizeof workspace) != ATTN_OK)
        return 1;
    printf("%.9g", (double)o[17]);
    return 0;
}
END
cat > grow.c <<'END'
#include "attn.h"
#include <stdio.h>
static int agree(void *user, int value)
{
    (void)user;
    return value;
}
static int begin(void *user, const void *send, size_t sent, void *receive, size_t received)
{
    (void)user, (void)send, (void)sent, (void)receive, (void)received;
    return 1;
}
static int end(void *user)
{
    (void)user;
    return 1;
}
static void cancel(void *user)
{
    (void)user;
}
int main(void)
{
    static float x[24], o[24];
    static char workspace[1 << 20];
    attn_params p = {0};
    attn_transport alone = {0};
    attn_ring ring = {0};
    int i;
    for (i = 0; i < 24; i++)
        x[i] = (float)(i % 5);
    alone.size = 1;
    alone.agree = agree;
    alone.begin = begin;
    alone.end = end;
    alone.cancel = cancel;
    ring.transport = &alone;
    p.batch = p.num_heads_q = p.causal = 1;
    p.seq_len_q = 1;
    p.seq_len_kv = 3;
    p.head_dim = 8;
    p.q.data = p.k.data = p.v.data = x;
    p.o.data = o;
    if (attn_ring_decode_forward(&p, &ring, workspace, sizeof workspace) != ATTN_OK)
        return 1;
    printf("%.9g", (double)o[1]);
    return 0;
}
END
cat > resume.c <<'END'
#include "attn.h"
#include <stdio.h>

static int fetch(void *user, const attn_fetch *tile)
{
    float *k = (float *)tile->k, *v = (float *)tile->v;
    int64_t j;
    (void)user;
    for (j = 0; j < tile->count; j++) {
        k[j] = 0.0f;
        v[j] = (float)(tile->first + j);
    }
    return 0;
}

/* The mean of 0 .. 3000. */
int main(void)
{
    static char memory[1 << 19];
    static attn_resumable r;
    float q = 1, o = 0;
    attn_params p = {0};
    p.batch = p.num_heads_q = p.seq_len_q = p.head_dim = 1;
    p.seq_len_kv = 3001;
    p.q.data = &q;
    p.o.data = &o;
    if (attn_resume_begin(&r, &p, 16, fetch, NULL, memory, sizeof memory) != ATTN_OK)
        return 1;
    while (r.done < r.total)
        if (attn_resume_step(&r, 7) != ATTN_OK)
            return 1;
    if (attn_resume_end(&r) != ATTN_OK)
        return 1;
    printf("%.9g\n", (double)o);
    return 0;
}
END
cat > opencl.c <<'END'
#include "attn_opencl.h"
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    attn_opencl_options none = {0};
    attn_opencl *gpu = malloc(attn_opencl_size());
    none.library = "/none";
    printf("%d ", (int)attn_opencl_open(gpu, &none));
    printf("%s", attn_opencl_why(gpu));
    free(gpu);
    return 0;
}
END
# The same library twice in one program, each under its own names, and neither under attn_.
for name in one two; do
    cat > "$name.c" <<END
#define ATTN_PREFIX ${name}_
#include "attn.h"
#include <string.h>
#include "call.h"
unsigned long long hash_$name(void);
unsigned long long hash_$name(void)
{
    return hash_call();
}
END
done
cat > both.c <<'END'
#include <stdio.h>
unsigned long long hash_one(void);
unsigned long long hash_two(void);
const char *attn_version(void);
const char *attn_version(void) /* the user's own function of that name does not clash */
{
    return "not the library";
}
int main(void)
{
    printf("%llx\n", hash_one() == hash_two() ? hash_one() : 0);
    return 0;
}
END

# ---- building and comparing

fail()
{
    echo "FAILED $*"
    [ -s log ] && sed 's/^/    /' log | head -n 8
    failed=1
}

# judge NAME: runs ./program and compares its hash.
judge()
{
    count=$((count + 1))
    got=$(./program 2>log) || got=
    if [ -z "$got" ] || [ "$got" = 0 ]; then
        fail "$1: the program failed"
        return
    fi
    [ -n "$expected" ] || expected=$got
    [ "$got" = "$expected" ] || fail "$1: hash $got, not $expected"
}

# try NAME COMMAND...: a build into ./program that must succeed without a word.
try()
{
    name=$1
    shift
    rm -f program
    if ! "$@" -o program >log 2>&1; then
        fail "$name: does not compile"
    elif [ -s log ]; then
        fail "$name: the compiler complains"
    else
        judge "$name"
    fi
}

# try_fast NAME COMMAND...: must give the right hash or stop with an #error of the library.
try_fast()
{
    name=$1
    shift
    rm -f program
    if "$@" -o program >log 2>&1; then
        judge "$name"
    elif grep -q 'error.*attn' log; then
        count=$((count + 1))
    else
        fail "$name: neither compiles nor says why"
    fi
}

# noted COMPILER FLAG...: attn.c is right, and the note is said. What needs the optimiser to be seen
# is for the builds of try_compiler.
noted()
{
    "$@" -fsyntax-only attn.c >log 2>&1 && grep -q "attn: .* without -O2" log
}

# silent COMPILER FLAG...: attn.c is read without a word.
silent()
{
    "$@" -fsyntax-only attn.c >log 2>&1 && [ ! -s log ]
}

try_note()
{
    # shellcheck disable=SC2086 # words
    set -- "$1" -std=c99 -pedantic -Wall -Wextra -Wconversion -Wshadow -Werror
    count=$((count + 5))
    noted "$@" || fail "$1: no flag, and no note"
    noted "$@" -O0 -g || fail "$1 -O0: no note"
    silent "$@" -O0 $unoptimized || fail "$1 -O0 $unoptimized: not silent"
    for level in -O1 -O2; do silent "$@" $level || fail "$1 $level: not silent"; done
}

try_compiler()
{
    cc=$1
    warnings="-pedantic -Wall -Wextra -Werror"
    for options in "-std=c99 -O2" "-std=c11 -O0 $unoptimized" "-std=gnu11 -O1"; do
        try "$cc $options" "$cc" $options $warnings main.c attn.c
    done
    for options in -Os "-O3 -march=native"; do
        try "$cc $options" "$cc" $options main.c attn.c
    done
    try "$cc, included with ATTN_STATIC" "$cc" -O1 -Wno-unused-function static.c
    if "$cc" -c -DATTN_PREFIX=one_ -O1 attn.c -o one.o 2>log &&
        "$cc" -c -DATTN_PREFIX=two_ -O0 attn.c -o two.o 2>log; then
        try "$cc, twice under ATTN_PREFIX" "$cc" both.c one.c two.c one.o two.o
    else
        fail "$cc: ATTN_PREFIX does not compile"
    fi
    for flags in -Ofast "-O2 -ffast-math" "-O2 -ffp-contract=fast -march=native"; do
        try_fast "$cc $flags" "$cc" $flags main.c attn.c
    done
}

# says NAME WANTED COMMAND...: a build into ./program that prints just this.
says()
{
    name=$1
    wanted=$2
    shift 2
    rm -f program
    count=$((count + 1))
    if ! "$@" -o program >log 2>&1 || [ -s log ]; then
        fail "$name: does not compile without a word"
    elif ./program > log; [ "$(cat log)" != "$wanted" ]; then
        fail "$name: another result than $wanted"
    fi
}

# Programs: level | program | what it prints.
programs()
{
    cat <<TABLE
merge|merge.c|0.693147
explain|explain.c|tiled 5050
options|words.c|3 impl              naive
rope|rope.c|-3.57201886 7.68830204
cache|cache.c|14.5739756
backward|backward.c|0.00011328909 -0.0196666885
resume|resume.c|1500
patterns dilated|long.c|46 1.99823678 0.00871065818
ring|ring.c|-0.0196666885
dilated_ring|far.c|1.99823678
ring_decode|grow.c|1.08702469
TABLE
}

strict="-std=c99 -pedantic -Wall -Wextra -Wshadow -Werror $unoptimized"

declared() # declared HEADER: the functions in it
{
    grep '^ATTN_API' "$1" | grep -oE 'attn_[a-z0-9_]+\(' | tr -d '(' | sort
}

defined() # defined OBJECT
{
    "${NM:-nm}" "$1" | awk '$2 == "T" { sub(/^_/, "", $3); print $3 }' | sort
}

# make_level "LEVELS": attn.h, attn.c and attn.o of these in the folder level.
make_level()
{
    rm -rf level
    mkdir level
    LEVELS=$2 sh "$root/tools/amalgamate.sh" "$PWD/level" >log 2>&1 &&
        # shellcheck disable=SC2086 # words
        "$1" $strict -c level/attn.c -o level/attn.o >log 2>&1 && [ ! -s log ]
}

# Every level of src/attn.c alone.
try_levels()
{
    declared attn.h > all
    for level in $(sed -n 's|^#include "\(.*/\)\{0,1\}\([a-z_]*\)[.]c"|\2|p' "$root/src/attn.c"); do
        count=$((count + 1))
        if ! make_level "$1" "$level"; then
            fail "$1, level $level: does not compile without a word"
            continue
        fi
        declared level/attn.h > mine
        defined level/attn.o > have
        comm -23 mine have > log
        [ ! -s log ] || fail "$1, level $level: declared and not defined"
        comm -23 all mine | comm -12 - have > log
        [ ! -s log ] || fail "$1, level $level: has functions that its attn.h does not declare"
    done
}

try_programs()
{
    programs > table
    while IFS='|' read -r level program wanted; do
        says "$1, $program with the two files" "$wanted" "$1" "$program" whole.o
        if ! make_level "$1" "$level"; then
            fail "$1, level $level: does not compile without a word"
            continue
        fi
        cp "$program" level/program.c
        { echo '#define ATTN_STATIC'; echo '#include "attn.c"'; cat "$program"; } > level/static.c
        # shellcheck disable=SC2086 # words
        says "$1, $program with LEVELS='$level'" "$wanted" "$1" $strict level/program.c level/attn.o
        says "$1, $program with ATTN_STATIC" "$wanted" "$1" $unoptimized -Wno-unused-function \
            level/static.c
    done < table
    says "$1, my_ for attn_" "1500" "$1" $unoptimized -DATTN_PREFIX=my_ resume.c attn.c
}

# The backend beside the two files.
try_opencl()
{
    rm -rf device
    mkdir device
    cp attn.h attn.c opencl.c "$root/attn_opencl.h" "$root/attn_opencl.c" "$root/kernels.cl" device
    od -An -v -tu1 "$root/kernels.cl" | sed 's|[0-9][0-9]*|&,|g' > device/kernels_cl.inc
    # shellcheck disable=SC2086 # words
    says "$1, attn_opencl.c" "4 no OpenCL library: /none" "$1" $strict -O1 device/opencl.c \
        device/attn_opencl.c whole.o -ldl
}

try_companions()
{
    "$1" -c attn.c -o whole.o >log 2>&1 || fail "$1: does not compile"
    try_levels "$1"
    try_programs "$1"
    try_opencl "$1"
}

# The header in a C++ program, the library compiled by the C compiler.
try_cxx()
{
    cc=$1
    cxx=$2
    command -v "$cxx" >/dev/null 2>&1 || return 0
    "$cc" -O1 -c attn.c -o plain.o 2>log || fail "$cc: does not compile"
    for standard in c++11 c++17; do
        try "$cxx -std=$standard" "$cxx" -std=$standard -pedantic -Wall -Wextra \
            -Wno-missing-field-initializers -Werror main.cc plain.o
    done
}

# ---- subsets of the SIMD files

# The first case of golden.h by every kernel set of this program, whose names it prints.
cat > golden.c <<'END'
#include "attn.h"
#include <stdio.h>
#include <string.h>
#include "bits_data.h"
#include "golden.h"
enum { HEADS = 2, ROWS = 17, KEYS = 500, DIM = 64 };
static float q[HEADS * ROWS * DIM], k[HEADS * KEYS * DIM], v[HEADS * KEYS * DIM];
static float o[HEADS * ROWS * DIM], lse[HEADS * ROWS], stats[2 * HEADS * ROWS];
static float rest[3 * HEADS * ROWS]; /* lse, m and l of each row */
static char workspace[1 << 20];
static void fill(float *x, size_t n, uint32_t (*element)(const bits_case *, uint32_t))
{
    uint32_t at;
    for (at = 0; at < n; at++) {
        const uint32_t bits = element(&bits_cases[0], at);
        memcpy(x + at, &bits, sizeof bits);
    }
}
static uint64_t hash_of(const float *x, size_t n)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    size_t at;
    for (at = 0; at < 4 * n; at++) {
        uint32_t bits;
        memcpy(&bits, x + at / 4, sizeof bits);
        hash = (hash ^ (bits >> 8 * (at % 4) & 255)) * UINT64_C(0x100000001b3);
    }
    return hash;
}
static int is_golden(const attn_kernels *set)
{
    attn_params p = {0};
    int row;
    p.batch = 1;
    p.num_heads_q = p.num_heads_kv = HEADS;
    p.seq_len_q = ROWS;
    p.seq_len_kv = KEYS;
    p.head_dim = DIM;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    p.lse.data = lse;
    p.stats.data = stats;
    p.causal = 1;
    p.kernels = set;
    if (attn_forward(&p, workspace, sizeof workspace) != ATTN_OK)
        return 0;
    for (row = 0; row < HEADS * ROWS; row++) {
        rest[3 * row] = lse[row];
        memcpy(rest + 3 * row + 1, stats + 2 * row, 2 * sizeof *rest);
    }
    return hash_of(o, sizeof o / sizeof *o) == golden[0].o &&
           hash_of(rest, sizeof rest / sizeof *rest) == golden[0].rest;
}
int main(void)
{
    const attn_kernels *set;
    int i;
    fill(q, sizeof q / sizeof *q, bits_q);
    fill(k, sizeof k / sizeof *k, bits_k);
    fill(v, sizeof v / sizeof *v, bits_v);
    for (i = 0; (set = attn_kernels_get(i)) != NULL; i++) {
        if (!is_golden(set))
            return 1;
        printf("%s ", attn_kernels_name(set));
    }
    return 0;
}
END

# object COMPILER FILE FOLDER "FLAGS": FILE alone with the headers in FOLDER, in ./object.o.
object()
{
    rm -rf alone
    mkdir alone
    cp "$2" "$3"/*.h alone
    # shellcheck disable=SC2086 # words
    (cd alone && "$1" $4 -c "${2##*/}" -o ../object.o) > log 2>&1
}

macros()
{
    for file in $1; do
        printf -- '-DATTN_SIMD_%s ' "$(echo "$file" | tr '[:lower:]' '[:upper:]')"
    done
}

# objects COMPILER FILE...: the objects that all programs share, in o/; each file compiled by
# itself, once: its text after the preprocessor is the same with all macros and without.
objects()
{
    cc=$1
    shift
    rm -rf o
    mkdir -p o headers two
    LEVELS=forward sh "$root/tools/amalgamate.sh" "$PWD/two"
    cp attn.h "$root/attn_simd.h" headers
    cp "$root/tests/bits_data.h" "$root/tests/golden.h" .
    "$cc" -c golden.c -o o/golden.o > log 2>&1 || return 1
    for file in "$@"; do
        object "$cc" "$root/attn_simd_$file.c" headers "" && mv object.o "o/$file.o" || return 1
        for macro in "" "$(macros "$*")"; do
            # shellcheck disable=SC2086 # words
            (cd alone && "$cc" -E $macro "attn_simd_$file.c") | cksum
        done | uniq > log
        [ "$(wc -l < log)" -eq 1 ] && ! grep -q ' 0$' log || # 0 bytes: no text at all
            { echo "macros change attn_simd_$file.c" > log; return 1; }
    done
}

# subset COMPILER "FILES" "MACROS": the sets of a program from these SIMD files, attn.c built with
# these macros, in $got; fails, with its reason in log, where it does not build or gives other bits.
subset()
{
    attn=o/attn$(echo "$3" | tr -d ' ').o
    if [ ! -f "$attn" ]; then
        object "$1" two/attn.c two "$(macros "$3")" && mv object.o "$attn" || return 1
    fi
    rm -f program
    # shellcheck disable=SC2046 # words
    "$1" "$attn" o/golden.o $(for file in $2; do echo "o/$file.o"; done) -o program \
        > log 2>&1 || return 1
    got=$(./program) || { echo "$got, and then another hash" > log; return 1; }
}

# The sets of $all that the files in $1 hold, and the portable ones.
sets_of()
{
    for set in $all; do
        case " $1 portable " in *" ${set%%_*} "*) printf '%s ' "$set" ;; esac
    done
}

# expect NAME COMPILER "FILES" "MACROS": such a program has the sets of the macros.
expect()
{
    count=$((count + 1))
    if ! subset "$2" "$3" "$4"; then
        fail "$1: does not build or gives other bits"
    elif [ "$got" != "$(sets_of "$4")" ]; then
        fail "$1: has the sets $got, not $(sets_of "$4")"
    fi
}

# refuse NAME COMPILER "FILES" "MACROS" WORD: no such program; the log says WORD.
refuse()
{
    if subset "$2" "$3" "$4" || ! grep -q "$5" log; then
        fail "$1: not noticed"
    fi
}

try_simd()
{
    cc=$1
    # shellcheck disable=SC2086 # words
    set -- $simd
    if ! objects "$cc" "$@"; then
        fail "$cc: the objects of the SIMD files"
        return
    fi
    if ! subset "$cc" "$*" "$*"; then
        fail "$cc, all SIMD files: does not build or gives other bits"
        return
    fi
    all=$got
    subsets=1
    for name in "$@"; do subsets=$((subsets * 2)); done
    number=0
    while [ "$number" -lt "$subsets" ]; do
        chosen=
        bit=1
        for name in "$@"; do
            [ $((number / bit % 2)) -eq 0 ] || chosen="$chosen$name "
            bit=$((bit * 2))
        done
        expect "$cc, SIMD files ${chosen:-none}" "$cc" "$chosen" "$chosen"
        number=$((number + 1))
    done
    expect "$cc, all SIMD files, no macro" "$cc" "$*" ""
    for name in "$@"; do
        others=$(echo " $* " | sed "s/ $name / /")
        expect "$cc, all SIMD files, no macro for $name" "$cc" "$*" "$others"
        refuse "$cc, the macro for $name without its file" "$cc" "$others" "$*" \
            "attn_kernels_$name"
    done
    case $all in portable*) return ;; esac
    best=${all%%[_ ]*}
    sed 's/0x1.5f8d0cp-10f/0x1.5f9d0cp-10f/' "$root/attn_simd.h" > headers/attn_simd.h
    object "$cc" "$root/attn_simd_$best.c" headers "" && mv object.o "o/$best.o"
    refuse "$cc, another coefficient in attn_simd.h" "$cc" "$*" "$*" "another hash"
    echo "subsets: $cc, $subsets subsets of $*: sets $all"
}

# ---- what compiling takes

# slow SECONDS MOST: whether that is too much.
slow()
{
    awk -v took="$1" -v most="$2" 'BEGIN { exit !(took > most) }'
}

# least_seconds COMPILER FILE MOST: the CPU time of -O2, in $seconds. A busy machine makes it
# larger, never smaller: hence the least of up to three where it is too much.
least_seconds()
{
    least=
    for _ in 1 2 3; do
        seconds=$(sh "$root/tests/user_seconds.sh" "$1" -O2 -I"$root" -c "$root/$2" -o timed.o \
            2> log) || return 1
        [ -n "$least" ] && slow "$seconds" "$least" || least=$seconds
        slow "$least" "$3" || break
    done
    seconds=$least
}

# What a file may take, in times of what tests/oracle.c takes in the same run, as machines differ: gcc
# 12 and clang 14 take 33 to 35 for attn.c, and up to 65 for the largest SIMD file, whose few-row
# kernels are one each for every storage type and number of rows.
try_times()
{
    times=
    if ! least_seconds "$1" tests/oracle.c 0; then
        fail "$1: tests/oracle.c does not compile"
        return
    fi
    unit=$seconds
    for file in attn.c $(echo "$simd" | sed 's/.*/attn_simd_&.c/'); do
        most=$(awk -v unit="$unit" 'BEGIN { print unit * 80 }')
        if ! least_seconds "$1" "$file" "$most"; then
            fail "$1: $file does not compile"
        elif slow "$seconds" "$most"; then
            fail "$1: $file takes $seconds s of CPU time, $most allowed"
        elif [ "$file" = attn.c ] && ! slow "$seconds" "$unit"; then
            fail "$1: a compilation that takes too long is not noticed"
        fi
        times="$times, $file $seconds"
    done
    echo "subsets: $1 -O2, seconds of CPU time, tests/oracle.c $unit$times"
}

# Whether cc is a link to one of those.
is_gcc_or_clang()
{
    [ "$(command -v cc)" -ef "$(command -v gcc)" ] || [ "$(command -v cc)" -ef "$(command -v clang)" ]
}

compilers=
! command -v cc >/dev/null 2>&1 || compilers=" cc"
for cc in gcc clang; do
    ! turn || ! command -v "$cc" >/dev/null 2>&1 || compilers="$compilers $cc"
done
for cc in $compilers; do
    try "$cc, no flags" "$cc" $unoptimized main.c attn.c
    [ "$cc" = cc ] || try_note "$cc"
    [ "$cc" = cc ] || try_compiler "$cc"
    [ "$cc" = cc ] && is_gcc_or_clang || try_companions "$cc"
done
[ -n "$compilers" ] || fail "there is no compiler"
for cc in $compilers; do
    case $cc in
    cc) continue ;;
    gcc) try_cxx gcc g++ ;;
    clang) try_cxx clang clang++ ;;
    esac
    try_simd "$cc"
    try_times "$cc"
done

[ "$failed" -eq 0 ] && echo "subsets: $count builds by$compilers, hash of two files $expected"
exit "$failed"
