/* SPDX-License-Identifier: Apache-2.0 */
/* simdjson_verdict.h: the verdict of simdjson on a text, for C. */
#ifndef TEST_ORACLE_SIMDJSON_VERDICT_H
#define TEST_ORACLE_SIMDJSON_VERDICT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum simdjson_verdict {
    SIMDJSON_ACCEPTS,
    SIMDJSON_REFUSES,
    SIMDJSON_REFUSES_NUMBER, /* perhaps only because a number does not fit */
};

enum simdjson_verdict simdjson_verdict(const char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
