/* fields.c - the fields of a result, as one table for the printed table, CSV and JSON.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>

#define HIDDEN NULL, 0, 0, 1, SHOW_ALWAYS
#define SHOWN(title, width, decimals, unit) title, width, decimals, unit, SHOW_ALWAYS
#define WIDE(title, width, decimals, unit) title, width, decimals, unit, SHOW_WIDE
#define ON_DEVICE(title, width, decimals) title, width, decimals, 1, SHOW_DEVICE
#define TEXT(key, ...) #key, FIELD_TEXT, offsetof(bench_result, key), __VA_ARGS__
#define INT(key, ...) #key, FIELD_INT, offsetof(bench_result, key), __VA_ARGS__
#define REAL(key, ...) #key, FIELD_REAL, offsetof(bench_result, key), __VA_ARGS__
#define MAYBE(key, ...) #key, FIELD_MAYBE, offsetof(bench_result, key), __VA_ARGS__

const result_field result_fields[] = {
    { TEXT(preset, HIDDEN) },
    { TEXT(scenario, HIDDEN) },
    { "case", FIELD_NAME, offsetof(bench_result, name), "case", 0, 0, 1, SHOW_ALWAYS },
    { TEXT(path, SHOWN("path", 0, 0, 1)) },
    { TEXT(impl, HIDDEN) },
    { TEXT(kernels, SHOWN("kernels", -13, 0, 1)) },
    { TEXT(dtype, HIDDEN) },
    { TEXT(mask, HIDDEN) },
    { TEXT(layout, HIDDEN) },
    { TEXT(data, HIDDEN) },
    { TEXT(pass, HIDDEN) },
    { INT(gemms, HIDDEN) },
    { "branches", FIELD_NAME, offsetof(bench_result, branches), HIDDEN },
    { TEXT(branch_heads, HIDDEN) },
    { TEXT(merge, HIDDEN) },
    { TEXT(variant, HIDDEN) },
    { TEXT(pattern_cache, HIDDEN) },
    { TEXT(memory_pool, HIDDEN) },
    { TEXT(keys, HIDDEN) },
    { TEXT(k_dtype, HIDDEN) },
    { TEXT(v_dtype, HIDDEN) },
    { INT(page_size, HIDDEN) },
    { INT(shared_keys, HIDDEN) },
    { INT(batch, HIDDEN) },
    { INT(heads_q, HIDDEN) },
    { INT(heads_kv, HIDDEN) },
    { INT(seq_q, HIDDEN) },
    { INT(seq_kv, HIDDEN) },
    { INT(head_dim, HIDDEN) },
    { INT(head_dim_v, HIDDEN) },
    { INT(threads, SHOWN("thr", 3, 0, 1)) },
    { INT(row_stride, HIDDEN) },
    { INT(kv_token_bytes, HIDDEN) },
    { INT(kv_bytes, HIDDEN) },
    { INT(ranks, HIDDEN) },
    { INT(moved_bytes, HIDDEN) },
    { MAYBE(exchange_ms, HIDDEN) },
    { MAYBE(rank_balance, HIDDEN) },
    { INT(samples, WIDE("calls", 5, 0, 1)) },
    { REAL(ms_min, WIDE("min ms", 7, 3, 1)) },
    { REAL(ms_mean, WIDE("mean ms", 7, 3, 1)) },
    { REAL(ms_std, WIDE("std ms", 6, 3, 1)) },
    { REAL(ms_p50, SHOWN("P50 ms", 7, 3, 1)) },
    { REAL(ms_p95, SHOWN("P95 ms", 7, 3, 1)) },
    { REAL(ms_p99, WIDE("P99 ms", 7, 3, 1)) },
    { REAL(cold_ms, SHOWN("cold ms", 7, 3, 1)) },
    { MAYBE(launch_ms, ON_DEVICE("launch", 7, 3)) },
    { MAYBE(to_device_ms, ON_DEVICE("to dev", 7, 3)) },
    { MAYBE(compute_ms, ON_DEVICE("compute", 7, 3)) },
    { MAYBE(to_host_ms, ON_DEVICE("to host", 7, 3)) },
    { MAYBE(compute_gflops, ON_DEVICE("dev GF/s", 8, 1)) },
    { INT(launches, HIDDEN) },
    { MAYBE(vs_first, SHOWN("x 1st", 5, 2, 1)) },
    { REAL(tokens_per_s, SHOWN("tokens/s", 8, 1, 1)) },
    { REAL(gflops, SHOWN("GFLOP/s", 7, 1, 1)) },
    { MAYBE(pct_fma_peak, SHOWN("%peak", 5, 1, 1)) },
    { REAL(pct_set_peak, HIDDEN) },
    { MAYBE(pct_avx2_peak, HIDDEN) },
    { MAYBE(gbytes_per_s, WIDE("GB/s", 5, 1, 1)) },
    { MAYBE(read_gbytes_per_s, HIDDEN) },
    { MAYBE(pct_read_bw, SHOWN("%read", 5, 1, 1)) },
    { MAYBE(speedup, HIDDEN) },
    { MAYBE(efficiency, HIDDEN) },
    { REAL(visible, WIDE("shown", 5, 3, 1)) },
    { INT(workspace_bytes, SHOWN("KiB", 6, 0, 1024)) },
    { INT(peak_rss_bytes, HIDDEN) },
    { MAYBE(pct_running, WIDE("%cpu", 5, 1, 1)) },
    { INT(rss_growth_bytes, HIDDEN) },
    { INT(theory_bytes, HIDDEN) },
    { REAL(matrix_share, WIDE("share", 8, 5, 1)) },
    { MAYBE(intensity, WIDE("F/byte", 6, 1, 1)) },
    { TEXT(roof, SHOWN("roof", -7, 0, 1)) },
    { REAL(fma_peak_gflops, HIDDEN) },
    { REAL(read_peak_gbytes_per_s, HIDDEN) },
    { REAL(cycles_p10, HIDDEN) },
    { REAL(cycles_p50, HIDDEN) },
    { REAL(max_err, HIDDEN) },
    { REAL(err_tolerance, WIDE("err/tol", 7, 3, 1)) },
    { MAYBE(phase_qk_ms, HIDDEN) },
    { MAYBE(phase_softmax_ms, HIDDEN) },
    { MAYBE(phase_pv_ms, HIDDEN) },
    { MAYBE(phase_merge_ms, HIDDEN) },
    { MAYBE(phase_rest_ms, HIDDEN) },
    { MAYBE(phase_clock_ms, HIDDEN) },
    { TEXT(tuning, HIDDEN) },
    { TEXT(device, HIDDEN) },
};

const int num_result_fields = (int)(sizeof result_fields / sizeof *result_fields);

int field_is_text(const result_field *f)
{
    return f->kind == FIELD_NAME || f->kind == FIELD_TEXT;
}

const char *field_text(const result_field *f, const bench_result *r)
{
    const char *const at = (const char *)r + f->offset;
    return f->kind == FIELD_NAME ? at : *(const char *const *)(const void *)at;
}

void field_put_number(FILE *f, double x)
{
    const int whole = x == floor(x) && fabs(x) < 1e15;
    fprintf(f, whole ? "%.0f" : "%.9g", x);
}

double field_number(const result_field *f, const bench_result *r)
{
    const void *const at = (const char *)r + f->offset;
    return f->kind == FIELD_INT ? (double)*(const int64_t *)at : *(const double *)at;
}
