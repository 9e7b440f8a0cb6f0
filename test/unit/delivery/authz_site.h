/* SPDX-License-Identifier: Apache-2.0 */
/* authz_site.h: a conversation with somebody of every kind around it, and texts in which their
 * names and what they make are filled in. */
#ifndef TEST_UNIT_DELIVERY_AUTHZ_SITE_H
#define TEST_UNIT_DELIVERY_AUTHZ_SITE_H

#include "crypto/digest.h"
#include "site.h"

/* The people: eve is nobody, an invite names inv, bob is a member, rem was removed, max moderates,
 * ada is the admin, cyd is a member things are done to. */
enum authz_who { EVE, INV, BOB, REM, MAX, ADA, CYD, AUTHZ_WHO };

/* A step of the history before the test. */
struct authz_step {
    enum authz_who who;
    const char *call;
    const char *body;
    const char *capture; /* $id becomes this member of the answer */
};

#define PSK "the secret of the invite"

struct cast {
    struct site site;
    struct caller callers[AUTHZ_WHO];
    struct signer signer;
    char group[32];
    uint64_t epoch;
    char last[65]; /* SHA-256 of the newest commit */
    char hash[65]; /* of the newest key package */
    char id[128];
    unsigned number;
};

static const char *const who_names[AUTHZ_WHO] = { "eve", "inv", "bob", "rem", "max", "ada", "cyd" };

/* With a push gateway that nothing reaches: tokens are taken, and nobody is woken. */
static inline void authz_site_begin(struct site *site)
{
    struct buffer errors = { 0 };
    struct config config = { 0 };

    CHECK_EQ_INT(config_load_bytes(SPAN("[delivery]\npush_url = http://127.0.0.1:9/\n"), "t.conf",
                     &(struct config_sources){ 0 }, &config, &errors),
        0);
    site_begin_with(site, &config);
    config_fini(&config);
}

/* ---- what clients make ---------------------------------------------------------------------- */

static inline char *take_base64(struct buffer *bytes)
{
    char *text = base64_of(bytes);

    buffer_free(bytes);
    return text;
}

/* A private message of the group. */
static inline char *make_private(const struct cast *cast, enum mls_content content, uint64_t epoch)
{
    static unsigned number;
    struct buffer bytes = { 0 };
    char secret[48];

    (void)snprintf(secret, sizeof secret, "secret %u", number++);
    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, MLS_PRIVATE, 2);
    mls_put_vector(&bytes, span_of(cast->group));
    mls_put_number(&bytes, epoch, 8);
    mls_put_number(&bytes, content, 1);
    mls_put_vector(&bytes, SPAN(""));
    mls_put_vector(&bytes, SPAN("encrypted sender data, 28 by"));
    mls_put_vector(&bytes, span_of(secret));
    return take_base64(&bytes);
}

/* Writes the GroupContext of this epoch, which signatures cover. */
static inline void put_context(struct buffer *bytes, const struct cast *cast)
{
    mls_put_number(bytes, 1, 2);
    mls_put_number(bytes, 1, 2); /* suite */
    mls_put_vector(bytes, span_of(cast->group));
    mls_put_number(bytes, cast->epoch, 8);
    mls_put_vector(bytes, SPAN("tree hash"));
    mls_put_vector(bytes, SPAN("transcript hash"));
    mls_put_vector(bytes, SPAN("")); /* extensions */
}

/* RFC 9420 section 6.1: after version, wire format and content comes the context. */
static inline void sign_content(struct buffer *bytes, const struct cast *cast)
{
    struct buffer content = { 0 };

    buffer_append(&content, bytes->bytes, bytes->size);
    put_context(&content, cast);
    sign_with_label(&cast->signer, "MLS 1.0 FramedContentTBS", &content, bytes);
    buffer_free(&content);
}

