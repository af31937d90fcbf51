/* src/snapshot/stream.c - the bytes of a snapshot: numbers and rows, in sections that end with a hash.
 * SPDX-License-Identifier: MIT
 *
 * One function passes each thing both ways, so that what is saved and what is loaded cannot differ.
 */
#pragma once

#include "../api/snapshot.h"
#include "../storage.c"
#include "../text.c"

#define STREAM_BYTES 2048 /* whole words of the hash */

typedef struct stream {
    const attn_snapshot *ends; /* the callbacks */
    int loading;
    attn_status status;
    uint64_t hash;
    int64_t left, behind; /* bytes of the section that are not in the chunk, and all before it */
    int at, filled;       /* of the chunk */
    unsigned char chunk[STREAM_BYTES];
} stream;

static uint64_t load_le64(const unsigned char *from)
{
    uint64_t x = 0;
    int i;
    for (i = 7; i >= 0; i--)
        x = x << 8 | from[i];
    return x;
}

static void store_le64(unsigned char *to, uint64_t x)
{
    int i;
    for (i = 0; i < 8; i++)
        to[i] = (unsigned char)(x >> 8 * i);
}

/* hash_word can be inverted in each of its numbers: two words that differ give two hashes. A word is
 * mixed before it meets the hash, so that no simple change of the next one takes its change back. */
static uint64_t hash_word(uint64_t hash, uint64_t word)
{
    word *= UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ word >> 32) * UINT64_C(0x94d049bb133111eb);
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

static void hash_chunk(stream *st)
{
    int i;
    memset(st->chunk + st->filled, 0, (size_t)(-st->filled & 7));
    for (i = 0; i < st->filled; i += 8)
        st->hash = hash_word(st->hash, load_le64(st->chunk + i));
}

/* carry gives bytes to the caller, or takes them. */
static void carry(stream *st, unsigned char *bytes, int n)
{
    const attn_snapshot *ends = st->ends;
    if (st->status)
        return;
    if (st->loading ? ends->read(ends->context, bytes, (size_t)n)
                    : ends->write(ends->context, bytes, (size_t)n))
        st->status = ATTN_ERR_CALLBACK;
    else
        st->behind += n;
}

/* next_chunk is done with the chunk and begins another, which is empty at the end of a section. */
static void next_chunk(stream *st)
{
    if (!st->loading && st->filled) {
        hash_chunk(st);
        carry(st, st->chunk, st->filled);
    }
    st->at = 0;
    st->filled = (int)min64(st->left, STREAM_BYTES);
    st->left -= st->filled;
    if (st->loading && st->filled) {
        carry(st, st->chunk, st->filled);
        hash_chunk(st);
    }
}

static void begin_section(stream *st, int64_t bytes)
{
    st->left = bytes;
    st->at = st->filled = 0;
}

static void end_section(stream *st)
{
    unsigned char hash[8];
    next_chunk(st);
    store_le64(hash, st->hash);
    carry(st, hash, 8);
    if (!st->status && load_le64(hash) != st->hash)
        st->status = ATTN_ERR_DATA;
}

/* pass_bytes copies bytes into the chunk or out of it. Behind a failure it does nothing. */
static void pass_bytes(stream *st, void *bytes, int64_t n)
{
    unsigned char *own = bytes;
    while (n > 0 && !st->status) {
        int count;
        if (st->at == st->filled)
            next_chunk(st);
        count = (int)min64(n, st->filled - st->at);
        if (st->loading)
            memcpy(own, st->chunk + st->at, (size_t)count);
        else
            memcpy(st->chunk + st->at, own, (size_t)count);
        st->at += count;
        own += count;
        n -= count;
    }
}

static void pass_number(stream *st, int64_t *x)
{
    unsigned char word[8];
    store_le64(word, (uint64_t)*x);
    pass_bytes(st, word, 8);
    *x = (int64_t)load_le64(word);
}

static int is_little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first;
}

/* reverse_word turns the number round with which a unit begins. */
static void reverse_word(unsigned char *unit, int bytes)
{
    int i;
    for (i = 0; i < bytes / 2; i++) {
        const unsigned char x = unit[i];
        unit[i] = unit[bytes - 1 - i];
        unit[bytes - 1 - i] = x;
    }
}

/* pass_row passes n stored numbers. A unit begins with a number, which is all of it or its scale, and
 * goes on with bytes. */
static void pass_row(stream *st, int dtype, void *row, int64_t n)
{
    const int bytes = (int)bytes_of(dtype), word = storages[dtype].unit > 1 ? 2 : bytes;
    unsigned char *unit = row;
    if (is_little_endian() || word == 1) {
        pass_bytes(st, row, room_of(dtype, n));
        return;
    }
    for (; n > 0; n -= storages[dtype].unit, unit += bytes) {
        unsigned char other[sizeof(q8_unit)];
        memcpy(other, unit, (size_t)bytes);
        reverse_word(other, word);
        pass_bytes(st, other, bytes);
        reverse_word(other, word);
        if (st->loading)
            memcpy(unit, other, (size_t)bytes);
    }
}
