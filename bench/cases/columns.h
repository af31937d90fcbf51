/* columns.h - what table, CSV and JSON show of a result: a line a column, in the order of the files.
 * SPDX-License-Identifier: MIT
 *
 * The members of bench_result and the table of fields.c are made of these lines. What a column
 * means is in docs/bench.schema.json, whose keys tests/bench_files.py compares with the files.
 *
 *     TEXT   a pointer to a text, never NULL
 *     NAME   characters in the result itself: key, member, bytes
 *     INT    a count; 0 = none or unknown
 *     REAL   a number
 *     MAYBE  a REAL of which 0 means that it is not known
 *
 * What follows the key is the column of the printed table: see fields.c. */
#ifndef BENCH_COLUMNS_H
#define BENCH_COLUMNS_H

#define RESULT_COLUMNS(TEXT, NAME, INT, REAL, MAYBE)                                               \
    TEXT(preset, HIDDEN)                                                                           \
    TEXT(scenario, HIDDEN)                                                                         \
    NAME("case", name, 48, SHOWN("case", 0, 0, 1))                                                 \
    TEXT(path, SHOWN("path", 0, 0, 1))                                                             \
    TEXT(impl, HIDDEN)                                                                             \
    TEXT(kernels, SHOWN("kernels", -13, 0, 1))                                                     \
    TEXT(dtype, HIDDEN)                                                                            \
    TEXT(mask, HIDDEN)                                                                             \
    TEXT(layout, HIDDEN)                                                                           \
    TEXT(data, HIDDEN)                                                                             \
    TEXT(pass, HIDDEN) /* "none" where keys are appended */                                        \
    INT(gemms, HIDDEN)                                                                             \
    NAME("branches", branches, 96, HIDDEN) /* see dilated_text */                                  \
    TEXT(branch_heads, HIDDEN)                                                                     \
    TEXT(merge, HIDDEN)                                                                            \
    TEXT(variant, HIDDEN)                                                                          \
    TEXT(pattern_cache, HIDDEN) /* "off": built in every call; "" = there is none */               \
    TEXT(memory_pool, HIDDEN)                                                                      \
    TEXT(keys, HIDDEN)                                                                             \
    TEXT(k_dtype, HIDDEN)                                                                          \
    TEXT(v_dtype, HIDDEN)                                                                          \
    INT(integer, HIDDEN) /* 1: scores in whole numbers */                                          \
    INT(fast, HIDDEN)    /* 1: products of rounded numbers were allowed */                         \
    INT(page_size, HIDDEN)                                                                         \
    INT(shared_keys, HIDDEN) /* that the call was told of */                                       \
    INT(batch, HIDDEN)                                                                             \
    INT(heads_q, HIDDEN)                                                                           \
    INT(heads_kv, HIDDEN)                                                                          \
    INT(seq_q, HIDDEN)                                                                             \
    INT(seq_kv, HIDDEN)                                                                            \
    INT(head_dim, HIDDEN)                                                                          \
    INT(head_dim_v, HIDDEN)                                                                        \
    INT(threads, SHOWN("thr", 3, 0, 1))                                                            \
    INT(row_stride, HIDDEN) /* elements from one row of q to the next */                           \
    INT(kv_token_bytes, HIDDEN)                                                                    \
    INT(kv_bytes, HIDDEN)                                                                          \
    INT(ranks, HIDDEN)                                                                             \
    INT(moved_bytes, HIDDEN)                                                                       \
    MAYBE(exchange_ms, HIDDEN)                                                                     \
    MAYBE(rank_balance, HIDDEN) /* pairs of the rank that has most / mean of all */                \
    INT(processes, HIDDEN)      /* ranks that are processes; 0 = threads, or none */               \
    MAYBE(exchange_awaited_ms, HIDDEN)                                                             \
    MAYBE(exchange_alone_ms, HIDDEN)                                                               \
    REAL(overlap, HIDDEN) /* share of that which computation hides */                              \
    MAYBE(compute_balance, HIDDEN)                                                                 \
    INT(samples, WIDE("calls", 5, 0, 1))                                                           \
    REAL(ms_min, WIDE("min ms", 7, 3, 1))                                                          \
    REAL(ms_mean, WIDE("mean ms", 7, 3, 1))                                                        \
    REAL(ms_std, WIDE("std ms", 6, 3, 1))                                                          \
    REAL(ms_p50, SHOWN("P50 ms", 7, 3, 1))                                                         \
    REAL(ms_p95, SHOWN("P95 ms", 7, 3, 1))                                                         \
    REAL(ms_p99, WIDE("P99 ms", 7, 3, 1))                                                          \
    REAL(cold_ms, SHOWN("cold ms", 7, 3, 1))                                                       \
    MAYBE(launch_ms, ON_DEVICE("launch", 7, 3)) /* these four add up to a call on a device */      \
    MAYBE(to_device_ms, ON_DEVICE("to dev", 7, 3))                                                 \
    MAYBE(compute_ms, ON_DEVICE("compute", 7, 3))                                                  \
    MAYBE(to_host_ms, ON_DEVICE("to host", 7, 3))                                                  \
    MAYBE(compute_gflops, ON_DEVICE("dev GF/s", 8, 1))                                             \
    INT(launches, HIDDEN)                                                                          \
    MAYBE(vs_first, SHOWN("x 1st", 5, 2, 1)) /* over the first path timed of this case */          \
    REAL(tokens_per_s, SHOWN("tokens/s", 8, 1, 1))                                                 \
    REAL(gflops, SHOWN("GFLOP/s", 7, 1, 1))                                                        \
    MAYBE(pct_fma_peak, SHOWN("%peak", 5, 1, 1))                                                   \
    REAL(pct_set_peak, HIDDEN)                                                                     \
    MAYBE(pct_avx2_peak, HIDDEN)                                                                   \
    MAYBE(kernel_loop_gflops, HIDDEN) /* of a register tile in L1, in turn */                      \
    MAYBE(pct_kernel_loop,                                                                         \
          SHOWN("%loop", 5, 1, 1)) /* the call's GFLOP/s / the loop's, median of pairs */          \
    MAYBE(gbytes_per_s, WIDE("GB/s", 5, 1, 1))                                                     \
    MAYBE(read_gbytes_per_s, HIDDEN) /* of a loop that reads k and v, in turn */                   \
    MAYBE(pct_read_bw,                                                                             \
          SHOWN("%read", 5, 1, 1)) /* the loop's time / the call's, median of pairs */             \
    MAYBE(speedup, HIDDEN)         /* over the case that it shares tensors with */                 \
    MAYBE(efficiency, HIDDEN)                                                                      \
    REAL(visible, WIDE("shown", 5, 3, 1))                                                          \
    INT(workspace_bytes, SHOWN("KiB", 6, 0, 1024))                                                 \
    INT(peak_rss_bytes, HIDDEN)                                                                    \
    MAYBE(pct_running, WIDE("%cpu", 5, 1, 1)) /* below 100: others had the CPU, too */             \
    INT(rss_growth_bytes, HIDDEN)             /* of the first call, in a process of its own */     \
    INT(theory_bytes, HIDDEN)                 /* beside the tensors: model_theory_bytes */         \
    REAL(matrix_share, WIDE("share", 8, 5, 1))                                                     \
    MAYBE(intensity, WIDE("F/byte", 6, 1, 1))                                                      \
    TEXT(roof, SHOWN("roof", -7, 0, 1)) /* which peak binds at this intensity */                   \
    REAL(fma_peak_gflops, HIDDEN)       /* of as many threads */                                   \
    REAL(read_peak_gbytes_per_s, HIDDEN)                                                           \
    REAL(cycles_p10, HIDDEN) /* of one call, see measure.h */                                      \
    REAL(cycles_p50, HIDDEN)                                                                       \
    REAL(max_err, HIDDEN)                                                                          \
    REAL(err_tolerance, WIDE("err/tol", 7, 3, 1)) /* the worst error in units of its tolerance */  \
    MAYBE(phase_qk_ms, HIDDEN)                    /* see phases.c; of a call of their own */       \
    MAYBE(phase_softmax_ms, HIDDEN)                                                                \
    MAYBE(phase_pv_ms, HIDDEN)                                                                     \
    MAYBE(phase_merge_ms, HIDDEN)                                                                  \
    MAYBE(phase_rest_ms, HIDDEN)                                                                   \
    MAYBE(phase_clock_ms, HIDDEN)                                                                  \
    TEXT(tuning, HIDDEN) /* file whose text was used; "" = none */                                 \
    TEXT(device, HIDDEN) /* "" = the CPU */

#endif
