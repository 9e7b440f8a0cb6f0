/* SPDX-License-Identifier: Apache-2.0 */
/* welcome_api.c: Welcomes over HTTP. A Welcome is stored once with its commit and waits for each
 * device it is for (welcome_targets):
 *
 *   waiting ──getWelcome──▶ fetched ──confirmWelcome──▶ confirmed
 *      └──────────────┴──confirm with success false, invalidate, reissue──▶ invalid (with why)
 *
 * Only the DID it is for sees it, and only while that DID is in the conversation since before the
 * Welcome's commit: one from before a removal opens nothing any more. */
#include <string.h>

#include "base/alloc.h"
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/device.h"
#include "services/delivery/api/package.h"
#include "services/delivery/api/text.h"
#include "services/delivery/convo/notice.h"
#include "services/delivery/store/schema.h"

/* Of the caller ($2), in a conversation ($1), for its device ($3) where both name one. */
#define MINE                                                                                       \
    "welcome_targets.convo = $1 AND welcome_targets.did = $2"                                      \
    " AND ($3 = '' OR welcome_targets.device = $3 OR welcome_targets.device = '')"
#define IS_OPEN                                                                                    \
    "welcome_targets.state <= 1 AND EXISTS (SELECT 1 FROM members m"                               \
    " WHERE m.convo = welcome_targets.convo AND m.did = welcome_targets.did"                       \
    " AND m.leave_seq IS NULL AND m.join_seq <= welcome_targets.seq)"
#define NEWEST_OPEN(order)                                                                         \
    "(SELECT seq, ref FROM welcome_targets WHERE " MINE " AND " IS_OPEN " ORDER BY " order         \
    "seq DESC, ref LIMIT 1)"

/* The three values every statement here begins with. */
static void add_mine(struct sql_unit *unit, const struct sql_statement *statement,
    struct span convo, struct span did, struct span device)
{
    sql_unit_step(unit, statement, SQL_ROWS_ANY);
    sql_unit_text(unit, convo);
    sql_unit_text(unit, did);
    sql_unit_text(unit, device);
}

/* What others must not learn is whether there is such a conversation. */
static void respond_none(struct http_request *request, bool was_there)
{
    if (was_there)
        http_respond_error(request, 410, "WelcomeStale",
            "the Welcome is no longer good: ask for another with reissueWelcome");
    else
        http_respond_error(request, 404, "WelcomeNotFound", "no Welcome waits for you here");
}

/* ---- fetch ---------------------------------------------------------------------------------- */

SQL_STATEMENT(mark_fetched, "UPDATE welcome_targets SET state = 1, changed_ms = $4 WHERE " MINE
                            " AND state = 0 AND (seq, ref) = " NEWEST_OPEN(""));
SQL_STATEMENT(get_newest,
    "SELECT w.bytes, w.created_ms, t.seq, t.device, t.ref FROM welcome_targets t"
    " JOIN welcomes w ON w.convo = t.convo AND w.seq = t.seq AND w.part = t.part"
    " WHERE t.convo = $1 AND t.did = $2 AND (t.seq, t.ref) = " NEWEST_OPEN(""));
/* Those that might have been good: not from before the caller was added again, and none after it
 * was. */
SQL_STATEMENT(count_unconfirmed,
    "SELECT COUNT(*) FROM welcome_targets WHERE " MINE " AND welcome_targets.state <> 2"
    " AND NOT EXISTS (SELECT 1 FROM members m WHERE m.convo = welcome_targets.convo"
    " AND m.did = welcome_targets.did AND m.leave_seq IS NULL AND m.join_seq > welcome_targets.seq)"
    " AND NOT EXISTS (SELECT 1 FROM welcome_targets n WHERE n.convo = welcome_targets.convo"
    " AND n.did = welcome_targets.did AND n.device = welcome_targets.device AND n.state = 2"
    " AND n.seq > welcome_targets.seq)");

