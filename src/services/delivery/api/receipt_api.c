/* SPDX-License-Identifier: Apache-2.0 */
/* receipt_api.c: getReceipts. receipt.h says what a receipt is and how to verify one. */
#include "auth/did.h"
#include "base/assert.h"
#include "services/common/text.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/convo/receipt.h"
#include "services/delivery/store/log_store.h"
#include "services/delivery/store/schema.h"

enum { STEP_HEAD, STEP_MEMBER, STEP_ROWS };
enum { CHAIN_NEWEST, CHAIN_SEQ, CHAIN_KEPT_FROM, CHAIN_PREVIOUS };

static const char *const receipt_kinds[] = { "commit", "commit", "commit",
    "commit", [LOG_REVOKED] = "revokedCommit", [LOG_REVOKE] = "revocation",
    [LOG_FORMER] = "formerCommit", [LOG_RESET] = "reset", NULL };

/* The receipt before the first one of the answer; zeros before the first of all. */
static void put_previous(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    static const char zeros[32];
    struct span previous = call_bytes(call_run_of(source), STEP_HEAD, CHAIN_PREVIOUS);

    text_put_hex(
        writer, field->name, previous.size > 0 ? previous : (struct span){ zeros, sizeof zeros });
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
    struct span receipt = call_bytes(run, STEP_HEAD, CHAIN_NEWEST);
    int64_t seq;
    int rc;

    if (receipt.size != 32 || sql_row_is_null(run->unit, call_step(run, STEP_HEAD), 0, CHAIN_SEQ))
        return; /* there is none yet */
    seq = call_int(run, STEP_HEAD, CHAIN_SEQ);
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
    .steps = CALL_STEPS([STEP_HEAD] =
                            STEP(receipt_find_head, "convoId fromSeq", .missing = REFUSE_NO_CONVO),
        [STEP_MEMBER] = STEP(role_find_member, "convoId @caller", .missing = REFUSE_STRANGER),
        [STEP_ROWS] = STEP(receipt_list, "convoId fromSeq limit")),
    .fields = FIELDS(SAME_TEXT("convoId"), INT_OF("oldestSeq", STEP_HEAD, CHAIN_KEPT_FROM),
        { "previous", FIELD_HEX, .put = put_previous },
        ROWS("receipts", STEP_ROWS, MESSAGE_ID(0), INT_AT("seq", 0),
            CHOICE_AT("kind", 1, receipt_kinds), INT_AT("baseEpoch", 2), HEX_AT("sha256", 3),
            HEX_AT("receipt", 4)),
        { "signed", FIELD_OBJECT, OPTIONAL, .put = put_signed,
            .fields = FIELDS(INT_AT("seq", 0), HEX_AT("receipt", 0), BYTES_AT("signature", 0),
                TEXT_AT("publicKey", 0, OPTIONAL)) }),
};
