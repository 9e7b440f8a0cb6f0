/* SPDX-License-Identifier: Apache-2.0 */
/* simdjson_verdict.h: simdjson's word on a text, for C. */
#ifndef TEST_ORACLE_SIMDJSON_VERDICT_H
#define TEST_ORACLE_SIMDJSON_VERDICT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum simdjson_verdict {
    SIMDJSON_ACCEPTS,
    SIMDJSON_REFUSES,
    SIMDJSON_REFUSES_NUMBER, /* maybe only because it does not fit 64 bits */
};

enum simdjson_verdict simdjson_verdict(const char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
