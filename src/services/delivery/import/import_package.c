/* SPDX-License-Identifier: Apache-2.0 */
/* import_package.c: devices, their key packages, and the unused Welcomes of a conversation. The
 * import checks a package as if it were uploaded now. It takes used packages along, so that no
 * account can publish one again. Existing rows stay as they are.
 *
 * The source has a copy of a Welcome for each recipient; here it is stored once. Ordered by bytes,
 * the copies follow each other. */
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/common/param.h"
#include "services/delivery/api/api.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/package_store.h"
#include "services/delivery/store/schema.h"

static bool is_did(struct span did)
{
    return did.size >= DID_SIZE_MIN && did.size <= DID_SIZE_MAX;
}

/* ---- devices -------------------------------------------------------------------------------- */

static int on_device(void *data, PGresult *row)
{
    struct import_run *run = data;
    struct span did = mls_identity_did(source_bytes(row, "user_did"), NULL);
    struct span device = source_bytes(row, "device_id"),
                hex = source_bytes(row, "signature_public_key");
    unsigned char key[256];
    size_t size = 0;

    if (!is_did(did) || device.at == NULL || !param_is_device(device))
        return import_fate(run, CATBIRD_DEVICES, "has no DID, or no device id", 1);
    if (hex.at == NULL || crypto_hex_decode(hex, key, sizeof key, &size) < 0 || size == 0)
        return import_fate(run, CATBIRD_DEVICES, "has no signature key: it registers again", 1);
    return import_step(run, CATBIRD_DEVICES, &import_put_device, SQL_ROWS_ANY,
        VALUES(VALUE_TEXT(did), VALUE_TEXT(device), VALUE_TEXT(source_bytes(row, "device_name")),
            VALUE_BLOB(key, size),
            VALUE_INT(source_int_or(row, "registered_at", run->import->now_ms))));
}

/* ---- key packages --------------------------------------------------------------------------- */

/* Finds the device in the credential of its owner, else in the row; "": there is none. */
static bool find_device(
    const struct mls_leaf *leaf, struct span owner, struct span said, struct span *ret_device)
{
    struct span device, did = mls_identity_did(leaf->identity, &device);

    if (device.size == 0)
        device = said.at != NULL && param_is_device(said) ? said : SPAN("");
    *ret_device = device;
    return leaf->credential == MLS_CREDENTIAL_BASIC && span_equal(did, owner) &&
           (device.size == 0 || param_is_device(device));
}

/* Returns the end of its lifetime as the package or the row says it, whichever is earlier. An
 * endless one is cut to the longest that an upload may have. */
static int64_t find_end(const struct mls_key_package *package, const PGresult *row, int64_t now_s)
{
    uint64_t end_s = package->leaf.not_after_s;
    int64_t end_s_max = now_s + PACKAGE_SPAN_S_MAX;
    int64_t row_end_s = source_int_or(row, "expires_at", INT64_MAX) / 1000;

    if (end_s < (uint64_t)end_s_max)
        end_s_max = (int64_t)end_s;
    return row_end_s < end_s_max ? row_end_s : end_s_max;
}

static int on_package(void *data, PGresult *row)
{
    struct import_run *run = data;
    int64_t now_s = run->import->now_ms / 1000, not_after_s = 0;
    const struct mls_lifetime_rule rule = {
        .now_s = (uint64_t)now_s, .skew_s = PACKAGE_SKEW_S, .span_s_max = UINT64_MAX
    };
    struct span bytes = source_bytes(row, "key_package"), device;
    struct span did = mls_identity_did(source_bytes(row, "owner_did"), NULL);
    bool is_used = source_bytes(row, "consumed_at").at != NULL;
    unsigned char ref[MLS_REFERENCE_SIZE_MAX];
    struct mls_key_package read;
    const char *reason = NULL;
    size_t ref_size = 0;

    if (!is_did(did))
        reason = "has no DID";
    else if (bytes.size == 0 || bytes.size > KEY_PACKAGE_SIZE_MAX ||
             mls_key_package_read(bytes, &read) != NULL)
        reason = "is no key package";
    else if (mls_suite_of(read.suite) == NULL)
        reason = "is of an unknown cipher suite";
    else if (!find_device(&read.leaf, did, source_bytes(row, "device_id"), &device))
        reason = "is not of its owner";
    else if ((not_after_s = find_end(&read, row, now_s)) <= now_s)
        reason = "has expired";
    else if (mls_key_package_check(&read, &rule) != NULL)
        reason = "has a wrong signature or lifetime";
    else if ((ref_size = mls_key_package_reference(&read, ref)) == 0)
        reason = "cannot be hashed";
    if (reason != NULL)
        return import_fate(run, CATBIRD_PACKAGES, reason, 1);
    return import_step(run, CATBIRD_PACKAGES, &import_put_package, SQL_ROWS_ANY,
        VALUES(VALUE_BLOB(ref, ref_size), VALUE_TEXT(did), VALUE_TEXT(device),
            VALUE_INT(read.suite), VALUE_BYTES(read.bytes), VALUE_INT(not_after_s),
            VALUE_INT(read.is_last_resort),
            /* A lease of the other server is lost. */
            VALUE_INT(is_used && !read.is_last_resort ? PACKAGE_CONSUMED : PACKAGE_FREE),
            VALUE_INT(is_used),
            VALUE_INT(source_int_or(row, "created_at", run->import->now_ms) / 1000),
            VALUE_INT_IF(is_used, source_int_or(row, "consumed_at", 0) / 1000)));
}

