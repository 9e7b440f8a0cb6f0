/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_bench.c: Megolm beside libolm, on one core. Rounds of both take turns, so that the
 * machine's other work falls on both; a figure is the median of the ratios of neighbouring rounds.
 *
 *     matrix-bench [ROUNDS]
 *
 * Prints a table and exits with 1 if a target is missed, or if a plaintext differs. */
#include <olm/inbound_group_session.h>
#include <olm/outbound_group_session.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "crypto/digest.h"
#include "matrix/crypto/mxcrypto.h"

enum { ROUNDS_MAX = 999, MESSAGES_MAX = 256, ROUND_BYTES = 2 << 20 };

struct bench {
    size_t size;     /* of a plaintext */
    size_t messages; /* in a round */
    char *plaintext;
    struct buffer bodies[MESSAGES_MAX];
    struct buffer key; /* the session key */
    char *scratch;     /* libolm decodes in place: it gets a copy of each body */
    uint8_t *out;
};

_Noreturn static void fail(const char *what)
{
    (void)fprintf(stderr, "matrix-bench: %s\n", what);
    exit(1);
}

static void expect(bool is_good, const char *what)
{
    if (!is_good)
        fail(what);
}

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void random_fill(void *data, void *bytes, size_t size)
{
    (void)data;
    crypto_random_fill(bytes, size);
}
static const struct mx_random random_source = { .fill = random_fill };

static struct span span_of_buffer(const struct buffer *buffer)
{
    return (struct span){ buffer->bytes, buffer->size };
}

/* ---- what is measured: a new session reads, or sends and reads, all messages ------------------ */

static void ours_decrypt(struct bench *bench)
{
    struct mx_inbound *inbound = NULL;
    struct buffer plaintext = { 0 };
    uint32_t index;

    expect(mx_inbound_create(span_of_buffer(&bench->key), &inbound) == 0, "our session");
    for (size_t i = 0; i < bench->messages; i++) {
        buffer_clear(&plaintext);
        expect(mx_inbound_decrypt(inbound, span_of_buffer(&bench->bodies[i]), &plaintext, &index) ==
                       0 &&
                   plaintext.size == bench->size &&
                   memcmp(plaintext.bytes, bench->plaintext, bench->size) == 0,
            "we read another plaintext");
    }
    mx_wipe_buffer(&plaintext);
    mx_inbound_destroy(inbound);
}

static OlmInboundGroupSession *libolm_session(const struct bench *bench)
{
    void *memory = malloc(olm_inbound_group_session_size());
    OlmInboundGroupSession *session;

    expect(memory != NULL, "out of memory");
    session = olm_inbound_group_session(memory);
    expect(olm_init_inbound_group_session(
               session, (const uint8_t *)bench->key.bytes, bench->key.size) != (size_t)-1,
        "libolm's session");
    return session;
}

/* Without olm_group_decrypt_max_plaintext_length, which real callers need and which decodes the
 * message once more: the room is known here. */
static void libolm_decrypt(struct bench *bench)
{
    OlmInboundGroupSession *session = libolm_session(bench);
    uint32_t index;

    for (size_t i = 0; i < bench->messages; i++) {
        const struct buffer *body = &bench->bodies[i];
        size_t size;

        memcpy(bench->scratch, body->bytes, body->size);
        size = olm_group_decrypt(
            session, (uint8_t *)bench->scratch, body->size, bench->out, body->size, &index);
        expect(size == bench->size && memcmp(bench->out, bench->plaintext, size) == 0,
            "libolm reads another plaintext");
    }
    olm_clear_inbound_group_session(session);
    free(session);
}

static void ours_encrypt(struct bench *bench)
{
    struct mx_outbound *outbound = NULL;

    expect(mx_outbound_create(&random_source, &outbound) == 0, "our session");
    buffer_clear(&bench->key);
    expect(mx_outbound_key(outbound, &bench->key) == 0, "our session key");
    for (size_t i = 0; i < bench->messages; i++) {
        buffer_clear(&bench->bodies[i]);
        expect(mx_outbound_encrypt(outbound, (struct span){ bench->plaintext, bench->size },
                   &bench->bodies[i]) == 0,
            "we do not encrypt");
    }
    mx_outbound_destroy(outbound);
}

