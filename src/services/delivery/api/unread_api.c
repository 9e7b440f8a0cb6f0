/* SPDX-License-Identifier: Apache-2.0 */
/* unread_api.c: read cursors and unread counts. Messages of others behind an account's cursor are
 * unread. A conversation that the account unread_marked counts one while there are none. Marking twice is
 * fine; a cursor at the newest message clears the mark. */
#include "services/common/db_query.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/store/log_store.h"

static void cursor_answered(struct http_request *request, const struct tr_event *event)
{
    if (api_act(request, event) == NULL)
        return;
    http_respond(request, 200, "application/json", SPAN("{\"success\":true}"));
    api_end(request);
}

void api_update_cursor(struct http_request *request)
{
    struct api_body body;

    if (!api_begin_convo(request, &read_to_act_type, &body))
        return;
    act_cursor(body.act)->seq = (uint64_t)json_need_int(&body.expect, "seq", 0, INT64_MAX);
    api_send(request, &body, cursor_answered);
}

/* ---- mark ----------------------------------------------------------------------------------- */

static void one_counted(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_result(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    if (sql_unit_rows(unit, 0) == 0) { /* removed meanwhile */
        db_query_release(request);
        http_respond_error(request, 403, "NotMember", "You are not a member of this conversation.");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_int(&writer, "unreadCount", sql_row_int(unit, 0, 0, 0));
    json_put_end(&writer);
    db_query_release(request);
    call_respond(request, &answer);
}

/* The mark is stored; the database counts the unread messages. */
static void unread_marked(struct http_request *request, const struct tr_event *event)
{
    const struct act *act = api_act(request, event);
    struct sql_unit *unit;

    if (act == NULL)
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, &log_count_unread_in, SQL_ROWS_ANY);
        sql_unit_text(unit, act->convo);
        sql_unit_text(unit, act->claims->issuer);
    }
    api_end(request);
    db_query_start(request, http_service(request), unit, true, one_counted);
}

void api_mark_unread(struct http_request *request)
{
    struct api_body body;

    if (api_begin_convo(request, &mark_unread_act_type, &body))
        api_send(request, &body, unread_marked);
}

/* ---- count ---------------------------------------------------------------------------------- */

static void put_total(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    int64_t total = 0;

    for (uint32_t row = 0; row < call_rows(run, 0); row++)
        total += sql_row_int(run->unit, call_step(run, 0), row, 1);
    json_put_int(writer, field->name, total);
}

const struct call call_get_unread = {
    .steps = CALL_STEPS({ STEP(log_count_unread, SQL_ROWS_ANY, ARG_CALLER) }),
    .fields = FIELDS({ "conversations", FIELD_MAP, MAP_ROWS(0) },
        { "total", FIELD_PUT, .put = put_total,
            .fields = FIELDS({ "total", FIELD_INT, .at = 0 }) }),
    .is_large = true,
};
