/* SPDX-License-Identifier: Apache-2.0 */
/* The two ways to serve a conversation, by its actor and directly: the same answers, also while one
 * takes over from the other. */
#include <ctype.h>
#include <poll.h>
#include <pthread.h>

#include "base/alloc.h"
#include "ops/flags.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/convo/direct.h"
#include "sql/backend.h"
#include "sql/runner_metric.h"
#include "support/metric.h"

/* ---- a database whose decisions can be held up, and whose reads can fail -------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_held;
    bool is_waiting; /* a decision does */
    bool is_unreadable;
    uint32_t unread; /* reads that failed */
} slow = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static const struct sql_backend *real_backend(void);

static int slow_commit(
    struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    pthread_mutex_lock(&slow.lock);
    while (slow.is_held && sql_unit_has_decision(units[0])) {
        slow.is_waiting = true;
        pthread_cond_broadcast(&slow.changed);
        pthread_cond_wait(&slow.changed, &slow.lock);
    }
    slow.is_waiting = false;
    pthread_mutex_unlock(&slow.lock);
    return real_backend()->commit(connection, units, count);
}

static int slow_read(struct sql_connection *connection, struct sql_unit *const *units, size_t count)
{
    bool is_unreadable;

    pthread_mutex_lock(&slow.lock);
    is_unreadable = slow.is_unreadable;
    slow.unread += is_unreadable;
    pthread_cond_broadcast(&slow.changed);
    pthread_mutex_unlock(&slow.lock);
    if (!is_unreadable)
        return real_backend()->read(connection, units, count);
    for (size_t i = 0; i < count; i++) {
        sql_unit_reset_results(units[i]);
        sql_unit_fail(units[i], -1, SQL_EDISK, "it cannot be read");
    }
    return 0;
}

static const struct sql_backend *slow_backend(void)
{
    static struct sql_backend backend;

    backend = *real_backend();
    backend.commit = slow_commit;
    backend.read = slow_read;
    return &backend;
}

#define SITE_BACKEND slow_backend()
#include "convo_site.h"

static const struct sql_backend *real_backend(void)
{
    return SITE_ON_POSTGRES ? &sql_postgres : &sql_sqlite;
}

static void hold_decisions(bool is_held)
{
    pthread_mutex_lock(&slow.lock);
    slow.is_held = is_held;
    pthread_cond_broadcast(&slow.changed);
    pthread_mutex_unlock(&slow.lock);
}

static void fail_reads(bool is_unreadable)
{
    pthread_mutex_lock(&slow.lock);
    slow.is_unreadable = is_unreadable;
    slow.unread = 0;
    pthread_mutex_unlock(&slow.lock);
}

static void wait_until_unread(void)
{
    pthread_mutex_lock(&slow.lock);
    while (slow.unread == 0)
        pthread_cond_wait(&slow.changed, &slow.lock);
    pthread_mutex_unlock(&slow.lock);
}

static void wait_until_held(void)
{
    pthread_mutex_lock(&slow.lock);
    while (!slow.is_waiting)
        pthread_cond_wait(&slow.changed, &slow.lock);
    pthread_mutex_unlock(&slow.lock);
}

#define SUITE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"

enum { ADA, BOB, CYD, CAST };
static const char *const names[CAST] = { "$ada", "$bob", "$cyd" };

struct cast {
    struct site site;
    struct caller callers[CAST];
};

static void set_direct(uint32_t parts)
{
    (void)flags_set("delivery.direct", parts); /* there is no file to keep it in */
    CHECK(flags_find("delivery.direct") != NULL);
}

static void cast_begin(struct cast *cast)
{
    for (int i = 0; i < CAST; i++)
        caller_begin(&cast->callers[i]);
    site_begin(&cast->site);
}

static void cast_end(struct cast *cast)
{
    site_end(&cast->site);
    for (int i = 0; i < CAST; i++)
        caller_end(&cast->callers[i]);
}

/* ---- a script ------------------------------------------------------------------------------- */

