/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors of the MLS working group: every object is read to its last byte, every signature and
 * reference is right, and no shortened or changed object does more than be refused. */
#include "vectors.h"

static const struct mls_lifetime_rule any_time = { .now_s = 1, .span_s_max = UINT64_MAX };

TEST(mls_vectors, lengths_have_one_form)
{
    struct vectors vectors;

    load(&vectors, "vectors/mls/deserialization.json");
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);) {
        struct span header = bytes_of(json_get(it.value, "vlbytes_header"));
        struct mls_reader reader = mls_reader_of(header);
        int64_t length;

        CHECK(json_int(json_get(it.value, "length"), &length));
        CHECK_EQ_U64(mls_length(&reader), length);
        CHECK(reader.fault == NULL && reader.at == reader.end);
        drop(header);
    }
    unload(&vectors);
}

static void read_message_row(const struct json *row)
{
    static const struct {
        const char *name;
        enum mls_wire wire;
        enum mls_content content;
    } fields[] = {
        { "mls_welcome", MLS_WELCOME, 0 },
        { "mls_group_info", MLS_GROUP_INFO, 0 },
        { "mls_key_package", MLS_KEY_PACKAGE, 0 },
        { "public_message_application", MLS_PUBLIC, MLS_APPLICATION },
        { "public_message_proposal", MLS_PUBLIC, MLS_PROPOSAL },
        { "public_message_commit", MLS_PUBLIC, MLS_COMMIT },
        { "private_message", MLS_PRIVATE, 0 },
    };
    struct mls_message message;

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        struct span bytes = bytes_of(json_get(row, fields[i].name));

        must_read(bytes, &message, fields[i].wire);
        if (fields[i].content != 0)
            CHECK_EQ_INT(message.content, fields[i].content);
        drop(bytes);
    }
}

TEST(mls_vectors, messages_are_read_to_their_end)
{
    struct vectors vectors;

    load(&vectors, "vectors/mls/messages.json");
    CHECK_EQ_INT(json_count(vectors.root), 300);
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);)
        read_message_row(it.value);
    unload(&vectors);
}

TEST_LONG(mls_vectors, key_packages_carry_good_signatures, 60)
{
    struct vectors vectors;
    struct mls_key_package package;

    load(&vectors, "vectors/mls/messages.json");
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);) {
        struct span bytes = bytes_of(json_get(it.value, "mls_key_package"));
        const struct mls_suite *suite;

        CHECK(mls_key_package_read(bytes, &package) == NULL);
        suite = mls_suite_of(package.suite);
        CHECK(suite != NULL);
        CHECK(mls_leaf_verify(suite, &package.leaf, (struct span){ "", 0 }, 0));
        CHECK(mls_verify(suite, package.leaf.signature_key, "MLS 1.0 KeyPackageTBS",
            package.to_sign, package.signature));
        drop(bytes);
    }
    unload(&vectors);
}

TEST(mls_vectors, labels_sign_and_hash_as_written)
{
    struct vectors vectors;
    unsigned char reference[MLS_REFERENCE_SIZE_MAX];

    load(&vectors, "vectors/mls/crypto-basics.json");
    CHECK_EQ_INT(json_count(vectors.root), 7);
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);) {
        const struct json *sign = json_get(it.value, "sign_with_label");
        const struct json *hash = json_get(it.value, "ref_hash");
        struct span key = bytes_of(json_get(sign, "pub"));
        struct span content = bytes_of(json_get(sign, "content"));
        struct span signature = bytes_of(json_get(sign, "signature"));
        struct span value = bytes_of(json_get(hash, "value"));
        struct span out = bytes_of(json_get(hash, "out"));
        const struct mls_suite *suite;
        int64_t id;

        CHECK(json_int(json_get(it.value, "cipher_suite"), &id));
        suite = mls_suite_of((uint16_t)id);
        CHECK(mls_verify(suite, key, "MLS 1.0 SignWithLabel", content, signature));
        CHECK(!mls_verify(suite, key, "MLS 1.0 SignWithLabeL", content, signature));
        CHECK_EQ_U64(mls_reference(suite, "RefHash", value, reference), out.size);
        CHECK(memcmp(reference, out.at, out.size) == 0);
        drop(key);
        drop(content);
        drop(signature);
        drop(value);
        drop(out);
    }
    unload(&vectors);
}

