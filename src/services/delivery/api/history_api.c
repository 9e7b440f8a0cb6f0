/* SPDX-License-Identifier: Apache-2.0 */
/* history_api.c: reading the log of a conversation over HTTP: getMessages and getCommits. The
 * database answers, bounded by when the caller was a member. A poll with nothing new is answered by
 * the conversation, if that is in memory. */
#include "base/assert.h"
#include "services/common/text.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/delivery_metrics.h"
#include "services/delivery/store/log_store.h"
#include "services/delivery/store/schema.h"

enum { GAPS_MAX = 100, LIMIT_DEFAULT = 50, ANSWER_HEAD_BYTES = 256, ANSWER_ROW_BYTES = 256 };
enum { STEP_CONVO, STEP_MEMBER, STEP_COMMITS };

/* ---- compaction ----------------------------------------------------------------------------- */

static int64_t convo_int(const struct call_run *run, uint32_t column)
{
    tr_assert(call_rows(run, STEP_CONVO) > 0);
    return call_int(run, STEP_CONVO, column);
}

static bool is_caller_in(const struct call_run *run)
{
    tr_assert(call_rows(run, STEP_MEMBER) > 0);
    return call_int(run, STEP_MEMBER, 1) == 1;
}

/* The epoch of the oldest commit that is kept. */
static int64_t oldest_epoch(const struct call_run *run)
{
    return sql_row_is_null(run->unit, call_step(run, STEP_CONVO), 0, 4) ? convo_int(run, 0) + 1
                                                                        : convo_int(run, 4);
}

/* A number that helps a client go on; less than 0: it is left out. */
struct history_hint {
    const char *name;
    int64_t number;
};
enum { HINTS_MAX = 3 };

/* Answer with an error that has members of its own. Always false. */
static bool history_refuse(struct call_run *run, unsigned status, const char *label,
    const char *text, const struct history_hint hints[HINTS_MAX])
{
    struct buffer answer = { 0 };
    struct json_writer writer = json_writer(&answer);

    json_put_object(&writer, NULL);
    json_put_text(&writer, "error", label);
    json_put_text(&writer, "message", text);
    for (int i = 0; i < HINTS_MAX; i++)
        if (hints[i].name != NULL && hints[i].number >= 0)
            json_put_int(&writer, hints[i].name, hints[i].number);
    json_put_end(&writer);
    return call_respond_instead(run, status, "application/json", &answer);
}

/* Answers 410 with oldestSeq, oldestEpoch and groupInfoEpoch. A former member gets only what it may
 * still read. */
static bool refuse_compacted(struct call_run *run)
{
    int64_t kept_from = convo_int(run, 2);
    bool is_in = is_caller_in(run);
    bool may_resume = is_in || kept_from <= call_int(run, STEP_MEMBER, 2);
    bool has_info = !sql_row_is_null(run->unit, call_step(run, STEP_CONVO), 0, 3);

    return history_refuse(run, 410, "HistoryCompacted",
        may_resume ? "These messages are no longer kept; resume at oldestSeq."
                   : "These messages are no longer kept.",
        (struct history_hint[HINTS_MAX]){ { "oldestSeq", may_resume ? kept_from : -1 },
            { "oldestEpoch", is_in ? oldest_epoch(run) : -1 },
            { "groupInfoEpoch", is_in && has_info ? convo_int(run, 3) : -1 } });
}

#define FIND_CONVO [STEP_CONVO] = STEP(log_find_convo, "convoId", .missing = REFUSE_NO_CONVO)
#define FIND_MEMBER(...)                                                                           \
    [STEP_MEMBER] =                                                                                \
        STEP(log_find_member, "convoId @caller " __VA_ARGS__, .missing = REFUSE_STRANGER)

/* ---- getMessages ---------------------------------------------------------------------------- */

