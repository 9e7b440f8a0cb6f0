/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.c: limits downloads per user and per address, and lists the running ones.
 *
 * A download holds one lease of its user and one of its address. The table counts leases in words:
 * 48 bits of a word are the name (a keyed hash of the user or the address), 16 bits are the count.
 * A word whose count falls to 0 becomes 0 and is free. The hash of a name selects a window of
 * WINDOW words, and its word is one of them. Taking and giving back are one compare-and-swap each.
 *
 * Two threads that take the first lease of one name at the same time could do so in two words, if
 * another word became free in between. So a thread that filled a free word looks at the window once
 * more; if it finds the name in another word, it gives its lease back and starts again.
 *
 * tr_limiter does not fit here: it costs a message for every download, and it counts tokens, where a
 * lease has to come back at the end of the transfer. */
#include "services/packs/transfer.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/siphash.h"
#include "http/http.h"
#include "services/packs/packs.h"
#include "support/metric.h"

enum {
    TABLE_BITS = 16,
    TABLE_SIZE = 1 << TABLE_BITS,
    WINDOW = 16,
    COUNT_BITS = 16,
    COUNT_MAX = (1 << COUNT_BITS) - 1,
    LOOKS_MAX = 1 << 24, /* more means a lease was given back that was never taken */
};

#define REFUSED_HELP "Downloads refused because too many were under way."
#define ENDED_HELP "Downloads by how they ended."
static struct metric metrics[] = {
    METRIC(GAUGE, "troupe_pack_downloads_in_flight", NULL, "Downloads being sent."),
    METRIC(COUNTER, "troupe_pack_downloads_refused_total", "reason=\"user\"", REFUSED_HELP),
    METRIC(COUNTER, "troupe_pack_downloads_refused_total", "reason=\"address\"", REFUSED_HELP),
    METRIC(COUNTER, "troupe_pack_downloads_refused_total", "reason=\"table\"", REFUSED_HELP),
    METRIC(COUNTER, "troupe_pack_downloads_ended_total", "how=\"complete\"", ENDED_HELP),
    METRIC(COUNTER, "troupe_pack_downloads_ended_total", "how=\"cut\"", ENDED_HELP),
    METRIC(COUNTER, "troupe_pack_downloads_ended_total", "how=\"cancelled\"", ENDED_HELP),
};
enum { IN_FLIGHT, REFUSED_USER, REFUSED_ADDRESS, REFUSED_TABLE, COMPLETE, CUT, CANCELLED };

/* The leases of a download, in the order in which they are taken. */
enum { LEASE_ADDRESS, LEASE_USER, LEASES };
static const struct {
    unsigned char kind; /* changes the hash: a user and an address never share a word */
    int metric;
    enum transfer_refusal refusal;
} leases[LEASES] = {
    [LEASE_ADDRESS] = { 'a', REFUSED_ADDRESS, TRANSFER_ADDRESS },
    [LEASE_USER] = { 'u', REFUSED_USER, TRANSFER_USER },
};

struct transfers {
    uint32_t limits[LEASES]; /* 0: none */
    struct base_siphash_key
        key; /* of the hash; random, so that clients cannot choose names that collide */
    _Atomic uint64_t id;
    pthread_mutex_t lock;           /* of the list; only a call of an administrator walks it */
    struct transfer *first, **last; /* in the order in which they began to wait: nearly by id */
    _Atomic uint64_t words[TABLE_SIZE];
};

struct transfer {
    struct transfers *transfers;
    struct transfer *next, **link; /* in the list */
    tr_weak connection;
    struct pinned_file *file; /* one reference */
    uint64_t names[LEASES];   /* 0: no lease */
    _Atomic uint64_t sent;
    _Atomic bool is_cancelled;
    bool is_listed;            /* the sender's; others write the links */
    struct transfer_info info; /* all fields but `sent`, which is above */
};

/* ---- leases --------------------------------------------------------------------------------- */

/* Hash a user or an address to a name, never 0. Its upper 48 bits are stored in a word; its lower
 * bits are the index of the window. */
static uint64_t name_of(const struct transfers *transfers, int lease, struct span text)
{
    struct base_siphash_key key = transfers->key;
    uint64_t name;

    tr_assert(text.at != NULL);
    key.k0 += leases[lease].kind;
    name = base_siphash(key, text.at, text.size);
    return name >> COUNT_BITS == 0 ? name | (uint64_t)1 << 63 : name;
}

static _Atomic uint64_t *word_at(struct transfers *transfers, uint64_t name, uint32_t step)
{
    return &transfers->words[(name + step) & (TABLE_SIZE - 1)];
}

static bool is_of(uint64_t word, uint64_t name)
{
    return word != 0 && word >> COUNT_BITS == name >> COUNT_BITS;
}

