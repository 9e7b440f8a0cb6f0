/* SPDX-License-Identifier: Apache-2.0 */
/* rejoin_api.c: a device that lost its place in a group brings a key package and asks the members
 * to add it with that one. Package, wish and count are one unit:
 *
 *   the package is good for it ──▶ the wish stands (pending), the package is kept for it
 *   a Welcome for it waits, or it was joined with ──▶ done before (approvedAt); nothing is wished
 *   anything else ──▶ refused
 *
 * So the call can be repeated until it is answered. The package is kept by the wish itself
 * (PACKAGE_IS_BROUGHT), so it is free again when that is done, changed or gone. Why a device
 * rejoins is nobody's business: a reason is taken, since clients send one, and dropped. */
#include <stdio.h>

#include "base/alloc.h"
#include "services/delivery/api/device.h"
#include "services/delivery/api/package.h"
#include "services/delivery/api/role_api.h"
#include "services/delivery/api/text.h"
#include "services/delivery/convo/notice.h"
#include "sql/unit.h"

enum { REJOINS_MAX = 10, REJOINS_MS = 3600000, REJOINS_RETRY_S = 360 };

struct rejoin {
    struct act *act; /* keeps the texts and bytes */
    struct span convo;
    struct package_rule rule;
    struct package_upload upload;
    char id[ADDITION_ID_SIZE_MAX + 1]; /* of the addition */
    uint32_t step_wish, step_welcome;
};

SQL_STATEMENT(forget_rejoins, "DELETE FROM rejoins WHERE did = $1 AND created_ms <= $2");
SQL_STATEMENT(put_rejoin, "INSERT INTO rejoins (id, did, created_ms) SELECT $1, $2, $3"
                          " WHERE (SELECT COUNT(*) FROM rejoins WHERE did = $2) < $4");
SQL_STATEMENT(
    find_member, "SELECT 1 FROM members WHERE convo = $1 AND did = $2 AND leave_seq IS NULL");
SQL_STATEMENT(find_suite, "SELECT 1 FROM convos WHERE id = $1 AND suite = $2");

/* Who is at it already goes on, and is given the new package when it asks again. */
#define IS_AT_IT(now) "device_additions.state = 1 AND device_additions.claim_until_ms > " now
SQL_STATEMENT(put_wish,
    "INSERT INTO device_additions (id, convo, did, device, kind, state, why, claim_until_ms,"
    " created_ms, changed_ms, package) SELECT $1, $2, $3, $4, 1, 0, '', 0, $5, $5, p.ref"
    " FROM key_packages p WHERE p.ref = $6 AND p.did = $3 AND p.device = $4"
    " AND p.not_after_s > $7 AND (p.is_last_resort = 1 OR p.state <> 2) AND NOT EXISTS (SELECT 1"
    " FROM welcome_targets t WHERE t.convo = $2 AND t.ref = $6 AND t.did = $3 AND t.state <= 1)"
    " ON CONFLICT (id) DO UPDATE SET package = excluded.package, kind = 1, why = '',"
    " claimed_by = CASE WHEN " IS_AT_IT(
        "$5") " THEN device_additions.claimed_by END,"
              " claim_until_ms = CASE WHEN " IS_AT_IT(
                  "$5") " THEN device_additions.claim_until_ms ELSE 0 END,"
                        " state = CASE WHEN " IS_AT_IT(
                            "$5") " THEN 1 ELSE 0 END, changed_ms = excluded.changed_ms");
/* Welcomes for what the device had before are no good to it. */
SQL_STATEMENT(end_others,
    "UPDATE welcome_targets SET state = 3, why = 'the device asked to rejoin', changed_ms = $4"
    " WHERE convo = $1 AND did = $2 AND (device = $3 OR device = '' OR $3 = '') AND state <= 1"
    " AND ref <> $6 AND EXISTS (SELECT 1 FROM device_additions a WHERE a.id = $5 AND a.package = $6"
    " AND a.state <> 2)");