struct line {
    int who;
    const char *call;
    const char *body; /* NULL: a GET */
    unsigned status;  /* of both ways */
};

/* ' is ", # is $, $ada a DID, @c1:text a commit at epoch 1 and @m1:text a message, both as base64
 * of g1. */
static char *expand(const struct cast *cast, const char *body)
{
    struct buffer out = { 0 };

    for (const char *at = body; *at != '\0'; at++) {
        if (*at == '$') {
            int who = 0;

            while (strncmp(at, names[who], 4) != 0)
                who++;
            buffer_text(&out, cast->callers[who].did);
            at += 3;
        } else if (*at == '@') {
            size_t size = strcspn(at + 4, "'");
            char secret[64], *message;

            (void)snprintf(secret, sizeof secret, "%.*s", (int)size, at + 4);
            message = private_message("g1", (uint64_t)(at[2] - '0'),
                at[1] == 'c'   ? 3
                : at[1] == 'p' ? 2
                               : 1,
                secret);
            buffer_text(&out, message);
            free(message);
            at += 3 + size;
        } else {
            buffer_append(&out, *at == '\'' ? "\"" : *at == '#' ? "$" : at, 1);
        }
    }
    buffer_append(&out, "", 1);
    CHECK_EQ_INT(out.failed, 0);
    return out.bytes;
}

/* Times differ from run to run: their digits become 0. (So do ids the server makes: the script
 * gives its own.) */
static void blot_times(char *text)
{
    for (char *at = text; *at != '\0'; at++)
        if (strlen(at) > 20 && at[4] == '-' && at[7] == '-' && at[10] == 'T' && at[13] == ':')
            for (int i = 0; i < 24 && at[i] != '"'; i++)
                if (isdigit((unsigned char)at[i]))
                    at[i] = '0';
}

static char *run_line(const struct cast *cast, const struct line *line)
{
    char *body = line->body == NULL ? NULL : expand(cast, line->body), *text;
    struct web_answer answer = caller_ask(&cast->site, &cast->callers[line->who], line->call, body);

    CHECK_MSG(answer.status == line->status, "%s %s: wanted %u, got:\n%s", line->call,
        body == NULL ? "" : body, line->status, answer.text);
    text = strdup(answer.body);
    CHECK(text != NULL);
    blot_times(text);
    web_answer_free(&answer);
    free(body);
    return text;
}

/* Once by actors, once directly, on databases of their own. */
static void compare(const struct line *lines, size_t count)
{
    char *answers[2][64];
    struct cast cast;

    CHECK(count <= 64);
    cast_begin(&cast);
    for (int way = 0; way < 2; way++) {
        if (way == 1) {
            site_end(&cast.site);
            site_begin(&cast.site);
        }
        set_direct(way == 0 ? 0 : FLAG_ALL);
        for (size_t i = 0; i < count; i++)
            answers[way][i] = run_line(&cast, &lines[i]);
    }
    for (size_t i = 0; i < count; i++) {
        CHECK_MSG(strcmp(answers[0][i], answers[1][i]) == 0,
            "line %zu, %s:\nby its actor: %s\ndirectly:     %s", i, lines[i].call, answers[0][i],
            answers[1][i]);
        free(answers[0][i]);
        free(answers[1][i]);
    }
    cast_end(&cast);
}

#define CREATE "{'groupId':'g1','cipherSuite':'" SUITE "'"

