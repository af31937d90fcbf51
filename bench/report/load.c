/* load.c - files that are read whole.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <stdlib.h>

char *files_load(FILE *f, size_t most, size_t *bytes)
{
    size_t length = 0, capacity = 4096;
    char *text = malloc(capacity);
    while (text) {
        length += fread(text + length, 1, capacity - length - 1, f);
        text[length] = '\0';
        if (length + 1 < capacity || length > most)
            break;
        capacity *= 2;
        char *const grown = realloc(text, capacity);
        if (!grown)
            free(text);
        text = grown;
    }
    *bytes = length;
    if (!text || (!ferror(f) && length <= most))
        return text;
    free(text);
    return NULL;
}
