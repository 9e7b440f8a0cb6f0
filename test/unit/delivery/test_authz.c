/* SPDX-License-Identifier: Apache-2.0 */
/* Who may call what: authz_table.h, asked cell by cell of a real server; and what is left to a
 * member who was removed. */
#include "crypto/digest.h"
#include "site.h"
/* The table of routes itself, so that one without a row does not compile. It takes the place of the
 * library's, which is the same file. */
#include "authz_table.h"
#include "services/delivery/routes.c" /* NOLINT(bugprone-suspicious-include) */

_Static_assert(AUTHZ_ROWS == sizeof routes / sizeof routes[0],
    "every route has one row in authz_table.h: say there who may call it");

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
static const char *const column_names[AUTHZ_COLUMNS] = { "anonymous", "stranger", "invited",
    "member", "removed", "moderator", "admin", "other device", "expired", "wrong aud",
    "wrong lxm" };

/* ---- what clients make
 * ------------------------------------------------------------------------------- */

static char *take_base64(struct tr_buffer *bytes)
{
    char *text = base64_of(bytes);

    tr_buffer_free(bytes);
    return text;
}

/* A private message of the group. */
static char *make_private(const struct cast *cast, enum mls_content content, uint64_t epoch)
{
    static unsigned number;
    struct tr_buffer bytes = { 0 };
    char secret[48];

    (void)snprintf(secret, sizeof secret, "secret %u", number++);
    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, MLS_PRIVATE, 2);
    mls_put_vector(&bytes, tr_span_of(cast->group));
    mls_put_number(&bytes, epoch, 8);
    mls_put_number(&bytes, content, 1);
    mls_put_vector(&bytes, TR_SPAN(""));
    mls_put_vector(&bytes, TR_SPAN("encrypted sender data, 28 by"));
    mls_put_vector(&bytes, tr_span_of(secret));
    return take_base64(&bytes);
}

/* As much of an external commit as a server can look into. */
static char *make_external(const struct cast *cast, const char *identity)
{
    struct tr_buffer bytes = { 0 }, proposals = { 0 };

    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, MLS_PUBLIC, 2);
    mls_put_vector(&bytes, tr_span_of(cast->group));
    mls_put_number(&bytes, cast->epoch, 8);
    mls_put_number(&bytes, MLS_NEW_COMMIT, 1);
    mls_put_vector(&bytes, TR_SPAN(""));
    mls_put_number(&bytes, MLS_COMMIT, 1);
    mls_put_number(&proposals, 1, 1);
    mls_put_number(&proposals, 6, 2); /* external_init */
    mls_put_vector(&proposals, TR_SPAN("kem output"));
    mls_put_vector(&bytes, (struct tr_span){ proposals.bytes, proposals.size });
    mls_put_number(&bytes, 1, 1); /* there is a path: its leaf first */
    mls_put_vector(&bytes, TR_SPAN("encryption key"));
    mls_put_vector(&bytes, TR_SPAN("signature key"));
    mls_put_number(&bytes, MLS_CREDENTIAL_BASIC, 2);
    mls_put_vector(&bytes, tr_span_of(identity));
    for (int i = 0; i < 5; i++)
        mls_put_vector(&bytes, TR_SPAN(""));
    mls_put_number(&bytes, 3, 1); /* from a commit */
    mls_put_vector(&bytes, TR_SPAN("parent hash"));
    mls_put_vector(&bytes, TR_SPAN(""));
    mls_put_vector(&bytes, TR_SPAN("leaf signature"));
    mls_put_vector(&bytes, TR_SPAN("")); /* nodes */
    mls_put_vector(&bytes, TR_SPAN("signature"));
    mls_put_vector(&bytes, TR_SPAN("confirmation tag"));
    tr_buffer_free(&proposals);
    return take_base64(&bytes);
}

