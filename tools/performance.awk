# performance.awk - the measured part of a page of docs/performance, and the goals in a file of their own.
# SPDX-License-Identifier: MIT
#
#     awk -v goals_page=FILE -f performance.awk goals.txt prefill.csv kernels.csv decode.csv \
#         threads.csv backward.csv masks.csv
#
# The first file has goals; the others begin with a line of column names. A row counts as disturbed
# when its threads had less than DISTURBED percent of their CPUs: a goal that it misses is undecided
# then, and so is a goal that compares it.

BEGIN { DISTURBED = 97 }
FNR == 1 { file++ }

function trimmed(text)
{
    gsub(/^[ \t]+|[ \t\r]+$/, "", text)
    return text
}

# The verdict is about the numbers as they are printed, with one decimal.
function rounded(x) { return sprintf("%.1f", x) + 0 }

file == 1 && !/^#/ && NF {
    split($0, part, "|")
    name = trimmed(part[1]); set = trimmed(part[2])
    goal[name, set] = trimmed(part[3])
    goal_name[++goals] = name; goal_set[goals] = set
}

file > 1 { gsub(/"/, ""); $0 = $0; split("", field); n = split($0, field, ",") }

file > 1 && FNR == 1 {
    split("", column)
    for (i = 1; i <= n; i++) column[field[i]] = i
    next
}

function get(key)
{
    if (key in column) return field[column[key]]
    print "performance.awk: no column " key > "/dev/stderr"
    exit failed = 1
}

function add_set(set)
{
    if (!(set in known)) set_name[++sets] = set
    known[set] = 1
}

function keep_share(name,    key)
{
    key = name SUBSEP get("kernels")
    share[key] = rounded(get("pct_set_peak")); gflops[key] = get("gflops")
    loop[key] = rounded(get("pct_kernel_loop"))
    running[key] = get("pct_running")
    add_set(get("kernels"))
}

file == 2 {
    row_name[++rows] = get("case"); row_set[rows] = get("kernels")
    keep_share(get("case"))
    if (samples == "" || get("samples") + 0 < samples) samples = get("samples") + 0
    dim = get("head_dim") + 0
    if (!(dim in dim_known)) dim_list[++dims] = dim
    dim_known[dim] = 1
    if (get("workspace_bytes") / 1024 > space[get("kernels"), dim])
        space[get("kernels"), dim] = get("workspace_bytes") / 1024
}

function kernel_cell(id, name, format, x)
{
    unit[id] = name
    kernel_value[id, get("head_dim") + 0] = sprintf(format, x)
}

file == 3 && get("set") !~ /^portable/ {
    id = get("set") SUBSEP get("kernel")
    if (!(id in kernel_known)) { kernel_known[id] = 1; kernel_list[++kernels] = id }
    if (get("pct_fma_peak") > 0) kernel_cell(id, "% of peak", "%.1f", get("pct_fma_peak"))
    else if (get("cycles_per_exp") > 0)
        kernel_cell(id, "cycles an exponential", "%.2f", get("cycles_per_exp"))
    else kernel_cell(id, "bytes a cycle", "%.1f", get("bytes_per_cycle"))
    if (!(get("head_dim") in kernel_dim_known)) kernel_dim[++kernel_dims] = get("head_dim") + 0
    kernel_dim_known[get("head_dim")] = 1
}

function decimal(key) { return sprintf("%.1f", get(key)) }

file == 4 {
    decode_name[++decodes] = get("case"); decode_set[decodes] = get("kernels")
    decode_known[get("case")] = 1
    reading[decodes] = decimal("pct_read_bw"); decode_peak[decodes] = decimal("pct_set_peak")
    decode_rates[decodes] = decimal("gbytes_per_s") " | " decimal("read_gbytes_per_s")
    decode_running[decodes] = get("pct_running")
}

# The row of one thread comes before the rows of several; the last one, of the most, counts.
file == 5 && get("threads") == 1 { alone_ms = get("ms_p50"); alone_running = get("pct_running") }

file == 5 && get("threads") > 1 {
    if (pairs == 0 || pair_name[pairs] != get("case")) pairs++
    pair_name[pairs] = get("case"); pair_set[pairs] = get("kernels")
    pair_known[get("case")] = 1
    pair_threads[pairs] = get("threads")
    pair_times[pairs] = sprintf("%.3f | %.3f", alone_ms, get("ms_p50"))
    speedup[pairs] = sprintf("%.2f", get("speedup")); pair_reading[pairs] = decimal("pct_read_bw")
    pair_running[pairs] = get("pct_running") < alone_running ? get("pct_running") : alone_running
}

# Only cases for each kernel set have goals; the others are named after their subject.
file == 6 && get("threads") == 1 {
    name = get("scenario") == get("kernels") ? get("case") : get("scenario") ": " get("case")
    gradient_name[++gradients] = name; gradient_set[gradients] = get("kernels")
    keep_share(name)
}

# The first case of each scenario has no mask.
file == 7 && get("mask") != "full" {
    mask_name[++masks] = get("case"); mask_set[masks] = get("kernels")
    mask_known[get("case")] = 1
    mask_shown[masks] = 100 * get("visible")
    mask_cost[masks] = get("speedup") > 0 ? 1 / get("speedup") : 0
    mask_running[masks] = get("pct_running")
}

function lost(running) { return running > 0 && running < DISTURBED }

function disturbed(key) { return lost(running[key]) }

function goal_of(name, set)
{
    if ((name, set) in goal) return goal[name, set]
    return (name, "*") in goal ? goal[name, "*"] : ""
}

# Sets wanted, wanted_text, and what of the row is held against them: reached. Returns 0 without a
# goal, or if its base was not measured.
function find_goal(name, set,    text, word)
{
    text = goal_of(name, set)
    wanted_text = "-"; base = ""
    reached = share[name, set]
    if (text == "") return 0
    split(text, word, " ")
    if (word[1] == "loop") {
        wanted = word[2] + 0
        wanted_text = text
        reached = loop[name, set]
        return 1
    }
    base = text; sub(/^within [0-9.]+ of /, "", base)
    wanted_text = word[2] " below " base
    if (!((base, set) in share)) return 0
    wanted = rounded(share[base, set] - word[2])
    wanted_text = sprintf("%.1f (%s)", wanted, wanted_text)
    return 1
}

# The verdict of a row on its goal. A miss of a disturbed row decides nothing.
function judge(reached, by, is_disturbed)
{
    if (reached) { met++; return "met" }
    if (is_disturbed) { undecided++; return "undecided" }
    missed++
    return "missed by " by
}

# A goal is also undecided when the row that it compares with is disturbed.
function verdict_of(key, set)
{
    return judge(reached >= wanted && !(base != "" && disturbed(base SUBSEP set)),
        sprintf("%.1f", wanted - reached),
        disturbed(key) || base != "" && disturbed(base SUBSEP set))
}

# The words that a disturbed row adds to its verdict.
function say_lost(running)
{
    if (!lost(running)) return ""
    disturbed_rows++
    return sprintf("; had %.0f %% of the CPU", running)
}

# Keeps a row of the goals, which stand in a table of their own behind everything else.
function keep_goal(name, set, reached, aim, verdict)
{
    if (aim != "-" && aim != "")
        goal_rows = goal_rows sprintf("| %s | %s | %s | %s | %s |\n", name, set, reached, aim,
            verdict)
}

# Ends a section: what disturbed it is said at once, its goals are written to goals_page.
function end_section(heading)
{
    printf "\n### %s\n\n| case | set | reached | goal | |\n|---|---|---|---|---|\n%s", heading,
        goal_rows > goals_page
    printf "\nGoals: %d met, %d missed, %d undecided, %d not measured.\n", met, missed, undecided,
        unmeasured > goals_page
    if (disturbed_rows)
        printf "\n**Disturbed: in %d of %d rows other programs also had the CPU.%s**\n",
            disturbed_rows, said_rows, " Measure again."
    met = missed = undecided = unmeasured = disturbed_rows = said_rows = 0
    goal_rows = ""
}

function say_row(name, set,    key, verdict, less)
{
    key = name SUBSEP set
    verdict = "-"
    if (find_goal(name, set)) verdict = verdict_of(key, set)
    else if (wanted_text != "-") { verdict = "not measured: " base; unmeasured++ }
    less = say_lost(running[key])
    said_rows++
    printf "| %s | %s | %.1f | %.1f | %.1f%s |\n", name, set, loop[key], share[key], gflops[key], less
    keep_goal(name, set, sprintf("%.1f", reached), wanted_text, verdict less)
}

# Keeps goals whose set was measured and whose case was not, of gradients or of all others.
function say_missing(backward,    g, s)
{
    for (g = 1; g <= goals; g++)
        for (s = 1; s <= sets; s++) {
            if (goal_name[g] == "workspace" || (goal_name[g] ~ /^backward /) != backward) continue
            if (goal[goal_name[g], goal_set[g]] !~ /^(loop|within) /) continue
            if (goal_set[g] != "*" && goal_set[g] != set_name[s]) continue
            if ((goal_name[g], set_name[s]) in share) continue
            keep_goal(goal_name[g], set_name[s], "-", goal[goal_name[g], goal_set[g]],
                "not measured")
            unmeasured++
        }
}

function say_backward(    i)
{
    print "\n## Backward\n"
    print "The calls compute dq, dk and dv on one thread; columns are those of Prefill. FLOPs are"
    print "those of five products, 2 (3 head_dim + 2 head_dim_v) a visible pair, even where"
    print "something is computed twice. Cases other than `backward` use the best set; modifiers are"
    print "at D=64, s2048, next to none.\n"
    print "| case | set | loop, % | peak, % | GFLOP/s |\n|---|---|---|---|---|"
    for (i = 1; i <= gradients; i++) say_row(gradient_name[i], gradient_set[i])
    say_missing(1)
    end_section("Backward")
}

function say_space(    s, d, limit, verdict)
{
    print "\n## Workspace of one thread\n"
    print "This is the most that attn_workspace_size asks for over the cases of Prefill.\n"
    print "| set | head_dim | KiB |\n|---|---|---|"
    limit = goal["workspace", "*"] + 0
    for (s = 1; s <= sets; s++)
        for (d = 1; d <= dims; d++) {
            if (!((set_name[s], dim_list[d]) in space)) continue
            x = space[set_name[s], dim_list[d]]
            verdict = judge(x <= limit, sprintf("%.0f KiB", x - limit), 0)
            printf "| %s | %d | %.0f |\n", set_name[s], dim_list[d], x
            keep_goal("head_dim " dim_list[d], set_name[s], sprintf("%.0f KiB", x), limit " KiB",
                verdict)
        }
    end_section("Workspace of one thread")
}

function say_kernels(    i, d, id, part)
{
    print "\n## Single kernels\n"
    print "`build/bench kernels` measured tiles of 128 keys in L1 and L2, medians. `_lanes` uses the"
    print "upper half of the lanes, which alone counts. `tile` computes logits, maxima, exponentials"
    print "and values of all keys. The last five are those of gradients.\n"
    printf "| set | kernel | unit |"
    for (d = 1; d <= kernel_dims; d++) printf " D=%d |", kernel_dim[d]
    printf "\n|---|---|---|"
    for (d = 1; d <= kernel_dims; d++) printf "---|"
    print ""
    for (i = 1; i <= kernels; i++) {
        id = kernel_list[i]
        split(id, part, SUBSEP)
        printf "| %s | %s | %s |", part[1], part[2], unit[id]
        for (d = 1; d <= kernel_dims; d++) printf " %s |", kernel_value[id, kernel_dim[d]]
        print ""
    }
}

# Keeps goals of a kind whose case is unknown.
function say_missing_cases(kind, known,    g, text)
{
    for (g = 1; g <= goals; g++) {
        text = goal[goal_name[g], goal_set[g]]
        if (text !~ kind || goal_name[g] in known) continue
        keep_goal(goal_name[g], "-", "-", text, "not measured")
        unmeasured++
    }
}

function say_decode_row(i,    text, word, reached, verdict, less)
{
    text = goal_of(decode_name[i], decode_set[i])
    split(text, word, " ")
    reached = reading[i] + 0
    if (decode_peak[i] + 0 > reached) reached = decode_peak[i] + 0
    verdict = text == "" ? "-" : judge(reached >= word[2] + 0,
        sprintf("%.1f", word[2] - reached), lost(decode_running[i]))
    less = say_lost(decode_running[i])
    said_rows++
    printf "| %s | %s | %s | %s | %s%s |\n", decode_name[i], decode_set[i], reading[i],
        decode_peak[i], decode_rates[i], less
    keep_goal(decode_name[i], decode_set[i], sprintf("%.1f", reached), text, verdict less)
}

function say_decode(    i)
{
    print "\n## Decode\n"
    print "Each call has one query row of each head, one thread, and kernels of the library's"
    print "choice. Reading is the time of a plain loop that reads the same K and V, in turn with"
    print "the calls, over the time of the call, median of pairs. Peak is the share of the FMA"
    print "peak, as in Prefill. GB/s is the rate of K and V in the call and in the loop, medians."
    print "Roof is the larger share. In MLA 128 query heads share one cache.\n"
    print "| case | set | reading, % | peak, % | GB/s | loop |\n|---|---|---|---|---|---|"
    for (i = 1; i <= decodes; i++) say_decode_row(i)
    say_missing_cases("^roof ", decode_known)
    end_section("Decode")
}

function say_pair(i,    text, word, verdict, less)
{
    text = goal_of(pair_name[i], pair_set[i])
    split(text, word, " ")
    verdict = text == "" ? "-" : judge(speedup[i] >= word[2] + 0 || pair_reading[i] >= word[5] + 0,
        sprintf("%.2f or %.1f", word[2] - speedup[i], word[5] - pair_reading[i]),
        lost(pair_running[i]))
    less = say_lost(pair_running[i])
    said_rows++
    printf "| %s | %s | %d | %s | %s | %s%s |\n", pair_name[i], pair_set[i], pair_threads[i],
        pair_times[i], speedup[i], pair_reading[i], less
    keep_goal(pair_name[i] ", " pair_threads[i] " threads", pair_set[i],
        speedup[i] ", " pair_reading[i], text, verdict less)
}

function say_threads(    i)
{
    print "\n## Threads\n"
    print "D=128, f32; one thread and several threads run in turn on the same tensors. Reading is"
    print "that of Decode, by a loop that reads K and V with as many threads.\n"
    print "| case | set | threads | ms, one | ms | speed-up | reading, % |"
    print "|---|---|---|---|---|---|---|"
    for (i = 1; i <= pairs; i++) say_pair(i)
    say_missing_cases("^speed-up ", pair_known)
    end_section("Threads")
}

function say_mask(i,    text, word, most, reached, less)
{
    text = goal_of(mask_name[i], mask_set[i])
    split(text, word, " ")
    less = say_lost(mask_running[i])
    said_rows++
    printf "| %s | %s | %.0f | %.2f%s |\n", mask_name[i], mask_set[i], mask_shown[i], mask_cost[i],
        less
    if (text == "") return
    most = word[1] == "cost" ? word[2] : (mask_shown[i] + word[3]) / 100
    reached = sprintf("%.2f", mask_cost[i])
    keep_goal(mask_name[i], mask_set[i], reached, text,
        judge(reached + 0 <= most + 0.0005, sprintf("%.2f", reached - most), lost(mask_running[i])) less)
}

function say_masks(    i)
{
    print "\n## Masks\n"
    print "`build/bench masks` timed each mask and modifier in turn with the call without, on the"
    print "same tensors: heads 8/2, D=64, 1024 rows, 2048 keys. Visible is the share of pairs that"
    print "the mask shows; time is that of the call over that of the call without.\n"
    print "| mask | set | visible, % | time |\n|---|---|---|---|"
    for (i = 1; i <= masks; i++) say_mask(i)
    say_missing_cases("^(cost|visible) ", mask_known)
    end_section("Masks")
}

END {
    if (failed) exit 1
    if (!rows) {
        print "performance.awk: nothing measured" > "/dev/stderr"
        exit 1
    }
    print "## Prefill\n"
    printf "The calls use one thread; each figure is a median of %d. Loop is the share of the rate of\n",
        samples
    print "a register tile of the kernel set that runs from L1, timed in turn with the calls. Peak is"
    print "the share of the measured FMA peak of the set's vector unit, in clock cycles of the same"
    print "moment. f16 and bf16 are storage types; strided is [seq][head][dim] with 8 heads. Cases"
    print "that a goal compares were timed in turn.\n"
    print "| case | set | loop, % | peak, % | GFLOP/s |\n|---|---|---|---|---|"
    for (i = 1; i <= rows; i++) say_row(row_name[i], row_set[i])
    say_missing(0)
    end_section("Prefill")
    say_backward()
    say_decode()
    say_masks()
    say_threads()
    say_space()
    say_kernels()
}
