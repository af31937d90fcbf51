# gpu_report.awk - makes tables from the CSV of `bench device` and compares them with the goals:
# f32 at 12 to 18 TFLOP/s of the kernels alone, decoding at 50 % of the rate at which the device
# copies.
# SPDX-License-Identifier: MIT

# Reads the fields of a line, quoted or not, into the array f by the names of the first line.
function split_csv(line,    n, text) {
    for (n = 1; length(line); n++) {
        if (substr(line, 1, 1) == "\"") {
            match(line, /^"[^"]*"/)
            text = substr(line, 2, RLENGTH - 2)
        } else {
            match(line, /^[^,]*/)
            text = substr(line, 1, RLENGTH)
        }
        if (NR == 1) name[n] = text
        else f[name[n]] = text
        line = substr(line, RLENGTH + 2)
    }
}

NR == 1 { split_csv($0); next }

{
    split_csv($0)
    if (!(f["case"] in seen)) order[++cases] = f["case"]
    seen[f["case"]] = f["scenario"]
    dtype[f["case"]] = f["k_dtype"]
    timed[f["case"], f["path"]] = 1
    p50[f["case"], f["path"]] = f["ms_p50"]
    cold[f["case"], f["path"]] = f["cold_ms"]
    launch[f["case"], f["path"]] = f["launch_ms"]
    moved[f["case"], f["path"]] = f["to_device_ms"] + f["to_host_ms"]
    compute[f["case"], f["path"]] = f["compute_ms"]
    tflops[f["case"], f["path"]] = f["compute_gflops"] / 1000
    reading[f["case"], f["path"]] = f["pct_read_bw"]
    rate[f["case"], f["path"]] = f["compute_ms"] > 0 ? f["kv_bytes"] / f["compute_ms"] / 1e6 : 0
}

function figure(format, value, there) { return there ? sprintf(format, value) : "-" }

# compute of one path as a multiple of that of opencl_resident
function times(c, path) {
    return figure("%.2f", compute[c, path] / compute[c, "opencl_resident"],
                  timed[c, path] && compute[c, "opencl_resident"] > 0)
}

function of_goal(c, goal) {
    return figure("%.0f %%", tflops[c, "opencl_resident"] / goal * 100, dtype[c] == "f32")
}

function prefill(c,    t) {
    t = tflops[c, "opencl_resident"]
    if (dtype[c] == "f32" && t > best) best = t
    printf "| %s | %.3f | %.3f | %.2f | %s | %s | %s | %s |\n", c, p50[c, "opencl_resident"],
        compute[c, "opencl_resident"], t, of_goal(c, 12), of_goal(c, 18), times(c, "opencl_exact"),
        times(c, "opencl_naive")
}

END {
    print "\n## Prefill\n\nArrays on the device; TFLOP/s of the kernels alone. Goal: f32, 12 to 18."
    print "exact, naive: time of their kernels over that of the default ones.\n"
    print "| case | P50 ms | compute ms | TFLOP/s | of 12 | of 18 | exact, times | naive, times |"
    print "|---|---|---|---|---|---|---|---|"
    for (i = 1; i <= cases; i++)
        if (seen[order[i]] ~ /prefill/ && timed[order[i], "opencl_resident"]) prefill(order[i])
    if (best > 0)
        printf "\nBest f32: %.2f TFLOP/s, %.0f %% of 12 and %.0f %% of 18.\n", best,
            best / 12 * 100, best / 18 * 100
    else
        print "\nNo f32 was timed."

    print "\n## Decoding\n"
    print "Bytes of k and v over the time of the kernels, and the same as a share of what"
    print "copying on the device reads and writes. Goal: 50 %.\n"
    print "| case | P50 ms | compute ms | GB/s | % of copying | of the goal | exact, times |"
    print "|---|---|---|---|---|---|---|"
    for (i = 1; i <= cases; i++) {
        c = order[i]
        if (seen[c] !~ /^decode/ || !timed[c, "opencl_resident"]) continue
        printf "| %s | %.3f | %.3f | %.0f | %.1f | %.0f %% | %s |\n", c, p50[c, "opencl_resident"],
            compute[c, "opencl_resident"], rate[c, "opencl_resident"],
            reading[c, "opencl_resident"], reading[c, "opencl_resident"] / 50 * 100,
            times(c, "opencl_exact")
    }

    print "\n## Where the time goes, arrays of the host\n"
    print "| case | P50 ms | launch ms | copies ms | kernels ms | first call ms |"
    print "|---|---|---|---|---|---|"
    for (i = 1; i <= cases; i++) {
        c = order[i]
        if (timed[c, "opencl"])
            printf "| %s | %.3f | %.3f | %.3f | %.3f | %.0f |\n", c, p50[c, "opencl"],
                launch[c, "opencl"], moved[c, "opencl"], compute[c, "opencl"], cold[c, "opencl"]
    }
}
