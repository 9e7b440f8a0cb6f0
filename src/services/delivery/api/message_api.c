/* SPDX-License-Identifier: Apache-2.0 */
/* message_api.c: messages over HTTP. Sending goes through the conversation; reading goes to the
 * database, bounded by when the caller was a member; a poll with nothing new is answered by the
 * conversation, if that is in memory. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/digest.h"
#include "json/json_write.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/text.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/delivery_metrics.h"
#include "services/delivery/store/db_query.h"
#include "services/delivery/store/schema.h"

/* ---- sending -------------------------------------------------------------------------------- */

static void put_sent(struct json_writer *writer, struct act *act)
{
    const struct buffer *stored_id = &act->content->stored_id;

    json_put_string(writer, "messageId",
        stored_id->size > 0 ? (struct span){ stored_id->bytes, stored_id->size }
                            : act_message(act)->id);
    delivery_put_time(writer, "receivedAt", act->result_ms);
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

/* ---- reading -------------------------------------------------------------------------------- */

SQL_STATEMENT(find_convo, "SELECT c.epoch, c.seq, c.kept_from, c.group_info_epoch, (SELECT "
                          "MIN(l.base_epoch) + 1 FROM log l"
                          " WHERE l.convo = c.id AND l.kind = 3) FROM convos c WHERE c.id = $1");
/* Since when the caller was in, as far as it is in what is asked for; whether it is in; when it
 * left. */
SQL_STATEMENT(find_member,
    "SELECT MIN(CASE WHEN leave_seq IS NULL OR leave_seq > $3 THEN join_seq END),"
    " MAX(CASE WHEN leave_seq IS NULL THEN 1 ELSE 0 END), MAX(leave_seq)"
    " FROM members WHERE convo = $1 AND did = $2 HAVING COUNT(*) > 0");
/* Only what was said while the caller was in, the commit that removed it included; of no commit
 * that is revoked (4) or of a former group (6), nobody needs them. This is asked more often than
 * anything else: so it is one statement, whose first row says how the conversation and the caller
 * are (enum head_column) and whose others are of the log (enum log_column); and no sum is kept of
 * what the rows have: each may have its part of LOG_PAGE_BYTES ($6), and a larger one comes only
 * when it is asked for by its number ($7). */
#define LIST_LOG(of_kind)                                                                          \
    "SELECT MAX(c.epoch), MAX(c.seq), MAX(c.kept_from),"                                           \
    " MIN(CASE WHEN m.leave_seq IS NULL OR m.leave_seq > $3 THEN m.join_seq END),"                 \
    " NULL, NULL, NULL, NULL,"                                                                     \
    " MAX(CASE WHEN m.did IS NULL THEN NULL WHEN m.leave_seq IS NULL THEN 1 ELSE 0 END)"           \
    " FROM convos c LEFT JOIN members m ON m.convo = c.id AND m.did = $2 WHERE c.id = $1"          \
    " UNION ALL SELECT * FROM (SELECT l.seq, l.kind, l.base_epoch, l.epoch, l.message_id, l.op,"   \
    " l.sender, CASE WHEN LENGTH(l.bytes) <= $6 OR l.seq = $7 THEN l.bytes END, l.created_ms"      \
    " FROM log l WHERE l.convo = $1 AND l.seq > $3 AND " of_kind                                   \
    " AND l.kind <> 4 AND l.kind <> 6 AND l.epoch >= $8" LOG_SEEN_BY(                              \
        "$1", "$2") " ORDER BY l.seq LIMIT $5) AS page"
SQL_STATEMENT(list_log, LIST_LOG("l.kind <= $4"));
SQL_STATEMENT(list_rare, LIST_LOG("l.kind <> 1 AND l.kind = $4")); /* by the index log_kinds */
enum head_column { HEAD_EPOCH, HEAD_SEQ, HEAD_KEPT_FROM, HEAD_JOIN_SEQ, HEAD_IS_IN = 8 };
enum log_column {
    LOG_SEQ,
    LOG_KIND,
    LOG_BASE_EPOCH,
    LOG_EPOCH,
    LOG_NAME,
    LOG_OP,
    LOG_SENDER,
    LOG_BYTES,
    LOG_CREATED_MS,
};
enum { COMMITS_MAX = 1000 };
SQL_STATEMENT(list_commits,
    LOG_CUT("l.seq, l.kind, l.base_epoch, l.epoch, " LOG_MESSAGE_ID
            ", l.bytes, l.created_ms, l.sender, (SELECT COUNT(*) FROM page)",
        "SELECT l.seq AS seq, LENGTH(l.bytes) AS size FROM log l WHERE l.convo = $1 AND l.kind = 3"
        " AND l.base_epoch >= $3 AND l.base_epoch < $4" LOG_SEEN_BY(
            "$1", "$2") " ORDER BY l.base_epoch LIMIT $5",
        "$1", "$6"));
enum { STEP_CONVO, STEP_MEMBER, STEP_LOG };
enum { GAPS_MAX = 100, LIMIT_DEFAULT = 50, ANSWER_HEAD_BYTES = 256, ANSWER_ROW_BYTES = 256 };

/* The first two steps of a read of a conversation whose speed does not matter most. */
static struct sql_unit *read_unit(struct http_request *request, struct span convo, uint64_t since)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit == NULL)
        return NULL;
    sql_unit_step(unit, &find_convo, SQL_ROWS_ANY);
    sql_unit_text(unit, convo);
    sql_unit_step(unit, &find_member, SQL_ROWS_ANY);
    sql_unit_text(unit, convo);
    sql_unit_text(unit, auth_claims_of(request)->issuer);
    sql_unit_int(unit, (int64_t)since);
    return unit;
}

