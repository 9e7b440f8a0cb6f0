/* SPDX-License-Identifier: Apache-2.0 */
/* Histories of a live server under load, through the checker of the simulation: several threads
 * race commits, messages and reads over HTTP on a few conversations, some close the connection
 * before the answer has come, and everything that was answered must be possible for one copy that
 * does one thing at a time. */
#include <pthread.h>

#include "convo_site.h"
#include "linear.h"

#define SUITE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"

enum { CONVOS = 2, THREADS = 8, ROUNDS = 120, ROUNDS_LONG = 2000 };

static _Atomic uint64_t clock_now;

/* One op of one thread; the checker gets them when all have ended. */
struct seen {
    uint32_t convo;
    bool is_seq; /* else of the epoch */
    struct linear_op op;
};

struct racer {
    const struct site *site;
    const struct caller *caller;
    uint32_t index;
    uint32_t rounds;
    uint64_t random;
    uint64_t epochs[CONVOS]; /* as far as it knows */
    uint64_t seqs[CONVOS];
    struct seen *seen;
    size_t seen_count;
    unsigned conflicts, lost, repeated;
    pthread_t thread;
};

static const char *const groups[CONVOS] = { "mls", "numbered" };

static uint64_t draw(struct racer *racer, uint64_t bound)
{
    racer->random = racer->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (racer->random >> 33) % bound;
}

static void note(struct racer *racer, uint32_t convo, bool is_seq, struct linear_op op)
{
    op.id = (uint64_t)racer->index << 32 | racer->seen_count;
    racer->seen[racer->seen_count++] = (struct seen){ .convo = convo, .is_seq = is_seq, .op = op };
}

static int64_t int_of(const struct json_doc *doc, const char *name)
{
    int64_t value = -1;

    (void)json_int(json_get(json_root(doc), name), &value);
    return value;
}

static void learn(struct racer *racer, uint32_t convo, int64_t epoch)
{
    if (epoch > (int64_t)racer->epochs[convo])
        racer->epochs[convo] = (uint64_t)epoch;
}

/* Ask, and close before the answer: it may happen, or not. */
static void ask_and_go(struct racer *racer, const char *call, const char *body)
{
    char path[128], head[256], *header = caller_header(racer->caller, call);
    int fd = web_connect(http_server_address(racer->site->server));
    struct buffer request = { 0 };

    (void)snprintf(path, sizeof path, "/xrpc/blue.catbird.mls.%s", call);
    (void)snprintf(head, sizeof head,
        "POST %s HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: "
        "%zu\r\n",
        path, strlen(body));
    buffer_text(&request, head);
    buffer_text(&request, header);
    buffer_text(&request, "\r\n");
    buffer_text(&request, body);
    web_send(fd, request.bytes, request.size);
    buffer_free(&request);
    free(header);
    (void)close(fd);
    racer->lost++;
}

static void note_conflict(
    struct racer *racer, uint32_t convo, const struct json_doc *doc, uint64_t begin, uint64_t end)
{
    const struct json *commits = json_get(json_root(doc), "commits");
    const struct json *last = json_at(commits, json_count(commits) - 1);
    int64_t epoch = -1;

    CHECK(json_count(commits) > 0 && json_int(json_get(last, "epoch"), &epoch));
    learn(racer, convo, epoch);
    racer->conflicts++;
    if (json_count(commits) < 100)
        note(
            racer, convo, false, (struct linear_op){ LINEAR_READ, (uint64_t)epoch, begin, end, 0 });
}

