/* opencl_plan.c - how a call would run on devices of many sizes: attn_opencl_plan, which needs no
 * device.
 * SPDX-License-Identifier: MIT
 */
#include "../attn_opencl.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

enum { SHAPES = 20000, CHUNK = 1024, MOST_PARTS = 128 };

static attn_opencl_info device_of(int units, int kib, int exact)
{
    attn_opencl_info info;
    memset(&info, 0, sizeof info);
    info.compute_units = units;
    info.local_bytes = (size_t)kib << 10;
    info.allocation_bytes = (size_t)1 << 30;
    info.exact = exact;
    return info;
}

static attn_params shape_of(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t rows,
                            int64_t keys, int64_t dim)
{
    static float output[1]; /* that there is one counts, nothing is written */
    attn_params p;
    memset(&p, 0, sizeof p);
    p.batch = batch;
    p.num_heads_q = heads_q;
    p.num_heads_kv = heads_kv;
    p.seq_len_q = rows;
    p.seq_len_kv = keys;
    p.head_dim = p.head_dim_v = dim;
    p.o.data = output;
    return p;
}

/* A device, a call, and its plan. */
typedef struct example {
    const char *device;
    int units, kib, exact;
    int64_t batch, heads_q, heads_kv, rows, keys, dim;
    int tile_rows, tile_columns;
    int64_t tiles, slices, parts, part_keys, groups;
} example;

/* 132 units with 48 KiB are what OpenCL shows of an H100 or H200; 32 KiB is the least that
 * OpenCL 1.2 asks for. */
static const example examples[] = {
    { "prefill, 132 units", 132, 48, 0, 1, 32, 8, 4096, 4096, 128, 64, 128, 256, 1, 1, 0, 2048 },
    { "decode, 132 units", 132, 48, 0, 1, 32, 8, 1, 8192, 128, 4, 128, 1, 1, 128, 64, 1024 },
    { "decode, exact", 132, 48, 1, 1, 32, 8, 1, 65536, 128, 4, 128, 1, 1, 64, 1024, 512 },
    { "wide heads, 48 KiB", 96, 48, 0, 1, 8, 8, 512, 512, 256, 32, 256, 16, 1, 2, 256, 256 },
    { "wide heads, 32 KiB", 16, 32, 0, 1, 8, 8, 512, 512, 256, 32, 256, 16, 1, 1, 0, 128 },
    { "slices of V", 16, 64, 0, 1, 8, 8, 512, 512, 576, 32, 256, 16, 3, 1, 0, 384 },
};

static void check_example(const example *e)
{
    const attn_opencl_info info = device_of(e->units, e->kib, e->exact);
    const attn_params p = shape_of(e->batch, e->heads_q, e->heads_kv, e->rows, e->keys, e->dim);
    attn_opencl_plan_info plan;
    if (!begin_case("%s", e->device))
        return;
    CHECK(attn_opencl_plan(&info, &p, &plan) == ATTN_OK && plan.runs, "%s", plan.why);
    CHECK(plan.tile_rows == e->tile_rows && plan.tile_columns == e->tile_columns,
          "tiles of %d rows, %d columns", plan.tile_rows, plan.tile_columns);
    CHECK(plan.tiles == e->tiles && plan.slices == e->slices, "%lld tiles, %lld slices",
          (long long)plan.tiles, (long long)plan.slices);
    CHECK(plan.parts == e->parts && plan.part_keys == e->part_keys, "%lld parts of %lld keys",
          (long long)plan.parts, (long long)plan.part_keys);
    CHECK(plan.groups == e->groups, "%lld work-groups", (long long)plan.groups);
}

static int64_t up_to(int64_t most) /* small numbers as often as large ones */
{
    int64_t n = most;
    while (n > 4 && rng_chance(66))
        n /= 4;
    return rng_int(1, n);
}

/* What the arrays of the kernel forward take, see kernels.cl. */
static int64_t local_memory(int64_t rows, int64_t columns)
{
    const int64_t slices = (rows + 64) * 36, values = (columns <= 128 ? 32 : 16) * columns;
    const int64_t floats = larger64(slices, values) + rows * 68 + rows * (1 + 1 + 4 + 4);
    const int64_t ints = 2 * rows + 4 + 2, longs = rows + 64 + 64;
    return 4 * floats + 4 * ints + 8 * longs;
}

/* The most states that wait at once where chunks first..end-1 become one: after chunk c a node of
 * 2^k chunks for each bit k of c + 1 (docs/canon.md), but for those without any of the chunks. */
