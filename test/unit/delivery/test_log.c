/* SPDX-License-Identifier: Apache-2.0 */
/* The log over time: receipts that prove its order, retention by need, and the checks. */
#include <fcntl.h>
#include <sys/stat.h>

#include "convo_acts.h"
#include "services/delivery/convo/receipt.h"

/* ---- receipts ------------------------------------------------------------------------------- */

static void hex_member(const struct json *object, const char *name, unsigned char ret_bytes[32])
{
    struct span text;
    size_t size;

    CHECK(json_string(json_get(object, name), &text));
    CHECK_EQ_INT(crypto_hex_decode(text, ret_bytes, 32, &size), 0);
    CHECK_EQ_U64(size, 32);
}

static uint64_t number_member(const struct json *object, const char *name)
{
    int64_t value;

    CHECK(json_int(json_get(object, name), &value));
    return (uint64_t)value;
}

static bool is_signed(const struct json *head, const char *convo)
{
    struct buffer statement = { 0 };
    struct crypto_key *key = NULL;
    struct span did, text;
    unsigned char receipt[32], signature[80];
    size_t size;
    bool is_right;

    hex_member(head, "receipt", receipt);
    CHECK(json_string(json_get(head, "publicKey"), &did));
    CHECK_EQ_INT(did_key_parse(did, &key), DID_OK);
    CHECK_EQ_INT(crypto_key_algorithm(key), CRYPTO_EDDSA);
    CHECK(json_string(json_get(json_get(head, "signature"), "$bytes"), &text));
    CHECK_EQ_INT(crypto_base64_decode(text, signature, sizeof signature, &size), 0);
    receipt_statement(&statement, span_of(convo), number_member(head, "seq"), receipt);
    is_right = crypto_key_verify(key, statement.bytes, statement.size,
                   (struct span){ (const char *)signature, size }) == 0;
    buffer_free(&statement);
    crypto_key_unref(&key);
    return is_right;
}

/* Verifies an answer as a client does. Returns the number of rows that follow from each other and
 * lead to the signed one; -1 if one does not. */
static int verify(const struct site *site, const struct caller *caller, const char *query)
{
    struct web_answer answer = caller_ask(site, caller, query, NULL);
    struct json_doc doc = { 0 };
    const struct json *rows, *head;
    unsigned char chain[32], wanted[32], hash[32];
    int count = 0;

    CHECK_MSG(answer.status == 200, "%s", answer.text);
    CHECK_EQ_INT(json_parse_copy(&doc, span_of(answer.body), 0), 0);
    rows = json_get(json_root(&doc), "receipts");
    head = json_get(json_root(&doc), "signed");
    CHECK(is_signed(head, "g1"));
    CHECK(!is_signed(head, "g2"));
    hex_member(json_root(&doc), "previous", chain);
    for (struct json_iter it = json_iterate(rows); count >= 0 && json_next(&it);) {
        hex_member(it.value, "sha256", hash);
        hex_member(it.value, "receipt", wanted);
        receipt_extend(chain, &(struct receipt_row){ .seq = number_member(it.value, "seq"),
                                  .base_epoch = number_member(it.value, "baseEpoch"),
                                  .sha256 = hash });
        count = memcmp(chain, wanted, 32) == 0 ? count + 1 : -1;
        if (count > 0 && number_member(it.value, "seq") == number_member(head, "seq")) {
            hex_member(head, "receipt", wanted);
            count = memcmp(chain, wanted, 32) == 0 ? count : -1;
        }
    }
    json_doc_free(&doc);
    web_answer_free(&answer);
    return count;
}

/* Five receipts: an add, a commit, its revocation, two commits; messages between them. */
static void make_log(struct cast *cast)
{
    struct site *site = &cast->site;

    do_say(site, &cast->ada, "g1", "m3", 1, "persistent", 200, "\"seq\":3");
    do_commit(site, &cast->ada, "g1", 1, "bad", "", 200, "\"seq\":4");
    do_report(site, &cast->bob, "g1", 1, "bad", 200, "\"revoked\":false");
    do_report(site, &cast->cyd, "g1", 1, "bad", 200, "\"revoked\":true");
    do_commit(site, &cast->bob, "g1", 1, "good", "", 200, "\"seq\":6");
    do_say(site, &cast->bob, "g1", "m7", 2, "persistent", 200, "\"seq\":7");
    do_commit(site, &cast->cyd, "g1", 2, "better", "", 200, "\"seq\":8");
}

