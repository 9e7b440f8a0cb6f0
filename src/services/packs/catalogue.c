/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue.c: the actor that owns the catalogue.
 *
 *   an edit arrives ── is the view behind? ── yes: reload ──┐
 *         │                                                 │
 *       plan on the view  <─────────────────────────────────┘
 *         │ refused, or nothing to do: reply
 *       write one unit, hold
 *         │ failed: reply. Outcome unknown: the view is behind; reply 504
 *       reload the whole catalogue, hold
 *       publish the view, invalidate the verified files of a disabled version, reply
 *
 * Invariants:
 *   1. The actor makes one edit at a time: it holds from the plan to the reply.
 *   2. Every view is built from rows that were read: memory follows the database.
 *   3. After a COMMIT, or one whose outcome is unknown, the actor plans nothing before a reload has
 *      succeeded. is_behind is set until then, and a timer retries. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "services/packs/edit.h"
#include "services/packs/integrity.h"
#include "support/log.h"
#include "support/metric.h"

enum { TAG_SQL = 1, TAG_RETRY = 2 };

enum { CHANGES_MADE, CHANGES_REFUSED, CHANGES_FAILED, VERSIONS, STORED_BYTES, BEHIND };
#define CHANGES_HELP "Edits of the catalogue by result."
static struct metric metrics[] = {
    [CHANGES_MADE] = METRIC(COUNTER, "troupe_pack_changes_total", "end=\"made\"", CHANGES_HELP),
    [CHANGES_REFUSED] =
        METRIC(COUNTER, "troupe_pack_changes_total", "end=\"refused\"", CHANGES_HELP),
    [CHANGES_FAILED] = METRIC(COUNTER, "troupe_pack_changes_total", "end=\"failed\"", CHANGES_HELP),
    [VERSIONS] = METRIC(GAUGE, "troupe_pack_versions", NULL, "Versions in the catalogue."),
    [STORED_BYTES] = METRIC(GAUGE, "troupe_pack_stored_bytes", NULL,
        "Bytes of all objects that versions and their encodings name."),
    [BEHIND] = METRIC(GAUGE, "troupe_pack_catalogue_behind", NULL,
        "1 while the catalogue has not read the last state of the database."),
};
#define RETRY_NS TR_MILLISECONDS(200)

enum catalogue_step {
    STEP_IDLE,
    STEP_CATCH_UP, /* reloads because the view is behind; then plans the edit, if there is one */
    STEP_WRITE,
    STEP_RELOAD, /* reloads after a COMMIT */
};

struct catalogue {
    struct packs *packs;
    struct sql_client sql;
    enum catalogue_step step;
    struct edit *edit; /* one reference; NULL: none */
    tr_reply_handle reply;
    bool is_behind;
    bool has_timer;
    uint64_t number; /* of the newest view */
};

const struct packs_view *catalogue_view(const struct packs *packs)
{
    return tr_snapshot_read(packs->view);
}

/* ---- the end of an edit ---------------------------------------------------------------------- */

static void set_behind(struct catalogue *catalogue, struct tr_context *ctx, bool is_behind)
{
    catalogue->is_behind = is_behind;
    atomic_store_explicit(&catalogue->packs->is_catalogue_behind, is_behind, memory_order_relaxed);
    metric_set(&metrics[BEHIND], is_behind);
    if (is_behind && !catalogue->has_timer && tr_after(ctx, RETRY_NS, TAG_RETRY, NULL) == 0)
        catalogue->has_timer = true;
}

static int metric_of(unsigned status)
{
    if (status >= 500)
        return CHANGES_FAILED;
    return status < 300 ? CHANGES_MADE : CHANGES_REFUSED;
}

static void catalogue_end_edit(struct catalogue *catalogue)
{
    catalogue->step = STEP_IDLE;
    if (catalogue->edit == NULL)
        return;
    tr_assert(catalogue->edit->status != 0); /* its connection answers with it */
    metric_add(&metrics[metric_of(catalogue->edit->status)], 1);
    (void)tr_reply_send(&catalogue->reply, 0, NULL, 0);
    edit_unref(catalogue->edit);
    catalogue->edit = NULL;
}

