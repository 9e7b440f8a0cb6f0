/* SPDX-License-Identifier: Apache-2.0 */
/* json_bench.c: our parser beside simdjson and cJSON, in one process, in turns. Prints CPU time per
 * parse (median of the rounds) and the ratios that are promised. Ours changes its text, so each of
 * its parses begins with a copy; the copy is part of its time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bodies.h"
#include "json/json.h"
#include "peers.h"

#define ROUNDS 41
#define ROUND_BYTES ((size_t)4 * 1000 * 1000)

enum runner { OURS, OURS_UNIQUE, SIMDJSON, CJSON, RUNNERS };
static const char *const runner_names[RUNNERS] = { "troupe", "troupe-unique-keys", "simdjson",
    "cjson" };

static double cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int parse_once(
    enum runner runner, struct json_doc *doc, const struct buffer *body, char *work)
{
    switch (runner) {
    case OURS:
    case OURS_UNIQUE:
        memcpy(work, body->bytes, body->size);
        return json_parse(doc, work, body->size, runner == OURS ? 0 : JSON_UNIQUE_KEYS);
    case SIMDJSON:
        return peer_simdjson_parse(body->bytes, body->size);
    case CJSON:
        return peer_cjson_parse(body->bytes, body->size);
    case RUNNERS:
        break;
    }
    return 1;
}

static double time_round(
    enum runner runner, struct json_doc *doc, const struct buffer *body, char *work)
{
    size_t count = ROUND_BYTES / body->size + 1;
    double start = cpu_ns();

    for (size_t i = 0; i < count; i++)
        if (parse_once(runner, doc, body, work) != 0) {
            fprintf(stderr, "%s refuses the text\n", runner_names[runner]);
            exit(1);
        }
    return (cpu_ns() - start) / (double)count;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Returns whether the promises are kept. */
static bool measure(const char *name, const struct buffer *body)
{
    double times[RUNNERS][ROUNDS], median[RUNNERS];
    struct json_doc doc = { 0 };
    char *work = calloc(1, body->size + JSON_PADDING_BYTES);

    if (work == NULL)
        exit(1);
    for (int round = -2; round < ROUNDS; round++) /* two rounds to warm up */
        for (int runner = 0; runner < RUNNERS; runner++) {
            double ns = time_round((enum runner)runner, &doc, body, work);

            if (round >= 0)
                times[runner][round] = ns;
        }
    for (int runner = 0; runner < RUNNERS; runner++) {
        qsort(times[runner], ROUNDS, sizeof(double), by_size);
        median[runner] = times[runner][ROUNDS / 2];
        printf("%s.%s_ns %.0f (%.0f MB/s)\n", name, runner_names[runner], median[runner],
            (double)body->size / median[runner] * 1e3);
    }
    printf("%s.of_simdjson %.2f\n", name, median[SIMDJSON] / median[OURS]);
    printf("%s.of_cjson %.2f\n", name, median[CJSON] / median[OURS]);
    printf("%s.unique_of_simdjson %.2f\n", name, median[SIMDJSON] / median[OURS_UNIQUE]);
    json_doc_free(&doc);
    free(work);
    return median[SIMDJSON] / median[OURS] >= 0.65 && median[CJSON] / median[OURS] >= 5;
}

int main(void)
{
    struct buffer small = { 0 }, large = { 0 };
    bool kept;

    body_add_members(&small);
    body_sync(&large);
    /* simdjson reads past the end as well. */
    if (buffer_reserve(&small, 64) == NULL || buffer_reserve(&large, 64) == NULL)
        return 1;
    printf("simdjson kernel: %s; bodies of %zu and %zu bytes\n", peer_simdjson_name(), small.size,
        large.size);
    kept = measure("small", &small);
    kept = measure("large", &large) && kept;
    buffer_free(&small);
    buffer_free(&large);
    return kept ? 0 : 1;
}
