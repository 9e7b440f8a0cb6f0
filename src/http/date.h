/* SPDX-License-Identifier: Apache-2.0 */
/* date.h: the Date header, formatted once a second on each thread. */
#ifndef HTTP_DATE_H
#define HTTP_DATE_H

#include <stdint.h>

#include <troupe/env.h>

enum { HTTP_DATE_SIZE = 29 };

/* Returns 29 characters, valid until the next call on this thread. `now_ns` is the monotonic
 * time. */
const char *http_date_now(const struct tr_env *env, uint64_t now_ns);

#endif