/* An external commit, as far as a server can look into one: its signature is good. */
static inline char *make_external(const struct cast *cast, const char *identity)
{
    struct buffer bytes = { 0 }, proposals = { 0 };

    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, MLS_PUBLIC, 2);
    mls_put_vector(&bytes, span_of(cast->group));
    mls_put_number(&bytes, cast->epoch, 8);
    mls_put_number(&bytes, MLS_NEW_COMMIT, 1);
    mls_put_vector(&bytes, SPAN(""));
    mls_put_number(&bytes, MLS_COMMIT, 1);
    mls_put_number(&proposals, 1, 1);
    mls_put_number(&proposals, 6, 2); /* external_init */
    mls_put_vector(&proposals, SPAN("kem output"));
    mls_put_vector(&bytes, (struct span){ proposals.bytes, proposals.size });
    mls_put_number(&bytes, 1, 1); /* there is a path: its leaf first */
    mls_put_vector(&bytes, SPAN("encryption key"));
    mls_put_vector(&bytes, (struct span){ (const char *)cast->signer.public_key, 32 });
    mls_put_number(&bytes, MLS_CREDENTIAL_BASIC, 2);
    mls_put_vector(&bytes, span_of(identity));
    for (int i = 0; i < 5; i++)
        mls_put_vector(&bytes, SPAN(""));
    mls_put_number(&bytes, 3, 1); /* from a commit */
    mls_put_vector(&bytes, SPAN("parent hash"));
    mls_put_vector(&bytes, SPAN(""));
    mls_put_vector(&bytes, SPAN("leaf signature"));
    mls_put_vector(&bytes, SPAN("")); /* nodes */
    sign_content(&bytes, cast);
    mls_put_vector(&bytes, SPAN("confirmation tag"));
    buffer_free(&proposals);
    return take_base64(&bytes);
}

/* A group info without a ratchet tree, so there is nothing to check its signature with. */
static inline char *make_info(const struct cast *cast)
{
    struct buffer bytes = { 0 };

    put_context(&bytes, cast);
    mls_put_vector(&bytes, SPAN("")); /* extensions */
    mls_put_vector(&bytes, SPAN("confirmation tag"));
    mls_put_number(&bytes, 0, 4);
    mls_put_vector(&bytes, SPAN("signature"));
    return take_base64(&bytes);
}

static inline char *make_package(struct cast *cast, const struct caller *caller, const char *device)
{
    return package_make(
        &(struct package_options){ .did = caller->did, .device = device, .signer = &cast->signer },
        cast->hash);
}

static inline void hash_base64(const char *text, char ret_hex[65])
{
    unsigned char bytes[1024], hash[32];
    size_t size;

    CHECK_EQ_INT(crypto_base64_decode(span_of(text), bytes, sizeof bytes, &size), 0);
    crypto_sha256(bytes, size, hash);
    ret_hex[crypto_hex_encode(hash, sizeof hash, ret_hex)] = '\0';
}

static inline char *hash_of_psk(void)
{
    unsigned char hash[32];
    char *hex = calloc(1, 65);

    CHECK(hex != NULL);
    crypto_sha256(PSK, sizeof PSK - 1, hash);
    crypto_hex_encode(hash, sizeof hash, hex);
    return hex;
}

static inline char *key_of(const struct cast *cast)
{
    char *text = calloc(1, crypto_base64_size(32) + 1);

    CHECK(text != NULL);
    crypto_base64_encode(cast->signer.public_key, 32, text);
    return text;
}

/* ---- texts ---------------------------------------------------------------------------------- */

/* In texts ' becomes ", and: $g the conversation, $new another id, $me and $ada, $bob … DIDs,
 * $device the caller's device, $id what a step captured, $commit, $proposal, $message, $external,
 * $info what members make at the current epoch, $old and $older a commit and a message of the one
 * before, $last the hash of the newest commit, $psk and $pskhash the invite's secret, $phone and
 * $package key packages of the caller (of its phone, of $device), $hash the last one's hash,
 * $welcome a Welcome for that one, $key a device's key. */
struct speaker {
    struct cast *cast;
    const struct caller *me;
    const char *device;
};

