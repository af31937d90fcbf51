# plot.awk - turns rows of the bench's CSV into data files for tools/plot.gp.
# SPDX-License-Identifier: MIT
#
#     awk -v folder=DIR -f tools/plot.awk FILE.csv...
#
# Columns are found by their names in the head line. For each picture whose rows are there,
# DIR/NAME.dat gets its series, one block each with its name on top, and DIR/NAME.set gets the
# settings that tools/plot.gp loads beside it. For the other pictures one sentence says what is
# missing. A file that is not a CSV of the bench or of tools/compare_peers is refused with exit
# status 2.

BEGIN {
    MAX_BARS = 16    # rows and shapes that stay legible at 1000 pixels
    MAX_SERIES = 12
}

# ---- reading

# Reads one line of CSV into f[1..n]; texts may be quoted, with quotes doubled inside.
function split_csv(line, f,    n, c, quoted, i, text) {
    n = 0
    text = ""
    quoted = 0
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        if (quoted && c == "\"" && substr(line, i + 1, 1) == "\"") { text = text c; i++ }
        else if (c == "\"") quoted = !quoted
        else if (c == "," && !quoted) { f[++n] = text; text = "" }
        else text = text c
    }
    f[++n] = text
    return quoted ? 0 : n
}

function refuse(sentence) {
    print "plot: " sentence > "/dev/stderr"
    refused = 1
    exit 2
}

FNR == 1 {
    sub(/\r$/, "")
    columns = split_csv($0, head)
    split("", at)
    for (i = 1; i <= columns; i++) at[head[i]] = i
    split("case impl seq_q seq_kv heads_q heads_kv head_dim dtype threads", needed, " ")
    for (i = 1; i in needed; i++)
        if (!(needed[i] in at))
            refuse(FILENAME " is not CSV of the bench: its head line has no column " needed[i])
    files++
    next
}

{
    sub(/\r$/, "")
    if (split_csv($0, field) != columns)
        refuse(FILENAME ", line " FNR ": not the " columns " values that the head line names; " \
               "is the file cut off?")
    rows++
    line_of[rows] = FILENAME ", line " FNR
    for (name in at) cell[rows, name] = field[at[name]]
}

function t_of(row, name) { return (row, name) in cell ? cell[row, name] : "" }

# Returns the number in a column of a row, or 0 where the cell has none. That a column holds numbers
# is said nowhere but here, by who asks: one that no picture reads may hold anything.
function n_of(row, name,    value) {
    if ((row, name) in number) return number[row, name]
    value = t_of(row, name)
    if (value !~ /^-?[0-9]+\.?[0-9]*([eE][-+]?[0-9]+)?$/) {
        if (value != "" && value !~ /^-?(nan|inf)/)
            refuse(line_of[row] ": \"" value "\" is no number, as " name " is")
        value = 0
    }
    return number[row, name] = value + 0
}

# ---- naming

