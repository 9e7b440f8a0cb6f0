/* SPDX-License-Identifier: Apache-2.0 */
/* moderation_site.h: a conversation with somebody of every kind in it, and short ways to ask. */
#ifndef TEST_UNIT_DELIVERY_MODERATION_SITE_H
#define TEST_UNIT_DELIVERY_MODERATION_SITE_H

#define SITE_IS_BLIND 1
#include "convo_site.h"
#include "crypto/digest.h"

#define SUITE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"

enum who { EVE, REM, BOB, MAX, ADA, WHO_COUNT }; /* stranger, removed, member, moderator, admin */

struct cast {
    struct site site;
    struct caller callers[WHO_COUNT];
    char id[64]; /* of what was made last: $id */
};

static const char *const who_names[WHO_COUNT] = { "$eve", "$rem", "$bob", "$max", "$ada" };

static inline const struct caller *who(const struct cast *cast, enum who index)
{
    return &cast->callers[index];
}

/* ' becomes ", $ada and so on become DIDs, $id the last id; free it. */
static inline char *fill_in(const struct cast *cast, const char *text)
{
    struct buffer out = { 0 };

    while (*text != '\0') {
        bool is_done = false;

        for (int i = 0; i < WHO_COUNT && !is_done; i++)
            if (strncmp(text, who_names[i], 4) == 0) {
                buffer_text(&out, cast->callers[i].did);
                text += 4;
                is_done = true;
            }
        if (!is_done && strncmp(text, "$id", 3) == 0) {
            buffer_text(&out, cast->id);
            text += 3;
            is_done = true;
        }
        if (!is_done) {
            buffer_append(&out, *text == '\'' ? "\"" : text, 1);
            text++;
        }
    }
    buffer_append(&out, "", 1);
    CHECK_EQ_INT(out.failed, 0);
    return out.bytes;
}

static inline struct web_answer ask(
    const struct cast *cast, enum who caller, const char *call, const char *body)
{
    char *full_call = fill_in(cast, call);
    char *full_body = body == NULL ? NULL : fill_in(cast, body);
    struct web_answer answer = caller_ask(&cast->site, who(cast, caller), full_call, full_body);

    free(full_call);
    free(full_body);
    return answer;
}

/* The answer has this status, and this in it. */
static inline void want(const struct cast *cast, enum who caller, const char *call,
    const char *body, unsigned status, const char *part)
{
    struct web_answer answer = ask(cast, caller, call, body);
    char *full_part = fill_in(cast, part);

    CHECK_MSG(answer.status == status && strstr(answer.body, full_part) != NULL,
        "%s by %s with %s: wanted %u with '%s', got:\n%s", call, who_names[caller],
        body == NULL ? "nothing" : body, status, full_part, answer.text);
    CHECK_MSG(status != 429 || strstr(answer.text, "Retry-After: ") != NULL, "%s", answer.text);
    free(full_part);
    web_answer_free(&answer);
}

static inline void want_not(
    const struct cast *cast, enum who caller, const char *call, const char *part)
{
    struct web_answer answer = ask(cast, caller, call, NULL);
    char *full_part = fill_in(cast, part);

    CHECK_MSG(answer.status == 200 && strstr(answer.body, full_part) == NULL,
        "%s by %s: wanted no '%s', got:\n%s", call, who_names[caller], full_part, answer.text);
    free(full_part);
    web_answer_free(&answer);
}

/* The same, and $id becomes the member `name` of the answer. */
static inline void make(
    struct cast *cast, enum who caller, const char *call, const char *body, const char *name)
{
    struct web_answer answer = ask(cast, caller, call, body);
    struct json_doc doc = { 0 };
    struct span id;

