#!/bin/sh
# package.sh - what a stranger gets who builds, installs and links the library.
# SPDX-License-Identifier: MIT
#
#     sh tests/package.sh        (from the root; CC, NM, JOBS from the environment)
#
# 1. Two builds by make, in folders of other names and on other dates, give the same bytes.
# 2. `make install` writes the files of a list, under DESTDIR as well, and `make uninstall` removes
#    them. The archive may go into a shared library; nothing installed has debug information.
# 3. The shared library has its soname and exports what its headers declare, nothing more.
# 4. tests/package/consumer.c is built with pkg-config, shared and static, and by CMake: found, as a
#    folder of the project, and fetched. It must print what it should.
#
# EVERY=2 lets the second build and the programs of CMake take turns, one for each commit. What is not
# installed here (pkg-config, cmake, an MPI) is skipped with a sentence.
set -u
. tests/turns.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/attn-package.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
. "tests/expect.sh"
unset MAKEFLAGS MFLAGS MAKELEVEL CFLAGS LDFLAGS CPPFLAGS BUILD DESTDIR PREFIX LIBDIR
export CC="${CC:-cc}"
consumer=$PWD/tests/package
strict="-std=c99 -O2 -pedantic -Wall -Wextra -Werror"
version=$(sed -n 's/^.define ATTN_VERSION_STRING "\(.*\)"/\1/p' attn.h)
abi=$(echo "$version" | sed -e 's/^\(0[.][0-9]*\)[.].*/\1/' -e 's/^\([1-9][0-9]*\)[.].*/\1/')
soname=libattn.so.$abi
one=$work/one
two=$work/of/another/name

not()
{
    ! "$@"
}

# ---- two builds

copy() # copy FOLDER: what building takes
{
    mkdir -p "$1" &&
        cp -R Makefile CMakeLists.txt attn.pc.in attn*.[ch] kernels.cl src tools "$1"
}

build() # build FOLDER SETTING...: with debug information, which may hold folders and dates; -O1 is sooner done
{
    (cd "$1" && shift && ${MAKE:-make} -j"${JOBS:-1}" CFLAGS='-O1 -g' "$@")
}

on_another_date()
{
    find "$two" -exec touch -d '2001-02-03 04:05:06' {} + &&
        SOURCE_DATE_EPOCH=981173106 build "$two"
}

equal_builds() # equal_builds FILE
{
    cmp "$one/build/$1" "$two/build/$1"
}

expect "a copy of the sources" copy "$one"
expect "a second copy" copy "$two"
expect "a build" build "$one"
[ "$failed" -eq 0 ] || { summary package; exit 1; }
if [ ! -f "$one/build/libattn.so.$version" ]; then
    echo "package: skipped: make builds no shared library here"
    exit 0
fi
if turn; then
    expect "a build elsewhere" on_another_date
    expect "both archives have the same bytes" equal_builds libattn.a
    expect "both shared libraries have the same bytes" equal_builds "libattn.so.$version"
fi

# ---- what is installed

installed_list()
{
    cat << END
include/attn.h
include/attn_mpi.h
include/attn_opencl.h
include/attn_simd.h
lib/libattn.a
lib/libattn.so
lib/$soname
lib/libattn.so.$version
lib/pkgconfig/attn.pc
share/attn/attn_mpi.c
END
}

installs() # installs FOLDER SETTING...: the files of the list are in this folder
{
    folder=$1
    shift
    build "$one" "$@" install && installed_list | sort > "$work/wanted" &&
        (cd "$folder" && find . ! -type d | sed 's|^[.]/||' | sort) | diff "$work/wanted" -
}

uninstalls() # uninstalls FOLDER SETTING...: none of them is left
{
    folder=$1
    shift
    build "$one" "$@" uninstall && [ -z "$(find "$folder" ! -type d)" ] &&
        [ ! -e "$folder/share/attn" ]
}

staged_paths() # attn.pc tells of the prefix, not of the folder in which a package is put together
{
    grep -qx 'prefix=/usr' "$work/dest/usr/lib/pkgconfig/attn.pc" &&
        not grep -q "$work" "$work/dest/usr/lib/pkgconfig/attn.pc"
}