/* A group info without a ratchet tree, so there is nothing to check its signature with. */
static char *make_info(const struct cast *cast)
{
    struct tr_buffer bytes = { 0 };

    mls_put_number(&bytes, 1, 2);
    mls_put_number(&bytes, 1, 2); /* suite */
    mls_put_vector(&bytes, tr_span_of(cast->group));
    mls_put_number(&bytes, cast->epoch, 8);
    mls_put_vector(&bytes, TR_SPAN("tree hash"));
    mls_put_vector(&bytes, TR_SPAN("transcript hash"));
    mls_put_vector(&bytes, TR_SPAN("")); /* extensions of the context, of the info */
    mls_put_vector(&bytes, TR_SPAN(""));
    mls_put_vector(&bytes, TR_SPAN("confirmation tag"));
    mls_put_number(&bytes, 0, 4);
    mls_put_vector(&bytes, TR_SPAN("signature"));
    return take_base64(&bytes);
}

static char *make_package(struct cast *cast, const struct caller *caller, const char *device)
{
    return package_make(
        &(struct package_options){ .did = caller->did, .device = device, .signer = &cast->signer },
        cast->hash);
}

static void hash_base64(const char *text, char ret_hex[65])
{
    unsigned char bytes[1024], hash[32];
    size_t size;

    CHECK_EQ_INT(crypto_base64_decode(tr_span_of(text), bytes, sizeof bytes, &size), 0);
    crypto_sha256(bytes, size, hash);
    ret_hex[crypto_hex_encode(hash, sizeof hash, ret_hex)] = '\0';
}

static char *hash_of_psk(void)
{
    unsigned char hash[32];
    char *hex = calloc(1, 65);

    CHECK(hex != NULL);
    crypto_sha256(PSK, sizeof PSK - 1, hash);
    crypto_hex_encode(hash, sizeof hash, hex);
    return hex;
}

static char *key_of(const struct cast *cast)
{
    char *text = calloc(1, crypto_base64_size(32) + 1);

    CHECK(text != NULL);
    crypto_base64_encode(cast->signer.public_key, 32, text);
    return text;
}

/* ---- texts
 * ------------------------------------------------------------------------------------------- */

struct speaker {
    struct cast *cast;
    const struct caller *me;
    const char *device;
};

/* What $name is; NULL: nothing, it stays as it is. */
static char *value_of(const struct speaker *speaker, struct tr_span name)
{
    struct cast *cast = speaker->cast;
    const char *const hashes[1] = { cast->hash };
    char text[64];

    for (int i = 0; i < AUTHZ_WHO; i++)
        if (tr_span_is(name, who_names[i]))
            return strdup(cast->callers[i].did);
    if (tr_span_is(name, "new")) {
        (void)snprintf(text, sizeof text, "new-%u-of-%s", cast->number++, cast->group);
        return strdup(text);
    }
    if (tr_span_is(name, "g"))
        return strdup(cast->group);
    if (tr_span_is(name, "me"))
        return strdup(speaker->me->did);
    if (tr_span_is(name, "device"))
        return strdup(speaker->device);
    if (tr_span_is(name, "id"))
        return strdup(cast->id);
    if (tr_span_is(name, "commit"))
        return make_private(cast, MLS_COMMIT, cast->epoch);
    if (tr_span_is(name, "old"))
        return make_private(cast, MLS_COMMIT, cast->epoch - 1);
    if (tr_span_is(name, "proposal"))
        return make_private(cast, MLS_PROPOSAL, cast->epoch);
    if (tr_span_is(name, "message"))
        return make_private(cast, MLS_APPLICATION, cast->epoch);
    if (tr_span_is(name, "older"))
        return make_private(cast, MLS_APPLICATION, cast->epoch - 1);
    if (tr_span_is(name, "external"))
        return make_external(cast, speaker->me->did);
    if (tr_span_is(name, "info"))
        return make_info(cast);
    if (tr_span_is(name, "last"))
        return strdup(cast->last);
    if (tr_span_is(name, "psk"))
        return strdup(PSK);
    if (tr_span_is(name, "pskhash"))
        return hash_of_psk();
    if (tr_span_is(name, "phone"))
        return make_package(cast, speaker->me, "phone");
    if (tr_span_is(name, "package"))
        return make_package(cast, speaker->me, speaker->device);
    if (tr_span_is(name, "hash"))
        return strdup(cast->hash);
    if (tr_span_is(name, "welcome"))
        return welcome_make(hashes, 1);
    return tr_span_is(name, "key") ? key_of(cast) : NULL;
}