function plain(text) { gsub(/["\\]/, " ", text); return text }

function heads(row,    q, kv) {
    q = n_of(row, "heads_q")
    kv = n_of(row, "heads_kv")
    return q == kv ? q : q "/" kv
}

function series_of(row) {
    if (t_of(row, "path") != "") return plain(t_of(row, "path"))
    return plain(t_of(row, "impl") (t_of(row, "kernels") == "" ? "" : ", " t_of(row, "kernels")))
}

# Returns all of a shape but its length, in words.
function shape_of(row,    mask) {
    mask = t_of(row, "mask")
    return plain((is_peer(row) ? "" : "batch " n_of(row, "batch") ", ") heads(row) \
                 (n_of(row, "heads_q") == 1 ? " head of " : " heads of ") \
                 n_of(row, "head_dim") ", " t_of(row, "dtype") \
                 (mask == "full" || mask == "" ? "" : ", " mask) \
                 (t_of(row, "layout") == "bshd" ? ", strided" : "") \
                 ", " n_of(row, "threads") " thread" (n_of(row, "threads") == 1 ? "" : "s"))
}

# ---- writing

# Sets order[1..n] to the numbers of points, smallest first, without repetition.
function sorted(keys, order,    n, k, i, j) {
    n = 0
    for (k in keys) order[++n] = k + 0
    for (i = 2; i <= n; i++) {
        k = order[i]
        for (j = i - 1; j > 0 && order[j] > k; j--) order[j + 1] = order[j]
        order[j + 1] = k
    }
    return n
}

function clear_series() {
    split("", lines)
    split("", names)
    split("", known)
    num_series = 0
}

function add_point(name, x, text) {
    if (!(name in known)) {
        if (num_series == MAX_SERIES) { series_left_out[name] = 1; return }
        known[name] = ++num_series
        names[num_series] = name
    }
    if ((known[name], x) in lines) return # the first of two measurements of the same thing
    lines[known[name], x] = text
    xs_of[known[name]] = xs_of[known[name]] " " x
}

# Each point gets its own mark: points with one x stand 1e-7 apart.
function add_mark(name, x, text) {
    while ((name in known) && ((known[name], x) in lines)) x = sprintf("%.12g", x * (1 + 1e-7))
    add_point(name, x, text)
}

# Writes the series in the order in which they came, each by rising x.
function write_series(picture, caption, more,    i, j, k, n, list, keys, order, file) {
    file = folder "/" picture ".dat"
    for (i = 1; i <= num_series; i++) {
        split("", keys)
        k = split(xs_of[i], list, " ")
        for (j = 1; j <= k; j++) keys[list[j]] = 1
        n = sorted(keys, order)
        printf "\"%s\"\n", names[i] > file
        for (j = 1; j <= n; j++) printf "%.9g %s\n", order[j], lines[i, order[j]] > file
        printf "\n\n" > file
        xs_of[i] = ""
    }
    close(file)
    file = folder "/" picture ".set"
    printf "n = %d\ncaption = \"%s\"\n%s", num_series, caption, more > file
    close(file)
}

function left_out(picture, why) { print "plot: " picture " left out: " why }

# ---- over the length: of all shapes the one that was measured at the most lengths

# Rows of `bench memory` are one call in a fresh process each and serve only for memory.
function is_memory(r) { return t_of(r, "preset") == "memory" || n_of(r, "rss_growth_bytes") > 0 }

# Rows of tools/compare_peers serve only for the picture of peers: of one panel, or of none.
function is_peer(r) { return t_of(r, "preset") == "peers" }

function panel_of(r) {
    if (t_of(r, "pass") != "forward") return "none"
    return n_of(r, "seq_q") == 1 ? "decode" : t_of(r, "mask")
}

# Tells whether a row is about length and of the kind: "memory", "timed" or "peers PANEL".
function of_kind(r, kind) {
    if (is_peer(r)) return "peers " panel_of(r) == kind
    if (t_of(r, "impl") == "append") return 0
    return n_of(r, "seq_q") == n_of(r, "seq_kv") && (is_memory(r) ? "memory" : "timed") == kind
}

# Sets best_shape; returns at how many lengths it has a number above 0 in a column.
function choose_shape(column, kind,
                      r, shape, id, lengths, most, seen, points, order, shapes, i) {
    split("", seen)
    shapes = most = 0
    for (r = 1; r <= rows; r++) {
        if (!of_kind(r, kind) || n_of(r, column) <= 0) continue
        shape = shape_of(r)
        if (!(shape in points)) order[++shapes] = shape
        points[shape]++
        id = shape SUBSEP n_of(r, "seq_kv")
        if (!(id in seen)) lengths[shape]++
        seen[id] = 1
    }
    for (i = 1; i <= shapes; i++) {
        shape = order[i]
        if (lengths[shape] < most) continue
        if (lengths[shape] == most && points[shape] <= points[best_shape]) continue
        best_shape = shape
        most = lengths[shape]
    }
    return most
}

function of_best_shape(r, kind) { return of_kind(r, kind) && shape_of(r) == best_shape }

function latency(    r) {
    if (choose_shape("ms_p50", "timed") < 2) {
        left_out("latency", "no shape was timed at two lengths (presets latency, factors)")
        return
    }
    clear_series()
    for (r = 1; r <= rows; r++)
        if (of_best_shape(r, "timed") && n_of(r, "ms_p50") > 0)
            add_point(series_of(r), n_of(r, "seq_q"), n_of(r, "ms_p50"))
    write_series("latency", best_shape, "")
}

# Each implementation has one colour, in the order in which they come.
function colour_of(impl) {
    if (!(impl in colours)) colours[impl] = ++num_colours
    return colours[impl]
}

# Makes a column into series, one an implementation, and gives new ones a colour.
function add_memory(column, title, kind,    r, before, text) {
    text = ""
    for (r = 1; r <= rows; r++) {
        if (!of_best_shape(r, kind) || n_of(r, column) <= 0) continue
        before = num_series
        add_point(plain(t_of(r, "impl")) ": " title, n_of(r, "seq_q"), n_of(r, column) / 1048576)
        if (num_series > before) text = text " " colour_of(t_of(r, "impl"))
    }
    return text
}

function memory(    kind, list, measured, computed) {
    kind = "memory"
    if (choose_shape("rss_growth_bytes", kind) < 2) kind = "timed"
    if (kind == "timed" && choose_shape("workspace_bytes", kind) < 2) {
        left_out("memory", "no shape was measured at two lengths (bench memory)")
        return
    }
    clear_series()
    list = add_memory("rss_growth_bytes", "growth of peak RSS", kind)
    measured = num_series
    list = list add_memory("workspace_bytes", "workspace", kind)
    computed = num_series
    list = list add_memory("theory_bytes", "theory", kind)
    write_series("memory", best_shape, \
                 sprintf("measured = %d\ncomputed = %d\ncolours = \"%s\"\n", \
                         measured, computed, list))
}

# ---- peers: a panel for prefill without a mask, for a causal one, and for decoding

# Writes the data of a panel; returns whether it has any.
function add_panel(panel,    kind, r, list, before) {
    kind = "peers " panel
    if (choose_shape("ms_p50", kind) < 2) return 0
    clear_series()
    list = ""
    for (r = 1; r <= rows; r++) {
        if (!of_best_shape(r, kind) || n_of(r, "ms_p50") <= 0) continue
        before = num_series
        add_point(series_of(r), n_of(r, "seq_kv"), n_of(r, "ms_p50"))
        if (num_series > before) list = list " " colour_of(t_of(r, "impl"))
        measured_by = t_of(r, "cpu") ", revision " t_of(r, "revision") ", " t_of(r, "date")
    }
    write_series("peers_" panel, best_shape, "colours = \"" list "\"\n")
    return 1
}

function peers(    i, list, wanted, file) {
    list = ""
    for (i = split("full causal decode", wanted, " "); i; i--)
        if (add_panel(wanted[i])) list = wanted[i] " " list
    if (list == "") {
        left_out("peers", "no shape was timed at two lengths (tools/compare_peers --csv)")
        return
    }
    file = folder "/peers.set"
    printf "panels = \"%s\"\ncaption = \"%s\"\n", list, plain(measured_by) > file
    close(file)
}

# ---- roofline: rows with as many threads as most rows

function usual_threads(    r, t, count, best) {
    for (r = 1; r <= rows; r++) if (n_of(r, "intensity") > 0) count[n_of(r, "threads")]++
    best = 0
    for (t in count) if (!best || count[t] > count[best]) best = t
    return best + 0
}

function roofline(    r, t, peak, rate, low, high, x) {
    t = usual_threads()
    peak = rate = low = high = 0
    clear_series()
    for (r = 1; r <= rows; r++) {
        x = n_of(r, "intensity")
        if (x <= 0 || n_of(r, "gflops") <= 0 || n_of(r, "threads") != t) continue
        if (is_memory(r)) continue
        if (n_of(r, "fma_peak_gflops") > peak) peak = n_of(r, "fma_peak_gflops")
        if (n_of(r, "read_peak_gbytes_per_s") > rate) rate = n_of(r, "read_peak_gbytes_per_s")
        if (!low || x < low) low = x
        if (x > high) high = x
        add_mark(plain(t_of(r, "impl")) (n_of(r, "seq_q") == 1 ? ", one row" : ", many rows"), x,
                 n_of(r, "gflops"))
    }
    if (!num_series || !peak || !rate) {
        left_out("roofline", "no timed row has intensity, fma_peak_gflops and " \
                 "read_peak_gbytes_per_s (any preset)")
        return
    }
    if (peak / rate > high) high = peak / rate
    if (peak / rate < low) low = peak / rate
    write_series("roofline", t " thread" (t == 1 ? "" : "s") " of this machine", \
                 sprintf("peak = %.9g\nrate = %.9g\nlow = %.9g\nhigh = %.9g\n", peak, rate,
                         low / 2, high * 2))
}

# ---- percentiles: as multiples of P50, so that short and long calls share an axis

function case_of(r,    by, p50) {
    by = t_of(r, "path") != "" ? t_of(r, "path") : t_of(r, "impl")
    p50 = n_of(r, "ms_p50")
    return plain(t_of(r, "case") ", " by) sprintf(p50 < 1000 ? "  %.3g ms" : "  %.0f ms", p50)
}

# Sets chosen[1..n] to the rows that are shown: those of preset latency if it was measured. If these
# are too many, those of the default path, and if these still are, only every k-th of them.
function choose_rows(chosen,    r, n, all, only, pass, i) {
    only = ""
    for (r = 1; r <= rows; r++) if (t_of(r, "preset") == "latency") only = "latency"
    for (pass = 1; pass <= 2; pass++) {
        n = 0
        for (r = 1; r <= rows; r++) {
            if (only != "" && t_of(r, "preset") != only) continue
            if (n_of(r, "ms_p50") <= 0 || n_of(r, "ms_p99") <= 0 || is_memory(r)) continue
            if (pass == 2 && t_of(r, "impl") == "naive") continue
            all[++n] = r
        }
        if (n <= MAX_BARS) break
    }
    for (i = 1; i <= n && i <= MAX_BARS; i++)
        chosen[i] = all[n <= MAX_BARS ? i : int((i - 1) * n / MAX_BARS) + 1]
    return n
}

function percentiles(    n, shown, i, r, p50, chosen, file, tics, low, high) {
    n = choose_rows(chosen)
    if (!n) {
        left_out("percentiles", "no row has ms_p50 and ms_p99 (any preset)")
        return
    }
    shown = n < MAX_BARS ? n : MAX_BARS
    file = folder "/percentiles.dat"
    tics = ""
    low = high = 1
    for (i = 1; i <= shown; i++) {
        r = chosen[i]
        p50 = n_of(r, "ms_p50")
        if (n_of(r, "ms_min") / p50 < low) low = n_of(r, "ms_min") / p50
        if (n_of(r, "ms_p99") / p50 > high) high = n_of(r, "ms_p99") / p50
        printf "%d %.9g %.9g %.9g\n", shown - i + 1, n_of(r, "ms_min") / p50, \
            n_of(r, "ms_p95") / p50, n_of(r, "ms_p99") / p50 > file
        tics = tics (i > 1 ? ", " : "") \
            sprintf("\"%s\" %d", case_of(r), shown - i + 1)
    }
    close(file)
    file = folder "/percentiles.set"
    printf "n = %d\ncaption = \"%s\"\nlow = %.9g\nhigh = %.9g\nset ytics (%s)\n", shown, \
        shown < n ? shown " of " n " rows" : "", low, high, tics > file
    close(file)
}

# ---- threads: the same case with one thread and with more

# Returns the name of the case without a thread count at its end.
function case_without_threads(r,    name) {
    name = plain(t_of(r, "case"))
    sub(/[ ,]*(t|threads? ?)[0-9]+$/, "", name)
    return name == "" ? plain(t_of(r, "preset")) : name
}

# Prefers presets that are about threads, where the rows have them.
function about_threads(r) {
    return t_of(r, "preset") == "threads" || t_of(r, "preset") == "factors"
}

function thread_key(r) {
    if (t_of(r, "impl") == "naive" || n_of(r, "ms_p50") <= 0) return ""
    if (have_threads && !about_threads(r)) return ""
    return t_of(r, "preset") SUBSEP t_of(r, "kernels") SUBSEP case_without_threads(r)
}

function threads(    r, key, alone, many, most) {
    have_threads = 0
    for (r = 1; r <= rows; r++) have_threads += about_threads(r) && n_of(r, "threads") > 1
    for (r = 1; r <= rows; r++) {
        key = thread_key(r)
        if (n_of(r, "threads") != 1) many[key] = 1
        else if (!(key in alone)) alone[key] = n_of(r, "ms_p50")
    }
    clear_series()
    most = 0
    for (r = 1; r <= rows; r++) {
        key = thread_key(r)
        if (key == "" || !(key in alone) || !(key in many)) continue
        if (n_of(r, "threads") > most) most = n_of(r, "threads")
        add_point(case_without_threads(r), n_of(r, "threads"), \
                  n_of(r, "speedup") > 0 ? n_of(r, "speedup") : alone[key] / n_of(r, "ms_p50"))
    }
    if (!num_series) {
        left_out("threads", "no case was timed with one thread and with more (preset threads)")
        return
    }
    write_series("threads", "", "most = " most "\n")
}

# ---- decode: rate of reading K and V by storage type

# Caches have several rows of a shape and type, one for each place of the keys.
function is_decode(r, only) {
    return t_of(r, "preset") != "cache" && n_of(r, "seq_q") == 1 && n_of(r, "gbytes_per_s") > 0 \
        && n_of(r, "threads") == 1 && t_of(r, "impl") != "naive" \
        && (only == "" || t_of(r, "preset") == only)
}

function decode_shape(r) {
    return (n_of(r, "batch") > 1 ? "b" n_of(r, "batch") " " : "") "h" heads(r) " d" \
        n_of(r, "head_dim") " kv" n_of(r, "seq_kv")
}

# Sets place[shape] and column_of[type], both from 0, for the shown rows; returns the tics.
function place_shapes(only, place, column_of,    r, shape, type, tics) {
    tics = ""
    num_shapes = num_types = 0
    for (r = 1; r <= rows; r++) {
        if (!is_decode(r, only)) continue
        shape = decode_shape(r)
        type = plain(t_of(r, "dtype"))
        if (!(shape in place)) {
            if (num_shapes == MAX_BARS) continue
            place[shape] = num_shapes++
            tics = tics (num_shapes > 1 ? ", " : "") "\"" shape "\" " place[shape]
        }
        if (!(type in column_of)) column_of[type] = num_types++
    }
    return tics
}

function decode(    r, only, place, column_of, tics, type, width, read) {
    only = ""
    for (r = 1; r <= rows; r++) if (t_of(r, "preset") == "decode") only = "decode"
    tics = place_shapes(only, place, column_of)
    if (!num_shapes) {
        left_out("decode", "no row of one query has a rate (preset decode)")
        return
    }
    clear_series()
    width = 0.8 / num_types
    for (r = 1; r <= rows; r++) {
        if (!is_decode(r, only) || !(decode_shape(r) in place)) continue
        type = plain(t_of(r, "dtype"))
        read = n_of(r, "read_gbytes_per_s")
        add_point(type, place[decode_shape(r)] + (column_of[type] - (num_types - 1) / 2) * width, \
                  n_of(r, "gbytes_per_s") " " (read > 0 ? read : "NaN"))
    }
    write_series("decode", "", sprintf("width = %.9g\nshapes = %d\nset xtics (%s)\n", width, \
                                      num_shapes, tics))
}

END {
    if (refused) exit 2
    if (!rows) refuse(files ? "no file has a row below its head line" : "nothing to read")
    latency()
    memory()
    peers()
    roofline()
    percentiles()
    threads()
    decode()
    for (name in series_left_out) print "plot: too many series; left out: " name
}
