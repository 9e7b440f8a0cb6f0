/* SPDX-License-Identifier: Apache-2.0 */
#include <troupe/error.h>

#include "base/alloc.h"
#include "mx_stage.h"

static const struct mx_pickle_key host_key = { "0123456789abcdef0123456789abcdef" };

/* Pickle, destroy and create again. */
#define REVIVE(noun, object)                                                                       \
    do {                                                                                           \
        struct buffer pickle_ = { 0 };                                                             \
                                                                                                   \
        CHECK_EQ_INT(mx_##noun##_pickle(*(object), &host_key, mx_stage_random(), &pickle_), 0);    \
        mx_##noun##_destroy(*(object));                                                            \
        *(object) = NULL;                                                                          \
        CHECK_EQ_INT(mx_##noun##_unpickle(mx_stage_span(&pickle_), &host_key, object), 0);         \
        buffer_free(&pickle_);                                                                     \
    } while (0)

TEST(pickle, olm_sessions_go_on_where_they_were)
{
    struct buffer kept[8] = { 0 }, body = { 0 };
    struct mx_stage stage;
    enum mx_olm_type type;

    mx_stage_init(&stage);
    REVIVE(account, &stage.alice);
    REVIVE(account, &stage.bob);
    REVIVE(olm, &stage.to_bob);
    mx_stage_meet(&stage);
    CHECK_EQ_U64(mx_account_one_time_key_count(stage.bob), 2);
    for (int round = 0; round < 8; round++) {
        mx_stage_send(stage.to_bob, "kept", &kept[round]);
        type = mx_stage_send(stage.to_bob, "now", &body);
        REVIVE(olm, &stage.to_alice);
        mx_stage_receive(stage.to_alice, type, &body, "now");
        REVIVE(olm, &stage.to_bob);
        type = mx_stage_send(stage.to_alice, "answer", &body);
        mx_stage_receive(stage.to_bob, type, &body, "answer");
    }
    REVIVE(olm, &stage.to_alice);
    for (int round = 4; round < 8; round++) /* chains before the last five are dropped */
        mx_stage_receive(stage.to_alice, MX_OLM_NORMAL, &kept[round], "kept");
    for (int round = 0; round < 8; round++)
        buffer_free(&kept[round]);
    buffer_free(&body);
    mx_stage_fini(&stage);
}

TEST(pickle, megolm_sessions_go_on_where_they_were)
{
    struct mx_outbound *outbound = NULL;
    struct mx_inbound *inbound = NULL;
    struct buffer key = { 0 }, body = { 0 }, plaintext = { 0 };
    uint32_t index;

    CHECK_EQ_INT(mx_outbound_create(mx_stage_random(), &outbound), 0);
    REVIVE(outbound, &outbound);
    CHECK_EQ_INT(mx_outbound_key(outbound, &key), 0);
    CHECK_EQ_INT(mx_inbound_create(mx_stage_span(&key), &inbound), 0);
    for (uint32_t i = 0; i < 5; i++) {
        buffer_clear(&body);
        buffer_clear(&plaintext);
        CHECK_EQ_INT(mx_outbound_encrypt(outbound, SPAN("text"), &body), 0);
        REVIVE(outbound, &outbound);
        REVIVE(inbound, &inbound);
        CHECK_EQ_INT(mx_inbound_decrypt(inbound, mx_stage_span(&body), &plaintext, &index), 0);
        CHECK_EQ_U64(index, i);
    }
    CHECK(mx_inbound_is_verified(inbound));
    mx_wipe_buffer(&key);
    mx_wipe_buffer(&plaintext);
    buffer_free(&body);
    mx_outbound_destroy(outbound);
    mx_inbound_destroy(inbound);
}

TEST(pickle, an_account_keeps_all_its_keys)
{
    struct mx_account *account = NULL;
    struct mx_one_time_key before, after;
    struct mx_key identity, signing;

    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &account), 0);
    mx_account_add_one_time_keys(account, MX_ONE_TIME_KEYS_MAX, mx_stage_random());
    mx_account_rotate_fallback(account, mx_stage_random());
    mx_account_rotate_fallback(account, mx_stage_random());
    mx_account_mark_published(account, 100);
    CHECK(mx_account_one_time_key_at(account, 4321, &before));
    identity = *mx_account_identity_key(account);
    signing = *mx_account_signing_key(account);
    REVIVE(account, &account);
    CHECK(mx_account_one_time_key_at(account, 4321, &after));
    CHECK(before.id == after.id && mx_key_equal(&before.key, &after.key));
    CHECK(mx_account_one_time_key_at(account, 100, &after) && after.is_published);
    CHECK(mx_account_one_time_key_at(account, 101, &after) && !after.is_published);
    CHECK(mx_account_fallback_key(account, &after));
    CHECK_EQ_U64(after.id, MX_ONE_TIME_KEYS_MAX + 1);
    CHECK(mx_key_equal(&identity, mx_account_identity_key(account)));
    CHECK(mx_key_equal(&signing, mx_account_signing_key(account)));
    mx_account_add_one_time_keys(account, 1, mx_stage_random());
    mx_account_one_time_key_at(account, MX_ONE_TIME_KEYS_MAX - 1, &after);
    CHECK_EQ_U64(after.id, MX_ONE_TIME_KEYS_MAX + 2);
    mx_account_destroy(account);
}