TEST_LONG(direct, numbered_conversations_get_the_same_answers, 60)
{
    static const struct line lines[] = {
        { ADA, "getEpoch?convoId=g1", NULL, 404 },
        { ADA, "createConvo", CREATE ",'metadata':{'name':'n','description':'d'}}", 200 },
        { ADA, "createConvo", CREATE "}", 409 },
        { BOB, "addMembers", "{'convoId':'g1','idempotencyKey':'i1','didList':['$cyd']}", 403 },
        { ADA, "addMembers", "{'convoId':'g1','didList':['$bob'],'idempotencyKey':'k1'}", 200 },
        { ADA, "addMembers", "{'convoId':'g1','didList':['$bob'],'idempotencyKey':'k1'}", 200 },
        { BOB, "addMembers", "{'convoId':'g1','idempotencyKey':'i2','didList':['$cyd']}", 200 },
        { ADA, "addMembers",
            "{'convoId':'g1','idempotencyKey':'i3','didList':['did:x:four'],'commit':'@c2:no'}",
            400 },
        { ADA, "getConvo?convoId=g1", NULL, 200 },
        { BOB, "removeMember", "{'convoId':'g1','idempotencyKey':'i4','targetDid':'$cyd'}", 403 },
        { ADA, "removeMember", "{'convoId':'g1','idempotencyKey':'i5','targetDid':'$cyd'}", 200 },
        { CYD, "getEpoch?convoId=g1", NULL, 403 },
        { ADA, "removeMember", "{'convoId':'g1','idempotencyKey':'i6','targetDid':'did:x:nobody'}",
            404 },
        { BOB, "leaveConvo", "{'convoId':'g1','idempotencyKey':'i7'}", 200 },
        { ADA, "leaveConvo", "{'convoId':'g1','idempotencyKey':'i8'}", 400 },
        { ADA, "getEpoch?convoId=g1", NULL, 200 },
        { ADA, "confirmEpoch",
            "{'convoId':'g1','epoch':1,'epochAuthenticatorHash':"
            "'0000000000000000000000000000000000000000000000000000000000000000'}",
            400 },
        { ADA, "getMessages?convoId=g1", NULL, 200 },
    };

    compare(lines, sizeof lines / sizeof lines[0]);
}

TEST_LONG(direct, mls_conversations_get_the_same_answers, 60)
{
    static const struct line lines[] = {
        { ADA, "createConvo", CREATE "}", 200 },
        { ADA, "addMembers",
            "{'convoId':'g1','idempotencyKey':'i9','didList':['$bob'],'commit':'@c0:one'}", 200 },
        { ADA, "submitCommit", "{'convoId':'g1','idempotencyKey':'i10','commit':'@c0:one'}", 200 },
        { BOB, "submitCommit", "{'convoId':'g1','idempotencyKey':'i11','commit':'@c0:two'}", 409 },
        { BOB, "submitCommit", "{'convoId':'g1','idempotencyKey':'i12','commit':'@c7:far'}", 409 },
        { CYD, "submitCommit", "{'convoId':'g1','idempotencyKey':'i13','commit':'@c1:out'}", 403 },
        { ADA, "addMembers",
            "{'convoId':'g1','idempotencyKey':'i14','didList':['$cyd'],'commit':'@c1:add'}", 200 },
        { ADA, "addMembers", "{'convoId':'g1','idempotencyKey':'i15','didList':['did:x:five']}",
            400 },
        { BOB, "sendMessage",
            "{'convoId':'g1','msgId':'m1','ciphertext':{'#bytes':'@m2:hi'},'epoch':2}", 200 },
        { BOB, "sendMessage",
            "{'convoId':'g1','msgId':'m1','ciphertext':{'#bytes':'@m2:hi'},'epoch':2}", 200 },
        { BOB, "sendMessage",
            "{'convoId':'g1','msgId':'m1','ciphertext':{'#bytes':'@m2:ho'},'epoch':2}", 409 },
        { BOB, "sendMessage",
            "{'convoId':'g1','msgId':'m2','ciphertext':{'#bytes':'@m9:hi'},'epoch':9}", 409 },
        { CYD, "sendProposal", "{'convoId':'g1','msgId':'p1','proposal':'@p2:p'}", 200 },
        { CYD, "sendProposal", "{'convoId':'g1','msgId':'p2','proposal':'@p1:p'}", 409 },
        { ADA, "getUnread", NULL, 200 },
        { ADA, "updateCursor", "{'convoId':'g1','seq':99}", 200 },
        { ADA, "getUnread", NULL, 200 },
        { ADA, "confirmEpoch",
            "{'convoId':'g1','epoch':2,'epochAuthenticatorHash':"
            "'0000000000000000000000000000000000000000000000000000000000000000'}",
            200 },
        { BOB, "confirmEpoch",
            "{'convoId':'g1','epoch':2,'epochAuthenticatorHash':"
            "'1111111111111111111111111111111111111111111111111111111111111111'}",
            200 },
        { BOB, "reportInvalidCommit",
            "{'convoId':'g1','baseEpoch':1,'sha256':"
            "'0000000000000000000000000000000000000000000000000000000000000000'}",
            404 },
        { BOB, "promoteAdmin", "{'convoId':'g1','targetDid':'$bob'}", 403 },
        { ADA, "promoteAdmin", "{'convoId':'g1','targetDid':'$bob'}", 200 },
        { ADA, "promoteAdmin", "{'convoId':'g1','targetDid':'$bob'}", 409 },
        { BOB, "updatePolicy", "{'convoId':'g1','maxMembers':3}", 200 },
        { ADA, "addMembers",
            "{'convoId':'g1','idempotencyKey':'i16','didList':['did:x:five'],'commit':'@c2:full'}",
            400 },
        { ADA, "removeMember",
            "{'convoId':'g1','idempotencyKey':'i17','targetDid':'$cyd','commit':'@c2:rem'}", 200 },
        { BOB, "getMessages?convoId=g1", NULL, 200 },
        { CYD, "getMessages?convoId=g1", NULL, 200 },
        { BOB, "getCommits?convoId=g1&fromEpoch=1", NULL, 200 },
        { ADA, "getGroupInfo?convoId=g1", NULL, 404 },
        { BOB, "resetGroup", "{'convoId':'g1','newGroupId':'g1'}", 409 },
        { BOB, "resetGroup", "{'convoId':'g1','newGroupId':'g1-second'}", 200 },
        { ADA, "getConvo?convoId=g1", NULL, 200 },
    };

    compare(lines, sizeof lines / sizeof lines[0]);
}