TEST(receipts, prove_the_order_of_all_commits)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    make_log(&cast);
    CHECK_EQ_INT(verify(site, &cast.dan, "getReceipts?convoId=g1"), 5);
    CHECK_EQ_INT(verify(site, &cast.dan, "getReceipts?convoId=g1&limit=2"), 2);
    CHECK_EQ_INT(verify(site, &cast.dan, "getReceipts?convoId=g1&fromSeq=5"), 3);
    CHECK_EQ_INT(verify(site, &cast.dan, "getReceipts?convoId=g1&fromSeq=100"), 0);
    expect(site, &cast.dan, "getReceipts?convoId=g1", NULL, 200, "\"kind\":\"revokedCommit\"");
    expect(site, &cast.dan, "getReceipts?convoId=g1", NULL, 200, "\"kind\":\"revocation\"");
    expect(site, &cast.eve, "getReceipts?convoId=g1", NULL, 403, "NotMember");
    expect(site, &cast.dan, "getReceipts?convoId=g9", NULL, 404, "ConvoNotFound");
    expect(site, &cast.dan, "getReceipts?convoId=g1&limit=0", NULL, 400, "InvalidRequest");
    expect(site, &cast.dan, "getReceipts", NULL, 400, "InvalidRequest");
    cast_end(&cast);
}

TEST(receipts, show_a_row_that_was_changed)
{
    static const char *const changes[] = {
        "UPDATE log SET sha256 = (SELECT sha256 FROM log WHERE seq = 8) WHERE seq = 6",
        "UPDATE log SET base_epoch = 17 WHERE seq = 6",
        "UPDATE log SET receipt = sha256 WHERE seq = 6",
    };

    for (int i = 0; i < 3; i++) {
        struct cast cast;

        cast_begin(&cast);
        make_log(&cast);
        plant(&cast.site, changes[i]);
        CHECK_EQ_INT(verify(&cast.site, &cast.dan, "getReceipts?convoId=g1"), -1);
        expect_check(&cast.site, "receipts g1: the receipt of seq 6");
        cast_end(&cast);
    }
}

TEST(receipts, are_signed_with_a_key_that_stays_and_is_the_owners_alone)
{
    struct crypto_key *first = NULL, *second = NULL;
    uint8_t a[CRYPTO_PUBLIC_BYTES_MAX], b[CRYPTO_PUBLIC_BYTES_MAX];
    char place[64], path[128], why[256] = "";
    struct stat info;
    int fd;

    web_place_make(place);
    (void)snprintf(path, sizeof path, "%s/receipts.key", place);
    CHECK_EQ_INT(receipt_key_open(place, why, sizeof why, &first), 0);
    CHECK_EQ_INT(stat(path, &info), 0);
    CHECK_EQ_INT(info.st_mode & 0777, 0600);
    CHECK_EQ_INT(receipt_key_open(place, why, sizeof why, &second), 0);
    CHECK_EQ_U64(crypto_key_public_bytes(first, a), crypto_key_public_bytes(second, b));
    CHECK(memcmp(a, b, 32) == 0);
    crypto_key_unref(&second);
    CHECK_EQ_INT(chmod(path, 0644), 0);
    CHECK_EQ_INT(receipt_key_open(place, why, sizeof why, &second), TR_EACCES);
    CHECK(strstr(why, "chmod 600") != NULL);
    CHECK_EQ_INT(chmod(path, 0600), 0);
    fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    CHECK(write(fd, "nonsense\n", 9) == 9);
    CHECK_EQ_INT(receipt_key_open(place, why, sizeof why, &second), TR_EINVAL);
    CHECK(strstr(why, "must hold one line") != NULL);
    CHECK(write(fd, "nonsense of the length of a secret\n", 35) == 35);
    close(fd);
    CHECK_EQ_INT(receipt_key_open(place, why, sizeof why, &second), TR_EINVAL); /* two lines */
    CHECK_EQ_INT(unlink(path), 0);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(write(fd, "nonsense-of-the-length-of-a-secret\n", 35) == 35);
    close(fd);
    CHECK_EQ_INT(receipt_key_open(place, why, sizeof why, &second), TR_EPROTO);
    CHECK(strstr(why, "holds no key") != NULL);
    CHECK_EQ_INT(receipt_key_open("/nowhere/at/all", why, sizeof why, &second), TR_EIO);
    crypto_key_unref(&first);
    web_place_remove(place);
}

/* ---- retention ------------------------------------------------------------------------------ */

static void read_to(struct cast *cast, const struct caller *caller, int seq)
{
    act(&cast->site, caller, "updateCursor", 200, "success", "{\"convoId\":\"g1\",\"seq\":%d}",
        seq);
}

