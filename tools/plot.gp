# plot.gp - draws one picture from the data files that tools/plot.awk writes.
# SPDX-License-Identifier: MIT
#
#     gnuplot -e "picture='latency'; type='png'; folder='DIR'; out='FILE'" tools/plot.gp
#
# A picture is 1000 pixels wide; the legend stands below the axes, where it hides nothing.

tall = picture eq "peers" ? 520 : 660
if (type eq "png") set terminal pngcairo size 1000,tall font "DejaVu Sans,12" noenhanced
if (type eq "svg") set terminal svg size 1000,tall font "DejaVu Sans,sans-serif,15" noenhanced \
    background "#ffffff"
set output out

# People with any kind of colour vision can tell these colours apart; each has another mark.
set linetype 1 lc rgb "#0072b2" lw 2 pt 7 ps 1.1
set linetype 2 lc rgb "#d55e00" lw 2 pt 5 ps 1.0
set linetype 3 lc rgb "#009e73" lw 2 pt 9 ps 1.2
set linetype 4 lc rgb "#cc79a7" lw 2 pt 11 ps 1.2
set linetype 5 lc rgb "#e69f00" lw 2 pt 13 ps 1.2
set linetype 6 lc rgb "#56b4e9" lw 2 pt 4 ps 1.1
set linetype 7 lc rgb "#000000" lw 2 pt 6 ps 1.1
set linetype 8 lc rgb "#8c6d31" lw 2 pt 8 ps 1.2
set linetype cycle 8
set border 3 lc rgb "#444444"
set tics nomirror
set grid lc rgb "#dddddd" lw 1 lt 1
set title font ",14"

data = folder."/".picture.".dat"
load folder."/".picture.".set"
# The room below the axes holds the tics, the label and the legend, two entries to a line.
legend = "set key at screen 0.5, screen 0.015 center bottom horizontal reverse Left samplen 2.5 \
maxcols 3 width 2; set bmargin room + 0.8 + 1.25 * ceil(entries / 2.0)"
room = 4.2
about(title) = caption eq "" ? title : title."\n".caption

# Both axes are logarithmic, because lengths of 128 and of a million share one.
length_axis = "set logscale x 2; set logscale y; set format x '%.0f'; set format y '%g'; \
set mytics 10; set xlabel 'sequence length (tokens)'; set offsets graph 0.03, graph 0.03; \
entries = n; eval legend"

# Values that are all equal need a range that has room for them.
if (picture eq "latency" || picture eq "memory") {
    stats data using 2 nooutput
    if (STATS_min == STATS_max) { set yrange [STATS_min / 2:STATS_max * 2] }
}

if (picture eq "latency") {
    set title about("Latency over length")
    eval length_axis
    set ylabel "time of one call, P50 (ms)"
    plot for [i = 0:n - 1] data index i using 1:2 with linespoints lt i + 1 title columnheader(1)
}

if (picture eq "memory") {
    set title about("Memory beyond inputs and output over length")
    eval length_axis
    set ylabel "memory (MiB)"
    colour_of(i) = word(colours, i + 1) + 0
    choose(i, a, b, c) = i < measured ? a : i < computed ? b : c
    plot for [i = 0:n - 1] data index i using 1:2 with linespoints lt colour_of(i) \
        lw choose(i, 2, 1, 1.5) dt choose(i, 1, 3, 2) pt choose(i, 7, 4, 0) \
        ps choose(i, 1, 1.9, 0.1) title columnheader(1)
}

