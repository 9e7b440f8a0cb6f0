/* SPDX-License-Identifier: Apache-2.0 */
/* An engine dies of SIGKILL at a named point, is started again and continues. Each point is a world
 * of its own, of processes without a common thread:
 *
 *     the world ── starts ──▶ the homeserver, with bob's engine
 *        ├── starts ──▶ ada's engine, which kills itself at the point
 *        └── starts ──▶ ada's engine again, which finishes
 *
 * A point is the n-th COMMIT or request of a kind. Its row walks n up from 1. Checked, by name:
 *   reached    ada's first engine was killed at the point
 *   once       accepted events arrive once, both ways; none stays in the outbox or without its key
 *   token      next_batch never goes back
 *   published  one-time keys that count as published are on the server, and no key is made in vain
 *   cancelled  a verification that was under way is cancelled, once, and verifies nobody
 *   told       bob hears once of the end of a verification, also if ada dies before she can say it
 * and what mx_server.h checks: no ratchet index in two events, no transaction with two bodies, no
 * one-time key with two values. */
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "kill_home.h"

enum { WORLDS_AT_ONCE = 6 };

/* ---- worlds ----------------------------------------------------------------------------------- */

static pid_t start(void (*run)(int argument), int argument)
{
    pid_t pid;

    (void)fflush(NULL);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody outlives a case that failed */
        run(argument);
    }
    return pid;
}

static void ada_start(int is_first)
{
    ada_run(is_first != 0);
}

static int end_of(pid_t pid)
{
    int status;

    CHECK_EQ_INT(waitpid(pid, &status, 0), pid);
    return status;
}

static void remove_files(void)
{
    struct place place = { 0 };

    snprintf(place.dir, sizeof place.dir, "%s", world->dir);
    place_finish(&place);
}

static void say_point(char text[200])
{
    static const char *const moments[] = { "before COMMIT", "after COMMIT", "before request",
        "after answer" };

    snprintf(text, 200, "%s %d of \"%s\" %s", moments[world->moment], world->nth, world->point.what,
        world->point.value == NULL ? "" : world->point.value);
}

static void world_run(int nth)
{
    struct place place;
    int ready[2], status;
    pid_t server;
    char letter, point[200];

    world->nth = nth;
    say_point(point);
    place_init_in_memory(&place);
    snprintf(world->dir, sizeof world->dir, "%s", place.dir);
    CHECK(pipe(world->commands) == 0 && pipe(ready) == 0);
    server = start(there_run, ready[1]);
    close(ready[1]);
    CHECK_MSG(read(ready[0], &letter, 1) == 1, "the homeserver ended");
    status = end_of(start(ada_start, 1));
    CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
        "reached: %s: ada met it %d times and ended with status %d", point, world->reached, status);
    status = end_of(start(ada_start, 0));
    CHECK_MSG(status == 0, "%s: ada's second engine ended with status %d", point, status);
    close(world->commands[0]);
    close(world->commands[1]);
    status = end_of(server);
    CHECK_MSG(status == 0, "%s: the homeserver ended with status %d", point, status);
    remove_files();
    _exit(0);
}

static void end_world(void)
{
    int status;

    CHECK(wait(&status) > 0);
    CHECK_MSG(status == 0, "a world ended with status %d", status);
}

/* A world for each point: the rows' occurrences, before and after. Several run at a time. */
static void walk(const struct point *points, size_t count, const struct world *as)
{
    int open = 0, total = 0;

    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < 2 * points[i].count; k++, total++) {
            world = mmap(
                NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            CHECK(world != MAP_FAILED);
            world->point = points[i];
            world->moment =
                (enum moment)((points[i].what[0] == '/' ? BEFORE_REQUEST : BEFORE_COMMIT) + k % 2);
            world->stage_of_point = as->stage_of_point;
            world->is_asked = as->is_asked;
            world->ending = as->ending;
            if (++open > WORLDS_AT_ONCE) {
                end_world();
                open--;
            }
            (void)start(world_run, 1 + k / 2);
            CHECK_EQ_INT(munmap(world, sizeof *world), 0);
        }
    for (; open > 0; open--)
        end_world();
    printf("%d kills\n", total);
}
#define WALK(points, stage, ...)                                                                   \
    walk(points, sizeof points / sizeof points[0],                                                 \
        &(struct world){ .stage_of_point = (stage), __VA_ARGS__ })

/* ---- points ----------------------------------------------------------------------------------- */

TEST_LONG(kill, at_the_token_of_a_sync_loses_no_event, 60)
{
    static const struct point points[] = {
        { 4, "SET next_batch", NULL },
        { 4, "/v3/sync", NULL },
    };

    WALK(points, STAGE_TALK, .is_asked = false);
}