/* End the edit with a refusal. `label` is of an error, or the reason of a 503 or 504 without a text. */
static void catalogue_refuse(
    struct catalogue *catalogue, unsigned status, const char *label, const char *text)
{
    if (catalogue->edit != NULL) {
        catalogue->edit->status = 0;
        edit_refuse(catalogue->edit, status, label, text);
    }
    catalogue_end_edit(catalogue);
}

static void catalogue_answer(struct catalogue *catalogue)
{
    struct edit *edit = catalogue->edit;
    struct json_writer writer = json_writer(&edit->answer);
    bool is_there;

    tr_assert(edit->answer.size == 0);
    tr_assert(edit->status < 300);
    if (edit->status == 0)
        edit->status = edit->kind->status == 0 ? 200 : edit->kind->status;
    json_put_object(&writer, NULL);
    is_there = edit->kind->answer(edit, catalogue_view(catalogue->packs), &writer);
    json_put_end(&writer);
    if (!is_there) {
        buffer_clear(&edit->answer);
        buffer_text(&edit->answer, "null");
    }
    if (json_writer_end(&writer) < 0) {
        buffer_free(&edit->answer);
        catalogue_refuse(catalogue, 503, "memory", "");
    } else {
        catalogue_end_edit(catalogue);
    }
}

/* ---- reloading ------------------------------------------------------------------------------ */

static void catalogue_reload(
    struct catalogue *catalogue, struct tr_context *ctx, enum catalogue_step step)
{
    struct sql_unit *unit = view_unit();
    struct sql_submit_options options = { .tag = TAG_SQL, .hold = true };
    int rc;

    tr_assert(catalogue->step == STEP_IDLE); /* invariant 1 */
    tr_assert(step == STEP_CATCH_UP || catalogue->edit != NULL);
    rc = unit == NULL ? TR_ENOMEM : sql_read(ctx, &catalogue->sql, unit, &options);
    if (rc == 0) {
        catalogue->step = step;
        return;
    }
    sql_unit_destroy(unit);
    set_behind(catalogue, ctx, true);
    catalogue_refuse(catalogue, 503, "database", "");
}

static int catalogue_publish(struct packs *packs, const struct sql_unit *unit, uint64_t number)
{
    struct packs_view *view;
    int rc = sql_unit_status(unit);

    if (rc == 0)
        rc = view_build(unit, number, &view);
    if (rc != 0)
        return rc;
    metric_set(&metrics[VERSIONS], view->version_count);
    metric_set(&metrics[STORED_BYTES], (int64_t)view->stored_bytes);
    rc = tr_snapshot_publish(packs->view, view);
    if (rc < 0)
        view_free(view);
    return rc;
}

static int on_read_all(
    struct catalogue *catalogue, struct tr_context *ctx, const struct sql_unit *unit)
{
    int rc = catalogue_publish(catalogue->packs, unit, catalogue->number + 1);

    if (rc == 0)
        catalogue->number++;
    else
        LOG(LOG_WARN, "packs", "the catalogue cannot be read",
            LOG_TEXT(
                "why", sql_unit_why(unit)[0] != '\0' ? sql_unit_why(unit) : sql_error_text(rc)));
    set_behind(catalogue, ctx, rc < 0);
    return rc;
}

/* ---- an edit -------------------------------------------------------------------------------- */

static void catalogue_submit(
    struct catalogue *catalogue, struct tr_context *ctx, struct sql_unit *unit)
{
    struct sql_submit_options options = { .tag = TAG_SQL, .hold = true };

    if (sql_write(ctx, &catalogue->sql, unit, &options) == 0) {
        catalogue->step = STEP_WRITE;
        return;
    }
    sql_unit_destroy(unit);
    catalogue_refuse(catalogue, 503, "database", "");
}

