/* tuning.c - texts for p.tuning: composed, read from a file, shown to the library.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../attn.h"

void tuning_add(tuning_list *list, const char *set, const char *name, int64_t value, double gain,
                double noise)
{
    const tuning_setting s = { set, name, value, gain, noise };
    if (list->n < TUNING_MAX_SETTINGS)
        list->settings[list->n++] = s;
}

void tuning_compose(char text[TUNING_BYTES], const tuning_list *list, const char *set,
                    const char *name, int64_t value)
{
    size_t at = (size_t)snprintf(text, TUNING_BYTES, "attn-tuning 1\n");
    for (int i = 0; i < list->n; i++) {
        const tuning_setting *const s = &list->settings[i];
        at += (size_t)snprintf(text + at, TUNING_BYTES - at, "%.32s.%s %lld\n", s->set, s->name,
                               (long long)s->value);
    }
    if (value >= 0)
        at += (size_t)snprintf(text + at, TUNING_BYTES - at, "%.32s.%s %lld\n", set, name,
                               (long long)value);
    snprintf(text + at, TUNING_BYTES - at, "end\n");
}

/* ---- files */

char *tuning_load(FILE *f)
{
    size_t length = 0, capacity = 4096;
    char *text = malloc(capacity);
    while (text) {
        length += fread(text + length, 1, capacity - length - 1, f);
        text[length] = '\0';
        if (length + 1 < capacity || length > TUNING_MAX_FILE)
            break;
        capacity *= 2;
        char *const grown = realloc(text, capacity);
        if (!grown)
            free(text);
        text = grown;
    }
    if (!text || (!ferror(f) && length <= TUNING_MAX_FILE))
        return text;
    free(text);
    return NULL;
}

char *tuning_read(const char *path)
{
    errno = 0;
    FILE *const f = fopen(path, "rb");
    char *const text = f ? tuning_load(f) : NULL;
    if (!text)
        fprintf(stderr, "bench: cannot read %s: %s\n", path,
                errno ? strerror(errno) : "it is larger than 1 MiB");
    if (f)
        fclose(f);
    return text;
}

/* ---- the library's opinion */

typedef struct sentence {
    char *text;
    size_t bytes;
} sentence;

static void note(void *user, int level, const char *text)
{
    const sentence *const s = user;
    (void)level;
    snprintf(s->text, s->bytes, "%s", text);
}

int tuning_taken(const char *text, char *why, size_t why_bytes)
{
    sentence s = { why, why_bytes };
    float one = 1, o;
    size_t bytes = 0;
    attn_params p = { 0 };
    p.batch = p.num_heads_q = p.seq_len_q = p.seq_len_kv = p.head_dim = 1;
    p.q.data = p.k.data = p.v.data = &one;
    p.o.data = &o;
    p.tuning = text;
    p.log = note;
    p.log_user = &s;
    why[0] = '\0';
    void *const workspace = attn_workspace_size(&p, &bytes) == ATTN_OK ? malloc(bytes) : NULL;
    if (attn_forward(&p, workspace, bytes) != ATTN_OK && !why[0])
        snprintf(why, why_bytes, "no memory to ask the library");
    free(workspace);
    return !why[0];
}