static struct buffer pickled_session(void)
{
    struct buffer pickle = { 0 };
    struct mx_stage stage;

    mx_stage_init(&stage);
    CHECK_EQ_INT(mx_olm_pickle(stage.to_bob, &host_key, mx_stage_random(), &pickle), 0);
    mx_stage_fini(&stage);
    return pickle;
}

TEST(pickle, changed_and_cut_bytes_are_refused)
{
    struct buffer pickle = pickled_session();
    struct mx_olm *olm = NULL;

    for (size_t i = 0; i < pickle.size; i++) {
        pickle.bytes[i] = (char)(pickle.bytes[i] ^ 0x10);
        CHECK_EQ_INT(
            mx_olm_unpickle(mx_stage_span(&pickle), &host_key, &olm), i < 3 || i == 4 ? MX_EFORMAT
                                                                      : i == 3        ? MX_EVERSION
                                                                                      : MX_EMAC);
        pickle.bytes[i] = (char)(pickle.bytes[i] ^ 0x10);
        CHECK_EQ_INT(mx_olm_unpickle((struct span){ pickle.bytes, i }, &host_key, &olm),
            i < 37 ? MX_EFORMAT : MX_EMAC);
    }
    buffer_free(&pickle);
}

TEST(pickle, another_key_or_kind_is_refused)
{
    struct buffer pickle = pickled_session();
    const struct mx_pickle_key other = { "another key of the host, of 32 b" };
    struct mx_inbound *inbound = NULL;
    struct mx_olm *olm = NULL;

    CHECK_EQ_INT(mx_olm_unpickle(mx_stage_span(&pickle), &other, &olm), MX_EMAC);
    CHECK_EQ_INT(mx_inbound_unpickle(mx_stage_span(&pickle), &host_key, &inbound), MX_EFORMAT);
    pickle.bytes[4] ^= 6; /* says it is one: the kind is authenticated too */
    CHECK_EQ_INT(mx_inbound_unpickle(mx_stage_span(&pickle), &host_key, &inbound), MX_EMAC);
    buffer_free(&pickle);
}

/* ---- backends -------------------------------------------------------------------------------- */

