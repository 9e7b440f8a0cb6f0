/* SPDX-License-Identifier: Apache-2.0 */
/* status_api.c: how far a message came. A sender asks about its own messages, by the ids it gave
 * them: how many others were members when it was sent, and how many of those have read it. */
#include "services/delivery/api/calls.h"
#include "services/delivery/store/log_store.h"

static const char *const statuses[] = { "unknown", "stored", NULL };

const struct call call_get_delivery_status = {
    .params =
        PARAMS(PARAM_CONVO, { "messageIds", PARAM_IDS, PARAM_REQUIRED, .min = 1, .max = 100 }),
    .role_of = &role_in_convo,
    .role = ROLE_MEMBER,
    .steps = CALL_STEPS({ STEP(log_find_status, SQL_ROWS_ANY, ARG_PARAM(0), ARG_ITEM, ARG_CALLER),
        .each = EACH(1) }),
    .fields = FIELDS({ "statuses", FIELD_LIST,
        EACH_STEP(0, { "messageId", FIELD_TEXT, FIELD_ITEM(1) },
            { "status", FIELD_CHOICE, FIELD_HAS_ROWS(0), .choices = statuses },
            { "seq", FIELD_INT, .at = 0, OPTIONAL }, { "epoch", FIELD_INT, .at = 1, OPTIONAL },
            { "storedAt", FIELD_TIME_MS, .at = 2, OPTIONAL },
            { "recipients", FIELD_INT, .at = 3, OPTIONAL },
            { "read", FIELD_INT, .at = 4, OPTIONAL }) }),
};
