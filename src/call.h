/* src/call.h - one call: its problem, its plan, its tiles.
 * SPDX-License-Identifier: MIT
 *
 * Every path works on these types. Validation makes a problem, the plan says how it is divided, a
 * tile is what one worker computes at a time.
 */
#pragma once

#include "seam.h"

typedef struct tuning {
    int64_t tile_keys, item_rows, item_bytes, split_work, ahead, auto_naive_keys;
} tuning;

/* The names that this library uses for what backends get, too. */
typedef attn_problem problem;
typedef attn_sequence sequence;

/* Element offset of row i of head h in a tensor. */
#define ROW_AT(tensor, s, h, row)                                                                  \
    ((s)->b * (tensor).stride_batch + (h) * (tensor).stride_head + (row) * (tensor).stride_seq)

/* A row of a tile: one lane. */
typedef struct lane {
    int used;        /* unused lanes hold zero queries; their results go nowhere */
    int64_t head, i; /* query head and row */
    int64_t choice;  /* number of the row among those chosen */
    int64_t pos;     /* i + offset */
    int64_t lo, hi;  /* the range masks leave keys lo..hi-1 */
} lane;

/* The rectangle hull of a tile: what a mask needs to know about all of its lanes. */
typedef struct hull {
    int64_t head_begin, head_end, i_begin, i_end;
} hull;

/* Which flattened rows a tile takes: rows first, first + 1, ... of `count` rows of `heads`
 * heads. */
typedef struct row_choice {
    int64_t head0, heads, first, count;
    const int32_t *list; /* NULL = row number c is c */
} row_choice;

/* How the keys of each row tile are divided among workers: section 12. */
typedef struct split {
    int parts; /* nodes of 2^level chunks each; 0 = not divided */
    int level;
    int inside;              /* so many of the last parts, chunks then, are divided themselves, */
    int tiles;               /* into tiles of keys, */
    int64_t columns, slices; /* and V into slices of so many columns */
    int64_t items;           /* whole parts and tiles of keys, of all row tiles */
    int64_t states_bytes, bytes; /* of shared memory for a row tile */
    /* offsets into the memory of a chunk that is divided */
    int64_t s, alpha, high, blocks, counts, chunk_bytes;
} split;

typedef struct plan {
    const attn_kernels *kernels;
    tuning tuning;
    int impl;             /* TILED or NAIVE */
    int rows, keys;       /* of a tile */
    int small;            /* little memory before speed */
    int64_t worker_bytes; /* that a worker's row tiles may share */
    int item_tiles;       /* row tiles of an item of the first list, which share K and V tiles */
    int state_slots;      /* (m, l, o) states that the merge tree may hold at once */
    int64_t tiles;        /* items per kv head: per batch entry, or in all with varlen */
    int64_t items;        /* first list: o, lse, states */
    int64_t logits_tiles, logits_items; /* second list: logits */
    split split;
    int64_t matrix_floats; /* naive: logits, m and l of one head */
    int64_t state_floats;  /* rows * (head_dim_v + 2) */
    int64_t pitch[2];      /* K, V: floats between rows of the copy of a tile; 0 = not copied */
    int in_place[2];       /* f32 that does not alias: copied only where pages part it */
    /* offsets into a slot, in bytes */
    int64_t stage, row_in, row_out, s, x, lane_values, lane_keys, alpha, blocks, alive, copy[2];
    int64_t matrix, operand_runs, ahead_runs, row_tiles;
    /* offsets into a row tile; each of the slot's row tiles has row_tile_bytes */
    int64_t lanes, qt, states, row_tile_bytes;
    int64_t slot_bytes, shared_bytes;
    int64_t prefix_keys; /* that all rows of the batch take together first; 0 = none */
    int64_t prefix_items;
    const char *prefix_why; /* why shared_keys changes nothing; NULL = it does, or is 0 */
    int workers;
    int modified; /* a modifier of logits is on */
    int by_pair;  /* so is a mask that may hide whole tiles between others */
    int ahead;    /* products ask for what the next ones read */
} plan;

enum { KEYS, VALUES };
#define MAX_LEVELS 64

/* The tile of K and V that a worker's row tiles read at the moment, as f32 rows. */
typedef struct key_tile {
    int64_t j0;
    int n;
    int copied_from[2]; /* so many rows of K and V are not copied, those behind them are */
    float *copy[2];
    int64_t item;  /* whose rows the slot's row tiles hold; -1 = none (split items) */
    int64_t asked; /* the row tile that comes first to a key asks for what comes after */
} key_tile;

/* A canonical block of keys inside a tile, cut short by the tile's ends. */
typedef struct block {
    int end;
    attn_lanes lanes; /* none of the others sees a key of it */
    int raised;       /* o *= alpha before it enters */
} block;

/* A row tile. The pointers up to `matrix` lead to what the row tiles of a slot share. */
typedef struct tile {
    const problem *pr;
    const plan *pl;
    key_tile *keys;
    float *stage;         /* [rows][head_dim or head_dim_v], row-major: queries in, results out */
    const float **row_in; /* [rows] queries */
    float **row_out;      /* [rows] results */
    float *s_tile;        /* [keys][rows] logits, then probabilities */
    float *x_tile;        /* [keys][rows] bias or distances */
    float *lane_values;
    int *lane_keys; /* [2][rows] clip: begin and end */
    float *alpha;   /* [block][rows] */
    block *blocks;
    uint8_t *alive; /* [keys][rows] from key alive_from on, for PARTIAL tiles of rules by pair */
    float *matrix;  /* naive: this head's logits */
    const char **operand_runs, **ahead_runs; /* where rows of K or V lie */
    sequence s;
    int64_t entry_rows; /* 0 = the rows are of s; else so many rows of each batch entry follow */
    int64_t kv_head;
    hull hull;                /* of the used lanes */
    int used;                 /* how many lanes are used */
    attn_lanes span;          /* first to last of them */
    int64_t lo, hi;           /* union of the lanes' ranges */
    int64_t all_from, all_to; /* and their intersection */
    int64_t alive_from;
    int64_t column, columns; /* of V: all of them, or those of a slice */
    int by_pair; /* the class of the current tile came from rules by pair: see `alive` */
    int block_count;
    float dead; /* what softmax stores for a dead key: +0, or ATTN_DEAD in a redo */
    lane *lanes;
    float *qt;    /* [head_dim][rows] */
    float *state; /* of the current chunk; NULL until a key of it is visible */
    float *free_states[MAX_LEVELS];
    int free_count;
    float *pending[MAX_LEVELS]; /* by tree level */
} tile;

/* One call of attn_forward: lies at the start of the workspace, read-only for the items but for
 * `failed`. */
typedef struct call {
    problem pr;
    plan pl;
    float *shared;
    char *slots;
    int slot_count;
    int64_t items; /* of the list that runs */
    void (*item)(const struct call *c, char *slot, int64_t index);
    unsigned failed;
} call;
