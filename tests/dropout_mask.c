/* dropout_mask.c - prints which pairs attn_dropout_keep keeps, for dropout_mask.sh.
 * SPDX-License-Identifier: MIT
 *
 *     dropout_mask SEED P N POS HEAD BATCH
 *
 * One line for each of the positions POS .. POS + 3, in it 1 (kept) or 0 for each of the keys
 * N .. N + 15. P is rounded to binary32.
 */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    uint64_t seed;
    float p;
    int64_t value[4];
    if (argc != 7) {
        fprintf(stderr, "usage: dropout_mask SEED P N POS HEAD BATCH\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 0);
    p = strtof(argv[2], NULL);
    for (int n = 0; n < 4; n++)
        value[n] = strtoll(argv[3 + n], NULL, 0);
    for (int row = 0; row < 4; row++)
        for (int key = 0; key < 16; key++) {
            const attn_pair at = { value[3], value[2], row, key, value[1] + row, value[0] + key };
            printf("%d%s", attn_dropout_keep(seed, p, &at), key < 15 ? " " : "\n");
        }
    return 0;
}
