#!/bin/sh
# pack_ports.sh DIR - writes the library as the package managers of boards want it, each in a folder of its
# own: DIR/arduino/attn, DIR/platformio/attn, DIR/esp-idf/attn, DIR/zephyr/attn and DIR/cmsis-pack/attn.
# SPDX-License-Identifier: MIT
#
# Each has attn.h, attn.c, the licence and what ports/NAME holds, with the version for @VERSION@. Arduino
# compiles what lies in src.
set -eu
cd "$(dirname "$0")/.."
to=${1:?usage: tools/pack_ports.sh DIR}
version=$(sed -n 's/^.define ATTN_VERSION_STRING "\(.*\)".*/\1/p' attn.h)

for name in arduino platformio esp-idf zephyr cmsis-pack; do
    folder=$to/$name/attn
    sources=$folder
    [ "$name" != arduino ] || sources=$folder/src
    mkdir -p "$sources"
    cp -r "ports/$name/." LICENSE "$folder"
    cp attn.h attn.c "$sources"
    find "$folder" -type f ! -name '*.[ch]' -exec sed -i "s/@VERSION@/$version/" {} +
done