/* What $name is; NULL: nothing, it stays as it is. */
static inline char *value_of(const struct speaker *speaker, struct span name)
{
    struct cast *cast = speaker->cast;
    const char *const hashes[1] = { cast->hash };
    char text[64];

    for (int i = 0; i < AUTHZ_WHO; i++)
        if (span_is(name, who_names[i]))
            return strdup(cast->callers[i].did);
    if (span_is(name, "new")) {
        (void)snprintf(text, sizeof text, "new-%u-of-%s", cast->number++, cast->group);
        return strdup(text);
    }
    if (span_is(name, "g"))
        return strdup(cast->group);
    if (span_is(name, "me"))
        return strdup(speaker->me->did);
    if (span_is(name, "device"))
        return strdup(speaker->device);
    if (span_is(name, "id"))
        return strdup(cast->id);
    if (span_is(name, "commit"))
        return make_private(cast, MLS_COMMIT, cast->epoch);
    if (span_is(name, "old"))
        return make_private(cast, MLS_COMMIT, cast->epoch - 1);
    if (span_is(name, "proposal"))
        return make_private(cast, MLS_PROPOSAL, cast->epoch);
    if (span_is(name, "message"))
        return make_private(cast, MLS_APPLICATION, cast->epoch);
    if (span_is(name, "older"))
        return make_private(cast, MLS_APPLICATION, cast->epoch - 1);
    if (span_is(name, "external"))
        return make_external(cast, speaker->me->did);
    if (span_is(name, "info"))
        return make_info(cast);
    if (span_is(name, "last"))
        return strdup(cast->last);
    if (span_is(name, "psk"))
        return strdup(PSK);
    if (span_is(name, "pskhash"))
        return hash_of_psk();
    if (span_is(name, "phone"))
        return make_package(cast, speaker->me, "phone");
    if (span_is(name, "package"))
        return make_package(cast, speaker->me, speaker->device);
    if (span_is(name, "hash"))
        return strdup(cast->hash);
    if (span_is(name, "welcome"))
        return welcome_make(hashes, 1);
    return span_is(name, "key") ? key_of(cast) : NULL;
}

static inline char *fill_in(const struct speaker *speaker, const char *text)
{
    struct buffer out = { 0 };

    while (*text != '\0') {
        size_t size = *text == '$' ? strspn(text + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
        char *value = size == 0 ? NULL : value_of(speaker, (struct span){ text + 1, size });

        if (value != NULL) {
            buffer_text(&out, value);
            text += 1 + size;
        } else {
            buffer_append(&out, *text == '\'' ? "\"" : text, 1);
            text++;
        }
        free(value);
    }
    buffer_append(&out, "", 1);
    CHECK_EQ_INT(out.failed, 0);
    return out.bytes;
}

/* ---- asking --------------------------------------------------------------------------------- */

struct token {
    const char *aud;
    const char *lxm; /* without the prefix */
    int64_t age_s;
};

static inline char *header_of(const struct caller *caller, const struct token *with)
{
    static unsigned number;
    struct buffer token = { 0 };
    char jti[48], lxm[96], *line;
    int64_t now_s = site_now_s() - with->age_s;

    (void)snprintf(jti, sizeof jti, "authz-%u-%d", number++, (int)getpid());
    (void)snprintf(lxm, sizeof lxm, XRPC_PREFIX "%s", with->lxm);
    CHECK_EQ_INT(jwt_sign_claims(caller->key, (struct span){ NULL, 0 },
                     &(struct jwt_claims){ .iss = span_of(caller->did),
                         .aud = span_of(with->aud),
                         .lxm = span_of(lxm),
                         .jti = span_of(jti),
                         .iat_s = now_s,
                         .exp_s = now_s + 60,
                         .nbf_s = -1 },
                     &token),
        0);
    line = malloc(token.size + 64);
    CHECK(line != NULL);
    (void)snprintf(
        line, token.size + 64, "Authorization: Bearer %.*s\r\n", (int)token.size, token.bytes);
    buffer_free(&token);
    return line;
}

/* A stream that opens does not end: look at how it begins. */
static inline struct web_answer ask_stream(
    const struct site *site, const char *header, const char *call)
{
    struct web_answer answer = { 0 };
    struct buffer text = { 0 };
    int fd = web_connect(http_server_address(site->server));

    buffer_format(&text, "GET /xrpc/" XRPC_PREFIX "%s HTTP/1.1\r\nHost: x\r\n%s\r\n", call, header);
    web_send(fd, text.bytes, text.size);
    CHECK(web_receive_until(fd, &answer, "\r\n\r\n"));
    if (answer.status != 200)
        CHECK(web_receive_until(fd, &answer, "}"));
    buffer_free(&text);
    close(fd);
    return answer;
}

static inline struct web_answer ask_with(
    const struct cast *cast, const char *header, const char *call, const char *body)
{
    if (strstr(call, "ConvoEvents") != NULL)
        return ask_stream(&cast->site, header, call);
    return site_ask_with(&cast->site, header, call, body == NULL ? "" : body);
}

static inline struct web_answer ask_as(
    struct cast *cast, enum authz_who who, const char *call, const char *body)
{
    const struct speaker speaker = { cast, &cast->callers[who], "phone" };
    char *full_call = fill_in(&speaker, call), name[64], *header;
    char *full_body = body == NULL ? NULL : fill_in(&speaker, body);
    struct web_answer answer;

    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "?"), call);
    header = caller_header(speaker.me, name);
    answer = ask_with(cast, header, full_call, full_body);
    free(header);
    free(full_call);
    free(full_body);
    return answer;
}

