/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: the test harness. A case is a claim about a noun and runs in a process of its own, so a
 * crash, a hang or a leak is one failed case and never the end of the run.
 *
 *     TEST(mailbox, full_box_refuses)
 *     {
 *         CHECK_EQ_INT(tr_try_tell(sender, &message, sizeof(message)), TR_EFULL);
 *     }
 *
 * The harness holds main(). `program --help` lists its arguments; test/README.md says the rest.
 * There is no "eventually" check: a test steps the clock or waits for an event, it does not poll.
 */
#ifndef TEST_LIB_CHECK_H
#define TEST_LIB_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Seconds a case may take. Sanitizers and TROUPE_LONG=1 stretch it, TROUPE_LIMIT_S replaces it. */
#define CHECK_LIMIT_S 20

/* Define a case. noun and claim are identifiers; together they are its name, "noun: claim". */
#define TEST(noun, claim) CHECK__CASE(noun##__##claim, #noun, #claim, CHECK_LIMIT_S, NULL)

/* The same with a time limit of its own. */
#define TEST_LONG(noun, claim, seconds) CHECK__CASE(noun##__##claim, #noun, #claim, seconds, NULL)

/* A case that passes only if it dies of SIGABRT after writing text to stdout or stderr. */
#define TEST_ABORTS(noun, claim, text)                                                             \
    CHECK__CASE(noun##__##claim, #noun, #claim, CHECK_LIMIT_S, text)

/* Checks. They may be used from any thread: the first that fails prints where and what, and ends
 * the process of its case at once. Arguments are evaluated once. */
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            check_fail(__FILE__, __LINE__, "CHECK(%s)", #cond);                                    \
    } while (0)
#define CHECK_MSG(cond, ...)                                                                       \
    do {                                                                                           \
        if (!(cond))                                                                               \
            check_fail(__FILE__, __LINE__, __VA_ARGS__);                                           \
    } while (0)
#define CHECK_EQ_INT(a, b)                                                                         \
    check_eq_int(__FILE__, __LINE__, #a " == " #b, (long long)(a), (long long)(b))
#define CHECK_EQ_U64(a, b)                                                                         \
    check_eq_u64(__FILE__, __LINE__, #a " == " #b, (uint64_t)(a), (uint64_t)(b))
/* Either may be NULL; NULL equals NULL alone. */
#define CHECK_EQ_STR(a, b) check_eq_str(__FILE__, __LINE__, #a " == " #b, (a), (b))

/* End the case as skipped. The reason (printf form) is printed: say what is missing. */
#define SKIP(...) check_skip(__VA_ARGS__)

/* The seed of this run: TROUPE_SEED, or a fixed number. Every failure names it. */
uint64_t check_seed(void);

/* Walk seeds; the one in use is named if the case fails, crashes or hangs:
 *
 *     for (uint64_t seed; check_each_seed(&seed, 400);)
 *         run_scenario(seed);
 *
 * Starts at check_seed(). How many: TROUPE_SEEDS if set; else 1 if TROUPE_SEED is set, which is how
 * a failure is replayed; else count. Call it from the case's own thread. */
bool check_each_seed(uint64_t *ret_seed, unsigned count);

/* True under `make test-long` (TROUPE_LONG=1): use the big numbers. */
bool check_is_long(void);

/* How often a case does more of the same: long_count under `make test-long`, else count, or a
 * quarter of it in a build with a sanitizer, where each round takes several times as long and finds
 * what the first ones find. Not for a number that somebody was promised. */
unsigned check_rounds(unsigned count, unsigned long_count);

/* The parts that the macros above use. */
struct check_case {
    const char *noun;
    const char *claim;
    const char *aborts_with; /* NULL for an ordinary case */
    unsigned limit_s;
    void (*run)(void);
    struct check_case *next;
};

void check_register(struct check_case *test);
_Noreturn void check_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void check_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
void check_eq_int(const char *file, int line, const char *what, long long a, long long b);
void check_eq_u64(const char *file, int line, const char *what, uint64_t a, uint64_t b);
void check_eq_str(const char *file, int line, const char *what, const char *a, const char *b);

#define CHECK__CASE(id, noun_text, claim_text, seconds, text)                                      \
    static void run_##id(void);                                                                    \
    static struct check_case case_##id = { .noun = noun_text,                                      \
        .claim = claim_text,                                                                       \
        .aborts_with = text,                                                                       \
        .limit_s = seconds,                                                                        \
        .run = run_##id };                                                                         \
    __attribute__((constructor)) static void register_##id(void)                                   \
    {                                                                                              \
        check_register(&case_##id);                                                                \
    }                                                                                              \
    static void run_##id(void)

#endif
