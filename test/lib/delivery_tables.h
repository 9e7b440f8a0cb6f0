/* SPDX-License-Identifier: Apache-2.0 */
/* delivery_tables.h: the migrations of auth and delivery alone. They are numbered over all
 * services; here the others are left out, and those behind them move up. */
#ifndef TEST_LIB_DELIVERY_TABLES_H
#define TEST_LIB_DELIVERY_TABLES_H

#include <stdlib.h>

#include "auth/auth.h"
#include "check.h"
#include "services/delivery/delivery.h"

/* The caller's to free(). */
static inline struct sql_migration *delivery_tables(size_t *ret_count)
{
    size_t count = auth_migration_count + delivery_service.migration_count;
    struct sql_migration *tables = calloc(count, sizeof *tables);

    CHECK(tables != NULL);
    for (size_t i = 0; i < count; i++) {
        tables[i] = i < auth_migration_count
                        ? auth_migrations[i]
                        : delivery_service.migrations[i - auth_migration_count];
        tables[i].version = (uint32_t)i + 1;
    }
    *ret_count = count;
    return tables;
}

#endif
