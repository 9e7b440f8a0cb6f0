/* SPDX-License-Identifier: Apache-2.0 */
/* convo_list_api.c: getConvos: the conversations a caller is in, each as getConvo shows it, but with
 * the first MEMBERS_MAX members only: memberCount says how many there are. */
#include "services/delivery/api/calls.h"
#include "services/delivery/store/log_store.h"

enum { MEMBERS_MAX = 100 };
enum { STEP_CONVOS, STEP_MEMBERS };

static const struct field member_fields[] = {
    TEXT_AT("did", 1),
    TEXT_AT("userDid", 1),
    TIME_AT("joinedAt", 2),
    BOOL_AT("isAdmin", 3),
    BOOL_AT("isModerator", 4),
    FIELD_LAST,
};
static const struct field member_list =
    LIST("members", .step = STEP_MEMBERS, .fields = member_fields);

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
    .steps = CALL_STEPS([STEP_CONVOS] = STEP(convo_list, "@caller cursor limit"),
        [STEP_MEMBERS] = STEP(convo_list_members, "@caller cursor limit #", WITH(MEMBERS_MAX))),
    .fields = FIELDS(
        ROWS("conversations", STEP_CONVOS, TEXT_AT("id", 0), TEXT_AT("groupId", 8),
            TEXT_AT("creator", 1),
            { NULL, FIELD_PUT, .put = put_members,
                .fields =
                    FIELDS(LIST("members", .fields = member_fields), INT_AT("memberCount", 5)) },
            INT_AT("epoch", 2), TEXT_AT("cipherSuite", 3), TIME_AT("createdAt", 4),
            TIME_AT("lastMessageAt", 5),
            OBJECT("metadata", TEXT_AT("name", 6, OPTIONAL), TEXT_AT("description", 7, OPTIONAL))),
        CURSOR_OF(STEP_CONVOS, 0)),
};
