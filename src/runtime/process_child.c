/* SPDX-License-Identifier: Apache-2.0 */
/* process_child.c: the child process: the user's actor, unchanged, and beside it the port, an actor
 * that exchanges frames with the proxy. One thread drives both, so while a handler does not return
 * the child gives no sign of life, and the proxy notices.
 *
 *   descriptor 3 ──frames──▶ port: waiting ──▶ in hand ──ask──▶ the actor
 *                ◀──frames── port ◀──────────────────answer──────┘
 *
 * Every message goes to the actor as an ask of the port, also a tell, because every ask ends with
 * an event for its asker. So that the actor sees a tell as a tell, its handle() is wrapped: the
 * wrapper takes the duty to answer away before the real handler runs, and tells the port when it
 * has returned.
 *
 * Invariants:
 *   1. One message is in hand: BEGIN has left the process before the actor gets it, and the next
 *      one waits until its handler has returned. So the proxy knows exactly what a crash has cost.
 *      Messages of the control lane do not wait: an actor that holds still handles them.
 *   2. For each message one DONE, for each ask one REPLY, in any order; none if the actor fails
 *      on it. Whether it took too long is known only after its handler: for the message handled
 *      last no DONE once the actor is gone, before the port has heard why.
 *   3. An entry is in the table until both are said. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/alloc.h"
#include "runtime/ask.h"
#include "runtime/box.h"
#include "runtime/process.h"
#include "runtime/system.h"
#include "runtime/wire.h"

enum { TAG_WIRE = 1, TAG_DOWN = 2, READS_MAX = 16, ENTRIES_MAX = 1 << 16 };
static const uint64_t drain_ns = UINT64_C(5000000000);

struct entry {
    struct tr__link link; /* in waiting or urgent until it is in hand */
    uint64_t id;
    uint64_t deadline_ns;
    uint32_t slot;
    uint32_t size;
    uint8_t lane;
    bool is_ask;
    bool handled;  /* its handler has returned, or never will be called */
    bool done;     /* … and that was said */
    bool answered; /* the ask has ended */
    int refused;   /* not by its handler */
    unsigned char *bytes;
};

enum actor_state { ACTOR_STARTING, ACTOR_STARTED, ACTOR_GREETED /* HELLO is said */, ACTOR_ENDED };

/* The proxy as the port sees it. From PROXY_GONE on the child is an orphan. */
enum proxy_state {
    PROXY_SENDS,
    PROXY_STOPS, /* STOP has come, the last frame */
    PROXY_GONE,
    PROXY_BROKEN, /* it sent something that is not the protocol */
};

struct child {
    struct tr_type type; /* the row's, wrapped */
    const struct tr_process_row *row;
    tr_sender actor; /* keeps the actor alive: dropped to stop it */
    tr_weak actor_weak;
    tr_sender port;
    struct tr_box *port_box;
    struct tr__wire_buffer in, out;
    struct tr__link waiting, urgent;
    struct entry *begun;   /* BEGIN is in `out`: goes to the actor when that has left */
    struct entry *in_hand; /* of the ordinary lanes */
    struct entry *last;    /* the actor's last call was its handler, with this one */
    struct entry **slots;
    uint32_t slot_count, entry_count;
    void *message;        /* for decoding */
    unsigned char *bytes; /* for encoding */
    uint32_t bytes_max;
    enum actor_state actor_state;
    enum proxy_state proxy_state;
    bool woken;
    unsigned armed; /* the watched events */
    int code;       /* exit code */
};

/* The port's messages: something in `child` has changed. */
struct wake {
    int nothing;
};

/* Out of memory in the port: exit, which the proxy sees. */
static _Noreturn void port_give_up(const char *why)
{
    fprintf(stderr, "troupe: process actor: %s\n", why);
    fflush(NULL);
    _exit(TR_PROCESS_EXIT_SETUP);
}

/* From the actor's turn, but not on its message's time: a nested message would expire with it. */
static void wake_port(struct child *child, struct tr_context *ctx)
{
    uint64_t deadline_ns = ctx->deadline_ns;

    if (child->woken)
        return;
    child->woken = true;
    ctx->deadline_ns = 0;
    if (tr_tell(child->port, &(struct wake){ 0 }, sizeof(struct wake)) < 0)
        port_give_up("out of memory");
    ctx->deadline_ns = deadline_ns;
}

/* ---- the wrapped actor ----------------------------------------------------------------------- */

static struct child *port_child_of(const struct tr_context *ctx)
{
    return tr__container((uintptr_t)ctx->box->type, struct child, type);
}