/* ---- at once -------------------------------------------------------------------------------- */

enum { ADDERS = 8, ADDS = 6 };

struct adder {
    struct cast *cast;
    int number;
    pthread_t thread;
    int64_t epochs[ADDS];
};

/* A conversation that changes hands may be busy for a moment; nothing else is an excuse. */
static void *add_some(void *argument)
{
    struct adder *adder = argument;
    const struct cast *cast = adder->cast;

    for (int i = 0; i < ADDS; i++) {
        struct json_doc doc = { 0 };
        struct web_answer answer = { 0 };
        char body[128];

        (void)snprintf(body, sizeof body, "{\"convoId\":\"g1\",\"didList\":[\"did:x:%d-%d\"]}",
            adder->number, i);
        do {
            web_answer_free(&answer);
            answer = caller_ask(&cast->site, &cast->callers[ADA], "addMembers", body);
        } while (answer.status == 503);
        CHECK_MSG(answer.status == 200, "%s", answer.text);
        CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
        CHECK(json_int(json_get(json_root(&doc), "newEpoch"), &adder->epochs[i]));
        json_doc_free(&doc);
        web_answer_free(&answer);
    }
    return NULL;
}

static void add_at_once(struct cast *cast, bool is_switched)
{
    struct adder adders[ADDERS];
    char seen[ADDERS * ADDS + 1] = "";
    char part[32];

    for (int i = 0; i < ADDERS; i++) {
        adders[i] = (struct adder){ .cast = cast, .number = i };
        CHECK_EQ_INT(pthread_create(&adders[i].thread, NULL, add_some, &adders[i]), 0);
    }
    for (int i = 0; is_switched && i < 40; i++) {
        set_direct(i % 2 == 0 ? 0 : FLAG_ALL);
        expect(&cast->site, &cast->callers[ADA], "getEpoch?convoId=g1", NULL, 200, "currentEpoch");
    }
    for (int i = 0; i < ADDERS; i++) {
        CHECK_EQ_INT(pthread_join(adders[i].thread, NULL), 0);
        for (int k = 0; k < ADDS; k++) {
            CHECK(adders[i].epochs[k] >= 1 && adders[i].epochs[k] <= ADDERS * ADDS);
            CHECK_MSG(
                !seen[adders[i].epochs[k]], "epoch %d was given twice", (int)adders[i].epochs[k]);
            seen[adders[i].epochs[k]] = 1;
        }
    }
    (void)snprintf(part, sizeof part, "\"currentEpoch\":%d", ADDERS * ADDS);
    for (int way = 0; way < 2; way++) {
        set_direct(way == 0 ? 0 : FLAG_ALL);
        expect(&cast->site, &cast->callers[ADA], "getEpoch?convoId=g1", NULL, 200, part);
    }
}

