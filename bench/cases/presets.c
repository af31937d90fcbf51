/* presets.c - named lists of cases, as tables: see rows.c.
 * SPDX-License-Identifier: MIT */
#include "presets_list.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bench_case *case_append(case_list *list, const char *preset, const char *scenario)
{
    static const bench_case none;
    const int full = list->n == PRESETS_MAX_CASES;
    bench_case *const c = &list->cases[list->n];
    list->n += !full;
    list->lost += full;
    *c = none;
    c->preset = preset;
    c->scenario = scenario;
    c->warmup = 2;
    c->data = DATA_NORMAL;
    return c;
}

/* head_dim 256, [batch][seq][head][dim], 10 calls after 3 of warm-up. The naive path holds the logits
 * of all heads at once, as the textbook has it. The last of the short list fits no machine of 200 GB:
 * it shows what is skipped, and why. */
#define CACHED "keys=contiguous "
static const case_row gemma[] = {
    { "heads 32/32", "s{s} b{b} h32/32", "hkv=32 s=512,1024,2048,4096,8192 b=1,4,8,16",
      "hkv=32 s=512 b=1,4 | hkv=32 s=1024 b=1 | hkv=32 s=8192 b=16", NULL },
    { "heads 32/8", "s{s} b{b} h32/8", "hkv=8 s=512,1024,2048,4096,8192 b=1,4,8,16",
      "hkv=8 s=512 b=1,4 | hkv=8 s=1024 b=1 | hkv=8 s=8192 b=16", NULL },
    { "KV cache", "cache q{sq} kv{kv} b{b} h32/{hkv}",
      CACHED "hkv=32,8 sq=1 kv=512,2048,8192 b=1,8 |" CACHED
             "hkv=32,8 sq=128 kv=2048,8192 b=1 mask=causal",
      CACHED "hkv=8 sq=1 kv=2048 b=1", NULL },
    { "prefix", "prefix s{s} b{b} h32/{hkv}", "hkv=32,8 s=512,2048,8192 b=1 mask=prefix",
      "hkv=8 s=512 b=1 mask=prefix", NULL },
    { "prefix, KV cache", "prefix, cache q{sq} kv{kv} b{b} h32/{hkv}",
      CACHED "hkv=32,8 sq=256 kv=2048,8192 b=1 mask=prefix",
      CACHED "hkv=8 sq=64 kv=1024 b=1 mask=prefix", NULL },
    { 0 },
};

/* Tokens as a router deals them to an expert: many short sequences of differing length in one batch,
 * padded to the longest or packed. The first of a group computes what is padded, too. */
#define ROUTED_PREFILL "group=+ layout=strided mask=full,q-lengths,kv-lengths,varlen"
#define ROUTED_DECODE "group=+ sq=1 mask=full,kv-lengths"
static const case_row experts[] = {
    { "prefill", "b{b} s{s} {mask}", "b=16,64 s=64,256 " ROUTED_PREFILL,
      "b=16 s=64 " ROUTED_PREFILL, NULL },
    { "decode", "b{b} kv{kv} {mask}", "b=16,64 kv=256,1024 " ROUTED_DECODE,
      "b=16 kv=256 " ROUTED_DECODE, NULL },
    { 0 },
};

/* Short sequences, few heads, 100 calls after 10 of warm-up, sin/cos/tan data. */
static const case_row latency[] = {
    { "latency", "b{b} h{h} s{s} d{d}", "b=1 s=128,256,512,1024 d=32,64 h=4,8,16",
      "b=1 h=8 s=128,512 d=64", NULL },
    { "latency, batched", "b{b} h{h} s{s} d{d}", "b=2,4,8,16 h=8 s=128,256,512,1024 d=64",
      "b=4 h=8 s=256 d=64", NULL },
    { 0 },
};

/* Prefill of a prompt (causal) and decoding of one token against a cache, 10 calls after 3 of warm-up.
 * The short list is small enough for a CPU without FMA. */
