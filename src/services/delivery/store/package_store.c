/* SPDX-License-Identifier: Apache-2.0 */
/* package_store.c: what may enter the pool, and how it does. The limits are conditions of the
 * INSERT, so that two uploads at once cannot pass them together. */
#include "services/delivery/api/api_query.h"
#include "services/delivery/api/package.h"
#include "services/delivery/api/text.h"
#include "services/delivery/store/schema.h"
#include "sql/unit.h"

/* ---- reading -------------------------------------------------------------------------------- */

void package_read(struct json_expect *expect, struct package_upload *ret_upload)
{
    const struct json *bytes = json_get(expect->object, "keyPackage");
    struct span expires;

    *ret_upload = (struct package_upload){ .device = SPAN("") };
    if (bytes == NULL || !delivery_get_bytes(bytes, KEY_PACKAGE_SIZE_MAX, &ret_upload->bytes) ||
        ret_upload->bytes.size == 0)
        json_expect_fail(expect, "keyPackage", "must be base64 of at most 64 KiB");
    ret_upload->suite = json_may_string(expect, "cipherSuite", 1, 63);
    ret_upload->is_last_resort = json_may_bool(expect, "lastResort", false);
    expires = json_may_string(expect, "expires", 20, 40);
    if (expires.at != NULL && !delivery_get_time(expires, &ret_upload->expires_s))
        json_expect_fail(expect, "expires", "must be a time like 2026-11-15T12:00:00Z");
}

/* ---- deciding ------------------------------------------------------------------------------- */

struct package_rule package_rule_of(
    const struct delivery *delivery, struct span did, struct span device)
{
    return (struct package_rule){
        .did = did,
        .device = device,
        .mode = delivery->mode,
        .lifetime = { .now_s = (uint64_t)api_query_now_s(delivery),
            .skew_s = PACKAGE_SKEW_S,
            .span_s_max = PACKAGE_SPAN_S_MAX },
    };
}

static void refuse(struct package_upload *upload, const char *label, const char *why)
{
    upload->label = label;
    upload->why = why;
    upload->status = 400;
}

/* Identity is the DID, or the DID, # and the device. */
static const char *check_identity(struct package_upload *upload, const struct package_rule *rule)
{
    const struct mls_leaf *leaf = &upload->package.leaf;
    struct span fragment;

    upload->device = rule->device;
    if (leaf->credential != MLS_CREDENTIAL_BASIC)
        return "the credential is not a basic one";
    if (span_equal(leaf->identity, rule->did))
        return NULL;
    if (leaf->identity.size < rule->did.size + 2 ||
        memcmp(leaf->identity.at, rule->did.at, rule->did.size) != 0 ||
        leaf->identity.at[rule->did.size] != '#')
        return "the credential is not of the caller";
    fragment = (struct span){ leaf->identity.at + rule->did.size + 1,
        leaf->identity.size - rule->did.size - 1 };
    if (!api_query_is_device(fragment))
        return "what follows # in the credential is no device id";
    if (rule->device.size > 0 && !span_equal(fragment, rule->device))
        return "the credential is of another device";
    upload->device = fragment;
    return NULL;
}

static bool is_too_far(const struct package_upload *upload, const struct package_rule *rule)
{
    const struct mls_leaf *leaf = &upload->package.leaf;
    int64_t last_s = (int64_t)(rule->lifetime.now_s + rule->lifetime.span_s_max);

    return (rule->mode != DELIVERY_BLIND && leaf->not_after_s > leaf->not_before_s &&
               leaf->not_after_s - leaf->not_before_s > rule->lifetime.span_s_max) ||
           upload->expires_s > last_s;
}

static void set_end(struct package_upload *upload)
{
    uint64_t end_s = upload->package.leaf.not_after_s;

    upload->not_after_s = end_s > INT64_MAX ? INT64_MAX : (int64_t)end_s;
    if (upload->expires_s != 0 && upload->expires_s < upload->not_after_s)
        upload->not_after_s = upload->expires_s;
}

