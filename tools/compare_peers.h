/* compare_peers.h - functions for tools/peers/, which also calls bench/clock.h, bench/data.h and
 * peer_openblas.h.
 * SPDX-License-Identifier: MIT */
#ifndef COMPARE_PEERS_H
#define COMPARE_PEERS_H

#include <stddef.h>

#include "../bench/machine/machine.h"
#include "peer_openblas.h"

typedef struct compare_attn compare_attn;

/* Takes one thread and options of attn_params_from_string. Returns NULL on failure, with why. */
compare_attn *compare_attn_open(const peer_shape *shape, const char *options, const void *q,
                                const void *k, const void *v, void *o, char *why, size_t why_bytes);
int compare_attn_run(compare_attn *a); /* 0 = success */
const char *compare_attn_kernels(const compare_attn *a);
double compare_attn_flops(const compare_attn *a); /* of visible pairs alone */
void compare_attn_close(compare_attn *a);

/* Computes the gradients by dout of that call, which runs once to give o and stats. */
typedef struct compare_backward compare_backward;
compare_backward *compare_backward_open(const peer_shape *shape, const char *options, const void *q,
                                        const void *k, const void *v, const void *dout, void *dq,
                                        void *dk, void *dv, char *why, size_t why_bytes);
int compare_backward_run(compare_backward *b); /* 0 = success */
const char *compare_backward_kernels(const compare_backward *b);
double compare_backward_flops(const compare_backward *b); /* of five products, visible pairs only */
void compare_backward_close(compare_backward *b);

/* Measures the rate of a plain loop that reads k and v (bench/reading.h). NULL = no memory. */
reading *compare_reading_open(const void *k, const void *v, size_t bytes_each);
void compare_reading_close(reading *r);

/* Returns the largest |a - b|, which is infinite where one of them is NaN. */
double compare_difference(const float *a, const float *b, size_t n);

/* Writes 1 where a number is above the limit, and 0 elsewhere. */
void compare_above(unsigned char *to, const float *from, float limit, size_t n);

/* Measures the FMA peak of one thread, and names the vector unit. 0 = no clock estimate. */
double compare_flops_per_cycle(char *unit, size_t unit_bytes);

/* Writes lines of key=value: cpu, compiler, revision ... */
void compare_machine(char *text, size_t text_bytes);

#endif
