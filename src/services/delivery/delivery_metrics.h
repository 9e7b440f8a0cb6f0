/* SPDX-License-Identifier: Apache-2.0 */
/* delivery_metrics.h: the metrics of conversations. Those without troupe_ have the names that
 * dashboards of a Catbird server use. The other files of this service count their own metrics;
 * docs/operations.md lists all. */
#ifndef SERVICES_DELIVERY_DELIVERY_METRICS_H
#define SERVICES_DELIVERY_DELIVERY_METRICS_H

#include <stdint.h>

struct act;

/* X(name, kind, name in Prometheus, help). A counter of the direct path (direct.h) follows the
 * actor's; the kind DIRECT is a counter with the label path="direct". */
#define DELIVERY_METRIC_LIST(X)                                                                    \
    X(MESSAGES_SENT, COUNTER, "mls_messages_sent_total", "Messages accepted.")                     \
    X(GROUPS_CREATED, COUNTER, "mls_groups_created_total", "Conversations created.")               \
    X(EPOCH_CONFLICTS, COUNTER, "epoch_conflicts_total",                                           \
        "Commits, messages and proposals of a past epoch.")                                        \
    X(IDEMPOTENCY_HITS, COUNTER, "idempotency_cache_hits_total",                                   \
        "Repeated requests that got the first answer.")                                            \
    X(IDEMPOTENCY_MISSES, COUNTER, "idempotency_cache_misses_total",                               \
        "Requests with an id that was not stored before.")                                         \
    X(IDEMPOTENCY_SKIPPED, COUNTER, "idempotency_cache_skipped_total",                             \
        "Stored requests without an id.")                                                          \
    X(IDEMPOTENCY_STORES, COUNTER, "idempotency_cache_stores_total",                               \
        "Stored requests with an id.")                                                             \
    X(FANOUTS, COUNTER, "fanout_operations_total",                                                 \
        "Events sent to subscribers of a conversation.")                                           \
    X(STREAMS, GAUGE, "active_sse_connections", "Open event streams, WebSockets included.")        \
    X(SPAWNS, COUNTER, "actor_spawns_total", "Conversation actors started.")                       \
    X(STOPS, COUNTER, "actor_stops_total", "Conversation actors stopped.")                         \
    X(RESTARTS, COUNTER, "actor_restarts_total", "Conversation actors restarted.")                 \
    X(BOX_FULL, COUNTER, "actor_mailbox_full_events_total",                                        \
        "Requests that found the mailbox of their conversation full.")                             \
    X(DROPS, COUNTER, "actor_message_drops_total", "Requests that no conversation actor handled.") \
    X(PACKAGES_LOW, COUNTER, "troupe_delivery_packages_low_total",                                 \
        "Claims that left their owner with few key packages.")                                     \
    X(TIDIED, COUNTER, "troupe_delivery_rows_tidied_total",                                        \
        "Expired rows deleted from other tables than the log.")                                    \
    X(TRIMMED, COUNTER, "troupe_delivery_rows_trimmed_total",                                      \
        "Rows of the log that nobody needed any more.")                                            \
    X(POLLS, COUNTER, "troupe_delivery_polls_total",                                               \
        "getMessages with nothing new, answered without the database.")                            \
    X(CONFLICTS, COUNTER, "troupe_delivery_epoch_conflicts_total",                                 \
        "Commits that lost their epoch.")                                                          \
    X(CONFLICTS_DIRECT, DIRECT, "troupe_delivery_epoch_conflicts_total",                           \
        "Commits that lost their epoch.")                                                          \
    X(COMMITS, COUNTER, "troupe_delivery_commits_total", "Commits stored.")                        \
    X(COMMITS_DIRECT, DIRECT, "troupe_delivery_commits_total", "Commits stored.")                  \
    X(MESSAGES, COUNTER, "troupe_delivery_messages_total", "Messages stored.")                     \
    X(MESSAGES_DIRECT, DIRECT, "troupe_delivery_messages_total", "Messages stored.")               \
    X(REPLANS, COUNTER, "troupe_delivery_replans_total",                                           \
        "Acts planned again after another one failed.")                                            \
    X(REPLANS_DIRECT, COUNTER, "troupe_delivery_direct_retries_total",                             \
        "Requests without an actor that were planned again: another one was stored "               \
        "first, or the outcome was unknown.")                                                      \
    X(LOADS, COUNTER, "troupe_delivery_convos_loaded_total",                                       \
        "Conversations read from the database.")                                                   \
    X(REQUESTS_DIRECT, COUNTER, "troupe_delivery_direct_requests_total",                           \
        "Requests served without an actor.")                                                       \
    X(SUBSCRIBERS, GAUGE, "troupe_delivery_subscribers", "Open event streams.")                    \
    X(EVENTS, COUNTER, "troupe_delivery_events_total", "Events sent to subscribers.")              \
    X(FORKS, COUNTER, "troupe_delivery_forks_suspected_total",                                     \
        "Confirmations of an epoch whose hash differs from an earlier one.")                       \
    X(REVOKED, COUNTER, "troupe_delivery_commits_revoked_total", "Commits that a quorum revoked.") \
    X(RESETS, COUNTER, "troupe_delivery_resets_total",                                             \
        "Groups that an admin replaced by a new one.")                                             \
    X(TURNS, COUNTER, "troupe_delivery_turns_total",                                               \
        "Turns given to members that lost two commits in a row.")                                  \
    X(TURNS_UNUSED, COUNTER, "troupe_delivery_turns_unused_total",                                 \
        "Turns that passed without a commit.")

enum delivery_metric {
    DELIVERY_METRIC_NONE,
#define DELIVERY_METRIC_ENUM(name, ...) DELIVERY_METRIC_##name,
    DELIVERY_METRIC_LIST(DELIVERY_METRIC_ENUM)
#undef DELIVERY_METRIC_ENUM
        DELIVERY_METRICS,
};

/* From a request to its conversation until the answer, of acts that were stored. */
enum delivery_timer {
    DELIVERY_TIMER_NONE,
    DELIVERY_TIMER_ACT, /* all acts */
    DELIVERY_TIMER_EPOCH,
    DELIVERY_TIMER_WRITE,
    DELIVERY_TIMERS,
};

/* Registers the metrics; repeating is fine. */
void delivery_metrics_start(void);
void delivery_metrics_add(enum delivery_metric metric, int64_t amount);
/* Counts an answered act that took this long. */
void delivery_metrics_act(const struct act *act, uint64_t took_ns);

#endif
