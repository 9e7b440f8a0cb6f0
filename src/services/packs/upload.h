/* SPDX-License-Identifier: Apache-2.0 */
/* upload.h: uploads. An upload has a row in pack_uploads and a file in incoming/, both named by its
 * random id; the size of the file says how many bytes have arrived. It survives connections, crashes
 * and restarts, and no reader sees it until it is finished: then the server checks, syncs and renames
 * the file to its object, and adds the version to the catalogue in one unit.
 *
 * One actor owns the table of uploads. The blocking pool writes and hashes the bytes, one piece of an
 * upload at a time. The request that sends pieces holds the upload's claim; others get 409
 * UploadBusy. A claim ends with its request, or after 30 s without a piece. */
#ifndef SERVICES_PACKS_UPLOAD_H
#define SERVICES_PACKS_UPLOAD_H

#include "services/packs/catalogue.h"

enum {
    UPLOAD_ID_CHARS = 32,     /* hex */
    UPLOADS_MAX = 64,         /* at the same time; one more gets 503 */
    UPLOAD_PIECE = 256 << 10, /* bytes of one write; a request has two of them in memory */
    UPLOAD_KEPT_S = 86400,    /* without a new byte; then the upload is removed */
    UPLOAD_CLAIM_S = 30,
};

#define UPLOAD_VERSION_EXISTS                                                                      \
    "The pack has this version already, and versions never change; choose another number."
#define UPLOAD_VARIANT_EXISTS "The version has this encoding already."

struct edit;

/* The announced file. */
struct upload_facts {
    int64_t pack; /* its id */
    char pack_name[PACK_NAME_MAX + 1];
    char version[PACK_VERSION_MAX + 1];
    char type[PACK_TYPE_MAX + 1];
    char actor[128];
    enum pack_coding encoding;
    uint8_t sha256[32]; /* of the bytes as sent */
    uint64_t size;
    /* For an encoding: its version, and the size and digest of the decompressed bytes. */
    int64_t version_id;
    uint8_t plain_sha256[32];
    uint64_t plain_size;
};

enum upload_action {
    UPLOAD_CREATE,  /* facts; finds an equal upload if there is one */
    UPLOAD_LOOK,    /* id */
    UPLOAD_CLAIM,   /* id, offset, length: before sending pieces */
    UPLOAD_WRITE,   /* id, claim, bytes */
    UPLOAD_RELEASE, /* id, claim: no answer; the last `bytes` are written first */
    UPLOAD_FINISH,  /* id, edit: check, sync and rename the complete file, then make the edit */
    UPLOAD_DELETE,  /* id */
    UPLOAD_SWEEP,   /* remove abandoned uploads now; a timer does it every minute */
};

/* A step of an upload. The connection and the actor each hold a reference; the last one frees the
 * job. Until the actor has replied only the actor touches it, after that only the connection does. */
struct upload_job {
    _Atomic uint32_t holders;
    enum upload_action action;
    char id[UPLOAD_ID_CHARS + 1];
    uint64_t claim;            /* not 0; drawn for one PATCH request */
    uint64_t offset;           /* in: from the client; out: the actual offset */
    struct buffer bytes;       /* UPLOAD_WRITE, UPLOAD_RELEASE */
    uint64_t begin;            /* offset of those bytes in the file */
    struct upload_facts facts; /* in: UPLOAD_CREATE; out: all others */
    uint64_t length;           /* UPLOAD_CLAIM: announced bytes; 0: unknown */
    struct edit *edit;         /* UPLOAD_FINISH: one holder */
    /* the result */
    bool is_new;       /* UPLOAD_CREATE */
    unsigned status;   /* of HTTP: 200, or an error */
    const char *label; /* of an error, static */
    const char *text;
    tr_reply_handle reply; /* the actor's */
};
struct upload_message {
    struct upload_job *job; /* one reference */
};
struct upload_job *upload_job_create(
    enum upload_action action); /* one reference; NULL: out of memory */
struct upload_job *upload_job_ref(struct upload_job *job);
void upload_job_unref(struct upload_job *job);

/* The edit that takes a finished upload into the catalogue (upload_store.c). */
extern const struct edit_kind upload_edit_kind;
/* Fill the edit with the upload. Returns TR_ENOMEM. */
int upload_edit_fill(struct edit *edit, const char *id, const struct upload_facts *facts);

/* Load the uploads, remove those that cannot be finished, and start the actor. Blocks. Call it after
 * the objects and the catalogue have started. */
int uploads_start(struct packs *packs, char *why, size_t why_size);
/* Stop the actor before the objects are closed. Blocks. */
void uploads_stop(struct packs *packs);

/* Return how many of `size` gathered bytes to write at `offset`. A full piece ends at a multiple of
 * UPLOAD_PIECE: the page cache then holds whole pieces, which are read faster
 * (docs/benchmarks-packs.md). */
size_t upload_write_size(uint64_t offset, size_t size);

/* Handlers (upload_api.c), with their routes below /v1/admin:
 *   POST   packs/{name}/uploads   {"version","size","sha256","type"?,"encoding"?}; small body
 *   GET, HEAD, PATCH, DELETE   uploads/{id}      PATCH: HTTP_ROUTE_STREAM | HTTP_ROUTE_LONG,
 *                                                body_max UPLOAD_BODY_MAX
 *   POST   uploads/{id}/finish    no body; HTTP_ROUTE_LONG */
#define UPLOAD_BODY_MAX ((size_t)1 << 42)
void api_create_upload(struct http_request *request);
void api_get_upload(struct http_request *request);
void api_patch_upload(struct http_request *request);
void api_delete_upload(struct http_request *request);
void api_finish_upload(struct http_request *request);

#endif