static const case_row llm[] = {
    { "prefill", "prefill {s} b{b} h{hq}/{hkv}", "hq=32 hkv=32 s=2048,4096,8192 b=1,4",
      "b=1 hq=8 hkv=2 s=256,2048", NULL },
    { "decode", "decode {kv} b{b} h{hq}/{hkv}", "sq=1 hq=32 hkv=32 kv=2048,4096 b=1,4,8",
      "sq=1 hq=32 hkv=8 kv=2048 b=1,4", NULL },
    { "prefill", "prefill {s} b{b} h{hq}/{hkv}", "hq=32 hkv=8 s=2048,4096,8192 b=1,4", "", NULL },
    { "decode", "decode {kv} b{b} h{hq}/{hkv}", "sq=1 hq=32 hkv=8 kv=2048,4096 b=1,4,8", "", NULL },
    { 0 },
};

/* One batch entry, each length four times the one before. What takes longest stands last, where the
 * others have left it their time. */
static const case_row extreme[] = {
    { "last rows", "last rows {kv}", "kv=growing rows=1024 h=8 mask=causal",
      "kv=growing rows=256 h=1 mask=causal", NULL },
    { "last rows, full", "last rows, full {kv}", "kv=growing rows=1024 h=8",
      "kv=growing rows=256 h=1", NULL },
    { "window", "window {s}", "s=growing h=8 mask=window mask_size=4096",
      "s=growing h=1 mask=window mask_size=1024", NULL },
    { "blocks", "blocks {s}", "s=growing h=8 mask=blocks mask_size=128",
      "s=growing h=1 mask=blocks mask_size=128", NULL },
    { "blocks, 90 %", "blocks, 90 % {s}", "s=growing h=1 mask=blocks-tenth mask_size=128", NULL,
      NULL },
    { "dilated", "dilated {s}", "s=growing h=8 mask=causal dilated=2048",
      "s=growing h=1 mask=causal dilated=512", NULL },
    { "dilated, copies", "dilated, copies {s}", "s=growing h=8 mask=causal dilated=2048 gathered=1",
      "s=growing h=1 mask=causal dilated=512 gathered=1", NULL },
    { "decode", "decode {kv}", "kv=growing sq=1 h=8", NULL, "" },
    { "causal", "causal {s}", "s=growing h=1 mask=causal", NULL, "" },
    { 0 },
};

/* A million causal rows take 20 minutes a head. Of the longest the cold call and one sample. */
static int finish_extreme(const preset_choice *want, bench_case *c)
{
    (void)want;
    c->warmup = c->seq_kv > 4096 ? 0 : 1; /* the cold call did */
    c->iterations = c->seq_kv > 131072;
    c->max_time = 150;
    return 1;
}

/* A family of masks and none, timed in turn on the same tensors: at most RUN_MAX_GROUP of them. Half
 * as many rows as keys, so that the alignments differ. */
static const case_row masks[] = {
    { "position", "{mask}",
      "group=1 mask=full,causal,causal-top-left,causal-offset,window,window-both,chunked,prefix",
      NULL, NULL },
    { "lengths", "{mask}",
      "group=2 layout=strided mask=full,kv-lengths,q-lengths,left-padding,varlen,documents", NULL,
      NULL },
    { "arrays", "{mask}",
      "group=3 mask=full,boolean,bits,blocks,blocks-csr,blocks-tenth,local-global,local-strided,"
      "bigbird,callback,callback-tiles",
      NULL, NULL },
    { "tree", "{mask}", "group=4 sq=64 mask=full,tree", NULL, NULL },
    { "decode, listed", "{mask}", "group=9 sq=1 kv=32768 mask=full,listed", NULL, NULL },
    { "logits", "{mask}", "group=5 mask=full,bias,bias-f16,bias-bf16,alibi,softcap,score", NULL,
      NULL },
    { "softmax", "{mask}", "group=6 mask=full,sinks,softmax1,dropout", NULL, NULL },
    { "insight", "{mask}", "group=7 mask=full,insight,top8,mass", NULL, NULL },
    { "insight, decode", "{mask}", "group=8 sq=1 kv=4096 mask=full,insight,top8,mass", NULL, NULL },
    { "skipping", "{mask}", "group=10 h=8 sq=256 kv=16384 mask=full,alibi,alibi-skip",
      "group=10 h=8 sq=64 kv=4096 mask=full,alibi,alibi-skip", NULL },
    { "skipping, decode", "{mask}", "group=11 h=8 sq=1 kv=32768 mask=full,alibi,alibi-skip", NULL,
      NULL },
    { 0 },
};

