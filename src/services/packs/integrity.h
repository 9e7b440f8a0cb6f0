/* SPDX-License-Identifier: Apache-2.0 */
/* integrity.h: the cache of verified files. Two actors:
 *
 *   a tr_single_flight  is asked whether a file is verified; N askers of one file cost one hash
 *   the cache           hashes for the flight, and owns what is verified
 *
 * The verified files are published: a warm check is a lookup in a snapshot and one fstat of the open
 * descriptor, without a message. The answers of the flight are verdicts and not files: an answer is
 * bytes, which cannot own an open descriptor. */
#ifndef SERVICES_PACKS_INTEGRITY_H
#define SERVICES_PACKS_INTEGRITY_H

#include <stdbool.h>
#include <stdint.h>

#include <troupe/troupe.h>

#include "services/packs/hasher.h"

struct integrity;

_Static_assert(PACK_CODINGS <= 4, "a key has two bits for the coding");
/* The key of a file: its version and its coding. */
static inline int64_t integrity_key(int64_t version_id, enum pack_coding coding)
{
    return version_id * 4 + (int64_t)coding;
}
static inline int64_t integrity_version(int64_t key)
{
    return key / 4;
}

struct integrity_options {
    struct hash_source source;
    uint32_t hashes_max;  /* at the same time; 0 is 2 */
    uint32_t pinned_max;  /* files kept open; 0 is 1024 */
    uint32_t waiters_max; /* of all files; 0 is 16,000. One more gets TR_EFULL */
    tr_sender supervisor; /* restarts the actors when they fail; borrowed; none: they end */
};
int integrity_start(struct tr_system *system, const struct integrity_options *options,
    struct integrity **ret_integrity);
/* Stop after the last request. Blocks. */
void integrity_stop(struct integrity **integrity);

/* Return a reference to a file that is verified and unchanged, or NULL. For a handler. */
struct pinned_file *integrity_warm(const struct integrity *integrity, const struct hash_file *file);
/* Look up a verified file without checking that it is unchanged, and without a reference. */
struct pinned_file *integrity_find(const struct integrity *integrity, const struct hash_file *file);
/* Ask this flight with a struct hash_file as the key. The value of its answer is an enum
 * pack_verdict; after PACK_VERIFIED, integrity_warm returns the file. A negative status is no
 * verdict: retry. Borrowed. */
tr_single_flight_sender integrity_flight(const struct integrity *integrity);

/* Forget the verdict of a version, and ignore the hashes of it that run: askers that wait
 * get a hash that starts after this. Any thread. The message is not lost while the actor lives. */
int integrity_invalidate(const struct integrity *integrity, int64_t version_id);

/* The messages of the cache. Invalidate and Clear may also be asked: the answer comes when it is
 * done. */
struct integrity_message {
    enum { INTEGRITY_VERIFY, INTEGRITY_CANCEL, INTEGRITY_INVALIDATE, INTEGRITY_CLEAR } kind;
    struct hash_file file; /* Invalidate: the key is the version's id */
};
tr_sender integrity_sender(const struct integrity *integrity); /* borrowed */

#endif
