/* SPDX-License-Identifier: Apache-2.0 */
/* status_api.c: how far a message came. A sender asks about its own messages, by the ids it gave
 * them: how many were members when it was sent, and how many have read as far. */
#include <stdio.h>

#include "services/delivery/api/role_api.h"
#include "services/delivery/api/text.h"

/* One of two indexes finds it; with an OR SQLite uses neither. */
SQL_STATEMENT(find_status,
    "SELECT l.seq, l.epoch, l.created_ms, COUNT(m.did),"
    " COUNT(CASE WHEN m.read_seq >= l.seq THEN 1 END) FROM log l LEFT JOIN members m"
    " ON m.convo = l.convo AND m.did <> l.sender AND m.join_seq < l.seq"
    " AND (m.leave_seq IS NULL OR m.leave_seq > l.seq)"
    " WHERE l.convo = $1 AND l.seq = COALESCE("
    "(SELECT o.seq FROM log o WHERE o.convo = $1 AND o.op = $2),"
    " (SELECT n.seq FROM log n WHERE n.convo = $1 AND n.message_id = $3 AND n.sender = $4 LIMIT 1))"
    " GROUP BY l.convo, l.seq");

static void put_status(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t step, struct span id)
{
    bool is_there = sql_unit_rows(unit, step) > 0;

    json_put_object(writer, NULL);
    json_put_string(writer, "messageId", id);
    json_put_text(writer, "status", is_there ? "stored" : "unknown");
    if (is_there) {
        json_put_int(writer, "seq", sql_row_int(unit, step, 0, 0));
        json_put_int(writer, "epoch", sql_row_int(unit, step, 0, 1));
        delivery_put_time(writer, "storedAt", sql_row_int(unit, step, 0, 2));
        json_put_int(writer, "recipients", sql_row_int(unit, step, 0, 3));
        json_put_int(writer, "read", sql_row_int(unit, step, 0, 4));
    }
    json_put_end(writer);
}

static void status_found(struct http_request *request, const struct tr_event *event)
{
    struct query_list *list = db_query_with(request);
    struct sql_unit *unit = role_back(request, event, &role_in_convo);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "statuses");
    for (uint32_t i = 0; i < list->count; i++)
        put_status(&writer, unit, ROLE_STEPS + i, list->items[i]);
    json_put_end(&writer);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

/* The id is the sender's own, as api_set_op writes it; with a key beside it, it stands alone. */
static void add_op(struct sql_unit *unit, struct span sender, struct span id)
{
    char text[8 + 2 * DID_SIZE_MAX];
    int size = snprintf(
        text, sizeof text, "msg:%.*s:%.*s", (int)sender.size, sender.at, (int)id.size, id.at);

    sql_unit_text(unit, (struct span){ text, (size_t)size });
}

static void keep(void *with)
{
    (void)with; /* lives as long as the request */
}

void api_get_delivery_status(struct http_request *request)
{
    struct role_question asked = { &role_in_convo, { NULL, 0 }, ROLE_MEMBER };
    struct query_list *list = http_alloc(request, sizeof *list);
    struct span did = auth_claims_of(request)->issuer;
    struct sql_unit *unit;

    if (list == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    if (!api_query_query_convo(request, &asked.id) ||
        !api_query_query_list(request, "messageIds", 1, list))
        return;
    unit = role_read(request, &asked);
    for (uint32_t i = 0; unit != NULL && i < list->count; i++) {
        sql_unit_step(unit, &find_status, SQL_ROWS_ANY);
        sql_unit_text(unit, asked.id);
        add_op(unit, did, list->items[i]);
        sql_unit_text(unit, list->items[i]);
        sql_unit_text(unit, did);
    }
    db_query_run_with(request, http_service(request), unit, true, status_found, list, keep);
}