/* Rows from `since` on, of those the caller was in for, are no longer kept. */
static bool is_compacted(const struct sql_unit *unit, uint64_t since)
{
    int64_t from = (int64_t)since;

    if (sql_row_is_null(unit, STEP_MEMBER, 0, 0))
        return false;
    if (from < sql_row_int(unit, STEP_MEMBER, 0, 0))
        from = sql_row_int(unit, STEP_MEMBER, 0, 0);
    return from < sql_row_int(unit, STEP_CONVO, 0, 2) - 1;
}

static bool is_caller_in(const struct sql_unit *unit)
{
    return sql_row_int(unit, STEP_MEMBER, 0, 1) == 1;
}

/* The epoch of the oldest commit that is kept. */
static int64_t oldest_epoch(const struct sql_unit *unit)
{
    return sql_row_is_null(unit, STEP_CONVO, 0, 4) ? sql_row_int(unit, STEP_CONVO, 0, 0) + 1
                                                   : sql_row_int(unit, STEP_CONVO, 0, 4);
}

/* 410, and where there is something: resume there, or join again with the group info. Who is out
 * hears of what it may still read, and not how far the others are. */
static void respond_compacted(struct http_request *request, const struct sql_unit *unit)
{
    int64_t kept_from = sql_row_int(unit, STEP_CONVO, 0, 2);
    bool is_in = is_caller_in(unit);
    bool may_resume = is_in || kept_from <= sql_row_int(unit, STEP_MEMBER, 0, 2);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    json_put_object(&writer, NULL);
    json_put_text(&writer, "error", "HistoryCompacted");
    json_put_text(&writer, "message",
        may_resume ? "what you ask for is no longer kept: resume at oldestSeq"
                   : "what you ask for is no longer kept");
    if (may_resume)
        json_put_int(&writer, "oldestSeq", kept_from);
    if (is_in)
        json_put_int(&writer, "oldestEpoch", oldest_epoch(unit));
    if (is_in && !sql_row_is_null(unit, STEP_CONVO, 0, 3))
        json_put_int(&writer, "groupInfoEpoch", sql_row_int(unit, STEP_CONVO, 0, 3));
    json_put_end(&writer);
    db_query_end(request);
    if (answer.failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 410, "application/json", &answer);
    buffer_free(&answer);
}