static char *fill_in(const struct speaker *speaker, const char *text)
{
    struct tr_buffer out = { 0 };

    while (*text != '\0') {
        size_t size = *text == '$' ? strspn(text + 1, "abcdefghijklmnopqrstuvwxyz") : 0;
        char *value = size == 0 ? NULL : value_of(speaker, (struct tr_span){ text + 1, size });

        if (value != NULL) {
            tr_buffer_text(&out, value);
            text += 1 + size;
        } else {
            tr_buffer_append(&out, *text == '\'' ? "\"" : text, 1);
            text++;
        }
        free(value);
    }
    tr_buffer_append(&out, "", 1);
    CHECK_EQ_INT(out.failed, 0);
    return out.bytes;
}

/* ---- asking
 * -------------------------------------------------------------------------------------------- */

struct token {
    const char *aud;
    const char *lxm; /* without the prefix */
    int64_t age_s;
};

static char *header_of(const struct caller *caller, const struct token *with)
{
    static unsigned number;
    struct tr_buffer token = { 0 };
    char jti[48], lxm[96], *line;
    int64_t now_s = site_now_s() - with->age_s;

    (void)snprintf(jti, sizeof jti, "authz-%u-%d", number++, (int)getpid());
    (void)snprintf(lxm, sizeof lxm, XRPC_PREFIX "%s", with->lxm);
    CHECK_EQ_INT(jwt_sign_claims(caller->key, (struct tr_span){ NULL, 0 },
                     &(struct jwt_claims){ .iss = tr_span_of(caller->did),
                         .aud = tr_span_of(with->aud),
                         .lxm = tr_span_of(lxm),
                         .jti = tr_span_of(jti),
                         .iat_s = now_s,
                         .exp_s = now_s + 60,
                         .nbf_s = -1 },
                     &token),
        0);
    line = malloc(token.size + 64);
    CHECK(line != NULL);
    (void)snprintf(
        line, token.size + 64, "Authorization: Bearer %.*s\r\n", (int)token.size, token.bytes);
    tr_buffer_free(&token);
    return line;
}

/* A stream that opens does not end: look at how it begins. */
static struct web_answer ask_stream(const struct site *site, const char *header, const char *call)
{
    struct web_answer answer = { 0 };
    struct tr_buffer text = { 0 };
    int fd = web_connect(http_server_address(site->server));

    tr_buffer_format(
        &text, "GET /xrpc/" XRPC_PREFIX "%s HTTP/1.1\r\nHost: x\r\n%s\r\n", call, header);
    web_send(fd, text.bytes, text.size);
    CHECK(web_receive_until(fd, &answer, "\r\n\r\n"));
    if (answer.status != 200)
        CHECK(web_receive_until(fd, &answer, "}"));
    tr_buffer_free(&text);
    close(fd);
    return answer;
}

static struct web_answer ask_with(
    const struct cast *cast, const char *header, const char *call, const char *body)
{
    if (strncmp(call, "subscribeConvoEvents", 20) == 0)
        return ask_stream(&cast->site, header, call);
    return site_ask_with(&cast->site, header, call, body == NULL ? "" : body);
}