/* The entry of an open ask of the port. Once it is answered the slot may be another's. */
static struct entry *port_entry_of(struct child *child, const struct tr_context *ctx)
{
    const struct tr__cell *cell = ctx->cell;
    const struct tr_box *asker;

    if (!tr_is_asked(ctx))
        return NULL;
    asker = cell->kind == CELL_ASK ? tr__cell_asker(cell)
                                   : ((const struct tr__ask *)(uintptr_t)cell->opt)->asker;
    return asker == child->port_box ? child->slots[cell->tag] : NULL;
}

static int wrapped_start(void *self, struct tr_context *ctx)
{
    struct child *child = port_child_of(ctx);
    int rc = 0;

    if (child->row->type->start != NULL)
        rc = child->row->type->start(self, ctx);
    if (rc < 0)
        return rc;
    child->actor_state = ACTOR_STARTED;
    wake_port(child, ctx);
    return 0;
}

static enum tr_next wrapped_handle(void *self, struct tr_context *ctx, void *message)
{
    struct child *child = port_child_of(ctx);
    struct entry *entry = port_entry_of(child, ctx);
    tr_reply_handle duty = { 0 };
    enum tr_next next;

    if (entry != NULL && !entry->is_ask) {
        duty = tr_reply_take(ctx);
        if (duty.reply == NULL)
            port_give_up("out of memory");
    }
    next = child->row->type->handle(self, ctx, message);
    child->last = NULL;
    if (entry != NULL && next != TR_FAIL) {
        entry->handled = true;
        child->last = entry;
        wake_port(child, ctx);
    }
    tr_reply_drop(&duty);
    return next;
}

static enum tr_next wrapped_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct child *child = port_child_of(ctx);

    child->last = NULL;
    return child->row->type->event(self, ctx, event);
}

/* ---- entries --------------------------------------------------------------------------------- */

static struct entry *entry_make(struct child *child, const struct tr__wire_frame *frame)
{
    struct entry *entry;
    uint32_t slot = 0;

    while (slot < child->slot_count && child->slots[slot] != NULL)
        slot++;
    if (slot == child->slot_count) {
        struct entry **slots = base_grow(child->slots, &child->slot_count, 64, sizeof *slots);

        if (slots == NULL)
            return NULL;
        child->slots = slots;
    }
    entry = base_calloc(sizeof *entry + frame->size);
    if (entry == NULL)
        return NULL;
    entry->id = frame->id;
    entry->slot = slot;
    entry->lane = frame->lane;
    entry->is_ask = frame->kind == WIRE_ASK;
    entry->size = frame->size;
    entry->bytes = (unsigned char *)(entry + 1);
    if (frame->size > 0)
        memcpy(entry->bytes, frame->body, frame->size);
    child->slots[slot] = entry;
    child->entry_count++;
    return entry;
}

static void entry_drop_if_over(struct child *child, struct entry *entry)
{
    if (!entry->done || !entry->answered)
        return;
    child->slots[entry->slot] = NULL;
    child->entry_count--;
    if (child->last == entry)
        child->last = NULL;
    base_free(entry);
}

static void port_put(struct child *child, const struct tr__wire_frame *frame)
{
    if (tr__wire_put(&child->out, frame) < 0)
        port_give_up("out of memory");
}

static void port_say(struct child *child, enum tr__wire_kind kind, uint64_t id, uint64_t argument)
{
    port_put(child, &(struct tr__wire_frame){ .kind = kind, .id = id, .argument = argument });
}

static void say_done(struct child *child, struct entry *entry)
{
    entry->done = true;
    port_say(child, WIRE_DONE, entry->id, tr__wire_of_status(entry->refused));
}

static void say_reply(
    struct child *child, const struct entry *entry, int status, const void *value, uint32_t size)
{
    const struct tr_codec *codec = &child->row->codec;
    struct tr__wire_frame frame = {
        .kind = WIRE_REPLY, .id = entry->id, .body = value, .size = size
    };

    if (size > 0 && codec->encode_value != NULL) {
        int rc = codec->encode_value(value, size, child->bytes, child->bytes_max, &frame.size);

        frame.body = child->bytes;
        if (rc < 0)
            status = rc;
        if (rc < 0 || frame.size > child->bytes_max)
            frame.size = 0;
    } else if (size > child->bytes_max) {
        status = TR_ETOOBIG;
        frame.size = 0;
    }
    frame.argument = tr__wire_of_status(status);
    port_put(child, &frame);
}