# Time for each token, because over four decades of time lines apart by a fifth would be one. The
# legend is a plot of its own, without points, as wide as all panels.
if (picture eq "peers") {
    title_of(panel) = panel eq "decode" ? "Decoding: one token after N keys" : \
        panel eq "causal" ? "Prefill, causal mask" : "Prefill, no mask"
    wide = 0.97 / words(panels)
    colour_of(i) = word(colours, i + 1) + 0
    length_axis = length_axis."; set xtics 1, 4; \
set ytics (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000); set autoscale fix; \
set offsets graph 0.04, graph 0.04, graph 0.04, graph 0.04"
    set multiplot
    set label 1 "Time for each token, less is better" at screen 0.5, 0.965 center font ",15"
    set label 2 caption at screen 0.5, 0.92 center font ",11"
    set tmargin at screen 0.80
    do for [k = 1:words(panels)] {
        panel = word(panels, k)
        data = folder."/peers_".panel.".dat"
        load folder."/peers_".panel.".set"
        set title title_of(panel)."\n".caption font ",12" offset 0, -0.3
        eval length_axis
        set xlabel panel eq "decode" ? "N (keys)" : "sequence length (tokens)" offset 0, 0.3
        if (k == 1) { set ylabel "microseconds per token" } else { unset ylabel }
        set lmargin at screen wide * (k - 1) + 0.070
        set rmargin at screen wide * k
        set bmargin at screen 0.245
        unset key
        plot for [i = n - 1:0:-1] data index i \
            using 1:(1000 * $2 / (panel eq "decode" ? 1 : $1)) with linespoints lt colour_of(i) \
            lw (i ? 2 : 3.5) ps (i ? 0.8 : 1.1)
        unset label
    }
    unset border
    unset tics
    unset xlabel
    unset title
    set lmargin at screen 0
    set rmargin at screen 1
    set key at screen 0.5, 0.02 center bottom horizontal reverse Left samplen 3 \
        maxcols 4 width 0
    unset logscale
    unset offsets
    set xrange [0:1]
    set yrange [0:1]
    plot for [i = 0:n - 1] data index i using (2):(2) with linespoints lt colour_of(i) \
        lw (i ? 2 : 3.5) title columnheader(1)
    unset multiplot
}

if (picture eq "roofline") {
    set title about("Roofline: each mark is a row")
    set logscale xy
    set format "%g"
    set xrange [low:high]
    set xlabel "arithmetic intensity (FLOP per byte of q, k, v and o)"
    set ylabel "rate, P50 (GFLOP/s)"
    set samples 2000
    entries = n + 1
    eval legend
    roof(x) = x * rate < peak ? x * rate : peak
    plot roof(x) with lines lw 3 lc rgb "#444444" \
            title sprintf("roof: %.0f GFLOP/s, %.1f GB/s", peak, rate), \
        for [i = 0:n - 1] data index i using 1:2 with points lt i + 1 title columnheader(1)
}

if (picture eq "percentiles") {
    set title about("Percentiles of one call, as multiples of the median")
    set xlabel "time / P50 of the same case (case, implementation and P50 on the left)"
    set yrange [0.4:n + 0.6]
    set logscale x
    set xrange [low * 0.95:high * 1.05]
    set xtics (0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500)
    if (high / low > 4) { set xtics (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) }
    set format x "%g"
    entries = 4
    eval legend
    set key maxcols 4
    plot data using 2:1:(($4) - ($2)):(0) with vectors nohead lw 2 lc rgb "#bbbbbb" notitle, \
        data using 2:1 with points pt 9 ps 1.3 lc rgb "#009e73" title "minimum", \
        data using (1):1 with points pt 7 ps 1.3 lc rgb "#0072b2" title "P50", \
        data using 3:1 with points pt 5 ps 1.2 lc rgb "#e69f00" title "P95", \
        data using 4:1 with points pt 13 ps 1.5 lc rgb "#d55e00" title "P99"
}

if (picture eq "threads") {
    set title about("Speed-up by threads")
    set xrange [0.8:most + 0.2]
    set yrange [0:most * 1.1]
    if (most <= 16) { set xtics 1 }
    set xlabel "threads"
    set ylabel "times as fast as one thread"
    entries = n + 1
    eval legend
    set samples 2000
    ideal(x) = x >= 1 && x <= most ? x : NaN
    plot ideal(x) with lines dt 2 lw 2 lc rgb "#888888" title "as many times as threads", \
        for [i = 0:n - 1] data index i using 1:2 with linespoints lt i + 1 title columnheader(1)
}

if (picture eq "decode") {
    set title about("Decoding one token: rate of reading K and V by storage type")
    set xrange [-0.6:shapes - 0.4]
    set yrange [0:*]
    set offsets 0, 0, graph 0.05, 0
    if (shapes > 4) { set xtics rotate by -35; set rmargin 16; room = 9 }
    entries = n + 1
    eval legend
    set xlabel "heads (q/kv), head_dim, keys"
    set ylabel "bytes of K and V / P50 (GB/s)"
    set style fill solid 0.85 border rgb "#ffffff"
    set grid noxtics
    plot for [i = 0:n - 1] data index i using 1:2:(width * 0.92) with boxes lt i + 1 \
            title columnheader(1), \
        for [i = 0:n - 1] data index i using ($1 - width * 0.42):3:(width * 0.84):(0) \
            with vectors nohead lw 3 lc rgb "#000000" title i ? "" : "a loop that only reads them"
}