static bool welcome_names(struct span welcome, struct span package_bytes)
{
    unsigned char reference[MLS_REFERENCE_SIZE_MAX];
    struct mls_key_package package;
    struct mls_message message;
    struct mls_reader list;
    struct span named;
    size_t size;

    must_read(welcome, &message, MLS_WELCOME);
    CHECK(mls_key_package_read(package_bytes, &package) == NULL);
    CHECK_EQ_INT(package.suite, message.suite);
    size = mls_key_package_reference(&package, reference);
    list = mls_reader_of(message.secrets);
    while (mls_welcome_next(&list, &named))
        if (named.size == size && memcmp(named.at, reference, size) == 0)
            return true;
    return false;
}

static void route_welcomes(const char *name, size_t count)
{
    struct vectors vectors;

    load(&vectors, name);
    CHECK_EQ_U64(json_count(vectors.root), count);
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);) {
        struct span welcome = bytes_of(json_get(it.value, "welcome"));
        struct span package = bytes_of(json_get(it.value, "key_package"));

        CHECK(welcome_names(welcome, package));
        drop(welcome);
        drop(package);
    }
    unload(&vectors);
}

TEST(mls_vectors, welcomes_name_their_key_packages)
{
    route_welcomes("vectors/mls/welcome.json", 7);
    route_welcomes("vectors/mls/passive-client-welcome.json", 56);
    route_welcomes("vectors/mls/passive-welcome_join.json", 56);
    route_welcomes("vectors/mls/passive-application.json", 42);
    route_welcomes("vectors/mls/passive-client-handling-commit.json", 91);
    route_welcomes("vectors/mls/passive-client-random.json", 1);
    route_welcomes("vectors/mls/passive-commit.json", 308);
    route_welcomes("vectors/mls/passive-external_join.json", 42);
    route_welcomes("vectors/mls/passive-external_proposals.json", 196);
    route_welcomes("vectors/mls/passive-reinit.json", 336);
}

TEST(mls_vectors, trees_are_read_and_their_leaves_signed)
{
    struct vectors vectors;

    load(&vectors, "vectors/mls/tree-validation.json");
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);) {
        struct span bytes = bytes_of(json_get(it.value, "tree"));
        struct span group = bytes_of(json_get(it.value, "group_id"));
        struct mls_tree tree = mls_tree_of(bytes);
        uint32_t leaf_count, index, seen = 0;
        struct mls_leaf leaf;
        int64_t id;

        CHECK(json_int(json_get(it.value, "cipher_suite"), &id));
        CHECK(mls_tree_check(bytes, &leaf_count) == NULL);
        while (mls_tree_next(&tree, &index, &leaf)) {
            CHECK(mls_leaf_verify(mls_suite_of((uint16_t)id), &leaf, group, index));
            seen++;
        }
        CHECK_EQ_INT(seen, leaf_count);
        drop(bytes);
        drop(group);
    }
    unload(&vectors);
}

TEST(mls_vectors, the_same_content_has_the_same_header_in_public_and_in_private)
{
    struct vectors vectors;

    load(&vectors, "vectors/mls/message-protection.json");
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);) {
        static const char *const names[][2] = { { "proposal_pub", "proposal_priv" },
            { "commit_pub", "commit_priv" } };

        for (int i = 0; i < 2; i++) {
            struct span a_bytes = bytes_of(json_get(it.value, names[i][0]));
            struct span b_bytes = bytes_of(json_get(it.value, names[i][1]));
            struct mls_message a, b;

            must_read(a_bytes, &a, MLS_PUBLIC);
            must_read(b_bytes, &b, MLS_PRIVATE);
            CHECK(span_equal(a.group_id, b.group_id));
            CHECK_EQ_U64(a.epoch, b.epoch);
            CHECK_EQ_INT(a.content, b.content);
            drop(a_bytes);
            drop(b_bytes);
        }
    }
    unload(&vectors);
}

/* The group context that the signatures of message-protection.json cover, at `epoch`. */
static void put_context(
    struct buffer *out, const struct json *row, const struct mls_suite *suite, uint64_t epoch)
{
    struct span group = bytes_of(json_get(row, "group_id"));
    struct span tree = bytes_of(json_get(row, "tree_hash"));
    struct span transcript = bytes_of(json_get(row, "confirmed_transcript_hash"));

    mls_put_number(out, 1, 2);
    mls_put_number(out, suite->id, 2);
    mls_put_vector(out, group);
    mls_put_number(out, epoch, 8);
    mls_put_vector(out, tree);
    mls_put_vector(out, transcript);
    mls_put_vector(out, (struct span){ "", 0 });
    CHECK_EQ_INT(out->failed, 0);
    drop(group);
    drop(tree);
    drop(transcript);
}