/* One token that reads 2048 keys of a long cache by a list, next to all of them: MLA, and heads of
 * their own. */
static const case_row sparse[] = {
    { "MLA", "mla kv{kv} {mask}",
      "group=1 hq=128 hkv=1 d=576 dv=512 kv=131072 mask=full,listed mask_size=64 |"
      "group=2 hq=128 hkv=1 d=576 dv=512 kv=32768 mask=full,listed mask_size=16",
      "group=1 hq=16 hkv=1 d=576 dv=512 kv=32768 mask=full,listed mask_size=64", NULL },
    { "GQA", "h{hq}/{hkv} kv{kv} {mask}",
      "group=3 hq=32 hkv=8 d=128 kv=131072 mask=full,listed mask_size=64 |"
      "group=4 hq=32 hkv=8 d=128 kv=32768 mask=full,listed mask_size=16",
      "group=2 hq=8 hkv=2 d=128 kv=32768 mask=full,listed mask_size=64", NULL },
    { 0 },
};

/* From a base case one thing at a time. */
static const case_row factors[] = {
    { "length", "length {s}", "s=128,256,512,1024,2048,4096,8192", "s=128,256,512,1024", NULL },
    { "head_dim", "head_dim {d}", "d=32,64,80,96,128,192,256,512", "d=32,64,80,96,128", NULL },
    { "heads", "heads {h}", "h=1,2,4,8,16,32", "h=1,2,4,8", NULL },
    { "batch", "batch {b}", "b=1,2,4,8,16", "b=1,2,4", NULL },
    { "ratio", "ratio {ratio}", "ratio=1,2,4,8", NULL, NULL },
    { "dtype", "dtype {dtype}", "dtype=f32,f16,bf16", NULL, NULL },
    { "keys", "keys {kv}", "sq=1 kv=1024,4096,16384,65536", "sq=1 kv=1024,4096,16384", NULL },
    { "threads", "threads {threads}", "threads=powers", NULL, NULL },
    { 0 },
};

/* Full and causal by length, width, storage type and layout, for each kernel set that is made for
 * this CPU's vector unit: the rows of tools/goals.txt. Rows of one group are compared with one another
 * by the goals and so timed in turn; they have 8 heads, where row strides of [seq][head][dim] are
 * multiples of 1 KiB; the others a power of two that makes a call long enough: 5e9 FLOPs. The rows of
 * p.fast are skipped where no unit multiplies bf16; each is timed in turn with the exact call. */
