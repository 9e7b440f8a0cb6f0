/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: compare the catalogue with the files, reading only. On a running server the check may
 * report an upload of that moment as a file that belongs to no row: run it again. */
#ifndef SERVICES_PACKS_CHECK_H
#define SERVICES_PACKS_CHECK_H

#include "sql/sql.h"

/* Called for every violation, and after them for every note: the name of the check, the pack, version
 * or file, and a sentence. A note is a finding that does no harm. */
#define PACKS_CHECK_NOTE "note"
typedef void (*packs_check_fn)(
    void *data, const char *check, struct span subject, const char *text);

/* Run the checks. Blocks, and reads every byte of every object; no worker calls it. The checks:
 *   active     a published pack has one active version, any other has none; it is the newest of
 *              the pack's history and not disabled
 *   rows       every version and variant has its object
 *   content    the object has the size and the digest of its row
 *   releases   a published release is pinned to the digests of its versions
 *   note       every object belongs to a version, a variant or an upload; every file of incoming
 *              belongs to an upload, and every upload has its file
 * Returns 0 and *ret_violations, without the notes, or an error of the database or the disk. `on_violation` may be
 * NULL. */
int packs_check(struct sql *sql, const char *data_path, packs_check_fn on_violation, void *data,
    uint64_t *ret_violations);

#endif
