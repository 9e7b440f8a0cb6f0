/* SPDX-License-Identifier: Apache-2.0 */
/* addition_api.c: devices that wait to be added to conversations: seen, claimed and completed by
 * members. See device.h. */
#include <string.h>

#include "services/delivery/api/api_query.h"
#include "services/delivery/api/device.h"
#include "services/delivery/api/package.h"
#include "services/delivery/api/text.h"

SQL_STATEMENT(put_request,
    "INSERT INTO device_additions (id, convo, did, device, kind, state, why, claim_until_ms,"
    " created_ms, changed_ms) SELECT m.did || '#' || $3 || '/' || m.convo, m.convo, m.did, $3, 1,"
    " 0, $4, 0, $5, $5 FROM members m WHERE m.convo = $1 AND m.did = $2 AND m.leave_seq IS NULL"
    " ON CONFLICT (id) DO UPDATE SET kind = 1, state = 0, why = excluded.why, claimed_by = NULL,"
    " claim_until_ms = 0, changed_ms = excluded.changed_ms"
    " WHERE device_additions.state <> 1 OR device_additions.claim_until_ms <= $5");

void device_add_request(struct sql_unit *unit, const struct device_request *request)
{
    sql_unit_step(unit, &put_request, SQL_ROWS_ANY);
    sql_unit_text(unit, request->convo);
    sql_unit_text(unit, request->did);
    sql_unit_text(unit, request->device);
    sql_unit_text(unit, request->why.at == NULL ? SPAN("") : request->why);
    sql_unit_int(unit, request->now_ms);
}

#define CALLER_IS_MEMBER(caller)                                                                   \
    "EXISTS (SELECT 1 FROM members m WHERE m.convo = device_additions.convo AND m.did = " caller   \
    " AND m.leave_seq IS NULL)"
/* Who left is not added any more, whatever its devices wished for. */
#define OWNER_IS_MEMBER                                                                            \
    "EXISTS (SELECT 1 FROM members o WHERE o.convo = device_additions.convo"                       \
    " AND o.did = device_additions.did AND o.leave_seq IS NULL)"

SQL_STATEMENT(list_additions,
    "SELECT device_additions.id, device_additions.convo, device_additions.did,"
    " device_additions.device, device_additions.kind, device_additions.state,"
    " device_additions.claimed_by, device_additions.claim_until_ms, device_additions.created_ms,"
    " device_additions.why, d.name FROM device_additions"
    " LEFT JOIN devices d ON d.did = device_additions.did AND d.device = device_additions.device"
    " WHERE device_additions.state <> 2 AND ($2 = '' OR device_additions.convo = $2)"
    " AND device_additions.convo IN (SELECT convo FROM members WHERE did = $1"
    " AND leave_seq IS NULL) AND " OWNER_IS_MEMBER
    " ORDER BY device_additions.created_ms, device_additions.id LIMIT $3");

static void put_addition(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t row, int64_t now_ms)
{
    bool is_claimed =
        sql_row_int(unit, 0, row, 5) == ADDITION_CLAIMED && sql_row_int(unit, 0, row, 7) > now_ms;
    bool is_reissue = sql_row_int(unit, 0, row, 4) == ADDITION_REISSUE;

    json_put_object(writer, NULL);
    json_put_string(writer, "id", sql_row_bytes(unit, 0, row, 0));
    json_put_string(writer, "convoId", sql_row_bytes(unit, 0, row, 1));
    json_put_string(writer, "userDid", sql_row_bytes(unit, 0, row, 2));
    json_put_string(writer, "deviceId", sql_row_bytes(unit, 0, row, 3));
    api_query_put_mls_did(writer, sql_row_bytes(unit, 0, row, 2), sql_row_bytes(unit, 0, row, 3));
    if (!sql_row_is_null(unit, 0, row, 10))
        json_put_string(writer, "deviceName", sql_row_bytes(unit, 0, row, 10));
    json_put_text(writer, "kind", is_reissue ? "reissueWelcome" : "newDevice");
    json_put_text(writer, "status", is_claimed ? "in_progress" : "pending");
    if (is_claimed) {
        json_put_string(writer, "claimedBy", sql_row_bytes(unit, 0, row, 6));
        delivery_put_time(writer, "claimExpiresAt", sql_row_int(unit, 0, row, 7));
    }
    if (!sql_row_is_null(unit, 0, row, 9))
        json_put_string(writer, "reason", sql_row_bytes(unit, 0, row, 9));
    delivery_put_time(writer, "createdAt", sql_row_int(unit, 0, row, 8));
    json_put_end(writer);
}

