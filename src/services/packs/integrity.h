/* SPDX-License-Identifier: Apache-2.0 */
/* integrity.h: which files were verified. One actor owns the cache and is the only one that changes
 * it, by four messages:
 *
 *   Query       ask: is this file what it should be? N askers of one file cost one hash
 *   Insert      what a hash came to, with the ticket it was made for
 *   Invalidate  forget what is known of a version, and what is being found out about it
 *   Clear       forget everything
 *
 * An Insert whose ticket is not the one its entry waits for is from before an Invalidate, a Clear
 * or a crash, and is ignored. What is verified is published: a warm check is a look into a snapshot
 * and one fstat of the pinned descriptor, without a message. */
#ifndef SERVICES_PACKS_INTEGRITY_H
#define SERVICES_PACKS_INTEGRITY_H

#include <stdbool.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "services/packs/hasher.h"

struct integrity;

/* What a version may be sent as. */
enum pack_coding { PACK_IDENTITY, PACK_ZSTD, PACK_GZIP, PACK_CODINGS };
/* Of a file: of which version, in which coding. */
static inline int64_t integrity_key(int64_t version_id, enum pack_coding coding)
{
    return version_id * 4 + (int64_t)coding;
}

struct integrity_options {
    struct hash_source source;
    uint32_t hashes_max;  /* at once; 0 is 2 */
    uint32_t pinned_max;  /* files that stay open; 0 is 1024 */
    uint32_t waiters_max; /* of one file; 0 is 16,000. Over it: PACK_BUSY */
    /* Told of every hash that begins, in the cache's turn; NULL: nobody is. */
    void (*on_hash)(void *data, int64_t key, tr_weak hasher);
    void *on_hash_data;
    tr_sender supervisor; /* restarts the cache when it fails; borrowed; none: it ends */
};
int integrity_start(struct tr_system *system, const struct integrity_options *options,
    struct integrity **ret_integrity);
/* After the last request. Blocks. */
void integrity_stop(struct integrity **integrity);

/* Warm: this file was verified and has not changed since. In a handler; a reference, or NULL. */
struct pinned_file *integrity_warm(
    const struct integrity *integrity, int64_t key, const uint8_t sha256[32]);
/* The same without the look at the file, and without a reference. */
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
/* The message that asks for this file; the value of its answer is an enum pack_verdict. After
 * PACK_VERIFIED look again with integrity_warm. */
struct integrity_message integrity_query(int64_t key, const uint8_t sha256[32], uint64_t size);
/* From anywhere. Not lost while the actor lives. */
int integrity_invalidate(const struct integrity *integrity, int64_t version_id);
int integrity_clear(const struct integrity *integrity);

#endif
