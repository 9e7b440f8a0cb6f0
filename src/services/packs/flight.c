/* SPDX-License-Identifier: Apache-2.0 */
/* flight.c: leases and the list of downloads.
 *
 * A lease is one count in a word of the table: 48 bits of who (a keyed hash of the user or the
 * address), 16 bits of how many. A word whose count falls to 0 becomes 0, free for anybody. A
 * name's word is one of the WINDOW words from where its hash points to. Taking and giving back are
 * one compare-and-swap each.
 *
 * Two that take the first lease of one name at the same time could do so in two words, if one of
 * them became free in between. So who filled a free word looks once more, and if there is another
 * of its name gives back what it took and begins again. */
#include "services/packs/flight.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/siphash.h"
#include "http/http.h"
#include "services/packs/ending.h"
#include "support/metric.h"

enum {
    TABLE_BITS = 16,
    TABLE_SIZE = 1 << TABLE_BITS,
    WINDOW = 16,
    COUNT_BITS = 16,
    COUNT_MAX = (1 << COUNT_BITS) - 1,
    LOOKS_MAX = 1 << 24, /* a lease that nobody took is a bug of ours */
};

static struct metric metrics[] = {
    { .name = "troupe_pack_downloads_in_flight",
        .help = "Downloads being sent.",
        .kind = METRIC_GAUGE },
    { .name = "troupe_pack_downloads_refused_total",
        .labels = "reason=\"user\"",
        .help = "Downloads refused because too many were under way.",
        .kind = METRIC_COUNTER },
    { .name = "troupe_pack_downloads_refused_total",
        .labels = "reason=\"address\"",
        .help = "Downloads refused because too many were under way.",
        .kind = METRIC_COUNTER },
    { .name = "troupe_pack_downloads_refused_total",
        .labels = "reason=\"table\"",
        .help = "Downloads refused because too many were under way.",
        .kind = METRIC_COUNTER },
    { .name = "troupe_pack_downloads_ended_total",
        .labels = "how=\"complete\"",
        .help = "Downloads by how they ended.",
        .kind = METRIC_COUNTER },
    { .name = "troupe_pack_downloads_ended_total",
        .labels = "how=\"cut\"",
        .help = "Downloads by how they ended.",
        .kind = METRIC_COUNTER },
    { .name = "troupe_pack_downloads_ended_total",
        .labels = "how=\"cancelled\"",
        .help = "Downloads by how they ended.",
        .kind = METRIC_COUNTER },
};
enum { IN_FLIGHT, REFUSED_USER, REFUSED_ADDRESS, REFUSED_TABLE, COMPLETE, CUT, CANCELLED };

struct flights {
    struct flight_limits limits;
    struct base_siphash_key key; /* of the hashes: nobody can choose names that meet */
    _Atomic uint64_t id;
    struct tr_system *system;
    tr_sender supervisor, list;
    struct tr_supervisor table;
    struct tr_child child;
    struct flight_list *state;
    _Atomic uint64_t words[TABLE_SIZE];
};

struct flight {
    _Atomic uint32_t refs; /* who sends, and the list */
    struct flights *flights;
    struct flight *next, *prev; /* the list's */
    tr_weak connection;
    uint64_t user_name, address_name; /* 0: no lease */
    _Atomic uint64_t sent;
    _Atomic bool is_cancelled;
    bool is_listed;          /* who sends told the list */
    struct flight_info info; /* without sent */
};

/* ---- leases --------------------------------------------------------------------------------- */

/* Never 0. Its upper 48 bits are the name's in a word, its lower bits say where. */
static uint64_t name_of(const struct flights *flights, char kind, struct span text)
{
    struct base_siphash_key key = flights->key;
    uint64_t name;

    key.k0 += (unsigned char)kind;
    name = base_siphash(key, text.at, text.size);
    return name >> COUNT_BITS == 0 ? name | (uint64_t)1 << 63 : name;
}

static _Atomic uint64_t *word_at(struct flights *flights, uint64_t name, uint32_t step)
{
    return &flights->words[(name + step) & (TABLE_SIZE - 1)];
}

static bool is_of(uint64_t word, uint64_t name)
{
    return word != 0 && word >> COUNT_BITS == name >> COUNT_BITS;
}

static bool find_and_give_back(struct flights *flights, uint64_t name)
{
    for (uint32_t i = 0; i < WINDOW; i++) {
        _Atomic uint64_t *at = word_at(flights, name, i);
        uint64_t word = atomic_load_explicit(at, memory_order_relaxed);

        while (is_of(word, name))
            if (atomic_compare_exchange_weak_explicit(at, &word,
                    (word & COUNT_MAX) == 1 ? 0 : word - 1, memory_order_seq_cst,
                    memory_order_relaxed))
                return true;
    }
    return false;
}