/* A sending session of each backend, from the random bytes 0, 1, 2 and so on, after one message. */
static const char *const stored[] = {
    [MX_BACKEND_OWN] =
        "TVhQAQOgoaKjpKWmp6ipqqusra6vlqvSIV8Ie4tvBprBj2qBB25kbRJgsIenChTGWsV5zNx4j5hUCYwb60i6Ek"
        "jpK9kok5S4xg33rtCNDRJd5a4OJ27Tq47x6w0yEF5bHaB+eAalaJ9+E1WmPFGKTtbqaDjbM9ElISXurwH36cJ/"
        "uLfaqTOm0e/VpsbwZbzVL+HF2RfIBl5fMJlywVdna4up2DzRDlA7V4stw8DPJMzniYa8gVKCDO/jhMS8FRU8A0"
        "pYGLamppLea+N/u5E7d/WXOmdFKsGR+odnWoMu1ukK/+hOvvVCCvmHS3dcRzEl9TIfgv/nmtE20HzbJHNfgH5m"
        "5Q7OA3n2Df6Ul6M",
    [MX_BACKEND_LIBOLM] =
        "TVhQAYOgoaKjpKWmp6ipqqusra6vlqrQIlsNfMcjdduJsRC9QhYNBWgly8jcdVWpOOpXprIZ+tMTZsR0pVf6Vy"
        "qKaJ9DyOn4kwuXy52aV1gIj+FCfmPQuK/CxnwDb3tXEK9gbiuSavVIKWOkElOVReHiDTzCK7cV9z6dtu8+yXSi"
        "hrF6+3lY+KNNtdlju1O/scwTBieOfysbQrJF8tkf6LV05MPTwPcyp4RiOm9cEHaMv9bnr1fdfvKKFVZwx/752f"
        "ia5kJEbGt+lCmzd2zajRFqnbK9xRl9WFyJnWathx8WGNGQ7SXUIxnfJKbVzinDjAgTvN/u0al5rP1axtwvRNEV"
        "8GvF64ULANANWoOSRN3gfpeq9V44BlWccbk8xyjYxfTC6H3a729pIHDqBBHNW+41YAzAteE0xAOlTEAM/Jc7JD"
        "nkk5n6Kzmkgt6AYkWrqDpXmEvjnKGKK7Y1ZBtLgsLNXxTk8gMTSFHJGD+71yfSFAhp27jxBQ",
};

TEST(pickle, a_stored_session_opens_with_its_backend_alone)
{
    char id[MX_SESSION_ID_CHARS + 1];

    for (int backend = MX_BACKEND_OWN; backend <= MX_BACKEND_LIBOLM; backend++) {
        bool is_ours = backend == (int)mx_backend;
        struct mx_outbound *outbound = NULL;
        char bytes[1024];
        size_t size;

        CHECK_EQ_INT(mx_base64_decode(span_of(stored[backend]), bytes, sizeof bytes, &size), 0);
        CHECK_EQ_INT(mx_outbound_unpickle((struct span){ bytes, size }, &host_key, &outbound),
            is_ours ? 0 : MX_EBACKEND);
        if (is_ours) {
            mx_outbound_id(outbound, id);
            CHECK_EQ_STR(id, "zRSzf5VulTGU/3+3Oz2B3MVh1hp1OAlLfD4aZD7l86o");
            CHECK_EQ_U64(mx_outbound_index(outbound), 1);
        }
        mx_outbound_destroy(outbound);
        outbound = NULL;
        bytes[4] = (char)(bytes[4] ^ 0x80); /* says it is of the other: the mark is authenticated */
        CHECK_EQ_INT(mx_outbound_unpickle((struct span){ bytes, size }, &host_key, &outbound),
            is_ours ? MX_EBACKEND : MX_EMAC);
    }
}

