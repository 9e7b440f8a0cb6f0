/* SPDX-License-Identifier: Apache-2.0 */
/* docs/guide/09-published-snapshots.md: one actor writes the settings, everybody reads them without
 * asking. */
#include <stdio.h>
#include <stdlib.h>

#include <troupe/troupe.h>

static void must(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", tr_error_text(rc));
        exit(1);
    }
}

/* Never changed once it is published. */
struct settings {
    int version, limit;
};

static struct tr_snapshot *settings;

static void settings_free(void *value)
{
    const struct settings *old = value;

    printf("version %d is freed\n", old->version);
    free(value);
}

/* The one who publishes. */
struct keeper {
    int version;
};

static enum tr_next keeper_handle(void *state, struct tr_context *ctx, void *message)
{
    struct keeper *self = state;
    struct settings *next = malloc(sizeof *next);

    if (next == NULL)
        return TR_FAIL;
    *next = (struct settings){ .version = ++self->version, .limit = *(const int *)message };
    if (tr_snapshot_publish(settings, next) < 0) {
        free(next);
        return TR_FAIL;
    }
    tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

static const struct tr_type keeper_type = {
    .name = "keeper",
    .message_size = sizeof(int),
    .state_size = sizeof(struct keeper),
    .handle = keeper_handle,
};
TR_ACTOR(keeper, struct keeper, int)

/* One of those who read: valid until the handler returns. */
static enum tr_next guard_handle(void *state, struct tr_context *ctx, void *message)
{
    const struct settings *now = tr_snapshot_read(settings);
    int number = *(const int *)message;

    (void)state;
    printf("guard: %d is %s (settings version %d)\n", number,
        number <= now->limit ? "allowed" : "too much", now->version);
    tr_reply(ctx, 0, NULL, 0);
    return TR_GO;
}

static const struct tr_type guard_type = {
    .name = "guard",
    .message_size = sizeof(int),
    .handle = guard_handle,
};

int main(void)
{
    struct keeper keeper = { 0 };
    struct tr_system *system;
    struct tr_reader *reader;
    const struct settings *now;
    keeper_sender to_keeper;
    tr_sender to_guard;
    int number = 15;

    must(tr_system_create(&(struct tr_system_options){ .driven = true }, &system));
    must(tr_snapshot_create(system, settings_free, &settings));
    must(keeper_spawn(system, &keeper, NULL, &to_keeper));
    must(tr_spawn(system, &guard_type, NULL, NULL, &to_guard));

    must(keeper_ask_wait(to_keeper, 10, NULL, 0, 0));
    must(tr_ask_wait(to_guard, &number, sizeof number, NULL, 0, 0));

    /* A thread that is no worker registers once, and reads between begin and end. */
    must(tr_reader_create(system, &reader));
    tr_reader_begin(reader);
    now = tr_snapshot_read(settings);
    must(keeper_ask_wait(to_keeper, 20, NULL, 0, 0));
    printf("main: still reading version %d\n", now->version);
    tr_reader_end(reader);
    tr_reader_destroy(&reader);

    must(tr_ask_wait(to_guard, &number, sizeof number, NULL, 0, 0));
    keeper_drop(&to_keeper);
    tr_sender_drop(&to_guard);
    must(tr_system_join(system, 0));
    tr_snapshot_destroy(&settings);
    tr_system_destroy(&system);
    return 0;
}
