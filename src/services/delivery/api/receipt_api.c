/* SPDX-License-Identifier: Apache-2.0 */
/* receipt_api.c: getReceipts. receipt.h says what a receipt is and how to verify one. */
#include "auth/did.h"
#include "base/assert.h"
#include "services/common/text.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/convo/receipt.h"
#include "services/delivery/store/log_store.h"
#include "services/delivery/store/schema.h"

enum { STEP_HEAD, STEP_MEMBER, STEP_NEWEST, STEP_PREVIOUS, STEP_ROWS };
enum { CHAIN_NEWEST = 1, CHAIN_KEPT, CHAIN_KEPT_FROM };

static const char *const receipt_kinds[] = { "commit", "commit", "commit",
    "commit", [LOG_REVOKED] = "revokedCommit", [LOG_REVOKE] = "revocation",
    [LOG_FORMER] = "formerCommit", [LOG_RESET] = "reset", NULL };

static bool has_head(const struct call_run *run, uint32_t column)
{
    return !sql_row_is_null(run->unit, call_step(run, STEP_HEAD), 0, column);
}

/* The receipt before the first one of the answer: of the log, or of the rows that are no longer
 * kept, or zeros. */
static void put_previous(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    static const char zeros[32];
    const struct call_run *run = call_run_of(source);
    struct span previous = { zeros, sizeof zeros };

    if (call_rows(run, STEP_PREVIOUS) > 0)
        previous = sql_row_bytes(run->unit, call_step(run, STEP_PREVIOUS), 0, 0);
    else if (has_head(run, CHAIN_KEPT))
        previous = sql_row_bytes(run->unit, call_step(run, STEP_HEAD), 0, CHAIN_KEPT);
    text_put_hex(writer, field->name, previous);
}

static void put_receipt_id(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    int64_t seq = sql_row_int(run->unit, call_step(run, STEP_ROWS), source->row, 0);
    char id[DELIVERY_ID_SIZE];

    json_put_string(writer, field->name,
        delivery_message_id(
            (struct span){ NULL, 0 }, call_text(run, "convoId"), (uint64_t)seq, id));
}

/* Find the newest receipt and its number. False: there is none yet. */
static bool newest_receipt(const struct call_run *run, struct span *ret_receipt, int64_t *ret_seq)
{
    uint32_t head = call_step(run, STEP_HEAD);

    tr_assert(call_rows(run, STEP_HEAD) > 0);
    *ret_receipt = sql_row_bytes(run->unit, head, 0, CHAIN_NEWEST);
    if (call_rows(run, STEP_NEWEST) > 0)
        *ret_seq = sql_row_int(run->unit, call_step(run, STEP_NEWEST), 0, 0);
    else if (has_head(run, CHAIN_KEPT)) /* its row is no longer kept */
        *ret_seq = sql_row_int(run->unit, head, 0, CHAIN_KEPT_FROM) - 1;
    else
        return false;
    return ret_receipt->size == 32;
}

static int sign_receipt(const struct call_run *run, struct span receipt, int64_t seq,
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX])
{
    struct buffer statement = { 0 };
    int rc;

    receipt_statement(&statement, call_text(run, "convoId"), (uint64_t)seq, receipt.at);
    rc = statement.failed != 0 ? statement.failed
                               : crypto_key_sign(call_delivery(run)->receipt_key, statement.bytes,
                                     statement.size, signature);
    buffer_free(&statement);
    return rc;
}

static void put_signed(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    const struct crypto_key *key = call_delivery(run)->receipt_key;
    uint8_t signature[CRYPTO_SIGNATURE_BYTES_MAX];
    char did[DID_KEY_CHARS_MAX];
    struct span receipt;
    int64_t seq;
    int rc;

    if (!newest_receipt(run, &receipt, &seq))
        return;
    rc = sign_receipt(run, receipt, seq, signature);
    if (rc < 0) {
        if (writer->out->failed == 0)
            writer->out->failed = rc;
        return;
    }
    json_put_object(writer, field->name);
    json_put_int(writer, "seq", seq);
    text_put_hex(writer, "receipt", receipt);
    text_put_bytes(writer, "signature",
        (struct span){ (const char *)signature, crypto_key_signature_size(key) });
    if (did_key_format(key, did) > 0)
        json_put_text(writer, "publicKey", did);
    json_put_end(writer);
}

const struct call call_get_receipts = {
    .params = PARAMS(
        PARAM_CONVO, { "fromSeq", PARAM_INT, .min = 1, .max = INT64_MAX }, PARAM_LIMIT(1000, 100)),
    .steps =
        CALL_STEPS([STEP_HEAD] = STEP(receipt_find_head, "convoId", .missing = REFUSE_NO_CONVO),
            [STEP_MEMBER] = STEP(role_find_member, "convoId @caller", .missing = REFUSE_STRANGER),
            [STEP_NEWEST] = STEP(receipt_find_newest, "convoId"),
            [STEP_PREVIOUS] = STEP(receipt_find_previous, "convoId fromSeq"),
            [STEP_ROWS] = STEP(receipt_list, "convoId fromSeq limit")),
    .fields = FIELDS({ "convoId", FIELD_TEXT, FIELD_PARAM("convoId") },
        INT_OF("oldestSeq", STEP_HEAD, CHAIN_KEPT_FROM),
        { "previous", FIELD_PUT, .put = put_previous, .fields = FIELDS(HEX_AT("previous", 0)) },
        LIST("receipts",
            ROWS(STEP_ROWS,
                { "id", FIELD_PUT, .put = put_receipt_id, .fields = FIELDS(TEXT_AT("id", 0)) },
                INT_AT("seq", 0), CHOICE_AT("kind", 1, receipt_kinds), INT_AT("baseEpoch", 2),
                HEX_AT("sha256", 3), HEX_AT("receipt", 4))),
        { "signed", FIELD_PUT, OPTIONAL, .put = put_signed,
            .fields = FIELDS({ "signed", FIELD_OBJECT, OPTIONAL,
                .fields = FIELDS(INT_AT("seq", 0), HEX_AT("receipt", 0), BYTES_AT("signature", 0),
                    { "publicKey", FIELD_TEXT, OPTIONAL }) }) }),
};
