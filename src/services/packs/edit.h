/* SPDX-License-Identifier: Apache-2.0 */
/* edit.h: one edit of the catalogue. The catalogue's actor plans it on the committed view, writes it
 * as one unit of SQL together with its row in the audit log, and answers after the COMMIT with the
 * new view. An edit that is refused writes nothing.
 *
 * The connection and the actor each hold a reference; the last one frees the edit. Until the actor
 * has replied only the actor touches it, after that only the connection does. */
#ifndef SERVICES_PACKS_EDIT_H
#define SERVICES_PACKS_EDIT_H

#include "services/common/call.h"
#include "services/common/step.h"
#include "services/packs/packs_request.h"

struct edit;

/* The kind of an edit; one const table each. */
struct edit_kind {
    const char *action;         /* in the audit log */
    unsigned status;            /* of an edit that wrote something; 0 is 200 */
    bool is_small;              /* adds next to nothing: allowed when the catalogue is full */
    const struct param *params; /* of the body; NULL: none */
    /* Check what the table cannot say, and keep what the plan needs. Returns 0 or TR_ENOMEM. May be
     * NULL. */
    int (*read)(struct edit *edit, struct json_expect *expect);
    /* Decide, in the actor's turn: add steps to the unit, or refuse (edit_refuse), or answer without
     * writing (edit_done: nothing to do). */
    void (*plan)(struct edit *edit, const struct packs_view *view, struct sql_unit *unit);
    /* Write the members of the answer after the COMMIT. `view` has the edit. Returns false if another
     * program has removed what the edit names: the answer is null. */
    bool (*answer)(
        const struct edit *edit, const struct packs_view *view, struct json_writer *writer);
    /* The error after a missed row count or a constraint. NULL: 409 Conflict. */
    const struct refusal *conflict;
};

struct edit {
    _Atomic uint32_t holders;
    const struct edit_kind *kind;
    struct packs *packs;              /* for the actor; the connection may outlive it */
    const struct auth_claims *claims; /* counted; NULL: the admin token */
    char actor[128];
    char pack[PACK_NAME_MAX + 1]; /* "": none; the same for the next two */
    char version[PACK_VERSION_MAX + 1];
    char release[RELEASE_ID_SIZE + 1];
    struct param_value values[PARAMS_MAX]; /* of the kind's params; texts point into `texts` */
    char *texts;                           /* owned */
    void *data;                            /* the kind's own; freed with base_free */
    int64_t now_ms;                        /* when it is planned */
    int64_t invalidated;                   /* id of a version that is no longer served; 0: none */

    /* the result */
    unsigned status;          /* of HTTP; 0: none yet; 504: the edit may be stored */
    const char *label, *text; /* of an error; static */
    struct buffer answer;     /* JSON */
};

/* The message of the catalogue's actor; it owns one reference. */
struct edit_message {
    struct edit *edit;
};

/* Run a call that is an edit, whose kind is `extra` of the route: read the path and the parameters,
 * hand the edit to the catalogue, and answer the request with the result. */
void edit_call(struct http_request *request);
/* Answer with the result of an edit that the catalogue has replied to. */
void edit_respond(struct http_request *request, struct edit *edit);

/* Create an edit without parameters, with one reference. Returns NULL after answering 503. */
struct edit *edit_create(struct http_request *request, const struct edit_kind *kind);
struct edit *edit_ref(struct edit *edit);
void edit_unref(struct edit *edit); /* NULL is fine */

/* For `plan`. The first refusal counts. */
void edit_refuse(struct edit *edit, unsigned status, const char *label, const char *text);
void edit_done(struct edit *edit); /* answer with the view as it is */
/* Find the pack, version or release that the edit names. Return NULL after refusing with 404. */
const struct pack *edit_pack(struct edit *edit, const struct packs_view *view);
const struct pack_version *edit_version(struct edit *edit, const struct pack *pack);
const struct release *edit_release(struct edit *edit, const struct packs_view *view);
/* Add the audit row of an edit to its unit (audit_store.c). */
void edit_audit(struct sql_unit *unit, const struct edit *edit, const struct packs_view *view);
/* For `answer`: the pack that the edit names. */
bool edit_answer_pack(
    const struct edit *edit, const struct packs_view *view, struct json_writer *writer);

#endif
