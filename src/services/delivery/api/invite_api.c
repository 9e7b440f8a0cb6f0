/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/api/invite_api.h"

#include <string.h>

#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/delivery/api/package.h"
#include "services/delivery/api/role_api.h"
#include "services/delivery/api/text.h"

enum { HASH_SIZE = 32 };

/* ---- what a joiner shows -------------------------------------------------------------------- */

void invite_read_secret(struct api_body *body, struct act_invite *invite)
{
    struct span text = json_may_string(&body->expect, "psk", 1, 1024), bytes;

    if (text.at == NULL || body->expect.failed)
        return;
    invite->is_given = true;
    crypto_sha256(text.at, text.size, invite->hashes[0]);
    memcpy(invite->hashes[1], invite->hashes[0], HASH_SIZE);
    /* Decodes where it is: after the text was looked at. */
    if (delivery_get_bytes(json_get(body->expect.object, "psk"), text.size, &bytes))
        crypto_sha256(bytes.at, bytes.size, invite->hashes[1]);
}

static bool read_hash(struct span text, unsigned char hash[HASH_SIZE])
{
    size_t size;

    return text.size == (size_t)2 * HASH_SIZE &&
           crypto_hex_decode(text, hash, HASH_SIZE, &size) == 0 && size == HASH_SIZE;
}

bool invite_read_hash(
    struct http_request *request, struct api_body *body, struct act_invite *invite)
{
    struct span text = { 0 };
    int found = api_query_query(request, "pskHash", &text);

    if (found < 0)
        api_query_end(body);
    if (found <= 0)
        return found == 0;
    if (!read_hash(text, invite->hashes[0])) {
        api_refuse(request, body, 400, "InvalidRequest", "pskHash must be 64 hex digits");
        return false;
    }
    memcpy(invite->hashes[1], invite->hashes[0], HASH_SIZE);
    invite->is_given = true;
    return true;
}

/* ---- views ---------------------------------------------------------------------------------- */

struct invite {
    struct span id, convo, hash, target, created_by;
    int64_t max_uses, uses, created_ms, expires_ms, revoked_ms;
};

static void put_invite(struct json_writer *writer, const struct invite *invite)
{
    json_put_string(writer, "inviteId", invite->id);
    json_put_string(writer, "convoId", invite->convo);
    api_query_put_hex(writer, "pskHash", invite->hash);
    json_put_string(writer, "createdBy", invite->created_by);
    if (invite->target.size > 0)
        json_put_string(writer, "targetDid", invite->target);
    if (invite->max_uses > 0)
        json_put_int(writer, "maxUses", invite->max_uses);
    json_put_int(writer, "usesCount", invite->uses);
    delivery_put_time(writer, "createdAt", invite->created_ms);
    delivery_put_time(writer, "expiresAt", invite->expires_ms);
    if (invite->revoked_ms > 0)
        delivery_put_time(writer, "revokedAt", invite->revoked_ms);
}

/* ---- create --------------------------------------------------------------------------------- */

SQL_STATEMENT(put_invite_row,
    "INSERT INTO invites (id, convo, psk_hash, target, max_uses, uses, created_by, created_ms,"
    " expires_ms) SELECT $1, $2, $3, $4, $5, 0, $6, $7, $8 WHERE (SELECT COUNT(*) FROM invites"
    " WHERE convo = $2 AND revoked_ms IS NULL AND expires_ms > $7) < $9");

struct new_invite {
    struct act *act; /* keeps the texts */
    struct invite invite;
    char id[AUDIT_ID_SIZE];
    unsigned char hash[HASH_SIZE];
};

static struct role_question asks_admin(struct span convo)
{
    return (struct role_question){ &role_in_convo, convo, ROLE_ADMIN };
}

static void drop_invite(void *with)
{
    act_unref(((struct new_invite *)with)->act);
}