static const char *const page_types[] = { "app", "proposal", "commit", NULL };
/* check_page sets the last four; clients cannot. kind: the highest kind to list, or the only one;
 * rows: rows to read; bytes: the size up to which a row comes with its bytes; large: the seq of one
 * row that comes whatever its size. */
#define PAGE_PARAMS                                                                                \
    PARAMS(PARAM_CONVO, PARAM_LIMIT(100, LIMIT_DEFAULT),                                           \
        { "sinceSeq", PARAM_INT, .min = 0, .max = INT64_MAX - 1 },                                 \
        { "fromEpoch", PARAM_INT, .min = 0, .max = INT64_MAX },                                    \
        { "type", PARAM_CHOICE, .choices = page_types }, PARAM_OWN("kind", PARAM_INT),             \
        PARAM_OWN("rows", PARAM_INT), PARAM_OWN("bytes", PARAM_INT),                               \
        PARAM_OWN("large", PARAM_INT))

static int64_t head_int(const struct sql_unit *unit, enum head_column column)
{
    return sql_row_int(unit, 0, 0, (uint32_t)column);
}

static bool head_has(const struct sql_unit *unit, enum head_column column)
{
    return !sql_row_is_null(unit, 0, 0, (uint32_t)column);
}

/* Rows of the log are numbered from 1: row 0 is the head. */
static int64_t log_int(const struct sql_unit *unit, uint32_t row, enum log_column column)
{
    tr_assert(row > 0);
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
    tr_assert(sql_unit_rows(unit, 0) > 0); /* the head */
    return sql_unit_rows(unit, 0) - 1;
}

/* The id that the sender gave, as LOG_MESSAGE_ID has it, which costs the database more. */
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
    text_put_bytes(writer, "ciphertext", log_bytes(unit, row, LOG_BYTES));
    json_put_int(writer, "epoch", log_int(unit, row, LOG_EPOCH));
    json_put_int(writer, "baseEpoch", log_int(unit, row, LOG_BASE_EPOCH));
    json_put_int(writer, "seq", seq);
    text_put_time(writer, "createdAt", log_int(unit, row, LOG_CREATED_MS));
    json_put_text(
        writer, "messageType", types[kind >= 1 && kind <= LOG_RESET ? kind : MLS_APPLICATION]);
    json_put_end(writer);
}

/* The state of the conversation beside the rows of a page: of the first row, or of the act that found
 * that there are none. */
struct page_head {
    int64_t epoch, seq, kept_from;
    bool is_in; /* a caller who is no longer in does not hear how far the others are */
    uint32_t rows;
};

static struct page_head page_head_of(const struct call_run *run)
{
    struct act *polled = run->data;

    if (polled != NULL)
        return (struct page_head){ (int64_t)polled->result_epoch, (int64_t)polled->result_seq,
            (int64_t)act_poll(polled)->kept_from, true, 0 };
    return (struct page_head){ head_int(run->unit, HEAD_EPOCH), head_int(run->unit, HEAD_SEQ),
        head_int(run->unit, HEAD_KEPT_FROM), head_int(run->unit, HEAD_IS_IN) == 1,
        log_count(run->unit) };
}

/* Lists the seqs of the page that have no row for the caller: revoked commits, commits of a former
 * group, and times it was out. At most GAPS_MAX. */
static void put_gaps(
    struct json_writer *writer, const struct call_run *run, const struct page_head *head)
{
    const struct sql_unit *unit = run->unit;
    int64_t next = call_number(run, "sinceSeq") + 1, missing = 0;

