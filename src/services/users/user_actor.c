/* SPDX-License-Identifier: Apache-2.0 */
/* user_actor.c: one user's sequence of numbers.
 *
 * Invariants:
 *   1. `seq` is the last number in the database, or is_loaded is false. It moves after a COMMIT,
 *      never before.
 *   2. One push runs at a time; the others wait, oldest first. So numbers are stored in their order,
 *      and a reader that sees a number sees all numbers below it.
 *   3. A push that found another last number than `seq` (another program writes, or a COMMIT with an
 *      unknown outcome did happen) is planned again after a reload.
 *   4. Every job is answered once: by its unit, or by the finish hook.
 *   5. The unit that gives out the first number of an epoch also stores the epoch. has_epoch says
 *      that the last number belongs to it. If the database is behind `seq`, it was replaced by an
 *      older copy: the actor draws a new epoch. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/users/user_job.h"
#include "support/metric.h"

enum { TAG_LOAD = 1, TAG_PUSH, TRIES_MAX = 3, WAITING_MAX = 64 };

enum { PUSHES_STORED, PUSHES_FAILED, CHANGES, READS_DONE, READS_FAILED };
#define PUSHES_HELP "Pushes of users' devices by result."
#define READS_HELP "Pulls and other reads of users' rows by result."
static struct metric metrics[] = {
    [PUSHES_STORED] = METRIC(COUNTER, "troupe_user_pushes_total", "end=\"stored\"", PUSHES_HELP),
    [PUSHES_FAILED] = METRIC(COUNTER, "troupe_user_pushes_total", "end=\"failed\"", PUSHES_HELP),
    [CHANGES] = METRIC(COUNTER, "troupe_user_changes_total", NULL,
        "Changes in stored pushes, including those that lost against a newer row."),
    [READS_DONE] = METRIC(COUNTER, "troupe_user_reads_total", "end=\"answered\"", READS_HELP),
    [READS_FAILED] = METRIC(COUNTER, "troupe_user_reads_total", "end=\"failed\"", READS_HELP),
};

struct user {
    struct users *users;
    char id[USER_ID_SIZE_MAX + 1];
    struct sql_client sql;
    bool is_loaded, is_loading;
    int64_t seq;
    int64_t item_count; /* an upper bound */
    char epoch[USER_EPOCH_CHARS + 1];
    bool has_epoch;
    struct user_job *waiting, **waiting_end;
    uint32_t waiting_count;
    struct user_job *pushing; /* NULL: none runs */
};

/* ---- jobs ------------------------------------------------------------------------------------ */

struct user_job *user_job_create(struct span user)
{
    struct user_job *job = base_calloc(sizeof *job);

    if (job == NULL)
        return NULL;
    tr_assert(user.size > 0 && user.size <= USER_ID_SIZE_MAX);
    atomic_init(&job->holders, 1);
    job->known_seq = -1;
    memcpy(job->user, user.at, user.size);
    return job;
}

void user_job_unref(struct user_job *job)
{
    if (job == NULL || atomic_fetch_sub_explicit(&job->holders, 1, memory_order_acq_rel) != 1)
        return;
    sql_unit_destroy(job->unit);
    buffer_free(&job->texts);
    base_free(job->changes);
    base_free(job);
}

void user_count_read(struct call_run *run, bool is_answered)
{
    (void)run;
    metric_add(&metrics[is_answered ? READS_DONE : READS_FAILED], 1);
}

static void user_answer(struct user_job *job, int status, struct sql_unit *unit)
{
    tr_assert(job->unit == NULL); /* invariant 4 */
    metric_add(&metrics[status == 0 ? PUSHES_STORED : PUSHES_FAILED], 1);
    metric_add(&metrics[CHANGES], status == 0 ? job->change_count : 0);
    job->status = status;
    job->unit = unit;
    tr_reply_send(&job->reply, 0, NULL, 0);
    user_job_unref(job);
}

/* ---- pushing --------------------------------------------------------------------------------- */

static struct user_job *take_waiting(struct user *user)
{
    struct user_job *job = user->waiting;

    tr_assert(job != NULL && user->waiting_count > 0);
    user->waiting = job->next;
    user->waiting_count--;
    tr_assert((user->waiting == NULL) == (user->waiting_count == 0));
    if (user->waiting == NULL)
        user->waiting_end = &user->waiting;
    return job;
}