    CHECK_MSG(answer.status == 200, "%s: %s", call, answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    CHECK(json_string(json_get(json_root(&doc), name), &id));
    CHECK(id.size < sizeof cast->id);
    (void)snprintf(cast->id, sizeof cast->id, "%.*s", (int)id.size, id.at);
    json_doc_free(&doc);
    web_answer_free(&answer);
}

static inline void create(const struct cast *cast, const char *group)
{
    char body[256];

    (void)snprintf(body, sizeof body, "{'groupId':'%s','cipherSuite':'" SUITE "'}", group);
    want(cast, ADA, "createConvo", body, 200, "'epoch':0");
}

/* "g1": ada made it, max moderates, bob is in, rem was removed, eve is nobody. The server counts
 * its epochs. */
static inline void cast_begin(struct cast *cast)
{
    *cast = (struct cast){ .id = "none" };
    site_begin(&cast->site);
    for (int i = 0; i < WHO_COUNT; i++)
        caller_begin(&cast->callers[i]);
    create(cast, "g1");
    want(cast, ADA, "addMembers", "{'convoId':'g1','didList':['$bob','$max','$rem']}", 200,
        "'newEpoch':1");
    want(cast, ADA, "removeMember",
        "{'convoId':'g1','targetDid':'$rem','idempotencyKey':'remove rem'}", 200, "'ok':true");
    want(cast, ADA, "promoteModerator", "{'convoId':'g1','targetDid':'$max'}", 200, "promotedAt");
}

static inline void cast_end(struct cast *cast)
{
    for (int i = 0; i < WHO_COUNT; i++)
        caller_end(&cast->callers[i]);
    site_end(&cast->site);
}

/* How many rows the audit log has of an action. */
static inline int64_t audit_count(const struct cast *cast, const char *action)
{
    static const struct sql_statement count = {
        .text = "SELECT COUNT(*) FROM audit WHERE action = $1"
    };
    struct sql_unit *unit = sql_unit_create(0);
    int64_t rows;

    CHECK(unit != NULL);
    sql_unit_step(unit, &count, SQL_ROWS_ANY);
    sql_unit_text(unit, span_of(action));
    CHECK_EQ_INT(sql_read_wait(cast->site.sql, unit), 0);
    rows = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    return rows;
}

/* base64 of an external commit: as much of one as a server can look into; free it. */
static inline char *external_commit(const char *group, uint64_t epoch, const char *identity)
{
    struct buffer bytes = { 0 }, proposals = { 0 };
    char *text;

    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, 1, 2); /* public message */
    mls_put_vector(&bytes, span_of(group));
    mls_put_number(&bytes, epoch, 8);
    mls_put_number(&bytes, 4, 1); /* new_member_commit */
    mls_put_vector(&bytes, SPAN(""));
    mls_put_number(&bytes, 3, 1); /* commit */
    mls_put_number(&proposals, 1, 1);
    mls_put_number(&proposals, 6, 2); /* external_init */
    mls_put_vector(&proposals, SPAN("kem output"));
    mls_put_vector(&bytes, (struct span){ proposals.bytes, proposals.size });
    mls_put_number(&bytes, 1, 1); /* there is a path: its leaf first */
    mls_put_vector(&bytes, SPAN("encryption key"));
    mls_put_vector(&bytes, SPAN("signature key"));
    mls_put_number(&bytes, 1, 2); /* basic credential */
    mls_put_vector(&bytes, span_of(identity));
    for (int i = 0; i < 5; i++)
        mls_put_vector(&bytes, SPAN(""));
    mls_put_number(&bytes, 3, 1); /* from a commit */
    mls_put_vector(&bytes, SPAN("parent hash"));
    mls_put_vector(&bytes, SPAN(""));
    mls_put_vector(&bytes, SPAN("leaf signature"));
    mls_put_vector(&bytes, SPAN("")); /* nodes */
    mls_put_vector(&bytes, SPAN("signature"));
    mls_put_vector(&bytes, SPAN("confirmation tag"));
    CHECK_EQ_INT(bytes.failed, 0);
    text = malloc(crypto_base64_size(bytes.size) + 1);
    CHECK(text != NULL);
    text[crypto_base64_encode(bytes.bytes, bytes.size, text)] = '\0';
    buffer_free(&bytes);
    buffer_free(&proposals);
    return text;
}

/* Join by an external commit, with a secret or (NULL) without. */
static inline struct web_answer join(
    const struct cast *cast, enum who caller, const char *group, uint64_t epoch, const char *psk)
{
    char *commit = external_commit(group, epoch, who(cast, caller)->did);
    struct buffer body = { 0 };
    struct web_answer answer;

    buffer_format(&body, "{\"convoId\":\"%s\",\"externalCommit\":\"%s\"", group, commit);
    if (psk != NULL)
        buffer_format(&body, ",\"psk\":\"%s\"", psk);
    buffer_append(&body, "}", 2);
    answer = caller_ask(&cast->site, who(cast, caller), "processExternalCommit", body.bytes);
    buffer_free(&body);
    free(commit);
    return answer;
}

static inline void want_join(const struct cast *cast, enum who caller, const char *group,
    uint64_t epoch, const char *psk, unsigned status, const char *part)
{
    struct web_answer answer = join(cast, caller, group, epoch, psk);

    CHECK_MSG(answer.status == status && strstr(answer.body, part) != NULL,
        "%s joins: wanted %u with '%s', got:\n%s", who_names[caller], status, part, answer.text);
    web_answer_free(&answer);
}

#endif
