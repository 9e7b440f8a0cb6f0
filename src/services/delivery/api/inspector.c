/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/inspector.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/common/text.h"
#include "services/delivery/store/check.h"
#include "support/log.h"

/* The tag of a read of the checks. The tag of page i is i. */
enum { TAG_WALK = INSPECTOR_PAGES_MAX };

/* A request that waits. */
struct asker {
    struct inspection *inspection; /* NULL: the place is free */
    tr_reply_handle reply;
};

struct inspector {
    struct delivery *delivery;
    struct sql_client sql;
    struct asker pages[INSPECTOR_PAGES_MAX];
    struct asker walker;
    struct check_walk walk;
    uint64_t violations[DELIVERY_CHECKS];
    uint64_t found_count;
    struct json_writer writer; /* of the walker's answer */
};

struct inspection *inspection_create(void)
{
    struct inspection *inspection = base_calloc(sizeof *inspection);

    if (inspection != NULL)
        atomic_init(&inspection->holders, 1);
    return inspection;
}

void inspection_unref(struct inspection *inspection)
{
    if (inspection == NULL ||
        atomic_fetch_sub_explicit(&inspection->holders, 1, memory_order_acq_rel) != 1)
        return;
    buffer_free(&inspection->convo);
    buffer_free(&inspection->answer);
    base_free(inspection);
}

/* ---- requests that wait --------------------------------------------------------------------- */

static void asker_answer(struct asker *asker, int status)
{
    tr_assert(asker->inspection != NULL);
    if (status == 0)
        status = asker->inspection->answer.failed;
    tr_reply_send(&asker->reply, status, NULL, 0);
    inspection_unref(asker->inspection);
    asker->inspection = NULL;
}

static void asker_drop(struct asker *asker)
{
    if (asker->inspection == NULL)
        return;
    tr_reply_drop(&asker->reply);
    inspection_unref(asker->inspection);
    asker->inspection = NULL;
}

static int inspector_read(
    struct inspector *inspector, struct tr_context *ctx, struct sql_unit *unit, uint32_t tag)
{
    int rc = unit == NULL
                 ? TR_ENOMEM
                 : sql_read(ctx, &inspector->sql, unit, &(struct sql_submit_options){ .tag = tag });

    if (rc < 0)
        sql_unit_destroy(unit);
    return rc;
}

/* ---- the audit log -------------------------------------------------------------------------- */

static struct sql_unit *page_unit(const struct inspection *inspection)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit == NULL)
        return NULL;
    sql_unit_step(unit, inspection->convo.size == 0 ? &audit_list : &audit_list_of, SQL_ROWS_ANY);
    sql_unit_int(unit, inspection->before_ms);
    sql_unit_text(unit, (struct span){ inspection->before_id, sizeof inspection->before_id });
    sql_unit_int(unit, (int64_t)inspection->limit + 1); /* one more, to know that there is more */
    if (inspection->convo.size > 0)
        sql_unit_text(unit, (struct span){ inspection->convo.bytes, inspection->convo.size });
    return unit;
}

static void put_entry(struct json_writer *writer, const struct sql_unit *unit, uint32_t row)
{
    static const char *const names[] = { "id", "actor", "action", "convoId", "target" };

    json_put_object(writer, NULL);
    for (uint32_t column = 0; column < 5; column++)
        if (!sql_row_is_null(unit, 0, row, column))
            json_put_string(writer, names[column], sql_row_bytes(unit, 0, row, column));
    text_put_time(writer, "createdAt", sql_row_int(unit, 0, row, 5));
    json_put_end(writer);
}

static void inspector_page_read(struct asker *asker, const struct sql_unit *unit)
{
    struct json_writer writer = json_writer(&asker->inspection->answer);
    uint32_t count = sql_unit_rows(unit, 0);
    bool has_more = count > asker->inspection->limit;
    char cursor[32 + AUDIT_ID_SIZE];

    if (has_more)
        count = asker->inspection->limit;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "entries");
    for (uint32_t i = 0; i < count; i++)
        put_entry(&writer, unit, i);
    json_put_end(&writer);
    if (has_more) {
        struct span id = sql_row_bytes(unit, 0, count - 1, 0);

        (void)snprintf(cursor, sizeof cursor, "%lld-%.*s",
            (long long)sql_row_int(unit, 0, count - 1, 5), (int)id.size, id.at);
        json_put_text(&writer, "cursor", cursor);
    }
    json_put_end(&writer);
    asker_answer(asker, 0);
}

/* ---- the checks ----------------------------------------------------------------------------- */

static void on_violation(void *data, const char *check, struct span convo, const char *text)
{
    struct inspector *inspector = data;

    inspector->violations[inspector->walk.check]++;
    if (inspector->found_count++ >= INSPECTOR_FOUND_MAX)
        return;
    json_put_object(&inspector->writer, NULL);
    json_put_text(&inspector->writer, "check", check);
    json_put_string(&inspector->writer, "convoId", convo);
    json_put_text(&inspector->writer, "text", text);
    json_put_end(&inspector->writer);
}

static void end_walk(struct inspector *inspector, int status)
{
    struct json_writer *writer = &inspector->writer;

    json_put_end(writer);
    json_put_array(writer, "checks");
    for (int i = 0; i < DELIVERY_CHECKS; i++) {
        json_put_object(writer, NULL);
        json_put_text(writer, "name", delivery_check_name(i));
        json_put_int(writer, "violations", (int64_t)inspector->violations[i]);
        json_put_end(writer);
    }
    json_put_end(writer);
    json_put_int(writer, "violations", (int64_t)inspector->found_count);
    json_put_end(writer);
    check_walk_end(&inspector->walk);
    if (status == 0 && inspector->found_count > 0)
        LOG(LOG_ERROR, "delivery", "The checks found violations.",
            LOG_INT("violations", (int64_t)inspector->found_count));
    asker_answer(&inspector->walker, status);
}

