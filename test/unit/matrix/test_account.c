/* SPDX-License-Identifier: Apache-2.0 */
#include <troupe/error.h>

#include "base/alloc.h"
#include "mx_stage.h"

static struct mx_account *account_of_seed(void)
{
    struct mx_account *account = NULL;

    CHECK_EQ_INT(mx_account_create(mx_stage_random(), &account), 0);
    return account;
}

TEST(account, one_time_keys_have_ids_that_rise)
{
    struct mx_account *account = account_of_seed();
    struct mx_one_time_key key;
    char text[MX_KEY_ID_CHARS + 1];

    CHECK_EQ_INT(mx_account_add_one_time_keys(account, 50, mx_stage_random()), 0);
    CHECK_EQ_U64(mx_account_one_time_key_count(account), 50);
    for (size_t i = 0; i < 50; i++) {
        CHECK(mx_account_one_time_key_at(account, i, &key));
        CHECK_EQ_U64(key.id, i);
        CHECK(!key.is_published);
    }
    CHECK(!mx_account_one_time_key_at(account, 50, &key));
    mx_key_id_text(13, text);
    CHECK_EQ_STR(text, "AAAAAAAAAA0"); /* as vodozemac writes it */
    mx_account_destroy(account);
}

TEST(account, keys_added_during_an_upload_stay_unpublished)
{
    struct mx_account *account = account_of_seed();
    struct mx_one_time_key key;

    mx_account_add_one_time_keys(account, 2, mx_stage_random());
    mx_account_rotate_fallback(account, mx_stage_random());
    mx_account_add_one_time_keys(account, 1, mx_stage_random());
    mx_account_mark_published(account, 2);
    CHECK(mx_account_one_time_key_at(account, 1, &key) && key.is_published);
    CHECK(mx_account_fallback_key(account, &key) && key.is_published);
    CHECK(mx_account_one_time_key_at(account, 2, &key) && !key.is_published);
    mx_account_destroy(account);
}

TEST(account, a_full_account_drops_its_oldest_key)
{
    struct mx_account *account = account_of_seed();
    struct mx_one_time_key key;

    CHECK_EQ_INT(mx_account_add_one_time_keys(account, MX_ONE_TIME_KEYS_MAX, mx_stage_random()), 0);
    CHECK_EQ_INT(mx_account_add_one_time_keys(account, 7, mx_stage_random()), 0);
    CHECK_EQ_U64(mx_account_one_time_key_count(account), MX_ONE_TIME_KEYS_MAX);
    CHECK(mx_account_one_time_key_at(account, 0, &key));
    CHECK_EQ_U64(key.id, 7);
    CHECK(mx_account_one_time_key_at(account, MX_ONE_TIME_KEYS_MAX - 1, &key));
    CHECK_EQ_U64(key.id, MX_ONE_TIME_KEYS_MAX + 6);
    mx_account_destroy(account);
}

TEST(account, skipped_ids_are_never_used)
{
    struct mx_account *account = account_of_seed();
    struct mx_one_time_key key;

    mx_account_add_one_time_keys(account, 4, mx_stage_random());
    mx_account_mark_published(account, 1);
    mx_account_skip_key_ids(account, 1000);
    CHECK_EQ_U64(mx_account_one_time_key_count(account), 2);
    mx_account_add_one_time_keys(account, 1, mx_stage_random());
    CHECK(mx_account_one_time_key_at(account, 2, &key));
    CHECK_EQ_U64(key.id, 1004);
    mx_account_destroy(account);
}

/* Start a session to bob with this key and let him take its first message. */
static int reach_bob(struct mx_stage *stage, const struct mx_key *key)
{
    struct buffer body = { 0 }, plaintext = { 0 };
    struct mx_olm *to_bob = NULL, *to_alice = NULL;
    int rc;

    CHECK_EQ_INT(mx_olm_create_outbound(stage->alice, mx_account_identity_key(stage->bob), key,
                     mx_stage_random(), &to_bob),
        0);
    mx_stage_send(to_bob, "hello", &body);
    rc = mx_olm_create_inbound(stage->bob, mx_account_identity_key(stage->alice),
        mx_stage_span(&body), &to_alice, &plaintext);
    mx_olm_destroy(to_bob);
    mx_olm_destroy(to_alice);
    buffer_free(&plaintext);
    buffer_free(&body);
    return rc;
}

TEST(account, a_fallback_key_serves_many_until_it_is_forgotten)
{
    struct mx_stage stage;
    struct mx_one_time_key first, second;

    mx_stage_init(&stage);
    CHECK(!mx_account_fallback_key(stage.bob, &first));
    mx_account_rotate_fallback(stage.bob, mx_stage_random());
    CHECK(mx_account_fallback_key(stage.bob, &first));
    CHECK_EQ_INT(reach_bob(&stage, &first.key), 0);
    CHECK_EQ_INT(reach_bob(&stage, &first.key), 0);
    mx_account_rotate_fallback(stage.bob, mx_stage_random());
    CHECK(mx_account_fallback_key(stage.bob, &second));
    CHECK_EQ_INT(reach_bob(&stage, &first.key), 0);
    mx_account_forget_fallback(stage.bob);
    CHECK_EQ_INT(reach_bob(&stage, &first.key), MX_EONETIME);
    CHECK_EQ_INT(reach_bob(&stage, &second.key), 0);
    mx_stage_fini(&stage);
}

TEST(account, a_one_time_key_serves_once)
{
    struct mx_stage stage;
    struct mx_one_time_key key;

    mx_stage_init(&stage);
    CHECK(mx_account_one_time_key_at(stage.bob, 0, &key));
    CHECK_EQ_INT(reach_bob(&stage, &key.key), 0);
    CHECK_EQ_U64(mx_account_one_time_key_count(stage.bob), 2);
    CHECK_EQ_INT(reach_bob(&stage, &key.key), MX_EONETIME);
    mx_stage_fini(&stage);
}

TEST(account, out_of_memory_changes_nothing)
{
    struct mx_account *account = account_of_seed();
    uint64_t faults = 0;
    int rc;

    mx_account_add_one_time_keys(account, 60, mx_stage_random());
    do {
        base_fault_countdown(++faults, 1);
        rc = mx_account_add_one_time_keys(account, 60, mx_stage_random());
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
        CHECK_EQ_U64(mx_account_one_time_key_count(account), rc == 0 ? 120 : 60);
    } while (rc != 0);
    CHECK(faults > 1);
    mx_account_destroy(account);
}
