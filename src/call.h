/* src/call.h - one call: its problem, its plan, its tiles.
 * SPDX-License-Identifier: MIT
 *
 * Every path works on these types. Validation makes a problem, the plan says how it is divided, a
 * tile is what one worker computes at a time.
 */
#pragma once

#include "seam.h"
#include "listed.c"
#include "tree.c"

typedef struct tuning {
    int64_t tile_keys, item_rows, item_bytes, split_work, ahead, auto_naive_keys;
} tuning;

/* These are the names that this library uses for what backends get, too. */
typedef attn_problem problem;
typedef attn_sequence sequence;

/* ROW_AT gives the element offset of row i of head h in a tensor. */
#define ROW_AT(tensor, s, h, row)                                                                  \
    ((s)->b * (tensor).stride_batch + (h) * (tensor).stride_head + (row) * (tensor).stride_seq)

/* range_fn narrows [*lo, *hi) to what a mask leaves to a query at pos. */
typedef void (*range_fn)(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi);

/* A range_list is those of the masks that are on; it has room for all that mask_rules has. */
typedef struct range_list {
    int n;
    range_fn at[3];
} range_list;

/* A lane is one row of a tile. */
typedef struct lane {
    int used;        /* Unused lanes hold zero queries, and their results go nowhere. */
    int64_t head, i; /* They are the query head and the row. */
    int64_t choice;  /* choice is the number of the row among those chosen. */
    int64_t pos;     /* pos is i + offset. */
    int64_t lo, hi;  /* The range masks leave keys lo to hi-1, */
    int64_t cut;     /* and from this one on they are read from p.recent. */
} lane;

/* A key has two versions: as p.k and p.v hold it, and as p.recent does. */
enum { STORED, RECENT, VERSIONS };

/* A key_span is what the lanes of a tile see of a version. */
typedef struct key_span {
    int64_t lo, hi;           /* It is the union of the lanes' ranges, */
    int64_t all_from, all_to; /* and their intersection. */
} key_span;

/* A hull is the rectangle around a tile: what a mask needs to know about all of its lanes. */
typedef struct hull {
    int64_t head_begin, head_end, i_begin, i_end;
} hull;

/* A row_choice is rows first, first + 1, ... of `count` flattened rows of `heads` heads. */
typedef struct row_choice {
    int64_t head0, heads, first, count;
    const int32_t *list; /* NULL means that row number c is c. */
} row_choice;

/* A split says how the keys of each row tile are divided among workers (src/split.c). */
typedef struct split {
    /* parts counts nodes of 2^level chunks each; 0 means that the keys are not divided. */
    int parts;
    int level;
    /* The last `inside` parts are single chunks and are divided themselves. */
    int inside;
    int tiles; /* Such a chunk has this number of tiles of keys, of both versions in turn. */
    int64_t columns, slices;     /* Its V has this number of slices, with `columns` columns each. */
    int64_t items;               /* items counts whole parts and tiles of keys, of all row tiles. */
    int64_t states_bytes, bytes; /* These are bytes of shared memory for a row tile. */
    /* These are offsets into the memory of a chunk that is divided. */
    int64_t s, alpha, high, blocks, counts, chunk_bytes;
} split;

typedef struct plan {
    const attn_kernels *kernels;
    tuning tuning;
    int impl;       /* impl is TILED or NAIVE. */
    int rows, keys; /* These are the sizes of a tile. */
    int small; /* 0, or the plan needs little memory, and halves tiles of keys small - 1 times. */
    int gathered;         /* Nonzero means that row tiles read only the keys of their list. */
    int64_t worker_bytes; /* A worker's row tiles may share this number of bytes. */
    /* An item of the first list has this number of row tiles, which share K and V tiles. */
    int item_tiles;
    int state_slots; /* The merge tree may hold this number of (m, l, o) states at once. */
    /* tiles counts items per kv head: per batch entry, or in all with varlen. */
    int64_t tiles;
    int64_t items;                      /* items counts those of the first list: o, lse, states. */
    int64_t logits_tiles, logits_items; /* These count the second list: logits, */
    int64_t mass_items;                 /* and this the third: the mass of keys. */
    split split;
    int64_t matrix_floats; /* The naive path has the logits, m, l and insight of one head here. */
    int64_t state_floats;  /* state_floats is rows * state_rows(p). */
    /* pitch counts the floats between copied rows of K and of V; 0 means not copied. */
    int64_t pitch[2];
    /* Nonzero marks f32 that does not alias, which is copied only where pages part it: [version]. */
    int in_place[VERSIONS][2];
    /* These are offsets into a slot, in bytes. */
    int64_t stage, row_in, row_out, s, x, lane_values, lane_ints, alpha, blocks, alive;
    int64_t copy[2];
    int64_t matrix, operand_runs, ahead_runs, row_tiles;
    /* These are offsets into a row tile; each of the slot's row tiles has row_tile_bytes. */
    int64_t lanes, qt, qt_units, scales, states, skips, row_tile_bytes;
    int64_t slot_bytes, shared_bytes;
    /* All rows of the batch take this number of keys together first; 0 means none. */
    int64_t prefix_keys;
    int64_t prefix_items;
    /* prefix_why says why shared_keys changes nothing; NULL means that it does, or is 0. */
    const char *prefix_why;
    int workers;
    int modified; /* Nonzero means that a modifier of logits is on. */
    int by_pair;  /* Nonzero means that a mask is on that may hide whole tiles between others. */
    range_list ranges; /* ranges are those of the other masks. */
    int ahead;         /* Nonzero means that products ask for the K and V of the next ones. */
    int rows_ahead; /* Nonzero means that rows are asked for before they are packed or written. */
    int bias_ahead, mask_ahead; /* Nonzero means that products ask for theirs. */
} plan;

