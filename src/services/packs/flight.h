/* SPDX-License-Identifier: Apache-2.0 */
/* flight.h: downloads under way. How many one user and one address may have at once is counted in a
 * table of atomic words, so that beginning one costs no message; an actor keeps the list of them,
 * for who looks and who cancels. Whatever ends a download (its last byte, a client that went, a
 * connection that crashed) gives its leases back, because they belong to what is being sent. */
#ifndef SERVICES_PACKS_FLIGHT_H
#define SERVICES_PACKS_FLIGHT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "support/buffer.h"

struct flights;
struct flight;

struct flight_limits {
    uint32_t per_user, per_address; /* at once; 0: no limit; over 65,535 is 65,535 */
};
int flights_start(
    struct tr_system *system, const struct flight_limits *limits, struct flights **ret_flights);
/* After the last download. Blocks. */
void flights_stop(struct flights **flights);

/* What is being sent, to whom. Texts are copied and may be cut. */
struct flight_facts {
    struct span pack, version, user, address; /* user: absent for the anonymous */
    struct span address_key;                  /* what of the address counts as one */
    uint64_t size;                            /* bytes of the file that are to go */
    tr_weak connection;                       /* to wake when it is cancelled */
    uint64_t now_ns;
};
enum flight_refusal { FLIGHT_OK, FLIGHT_USER, FLIGHT_ADDRESS, FLIGHT_TABLE, FLIGHT_MEMORY };
/* Takes the leases; no message is waited for. */
enum flight_refusal flight_begin(
    struct flights *flights, const struct flight_facts *facts, struct flight **ret_flight);
/* How far it is; false: it was cancelled. One that has to wait is listed from then on: what goes
 * out at once is over before anybody could look. */
bool flight_go_on(struct flight *flight, uint64_t sent, bool is_waiting);
/* Gives the leases back. Any thread. `sent` as it was in the end. */
void flight_end(struct flight *flight, uint64_t sent);

/* ---- for who looks -------------------------------------------------------------------------- */

struct flight_info {
    uint64_t id, began_ns, size, sent;
    char pack[64], version[32], user[64], address[48];
};
enum { FLIGHT_LIST_MAX = 200 };
struct flight_message {
    enum { FLIGHT_BEGIN, FLIGHT_END, FLIGHT_LIST, FLIGHT_CANCEL } kind;
    uint64_t id;           /* List: begin after this one; Cancel: this one */
    struct flight *flight; /* Begin, End: a reference */
};
/* Ask it: List is answered with an array of at most FLIGHT_LIST_MAX struct flight_info, by id;
 * Cancel with status 0 or TR_ENOENT. */
tr_sender flights_sender(const struct flights *flights); /* borrowed */
/* Leases that are held now. */
uint32_t flights_held(const struct flights *flights);

#endif