static int64_t retries(void)
{
    const struct metric *metric = metric_first();

    while (strcmp(metric->name, "troupe_delivery_direct_retries_total") != 0)
        metric = metric->next;
    return metric_get(metric);
}

/* Each in a transaction of its own. The lock keeps them apart, so nobody loses: a compare-and-set
 * alone would have them try again. */
TEST_LONG(direct, adds_at_once_all_succeed_in_sequence, 60)
{
    int64_t commits, tries;
    struct cast cast;

    cast_begin(&cast);
    set_direct(FLAG_ALL);
    free(run_line(&cast, &(struct line){ ADA, "createConvo", CREATE "}", 200 }));
    commits = metric_get(&sql_metrics[METRIC_COMMITS]);
    tries = retries();
    add_at_once(&cast, false);
    CHECK_EQ_INT(retries(), tries);
    CHECK(metric_get(&sql_metrics[METRIC_COMMITS]) >= commits + (int64_t)ADDERS * ADDS);
    cast_end(&cast);
}

struct creator {
    const struct cast *cast;
    int who;
    char body[128];
    pthread_t thread;
    unsigned status;
};

static void *create_one(void *argument)
{
    struct creator *creator = argument;
    struct web_answer answer = caller_ask(
        &creator->cast->site, &creator->cast->callers[creator->who], "createConvo", creator->body);

    creator->status = answer.status;
    CHECK_MSG(
        answer.status == 200 || strstr(answer.body, "ConvoExists") != NULL, "%s", answer.text);
    web_answer_free(&answer);
    return NULL;
}

/* There is no row to lock yet: its key decides. */
TEST_LONG(direct, of_those_who_create_a_conversation_at_once_one_does, 60)
{
    struct creator creators[CAST];
    struct cast cast;

    cast_begin(&cast);
    set_direct(FLAG_ALL);
    for (int round = 0; round < 20; round++) {
        int created = 0;

        for (int i = 0; i < CAST; i++) {
            creators[i] = (struct creator){ .cast = &cast, .who = i };
            (void)snprintf(creators[i].body, sizeof creators[i].body,
                "{\"groupId\":\"at-once-%d\",\"cipherSuite\":\"" SUITE "\"}", round);
            CHECK_EQ_INT(pthread_create(&creators[i].thread, NULL, create_one, &creators[i]), 0);
        }
        for (int i = 0; i < CAST; i++) {
            CHECK_EQ_INT(pthread_join(creators[i].thread, NULL), 0);
            created += creators[i].status == 200;
        }
        CHECK_EQ_INT(created, 1);
    }
    cast_end(&cast);
}

TEST_LONG(direct, and_actors_at_once_give_every_epoch_once, 60)
{
    struct cast cast;

    cast_begin(&cast);
    free(run_line(&cast, &(struct line){ ADA, "createConvo", CREATE "}", 200 }));
    add_at_once(&cast, true);
    cast_end(&cast);
}

/* ---- taking over ---------------------------------------------------------------------------- */