#define PREFILL_NAME "{mask} d{d} s{s}{_dtype}{_layout}"
static const case_row prefill[] = {
    { NULL, PREFILL_NAME, "d=128 mask=full,causal s=512 h=64", "", NULL },
    { NULL, PREFILL_NAME, "d=128 mask=full,causal s=1024 h=16", "", NULL },
    { NULL, PREFILL_NAME,
      "s=2048 h=8 mask=full group=2 d=128 dtype=f32,f16,bf16 |"
      "s=2048 h=8 mask=full group=2 d=128 dtype=f32 layout=strided |"
      "s=2048 h=8 mask=full group=2 d=80,96,112",
      "d=128 mask=full,causal s=2048 h=4", NULL },
    { NULL, PREFILL_NAME,
      "s=2048 h=8 mask=causal group=3 d=128 dtype=f32,f16,bf16 |"
      "s=2048 h=8 mask=causal group=3 d=128 dtype=f32 layout=strided |"
      "s=2048 h=8 mask=causal group=3 d=80,96,112",
      "", NULL },
    { NULL, PREFILL_NAME, "d=128 mask=full,causal s=4096 h=1", "", NULL },
    { NULL, PREFILL_NAME, "d=128 mask=full,causal s=8192 h=1", "", NULL },
    { NULL, PREFILL_NAME, "d=64 mask=full,causal s=512 h=128", "", NULL },
    { NULL, PREFILL_NAME,
      "s=2048 h=8 mask=full group=4 d=64 dtype=f32,f16,bf16 |"
      "s=2048 h=8 mask=full group=4 d=64 dtype=f32 layout=strided",
      "", NULL },
    { NULL, PREFILL_NAME,
      "s=2048 h=8 mask=causal group=5 d=64 dtype=f32,f16,bf16 |"
      "s=2048 h=8 mask=causal group=5 d=64 dtype=f32 layout=strided",
      "", NULL },
    { NULL, PREFILL_NAME, "d=64 mask=full,causal s=4096 h=2", "", NULL },
    { NULL, PREFILL_NAME, "d=256 mask=full,causal s=2048 h=2", "", NULL },
    { NULL, PREFILL_NAME, "d=256 mask=full,causal s=4096 h=1", "", NULL },
    { "fast", PREFILL_NAME "{_products}",
      "s=2048 h=4 d=64,128 mask=full,causal dtype=f32,bf16 group=+ shares=storage "
      "products=exact,fast",
      "s=1024 h=4 d=128 mask=full dtype=bf16 group=+ shares=storage products=exact,fast", NULL },
    { 0 },
};

/* One token against a cache, by heads, width, length and storage; and MLA, where all query heads share
 * one latent cache, so that arithmetic is the bound. */
static const case_row decode[] = {
    { "decode", "h32/{hkv} d{d} kv{kv}{_dtype}",
      "hq=32 hkv=32,8 d=64,128,256 kv=4096,16384 dtype=f32,f16,bf16",
      "hq=32 hkv=8 d=128 kv=4096 dtype=f32,f16,bf16", NULL },
    { "decode", "h32/{hkv} d{d} kv{kv}{_dtype}", "hq=32 hkv=8 d=128 kv=512 dtype=f32,f16,bf16", "",
      NULL },
    { "decode", "mla kv{kv}{_dtype}", "hq=128 hkv=1 d=576 dv=512 kv=4096,16384 dtype=f32,f16,bf16",
      "hq=128 hkv=1 d=576 dv=512 kv=4096 dtype=f32", NULL },
    { 0 },
};

/* Each case with one thread and with several, in turn on the same tensors. */
static const case_row threads[] = {
    { "threads", "prefill h8 s512", "", "h=8 s=512 mask=causal group=1 threads=steps", NULL },
    { "threads", "prefill h8 s2048", "h=8 s=2048 mask=causal group=2 threads=steps", "", NULL },
    { "threads", "h1 rows64 kv65536", "h=1 sq=64 kv=65536 group=3 threads=steps", "", NULL },
    { "threads", "decode g4 kv1500", "hq=4 hkv=1 sq=1 kv=1500 group=4 threads=steps", NULL, NULL },
    { "threads", "decode g4 kv65536", "hq=4 hkv=1 sq=1 kv=65536 group=5 threads=steps", "", NULL },
    { 0 },
};