/* The login, the filter, the fallback key, its mark, the one-time keys and their mark are stored. */
TEST_LONG(kill, at_one_time_keys_makes_and_loses_none, 60)
{
    static const struct point points[] = {
        { 6, "INSERT INTO mx_session", NULL },
        { 2, "/keys/upload", NULL },
        { 2, "SET next_batch", NULL },
    };

    WALK(points, STAGE_LOGIN, .is_asked = false);
}

TEST_LONG(kill, at_a_ratchet_uses_no_index_twice, 60)
{
    static const struct point points[] = {
        { 2, "INSERT INTO mx_outbox", NULL },                               /* accepted */
        { 1, "/keys/claim", NULL }, { 1, "INSERT INTO mx_outbound", NULL }, /* the room's session */
        { 1, "INSERT INTO mx_olm", NULL }, /* the session with bob */
        { 1, "/sendToDevice/m.room.encrypted", NULL },
        { 1, "INSERT INTO mx_inbound", NULL },    /* bob's key */
        { 2, "UPDATE mx_outbox SET type", NULL }, /* encrypted */
        { 2, "/send/m.room.encrypted", NULL },
        { 2, "UPDATE mx_outbox SET sending = 2", NULL }, /* sent */
    };

    WALK(points, STAGE_TALK, .is_asked = false);
}

TEST_LONG(kill, at_a_refresh_keeps_the_session, 60)
{
    static const struct point points[] = {
        { 2, "INSERT INTO mx_session", NULL },
        { 1, "/v3/refresh", NULL },
    };

    WALK(points, STAGE_REFRESH, .is_asked = false);
}

TEST_LONG(kill, during_our_verification_cancels_it, 60)
{
    static const struct point points[] = {
        { 1, "INSERT INTO mx_verification", "requested" },
        { 1, "INSERT INTO mx_verification", "started" },
        { 1, "INSERT INTO mx_verification", "key_sent" },
        { 1, "INSERT INTO mx_verification", "compare" },
        { 1, "INSERT INTO mx_verification", "confirmed" },
        { 1, "INSERT INTO mx_verification", "finishing" },
        { 1, "INSERT INTO mx_verification", "done" },
        { 1, "/m.key.verification.request/", NULL },
        { 1, "/m.key.verification.start/", NULL },
        { 1, "/m.key.verification.key/", NULL },
        { 1, "/m.key.verification.mac/", NULL },
        { 1, "/m.key.verification.done/", NULL },
    };

    WALK(points, STAGE_VERIFY, .is_asked = false);
}

TEST_LONG(kill, during_their_verification_cancels_it, 60)
{
    static const struct point points[] = {
        { 1, "INSERT INTO mx_verification", "ready" },
        { 1, "INSERT INTO mx_verification", "accepted" },
        { 1, "INSERT INTO mx_verification", "compare" },
        { 1, "INSERT INTO mx_verification", "checked" },
        { 1, "INSERT INTO mx_verification", "finishing" },
        { 1, "INSERT INTO mx_verification", "done" },
        { 1, "/m.key.verification.ready/", NULL },
        { 1, "/m.key.verification.accept/", NULL },
        { 1, "/m.key.verification.key/", NULL },
        { 1, "/m.key.verification.mac/", NULL },
        { 1, "/m.key.verification.done/", NULL },
    };

    WALK(points, STAGE_VERIFY, .is_asked = true);
}

/* The unit that ends ada's side has her last message: the first COMMIT of the end. The second one, if
 * the server has answered, has the end alone. */
TEST_LONG(kill, at_the_done_of_a_verification_does_not_lose_it, 60)
{
    static const struct point points[] = {
        { 1, "INSERT INTO mx_verification", "done" },
        { 1, "/m.key.verification.done/", NULL },
    };

    for (int is_asked = 0; is_asked < 2; is_asked++) {
        WALK(points, STAGE_VERIFY, .is_asked = is_asked != 0, .ending = ENDING_MATCH_HELD);
    }
}

TEST_LONG(kill, at_the_cancel_of_a_verification_does_not_lose_it, 60)
{
    static const struct point points[] = {
        { 2, "INSERT INTO mx_verification", "cancelled" },
        { 1, "/m.key.verification.cancel/", NULL },
    };
    static const struct point held[] = { { 1, "INSERT INTO mx_verification", "cancelled" } };

    for (int is_asked = 0; is_asked < 2; is_asked++) {
        WALK(points, STAGE_VERIFY, .is_asked = is_asked != 0, .ending = ENDING_MISMATCH);
        WALK(held, STAGE_VERIFY, .is_asked = is_asked != 0, .ending = ENDING_MISMATCH_HELD);
    }
}