void package_check(struct package_upload *upload, const struct package_rule *rule)
{
    const char *why = mls_key_package_read(upload->bytes, &upload->package);
    const struct mls_suite *suite;

    if (why != NULL) {
        refuse(upload, "InvalidKeyPackage", why);
        return;
    }
    suite = mls_suite_of(upload->package.suite);
    if (suite == NULL || (upload->suite.at != NULL && mls_suite_named(upload->suite) != suite)) {
        refuse(upload, "InvalidCipherSuite",
            suite == NULL ? "this cipher suite is not known here"
                          : "cipherSuite is not the one inside the key package");
        return;
    }
    why = upload->package.leaf.source == MLS_FROM_KEY_PACKAGE ? NULL
                                                              : "the leaf is of no key package";
    if (why == NULL)
        why = check_identity(upload, rule);
    if (why == NULL && rule->signature_key.at != NULL &&
        !span_equal(rule->signature_key, upload->package.leaf.signature_key))
        why = "the key package carries another signature key than the device";
    if (why == NULL && is_too_far(upload, rule)) {
        refuse(upload, "ExpirationTooFar",
            "the key package is valid for longer than this server allows");
        return;
    }
    if (why == NULL && rule->mode != DELIVERY_BLIND)
        why = mls_key_package_check(&upload->package, &rule->lifetime);
    set_end(upload);
    if (why == NULL && upload->not_after_s <= (int64_t)rule->lifetime.now_s)
        why = "the key package has expired";
    if (why != NULL) {
        refuse(upload, "InvalidKeyPackage", why);
        return;
    }
    upload->is_last_resort = upload->is_last_resort || upload->package.is_last_resort;
    upload->ref_size = mls_key_package_reference(&upload->package, upload->ref);
    if (upload->ref_size == 0) {
        refuse(upload, "Unavailable", "out of memory");
        upload->status = 503;
    }
}

/* ---- storing -------------------------------------------------------------------------------- */

SQL_STATEMENT(put_package,
    "INSERT INTO key_packages (ref, did, device, suite, bytes, not_after_s, is_last_resort, state,"
    " lease_until_s, uses, created_s) SELECT $1, $2, $3, $4, $5, $6, $7, 0, 0, 0, $8"
    " WHERE NOT EXISTS (SELECT 1 FROM devices WHERE did = $2 AND device = $3"
    " AND signature_key <> $9)"
    " AND ($12 = 0 OR EXISTS (SELECT 1 FROM devices WHERE did = $2 AND device = $3))"
    " AND ($7 = 1 OR (SELECT COUNT(*) FROM key_packages WHERE did = $2 AND is_last_resort = 0"
    " AND not_after_s > $8 AND (state = 0 OR (state = 1 AND lease_until_s <= $8))) < $10)"
    " AND (SELECT COUNT(*) FROM key_packages WHERE did = $2 AND device = $3 AND state <> 2"
    " AND not_after_s > $8) < $11"
    " ON CONFLICT DO NOTHING");
SQL_STATEMENT(why_not,
    "SELECT (SELECT COUNT(*) FROM key_packages WHERE ref = $1 AND did = $2),"
    " (SELECT COUNT(*) FROM devices WHERE did = $2 AND device = $3 AND signature_key <> $4)");
/* A new last resort takes over; who has just been given the old one can still use it. */
SQL_STATEMENT(retire_last_resorts,
    "UPDATE key_packages SET not_after_s = $5 WHERE did = $1 AND device = $2 AND suite = $3"
    " AND is_last_resort = 1 AND ref <> $4 AND not_after_s > $5"
    " AND created_s <= (SELECT created_s FROM key_packages WHERE ref = $4)");

