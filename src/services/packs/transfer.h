/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h: downloads under way. How many one user and one address may have at once is counted in a
 * table of atomic words, so that beginning one costs no message; an actor keeps the list of them,
 * for who looks and who cancels. Whatever ends a download (its last byte, a client that went, a
 * connection that crashed) gives its leases back, because they belong to what is being sent. */
#ifndef SERVICES_PACKS_TRANSFER_H
#define SERVICES_PACKS_TRANSFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "support/buffer.h"

struct transfers;
struct transfer;

struct transfer_limits {
    uint32_t per_user, per_address; /* at once; 0: no limit; over 65,535 is 65,535 */
};
int transfers_start(
    struct tr_system *system, const struct transfer_limits *limits, struct transfers **ret_flights);
/* After the last download. Blocks. */
void transfers_stop(struct transfers **transfers);

/* What is being sent, to whom. Texts are copied and may be cut. */
struct transfer_facts {
    struct span pack, version, user, address; /* user: absent for the anonymous */
    struct span address_key;                  /* what of the address counts as one */
    uint64_t size;                            /* bytes of the file that are to go */
    tr_weak connection;                       /* to wake when it is cancelled */
    uint64_t now_ns;
};
enum transfer_refusal {
    TRANSFER_OK,
    TRANSFER_USER,
    TRANSFER_ADDRESS,
    TRANSFER_TABLE,
    TRANSFER_MEMORY
};
/* Takes the leases; no message is waited for. */
enum transfer_refusal transfer_start(
    struct transfers *transfers, const struct transfer_facts *facts, struct transfer **ret_flight);
/* How far it is; false: it was cancelled. One that has to wait is listed from then on: what goes
 * out at once is over before anybody could look. */
bool transfer_progress(struct transfer *transfer, uint64_t sent, bool is_waiting);
/* Gives the leases back. Any thread. `sent` as it was in the end. */
void transfer_stop(struct transfer *transfer, uint64_t sent);

/* ---- for who looks -------------------------------------------------------------------------- */

struct transfer_info {
    uint64_t id, began_ns, size, sent;
    char pack[64], version[32], user[64], address[48];
};
enum { TRANSFER_LIST_MAX = 200 };
struct transfer_message {
    enum { TRANSFER_STARTED, TRANSFER_ENDED, TRANSFER_LIST, TRANSFER_CANCEL } kind;
    uint64_t id;               /* List: begin after this one; Cancel: this one */
    struct transfer *transfer; /* Begin, End: a reference */
};
/* Ask it: List is answered with an array of at most TRANSFER_LIST_MAX struct transfer_info, by id;
 * Cancel with status 0 or TR_ENOENT. */
tr_sender transfers_sender(const struct transfers *transfers); /* borrowed */
/* Leases that are held now. */
uint32_t transfers_held(const struct transfers *transfers);

#endif