static inline void keep_id(struct cast *cast, const char *json, const char *name)
{
    struct json_doc doc = { 0 };
    struct span id;

    CHECK_EQ_INT(json_parse_copy(&doc, span_of(json), 0), 0);
    CHECK(json_string(json_get(json_root(&doc), name), &id) && id.size < sizeof cast->id);
    (void)snprintf(cast->id, sizeof cast->id, "%.*s", (int)id.size, id.at);
    json_doc_free(&doc);
}

static inline void expect_as(struct cast *cast, enum authz_who who, const char *call,
    const char *body, unsigned status, const char *part)
{
    struct web_answer answer = ask_as(cast, who, call, body);
    const struct speaker speaker = { cast, &cast->callers[who], "phone" };
    char *full_part = fill_in(&speaker, part);

    CHECK_MSG(answer.status == status && strstr(answer.text, full_part) != NULL,
        "%s by %s: wanted %u with %s, got:\n%s", call, who_names[who], status, full_part,
        answer.text);
    free(full_part);
    web_answer_free(&answer);
}

/* ---- the conversation ----------------------------------------------------------------------- */

static inline void people_begin(struct cast *cast)
{
    for (int i = 0; i < AUTHZ_WHO; i++)
        caller_begin(&cast->callers[i]);
    signer_begin(&cast->signer);
}

static inline void people_end(struct cast *cast)
{
    for (int i = 0; i < AUTHZ_WHO; i++)
        caller_end(&cast->callers[i]);
    signer_end(&cast->signer);
}

/* At epoch 1, with everybody in it who ever was. */
static inline void group_begin(struct cast *cast)
{
    static unsigned number;

    (void)snprintf(cast->group, sizeof cast->group, "group-%u", number++);
    cast->epoch = 0;
    expect_as(cast, ADA, "createConvo", "{'groupId':'$g','cipherSuite':'" SITE_SUITE "'}", 200,
        "'epoch':0");
    expect_as(cast, ADA, "addMembers",
        "{'convoId':'$g','didList':['$bob','$max','$rem','$cyd'],'commit':'$commit'}", 200,
        "'newEpoch':1");
    cast->epoch = 1;
}

static inline void remove_rem(struct cast *cast)
{
    char *commit = make_private(cast, MLS_COMMIT, cast->epoch);
    struct buffer body = { 0 };

    buffer_format(
        &body, "{'convoId':'$g','targetDid':'$rem','idempotencyKey':'rem','commit':'%s'}", commit);
    buffer_append(&body, "", 1);
    expect_as(cast, ADA, "removeMember", body.bytes, 200, "'ok':true");
    hash_base64(commit, cast->last);
    cast->epoch++;
    buffer_free(&body);
    free(commit);
}

/* Epoch 2: ada is the admin, max moderates, bob and cyd are in, rem was removed, inv is invited. */
static inline void convo_begin(struct cast *cast)
{
    group_begin(cast);
    remove_rem(cast);
    expect_as(cast, ADA, "promoteModerator", "{'convoId':'$g','targetDid':'$max'}", 200, "ok");
    expect_as(cast, ADA, "createInvite", "{'convoId':'$g','pskHash':'$pskhash','targetDid':'$inv'}",
        200, "inviteId");
}

static inline void take_steps(struct cast *cast, const struct authz_step *step)
{
    for (; step != NULL && step->call != NULL; step++) {
        struct web_answer answer = ask_as(cast, step->who, step->call, step->body);

        CHECK_MSG(answer.status == 200, "before: %s: %s", step->call, answer.text);
        if (step->capture != NULL)
            keep_id(cast, answer.body, step->capture);
        if (strcmp(step->call, "submitCommit") == 0)
            cast->epoch++;
        web_answer_free(&answer);
    }
}

#endif
