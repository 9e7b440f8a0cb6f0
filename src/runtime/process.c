/* SPDX-License-Identifier: Apache-2.0 */
/* process.c: process actors: the hooks of the proxy, and the public functions. The life of its
 * child is in process_proxy.c. */
#include "runtime/process.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/process_proxy.h"
#include "runtime/system.h"

/* ---- the actor ------------------------------------------------------------------------------- */

static struct tr__proxy *proxy_of(void *state)
{
    return ((struct tr_process *)state)->proxy;
}

static void limits_init(struct tr_process *limits)
{
#define LIMIT(field, value, most)                                                                  \
    do {                                                                                           \
        limits->field = limits->field != 0 ? limits->field : (value);                              \
        limits->field = limits->field < (most) ? limits->field : (most);                           \
    } while (0)
    LIMIT(start_ns, 10 * second_ns, UINT64_MAX);
    LIMIT(hang_ns, 10 * second_ns, UINT64_MAX);
    LIMIT(grace_ns, 5 * second_ns, UINT64_MAX);
    LIMIT(backoff_ns_min, 10 * ms_ns, UINT64_MAX);
    LIMIT(backoff_ns_max, 5 * second_ns, UINT64_MAX);
    LIMIT(jitter_percent, JITTER_DEFAULT, 100);
    LIMIT(restarts_max, RESTARTS_DEFAULT, RESTARTS_MAX);
    LIMIT(window_ns, 10 * second_ns, UINT64_MAX);
    LIMIT(ahead_max, AHEAD_DEFAULT, AHEAD_MAX);
    LIMIT(asks_max, ASKS_DEFAULT, ASKS_MAX);
#undef LIMIT
}

static void proxy_free(struct tr__proxy *proxy)
{
    tr__flights_fini(&proxy->flights);
    base_free(proxy->argument);
    tr__restarts_fini(&proxy->restarts);
    base_free(proxy);
}

static struct tr__proxy *proxy_create(
    const struct tr_process *process, struct tr__process_type *type)
{
    struct tr__proxy *proxy = base_calloc(sizeof *proxy);

    if (proxy == NULL)
        return NULL;
    proxy->type = type;
    proxy->limits = *process;
    proxy->wire = proxy->notices = proxy->pidfd = -1;
    tr__list_init(&proxy->link);
    limits_init(&proxy->limits);
    if (process->argument != NULL)
        proxy->argument = base_strdup(process->argument);
    if (tr__flights_init(&proxy->flights, tr__proxy_codec_of(proxy)) < 0 ||
        tr__restarts_init(&proxy->restarts, proxy->limits.restarts_max, proxy->limits.window_ns) <
            0 ||
        (process->argument != NULL && proxy->argument == NULL)) {
        proxy_free(proxy);
        return NULL;
    }
    return proxy;
}

static void proxy_list(struct tr__proxy *proxy)
{
    struct tr__processes *owner = proxy->type->owner;

    pthread_mutex_lock(&owner->lock);
    if (tr__list_is_empty(&proxy->link))
        tr__list_add(&owner->live, &proxy->link);
    pthread_mutex_unlock(&owner->lock);
}

static void proxy_unlist(struct tr__proxy *proxy)
{
    struct tr__processes *owner = proxy->type->owner;

    pthread_mutex_lock(&owner->lock);
    tr__list_remove(&proxy->link);
    pthread_mutex_unlock(&owner->lock);
}

static int argument_check(const struct tr_process *process)
{
    return process->argument != NULL && strlen(process->argument) > TR_PROCESS_ARGUMENT_MAX
               ? TR_ETOOBIG
               : 0;
}