int import_packages(struct import_run *run)
{
    int rc = source_each(run, CATBIRD_DEVICES, NULL, NULL, on_device, run);

    return rc < 0 ? rc : source_each(run, CATBIRD_PACKAGES, NULL, NULL, on_package, run);
}

/* ---- Welcomes ------------------------------------------------------------------------------- */

/* Returns the reference that the row names, if the Welcome has it; else the Welcome's only one,
 * else the row's. False: there is none. */
static bool find_ref(const struct mls_message *welcome, struct span said_hex,
    unsigned char ref[MLS_REFERENCE_SIZE_MAX], size_t *ret_size)
{
    struct mls_reader list = mls_reader_of(welcome->secrets);
    struct span reference, first = { NULL, 0 };

    *ret_size = 0;
    if (said_hex.at != NULL &&
        crypto_hex_decode(said_hex, ref, MLS_REFERENCE_SIZE_MAX, ret_size) < 0)
        *ret_size = 0;
    while (mls_welcome_next(&list, &reference)) {
        if (first.at == NULL)
            first = reference;
        if (*ret_size > 0 && span_equal(reference, (struct span){ (const char *)ref, *ret_size }))
            return true;
    }
    if (first.at != NULL && first.size <= MLS_REFERENCE_SIZE_MAX &&
        (welcome->secret_count == 1 || *ret_size == 0)) {
        memcpy(ref, first.at, first.size);
        *ret_size = first.size;
    }
    return *ret_size > 0;
}

/* Stores the Welcome at a place in the log that its recipient, a member since join_seq, can see. */
static int put_welcome_bytes(
    struct import_convo *convo, struct span bytes, int64_t created_ms, uint64_t join_seq)
{
    unsigned char hash[32];
    int64_t part = convo->welcome_part;

    crypto_sha256(bytes.at, bytes.size, hash);
    if (part > 0 && memcmp(hash, convo->welcome_hash, sizeof hash) == 0 &&
        convo->welcome_seq >= join_seq)
        return 0;
    memcpy(convo->welcome_hash, hash, sizeof hash);
    convo->welcome_seq = join_seq;
    convo->welcome_part++;
    return import_step(convo->run, IMPORT_NO_TABLE, &import_put_welcome, 1,
        VALUES(VALUE_TEXT(convo->id), VALUE_INT(convo->welcome_seq), VALUE_INT(part),
            VALUE_BYTES(bytes), VALUE_INT(created_ms)));
}

static int on_welcome(void *data, PGresult *row)
{
    struct import_convo *convo = data;
    struct import_run *run = convo->run;
    struct span device, did = mls_identity_did(source_bytes(row, "recipient_did"), &device);
    struct span bytes = source_bytes(row, "welcome_data"), why = source_bytes(row, "error_reason");
    const struct import_person *person = import_person_find(convo, did);
    unsigned char ref[MLS_REFERENCE_SIZE_MAX];
    struct mls_message welcome;
    const char *reason = NULL;
    size_t ref_size;
    int rc;

    if (source_int_or(row, "consumed", 0) != 0)
        reason = "was used";
    else if (bytes.size == 0 || bytes.size > WELCOME_SIZE_MAX ||
             mls_message_read(bytes, &welcome) != NULL || welcome.wire != MLS_WELCOME)
        reason = "is no Welcome";
    else if (person == NULL || !person->is_in)
        reason = "is for somebody who is no member";
    else if (!find_ref(&welcome, source_bytes(row, "key_package_hash"), ref, &ref_size))
        reason = "names no key package";
    if (reason != NULL)
        return import_fate(run, CATBIRD_WELCOMES, reason, 1);
    rc = put_welcome_bytes(
        convo, bytes, source_int_or(row, "created_at", run->import->now_ms), person->join_seq);
    if (rc < 0)
        return rc;
    tr_assert(convo->welcome_part > 0);
    return import_step(run, CATBIRD_WELCOMES, &import_put_target, SQL_ROWS_ANY,
        VALUES(VALUE_TEXT(convo->id), VALUE_INT(convo->welcome_seq),
            VALUE_INT(convo->welcome_part - 1), VALUE_BLOB(ref, ref_size), VALUE_TEXT(did),
            VALUE_TEXT(device.size > DEVICE_SIZE_MAX ? SPAN("") : device),
            VALUE_INT(why.size > 0 ? WELCOME_INVALID : WELCOME_WAITING),
            VALUE_INT(run->import->now_ms), VALUE_TEXT(why)));
}

int import_welcomes(struct import_convo *convo)
{
    return source_each(convo->run, CATBIRD_WELCOMES, convo->id.at,
        "md5(welcome_data), recipient_did", on_welcome, convo);
}
