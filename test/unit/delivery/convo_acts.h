/* SPDX-License-Identifier: Apache-2.0 */
/* convo_acts.h: calls on a conversation, a line each. */
#ifndef TEST_UNIT_DELIVERY_CONVO_ACTS_H
#define TEST_UNIT_DELIVERY_CONVO_ACTS_H

#include "convo_site.h"
#include "crypto/digest.h"
#include "services/delivery/store/check.h"
#include "services/delivery/store/retention.h"

#define SUITE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"

/* POST, with a body built like printf. */
__attribute__((format(printf, 6, 7))) static inline void act(const struct site *site,
    const struct caller *caller, const char *call, unsigned status, const char *part,
    const char *format, ...)
{
    char text[8192];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    expect(site, caller, call, text, status, part);
}

static inline void do_create(
    const struct site *site, const struct caller *caller, const char *group)
{
    act(site, caller, "createConvo", 200, "\"epoch\":0",
        "{\"groupId\":\"%s\",\"cipherSuite\":\"" SUITE "\"}", group);
}

/* A commit of `group` at `epoch` in conversation `convo`; `more` are further members of the body,
 * each with a comma before it. */
static inline void do_commit(const struct site *site, const struct caller *caller,
    const char *convo, uint64_t epoch, const char *secret, const char *more, unsigned status,
    const char *part)
{
    char *commit = private_message(convo, epoch, 3, secret);

    act(site, caller, "submitCommit", status, part, "{\"convoId\":\"%s\",\"commit\":\"%s\"%s}",
        convo, commit, more);
    free(commit);
}

/* addMembers: up to three. */
static inline void do_add(const struct site *site, const struct caller *caller, const char *convo,
    uint64_t epoch, const char *const dids[3])
{
    char *commit = private_message(convo, epoch, 3, "an add"), list[512] = "";

    for (int i = 0; i < 3 && dids[i] != NULL; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s\"%s\"",
            i == 0 ? "" : ",", dids[i]);
    act(site, caller, "addMembers", 200, "newEpoch",
        "{\"convoId\":\"%s\",\"didList\":[%s],\"commit\":\"%s\"}", convo, list, commit);
    free(commit);
}

static inline void do_say(const struct site *site, const struct caller *caller, const char *convo,
    const char *id, uint64_t epoch, const char *delivery, unsigned status, const char *part)
{
    char *message = private_message(convo, epoch, 1, id);

    act(site, caller, "sendMessage", status, part,
        "{\"convoId\":\"%s\",\"msgId\":\"%s\",\"ciphertext\":{\"$bytes\":\"%s\"},\"epoch\":%llu,"
        "\"delivery\":\"%s\"}",
        convo, id, message, (unsigned long long)epoch, delivery);
    free(message);
}

/* The SHA-256 of such a commit, in hex. */
static inline void hash_of(const char *convo, uint64_t epoch, const char *secret, char ret_hex[65])
{
    char *commit = private_message(convo, epoch, 3, secret);
    unsigned char bytes[1024], hash[32];
    size_t size;

    CHECK_EQ_INT(crypto_base64_decode(span_of(commit), bytes, sizeof bytes, &size), 0);
    crypto_sha256(bytes, size, hash);
    ret_hex[crypto_hex_encode(hash, sizeof hash, ret_hex)] = '\0';
    free(commit);
}

static inline void do_report(const struct site *site, const struct caller *caller,
    const char *convo, uint64_t base, const char *secret, unsigned status, const char *part)
{
    char hex[65];

    hash_of(convo, base, secret, hex);
    act(site, caller, "reportInvalidCommit", status, part,
        "{\"convoId\":\"%s\",\"baseEpoch\":%llu,\"sha256\":\"%s\",\"reason\":\"no path\"}", convo,
        (unsigned long long)base, hex);
}

/* A statement lives as long as the connections that have prepared it: these are never freed. */
static inline const struct sql_statement *statement_of(const char *sql)
{
    static struct sql_statement statements[64];
    static char *texts[64];
    static int count;

    CHECK(count < 64);
    texts[count] = strdup(sql);
    CHECK(texts[count] != NULL);
    statements[count].text = texts[count];
    return &statements[count++];
}