    if (unit != NULL && head_has(unit, HEAD_JOIN_SEQ) && next <= head_int(unit, HEAD_JOIN_SEQ))
        next = head_int(unit, HEAD_JOIN_SEQ) + 1;
    if (next < head->kept_from)
        next = head->kept_from;
    json_put_object(writer, "gapInfo");
    json_put_array(writer, "missingSeqs");
    for (uint32_t row = 1; row <= run->next; row++) {
        for (; next < log_int(unit, row, LOG_SEQ); next++)
            if (missing++ < GAPS_MAX)
                json_put_int(writer, NULL, next);
            else
                next = log_int(unit, row, LOG_SEQ) - 1;
        next++;
    }
    json_put_end(writer);
    json_put_bool(writer, "hasGaps", missing > 0);
    if (head->is_in)
        json_put_int(writer, "totalMessages", head->seq - head->kept_from + 1);
    json_put_end(writer);
}

/* How many of the rows go into this answer: up to one that is too large to come with others. */
static uint32_t page_count(const struct call_run *run)
{
    uint32_t count = 0, rows = log_count(run->unit), limit = (uint32_t)call_number(run, "limit");

    while (count < limit && count < rows && !sql_row_is_null(run->unit, 0, count + 1, LOG_BYTES))
        count++;
    return count;
}

static const struct call read_compacted = {
    .params = PAGE_PARAMS,
    .steps = CALL_STEPS(FIND_CONVO, FIND_MEMBER("sinceSeq")),
    .decide = refuse_compacted,
};

static bool messages_read(struct call_run *run)
{
    static const struct refusal no_convo = REFUSE_NO_CONVO, no_member = REFUSE_STRANGER;
    const struct param_value *since = call_value(run, "sinceSeq");
    const struct sql_unit *unit = run->unit;
    int64_t from = since->number;

    tr_assert(call_step(run, 0) == 0); /* the accessors of the page count on it */
    if (!head_has(unit, HEAD_EPOCH))
        return call_refuse_with(run, &no_convo);
    if (!head_has(unit, HEAD_IS_IN))
        return call_refuse_with(run, &no_member);
    if (head_has(unit, HEAD_JOIN_SEQ) && from < head_int(unit, HEAD_JOIN_SEQ))
        from = head_int(unit, HEAD_JOIN_SEQ);
    if (since->is_given && head_has(unit, HEAD_JOIN_SEQ) &&
        from < head_int(unit, HEAD_KEPT_FROM) - 1) {
        call_next(run, &read_compacted);
        return false;
    }
    /* The read is not older than the request, and a client has a number only from what was stored
     * before: this one is of another database. */
    if (since->is_given && head_int(unit, HEAD_IS_IN) == 1 &&
        since->number > head_int(unit, HEAD_SEQ))
        return history_refuse(run, 409, "CursorAhead",
            "The log ends before sinceSeq; go on at currentSeq.",
            (struct history_hint[HINTS_MAX]){ { "currentSeq", head_int(unit, HEAD_SEQ) },
                { "currentEpoch", head_int(unit, HEAD_EPOCH) } });
    run->next = page_count(run);
    if (run->next > 0 || log_count(unit) == 0)
        return true;
    call_value(run, "large")->number = log_int(unit, 1, LOG_SEQ);
    call_next(run, run->call);
    return false;
}

/* About as much as the answer will have. */
static size_t page_size(const struct call_run *run)
{
    size_t size = ANSWER_HEAD_BYTES, each = call_text(run, "convoId").size + ANSWER_ROW_BYTES;

    for (uint32_t row = 1; row <= run->next; row++)
        size += log_bytes(run->unit, row, LOG_BYTES).size * 4 / 3 + each;
    return size;
}

static void put_page(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    struct page_head head = page_head_of(run);
    struct span convo = call_text(run, "convoId");

    tr_assert(run->next <= head.rows);
    json_put_array(writer, field->fields[0].name);
    for (uint32_t row = 1; row <= run->next; row++)
        put_message(writer, run->unit, row, convo);
    json_put_end(writer);
    if (run->next > 0)
        json_put_int(writer, "lastSeq", log_int(run->unit, run->next, LOG_SEQ));
    json_put_bool(writer, "hasMore", head.rows > run->next);
    if (!call_has(run, "type") && !call_has(run, "fromEpoch"))
        put_gaps(writer, run, &head);
    if (head.is_in) {
        json_put_int(writer, "currentSeq", head.seq);
        json_put_int(writer, "currentEpoch", head.epoch);
    }
}

