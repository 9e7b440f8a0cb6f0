/* SPDX-License-Identifier: Apache-2.0 */
/* status_api.c: how far a message came. A sender asks about its own messages, by the ids it gave
 * them: how many others were members when it was sent, and how many of those have read it. */
#include "services/delivery/api/calls.h"
#include "services/delivery/store/log_store.h"

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
