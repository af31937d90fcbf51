/* canon.h - what canon.c and canon_backward.c share: binary32 in integers, and rows.
 * SPDX-License-Identifier: MIT
 */
#ifndef CANON_H
#define CANON_H

#include <stdint.h>
#include "bits_data.h"

typedef uint32_t f32; /* the bits of a binary32 number */

#define MINUS_INF 0xff800000u
#define ONE 0x3f800000u
#define LOG2E 0x3fb8aa3bu
#define CHUNK 1024
#define MAX_KEYS 8192
#define MAX_DIM 288

/* ---- operations; they stop the program at infinities, NaNs and subnormal numbers */

f32 negate(f32 x);
f32 fma32(f32 a, f32 b, f32 c);
f32 add(f32 a, f32 b);
f32 sub(f32 a, f32 b);
f32 mul(f32 a, f32 b);
f32 divide(f32 a, f32 b);
f32 from_integer(int64_t n);
f32 add_zero(f32 x); /* x + 0: -0 becomes +0 */
int less(f32 a, f32 b);
f32 exp2_32(f32 x);
f32 tanh_32(f32 x);
f32 inverse_root(uint64_t n); /* 1 / sqrt(n) */

f32 load(uint32_t bits, int dtype);
uint32_t store(f32 x, int dtype);

/* ---- rows */

typedef struct state {
    f32 m, l, t, d, o[MAX_DIM]; /* t: sum of p * (s - m); d: of what blocks left out hold at most */
} state;

typedef struct row {
    const bits_case *c;
    int b, h, i, keys;                   /* keys: of this batch entry */
    int64_t pos, base;                   /* pos in units of j; base = n of key 0 */
    f32 q[MAX_DIM];                      /* as given, or whole numbers */
    f32 plain_q[MAX_DIM];                /* as given */
    f32 scale[MAX_DIM / BITS_UNIT];      /* of them */
    f32 factor;                          /* of the score */
    f32 s[MAX_KEYS];                     /* logits, base 2 */
    char alive[MAX_KEYS];                /* visible and above -inf */
    char keep[MAX_KEYS];                 /* not dropped */
    f32 raw[MAX_KEYS], capped[MAX_KEYS]; /* raw: before softcap */
    state root;                          /* with the sink, so that m and l are the statistics */
    int empty;                           /* no key is alive */
    uint32_t o[MAX_DIM];                 /* of the storage type */
    f32 lse;
    f32 keys_l, keys_t; /* l and t without the sink, relative to the m of root */
    int lo, hi;         /* keys lo to hi-1 are visible */
    f32 ref_m, limit;   /* of the reference of skipping: its m, and the largest bm - m left out */
} row;

uint32_t row_number(const row *r);           /* of r in a packed lse */
uint32_t kv_row_number(const row *r, int j); /* of key j in packed keys and values */
int64_t distance(const row *r, int j);       /* of ALiBi */
f32 slope_of(const row *r);
f32 keep_factor(const bits_case *c); /* 1 / (1 - dropout_p) */
/* O and LSE of row (b, h, i) of a case, and all the rest of *r. */
void forward_row(row *r, const bits_case *c, int b, int h, int i);

/* The scores of attn_index by one head: x[j] for each key that the row sees, of which alive[j] tells. */
void score_row(row *r, const bits_case *c, int b, int h, int i, f32 *x);

/* ---- hashes: FNV-1a, 64 bits, least significant byte first */

#define EMPTY_HASH UINT64_C(0xcbf29ce484222325)

void feed(uint64_t *hash, uint32_t x, int bytes);
void feed_stored(uint64_t *hash, uint32_t bits, int dtype);

typedef struct gradient_hashes {
    uint64_t dq, dk, dv, rest; /* rest: dbias, dsinks, dslopes, in this order */
} gradient_hashes;

gradient_hashes gradients_of_case(const bits_case *c); /* canon_backward.c */

typedef struct index_hashes {
    uint64_t keys, scores;
} index_hashes;

index_hashes index_of_case(const bits_case *c); /* canon_index.c */

#endif
