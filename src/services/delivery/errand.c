/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/errand.h"

#include <stdatomic.h>

#include "base/alloc.h"
#include "base/assert.h"

struct errand {
    _Atomic uint32_t holders;
    struct sql_unit *unit; /* the clerk's while it runs */
    bool is_read;
    int refused; /* the unit was not taken, because of this; 0: it was */
    uint32_t number;
    tr_reply_handle reply;
    struct errand *next;
    void *with; /* the request's */
};

struct clerk_message {
    struct errand *errand;
};

struct clerk {
    struct delivery *delivery;
    struct sql_client sql;
    struct errand *running;
    uint32_t number_next;
};

static void errand_unref(struct errand *errand)
{
    if (errand == NULL || atomic_fetch_sub_explicit(&errand->holders, 1, memory_order_acq_rel) != 1)
        return;
    sql_unit_free(errand->unit);
    tr__free(errand);
}

/* ---- the clerk
 * ------------------------------------------------------------------------------------ */

static enum tr_next clerk_handle(void *self, struct tr_context *ctx, void *message)
{
    struct errand *errand = ((struct clerk_message *)message)->errand;
    struct clerk *clerk = self;
    struct sql_submit_options options = { .tag = clerk->number_next++ };
    int rc = errand->is_read ? sql_read(ctx, &clerk->sql, errand->unit, &options)
                             : sql_write(ctx, &clerk->sql, errand->unit, &options);

    if (rc < 0) {
        errand->refused = rc;
        tr_reply(ctx, 0, NULL, 0);
        errand_unref(errand);
        return TR_GO;
    }
    errand->unit = NULL;
    errand->number = options.tag;
    errand->reply = tr_reply_take(ctx);
    errand->next = clerk->running;
    clerk->running = errand;
    return TR_GO;
}

static enum tr_next clerk_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct clerk *clerk = self;
    struct errand **link = &clerk->running, *errand;
    struct sql_unit *unit = event->kind == TR_EVENT_REPLY ? sql_take(&clerk->sql, event) : NULL;

    (void)ctx;
    if (unit == NULL)
        return TR_GO;
    while (*link != NULL && (*link)->number != event->tag)
        link = &(*link)->next;
    errand = *link;
    tr_assert(errand != NULL);
    *link = errand->next;
    errand->unit = unit;
    tr_reply_send(&errand->reply, 0, NULL, 0);
    errand_unref(errand);
    return TR_GO;
}

static int clerk_begin(void *self, struct tr_context *ctx)
{
    struct clerk *clerk = self;

    (void)ctx;
    sql_client_begin(&clerk->sql, clerk->delivery->sql);
    return 0;
}

static void clerk_finish(void *self)
{
    struct clerk *clerk = self;

    while (clerk->running != NULL) {
        struct errand *errand = clerk->running;

        clerk->running = errand->next;
        tr_reply_drop(&errand->reply);
        errand_unref(errand);
    }
    if (clerk->sql.sql != NULL)
        sql_client_end(&clerk->sql);
}

static int clerk_reset(void *self, enum tr_why why)
{
    struct clerk *clerk = self;

    (void)why;
    clerk_finish(clerk);
    *clerk = (struct clerk){ .delivery = clerk->delivery };
    return 0;
}

static void clerk_drop(void *message)
{
    errand_unref(((struct clerk_message *)message)->errand);
}

const struct tr_type clerk_type = {
    .name = "delivery_clerk",
    .message_size = sizeof(struct clerk_message),
    .state_size = sizeof(struct clerk),
    .start = clerk_begin,
    .handle = clerk_handle,
    .event = clerk_event,
    .finish = clerk_finish,
    .reset = clerk_reset,
    .message_drop = clerk_drop,
};

int clerk_start(struct delivery *delivery)
{
    return tr_spawn(delivery->system, &clerk_type, &(struct clerk){ .delivery = delivery },
        &(struct tr_spawn_options){ .name = "delivery clerk",
            .owner = "delivery",
            .box = { .capacity = 4096, .full = TR_FULL_FAIL } },
        &delivery->clerk);
}

/* ---- the request's side
 * ----------------------------------------------------------------------------- */

static bool send(struct http_request *request, struct delivery *delivery, struct sql_unit *unit,
    bool is_read, http_then_fn then, void *with)
{
    struct errand *errand = unit == NULL ? NULL : tr__calloc(sizeof *errand);
    struct clerk_message message = { errand };

    if (errand == NULL) {
        sql_unit_free(unit);
        return false;
    }
    atomic_init(&errand->holders, 2);
    errand->unit = unit;
    errand->is_read = is_read;
    errand->with = with;
    auth_set_data(request, errand);
    if (http_ask(request, delivery->clerk, &message, sizeof message, then) == 0)
        return true;
    errand_unref(errand);
    errand_end(request);
    return false;
}

void errand_run(struct http_request *request, struct delivery *delivery, struct sql_unit *unit,
    bool is_read, http_then_fn then)
{
    errand_run_with(request, delivery, unit, is_read, then, NULL, NULL);
}

void errand_run_with(struct http_request *request, struct delivery *delivery, struct sql_unit *unit,
    bool is_read, http_then_fn then, void *with, void (*dropped)(void *with))
{
    if (send(request, delivery, unit, is_read, then, with))
        return;
    if (dropped != NULL)
        dropped(with);
    http_respond_shed(request, 503, 1, "busy");
}

void *errand_with(const struct http_request *request)
{
    return ((const struct errand *)auth_data(request))->with;
}

void errand_end(struct http_request *request)
{
    errand_unref(auth_data(request));
    auth_set_data(request, NULL);
}

/* The unit, if it was run to its end; NULL: the request has been answered. */
static struct sql_unit *came_back(
    struct http_request *request, const struct errand *errand, const struct tr_event *event)
{
    int status = event->status;
    bool is_unknown;

    if (status == 0)
        status = errand->refused < 0 ? errand->refused : sql_unit_status(errand->unit);
    if (event->status == 0 && (status == 0 || status == SQL_EROWS || status == SQL_ECONSTRAINT))
        return errand->unit;
    is_unknown = event->status < 0 || status == SQL_EUNKNOWN;
    http_respond_lost(request, status, is_unknown && !errand->is_read, "database");
    return NULL;
}

struct sql_unit *errand_any_unit(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = came_back(request, auth_data(request), event);

    if (unit != NULL && auth_is_replay(unit)) {
        http_respond_error(
            request, 401, "TokenReplayed", "this token was used before: make a new one");
        unit = NULL;
    }
    if (unit == NULL)
        errand_end(request);
    return unit;
}

struct sql_unit *errand_unit(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = errand_any_unit(request, event);

    if (unit == NULL || sql_unit_status(unit) == 0)
        return unit;
    http_respond_error(request, 409, "Conflict", "this changed meanwhile: look again");
    errand_end(request);
    return NULL;
}

struct sql_unit *errand_take(struct http_request *request, const struct tr_event *event)
{
    struct sql_unit *unit = errand_unit(request, event);

    if (unit == NULL)
        return NULL;
    ((struct errand *)auth_data(request))->unit = NULL;
    errand_end(request);
    return unit;
}