expect "make install under DESTDIR" installs "$work/dest/usr" DESTDIR="$work/dest" PREFIX=/usr
expect "attn.pc of a package" staged_paths
expect "make uninstall under DESTDIR" uninstalls "$work/dest/usr" DESTDIR="$work/dest" PREFIX=/usr
expect "make install" installs "$work/stage" PREFIX="$work/stage"
lib=$work/stage/lib

has_debug() # has_debug FILE
{
    readelf -SW "$1" | grep -q '[.]debug_'
}

position_independent()
{
    $CC -shared -Wl,-z,text -Wl,--whole-archive "$lib/libattn.a" -Wl,--no-whole-archive \
        -o "$work/other.so" -ldl
}

has_soname()
{
    readelf -d "$lib/libattn.so" | grep -q "SONAME.*\[$soname\]"
}

exports_declared() # exports_declared LIBRARY: what its headers declare, and nothing else
{
    cat "$work"/stage/include/*.h |
        sed -n -e '/attn_mpi_/d' -e 's/^ATTN_API .*[ *]\(attn_[a-z0-9_]*\)(.*/\1/p' | sort \
        > "$work/declared"
    "${NM:-nm}" -D --defined-only "$1" | awk '{ print $NF }' | sort | diff "$work/declared" -
}

exports_planted()
{
    echo 'int attn_planted(void); int attn_planted(void) { return 1; }' > "$work/planted.c"
    $CC -shared -fPIC "$work/planted.c" -Wl,--whole-archive "$lib/libattn.a" \
        -Wl,--no-whole-archive -o "$work/planted.so" -ldl || return 1
    exports_declared "$work/planted.so" > "$work/exports"
    grep -q '^> attn_planted$' "$work/exports"
}

expect "the build has debug information" has_debug "$one/build/libattn.a"
expect "the installed archive has none" not has_debug "$lib/libattn.a"
expect "the installed shared library has none" not has_debug "$lib/libattn.so"
expect "the archive goes into a shared library" position_independent
expect "the soname is $soname" has_soname
expect "the shared library exports what headers declare" exports_declared "$lib/libattn.so"
expect "another exported function is noticed" exports_planted

# ---- programs

prints() # prints PROGRAM [KIND]: its line, and that it needs the shared library, or not
{
    [ "$("$1")" = "attn $version: 1 1.5 2 2.5" ] || return 1
    readelf -d "$1" > "$work/dynamic"
    case ${2-} in
    shared) grep -q "NEEDED.*\[$soname\]" "$work/dynamic" ;;
    *) ! grep -q 'NEEDED.*libattn' "$work/dynamic" ;;
    esac
}

flags() # flags FOLDER OPTION...: pkg-config's words for the library that is installed there
{
    PKG_CONFIG_PATH=$1/lib/pkgconfig
    export PKG_CONFIG_PATH
    shift
    pkg-config "$@" attn
}

# shellcheck disable=SC2046,SC2086 # words
by_pkg_config() # by_pkg_config FOLDER KIND OPTION...
{
    folder=$1
    kind=$2
    shift 2
    $CC $strict "$consumer/consumer.c" "$@" \
        $(flags "$folder" --cflags --libs $([ "$kind" = shared ] || echo --static)) \
        -Wl,-rpath,"$folder/lib" -o "$work/program" && prints "$work/program" "$kind"
}

has_version()
{
    [ "$(flags "$work/stage" --modversion)" = "$version" ]
}

# shellcheck disable=SC2046 # words
mpi_compiles()
{
    mpicc -std=c99 -fsyntax-only $(flags "$work/stage" --cflags) \
        "$(flags "$work/stage" --variable=mpi_source)"
}

if command -v pkg-config > /dev/null; then
    expect "the version of attn.pc" has_version
    expect "pkg-config, shared" by_pkg_config "$work/stage" shared -DWITH_OPENCL
    expect "pkg-config, static" by_pkg_config "$work/stage" static -DWITH_OPENCL -static
    if command -v mpicc > /dev/null; then
        expect "the installed attn_mpi.c compiles" mpi_compiles
    else
        echo "package: skipped the installed attn_mpi.c: there is no mpicc"
    fi
