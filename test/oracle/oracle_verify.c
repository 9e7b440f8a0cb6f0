/* SPDX-License-Identifier: Apache-2.0 */
/* oracle_verify.c: an engine verifies a peer whose SAS is libolm's: keys, strings, commitments and MACs.
 * The peer's messages are written here by hand, from the specification, and share no code with the
 * engine's. Roles, MACs and users come from a seed. */
#include <olm/olm.h>
#include <olm/sas.h>
#include <stdlib.h>

#include "mx_verify.h"

enum { US, THEM }; /* engine US only lends its names and device key; the peer speaks for it */

struct peer {
    struct mx_verify stage;
    OlmSAS *sas;
    OlmUtility *utility;
    bool starts;
    bool is_bare;
    bool is_legacy;
    struct buffer start; /* canonical, whoever sent it */
    char commitment[64];
    char key[64];
    char their_key[64];
    unsigned decimals[3];
    bool is_mac_right;
    bool is_done;
};

static struct base_random dice;

static void peer_send(struct peer *peer, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void peer_send(struct peer *peer, const char *kind, const char *format, ...)
{
    struct mx_verify_letter *letter =
        mx_verify_letter(&peer->stage, US, kind, mx_verify_place(&peer->stage, THEM));
    char text[2048];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)buffer_format(&letter->content, "{\"transaction_id\":\"%s\"%s%s}",
        peer->stage.transaction, text[0] == '\0' ? "" : ",", text);
}

/* ---- libolm ----------------------------------------------------------------------------------- */

static void peer_create_sas(struct peer *peer)
{
    uint8_t random[64];

    peer->sas = olm_sas(malloc(olm_sas_size()));
    CHECK(olm_create_sas_random_length(peer->sas) <= sizeof random);
    mx_stage_random()->fill(mx_stage_random()->data, random, sizeof random);
    CHECK(olm_create_sas(peer->sas, random, sizeof random) != olm_error());
    CHECK(olm_sas_get_pubkey(peer->sas, peer->key, sizeof peer->key) != olm_error());
}

/* Hash a public key and the start into `text`, 43 characters. */
static void peer_commit(struct peer *peer, const char *key, char text[64])
{
    struct buffer bytes = { 0 };

    (void)buffer_append(&bytes, key, 43);
    (void)buffer_span(&bytes, mx_stage_span(&peer->start));
    memset(text, 0, 64);
    CHECK(olm_sha256(peer->utility, bytes.bytes, bytes.size, text, 63) != olm_error());
    buffer_free(&bytes);
}

static void peer_names(struct peer *peer, char us[128], char them[128], const char *separator)
{
    struct mxclient_place a = mx_verify_place(&peer->stage, US);
    struct mxclient_place b = mx_verify_place(&peer->stage, THEM);

    snprintf(us, 128, "%.*s%s%.*s", (int)a.user_id.size, a.user_id.at, separator,
        (int)a.device_id.size, a.device_id.at);
    snprintf(them, 128, "%.*s%s%.*s", (int)b.user_id.size, b.user_id.at, separator,
        (int)b.device_id.size, b.device_id.at);
}

/* Agree with the engine's key and compute the strings. */
static void peer_show(struct peer *peer)
{
    char us[128], them[128], info[512], key[64];
    uint8_t b[6];

    memcpy(key, peer->their_key, sizeof key);
    CHECK(olm_sas_set_their_key(peer->sas, key, 43) != olm_error());
    peer_names(peer, us, them, "|");
    snprintf(info, sizeof info, "MATRIX_KEY_VERIFICATION_SAS|%s|%.43s|%s|%.43s|%s",
        peer->starts ? us : them, peer->starts ? peer->key : peer->their_key,
        peer->starts ? them : us, peer->starts ? peer->their_key : peer->key,
        peer->stage.transaction);
    CHECK(olm_sas_generate_bytes(peer->sas, info, strlen(info), b, 6) != olm_error());
    peer->decimals[0] = (unsigned)(b[0] << 5 | b[1] >> 3) + 1000;
    peer->decimals[1] = (unsigned)((b[1] & 7) << 10 | b[2] << 2 | b[3] >> 6) + 1000;
    peer->decimals[2] = (unsigned)((b[3] & 63) << 7 | b[4] >> 1) + 1000;
}

/* Compute the MAC of a text of the sender `from`. */
static void peer_mac(
    struct peer *peer, int from, const char *key_id, const char *text, char mac[64])
{
    char us[128], them[128], info[512];
    size_t (*calculate)(OlmSAS *, const void *, size_t, const void *, size_t, void *, size_t) =
        peer->is_legacy ? olm_sas_calculate_mac : olm_sas_calculate_mac_fixed_base64;

