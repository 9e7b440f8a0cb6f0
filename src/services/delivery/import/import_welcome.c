/* SPDX-License-Identifier: Apache-2.0 */
/* import_welcome.c: the unused Welcomes of a conversation. The source has a copy for each
 * recipient; here it is stored once. Ordered by bytes, the copies follow each other. */
#include "base/assert.h"
#include "crypto/digest.h"
#include "crypto/encoding.h"
#include "services/common/param.h"
#include "services/delivery/api/api.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/schema.h"

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
        if (*ret_size > 0 && reference.size == *ret_size &&
            memcmp(reference.at, ref, *ret_size) == 0)
            return true;
    }
    if (first.at != NULL && first.size <= MLS_REFERENCE_SIZE_MAX &&
        (welcome->secret_count == 1 || *ret_size == 0)) {
        memcpy(ref, first.at, first.size);
        *ret_size = first.size;
    }
    return *ret_size > 0;
}

static const char *skip_welcome(const struct import_convo *convo, const struct pg_result *row,
    struct mls_message *ret_welcome, const struct import_person **ret_person)
{
    struct span bytes = source_bytes(row, TO_BYTES);

    if (source_int(row, TO_IS_CONSUMED) != 0)
        return "was used";
    if (bytes.size == 0 || bytes.size > WELCOME_SIZE_MAX ||
        mls_message_read(bytes, ret_welcome) != NULL || ret_welcome->wire != MLS_WELCOME)
        return "is no Welcome";
    *ret_person = import_person_find(convo, mls_identity_did(source_bytes(row, TO_WHOM), NULL));
    if (*ret_person == NULL || !(*ret_person)->is_in)
        return "is for somebody who is no member";
    return NULL;
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
    return import_step(convo->run, &import_put_welcome, 1,
        VALUES(VALUE_TEXT(convo->id), VALUE_INT(convo->welcome_seq), VALUE_INT(part),
            VALUE_BYTES(bytes), VALUE_INT(created_ms)));
}

static int on_welcome(void *data, const struct pg_result *row)
{
    struct import_convo *convo = data;
    struct import_run *run = convo->run;
    struct span device, did = mls_identity_did(source_bytes(row, TO_WHOM), &device);
    struct span why = source_bytes(row, TO_WHY);
    unsigned char ref[MLS_REFERENCE_SIZE_MAX];
    struct mls_message welcome;
    const struct import_person *person = NULL;
    const char *reason = skip_welcome(convo, row, &welcome, &person);
    size_t ref_size;
    int rc;

    if (reason == NULL && !find_ref(&welcome, source_bytes(row, TO_REF), ref, &ref_size))
        reason = "names no key package";
    import_fate(run, CATBIRD_WELCOMES, reason, 1);
    if (reason != NULL)
        return 0;
    rc = put_welcome_bytes(convo, source_bytes(row, TO_BYTES),
        source_int_or(row, TO_CREATED, run->import->now_ms), person->join_seq);
    if (rc < 0)
        return rc;
    tr_assert(convo->welcome_part > 0);
    return import_step_maybe(run, &import_put_target, CATBIRD_WELCOMES,
        VALUES(VALUE_TEXT(convo->id), VALUE_INT(convo->welcome_seq),
            VALUE_INT(convo->welcome_part - 1), VALUE_BLOB(ref, ref_size), VALUE_TEXT(did),
            VALUE_TEXT(device.size > DEVICE_SIZE_MAX ? SPAN("") : import_or_empty(device)),
            VALUE_INT(why.size > 0 ? WELCOME_INVALID : WELCOME_WAITING),
            VALUE_INT(run->import->now_ms), VALUE_TEXT(why)));
}

int import_welcomes(struct import_convo *convo)
{
    return source_each(
        convo->run, CATBIRD_WELCOMES, convo->id.at, "md5(welcome_data), 2", on_welcome, convo);
}