/* One call large enough for a GPU, by each path of a device; keys of a batch: up to 2 GB in f32. */
#define DEVICE_NAME "{mask} d{d} s{s}{_dtype}"
static const case_row device[] = {
    { "prefill, full", DEVICE_NAME, "h=16 mask=full d=64,128 dtype=f32,f16 s=1024,4096,16384",
      "h=16 mask=full d=64,128 dtype=f32,f16 s=1024", NULL },
    { "prefill, causal", DEVICE_NAME, "h=16 mask=causal d=64,128 dtype=f32,f16 s=1024,4096,16384",
      "h=16 mask=causal d=64,128 dtype=f32,f16 s=1024", NULL },
    { "decode", "b{b} kv{kv}{_dtype}",
      "hq=32 hkv=8 sq=1 d=128 dtype=f32 kv=4096,16384 b=1,16 |"
      "hq=32 hkv=8 sq=1 d=128 dtype=f32 kv=65536 b=1 |"
      "hq=32 hkv=8 sq=1 d=128 dtype=f16 kv=4096,16384 b=1,16 |"
      "hq=32 hkv=8 sq=1 d=128 dtype=f16 kv=65536 b=1",
      "hq=32 hkv=8 sq=1 d=128 dtype=f32,f16 kv=4096 b=1,16", NULL },
    { "prefill, quantised", "{mask} d{d} s{s} {types}{_scores}",
      "h=16 mask=causal d=128 s=4096 types=q8_0 scores=exact,integer",
      "h=16 mask=causal d=128 s=1024 types=q8_0 scores=integer", NULL },
    { "decode, quantised", "b{b} kv{kv} {types}{_scores}",
      "hq=32 hkv=8 sq=1 d=128 types=q8_0,q4_0 scores=exact,integer kv=16384 b=1,16",
      "hq=32 hkv=8 sq=1 d=128 types=q8_0 scores=exact,integer kv=4096 b=1", NULL },
    { 0 },
};

/* Every path on a few cases, small enough for kernels without vectors. */
static const case_row rank[] = {
    { "prefill, short", "s128 h4 d64", "b=1 h=4 s=128 d=64", NULL, NULL },
    { "prefill, short", "b4 s256 h8 d64", "b=4 h=8 s=256 d=64", "", NULL },
    { "prefill, long", "s1024 h2 d64", "", "b=1 h=2 s=1024 d=64 mask=causal", NULL },
    { "prefill, long", "s2048 h4 d128", "b=1 h=4 s=2048 d=128 mask=causal", "", NULL },
    { "prefill, long", "s6144 h1 d64", "b=1 h=1 s=6144 d=64 mask=causal", "", NULL },
    { "prefill, GQA", "s512 h8/2 d64", "b=1 hq=8 hkv=2 s=512 d=64 mask=causal", NULL, NULL },
    { "prefill, GQA", "s2048 h16/4 d64", "b=1 hq=16 hkv=4 s=2048 d=64 mask=causal", "", NULL },
    { "decode", "kv2048 h8/2 d128", "b=1 hq=8 hkv=2 sq=1 kv=2048 d=128 mask=causal", NULL, NULL },
    { "decode", "b4 kv4096 h32/8", "b=4 hq=32 hkv=8 sq=1 kv=4096 d=128 mask=causal", "", NULL },
    { "decode, one kv head", "kv8192 h4/1 d128", "b=1 hq=4 hkv=1 sq=1 kv=8192 d=128 mask=causal",
      NULL, NULL },
    { "decode, one kv head", "kv65536 h4/1 d128", "b=1 hq=4 hkv=1 sq=1 kv=65536 d=128 mask=causal",
      "", NULL },
    { 0 },
};

/* 8 heads of 128 for keys and values, 32 query heads, as in models of 8e9 parameters; q and o are f32.
 * The first case of a group is a contiguous cache, and the others are compared with it. A prefill of
 * the short list is small enough for a CPU without FMA. */
#define ALL_PLACES "keys=contiguous,plain,pages-16,ring,pages-1,pages-256"
#define EACH_TYPE "types=f32,f16,bf16,q8_0,q5_0,q4_0,e4m3,e5m2,i8 "
/* Every type in turn with f16, and quantised ones in whole numbers, too. */
#define ALL_TYPES(shape)                                                                           \
    TYPES_IN_TURN shape " types=f16,f32,bf16,e4m3,e5m2,q8_0/q4_0 |" TYPES_IN_TURN shape            \
                        " types=q8_0,q5_0,q4_0 scores=exact,integer"