static void welcome_read(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    struct span convo;

    if (unit == NULL)
        return;
    if (sql_unit_rows(unit, 2) == 0) {
        bool was_there = sql_row_int(unit, 3, 0, 0) > 0;

        db_query_end(request);
        respond_none(request, was_there);
        return;
    }
    (void)http_parameter(request, "convoId", &convo);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "convoId", convo);
    delivery_put_base64(&writer, "welcome", sql_row_bytes(unit, 2, 0, 0));
    delivery_put_time(&writer, "createdAt", sql_row_int(unit, 2, 0, 1));
    json_put_int(&writer, "seq", sql_row_int(unit, 2, 0, 2));
    json_put_string(&writer, "deviceId", sql_row_bytes(unit, 2, 0, 3));
    api_query_put_hex(&writer, "keyPackageHash", sql_row_bytes(unit, 2, 0, 4));
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_get_welcome(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct span convo, device, did = auth_claims_of(request)->issuer;
    struct sql_unit *unit;

    if (!api_query_query_convo(request, &convo) || !api_query_query_device(request, &device))
        return;
    unit = api_query_unit(request, api_query_key(did));
    if (unit != NULL) {
        add_mine(unit, &mark_fetched, convo, did, device);
        sql_unit_int(unit, delivery_now_ms(delivery));
        add_mine(unit, &get_newest, convo, did, device);
        add_mine(unit, &count_unconfirmed, convo, did, device);
    }
    db_query_run(request, delivery, unit, false, welcome_read);
}

/* Without their bytes: those may be megabytes each. */
SQL_STATEMENT(list_pending,
    "SELECT welcome_targets.convo, welcome_targets.seq, welcome_targets.ref,"
    " welcome_targets.device, welcome_targets.state, w.created_ms, LENGTH(w.bytes)"
    " FROM welcome_targets JOIN welcomes w ON w.convo = welcome_targets.convo"
    " AND w.seq = welcome_targets.seq AND w.part = welcome_targets.part"
    " WHERE welcome_targets.did = $1 AND ($2 = '' OR welcome_targets.device = $2"
    " OR welcome_targets.device = '') AND " IS_OPEN
    " ORDER BY w.created_ms, welcome_targets.convo, welcome_targets.ref LIMIT $3");

static void pending_read(struct http_request *request, const struct tr_event *event)
{
    static const char *const states[] = { "waiting", "fetched" };
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    json_put_object(&writer, NULL);
    json_put_array(&writer, "welcomes");
    for (uint32_t row = 0; row < sql_unit_rows(unit, 0); row++) {
        json_put_object(&writer, NULL);
        json_put_string(&writer, "convoId", sql_row_bytes(unit, 0, row, 0));
        json_put_int(&writer, "seq", sql_row_int(unit, 0, row, 1));
        api_query_put_hex(&writer, "keyPackageHash", sql_row_bytes(unit, 0, row, 2));
        json_put_string(&writer, "deviceId", sql_row_bytes(unit, 0, row, 3));
        json_put_text(&writer, "state", states[sql_row_int(unit, 0, row, 4) == 1]);
        delivery_put_time(&writer, "createdAt", sql_row_int(unit, 0, row, 5));
        json_put_int(&writer, "size", sql_row_int(unit, 0, row, 6));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_get_pending_welcomes(struct http_request *request)
{
    uint64_t limit = 100;
    struct span device;
    struct sql_unit *unit;

    if (!api_query_query_device(request, &device) ||
        !api_query_query_number(request, "limit", 500, &limit))
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, &list_pending, SQL_ROWS_ANY);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_text(unit, device);
        sql_unit_int(unit, (int64_t)limit);
    }
    db_query_run(request, http_service(request), unit, true, pending_read);
}

/* A device that registers again may have been waited for. */
SQL_STATEMENT(list_waiting,
    "SELECT welcome_targets.convo, w.bytes FROM welcome_targets JOIN welcomes w"
    " ON w.convo = welcome_targets.convo AND w.seq = welcome_targets.seq"
    " AND w.part = welcome_targets.part WHERE welcome_targets.did = $1"
    " AND welcome_targets.device = $2 AND LENGTH(w.bytes) <= 65536 AND " IS_OPEN
    " ORDER BY w.created_ms, welcome_targets.convo, welcome_targets.ref LIMIT 20");

void welcome_add_waiting(struct sql_unit *unit, struct span did, struct span device)
{
    sql_unit_step(unit, &list_waiting, SQL_ROWS_ANY);
    sql_unit_text(unit, did);
    sql_unit_text(unit, device);
}

void welcome_put_waiting(struct json_writer *writer, const struct sql_unit *unit, uint32_t step)
{
    json_put_array(writer, "welcomeMessages");
    for (uint32_t row = 0; row < sql_unit_rows(unit, step); row++) {
        json_put_object(writer, NULL);
        json_put_string(writer, "convoId", sql_row_bytes(unit, step, row, 0));
        delivery_put_base64(writer, "welcome", sql_row_bytes(unit, step, row, 1));
        json_put_end(writer);
    }
    json_put_end(writer);
}

/* ---- confirm -------------------------------------------------------------------------------- */

/* The one that was fetched, if any was. */
SQL_STATEMENT(settle, "UPDATE welcome_targets SET state = $4, why = $5, changed_ms = $6 WHERE " MINE
                      " AND state <= 1 AND (seq, ref) = " NEWEST_OPEN("state DESC, "));
