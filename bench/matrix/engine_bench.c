/* SPDX-License-Identifier: Apache-2.0 */
/* engine_bench.c: the Matrix engine that is shipped, `troupe sync` as a process of its own, against a
 * scripted homeserver (homeserver.h) on loopback.
 *
 *     matrix-engine-bench TROUPE [catchup] [start] [idle] [rooms]
 *
 * Without names it measures everything. IDLE_SECONDS says how long it watches an idle engine (60).
 * Memory is VmHWM of /proc/PID/status, CPU time is of /proc/PID/stat. Prints a table and exits with 1
 * if a target is missed, or if an event is. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "crypto/digest.h"
#include "homeserver.h"
#include "matrix/crypto/mxcrypto.h"

extern char **environ;

enum {
    CATCHUP_EVENTS = 10000,
    CATCHUP_BODY_BYTES = 1024,
    CATCHUP_TIMELINE = 50, /* the limit in the engine's filter; the others come by /messages */
    SESSION_EVENTS = 100,  /* of a Megolm session, as clients rotate them */
    ROOMS = 1000,
    ROOM_EVENTS = 50,
    ROOM_MEMBERS = 10,
    ROOM_USERS = 200,
    ROOM_BYTES = 40 << 10,
    STARTS_MAX = 21,
    STARTS_SLOW = 5, /* of a large database */
    DEADLINE_S = 300,
};

#define COUNTS                                                                                     \
    "\"device_one_time_keys_count\":{\"signed_curve25519\":50},"                                   \
    "\"device_unused_fallback_key_types\":[\"signed_curve25519\"]"
#define ENCRYPTION                                                                                 \
    "{\"type\":\"m.room.encryption\",\"state_key\":\"\",\"sender\":\"@bob:x\",\"event_id\":"       \
    "\"$enc\",\"content\":{\"algorithm\":\"m.megolm.v1.aes-sha2\"}}"

static const char *troupe;
static char folder[] = "/tmp/matrix-bench.XXXXXX";
static bool is_kept = true;

_Noreturn static void fail(const char *what)
{
    (void)fprintf(stderr, "matrix-engine-bench: %s\n", what);
    exit(1);
}

static void expect(bool is_good, const char *what)
{
    if (!is_good)
        fail(what);
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct span text_of(const struct buffer *buffer)
{
    return (struct span){ buffer->size == 0 ? "" : buffer->bytes, buffer->size };
}

static void report(const char *what, double value, const char *unit, double target)
{
    bool is_good = value < target;

    (void)printf("| %s | %.*f %s | < %g %s | %s |\n", what, value < 100 ? 2 : 0, value, unit,
        target, unit, is_good ? "kept" : "MISSED");
    (void)fflush(stdout);
    is_kept = is_kept && is_good;
}

/* ---- the measured process --------------------------------------------------------------------- */

struct child {
    pid_t pid;
    int out; /* its standard output */
    double started;
};

/* Start `troupe sync` with these words on the data directory `name`. A quiet one will be interrupted,
 * and would say so. */
static struct child child_start(const char *name, const char *const *words, bool is_quiet)
{
    const char *argv[16] = { troupe, "sync" };
    posix_spawn_file_actions_t actions;
    struct child child;
    char data[64];
    int pipe_fds[2], count = 2;

    (void)snprintf(data, sizeof data, "%s/%s", folder, name);
    for (; *words != NULL; words++)
        argv[count++] = *words;
    argv[count++] = "--json";
    argv[count++] = "--data";
    argv[count] = data;
    expect(pipe2(pipe_fds, O_CLOEXEC) == 0, "no pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
    if (is_quiet)
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    child.started = now_s();
    expect(posix_spawn(&child.pid, troupe, &actions, NULL, (char **)(uintptr_t)argv, environ) == 0,
        "troupe cannot be started");
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fds[1]);
    child.out = pipe_fds[0];
    return child;
}

static struct child child_tail(const char *name)
{
    return child_start(name, (const char *const[]){ "tail", "--since", "0", NULL }, true);
}

/* Read the standard output until it has so many events with their content. An event that could not be
 * decrypted has none and does not count. */
static void child_read_events(const struct child *child, size_t events)
{
    static const char content[] = "\"content\":{";
    static char bytes[1 << 20];
    double until = now_s() + DEADLINE_S;
    struct pollfd ready = { .fd = child->out, .events = POLLIN };
    size_t size = 0;

    while (events > 0) {
        const char *at = bytes, *end;
        ssize_t got;

        expect(now_s() < until && poll(&ready, 1, 10000) >= 0, "events are missing");
        if (ready.revents == 0)
            continue;
        expect(size < sizeof bytes, "a line is too long");
        got = read(child->out, bytes + size, sizeof bytes - size);
        expect(got > 0, "troupe ended before all events were there");
        size += (size_t)got;
        for (; (end = memchr(at, '\n', size - (size_t)(at - bytes))) != NULL; at = end + 1)
            if (events > 0 && memmem(at, (size_t)(end - at), content, sizeof content - 1) != NULL)
                events--;
        size -= (size_t)(at - bytes);
        memmove(bytes, at, size);
    }
}

/* Ask the process to end, and wait for it. */
static void child_stop(struct child *child)
{
    int status;

    (void)kill(child->pid, SIGTERM);
    close(child->out);
    expect(waitpid(child->pid, &status, 0) == child->pid, "troupe does not end");
}

static FILE *child_open(const struct child *child, const char *name)
{
    char path[64];
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)child->pid, name);
    file = fopen(path, "re");
    expect(file != NULL, "troupe has ended");
    return file;
}