/* Does log_list serve the page? It lists all kinds, or application messages, the lowest kind. */
static bool is_common_page(const struct call_run *run)
{
    return !call_has(run, "type") || call_number(run, "kind") == MLS_APPLICATION;
}

/* The database answers if the conversation had no answer, or ended before it gave one. */
static void poll_answered(struct http_request *request, const struct tr_event *event)
{
    struct call_run *run = http_data(request);
    struct act *act = run->data;

    http_set_data(request, NULL);
    if (event->status == TR_ECANCELLED || event->status == TR_ETIMEOUT) {
        http_respond_lost(request, event->status, false, "conversation");
    } else if (event->status < 0 || act->status != 200 || act_poll(act)->must_read) {
        run->data = NULL;
        call_start(run, run->call);
    } else {
        delivery_metrics_add(DELIVERY_METRIC_POLLS, 1);
        call_answer(run);
    }
    act_unref(act);
}

/* Asks the conversation's actor if it runs: a client with a cursor most often has everything. An actor
 * is not started for that, since loading the conversation costs as much as the page. Returns true if
 * the actor was asked. */
static bool page_poll(struct call_run *run)
{
    int64_t since = call_number(run, "sinceSeq");
    struct act *act = since == 0 ? NULL : act_create(&poll_act_type, auth_claims_of(run->request));

    if (act == NULL)
        return false;
    act->convo = call_text(run, "convoId"); /* the request's, until the act is sent */
    act_poll(act)->seq = (uint64_t)since;
    run->data = act;
    http_set_data(run->request, run);
    if (api_ask_if_live(run->request, act, poll_answered))
        return true;
    http_set_data(run->request, NULL);
    run->data = NULL;
    act_unref(act);
    return false;
}

static bool check_page(struct call_run *run)
{
    const struct param_value *type = call_value(run, "type");
    int64_t limit = call_number(run, "limit");

    call_value(run, "kind")->number = type->is_given ? MLS_APPLICATION + type->number : LOG_RESET;
    call_value(run, "rows")->number = limit + 1; /* one more shows that there is more */
    call_value(run, "bytes")->number = LOG_PAGE_BYTES / limit;
    return !page_poll(run);
}

/* Rows are the hottest read of the service, so `put` writes them without the table. */
const struct call call_get_messages = {
    .params = PAGE_PARAMS,
    .check = check_page,
    .steps = CALL_STEPS(STEP(log_list, "convoId @caller sinceSeq kind rows bytes large fromEpoch",
        .when = is_common_page, .otherwise = &log_list_rare)),
    .decide = messages_read,
    .answer_size = page_size,
    .is_large = true,
    .fields = FIELDS({ NULL, FIELD_PUT, .put = put_page,
        .fields = FIELDS(LIST("messages", .fields = FIELDS(TEXT_AT("id", 0), TEXT_AT("convoId", 0),
                                              BYTES_AT("ciphertext", 0), INT_AT("epoch", 0),
                                              INT_AT("baseEpoch", 0), INT_AT("seq", 0),
                                              TIME_AT("createdAt", 0), TEXT_AT("messageType", 0))),
            INT_AT("lastSeq", 0, OPTIONAL), BOOL_AT("hasMore", 0),
            { "gapInfo", FIELD_OBJECT, OPTIONAL,
                .fields = FIELDS(LIST("missingSeqs", .fields = FIELDS(INT_AT(NULL, 0))),
                    BOOL_AT("hasGaps", 0), INT_AT("totalMessages", 0, OPTIONAL)) },
            INT_AT("currentSeq", 0, OPTIONAL), INT_AT("currentEpoch", 0, OPTIONAL)) }),
};