SQL_STATEMENT(get_state,
    "SELECT state FROM welcome_targets WHERE " MINE " ORDER BY changed_ms DESC, seq DESC LIMIT 1");
/* A device that is in needs nobody to add it. */
SQL_STATEMENT(complete_additions,
    "UPDATE device_additions SET state = 2, changed_ms = $4 WHERE convo = $1 AND did = $2"
    " AND state <> 2 AND device IN (SELECT device FROM welcome_targets WHERE " MINE
    " AND welcome_targets.state = 2 AND welcome_targets.changed_ms = $4)");

struct settling {
    int64_t state;
};

static void welcome_settled(struct http_request *request, const struct tr_event *event)
{
    const struct settling *settling = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    bool is_known;
    int64_t state;

    if (unit == NULL)
        return;
    is_known = sql_unit_rows(unit, 2) == 1;
    state = is_known ? sql_row_int(unit, 2, 0, 0) : -1;
    db_query_end(request);
    if (state == settling->state) /* now, or by the same call before */
        http_respond(request, 200, "application/json", SPAN("{\"confirmed\":true}"));
    else if (state == WELCOME_CONFIRMED)
        http_respond_error(request, 409, "WelcomeConfirmed", "this Welcome was confirmed before");
    else
        respond_none(request, is_known);
}

