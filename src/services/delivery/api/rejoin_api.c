/* SPDX-License-Identifier: Apache-2.0 */
/* rejoin_api.c: a device that lost its place in a group brings a key package and asks the members
 * to add it with that one. Package, wish and count are one unit:
 *
 *   the package is good for it ──▶ the wish stands (pending), and keeps the package
 *   a Welcome for it waits, or it was joined with ──▶ done before (approvedAt); no wish is stored
 *   anything else ──▶ refused
 *
 * So the call can be repeated until it is answered. The wish itself keeps the package
 * (PACKAGE_IS_BROUGHT), which is free again when the wish is done, changed or gone. A reason is
 * taken, since clients send one, and not stored. */
#include <stdio.h>

#include "base/assert.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/calls.h"
#include "services/delivery/api/package.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/store/device_store.h"

enum { REJOINS_MAX = 10, REJOINS_MS = 3600000, REJOINS_RETRY_S = 360 };

/* Behind the last parameter: the addition's id, DID#device/convo; the package's device and reference;
 * the name of its suite. */
enum {
    REJOIN_CONVO = UPLOAD_PARAMS,
    REJOIN_DEVICE,
    REJOIN_REASON,
    REJOIN_ADDITION = REJOIN_REASON + 2,
    REJOIN_OF_DEVICE,
    REJOIN_REF,
    REJOIN_SUITE,
};
static const struct param rejoin_params[] = {
    PARAMS_OF_UPLOAD,
    [REJOIN_CONVO] = PARAM_CONVO,
    [REJOIN_DEVICE] = PARAM_DEVICE_ID,
    [REJOIN_REASON] = PARAM_MAY_TEXT("reason", 0, WHY_SIZE_MAX),
    PARAM_LAST,
    [REJOIN_ADDITION] = { .type = PARAM_TEXT },
    [REJOIN_OF_DEVICE] = { .type = PARAM_TEXT },
    [REJOIN_REF] = { .type = PARAM_HEX },
    [REJOIN_SUITE] = { .type = PARAM_TEXT },
};
_Static_assert((int)REJOIN_SUITE < (int)PARAMS_MAX, "values have their places");

enum {
    STEP_FORGET,
    STEP_COUNT,
    STEP_MEMBER,
    STEP_SUITE,
    STEP_PACKAGE,
    STEP_WISH,
    STEP_END,
    STEP_WELCOME
};

static void rejoin_checked(struct http_request *request, const struct tr_event *event)
{
    struct package_batch *batch = package_batch_take(request, event);
    const struct package_upload *upload = &batch->list[0];
    struct call_run *run = batch->run;
    size_t size = run->caller.size + upload->device.size + call_text(run, REJOIN_CONVO).size + 3;
    char *id;

    tr_assert(batch->count == 1);
    if (upload->label != NULL) { /* nothing is stored, so the token is not used up */
        (void)package_refuse_upload(run, upload);
        return;
    }
    id = http_alloc(request, size);
    if (id == NULL) {
        (void)call_refuse_memory(run);
        return;
    }
    (void)snprintf(id, size, "%.*s#%.*s/%.*s", (int)run->caller.size, run->caller.at,
        (int)upload->device.size, upload->device.at, (int)call_text(run, REJOIN_CONVO).size,
        call_text(run, REJOIN_CONVO).at);
    run->values[REJOIN_ADDITION].text = span_of(id);
    run->values[REJOIN_OF_DEVICE].text = upload->device;
    run->values[REJOIN_REF].text = (struct span){ (const char *)upload->ref, upload->ref_size };
    run->values[REJOIN_SUITE].text = span_of(mls_suite_of(upload->package.suite)->name);
    call_start(run, run->call);
}

static bool check_rejoin(struct call_run *run)
{
    return package_check_one(run, call_text(run, REJOIN_DEVICE), rejoin_checked);
}

static bool is_pending(const struct call_run *run)
{
    return call_changed(run, STEP_WISH) == 1;
}

static bool rejoin_stored(struct call_run *run)
{
    static const struct refusal unavailable = REFUSE(409, "KeyPackageUnavailable",
        "This key package was used, or is another device's; bring a new one.");

    return package_one_stored(run) &&
           (is_pending(run) || call_rows(run, STEP_WELCOME) == 1 || call_refuse(run, &unavailable));
}

static void tell_rejoin(struct call_run *run)
{
    if (is_pending(run))
        notice_tell(call_delivery(run), call_text(run, REJOIN_CONVO),
            &(struct delivery_event){ .kind = DELIVERY_READDITION,
                .did = run->caller,
                .device = call_text(run, REJOIN_OF_DEVICE) });
}

static void put_approved(
    struct json_writer *writer, const struct field *field, const struct field_source *source)
{
    if (!is_pending(call_run_of(source)))
        field_put_json(writer, field->fields, source);
}

const struct call call_rejoin = {
    .params = rejoin_params,
    .check = check_rejoin,
    .steps = CALL_STEPS([STEP_FORGET] = { STEP(
                            rejoin_forget_old, SQL_ROWS_ANY, ARG_CALLER, ARG_NOW_MS(-REJOINS_MS)) },
        [STEP_COUNT] = { STEP(rejoin_put, 1, ARG_ID, ARG_CALLER, ARG_NOW_MS(0),
                             ARG_INT(REJOINS_MAX)),
            .refusal = REFUSE_MANY(REJOINS_RETRY_S, "RateLimitExceeded",
                "You asked to rejoin ten times within an hour, which is the most; wait.") },
        [STEP_MEMBER] = { STEP(role_find_member, 1, ARG_PARAM(REJOIN_CONVO), ARG_CALLER),
            .refusal = REFUSE_STRANGER },
        /* A package of another suite would wait for a claim that never takes it. */
        [STEP_SUITE] = { STEP(rejoin_find_suite, 1, ARG_PARAM(REJOIN_CONVO),
                             ARG_PARAM(REJOIN_SUITE)),
            .refusal = REFUSE(400, "InvalidCipherSuite",
                "The key package is not of the cipher suite of this conversation.") },
        [STEP_PACKAGE] = { .add = package_add },
        [STEP_WISH] = { STEP(rejoin_put_wish, SQL_ROWS_ANY, ARG_PARAM(REJOIN_ADDITION),
            ARG_PARAM(REJOIN_CONVO), ARG_CALLER, ARG_PARAM(REJOIN_OF_DEVICE), ARG_NOW_MS(0),
            ARG_PARAM(REJOIN_REF), ARG_NOW_S(0)) },
        [STEP_END] = { STEP(rejoin_end_others, SQL_ROWS_ANY, ARG_PARAM(REJOIN_CONVO), ARG_CALLER,
            ARG_PARAM(REJOIN_OF_DEVICE), ARG_NOW_MS(0), ARG_PARAM(REJOIN_ADDITION),
            ARG_PARAM(REJOIN_REF)) },
        [STEP_WELCOME] = { STEP(rejoin_find_welcome, SQL_ROWS_ANY, ARG_PARAM(REJOIN_CONVO),
            ARG_PARAM(REJOIN_REF), ARG_CALLER) }),
    .decide = rejoin_stored,
    .after = tell_rejoin,
    .fields = FIELDS({ "requestId", FIELD_TEXT, FIELD_PARAM(REJOIN_ADDITION) },
        { "pending", FIELD_BOOL, FIELD_CHANGED(STEP_WISH) },
        { NULL, FIELD_PUT, OPTIONAL, .put = put_approved,
            .fields = FIELDS({ "approvedAt", FIELD_TIME_MS, COLUMN(STEP_WELCOME, 0), OPTIONAL }) }),
};