#define TYPES_IN_TURN "b=1 keys=contiguous shares=storage "
#define AND_RECENT "keys=contiguous,recent-64"
#define APPEND_PLACES "keys=contiguous,rope,table,pages-16,pages-table"
static const case_row cache[] = {
    { "storage", "b{b} kv{kv} {types}",
      "sq=1 kv=4096 b=1,8 group=+ keys=contiguous shares=storage "
      "types=f32,f16,bf16,f16/bf16,bf16/f16,f32/f16,f32/bf16,f16/f32",
      "sq=1 kv=8192 b=1 group=+ keys=contiguous shares=storage types=f32,f16,bf16,f16/bf16", NULL },
    { "decode", "b{b} kv{kv} {types} {keys}",
      "sq=1 b=1 kv=4096,16384 types=f32,f16,bf16,q8_0 group=+ shares=keys " ALL_PLACES " |"
      "sq=1 b=8 kv=4096 types=f32,f16,bf16,q8_0 group=+ shares=keys " ALL_PLACES,
      "sq=1 b=1 kv=8192 types=f16,q8_0 group=+ shares=keys "
      "keys=contiguous,plain,pages-16,ring",
      NULL },
    { "quantised", "q{sq} kv{kv} {types}{_scores}", ALL_TYPES("sq=1 kv=4096 group=1"), NULL, NULL },
    { "quantised", "q{sq} kv{kv} {types}{_scores}", ALL_TYPES("sq=1 kv=16384 group=2"), "", NULL },
    { "quantised", "q{sq} kv{kv} {types}{_scores}", ALL_TYPES("sq=512 kv=4608 mask=causal group=3"),
      "", NULL },
    { "recent", "q{sq} kv{kv} {types} {keys}",
      "b=1 sq=1 kv=4096,16384 types=q8_0,q4_0 group=+ shares=keys " AND_RECENT " |"
      "b=1 sq=512 kv=4608 mask=causal types=q4_0 group=+ shares=keys " AND_RECENT,
      "b=1 sq=1 kv=8192 types=q4_0 group=+ shares=keys " AND_RECENT, NULL },
    { "prefill", "b{b} q{sq} kv{kv} {types} {keys}",
      "b=1 sq=512 kv=4608 mask=causal types=f32,f16 group=+ shares=keys "
      "keys=contiguous,plain,pages-16,pages-1,pages-256",
      "b=1 sq=32 kv=544 mask=causal types=f32 group=+ shares=keys keys=contiguous,plain,pages-16",
      NULL },
    { "shared", "b{b} kv4096+256 {types} {keys}",
      "b=8 sq=1 kv=4352 shared=4096 types=f32,f16 group=+ shares=keys keys=copies,shared,untold",
      "", NULL },
    { "shared", "b{b} kv1024+32 {types} {keys}", "",
      "b=4 sq=1 kv=1056 shared=1024 types=f16 group=+ shares=keys keys=copies,shared,untold",
      NULL },
    { "append", "b{b} n{s} {types} {keys}",
      "appends=1 b=1 s=512,1 " EACH_TYPE "group=+ shares=keys " APPEND_PLACES " |"
      "appends=1 b=8 s=1 " EACH_TYPE "group=+ shares=keys " APPEND_PLACES,
      "appends=1 b=1 s=512 types=f32,q8_0 group=+ shares=keys " APPEND_PLACES " |"
      "appends=1 b=1 s=1 types=f16 group=+ shares=keys " APPEND_PLACES,
      "append" },
    { 0 },
};

/* Gradients: how near the limit, for each kernel set (rows of tools/goals.txt); the textbook against
 * the tiles; many query heads for a kv head, over which dk and dv are summed; storage types; what a
 * modifier costs; five products or seven, and threads, also of one head, which has few rows and keys
 * for many of them. */