static double child_memory_mb(const struct child *child)
{
    FILE *file = child_open(child, "status");
    char line[256];
    double kb = -1;

    while (kb < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0)
            kb = strtod(line + 6, NULL);
    (void)fclose(file);
    expect(kb > 0, "VmHWM is missing");
    return kb * 1024 / 1e6;
}

/* Return the CPU time of all threads so far, in seconds. */
static double child_cpu_s(const struct child *child)
{
    FILE *file = child_open(child, "stat");
    unsigned long user = 0, system = 0;
    char text[1024];
    const char *at;

    expect(fgets(text, sizeof text, file) != NULL, "stat is empty");
    (void)fclose(file);
    at = strrchr(text, ')'); /* after the name; utime and stime are the 14th and 15th value */
    expect(at != NULL && sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                             &user, &system) == 2,
        "stat makes no sense");
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* Log in. With `is_cut` the process ends when it asks for the first /sync. */
static void log_in(struct homeserver *server, const char *name, bool is_cut)
{
    char path[64];
    FILE *file;
    struct child child;
    int status;

    (void)snprintf(path, sizeof path, "%s/password", folder);
    file = fopen(path, "we");
    expect(file != NULL && fputs("secret\n", file) >= 0 && fclose(file) == 0, "no password file");
    expect(chmod(path, 0600) == 0, "no password file");
    homeserver_hold_syncs(server, is_cut);
    child = child_start(name,
        (const char *const[]){ "login", "--homeserver", homeserver_url(server), "--user", "ada",
            "--password-file", path, NULL },
        is_cut);
    if (is_cut) {
        expect(homeserver_wait_sync(server, 0) != 0, "troupe does not sync");
        child_stop(&child);
        homeserver_hold_syncs(server, false);
        return;
    }
    expect(waitpid(child.pid, &status, 0) == child.pid && WIFEXITED(status) &&
               WEXITSTATUS(status) == 0,
        "the login failed");
    close(child.out);
}

/* ---- the sender: a device of @bob:x ------------------------------------------------------------ */

struct sender {
    struct mx_account *account;
    struct mx_olm *olm;
    char their_identity[MX_KEY_CHARS + 1];
    char their_signing[MX_KEY_CHARS + 1];
    char identity[MX_KEY_CHARS + 1];
    char signing[MX_KEY_CHARS + 1];
};

static void random_fill(void *data, void *bytes, size_t size)
{
    (void)data;
    crypto_random_fill(bytes, size);
}
static const struct mx_random random_source = { .fill = random_fill };

static struct span json_text(const struct json *value)
{
    struct span text = { NULL, 0 };

    expect(json_string(value, &text), "an upload has no keys");
    return text;
}

static void copy_key(struct span text, char ret_text[MX_KEY_CHARS + 1])
{
    expect(text.size == MX_KEY_CHARS, "a key has another length");
    memcpy(ret_text, text.at, MX_KEY_CHARS);
    ret_text[MX_KEY_CHARS] = 0;
}