/* Pickle, and unpickle with the mark of the other backend. */
#define CHECK_MARKED(noun, object)                                                                 \
    do {                                                                                           \
        struct buffer pickle_ = { 0 };                                                             \
        struct mx_##noun *revived_ = NULL;                                                         \
                                                                                                   \
        CHECK_EQ_INT(mx_##noun##_pickle(object, &host_key, mx_stage_random(), &pickle_), 0);       \
        pickle_.bytes[4] = (char)(pickle_.bytes[4] ^ 0x80);                                        \
        CHECK_EQ_INT(                                                                              \
            mx_##noun##_unpickle(mx_stage_span(&pickle_), &host_key, &revived_), MX_EBACKEND);     \
        buffer_free(&pickle_);                                                                     \
    } while (0)

TEST(pickle, every_object_bears_the_mark_of_its_backend_and_secrets_do_not)
{
    struct mx_outbound *outbound = NULL;
    struct mx_inbound *inbound = NULL;
    struct buffer text = { 0 };
    struct mx_stage stage;

    mx_stage_init(&stage);
    CHECK_EQ_INT(mx_outbound_create(mx_stage_random(), &outbound), 0);
    CHECK_EQ_INT(mx_outbound_key(outbound, &text), 0);
    CHECK_EQ_INT(mx_inbound_create(mx_stage_span(&text), &inbound), 0);
    CHECK_MARKED(account, stage.alice);
    CHECK_MARKED(olm, stage.to_bob);
    CHECK_MARKED(outbound, outbound);
    CHECK_MARKED(inbound, inbound);
    buffer_clear(&text);
    CHECK_EQ_INT(mx_secret_seal(SPAN("token"), &host_key, mx_stage_random(), &text), 0);
    CHECK_EQ_INT(text.bytes[4], 5);
    buffer_clear(&text);
    CHECK_EQ_INT(mx_text_seal(SPAN("{}"), SPAN("$1"), &host_key, mx_stage_random(), &text), 0);
    CHECK_EQ_INT(text.bytes[4], 6);
    mx_wipe_buffer(&text);
    mx_inbound_destroy(inbound);
    mx_outbound_destroy(outbound);
    mx_stage_fini(&stage);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

TEST(pickle, two_pickles_of_one_object_differ)
{
    struct mx_account *account = NULL;
    struct buffer first = { 0 }, second = { 0 };

    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &account), 0);
    mx_account_pickle(account, &host_key, mx_stage_random(), &first);
    mx_account_pickle(account, &host_key, mx_stage_random(), &second);
    CHECK_EQ_U64(first.size, second.size);
    CHECK(memcmp(first.bytes + 5, second.bytes + 5, 16) != 0);
    CHECK(memcmp(first.bytes + 21, second.bytes + 21, 32) != 0);
    buffer_free(&first);
    buffer_free(&second);
    mx_account_destroy(account);
}

TEST(pickle, a_secret_is_sealed_and_opened)
{
    struct buffer sealed = { 0 }, secret = { 0 };
    char text[MX_SECRET_BYTES_MAX + 1];
    struct mx_olm *olm = NULL;

    memset(text, 't', sizeof text);
    for (size_t size = 0; size <= MX_SECRET_BYTES_MAX; size += 64) {
        buffer_clear(&sealed);
        buffer_clear(&secret);
        CHECK_EQ_INT(
            mx_secret_seal((struct span){ text, size }, &host_key, mx_stage_random(), &sealed), 0);
        CHECK_EQ_INT(mx_secret_open(mx_stage_span(&sealed), &host_key, &secret), 0);
        CHECK(span_equal(mx_stage_span(&secret), (struct span){ text, size }));
    }
    CHECK_EQ_INT(
        mx_secret_seal((struct span){ text, sizeof text }, &host_key, mx_stage_random(), &sealed),
        MX_ETOOBIG);
    CHECK_EQ_INT(mx_olm_unpickle(mx_stage_span(&sealed), &host_key, &olm), MX_EFORMAT);
    sealed.bytes[sealed.size - 1] = (char)(sealed.bytes[sealed.size - 1] ^ 1);
    buffer_clear(&secret);
    CHECK_EQ_INT(mx_secret_open(mx_stage_span(&sealed), &host_key, &secret), MX_EMAC);
    buffer_free(&sealed);
    mx_wipe_buffer(&secret);
}

/* Fail every fallible call in turn while sessions are stored and read. */
TEST(pickle, a_session_survives_out_of_memory)
{
    struct mx_olm *revived = NULL;
    struct buffer pickle = { 0 };
    struct mx_stage stage;
    uint64_t faults = 0;
    int rc;

    mx_stage_init(&stage);
    do {
        base_fault_countdown(++faults, 1);
        buffer_clear(&pickle);
        rc = mx_olm_pickle(stage.to_bob, &host_key, mx_stage_random(), &pickle);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
    } while (rc != 0);
    CHECK(faults > 3);
    faults = 0;
    do {
        base_fault_countdown(++faults, 1);
        rc = mx_olm_unpickle(mx_stage_span(&pickle), &host_key, &revived);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
    } while (rc != 0);
    CHECK(faults > 2);
    mx_olm_destroy(stage.to_bob);
    stage.to_bob = revived;
    mx_stage_meet(&stage);
    buffer_free(&pickle);
    mx_stage_fini(&stage);
}

TEST(pickle, out_of_memory_is_reported)
{
    struct mx_account *account = NULL, *revived = NULL;
    struct buffer pickle = { 0 };
    uint64_t faults = 0;
    int rc;

    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &account), 0);
    mx_account_add_one_time_keys(account, 10, mx_stage_random());
    do {
        base_fault_countdown(++faults, 1);
        buffer_clear(&pickle);
        rc = mx_account_pickle(account, &host_key, mx_stage_random(), &pickle);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
    } while (rc != 0);
    CHECK(faults > 3);
    faults = 0;
    do {
        base_fault_countdown(++faults, 1);
        rc = mx_account_unpickle(mx_stage_span(&pickle), &host_key, &revived);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
    } while (rc != 0);
    CHECK(faults > 3);
    CHECK_EQ_U64(mx_account_one_time_key_count(revived), 10);
    buffer_free(&pickle);
    mx_account_destroy(account);
    mx_account_destroy(revived);
}

