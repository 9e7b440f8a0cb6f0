/* SPDX-License-Identifier: Apache-2.0 */
/* delivery.h: the MLS Delivery Service (RFC 9420, RFC 9750). Each conversation has an actor, found
 * by its id; the database has the truth. README.md lists the folders. */
#ifndef SERVICES_DELIVERY_DELIVERY_H
#define SERVICES_DELIVERY_DELIVERY_H

#include <stdatomic.h>

#include "auth/auth.h"
#include "crypto/key.h"
#include "ops/service.h"
#include "services/common/db_query.h"

/* How much of a message the server checks. */
enum delivery_mode {
    DELIVERY_BLIND,    /* framing alone */
    DELIVERY_CHECKED,  /* and every signature that can be checked without secrets */
    DELIVERY_ASSISTED, /* and handshakes must be public, and the roster is enforced */
};

struct direct;

struct delivery {
    struct call_service calls;
    struct tr_system *system;
    tr_sender supervisor; /* restarts the actors below when they fail; borrowed; may be none */
    const struct tr_env *env;
    struct sql *sql;
    struct tr_registry *convos;
    tr_sender cleanup; /* deletes expired rows */
    enum delivery_mode mode;
    uint32_t app_window; /* epochs an application message may lag */
    uint32_t members_max;
    uint64_t lease_s;
    struct crypto_key *ticket_key; /* HS256, of this process: tickets live half a minute */
    char *service_did;
    uint32_t turn_ms;               /* of a member that lost two commits in a row; 0: no turns */
    int64_t quarantine_ms;          /* of the committer of a revoked commit */
    int64_t log_kept_s;             /* of rows that all members have read; 0: for ever */
    struct crypto_key *receipt_key; /* Ed25519 */
    tr_sender retention;
    tr_sender push; /* wakes devices; without a box there are no pushes */
    struct http_client *push_client;
    _Atomic uint32_t verifies_running, audits_running; /* of operators: admin_api.c */
    struct direct *direct; /* serves what the flag delivery.direct takes from the actors */
    /* How often retention has moved convos.kept_from; odd while it may be moving. An actor that
     * remembers where a log begins remembers this number beside it. Only retention.c writes it. */
    _Atomic uint64_t trims;
};

extern const struct service delivery_service; /* routes.c */

int delivery_start(
    const struct service_context *context, char *why, size_t why_size, void **ret_state);
void delivery_stop(void *state);
/* Stops an actor and waits for its end, because it reads *delivery. Nulls the sender. */
void delivery_end_actor(tr_sender *sender);
bool delivery_is_ready(void *state, char *why, size_t why_size);

static inline int64_t delivery_now_ms(const struct delivery *delivery)
{
    return (int64_t)(delivery->env->wall_ns(delivery->env->data) / 1000000);
}

#endif