TEST(direct, an_actor_knows_what_was_stored_without_it)
{
    struct cast cast;

    cast_begin(&cast);
    set_direct(0);
    free(run_line(&cast, &(struct line){ ADA, "createConvo", CREATE "}", 200 }));
    for (int i = 1; i <= 5; i++) {
        char body[128], part[64], did[32];

        set_direct(FLAG_ALL);
        (void)snprintf(did, sizeof did, "did:x:number%d", i);
        (void)snprintf(body, sizeof body, "{'convoId':'g1','didList':['%s']}", did);
        free(run_line(&cast, &(struct line){ ADA, "addMembers", body, 200 }));
        set_direct(0);
        (void)snprintf(part, sizeof part, "\"currentEpoch\":%d", i);
        expect(&cast.site, &cast.callers[ADA], "getEpoch?convoId=g1", NULL, 200, part);
        expect(&cast.site, &cast.callers[ADA], "getConvo?convoId=g1", NULL, 200, did);
    }
    cast_end(&cast);
}

/* An event stream of g1. */
static int listen_from(const struct cast *cast, int who, int cursor)
{
    char *header = caller_header(&cast->callers[who], "subscribeConvoEvents");
    int fd = web_connect(http_server_address(cast->site.server));
    struct buffer text = { 0 };

    buffer_format(&text,
        "GET /xrpc/blue.catbird.mls.subscribeConvoEvents?convoId=g1&cursor=%d HTTP/1.1\r\n"
        "Host: x\r\n%s\r\n",
        cursor, header);
    web_send(fd, text.bytes, text.size);
    buffer_free(&text);
    free(header);
    return fd;
}

TEST(direct, a_stream_hears_what_was_stored_without_its_actor)
{
    struct web_answer heard = { 0 };
    struct cast cast;
    int fd;

    cast_begin(&cast);
    set_direct(FLAG_ALL);
    free(run_line(&cast, &(struct line){ ADA, "createConvo", CREATE "}", 200 }));
    free(run_line(
        &cast, &(struct line){ ADA, "submitCommit", "{'convoId':'g1','commit':'@c0:one'}", 200 }));
    fd = listen_from(&cast, ADA, 1);
    CHECK(web_receive_until(fd, &heard, "id: 2\n"));
    for (int i = 3; i <= 6; i++) {
        char body[256], part[32];

        (void)snprintf(body, sizeof body,
            "{'convoId':'g1','msgId':'m%d','ciphertext':{'#bytes':'@m1:hi'},'epoch':1}", i);
        free(run_line(&cast, &(struct line){ ADA, "sendMessage", body, 200 }));
        (void)snprintf(part, sizeof part, "id: %d\n", i);
        CHECK_MSG(web_receive_until(fd, &heard, part), "no %s in: %s", part, heard.text);
    }
    close(fd);
    web_answer_free(&heard);
    cast_end(&cast);
}

/* The actor cannot read what it was told of. */
static void run_unread(const struct cast *cast, const struct line *line)
{
    fail_reads(true);
    free(run_line(cast, line));
    wait_until_unread();
}

/* Its stream ends behind what it has heard, without anybody asking for anything. */
static void expect_busy(int fd, struct web_answer *heard, int cursor)
{
    char part[64];

    (void)snprintf(part, sizeof part, "\"info\":\"busy\",\"seq\":%d}", cursor);
    CHECK_MSG(web_receive_until(fd, heard, part), "no %s in: %s", part, heard->text);
    CHECK(web_receive_until(fd, heard, "\r\n0\r\n\r\n"));
    close(fd);
    web_answer_free(heard);
}