enum { KEYS, VALUES };

/* A key_tile is the tile of K and V that a worker's row tiles read at the moment, as f32 rows. */
typedef struct key_tile {
    int64_t j0;
    int n;
    /* The first copied_from rows of K and of V are not copied, and those behind them are. */
    int copied_from[2];
    float *copy[2];
    /* The same of the keys as kernels that round take them: rows of K, and the panel of V. */
    int rounded_from[2];
    /* The slot's row tiles hold the rows of this item; -1 means none (split items). */
    int64_t item;
    /* asked is a key: the row tile that comes to it first asks for what comes after. */
    int64_t asked;
} key_tile;

/* A block is a canonical block of keys inside a tile, cut short by the tile's ends. */
typedef struct block {
    int end;
    attn_lanes lanes; /* No other lane sees a key of it. */
    int raised;       /* Nonzero means that o *= alpha comes before it enters. */
} block;

/* The words of `alive` for a lane. */
#define ALIVE_WORDS(keys) ((keys) / ATTN_ALIVE_BITS + 1)

/* A tile is a row tile. The pointers up to `matrix` lead to what the row tiles of a slot share. */
typedef struct tile {
    const problem *pr;
    const plan *pl;
    key_tile *keys;
    /* stage is [rows][head_dim or head_dim_v], row-major: queries come in, results go out. */
    float *stage;
    const float **row_in; /* row_in[rows] points to queries. */
    float **row_out;      /* row_out[rows] points to results. */
    float *s_tile;        /* s_tile [keys][rows] holds logits, then probabilities. */
    float *x_tile; /* x_tile is [rows][keys]: the bias of each row, scales of keys, or logits. */
    float *lane_values;
    int *lane_ints; /* lane_ints [2][rows] holds integers of one step: ends, distances, counters. */
    float *alpha;   /* alpha is [block][rows]. */
    block *blocks;
    /* alive is [ALIVE_WORDS(keys)][rows], as the kernel hide takes it, from key alive_from on. It is
     * valid only where by_pair is set. */
    uint32_t *alive;
    float *matrix;                           /* The naive path has this head's logits here. */
    const char **operand_runs, **ahead_runs; /* They tell where rows of K or V lie. */
    sequence s;
    /* 0 means that the rows are of s; otherwise entry_rows rows of each batch entry follow. */
    int64_t entry_rows;
    int64_t kv_head;
    hull hull;       /* hull is that of the used lanes where pl->by_pair. */
    int used;        /* used counts the used lanes. */
    attn_lanes span; /* span goes from the first of them to the last. */
    int64_t lo, hi;  /* It is the union of the lanes' ranges. */
    key_span spans[VERSIONS];
    int version;      /* version is that which is read at the moment. */
    key_numbers list; /* Keys count within it, where pl->gathered. */
    int64_t alive_from;
    int64_t column, columns; /* These are columns of V: all of them, or those of a slice. */
    /* Nonzero means that rules by pair gave the class of the current tile: `alive` counts. */
    int by_pair;
    int block_count;
    int insight;   /* Nonzero means that states go on behind o. */
    int referring; /* Nonzero means that the rows' reference is computed (src/skip.c). */
    float *skip;   /* skip is [2][rows], limits and maxima, or NULL where no block is left out. */
    int64_t skip_from, skip_to; /* Every lane may leave out blocks that begin at these keys. */
    float dead; /* softmax stores this for a dead key: +0, or ATTN_DEAD in a redo. */
    lane *lanes;
    float *qt;       /* qt is [head_dim][rows]. */
    float *qt_units; /* qt_units is what pack_units gives, for keys read as whole numbers. */
    float *scales;   /* scales is [head_dim / 32][rows] of whole numbers. */
    float *state; /* state is that of the current chunk, and NULL until a key of it is visible. */
    float *free;  /* Each free state begins with the address of the next one. */
    float *pending[MAX_LEVELS]; /* pending has a state for each tree level, or NULL. */
    int levels;                 /* No state waits from this level on; nothing else counts there. */
} tile;

/* A call lies at the start of the workspace; items only read it, except for `failed`. */
typedef struct call {
    problem pr;
    plan pl;
    float *shared;
    char *slots;
    int slot_count;
    int64_t items; /* items counts those of the list that runs. */
    void (*item)(const struct call *c, char *slot, int64_t index);
    unsigned failed;
} call;