static void answer_waiting(struct user *user, int status)
{
    while (user->waiting != NULL)
        user_answer(take_waiting(user), status, NULL);
}

static void start_load(struct user *user, struct tr_context *ctx)
{
    struct sql_unit *unit = user_unit_load(user->id);
    int rc;

    tr_assert(!user->is_loading && !user->is_loaded);
    tr_assert(user->pushing == NULL); /* the number that is read would be old at once */
    rc = sql_read(ctx, &user->sql, unit, &(struct sql_submit_options){ .tag = TAG_LOAD });
    if (rc < 0) {
        sql_unit_destroy(unit);
        answer_waiting(user, rc);
        return;
    }
    user->is_loading = true;
}

/* The count here only grows, so near the limit the actor counts the rows again. */
static bool is_near_limit(const struct user *user, const struct user_job *job)
{
    return user->item_count + job->change_count > USER_ITEMS_MAX;
}

/* Start a push, or answer it with the failure. */
static void start_push(struct user *user, struct tr_context *ctx, struct user_job *job)
{
    struct sql_unit *unit;
    int rc;

    tr_assert(user->pushing == NULL && user->is_loaded); /* invariants 1 and 2 */
    /* The database counts the rows only if this push could pass the limit. A user with too many rows
     * may still change existing ones. */
    job->rows_max = 0;
    if (is_near_limit(user, job))
        job->rows_max = user->item_count > USER_ITEMS_MAX ? user->item_count : USER_ITEMS_MAX;
    job->now_ms = call_now_ms(&user->users->calls);
    unit = user_unit_push(
        job, user->seq, user->has_epoch || job->change_count == 0 ? NULL : user->epoch);
    rc = sql_write(ctx, &user->sql, unit, &(struct sql_submit_options){ .tag = TAG_PUSH });
    if (rc < 0) {
        sql_unit_destroy(unit);
        user_answer(job, rc, NULL);
        return;
    }
    user->pushing = job;
}

static void run_waiting(struct user *user, struct tr_context *ctx)
{
    while (user->waiting != NULL && user->pushing == NULL && !user->is_loading) {
        if (!user->is_loaded || (is_near_limit(user, user->waiting) && user->waiting->tries == 0)) {
            user->waiting->tries += user->is_loaded;
            user->is_loaded = false;
            start_load(user, ctx);
        } else {
            start_push(user, ctx, take_waiting(user));
        }
    }
}

static void draw_epoch(struct users *users)
{
    const struct tr_env *env = users->calls.env;

    atomic_store_explicit(&users->epoch, env->random(env->data), memory_order_relaxed);
}

static void on_loaded(struct user *user, struct sql_unit *unit)
{
    int rc = sql_unit_status(unit);
    int64_t known_seq = user->seq;

    tr_assert(user->is_loading && user->pushing == NULL);
    user->is_loading = false;
    if (rc == 0) {
        user->seq = sql_unit_rows(unit, 0) == 0 ? 0 : sql_row_int(unit, 0, 0, 0);
        if (user->seq < known_seq)
            draw_epoch(user->users);
        (void)snprintf(user->epoch, sizeof user->epoch, "%016llx",
            (unsigned long long)atomic_load_explicit(&user->users->epoch, memory_order_relaxed));
        user->has_epoch =
            sql_unit_rows(unit, 2) > 0 && span_is(sql_row_bytes(unit, 2, 0, 0), user->epoch);
        user->item_count = sql_row_int(unit, 1, 0, 0);
        user->is_loaded = true;
    } else {
        answer_waiting(user, rc);
    }
    sql_unit_destroy(unit);
}

static void on_push_stored(struct user *user, struct sql_unit *unit)
{
    struct user_job *job = user->pushing;
    int rc = sql_unit_status(unit);

    tr_assert(job != NULL && user->is_loaded);
    user->pushing = NULL;
    if (rc == 0) {
        user->seq += job->change_count;
        user->has_epoch = user->has_epoch || job->change_count > 0;
        user->item_count = job->limit_step != 0 ? sql_row_int(unit, job->limit_step, 0, 0)
                                                : user->item_count + job->change_count;
        user_answer(job, 0, unit);
        return;
    }
    if (rc == SQL_EROWS && job->limit_step != 0 && sql_unit_failed_step(unit) == job->limit_step)
        rc = TR_ELIMIT;
    user->is_loaded = false; /* reload before the next push */
    if (rc == SQL_EROWS && sql_unit_failed_step(unit) == 0 && ++job->tries < TRIES_MAX) {
        sql_unit_destroy(unit);
        job->next = user->waiting;
        if (user->waiting == NULL)
            user->waiting_end = &job->next;
        user->waiting = job;
        user->waiting_count++;
        return;
    }
    user_answer(job, rc, unit);
}

