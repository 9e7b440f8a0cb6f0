/* SPDX-License-Identifier: Apache-2.0 */
/* users.h: what people's devices keep in step: settings, memory states, sessions and their items. A
 * service of its own beside packs, for the same apps.
 *
 * One actor per user gives every change the next number of that user's sequence, and stores one
 * push at a time, with its numbers, in one unit. A device that asks for what came after number n
 * gets rows in the order of their numbers, and a number below n is never given out again: nothing
 * is missed, whatever the clocks say. A row belongs to its user by its key, so nobody can name
 * another's.
 *
 * A database that was restored gives out numbers again that a device has passed. So the numbers of
 * every run of the server have an epoch, a random name, and the database knows where each begins; a
 * number is good with its epoch if the database has given it out in that epoch.
 *
 * Of two writes to one row the later by the devices' own clocks stays; a write that changes nothing
 * is none; what lost against another device's write is kept in the log of conflicts for 90 days.
 * Deleting leaves a tombstone, which is pulled like any change. */
#ifndef SERVICES_USERS_USERS_H
#define SERVICES_USERS_USERS_H

#include <stdatomic.h>

#include "auth/auth.h"
#include "ops/service.h"

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
    USER_EPOCHS_MAX = 100, /* of one user; who has a number of an older one begins again */
    USERS_MIGRATIONS = 2,
};

/* In the order in which a push is applied: an item needs its session. */
enum user_kind { USER_SETTING, USER_MEMORY_STATE, USER_SESSION, USER_SESSION_ITEM, USER_KINDS };
struct user_kind_names {
    const char *list; /* "settings": the member of `changes` */
    const char *item; /* "key": the member that names a row */
};
extern const struct user_kind_names user_kind_names[USER_KINDS];

struct users {
    struct tr_system *system;
    const struct tr_env *env;
    struct sql *sql;
    struct tr_registry *actors; /* one per user who is around */
    _Atomic uint64_t epoch;     /* of this run; another one when the database is seen to go back */
};

extern const struct sql_migration users_migrations[USERS_MIGRATIONS];
extern const struct service users_service; /* user_api.c */

int users_start(
    const struct service_context *context, char *why, size_t why_size, void **ret_state);
void users_stop(void *state);

static inline int64_t users_now_ms(const struct users *users)
{
    return (int64_t)(users->env->wall_ns(users->env->data) / 1000000);
}

#endif
