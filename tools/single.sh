#!/bin/sh
# single.sh - the library as one file: attn.c, the files that build on it, attn_simd_*.c and the
# headers of all of them, each once, to the output.
# SPDX-License-Identifier: MIT
#
#     sh tools/single.sh attn.c attn_text.c attn_simd_avx2.c... > attn_single.c     (from the root)
#
# The kernels, attn_simd.h, are text that each SIMD file includes several times: in the one file
# they are a part of their own, and it includes itself where the SIMD files include them. After each
# of them its macros are forgotten, so that the next one can define its own, and so are those of the
# other files before the first; those that begin with ATTN_ belong to the user.
set -eu
for file in attn.h attn_simd.h "$@"; do
    [ -r "$file" ] || { echo "single.sh: no file $file" >&2; exit 1; }
done
exec awk '
function forget(file,    line, name) {
    while ((getline line < file) > 0)
        if (line ~ /^#define /) {
            name = line
            sub(/^#define /, "", name)
            sub(/[^A-Za-z0-9_].*/, "", name)
            if (name !~ /^ATTN_/ && !forgotten[file, name]++)
                print "#undef " name
        }
    close(file)
}
function copy(file,    line) {
    while ((getline line < file) > 0) {
        if (line == "#include \"attn_simd.h\"")
            print "#include \"attn_single.c\""
        else if (line !~ /^#include "attn[a-z_]*[.]h"$/)
            print line
        else if (!copied[line]++) {
            split(line, part, "\"")
            copy(part[2])
        }
    }
    close(file)
}
BEGIN {
    print "/* attn_single.c - attn in one file, made by tools/single.sh. Compile it, with no"
    print " * flags, instead of the files that it holds; programs include attn.h. Keep its name:"
    print " * it includes itself."
    print " * SPDX-License-Identifier: MIT */"
    print "#ifdef ATTN_SINGLE /* within itself: the kernels of the instruction set chosen there */"
    copy("attn_simd.h")
    print "#else"
    print "#define ATTN_SINGLE"
    for (i = 1; i < ARGC; i++) {
        if (ARGV[i] !~ /^attn_simd_/)
            continue
        name = toupper(ARGV[i])
        gsub(/^ATTN_SIMD_|[.]C$/, "", name)
        printf "#ifndef ATTN_SIMD_%s\n#define ATTN_SIMD_%s\n#endif\n", name, name
    }
    for (i = 1; ARGV[i] !~ /^attn_simd_/ && i < ARGC; i++)
        copy(ARGV[i])
    forget("attn.h")
    for (first = i; first > 1; first--)
        forget(ARGV[first - 1])
    for (; i < ARGC; i++) {
        copy(ARGV[i])
        forget(ARGV[i])
        print "#undef ATTN_SIMD_H /* the next inclusion is a first one again */"
    }
    print "#undef ATTN_SINGLE"
    print "#endif"
}' "$@"