/* Publish the sender's device. */
static void sender_publish(struct sender *sender, struct homeserver *server)
{
    struct buffer plain = { 0 }, devices = { 0 };
    struct json_doc doc = { 0 };

    (void)buffer_format(&plain,
        "{\"user_id\":\"@bob:x\",\"device_id\":\"BOBDEV\",\"algorithms\":["
        "\"m.olm.v1.curve25519-aes-sha2\",\"m.megolm.v1.aes-sha2\"],\"keys\":{"
        "\"curve25519:BOBDEV\":\"%s\",\"ed25519:BOBDEV\":\"%s\"}}",
        sender->identity, sender->signing);
    expect(json_parse_copy(&doc, text_of(&plain), JSON_UNIQUE_KEYS) == 0, "our device keys");
    (void)buffer_text(&devices, "{\"BOBDEV\":");
    expect(mx_account_sign_json(
               sender->account, json_root(&doc), SPAN("@bob:x"), SPAN("BOBDEV"), &devices) == 0,
        "our signature");
    (void)buffer_text(&devices, "}");
    homeserver_set_devices(server, "@bob:x", text_of(&devices));
    json_doc_free(&doc);
    buffer_free(&plain);
    buffer_free(&devices);
}

static void sender_init(struct sender *sender, struct homeserver *server)
{
    expect(mx_account_create(&random_source, &sender->account) == 0, "our account");
    mx_key_text(mx_account_identity_key(sender->account), sender->identity);
    mx_key_text(mx_account_signing_key(sender->account), sender->signing);
    sender_publish(sender, server);
}

/* Begin an Olm session with the device that has uploaded its keys. */
static void sender_meet(struct sender *sender, struct homeserver *server)
{
    struct buffer uploads = { 0 };
    struct mx_key identity, one_time;
    struct json_doc doc = { 0 };
    bool has_one_time = false;

    homeserver_put_uploads(server, &uploads);
    expect(json_parse_copy(&doc, text_of(&uploads), JSON_UNIQUE_KEYS) == 0, "an upload");
    for (struct json_iter upload = json_iterate(json_root(&doc)); json_next(&upload);) {
        struct json_iter it = json_iterate(json_get(json_get(upload.value, "device_keys"), "keys"));

        while (json_next(&it))
            copy_key(json_text(it.value), span_starts(it.key, "curve25519:")
                                              ? sender->their_identity
                                              : sender->their_signing);
        it = json_iterate(json_get(upload.value, "one_time_keys"));
        has_one_time =
            has_one_time ||
            (json_next(&it) && mx_key_parse(json_text(json_get(it.value, "key")), &one_time) == 0);
    }
    expect(has_one_time && mx_key_parse(span_of(sender->their_identity), &identity) == 0,
        "the device has uploaded no keys");
    buffer_free(&uploads);
    expect(mx_olm_create_outbound(
               sender->account, &identity, &one_time, &random_source, &sender->olm) == 0,
        "an Olm session");
    json_doc_free(&doc);
}

/* Append a message to the device with the key of a Megolm session. */
static void sender_put_key(
    struct sender *sender, const struct mx_outbound *session, struct buffer *out)
{
    struct buffer key = { 0 }, plain = { 0 }, body = { 0 };
    char id[MX_SESSION_ID_CHARS + 1];
    enum mx_olm_type type;

    mx_outbound_id(session, id);
    expect(mx_outbound_key(session, &key) == 0, "a session key");
    (void)buffer_format(&plain,
        "{\"type\":\"m.room_key\",\"sender\":\"@bob:x\",\"recipient\":\"@ada:x\","
        "\"recipient_keys\":{\"ed25519\":\"%s\"},\"keys\":{\"ed25519\":\"%s\"},\"content\":{"
        "\"algorithm\":\"m.megolm.v1.aes-sha2\",\"room_id\":\"!room:x\",\"session_id\":\"%s\","
        "\"session_key\":\"%.*s\"}}",
        sender->their_signing, sender->signing, id, (int)key.size, key.bytes);
    expect(mx_olm_encrypt(sender->olm, text_of(&plain), &random_source, &type, &body) == 0, "Olm");
    (void)buffer_format(out,
        "{\"type\":\"m.room.encrypted\",\"sender\":\"@bob:x\",\"content\":{\"algorithm\":"
        "\"m.olm.v1.curve25519-aes-sha2\",\"sender_key\":\"%s\",\"ciphertext\":{\"%s\":{"
        "\"type\":%d,\"body\":\"%.*s\"}}}}",
        sender->identity, sender->their_identity, (int)type, (int)body.size, body.bytes);
    buffer_free(&key);
    buffer_free(&plain);
    buffer_free(&body);
}

