/* src/opencl/kept.c - kept programs: every program built, as bytes of the caller's.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "programs.c"

enum kept_word { KEPT_MARK, KEPT_BYTES, KEPT_SUM, KEPT_KEY, KEPT_PROGRAMS, KEPT_HEAD };
#define KEPT_MARK_1 (((uint64_t)0x61747463 << 32) | 0x6c627631) /* changes with the format */

typedef struct kept_program {
    uint64_t number, bytes;
    const unsigned char *binary;
} kept_program;

static uint64_t whole_words_of(uint64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* add_to_sum is FNV-1a: another byte anywhere gives another sum. */
static uint64_t add_to_sum(uint64_t sum, const void *bytes, size_t count)
{
    const unsigned char *at = (const unsigned char *)bytes;
    size_t i;
    for (i = 0; i < count; i++)
        sum = (sum ^ at[i]) * (((uint64_t)1 << 40) + 0x1b3);
    return sum;
}

/* sum_of_kept sums everything behind KEPT_SUM. */
static uint64_t sum_of_kept(const unsigned char *from, size_t bytes)
{
    const size_t before = (KEPT_SUM + 1) * sizeof(uint64_t);
    return add_to_sum(0, from + before, bytes - before);
}

/* Programs serve one device and driver, one kernels.cl and one way of building it. */
static uint64_t key_of_programs(const attn_opencl *gpu)
{
    const attn_opencl_info *info = &gpu->info;
    uint64_t key = add_to_sum(0, info->platform, strlen(info->platform) + 1);
    char options[MOST_OPTIONS];
    int n;
    key = add_to_sum(key, info->device, strlen(info->device) + 1);
    key = add_to_sum(key, info->version, strlen(info->version) + 1);
    key = add_to_sum(key, info->driver, strlen(info->driver) + 1);
    key = add_to_sum(key, kernels_source, sizeof kernels_source);
    for (n = 0; n < VARIANTS; n++) {
        const variant v = variant_of(n);
        build_options(gpu, &v, options, sizeof options);
        key = add_to_sum(key, options, strlen(options) + 1);
    }
    return key;
}

/* read_binary writes the program's binary for our device to `to` unless it is NULL, and returns its
 * bytes, or 0 without a binary. */
static size_t read_binary(const attn_opencl *gpu, cl_handle program, unsigned char *to)
{
    cl_handle devices[MOST_DEVICES];
    unsigned char *all[MOST_DEVICES]; /* of a caller's context with several devices */
    size_t sizes[MOST_DEVICES], bytes = 0, d = 0;
    memset(all, 0, sizeof all);
    if (gpu->cl.clGetProgramInfo(program, CL_PROGRAM_DEVICES, sizeof devices, devices, &bytes) ||
        gpu->cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof sizes, sizes, NULL))
        return 0;
    while (d < bytes / sizeof *devices && devices[d] != gpu->device)
        d++;
    if (d == bytes / sizeof *devices)
        return 0;
    all[d] = to;
    bytes = bytes / sizeof *devices * sizeof *all;
    if (to && gpu->cl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, bytes, all, NULL))
        return 0;
    return sizes[d];
}

/* keep_program writes number, bytes and binary of one program to `to` if it has room for them, and
 * returns the bytes needed. */
static size_t keep_program(const attn_opencl *gpu, int number, unsigned char *to, size_t room)
{
    const cl_handle program = LOAD(&gpu->programs[number]);
    const size_t bytes = program ? read_binary(gpu, program, NULL) : 0;
    const size_t need = 2 * sizeof(uint64_t) + (size_t)whole_words_of(bytes);
    const uint64_t words[2] = { (uint64_t)number, bytes };
    if (bytes == 0)
        return 0;
    if (need <= room) {
        memset(to, 0, need);
        memcpy(to, words, sizeof words);
        read_binary(gpu, program, to + sizeof words);
    }
    return need;
}