static struct web_answer ask_as(
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

static void keep_id(struct cast *cast, const char *json, const char *name)
{
    struct json_doc doc = { 0 };
    struct tr_span id;

    CHECK_EQ_INT(json_parse_copy(&doc, tr_span_of(json), 0), 0);
    CHECK(json_string(json_get(json_root(&doc), name), &id) && id.size < sizeof cast->id);
    (void)snprintf(cast->id, sizeof cast->id, "%.*s", (int)id.size, id.at);
    json_doc_free(&doc);
}

static void expect_as(struct cast *cast, enum authz_who who, const char *call, const char *body,
    unsigned status, const char *part)
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

/* ---- the conversation
 * ---------------------------------------------------------------------------------- */

static void people_begin(struct cast *cast)
{
    for (int i = 0; i < AUTHZ_WHO; i++)
        caller_begin(&cast->callers[i]);
    signer_begin(&cast->signer);
}

static void people_end(struct cast *cast)
{
    for (int i = 0; i < AUTHZ_WHO; i++)
        caller_end(&cast->callers[i]);
    signer_end(&cast->signer);
}

/* At epoch 1, with everybody in it who ever was. */
static void group_begin(struct cast *cast)
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

static void remove_rem(struct cast *cast)
{
    char *commit = make_private(cast, MLS_COMMIT, cast->epoch);
    struct tr_buffer body = { 0 };

    tr_buffer_format(
        &body, "{'convoId':'$g','targetDid':'$rem','idempotencyKey':'rem','commit':'%s'}", commit);
    tr_buffer_append(&body, "", 1);
    expect_as(cast, ADA, "removeMember", body.bytes, 200, "'ok':true");
    hash_base64(commit, cast->last);
    cast->epoch++;
    tr_buffer_free(&body);
    free(commit);
}

/* Epoch 2: ada is the admin, max moderates, bob and cyd are in, rem was removed, inv is invited. */
static void convo_begin(struct cast *cast)
{
    group_begin(cast);
    remove_rem(cast);
    expect_as(cast, ADA, "promoteModerator", "{'convoId':'$g','targetDid':'$max'}", 200, "ok");
    expect_as(cast, ADA, "createInvite", "{'convoId':'$g','pskHash':'$pskhash','targetDid':'$inv'}",
        200, "inviteId");
}

static void take_steps(struct cast *cast, const struct authz_step *step)
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

/* Everything anew: people, their devices, the conversation. */
static void renew(struct cast *cast, const struct authz_row *row)
{
    people_end(cast);
    people_begin(cast);
    convo_begin(cast);
    take_steps(cast, row->given);
}

/* ---- one cell
 * --------------------------------------------------------------------------------------- */

/* Who a bad token is of: somebody who could call with a good one. */
static enum authz_who anybody_in(const struct authz_row *row)
{
    return row->cells[ADMIN].status == 200 ? ADA : BOB;
}

static enum authz_who who_is(const struct authz_row *row, enum authz_column column)
{
    static const enum authz_who people[AUTHZ_COLUMNS] = { [STRANGER] = EVE,
        [INVITED] = INV,
        [MEMBER] = BOB,
        [REMOVED] = REM,
        [MODERATOR] = MAX,
        [ADMIN] = ADA,
        [OTHER_DEVICE] = BOB };

    return column == ANONYMOUS || column >= EXPIRED ? anybody_in(row) : people[column];
}

static char *header_for(const struct caller *caller, enum authz_column column, const char *name)
{
    struct token with = { "did:web:localhost", name, 0 };

    if (column == ANONYMOUS)
        return strdup("");
    if (column == EXPIRED)
        with.age_s = 3600;
    if (column == WRONG_AUD)
        with.aud = "did:web:elsewhere.example";
    if (column == WRONG_LXM)
        with.lxm = strcmp(name, "getEpoch") == 0 ? "getConvo" : "getEpoch";
    return header_of(caller, &with);
}

static bool is_as_wanted(
    const struct web_answer *answer, const struct authz_cell *cell, const char *shows)
{
    char label[96];

    if (answer->status != cell->status)
        return false;
    if (cell->label != NULL) {
        (void)snprintf(label, sizeof label, "\"error\":\"%s\"", cell->label);
        return strstr(answer->text, label) != NULL;
    }
    return shows == NULL || (strstr(answer->body, shows) == NULL) == cell->is_blind;
}

/* True if it was as the table says. *ret_changed: the answer may have changed something. */
static bool try_cell(
    struct cast *cast, const struct authz_row *row, enum authz_column column, bool *ret_changed)
{
    const struct authz_cell *cell = &row->cells[column];
    const struct speaker speaker = { cast, &cast->callers[who_is(row, column)],
        column == OTHER_DEVICE ? "tablet" : "phone" };
    char *shows = row->shows == NULL ? NULL : fill_in(&speaker, row->shows);
    char *call = fill_in(&speaker, row->call), name[64], *header;
    char *body = row->body == NULL ? NULL : fill_in(&speaker, row->body);
    struct web_answer answer;
    bool is_good;

    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "?"), call);
    header = header_for(speaker.me, column, name);
    answer = ask_with(cast, header, call, body);
    is_good = is_as_wanted(&answer, cell, shows);
    if (!is_good)
        printf("%s by %s: wanted %u %s%s%s\n  asked %s %s\n  got %.600s\n", name,
            column_names[column], cell->status, cell->label == NULL ? "" : cell->label,
            shows == NULL || cell->label != NULL ? ""
            : cell->is_blind                     ? "without "
                                                 : "with ",
            shows == NULL || cell->label != NULL ? "" : shows, call, body == NULL ? "" : body,
            answer.text);
    *ret_changed = answer.status == 200 && (body != NULL || strcmp(name, "getKeyPackages") == 0 ||
                                               strcmp(name, "getWelcome") == 0);
    web_answer_free(&answer);
    free(header);
    free(shows);
    free(call);
    free(body);
    return is_good;
}