TEST(retention, keeps_what_a_member_has_not_read)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    make_log(&cast);
    CHECK_EQ_INT(retain(site, 0).rows, 0); /* ada was in from the start and read nothing */
    read_to(&cast, &cast.ada, 8);
    CHECK_EQ_INT(retain(site, 0).rows, 1); /* bob joined by the commit of seq 2 */
    read_to(&cast, &cast.bob, 8);
    read_to(&cast, &cast.cyd, 8);
    read_to(&cast, &cast.dan, 5);
    CHECK_EQ_INT(retain(site, 3600).rows, 0); /* too young */
    CHECK_EQ_INT(retain(site, 0).rows, 3);
    CHECK_EQ_INT(stored(site, "SELECT kept_from FROM convos"), 6);
    CHECK_EQ_INT(stored(site, "SELECT MIN(seq) FROM log"), 6);
    expect(site, &cast.dan, "getMessages?convoId=g1&sinceSeq=5", NULL, 200, "\"lastSeq\":8");
    read_to(&cast, &cast.dan, 1000); /* no further than there is */
    CHECK_EQ_INT(retain(site, 0).rows, 3);
    do_say(site, &cast.bob, "g1", "m9", 3, "persistent", 200, "\"seq\":9");
    expect(site, &cast.dan, "getUnread", NULL, 200, "\"g1\":1");
    CHECK_EQ_INT(retain(site, 0).rows, 0);
    expect_check(site, NULL);
    cast_end(&cast);
}

TEST(retention, keeps_what_is_unread_while_a_removal_may_be_taken_back)
{
    struct cast cast;
    struct site *site = &cast.site;
    char more[128];

    cast_begin(&cast);
    act(site, &cast.ada, "promoteAdmin", 200, "", "{\"convoId\":\"g1\",\"targetDid\":\"%s\"}",
        cast.bob.did);
    do_say(site, &cast.ada, "g1", "unread", 1, "persistent", 200, "\"seq\":3");
    (void)snprintf(more, sizeof more, ",\"removes\":[\"%s\"]", cast.dan.did);
    do_commit(site, &cast.ada, "g1", 1, "bad", more, 200, "\"epoch\":2");
    read_to(&cast, &cast.ada, 4);
    read_to(&cast, &cast.bob, 4);
    read_to(&cast, &cast.cyd, 4);
    CHECK_EQ_INT(retain(site, 0).rows, 1); /* dan joined by the commit of seq 2 */
    do_report(site, &cast.bob, "g1", 1, "bad", 200, "\"revoked\":false");
    do_report(site, &cast.cyd, "g1", 1, "bad", 200, "\"revoked\":true");
    expect(site, &cast.dan, "getUnread", NULL, 200, "{\"g1\":1}");
    expect(site, &cast.dan, "getMessages?convoId=g1&sinceSeq=2", NULL, 200, "\"id\":\"unread\"");
    do_commit(site, &cast.bob, "g1", 1, "good", more, 200, "\"epoch\":2");
    CHECK_EQ_INT(retain(site, 0).rows, 0);
    do_say(site, &cast.cyd, "g1", "heard", 2, "persistent", 200, "\"seq\":7");
    CHECK_EQ_INT(retain(site, 0).rows, 2);
    cast_end(&cast);
}

TEST(retention, forgets_times_of_which_no_row_is_left_but_not_the_last)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    make_log(&cast);
    plant(site, "INSERT INTO members (convo, did, join_seq, joined_ms, is_admin, is_moderator,"
                " unread_extra, read_seq, leave_seq, left_ms, was_removed, has_later) VALUES"
                " ('g1', 'did:example:often', 1, 1, 0, 0, 0, 1, 2, 1, 1, 1),"
                " ('g1', 'did:example:often', 3, 1, 0, 0, 0, 1, 4, 1, 1, 1),"
                " ('g1', 'did:example:often', 5, 1, 0, 0, 0, 1, 6, 1, 1, 0),"
                " ('g1', 'did:example:once', 1, 1, 0, 0, 0, 1, 2, 1, 1, 0)");
    for (int i = 0; i < 4; i++)
        read_to(&cast,
            (const struct caller *const[]){ &cast.ada, &cast.bob, &cast.cyd, &cast.dan }[i], 3);
    CHECK_EQ_INT(retain(site, 0).rows, 2);
    CHECK_EQ_INT(stored(site, "SELECT kept_from FROM convos"), 4);
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM members WHERE leave_seq = 2"), 1);
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM members WHERE did = 'did:example:often'"), 2);
    cast_end(&cast);
}