static void give_back(struct flights *flights, uint64_t name)
{
    uint32_t looks = 0;

    /* It is in one of the words, but may move while we look: leases of a name are alike. */
    while (!find_and_give_back(flights, name))
        tr_assert(++looks < LOOKS_MAX);
}

enum taken { TAKEN, TAKEN_FULL, TAKEN_NO_ROOM, TAKEN_AGAIN };

/* One more in the word of this name, if there is one. */
static enum taken take_more(_Atomic uint64_t *at, uint64_t word, uint64_t name, uint32_t limit)
{
    while (is_of(word, name)) {
        if ((word & COUNT_MAX) >= limit)
            return TAKEN_FULL;
        if (atomic_compare_exchange_weak_explicit(
                at, &word, word + 1, memory_order_seq_cst, memory_order_relaxed))
            return TAKEN;
    }
    return TAKEN_AGAIN; /* it was given back meanwhile */
}

static enum taken take_once(struct flights *flights, uint64_t name, uint32_t limit)
{
    _Atomic uint64_t *free_word = NULL;
    uint64_t nothing = 0;
    uint32_t free_step = 0;

    for (uint32_t i = 0; i < WINDOW; i++) {
        _Atomic uint64_t *at = word_at(flights, name, i);
        uint64_t word = atomic_load_explicit(at, memory_order_seq_cst);

        if (is_of(word, name))
            return take_more(at, word, name, limit);
        if (word == 0 && free_word == NULL) {
            free_word = at;
            free_step = i;
        }
    }
    if (free_word == NULL)
        return TAKEN_NO_ROOM;
    if (!atomic_compare_exchange_strong_explicit(free_word, &nothing,
            name >> COUNT_BITS << COUNT_BITS | 1, memory_order_seq_cst, memory_order_relaxed))
        return TAKEN_AGAIN;
    /* Pairs with the same of another thread: at least one of the two sees the other's word. */
    for (uint32_t i = 0; i < WINDOW; i++)
        if (i != free_step &&
            is_of(atomic_load_explicit(word_at(flights, name, i), memory_order_seq_cst), name)) {
            give_back(flights, name); /* ours, or one like it: others may have changed ours */
            return TAKEN_AGAIN;
        }
    return TAKEN;
}

static enum taken take(struct flights *flights, uint64_t name, uint32_t limit)
{
    enum taken taken;

    do
        taken = take_once(flights, name, limit);
    while (taken == TAKEN_AGAIN);
    return taken;
}

uint32_t flights_held(const struct flights *flights)
{
    uint64_t held = 0;

    for (uint32_t i = 0; i < TABLE_SIZE; i++)
        held += atomic_load_explicit(&flights->words[i], memory_order_relaxed) & COUNT_MAX;
    return (uint32_t)held;
}

/* ---- one download --------------------------------------------------------------------------- */

static void flight_unref(struct flight *flight)
{
    if (atomic_fetch_sub_explicit(&flight->refs, 1, memory_order_acq_rel) == 1)
        base_free(flight);
}

static bool tell(struct flight *flight, int kind)
{
    struct flight_message message = { .flight = flight };
    struct tr_send_options options = { .lane = TR_CONTROL };

    message.kind = kind == FLIGHT_BEGIN ? FLIGHT_BEGIN : FLIGHT_END;
    atomic_fetch_add_explicit(&flight->refs, 1, memory_order_relaxed);
    if (tr_tell_with(flight->flights->list, &message, sizeof message, &options) == 0)
        return true;
    flight_unref(flight);
    return false;
}

static void copy_text(char *to, size_t size, struct span text)
{
    (void)snprintf(to, size, "%.*s", (int)(text.size < size ? text.size : size - 1),
        text.at == NULL ? "" : text.at);
}

static enum flight_refusal refuse(enum taken taken, int metric, enum flight_refusal refusal)
{
    if (taken == TAKEN_NO_ROOM) {
        metric_add(&metrics[REFUSED_TABLE], 1);
        return FLIGHT_TABLE;
    }
    metric_add(&metrics[metric], 1);
    return refusal;
}

/* On success the leases are the flight's. */
static enum flight_refusal take_leases(struct flight *flight, const struct flight_facts *facts)
{
    struct flights *flights = flight->flights;
    enum taken taken;