/* It never reaches the handler. */
static void port_refuse(struct child *child, struct entry *entry, int status)
{
    entry->handled = true;
    entry->refused = status;
    if (entry->is_ask)
        say_reply(child, entry, status, NULL, 0);
    entry->answered = true;
    say_done(child, entry);
    entry_drop_if_over(child, entry);
}

/* ---- in hand --------------------------------------------------------------------------------- */

static int port_decode(struct child *child, const struct entry *entry)
{
    const struct tr_codec *codec = &child->row->codec;
    uint32_t size = child->row->type->message_size;

    memset(child->message, 0, size);
    if (codec->decode != NULL)
        return codec->decode(entry->bytes, entry->size, child->message) < 0 ? TR_EPROTO : 0;
    if (entry->size != size)
        return TR_EPROTO;
    memcpy(child->message, entry->bytes, size);
    return 0;
}

/* BEGIN has left: the actor gets it. */
static void port_dispatch(struct child *child, struct tr_context *ctx, struct entry *entry)
{
    const struct tr_type *type = child->row->type;
    struct tr_ask_options options = { .tag = entry->slot, .lane = (enum tr_lane)entry->lane };
    int rc;

    if (entry->deadline_ns != 0) {
        uint64_t now = tr_now_ns(ctx);

        if (entry->deadline_ns <= now) {
            port_refuse(child, entry, TR_ETIMEOUT);
            return;
        }
        options.timeout_ns = entry->deadline_ns - now;
    }
    rc = port_decode(child, entry);
    if (rc < 0) {
        port_refuse(child, entry, rc);
        return;
    }
    rc = tr_ask(ctx, child->actor, child->message, type->message_size, &options);
    if (rc == 0) {
        if (entry->lane != TR_CONTROL)
            child->in_hand = entry;
        return;
    }
    if (type->message_drop != NULL)
        type->message_drop(child->message);
    /* Closed: the actor has ended, and the message is as lost as one that it was handling. */
    if (rc != TR_ECLOSED)
        port_refuse(child, entry, rc);
}

static struct entry *next_entry(struct child *child)
{
    struct tr__link *list = !tr__list_is_empty(&child->urgent) ? &child->urgent : &child->waiting;
    struct entry *entry;

    if (list == &child->waiting && child->in_hand != NULL)
        return NULL;
    /* The actor has ended or is about to: messages not begun go to the next child. */
    if (tr_sender_is_closed(child->actor))
        return NULL;
    if (tr__list_is_empty(list))
        return NULL;
    entry = tr__container(list->next, struct entry, link);
    tr__list_remove(&entry->link);
    return entry;
}

/* It ended in the turn before; the notice that says why may still be on its way. */
static bool actor_is_gone(const struct child *child)
{
    return atomic_load_explicit(&child->actor_weak.box->generation, memory_order_acquire) !=
           child->actor_weak.generation;
}

/* All but `unsure`. */
static void collect_handled(struct child *child, const struct entry *unsure)
{
    for (uint32_t slot = 0; slot < child->slot_count; slot++) {
        struct entry *entry = child->slots[slot];

        if (entry == NULL || entry == unsure || !entry->handled || entry->done)
            continue;
        if (entry == child->in_hand)
            child->in_hand = NULL;
        say_done(child, entry);
        entry_drop_if_over(child, entry);
    }
}

/* The proxy is gone, or as good as gone: the actor has to stop. */
static void port_orphaned(struct child *child, enum proxy_state how)
{
    if (child->proxy_state >= PROXY_GONE)
        return;
    child->proxy_state = how;
    tr_stop(child->actor_weak);
}

static void watch_wire(struct child *child, struct tr_context *ctx, unsigned events)
{
    if (child->armed == events)
        return;
    if (tr_fd_watch(ctx, PROCESS_FD, events, TAG_WIRE) < 0)
        port_give_up("out of memory");
    child->armed = events;
}

/* Everything that can be done now. TR_STOP when the port has nothing left to do. */
static enum tr_next port_pump(struct child *child, struct tr_context *ctx)
{
    int rc = 0;