TEST(retention, forgets_confirmations_reports_and_quarantines_that_are_over)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    make_log(&cast); /* with two reports of an epoch long past */
    for (int epoch = 1; epoch <= 3; epoch += 2)
        act(site, &cast.bob, "confirmEpoch", 200, "\"confirmed\":true",
            "{\"convoId\":\"g1\",\"epoch\":%d,\"epochAuthenticatorHash\":\"%064d\"}", epoch, 7);
    (void)retain(site, 3600);
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM commit_reports"), 2);
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM epoch_confirms"), 2);
    (void)retain(site, 0);
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM commit_reports"), 0);
    CHECK_EQ_INT(stored(site, "SELECT epoch FROM epoch_confirms"), 3); /* the current one stays */
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM quarantines"), 1);
    plant(site, "UPDATE quarantines SET until_ms = 1");
    (void)retain(site, 0);
    CHECK_EQ_INT(stored(site, "SELECT COUNT(*) FROM quarantines"), 0);
    cast_end(&cast);
}

TEST(retention, keeps_what_a_welcome_leads_to)
{
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    make_log(&cast);
    plant(site, "INSERT INTO welcomes (convo, seq, part, bytes, created_ms)"
                " VALUES ('g1', 6, 0, 'w', 1)");
    plant(site,
        "INSERT INTO welcome_targets (convo, seq, part, ref, did, device, state, changed_ms)"
        " VALUES ('g1', 6, 0, 'r', 'did:plc:x', '', 1, 1)");
    plant(site, "UPDATE members SET read_seq = 8");
    CHECK_EQ_INT(retain(site, 0).rows, 4);
    CHECK_EQ_INT(stored(site, "SELECT MIN(seq) FROM log"), 6);
    plant(site, "UPDATE welcome_targets SET state = 2");
    CHECK_EQ_INT(retain(site, 0).rows, 3);
    expect_check(site, NULL);
    cast_end(&cast);
}

TEST(retention, tells_who_comes_too_late_where_to_resume)
{
    struct web_answer heard = { 0 };
    struct cast cast;
    struct site *site = &cast.site;
    int fd;

    cast_begin(&cast);
    make_log(&cast);
    do_add(site, &cast.bob, "g1", 3, (const char *const[3]){ cast.eve.did, NULL, NULL });
    plant(site, "UPDATE members SET read_seq = 7");
    plant(site, "UPDATE convos SET group_info = 'i', group_info_epoch = 3");
    CHECK_EQ_INT(retain(site, 0).rows, 6);
    expect(site, &cast.dan, "getMessages?convoId=g1&sinceSeq=3", NULL, 410, "HistoryCompacted");
    expect(site, &cast.dan, "getMessages?convoId=g1&sinceSeq=3", NULL, 410,
        "\"oldestSeq\":8,\"oldestEpoch\":3,\"groupInfoEpoch\":3");
    expect(site, &cast.dan, "getMessages?convoId=g1&sinceSeq=7", NULL, 200, "\"lastSeq\":9");
    expect(site, &cast.dan, "getMessages?convoId=g1", NULL, 200, "\"lastSeq\":9");
    expect(site, &cast.dan, "getCommits?convoId=g1&fromEpoch=2", NULL, 410, "\"oldestEpoch\":3");
    expect(site, &cast.dan, "getCommits?convoId=g1&fromEpoch=3", NULL, 200, "\"epoch\":3");
    /* The loser sees a gap before the first commit. */
    do_commit(site, &cast.dan, "g1", 1, "too late", "", 409,
        "\"baseEpoch\":1,\"commits\":[{\"seq\":8,\"baseEpoch\":2,");
    /* eve joined later: nothing it may see is missing. */
    expect(site, &cast.eve, "getMessages?convoId=g1&sinceSeq=0", NULL, 200, "\"messages\":[]");
    expect(site, &cast.eve, "getCommits?convoId=g1&fromEpoch=0", NULL, 200, "\"commits\":[]");
    CHECK_EQ_INT(verify(site, &cast.dan, "getReceipts?convoId=g1"), 2);
    fd = do_listen(site, &cast.dan, "convoId=g1&cursor=3");
    CHECK(web_receive_until(fd, &heard, "compacted"));
    CHECK(web_receive_until(fd, &heard, "id: 9\n"));
    CHECK(strstr(heard.text, "id: 7\n") == NULL);
    close(fd);
    web_answer_free(&heard);
    expect_check(site, NULL);
    cast_end(&cast);
}