TEST(direct, a_stream_whose_conversation_cannot_be_read_ends_and_goes_on_from_its_cursor)
{
    struct web_answer heard = { 0 }, again = { 0 };
    struct cast cast;
    int fd;

    cast_begin(&cast);
    set_direct(FLAG_ALL);
    free(run_line(&cast, &(struct line){ ADA, "createConvo", CREATE "}", 200 }));
    free(run_line(
        &cast, &(struct line){ ADA, "addMembers", "{'convoId':'g1','didList':['$bob']}", 200 }));
    fd = listen_from(&cast, ADA, 1);
    CHECK(web_receive_until(fd, &heard, "id: 2\n"));
    run_unread(
        &cast, &(struct line){ ADA, "addMembers", "{'convoId':'g1','didList':['$cyd']}", 200 });
    expect_busy(fd, &heard, 2);
    fail_reads(false);
    fd = listen_from(&cast, ADA, 2);
    CHECK_MSG(web_receive_until(fd, &again, "id: 3\n"), "heard: %s", again.text);
    close(fd);
    web_answer_free(&again);
    cast_end(&cast);
}

/* The actor hears that something was stored, and an allocation from now on fails: the first one, or
 * if this message itself needs memory the second, is of what it would read with. */
static void tell_without_memory(const struct cast *cast, uint64_t countdown)
{
    const struct delivery *delivery = cast->site.delivery;
    const struct act_envelope notice = { NULL, 0 };
    tr_sender convo;

    CHECK_EQ_INT(tr_registry_find(delivery->convos, "g1", 2, "the test", &convo), 0);
    (void)base_fault_countdown(countdown, 1);
    (void)tr_tell(convo, &notice, sizeof notice);
    tr_sender_drop(&convo);
}

TEST(direct, a_stream_whose_conversation_cannot_even_be_asked_for_ends)
{
    struct web_answer heard = { 0 };
    struct cast cast;
    uint64_t tries = 0;
    int fd;

    cast_begin(&cast);
    set_direct(0);
    free(run_line(&cast, &(struct line){ ADA, "createConvo", CREATE "}", 200 }));
    free(run_line(
        &cast, &(struct line){ ADA, "addMembers", "{'convoId':'g1','didList':['$bob']}", 200 }));
    fd = listen_from(&cast, ADA, 1);
    CHECK(web_receive_until(fd, &heard, "id: 2\n"));
    do
        tell_without_memory(&cast, 1 + tries++ % 2);
    while (poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 100) == 0);
    (void)base_fault_countdown(0, 0);
    expect_busy(fd, &heard, 2);
    cast_end(&cast);
}

TEST(direct, whom_it_removes_does_not_listen_on_because_nothing_can_be_read)
{
    struct web_answer heard = { 0 }, again = { 0 };
    struct cast cast;
    int fd;

    cast_begin(&cast);
    set_direct(FLAG_ALL);
    free(run_line(&cast, &(struct line){ ADA, "createConvo", CREATE "}", 200 }));
    free(run_line(
        &cast, &(struct line){ ADA, "addMembers", "{'convoId':'g1','didList':['$bob']}", 200 }));
    free(run_line(
        &cast, &(struct line){ ADA, "addMembers", "{'convoId':'g1','didList':['$cyd']}", 200 }));
    fd = listen_from(&cast, BOB, 2);
    CHECK(web_receive_until(fd, &heard, "id: 3\n"));
    run_unread(
        &cast, &(struct line){ ADA, "removeMember", "{'convoId':'g1','targetDid':'$bob'}", 200 });
    expect_busy(fd, &heard, 3);
    fail_reads(false);
    fd = listen_from(&cast, BOB, 3);
    CHECK(web_receive_until(fd, &again, "NotMember"));
    CHECK_EQ_INT(again.status, 403);
    close(fd);
    web_answer_free(&again);
    cast_end(&cast);
}

