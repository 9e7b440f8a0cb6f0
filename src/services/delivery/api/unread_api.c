/* SPDX-License-Identifier: Apache-2.0 */
/* unread_api.c: what an account has read, and what it has not. Unread are the messages of others
 * behind its cursor; a conversation that it marked has one while there are none. So a mark is there
 * or not, and can be set twice; the cursor that comes to the newest takes it away. */
#include "services/delivery/api/api_query.h"

#define UNREAD                                                                                     \
    "COALESCE(NULLIF((SELECT COUNT(*) FROM log l WHERE l.convo = m.convo AND l.seq > m.read_seq"   \
    " AND l.kind = 1 AND l.sender <> m.did), 0), m.unread_extra)"
SQL_STATEMENT(count_all, "SELECT m.convo, " UNREAD " FROM members m WHERE m.did = $1"
                         " AND m.leave_seq IS NULL ORDER BY m.convo");
SQL_STATEMENT(count_one, "SELECT " UNREAD " FROM members m WHERE m.convo = $1 AND m.did = $2"
                         " AND m.leave_seq IS NULL");

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
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    if (sql_unit_rows(unit, 0) == 0) { /* removed meanwhile */
        db_query_end(request);
        http_respond_error(request, 403, "NotMember", "you are not a member of this conversation");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_int(&writer, "unreadCount", sql_row_int(unit, 0, 0, 0));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

/* The mark is stored: how many that are is the database's to say. */
static void marked(struct http_request *request, const struct tr_event *event)
{
    const struct act *act = api_act(request, event);
    struct sql_unit *unit;

    if (act == NULL)
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, &count_one, SQL_ROWS_ANY);
        sql_unit_text(unit, act->convo);
        sql_unit_text(unit, act->claims->issuer);
    }
    api_end(request);
    db_query_run(request, http_service(request), unit, true, one_counted);
}

void api_mark_unread(struct http_request *request)
{
    struct api_body body;

    if (api_begin_convo(request, &mark_unread_act_type, &body))
        api_send(request, &body, marked);
}

/* ---- count ---------------------------------------------------------------------------------- */

static void all_counted(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    int64_t total = 0;

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_object(&writer, "conversations");
    for (uint32_t i = 0; i < sql_unit_rows(unit, 0); i++) {
        json_put_key(&writer, sql_row_bytes(unit, 0, i, 0));
        json_put_int(&writer, NULL, sql_row_int(unit, 0, i, 1));
        total += sql_row_int(unit, 0, i, 1);
    }
    json_put_end(&writer);
    json_put_int(&writer, "total", total);
    json_put_end(&writer);
    db_query_end(request);
    if (delivery_may_answer(http_service(request), answer.size)) {
        api_query_respond(request, &answer);
        return;
    }
    buffer_free(&answer);
    http_respond_shed(request, 503, 1, "answers");
}

void api_get_unread(struct http_request *request)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL) {
        sql_unit_step(unit, &count_all, SQL_ROWS_ANY);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
    }
    db_query_run(request, http_service(request), unit, true, all_counted);
}
