/* SPDX-License-Identifier: Apache-2.0 */
/* unread_api.c: read cursors and unread counts. Messages of others behind an account's cursor are
 * unread. A conversation that the account unread_marked counts one while there are none. Marking twice is
 * fine; a cursor at the newest message clears the mark. */
#include "services/delivery/api/calls.h"
#include "services/delivery/store/log_store.h"

static void fill_cursor(struct api_body *body)
{
    act_read_to(body->act)->seq = (uint64_t)api_value(body, "seq")->number;
}

static void put_success(struct json_writer *writer, struct act *act)
{
    (void)act;
    json_put_bool(writer, "success", true);
}

const struct api_call api_update_cursor = {
    .type = &read_to_act_type,
    .params = PARAMS(PARAM_CONVO, { "seq", PARAM_INT, PARAM_REQUIRED, .max = INT64_MAX }),
    .fill = fill_cursor,
    .put = put_success,
};

/* ---- mark ----------------------------------------------------------------------------------- */

static const struct call count_unread = {
    .params = PARAMS(PARAM_CONVO),
    .unit = CALL_READS,
    .steps = CALL_STEPS(STEP(log_count_unread_in, "convoId @caller",
        .missing = REFUSE_STRANGER)), /* removed meanwhile */
    .fields = FIELDS(INT_OF("unreadCount", 0, 0)),
};

/* The mark is stored; the database counts the unread messages. */
static void unread_marked(struct http_request *request, struct act *act)
{
    const struct delivery *delivery = http_service(request);

    tr_assert(act->status == 200);
    call_begin(request, &delivery->calls, &count_unread);
}

const struct api_call api_mark_unread = {
    .type = &mark_unread_act_type,
    .params = PARAMS(PARAM_CONVO),
    .answer = unread_marked,
};

/* ---- count ---------------------------------------------------------------------------------- */

static void put_total(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    const struct call_run *run = call_run_of(source);
    int64_t total = 0;

    for (uint32_t row = 0; row < call_rows(run, 0); row++)
        total += sql_row_int(run->unit, call_step(run, 0), row, 1);
    json_put_int(writer, field->name, total);
}

const struct call call_get_unread = {
    .steps = CALL_STEPS(STEP(log_count_unread, "@caller")),
    .fields = FIELDS(
        { "conversations", FIELD_MAP, MAP_ROWS(0) }, { "total", FIELD_INT, .put = put_total }),
    .is_large = true,
};

/* ---- delivery status ------------------------------------------------------------------------- */

/* A sender asks how far its own messages came, by the ids it gave them: how many others were members
 * when a message was sent, and how many of those have read it. */
static const char *const statuses[] = { "unknown", "stored", NULL };

const struct call call_get_delivery_status = {
    .params =
        PARAMS(PARAM_CONVO, { "messageIds", PARAM_IDS, PARAM_REQUIRED, .min = 1, .max = 100 }),
    IN_CONVO(ROLE_MEMBER),
    .steps = CALL_STEPS(STEP(log_find_status, "convoId @item @caller", .each = "messageIds")),
    .fields = FIELDS(EACH_STEP("statuses", 0, { "messageId", FIELD_TEXT, FIELD_ITEM("messageIds") },
        { "status", FIELD_CHOICE, FIELD_HAS_ROWS(0), .choices = statuses },
        INT_AT("seq", 0, OPTIONAL), INT_AT("epoch", 1, OPTIONAL), TIME_AT("storedAt", 2, OPTIONAL),
        INT_AT("recipients", 3, OPTIONAL), INT_AT("read", 4, OPTIONAL))),
};