static int64_t waiting_states(int64_t first, int64_t end)
{
    int64_t most = 0;
    for (int64_t c = first; c < end - 1; c++) {
        int64_t count = 0;
        for (int k = 0; (c + 1) >> k; k++)
            count += ((c + 1) >> k & 1) != 0 && ((c + 1) >> k << k) > first;
        most = larger64(most, count);
    }
    return most;
}

/* Parts that the keys of a sequence touch at most, and states that wait in one of them. */
static void count_parts(const attn_params *p, int64_t part_keys, int64_t *parts, int64_t *waiting)
{
    *parts = *waiting = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t base = p->key_base[b], end = base + p->seq_len_kv;
        *parts = larger64(*parts, (end - 1) / part_keys - base / part_keys + 1);
        for (int64_t from = base / part_keys * part_keys; from < end; from += part_keys) {
            const int64_t to = from + part_keys < end ? from + part_keys : end;
            *waiting = larger64(
                *waiting, waiting_states(larger64(from, base) / CHUNK, (to + CHUNK - 1) / CHUNK));
        }
    }
}

static int is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* Memory for all that waits, and no array larger than the device has. */
static void check_memory(const attn_opencl_info *info, const attn_params *p,
                         const attn_opencl_plan_info *plan)
{
    const int64_t one = plan->tile_rows * (plan->tile_columns + 2) * 4;
    const int64_t between = plan->parts == 1 ? 0
                                             : plan->tiles * p->num_heads_kv * plan->tile_rows *
                                                   plan->parts * (p->head_dim_v + 2) * 4;
    int64_t parts, waiting;
    count_parts(p, plan->part_keys ? plan->part_keys : (int64_t)1 << 40, &parts, &waiting);
    CHECK(plan->parts == parts, "%lld parts of %lld keys", (long long)plan->parts,
          (long long)plan->part_keys);
    CHECK(between <= (int64_t)info->allocation_bytes, "%lld bytes of parts", (long long)between);
    CHECK((int64_t)plan->device_bytes >= between + (info->exact ? waiting * one * plan->groups : 0),
          "%zu bytes where %lld states wait in %lld groups", plan->device_bytes, (long long)waiting,
          (long long)plan->groups);
    CHECK((int64_t)plan->local_bytes == local_memory(plan->tile_rows, plan->tile_columns),
          "%zu bytes local", plan->local_bytes);
}

/* What holds of every plan that runs. */
static void check_properties(const attn_opencl_info *info, const attn_params *p,
                             const attn_opencl_plan_info *plan)
{
    const int64_t rows = p->seq_len_q * (p->num_heads_q / p->num_heads_kv);
    CHECK(plan->forward && plan->merge_parts == (plan->parts > 1), "kernels");
    CHECK(plan->local_bytes <= info->local_bytes, "%zu of %zu bytes local", plan->local_bytes,
          info->local_bytes);
    CHECK(plan->device_bytes <= 2 * info->allocation_bytes, "%zu bytes", plan->device_bytes);
    CHECK(plan->groups >= 1 && plan->groups <= plan->items, "%lld work-groups, %lld items",
          (long long)plan->groups, (long long)plan->items);
    CHECK(plan->items == plan->tiles * p->num_heads_kv * plan->parts * plan->slices, "items");
    CHECK(plan->tiles >= p->batch && plan->tiles * plan->tile_rows >= p->batch * rows &&
              (plan->tiles - p->batch) * plan->tile_rows < p->batch * rows,
          "%lld tiles of %d rows", (long long)plan->tiles, plan->tile_rows);
    CHECK(plan->slices * plan->tile_columns >= p->head_dim_v, "columns are missing");
    CHECK(plan->parts >= 1 && plan->parts <= MOST_PARTS, "%lld parts", (long long)plan->parts);
    if (plan->parts == 1) {
        CHECK(plan->part_keys == 0, "one part, but keys are divided");
        return;
    }
    CHECK(plan->part_keys % (info->exact ? CHUNK : 64) == 0 && is_power_of_two(plan->part_keys),
          "a part of %lld keys", (long long)plan->part_keys);
    CHECK(plan->items * (plan->tile_rows < 16 ? 1 : 4) <= 16 * (int64_t)info->compute_units,
          "%lld items of divided keys", (long long)plan->items);
}

/* The same call on more memory has no smaller tiles. */
static void check_more_memory(const attn_opencl_info *info, const attn_params *p,
                              const attn_opencl_plan_info *plan)
{
    attn_opencl_info larger = *info;
    attn_opencl_plan_info other;
    larger.local_bytes *= 2;
    larger.allocation_bytes = (size_t)1 << 30; /* of larger tiles */
    CHECK(attn_opencl_plan(&larger, p, &other) == ATTN_OK && other.runs, "%s", other.why);
    CHECK(other.tile_rows >= plan->tile_rows && other.tile_columns == plan->tile_columns,
          "smaller tiles with more memory");
}