/* A commit of nothing in the mls one, somebody new in the numbered one. */
static void move(struct racer *racer, uint32_t convo, uint32_t round)
{
    uint64_t begin, end, base = racer->epochs[convo];
    struct buffer body = { 0 };
    struct web_answer answer;
    struct json_doc doc = { 0 };
    const char *call = convo == 0 ? "submitCommit" : "addMembers";
    char secret[64], *commit;

    (void)snprintf(secret, sizeof secret, "%u of %u", round, racer->index);
    commit = private_message(groups[convo], base, 3, secret);
    if (convo == 0)
        buffer_format(&body, "{\"convoId\":\"%s\",\"commit\":\"%s\"}", groups[convo], commit);
    else
        buffer_format(&body, "{\"convoId\":\"%s\",\"didList\":[\"did:plc:m%u-%u\"]}", groups[convo],
            racer->index, round);
    buffer_append(&body, "", 1);
    free(commit);
    begin = atomic_fetch_add(&clock_now, 1);
    if (draw(racer, 25) == 0) {
        uint64_t number = convo == 0 ? base + 1 : LINEAR_ANY;

        note(
            racer, convo, false, (struct linear_op){ LINEAR_MOVE, number, begin, LINEAR_NEVER, 0 });
        note(racer, convo, true,
            (struct linear_op){ LINEAR_MOVE, LINEAR_ANY, begin, LINEAR_NEVER, 0 });
        ask_and_go(racer, call, body.bytes);
        buffer_free(&body);
        return;
    }
    answer = caller_ask(racer->site, racer->caller, call, body.bytes);
    end = atomic_fetch_add(&clock_now, 1);
    buffer_free(&body);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    if (answer.status == 409 && convo == 0) {
        note_conflict(racer, convo, &doc, begin, end);
    } else {
        CHECK_MSG(answer.status == 200, "%s", answer.text);
        CHECK_MSG(convo != 0 || int_of(&doc, "newEpoch") == (int64_t)base + 1, "%s", answer.text);
        learn(racer, convo, int_of(&doc, "newEpoch"));
        note(racer, convo, false,
            (struct linear_op){ LINEAR_MOVE, (uint64_t)int_of(&doc, "newEpoch"), begin, end, 0 });
        note(racer, convo, true,
            (struct linear_op){ LINEAR_MOVE, (uint64_t)int_of(&doc, "seq"), begin, end, 0 });
    }
    json_doc_free(&doc);
    web_answer_free(&answer);
}

/* A message, sometimes twice: the second time gets the first answer. */
static void say(struct racer *racer, uint32_t convo, uint32_t round)
{
    char id[64], *message;
    struct buffer body = { 0 };
    uint64_t epoch = racer->epochs[convo], first = 0;
    uint32_t times = draw(racer, 5) == 0 ? 2 : 1;

    (void)snprintf(id, sizeof id, "m%u-%u", racer->index, round);
    message = private_message(groups[convo], epoch, 1, id);
    buffer_format(&body,
        "{\"convoId\":\"%s\",\"msgId\":\"%s\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":%llu}",
        groups[convo], id, message, (unsigned long long)epoch);
    buffer_append(&body, "", 1);
    free(message);
    for (uint32_t i = 0; i < times; i++) {
        uint64_t begin = atomic_fetch_add(&clock_now, 1), end, seq;
        struct web_answer answer =
            caller_ask(racer->site, racer->caller, "sendMessage", body.bytes);
        struct json_doc doc = { 0 };

        end = atomic_fetch_add(&clock_now, 1);
        CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
        if (answer.status == 409) {
            note_conflict(racer, convo, &doc, begin, end);
        } else {
            CHECK_MSG(answer.status == 200, "%s", answer.text);
            seq = (uint64_t)int_of(&doc, "seq");
            CHECK_MSG(first == 0 || seq == first, "the same again is another: %s", answer.text);
            racer->repeated += first != 0;
            note(racer, convo, true,
                (struct linear_op){ first == 0 ? LINEAR_MOVE : LINEAR_SEEN, seq, begin, end, 0 });
            first = seq;
        }
        json_doc_free(&doc);
        web_answer_free(&answer);
    }
    buffer_free(&body);
}

static void look(struct racer *racer, uint32_t convo)
{
    uint64_t begin = atomic_fetch_add(&clock_now, 1), end;
    struct web_answer answer;
    struct json_doc doc = { 0 };
    char call[64];

    (void)snprintf(call, sizeof call, "getEpoch?convoId=%s", groups[convo]);
    answer = caller_ask(racer->site, racer->caller, call, NULL);
    end = atomic_fetch_add(&clock_now, 1);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    learn(racer, convo, int_of(&doc, "currentEpoch"));
    note(racer, convo, false,
        (struct linear_op){ LINEAR_READ, (uint64_t)int_of(&doc, "currentEpoch"), begin, end, 0 });
    json_doc_free(&doc);
    web_answer_free(&answer);
}

