/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h: the parsers ours is compared with, each behind the same three functions. */
#ifndef BENCH_JSON_PEERS_H
#define BENCH_JSON_PEERS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The text has 64 bytes of padding. simdjson's parser object is kept between calls, as a program
 * that cares would; cJSON allocates and frees per call, as it does. Returns 0 if it was accepted.
 */
int peer_simdjson_parse(const char *text, size_t size);
int peer_cjson_parse(const char *text, size_t size);
/* The kernel simdjson chose for this machine. */
const char *peer_simdjson_name(void);

#ifdef __cplusplus
}
#endif

#endif
