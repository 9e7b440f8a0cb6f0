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
#include "services/delivery/api/package.h"
#include "services/delivery/convo/event.h"
#include "services/delivery/store/device_store.h"

enum { REJOINS_MAX = 10, REJOINS_MS = 3600000, REJOINS_RETRY_S = 360 };

enum { STEP_WISH = 5, STEP_WELCOME = 7 };

static bool rejoin_ready(struct call_run *run)
{
    const struct package_batch *batch = run->data;
    const struct package_upload *upload = &batch->list[0];
    struct span convo = call_text(run, "convoId");
    size_t size = run->caller.size + upload->device.size + convo.size + 3;
    char *id = http_alloc(run->request, size);

    tr_assert(batch->count == 1);
    if (id == NULL)
        return call_refuse_memory(run);
    (void)snprintf(id, size, "%.*s#%.*s/%.*s", (int)run->caller.size, run->caller.at,
        (int)upload->device.size, upload->device.at, (int)convo.size, convo.at);
    call_value(run, "addition")->text = span_of(id);
    call_value(run, "ofDevice")->text = upload->device;
    call_value(run, "ref")->text = (struct span){ (const char *)upload->ref, upload->ref_size };
    call_value(run, "suite")->text = span_of(mls_suite_of(upload->package.suite)->name);
    return true;
}

static bool check_rejoin(struct call_run *run)
{
    return package_check_all(
        run, call_text(run, "deviceId"), (struct span){ NULL, 0 }, rejoin_ready);
}

static bool is_pending(const struct call_run *run)
{
    return call_changed(run, STEP_WISH) == 1;
}

static bool rejoin_stored(struct call_run *run)
{
    return package_all_stored(run) &&
           (is_pending(run) || call_rows(run, STEP_WELCOME) == 1 ||
               call_refuse(run, 409, "KeyPackageUnavailable",
                   "This key package was used, or is another device's; bring a new one."));
}

static void tell_rejoin(struct call_run *run)
{
    if (is_pending(run))
        call_tell_readdition(run, call_text(run, "ofDevice"));
}

const struct call call_rejoin = {
    /* Hidden: the addition's id, DID#device/convo; the package's device, reference and suite. */
    .params = PARAMS(PARAMS_OF_UPLOAD, PARAM_CONVO, PARAM_DEVICE_ID,
        PARAM_MAY_TEXT("reason", 0, WHY_SIZE_MAX), PARAM_OWN("addition", PARAM_TEXT),
        PARAM_OWN("ofDevice", PARAM_TEXT), PARAM_OWN("ref", PARAM_HEX),
        PARAM_OWN("suite", PARAM_TEXT)),
    .check = check_rejoin,
    .steps = CALL_STEPS(STEP(rejoin_forget_old, "@caller @now+#", WITH(-REJOINS_MS)),
        STEP_ROWS(1, rejoin_put, "@id @caller @now #", WITH(REJOINS_MAX),
            .refusal = REFUSE_MANY(REJOINS_RETRY_S, "RateLimitExceeded",
                "You asked to rejoin ten times within an hour, which is the most; wait.")),
        STEP_ROWS(1, role_find_member, "convoId @caller", .refusal = REFUSE_STRANGER),
        /* A package of another suite would wait for a claim that never takes it. */
        STEP_ROWS(1, rejoin_find_suite, "convoId suite",
            .refusal = REFUSE(400, "InvalidCipherSuite",
                "The key package is of another cipher suite than the conversation; make one of "
                "the conversation's cipherSuite.")),
        { .add = package_add },
        STEP(rejoin_put_wish, "addition convoId @caller ofDevice @now ref @now_s"),
        STEP(rejoin_end_others, "convoId @caller ofDevice @now addition ref"),
        STEP(rejoin_find_welcome, "convoId ref @caller")),
    .decide = rejoin_stored,
    .after = tell_rejoin,
    .fields = FIELDS({ "requestId", FIELD_TEXT, FIELD_PARAM("addition") },
        { "pending", FIELD_BOOL, FIELD_CHANGED(STEP_WISH) },
        { NULL, FIELD_PUT, OPTIONAL, .put = call_put_if_changed, .step = STEP_WISH, .number = 0,
            .fields = FIELDS(TIME_OF("approvedAt", STEP_WELCOME, 0, OPTIONAL)) }),
};
