/* consumer.c - a program that uses an installed library, or one that CMake builds beside it.
 * SPDX-License-Identifier: MIT
 *
 * Equal logits make each row of a causal call the mean of the values so far: 1 1.5 2 2.5. With
 * WITH_OPENCL the program also links the devices.
 */
#include <attn.h>
#include <stdio.h>

#ifdef WITH_OPENCL
#include <attn_opencl.h>
#define DEVICE_BYTES attn_opencl_size()
#else
#define DEVICE_BYTES 1
#endif

enum { LENGTH = 4 };

int main(void)
{
    static char workspace[1 << 16];
    const float zeros[LENGTH] = { 0 }, v[LENGTH] = { 1, 2, 3, 4 };
    float o[LENGTH];
    attn_params p = { 0 };
    p.batch = p.num_heads_q = p.head_dim = p.causal = 1;
    p.seq_len_q = p.seq_len_kv = LENGTH;
    p.q.data = p.k.data = zeros;
    p.v.data = v;
    p.o.data = o;
    if (attn_params_size() != sizeof p || DEVICE_BYTES == 0 ||
        attn_forward(&p, workspace, sizeof workspace) != ATTN_OK)
        return 1;
    printf("attn %s: %g %g %g %g\n", attn_version(), (double)o[0], (double)o[1], (double)o[2],
           (double)o[3]);
    return 0;
}
