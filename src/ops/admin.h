/* SPDX-License-Identifier: Apache-2.0 */
/* admin.h: the operator's listener: health, metrics, flags, log levels, drain. It is a server of its own
 * and serves its routes under overload too.
 *
 * On a loopback address or a unix socket every local user may read; a change needs the admin token. On
 * any other address all routes but the three health routes need the token. */
#ifndef OPS_ADMIN_H
#define OPS_ADMIN_H

#include <stdbool.h>
#include <stddef.h>

#include <troupe/troupe.h>

#include "json/json_write.h"

struct admin;
struct service;

enum admin_phase { ADMIN_STARTING, ADMIN_SERVING, ADMIN_DRAINING };

struct admin_options {
    const char *listen;
    const char *token_path; /* created if it does not exist and the address is loopback */
    bool
        is_token_given; /* the operator set admin.token_file; an address that is not loopback needs it */
    const char *version;
    const char *data_path;
    /* The services with admin routes. Their routes answer 503 until admin_set_state. */
    const struct service *const *services;
    size_t service_count;
    void (*drain)(void *data); /* called by POST /v1/drain, on any thread */
    void *drain_data;
    tr_sender supervisor; /* restarts its listener when it fails; borrowed; none: it ends */
};

/* Start the listener in the phase ADMIN_STARTING, without checks. On failure `why` gets a sentence. */
int admin_start(struct tr_system *system, const struct admin_options *options, char *why,
    size_t why_size, struct admin **ret_admin);
const char *admin_address(const struct admin *admin);
/* Finish running requests, for 1 s at most, and stop. Nulls *admin. */
void admin_stop(struct admin **admin);
/* Tell whether only this machine can reach the address. */
bool admin_is_loopback(const char *listen);

void admin_set_phase(struct admin *admin, enum admin_phase phase);
/* Add a check for /readyz. It runs on a worker and must not wait; if it is false, `why` gets the reason.
 * `name` must outlive the listener. TR_ELIMIT past 32. */
typedef bool (*admin_check_fn)(void *data, char *why, size_t why_size);
int admin_add_check(struct admin *admin, const char *name, admin_check_fn check, void *data);
/* Set the state of a running service. Its admin routes answer from then on. */
void admin_set_state(struct admin *admin, const struct service *service, void *state);
/* Remove all checks and states. After the return no check runs and no service has a request. Requests that
 * do not end within 2 s are cut, and the listener then answers no more. Blocks. */
void admin_remove_checks(struct admin *admin);
/* Set a fact for /v1/status. Both texts are copied. TR_ELIMIT past 16 names. */
int admin_set_fact(struct admin *admin, const char *name, const char *text);

#endif
