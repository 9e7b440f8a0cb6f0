/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/consent_api.h"

#include "services/delivery/api/role_api.h"
#include "services/delivery/api/text.h"
#include "sql/unit.h"

const struct sql_statement consent_find_block = {
    .text = "SELECT 1 FROM blocks WHERE (blocker = $1 AND blocked = $2)"
            " OR (blocker = $2 AND blocked = $1) LIMIT 1",
};
const struct sql_statement consent_find_opt_out = {
    .text = "SELECT 1 FROM consents WHERE did = $1 AND opted_in = 0",
};

void consent_add_no_block(struct sql_unit *unit, struct span one, struct span other)
{
    sql_unit_step(unit, &consent_find_block, 0);
    sql_unit_text(unit, one);
    sql_unit_text(unit, other);
}

void consent_add_no_opt_out(struct sql_unit *unit, struct span did)
{
    sql_unit_step(unit, &consent_find_opt_out, 0);
    sql_unit_text(unit, did);
}

/* ---- opting in and out ---------------------------------------------------------------------- */

SQL_STATEMENT(put_consent,
    "INSERT INTO consents (did, opted_in, changed_ms) VALUES ($1, $2, $3)"
    " ON CONFLICT (did) DO UPDATE SET opted_in = excluded.opted_in,"
    " changed_ms = CASE WHEN consents.opted_in = excluded.opted_in THEN consents.changed_ms"
    " ELSE excluded.changed_ms END RETURNING opted_in, changed_ms");
SQL_STATEMENT(get_consent, "SELECT opted_in, changed_ms FROM consents WHERE did = $1");

static void consent_stored(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    bool is_in;

    if (unit == NULL)
        return;
    is_in = sql_row_int(unit, 1, 0, 0) != 0;
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "success", true);
    json_put_bool(&writer, "optedIn", is_in);
    delivery_put_time(&writer, is_in ? "optedInAt" : "optedOutAt", sql_row_int(unit, 1, 0, 1));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

static void opt(struct http_request *request, bool is_in)
{
    struct delivery *delivery = http_service(request);
    struct span did = auth_claims_of(request)->issuer;
    struct sql_unit *unit = api_query_unit(request, api_query_key(did));
    int64_t now_ms = delivery_now_ms(delivery);

    if (unit != NULL) {
        sql_unit_step(unit, &put_consent, 1);
        sql_unit_text(unit, did);
        sql_unit_int(unit, is_in);
        sql_unit_int(unit, now_ms);
        audit_add(delivery, unit,
            &(struct audit_entry){
                .actor = did, .action = is_in ? "optIn" : "optOut", .now_ms = now_ms });
    }
    db_query_run(request, delivery, unit, false, consent_stored);
}

void api_opt_in(struct http_request *request)
{
    opt(request, true);
}

void api_opt_out(struct http_request *request)
{
    opt(request, false);
}