    if (child->actor_state == ACTOR_STARTED) {
        child->actor_state = ACTOR_GREETED;
        port_say(child, WIRE_HELLO, WIRE_VERSION, child->row->type->message_size);
    }
    if (child->actor_state != ACTOR_ENDED)
        collect_handled(child, actor_is_gone(child) ? child->last : NULL);
    while (child->proxy_state < PROXY_GONE) {
        rc = tr__wire_send(&child->out, PROCESS_FD);
        if (rc == TR_ECLOSED)
            port_orphaned(child, PROXY_GONE);
        if (rc < 0 || child->actor_state != ACTOR_GREETED)
            break;
        if (child->begun != NULL) {
            struct entry *entry = child->begun;

            child->begun = NULL;
            port_dispatch(child, ctx, entry);
            continue;
        }
        child->begun = next_entry(child);
        if (child->begun == NULL)
            break;
        port_say(child, WIRE_BEGIN, child->begun->id, 0);
    }
    if (child->proxy_state == PROXY_STOPS && child->begun == NULL &&
        tr__list_is_empty(&child->waiting) && tr__list_is_empty(&child->urgent))
        tr_sender_drop(&child->actor);
    if (child->actor_state == ACTOR_ENDED && (child->proxy_state >= PROXY_GONE || rc == 0))
        return TR_STOP;
    if (child->proxy_state >= PROXY_GONE)
        return TR_GO; /* the actor's end is all that is waited for */
    watch_wire(child, ctx, EPOLLIN | (rc == TR_EAGAIN ? EPOLLOUT : 0u));
    return TR_GO;
}

/* ---- the port -------------------------------------------------------------------------------- */

static int port_on_frame(void *owner, struct tr_context *ctx, const struct tr__wire_frame *frame)
{
    struct child *child = owner;
    struct entry *entry;

    if (child->proxy_state == PROXY_STOPS)
        return TR_EPROTO; /* it was the last one */
    switch (frame->kind) {
    case WIRE_TELL:
    case WIRE_ASK:
        if (child->entry_count == ENTRIES_MAX)
            return TR_EPROTO;
        entry = entry_make(child, frame);
        if (entry == NULL)
            port_give_up("out of memory");
        if (frame->argument != 0)
            entry->deadline_ns = tr__later(tr_now_ns(ctx), frame->argument);
        tr__list_add(frame->lane == TR_CONTROL ? &child->urgent : &child->waiting, &entry->link);
        return 0;
    case WIRE_PING:
        port_say(child, WIRE_PONG, frame->id, 0);
        return 0;
    case WIRE_STOP:
        child->proxy_state = PROXY_STOPS;
        return 0;
    case WIRE_HELLO:
    case WIRE_BEGIN:
    case WIRE_DONE:
    case WIRE_REPLY:
    case WIRE_ACCEPT:
    case WIRE_PONG:
    case WIRE_BYE:
    case WIRE_KINDS:
        break;
    }
    return TR_EPROTO;
}

static void port_receive(struct child *child, struct tr_context *ctx)
{
    const struct tr__wire_reader reader = { WIRE_TO_CHILD, child->bytes_max, port_on_frame, child };
    int rc = tr__wire_read(&child->in, PROCESS_FD, READS_MAX, &reader, ctx);

    if (rc == TR_ENOMEM)
        port_give_up("out of memory");
    if (rc < 0)
        port_orphaned(child, rc == TR_EPROTO ? PROXY_BROKEN : PROXY_GONE);
}

static void port_on_reply(struct child *child, const struct tr_event *event)
{
    struct entry *entry = event->tag < child->slot_count ? child->slots[event->tag] : NULL;

    if (entry == NULL)
        return;
    if (event->status == TR_ACCEPTED) {
        if (entry->is_ask)
            port_say(child, WIRE_ACCEPT, entry->id, 0);
        return;
    }
    entry->answered = true;
    if (entry->is_ask)
        say_reply(child, entry, event->status, event->value, event->size);
    /* It ended in the box, by its deadline: no handler will return. */
    if (!entry->handled && (event->status == TR_ETIMEOUT || event->status == TR_ECANCELLED)) {
        entry->handled = true;
        entry->refused = event->status;
    }
    entry_drop_if_over(child, entry);
}

static void on_down(struct child *child, int why)
{
    bool failed = why != TR_WHY_DONE && why != TR_WHY_STOPPED;

    collect_handled(child, why == TR_WHY_BUDGET ? child->last : NULL);
    child->actor_state = ACTOR_ENDED;
    child->code = child->proxy_state == PROXY_BROKEN ? TR_PROCESS_EXIT_WIRE
                  : child->proxy_state == PROXY_GONE ? TR_PROCESS_EXIT_ORPHAN
                  : failed                           ? TR_PROCESS_EXIT_FAILED
                                                     : 0;
    if (child->code == 0 && child->proxy_state == PROXY_SENDS)
        port_say(child, WIRE_BYE, 0, 0);
}