/* An add whose asker gives up after a moment. */
static void ask_briefly(const struct cast *cast, const char *did)
{
    const struct delivery *delivery = cast->site.delivery;
    struct auth_claims claims = { .kind = AUTH_SESSION, .issuer = span_of(cast->callers[ADA].did) };
    struct act *act = act_create(&commit_act_type, &claims);
    struct act_envelope message = { .act = act };
    struct tr_future *future;

    CHECK(act != NULL);
    act->convo = SPAN("g1");
    act->op = SPAN("in a hurry");
    act->members->adds = base_calloc(sizeof *act->members->adds);
    CHECK(act->members->adds != NULL);
    act->members->adds[act->members->add_count++].did = span_of(did);
    CHECK_EQ_INT(tr_ask_future(direct_worker_of(delivery->direct, act->convo), &message,
                     sizeof message, TR_MILLISECONDS(200), &future),
        0);
    wait_until_held();
    CHECK_EQ_INT(tr_future_wait(future, NULL, 0, NULL, 0), TR_ETIMEOUT);
    tr_future_drop(&future);
}

/* Its transaction runs on, and nobody waits for it any more. */
TEST(direct, a_stream_hears_what_was_stored_after_its_asker_gave_up)
{
    struct web_answer heard = { 0 };
    struct cast cast;
    int fd;

    cast_begin(&cast);
    set_direct(FLAG_ALL);
    free(run_line(&cast, &(struct line){ ADA, "createConvo", CREATE "}", 200 }));
    free(run_line(
        &cast, &(struct line){ ADA, "addMembers", "{'convoId':'g1','didList':['$bob']}", 200 }));
    fd = listen_from(&cast, ADA, 1);
    CHECK(web_receive_until(fd, &heard, "id: 2\n"));
    hold_decisions(true);
    ask_briefly(&cast, "did:x:late");
    for (int i = 0; i < 20; i++) /* by the same desk: it has let go by then */
        expect(
            &cast.site, &cast.callers[ADA], "getEpoch?convoId=g1", NULL, 200, "\"currentEpoch\":1");
    hold_decisions(false);
    CHECK_MSG(web_receive_until(fd, &heard, "id: 3\n"), "nothing of it in: %s", heard.text);
    expect(&cast.site, &cast.callers[ADA], "getConvo?convoId=g1", NULL, 200, "did:x:late");
    close(fd);
    web_answer_free(&heard);
    cast_end(&cast);
}

/* A stream is its actor's, also when nothing else is. */
TEST(direct, the_stream_of_whom_it_removes_ends_behind_that_commit)
{
    static const struct line before[] = {
        { ADA, "createConvo", CREATE "}", 200 },
        { ADA, "addMembers", "{'convoId':'g1','didList':['$bob'],'commit':'@c0:add'}", 200 },
        { ADA, "sendMessage",
            "{'convoId':'g1','msgId':'m3','ciphertext':{'#bytes':'@m1:hi'},'epoch':1}", 200 },
    };
    static const struct line after[] = {
        { ADA, "removeMember",
            "{'convoId':'g1','idempotencyKey':'r','targetDid':'$bob','commit':'@c1:rem'}", 200 },
        { ADA, "sendMessage",
            "{'convoId':'g1','msgId':'m5','ciphertext':{'#bytes':'@m2:alone'},'epoch':2}", 200 },
    };
    struct web_answer heard = { 0 }, stays = { 0 };
    struct cast cast;
    int gone, there;

    cast_begin(&cast);
    set_direct(0);
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
        free(run_line(&cast, &before[i]));
    gone = listen_from(&cast, BOB, 0);
    there = listen_from(&cast, ADA, 0);
    CHECK(web_receive_until(gone, &heard, "id: 3\n"));
    CHECK(web_receive_until(there, &stays, "id: 3\n"));
    set_direct(FLAG_ALL);
    for (size_t i = 0; i < sizeof after / sizeof after[0]; i++)
        free(run_line(&cast, &after[i]));
    CHECK(!web_receive_until(gone, &heard, "id: 5\n")); /* it ends before that */
    CHECK_MSG(strstr(heard.text, "id: 4\n") != NULL, "%s", heard.text);
    CHECK_MSG(strstr(heard.text, "\"info\":\"removed\"") != NULL, "%s", heard.text);
    CHECK(web_receive_until(there, &stays, "id: 5\n"));
    close(gone);
    close(there);
    web_answer_free(&heard);
    web_answer_free(&stays);
    cast_end(&cast);
}