/* Append an encrypted event. */
static void sender_put_event(
    const struct sender *sender, struct mx_outbound *session, int number, struct buffer *out)
{
    struct buffer plain = { 0 }, body = { 0 };
    char id[MX_SESSION_ID_CHARS + 1], text[CATCHUP_BODY_BYTES + 1];

    memset(text, 'x', CATCHUP_BODY_BYTES);
    text[CATCHUP_BODY_BYTES] = 0;
    mx_outbound_id(session, id);
    (void)buffer_format(&plain,
        "{\"type\":\"m.room.message\",\"room_id\":\"!room:x\",\"content\":{\"msgtype\":\"m.text\","
        "\"body\":\"%s\"}}",
        text);
    expect(mx_outbound_encrypt(session, text_of(&plain), &body) == 0, "Megolm");
    (void)buffer_format(out,
        "{\"type\":\"m.room.encrypted\",\"sender\":\"@bob:x\",\"event_id\":\"$event%d\","
        "\"origin_server_ts\":%d,\"content\":{\"algorithm\":\"m.megolm.v1.aes-sha2\","
        "\"sender_key\":\"%s\",\"device_id\":\"BOBDEV\",\"session_id\":\"%s\",\"ciphertext\":"
        "\"%.*s\"},\"unsigned\":{\"age\":1}}",
        number, 1000000 + number, sender->identity, id, (int)body.size, body.bytes);
    buffer_free(&plain);
    buffer_free(&body);
}

/* ---- an encrypted room ------------------------------------------------------------------------ */

/* The first answer: the room, without events. */
static void room_open(struct homeserver *server)
{
    struct buffer page = { 0 };

    (void)buffer_text(&page,
        "{\"next_batch\":\"p1_0\",\"device_one_time_keys_count\":{\"signed_curve25519\":0},"
        "\"device_lists\":{\"changed\":[\"@bob:x\"]},"
        "\"rooms\":{\"join\":{\"!room:x\":{\"state\":{\"events\":[" ENCRYPTION
        ",{\"type\":\"m.room.member\",\"state_key\":\"@ada:x\",\"sender\":\"@ada:x\",\"event_id\":"
        "\"$ada\",\"content\":{\"membership\":\"join\"}}"
        ",{\"type\":\"m.room.member\",\"state_key\":\"@bob:x\",\"sender\":\"@bob:x\",\"event_id\":"
        "\"$bob\",\"content\":{\"membership\":\"join\"}}"
        "]},\"timeline\":{\"events\":[],\"limited\":false,\"prev_batch\":\"p0_0\"}}}}}");
    homeserver_add_page(server, &page);
}

/* The second answer: all keys and the last events; the others wait behind /messages. */
static void room_fill(struct homeserver *server, struct sender *sender)
{
    struct buffer page = { 0 }, last = { 0 }, event = { 0 };
    struct mx_outbound *session = NULL;

    (void)buffer_format(
        &page, "{\"next_batch\":\"p2_%d\"," COUNTS ",\"to_device\":{\"events\":[", CATCHUP_EVENTS);
    for (int i = 0; i < CATCHUP_EVENTS; i++) {
        if (i % SESSION_EVENTS == 0) {
            mx_outbound_destroy(session);
            expect(mx_outbound_create(&random_source, &session) == 0, "a session");
            (void)buffer_text(&page, i == 0 ? "" : ",");
            sender_put_key(sender, session, &page);
        }
        sender_put_event(sender, session, i, &event);
        if (i >= CATCHUP_EVENTS - CATCHUP_TIMELINE) {
            (void)buffer_text(&last, last.size == 0 ? "" : ",");
            (void)buffer_span(&last, text_of(&event));
        }
        homeserver_add_event(server, &event);
    }
    mx_outbound_destroy(session);
    (void)buffer_text(&page, "]},\"rooms\":{\"join\":{\"!room:x\":{\"timeline\":{\"events\":[");
    (void)buffer_span(&page, text_of(&last));
    (void)buffer_format(&page, "],\"limited\":true,\"prev_batch\":\"p1_%d\"}}}}}",
        CATCHUP_EVENTS - CATCHUP_TIMELINE);
    buffer_free(&last);
    homeserver_add_page(server, &page);
}

/* The time from the start of the process to its first /sync. The median: a machine that is busy
 * meanwhile makes some of them slow. */
static double start_ms(struct homeserver *server, const char *name, int starts)
{
    double values[STARTS_MAX];

    for (int i = 0; i < starts; i++) {
        unsigned number = homeserver_syncs(server);
        struct child child = child_tail(name);
        uint64_t at = homeserver_wait_sync(server, number);

        expect(at != 0, "troupe does not sync");
        values[i] = ((double)at * 1e-9 - child.started) * 1e3;
        child_stop(&child);
    }
    for (int i = 1; i < starts; i++)
        for (int k = i; k > 0 && values[k] < values[k - 1]; k--) {
            double value = values[k];

            values[k] = values[k - 1];
            values[k - 1] = value;
        }
    return values[starts / 2];
}