static void invite_stored(struct http_request *request, const struct tr_event *event)
{
    struct new_invite *new = db_query_with(request);
    struct act *act = new->act; /* what it is in goes when the request is answered */
    struct sql_unit *unit = role_back(request, event, &role_in_convo);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    if (unit != NULL && sql_unit_status(unit) == SQL_ECONSTRAINT) {
        role_refuse(request, 409, "InviteExists", "there is an invite with this secret already");
    } else if (unit != NULL && sql_unit_status(unit) != 0) {
        role_refuse_many(request, INVITES_RETRY_S, "TooManyInvites", "revoke another invite first");
    } else if (unit != NULL) {
        json_put_object(&writer, NULL);
        put_invite(&writer, &new->invite);
        json_put_end(&writer);
        db_query_end(request);
        api_query_respond(request, &answer);
    }
    act_unref(act);
}

/* When it ends, in milliseconds. */
static int64_t read_end(struct api_body *body, int64_t now_ms)
{
    struct span text = json_may_string(&body->expect, "expiresAt", 1, 40);
    int64_t end_s;

    if (text.at == NULL)
        return now_ms + (int64_t)INVITE_DAYS * 86400000;
    if (!delivery_get_time(text, &end_s) || end_s <= now_ms / 1000 ||
        end_s > now_ms / 1000 + (int64_t)INVITE_DAYS_MAX * 86400) {
        json_expect_fail(&body->expect, "expiresAt", "must be a time within the next 365 days");
        return 0;
    }
    return end_s * 1000;
}