static void check_shapes(void)
{
    static const int kib[] = { 16, 32, 32, 48, 64, 128, 1024 };
    int ran = 0, refused = 0, divided = 0;
    if (!begin_case("any shape on any device"))
        return;
    for (int i = 0; i < SHAPES; i++) {
        attn_opencl_info info =
            device_of((int)rng_int(1, 200), kib[rng_int(0, 6)], (int)rng_int(0, 1));
        const int64_t heads_kv = up_to(16);
        const int64_t rows = up_to(3000), keys = up_to(200000), dim = up_to(700);
        attn_params p = shape_of(up_to(8), heads_kv * up_to(8), heads_kv, rows, keys, dim);
        attn_opencl_plan_info plan;
        int64_t base[8];
        int fits;
        info.allocation_bytes >>= rng_int(0, 1) * 7;
        for (int b = 0; b < 8; b++)
            base[b] = rng_chance(50) ? up_to(100000) : 0;
        p.key_base = base;
        p.causal = (int)rng_int(0, 1);
        p.head_dim_v = up_to(700);
        fits = fits_memory(&p);
        CHECK(attn_opencl_plan(&info, &p, &plan) == (fits ? ATTN_OK : ATTN_ERR_OVERFLOW), "%s",
              plan.why);
        refused += !plan.runs;
        CHECK(plan.runs == (strcmp(plan.why, "ok") == 0), "%s", plan.why);
        CHECK(plan.runs || !fits || info.local_bytes < 24 << 10 ||
                  strstr(plan.why, "exceed an array of the device") != NULL,
              "%s", plan.why);
        if (!plan.runs)
            continue;
        ran++;
        divided += plan.parts > 1;
        check_properties(&info, &p, &plan);
        check_memory(&info, &p, &plan);
        check_more_memory(&info, &p, &plan);
    }
    CHECK(ran > SHAPES / 2 && refused > SHAPES / 100 && divided > SHAPES / 100,
          "%d ran, %d refused, %d divided", ran, refused, divided);
}

static float same_logit(void *user, const attn_pair *at, float logit)
{
    (void)user;
    (void)at;
    return logit;
}

static void refuses(const attn_opencl_info *info, const attn_params *p, const char *why)
{
    attn_opencl_plan_info plan;
    CHECK(attn_opencl_plan(info, p, &plan) == ATTN_OK && !plan.runs && plan.groups == 0, "it runs");
    CHECK(strstr(plan.why, why) != NULL, "it says \"%s\"", plan.why);
}

static void check_refusals(void)
{
    const attn_opencl_info small = device_of(4, 16, 0), usual = device_of(4, 32, 0);
    attn_opencl_info narrow = usual;
    attn_params p = shape_of(1, 2, 2, 100, 100, 64);
    attn_opencl_plan_info plan;
    if (!begin_case("plans that are refused"))
        return;
    refuses(&small, &p, "too little local memory");
    p.impl = ATTN_IMPL_NAIVE; /* needs none */
    CHECK(attn_opencl_plan(&small, &p, &plan) == ATTN_OK && plan.runs && plan.naive &&
              !plan.forward && plan.device_bytes == 4 * (100 * 100 + 100),
          "%s", plan.why);
    p.seq_len_q = p.seq_len_kv = 20000;
    refuses(&small, &p, "the logits of a head exceed");
    p = shape_of(1, 2, 2, 100, 100, 64);
    p.score = same_logit;
    refuses(&usual, &p, "score is set, but a device does not take it");
    p.score = NULL;
    p.part.keys = 1;
    p.part.key_count = 100;
    refuses(&usual, &p, "part.keys (1) is set, but a device does not take it");
    p.part.keys = 0;
    p.part.key_count = 0;
    p.num_heads_kv = 3;
    CHECK(attn_opencl_plan(&usual, &p, &plan) == ATTN_ERR_ARG && !plan.runs, "3 heads for 2");
    CHECK(strstr(plan.why, "num_heads") != NULL, "it says \"%s\"", plan.why);
    CHECK(attn_opencl_plan(NULL, &p, &plan) == ATTN_ERR_ARG && plan.why[0] != 0, "no device");
    CHECK(attn_opencl_plan(&usual, &p, NULL) == ATTN_ERR_ARG, "no plan");
    p = shape_of(1, 2, 2, 0, 100, 64);
    CHECK(attn_opencl_plan(&usual, &p, &plan) == ATTN_OK && plan.runs && !plan.forward,
          "no rows, but a kernel");
    p = shape_of(1, 2, 2, 8192, 1, 64); /* q and o take 2 MiB each, rotated rows in f32 4 */
    p.q.dtype = p.o.dtype = ATTN_F16;
    narrow.allocation_bytes = 3 << 20;
    p.rotated = ATTN_ROTATED_V;
    refuses(&narrow, &p, "rotated or rounded rows exceed an array of the device");
    p.rotated = ATTN_ROTATED_K;
    refuses(&narrow, &p, "rotated or rounded rows exceed an array of the device");
    p = shape_of(1, 2, 2, 100, 100, 64);
    p.stats.data = p.o.data;
    p.o.data = NULL;
    CHECK(attn_opencl_plan(&usual, &p, &plan) == ATTN_OK && plan.runs && plan.forward &&
              plan.slices == 1,
          "no kernel for statistics");
}

