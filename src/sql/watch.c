/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c: stop waiting for a database that hangs. An actor with one timer holds the sql, so that
 * the timer may fire after sql_close. The runners notice by their lost connections, or by the flag
 * that they check before they start work. */
#include "base/assert.h"
#include "sql/runner.h"
#include "support/log.h"

enum { TAG_GIVE_UP = 1 };

struct watch {
    struct sql *sql; /* held */
    uint64_t delay_ns;
};

static int watch_start(void *self, struct tr_context *ctx)
{
    return tr_after(ctx, ((struct watch *)self)->delay_ns, TAG_GIVE_UP, NULL);
}

static enum tr_next watch_handle(void *self, struct tr_context *ctx, void *message)
{
    (void)self;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next watch_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct sql *sql = ((struct watch *)self)->sql;

    (void)ctx;
    if (event->tag != TAG_GIVE_UP)
        return TR_GO;
    LOG(LOG_WARN, "sql", "the server no longer waits for the database",
        LOG_TEXT("backend", sql->backend->name));
    /* Set the flag first: a runner that loses its connection now must not connect again. Pairs with
     * the loads in runner.c. */
    atomic_store_explicit(&sql->is_given_up, true, memory_order_seq_cst);
    sql->backend->give_up(sql->database);
    return TR_GO;
}

static void watch_finish(void *self)
{
    sql_unref(((struct watch *)self)->sql);
}

static const struct tr_type watch_type = {
    .name = "sql-watch",
    .message_size = 1,
    .state_size = sizeof(struct watch),
    .start = watch_start,
    .handle = watch_handle,
    .event = watch_event,
    .finish = watch_finish,
};

int sql_give_up_after(struct sql *sql, uint64_t delay_ns)
{
    struct watch watch = { .sql = sql, .delay_ns = delay_ns };
    int rc;

    if (sql == NULL || sql->backend->give_up == NULL || sql->watch.box != NULL)
        return 0;
    atomic_fetch_add_explicit(&sql->holders, 1, memory_order_relaxed);
    rc = tr_spawn(sql->system, &watch_type, &watch,
        &(struct tr_spawn_options){ .name = "sql-watch", .owner = "sql" }, &sql->watch);
    if (rc < 0)
        sql_unref(sql);
    return rc;
}