static void read_invite(struct api_body *body, struct new_invite *new, int64_t now_ms)
{
    struct invite *invite = &new->invite;

    invite->convo = json_need_string(&body->expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    if (!read_hash(json_need_string(&body->expect, "pskHash", 1, 128), new->hash))
        json_expect_fail(&body->expect, "pskHash", "must be 64 hex digits");
    invite->target = json_may_string(&body->expect, "targetDid", DID_SIZE_MIN, DID_SIZE_MAX);
    invite->max_uses = json_may_int(&body->expect, "maxUses", 1, INVITE_USES_MAX, 0);
    invite->expires_ms = read_end(body, now_ms);
    invite->created_ms = now_ms;
    invite->created_by = body->act->claims->issuer;
    invite->id = (struct span){ new->id, sizeof new->id };
    invite->hash = (struct span){ (const char *)new->hash, sizeof new->hash };
}

static void add_invite(
    const struct delivery *delivery, struct sql_unit *unit, const struct invite *invite)
{
    if (unit == NULL)
        return;
    sql_unit_step(unit, &put_invite_row, 1);
    sql_unit_text(unit, invite->id);
    sql_unit_text(unit, invite->convo);
    sql_unit_blob(unit, invite->hash.at, invite->hash.size);
    if (invite->target.at == NULL)
        sql_unit_null(unit);
    else
        sql_unit_text(unit, invite->target);
    sql_unit_int(unit, invite->max_uses);
    sql_unit_text(unit, invite->created_by);
    sql_unit_int(unit, invite->created_ms);
    sql_unit_int(unit, invite->expires_ms);
    sql_unit_int(unit, INVITES_MAX);
    audit_add(delivery, unit,
        &(struct audit_entry){ .actor = invite->created_by,
            .action = "createInvite",
            .convo = invite->convo,
            .target = invite->target,
            .now_ms = invite->created_ms });
}

void api_create_invite(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct new_invite *new = http_alloc(request, sizeof *new);
    struct role_question asked;
    struct sql_unit *unit;
    struct api_body body;

    if (new == NULL) {
        http_respond_shed(request, 503, 1, "memory");
        return;
    }
    if (!api_query_begin(request, &body))
        return;
    audit_new_id(delivery, new->id);
    read_invite(&body, new, delivery_now_ms(delivery));
    if (!api_query_is_good(request, &body))
        return;
    json_doc_free(&body.doc);
    new->act = body.act;
    asked = asks_admin(new->invite.convo);
    unit = role_write(request, &asked);
    add_invite(delivery, unit, &new->invite);
    db_query_run_with(request, delivery, unit, false, invite_stored, new, drop_invite);
}

/* ---- list ----------------------------------------------------------------------------------- */

SQL_STATEMENT(list_invites,
    "SELECT id, psk_hash, target, max_uses, uses, created_by, created_ms, expires_ms, revoked_ms"
    " FROM invites WHERE convo = $1 AND (revoked_ms IS NULL OR CAST($2 AS BIGINT) = 1)"
    " ORDER BY created_ms DESC, id LIMIT 1000");

static struct span may_bytes(const struct sql_unit *unit, uint32_t row, uint32_t column)
{
    return sql_row_is_null(unit, ROLE_STEPS, row, column)
               ? (struct span){ NULL, 0 }
               : sql_row_bytes(unit, ROLE_STEPS, row, column);
}

static int64_t may_int(const struct sql_unit *unit, uint32_t row, uint32_t column)
{
    return sql_row_is_null(unit, ROLE_STEPS, row, column)
               ? 0
               : sql_row_int(unit, ROLE_STEPS, row, column);
}

static void invites_listed(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = role_back(request, event, &role_in_convo);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    struct span convo;

    if (unit == NULL)
        return;
    (void)http_parameter(request, "convoId", &convo);
    json_put_object(&writer, NULL);
    json_put_array(&writer, "invites");
    for (uint32_t row = 0; row < sql_unit_rows(unit, ROLE_STEPS); row++) {
        json_put_object(&writer, NULL);
        put_invite(&writer, &(struct invite){ .id = may_bytes(unit, row, 0),
                                .convo = convo,
                                .hash = may_bytes(unit, row, 1),
                                .target = may_bytes(unit, row, 2),
                                .max_uses = may_int(unit, row, 3),
                                .uses = may_int(unit, row, 4),
                                .created_by = may_bytes(unit, row, 5),
                                .created_ms = may_int(unit, row, 6),
                                .expires_ms = may_int(unit, row, 7),
                                .revoked_ms = may_int(unit, row, 8) });
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_end(&writer);
    db_query_end(request);
    api_query_respond(request, &answer);
}

void api_list_invites(struct http_request *request)
{
    static const char *const truths[] = { "false", "true" };
    struct role_question asked;
    struct sql_unit *unit;
    struct span convo;
    int64_t is_all = 0;

    if (!api_query_query_convo(request, &convo) ||
        api_query_query_choice(request, "includeRevoked", truths, 2, &is_all) < 0)
        return;
    asked = asks_admin(convo);
    unit = role_read(request, &asked);
    if (unit != NULL) {
        sql_unit_step(unit, &list_invites, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_int(unit, is_all);
    }
    db_query_run(request, http_service(request), unit, true, invites_listed);
}

/* ---- revoke --------------------------------------------------------------------------------- */

SQL_STATEMENT(revoke, "UPDATE invites SET revoked_ms = $2 WHERE id = $1 AND revoked_ms IS NULL");

static void invite_revoked(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = role_back(request, event, &role_of_invite);

    if (unit == NULL)
        return;
    if (sql_unit_status(unit) != 0) {
        role_refuse(request, 409, "AlreadyRevoked", "this invite is revoked already");
        return;
    }
    db_query_end(request);
    http_respond(request, 200, "application/json", SPAN("{\"success\":true}"));
}

void api_revoke_invite(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct role_question asked = { &role_of_invite, { NULL, 0 }, ROLE_ADMIN };
    struct sql_unit *unit;
    struct api_body body;

    if (!api_query_begin(request, &body))
        return;
    asked.id = json_need_string(&body.expect, "inviteId", 1, 64);
    if (!api_query_is_good(request, &body))
        return;
    unit = role_write(request, &asked);
    if (unit != NULL) {
        sql_unit_step(unit, &revoke, 1);
        sql_unit_text(unit, asked.id);
        sql_unit_int(unit, delivery_now_ms(delivery));
        audit_add(delivery, unit,
            &(struct audit_entry){ .actor = auth_claims_of(request)->issuer,
                .action = "revokeInvite",
                .invite = asked.id,
                .now_ms = delivery_now_ms(delivery) });
    }
    api_query_end(&body);
    db_query_run(request, delivery, unit, false, invite_revoked);
}
