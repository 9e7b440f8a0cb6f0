/* SPDX-License-Identifier: Apache-2.0 */
/* sim_net.h: the simulated datagram network. A pure module: nodes are numbers, time is an argument,
 * and it knows no actor. Equal generator, equal calls: equal deliveries. One thread. */
#ifndef RUNTIME_SIM_NET_H
#define RUNTIME_SIM_NET_H

#include <troupe/sim.h>

#include "base/random.h"

/* At most 65,000 bytes in one datagram. */
#define TR__SIM_NET_DATAGRAM_BYTES_MAX 65000u
/* Under way at once, in number and in bytes. Past either the newest datagram is lost and counted as
 * crowded out, like in a full queue of a real network. */
#define TR__SIM_NET_DATAGRAMS_MAX 65536u
#define TR__SIM_NET_BYTES_MAX ((size_t)256 * 1024 * 1024)
/* Directions that are cut at once; past it tr__sim_net_partition returns TR_ELIMIT. */
#define TR__SIM_NET_CUTS_MAX 65536u

struct tr__sim_net;

struct tr__sim_net_datagram {
    uint64_t from, to;
    uint64_t due_ns;
    void *bytes; /* the caller of pop owns it: base_free; not NULL even if size is 0 */
    size_t size;
};

/* Every datagram sent ends in exactly one of delivered, lost, cut and crowded_out, or is under way;
 * a duplicate counts as one more sent: sent + duplicated = delivered + lost + cut + crowded_out +
 * under way. */
struct tr__sim_net_counters {
    uint64_t sent;
    uint64_t delivered;
    uint64_t lost;
    uint64_t duplicated;
    uint64_t reordered; /* given an extra delay */
    uint64_t cut;       /* met a partition */
    uint64_t crowded_out;
};

/* Without faults: no delay, no loss. `random` is copied. */
int tr__sim_net_create(const struct base_random *random, struct tr__sim_net **ret_net);
/* Frees the datagrams under way too. Nulls the pointer. */
void tr__sim_net_destroy(struct tr__sim_net **net);

/* For datagrams sent from now on. Aborts if delay_ns_min > delay_ns_max. */
void tr__sim_net_faults(struct tr__sim_net *net, const struct tr_net_faults *faults);
/* Cut or restore one direction. A cut also drops the datagrams under way in that direction. */
int tr__sim_net_partition(struct tr__sim_net *net, uint64_t from, uint64_t to, bool cut);
/* Restore all directions. Faults stay. */
void tr__sim_net_heal(struct tr__sim_net *net);

/* Copies the bytes. 0 also for a datagram that will never arrive; TR_ETOOBIG or TR_ENOMEM. */
int tr__sim_net_send(struct tr__sim_net *net, uint64_t now_ns, uint64_t from, uint64_t to,
    const void *bytes, size_t size);

/* When the next datagram is due; UINT64_MAX if none is under way. */
uint64_t tr__sim_net_next_ns(const struct tr__sim_net *net);
/* The next datagram that is due at now_ns, in order of due time, then of sending. False if there is
 * none. */
bool tr__sim_net_pop(
    struct tr__sim_net *net, uint64_t now_ns, struct tr__sim_net_datagram *ret_datagram);

size_t tr__sim_net_under_way(const struct tr__sim_net *net);
const struct tr__sim_net_counters *tr__sim_net_counters(const struct tr__sim_net *net);

#endif
