/* SPDX-License-Identifier: Apache-2.0 */
/* message_api.c: sending messages and proposals over HTTP. history_api.c reads them. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/digest.h"
#include "json/json_write.h"
#include "services/common/db_query.h"
#include "services/common/param.h"
#include "services/common/text.h"
#include "services/delivery/api/api.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/delivery_metrics.h"
#include "services/delivery/store/schema.h"

/* ---- sending -------------------------------------------------------------------------------- */

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

static void message_answered(struct http_request *request, const struct tr_event *event)
{
    api_answer_with(request, event, put_sent);
}

/* Reads one message of the wanted content. NULL, or what is wrong. */
static const char *read_message(struct act_content *message, enum mls_content content)
{
    struct mls_message *mls = &message->mls;
    struct span bytes;
    const char *why = mls_envelope_open(message->bytes, &bytes);

    if (why == NULL)
        why = mls_message_read(bytes, mls);
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

void api_send_message(struct http_request *request)
{
    struct api_body body;
    struct act_content *content;
    struct span id, key, delivery;
    int64_t epoch, padded;
    const char *why;

    if (!api_begin_mls(request, &message_act_type, "ciphertext", &body))
        return;
    content = body.act->content;
    body.act->convo = json_need_string(&body.expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    id = json_need_string(&body.expect, "msgId", 1, 128);
    content->bytes = api_need_bytes(&body, "ciphertext", MESSAGE_SIZE_MAX);
    epoch = json_need_int(&body.expect, "epoch", 0, INT64_MAX);
    padded = json_may_int(&body.expect, "paddedSize", 0, MESSAGE_SIZE_MAX, -1);
    delivery = json_may_string(&body.expect, "delivery", 1, 16);
    key = json_may_string(&body.expect, "idempotencyKey", 1, 128);
    act_message(body.act)->id = id;
    if (padded >= 0 && (size_t)padded != content->bytes.size)
        json_expect_fail(&body.expect, "paddedSize", "must be the size of ciphertext");
    if (delivery.at != NULL && !span_is(delivery, "persistent") && !span_is(delivery, "ephemeral"))
        json_expect_fail(&body.expect, "delivery", "must be persistent or ephemeral");
    why = body.expect.failed ? NULL : read_message(content, MLS_APPLICATION);
    if (why != NULL) {
        api_refuse(request, &body, 400, "InvalidMessage", why);
        return;
    }
    if (!body.expect.failed && content->mls.epoch != (uint64_t)epoch)
        json_expect_fail(&body.expect, "epoch", "must be the epoch inside the message");
    if (delivery.at != NULL && span_is(delivery, "ephemeral"))
        act_become(body.act, &ephemeral_act_type);
    api_set_op(&body, key.at != NULL ? "op" : "msg", key.at != NULL ? key : id);
    api_send(request, &body, message_answered);
}

static void send_checked(struct http_request *request, struct act *act)
{
    struct api_body body = { .act = act };

    api_send(request, &body, message_answered);
}

void api_send_proposal(struct http_request *request)
{
    struct delivery *delivery = http_service(request);
    struct act_content *content;
    struct api_body body;
    const char *why;

    if (!api_begin_mls(request, &proposal_act_type, "proposal", &body))
        return;
    content = body.act->content;
    body.act->convo = json_need_string(&body.expect, "convoId", 1, ACT_CONVO_SIZE_MAX);
    act_message(body.act)->id = json_need_string(&body.expect, "msgId", 1, 128);
    content->bytes = api_need_bytes(&body, "proposal", COMMIT_SIZE_MAX);
    if (body.expect.failed) {
        api_refuse(request, &body, 400, "InvalidRequest", body.expect.message);
        return;
    }
    why = read_message(content, MLS_PROPOSAL);
    if (why != NULL) {
        api_refuse(request, &body, 400, "InvalidMessage", why);
        return;
    }
    if (delivery->mode == DELIVERY_ASSISTED && content->mls.wire != MLS_PUBLIC) {
        api_refuse(request, &body, 400, "PublicHandshakeRequired",
            "In assisted mode proposals must be public messages.");
        return;
    }
    api_set_op(&body, "msg", act_message(body.act)->id);
    json_doc_free(&body.doc);
    api_check(request, body.act, send_checked);
}
