/* kernel_tiles.h - each kernel of a set on a tile of numbers: checked, and ready to be timed.
 * SPDX-License-Identifier: MIT */
#ifndef ATTN_TESTS_KERNEL_TILES_H
#define ATTN_TESTS_KERNEL_TILES_H

#include "../attn_simd.h"

enum { KERNEL_KEYS = 128 };     /* of a tile */
enum { KERNEL_MOST_GROUP = 8 }; /* row tiles that are summed over at once */

typedef struct kernel_tile kernel_tile;

/* What one element costs: 2 flops for each of the other dimension, as often for each tile of a
 * group, exponentials, bytes moved. */
typedef enum work_kind { PRODUCT, PRODUCTS, EXPONENTIAL, BYTES } work_kind;

typedef struct kernel_entry {
    const char *name;
    void (*run)(const attn_kernels *f, kernel_tile *t);
    int per_key; /* its elements are rows * KEYS, else rows * head_dim */
    work_kind work;
    double amount; /* per element; PRODUCT: products of this size */
    int halved;    /* only the upper half of its lanes is asked for; 0 = none */
    int (*holds)(const kernel_tile *t); /* what else must be so after a run; NULL = nothing */
    /* Runs, of the same set, that come first, once; and behind a run that is checked: what it wrote is for
     * that set alone. NULL = none. */
    void (*before)(const attn_kernels *f, kernel_tile *t);
    void (*behind)(const attn_kernels *f, kernel_tile *t);
} kernel_entry;

extern const kernel_entry kernel_entries[];
extern const int num_kernel_entries;

/* A kernel of a set against the portable one, bit by bit; spoil flips a bit of one element of its
 * result before. 1 = right, 0 = it differs or wrote nothing, -1 = no memory. */
int kernel_check(const attn_kernels *set, int entry, int64_t head_dim, int spoil);

/* A kernel with a tile of its own.
 *
* While it is timed a kernel works on its own output of the call before: logits become p and p
 * logits, sums grow. No value becomes subnormal or moves a maximum, so that this is what most tiles
 * of a call cost. The arrays lie in L1 and L2. */
typedef struct kernel_job {
    const attn_kernels *set;
    int entry;
    kernel_tile *tile;
    attn_lanes lanes; /* that it is asked for */
} kernel_job;

/* group: row tiles that sums over rows take. 0 = no memory, and nothing is to be freed. */
int kernel_job_make(kernel_job *job, const attn_kernels *set, int entry, int64_t head_dim,
                    int group);
int kernel_job_call(void *job); /* 0 */
void kernel_job_free(kernel_job *job);

#endif