void package_add_steps(struct sql_unit *unit, struct package_upload *upload,
    const struct package_rule *rule, uint64_t lease_s, bool is_registered)
{
    struct span key = upload->package.leaf.signature_key;
    int64_t now_s = (int64_t)rule->lifetime.now_s;

    upload->step = unit->step_count;
    sql_unit_step(unit, &put_package, SQL_ROWS_ANY);
    sql_unit_blob(unit, upload->ref, upload->ref_size);
    sql_unit_text(unit, rule->did);
    sql_unit_text(unit, upload->device);
    sql_unit_int(unit, upload->package.suite);
    sql_unit_blob(unit, upload->package.bytes.at, upload->package.bytes.size);
    sql_unit_int(unit, upload->not_after_s);
    sql_unit_int(unit, upload->is_last_resort);
    sql_unit_int(unit, now_s);
    sql_unit_blob(unit, key.at, key.size);
    sql_unit_int(unit, PACKAGES_FREE_MAX);
    sql_unit_int(unit, PACKAGES_DEVICE_MAX);
    sql_unit_int(unit, is_registered);

    sql_unit_step(unit, &why_not, 1);
    sql_unit_blob(unit, upload->ref, upload->ref_size);
    sql_unit_text(unit, rule->did);
    sql_unit_text(unit, upload->device);
    sql_unit_blob(unit, key.at, key.size);

    sql_unit_step(unit, &retire_last_resorts, SQL_ROWS_ANY);
    sql_unit_text(unit, rule->did);
    sql_unit_text(unit, upload->device);
    sql_unit_int(unit, upload->is_last_resort ? upload->package.suite : -1);
    sql_unit_blob(unit, upload->ref, upload->ref_size);
    sql_unit_int(unit, now_s + (int64_t)lease_s);
}

void package_stored(struct package_upload *upload, const struct sql_unit *unit)
{
    if (upload->label != NULL || sql_unit_changed(unit, upload->step) == 1 ||
        sql_row_int(unit, upload->step + 1, 0, 0) > 0) /* the same package again */
        return;
    if (sql_row_int(unit, upload->step + 1, 0, 1) > 0) {
        refuse(upload, "InvalidKeyPackage",
            "the key package carries another signature key than the registered device");
        return;
    }
    refuse(upload, "TooManyKeyPackages", "enough key packages of this account are stored");
    upload->status = 429;
}

/* ---- one lease ------------------------------------------------------------------------------ */

/* First of all the one that the device brought with its wish: it may have lost the keys of those
 * from before. That one is taken also from who had it before: from a member who has claimed the
 * addition and let it be, or from a stranger who cannot use it any more. */
#define WISHED "(SELECT w.package FROM device_additions w WHERE w.id = $7)"
#define MAY_LEASE                                                                                  \
    "(is_last_resort = 1 OR state = 0"                                                             \
    " OR (state = 1 AND (ref = " WISHED " OR lease_until_s <= $5)))"
SQL_STATEMENT(lease_package,
    "UPDATE key_packages SET state = CASE WHEN is_last_resort = 1 THEN state ELSE 1 END,"
    " lease_did = $4, lease_until_s = $6"
    " WHERE ref = (SELECT ref FROM key_packages WHERE did = $1 AND device = $2 AND suite = $3"
    " AND not_after_s > $5 AND " MAY_LEASE " AND (ref = " WISHED " OR NOT " PACKAGE_IS_BROUGHT ")"
    " ORDER BY CASE WHEN ref = " WISHED " THEN 0 ELSE 1 END, is_last_resort,"
    " CASE WHEN is_last_resort = 1 THEN -created_s ELSE created_s END, ref LIMIT 1)"
    " AND " MAY_LEASE
    " AND EXISTS (SELECT 1 FROM device_additions WHERE id = $7 AND state = 1 AND claimed_by = $4"
    " AND claim_until_ms > $8)"
    " RETURNING ref, bytes, is_last_resort");

void package_add_lease(struct sql_unit *unit, const struct package_lease *lease)
{
    sql_unit_step(unit, &lease_package, SQL_ROWS_ANY);
    sql_unit_text(unit, lease->did);
    sql_unit_text(unit, lease->device);
    sql_unit_int(unit, lease->suite);
    sql_unit_text(unit, lease->claimer);
    sql_unit_int(unit, lease->now_s);
    sql_unit_int(unit, lease->until_s);
    sql_unit_text(unit, lease->addition);
    sql_unit_int(unit, lease->now_ms);
}