static void catalogue_plan(struct catalogue *catalogue, struct tr_context *ctx)
{
    struct edit *edit = catalogue->edit;
    const struct packs_view *view = catalogue_view(catalogue->packs);
    struct sql_unit *unit = sql_unit_create(0);

    tr_assert(catalogue->step == STEP_IDLE);
    tr_assert(!catalogue->is_behind); /* invariant 3 */
    if (unit == NULL) {
        catalogue_refuse(catalogue, 503, "memory", "");
        return;
    }
    edit->now_ms = packs_now_ms(catalogue->packs);
    if (edit->claims != NULL)
        auth_consume(unit, edit->claims);
    if (view->read_bytes > CATALOGUE_BYTES_MAX && !edit->kind->is_small)
        edit_refuse(edit, 409, "CatalogueFull",
            "The texts of the catalogue take 48 MiB, which is the most; use another server for "
            "more.");
    else
        edit->kind->plan(edit, view, unit);
    if (edit->status == 0) {
        edit_audit(unit, edit, view);
        catalogue_submit(catalogue, ctx, unit);
        return;
    }
    sql_unit_destroy(unit);
    if (edit->status < 300) /* nothing to do */
        catalogue_answer(catalogue);
    else
        catalogue_end_edit(catalogue);
}

static void on_failed(
    struct catalogue *catalogue, struct tr_context *ctx, const struct sql_unit *unit)
{
    static const struct refusal changed = REFUSE(
        409, "Conflict", "The catalogue changed meanwhile; read it again and repeat the edit.");
    const struct refusal *conflict = catalogue->edit->kind->conflict;
    int status = sql_unit_status(unit);

    if (auth_is_replay(unit)) {
        catalogue_refuse(
            catalogue, 401, "TokenReplayed", "This token was used before; make a new one.");
    } else if (status == SQL_EROWS || status == SQL_ECONSTRAINT) {
        /* Another program writes to this database: reload before the next plan. */
        set_behind(catalogue, ctx, true);
        conflict = conflict == NULL ? &changed : conflict;
        catalogue_refuse(catalogue, conflict->status, conflict->label, conflict->text);
    } else {
        LOG(LOG_WARN, "packs", "an edit was not stored",
            LOG_TEXT("why",
                sql_unit_why(unit)[0] != '\0' ? sql_unit_why(unit) : sql_error_text(status)));
        if (status == SQL_EUNKNOWN)
            set_behind(catalogue, ctx, true);
        catalogue_refuse(catalogue, status == SQL_EUNKNOWN ? 504 : 503, "database", "");
    }
}

static void on_reloaded(struct catalogue *catalogue, int rc)
{
    struct edit *edit = catalogue->edit;

    tr_assert(edit != NULL);
    if (edit->invalidated != 0 && catalogue->packs->integrity != NULL)
        (void)integrity_invalidate(catalogue->packs->integrity, edit->invalidated);
    if (rc < 0) /* stored, but not visible yet: a repeated request finds it done */
        catalogue_refuse(catalogue, 504, "database", "");
    else
        catalogue_answer(catalogue);
}

/* Takes the unit. */
static void on_unit(struct catalogue *catalogue, struct tr_context *ctx, struct sql_unit *unit)
{
    enum catalogue_step step = catalogue->step;

    tr_assert(step != STEP_IDLE);
    catalogue->step = STEP_IDLE;
    if (step == STEP_CATCH_UP) {
        if (on_read_all(catalogue, ctx, unit) < 0)
            catalogue_refuse(catalogue, 503, "database", "");
        else if (catalogue->edit != NULL)
            catalogue_plan(catalogue, ctx);
    } else if (step == STEP_RELOAD) {
        on_reloaded(catalogue, on_read_all(catalogue, ctx, unit));
    } else if (sql_unit_status(unit) < 0) {
        on_failed(catalogue, ctx, unit);
    } else {
        set_behind(catalogue, ctx, true);
        catalogue_reload(catalogue, ctx, STEP_RELOAD);
    }
    sql_unit_destroy(unit);
}

/* ---- the actor ------------------------------------------------------------------------------ */

static enum tr_next catalogue_handle(void *self, struct tr_context *ctx, void *message)
{
    struct catalogue *catalogue = self;

    tr_assert(catalogue->step == STEP_IDLE); /* invariant 1 */
    tr_assert(catalogue->edit == NULL);
    catalogue->edit = ((struct edit_message *)message)->edit;
    catalogue->reply = tr_reply_take(ctx);
    if (catalogue->is_behind)
        catalogue_reload(catalogue, ctx, STEP_CATCH_UP);
    else
        catalogue_plan(catalogue, ctx);
    return TR_GO;
}

