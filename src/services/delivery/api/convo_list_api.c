/* SPDX-License-Identifier: Apache-2.0 */
/* convo_list_api.c: getConvos: the conversations a caller is in, each as getConvo shows it, but for
 * members beyond the first MEMBERS_MAX: memberCount says how many there are. */
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/text.h"

enum { MEMBERS_MAX = 100 };

SQL_STATEMENT(list_convos,
    "SELECT c.id, c.creator, c.epoch, c.suite, c.created_ms, c.active_ms, c.name, c.description,"
    " COALESCE(c.group_name, c.id)"
    " FROM members m JOIN convos c ON c.id = m.convo"
    " WHERE m.did = $1 AND m.leave_seq IS NULL AND c.id > $2 ORDER BY c.id LIMIT $3");
/* Of the same conversations, in the same order: the caller, then who has been in for longest. */
SQL_STATEMENT(list_members,
    "SELECT convo, did, joined_ms, is_admin, is_moderator, total FROM (SELECT m.convo, m.did,"
    " m.joined_ms, m.is_admin, m.is_moderator, COUNT(*) OVER (PARTITION BY m.convo) AS total,"
    " ROW_NUMBER() OVER (PARTITION BY m.convo ORDER BY CASE WHEN m.did = $1 THEN 0 ELSE 1 END,"
    " m.join_seq, m.did) AS place FROM members m WHERE m.leave_seq IS NULL AND m.convo IN (SELECT"
    " s.convo FROM members s WHERE s.did = $1 AND s.leave_seq IS NULL AND s.convo > $2"
    " ORDER BY s.convo LIMIT $3)) AS ranked WHERE place <= $4 ORDER BY convo, place");
enum { STEP_CONVOS, STEP_MEMBERS };

static void put_member(struct json_writer *writer, const struct sql_unit *unit, uint32_t row)
{
    json_put_object(writer, NULL);
    json_put_string(writer, "did", sql_row_bytes(unit, STEP_MEMBERS, row, 1));
    json_put_string(writer, "userDid", sql_row_bytes(unit, STEP_MEMBERS, row, 1));
    delivery_put_time(writer, "joinedAt", sql_row_int(unit, STEP_MEMBERS, row, 2));
    json_put_bool(writer, "isAdmin", sql_row_int(unit, STEP_MEMBERS, row, 3) != 0);
    json_put_bool(writer, "isModerator", sql_row_int(unit, STEP_MEMBERS, row, 4) != 0);
    json_put_end(writer);
}

/* From row *member on; moves it behind the last of this conversation. */
static void put_members(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t row, uint32_t *member)
{
    struct span id = sql_row_bytes(unit, STEP_CONVOS, row, 0);
    int64_t total = 0;

    json_put_array(writer, "members");
    while (*member < sql_unit_rows(unit, STEP_MEMBERS) &&
           span_equal(sql_row_bytes(unit, STEP_MEMBERS, *member, 0), id)) {
        total = sql_row_int(unit, STEP_MEMBERS, *member, 5);
        put_member(writer, unit, (*member)++);
    }
    json_put_end(writer);
    json_put_int(writer, "memberCount", total);
}

static void put_convo(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t row, uint32_t *member)
{
    json_put_object(writer, NULL);
    json_put_string(writer, "id", sql_row_bytes(unit, STEP_CONVOS, row, 0));
    json_put_string(writer, "groupId", sql_row_bytes(unit, STEP_CONVOS, row, 8));
    json_put_string(writer, "creator", sql_row_bytes(unit, STEP_CONVOS, row, 1));
    put_members(writer, unit, row, member);
    json_put_int(writer, "epoch", sql_row_int(unit, STEP_CONVOS, row, 2));
    json_put_string(writer, "cipherSuite", sql_row_bytes(unit, STEP_CONVOS, row, 3));
    delivery_put_time(writer, "createdAt", sql_row_int(unit, STEP_CONVOS, row, 4));
    delivery_put_time(writer, "lastMessageAt", sql_row_int(unit, STEP_CONVOS, row, 5));
    json_put_object(writer, "metadata");
    if (!sql_row_is_null(unit, STEP_CONVOS, row, 6))
        json_put_string(writer, "name", sql_row_bytes(unit, STEP_CONVOS, row, 6));
    if (!sql_row_is_null(unit, STEP_CONVOS, row, 7))
        json_put_string(writer, "description", sql_row_bytes(unit, STEP_CONVOS, row, 7));
    json_put_end(writer);
    json_put_end(writer);
}

static void convos_listed(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    uint32_t count, member = 0;

    if (unit == NULL)
        return;
    count = sql_unit_rows(unit, STEP_CONVOS);
    json_put_object(&writer, NULL);
    json_put_array(&writer, "conversations");
    for (uint32_t row = 0; row < count; row++)
        put_convo(&writer, unit, row, &member);
    json_put_end(&writer);
    if (count > 0)
        json_put_string(&writer, "cursor", sql_row_bytes(unit, STEP_CONVOS, count - 1, 0));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

static void add_step(struct sql_unit *unit, const struct sql_statement *statement, struct span did,
    struct span cursor, uint64_t limit)
{
    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    sql_unit_text(unit, did);
    sql_unit_text(unit, cursor);
    sql_unit_int(unit, (int64_t)limit);
}

void api_get_convos(struct http_request *request)
{
    struct span cursor = SPAN(""), did = auth_claims_of(request)->issuer;
    uint64_t limit = 50;
    struct sql_unit *unit;

    if (!api_query_query_number(request, "limit", 100, &limit) ||
        api_query_query(request, "cursor", &cursor) < 0)
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        add_step(unit, &list_convos, did, cursor, limit);
        add_step(unit, &list_members, did, cursor, limit);
        sql_unit_int(unit, MEMBERS_MAX);
    }
    db_query_run(request, http_service(request), unit, true, convos_listed);
}
