/* SPDX-License-Identifier: Apache-2.0 */
/* upload_private.h: the table of uploads, shared by its actor (upload.c), its start (upload_start.c)
 * and its SQL (upload_store.c), and the file of an upload (upload_file.c, variant.c). */
#ifndef SERVICES_PACKS_UPLOAD_PRIVATE_H
#define SERVICES_PACKS_UPLOAD_PRIVATE_H

#include "crypto/digest.h"
#include "services/packs/objects.h"
#include "services/packs/upload.h"

/* ---- the file of an upload, for the blocking pool. One thread at a time --------------------- */

struct upload_file {
    struct objects *objects; /* one reference: work on the pool may outlive the actor */
    char id[UPLOAD_ID_CHARS + 1];
    int fd;          /* -1: not open */
    uint64_t offset; /* bytes in the file */
    struct crypto_sha256_stream hash;
    bool has_hash;
    uint64_t hashed; /* bytes that `hash` has seen; fewer than `offset` after a restart */
};

void upload_file_init(struct upload_file *file, struct objects *objects, const char *id);
void upload_file_fini(struct upload_file *file);
/* Create the file, empty. Returns TR_ENOSPC, TR_EIO, ... */
int upload_file_create(struct upload_file *file);
/* Find out how many bytes the file has, and when it was last written (ns since 1970). TR_ENOENT. */
int upload_file_look(struct upload_file *file, int64_t *ret_modified_ns);
/* Append all bytes or none. Returns TR_ENOSPC, TR_EIO. */
int upload_file_write(struct upload_file *file, const char *bytes, size_t size);
/* Check a complete file against what was announced, and make it its object, durably. Returns
 * TR_EPROTO for another digest, TR_EINVAL if an encoding does not decompress to its version. After a
 * crash the object may exist instead of the upload: then the object is checked. */
int upload_file_seal(struct upload_file *file, const struct upload_facts *facts);
/* Remove the file; one that is missing is fine. */
int upload_file_remove(struct upload_file *file);
/* Close the file and forget the digest. */
void upload_file_close(struct upload_file *file);

/* Decompress the file from its beginning. Returns 0 if it is one whole gzip member or zstd frame with
 * nothing after it, of exactly `size` decompressed bytes with this digest; otherwise TR_EPROTO,
 * TR_EIO or TR_ENOMEM. Decompresses at most `size` bytes, with a window of at most 8 MiB (RFC 9659:
 * every client of Content-Encoding: zstd must support that). Blocks: for the pool. */
int variant_check(int fd, enum pack_coding encoding, uint64_t size, const uint8_t sha256[32]);

/* ---- the table ------------------------------------------------------------------------------ */

enum { UPLOAD_TAG_FIRST = 16 };

/* The step that keeps an upload busy. */
enum upload_step { UPLOAD_STEP_NONE, UPLOAD_STEP_WORK, UPLOAD_STEP_REMOVE, UPLOAD_STEPS };
/* The work that the pool does for it. */
enum upload_work { UPLOAD_WORK_CREATE, UPLOAD_WORK_WRITE, UPLOAD_WORK_SEAL, UPLOAD_WORK_REMOVE };

struct upload {
    struct upload *next;
    _Atomic uint32_t holders; /* the table, and running work */
    struct upload_facts facts;
    struct upload_file file;
    uint64_t offset;
    uint64_t claim; /* 0: no request sends */
    uint64_t claim_ns;
    int64_t touched_ms;
    enum upload_step step;
    enum upload_work work;      /* the last one */
    struct upload_job *writing; /* WORK_WRITE: one reference, the pool's */
    bool is_made;               /* its row is stored */
    bool is_taking_object;      /* the removal takes the object, which no version wanted */
    bool is_cut;                /* the actor failed during the step */
    uint32_t tag;               /* of the unit or edit that it waits for; 0: none */
    struct upload_job *job;     /* the request of the step; NULL: a sweep */
    struct upload_job *waiting; /* the last bytes of a client that left while the upload was busy */
};

struct uploads {
    struct tr_context *ctx; /* of the turn that runs */
    struct packs *packs;
    struct sql_client sql;
    struct upload *first;
    uint32_t count;
    uint32_t tag_next;
};

extern const struct tr_type uploads_type;
/* Called on the pool before an object is removed, for tests; may be NULL. */
extern void (*_Atomic upload_removal_hook)(void);

/* Create an upload with one reference. NULL: out of memory. */
struct upload *upload_create(
    struct objects *objects, const char *id, const struct upload_facts *facts);
void upload_unref(struct upload *upload);
void uploads_enlist(struct uploads *uploads, struct upload *upload); /* takes the reference */
struct upload *uploads_find(const struct uploads *uploads, const char *id);
/* Release everything that the struct owns. */
void uploads_fini(void *self);

/* upload_store.c: units; NULL: out of memory. */
struct sql_unit *upload_insert_unit(
    const char *id, const struct upload_facts *facts, int64_t now_ms);
struct sql_unit *upload_delete_unit(struct span id);
struct sql_unit *upload_select_unit(void);
/* Read a row of upload_select_unit. Returns false if this program cannot have written it. */
bool upload_read_row(const struct sql_unit *unit, uint32_t row, char ret_id[UPLOAD_ID_CHARS + 1],
    struct upload_facts *ret_facts);

#endif
