/* SPDX-License-Identifier: Apache-2.0 */
/* upload_private.h: the table of uploads, shared by its actor (upload.c), its start (upload_start.c)
 * and its SQL (upload_store.c). */
#ifndef SERVICES_PACKS_UPLOAD_PRIVATE_H
#define SERVICES_PACKS_UPLOAD_PRIVATE_H

#include "services/packs/upload_file.h"

enum { UPLOAD_TAG_FIRST = 16 };

/* The folder of the uploads. It outlives the actor while work runs on the pool. */
struct upload_site {
    _Atomic uint32_t holders;
    struct objects *objects;
};

/* What an upload is busy with. */
enum upload_step { UPLOAD_STEP_NONE, UPLOAD_STEP_WORK, UPLOAD_STEP_REMOVE, UPLOAD_STEPS };

struct upload {
    struct upload *next;
    _Atomic uint32_t holders; /* the table, and running work */
    struct upload_site *site;
    struct upload_facts facts;
    struct upload_file file;
    uint64_t offset;
    uint64_t claim; /* 0: no request sends */
    uint64_t claim_ns;
    int64_t touched_ms;
    enum upload_step step;
    bool is_made;               /* its row is stored */
    bool is_taking_object;      /* the removal takes the object, which no version wanted */
    bool is_cut;                /* the actor failed during the step */
    uint32_t tag;               /* of the unit or edit that it waits for; 0: none */
    struct upload_job *job;     /* the request of the step; NULL: a sweep */
    struct upload_job *waiting; /* the last bytes of a client that left while the upload was busy */
};

struct uploads {
    struct packs *packs;
    struct upload_site *site;
    struct sql_client sql;
    struct upload *first;
    uint32_t count;
    uint32_t tag_next;
};

extern const struct tr_type uploads_type;
/* Called on the pool before an object is removed, for tests; may be NULL. */
extern void (*_Atomic upload_removal_hook)(void);

void upload_site_unref(struct upload_site *site); /* NULL is fine */
/* Create an upload with one reference. NULL: out of memory. */
struct upload *upload_new(
    struct upload_site *site, const char *id, const struct upload_facts *facts);
void upload_unref(struct upload *upload);
void uploads_enlist(struct uploads *uploads, struct upload *upload); /* takes the reference */
struct upload *uploads_find(const struct uploads *uploads, const char *id);
/* Release everything that the struct owns. */
void uploads_finish(void *self);

/* upload_store.c: units; NULL: out of memory. */
struct sql_unit *upload_insert_unit(
    const char *id, const struct upload_facts *facts, int64_t now_ms);
struct sql_unit *upload_delete_unit(struct span id);
struct sql_unit *upload_select_unit(void);
/* Read a row of upload_select_unit. Returns false if this program cannot have written it. */
bool upload_read_row(const struct sql_unit *unit, uint32_t row, char ret_id[UPLOAD_ID_CHARS + 1],
    struct upload_facts *ret_facts);

#endif