static void expect_whole(const struct cast *cast, const char *call, const char *body)
{
    struct web_answer answer = caller_ask(&cast->site, &cast->dan, call, NULL);

    CHECK_MSG(answer.status == 410 && strcmp(answer.body, body) == 0, "%s: %s", call, answer.text);
    web_answer_free(&answer);
}

/* How far the others are: the epoch, the oldest number that is kept. */
TEST(retention, tells_who_is_out_nothing_of_those_who_are_in)
{
    static const char resume[] = "{\"error\":\"HistoryCompacted\",\"message\":\"These messages are "
                                 "no longer kept; resume at oldestSeq.\",\"oldestSeq\":4}";
    static const char gone[] =
        "{\"error\":\"HistoryCompacted\",\"message\":\"These messages are no longer kept.\"}";
    char removes[256], call[64];
    struct cast cast;
    struct site *site = &cast.site;

    cast_begin(&cast);
    do_say(site, &cast.dan, "g1", "m3", 1, "persistent", 200, "\"seq\":3");
    (void)snprintf(removes, sizeof removes, ",\"removes\":[\"%s\"]", cast.dan.did);
    do_commit(site, &cast.ada, "g1", 1, "without dan", removes, 200, "\"seq\":4");
    do_commit(site, &cast.ada, "g1", 2, "one more", "", 200, "\"seq\":5");
    do_commit(site, &cast.ada, "g1", 3, "and one", "", 200, "\"seq\":6");
    plant(site, "UPDATE convos SET kept_from = 4");
    plant(site, "DELETE FROM log WHERE seq < 4");
    expect_whole(&cast, "getMessages?convoId=g1&sinceSeq=2", resume);
    expect_whole(&cast, "getCommits?convoId=g1&fromEpoch=1", resume);
    expect(site, &cast.dan, "getMessages?convoId=g1&sinceSeq=3", NULL, 200, "\"seq\":4");
    expect(site, &cast.dan, "getCommits?convoId=g1&fromEpoch=2", NULL, 200, "\"seq\":4");
    expect(site, &cast.ada, "getMessages?convoId=g1&sinceSeq=2", NULL, 410,
        "\"oldestSeq\":4,\"oldestEpoch\":2}");
    plant(site, "UPDATE convos SET kept_from = 6");
    plant(site, "DELETE FROM log WHERE seq < 6");
    expect_whole(&cast, "getMessages?convoId=g1&sinceSeq=3", gone);
    for (int epoch = 0; epoch < 8; epoch++) {
        (void)snprintf(call, sizeof call, "getCommits?convoId=g1&fromEpoch=%d", epoch);
        expect_whole(&cast, call, gone);
    }
    expect(site, &cast.ada, "getCommits?convoId=g1&fromEpoch=3", NULL, 410,
        "\"oldestSeq\":6,\"oldestEpoch\":4}");
    cast_end(&cast);
}

/* ---- checks --------------------------------------------------------------------------------- */

TEST(check, finds_each_kind_of_damage)
{
    static const struct {
        const char *damage;
        const char *found;
    } cases[] = {
        { "UPDATE convos SET epoch = epoch + 1", "epoch g1" },
        { "UPDATE log SET epoch = 9 WHERE seq = 8", "epoch g1" },
        { "UPDATE log SET kind = 1 WHERE seq = 6", "commits g1" },
        { "DELETE FROM log WHERE seq = 7", "seq g1" },
        { "UPDATE convos SET seq = seq - 1", "seq g1" },
        { "UPDATE convos SET kept_from = 4", "seq g1" },
        { "UPDATE members SET leave_seq = 8, unread_extra = 2 WHERE did = (SELECT MAX(did) FROM"
          " members)",
            "unread g1" },
        { "UPDATE members SET unread_extra = 2", "unread g1" },
        { "UPDATE convos SET chain = NULL", "receipts g1" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cast cast;

        cast_begin(&cast);
        make_log(&cast);
        do_create(&cast.site, &cast.ada, "another");
        expect_check(&cast.site, NULL);
        plant(&cast.site, cases[i].damage);
        expect_check(&cast.site, cases[i].found);
        cast_end(&cast);
    }
}

TEST(check, finds_two_commits_of_one_epoch)
{
    struct cast cast;

    cast_begin(&cast);
    make_log(&cast);
    plant(&cast.site, "DROP INDEX log_commits");
    plant(&cast.site, "UPDATE log SET base_epoch = 1 WHERE seq = 8");
    expect_check(&cast.site, "commits g1");
    cast_end(&cast);
}