static size_t keep_programs(const attn_opencl *gpu, unsigned char *to, size_t room)
{
    uint64_t head[KEPT_HEAD] = { [KEPT_MARK] = KEPT_MARK_1, [KEPT_KEY] = key_of_programs(gpu) };
    size_t at = sizeof head;
    int n;
    for (n = 0; n < VARIANTS; n++) {
        const size_t need =
            keep_program(gpu, n, at <= room ? to + at : NULL, at <= room ? room - at : 0);
        head[KEPT_PROGRAMS] += need != 0;
        at += need;
    }
    head[KEPT_BYTES] = at;
    if (at > room)
        return at;
    memcpy(to, head, sizeof head);
    head[KEPT_SUM] = sum_of_kept(to, at);
    memcpy(to, head, sizeof head);
    return at;
}

/* next_kept reads the program at *at, which moves behind it, or returns 0: none lies there within
 * the bytes. */
static int next_kept(const unsigned char *from, uint64_t bytes, uint64_t *at, kept_program *k)
{
    uint64_t words[2];
    if (bytes - *at < sizeof words)
        return 0;
    memcpy(words, from + *at, sizeof words);
    *at += sizeof words;
    k->number = words[0];
    k->bytes = words[1];
    k->binary = from + *at;
    if (k->number >= VARIANTS || k->bytes > bytes - *at || whole_words_of(k->bytes) > bytes - *at)
        return 0;
    *at += whole_words_of(k->bytes);
    return 1;
}

/* fills_kept returns whether the programs that the head promises fill the bytes. */
static int fills_kept(const unsigned char *from, uint64_t bytes, uint64_t programs)
{
    uint64_t at = KEPT_HEAD * sizeof(uint64_t);
    kept_program k;
    while (programs > 0 && next_kept(from, bytes, &at, &k))
        programs--;
    return programs == 0 && at == bytes;
}

/* kept_fault says why the bytes are not kept programs for this device, or gives NULL. */
static const char *kept_fault(const attn_opencl *gpu, const unsigned char *from, size_t bytes)
{
    uint64_t head[KEPT_HEAD];
    if (bytes < sizeof head)
        return "kept programs: too short";
    memcpy(head, from, sizeof head);
    if (head[KEPT_MARK] != KEPT_MARK_1)
        return "kept programs: of another format, or something else";
    if (head[KEPT_BYTES] != bytes)
        return "kept programs: cut off, or followed by more";
    if (head[KEPT_SUM] != sum_of_kept(from, bytes))
        return "kept programs: damaged";
    if (head[KEPT_KEY] != key_of_programs(gpu))
        return "kept programs: of another device, driver or kernels.cl";
    return fills_kept(from, bytes, head[KEPT_PROGRAMS]) ? NULL : "kept programs: damaged";
}

/* take_program leaves out what the driver refuses: it is built from source when it is needed. */
static void take_program(attn_opencl *gpu, const kept_program *k)
{
    const variant v = variant_of((int)k->number);
    const size_t bytes = (size_t)k->bytes;
    const unsigned char *binary = k->binary;
    cl_int error = CL_SUCCESS;
    char sentence[160];
    text t = text_in(sentence, sizeof sentence);
    cl_handle program;
    if (LOAD(&gpu->programs[k->number]))
        return;
    program = gpu->cl.clCreateProgramWithBinary(gpu->context, 1, &gpu->device, &bytes, &binary,
                                                NULL, &error);
    if (!error)
        program = finish_program(gpu, &v, program, &error);
    if (!error) {
        COUNT_ONE(&gpu->taken);
        publish_program(gpu, (int)k->number, program);
    } else {
        explain_error(&t, "the driver refuses a kept program", error);
        say(gpu, ATTN_LOG_WARNING, sentence);
    }
}

static attn_status take_programs(attn_opencl *gpu, const void *bytes, size_t count)
{
    const unsigned char *from = (const unsigned char *)bytes;
    const char *fault = kept_fault(gpu, from, count);
    text why = text_in(gpu->info.binaries_why, sizeof gpu->info.binaries_why);
    uint64_t at = KEPT_HEAD * sizeof(uint64_t);
    kept_program k;
    put(&why, fault ? fault : "ok");
    if (fault)
        say(gpu, ATTN_LOG_INFO, fault);
    while (!fault && next_kept(from, count, &at, &k))
        take_program(gpu, &k);
    return fault ? ATTN_ERR_UNSUPPORTED : ATTN_OK;
}
