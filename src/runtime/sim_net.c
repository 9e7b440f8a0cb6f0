/* SPDX-License-Identifier: Apache-2.0 */
/* sim_net.c: datagrams under way are a binary heap ordered by (due_ns, sequence). Invariants:
 * 1. The pair is unique, so the order of delivery does not depend on how the heap happens to be
 *    laid out.
 * 2. No datagram in the heap goes in a direction that is cut; tr__sim_net_next_ns is thus always a
 *    delivery.
 * 3. The draws for a datagram depend on those before it, not on memory or addresses. */
#include "runtime/sim_net.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* An extra delay is up to this many times delay_ns_max (see sim.h). */
#define REORDER_FACTOR 10u
/* UINT64_MAX means "none": no datagram is due then. */
#define DUE_NS_MAX (UINT64_MAX - 1)

struct flight {
    struct tr__sim_net_datagram datagram;
    uint64_t sequence;
};

struct direction {
    uint64_t from, to;
};

struct tr__sim_net {
    struct base_random random;
    struct tr_net_faults faults;
    struct flight *heap;
    uint32_t heap_count, heap_capacity;
    size_t bytes; /* of all datagrams in the heap */
    uint64_t sequence;
    struct direction *cuts; /* sorted */
    uint32_t cut_count, cut_capacity;
    struct tr__sim_net_counters counters;
};

int tr__sim_net_create(const struct base_random *random, struct tr__sim_net **ret_net)
{
    struct tr__sim_net *net = base_calloc(sizeof *net);

    if (net == NULL)
        return TR_ENOMEM;
    net->random = *random;
    *ret_net = net;
    return 0;
}

void tr__sim_net_destroy(struct tr__sim_net **net)
{
    struct tr__sim_net *gone = *net;

    if (gone == NULL)
        return;
    *net = NULL;
    for (size_t i = 0; i < gone->heap_count; i++)
        base_free(gone->heap[i].datagram.bytes);
    base_free(gone->heap);
    base_free(gone->cuts);
    base_free(gone);
}

void tr__sim_net_faults(struct tr__sim_net *net, const struct tr_net_faults *faults)
{
    tr_assert_use(faults->delay_ns_min <= faults->delay_ns_max,
        "the smallest network delay is not more than the largest");
    net->faults = *faults;
}

/* ---- the heap -------------------------------------------------------------------------------- */

static bool is_before(const struct flight *a, const struct flight *b)
{
    if (a->datagram.due_ns != b->datagram.due_ns)
        return a->datagram.due_ns < b->datagram.due_ns;
    return a->sequence < b->sequence;
}