/* Change what is stored behind the service's back. */
static inline void plant(const struct site *site, const char *sql)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    sql_unit_step(unit, statement_of(sql), SQL_ROWS_ANY);
    rc = sql_write_wait(site->sql, unit);
    CHECK_MSG(rc == 0, "%s: %s: %s", sql, sql_error_text(rc), sql_unit_why(unit));
    sql_unit_destroy(unit);
}

/* g1 has one more in its log than its actor knows: 3, if it had 2. */
static inline void do_grow_unseen(const struct site *site)
{
    plant(site, "INSERT INTO log (convo, seq, kind, base_epoch, epoch, sender, sha256, bytes,"
                " created_ms) SELECT convo, seq + 1, 1, epoch, epoch, sender, sha256, bytes,"
                " created_ms FROM log WHERE convo = 'g1' AND seq ="
                " (SELECT seq FROM convos WHERE id = 'g1')");
    plant(site, "UPDATE convos SET seq = seq + 1 WHERE id = 'g1'");
}

static inline int64_t stored(const struct site *site, const char *sql)
{
    struct sql_unit *unit = sql_unit_create(0);
    int64_t value;
    int rc;

    sql_unit_step(unit, statement_of(sql), 1);
    rc = sql_read_wait(site->sql, unit);
    CHECK_MSG(rc == 0, "%s: %s: %s", sql, sql_error_text(rc), sql_unit_why(unit));
    value = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    return value;
}

static inline void note_violation(
    void *data, const char *check, struct span convo, const char *text)
{
    struct buffer *out = data;

    buffer_format(out, "%s %.*s: %s\n", check, (int)convo.size, convo.at, text);
}

/* Expects that the report of the checks begins with `check`; NULL: that it is empty. */
static inline void expect_check(const struct site *site, const char *check)
{
    struct buffer said = { 0 };
    uint64_t count = 0;

    CHECK_EQ_INT(delivery_check(site->sql, note_violation, &said, &count), 0);
    buffer_append(&said, "", 1);
    if (check == NULL)
        CHECK_MSG(count == 0, "%s", said.bytes);
    else
        CHECK_MSG(count >= 1 && strstr(said.bytes, check) != NULL, "wanted %s, got: %s", check,
            said.bytes);
    buffer_free(&said);
}

static inline struct retention_done retain(const struct site *site, int64_t kept_s)
{
    struct delivery *delivery = site->delivery;
    struct retention_message message = { .kept_s = kept_s };
    struct retention_done done = { 0, 0 };
    struct tr_future *future;
    size_t size;

    CHECK_EQ_INT(tr_ask_future(delivery->retention, &message, sizeof message, 0, &future), 0);
    CHECK_EQ_INT(tr_future_wait(future, &done, sizeof done, &size, TR_SECONDS(15)), 0);
    tr_future_drop(&future);
    return done;
}

/* With header lines of its own, each with its end. */
static inline int do_listen_with(
    const struct site *site, const struct caller *caller, const char *query, const char *lines)
{
    char *header = caller_header(caller, "subscribeConvoEvents");
    int fd = web_connect(http_server_address(site->server));
    struct buffer text = { 0 };

    buffer_format(&text,
        "GET /xrpc/blue.catbird.mls.subscribeConvoEvents?%s HTTP/1.1\r\nHost: x\r\n%s%s\r\n", query,
        header, lines);
    web_send(fd, text.bytes, text.size);
    buffer_free(&text);
    free(header);
    return fd;
}

static inline int do_listen(const struct site *site, const struct caller *caller, const char *query)
{
    return do_listen_with(site, caller, query, "");
}

/* Five callers; ada creates g1 and adds bob, cyd and dan, eve looks on: epoch 1, seq 2. */
struct cast {
    struct caller ada, bob, cyd, dan, eve;
    struct site site;
};

static inline void cast_begin(struct cast *cast)
{
    site_begin(&cast->site);
    caller_begin(&cast->ada);
    caller_begin(&cast->bob);
    caller_begin(&cast->cyd);
    caller_begin(&cast->dan);
    caller_begin(&cast->eve);
    do_create(&cast->site, &cast->ada, "g1");
    do_add(&cast->site, &cast->ada, "g1", 0,
        (const char *const[3]){ cast->bob.did, cast->cyd.did, cast->dan.did });
}

static inline void cast_end(struct cast *cast)
{
    caller_end(&cast->ada);
    caller_end(&cast->bob);
    caller_end(&cast->cyd);
    caller_end(&cast->dan);
    caller_end(&cast->eve);
    site_end(&cast->site);
}

#endif