static const case_row backward[] = {
    { NULL, "backward {mask} d{d} s{s}",
      "iters=9 d=128,64,256 s=512,1024,2048,4096 mask=full,causal",
      "iters=9 d=128 s=512,1024 mask=full,causal", NULL },
    { "naive and tiled", "{mask} d{d} s{s}", "d=64 s=512,1024,2048,4096 mask=full,causal",
      "d=64 s=512,1024 mask=full,causal", "" },
    { "grouped", "{mask} h{hq}/{hkv} s{s}", "hq=32 hkv=8 d=128 s=512,2048 mask=full,causal",
      "hq=32 hkv=8 d=128 s=512 mask=full,causal", NULL },
    { "storage", "{mask} {dtype}", "s=2048 d=128 mask=full,causal group=+ dtype=f32,f16,bf16",
      "s=512 d=128 mask=full group=+ dtype=f32,f16,bf16", NULL },
    { "modifiers", "{mask}", "s=2048 d=64 group=1 shares=mask mask=full",
      "s=512 d=64 group=1 shares=mask mask=full", NULL },
    { "modifiers", "bias and dbias", "s=2048 d=64 group=1 shares=mask mask=bias",
      "s=512 d=64 group=1 shares=mask mask=bias", NULL },
    { "modifiers", "{mask}", "s=2048 d=64 group=1 shares=mask mask=window,softcap,dropout",
      "s=512 d=64 group=1 shares=mask mask=window,softcap,dropout", NULL },
    { "products", "h{h} s{s} {gemms} products",
      "d=128 mask=causal shares=gemms h=8 s=2048 group=1 threads=1,all gemms=5,7 |"
      "d=128 mask=causal shares=gemms h=1 s=4096 group=2 threads=1,all gemms=5,7",
      "d=128 mask=causal shares=gemms h=8 s=512 group=1 threads=1,all gemms=5,7 |"
      "d=128 mask=causal shares=gemms h=1 s=1024 group=2 threads=1,all gemms=5,7",
      NULL },
    { "threads", "h{h} s{s}",
      "d=128 mask=causal shares=threads h=8 s=2048 group=1 threads=1,all |"
      "d=128 mask=causal shares=threads h=1 s=4096 group=2 threads=1,all",
      "d=128 mask=causal shares=threads h=8 s=512 group=1 threads=1,all |"
      "d=128 mask=causal shares=threads h=1 s=1024 group=2 threads=1,all",
      NULL },
    { 0 },
};

