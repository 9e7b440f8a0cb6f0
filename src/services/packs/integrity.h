/* SPDX-License-Identifier: Apache-2.0 */
/* integrity.h: the cache of verified files. One actor owns it, and changes it by four messages:
 *
 *   Query       ask whether a file is verified; N askers of one file cost one hash
 *   Insert      the verdict of a hash, with the ticket of that hash
 *   Invalidate  forget the verdict of a version, and ignore a hash of it that runs
 *   Clear       the same for every version
 *
 * An Insert whose ticket is not the one its entry waits for is older than an Invalidate, a Clear or a
 * restart, and is ignored. The verified files are published: a warm check is a lookup in a snapshot
 * and one fstat of the open descriptor, without a message.
 *
 * tr_single_flight and tr_cache do not fit here. Their values are bytes without a destructor, which
 * cannot own an open descriptor, and a computation is not cancelled when its last asker leaves. */
#ifndef SERVICES_PACKS_INTEGRITY_H
#define SERVICES_PACKS_INTEGRITY_H

#include <stdbool.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "services/packs/hasher.h"

struct integrity;

/* The forms in which a version can be sent. */
enum pack_coding { PACK_IDENTITY, PACK_ZSTD, PACK_GZIP, PACK_CODINGS };
/* The key of a file: its version and its coding. */
static inline int64_t integrity_key(int64_t version_id, enum pack_coding coding)
{
    return version_id * 4 + (int64_t)coding;
}

struct integrity_options {
    struct hash_source source;
    uint32_t hashes_max;  /* at the same time; 0 is 2 */
    uint32_t pinned_max;  /* files kept open; 0 is 1024 */
    uint32_t waiters_max; /* of one file; 0 is 16,000. One more gets PACK_BUSY */
    /* Called in the cache's turn for every hash that starts. May be NULL. */
    void (*on_hash)(void *data, int64_t key, tr_weak hasher);
    void *on_hash_data;
    tr_sender supervisor; /* restarts the cache when it fails; borrowed; none: it ends */
};
int integrity_start(struct tr_system *system, const struct integrity_options *options,
    struct integrity **ret_integrity);
/* Stop after the last request. Blocks. */
void integrity_stop(struct integrity **integrity);

/* Return a reference to a file that is verified and unchanged, or NULL. For a handler. */
struct pinned_file *integrity_warm(
    const struct integrity *integrity, int64_t key, const uint8_t sha256[32]);
/* Look up a verified file without checking that it is unchanged, and without a reference. */
const struct pinned_file *integrity_find(
    const struct integrity *integrity, int64_t key, const uint8_t sha256[32]);

/* ---- messages ------------------------------------------------------------------------------- */

struct integrity_message {
    enum { INTEGRITY_QUERY, INTEGRITY_INSERT, INTEGRITY_INVALIDATE, INTEGRITY_CLEAR } kind;
    enum pack_verdict verdict; /* Insert */
    int64_t key;               /* Invalidate: the version's id */
    union {
        struct {
            uint64_t size;
            uint8_t sha256[32];
        } query;
        struct hash_job *job; /* Insert; a reference */
    } u;
};
tr_sender integrity_sender(const struct integrity *integrity); /* borrowed */
/* Build the Query for a file. The value of its answer is an enum pack_verdict; after PACK_VERIFIED,
 * integrity_warm returns the file. */
struct integrity_message integrity_query(int64_t key, const uint8_t sha256[32], uint64_t size);
/* Any thread. The message is not lost while the actor lives. */
int integrity_invalidate(const struct integrity *integrity, int64_t version_id);
int integrity_clear(const struct integrity *integrity);

#endif