static int port_start(void *state, struct tr_context *ctx)
{
    struct child *child = *(struct child **)state;
    int rc;

    rc = tr_watch(ctx, child->actor_weak, TAG_DOWN);
    if (rc < 0)
        return rc;
    watch_wire(child, ctx, EPOLLIN);
    return 0;
}

static enum tr_next port_handle(void *state, struct tr_context *ctx, void *message)
{
    struct child *child = *(struct child **)state;

    (void)message;
    child->woken = false;
    return port_pump(child, ctx);
}

static enum tr_next port_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct child *child = *(struct child **)state;

    switch (event->kind) {
    case TR_EVENT_FD:
        child->armed = 0;
        if (child->proxy_state < PROXY_GONE)
            port_receive(child, ctx);
        break;
    case TR_EVENT_REPLY:
        port_on_reply(child, event);
        break;
    case TR_EVENT_DOWN:
        on_down(child, event->status);
        break;
    case TR_EVENT_TIMER:
    case TR_EVENT_SIGNAL:
    case TR_EVENT_WORK:
    case TR_EVENT_EXIT:
    case TR_EVENT_NET:
        break;
    }
    return port_pump(child, ctx);
}

static const struct tr_type port_type = {
    .name = "port",
    .message_size = sizeof(struct wake),
    .state_size = sizeof(struct child *),
    .start = port_start,
    .handle = port_handle,
    .event = port_event,
};

/* ---- the process ----------------------------------------------------------------------------- */

static int actor_spawn(struct child *child, struct tr_system *system, const char *argument)
{
    const struct tr_process_row *row = child->row;
    uint32_t size = row->type->state_size;
    /* A message that finds the box full of stashed ones is refused; the port must never be parked.
     */
    struct tr_spawn_options options = {
        .name = row->name, .owner = "port", .box = { .full = TR_FULL_FAIL }
    };
    void *state = base_calloc(size);
    int rc = 0;

    if (state == NULL)
        return TR_ENOMEM;
    if (row->state != NULL)
        memcpy(state, row->state, size);
    if (row->prepare != NULL)
        rc = row->prepare(state, argument);
    if (rc == 0)
        rc = tr_spawn(system, &child->type, state, &options, &child->actor);
    base_free(state);
    return rc;
}

static int child_run(struct child *child, struct tr_system *system, const char *argument)
{
    if (actor_spawn(child, system, argument) < 0)
        return TR_PROCESS_EXIT_FAILED;
    child->actor_weak = tr_sender_weaken(child->actor);
    if (tr_spawn(system, &port_type, &child, NULL, &child->port) < 0)
        return TR_PROCESS_EXIT_SETUP;
    child->port_box = child->port.box;
    child->code = TR_PROCESS_EXIT_SETUP; /* if the port fails to start */
    tr_sender_wait_closed(child->port, 0);
    tr_sender_drop(&child->port);
    tr_sender_drop(&child->actor);
    /* Others that the actor has started and left behind. */
    tr_system_drain(system, drain_ns);
    return child->code;
}

static int port_setup(pid_t helper_pid)
{
    if (fcntl(PROCESS_FD, F_SETFD, FD_CLOEXEC) < 0)
        return TR_EIO;
    /* The helper reaps this process, so this process ends with the helper. The helper may have died
     * before this call: check. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != helper_pid)
        return TR_ECLOSED;
    return 0;
}

int tr__process_child(const struct tr_process_row *row, const char *argument, pid_t helper_pid)
{
    struct child child = { .type = *row->type, .row = row };
    struct tr_system *system;
    int code = TR_PROCESS_EXIT_SETUP;

    child.type.start = wrapped_start;
    child.type.handle = wrapped_handle;
    if (row->type->event != NULL)
        child.type.event = wrapped_event;
    child.bytes_max = tr__codec_bytes_max(&row->codec);
    tr__list_init(&child.waiting);
    tr__list_init(&child.urgent);
    if (port_setup(helper_pid) < 0)
        return TR_PROCESS_EXIT_ORPHAN;
    child.message = base_alloc(row->type->message_size);
    child.bytes = base_alloc(child.bytes_max);
    if (child.message != NULL && child.bytes != NULL &&
        tr_system_create(&(struct tr_system_options){ .driven = true }, &system) == 0) {
        code = child_run(&child, system, argument);
        tr_system_destroy(&system);
    }
    for (uint32_t slot = 0; slot < child.slot_count; slot++)
        base_free(child.slots[slot]);
    base_free(child.slots);
    tr__wire_fini(&child.in);
    tr__wire_fini(&child.out);
    base_free(child.message);
    base_free(child.bytes);
    return code;
}
