/* SPDX-License-Identifier: Apache-2.0 */
/* check_api.c: what a request waits for before its commit or proposal goes to the conversation: the
 * database, for what is stored of its epoch, then the pool, for the signatures. */
#include "base/alloc.h"
#include "services/delivery/api/api.h"
#include "services/delivery/mls/commit_check.h"
#include "services/delivery/store/db_query.h"

static void checked(struct http_request *request, const struct tr_event *event)
{
    struct commit_check *check = (struct commit_check *)(uintptr_t)event->value;

    if (event->status < 0) {
        http_respond_shed(request, 503, 1, "checks");
        return;
    }
    if (check->why != NULL)
        http_respond_error(request, 400, check->label, check->why);
    else
        check->go_on(request, job_ref(check->job));
    commit_check_free(check);
}

static void run(struct http_request *request, struct commit_check *check)
{
    if (http_offload(request, commit_check_run, check, commit_check_free, checked) == 0)
        return;
    commit_check_free(check);
    http_respond_shed(request, 503, 1, "busy");
}

static void stored_found(struct http_request *request, const struct tr_event *event)
{
    struct commit_check *check = db_query_with(request);

    check->stored = db_query_take(request, event);
    if (check->stored == NULL)
        commit_check_free(check);
    else
        run(request, check);
}

void api_check(struct http_request *request, struct job *job,
    void (*go_on)(struct http_request *request, struct job *job))
{
    struct delivery *delivery = http_service(request);
    bool needs_stored = commit_check_needs_stored(job, delivery->mode);
    struct commit_check *check;
    struct sql_unit *unit;

    if (!needs_stored && job->group_info.size == 0) {
        go_on(request, job);
        return;
    }
    check = base_calloc(sizeof *check);
    if (check == NULL) {
        job_unref(job);
        http_respond_shed(request, 503, 1, "busy");
        return;
    }
    *check = (struct commit_check){ .job = job, .go_on = go_on, .mode = delivery->mode };
    if (!needs_stored) {
        run(request, check);
        return;
    }
    unit = sql_unit_create(0);
    commit_check_ask(job, delivery->mode, unit);
    db_query_run_with(request, delivery, unit, true, stored_found, check, commit_check_free);
}
