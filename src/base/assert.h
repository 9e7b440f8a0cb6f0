/* SPDX-License-Identifier: Apache-2.0 */
/* assert.h: the always-on assert. A failed one is a bug in this program: it names itself and ends
 * the process. Never on input from outside. */
#ifndef BASE_ASSERT_H
#define BASE_ASSERT_H

_Noreturn void tr__assert_failed(
    const char *what, const char *file, int line, const char *function);

#define tr_assert(condition)                                                                       \
    (__builtin_expect(!!(condition), 1)                                                            \
            ? (void)0                                                                              \
            : tr__assert_failed(#condition, __FILE__, __LINE__, __func__))

/* An assert about how the caller uses the library: `rule` says what was broken. */
#define tr_assert_use(condition, rule)                                                             \
    (__builtin_expect(!!(condition), 1) ? (void)0                                                  \
                                        : tr__assert_failed(rule, __FILE__, __LINE__, __func__))

#endif