static void walk_on(struct inspector *inspector, struct tr_context *ctx)
{
    struct sql_unit *unit;
    int rc;

    if (tr_reply_is_cancelled(inspector->walker.reply)) {
        end_walk(inspector, TR_ECANCELLED); /* the request is gone */
        return;
    }
    rc = check_walk_next(&inspector->walk, &unit);
    if (rc == 0 && unit == NULL) {
        end_walk(inspector, 0);
        return;
    }
    if (rc == 0)
        rc = inspector_read(inspector, ctx, unit, TAG_WALK);
    if (rc < 0)
        end_walk(inspector, rc);
}

static void begin_walk(struct inspector *inspector, struct tr_context *ctx)
{
    inspector->walk = (struct check_walk){ .on_violation = on_violation, .data = inspector };
    memset(inspector->violations, 0, sizeof inspector->violations);
    inspector->found_count = 0;
    inspector->writer = json_writer(&inspector->walker.inspection->answer);
    json_put_object(&inspector->writer, NULL);
    json_put_array(&inspector->writer, "found");
    walk_on(inspector, ctx);
}

/* ---- the actor ------------------------------------------------------------------------------ */

static int inspector_init(void *self, struct tr_context *ctx)
{
    struct inspector *inspector = self;

    (void)ctx;
    sql_client_init(&inspector->sql, inspector->delivery->sql);
    return 0;
}

static struct asker *free_place(struct inspector *inspector, bool is_audit)
{
    if (!is_audit)
        return inspector->walker.inspection == NULL ? &inspector->walker : NULL;
    for (uint32_t i = 0; i < INSPECTOR_PAGES_MAX; i++)
        if (inspector->pages[i].inspection == NULL)
            return &inspector->pages[i];
    return NULL;
}

static enum tr_next inspector_handle(void *self, struct tr_context *ctx, void *memory)
{
    struct inspection *inspection = ((struct inspector_message *)memory)->inspection;
    struct inspector *inspector = self;
    struct asker *asker = free_place(inspector, inspection->is_audit);
    int rc;

    if (asker == NULL) {
        tr_reply(ctx, TR_EBUSY, NULL, 0);
        inspection_unref(inspection);
        return TR_GO;
    }
    tr_assert(!inspection->is_audit || inspection->limit <= INSPECTOR_PAGE_MAX);
    asker->inspection = inspection;
    asker->reply = tr_reply_take(ctx);
    if (!inspection->is_audit) {
        begin_walk(inspector, ctx);
        return TR_GO;
    }
    rc =
        inspector_read(inspector, ctx, page_unit(inspection), (uint32_t)(asker - inspector->pages));
    if (rc < 0)
        asker_answer(asker, rc);
    return TR_GO;
}

static enum tr_next inspector_event(
    void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct inspector *inspector = self;
    struct sql_unit *unit;
    int status;

    unit = event->kind == TR_EVENT_REPLY ? sql_take(&inspector->sql, event) : NULL;
    if (unit == NULL)
        return TR_GO;
    tr_assert(event->tag <= TAG_WALK);
    status = sql_unit_status(unit);
    if (event->tag == TAG_WALK && status == 0) {
        check_walk_take(&inspector->walk, unit);
        walk_on(inspector, ctx);
        return TR_GO;
    }
    if (event->tag == TAG_WALK)
        end_walk(inspector, status);
    else if (status == 0)
        inspector_page_read(&inspector->pages[event->tag], unit);
    else
        asker_answer(&inspector->pages[event->tag], status);
    sql_unit_destroy(unit);
    return TR_GO;
}

static void inspector_finish(void *self)
{
    struct inspector *inspector = self;

    for (uint32_t i = 0; i < INSPECTOR_PAGES_MAX; i++)
        asker_drop(&inspector->pages[i]);
    asker_drop(&inspector->walker);
    check_walk_end(&inspector->walk);
    if (inspector->sql.sql != NULL)
        sql_client_fini(&inspector->sql);
}

static int inspector_reset(void *self, enum tr_why why)
{
    struct inspector *inspector = self;

    (void)why;
    inspector_finish(inspector);
    *inspector = (struct inspector){ .delivery = inspector->delivery };
    return 0;
}

static void message_drop(void *memory)
{
    inspection_unref(((struct inspector_message *)memory)->inspection);
}

const struct tr_type inspector_type = {
    .name = "delivery_inspector",
    .message_size = sizeof(struct inspector_message),
    .state_size = sizeof(struct inspector),
    .start = inspector_init,
    .handle = inspector_handle,
    .event = inspector_event,
    .finish = inspector_finish,
    .reset = inspector_reset,
    .message_drop = message_drop,
};

int inspector_start(struct delivery *delivery, tr_sender *ret_inspector)
{
    return tr_spawn(delivery->system, &inspector_type, &(struct inspector){ .delivery = delivery },
        &(struct tr_spawn_options){ .name = "delivery inspector",
            .owner = "delivery",
            .supervisor = delivery->supervisor,
            .box = { .capacity = 16, .full = TR_FULL_FAIL } },
        ret_inspector);
}
