/* SPDX-License-Identifier: Apache-2.0 */
/* message_api.c: sending messages and proposals over HTTP. history_api.c reads them. */
#include "crypto/digest.h"
#include "services/common/text.h"
#include "services/delivery/api/calls.h"

static void put_sent(struct json_writer *writer, struct act *act)
{
    const struct buffer *stored_id = &act->content->stored_id;

    json_put_string(writer, "messageId",
        stored_id->size > 0 ? (struct span){ stored_id->bytes, stored_id->size }
                            : act_message(act)->id);
    text_put_time(writer, "receivedAt", act->result_ms);
    json_put_int(writer, "seq", (int64_t)act->result_seq);
    json_put_int(writer, "epoch", (int64_t)act->result_epoch);
}

/* Reads one message of the wanted content. NULL, or what is wrong. */
static const char *read_message(struct act_content *message, enum mls_content content)
{
    struct mls_message *mls = &message->mls;
    const char *why = mls_envelope_read(message->bytes, mls);

    if (why == NULL)
        why = mls_message_check(mls);
    if (why != NULL)
        return why;
    if (mls->wire != MLS_PRIVATE && (content == MLS_APPLICATION || mls->wire != MLS_PUBLIC))
        return "An application message must be a private message.";
    if (mls->content != content)
        return content == MLS_APPLICATION ? "ciphertext is not an application message."
                                          : "proposal is not a proposal.";
    if (content == MLS_APPLICATION && mls->epoch == 0)
        return "Members cannot send messages in epoch 0.";
    crypto_sha256(message->bytes.at, message->bytes.size, message->sha256);
    return NULL;
}

#define PARAM_ID PARAM_NEED_TEXT("msgId", 1, 128)

static void fill_message(struct api_body *body)
{
    struct act_content *content = body->act->content;
    struct json_expect *expect = &body->reader.expect;
    struct span id = api_text(body, "msgId"), key = api_text(body, "idempotencyKey");
    struct span delivery = api_text(body, "delivery");
    int64_t padded = api_value(body, "paddedSize")->number;
    const char *why;

    act_message(body->act)->id = id;
    content->bytes = api_text(body, "ciphertext");
    if (padded >= 0 && (size_t)padded != content->bytes.size)
        json_expect_fail(expect, "paddedSize", "must be the size of ciphertext");
    if (delivery.at != NULL && !span_is(delivery, "persistent") && !span_is(delivery, "ephemeral"))
        json_expect_fail(expect, "delivery", "must be persistent or ephemeral");
    why = expect->failed ? NULL : read_message(content, MLS_APPLICATION);
    if (why != NULL)
        api_refuse(body, 400, "InvalidMessage", why);
    else if (content->mls.epoch != (uint64_t)api_value(body, "epoch")->number)
        json_expect_fail(expect, "epoch", "must be the epoch inside the message");
    if (delivery.at != NULL && span_is(delivery, "ephemeral"))
        act_become(body->act, &ephemeral_act_type);
    api_set_op(body, key.at != NULL ? "op" : "msg", key.at != NULL ? key : id);
}

const struct api_call api_send_message = {
    .type = &message_act_type,
    .raw = "ciphertext",
    .params = PARAMS(PARAM_CONVO, PARAM_ID,
        { "ciphertext", PARAM_MLS, PARAM_REQUIRED, .max = MESSAGE_SIZE_MAX },
        { "epoch", PARAM_INT, PARAM_REQUIRED, .max = INT64_MAX },
        { "paddedSize", PARAM_INT, .max = MESSAGE_SIZE_MAX, .fallback = -1 },
        PARAM_MAY_TEXT("delivery", 1, 16), PARAM_MAY_TEXT("idempotencyKey", 1, 128)),
    .fill = fill_message,
    .put = put_sent,
};

static void fill_proposal(struct api_body *body)
{
    struct act_content *content = body->act->content;
    const char *why;

    act_message(body->act)->id = api_text(body, "msgId");
    content->bytes = api_text(body, "proposal");
    why = read_message(content, MLS_PROPOSAL);
    if (why != NULL)
        api_refuse(body, 400, "InvalidMessage", why);
    else if (api_delivery(body)->mode == DELIVERY_ASSISTED && content->mls.wire != MLS_PUBLIC)
        api_refuse(body, 400, "PublicHandshakeRequired",
            "In assisted mode proposals must be public messages.");
    api_set_op(body, "msg", api_text(body, "msgId"));
}

const struct api_call api_send_proposal = {
    .type = &proposal_act_type,
    .raw = "proposal",
    .params = PARAMS(
        PARAM_CONVO, PARAM_ID, { "proposal", PARAM_MLS, PARAM_REQUIRED, .max = COMMIT_SIZE_MAX }),
    .is_checked = true,
    .fill = fill_proposal,
    .put = put_sent,
};