static bool find_and_give_back(struct transfers *transfers, uint64_t name)
{
    for (uint32_t i = 0; i < WINDOW; i++) {
        _Atomic uint64_t *at = word_at(transfers, name, i);
        uint64_t word = atomic_load_explicit(at, memory_order_relaxed);

        while (is_of(word, name))
            if (atomic_compare_exchange_weak_explicit(at, &word,
                    (word & COUNT_MAX) == 1 ? 0 : word - 1, memory_order_seq_cst,
                    memory_order_relaxed))
                return true;
    }
    return false;
}

static void give_lease_back(struct transfers *transfers, uint64_t name)
{
    uint32_t looks = 0;

    /* Another thread may give back the lease of one word and take it in another one during the
     * search. Leases of a name are interchangeable, so search again. */
    while (!find_and_give_back(transfers, name))
        tr_assert(++looks < LOOKS_MAX);
}

enum taken { TAKEN, TAKEN_FULL, TAKEN_NO_ROOM, TAKEN_AGAIN };

/* Count one more in the word of this name. */
static enum taken take_more(_Atomic uint64_t *at, uint64_t word, uint64_t name, uint32_t limit)
{
    while (is_of(word, name)) {
        if ((word & COUNT_MAX) >= limit)
            return TAKEN_FULL;
        if (atomic_compare_exchange_weak_explicit(
                at, &word, word + 1, memory_order_seq_cst, memory_order_relaxed))
            return TAKEN;
    }
    return TAKEN_AGAIN; /* the word was freed meanwhile */
}

static enum taken take_once(struct transfers *transfers, uint64_t name, uint32_t limit)
{
    _Atomic uint64_t *free_word = NULL;
    uint64_t nothing = 0;
    uint32_t free_step = 0;

    for (uint32_t i = 0; i < WINDOW; i++) {
        _Atomic uint64_t *at = word_at(transfers, name, i);
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
    /* Pairs with the same loads of another thread: at least one of the two sees the other's
     * word. */
    for (uint32_t i = 0; i < WINDOW; i++)
        if (i != free_step &&
            is_of(atomic_load_explicit(word_at(transfers, name, i), memory_order_seq_cst), name)) {
            give_lease_back(transfers, name); /* ours, or another one of the same name */
            return TAKEN_AGAIN;
        }
    return TAKEN;
}

static enum taken take_lease(struct transfers *transfers, uint64_t name, uint32_t limit)
{
    enum taken taken;

    tr_assert(limit > 0);
    tr_assert(limit <= COUNT_MAX);
    do
        taken = take_once(transfers, name, limit);
    while (taken == TAKEN_AGAIN);
    return taken;
}

uint32_t transfers_held(const struct transfers *transfers)
{
    uint64_t held = 0;

    for (uint32_t i = 0; i < TABLE_SIZE; i++)
        held += atomic_load_explicit(&transfers->words[i], memory_order_relaxed) & COUNT_MAX;
    return (uint32_t)held;
}

/* ---- one download --------------------------------------------------------------------------- */

static void give_leases_back(struct transfer *transfer)
{
    for (int i = 0; i < LEASES; i++)
        if (transfer->names[i] != 0)
            give_lease_back(transfer->transfers, transfer->names[i]);
}

/* Take the leases of the transfer, or neither of them. */
static enum transfer_refusal take_leases(
    struct transfer *transfer, const struct transfer_facts *facts)
{
    const struct span texts[LEASES] = { facts->address_key, facts->user };
    struct transfers *transfers = transfer->transfers;

    tr_assert(facts->address_key.at != NULL);
    for (int i = 0; i < LEASES; i++) {
        enum taken taken;
        uint64_t name;

        if (transfers->limits[i] == 0 || texts[i].at == NULL)
            continue;
        name = name_of(transfers, i, texts[i]);
        taken = take_lease(transfers, name, transfers->limits[i]);
        if (taken != TAKEN) {
            bool is_full = taken == TAKEN_NO_ROOM;

            give_leases_back(transfer);
            metric_add(&metrics[is_full ? REFUSED_TABLE : leases[i].metric], 1);
            return is_full ? TRANSFER_TABLE : leases[i].refusal;
        }
        transfer->names[i] = name;
    }
    return TRANSFER_OK;
}

enum transfer_refusal transfer_start(
    struct transfers *transfers, const struct transfer_facts *facts, struct transfer **ret_transfer)
{
    struct transfer *transfer = base_calloc(sizeof *transfer);
    enum transfer_refusal refusal;

