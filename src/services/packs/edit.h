/* SPDX-License-Identifier: Apache-2.0 */
/* change.h: one change of the catalogue on its way: planned by the catalogue's actor on what is
 * committed, written as one unit of SQL together with its line in the audit log, answered after the
 * COMMIT with the new view. A change that is refused writes nothing.
 *
 * Two hold it, the connection and the actor; the last one frees it. Until the actor has replied
 * only the actor touches it, after that only the connection does. */
#ifndef SERVICES_PACKS_EDIT_H
#define SERVICES_PACKS_EDIT_H

#include "json/json_write.h"
#include "services/packs/catalogue.h"
#include "services/packs/packs_request.h"

struct edit;

/* What sort of change; one const table each. */
struct edit_kind {
    const char *action; /* in the audit log; NULL: no line */
    unsigned status;    /* when something was written; 0 is 200 */
    /* Decide, in the actor's turn: add steps to the unit, or refuse (change_refuse), or answer
     * without writing (change_done: it is so already). */
    void (*plan)(struct edit *edit, const struct packs_view *view, struct sql_unit *unit);
    /* After the COMMIT: write one JSON value. `view` has the change. NULL: {}. */
    void (*answer)(const struct edit *edit, const struct packs_view *view,
        const struct sql_unit *unit, struct json_writer *writer);
    /* A missed row count or a constraint: say what it means (change_refuse). NULL: 409 Conflict. */
    void (*explain)(struct edit *edit, const struct sql_unit *unit);
    void (*finish)(struct edit *edit); /* frees what `data` is; may be NULL */
    bool is_small; /* it adds next to nothing: made also when the catalogue is full */
    bool is_read;  /* SELECTs only: the view stays, and there is no line in the audit log */
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
    void *data;            /* the kind's own */
    int64_t before, limit; /* of a list: ids under this one, how many */
    int64_t now_ms;        /* when it is planned */
    int64_t invalidated;   /* a version that is no longer what was verified; 0: none */

    /* what became of it */
    unsigned status;   /* of HTTP; 0: nothing yet; 504: it may be stored */
    const char *label; /* of an error; static */
    char text[200];
    struct buffer answer; /* JSON */
};

/* One holder. NULL: out of memory, and the request has been answered. */
struct edit *edit_create(struct http_request *request, const struct edit_kind *kind);
/* Fills `pack` and `version` from the {name} and {version} of the path, where the route has them.
 * False: they cannot exist, and the request has been answered with 404; the change is freed. */
bool edit_read_path(struct http_request *request, struct edit *edit);
/* Hands it to the catalogue, and answers the request with what became of it. */
void edit_ask(struct http_request *request, struct edit *edit);
/* The same, with a function of the caller's, which gets the change back by change_take: NULL if it
 * did not succeed and the request has been answered. The caller frees it. */
void edit_ask_then(struct http_request *request, struct edit *edit, http_then_fn then);
struct edit *edit_take(struct http_request *request, const struct tr_event *event);
void edit_unref(struct edit *edit);

/* In `plan` and `explain`. */
void edit_refuse(struct edit *edit, unsigned status, const char *label, const char *text);
void edit_done(struct edit *edit); /* answered with the view as it is */
/* The pack, or the version of it, that the change names; NULL: it has been refused with 404. */
const struct pack *edit_pack(struct edit *edit, const struct packs_view *view);
const struct pack_version *edit_version(struct edit *edit, const struct pack *pack);
const struct release *edit_release(struct edit *edit, const struct packs_view *view);

#endif
