/* SPDX-License-Identifier: Apache-2.0 */
/* receipt_api.c: getReceipts. receipt.h says what a receipt is and how to verify one. */
#include <string.h>

#include "auth/did.h"
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/text.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/convo/receipt.h"
#include "services/delivery/store/schema.h"

SQL_STATEMENT(find_head, "SELECT seq, chain, kept_chain, kept_from FROM convos WHERE id = $1");
SQL_STATEMENT(find_member, "SELECT 1 FROM members WHERE convo = $1 AND did = $2"
                           " AND leave_seq IS NULL");
SQL_STATEMENT(find_newest, "SELECT seq FROM log WHERE convo = $1 AND receipt IS NOT NULL"
                           " ORDER BY seq DESC LIMIT 1");
SQL_STATEMENT(find_previous, "SELECT receipt FROM log WHERE convo = $1 AND seq < $2"
                             " AND receipt IS NOT NULL ORDER BY seq DESC LIMIT 1");
SQL_STATEMENT(list_receipts,
    "SELECT seq, kind, base_epoch, sha256, receipt FROM log WHERE convo = $1 AND seq >= $2"
    " AND receipt IS NOT NULL ORDER BY seq LIMIT $3");

enum { STEP_HEAD, STEP_MEMBER, STEP_NEWEST, STEP_PREVIOUS, STEP_ROWS };

static const char *kind_of(int64_t kind)
{
    switch (kind) {
    case LOG_REVOKED:
        return "revokedCommit";
    case LOG_REVOKE:
        return "revocation";
    case LOG_FORMER:
        return "formerCommit";
    case LOG_RESET:
        return "reset";
    default:
        return "commit";
    }
}

static struct span previous_of(const struct sql_unit *unit)
{
    static const char zeros[32];

    if (sql_unit_rows(unit, STEP_PREVIOUS) > 0)
        return sql_row_bytes(unit, STEP_PREVIOUS, 0, 0);
    if (!sql_row_is_null(unit, STEP_HEAD, 0, 2))
        return sql_row_bytes(unit, STEP_HEAD, 0, 2);
    return (struct span){ zeros, sizeof zeros };
}

static void put_rows(struct json_writer *writer, const struct sql_unit *unit, struct span convo)
{
    char id[DELIVERY_ID_SIZE];

    json_put_array(writer, "receipts");
    for (uint32_t i = 0; i < sql_unit_rows(unit, STEP_ROWS); i++) {
        json_put_object(writer, NULL);
        json_put_string(writer, "id",
            delivery_message_id(
                (struct span){ NULL, 0 }, convo, (uint64_t)sql_row_int(unit, STEP_ROWS, i, 0), id));
        json_put_int(writer, "seq", sql_row_int(unit, STEP_ROWS, i, 0));
        json_put_text(writer, "kind", kind_of(sql_row_int(unit, STEP_ROWS, i, 1)));
        json_put_int(writer, "baseEpoch", sql_row_int(unit, STEP_ROWS, i, 2));
        api_query_put_hex(writer, "sha256", sql_row_bytes(unit, STEP_ROWS, i, 3));
        api_query_put_hex(writer, "receipt", sql_row_bytes(unit, STEP_ROWS, i, 4));
        json_put_end(writer);
    }
    json_put_end(writer);
}

/* The newest receipt, signed. Nothing if there is none yet. */
static int put_signed(struct json_writer *writer, const struct delivery *delivery,
    const struct sql_unit *unit, struct span convo)
{
    struct span receipt = sql_row_bytes(unit, STEP_HEAD, 0, 1);
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];
    struct buffer statement = { 0 };
    char did[DID_KEY_CHARS_MAX];
    uint64_t seq;
    int rc;

    if (receipt.size != 32)
        return 0;
    if (sql_unit_rows(unit, STEP_NEWEST) > 0)
        seq = (uint64_t)sql_row_int(unit, STEP_NEWEST, 0, 0);
    else if (!sql_row_is_null(unit, STEP_HEAD, 0, 2))
        seq = (uint64_t)sql_row_int(unit, STEP_HEAD, 0, 3) - 1; /* it is no longer kept */
    else
        return 0;
    receipt_statement(&statement, convo, seq, receipt.at);
    rc = statement.failed != 0
             ? statement.failed
             : crypto_key_sign(delivery->receipt_key, statement.bytes, statement.size, signature);
    buffer_free(&statement);
    if (rc < 0)
        return rc;
    json_put_object(writer, "signed");
    json_put_int(writer, "seq", (int64_t)seq);
    api_query_put_hex(writer, "receipt", receipt);
    delivery_put_bytes(writer, "signature",
        (struct span){ (const char *)signature, crypto_key_signature_size(delivery->receipt_key) });
    if (did_key_format(delivery->receipt_key, did) > 0)
        json_put_text(writer, "publicKey", did);
    json_put_end(writer);
    return 0;
}

static void receipts_read(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    struct span convo;
    int rc;

    if (unit == NULL)
        return;
    if (sql_unit_rows(unit, STEP_HEAD) == 0 || sql_unit_rows(unit, STEP_MEMBER) == 0) {
        bool is_there = sql_unit_rows(unit, STEP_HEAD) > 0;

        db_query_end(request);
        http_respond_error(request, is_there ? 403 : 404, is_there ? "NotMember" : "ConvoNotFound",
            is_there ? "you are not a member of this conversation"
                     : "there is no such conversation");
        return;
    }
    (void)http_parameter(request, "convoId", &convo);
    json_put_object(&writer, NULL);
    json_put_string(&writer, "convoId", convo);
    json_put_int(&writer, "oldestSeq", sql_row_int(unit, STEP_HEAD, 0, 3));
    api_query_put_hex(&writer, "previous", previous_of(unit));
    put_rows(&writer, unit, convo);
    rc = put_signed(&writer, http_service(request), unit, convo);
    json_put_end(&writer);
    db_query_end(request);
    if (rc < 0 && answer.failed == 0)
        answer.failed = rc;
    api_query_respond(request, &answer);
}

void api_get_receipts(struct http_request *request)
{
    uint64_t from = 0, limit = 100;
    struct span convo;
    struct sql_unit *unit;

    if (!api_query_query_convo(request, &convo) ||
        !api_query_query_number(request, "fromSeq", INT64_MAX, &from) ||
        !api_query_query_number(request, "limit", 1000, &limit))
        return;
    unit = sql_unit_create(0);
    if (unit != NULL) {
        sql_unit_step(unit, &find_head, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_step(unit, &find_member, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_step(unit, &find_newest, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_step(unit, &find_previous, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_int(unit, (int64_t)from);
        sql_unit_step(unit, &list_receipts, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_int(unit, (int64_t)from);
        sql_unit_int(unit, (int64_t)limit);
    }
    db_query_run(request, http_service(request), unit, true, receipts_read);
}
