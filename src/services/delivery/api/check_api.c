/* SPDX-License-Identifier: Apache-2.0 */
/* check_api.c: checks an act before the request sends it to the conversation, in at most two steps:
 * one read of the database (the GroupInfo and proposals of the epoch, and the owners of the key
 * packages that the Welcomes refer to), then commit_check_run on the blocking pool, which verifies
 * signatures. */
#include "base/alloc.h"
#include "services/common/db_query.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/recipients.h"
#include "services/delivery/mls/commit_check.h"

/* Compares the owners of the key packages with the request, then passes the act on. This is the
 * last check. */
static void check_conclude(struct http_request *request, struct commit_check *check)
{
    struct refusal refusal = { 0 };

    tr_assert(check->why == NULL);
    if (check->owners_count > 0)
        refusal = recipients_take_owners(check->act, check->unit, check->owners_first);
    if (refusal.label != NULL)
        http_respond_error(request, refusal.status, refusal.label, refusal.text);
    else
        api_send(request, act_ref(check->act));
    commit_check_destroy(check);
}

static void check_came_back(struct http_request *request, const struct tr_event *event)
{
    struct commit_check *check = (struct commit_check *)(uintptr_t)event->value;

    if (event->status < 0) {
        http_respond_shed(request, 503, 1, "checks");
    } else if (check->why != NULL) {
        http_respond_error(request, 400, check->label, check->why);
        commit_check_destroy(check);
    } else {
        check_conclude(request, check);
    }
}

static void check_on_pool(struct http_request *request, struct commit_check *check)
{
    if (http_offload(request, commit_check_run, check, commit_check_destroy, check_came_back) == 0)
        return;
    commit_check_destroy(check);
    http_respond_shed(request, 503, 1, "busy");
}

static bool has_group_info(const struct act *act)
{
    return act->info != NULL && act->info->bytes.size > 0;
}

static void check_was_read(struct http_request *request, const struct tr_event *event)
{
    struct commit_check *check = db_query_data(request);

    check->unit = db_query_take_unit(request, event);
    if (check->unit == NULL)
        commit_check_destroy(check);
    else if (check->has_stored || has_group_info(check->act))
        check_on_pool(request, check);
    else
        check_conclude(request, check);
}

void api_check(struct http_request *request, struct act *act)
{
    struct delivery *delivery = http_service(request);
    bool has_stored = commit_check_needs_stored(act, delivery->mode);
    uint32_t owners = recipients_owner_count(act);
    struct commit_check *check;
    struct sql_unit *unit;

    tr_assert(act->status == 0);
    if (!has_stored && owners == 0 && !has_group_info(act)) {
        api_send(request, act);
        return;
    }
    check = base_calloc(sizeof *check);
    if (check == NULL) {
        act_unref(act);
        http_respond_shed(request, 503, 1, "busy");
        return;
    }
    *check = (struct commit_check){
        .act = act, .mode = delivery->mode, .has_stored = has_stored, .owners_count = owners
    };
    if (!has_stored && owners == 0) {
        check_on_pool(request, check);
        return;
    }
    unit = sql_unit_create(0);
    if (has_stored)
        check->owners_first = commit_check_ask(act, delivery->mode, unit);
    if (owners > 0)
        recipients_ask_owners(act, unit);
    db_query_start(
        request, &delivery->calls, unit, true, check_was_read, check, commit_check_destroy);
}