/* A last resort that was joined with before is as good as new. */
SQL_STATEMENT(find_welcome,
    "SELECT w.created_ms FROM welcome_targets t JOIN welcomes w ON w.convo = t.convo"
    " AND w.seq = t.seq AND w.part = t.part WHERE t.convo = $1 AND t.ref = $2 AND t.did = $3"
    " AND (t.state <= 1 OR (t.state = 2 AND EXISTS (SELECT 1 FROM key_packages p"
    " WHERE p.ref = $2 AND p.state = 2))) ORDER BY t.seq DESC LIMIT 1");

static void rejoin_free(void *argument)
{
    struct rejoin *rejoin = argument;

    act_unref(rejoin->act);
    base_free(rejoin);
}

/* ---- storing -------------------------------------------------------------------------------- */

static void add_count(struct sql_unit *unit, const struct api_query_made *made, struct span did)
{
    sql_unit_step(unit, &forget_rejoins, SQL_ROWS_ANY);
    sql_unit_text(unit, did);
    sql_unit_int(unit, made->now_ms - REJOINS_MS);
    sql_unit_step(unit, &put_rejoin, 1);
    sql_unit_text(unit, api_query_made_id(made));
    sql_unit_text(unit, did);
    sql_unit_int(unit, made->now_ms);
    sql_unit_int(unit, REJOINS_MAX);
}

/* A package of another suite would wait for a claim that never takes it. */
static void add_checks(struct sql_unit *unit, const struct rejoin *rejoin)
{
    sql_unit_step(unit, &find_member, 1);
    sql_unit_text(unit, rejoin->convo);
    sql_unit_text(unit, rejoin->rule.did);
    sql_unit_step(unit, &find_suite, 1);
    sql_unit_text(unit, rejoin->convo);
    sql_unit_text(unit, span_of(mls_suite_of(rejoin->upload.package.suite)->name));
}

static void add_wish(struct sql_unit *unit, struct rejoin *rejoin, int64_t now_ms)
{
    const struct package_upload *upload = &rejoin->upload;
    struct span id = span_of(rejoin->id), did = rejoin->rule.did;

    rejoin->step_wish = unit->step_count;
    sql_unit_step(unit, &put_wish, SQL_ROWS_ANY);
    sql_unit_text(unit, id);
    sql_unit_text(unit, rejoin->convo);
    sql_unit_text(unit, did);
    sql_unit_text(unit, upload->device);
    sql_unit_int(unit, now_ms);
    sql_unit_blob(unit, upload->ref, upload->ref_size);
    sql_unit_int(unit, (int64_t)rejoin->rule.lifetime.now_s);

    sql_unit_step(unit, &end_others, SQL_ROWS_ANY);
    sql_unit_text(unit, rejoin->convo);
    sql_unit_text(unit, did);
    sql_unit_text(unit, upload->device);
    sql_unit_int(unit, now_ms);
    sql_unit_text(unit, id);
    sql_unit_blob(unit, upload->ref, upload->ref_size);

    rejoin->step_welcome = unit->step_count;
    sql_unit_step(unit, &find_welcome, SQL_ROWS_ANY);
    sql_unit_text(unit, rejoin->convo);
    sql_unit_blob(unit, upload->ref, upload->ref_size);
    sql_unit_text(unit, did);
}

/* ---- answering ------------------------------------------------------------------------------ */

static void refuse(struct http_request *request, const struct sql_unit *unit)
{
    const struct sql_statement *at = role_failed_at(unit);

    if (at == &put_rejoin)
        role_refuse_many(
            request, REJOINS_RETRY_S, "RateLimitExceeded", "ten times an hour are enough: wait");
    else if (at == &find_member)
        role_refuse(request, 403, "NotMember", "you are not a member of this conversation");
    else
        role_refuse(request, 400, "InvalidCipherSuite",
            "the key package is not of the cipher suite of this conversation");
}

