/* call.c - one causal call in f32: a small program that uses the library. tools/boards.sh links it with
 * attn.c and with call_without.c, and the difference is what the library takes.
 * SPDX-License-Identifier: MIT
 */
#include "../attn.h"

static float q[16 * 16], k[16 * 16], v[16 * 16], o[16 * 16];
static char workspace[24 * 1024];

int main(void)
{
    attn_params p = { 0 };
    p.batch = p.num_heads_q = p.causal = 1;
    p.seq_len_q = p.seq_len_kv = p.head_dim = 16;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    return attn_forward(&p, workspace, sizeof workspace) != ATTN_OK;
}