else
    echo "package: skipped the programs of pkg-config: there is no pkg-config"
fi

configured() # configured FOLDER SOURCES SETTING...: a build folder of CMake
{
    at=$work/$1
    sources=$2
    shift 2
    cmake -S "$sources" -B "$at" "$@"
}

cmake_built() # as configured: builds it, without a word of the compiler
{
    configured "$@" && cmake --build "$at" -j"${JOBS:-1}" > "$work/built" 2>&1 || {
        cat "$work/built"
        return 1
    }
    not grep -E 'warning|note:' "$work/built"
}

cmake_installed() # as configured
{
    cmake_built "$@" -DCMAKE_INSTALL_PREFIX="$work/$1_stage" -DCMAKE_INSTALL_LIBDIR=lib &&
        cmake --install "$at"
}

cmake_consumer() # cmake_consumer NAME KIND SETTING...
{
    kind=$2
    name=consumer_$1
    shift 2
    cmake_built "$name" "$consumer" "$@" && prints "$work/$name/consumer" "$kind"
}

refused() # refused SENTENCE NAME SOURCES SETTING...
{
    sentence=$1
    shift
    not configured "$@" > "$work/said" 2>&1 && tr -s ' \n' ' ' < "$work/said" | grep -q "$sentence"
}

# No test, no bench, no example: the consumer is the only program, attn the only library.
library_alone() # library_alone FOLDER
{
    [ "$(find "$work/$1" -type f -perm -100 ! -path '*/CMakeFiles/*')" = "$work/$1/consumer" ] &&
        [ "$(find "$work/$1" -name 'lib*' -type f)" = "$work/$1/$2/libattn.a" ]
}

# shellcheck disable=SC2086 # words
by_cmake()
{
    found="-DFROM=find -DCMAKE_PREFIX_PATH"
    few="-DATTN_SIMD= -DATTN_OPENCL=OFF -DATTN=$one"
    expect "CMake, shared, is installed" cmake_installed shared "$one" -DBUILD_SHARED_LIBS=ON \
        -DCMAKE_BUILD_TYPE=Release
    expect "CMake's shared library exports what headers declare" \
        exports_declared "$work/shared_stage/lib/libattn.so"
    expect "CMake's archive with OpenMP is installed" cmake_installed static "$one" \
        -DATTN_SIMD=avx2 -DATTN_OPENCL=OFF -DATTN_OPENMP=ON -DCMAKE_BUILD_TYPE=Debug
    expect "find_package, shared" cmake_consumer shared shared $found="$work/shared_stage" \
        -DWANT="$abi" -DWITH_OPENCL=ON
    expect "find_package, static" cmake_consumer static static $found="$work/static_stage" \
        -DWANT="$version"
    expect "find_package refuses version 0.0" refused "version: $version" another \
        "$consumer" $found="$work/shared_stage" -DWANT=0.0
    expect "an unknown kernel set is refused" refused \
        "ATTN_SIMD names 'avx3': there is no attn_simd_avx3.c" unknown "$one" \
        -DATTN_SIMD='avx2;avx3'
    expect "add_subdirectory" cmake_consumer subdirectory static -DFROM=subdirectory $few
    expect "add_subdirectory builds the library alone" library_alone consumer_subdirectory attn
    expect "FetchContent" cmake_consumer fetch static -DFROM=fetch $few
    if command -v pkg-config > /dev/null; then
        expect "pkg-config with CMake's attn.pc, shared" by_pkg_config "$work/shared_stage" shared \
            -DWITH_OPENCL
        expect "pkg-config with CMake's attn.pc, static" by_pkg_config "$work/static_stage" static
    fi
}

if ! turn; then
    echo "package: the programs of CMake have another turn"
elif command -v cmake > /dev/null; then
    by_cmake
else
    echo "package: skipped the programs of CMake: there is no cmake (pip install cmake)"
fi

expect "make uninstall" uninstalls "$work/stage" PREFIX="$work/stage"
summary package