static enum tr_next catalogue_event(
    void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct catalogue *catalogue = self;
    struct sql_unit *unit = event->kind == TR_EVENT_REPLY ? sql_take(&catalogue->sql, event) : NULL;

    if (unit != NULL) {
        on_unit(catalogue, ctx, unit);
    } else if (event->kind == TR_EVENT_TIMER) {
        catalogue->has_timer = false;
        if (catalogue->is_behind && catalogue->step == STEP_IDLE)
            catalogue_reload(catalogue, ctx, STEP_CATCH_UP);
        else
            set_behind(catalogue, ctx, catalogue->is_behind);
    }
    return TR_GO;
}

static int catalogue_start_actor(void *self, struct tr_context *ctx)
{
    struct catalogue *catalogue = self;

    sql_client_init(&catalogue->sql, catalogue->packs->calls.sql);
    if (tr_self_restarts(ctx) > 0)
        set_behind(catalogue, ctx, true);
    return 0;
}

static void catalogue_finish(void *self)
{
    struct catalogue *catalogue = self;

    tr_reply_drop(&catalogue->reply);
    edit_unref(catalogue->edit);
    if (catalogue->sql.sql != NULL)
        sql_client_fini(&catalogue->sql);
}

static int catalogue_reset(void *self, enum tr_why why)
{
    struct catalogue *catalogue = self;

    (void)why;
    catalogue_finish(catalogue);
    *catalogue = (struct catalogue){ .packs = catalogue->packs, .number = catalogue->number };
    return 0;
}

static void catalogue_drop(void *message)
{
    edit_unref(((struct edit_message *)message)->edit);
}

static const char *catalogue_message_name(const void *message)
{
    return ((const struct edit_message *)message)->edit->kind->action;
}

static const struct tr_type catalogue_type = {
    .name = "packs_catalogue",
    .message_size = sizeof(struct edit_message),
    .state_size = sizeof(struct catalogue),
    .start = catalogue_start_actor,
    .handle = catalogue_handle,
    .event = catalogue_event,
    .finish = catalogue_finish,
    .reset = catalogue_reset,
    .message_drop = catalogue_drop,
    .message_name = catalogue_message_name,
};

/* ---- start and stop ------------------------------------------------------------------------- */

static int catalogue_load(struct packs *packs, char *reason, size_t reason_size)
{
    struct sql_unit *unit = view_unit();
    int rc;

    if (unit == NULL)
        return TR_ENOMEM;
    rc = sql_read_wait(packs->calls.sql, unit);
    if (rc == 0)
        rc = catalogue_publish(packs, unit, 1);
    else
        (void)snprintf(reason, reason_size, "%s", sql_unit_why(unit));
    sql_unit_destroy(unit);
    return rc;
}

int catalogue_start(struct packs *packs, char *why, size_t why_size)
{
    int rc = tr_snapshot_create(packs->system, view_free, &packs->view);
    char reason[160] = "";

    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    if (rc == 0)
        rc = catalogue_load(packs, reason, sizeof reason);
    if (rc == 0)
        rc = tr_spawn(packs->system, &catalogue_type,
            &(struct catalogue){ .packs = packs, .number = 1 },
            &(struct tr_spawn_options){ .name = "packs catalogue",
                .owner = "packs",
                .supervisor = packs->supervisor,
                .box = { .capacity = 1024, .full = TR_FULL_FAIL } },
            &packs->catalogue);
    if (rc < 0)
        (void)snprintf(why, why_size, "The catalogue of packs cannot be loaded: %s.",
            reason[0] != '\0' ? reason : sql_error_text(rc));
    return rc;
}

void catalogue_stop(struct packs *packs)
{
    packs_stop_actor(&packs->catalogue);
    tr_snapshot_destroy(&packs->view);
}

bool catalogue_is_ready(const struct packs *packs, char *why, size_t why_size)
{
    if (!atomic_load_explicit(&packs->is_catalogue_behind, memory_order_relaxed))
        return true;
    (void)snprintf(why, why_size, "The catalogue waits for the database.");
    return false;
}