static bool verifies(
    const struct mls_suite *suite, struct span bytes, struct span key, const struct buffer *context)
{
    struct mls_message message;

    return mls_message_read(bytes, &message) == NULL && message.wire == MLS_PUBLIC &&
           mls_message_verify(suite, &message, key, (struct span){ context->bytes, context->size });
}

/* A bit of every byte that is signed, and of the signature. Later bytes are not signed. */
static void check_flips(
    const struct mls_suite *suite, struct span bytes, struct span key, const struct buffer *context)
{
    struct mls_message message;
    char *copy = malloc(bytes.size);
    size_t end;

    CHECK(copy != NULL);
    must_read(bytes, &message, MLS_PUBLIC);
    end = (size_t)(message.signature.at + message.signature.size - bytes.at);
    for (size_t i = 0; i < end; i++) {
        memcpy(copy, bytes.at, bytes.size);
        copy[i] = (char)(copy[i] ^ 1 << i % 8);
        CHECK_MSG(!verifies(suite, (struct span){ copy, bytes.size }, key, context),
            "suite %u: byte %zu may be changed", suite->id, i);
    }
    free(copy);
}

TEST_LONG(mls_vectors, public_messages_verify_and_no_changed_one_does, 60)
{
    static const char *const names[] = { "proposal_pub", "commit_pub" };
    struct vectors vectors;
    size_t count = 0;

    load(&vectors, "vectors/mls/message-protection.json");
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it); count++) {
        struct span key = bytes_of(json_get(it.value, "signature_pub"));
        struct buffer context = { 0 }, later = { 0 };
        const struct mls_suite *suite;
        int64_t id, epoch;

        CHECK(json_int(json_get(it.value, "cipher_suite"), &id));
        CHECK(json_int(json_get(it.value, "epoch"), &epoch));
        suite = mls_suite_of((uint16_t)id);
        CHECK(suite != NULL);
        put_context(&context, it.value, suite, (uint64_t)epoch);
        put_context(&later, it.value, suite, (uint64_t)epoch + 1);
        for (int i = 0; i < 2; i++) {
            struct span bytes = bytes_of(json_get(it.value, names[i]));

            CHECK_MSG(verifies(suite, bytes, key, &context), "suite %u: %s", suite->id, names[i]);
            CHECK(!verifies(suite, bytes, key, &later));
            check_flips(suite, bytes, key, &context);
            drop(bytes);
        }
        buffer_free(&context);
        buffer_free(&later);
        drop(key);
    }
    CHECK_EQ_INT(count, 7);
    unload(&vectors);
}

/* ---- references to proposals ---------------------------------------------------------------- */

static bool is_sent(
    const struct mls_suite *suite, const struct json *proposals, struct span reference)
{
    bool is_found = false;

    for (struct json_iter it = json_iterate(proposals); !is_found && json_next(&it);) {
        struct span bytes = bytes_of(it.value);
        unsigned char own[MLS_REFERENCE_SIZE_MAX];
        struct mls_message message;
        size_t size;

        must_read(bytes, &message, MLS_PUBLIC);
        size = mls_proposal_reference(suite, &message, own);
        is_found = size > 0 && size == reference.size && memcmp(own, reference.at, size) == 0;
        drop(bytes);
    }
    return is_found;
}

TEST_LONG(mls_vectors, commits_refer_to_the_proposals_that_were_sent, 60)
{
    struct vectors vectors;
    size_t count = 0;

    load(&vectors, "vectors/mls/passive-client-handling-commit.json");
    for (struct json_iter group = json_iterate(vectors.root); json_next(&group);) {
        int64_t id;

        CHECK(json_int(json_get(group.value, "cipher_suite"), &id));
        for (struct json_iter it = json_iterate(json_get(group.value, "epochs")); json_next(&it);) {
            const struct json *proposals = json_get(it.value, "proposals");
            struct span bytes = bytes_of(json_get(it.value, "commit"));
            struct mls_proposal proposal;
            struct mls_message message;
            struct mls_reader list;

            must_read(bytes, &message, MLS_PUBLIC);
            list = mls_reader_of(message.commit.proposals);
            while (mls_proposal_next(&list, &proposal)) {
                if (!proposal.is_reference)
                    continue;
                CHECK(is_sent(mls_suite_of((uint16_t)id), proposals, proposal.reference));
                count++;
            }
            drop(bytes);
        }
    }
    CHECK_MSG(count > 0, "no commit refers to anything");
    unload(&vectors);
}

