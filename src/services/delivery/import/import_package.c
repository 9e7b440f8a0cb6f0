/* SPDX-License-Identifier: Apache-2.0 */
/* import_package.c: key packages and their devices. The import checks a package as if it were
 * uploaded now. It takes used packages along, so that no account can publish one again. Existing
 * rows stay as they are. */
#include "crypto/encoding.h"
#include "services/common/param.h"
#include "services/delivery/api/api.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/package_store.h"
#include "services/delivery/store/schema.h"

/* ---- devices -------------------------------------------------------------------------------- */

static int on_device(void *data, const struct pg_result *row)
{
    struct import_run *run = data;
    struct span did = mls_identity_did(source_bytes(row, DEVICE_USER), NULL);
    struct span device = source_bytes(row, DEVICE_ID), hex = source_bytes(row, DEVICE_KEY);
    unsigned char key[256];
    const char *reason = NULL;
    size_t size = 0;

    if (!import_is_did(did) || device.at == NULL || !param_is_device(device))
        reason = "has no DID, or no device id";
    else if (hex.at == NULL || crypto_hex_decode(hex, key, sizeof key, &size) < 0 || size == 0)
        reason = "has no signature key: it registers again";
    import_fate(run, CATBIRD_DEVICES, reason, 1);
    if (reason != NULL)
        return 0;
    return import_step_maybe(run, &import_put_device, CATBIRD_DEVICES,
        VALUES(VALUE_TEXT(did), VALUE_TEXT(device),
            VALUE_TEXT(import_or_empty(source_bytes(row, DEVICE_NAME))), VALUE_BLOB(key, size),
            VALUE_INT(source_int_or(row, DEVICE_CREATED, run->import->now_ms))));
}

int import_devices(struct import_run *run)
{
    return source_each(run, CATBIRD_DEVICES, NULL, NULL, on_device, run);
}

/* ---- key packages --------------------------------------------------------------------------- */

struct package {
    struct span did;
    struct span device;
    struct mls_key_package read;
    unsigned char ref[MLS_REFERENCE_SIZE_MAX];
    size_t ref_size;
    int64_t not_after_s;
    bool is_used;
};

/* Finds the device in the credential, else in the row. */
static bool find_device(struct package *package, struct span said)
{
    struct span device, did = mls_identity_did(package->read.leaf.identity, &device);

    if (package->read.leaf.credential != MLS_CREDENTIAL_BASIC || !span_equal(did, package->did))
        return false;
    package->device = said.at != NULL && param_is_device(said) ? said : SPAN("");
    if (device.size > 0)
        package->device = device;
    return package->device.size == 0 || param_is_device(package->device);
}

/* Returns the end of its lifetime as the package or the row says it, whichever is earlier. An
 * endless one is cut to the longest that an upload may have. */
static int64_t find_end(
    const struct mls_key_package *package, const struct pg_result *row, int64_t now_s)
{
    uint64_t end_s = package->leaf.not_after_s;
    int64_t end_s_max = now_s + PACKAGE_SPAN_S_MAX;
    int64_t row_end_s = source_int_or(row, PACKAGE_EXPIRES, INT64_MAX) / 1000;

    if (end_s < (uint64_t)end_s_max)
        end_s_max = (int64_t)end_s;
    return row_end_s < end_s_max ? row_end_s : end_s_max;
}

static const char *check_package(
    struct package *package, const struct pg_result *row, int64_t now_s)
{
    struct span bytes = source_bytes(row, PACKAGE_BYTES);

    package->did = mls_identity_did(source_bytes(row, PACKAGE_OWNER), NULL);
    package->is_used = !source_is_null(row, PACKAGE_USED);
    if (!import_is_did(package->did))
        return "has no DID";
    if (bytes.size == 0 || bytes.size > KEY_PACKAGE_SIZE_MAX ||
        mls_key_package_read(bytes, &package->read) != NULL)
        return "is no key package";
    if (mls_suite_of(package->read.suite) == NULL)
        return "is of an unknown cipher suite";
    if (!find_device(package, source_bytes(row, PACKAGE_DEVICE)))
        return "is not of its owner";
    package->not_after_s = find_end(&package->read, row, now_s);
    if (package->not_after_s <= now_s)
        return "has expired";
    if (mls_key_package_check(&package->read, &(struct mls_lifetime_rule){ .now_s = (uint64_t)now_s,
                                                  .skew_s = PACKAGE_SKEW_S,
                                                  .span_s_max = UINT64_MAX }) != NULL)
        return "has a wrong signature or lifetime";
    package->ref_size = mls_key_package_reference(&package->read, package->ref);
    return package->ref_size == 0 ? "cannot be hashed" : NULL;
}

static int on_package(void *data, const struct pg_result *row)
{
    struct import_run *run = data;
    int64_t now_s = run->import->now_ms / 1000;
    struct package package = { .ref_size = 0 };
    const char *reason = check_package(&package, row, now_s);
    bool is_consumed;

    import_fate(run, CATBIRD_PACKAGES, reason, 1);
    if (reason != NULL)
        return 0;
    is_consumed = package.is_used && !package.read.is_last_resort;
    return import_step_maybe(run, &import_put_package, CATBIRD_PACKAGES,
        VALUES(VALUE_BLOB(package.ref, package.ref_size), VALUE_TEXT(package.did),
            VALUE_TEXT(package.device), VALUE_INT(package.read.suite),
            VALUE_BYTES(package.read.bytes), VALUE_INT(package.not_after_s),
            VALUE_INT(package.read.is_last_resort),
            /* A lease of the other server is lost. */
            VALUE_INT(is_consumed ? PACKAGE_CONSUMED : PACKAGE_FREE), VALUE_INT(package.is_used),
            VALUE_INT(source_int_or(row, PACKAGE_CREATED, run->import->now_ms) / 1000),
            VALUE_INT_IF(package.is_used, source_int(row, PACKAGE_USED) / 1000)));
}

int import_packages(struct import_run *run)
{
    return source_each(run, CATBIRD_PACKAGES, NULL, NULL, on_package, run);
}
