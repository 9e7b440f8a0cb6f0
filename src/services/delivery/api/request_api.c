/* SPDX-License-Identifier: Apache-2.0 */
/* request_api.c: asking somebody whether they want to talk. One request per sender and recipient at
 * a time; accepted, it lets the sender add the recipient where a policy wants consent; declined, it
 * cannot be repeated for a week. A few encrypted messages may wait with it. */
#include "services/delivery/api/role_api.h"
#include "services/delivery/api/text.h"
#include "services/delivery/store/consent_store.h"
#include "services/delivery/store/schema.h"

enum {
    REQUESTS_PENDING_MAX = 50, /* of one sender */
    REQUESTS_RETRY_S = 3600,   /* when to look again whether somebody has answered */
    REQUEST_DAYS = 30,
    DECLINED_DAYS = 7,
    HELD_MAX = 5,
    HELD_SIZE_MAX = 16 << 10,
    PREVIEW_SIZE_MAX = 280,
};
#define DAYS_MS(days) ((int64_t)(days)*86400000)

static const char *const states[] = { "pending", "accepted", "declined" };

/* ---- send ----------------------------------------------------------------------------------- */

#define IS_OLD                                                                                     \
    " sender = $1 AND recipient = $2 AND ((state = 0 AND expires_ms <= $3)"                        \
    " OR (state = 2 AND changed_ms <= $4))"
SQL_STATEMENT(delete_old_held, "DELETE FROM held_messages WHERE request IN"
                               " (SELECT id FROM chat_requests WHERE" IS_OLD ")");
SQL_STATEMENT(delete_old, "DELETE FROM chat_requests WHERE" IS_OLD);
SQL_STATEMENT(put_request,
    "INSERT INTO chat_requests (id, sender, recipient, preview, convo, state, created_ms,"
    " expires_ms, changed_ms) SELECT $1, $2, $3, $4, $5, 0, $6, $7, $6 WHERE (SELECT COUNT(*)"
    " FROM chat_requests WHERE sender = $2 AND state = 0 AND expires_ms > $6) < $8");
SQL_STATEMENT(put_held, "INSERT INTO held_messages (request, part, bytes) VALUES ($1, $2, $3)");

static void refuse_request(struct http_request *request, const struct sql_unit *unit)
{
    const struct sql_statement *at = role_failed_at(unit);

    if (at == &consent_find_block)
        role_refuse(request, 403, "Blocked", "there is a block between you");
    else if (at == &consent_find_opt_out)
        role_refuse(request, 403, "NotOptedIn", "the recipient does not want requests");
    else if (sql_unit_status(unit) == SQL_ECONSTRAINT)
        role_refuse(request, 409, "RequestExists", "you asked already: wait for the answer");
    else
        role_refuse_many(
            request, REQUESTS_RETRY_S, "TooManyRequests", "your other requests wait for answers");
}