    if (transfer == NULL)
        return TRANSFER_MEMORY;
    transfer->transfers = transfers;
    refusal = take_leases(transfer, facts);
    if (refusal != TRANSFER_OK) {
        base_free(transfer);
        return refusal;
    }
    transfer->connection = facts->connection;
    transfer->file = facts->file == NULL ? NULL : pinned_ref(facts->file);
    transfer->info = (struct transfer_info){
        .id = atomic_fetch_add_explicit(&transfers->id, 1, memory_order_relaxed) + 1,
        .began_ns = facts->now_ns,
        .size = facts->size,
    };
    packs_copy(transfer->info.pack, facts->pack);
    packs_copy(transfer->info.version, facts->version);
    packs_copy(transfer->info.user, facts->user);
    packs_copy(transfer->info.address, facts->address);
    metric_add(&metrics[IN_FLIGHT], 1);
    *ret_transfer = transfer;
    return TRANSFER_OK;
}

static void list_add(struct transfers *transfers, struct transfer *transfer)
{
    transfer->is_listed = true;
    pthread_mutex_lock(&transfers->lock);
    tr_assert(*transfers->last == NULL);
    transfer->link = transfers->last;
    *transfers->last = transfer;
    transfers->last = &transfer->next;
    pthread_mutex_unlock(&transfers->lock);
}

static void list_remove(struct transfers *transfers, struct transfer *transfer)
{
    pthread_mutex_lock(&transfers->lock);
    tr_assert(*transfer->link == transfer);
    *transfer->link = transfer->next;
    if (transfer->next == NULL)
        transfers->last = transfer->link;
    else
        transfer->next->link = transfer->link;
    pthread_mutex_unlock(&transfers->lock);
}

bool transfer_progress(void *data, uint64_t sent, bool is_waiting)
{
    struct transfer *transfer = data;

    atomic_store_explicit(&transfer->sent, sent, memory_order_relaxed);
    if (is_waiting && !transfer->is_listed)
        list_add(transfer->transfers, transfer);
    return !atomic_load_explicit(&transfer->is_cancelled, memory_order_relaxed) &&
           (is_waiting || transfer->file == NULL || pinned_is_same(transfer->file));
}

void transfer_stop(void *data, uint64_t sent)
{
    struct transfer *transfer = data;
    bool is_cancelled;

    if (transfer->is_listed)
        list_remove(transfer->transfers, transfer);
    is_cancelled = atomic_load_explicit(&transfer->is_cancelled, memory_order_relaxed);
    metric_add(&metrics[IN_FLIGHT], -1);
    metric_add(&metrics[sent == transfer->info.size ? COMPLETE
                        : is_cancelled              ? CANCELLED
                                                    : CUT],
        1);
    give_leases_back(transfer);
    pinned_unref(transfer->file);
    base_free(transfer);
}

/* ---- the list ------------------------------------------------------------------------------- */

uint32_t transfers_list(
    struct transfers *transfers, uint64_t after, struct transfer_info ret_infos[TRANSFER_LIST_MAX])
{
    uint32_t count = 0;

    pthread_mutex_lock(&transfers->lock);
    for (const struct transfer *transfer = transfers->first;
         transfer != NULL && count < TRANSFER_LIST_MAX; transfer = transfer->next) {
        if (transfer->info.id <= after)
            continue;
        ret_infos[count] = transfer->info;
        ret_infos[count++].sent = atomic_load_explicit(&transfer->sent, memory_order_relaxed);
    }
    pthread_mutex_unlock(&transfers->lock);
    return count;
}

int transfers_cancel(struct transfers *transfers, uint64_t id)
{
    struct transfer *transfer;
    tr_weak connection = { 0 };

    pthread_mutex_lock(&transfers->lock);
    for (transfer = transfers->first; transfer != NULL && transfer->info.id != id;)
        transfer = transfer->next;
    if (transfer != NULL) {
        atomic_store_explicit(&transfer->is_cancelled, true, memory_order_relaxed);
        connection = transfer->connection;
    }
    pthread_mutex_unlock(&transfers->lock);
    if (transfer == NULL)
        return TR_ENOENT;
    http_wake(connection);
    return 0;
}

/* A word counts to 65,535, which is more than the connections of a server. */
static uint32_t at_most(uint32_t limit)
{
    return limit < COUNT_MAX ? limit : COUNT_MAX;
}

int transfers_start(const struct tr_env *env, const struct transfer_limits *limits,
    struct transfers **ret_transfers)
{
    struct transfers *transfers = base_calloc(sizeof *transfers);

    if (transfers == NULL)
        return TR_ENOMEM;
    metric_register(metrics, sizeof metrics / sizeof metrics[0]);
    transfers->limits[LEASE_ADDRESS] = at_most(limits->per_address);
    transfers->limits[LEASE_USER] = at_most(limits->per_user);
    transfers->key.k0 = env->random(env->data);
    transfers->key.k1 = env->random(env->data);
    transfers->last = &transfers->first;
    (void)pthread_mutex_init(&transfers->lock, NULL);
    *ret_transfers = transfers;
    return 0;
}

void transfers_stop(struct transfers **transfers)
{
    struct transfers *old = *transfers;

    if (old == NULL)
        return;
    *transfers = NULL;
    tr_assert(transfers_held(old) == 0); /* a transfer that goes on would use the table */
    tr_assert(old->first == NULL);
    (void)pthread_mutex_destroy(&old->lock);
    base_free(old);
}
