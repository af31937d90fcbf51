#!/bin/sh
# amalgamate.sh - makes the files that users copy from the rooms in src/.
# SPDX-License-Identifier: MIT
#
#     sh tools/amalgamate.sh [DIR]                  attn.h attn.c attn_simd.h attn_opencl.c in DIR
#     LEVELS='forward cache' sh tools/amalgamate.sh DIR       a smaller attn.h and attn.c
#     sh tools/amalgamate.sh --single FILE [SIMD_FILE...]     attn.c and vector kernels in one file
#     sh tools/amalgamate.sh --room src/tile.c      what a room is with all that it includes, printed
#     sh tools/amalgamate.sh --check                whether the files in the root are up to date
#
# DIR is the root of the repository without an argument. A level is a room of src/attn.c: forward
# explain options merge rope cache backward resume patterns index dilated ring dilated_ring ring_decode.
# With it come forward, which every attn.h declares, and the levels that its header includes. Another
# room comes alone.
#
# A room goes in once: where the first room that includes it stands, behind the rooms that it
# includes itself. Includes of files outside src/ stay as they are, and so does that of attn.h,
# which is made from src/api/. A smaller pair declares only the levels whose rooms it has. The
# macros by which ATTN_PREFIX renames functions are made from their declarations.
set -eu
cd "$(dirname "$0")/.."

