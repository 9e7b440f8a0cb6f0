/* SPDX-License-Identifier: Apache-2.0 */
/* silent.h: a database that stores what it is told to, and does not say so. */
#ifndef TEST_LIB_SILENT_H
#define TEST_LIB_SILENT_H

#include <stdatomic.h>

#include "sql/backend.h"
#include "sql/unit.h"

static _Atomic bool silent; /* from now on */
static const struct sql_backend *silent_real;

static int silent_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    int rc = silent_real->commit(connection, units, count);

    for (size_t i = 0; rc == 0 && atomic_load(&silent) && i < count; i++)
        if (units[i]->status == 0) {
            sql_unit_reset_results(units[i]);
            sql_unit_fail(units[i], -1, SQL_EUNKNOWN, "it does not say");
        }
    return rc;
}

static inline const struct sql_backend *silent_backend(const struct sql_backend *real)
{
    static struct sql_backend backend;

    silent_real = real;
    backend = *real;
    backend.commit = silent_commit;
    return &backend;
}

#endif
