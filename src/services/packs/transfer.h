/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h: downloads under way. A table of atomic words counts how many each user and each
 * address has, so that starting one costs no message. Those that take a while are in a list, for
 * administrators to read and to cancel. The leases belong to the transfer, so whatever ends it (its
 * last byte, a client that left, a connection that failed) gives them back. */
#ifndef SERVICES_PACKS_TRANSFER_H
#define SERVICES_PACKS_TRANSFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "services/packs/hasher.h"
#include "support/buffer.h"

struct transfers;
struct transfer;

struct transfer_limits {
    uint32_t per_user, per_address; /* at the same time; 0: no limit; at most 65,535 */
};
int transfers_start(const struct tr_env *env, const struct transfer_limits *limits,
    struct transfers **ret_transfers);
/* Stop after the last download. */
void transfers_stop(struct transfers **transfers);

/* The file and the client of a transfer. Texts are copied and may be cut. */
struct transfer_facts {
    struct span pack, version, user, address; /* user: absent if anonymous */
    struct span address_key;  /* the part of the address that counts as one client */
    uint64_t size;            /* bytes to send */
    struct pinned_file *file; /* kept until the transfer stops; NULL: none */
    tr_weak connection;       /* woken by a cancel */
    uint64_t now_ns;
};
enum transfer_refusal {
    TRANSFER_OK,
    TRANSFER_USER,
    TRANSFER_ADDRESS,
    TRANSFER_TABLE,
    TRANSFER_MEMORY
};
/* Take the leases, without a message. The transfer is the caller's until transfer_stop. */
enum transfer_refusal transfer_start(struct transfers *transfers,
    const struct transfer_facts *facts, struct transfer **ret_transfer);
/* Note how many bytes were sent. Returns false if the transfer was cancelled, or its file changed. A
 * transfer that has to wait for its client is listed from then on; one that never waits is over
 * before it could be read. This and transfer_stop are callbacks of http_sending. */
bool transfer_progress(void *data, uint64_t sent, bool is_waiting);
/* Give the leases back and drop the transfer. `sent` is the final number of bytes. Any thread. */
void transfer_stop(void *data, uint64_t sent);

/* ---- the list ------------------------------------------------------------------------------- */

struct transfer_info {
    uint64_t id, began_ns, size, sent;
    char pack[64], version[32], user[64], address[48];
};
enum { TRANSFER_LIST_MAX = 200 };
/* Copy the transfers after this id, in the order in which they were listed. Returns their number. */
uint32_t transfers_list(
    struct transfers *transfers, uint64_t after, struct transfer_info ret_infos[TRANSFER_LIST_MAX]);
/* Cut a transfer off. Returns TR_ENOENT if none in the list has this id. */
int transfers_cancel(struct transfers *transfers, uint64_t id);
/* Count the leases that are held now. */
uint32_t transfers_held(const struct transfers *transfers);

#endif