    if (flights->limits.per_address != 0) {
        uint64_t name = name_of(flights, 'a', facts->address_key);

        taken = take(flights, name, flights->limits.per_address);
        if (taken != TAKEN)
            return refuse(taken, REFUSED_ADDRESS, FLIGHT_ADDRESS);
        flight->address_name = name;
    }
    if (flights->limits.per_user != 0 && facts->user.at != NULL) {
        uint64_t name = name_of(flights, 'u', facts->user);

        taken = take(flights, name, flights->limits.per_user);
        if (taken != TAKEN) {
            if (flight->address_name != 0)
                give_back(flights, flight->address_name);
            return refuse(taken, REFUSED_USER, FLIGHT_USER);
        }
        flight->user_name = name;
    }
    return FLIGHT_OK;
}

enum flight_refusal flight_begin(
    struct flights *flights, const struct flight_facts *facts, struct flight **ret_flight)
{
    struct flight *flight = base_calloc(sizeof *flight);
    enum flight_refusal refusal;

    if (flight == NULL)
        return FLIGHT_MEMORY;
    atomic_init(&flight->refs, 1);
    flight->flights = flights;
    refusal = take_leases(flight, facts);
    if (refusal != FLIGHT_OK) {
        base_free(flight);
        return refusal;
    }
    flight->connection = facts->connection;
    flight->info = (struct flight_info){
        .id = atomic_fetch_add_explicit(&flights->id, 1, memory_order_relaxed) + 1,
        .began_ns = facts->now_ns,
        .size = facts->size,
    };
    copy_text(flight->info.pack, sizeof flight->info.pack, facts->pack);
    copy_text(flight->info.version, sizeof flight->info.version, facts->version);
    copy_text(flight->info.user, sizeof flight->info.user, facts->user);
    copy_text(flight->info.address, sizeof flight->info.address, facts->address);
    metric_add(&metrics[IN_FLIGHT], 1);
    *ret_flight = flight;
    return FLIGHT_OK;
}

bool flight_go_on(struct flight *flight, uint64_t sent, bool is_waiting)
{
    atomic_store_explicit(&flight->sent, sent, memory_order_relaxed);
    /* If that fails it goes on all the same, and is not in the list. */
    if (is_waiting && !flight->is_listed)
        flight->is_listed = tell(flight, FLIGHT_BEGIN);
    return !atomic_load_explicit(&flight->is_cancelled, memory_order_relaxed);
}

void flight_end(struct flight *flight, uint64_t sent)
{
    struct flights *flights = flight->flights;

    atomic_store_explicit(&flight->sent, sent, memory_order_relaxed);
    metric_add(&metrics[IN_FLIGHT], -1);
    if (sent == flight->info.size)
        metric_add(&metrics[COMPLETE], 1);
    else if (atomic_load_explicit(&flight->is_cancelled, memory_order_relaxed))
        metric_add(&metrics[CANCELLED], 1);
    else
        metric_add(&metrics[CUT], 1);
    if (flight->address_name != 0)
        give_back(flights, flight->address_name);
    if (flight->user_name != 0)
        give_back(flights, flight->user_name);
    if (flight->is_listed)
        (void)tell(flight, FLIGHT_END);
    flight_unref(flight);
}

/* ---- the list ------------------------------------------------------------------------------- */

struct flight_list {
    struct flight *first, *last; /* by id, nearly: as they were told of */
    uint64_t count;
};

static void list_add(struct flight_list *list, struct flight *flight)
{
    flight->prev = list->last;
    flight->next = NULL;
    if (list->last == NULL)
        list->first = flight;
    else
        list->last->next = flight;
    list->last = flight;
    list->count++;
}

static void list_remove(struct flight_list *list, struct flight *flight)
{
    if (flight->prev == NULL && list->first != flight)
        return; /* nobody told that it began */
    if (flight->prev == NULL)
        list->first = flight->next;
    else
        flight->prev->next = flight->next;
    if (flight->next == NULL)
        list->last = flight->prev;
    else
        flight->next->prev = flight->prev;
    list->count--;
    flight_unref(flight); /* the list's */
}

static void handle_list(struct flight_list *list, struct tr_context *ctx, uint64_t after)
{
    struct flight_info *infos = base_alloc(FLIGHT_LIST_MAX * sizeof *infos);
    uint32_t count = 0;

    if (infos == NULL) {
        (void)tr_reply(ctx, TR_ENOMEM, NULL, 0);
        return;
    }
    for (const struct flight *flight = list->first; flight != NULL && count < FLIGHT_LIST_MAX;
         flight = flight->next) {
        if (flight->info.id <= after)
            continue;
        infos[count] = flight->info;
        infos[count++].sent = atomic_load_explicit(&flight->sent, memory_order_relaxed);
    }
    (void)tr_reply(ctx, 0, infos, count * sizeof *infos);
    base_free(infos);
}

