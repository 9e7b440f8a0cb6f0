/* SPDX-License-Identifier: Apache-2.0 */
/* users.h: rows that a user's devices keep in step: settings, memory states, sessions and their
 * items.
 *
 * One actor per user gives every change the next number of that user's sequence, and stores one push
 * at a time, with its numbers, in one unit. A device that asks for the rows after number n gets them
 * in the order of their numbers, and no later change gets a number below n. So a device misses
 * nothing, whatever the clocks say. The user's id is part of every row's key, so no request can name
 * another user's row.
 *
 * A restored database gives out numbers again that a device has passed. Therefore each run of the
 * server has an epoch, a random name, and the database stores at which number each epoch begins. A
 * cursor is valid if the database has given out its number in its epoch.
 *
 * Of two writes to one row the later one by the devices' own clocks stays. A write that changes
 * nothing is ignored. The write that lost against another device's is kept in the log of conflicts
 * for 90 days. A deletion leaves a tombstone, which devices pull like any change. */
#ifndef SERVICES_USERS_USERS_H
#define SERVICES_USERS_USERS_H

#include <stdatomic.h>

#include "auth/auth.h"
#include "ops/service.h"
#include "services/common/db_query.h"

enum {
    USER_ID_SIZE_MAX = 255,
    USER_ITEM_SIZE_MAX = 255, /* the name of a row */
    USER_BODY_SIZE_MAX = 16 << 10,
    USER_PUSH_ITEMS_MAX = 1000,
    USER_PUSH_BODY_MAX = 1 << 20,
    USER_PULL_ITEMS_MAX = 10000,
    USER_PULL_BYTES_MAX = 4 << 20,
    USER_ITEMS_MAX = 200000, /* rows of one user, tombstones included */
    USER_DEVICES_MAX = 64,
    USER_EPOCH_CHARS = 16, /* hex */
    USER_EPOCHS_MAX = 100, /* of one user; a device with a cursor of an older one starts again */
    USERS_MIGRATIONS = 2,
};
_Static_assert((int)USER_PUSH_ITEMS_MAX < (int)USER_ITEMS_MAX, "the first push is never too large");

/* A push is applied in this order, because an item needs its session. */
enum user_kind { USER_SETTING, USER_MEMORY_STATE, USER_SESSION, USER_SESSION_ITEM, USER_KINDS };
extern const char *const user_lists[USER_KINDS + 1]; /* "settings": the member of `changes` */
extern const char *const user_items[USER_KINDS];     /* "key": the member that names a row */

struct users {
    struct call_service calls;
    struct tr_system *system;
    struct tr_registry *actors; /* one per active user */
    _Atomic uint64_t epoch;     /* of this run; drawn again if the database goes back */
};

extern const struct sql_migration users_migrations[USERS_MIGRATIONS];
extern const struct service users_service; /* user_api.c */

int users_start(
    const struct service_context *context, char *why, size_t why_size, void **ret_state);
void users_stop(void *state);

#endif