static void respond_stored(
    struct http_request *request, struct rejoin *rejoin, const struct sql_unit *unit)
{
    bool is_pending = sql_unit_changed(unit, rejoin->step_wish) == 1;
    bool is_done = !is_pending && sql_unit_rows(unit, rejoin->step_welcome) == 1;
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (!is_pending && !is_done) {
        role_refuse(request, 409, "KeyPackageUnavailable",
            "this key package was used or is another device's: bring a new one");
        return;
    }
    json_put_object(&writer, NULL);
    json_put_string(&writer, "requestId", span_of(rejoin->id));
    json_put_bool(&writer, "pending", is_pending);
    if (is_done)
        delivery_put_time(&writer, "approvedAt", sql_row_int(unit, rejoin->step_welcome, 0, 0));
    json_put_end(&writer);
    db_query_end(request);
    if (is_pending)
        notice_tell(http_service(request), rejoin->convo,
            &(struct notice){ .kind = DELIVERY_READDITION,
                .did = rejoin->rule.did,
                .device = rejoin->upload.device });
    api_query_respond(request, &answer);
}

static void rejoin_stored(struct http_request *request, const struct tr_event *event)
{
    struct rejoin *rejoin = db_query_with(request);
    struct sql_unit *unit = db_query_any_unit(request, event);

    if (unit != NULL && sql_unit_status(unit) != 0) {
        refuse(request, unit);
    } else if (unit != NULL) {
        package_stored(&rejoin->upload, unit);
        if (rejoin->upload.label == NULL) {
            respond_stored(request, rejoin, unit);
        } else {
            db_query_end(request);
            package_respond_refused(request, &rejoin->upload);
        }
    }
    rejoin_free(rejoin);
}

/* ---- the call ------------------------------------------------------------------------------- */

static int check_work(void *argument)
{
    struct rejoin *rejoin = argument;

    package_check(&rejoin->upload, &rejoin->rule);
    return 0;
}

static void rejoin_checked(struct http_request *request, const struct tr_event *event)
{
    struct rejoin *rejoin = (struct rejoin *)(uintptr_t)event->value;
    struct delivery *delivery = http_service(request);
    const struct api_query_made *made;
    struct sql_unit *unit;

    if (rejoin->upload.label != NULL) { /* nothing changes, so the token is not used up */
        package_respond_refused(request, &rejoin->upload);
        rejoin_free(rejoin);
        return;
    }
    made = api_query_make(request);
    if (made == NULL) {
        rejoin_free(rejoin);
        return;
    }
    (void)snprintf(rejoin->id, sizeof rejoin->id, "%.*s#%.*s/%.*s", (int)rejoin->rule.did.size,
        rejoin->rule.did.at, (int)rejoin->upload.device.size, rejoin->upload.device.at,
        (int)rejoin->convo.size, rejoin->convo.at);
    unit = api_query_unit(request, api_query_key(rejoin->rule.did));
    if (unit != NULL) {
        add_count(unit, made, rejoin->rule.did);
        add_checks(unit, rejoin);
        package_add_steps(unit, &rejoin->upload, &rejoin->rule, delivery->lease_s, false);
        add_wish(unit, rejoin, made->now_ms);
    }
    db_query_run_with(request, delivery, unit, false, rejoin_stored, rejoin, rejoin_free);
}

void api_rejoin(struct http_request *request)
{
    struct package_upload upload;
    struct span convo, device;
    struct rejoin *rejoin;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    convo = json_need_string(&body.expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    package_read(&body.expect, &upload);
    device = api_query_may_device(&body);
    (void)json_may_string(&body.expect, "reason", 0, WHY_SIZE_MAX);
    if (!api_query_is_good(request, &body))
        return;
    rejoin = base_calloc(sizeof *rejoin);
    if (rejoin == NULL) {
        api_query_end(&body);
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    rejoin->act = body.act;
    rejoin->convo = convo;
    rejoin->upload = upload;
    rejoin->rule = package_rule_of(http_service(request), body.act->claims->issuer, device);
    json_doc_free(&body.doc);
    if (http_offload(request, check_work, rejoin, rejoin_free, rejoin_checked) == 0)
        return;
    rejoin_free(rejoin);
    http_respond_shed(request, 503, 1, "busy");
}