/* ---- all of them
 * ------------------------------------------------------------------------------------ */

static const struct authz_row *row_of(const struct http_route *route)
{
    const struct authz_row *found = NULL;

    for (size_t i = 0; i < AUTHZ_ROWS; i++)
        if (strlen(route->label) == strcspn(authz_rows[i].call, "?") &&
            strncmp(authz_rows[i].call, route->label, strlen(route->label)) == 0) {
            CHECK_MSG(found == NULL, "%s has two rows", route->label);
            found = &authz_rows[i];
        }
    return found;
}

TEST(authz, names_every_route_once_and_every_cell)
{
    for (size_t i = 0; i < delivery_service.route_count; i++) {
        const struct http_route *route = &delivery_service.routes[i];
        const struct authz_row *row = row_of(route);
        const struct auth_demand *demand = route->extra;

        CHECK_MSG(row != NULL, "%s has no row", route->label);
        CHECK_MSG((row->body == NULL) == (route->method == HTTP_GET), "%s", route->label);
        for (int column = 0; column < AUTHZ_COLUMNS; column++)
            CHECK_MSG(row->cells[column].status != 0, "%s: %s is empty", route->label,
                column_names[column]);
        /* Every route has the gate, and its token is for this call alone. */
        CHECK(route->gate == auth_gate && demand != NULL && demand->lxm != NULL);
        CHECK_MSG(
            strcmp(demand->lxm + sizeof XRPC_PREFIX - 1, route->label) == 0, "%s", route->label);
    }
}

/* A part of the rows: a case has a time limit. */
static void walk(size_t part, size_t parts)
{
    size_t cells = 0, wrong = 0;
    bool is_fresh = false;
    struct cast cast = { .id = "none" };

    site_begin(&cast.site);
    people_begin(&cast);
    for (size_t i = part; i < AUTHZ_ROWS; i += parts) {
        const struct authz_row *row = &authz_rows[i];

        is_fresh = is_fresh && row->given == NULL;
        for (int column = 0; column < AUTHZ_COLUMNS; column++) {
            bool is_changed;

            if (!is_fresh)
                renew(&cast, row);
            cells++;
            wrong += !try_cell(&cast, row, (enum authz_column)column, &is_changed);
            is_fresh = !is_changed;
        }
        is_fresh = is_fresh && row->given == NULL;
    }
    people_end(&cast);
    site_end(&cast.site);
    printf("%zu cells, %zu of them wrong\n", cells, wrong);
    CHECK_EQ_INT(wrong, 0);
}

TEST_LONG(authz, is_as_the_table_says_1, 120)
{
    walk(0, 4);
}

TEST_LONG(authz, is_as_the_table_says_2, 120)
{
    walk(1, 4);
}

TEST_LONG(authz, is_as_the_table_says_3, 120)
{
    walk(2, 4);
}

TEST_LONG(authz, is_as_the_table_says_4, 120)
{
    walk(3, 4);
}