void api_confirm_welcome(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct settling *settling = http_alloc(request, sizeof *settling);
    struct span convo, device, why, did = auth_claims_of(request)->issuer;
    int64_t now_ms = delivery_now_ms(delivery);
    struct sql_unit *unit;
    struct api_body body;

    if (settling == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    if (!api_query_begin(request, &body))
        return;
    convo = json_need_string(&body.expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    settling->state = json_need_bool(&body.expect, "success") ? WELCOME_CONFIRMED : WELCOME_INVALID;
    why = json_may_string(&body.expect, "errorDetails", 0, WHY_SIZE_MAX);
    device = api_query_may_device(&body);
    if (!api_query_is_good(request, &body))
        return;
    unit = api_query_unit(request, api_query_key(did));
    if (unit != NULL) {
        add_mine(unit, &settle, convo, did, device);
        sql_unit_int(unit, settling->state);
        sql_unit_text(unit, why.at == NULL ? SPAN("") : why);
        sql_unit_int(unit, now_ms);
        add_mine(unit, &get_state, convo, did, device);
        add_mine(unit, &complete_additions, convo, did, device);
        sql_unit_int(unit, now_ms);
    }
    api_query_end(&body);
    db_query_run_with(request, delivery, unit, false, welcome_settled, settling, NULL);
}

/* ---- invalidate, reissue -------------------------------------------------------------------- */

SQL_STATEMENT(invalidate,
    "UPDATE welcome_targets SET state = 3, why = $4, changed_ms = $5 WHERE " MINE
    " AND state <= 1");

static void add_invalidate(struct sql_unit *unit, struct span convo, struct span did,
    struct span device, struct span why, int64_t now_ms)
{
    add_mine(unit, &invalidate, convo, did, device);
    sql_unit_text(unit, why.at == NULL ? SPAN("") : why);
    sql_unit_int(unit, now_ms);
}

static void welcome_invalidated(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    int64_t count, known;

    if (unit == NULL)
        return;
    count = sql_unit_changed(unit, 1);
    known = sql_row_int(unit, 2, 0, 0); /* none open, but one made invalid before: the same again */
    db_query_end(request);
    if (known == 0) {
        respond_none(request, false);
        return;
    }
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "invalidated", true);
    json_put_int(&writer, "count", count);
    json_put_end(&writer);
    api_query_respond(request, &answer);
}

void api_invalidate_welcome(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct span convo, device, why, did = auth_claims_of(request)->issuer;
    struct sql_unit *unit;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    convo = json_need_string(&body.expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    why = json_may_string(&body.expect, "reason", 0, WHY_SIZE_MAX);
    device = api_query_may_device(&body);
    if (!api_query_is_good(request, &body))
        return;
    unit = api_query_unit(request, api_query_key(did));
    if (unit != NULL) {
        add_invalidate(unit, convo, did, device, why, delivery_now_ms(delivery));
        add_mine(unit, &count_unconfirmed, convo, did, device);
    }
    api_query_end(&body);
    db_query_run(request, delivery, unit, false, welcome_invalidated);
}

SQL_STATEMENT(find_request,
    "SELECT id FROM device_additions WHERE convo = $1 AND did = $2 AND device = $3"
    " AND state <> 2 AND EXISTS (SELECT 1 FROM members m WHERE m.convo = $1 AND m.did = $2"
    " AND m.leave_seq IS NULL)");
SQL_STATEMENT(count_others,
    "SELECT COUNT(*) FROM members WHERE convo = $1 AND did <> $2 AND leave_seq IS NULL");

/* Lives as long as the request. */
struct reissue {
    struct span convo, device;
};

static void welcome_reissued(struct http_request *request, const struct tr_event *event)
{
    const struct reissue *reissue = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    if (sql_unit_rows(unit, 3) == 0) {
        db_query_end(request);
        http_respond_error(request, 403, "NotMember", "you are not a member of this conversation");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "requested", true);
    json_put_string(&writer, "requestId", sql_row_bytes(unit, 3, 0, 0));
    json_put_int(&writer, "activeMembers", sql_row_int(unit, 4, 0, 0));
    json_put_end(&writer);
    db_query_end(request);
    notice_tell(http_service(request), reissue->convo,
        &(struct notice){ .kind = DELIVERY_READDITION,
            .did = auth_claims_of(request)->issuer,
            .device = reissue->device });
    api_query_respond(request, &answer);
}

/* NULL: it has been answered. */
static struct reissue *reissue_new(
    struct http_request *request, struct span convo, struct span device)
{
    struct reissue *reissue = http_alloc(request, sizeof *reissue + convo.size + device.size);
    char *text = (char *)(reissue + 1);

    if (reissue == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return NULL;
    }
    memcpy(text, convo.at, convo.size);
    if (device.size > 0)
        memcpy(text + convo.size, device.at, device.size);
    reissue->convo = (struct span){ text, convo.size };
    reissue->device = (struct span){ text + convo.size, device.size };
    return reissue;
}

/* The server cannot make a Welcome: a member must add the device again. The wish stands among the
 * pending device additions, where members look for work, and who listens hears of it. This is
 * readdition too. */
void api_reissue_welcome(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct span convo, device, why, did = auth_claims_of(request)->issuer;
    int64_t now_ms = delivery_now_ms(delivery);
    struct reissue *reissue;
    struct sql_unit *unit;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    convo = json_need_string(&body.expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    why = json_may_string(&body.expect, "reason", 0, WHY_SIZE_MAX);
    device = api_query_may_device(&body);
    if (!api_query_is_good(request, &body))
        return;
    reissue = reissue_new(request, convo, device);
    if (reissue == NULL) {
        api_query_end(&body);
        return;
    }
    unit = api_query_unit(request, api_query_key(did));
    if (unit != NULL) {
        add_invalidate(unit, convo, did, device, why, now_ms);
        device_add_request(
            unit, &(struct device_request){
                      .convo = convo, .did = did, .device = device, .why = why, .now_ms = now_ms });
        add_mine(unit, &find_request, convo, did, device);
        sql_unit_step(unit, &count_others, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_text(unit, did);
    }
    api_query_end(&body);
    db_query_run_with(request, delivery, unit, false, welcome_reissued, reissue, NULL);
}

/* ---- validate: what a committer asks before it commits -------------------------------------- */

enum { VALIDATE_REFS_MAX = 100, VALIDATE_LEASE_S = 300 };

/* Makes sure of them until the commit is there. Only who holds the lease, or could, learns whose
 * they are. A lease is never made shorter. What a device brought is for who has claimed its
 * addition. */
#define IS_CLAIMED PACKAGE_IS_BROUGHT_AND(" AND a.state = 1 AND a.claimed_by = $2")
SQL_STATEMENT(reserve,
    "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state ELSE 1 END,"
    " lease_until_s = CASE WHEN lease_did = $2 AND lease_until_s > $4 THEN lease_until_s ELSE $4"
    " END, lease_did = $2 WHERE ref = $1 AND not_after_s > $3 AND (is_last_resort = 1"
    " OR state = 0 OR (state = 1 AND (lease_did = $2 OR lease_until_s <= $3)))"
    " AND (NOT " PACKAGE_IS_BROUGHT " OR " IS_CLAIMED ")"
    " RETURNING ref, did, device, is_last_resort, lease_until_s");
SQL_STATEMENT(find_reference, "SELECT state FROM key_packages WHERE ref = $1");

struct validation {
    uint32_t count;
    struct span recipient; /* absent: any */
};

static void put_recipients(struct json_writer *writer, const struct sql_unit *unit, uint32_t count)
{
    json_put_array(writer, "recipients");
    for (uint32_t i = 0; i < count; i++) {
        uint32_t step = 1 + 2 * i;

        json_put_object(writer, NULL);
        json_put_string(writer, "did", sql_row_bytes(unit, step, 0, 1));
        json_put_string(writer, "deviceId", sql_row_bytes(unit, step, 0, 2));
        api_query_put_hex(writer, "keyPackageHash", sql_row_bytes(unit, step, 0, 0));
        json_put_bool(writer, "lastResort", sql_row_int(unit, step, 0, 3) != 0);
        delivery_put_time(writer, "reservedUntil", sql_row_int(unit, step, 0, 4) * 1000);
        json_put_end(writer);
    }
    json_put_end(writer);
}

/* What is wrong with the first one that is not good; true if all are. */
static bool are_reserved(
    struct http_request *request, const struct validation *validation, const struct sql_unit *unit)
{
    for (uint32_t i = 0; i < validation->count; i++) {
        uint32_t step = 1 + 2 * i;

        if (sql_unit_rows(unit, step + 1) == 0) {
            http_respond_error(request, 404, "KeyPackageNotFound",
                "the Welcome names a key package this server did not hand out");
            return false;
        }
        if (sql_unit_rows(unit, step) == 0) {
            http_respond_error(request, 409, "KeyPackageUnavailable",
                "the Welcome names a key package that is used, expired or claimed by another");
            return false;
        }
        if (validation->recipient.at != NULL &&
            !span_equal(validation->recipient, sql_row_bytes(unit, step, 0, 1))) {
            http_respond_error(request, 400, "WelcomeMismatch",
                "the Welcome is for somebody else than recipientDid");
            return false;
        }
    }
    return true;
}

static void welcome_validated(struct http_request *request, const struct tr_event *event)
{
    const struct validation *validation = db_query_with(request);
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit == NULL)
        return;
    if (!are_reserved(request, validation, unit)) {
        db_query_end(request);
        return;
    }
    json_put_object(&writer, NULL);
    json_put_bool(&writer, "valid", true);
    put_recipients(&writer, unit, validation->count);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

static void add_reserves(
    struct sql_unit *unit, const struct mls_message *welcome, struct span claimer, int64_t now_s)
{
    struct mls_reader list = mls_reader_of(welcome->secrets);
    struct span reference;

    while (mls_welcome_next(&list, &reference)) {
        sql_unit_step(unit, &reserve, SQL_ROWS_ANY);
        sql_unit_blob(unit, reference.at, reference.size);
        sql_unit_text(unit, claimer);
        sql_unit_int(unit, now_s);
        sql_unit_int(unit, now_s + VALIDATE_LEASE_S);
        sql_unit_step(unit, &find_reference, SQL_ROWS_ANY);
        sql_unit_blob(unit, reference.at, reference.size);
    }
}

/* NULL, or what is wrong. */
static const char *check_welcome(struct span bytes, struct mls_message *ret_welcome)
{
    const char *why = mls_message_read(bytes, ret_welcome);

    if (why == NULL && ret_welcome->wire != MLS_WELCOME)
        why = "this message is no Welcome";
    if (why == NULL && mls_suite_of(ret_welcome->suite) == NULL)
        why = "the cipher suite is not one this server knows";
    if (why == NULL && ret_welcome->secret_count == 0)
        why = "the Welcome is for nobody";
    if (why == NULL && ret_welcome->secret_count > VALIDATE_REFS_MAX)
        why = "the Welcome is for more than 100 devices: validate it in parts";
    return why;
}

void api_validate_welcome(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct validation *validation = http_alloc(request, sizeof *validation + DID_SIZE_MAX);
    struct span bytes, recipient;
    struct mls_message welcome;
    struct sql_unit *unit;
    struct api_body body;
    const char *why;

    if (validation == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    if (!api_query_begin(request, &body))
        return;
    bytes = api_need_bytes(&body, "welcomeMessage", WELCOME_SIZE_MAX);
    recipient = json_may_string(&body.expect, "recipientDid", DID_SIZE_MIN, DID_SIZE_MAX);
    if (!api_query_is_good(request, &body))
        return;
    why = check_welcome(bytes, &welcome);
    if (why != NULL) {
        api_refuse(request, &body, 400, "InvalidWelcome", why);
        return;
    }
    validation->count = welcome.secret_count;
    if (recipient.at != NULL) {
        validation->recipient =
            (struct span){ memcpy(validation + 1, recipient.at, recipient.size), recipient.size };
    }
    unit = api_query_unit(request, PACKAGE_CLAIMS_KEY);
    if (unit != NULL)
        add_reserves(unit, &welcome, body.act->claims->issuer, api_query_now_s(delivery));
    api_query_end(&body);
    db_query_run_with(request, delivery, unit, false, welcome_validated, validation, NULL);
}