/* NULL: it has been answered. */
static struct sql_unit *read_back(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);

    if (unit == NULL)
        return NULL;
    if (sql_unit_rows(unit, STEP_CONVO) == 0)
        http_respond_error(request, 404, "ConvoNotFound", "there is no such conversation");
    else if (sql_unit_rows(unit, STEP_MEMBER) == 0)
        http_respond_error(request, 403, "NotMember", "you are not a member of this conversation");
    else
        return unit;
    db_query_end(request);
    return NULL;
}

static void respond(struct http_request *request, struct buffer *answer)
{
    if (answer->failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else if (!delivery_may_answer(http_service(request), answer->size))
        http_respond_shed(request, 503, 1, "answers");
    else
        http_respond_buffer(request, 200, "application/json", answer);
    buffer_free(answer);
}

/* ---- getMessages ---------------------------------------------------------------------------- */

static int64_t head_int(const struct sql_unit *unit, enum head_column column)
{
    return sql_row_int(unit, 0, 0, (uint32_t)column);
}

static bool head_has(const struct sql_unit *unit, enum head_column column)
{
    return !sql_row_is_null(unit, 0, 0, (uint32_t)column);
}

/* Rows of the log are numbered from 1: before them is the head. */
static int64_t log_int(const struct sql_unit *unit, uint32_t row, enum log_column column)
{
    return sql_row_int(unit, 0, row, (uint32_t)column);
}

static struct span log_bytes(const struct sql_unit *unit, uint32_t row, enum log_column column)
{
    return sql_row_is_null(unit, 0, row, (uint32_t)column)
               ? (struct span){ NULL, 0 }
               : sql_row_bytes(unit, 0, row, (uint32_t)column);
}

static uint32_t log_count(const struct sql_unit *unit)
{
    return sql_unit_rows(unit, 0) - 1;
}

/* As LOG_MESSAGE_ID, which costs the database more. */
static struct span given_id(const struct sql_unit *unit, uint32_t row)
{
    struct span name = log_bytes(unit, row, LOG_NAME), op = log_bytes(unit, row, LOG_OP);
    size_t before = sizeof "msg::" - 1 + log_bytes(unit, row, LOG_SENDER).size;

    if (name.at != NULL || !span_starts(op, "msg:") || op.size < before)
        return name;
    return (struct span){ op.at + before, op.size - before };
}

static void put_message(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t row, struct span convo)
{
    static const char *const types[] = { [MLS_APPLICATION] = "app",
        [MLS_PROPOSAL] = "proposal",
        [MLS_COMMIT] = "commit",
        [LOG_REVOKED] = "revokedCommit",
        [LOG_REVOKE] = "commitRevoked",
        [LOG_FORMER] = "formerCommit",
        [LOG_RESET] = "groupReset" };
    int64_t kind = log_int(unit, row, LOG_KIND), seq = log_int(unit, row, LOG_SEQ);
    char id[DELIVERY_ID_SIZE];

    json_put_object(writer, NULL);
    json_put_string(
        writer, "id", delivery_message_id(given_id(unit, row), convo, (uint64_t)seq, id));
    json_put_string(writer, "convoId", convo);
    delivery_put_bytes(writer, "ciphertext", log_bytes(unit, row, LOG_BYTES));
    json_put_int(writer, "epoch", log_int(unit, row, LOG_EPOCH));
    json_put_int(writer, "baseEpoch", log_int(unit, row, LOG_BASE_EPOCH));
    json_put_int(writer, "seq", seq);
    delivery_put_time(writer, "createdAt", log_int(unit, row, LOG_CREATED_MS));
    json_put_text(
        writer, "messageType", types[kind >= 1 && kind <= LOG_RESET ? kind : MLS_APPLICATION]);
    json_put_end(writer);
}

/* Who is no longer in does not hear how far the others are. */
static bool is_in_now(const struct sql_unit *unit)
{
    return head_int(unit, HEAD_IS_IN) == 1;
}

/* Was not everything asked for? */
static bool is_filtered(struct http_request *request)
{
    struct span text;

    return http_parameter(request, "type", &text) || http_parameter(request, "fromEpoch", &text);
}

/* Numbers between the first that could come and the last that came for which nothing is there: of
 * revoked commits, and of times the caller was not in. Not told when not everything was asked for.
 */
static void put_gaps(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t count, uint64_t since)
{
    int64_t next = (int64_t)since + 1, missing = 0;

    if (head_has(unit, HEAD_JOIN_SEQ) && next <= head_int(unit, HEAD_JOIN_SEQ))
        next = head_int(unit, HEAD_JOIN_SEQ) + 1;
    if (next < head_int(unit, HEAD_KEPT_FROM))
        next = head_int(unit, HEAD_KEPT_FROM);
    json_put_object(writer, "gapInfo");
    json_put_array(writer, "missingSeqs");
    for (uint32_t row = 1; row <= count; row++) {
        for (; next < log_int(unit, row, LOG_SEQ); next++)
            if (missing++ < GAPS_MAX)
                json_put_int(writer, NULL, next);
            else
                next = log_int(unit, row, LOG_SEQ) - 1;
        next++;
    }
    json_put_end(writer);
    json_put_bool(writer, "hasGaps", missing > 0);
    if (is_in_now(unit))
        json_put_int(
            writer, "totalMessages", head_int(unit, HEAD_SEQ) - head_int(unit, HEAD_KEPT_FROM) + 1);
    json_put_end(writer);
}

static void ask_messages(struct http_request *request, int64_t large_seq);

static uint64_t limit_of(struct http_request *request)
{
    uint64_t limit = LIMIT_DEFAULT;
    struct span text;

    if (http_parameter(request, "limit", &text))
        (void)span_u64(text, &limit);
    return limit;
}

/* How many of the rows go into this answer: up to one that is too large to come with others. */
static uint32_t count_of(struct http_request *request, const struct sql_unit *unit)
{
    uint64_t limit = limit_of(request);
    uint32_t count = 0;

    while (
        count < limit && count < log_count(unit) && !sql_row_is_null(unit, 0, count + 1, LOG_BYTES))
        count++;
    return count;
}

static void compacted_read(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = read_back(request, event);

    if (unit != NULL)
        respond_compacted(request, unit);
}

/* 409, and where the log is. What was read is not older than the request, and who has a number has
 * it from what was stored before: this one is of a database that is no more. */
static void respond_ahead(struct http_request *request, const struct sql_unit *unit)
{
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    json_put_object(&writer, NULL);
    json_put_text(&writer, "error", "CursorAhead");
    json_put_text(&writer, "message", "the log ends before sinceSeq: go on at currentSeq");
    json_put_int(&writer, "currentSeq", head_int(unit, HEAD_SEQ));
    json_put_int(&writer, "currentEpoch", head_int(unit, HEAD_EPOCH));
    json_put_end(&writer);
    db_query_end(request);
    if (answer.failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 409, "application/json", &answer);
    buffer_free(&answer);
}

/* False: another answer was given or is on its way. */
static bool may_list(struct http_request *request, const struct sql_unit *unit, struct span convo,
    const uint64_t *since)
{
    int64_t from = since == NULL ? INT64_MAX : (int64_t)*since;

    if (head_has(unit, HEAD_JOIN_SEQ) && from < head_int(unit, HEAD_JOIN_SEQ))
        from = head_int(unit, HEAD_JOIN_SEQ);
    if (!head_has(unit, HEAD_EPOCH)) {
        http_respond_error(request, 404, "ConvoNotFound", "there is no such conversation");
    } else if (!head_has(unit, HEAD_IS_IN)) {
        http_respond_error(request, 403, "NotMember", "you are not a member of this conversation");
    } else if (since != NULL && head_has(unit, HEAD_JOIN_SEQ) &&
               from < head_int(unit, HEAD_KEPT_FROM) - 1) {
        db_query_end(request);
        db_query_run(request, http_service(request), read_unit(request, convo, *since), true,
            compacted_read);
        return false;
    } else if (since != NULL && is_in_now(unit) && (int64_t)*since > head_int(unit, HEAD_SEQ)) {
        respond_ahead(request, unit);
        return false;
    } else {
        return true;
    }
    db_query_end(request);
    return false;
}

static void put_messages(
    struct json_writer *writer, const struct sql_unit *unit, struct span convo, uint32_t count)
{
    json_put_array(writer, "messages");
    for (uint32_t row = 1; row <= count; row++)
        put_message(writer, unit, row, convo);
    json_put_end(writer);
    if (count > 0)
        json_put_int(writer, "lastSeq", log_int(unit, count, LOG_SEQ));
    json_put_bool(writer, "hasMore", log_count(unit) > count);
}

/* About as much as the answer will have. */
static size_t answer_size(const struct sql_unit *unit, struct span convo, uint32_t count)
{
    size_t size = ANSWER_HEAD_BYTES;

    for (uint32_t row = 1; row <= count; row++)
        size += log_bytes(unit, row, LOG_BYTES).size * 4 / 3 + convo.size + ANSWER_ROW_BYTES;
    return size;
}

static void messages_read(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = db_query_unit(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    struct span convo, text;
    uint64_t since = 0;
    bool has_since;
    uint32_t count;

    if (unit == NULL)
        return;
    (void)http_parameter(request, "convoId", &convo);
    has_since = http_parameter(request, "sinceSeq", &text) && span_u64(text, &since);
    if (!may_list(request, unit, convo, has_since ? &since : NULL))
        return;
    count = count_of(request, unit);
    if (count == 0 && log_count(unit) > 0) {
        int64_t seq = log_int(unit, 1, LOG_SEQ);

        db_query_end(request);
        ask_messages(request, seq);
        return;
    }
    /* All of it at once, and not by doubling: what fails here fails below too. */
    (void)buffer_reserve(&answer, answer_size(unit, convo, count));
    json_put_object(&writer, NULL);
    put_messages(&writer, unit, convo, count);
    if (!is_filtered(request))
        put_gaps(&writer, unit, count, since);
    if (is_in_now(unit)) {
        json_put_int(&writer, "currentSeq", head_int(unit, HEAD_SEQ));
        json_put_int(&writer, "currentEpoch", head_int(unit, HEAD_EPOCH));
    }
    json_put_end(&writer);
    db_query_end(request);
    respond(request, &answer);
}

/* What getMessages is asked for. */
struct page {
    struct span convo;
    uint64_t limit, since, epoch_min;
    int64_t kind; /* 0: any */
};

/* False: it has been answered. */
static bool read_page(struct http_request *request, struct page *ret_page)
{
    static const char *const types[] = { "app", "proposal", "commit" };
    struct page page = { .limit = LIMIT_DEFAULT };
    int64_t type = 0;
    int found;

    if (!api_query_query_convo(request, &page.convo) ||
        !api_query_query_range(request, "limit", 1, 100, &page.limit) ||
        !api_query_query_range(request, "sinceSeq", 0, INT64_MAX - 1, &page.since) ||
        !api_query_query_range(request, "fromEpoch", 0, INT64_MAX, &page.epoch_min))
        return false;
    found = api_query_query_choice(request, "type", types, 3, &type);
    if (found == 1)
        page.kind = MLS_APPLICATION + type;
    *ret_page = page;
    return found >= 0;
}

/* The row `large_seq` comes whatever its size; it is the first. */
static void ask_page(struct http_request *request, const struct page *page, int64_t large_seq)
{
    struct sql_unit *unit = sql_unit_create(0);

    if (unit != NULL) {
        sql_unit_step(unit, page->kind > MLS_APPLICATION ? &list_rare : &list_log, SQL_ROWS_ANY);
        sql_unit_text(unit, page->convo);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_int(unit, (int64_t)page->since);
        sql_unit_int(unit, page->kind == 0 ? LOG_RESET : page->kind);
        sql_unit_int(unit, (int64_t)page->limit + 1); /* one more, to know that there is more */
        sql_unit_int(unit, LOG_PAGE_BYTES / (int64_t)page->limit);
        sql_unit_int(unit, large_seq);
        sql_unit_int(unit, (int64_t)page->epoch_min);
    }
    db_query_run(request, http_service(request), unit, true, messages_read);
}

static void ask_messages(struct http_request *request, int64_t large_seq)
{
    struct page page;

    if (read_page(request, &page))
        ask_page(request, &page, large_seq);
}

/* As messages_read says it of a page without rows. */
static void put_nothing_new(struct http_request *request, struct act *act)
{
    struct json_writer writer = json_writer(&act->answer);

    (void)buffer_reserve(&act->answer, ANSWER_HEAD_BYTES);
    json_put_object(&writer, NULL);
    json_put_array(&writer, "messages");
    json_put_end(&writer);
    json_put_bool(&writer, "hasMore", false);
    if (!is_filtered(request)) {
        json_put_object(&writer, "gapInfo");
        json_put_array(&writer, "missingSeqs");
        json_put_end(&writer);
        json_put_bool(&writer, "hasGaps", false);
        json_put_int(
            &writer, "totalMessages", (int64_t)(act->result_seq - act_poll(act)->kept_from + 1));
        json_put_end(&writer);
    }
    json_put_int(&writer, "currentSeq", (int64_t)act->result_seq);
    json_put_int(&writer, "currentEpoch", (int64_t)act->result_epoch);
    json_put_end(&writer);
}

/* The conversation had no answer, or ended before it gave one: the database has it. Unless nobody
 * waits for it any more. */
static void poll_answered(struct http_request *request, const struct tr_event *event)
{
    struct act *act = http_data(request);

    if (event->status == TR_ECANCELLED || event->status == TR_ETIMEOUT) {
        api_end(request);
        http_respond_lost(request, event->status, false, "conversation");
    } else if (event->status < 0 || act->status != 200 || act_poll(act)->must_read) {
        api_end(request);
        ask_messages(request, 0);
    } else {
        delivery_metrics_add(DELIVERY_METRIC_POLLS, 1);
        put_nothing_new(request, act);
        if (act->answer.failed != 0)
            http_respond_shed(request, 503, 1, "memory");
        else
            http_respond_buffer(request, 200, "application/json", &act->answer);
        api_end(request);
    }
}

/* Who has a cursor most often has everything: its conversation knows, if it is in memory. It is not
 * woken for that: reading it would cost what the page does. */
static bool poll(struct http_request *request, const struct page *page)
{
    struct act *act;

    if (page->since == 0)
        return false;
    act = act_create(&poll_act_type, auth_claims_of(request));
    if (act == NULL)
        return false;
    act->convo = page->convo; /* the request's: until it is sent */
    act_poll(act)->seq = page->since;
    return api_send_if_live(request, act, poll_answered);
}

void api_get_messages(struct http_request *request)
{
    struct page page;

    if (read_page(request, &page) && !poll(request, &page))
        ask_page(request, &page, 0);
}

/* ---- getCommits ----------------------------------------------------------------------------- */

static void put_id(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t row, struct span convo)
{
    struct span given = { NULL, 0 };
    char text[DELIVERY_ID_SIZE];

    if (!sql_row_is_null(unit, STEP_LOG, row, 4))
        given = sql_row_bytes(unit, STEP_LOG, row, 4);
    json_put_string(writer, "id",
        delivery_message_id(given, convo, (uint64_t)sql_row_int(unit, STEP_LOG, row, 0), text));
}

/* One commit may be had as it is. */
static bool respond_one_commit(struct http_request *request, const struct sql_unit *unit)
{
    struct buffer answer = { 0 };

    if (sql_unit_rows(unit, STEP_LOG) != 1 || !api_wants_mls(request) ||
        sql_row_bytes(unit, STEP_LOG, 0, 5).size == 0)
        return false;
    buffer_span(&answer, sql_row_bytes(unit, STEP_LOG, 0, 5));
    db_query_end(request);
    if (answer.failed != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 200, "message/mls", &answer);
    buffer_free(&answer);
    return true;
}

/* A commit that led to epoch `from`, or a later one, is no longer kept. Who is out finds that out
 * by what it may see: the epoch of the oldest commit may be one that it has never heard of. */
static bool is_commit_gone(const struct sql_unit *unit, uint64_t from)
{
    if (!is_compacted(unit, 0))
        return false;
    if (is_caller_in(unit))
        return (int64_t)from < oldest_epoch(unit);
    return sql_unit_rows(unit, STEP_LOG) == 0 || (int64_t)from < sql_row_int(unit, STEP_LOG, 0, 3);
}

static void commits_read(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = read_back(request, event);
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);
    struct span convo, from_text;
    uint64_t from = 0;
    uint32_t count;

    if (unit == NULL)
        return;
    (void)http_parameter(request, "convoId", &convo);
    if (http_parameter(request, "fromEpoch", &from_text) && span_u64(from_text, &from) &&
        is_commit_gone(unit, from)) {
        respond_compacted(request, unit);
        return;
    }
    if (respond_one_commit(request, unit))
        return;
    json_put_object(&writer, NULL);
    json_put_string(&writer, "convoId", convo);
    json_put_array(&writer, "commits");
    count = sql_unit_rows(unit, STEP_LOG);
    for (uint32_t i = 0; i < count && i < COMMITS_MAX; i++) {
        json_put_object(&writer, NULL);
        put_id(&writer, unit, i, convo);
        json_put_int(&writer, "epoch", sql_row_int(unit, STEP_LOG, i, 3));
        json_put_int(&writer, "baseEpoch", sql_row_int(unit, STEP_LOG, i, 2));
        json_put_int(&writer, "seq", sql_row_int(unit, STEP_LOG, i, 0));
        json_put_string(&writer, "sender", sql_row_bytes(unit, STEP_LOG, i, 7));
        delivery_put_bytes(&writer, "commitData", sql_row_bytes(unit, STEP_LOG, i, 5));
        delivery_put_time(&writer, "createdAt", sql_row_int(unit, STEP_LOG, i, 6));
        json_put_end(&writer);
    }
    json_put_end(&writer);
    json_put_bool(&writer, "hasMore",
        count > COMMITS_MAX || (count > 0 && sql_row_int(unit, STEP_LOG, 0, 8) > count));
    json_put_end(&writer);
    db_query_end(request);
    respond(request, &answer);
}

void api_get_commits(struct http_request *request)
{
    uint64_t from = UINT64_MAX, to = INT64_MAX;
    struct span convo;
    struct sql_unit *unit;

    if (!api_query_query_convo(request, &convo) ||
        !api_query_query_range(request, "fromEpoch", 0, INT64_MAX, &from) ||
        !api_query_query_range(request, "toEpoch", 0, INT64_MAX, &to))
        return;
    if (from > to) { /* also when it is missing */
        http_respond_error(
            request, 400, "InvalidEpochRange", "fromEpoch must be there and not after toEpoch");
        return;
    }
    unit = read_unit(request, convo, 0);
    if (unit != NULL) {
        sql_unit_step(unit, &list_commits, SQL_ROWS_ANY);
        sql_unit_text(unit, convo);
        sql_unit_text(unit, auth_claims_of(request)->issuer);
        sql_unit_int(unit, (int64_t)from - 1); /* a commit leads to the epoch after its own */
        sql_unit_int(unit, (int64_t)to);
        sql_unit_int(unit, COMMITS_MAX + 1);
        sql_unit_int(unit, LOG_PAGE_BYTES);
    }
    db_query_run(request, http_service(request), unit, true, commits_read);
}