static const case_preset presets[] = {
    { "gemma", "32 and 32/8 heads of 256, interleaved: 512 to 8192 tokens, KV cache, prefix masks",
      "hq=32 d=256 layout=strided naive_whole=1 warmup=3 iters=10", NULL, NULL, FIXED_LAYOUT, 0,
      gemma, NULL },
    { "latency", "short sequences, head_dim 32 and 64, batch 1 and a batch sweep",
      "warmup=10 iters=100 device_iters=50 data=trig", NULL, NULL, 0, 0, latency, NULL },
    { "llm", "32 and 32/8 heads of 128: prefill to 8192, decode with a cache",
      "d=128 mask=causal warmup=3 iters=10", NULL, NULL, 0, 0, llm, NULL },
    { "experts",
      "many short sequences of differing length in a batch, as routed tokens: padded, packed",
      "hq=32 hkv=8 d=128 shares=mask", NULL, "tiled", FIXED_MASK | FIXED_LAYOUT, 0, experts, NULL },
    { "extreme", "65536 to 1048576 tokens: causal, window, cells, dilated, decode (--max-seq-len)",
      "b=1 d=64", NULL, "tiled", FIXED_MASK, 0, extreme, finish_extreme },
    { "masks", "each mask and modifier against none, in turn on the same tensors",
      "b=2 hq=8 hkv=2 sq=1024 kv=2048 d=64 shares=mask",
      "b=1 hq=4 hkv=2 sq=512 kv=1024 d=64 shares=mask", "tiled", FIXED_MASK | FIXED_LAYOUT, 0,
      masks, NULL },
    { "sparse", "one token that reads 2048 keys of a cache by a list, and all keys, in turn",
      "b=1 sq=1 shares=mask", NULL, "tiled", FIXED_MASK | FIXED_LAYOUT, 0, sparse, NULL },
    { "factors", "length, head_dim, heads, batch, ratio, dtype, threads, keys: one at a time",
      "b=1 h=8 s=1024 d=64", "b=1 h=8 s=512 d=64", NULL, 0, 0, factors, NULL },
    { "prefill",
      "the rows of tools/goals.txt, each native kernel set: lengths, widths, storage, layout",
      "b=1 iters=21", NULL, "tiled", FIXED_ALL, 0, prefill, NULL },
    { "decode", "one token against a cache, with the rate at which a plain loop reads it",
      "b=1 sq=1", NULL, "tiled", FIXED_ALL, 0, decode, NULL },
    { "threads", "1, 2, ... threads on the same tensors: speed-up and efficiency",
      "b=1 d=128 shares=threads", NULL, "tiled", FIXED_ALL, 0, threads, NULL },
    { "rank", "every path on a few cases, and which is the fastest", "", NULL, "all", 0, 0, rank,
      NULL },
    { "device", "the OpenCL device: prefill, decode, exact against free, arrays on it and not",
      "b=1", NULL, "devices", FIXED_ALL, 0, device, NULL },
    { "cache", "bytes and speed by storage type, pages and rings against contiguous, appending",
      "hq=32 hkv=8 d=128", NULL, "tiled", FIXED_ALL, 0, cache, NULL },
    { "dilated", "dilated attention, masks of cells and rings against dense, forward and backward",
      "b=2 h=8 s=8192 d=64 mask=causal shares=pattern",
      "b=2 h=8 s=2048 d=64 mask=causal shares=pattern", "tiled", FIXED_PATTERN, 1, dilated_rows,
      dilated_finish },
    { "backward", "gradients: lengths, widths, masks, storage, 5 and 7 products, naive and tiled",
      "backward=1 b=1 h=8", NULL, "tiled", FIXED_ALL, 0, backward, NULL },
};

int preset_cases(const char *name, const preset_choice *want, case_list *list)
{
    int known = 0;
    for (int i = 0; i < LENGTH(presets); i++) {
        if (strcmp(name, "all") && strcmp(name, presets[i].name))
            continue;
        known = 1;
        case_rows(&presets[i], want, list);
    }
    return known;
}

int preset_describe(int i, const char **name, const char **what)
{
    if (i >= LENGTH(presets))
        return 0;
    *name = presets[i].name;
    *what = presets[i].what;
    return 1;
}

int case_sizes(const char *text, int64_t *sizes, int most)
{
    int n = 0;
    for (;; text++) {
        char *end = NULL;
        errno = 0;
        const long value = strtol(text, &end, 10);
        if (n == most || end == text || errno || value < 1 || value > 1 << 28)
            return 0;
        sizes[n++] = value;
        text = end;
        if (!*text)
            return n;
        if (*text != ',')
            return 0;
    }
}

int shape_case(const char *text, case_list *list)
{
    enum { SIZES = 7 };
    int64_t v[SIZES];
    const int n = case_sizes(text, v, SIZES);
    if (n < SIZES - 1)
        return 0;
    bench_case *const c = case_append(list, "shape", "shape");
    int64_t *const sizes[] = { &c->batch,  &c->heads_q,  &c->heads_kv,  &c->seq_q,
                               &c->seq_kv, &c->head_dim, &c->head_dim_v };
    for (int i = 0; i < SIZES; i++)
        *sizes[i] = v[i < n ? i : n - 1];
    snprintf(c->name, sizeof c->name, "%.47s", text);
    return 1;
}
