/* printed.c - what the summary of a run says of rows made by hand.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define SELFCHECK_HUSH 1
#include <fcntl.h>
#include <unistd.h>
#endif
#include <stdio.h>
#include <string.h>

#include "../../bench/report/report.h"
#include "selfcheck.h"

/* What is printed is for the one who asked, not for who runs the checks. */
#ifdef SELFCHECK_HUSH
static int hush(void)
{
    fflush(stdout);
    const int kept = dup(1), nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0) {
        dup2(nowhere, 1);
        close(nowhere);
    }
    return kept;
}

static void speak(int kept)
{
    fflush(stdout);
    if (kept >= 0) {
        dup2(kept, 1);
        close(kept);
    }
}
#else
static int hush(void)
{
    return 0;
}

static void speak(int kept)
{
    (void)kept;
}
#endif

/* The summary of these rows; blanks beside each other are one. */
static const char *summary_of(const bench_result *rows, int n)
{
    static char text[8192];
    const size_t before = strlen(report_console());
    const int kept = hush();
    size_t length = 0;
    report_summary(rows, n);
    speak(kept);
    for (const char *at = report_console() + before; *at && length + 1 < sizeof text; at++)
        if (*at != ' ' || !length || text[length - 1] != ' ')
            text[length++] = *at;
    text[length] = '\0';
    return text;
}

static void tells(const char *summary, const char *sentence)
{
    expect(strstr(summary, sentence) != NULL, sentence + (*sentence == '\n'), 0);
}

static void lacks(const char *summary, const char *sentence)
{
    expect(strstr(summary, sentence) == NULL, sentence, 1);
}

/* Cases in the order of their first rows; the last ones come the other way round. */
static void check_printed_ranking(void)
{
    const bench_result rows[] = { row("naive", "b", 2, 8, 1), row("naive", "a", 1, 8, 1),
                                  row("tiled", "a", 1, 2, 1), row("auto", "a", 1, 4, 1),
                                  row("tiled", "b", 2, 4, 1) };
    const char *const text = summary_of(rows, 5);
    tells(text, "\n b tiled 4.000 ms 2.00 x naive 2.0 x naive"
                "\n a tiled 2.000 ms 2.00 x auto 4.0 x naive\n");
    tells(text, "\n 1 tiled 100.0 % fastest in 2 of 2\n"
                " 2 auto 50.0 % fastest in 0 of 1 (not in every case: see skipped)\n"
                " 3 naive 35.4 % fastest in 0 of 2\n");
    lacks(text, "winners");
}

/* Where two paths have no verdict. */
static void check_printed_winners(void)
{
    bench_result rows[] = { row("tiled", "a", 1, 1, 1), row("auto", "a", 1, 1.02, 2),
                            row("tiled", "b", 1, 4, 3), row("auto", "b", 1, 1, 1) };
    rows[2].scenario = rows[3].scenario = "other";
    const char *const text = summary_of(rows, 4);
    tells(text,
          "\n p s even: tiled 1.02 times as fast as auto, mean 1 ms, 2.0 times less workspace\n");
    tells(text, "\n p other auto wins 1 of 1, 4.00 times as fast as tiled, mean 1 ms, 3.0 times "
                "less workspace\n");
    lacks(text, "fastest path of each case");
    rows[2].ms_p50 = 0.5;
    tells(summary_of(rows, 4), "tiled wins 1 of 1, 2.00 times as fast as auto, mean 4 ms, 3.0 "
                               "times more workspace\n");
}

static void check_printed_verdicts(void)
{
    bench_result rows[] = { row("naive", "a", 1000, 2, 10), row("tiled", "a", 1000, 1, 5),
                            row("naive", "b", 3000, 2, 10), row("tiled", "b", 3000, 1, 5) };
    tells(summary_of(rows, 2), "\n p: s 1 of 1 2.00x -50 % 1000 (one length) tiled is much "
                               "faster, mean 1 ms\n");
    tells(summary_of(rows, 4),
          "\n p: s 2 of 2 2.00x -50 % 1000 (shortest) tiled is much faster, mean 1 ms\n");
    lacks(summary_of(rows, 4), "winners");
    rows[2].ms_p50 = rows[2].ms_min = 0.5;
    tells(summary_of(rows, 4),
          "\n p: s 1 of 2 1.00x -50 % none up to 3000 about the same speed, mean 2 ms\n");
    rows[0].ms_p50 = rows[0].ms_min = 0.5;
    rows[1].ms_min = 0.5;
    tells(summary_of(rows, 4), " none up to 3000 naive is faster (noisy), mean 2 ms\n");
}

void check_printed(void)
{
    check_printed_ranking();
    check_printed_winners();
    check_printed_verdicts();
}