    peer_names(peer, us, them, "");
    snprintf(info, sizeof info, "MATRIX_KEY_VERIFICATION_MAC%s%s%s%s", from == US ? us : them,
        from == US ? them : us, peer->stage.transaction, key_id);
    memset(mac, 0, 64);
    CHECK(calculate(peer->sas, text, strlen(text), info, strlen(info), mac, 63) != olm_error());
}

/* Compute both MACs of the device of `from`. */
static void peer_macs(
    struct peer *peer, int from, char key_id[128], char of_key[64], char of_list[64])
{
    const struct mxclient_session *session = &peer->stage.engines[from].client.session;
    char key[MX_KEY_CHARS + 1];

    mx_key_text(mx_account_signing_key(session->account), key);
    snprintf(key_id, 128, "ed25519:%.*s", (int)session->device_id.size, session->device_id.bytes);
    peer_mac(peer, from, key_id, key, of_key);
    peer_mac(peer, from, "KEY_IDS", key_id, of_list);
}

/* ---- messages --------------------------------------------------------------------------------- */

static struct span read_text(const struct json *content, const char *member)
{
    struct span text = { NULL, 0 };

    CHECK(json_string(json_get(content, member), &text));
    return text;
}

static void peer_send_start(struct peer *peer)
{
    struct mxclient_place place = mx_verify_place(&peer->stage, US);
    struct json_doc doc = { 0 };
    struct mx_verify_letter *letter;

    peer_send(peer, "start",
        "\"short_authentication_string\":[\"emoji\",\"decimal\"],\"method\":\"m.sas.v1\","
        "\"from_device\":\"%.*s\",\"hashes\":[\"sha256\"],\"message_authentication_codes\":["
        "\"hkdf-hmac-sha256\"%s],\"key_agreement_protocols\":[\"curve25519-hkdf-sha256\","
        "\"curve25519\"],\"odd\\u0001 \\u00e9 member\":[1e2,-7,null,\"\\/\\ud83d\\ude00\"]",
        (int)place.device_id.size, place.device_id.at,
        peer->is_legacy ? "" : ",\"hkdf-hmac-sha256.v2\"");
    letter = &peer->stage.letters[peer->stage.count - 1];
    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&letter->content), 0), 0);
    CHECK_EQ_INT(json_canonical(json_root(&doc), NULL, &peer->start), 0);
    json_doc_free(&doc);
}

static void peer_take_start(struct peer *peer, const struct json *content)
{
    char commitment[64];

    CHECK_EQ_INT(json_canonical(content, NULL, &peer->start), 0);
    peer_create_sas(peer);
    peer_commit(peer, peer->key, commitment);
    peer_send(peer, "accept",
        "\"commitment\":\"%.43s\",\"hash\":\"sha256\",\"key_agreement_protocol\":"
        "\"curve25519-hkdf-sha256\",\"message_authentication_code\":\"%s\","
        "\"short_authentication_string\":[\"decimal\"]",
        commitment, peer->is_legacy ? "hkdf-hmac-sha256" : "hkdf-hmac-sha256.v2");
}

static void peer_take_accept(struct peer *peer, const struct json *content)
{
    struct span text = read_text(content, "commitment");

    CHECK(span_is(read_text(content, "message_authentication_code"),
        peer->is_legacy ? "hkdf-hmac-sha256" : "hkdf-hmac-sha256.v2"));
    CHECK_EQ_U64(text.size, 43);
    memcpy(peer->commitment, text.at, text.size);
    peer_create_sas(peer);
    peer_send(peer, "key", "\"key\":\"%.43s\"", peer->key);
}

static void peer_take_key(struct peer *peer, const struct json *content)
{
    struct span text = read_text(content, "key");
    char commitment[64], key_id[128], of_key[64], of_list[64];

    CHECK_EQ_U64(text.size, 43);
    memcpy(peer->their_key, text.at, text.size);
    if (peer->starts) {
        peer_commit(peer, peer->their_key, commitment);
        CHECK(memcmp(commitment, peer->commitment, 43) == 0);
    } else
        peer_send(peer, "key", "\"key\":\"%.43s\"", peer->key);
    peer_show(peer);
    peer_macs(peer, US, key_id, of_key, of_list);
    peer_send(
        peer, "mac", "\"keys\":\"%.43s\",\"mac\":{\"%s\":\"%.43s\"}", of_list, key_id, of_key);
}

static void peer_take_mac(struct peer *peer, const struct json *content)
{
    char key_id[128], of_key[64], of_list[64];

    peer_macs(peer, THEM, key_id, of_key, of_list);
    CHECK_EQ_U64(json_count(json_get(content, "mac")), 1);
    CHECK(memcmp(read_text(json_get(content, "mac"), key_id).at, of_key, 43) == 0);
    CHECK(memcmp(read_text(content, "keys").at, of_list, 43) == 0);
    peer->is_mac_right = true;
    if (!peer->is_bare)
        peer_send(peer, "done", "%s", "");
}