static int proxy_start(void *state, struct tr_context *ctx)
{
    struct tr_process *self = state;
    struct tr__proxy *proxy = self->proxy;
    enum tr_next next;

    tr_assert_use(tr__proxy_type_of(ctx->box)->owner->system == ctx->worker->system,
        "a process actor runs in the system whose helper was started for it");
    if (proxy == NULL) {
        if (argument_check(self) < 0)
            return TR_ETOOBIG;
        proxy = self->proxy = proxy_create(self, tr__proxy_type_of(ctx->box));
        if (proxy == NULL)
            return TR_ENOMEM;
    }
    if (tr__ext_get(ctx->box) == NULL)
        return TR_ENOMEM; /* an actor that holds has an ext, and a shut gate is a hold */
    proxy->box = proxy->flights.box = ctx->box;
    proxy_list(proxy);
    /* Its timers and descriptors must reach it through the shut gate. */
    tr__set(ctx->box->status, tr__get(ctx->box->status) | STATUS_URGENT);
    proxy->stopping = false;
    tr__restarts_reset(&proxy->restarts);
    proxy->failures = 0;
    next = tr__proxy_child_start(proxy, ctx);
    tr__proxy_update(proxy, ctx);
    return next == TR_GO ? 0 : TR_ECRASHED;
}

/* Check whether one more message may leave the box. The gate holds back the ordinary lanes. */
static int room_check(struct tr__proxy *proxy, const struct tr_context *ctx)
{
    if (tr__proxy_ahead_count(proxy) >= proxy->limits.ahead_max + CONTROL_AHEAD_MAX)
        return TR_EFULL;
    if (!tr_is_asked(ctx) || tr__proxy_ask_count(proxy) < proxy->limits.asks_max)
        return 0;
    tr__flights_sweep(&proxy->flights);
    return tr__proxy_ask_count(proxy) < proxy->limits.asks_max ? 0 : TR_EFULL;
}

static enum tr_next proxy_handle(void *state, struct tr_context *ctx, void *message)
{
    struct tr__proxy *proxy = proxy_of(state);
    const struct tr_type *type = proxy->box->type;
    int rc;

    rc = room_check(proxy, ctx);
    if (rc == 0)
        rc = tr__flights_take(&proxy->flights, ctx, message);
    if (rc < 0) {
        tr_reply(ctx, rc, NULL, 0);
        tr__flights_refused(
            &proxy->flights, type->message_name != NULL ? type->message_name(message) : NULL);
    }
    if (type->message_drop != NULL)
        type->message_drop(message);
    tr__proxy_pump(proxy, ctx);
    tr__proxy_update(proxy, ctx);
    return TR_GO;
}

static enum tr_next proxy_on_event(
    void *state, struct tr_context *ctx, const struct tr_event *event)
{
    return tr__proxy_on_event(proxy_of(state), ctx, event);
}

static void proxy_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct tr__proxy *proxy = proxy_of(state);

    (void)why;
    if (proxy != NULL && proxy->box != NULL) /* else it has never started */
        tr__proxy_stop(proxy, ctx);
}

static int proxy_reset(void *state, enum tr_why why)
{
    struct tr__proxy *proxy = proxy_of(state);

    (void)why;
    if (proxy == NULL || proxy->box == NULL)
        return 0;
    tr__proxy_abandon(proxy, TR_DEAD_CRASHED);
    proxy->stopping = false;
    tr__proxy_keep_set(proxy);
    return 0;
}

static void proxy_finish(void *state)
{
    struct tr_process *self = state;
    struct tr__proxy *proxy = self->proxy;

    if (proxy == NULL)
        return;
    tr__proxy_abandon(proxy, TR_DEAD_STOPPED);
    proxy_unlist(proxy);
    /* The runtime has pinned the slot for an answer that is not one. */
    if (proxy->kept)
        tr__box_unpin(proxy->box, 1);
    proxy_free(proxy);
    self->proxy = NULL;
}

static void proxy_show(const void *state, char *text, size_t size)
{
    static const char *const phases[] = { "down", "down", "starting", "starting", "up", "ending",
        "ending" };
    const struct tr__proxy *proxy = ((const struct tr_process *)state)->proxy;

    if (proxy == NULL)
        return;
    snprintf(text, size, "child %d is %s; %u restarts; %u ahead, %u answers owed",
        tr__get(proxy->pid), phases[proxy->phase], tr__get(proxy->restart_total),
        tr__proxy_ahead_count(proxy), tr__proxy_ask_count(proxy));
}

