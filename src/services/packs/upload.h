/* SPDX-License-Identifier: Apache-2.0 */
/* upload.h: files on their way in. An upload has a row in pack_uploads and a file in incoming/,
 * both named by its random id; how much of it is there is the size of that file. It survives
 * connections, crashes and restarts, and nobody sees it until it is finished: then it is checked,
 * synced and renamed to its object, and the catalogue gets the version in one unit.
 *
 * One actor owns the table of uploads. Bytes are written and hashed on the blocking pool, one piece
 * of an upload at a time. Who sends a piece holds the upload's claim; everybody else is told that
 * it is busy. A claim ends with its request, or after 30 s without a piece. */
#ifndef SERVICES_PACKS_UPLOAD_H
#define SERVICES_PACKS_UPLOAD_H

#include "services/packs/catalogue.h"

enum {
    UPLOAD_ID_CHARS = 32, /* hex */
    UPLOADS_MAX = 64,     /* at a time; over it 503 */
    UPLOAD_PIECE =
        256 << 10,         /* bytes that are written at once; two such of a request are in memory */
    UPLOAD_KEPT_S = 86400, /* without a new byte; then it is removed */
    UPLOAD_CLAIM_S = 30,
};

enum upload_encoding { UPLOAD_WHOLE, UPLOAD_ZSTD, UPLOAD_GZIP };
/* NULL for UPLOAD_WHOLE. */
const char *upload_encoding_name(enum upload_encoding encoding);
bool upload_encoding_parse(struct span name, enum upload_encoding *ret_encoding);

#define UPLOAD_VERSION_EXISTS                                                                      \
    "The pack has this version already, and versions never change; choose another number."
#define UPLOAD_VARIANT_EXISTS "The version has this encoding already."
/* Find the place of an encoding in a version. */
static inline const struct pack_variant *upload_find_variant(
    const struct pack_version *version, enum upload_encoding encoding)
{
    return encoding == UPLOAD_ZSTD ? &version->zstd : &version->gzip;
}

struct edit;

/* What is going to arrive. */
struct upload_facts {
    int64_t pack; /* its id */
    char pack_name[PACK_NAME_MAX + 1];
    char version[PACK_VERSION_MAX + 1];
    char type[PACK_TYPE_MAX + 1];
    char actor[128];
    enum upload_encoding encoding;
    uint8_t sha256[32]; /* of the bytes as they are sent */
    uint64_t size;
    /* Of an encoding: what it must decompress to, and of which version it is. */
    int64_t version_id;
    uint8_t plain_sha256[32];
    uint64_t plain_size;
};

enum upload_action {
    UPLOAD_CREATE,  /* facts; or finds the one that is there already */
    UPLOAD_LOOK,    /* id */
    UPLOAD_CLAIM,   /* id, offset, length: for who wants to send */
    UPLOAD_WRITE,   /* id, claim, bytes */
    UPLOAD_RELEASE, /* id, claim: no answer; `bytes` that are left are written first */
    UPLOAD_FINISH,  /* id, change: all is there: check, sync, rename, then have the change made */
    UPLOAD_DELETE,  /* id */
    UPLOAD_SWEEP,   /* what is abandoned goes now; otherwise within a minute */
};

/* A step on its way. Two hold it, the connection and the actor; the last one frees it. Until the
 * actor has replied only the actor touches it, after that only the connection does. */
struct upload_job {
    _Atomic uint32_t holders;
    enum upload_action action;
    char id[UPLOAD_ID_CHARS + 1];
    uint64_t claim;            /* not 0: chosen by who sends, for one request */
    uint64_t offset;           /* in: what the client thinks; out: what is so */
    struct buffer bytes;       /* UPLOAD_WRITE, UPLOAD_RELEASE */
    uint64_t begin;            /* of the file, where those belong */
    struct upload_facts facts; /* in: UPLOAD_CREATE; out: all others */
    uint64_t length;           /* UPLOAD_CLAIM: of what is going to be sent; 0: not known */
    struct edit *edit;         /* UPLOAD_FINISH: one holder */
    /* what became of it */
    bool is_new;       /* UPLOAD_CREATE */
    unsigned status;   /* of HTTP: 200, or an error */
    const char *label; /* of an error, static */
    const char *text;
    tr_reply_handle reply;   /* the actor's */
    struct upload_job *next; /* the actor's */
};
struct upload_message {
    struct upload_job *job; /* one holder */
};
struct upload_job *upload_job_create(
    enum upload_action action); /* one holder; NULL: out of memory */
struct upload_job *upload_job_ref(struct upload_job *job);
void upload_job_unref(struct upload_job *job);

/* upload_change.c: how a finished upload enters the catalogue. `change` was made with this kind. */
extern const struct edit_kind upload_edit_kind;
/* Say what it is about. TR_ENOMEM. */
int upload_edit_fill(struct edit *edit, const char *id, const struct upload_facts *facts);

/* Blocks: reads what was begun, removes what nobody can finish, starts the actor. After the vault
 * and the catalogue. */
int uploads_start(struct packs *packs, char *why, size_t why_size);
/* Before the vault goes. Blocks until no work of it is running. */
void uploads_stop(struct packs *packs);

/* How many of `size` gathered bytes are written at `offset`. A full piece ends where pieces of the
 * file end: a page cache that is filled in whole pieces keeps them in one, and they are read faster
 * for as long as it does (docs/benchmarks-packs.md). */
size_t upload_write_size(uint64_t offset, size_t size);

/* Handlers (upload_api.c), with their routes below /v1/admin:
 *   POST   packs/{name}/uploads   {"version","size","sha256","type"?,"encoding"?}; small body
 *   GET, HEAD, PATCH, DELETE   uploads/{id}      PATCH: HTTP_ROUTE_STREAM | HTTP_ROUTE_LONG,
 *                                                body_max UPLOAD_BODY_MAX
 *   POST   uploads/{id}/finish    no body; HTTP_ROUTE_LONG */
#define UPLOAD_BODY_MAX ((size_t)1 << 42)
void api_create_upload(struct http_request *request, void *state);
void api_get_upload(struct http_request *request, void *state);
void api_patch_upload(struct http_request *request, void *state);
void api_delete_upload(struct http_request *request, void *state);
void api_finish_upload(struct http_request *request, void *state);

#endif