/* getMessages from the newest number it has heard of: from memory, or from the database. */
static void poll(struct racer *racer, uint32_t convo)
{
    uint64_t begin = atomic_fetch_add(&clock_now, 1), end;
    struct web_answer answer;
    struct json_doc doc = { 0 };
    char call[96];

    (void)snprintf(call, sizeof call, "getMessages?convoId=%s&sinceSeq=%llu&limit=1", groups[convo],
        (unsigned long long)racer->seqs[convo]);
    answer = caller_ask(racer->site, racer->caller, call, NULL);
    end = atomic_fetch_add(&clock_now, 1);
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    racer->seqs[convo] = (uint64_t)int_of(&doc, "currentSeq");
    note(racer, convo, true,
        (struct linear_op){ LINEAR_READ, (uint64_t)int_of(&doc, "currentSeq"), begin, end, 0 });
    json_doc_free(&doc);
    web_answer_free(&answer);
}

static void *race(void *argument)
{
    struct racer *racer = argument;

    for (uint32_t round = 0; round < racer->rounds; round++) {
        uint32_t convo = (uint32_t)draw(racer, CONVOS);
        uint64_t dice = draw(racer, 10);

        if (dice < 4 || racer->epochs[convo] == 0) /* nobody sends in epoch 0 */
            move(racer, convo, round);
        else if (dice < 7)
            say(racer, convo, round);
        else if (dice < 8)
            look(racer, convo);
        else
            poll(racer, convo);
    }
    return NULL;
}

static size_t check_histories(const struct racer *racers)
{
    size_t count = 0;

    for (uint32_t convo = 0; convo < CONVOS; convo++) {
        struct linear_history histories[2] = { { 0 }, { 0 } };
        char why[300];

        for (uint32_t i = 0; i < THREADS; i++)
            for (size_t k = 0; k < racers[i].seen_count; k++)
                if (racers[i].seen[k].convo == convo)
                    linear_add(&histories[racers[i].seen[k].is_seq], racers[i].seen[k].op);
        for (uint32_t i = 0; i < 2; i++) {
            count += histories[i].count;
            CHECK_MSG(linear_check(&histories[i], i, why, sizeof why), "%s of %s: %s",
                i == 0 ? "epochs" : "seqs", groups[convo], why);
            linear_free(&histories[i]);
        }
    }
    return count;
}

TEST_LONG(history, of_a_live_server_is_one_of_one_copy, 60)
{
    uint32_t rounds = check_is_long() ? ROUNDS_LONG : ROUNDS;
    struct racer racers[THREADS];
    unsigned conflicts = 0, lost = 0, repeated = 0;
    struct caller ada;
    struct site site;
    char body[256];

    site_begin(&site);
    caller_begin(&ada);
    for (uint32_t i = 0; i < CONVOS; i++) {
        (void)snprintf(
            body, sizeof body, "{\"groupId\":\"%s\",\"cipherSuite\":\"" SUITE "\"}", groups[i]);
        expect(&site, &ada, "createConvo", body, 200, "\"epoch\":0");
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        racers[i] = (struct racer){ .site = &site,
            .caller = &ada,
            .index = i,
            .rounds = rounds,
            .random = check_seed() * 1000 + i,
            .seen = calloc((size_t)rounds * 4, sizeof(struct seen)) };
        CHECK(racers[i].seen != NULL);
        CHECK_EQ_INT(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        CHECK_EQ_INT(pthread_join(racers[i].thread, NULL), 0);
        conflicts += racers[i].conflicts;
        lost += racers[i].lost;
        repeated += racers[i].repeated;
    }
    printf("%zu ops, %u conflicts, %u repeated, %u closed before the answer\n",
        check_histories(racers), conflicts, repeated, lost);
    CHECK(conflicts > 0 && lost > 0 && repeated > 0);
    for (uint32_t i = 0; i < THREADS; i++)
        free(racers[i].seen);
    caller_end(&ada);
    site_end(&site);
}