static void additions_listed(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "pendingAdditions");
    for (uint32_t row = 0; row < sql_unit_rows(unit, 0); row++)
        put_addition(&writer, unit, row, delivery_now_ms(http_service(request)));
    json_put_end(&writer);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_get_pending_device_additions(struct http_request *request)
{
    struct span convo = SPAN("");
    uint64_t limit = 50;
    struct sql_unit *unit;

    if (!api_query_query_number(request, "limit", 100, &limit) ||
        api_query_query(request, "convoId", &convo) < 0)
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, &list_additions, SQL_ROWS_ANY);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_text(unit, convo);
        sql_unit_int(unit, (int64_t)limit);
    }
    db_query_run(request, http_service(request), unit, true, additions_listed);
}

/* To claim one takes two units: the suite of its conversation decides which package is good. */
SQL_STATEMENT(find_addition,
    "SELECT device_additions.did, device_additions.device, device_additions.convo, c.suite,"
    " device_additions.state, device_additions.claimed_by, device_additions.claim_until_ms"
    " FROM device_additions JOIN convos c ON c.id = device_additions.convo"
    " WHERE device_additions.id = $1 AND " CALLER_IS_MEMBER("$2") " AND " OWNER_IS_MEMBER);
SQL_STATEMENT(claim_addition,
    "UPDATE device_additions SET state = 1, claimed_by = $2, claim_until_ms = $4, changed_ms = $3"
    " WHERE id = $1 AND (state = 0 OR (state = 1 AND (claim_until_ms <= $3 OR claimed_by = $2)))"
    " AND " CALLER_IS_MEMBER("$2") " AND " OWNER_IS_MEMBER);
/* Without a package to add it with, the claim would only keep others away. */
SQL_STATEMENT(unclaim_addition,
    "UPDATE device_additions SET state = 0, claimed_by = NULL, claim_until_ms = 0 WHERE id = $1"
    " AND state = 1 AND claimed_by = $2 AND NOT EXISTS (SELECT 1 FROM key_packages p"
    " WHERE p.did = device_additions.did AND p.device = device_additions.device AND p.suite = $3"
    " AND p.lease_did = $2 AND p.lease_until_s > $4 AND p.not_after_s > $4)");
SQL_STATEMENT(complete_addition,
    "UPDATE device_additions SET state = 2, changed_ms = $3 WHERE id = $1 AND state <> 2"
    " AND (did = $2 OR (state = 1 AND claimed_by = $2 AND claim_until_ms > $3))"
    " AND " CALLER_IS_MEMBER("$2"));

struct addition {
    char id[ADDITION_ID_SIZE_MAX + 1];
    struct span did, device, convo; /* into text */
    char text[ADDITION_ID_SIZE_MAX];
    int64_t suite;
    int64_t until_ms;
};

static void respond_no_addition(struct http_request *request)
{
    http_respond_error(
        request, 404, "PendingAdditionNotFound", "there is no such addition for you to make");
}

