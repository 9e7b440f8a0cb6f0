/* SPDX-License-Identifier: Apache-2.0 */
/* admin.h: the operator's listener: health, metrics, flags, log levels, drain. A server of its own
 * whose routes are served also under overload.
 *
 * On a loopback address or a unix socket everybody on the machine may read; changing needs the
 * admin token. On any other address everything but the three health routes needs it. */
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
    const char *token_path; /* made when it is not there and the address is loopback */
    bool is_token_given; /* the operator named the file: an address that is not loopback needs it */
    const char *version;
    const char *data_path;
    /* Whose admin routes it serves. They answer 503 without a state. */
    const struct service *const *services;
    size_t service_count;
    void (*drain)(void *data); /* asked to end by POST /v1/drain; any thread */
    void *drain_data;
};

/* `why` says what to do. Starts with the phase ADMIN_STARTING and no checks. */
int admin_start(struct tr_system *system, const struct admin_options *options, char *why,
    size_t why_size, struct admin **ret_admin);
const char *admin_address(const struct admin *admin);
/* Ends what is being answered, 1 s at most. Nulls *admin. */
void admin_stop(struct admin **admin);
bool admin_is_loopback(const char *listen);

void admin_set_phase(struct admin *admin, enum admin_phase phase);
/* What readiness depends on. Called on a worker: at once, without waiting. `name` must outlive the
 * server. TR_ELIMIT past 32. */
typedef bool (*admin_check_fn)(void *data, char *why, size_t why_size);
int admin_add_check(struct admin *admin, const char *name, admin_check_fn check, void *data);
/* A service runs: its admin routes have something to answer with. */
void admin_set_state(struct admin *admin, const struct service *service, void *state);
/* The states go as well. When it returns no check runs, and no request to a service: those that do
 * not end within 2 s are cut, and then nothing is answered here any more. Blocks. */
void admin_remove_checks(struct admin *admin);
/* Facts for /v1/status: text by name, both copied; at most 16. */
int admin_set_fact(struct admin *admin, const char *name, const char *text);

#endif
