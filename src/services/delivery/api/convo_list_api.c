/* SPDX-License-Identifier: Apache-2.0 */
/* convo_list_api.c: getConvos: the conversations a caller is in, each as getConvo shows it, but with
 * the first MEMBERS_MAX members only: memberCount says how many there are. */
#include "services/delivery/api/calls.h"
#include "services/delivery/store/log_store.h"

enum { MEMBERS_MAX = 100 };
enum { STEP_CONVOS, STEP_MEMBERS };

static const struct field member_fields[] = {
    { "did", FIELD_TEXT, .at = 1 },
    { "userDid", FIELD_TEXT, .at = 1 },
    { "joinedAt", FIELD_TIME_MS, .at = 2 },
    { "isAdmin", FIELD_BOOL, .at = 3 },
    { "isModerator", FIELD_BOOL, .at = 4 },
    FIELD_LAST,
};
static const struct field member_list = { "members", FIELD_LIST, .step = STEP_MEMBERS,
    .fields = member_fields };

/* Write the members of a conversation. Both steps are in the same order, so the rows go on where the
 * conversation before ended: run->next. */
static void put_members(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    struct call_run *run = call_run_of(source);
    uint32_t members = call_step(run, STEP_MEMBERS);
    struct span id = sql_row_bytes(run->unit, call_step(run, STEP_CONVOS), source->row, 0);
    struct field_source inner = *source;
    int64_t total = 0;

    tr_assert(run->next <= call_rows(run, STEP_MEMBERS));
    inner.list = &member_list;
    json_put_array(writer, field->fields[0].name);
    while (run->next < call_rows(run, STEP_MEMBERS) &&
           span_equal(sql_row_bytes(run->unit, members, run->next, 0), id)) {
        total = sql_row_int(run->unit, members, run->next, 5);
        inner.row = run->next++;
        json_put_object(writer, NULL);
        field_put_json(writer, member_fields, &inner);
        json_put_end(writer);
    }
    json_put_end(writer);
    json_put_int(writer, field->fields[1].name, total);
}

const struct call call_get_convos = {
    .params = PARAMS(PARAM_LIMIT(100, 50), PARAM_CURSOR),
    .steps = CALL_STEPS([STEP_CONVOS] = { STEP(
                            convo_list, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(1), ARG_PARAM(0)) },
        [STEP_MEMBERS] = { STEP(convo_list_members, SQL_ROWS_ANY, ARG_CALLER, ARG_PARAM(1),
            ARG_PARAM(0), ARG_INT(MEMBERS_MAX)) }),
    .fields =
        FIELDS({ "conversations", FIELD_LIST,
                   ROWS(STEP_CONVOS, { "id", FIELD_TEXT, .at = 0 },
                       { "groupId", FIELD_TEXT, .at = 8 }, { "creator", FIELD_TEXT, .at = 1 },
                       { NULL, FIELD_PUT, .put = put_members,
                           .fields = FIELDS({ "members", FIELD_LIST, .fields = member_fields },
                               { "memberCount", FIELD_INT, .at = 5 }) },
                       { "epoch", FIELD_INT, .at = 2 }, { "cipherSuite", FIELD_TEXT, .at = 3 },
                       { "createdAt", FIELD_TIME_MS, .at = 4 },
                       { "lastMessageAt", FIELD_TIME_MS, .at = 5 },
                       { "metadata", FIELD_OBJECT,
                           .fields = FIELDS({ "name", FIELD_TEXT, .at = 6, OPTIONAL },
                               { "description", FIELD_TEXT, .at = 7, OPTIONAL }) }) },
            { "cursor", FIELD_TEXT, LAST_ROW(STEP_CONVOS, 0), OPTIONAL }),
};
