/* report.c - printing, with a copy and colours; the machine.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define REPORT_POSIX 1
#endif
#include "report.h"

#include "../machine/machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef REPORT_POSIX
#include <unistd.h>
#define IS_TERMINAL isatty(1)
#else
#define IS_TERMINAL 0
#endif

static struct {
    char *text;
    size_t length, capacity;
    int colour;
} console;

/* ---- text */

static void keep(const char *text)
{
    const size_t n = strlen(text);
    if (console.length + n + 1 > console.capacity) {
        const size_t capacity = 2 * (console.length + n + 1024);
        char *const grown = realloc(console.text, capacity);
        if (!grown)
            return; /* the copy is incomplete, the printed text is not */
        console.text = grown;
        console.capacity = capacity;
    }
    memcpy(console.text + console.length, text, n + 1);
    console.length += n;
}

void say(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fputs(line, stdout);
    fflush(stdout);
    keep(line);
}

const char *report_console(void)
{
    return console.text ? console.text : "";
}

void report_free(void)
{
    free(console.text);
    memset(&console, 0, sizeof console);
}

void report_use_colour(void)
{
    const char *const none = getenv("NO_COLOR"), *const term = getenv("TERM");
    console.colour = IS_TERMINAL && !(none && *none) && term && strcmp(term, "dumb");
}

void report_colour(report_style style)
{
    static const char *const codes[] = { "\033[0m", "\033[1m", "\033[2m", "\033[32m", "\033[33m" };
    if (console.colour)
        fputs(codes[style], stdout);
}

void report_heading(const char *text)
{
    say("\n");
    report_colour(BOLD);
    say("%s", text);
    report_colour(PLAIN);
    say("\n");
}

const char *report_title(const char *preset, const char *scenario, char to[REPORT_TITLE])
{
    const int alone = !strncmp(preset, scenario, strlen(preset));
    snprintf(to, REPORT_TITLE, "%s%s%s", alone ? "" : preset, alone ? "" : ": ", scenario);
    return to;
}

/* ---- machine */

void report_machine(const machine_info *m, const probe_result *p)
{
    say("machine   %s, %d CPUs, %s\n", m->cpu, m->cpus, m->system);
    say("caches    L1d %.0f KiB, L2 %.0f KiB, L3 %.0f KiB; memory %.1f GiB, usable %.1f GiB\n",
        (double)m->l1d / 1024, (double)m->l2 / 1024, (double)m->l3 / 1024,
        (double)m->memory / 1073741824, (double)m->memory_usable / 1073741824);
    say("isa       %s\n", m->isa);
    say("compiler  %s; flags %s; revision %s\n", m->compiler, m->flags, m->revision);
    say("clock     %.2f GHz now, by a chain of dependent additions\n", p->ghz);
    say("FMA peak  one thread, GFLOP/s (per cycle):");
    for (int i = 0; i < p->num_units; i++)
        say(" %s %.1f (%.1f)%s", p->units[i].name, p->units[i].gflops, p->units[i].flops_per_cycle,
            i + 1 < p->num_units ? "," : "\n");
    say("reading   %.1f GB/s from memory, one thread\n", p->read_gbs);
}

void report_device(const case_list *cases, const path_list *paths)
{
    int wanted = 0;
    for (int i = 0; i < cases->n && !wanted; i++)
        wanted = path_list_has_device(paths, cases->cases[i].impl);
    const attn_opencl_info *const d = wanted ? device_opened() : NULL;
    if (!d)
        return;
    say("device    %s, %s, %s, driver %s; %d units, memory %.1f GiB\n", d->device, d->platform,
        d->version, d->driver, d->compute_units, (double)d->memory_bytes / 1073741824);
    say("copying   %.1f GB/s read and written, on the device\n", device_copy_rate());
}