/* The CPU time of an engine whose /sync waits on the server, in percent of a core. */
static double idle_percent(struct homeserver *server, const char *name, unsigned seconds)
{
    unsigned number = homeserver_syncs(server);
    struct child child = child_tail(name);
    double before, started;

    do
        expect(homeserver_wait_sync(server, number) != 0, "troupe does not sync");
    while (homeserver_sync_timeout_ms(server, number++) == 0);
    (void)poll(NULL, 0, 1000); /* the last work of the start: keys, events on the standard output */
    before = child_cpu_s(&child);
    started = now_s();
    (void)poll(NULL, 0, (int)seconds * 1000);
    before = (child_cpu_s(&child) - before) / (now_s() - started) * 100;
    child_stop(&child);
    return before;
}

struct wanted {
    bool catchup, start, idle, rooms;
};

static void bench_room(const struct wanted *wanted)
{
    const char *seconds = getenv("IDLE_SECONDS");
    struct homeserver *server = homeserver_start();
    struct sender sender = { 0 };
    struct child child;
    double took;

    sender_init(&sender, server);
    room_open(server);
    log_in(server, "room", false);
    if (wanted->start)
        report("start to the first /sync, new device", start_ms(server, "room", STARTS_MAX), "ms",
            100);
    if (wanted->idle)
        report("CPU of a long poll", /* before there are events to print */
            idle_percent(
                server, "room", seconds == NULL ? 60 : (unsigned)strtoul(seconds, NULL, 10)),
            "%", 0.1);
    if (wanted->catchup) {
        sender_meet(&sender, server);
        room_fill(server, &sender);
        child = child_tail("room");
        child_read_events(&child, CATCHUP_EVENTS);
        took = now_s() - child.started;
        report("catch-up of 10,000 encrypted events of 1 KiB", took, "s", 10);
        report("its memory", child_memory_mb(&child), "MB", 64);
        child_stop(&child);
        if (wanted->start)
            report("start to the first /sync, 10,000 events stored",
                start_ms(server, "room", STARTS_MAX), "ms", 100);
    }
    mx_olm_destroy(sender.olm);
    mx_account_destroy(sender.account);
}

/* ---- many rooms ------------------------------------------------------------------------------- */

static void rooms_put_state(struct buffer *page, int room, bool is_encrypted)
{
    (void)buffer_format(page,
        "{\"type\":\"m.room.create\",\"state_key\":\"\",\"sender\":\"@user%d:x\",\"event_id\":"
        "\"$create%d\",\"origin_server_ts\":1000,\"content\":{\"room_version\":\"10\"}},"
        "{\"type\":\"m.room.name\",\"state_key\":\"\",\"sender\":\"@user%d:x\",\"event_id\":"
        "\"$name%d\",\"origin_server_ts\":1000,\"content\":{\"name\":\"Room %d\"}}",
        room % ROOM_USERS, room, room % ROOM_USERS, room, room);
    if (is_encrypted)
        (void)buffer_text(page, "," ENCRYPTION);
    for (int i = 0; i < ROOM_MEMBERS; i++)
        (void)buffer_format(page,
            ",{\"type\":\"m.room.member\",\"state_key\":\"@user%d:x\",\"sender\":\"@user%d:x\","
            "\"event_id\":\"$member%d_%d\",\"origin_server_ts\":1000,\"content\":{\"membership\":"
            "\"join\",\"displayname\":\"User %d\"}}",
            (room + i) % ROOM_USERS, (room + i) % ROOM_USERS, room, i, (room + i) % ROOM_USERS);
}

/* Half of the rooms are encrypted, and a new device has no keys of them. */
static void rooms_put_event(
    struct buffer *page, int room, int number, bool is_encrypted, size_t size)
{
    static char text[ROOM_BYTES];