static void addition_claimed(struct http_request *request, const struct tr_event *event)
{
    const struct addition *addition = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    bool is_claimed;

    if (unit == NULL)
        return;
    is_claimed = sql_unit_changed(unit, 1) == 1;
    if (is_claimed && sql_unit_rows(unit, 2) == 0) {
        db_query_end(request);
        http_respond_error(request, 404, "KeyPackageNotFound",
            "the device has no key package left: it must bring some first");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "claimed", is_claimed);
    json_put_string(&writer, "convoId", addition->convo);
    if (is_claimed) {
        json_put_string(&writer, "userDid", addition->did);
        json_put_string(&writer, "deviceId", addition->device);
        api_query_put_mls_did(&writer, addition->did, addition->device);
        delivery_put_time(&writer, "claimExpiresAt", addition->until_ms);
        json_put_object(&writer, "keyPackage");
        json_put_string(&writer, "did", addition->did);
        delivery_put_base64(&writer, "keyPackage", sql_row_bytes(unit, 2, 0, 1));
        api_query_put_hex(&writer, "keyPackageHash", sql_row_bytes(unit, 2, 0, 0));
        api_query_put_suite(&writer, "cipherSuite", addition->suite);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

/* False if it does not fit, which nothing that was stored by this service is. */
static bool keep_addition(struct addition *addition, const struct sql_unit *unit)
{
    struct span did = sql_row_bytes(unit, 0, 0, 0), device = sql_row_bytes(unit, 0, 0, 1),
                convo = sql_row_bytes(unit, 0, 0, 2);
    const struct mls_suite *suite = mls_suite_named(sql_row_bytes(unit, 0, 0, 3));
    char *at = addition->text;

    if (did.size + device.size + convo.size > sizeof addition->text)
        return false;
    memcpy(at, did.at, did.size);
    addition->did = (struct span){ at, did.size };
    at += did.size;
    memcpy(at, device.at, device.size);
    addition->device = (struct span){ at, device.size };
    at += device.size;
    memcpy(at, convo.at, convo.size);
    addition->convo = (struct span){ at, convo.size };
    addition->suite = suite == NULL ? 0 : suite->id;
    return true;
}

static void claim_found(struct http_request *request, struct addition *addition)
{
    struct delivery *delivery = http_service(request);
    struct span id = span_of(addition->id), caller = auth_claims_of(request)->issuer;
    int64_t now_ms = delivery_now_ms(delivery);
    struct sql_unit *unit = api_query_unit(request, PACKAGE_CLAIMS_KEY);

    addition->until_ms = now_ms + DEVICE_CLAIM_MS;
    if (unit != NULL) {
        sql_unit_step(unit, &claim_addition, SQL_ROWS_ANY);
        sql_unit_text(unit, id);
        sql_unit_text(unit, caller);
        sql_unit_int(unit, now_ms);
        sql_unit_int(unit, addition->until_ms);
        package_add_lease(unit, &(struct package_lease){ .did = addition->did,
                                    .device = addition->device,
                                    .claimer = caller,
                                    .addition = id,
                                    .suite = addition->suite,
                                    .now_s = now_ms / 1000,
                                    .until_s = now_ms / 1000 + (int64_t)delivery->lease_s,
                                    .now_ms = now_ms });
        sql_unit_step(unit, &unclaim_addition, SQL_ROWS_ANY);
        sql_unit_text(unit, id);
        sql_unit_text(unit, caller);
        sql_unit_int(unit, addition->suite);
        sql_unit_int(unit, now_ms / 1000);
    }
    db_query_run_with(request, delivery, unit, false, addition_claimed, addition, NULL);
}

static void addition_found(struct http_request *request, const struct tr_event *event)
{
    struct addition *addition = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    bool is_known, is_completed;

    if (unit == NULL)
        return;
    is_known = sql_unit_rows(unit, 0) == 1;
    is_completed = is_known && sql_row_int(unit, 0, 0, 4) == ADDITION_COMPLETED;
    is_known = is_known && keep_addition(addition, unit);
    db_query_end(request);
    if (!is_known)
        respond_no_addition(request);
    else if (is_completed)
        http_respond_error(
            request, 409, "AlreadyCompleted", "somebody has added this device already");
    else
        claim_found(request, addition);
}

/* The id in the body. NULL: it has been answered. */
static struct addition *read_addition(struct http_request *request)
{
    struct addition *addition = http_alloc(request, sizeof *addition);
    struct span id;
    struct api_body body;

    if (addition == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    if (!api_query_begin(request, &body))
        return NULL;
    id = json_need_string(&body.expect, "pendingAdditionId", 1, ADDITION_ID_SIZE_MAX);
    if (!api_query_is_good(request, &body))
        return NULL;
    memcpy(addition->id, id.at, id.size);
    api_query_end(&body);
    return addition;
}

void api_claim_pending_device_addition(struct http_request *request)
{
    struct addition *addition = read_addition(request);
    struct sql_unit *unit;

    if (addition == NULL)
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, &find_addition, SQL_ROWS_ANY);
        sql_unit_text(unit, span_of(addition->id));
        sql_unit_text(unit, auth_claims_of(request)->issuer);
    }
    db_query_run_with(request, http_service(request), unit, true, addition_found, addition, NULL);
}

static void addition_completed(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    bool is_known;
    int64_t state;

    if (unit == NULL)
        return;
    is_known = sql_unit_rows(unit, 2) == 1;
    state = is_known ? sql_row_int(unit, 2, 0, 4) : -1;
    db_query_end(request);
    if (!is_known)
        respond_no_addition(request);
    else if (state != ADDITION_COMPLETED)
        http_respond_error(request, 409, "ClaimExpired",
            "you have not claimed this addition, or more than a minute ago: claim it again");
    else
        http_respond(request, 200, "application/json", SPAN("{\"success\":true}"));
}

void api_complete_pending_device_addition(struct http_request *request)
{
    struct addition *addition = read_addition(request);
    struct delivery *delivery = http_service(request);
    struct sql_unit *unit;

    if (addition == NULL)
        return;
    unit = api_query_unit(request, PACKAGE_CLAIMS_KEY);
    if (unit != NULL) {
        sql_unit_step(unit, &complete_addition, SQL_ROWS_ANY);
        sql_unit_text(unit, span_of(addition->id));
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_int(unit, delivery_now_ms(delivery));
        sql_unit_step(unit, &find_addition, SQL_ROWS_ANY);
        sql_unit_text(unit, span_of(addition->id));
        sql_unit_text(unit, auth_claims_of(request)->issuer);
    }
    db_query_run(request, delivery, unit, false, addition_completed);
}