# amalgamate ROOT [HEADERS [ROOMS]]: the text of a room and of all that it includes. With headers,
# includes of others of src/api/ are left out; with rooms, the root includes these instead of its own.
amalgamate() {
    awk -v root="$1" -v wanted=" ${2-} " -v rooms="${3-}" '
    function resolve(from, name,    path) {
        path = from
        sub(/[^\/]*$/, "", path)
        path = path name
        while (path ~ /[^\/.]+\/\.\.\//)
            sub(/[^\/.]+\/\.\.\//, "", path)
        return path
    }
    function quoted(line) {
        split(line, part, "\"")
        return part[2]
    }
    # What an include line of a room becomes: nothing but text before it, or a line.
    function include(from, line,    path) {
        path = line ~ /"/ ? resolve(from, quoted(line)) : line
        if (path ~ /^src\/api\// && root !~ /^src\/api\//)
            path = "attn.h"
        if (seen[path]++ || (path ~ /^src\/api\// && wanted !~ /^ *$/ && !index(wanted, " " path " ")))
            return
        if (path ~ /^src\/.*[.][ch]$/)
            room(path)
        else
            say(path ~ /^#/ ? path : line ~ /[.]inc"$/ ? line : "#include \"" path "\"")
    }
    # One blank line where several come together.
    function say(line) {
        if (line != "" || last != "")
            print line
        last = line
    }
    function renames(path,    line, name) {
        while ((getline line < path) > 0)
            if (line ~ /^ATTN_API/ && match(line, /attn_[a-z0-9_]+\(/)) {
                name = substr(line, RSTART, RLENGTH - 1)
                say("#define " name " ATTN_JOIN(ATTN_PREFIX, " name ")")
            }
        close(path)
    }
    function all_renames(    command, path) {
        command = "ls src/api/*.h src/seam.h"
        while ((command | getline path) > 0)
            if (wanted ~ /^ *$/ || index(wanted, " " path " ") || path == "src/seam.h")
                renames(path)
        close(command)
    }
    function chosen(text, n,    count, i) {
        text[++n] = "#if defined __GNUC__ || defined __clang__ /* whole rooms are here; some functions serve other levels */"
        text[++n] = "#pragma GCC diagnostic ignored \"-Wunused-function\""
        text[++n] = "#pragma GCC diagnostic ignored \"-Wunused-const-variable\""
        text[++n] = "#endif"
        for (i = 1; i <= split(rooms, name, " "); i++)
            text[++n] = "#include \"" substr(name[i], 5) "\""
        rooms = ""
        return n
    }
    function room(path,    line, top, text, i, n, own) {
        own = path != root || rooms == ""
        while ((getline line < path) > 0)
            if (own || line !~ /^#include/)
                text[++n] = line
            else if (rooms != "")
                n = chosen(text, n)
        close(path)
        if (n == 0) {
            print "amalgamate.sh: no room " path > "/dev/stderr"
            exit failed = 1
        }
        seen[path] = 1
        top = 1
        if (path == root)
            do
                say(text[top])
            while (text[top++] !~ /\*\/$/)
        for (i = 1; i <= n && path != root; i++)
            if (text[i] ~ /^#include ".*[.](c|h|cl)"/)
                include(path, text[i])
        say("")
        if (path != root && text[3] == " */") { # what SPDX leaves of the first comment
            say(text[1] " */")
            top = 4
        }
        for (i = top; i <= n; i++)
            if (text[i] ~ /^#include /) {
                if (path == root || text[i] !~ /[.](c|h|cl)"/)
                    include(path, text[i])
            } else if (text[i] ~ /ATTN_RENAMES:/) {
                all_renames()
            } else if (text[i] != "#pragma once" && (path == root || i > 4 || text[i] !~ /SPDX/)) {
                say(text[i])
            }
    }
    BEGIN { room(root); exit failed }'
}

# files_of ROOM...: the files of src/ that rooms include, themselves among them.
files_of() {
    awk '
    function visit(path,    line, name, from) {
        if (path !~ /^src\// || seen[path]++)
            return
        print path
        if (path == "src/api/attn.h") # which includes every level
            return
        while ((getline line < path) > 0)
            if (line ~ /^#include "/) {
                split(line, part, "\"")
                name = path
                sub(/[^\/]*$/, "", name)
                name = name part[2]
                while (name ~ /[^\/.]+\/\.\.\//)
                    sub(/[^\/.]+\/\.\.\//, "", name)
                later[++count] = name
            }
        close(path)
    }
    BEGIN {
        for (i = 1; i < ARGC; i++)
            later[++count] = ARGV[i]
        for (i = 1; i <= count; i++)
            visit(later[i])
    }' "$@"
}

room_of() { # room_of LEVEL
    for file in "src/$1.c" "src/$1/$1.c"; do
        if [ -r "$file" ]; then
            echo "$file"
            return
        fi
    done
    echo "amalgamate.sh: no level '$1' in src/" >&2
    exit 1
}

# A root like src/attn.c with the levels $LEVELS alone, and the headers that go with its rooms.
write_levels() { # write_levels DIR
    rooms=
    for level in $LEVELS; do
        rooms="$rooms $(room_of "$level")"
    done
    # shellcheck disable=SC2086 # lists of words
    headers=$(files_of $rooms | grep '^src/api/' | tr '\n' ' ')
    # shellcheck disable=SC2086
    if grep -qF "$(printf '#include "%s"\n' $rooms | sed 's|"src/|"|')" src/attn.c; then
        rooms="src/forward.c $rooms"
        for header in $headers; do
            level=$(basename "$header" .h)
            case $level in attn | backend) ;; *) rooms="$rooms $(room_of "$level")" ;; esac
        done
    fi
    mkdir -p "$1"
    amalgamate src/api/attn.h "src/api/attn.h $headers" > "$1/attn.h"
    amalgamate src/attn.c "" "$rooms" > "$1/attn.c"
}

write_all() { # write_all DIR
    amalgamate src/api/attn.h > "$1/attn.h"
    amalgamate src/attn.c > "$1/attn.c"
    amalgamate src/simd.h > "$1/attn_simd.h"
    amalgamate src/opencl/attn_opencl.c > "$1/attn_opencl.c"
}

# single NAME SIMD_FILE...: one file of that name, which includes itself where the SIMD files include
# the vector kernels. After attn.c and each of them their macros are forgotten, so that the next one
# can define its own; those that begin with ATTN_ belong to the user.
single() {
    awk '
    function forget(file,    line) {
        while ((getline line < file) > 0)
            if (match(line, /^#define [A-Za-z0-9_]+/)) {
                line = substr(line, 9, RLENGTH - 8)
                if (line !~ /^ATTN_/ && !forgotten[file, line]++)
                    print "#undef " line
            }
        close(file)
    }
    function copy(file, header,    line) {
        while ((getline line < file) > 0)
            if (line == "#include \"attn_simd.h\"")
                print "#include \"" ARGV[1] "\""
            else if (line != "#include \"attn.h\"")
                print line
            else if (header != "")
                copy(header)
        close(file)
    }
    BEGIN {
        print "/* " ARGV[1] " - attn in one file, made by tools/amalgamate.sh. Compile it, with no"
        print " * flags, instead of the files that it holds; programs include attn.h. Keep its name:"
        print " * it includes itself."
        print " * SPDX-License-Identifier: MIT */"
        print "#ifdef ATTN_SINGLE /* within itself: the kernels of the instruction set chosen there */"
        copy("attn_simd.h")
        print "#else"
        print "#define ATTN_SINGLE"
        for (i = 2; i < ARGC; i++) {
            set = toupper(ARGV[i])
            sub(/[.]C$/, "", set)
            printf "#ifndef %s\n#define %s\n#endif\n", set, set
        }
        copy("attn.c", "attn.h")
        forget("attn.c")
        for (i = 2; i < ARGC; i++) {
            copy(ARGV[i])
            forget(ARGV[i])
        }
        print "#undef ATTN_SINGLE"
        print "#endif"
    }' "$@"
}

case ${1-} in
--room)
    amalgamate "$2"
    ;;
--single)
    file=$2
    shift 2
    for source in attn.h attn.c attn_simd.h "$@"; do
        [ -r "$source" ] || { echo "amalgamate.sh: no file $source" >&2; exit 1; }
    done
    single "$(basename "$file")" "$@" > "$file"
    ;;
--check)
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    write_all "$fresh"
    for file in attn.h attn.c attn_simd.h attn_opencl.c; do
        cmp "$fresh/$file" "$file" || {
            echo "$file is not what src/ gives: edit src/, then run tools/amalgamate.sh" >&2
            exit 1
        }
    done
    ;;
*)
    if [ -n "${LEVELS-}" ]; then write_levels "${1:-.}"; else write_all "${1:-.}"; fi
    ;;
esac