    memset(text, 'A', sizeof text);
    (void)buffer_format(page,
        "{\"sender\":\"@user%d:x\",\"event_id\":\"$event%d_%d\",\"origin_server_ts\":%d,",
        (room + number) % ROOM_USERS, room, number, 2000 + number);
    if (is_encrypted)
        (void)buffer_format(page,
            "\"type\":\"m.room.encrypted\",\"content\":{\"algorithm\":\"m.megolm.v1.aes-sha2\","
            "\"session_id\":\"%.43s\",\"ciphertext\":\"%.*s\"}}",
            text, (int)size, text);
    else
        (void)buffer_format(page,
            "\"type\":\"m.room.message\",\"content\":{\"msgtype\":\"m.text\",\"body\":\"%.*s\"}}",
            (int)size, text);
}

static void rooms_put(struct buffer *page, int room)
{
    bool is_encrypted = room % 2 == 0;
    size_t before = page->size, left;

    (void)buffer_format(page, "\"!room%d:x\":{\"state\":{\"events\":[", room);
    rooms_put_state(page, room, is_encrypted);
    (void)buffer_text(
        page, "]},\"timeline\":{\"limited\":true,\"prev_batch\":\"p0_0\",\"events\":[");
    for (int i = 0; i < ROOM_EVENTS; i++) {
        size_t overhead = is_encrypted ? 260 : 160;

        left = (ROOM_BYTES - (page->size - before)) / (size_t)(ROOM_EVENTS - i);
        (void)buffer_text(page, i == 0 ? "" : ",");
        rooms_put_event(page, room, i, is_encrypted, left > overhead ? left - overhead : 0);
    }
    (void)buffer_text(page, "]}}");
}

static void bench_rooms(void)
{
    struct homeserver *server = homeserver_start();
    struct buffer page = { 0 };
    struct child child;
    unsigned number;
    double body_mb, stored;

    (void)buffer_text(&page, "{\"next_batch\":\"p1_0\"," COUNTS ",\"rooms\":{\"join\":{");
    for (int i = 0; i < ROOMS; i++) {
        (void)buffer_text(&page, i == 0 ? "" : ",");
        rooms_put(&page, i);
    }
    (void)buffer_text(&page, "}}}");
    body_mb = (double)page.size / 1e6;
    log_in(server, "rooms", true);
    homeserver_add_page(server, &page);
    number = homeserver_syncs(server);
    child = child_tail("rooms");
    expect(homeserver_wait_sync(server, number) != 0, "troupe does not sync");
    child_read_events(&child, (size_t)ROOMS / 2 * ROOM_EVENTS);
    expect(homeserver_wait_sync(server, number + 1) != 0, "troupe does not sync again");
    stored = (double)homeserver_wait_sync(server, number + 1) * 1e-9 - child.started;
    (void)printf(
        "| an initial /sync of %d rooms, %.1f MB, stored | %.3g s | | |\n", ROOMS, body_mb, stored);
    report("its memory", child_memory_mb(&child), "MB", 128);
    child_stop(&child);
    report("start to the first /sync, 1,000 rooms stored", start_ms(server, "rooms", STARTS_SLOW),
        "ms", 100);
}

/* ---- everything ------------------------------------------------------------------------------- */

static bool wanted_set(struct wanted *wanted, const char *name)
{
    bool *which = strcmp(name, "catchup") == 0 ? &wanted->catchup
                  : strcmp(name, "start") == 0 ? &wanted->start
                  : strcmp(name, "idle") == 0  ? &wanted->idle
                  : strcmp(name, "rooms") == 0 ? &wanted->rooms
                                               : NULL;

    if (which != NULL)
        *which = true;
    return which != NULL;
}

static void remove_folder(void)
{
    char command[128];

    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0) /* NOLINT(cert-env33-c): the path is ours */
        (void)fprintf(stderr, "matrix-engine-bench: %s stays\n", folder);
}

int main(int argc, char **argv)
{
    struct wanted wanted = { 0 };
    double load = 0;

    if (argc == 2)
        wanted = (struct wanted){ true, true, true, true };
    for (int i = 2; i < argc; i++)
        if (!wanted_set(&wanted, argv[i]))
            argc = 0;
    if (argc < 2) {
        (void)fprintf(stderr, "usage: matrix-engine-bench TROUPE [catchup|start|idle|rooms]...\n");
        return 2;
    }
    troupe = argv[1];
    expect(mkdtemp(folder) != NULL, "no folder under /tmp");
    (void)atexit(remove_folder);
    (void)printf("| engine | value | target | |\n|---|---|---|---|\n");
    if (wanted.catchup || wanted.start || wanted.idle)
        bench_room(&wanted);
    if (wanted.rooms)
        bench_rooms();
    (void)getloadavg(&load, 1);
    (void)printf("\nload average %.1f\n", load);
    return is_kept ? 0 : 1;
}
