/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/06-registry.md: one actor per key, started by whoever needs it first, gone when idle.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <troupe/troupe.h>

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

/* One visitor's book. */
struct visitor {
    char name[16];
    int visits;
};

enum visitor_message { VISITOR_VISIT };

/* A state for a key. It must be quick: slow work belongs in start(). */
static int visitor_make(void *data, const void *key, size_t key_size, void *state)
{
    struct visitor *self = state;

    (void)data;
    if (key_size >= sizeof self->name)
        return TR_EINVAL;
    memcpy(self->name, key, key_size);
    return 0;
}

static int visitor_start(void *state, struct tr_context *ctx)
{
    const struct visitor *self = state;

    (void)ctx;
    printf("%s: loaded\n", self->name);
    return 0;
}

static enum tr_next visitor_handle(void *state, struct tr_context *ctx, void *message)
{
    struct visitor *self = state;

    (void)message;
    self->visits++;
    tr_reply(ctx, 0, &self->visits, sizeof self->visits);
    return TR_GO;
}

static void visitor_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    const struct visitor *self = state;

    (void)ctx;
    printf("%s: saved with %d visits, %s\n", self->name, self->visits, tr_why_text(why));
}

static const struct tr_type visitor_type = {
    .name = "visitor",
    .message_size = sizeof(enum visitor_message),
    .state_size = sizeof(struct visitor),
    .start = visitor_start,
    .handle = visitor_handle,
    .stop = visitor_stop,
};
TR_ACTOR(visitor, struct visitor, enum visitor_message)

static void visit(struct tr_registry *registry, const char *name)
{
    visitor_sender visitor;
    int visits = 0;

    must(tr_registry_get(registry, name, strlen(name), "visit", &visitor.raw));
    must(visitor_ask_wait(visitor, VISITOR_VISIT, &visits, sizeof visits, 0));
    visitor_drop(&visitor);
    printf("main: visit %d of %s\n", visits, name);
}

int main(void)
{
    struct tr_registry *registry;
    struct tr_system *system;

    must(tr_system_create(&(struct tr_system_options){ .driven = true }, &system));
    must(tr_registry_create(system,
        &(struct tr_registry_options){
            .name = "visitors", .type = &visitor_type, .make = visitor_make, .live_max = 1000 },
        &registry));

    visit(registry, "ada");
    visit(registry, "bob");
    visit(registry, "ada");
    printf("main: %u live\n", tr_registry_live(registry));

    must(tr_registry_close(&registry, 0));
    must(tr_system_join(system, 0));
    tr_system_destroy(&system);
    return 0;
}