void tr__process_type_init(
    struct tr__process_type *type, const struct tr_process_row *row, struct tr__processes *owner)
{
    *type = (struct tr__process_type){ .row = row, .owner = owner };
    type->type = (struct tr_type){
        .name = row->name,
        .message_size = row->type->message_size,
        .state_size = sizeof(struct tr_process),
        .start = proxy_start,
        .handle = proxy_handle,
        .event = proxy_on_event,
        .stop = proxy_stop,
        .finish = proxy_finish,
        .reset = proxy_reset,
        .message_drop = row->type->message_drop,
        .message_name = row->type->message_name,
        .show = proxy_show,
    };
}

/* ---- the public functions -------------------------------------------------------------------- */

const struct tr_type *tr_process_type(struct tr_system *system, const char *name)
{
    struct tr__processes *processes =
        atomic_load_explicit(&system->processes, memory_order_acquire);

    for (uint32_t i = 0; processes != NULL && i < processes->count; i++)
        if (strcmp(processes->types[i].row->name, name) == 0)
            return &processes->types[i].type;
    return NULL;
}

int tr_process_spawn(struct tr_system *system, const char *name, const struct tr_process *process,
    const struct tr_spawn_options *options, tr_sender *ret_sender)
{
    const struct tr_type *type = tr_process_type(system, name);
    struct tr_process state = process != NULL ? *process : (struct tr_process){ 0 };
    struct tr_spawn_options spawn = options != NULL ? *options : (struct tr_spawn_options){ 0 };
    int rc;

    if (type == NULL)
        return TR_ENOENT;
    if (spawn.ret_done != NULL || state.proxy != NULL)
        return TR_EINVAL;
    rc = argument_check(&state);
    if (rc < 0)
        return rc;
    state.proxy =
        proxy_create(&state, tr__container((uintptr_t)type, struct tr__process_type, type));
    if (state.proxy == NULL)
        return TR_ENOMEM;
    state.argument = NULL; /* the proxy has its own */
    if (spawn.grace_ns == 0)
        spawn.grace_ns = tr__later(state.proxy->limits.grace_ns, killed_ns);
    rc = tr_spawn(system, type, &state, &spawn, ret_sender);
    if (rc < 0)
        proxy_free(state.proxy);
    return rc;
}

int tr_process_info(tr_sender sender, struct tr_process_info *ret_info)
{
    struct tr__processes *processes;
    struct tr__proxy *proxy;
    struct tr__link *link;
    uint64_t end;
    int rc = TR_ECLOSED;

    if (sender.box == NULL)
        return TR_ECLOSED;
    if (sender.box->type->handle != proxy_handle)
        return TR_EINVAL;
    processes = tr__proxy_type_of(sender.box)->owner;
    pthread_mutex_lock(&processes->lock);
    for (link = processes->live.next; link != &processes->live; link = link->next) {
        proxy = tr__container(link, struct tr__proxy, link);
        if (proxy->box != sender.box)
            continue;
        end = tr__get(proxy->last_end);
        *ret_info = (struct tr_process_info){ .pid = tr__get(proxy->pid),
            .helper_pid = processes->pid,
            .starts = tr__get(proxy->starts),
            .restarts = tr__get(proxy->restart_total),
            .last_end = (enum tr_process_end)(end >> 32),
            .last_code = (int)(uint32_t)end,
            .ahead = tr__proxy_ahead_count(proxy),
            .asks = tr__proxy_ask_count(proxy) };
        rc = 0;
    }
    pthread_mutex_unlock(&processes->lock);
    return rc;
}

const char *tr_process_end_text(enum tr_process_end end)
{
    static const char *const texts[] = { "running", "exited", "killed by a signal",
        "gave no sign of life", "sent garbage", "did not start", "was lost", "its helper died",
        "stopped as it was told" };

    return (size_t)end < sizeof texts / sizeof texts[0] ? texts[end] : "?";
}
