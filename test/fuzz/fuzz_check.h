/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_check.h: stands in for test/lib/check.h in a fuzz target that uses the sites of unit tests: a
 * failed check aborts. Include it in one file. The harness, which has a main()
 * of its own, is then not linked. */
#ifndef TEST_FUZZ_FUZZ_CHECK_H
#define TEST_FUZZ_FUZZ_CHECK_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

_Noreturn void check_fail(const char *file, int line, const char *format, ...)
{
    va_list list;

    (void)fprintf(stderr, "%s:%d: ", file, line);
    va_start(list, format);
    (void)vfprintf(stderr, format, list);
    va_end(list);
    (void)fprintf(stderr, "\n");
    abort();
}

_Noreturn void check_skip(const char *format, ...)
{
    va_list list;

    va_start(list, format);
    (void)vfprintf(stderr, format, list);
    va_end(list);
    abort();
}

void check_eq_int(const char *file, int line, const char *what, long long a, long long b)
{
    if (a != b)
        check_fail(file, line, "%s: %lld is not %lld", what, a, b);
}

void check_eq_u64(const char *file, int line, const char *what, uint64_t a, uint64_t b)
{
    if (a != b)
        check_fail(
            file, line, "%s: %llu is not %llu", what, (unsigned long long)a, (unsigned long long)b);
}

void check_eq_str(const char *file, int line, const char *what, const char *a, const char *b)
{
    if ((a == NULL) != (b == NULL) || (a != NULL && strcmp(a, b) != 0))
        check_fail(file, line, "%s", what);
}

bool check_is_long(void)
{
    return false;
}

uint64_t check_seed(void)
{
    return 1;
}

#endif