TEST(pickle, a_text_opens_with_its_key_and_its_place_alone)
{
    static const struct mx_pickle_key key = { { 1 } }, other = { { 2 } };
    static char large[MX_TEXT_BYTES_MAX + 1];
    const struct span texts[] = { SPAN(""), SPAN("{}"), { large, MX_TEXT_BYTES_MAX } };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct buffer sealed = { 0 }, again = { 0 }, open = { 0 };

        CHECK_EQ_INT(mx_text_seal(texts[i], SPAN("$1"), &key, mx_stage_random(), &sealed), 0);
        CHECK_EQ_INT(mx_text_seal(texts[i], SPAN("$1"), &key, mx_stage_random(), &again), 0);
        CHECK(!span_equal(mx_stage_span(&sealed), mx_stage_span(&again))); /* a salt each */
        CHECK_EQ_INT(mx_text_open(mx_stage_span(&sealed), SPAN("$2"), &key, &open), MX_EMAC);
        CHECK_EQ_INT(mx_text_open(mx_stage_span(&sealed), SPAN(""), &key, &open), MX_EMAC);
        CHECK_EQ_INT(mx_text_open(mx_stage_span(&sealed), SPAN("$1"), &other, &open), MX_EMAC);
        CHECK_EQ_INT(mx_secret_open(mx_stage_span(&sealed), &key, &open), MX_EFORMAT);
        CHECK_EQ_U64(open.size, 0);
        CHECK_EQ_INT(mx_text_open(mx_stage_span(&sealed), SPAN("$1"), &key, &open), 0);
        CHECK(span_equal(mx_stage_span(&open), texts[i]));
        sealed.bytes[sealed.size - 1] ^= 1;
        CHECK_EQ_INT(mx_text_open(mx_stage_span(&sealed), SPAN("$1"), &key, &open), MX_EMAC);
        buffer_free(&sealed);
        buffer_free(&again);
        mx_wipe_buffer(&open);
    }
    CHECK_EQ_INT(mx_text_seal((struct span){ large, sizeof large }, SPAN(""), &key,
                     mx_stage_random(), &(struct buffer){ 0 }),
        MX_ETOOBIG);
}

/* The right key in the wrong place decrypts before the tag is checked. */
TEST(pickle, a_refused_text_leaves_no_plaintext_behind)
{
    static const struct mx_pickle_key key = { { 1 } };
    static const char text[] = "the text of a message";
    struct buffer sealed = { 0 }, open = { 0 };

    CHECK_EQ_INT(mx_text_seal(SPAN(text), SPAN("$1"), &key, mx_stage_random(), &sealed), 0);
    CHECK_EQ_INT(mx_text_open(mx_stage_span(&sealed), SPAN("$2"), &key, &open), MX_EMAC);
    CHECK(open.capacity >= sizeof text);
    CHECK(memcmp(open.bytes, text, strlen("the text")) != 0);
    buffer_free(&sealed);
    buffer_free(&open);
}