static void request_stored(struct http_request *request, const struct tr_event *event)
{
    struct api_query_made *new = db_query_with(request);
    struct sql_unit *unit = db_query_any_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    if (sql_unit_status(unit) != 0) {
        refuse_request(request, unit);
        return;
    }
    json_put_object(&writer, NULL);
    json_put_string(&writer, "requestId", api_query_made_id(new));
    json_put_text(&writer, "status", states[REQUEST_PENDING]);
    delivery_put_time(&writer, "createdAt", new->now_ms);
    delivery_put_time(&writer, "expiresAt", new->now_ms + DAYS_MS(REQUEST_DAYS));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

struct request_texts {
    struct span sender, recipient, preview, convo;
    struct span held[HELD_MAX];
    uint32_t held_count;
};

static void add_old(struct sql_unit *unit, const struct sql_statement *statement,
    const struct request_texts *texts, int64_t now_ms)
{
    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    sql_unit_text(unit, texts->sender);
    sql_unit_text(unit, texts->recipient);
    sql_unit_int(unit, now_ms);
    sql_unit_int(unit, now_ms - DAYS_MS(DECLINED_DAYS));
}

static void add_request(
    struct sql_unit *unit, const struct api_query_made *new, const struct request_texts *texts)
{
    struct span id = api_query_made_id(new);

    consent_add_no_block(unit, texts->sender, texts->recipient);
    consent_add_no_opt_out(unit, texts->recipient);
    add_old(unit, &delete_old_held, texts, new->now_ms);
    add_old(unit, &delete_old, texts, new->now_ms);
    sql_unit_step(unit, &put_request, 1);
    sql_unit_text(unit, id);
    sql_unit_text(unit, texts->sender);
    sql_unit_text(unit, texts->recipient);
    api_query_may_text(unit, texts->preview);
    api_query_may_text(unit, texts->convo);
    sql_unit_int(unit, new->now_ms);
    sql_unit_int(unit, new->now_ms + DAYS_MS(REQUEST_DAYS));
    sql_unit_int(unit, REQUESTS_PENDING_MAX);
    for (uint32_t i = 0; i < texts->held_count; i++) {
        sql_unit_step(unit, &put_held, 1);
        sql_unit_text(unit, id);
        sql_unit_int(unit, i);
        sql_unit_blob(unit, texts->held[i].at, texts->held[i].size);
    }
}

/* Items are bytes, or objects with a member `ciphertext`. */
static void read_held(struct api_body *body, struct request_texts *texts)
{
    const struct json *list = json_may_array(&body->expect, "heldMessages", 0, HELD_MAX);

    for (struct json_iter it = json_iterate(list); json_next(&it);) {
        const struct json *inner = json_get(it.value, "ciphertext");

        if (delivery_get_bytes(
                inner == NULL ? it.value : inner, HELD_SIZE_MAX, &texts->held[texts->held_count]) &&
            texts->held[texts->held_count].size > 0)
            texts->held_count++;
        else
            json_expect_fail(&body->expect, "heldMessages", "must be base64, 16 KiB at most each");
    }
}

void api_send_chat_request(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct api_query_made *new = api_query_make(request);
    struct request_texts texts = { .sender = auth_claims_of(request)->issuer };
    struct sql_unit *unit;
    struct api_body body;

    if (new == NULL || !api_query_begin(request, &body))
        return;
    texts.recipient = json_need_string(&body.expect, "recipientDid", DID_SIZE_MIN, DID_SIZE_MAX);
    texts.preview = json_may_string(&body.expect, "previewText", 0, PREVIEW_SIZE_MAX);
    texts.convo = json_may_string(&body.expect, "groupId", 1, ACT_CONVO_SIZE_MAX);
    read_held(&body, &texts);
    if (!body.expect.failed && span_equal(texts.recipient, texts.sender))
        json_expect_fail(&body.expect, "recipientDid", "must be somebody else");
    if (!api_query_is_good(request, &body))
        return;
    unit = api_query_unit(request, api_query_key(texts.sender));
    if (unit != NULL) {
        add_request(unit, new, &texts);
        audit_add(delivery, unit,
            &(struct audit_entry){ .actor = texts.sender,
                .action = "sendChatRequest",
                .target = texts.recipient,
                .now_ms = new->now_ms });
    }
    api_query_end(&body);
    db_query_run_with(request, delivery, unit, false, request_stored, new, api_query_keep);
}

/* ---- answer --------------------------------------------------------------------------------- */

SQL_STATEMENT(look_request, "SELECT state, sender, convo, expires_ms, changed_ms"
                            " FROM chat_requests WHERE id = $1 AND recipient = $2");
SQL_STATEMENT(look_held, "SELECT h.bytes FROM held_messages h JOIN chat_requests r"
                         " ON r.id = h.request WHERE r.id = $1 AND r.recipient = $2"
                         " ORDER BY h.part");
SQL_STATEMENT(is_open, "SELECT 1 FROM chat_requests WHERE id = $1 AND state < 2");
SQL_STATEMENT(
    is_fresh, "SELECT 1 FROM chat_requests WHERE id = $1 AND (state = 1 OR expires_ms > $2)");
/* Accepting again gives the same answer: the first one may have been lost. */
SQL_STATEMENT(accept, "UPDATE chat_requests SET state = 1, changed_ms = CASE WHEN state = 1"
                      " THEN changed_ms ELSE $2 END WHERE id = $1 AND state < 2");
/* Also takes back what was accepted. */
SQL_STATEMENT(
    decline, "UPDATE chat_requests SET state = 2, changed_ms = $2 WHERE id = $1 AND state < 2");
SQL_STATEMENT(delete_held, "DELETE FROM held_messages WHERE request = $1");

enum { STEP_REQUEST = 1, STEP_HELD = 2 };

/* NULL: it has been answered. */
static struct sql_unit *answer_back(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_any_unit(request, event);
    const struct sql_statement *at = unit == NULL ? NULL : role_failed_at(unit);

    if (at == NULL)
        return unit;
    if (at == &look_request)
        role_refuse(request, 404, "RequestNotFound", "nobody asked you that");
    else if (at == &is_fresh)
        role_refuse(request, 410, "RequestExpired", "this request is too old");
    else
        role_refuse(request, 409, "RequestClosed", "this request was declined before");
    return NULL;
}

static void request_accepted(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = answer_back(request, event);
    struct delivery *delivery = http_service(request);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    bool is_first;

    if (unit == NULL)
        return;
    is_first = sql_row_int(unit, STEP_REQUEST, 0, 0) == REQUEST_PENDING;
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "success", true);
    json_put_string(&writer, "senderDid", sql_row_bytes(unit, STEP_REQUEST, 0, 1));
    if (!sql_row_is_null(unit, STEP_REQUEST, 0, 2))
        json_put_string(&writer, "groupId", sql_row_bytes(unit, STEP_REQUEST, 0, 2));
    delivery_put_time(&writer, "acceptedAt",
        is_first ? delivery_now_ms(delivery) : sql_row_int(unit, STEP_REQUEST, 0, 4));
    json_put_array(&writer, "heldMessages");
    for (uint32_t row = 0; row < sql_unit_rows(unit, STEP_HELD); row++) {
        json_put_object(&writer, NULL);
        delivery_put_bytes(&writer, "ciphertext", sql_row_bytes(unit, STEP_HELD, row, 0));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

static void request_declined(struct http_request *request, const struct tr_event *event)
{
    if (answer_back(request, event) == NULL)
        return;
    db_query_end(request);
    http_respond(request, 200, "application/json", SPAN("{\"success\":true}"));
}

static void answer_request(struct http_request *request, bool is_accepted)
{
    struct delivery *delivery = http_service(request);
    struct span id, did = auth_claims_of(request)->issuer;
    int64_t now_ms = delivery_now_ms(delivery);
    struct sql_unit *unit;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    id = json_need_string(&body.expect, "requestId", 1, 64);
    if (!api_query_is_good(request, &body))
        return;
    unit = api_query_unit(request, api_query_key(did));
    if (unit != NULL) {
        sql_unit_step(unit, &look_request, 1);
        sql_unit_text(unit, id);
        sql_unit_text(unit, did);
        sql_unit_step(unit, &look_held, SQL_ROWS_ANY);
        sql_unit_text(unit, id);
        sql_unit_text(unit, did);
        sql_unit_step(unit, &is_open, 1);
        sql_unit_text(unit, id);
        if (is_accepted) {
            sql_unit_step(unit, &is_fresh, 1);
            sql_unit_text(unit, id);
            sql_unit_int(unit, now_ms);
        }
        sql_unit_step(unit, is_accepted ? &accept : &decline, 1);
        sql_unit_text(unit, id);
        sql_unit_int(unit, now_ms);
        if (!is_accepted) {
            sql_unit_step(unit, &delete_held, SQL_ROWS_ANY);
            sql_unit_text(unit, id);
        }
        audit_add(delivery, unit,
            &(struct audit_entry){ .actor = did,
                .action = is_accepted ? "acceptChatRequest" : "declineChatRequest",
                .target = id,
                .now_ms = now_ms });
    }
    api_query_end(&body);
    db_query_run(request, delivery, unit, false, is_accepted ? request_accepted : request_declined);
}

void api_accept_chat_request(struct http_request *request)
{
    answer_request(request, true);
}

void api_decline_chat_request(struct http_request *request)
{
    answer_request(request, false);
}

/* ---- list and count ------------------------------------------------------------------------- */

SQL_STATEMENT(list_requests,
    "SELECT r.id, r.sender, r.recipient, r.preview, r.convo, r.state, r.created_ms, r.expires_ms,"
    " (SELECT COUNT(*) FROM held_messages h WHERE h.request = r.id) FROM chat_requests r"
    " WHERE r.recipient = $1 AND r.state = $2 AND (r.state <> 0 OR r.expires_ms > $3)"
    " AND r.id > $4 ORDER BY r.id LIMIT $5");
SQL_STATEMENT(list_sent,
    "SELECT r.id, r.sender, r.recipient, r.preview, r.convo, r.state, r.created_ms, r.expires_ms,"
    " (SELECT COUNT(*) FROM held_messages h WHERE h.request = r.id) FROM chat_requests r"
    " WHERE r.sender = $1 AND r.state = $2 AND (r.state <> 0 OR r.expires_ms > $3)"
    " AND r.id > $4 ORDER BY r.id LIMIT $5");
SQL_STATEMENT(count_requests, "SELECT COUNT(*), COALESCE(MAX(created_ms), 0) FROM chat_requests"
                              " WHERE recipient = $1 AND state = 0 AND expires_ms > $2");

static void put_request_view(struct json_writer *writer, const struct sql_unit *unit, uint32_t row)
{
    json_put_object(writer, NULL);
    json_put_string(writer, "id", sql_row_bytes(unit, 0, row, 0));
    json_put_string(writer, "senderDid", sql_row_bytes(unit, 0, row, 1));
    json_put_string(writer, "recipientDid", sql_row_bytes(unit, 0, row, 2));
    if (!sql_row_is_null(unit, 0, row, 3))
        json_put_string(writer, "previewText", sql_row_bytes(unit, 0, row, 3));
    if (!sql_row_is_null(unit, 0, row, 4))
        json_put_string(writer, "groupId", sql_row_bytes(unit, 0, row, 4));
    json_put_text(writer, "status", states[sql_row_int(unit, 0, row, 5)]);
    delivery_put_time(writer, "createdAt", sql_row_int(unit, 0, row, 6));
    delivery_put_time(writer, "expiresAt", sql_row_int(unit, 0, row, 7));
    json_put_int(writer, "messageCount", sql_row_int(unit, 0, row, 8));
    json_put_end(writer);
}

static void requests_listed(struct http_request *request, const struct tr_event *event)
{
    api_query_respond_list(request, event, "requests", put_request_view);
}

void api_list_chat_requests(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    static const char *const directions[] = { "received", "sent" };
    int64_t state = REQUEST_PENDING, direction = 0;
    struct span cursor = SPAN("");
    struct sql_unit *unit;
    uint64_t limit = 50;

    if (api_query_query_choice(request, "status", states, REQUEST_DECLINED + 1, &state) < 0 ||
        api_query_query_choice(request, "direction", directions, 2, &direction) < 0 ||
        !api_query_query_number(request, "limit", 100, &limit) ||
        api_query_query(request, "cursor", &cursor) < 0)
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, direction == 1 ? &list_sent : &list_requests, SQL_ROWS_ANY);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_int(unit, state);
        sql_unit_int(unit, delivery_now_ms(delivery));
        sql_unit_text(unit, cursor);
        sql_unit_int(unit, (int64_t)limit);
    }
    db_query_run(request, delivery, unit, true, requests_listed);
}

static void requests_counted(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_int(&writer, "pendingCount", sql_row_int(unit, 0, 0, 0));
    if (sql_row_int(unit, 0, 0, 0) > 0)
        delivery_put_time(&writer, "lastRequestAt", sql_row_int(unit, 0, 0, 1));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_get_request_count(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL) {
        sql_unit_step(unit, &count_requests, SQL_ROWS_ANY);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_int(unit, delivery_now_ms(delivery));
    }
    db_query_run(request, delivery, unit, true, requests_counted);
}
