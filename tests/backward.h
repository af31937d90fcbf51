/* backward.h - what the files of the group "backward" share.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_BACKWARD_H
#define ATTN_TESTS_BACKWARD_H

#include "gradients.h"

void backward_poison(void); /* tests/backward_poison.c */
void backward_errors(void); /* tests/backward_errors.c */
void backward_laws(void);   /* tests/backward_laws.c   */

/* tile_keys, gemms, force_redo at random. */
void random_way(gradients_case *s);

#endif