static void handle_cancel(struct flight_list *list, struct tr_context *ctx, uint64_t id)
{
    struct flight *flight = list->first;

    while (flight != NULL && flight->info.id != id)
        flight = flight->next;
    if (flight != NULL) {
        atomic_store_explicit(&flight->is_cancelled, true, memory_order_relaxed);
        http_wake(flight->connection);
    }
    (void)tr_reply(ctx, flight == NULL ? TR_ENOENT : 0, NULL, 0);
}

static enum tr_next list_handle(void *state, struct tr_context *ctx, void *bytes)
{
    struct flight_list *list = state;
    const struct flight_message *message = bytes;

    switch (message->kind) {
    case FLIGHT_BEGIN:
        list_add(list, message->flight);
        break;
    case FLIGHT_END:
        list_remove(list, message->flight);
        flight_unref(message->flight);
        break;
    case FLIGHT_LIST:
        handle_list(list, ctx, message->id);
        break;
    case FLIGHT_CANCEL:
        handle_cancel(list, ctx, message->id);
        break;
    }
    return TR_GO;
}

static void list_finish(void *state)
{
    struct flight_list *list = state;

    while (list->first != NULL)
        list_remove(list, list->first);
}

/* What is being sent goes on while this actor starts again: it keeps its list. */
static int list_reset(void *state, enum tr_why why)
{
    (void)state;
    (void)why;
    return 0;
}

static void message_drop(void *bytes)
{
    const struct flight_message *message = bytes;

    if (message->flight != NULL)
        flight_unref(message->flight);
}

static const char *message_name(const void *bytes)
{
    static const char *const names[] = { "begin", "end", "list", "cancel" };

    return names[((const struct flight_message *)bytes)->kind];
}

static void list_show(const void *state, char *text, size_t size)
{
    (void)snprintf(text, size, "%llu downloads",
        (unsigned long long)((const struct flight_list *)state)->count);
}

static const struct tr_type list_type = {
    .name = "flights",
    .message_size = sizeof(struct flight_message),
    .state_size = sizeof(struct flight_list),
    .handle = list_handle,
    .finish = list_finish,
    .reset = list_reset,
    .message_drop = message_drop,
    .message_name = message_name,
    .show = list_show,
};

/* More than a word can count is more than a server has connections. */
static uint32_t at_most(uint32_t limit)
{
    return limit < COUNT_MAX ? limit : COUNT_MAX;
}

int flights_start(
    struct tr_system *system, const struct flight_limits *limits, struct flights **ret_flights)
{
    struct flights *flights = base_calloc(sizeof *flights);
    const struct tr_env *env = tr_system_env(system);
    int rc;

    if (flights == NULL)
        return TR_ENOMEM;
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    flights->limits =
        (struct flight_limits){ at_most(limits->per_user), at_most(limits->per_address) };
    flights->system = system;
    flights->key.k0 = env->random(env->data);
    flights->key.k1 = env->random(env->data);
    flights->state = base_calloc(sizeof *flights->state);
    if (flights->state == NULL) {
        base_free(flights);
        return TR_ENOMEM;
    }
    flights->child = (struct tr_child){ .name = "flights",
        .type = &list_type,
        .state = flights->state,
        .box = { .full = TR_FULL_FAIL },
        .restart = TR_TRANSIENT,
        .ret_sender = &flights->list };
    flights->table = (struct tr_supervisor){ .name = "flights supervisor",
        .restarts_max = 1000,
        .window_ns = TR_SECONDS(1),
        .children = &flights->child,
        .child_count = 1 };
    rc = tr_supervise(system, &flights->table, "packs", &flights->supervisor);
    if (rc < 0) {
        base_free(flights->state);
        base_free(flights);
        return rc;
    }
    *ret_flights = flights;
    return 0;
}

void flights_stop(struct flights **flights)
{
    struct flights *old = *flights;
    bool has_ended;

    if (old == NULL)
        return;
    *flights = NULL;
    has_ended = packs_end_supervisor(old->system, &old->supervisor);
    tr_sender_drop(&old->list);
    if (!has_ended)
        return; /* its supervisor may still read it */
    base_free(old->state);
    base_free(old);
}

tr_sender flights_sender(const struct flights *flights)
{
    return flights->list;
}
