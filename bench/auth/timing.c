/* SPDX-License-Identifier: Apache-2.0 */
/* timing.c: does the compare of secrets tell by its time where two differ? Three classes of inputs
 * in random order: equal, different in the first byte, different in the last; Welch's t between
 * each two of them, on the samples below the 90th percentile (what is above it is interrupts). A t
 * under 4.5 means that no difference was seen. memcmp is measured beside it: if the method cannot
 * tell that one, it tells nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <x86intrin.h>

#include "crypto/digest.h"

enum { SAMPLES = 3000000, SIZE = 32, REPEAT = 8, CLASSES = 3 };

typedef bool (*compare_fn)(const void *a, const void *b, size_t size);

/* Not inlined, so that both are called alike. */
static __attribute__((noinline)) bool compare_naive(const void *a, const void *b, size_t size)
{
    return memcmp(a, b, size) == 0;
}

struct sample {
    uint32_t cycles;
    uint8_t class;
};

static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* All classes use the same memory, written in the same way just before: neither place nor cache
 * knows the class. */
static _Alignas(64) unsigned char left[SIZE], right[SIZE];

static void prepare(uint8_t class)
{
    for (int i = 0; i < SIZE; i++)
        right[i] = left[i];
    right[0] = (unsigned char)(left[0] ^ (class == 1));
    right[SIZE - 1] = (unsigned char)(left[SIZE - 1] ^ (class == 2));
}

static void measure(volatile compare_fn compare, struct sample *samples)
{
    volatile bool sink;

    for (int i = 0; i < SAMPLES; i++) {
        uint8_t class = (uint8_t)(next_random() >> 40) % CLASSES;
        uint64_t before, after;
        unsigned core;

        if (i % 1000 == 0)
            crypto_random_fill(left, SIZE);
        prepare(class);
        sink = compare(left, right, SIZE);
        _mm_mfence();
        _mm_lfence();
        before = __rdtscp(&core);
        _mm_lfence();
        for (int k = 0; k < REPEAT; k++)
            sink = compare(left, right, SIZE);
        after = __rdtscp(&core);
        _mm_lfence();
        samples[i] = (struct sample){ (uint32_t)(after - before), class };
    }
    (void)sink;
}

static int by_cycles(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static uint32_t percentile(const struct sample *samples, double part)
{
    uint32_t *sorted = malloc(SAMPLES * sizeof *sorted), value;

    if (sorted == NULL)
        exit(1);
    for (int i = 0; i < SAMPLES; i++)
        sorted[i] = samples[i].cycles;
    qsort(sorted, SAMPLES, sizeof *sorted, by_cycles);
    value = sorted[(size_t)(SAMPLES * part)];
    free(sorted);
    return value;
}

struct moments {
    double count, mean, sum;
};

/* The largest |t| between two classes; prints them. */
static double worst_t(const char *name, const struct sample *samples)
{
    uint32_t limit = percentile(samples, 0.9);
    struct moments moments[CLASSES] = { 0 };
    double worst = 0;

    for (int i = 0; i < SAMPLES; i++) {
        struct moments *m = &moments[samples[i].class];
        double delta;

        if (samples[i].cycles > limit)
            continue;
        m->count++;
        delta = samples[i].cycles - m->mean;
        m->mean += delta / m->count;
        m->sum += delta * (samples[i].cycles - m->mean);
    }
    for (int a = 0; a < CLASSES; a++) {
        for (int b = a + 1; b < CLASSES; b++) {
            double spread = moments[a].sum / (moments[a].count - 1) / moments[a].count +
                            moments[b].sum / (moments[b].count - 1) / moments[b].count;
            double t = spread > 0 ? fabs(moments[a].mean - moments[b].mean) / sqrt(spread) : 0;

            worst = t > worst ? t : worst;
        }
    }
    printf("%-14s %6.2f / %6.2f / %6.2f cycles each (equal, first byte, last byte)   t = %.2f\n",
        name, moments[0].mean / REPEAT, moments[1].mean / REPEAT, moments[2].mean / REPEAT, worst);
    return worst;
}

int main(void)
{
    struct sample *samples = malloc(SAMPLES * sizeof *samples);
    double ours;

    if (samples == NULL)
        return 1;
    crypto_random_fill(&state, sizeof state);
    state |= 1;
    printf("%d samples of %d compares of %d bytes, in random order\n", SAMPLES, REPEAT, SIZE);
    measure(crypto_equal, samples);
    ours = worst_t("crypto_equal", samples);
    measure(compare_naive, samples);
    (void)worst_t("memcmp", samples);
    printf("target: t under 4.5 for crypto_equal\n");
    free(samples);
    return ours < 4.5 ? 0 : 1;
}