static void peer_take(struct peer *peer, const struct mx_verify_letter *letter)
{
    struct json_doc doc = { 0 };
    const struct json *content;
    const char *kind = letter->type + strlen(MX_VERIFY_PREFIX);

    CHECK_EQ_INT(json_parse_copy(&doc, mx_stage_span(&letter->content), 0), 0);
    content = json_root(&doc);
    if (strcmp(kind, "request") == 0)
        peer_send(
            peer, "ready", "\"from_device\":\"%s\",\"methods\":[\"m.sas.v1\"]", letter->device);
    else if (strcmp(kind, "ready") == 0 && peer->starts)
        peer_send_start(peer);
    else if (strcmp(kind, "start") == 0)
        peer_take_start(peer, content);
    else if (strcmp(kind, "accept") == 0)
        peer_take_accept(peer, content);
    else if (strcmp(kind, "key") == 0)
        peer_take_key(peer, content);
    else if (strcmp(kind, "mac") == 0)
        peer_take_mac(peer, content);
    else if (strcmp(kind, "done") == 0)
        peer->is_done = true;
    else
        CHECK_MSG(strcmp(kind, "ready") == 0, "the peer got %s", kind);
    json_doc_free(&doc);
}

/* The engine's user accepts, starts if the peer does not, and compares with what the peer shows. */
static void engine_answers(struct peer *peer)
{
    struct mx_verify *stage = &peer->stage;
    struct mx_verify_engine *engine = &stage->engines[THEM];

    mx_verify_look(stage, THEM);
    if (engine->news.step == MXCLIENT_VERIFY_READY && !peer->starts)
        CHECK_EQ_INT(mx_verify_act(stage, THEM, MXCLIENT_VERIFY_START), 0);
    if (engine->compares && peer->decimals[0] != 0) {
        for (int i = 0; i < 3; i++)
            CHECK_EQ_U64(engine->seen.decimals[i], peer->decimals[i]);
        engine->compares = false;
        CHECK_EQ_INT(mx_verify_act(stage, THEM, MXCLIENT_VERIFY_MATCH), 0);
    }
}

static void verify_once(struct peer *peer, bool engine_asks)
{
    struct mx_verify *stage = &peer->stage;
    struct mxclient_place place = mx_verify_place(stage, US);

    if (engine_asks)
        mx_verify_request(stage, THEM, place);
    else {
        snprintf(stage->transaction, sizeof stage->transaction, "of libolm");
        if (peer->is_bare)
            peer_send_start(peer);
        else
            peer_send(peer, "request",
                "\"from_device\":\"%.*s\",\"methods\":[\"m.sas.v1\"],\"timestamp\":%lld",
                (int)place.device_id.size, place.device_id.at, (long long)stage->now_ms);
    }
    engine_answers(peer);
    while (stage->first < stage->count) {
        if (mx_verify_peek(stage)->from == US)
            mx_verify_deliver(stage);
        else
            peer_take(peer, &stage->letters[stage->first++]);
        engine_answers(peer);
    }
    CHECK_EQ_INT(stage->engines[THEM].news.step, MXCLIENT_VERIFY_DONE);
    CHECK(mx_verify_trusts(stage, THEM, US));
    CHECK(peer->is_mac_right && peer->is_done == !peer->is_bare);
}

TEST_LONG(libolm, a_peer_with_its_sas_and_the_engine_verify_each_other, 60)
{
    unsigned modes = 0;

    for (uint64_t seed; check_each_seed(&seed, check_rounds(200, 2000));) {
        struct peer peer = { .utility = olm_utility(malloc(olm_utility_size())) };
        bool engine_asks;

        base_random_init(&dice, seed);
        engine_asks = base_random_below(&dice, 3) == 0;
        peer.is_bare = !engine_asks && base_random_below(&dice, 2) == 0;
        /* A side that asks and is told `ready` starts: our engine always does. */
        peer.starts = peer.is_bare || (!engine_asks && base_random_below(&dice, 2) == 0);
        peer.is_legacy = base_random_below(&dice, 2) == 0;
        modes |= 1u << (engine_asks | peer.is_bare << 1 | peer.starts << 2);
        mx_verify_init(
            &peer.stage, "@ada:x", base_random_below(&dice, 2) == 0 ? "@ada:x" : "@bob:y");
        verify_once(&peer, engine_asks);
        mx_verify_fini(&peer.stage);
        buffer_free(&peer.start);
        olm_clear_sas(peer.sas);
        free(peer.sas);
        olm_clear_utility(peer.utility);
        free(peer.utility);
    }
    CHECK(modes == (1u << 1 | 1u << 0 | 1u << 4 | 1u << 6) || getenv("TROUPE_SEED") != NULL);
}