/* Rows of queries take `width` floats each, rows of results 64, beside what the call takes without. */
static void check_rotation(int rotated, int integer, int64_t width, int back)
{
    const attn_opencl_info info = device_of(4, 32, 0);
    attn_params p = shape_of(3, 2, 2, 100, 100, 64);
    attn_opencl_plan_info plain, plan;
    if (!begin_case("rotated %d, whole numbers %d", rotated, integer))
        return;
    p.k.dtype = ATTN_Q8_0;
    CHECK(attn_opencl_plan(&info, &p, &plain) == ATTN_OK && plain.runs, "refused");
    p.rotated = rotated;
    p.integer = integer;
    CHECK(attn_opencl_plan(&info, &p, &plan) == ATTN_OK && plan.runs, "refused");
    CHECK(plan.rotate_queries == (width > 0) && plan.rotate_results == back, "kernels");
    CHECK((int64_t)(plan.device_bytes - plain.device_bytes) ==
              3 * 2 * 100 * 4 * (width + (back ? 64 : 0)),
          "%zu bytes", plan.device_bytes - plain.device_bytes);
    p.partial = 1;
    CHECK(attn_opencl_plan(&info, &p, &plan) == ATTN_OK && !plan.rotate_results,
          "states are rotated back");
}

/* A storage type that only the CPU has. */
static void check_type(const attn_backend *backend, attn_problem *pr, attn_gradient_call *g,
                       int *dtype, const char *name)
{
    char want[100], why[200];
    for (int type = 0; type < 40; type++) {
        const int kv = *name == 'k' || *name == 'v', known = type <= (kv ? ATTN_Q4_0 : ATTN_BF16);
        *dtype = type;
        snprintf(want, sizeof want, "%s (%d) is a storage type that a device does not know", name,
                 type);
        CHECK((g ? backend->supports_gradients(backend, pr, g, why, sizeof why)
                 : backend->supports(backend, pr, why, sizeof why)) == 0,
              "it runs");
        CHECK(strcmp(why, known ? "no device is open" : want) == 0, "%s (%d): it says \"%s\"", name,
              type, why);
    }
    *dtype = ATTN_F32;
}

static void check_types(void)
{
    const attn_backend backend = attn_opencl_backend(NULL, NULL);
    const attn_params p = shape_of(1, 2, 2, 100, 100, 64);
    attn_problem pr;
    attn_gradient_call g;
    if (!begin_case("storage types that a device does not know"))
        return;
    memset(&g, 0, sizeof g);
    CHECK(attn_problem_of(&p, &pr, NULL, 0) == ATTN_OK, "no problem");
    check_type(&backend, &pr, NULL, &pr.p.q.dtype, "q.dtype");
    check_type(&backend, &pr, NULL, &pr.p.k.dtype, "k.dtype");
    check_type(&backend, &pr, NULL, &pr.p.v.dtype, "v.dtype");
    check_type(&backend, &pr, NULL, &pr.p.o.dtype, "o.dtype");
    check_type(&backend, &pr, NULL, &pr.p.bias.dtype, "bias.dtype");
    check_type(&backend, &pr, &g, &g.g.dout.dtype, "dout.dtype");
    check_type(&backend, &pr, &g, &g.g.dq.dtype, "dq.dtype");
    check_type(&backend, &pr, &g, &g.g.dk.dtype, "dk.dtype");
    check_type(&backend, &pr, &g, &g.g.dv.dtype, "dv.dtype");
}

TEST_GROUP(opencl_plan, RUN_ONCE, "how calls would run on devices of any size")
{
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        check_example(&examples[i]);
    check_shapes();
    check_refusals();
    check_rotation(0, 0, 0, 0);
    check_rotation(ATTN_ROTATED_K, 0, 64, 0);
    check_rotation(ATTN_ROTATED_V, 0, 0, 1);
    check_rotation(ATTN_ROTATED_V, 1, 66, 1);
    check_types();
}