/* ---- the actor ------------------------------------------------------------------------------- */

static enum tr_next user_handle(void *self, struct tr_context *ctx, void *message)
{
    struct user_job *job = ((struct user_message *)message)->job;
    struct user *user = self;

    job->next = NULL;
    if (user->waiting_count >= WAITING_MAX) {
        tr_reply(ctx, TR_EFULL, NULL, 0);
        user_job_unref(job);
        return TR_GO;
    }
    tr_assert(*user->waiting_end == NULL && job->tries == 0);
    job->reply = tr_reply_take(ctx);
    *user->waiting_end = job;
    user->waiting_end = &job->next;
    user->waiting_count++;
    run_waiting(user, ctx);
    return TR_GO;
}

static enum tr_next user_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct user *user = self;
    struct sql_unit *unit = event->kind == TR_EVENT_REPLY ? sql_take(&user->sql, event) : NULL;

    if (unit == NULL)
        return TR_GO;
    if (event->tag == TAG_LOAD)
        on_loaded(user, unit);
    else
        on_push_stored(user, unit);
    run_waiting(user, ctx);
    return TR_GO;
}

static int user_start(void *self, struct tr_context *ctx)
{
    struct user *user = self;

    (void)ctx;
    user->waiting_end = &user->waiting;
    sql_client_init(&user->sql, user->users->calls.sql);
    return 0;
}

static void drop_job(struct user_job *job)
{
    tr_reply_drop(&job->reply);
    user_job_unref(job);
}

static void user_finish(void *self)
{
    struct user *user = self;

    while (user->waiting != NULL)
        drop_job(take_waiting(user));
    tr_assert(user->waiting_count == 0);
    if (user->pushing != NULL)
        drop_job(user->pushing);
    user->pushing = NULL;
    if (user->sql.sql != NULL)
        sql_client_fini(&user->sql);
}

static int user_reset(void *self, enum tr_why why)
{
    struct user *user = self, fresh = { .users = user->users };

    (void)why;
    user_finish(user);
    memcpy(fresh.id, user->id, sizeof fresh.id);
    *user = fresh;
    return 0;
}

static void user_drop(void *message)
{
    user_job_unref(((struct user_message *)message)->job);
}

const struct tr_type user_type = {
    .name = "user",
    .message_size = sizeof(struct user_message),
    .state_size = sizeof(struct user),
    .start = user_start,
    .handle = user_handle,
    .event = user_event,
    .finish = user_finish,
    .reset = user_reset,
    .message_drop = user_drop,
};

/* ---- the service ----------------------------------------------------------------------------- */

static int init_user(void *data, const void *key, size_t key_size, void *state)
{
    struct user *user = state;

    if (key_size == 0 || key_size > USER_ID_SIZE_MAX)
        return TR_EINVAL;
    user->users = data;
    memcpy(user->id, key, key_size);
    return 0;
}

int users_start(const struct service_context *context, char *why, size_t why_size, void **ret_state)
{
    struct users *users = base_calloc(sizeof *users);
    int rc = TR_ENOMEM;

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    if (users != NULL) {
        users->system = context->system;
        users->calls = (struct call_service){
            .env = tr_system_env(context->system), .sql = context->sql, .is_rest = true
        };
        draw_epoch(users);
        rc = tr_registry_create(context->system,
            &(struct tr_registry_options){ .name = "users",
                .type = &user_type,
                .make = init_user,
                .data = users,
                .box = { .capacity = 256, .full = TR_FULL_FAIL },
                .idle_ns = TR_SECONDS(60),
                .live_max = 100000 },
            &users->actors);
    }
    if (rc < 0) {
        (void)snprintf(why, why_size, "The users service cannot start: %s.", tr_error_text(rc));
        base_free(users);
        return rc;
    }
    *ret_state = users;
    return 0;
}

void users_stop(void *state)
{
    struct users *users = state;

    if (tr_registry_close(&users->actors, TR_SECONDS(30)) == 0)
        base_free(users); /* else an actor may still read it */
}
