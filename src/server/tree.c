/* SPDX-License-Identifier: Apache-2.0 */
/* tree.c: the supervision tree of the server.
 *
 *   server ─┬─ ops        admin listener, watchdog, trace exporter, database probe
 *           ├─ sql        writers and readers
 *           ├─ auth       HTTP client, verifier, sessions
 *           ├─ delivery   its workers     (one branch per service of main.c)
 *           ├─ packs      …
 *           └─ public     listeners
 *
 * Each part spawns its actors under the supervisor of its branch. An actor that fails is restarted
 * after a back-off. A branch with more than BRANCH_RESTARTS restarts in WINDOW_NS is restarted as a
 * whole; if that does not help the root gives up, and the process ends with a failure for systemd
 * to start it again. Conversations and users live in the registries of their services, connections
 * belong to their listener: they are many, short-lived and not part of the tree.
 *
 * The tables are fields of struct server: the runtime reads them while the system lives. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/assert.h"
#include "server/parts.h"
#include "support/log.h"

enum { BRANCH_RESTARTS = 10, ROOT_RESTARTS = 3, BRANCH_ACTORS_MAX = 192 };
#define WINDOW_NS TR_SECONDS(60)
#define BACKOFF_MIN_NS TR_MILLISECONDS(50)
#define BACKOFF_MAX_NS TR_SECONDS(10)

/* ---- the guard: it ends the server when the root gives up ------------------------------------------ */

struct guard {
    struct server *server;
    tr_weak root;
};

static int guard_start(void *self, struct tr_context *ctx)
{
    return tr_watch(ctx, ((struct guard *)self)->root, 0);
}

static enum tr_next guard_handle(void *self, struct tr_context *ctx, void *message)
{
    (void)self;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next guard_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct server *server = ((struct guard *)self)->server;

    (void)ctx;
    if (event->kind != TR_EVENT_DOWN)
        return TR_GO;
    LOG_PLAIN(LOG_ERROR, "ops",
        "the server ends: its actors failed too often; the lines before this one say which");
    atomic_store_explicit(&server->has_failed, true, memory_order_relaxed);
    kill(getpid(), SIGTERM); /* the main thread waits for it and stops the server */
    return TR_STOP;
}

static const struct tr_type guard_type = {
    .name = "guard",
    .message_size = 1,
    .state_size = sizeof(struct guard),
    .start = guard_start,
    .handle = guard_handle,
    .event = guard_event,
};

/* ---- the tree -------------------------------------------------------------------------------- */

/* Fill in one row. The public listeners stop first: they are the last row. */
static void add_branch(struct server_tree *tree, const char *name, size_t index)
{
    uint32_t row = tree->root.child_count++;

    tr_assert(row < SERVER_BRANCHES_MAX);
    tr_assert(index < SERVER_BRANCHES_MAX);
    tree->branches[index] = (struct tr_supervisor){ .name = name,
        .strategy = TR_ONE_FOR_ONE,
        .restarts_max = BRANCH_RESTARTS,
        .window_ns = WINDOW_NS,
        .spawned_max = BRANCH_ACTORS_MAX,
        .spawned_backoff_ns_min = BACKOFF_MIN_NS,
        .spawned_backoff_ns_max = BACKOFF_MAX_NS,
        .spawned_jitter_percent = 20 };
    tree->rows[row] = (struct tr_child){ .name = name,
        .restart = TR_TRANSIENT,
        .supervisor = &tree->branches[index],
        .ret_sender = &tree->senders[index] };
}

int server_start_tree(struct server *server, char *why, size_t why_size)
{
    static const char *const names[] = { "ops", "sql", "auth", "public" };
    struct server_tree *tree = &server->tree;
    struct guard guard = { .server = server };
    int rc;

    tr_assert(server->system != NULL);
    tr_assert(server->service_count >= SERVER_OWN_SERVICES);
    tree->root = (struct tr_supervisor){ .name = "server",
        .strategy = TR_ONE_FOR_ONE,
        .restarts_max = ROOT_RESTARTS,
        .window_ns = WINDOW_NS,
        .children = tree->rows };
    for (size_t i = 0; i < SERVER_PUBLIC; i++)
        add_branch(tree, names[i], i);
    for (size_t i = SERVER_OWN_SERVICES; i < server->service_count; i++)
        add_branch(tree, server->services[i]->name, SERVER_BRANCHES + i);
    add_branch(tree, names[SERVER_PUBLIC], SERVER_PUBLIC);
    rc = tr_supervise(server->system, &tree->root, "server", &tree->sender);
    if (rc == 0) {
        guard.root = tr_sender_weaken(tree->sender);
        rc = tr_spawn(server->system, &guard_type, &guard,
            &(struct tr_spawn_options){ .name = "guard", .owner = "server" }, &tree->guard);
    }
    if (rc != 0)
        snprintf(why, why_size, "The supervisors could not start: %s.", tr_error_text(rc));
    return rc;
}

tr_sender server_supervisor_of(const struct server *server, size_t service_index)
{
    tr_assert(service_index < server->service_count);
    return server->tree.senders[SERVER_BRANCHES + service_index];
}

void server_stop_tree(struct server *server)
{
    struct server_tree *tree = &server->tree;

    tr_sender_drop(&tree->guard); /* first: this end is no failure */
    for (size_t i = 0; i < SERVER_BRANCHES_MAX; i++)
        tr_sender_drop(&tree->senders[i]);
    tr_sender_drop(&tree->sender);
}
