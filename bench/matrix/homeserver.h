/* SPDX-License-Identifier: Apache-2.0 */
/* homeserver.h: a scripted homeserver for benchmarks of the Matrix engine: HTTP/1.1 on loopback, a
 * thread for each connection, as much of the client-server API as `troupe sync` uses to log in and to
 * receive. It keeps the keys that devices upload. The program writes the answers of /sync and the
 * events of /messages beforehand, so that serving them costs the machine little.
 *
 * A token is "pPAGE_EVENT": the next answer of /sync, and a place among the events. A /sync past the
 * last answer waits as long as its `timeout` says. The server lives until the process ends. */
#ifndef BENCH_MATRIX_HOMESERVER_H
#define BENCH_MATRIX_HOMESERVER_H

#include <stdint.h>

#include "support/buffer.h"

enum { HOMESERVER_EVENTS_MAX = 20000, HOMESERVER_PAGES_MAX = 4, HOMESERVER_SYNCS_MAX = 4096 };

struct homeserver;

struct homeserver *homeserver_start(void);
/* Return "http://127.0.0.1:PORT". */
const char *homeserver_url(const struct homeserver *server);

/* Add the answer to the /sync that comes with the token of this page. Takes the bytes. */
void homeserver_add_page(struct homeserver *server, struct buffer *body);
/* Add an event of the room for /messages. Takes the bytes. */
void homeserver_add_event(struct homeserver *server, struct buffer *event);
/* Set the answer about the devices of a user: {"DEVICE":{...}}. Copied. */
void homeserver_set_devices(struct homeserver *server, const char *user, struct span devices);
/* Hold all answers of /sync back, or let them go. */
void homeserver_hold_syncs(struct homeserver *server, bool is_held);

/* Append the bodies of all /keys/upload so far, as a JSON array. */
void homeserver_put_uploads(struct homeserver *server, struct buffer *out);
/* Return how many /sync have arrived. */
unsigned homeserver_syncs(struct homeserver *server);
/* Wait for a /sync, counted from 0, and return when its head had arrived, by CLOCK_MONOTONIC in
 * nanoseconds; 0 after a minute without it. */
uint64_t homeserver_wait_sync(struct homeserver *server, unsigned number);
/* Return the `timeout` in milliseconds that a /sync asked for. */
unsigned homeserver_sync_timeout_ms(struct homeserver *server, unsigned number);

#endif