static void sift_up(struct flight *heap, size_t at)
{
    struct flight moving = heap[at];

    for (; at > 0 && is_before(&moving, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = moving;
}

static void sift_down(struct flight *heap, size_t count, size_t at)
{
    struct flight moving = heap[at];

    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &moving))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static int heap_reserve(struct tr__sim_net *net, uint32_t count)
{
    while (net->heap_capacity < count) {
        struct flight *heap = base_grow(net->heap, &net->heap_capacity, 16, sizeof *heap);

        if (heap == NULL)
            return TR_ENOMEM;
        net->heap = heap;
    }
    return 0;
}

/* ---- partitions ------------------------------------------------------------------------------ */

/* Where the direction is in the sorted cuts, or belongs. */
static size_t cut_position(const struct tr__sim_net *net, uint64_t from, uint64_t to)
{
    size_t low = 0, high = net->cut_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct direction *cut = &net->cuts[middle];

        if (cut->from < from || (cut->from == from && cut->to < to))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_cut_at(const struct tr__sim_net *net, size_t at, uint64_t from, uint64_t to)
{
    return at < net->cut_count && net->cuts[at].from == from && net->cuts[at].to == to;
}

static bool is_cut(const struct tr__sim_net *net, uint64_t from, uint64_t to)
{
    return is_cut_at(net, cut_position(net, from, to), from, to);
}

static int cuts_reserve(struct tr__sim_net *net)
{
    struct direction *cuts;

    if (net->cut_count >= TR__SIM_NET_CUTS_MAX)
        return TR_ELIMIT;
    if (net->cut_count < net->cut_capacity)
        return 0;
    cuts = base_grow(net->cuts, &net->cut_capacity, 16, sizeof *cuts);
    if (cuts == NULL)
        return TR_ENOMEM;
    net->cuts = cuts;
    return 0;
}

static void take_out_of_the_air(struct tr__sim_net *net, uint64_t from, uint64_t to)
{
    uint32_t kept = 0;

    for (size_t i = 0; i < net->heap_count; i++) {
        struct tr__sim_net_datagram *datagram = &net->heap[i].datagram;

        if (datagram->from == from && datagram->to == to) {
            net->bytes -= datagram->size;
            net->counters.cut++;
            base_free(datagram->bytes);
        } else {
            net->heap[kept++] = net->heap[i];
        }
    }
    if (kept == net->heap_count)
        return;
    net->heap_count = kept;
    for (size_t i = kept / 2; i-- > 0;)
        sift_down(net->heap, kept, i);
}

int tr__sim_net_partition(struct tr__sim_net *net, uint64_t from, uint64_t to, bool cut)
{
    size_t at = cut_position(net, from, to);
    bool was_cut = is_cut_at(net, at, from, to);
    int rc;

    if (cut == was_cut)
        return 0;
    if (!cut) {
        net->cut_count--;
        memmove(&net->cuts[at], &net->cuts[at + 1], (net->cut_count - at) * sizeof *net->cuts);
        return 0;
    }
    rc = cuts_reserve(net);
    if (rc < 0)
        return rc;
    memmove(&net->cuts[at + 1], &net->cuts[at], (net->cut_count - at) * sizeof *net->cuts);
    net->cuts[at] = (struct direction){ .from = from, .to = to };
    net->cut_count++;
    take_out_of_the_air(net, from, to);
    return 0;
}

void tr__sim_net_heal(struct tr__sim_net *net)
{
    net->cut_count = 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Uniform in [0, most]. */
static uint64_t draw_up_to(struct tr__sim_net *net, uint64_t most)
{
    if (most == UINT64_MAX)
        return base_random_next(&net->random);
    return base_random_below(&net->random, most + 1);
}

static uint64_t add_saturating(uint64_t a, uint64_t b)
{
    return b > DUE_NS_MAX || a > DUE_NS_MAX - b ? DUE_NS_MAX : a + b;
}

static uint64_t draw_due_ns(struct tr__sim_net *net, uint64_t now_ns)
{
    const struct tr_net_faults *faults = &net->faults;
    uint64_t due_ns, extra_ns_max;

    due_ns = add_saturating(now_ns, faults->delay_ns_min);
    due_ns = add_saturating(due_ns, draw_up_to(net, faults->delay_ns_max - faults->delay_ns_min));
    if (base_random_chance(&net->random, faults->reorder_per_million)) {
        extra_ns_max = faults->delay_ns_max > UINT64_MAX / REORDER_FACTOR
                           ? UINT64_MAX
                           : faults->delay_ns_max * REORDER_FACTOR;
        due_ns = add_saturating(due_ns, draw_up_to(net, extra_ns_max));
        net->counters.reordered++;
    }
    return due_ns;
}

static bool is_crowded(const struct tr__sim_net *net, size_t size)
{
    return net->heap_count >= TR__SIM_NET_DATAGRAMS_MAX ||
           size > TR__SIM_NET_BYTES_MAX - net->bytes;
}

/* Takes the bytes of the datagram. The heap has room for it. */
static void net_launch(struct tr__sim_net *net, const struct tr__sim_net_datagram *datagram)
{
    tr_assert(net->heap_count < net->heap_capacity);
    net->heap[net->heap_count] =
        (struct flight){ .datagram = *datagram, .sequence = net->sequence++ };
    net->bytes += datagram->size;
    sift_up(net->heap, net->heap_count++);
}

static void *copy_bytes(const void *bytes, size_t size)
{
    void *copy = base_alloc(size);

    if (copy != NULL && size > 0)
        memcpy(copy, bytes, size);
    return copy;
}

static void launch_duplicate(
    struct tr__sim_net *net, uint64_t now_ns, const struct tr__sim_net_datagram *original)
{
    struct tr__sim_net_datagram datagram = *original;

    net->counters.duplicated++;
    datagram.bytes =
        is_crowded(net, datagram.size) ? NULL : copy_bytes(original->bytes, datagram.size);
    if (datagram.bytes == NULL) {
        /* Without memory the duplicate is crowded out too. */
        net->counters.crowded_out++;
        return;
    }
    datagram.due_ns = draw_due_ns(net, now_ns);
    net_launch(net, &datagram);
}

int tr__sim_net_send(struct tr__sim_net *net, uint64_t now_ns, uint64_t from, uint64_t to,
    const void *bytes, size_t size)
{
    struct tr__sim_net_datagram datagram = { .from = from, .to = to, .size = size };
    bool is_lost, is_double;
    int rc;

    if (size > TR__SIM_NET_DATAGRAM_BYTES_MAX)
        return TR_ETOOBIG;
    if (is_cut(net, from, to)) {
        net->counters.sent++;
        net->counters.cut++;
        return 0;
    }

    /* All memory before the first draw: a send that fails leaves no trace. Room for a duplicate
     * too. */
    rc = heap_reserve(net, net->heap_count + 2);
    if (rc < 0)
        return rc;
    datagram.bytes = copy_bytes(bytes, size);
    if (datagram.bytes == NULL)
        return TR_ENOMEM;

    net->counters.sent++;
    is_lost = base_random_chance(&net->random, net->faults.loss_per_million);
    is_double = base_random_chance(&net->random, net->faults.duplicate_per_million);
    if (is_lost || is_crowded(net, size)) {
        net->counters.lost += is_lost;
        net->counters.crowded_out += !is_lost;
        base_free(datagram.bytes);
        return 0;
    }
    datagram.due_ns = draw_due_ns(net, now_ns);
    net_launch(net, &datagram);
    if (is_double)
        launch_duplicate(net, now_ns, &datagram);
    return 0;
}

/* ---- receiving ------------------------------------------------------------------------------- */

uint64_t tr__sim_net_next_ns(const struct tr__sim_net *net)
{
    return net->heap_count > 0 ? net->heap[0].datagram.due_ns : UINT64_MAX;
}

bool tr__sim_net_pop(
    struct tr__sim_net *net, uint64_t now_ns, struct tr__sim_net_datagram *ret_datagram)
{
    if (net->heap_count == 0 || net->heap[0].datagram.due_ns > now_ns)
        return false;
    *ret_datagram = net->heap[0].datagram;
    net->bytes -= ret_datagram->size;
    net->counters.delivered++;
    net->heap[0] = net->heap[--net->heap_count];
    if (net->heap_count > 0)
        sift_down(net->heap, net->heap_count, 0);
    return true;
}

size_t tr__sim_net_under_way(const struct tr__sim_net *net)
{
    return net->heap_count;
}

const struct tr__sim_net_counters *tr__sim_net_counters(const struct tr__sim_net *net)
{
    return &net->counters;
}