/* ---- getCommits ----------------------------------------------------------------------------- */

static bool check_commits(struct call_run *run)
{
    const struct param_value *from = call_value(run, "fromEpoch");

    if (!from->is_given)
        return call_refuse(run, 400, "InvalidEpochRange", "fromEpoch is missing.");
    if (from->number > call_number(run, "toEpoch"))
        return call_refuse(run, 400, "InvalidEpochRange", "fromEpoch must be at most toEpoch.");
    call_value(run, "base")->number = from->number - 1;
    return true;
}

/* True if a commit that led to fromEpoch, or a later one, is no longer kept. A caller who is out is
 * told by what it may see: the epoch of the oldest commit may be one that it has never heard of. */
static bool is_commit_gone(const struct call_run *run)
{
    int64_t from = call_number(run, "fromEpoch");
    uint32_t member = call_step(run, STEP_MEMBER);

    if (sql_row_is_null(run->unit, member, 0, 0) ||
        sql_row_int(run->unit, member, 0, 0) >= convo_int(run, 2) - 1)
        return false;
    if (is_caller_in(run))
        return from < oldest_epoch(run);
    return call_rows(run, STEP_COMMITS) == 0 || from < call_int(run, STEP_COMMITS, 3);
}

/* Answers a single commit as message/mls if the client accepts that. */
static bool commits_read(struct call_run *run)
{
    struct buffer answer = { 0 };

    if (is_commit_gone(run))
        return refuse_compacted(run);
    if (call_rows(run, STEP_COMMITS) != 1 || !api_wants_mls(run->request) ||
        call_bytes(run, STEP_COMMITS, 5).size == 0)
        return true;
    buffer_span(&answer, call_bytes(run, STEP_COMMITS, 5));
    return call_respond_instead(run, 200, "message/mls", &answer);
}

void call_put_message_id(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    const struct field given = { .type = FIELD_TEXT, .at = (uint16_t)field->number };
    uint32_t step = call_step(run, source->list->step);
    char text[DELIVERY_ID_SIZE];

    json_put_string(writer, field->name,
        delivery_message_id(field->number == 0
                                ? (struct span){ NULL, 0 }
                                : field_of_cell(run->unit, &given, step, source->row).bytes,
            call_text(run, "convoId"), (uint64_t)sql_row_int(run->unit, step, source->row, 0),
            text));
}

static void put_has_more(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    uint32_t count = call_rows(run, STEP_COMMITS);

    json_put_bool(writer, field->name,
        count > COMMITS_MAX || (count > 0 && call_int(run, STEP_COMMITS, 8) > count));
}

const struct call call_get_commits = {
    .params = PARAMS(PARAM_CONVO, { "fromEpoch", PARAM_INT, .min = 0, .max = INT64_MAX },
        { "toEpoch", PARAM_INT, .min = 0, .max = INT64_MAX, .fallback = INT64_MAX },
        PARAM_OWN("base", PARAM_INT)), /* a commit leads to the epoch after its own */
    .check = check_commits,
    .steps = CALL_STEPS(FIND_CONVO, FIND_MEMBER("#", WITH(0)),
        [STEP_COMMITS] = STEP(log_list_commits, "convoId @caller base toEpoch # #",
            WITH(COMMITS_MAX + 1, LOG_PAGE_BYTES))),
    .decide = commits_read,
    .is_large = true,
    .fields = FIELDS(SAME_TEXT("convoId"),
        LIST("commits", .number = COMMITS_MAX, .step = STEP_COMMITS,
            .fields =
                FIELDS(MESSAGE_ID(4), INT_AT("epoch", 3), INT_AT("baseEpoch", 2), INT_AT("seq", 0),
                    TEXT_AT("sender", 7), BYTES_AT("commitData", 5), TIME_AT("createdAt", 6))),
        { "hasMore", FIELD_BOOL, .put = put_has_more }),
};