static void consents_read(struct http_request *request, const struct tr_event *event)
{
    struct query_list *list = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "statuses");
    for (uint32_t i = 0; i < list->count; i++) {
        bool is_known = sql_unit_rows(unit, i) == 1;
        bool is_in = is_known && sql_row_int(unit, i, 0, 0) != 0;

        json_put_object(&writer, NULL);
        json_put_string(&writer, "did", list->items[i]);
        json_put_bool(&writer, "optedIn", is_in);
        json_put_bool(&writer, "optedOut", is_known && !is_in);
        if (is_known)
            delivery_put_time(
                &writer, is_in ? "optedInAt" : "optedOutAt", sql_row_int(unit, i, 0, 1));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

static void keep(void *with)
{
    (void)with; /* lives as long as the request */
}

/* The list `dids` of the query. NULL: it has been answered. */
static struct query_list *read_dids(struct http_request *request)
{
    struct query_list *list = http_alloc(request, sizeof *list);

    if (list == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    return api_query_query_list(request, "dids", DID_SIZE_MIN, list) ? list : NULL;
}

void api_get_opt_in_status(struct http_request *request)
{
    struct query_list *list = read_dids(request);
    struct sql_unit *unit;

    if (list == NULL)
        return;
    unit = sql_unit_create(0);
    for (uint32_t i = 0; unit != NULL && i < list->count; i++) {
        sql_unit_step(unit, &get_consent, SQL_ROWS_ANY);
        sql_unit_text(unit, list->items[i]);
    }
    db_query_run_with(request, http_service(request), unit, true, consents_read, list, keep);
}

/* ---- blocks --------------------------------------------------------------------------------- */

SQL_STATEMENT(put_block,
    "INSERT INTO blocks (blocker, blocked, uri, created_ms) SELECT $1, $2, $3, $4"
    " WHERE (SELECT COUNT(*) FROM blocks WHERE blocker = $1) < $5"
    " ON CONFLICT (blocker, blocked) DO UPDATE SET uri = excluded.uri");
SQL_STATEMENT(delete_block, "DELETE FROM blocks WHERE blocker = $1 AND blocked = $2");
/* Consent that was given before is taken back. */
SQL_STATEMENT(close_requests, "UPDATE chat_requests SET state = 2, changed_ms = $3"
                              " WHERE sender = $2 AND recipient = $1 AND state < 2");
SQL_STATEMENT(list_shared,
    "SELECT a.convo, a.is_admin, b.is_admin FROM members a JOIN members b ON b.convo = a.convo"
    " AND b.did = $2 AND b.leave_seq IS NULL WHERE a.did = $1 AND a.leave_seq IS NULL"
    " ORDER BY a.convo LIMIT 1000");

enum { STEP_CHANGE = 1, STEP_CLOSE = 2, STEP_SHARED = 3 };

/* Who shares a conversation with somebody it blocks leaves, or has an admin remove the other: that
 * takes a commit, which only a member can make. */
static void block_stored(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_any_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    bool is_block;

    if (unit == NULL)
        return;
    is_block = unit->steps[STEP_CHANGE].statement == &put_block;
    if (sql_unit_status(unit) != 0) {
        role_refuse(request, 400, "TooManyBlocks", "remove another block first");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_array(&writer, "affectedConvos");
    for (uint32_t row = 0; row < sql_unit_rows(unit, STEP_SHARED); row++) {
        json_put_object(&writer, NULL);
        json_put_string(&writer, "convoId", sql_row_bytes(unit, STEP_SHARED, row, 0));
        json_put_text(&writer, "action",
            !is_block                                     ? "none"
            : sql_row_int(unit, STEP_SHARED, row, 1) != 0 ? "can_remove"
                                                          : "can_leave");
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_int(&writer, "requestsClosed", sql_unit_changed(unit, STEP_CLOSE));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

struct block_change {
    struct span blocker, blocked, uri;
    bool is_block;
};

static void add_block_steps(const struct delivery *delivery, struct sql_unit *unit,
    const struct block_change *change, int64_t now_ms)
{
    sql_unit_step(
        unit, change->is_block ? &put_block : &delete_block, change->is_block ? 1 : SQL_ROWS_ANY);
    sql_unit_text(unit, change->blocker);
    sql_unit_text(unit, change->blocked);
    if (change->is_block) {
        if (change->uri.at == NULL)
            sql_unit_null(unit);
        else
            sql_unit_text(unit, change->uri);
        sql_unit_int(unit, now_ms);
        sql_unit_int(unit, BLOCKS_MAX);
    }
    sql_unit_step(unit, &close_requests, SQL_ROWS_ANY);
    sql_unit_text(unit, change->blocker);
    sql_unit_text(unit, change->is_block ? change->blocked : SPAN(""));
    sql_unit_int(unit, now_ms);
    sql_unit_step(unit, &list_shared, SQL_ROWS_ANY);
    sql_unit_text(unit, change->blocker);
    sql_unit_text(unit, change->blocked);
    audit_add(delivery, unit,
        &(struct audit_entry){ .actor = change->blocker,
            .action = change->is_block ? "block" : "unblock",
            .target = change->blocked,
            .now_ms = now_ms });
}

void api_handle_block_change(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct span action, did = auth_claims_of(request)->issuer;
    struct block_change change;
    struct sql_unit *unit;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    change.blocker = json_need_string(&body.expect, "blockerDid", DID_SIZE_MIN, DID_SIZE_MAX);
    change.blocked = json_need_string(&body.expect, "blockedDid", DID_SIZE_MIN, DID_SIZE_MAX);
    change.uri = json_may_string(&body.expect, "blockUri", 1, 512);
    action = json_need_string(&body.expect, "action", 1, 16);
    change.is_block = span_is(action, "created");
    if (!body.expect.failed && !change.is_block && !span_is(action, "removed"))
        json_expect_fail(&body.expect, "action", "must be created or removed");
    if (!body.expect.failed && span_equal(change.blocked, change.blocker))
        json_expect_fail(&body.expect, "blockedDid", "must be somebody else");
    if (!api_query_is_good(request, &body))
        return;
    if (!span_equal(change.blocker, did)) {
        api_refuse(request, &body, 403, "NotBlocker", "only who blocks says so");
        return;
    }
    unit = api_query_unit(request, api_query_key(did));
    if (unit != NULL)
        add_block_steps(delivery, unit, &change, delivery_now_ms(delivery));
    api_query_end(&body);
    db_query_run(request, delivery, unit, false, block_stored);
}

static void put_block_view(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t step, uint32_t row)
{
    json_put_object(writer, NULL);
    json_put_string(writer, "blockerDid", sql_row_bytes(unit, step, row, 0));
    json_put_string(writer, "blockedDid", sql_row_bytes(unit, step, row, 1));
    if (!sql_row_is_null(unit, step, row, 2))
        json_put_string(writer, "blockUri", sql_row_bytes(unit, step, row, 2));
    delivery_put_time(writer, "createdAt", sql_row_int(unit, step, row, 3));
    json_put_end(writer);
}

/* ---- looking at them ------------------------------------------------------------------------ */

enum { CHUNK = 20 }; /* of names in one statement */
SQL_STATEMENT(find_blocks,
    "SELECT blocker, blocked, uri, created_ms FROM blocks WHERE blocker = $1 AND blocked IN"
    " ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,"
    " $21)");

static void blocks_found(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct delivery *delivery = http_service(request);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "blocks");
    for (uint32_t step = 0; step < unit->step_count; step++)
        for (uint32_t row = 0; row < sql_unit_rows(unit, step); row++)
            put_block_view(&writer, unit, step, row);
    json_put_end(&writer);
    delivery_put_time(&writer, "checkedAt", delivery_now_ms(delivery));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

static void add_find(struct sql_unit *unit, const struct query_list *list, uint32_t blocker)
{
    for (uint32_t from = 0; from < list->count; from += CHUNK) {
        sql_unit_step(unit, &find_blocks, SQL_ROWS_ANY);
        sql_unit_text(unit, list->items[blocker]);
        for (uint32_t i = from; i < from + CHUNK; i++)
            sql_unit_text(unit, i < list->count ? list->items[i] : SPAN(""));
    }
}

void api_check_blocks(struct http_request *request)
{
    struct query_list *list = read_dids(request);
    struct sql_unit *unit;

    if (list == NULL)
        return;
    if (list->count < 2) {
        http_respond_error(request, 400, "InvalidRequest", "dids must be two at least");
        return;
    }
    unit = sql_unit_create(0);
    for (uint32_t i = 0; unit != NULL && i < list->count; i++)
        add_find(unit, list, i);
    db_query_run(request, http_service(request), unit, true, blocks_found);
}

SQL_STATEMENT(list_conflicts,
    "SELECT b.blocker, b.blocked, b.uri, b.created_ms FROM members x JOIN blocks b"
    " ON b.blocker = x.did JOIN members y ON y.convo = x.convo AND y.did = b.blocked"
    " AND y.leave_seq IS NULL WHERE x.convo = $1 AND x.leave_seq IS NULL"
    " ORDER BY b.blocker, b.blocked LIMIT 1000");

static void conflicts_listed(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = role_back(request, event, &role_in_convo);
    struct delivery *delivery = http_service(request);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    struct span convo;

    if (unit == NULL)
        return;
    (void)http_parameter(request, "convoId", &convo);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "convoId", convo);
    json_put_bool(&writer, "hasConflicts", sql_unit_rows(unit, ROLE_STEPS) > 0);
    json_put_array(&writer, "blocks");
    for (uint32_t row = 0; row < sql_unit_rows(unit, ROLE_STEPS); row++)
        put_block_view(&writer, unit, ROLE_STEPS, row);
    json_put_end(&writer);
    delivery_put_time(&writer, "checkedAt", delivery_now_ms(delivery));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_get_block_status(struct http_request *request)
{
    struct role_question asked = { &role_in_convo, { NULL, 0 }, ROLE_MEMBER };
    struct sql_unit *unit;

    if (!api_query_query_convo(request, &asked.id))
        return;
    unit = role_read(request, &asked);
    if (unit != NULL) {
        sql_unit_step(unit, &list_conflicts, SQL_ROWS_ANY);
        sql_unit_text(unit, asked.id);
    }
    db_query_run(request, http_service(request), unit, true, conflicts_listed);
}
