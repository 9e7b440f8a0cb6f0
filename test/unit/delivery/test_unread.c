/* SPDX-License-Identifier: Apache-2.0 */
/* Unread counts are exact under concurrency and after a restart. */
#include <pthread.h>

#include "convo_site.h"

#define SUITE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"

enum { SENDERS = 50, READERS = 50, MESSAGES = 2, READS = 2, PEOPLE = SENDERS + READERS };

/* Senders first. */
struct person {
    const struct site *site;
    struct caller caller;
    int number;
    pthread_t thread;
    int64_t seqs[MESSAGES]; /* of what it sent */
    int64_t read_seq;
};

/* A number of the answer. Being told to come back is no answer. */
static int64_t ask_number(
    const struct person *person, const char *call, const char *body, const char *name)
{
    struct web_answer answer = caller_ask(person->site, &person->caller, call, body);
    struct json_doc doc = { 0 };
    int64_t number = -1;

    while (answer.status == 503) {
        web_answer_free(&answer);
        answer = caller_ask(person->site, &person->caller, call, body);
    }

    CHECK_MSG(answer.status == 200, "%s", answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    CHECK_MSG(json_int(json_get(json_root(&doc), name), &number), "no %s in %s", name, answer.body);
    json_doc_free(&doc);
    web_answer_free(&answer);
    return number;
}

static int64_t unread_of(const struct person *person)
{
    return ask_number(person, "getUnread", NULL, "total");
}

static int64_t say(const struct person *person, int message)
{
    char *bytes = private_message("g1", 1, 1, "hello"), body[512];
    int64_t seq;

    (void)snprintf(body, sizeof body,
        "{\"convoId\":\"g1\",\"msgId\":\"m-%d-%d\",\"ciphertext\":{\"$bytes\":\"%s\"},"
        "\"epoch\":1}",
        person->number, message, bytes);
    seq = ask_number(person, "sendMessage", body, "seq");
    free(bytes);
    return seq;
}

/* A message that is sent twice is unread once. */
static void *send_some(void *argument)
{
    struct person *person = argument;

    for (int i = 0; i < MESSAGES; i++) {
        person->seqs[i] = say(person, i);
        if (person->number % 2 == 0)
            CHECK_EQ_INT(say(person, i), person->seqs[i]);
    }
    return NULL;
}

static void read_to(struct person *person, int64_t seq)
{
    struct web_answer answer;
    char body[128];

    (void)snprintf(body, sizeof body, "{\"convoId\":\"g1\",\"seq\":%lld}", (long long)seq);
    for (;;) {
        answer = caller_ask(person->site, &person->caller, "updateCursor", body);
        if (answer.status != 503)
            break;
        web_answer_free(&answer);
    }
    CHECK_MSG(answer.status == 200, "%s", answer.text);
    web_answer_free(&answer);
    if (person->read_seq < seq)
        person->read_seq = seq;
}

static void *read_some(void *argument)
{
    struct person *person = argument;

    for (int i = 0; i < READS; i++) {
        int64_t unread = unread_of(person);

        CHECK_MSG(unread >= 0 && unread <= SENDERS * MESSAGES, "%lld unread", (long long)unread);
        read_to(person, ask_number(person, "getMessages?convoId=g1", NULL, "currentSeq"));
    }
    return NULL;
}

static void people_begin(struct person *people, const struct site *site)
{
    struct buffer body = { 0 };

    for (int i = 0; i < PEOPLE; i++) {
        people[i] = (struct person){ .site = site, .number = i };
        caller_begin(&people[i].caller);
    }
    expect(site, &people[0].caller, "createConvo",
        "{\"groupId\":\"g1\",\"cipherSuite\":\"" SUITE "\"}", 200, "\"epoch\":0");
    buffer_text(&body, "{\"convoId\":\"g1\",\"didList\":[");
    for (int i = 1; i < PEOPLE; i++)
        buffer_format(&body, "%s\"%s\"", i == 1 ? "" : ",", people[i].caller.did);
    buffer_append(&body, "]}", 3);
    expect(site, &people[0].caller, "addMembers", body.bytes, 200, "\"newEpoch\":1");
    buffer_free(&body);
}

static void people_end(struct person *people)
{
    for (int i = 0; i < PEOPLE; i++)
        caller_end(&people[i].caller);
}

/* Others' messages behind its cursor, as their senders know them. */
static void check_unread(const struct person *people)
{
    for (int i = 0; i < PEOPLE; i++) {
        int64_t wanted = 0, told = unread_of(&people[i]);

        for (int k = 0; k < SENDERS; k++)
            for (int m = 0; k != i && m < MESSAGES; m++)
                wanted += people[k].seqs[m] > people[i].read_seq;
        CHECK_MSG(told == wanted, "%d has read to %lld: told %lld unread, and %lld are", i,
            (long long)people[i].read_seq, (long long)told, (long long)wanted);
    }
}

TEST_LONG(unread, is_exact_when_fifty_send_and_fifty_read_at_once, 120)
{
    static struct person people[PEOPLE];
    struct site site;

    site_begin(&site);
    people_begin(people, &site);
    for (int i = 0; i < PEOPLE; i++)
        CHECK_EQ_INT(pthread_create(
                         &people[i].thread, NULL, i < SENDERS ? send_some : read_some, &people[i]),
            0);
    for (int i = 0; i < PEOPLE; i++)
        CHECK_EQ_INT(pthread_join(people[i].thread, NULL), 0);
    check_unread(people);
    site_close(&site);
    site_open(&site);
    check_unread(people);
    for (int i = 0; i < PEOPLE; i++)
        read_to(&people[i], people[i % SENDERS].seqs[0]);
    check_unread(people);
    people_end(people);
    site_end(&site);
}

/* ---- what was marked ------------------------------------------------------------------------ */

static int64_t mark(const struct person *person)
{
    return ask_number(person, "markUnread", "{\"convoId\":\"g1\"}", "unreadCount");
}

static void *mark_some(void *argument)
{
    const struct person *person = argument;

    for (int i = 0; i < 5; i++)
        CHECK_EQ_INT(mark(person), 1);
    return NULL;
}

TEST(unread, a_mark_is_one_however_often_it_is_set_and_stays)
{
    static struct person people[PEOPLE];
    struct site site;
    int64_t seq;

    site_begin(&site);
    people_begin(people, &site);
    for (int i = 0; i < 5; i++)
        CHECK_EQ_INT(pthread_create(&people[i].thread, NULL, mark_some, &people[i]), 0);
    for (int i = 0; i < 5; i++)
        CHECK_EQ_INT(pthread_join(people[i].thread, NULL), 0);
    site_close(&site);
    site_open(&site);
    for (int i = 0; i < 8; i++)
        CHECK_EQ_INT(unread_of(&people[i]), i < 5 ? 1 : 0);
    seq = say(&people[9], 0); /* a message counts by itself, and the mark no more beside it */
    CHECK_EQ_INT(unread_of(&people[0]), 1);
    CHECK_EQ_INT(mark(&people[0]), 1);
    (void)say(&people[9], 1);
    CHECK_EQ_INT(mark(&people[0]), 2);
    read_to(&people[0], seq + 1);
    CHECK_EQ_INT(unread_of(&people[0]), 0);
    CHECK_EQ_INT(mark(&people[0]), 1);
    read_to(&people[0], seq); /* an old cursor that comes late */
    CHECK_EQ_INT(unread_of(&people[0]), 1);
    read_to(&people[0], seq + 1);
    CHECK_EQ_INT(unread_of(&people[0]), 0);
    read_to(&people[0], seq + 1000); /* nobody has read what is not there yet */
    people[9].number = 99;
    (void)say(&people[9], 2);
    CHECK_EQ_INT(unread_of(&people[0]), 1);
    people_end(people);
    site_end(&site);
}

TEST(unread, who_is_added_again_has_no_mark_from_before)
{
    static struct person people[PEOPLE];
    char body[256];
    struct site site;

    site_begin(&site);
    people_begin(people, &site);
    CHECK_EQ_INT(mark(&people[1]), 1);
    (void)snprintf(
        body, sizeof body, "{\"convoId\":\"g1\",\"targetDid\":\"%s\"}", people[1].caller.did);
    expect(&site, &people[0].caller, "removeMember", body, 200, "\"ok\":true");
    expect(&site, &people[1].caller, "markUnread", "{\"convoId\":\"g1\"}", 403, "NotMember");
    expect(&site, &people[1].caller, "markUnread", "{\"convoId\":\"g2\"}", 404, "ConvoNotFound");
    expect(&site, &people[1].caller, "markUnread", "{}", 400, "InvalidRequest");
    (void)snprintf(
        body, sizeof body, "{\"convoId\":\"g1\",\"didList\":[\"%s\"]}", people[1].caller.did);
    expect(&site, &people[0].caller, "addMembers", body, 200, "\"newEpoch\":3");
    CHECK_EQ_INT(unread_of(&people[1]), 0);
    people_end(people);
    site_end(&site);
}