static void libolm_encrypt(struct bench *bench)
{
    void *memory = malloc(olm_outbound_group_session_size());
    OlmOutboundGroupSession *session;
    uint8_t random[256];

    expect(memory != NULL, "out of memory");
    session = olm_outbound_group_session(memory);
    crypto_random_fill(random, sizeof random);
    expect(olm_init_outbound_group_session(session, random, sizeof random) != (size_t)-1,
        "libolm's session");
    for (size_t i = 0; i < bench->messages; i++) {
        size_t size = olm_group_encrypt_message_length(session, bench->size);

        expect(olm_group_encrypt(session, (const uint8_t *)bench->plaintext, bench->size,
                   (uint8_t *)bench->scratch, size) == size,
            "libolm does not encrypt");
    }
    olm_clear_outbound_group_session(session);
    free(memory);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

typedef void (*bench_fn)(struct bench *bench);

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

static double per_second(struct bench *bench, bench_fn run)
{
    double before = cpu_seconds();

    run(bench);
    return (double)bench->messages / (cpu_seconds() - before);
}

/* Print one row and return whether it meets its target; 0 is none. */
static bool compare(const char *what, struct bench *bench, bench_fn ours, bench_fn theirs,
    size_t rounds, double target)
{
    double our[ROUNDS_MAX], their[ROUNDS_MAX], ratios[ROUNDS_MAX], ratio;

    ours(bench);
    theirs(bench);
    for (size_t i = 0; i < rounds; i++) {
        our[i] = per_second(bench, ours);
        their[i] = per_second(bench, theirs);
        ratios[i] = our[i] / their[i];
    }
    ratio = median(ratios, rounds);
    (void)printf("| %s, %zu B | %.0f | %.0f | %.2f |", what, bench->size, median(our, rounds),
        median(their, rounds), ratio);
    if (target > 0)
        (void)printf(" %.1f |%s\n", target, ratio >= target ? " kept |" : " MISSED |");
    else
        (void)printf(" | |\n");
    return ratio >= target;
}

static bool bench_size(size_t size, size_t rounds, double target)
{
    struct bench bench = { .size = size, .messages = ROUND_BYTES / size };
    size_t room = size * 2 + 512;
    bool is_kept;

    if (bench.messages > MESSAGES_MAX)
        bench.messages = MESSAGES_MAX;
    bench.plaintext = malloc(room);
    bench.scratch = malloc(room);
    bench.out = malloc(room);
    expect(bench.plaintext != NULL && bench.scratch != NULL && bench.out != NULL, "out of memory");
    memset(bench.plaintext, 'x', size);
    ours_encrypt(&bench); /* the twins of test/oracle show that libolm writes the same bytes */
    is_kept = compare("decrypt", &bench, ours_decrypt, libolm_decrypt, rounds, target);
    is_kept &= compare("encrypt", &bench, ours_encrypt, libolm_encrypt, rounds, 0);
    for (size_t i = 0; i < bench.messages; i++)
        buffer_free(&bench.bodies[i]);
    buffer_free(&bench.key);
    free(bench.plaintext);
    free(bench.scratch);
    free(bench.out);
    return is_kept;
}

int main(int argc, char **argv)
{
    size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 51;
    double load = 0;
    bool is_kept = true;

    if (rounds < 1 || rounds > ROUNDS_MAX) {
        (void)fprintf(stderr, "usage: %s [ROUNDS], 1 to %d\n", argv[0], ROUNDS_MAX);
        return 2;
    }
    (void)printf("| Megolm | ours, per CPU-second | libolm | ratio | target | "
                 "|\n|---|---|---|---|---|---|\n");
    is_kept &= bench_size(256, rounds, 1.9);
    is_kept &= bench_size(2048, rounds, 2.0);
    is_kept &= bench_size(32768, rounds, 2.0);
    (void)getloadavg(&load, 1);
    (void)printf("\nMedians of %zu interleaved rounds; load average %.1f.\n", rounds, load);
    return is_kept ? 0 : 1;
}
