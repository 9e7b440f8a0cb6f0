/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: do the catalogue and the files say the same? Reads only. On a server that runs, what is
 * being uploaded at that moment may be told as something that belongs to nobody: look again. */
#ifndef SERVICES_PACKS_CHECK_H
#define SERVICES_PACKS_CHECK_H

#include "sql/sql.h"

/* Told of every violation: which check, what it is about (a pack, a version, a file), and a
 * sentence. */
typedef void (*packs_check_fn)(
    void *data, const char *check, struct span subject, const char *text);

/* Blocks, and reads every byte of every object; from no worker. The checks:
 *   active     a published pack has one active version, any other has none; it is the newest of
 *              the pack's history and not disabled
 *   rows       every version and variant has its object
 *   content    of the size and with the digest that the row says
 *   objects    every object is some version's, variant's or upload's
 *   incoming   every file there is some upload's, and every upload has its file
 *   releases   a published release is pinned, to what its versions are
 * 0, with *ret_violations; or an error of the database or the disk. `on_violation` may be NULL. */
int packs_check(struct sql *sql, const char *data_path, packs_check_fn on_violation, void *data,
    uint64_t *ret_violations);

#endif