/* Every commit of a group moves it on by one; read in order the epochs are consecutive. */
TEST_LONG(mls_vectors, two_hundred_commits_follow_each_other, 60)
{
    struct vectors vectors;
    uint64_t epoch = 0;
    size_t commits = 0, proposals = 0;

    load(&vectors, "vectors/mls/passive-client-random.json");
    for (struct json_iter it = json_iterate(json_get(json_at(vectors.root, 0), "epochs"));
         json_next(&it);) {
        struct span bytes = bytes_of(json_get(it.value, "commit"));
        struct mls_message message;

        must_read(bytes, &message, MLS_PUBLIC);
        CHECK_EQ_INT(message.content, MLS_COMMIT);
        CHECK(mls_message_check(&message) == NULL);
        if (commits++ > 0)
            CHECK_EQ_U64(message.epoch, epoch + 1);
        epoch = message.epoch;
        drop(bytes);
        for (struct json_iter p = json_iterate(json_get(it.value, "proposals")); json_next(&p);) {
            bytes = bytes_of(p.value);
            must_read(bytes, &message, MLS_PUBLIC);
            CHECK_EQ_INT(message.content, MLS_PROPOSAL);
            CHECK_EQ_U64(message.epoch, epoch);
            CHECK(mls_message_check(&message) == NULL);
            proposals++;
            drop(bytes);
        }
    }
    CHECK_EQ_U64(commits, 200);
    CHECK_EQ_U64(proposals, 1542);
    unload(&vectors);
}

TEST(mls_vectors, external_commits_are_allowed_and_say_so)
{
    struct vectors vectors;
    size_t external = 0;

    load(&vectors, "vectors/mls/passive-external_join.json");
    for (struct json_iter row = json_iterate(vectors.root); json_next(&row);)
        for (struct json_iter it = json_iterate(json_get(row.value, "epochs")); json_next(&it);) {
            struct span bytes = bytes_of(json_get(it.value, "commit"));
            struct mls_message message;
            const char *why = mls_message_read(bytes, &message);

            CHECK_MSG(why == NULL, "%s", why);
            why = mls_message_check(&message);
            CHECK_MSG(why == NULL, "%s", why);
            if (message.wire == MLS_PUBLIC && message.sender == MLS_NEW_COMMIT)
                external++;
            drop(bytes);
        }
    CHECK_EQ_U64(external, 28);
    unload(&vectors);
}

static void try_all(struct span bytes, size_t step)
{
    struct mls_message message;
    char *copy = malloc(bytes.size == 0 ? 1 : bytes.size);

    for (size_t size = 0; size < bytes.size; size += step) {
        char *cut = malloc(size == 0 ? 1 : size);

        memcpy(cut, bytes.at, size);
        CHECK(mls_message_read((struct span){ cut, size }, &message) != NULL);
        free(cut);
    }
    for (size_t bit = 0; bit < bytes.size * 8; bit += step) {
        memcpy(copy, bytes.at, bytes.size);
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        if (mls_message_read((struct span){ copy, bytes.size }, &message) == NULL)
            (void)mls_message_check(&message);
    }
    free(copy);
}

TEST_LONG(mls_vectors, a_cut_message_is_refused_and_a_changed_one_never_crashes, 120)
{
    static const char *const names[] = { "mls_welcome", "mls_group_info", "mls_key_package",
        "public_message_proposal", "public_message_commit", "private_message" };
    size_t rows = check_is_long() ? 300 : 6, row = 0;
    struct vectors vectors;

    load(&vectors, "vectors/mls/messages.json");
    for (struct json_iter it = json_iterate(vectors.root); row < rows && json_next(&it); row++)
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            struct span bytes = bytes_of(json_get(it.value, names[i]));

            try_all(bytes, 1);
            drop(bytes);
        }
    unload(&vectors);
}

TEST(mls_vectors, a_changed_key_package_is_never_accepted)
{
    struct vectors vectors;
    size_t tried = 0, accepted = 0;

    load(&vectors, "vectors/mls/welcome.json");
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);) {
        struct span bytes = bytes_of(json_get(it.value, "key_package"));
        char *copy = malloc(bytes.size);
        struct mls_key_package package;

        memcpy(copy, bytes.at, bytes.size);
        for (size_t bit = 32; bit < bytes.size * 8; bit += 37) {
            copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
            if (mls_key_package_read((struct span){ copy, bytes.size }, &package) == NULL &&
                mls_key_package_check(&package, &any_time) == NULL)
                accepted++;
            copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
            tried++;
        }
        CHECK(mls_key_package_read((struct span){ copy, bytes.size }, &package) == NULL);
        CHECK(mls_key_package_check(&package, &any_time) == NULL);
        free(copy);
        drop(bytes);
    }
    CHECK(tried > 500);
    CHECK_EQ_U64(accepted, 0);
    unload(&vectors);
}
