/* refused_fields.c - which fields of a call which functions refuse, and why, for docs/combinations.md.
 * SPDX-License-Identifier: MIT
 *
 * What is refused is read from the table of fields (src/fields.c), and only the reasons are written here.
 * Fields in one struct that the same functions refuse make one row. A refused field without a reason is
 * an error, and so is a reason for what nobody refuses. attn_index has a sentence on the page instead.
 */
#include "attn.c"

#include <stdio.h>

static const struct {
    unsigned taker;
    const char *name;
} takers[] = {
    { BY_GRADIENTS, "`attn_backward`" }, { BY_PART, "parts" },
    { BY_RESUMABLE, "resumable" },       { BY_FINISH, "`attn_state_finish`" },
    { BY_DILATED, "dilated" },           { BY_RING, "ring" },
    { BY_DECODE, "decoding" },
};

/* A field, or a struct of fields, with the reason of whoever refuses it. The first that fits counts. */
static struct reason {
    const char *name, *why;
    int used;
} reasons[] = {
    { "integer", "rounding to whole numbers has no gradient", 0 },
    { "fast",
      "its order of additions is the machine's own, and these compare or merge canonical sums", 0 },
    { "rotated", "not built: rotation is for caches, and so are mean keys", 0 },
    { "k_centered", "as `rotated`", 0 },
    { "k.dtype", "rounded units have no gradient; f32, f16 and bf16 have", 0 },
    { "v.dtype", "as `k.dtype`", 0 },
    { "k_scales", "not built; of int8 there is no gradient", 0 },
    { "v_scales", "as `k_scales`", 0 },
    { "cu_seqlens_q",
      "a part, a step or a rank would cut documents, not one sequence: "
      "`q_segments` tells documents of one sequence apart",
      0 },
    { "cu_seqlens_kv", "as `cu_seqlens_q`", 0 },
    { "kv_rows", "not built; `attn_cache_read` copies the keys of a cache into one array", 0 },
    { "recent",
      "not built: whether a key is recent depends on the row, and these levels read one version of "
      "each key",
      0 },
    { "logits.data", "not built; the last stage needs m and l of all keys", 0 },
    { "insight", "not built: it is kept beside the sums of whole rows, and is not merged", 0 },
    { "skip", "not built: a row decides by the keys of the whole row, and the bound is not merged",
      0 },
    { "partial", "they return finished rows, or raw states of their own", 0 },
    { "key_base", "a branch numbers positions from the first of the sequence", 0 },
    { "alignment", "rows are the last positions of a sequence", 0 },
    { "q_offset", "as `alignment`", 0 },
    { "shared_keys", "not built: keys before the batch belong to no segment", 0 },
    { "backend", "not built on devices", 0 },
    { "part", "these levels cut a call themselves", 0 },
    { "view", "levels set it in calls of their own", 0 },
    { "tree_parents", "not built: a branch would have to take the ancestors of a node, too", 0 },
    { "block_mask",
      "not built: the positions of a branch do not fill cells; a bit mask says the same", 0 },
    { "key_list", "not built: a list is the sparser pattern already", 0 },
};

/* struct_length counts the characters before the first dot, or all. */
static size_t struct_length(const char *name)
{
    size_t n = 0;
    while (name[n] && name[n] != '.')
        n++;
    return n;
}

static const char *reason_for(const char *name)
{
    int i;
    for (i = 0; i < COUNT_OF(reasons); i++) {
        const size_t n = strlen(reasons[i].name);
        if (strncmp(reasons[i].name, name, n) == 0 && (name[n] == '\0' || name[n] == '.')) {
            reasons[i].used = 1;
            return reasons[i].why;
        }
    }
    return NULL;
}

static unsigned refusing(int i)
{
    return BY_ALL & ~BY_INDEX & ~(unsigned)call_fields[i].takers;
}

/* goes_on tells whether field i belongs to the row of the field before. */
static int goes_on(int i)
{
    const char *name = call_fields[i].name, *before = i ? call_fields[i - 1].name : "";
    const size_t n = struct_length(name);
    return n == struct_length(before) && strncmp(name, before, n) == 0 &&
           refusing(i) == refusing(i - 1);
}

int main(void)
{
    int i, t, bad = 0;
    for (i = 0; i < COUNT_OF(call_fields); i++) {
        const char *why = refusing(i) ? reason_for(call_fields[i].name) : "";
        const char *comma = "";
        if (!why) {
            fprintf(stderr, "no reason why %s is refused\n", call_fields[i].name);
            bad = 1;
        }
        if (!why || !*why || goes_on(i))
            continue;
        printf("| `%s` | ", call_fields[i].name);
        for (t = 0; t < COUNT_OF(takers); t++)
            if (refusing(i) & takers[t].taker) {
                printf("%s%s", comma, takers[t].name);
                comma = ", ";
            }
        printf(" | %s |\n", why);
    }
    for (i = 0; i < COUNT_OF(reasons); i++)
        if (!reasons[i].used) {
            fprintf(stderr, "a reason for %s, which nobody refuses\n", reasons[i].name);
            bad = 1;
        }
    return bad;
}
