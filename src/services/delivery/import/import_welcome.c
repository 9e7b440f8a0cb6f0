/* SPDX-License-Identifier: Apache-2.0 */
/* import_welcome.c: the unused Welcomes of a conversation. The source has a copy for each
 * recipient; here it is stored once. Ordered by bytes, the copies follow each other. */
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

static struct span device_of(struct span did)
{
    struct span bare = import_bare_did(did);

    if (bare.size == did.size || did.size - bare.size - 1 > DEVICE_SIZE_MAX)
        return SPAN("");
    return (struct span){ did.at + bare.size + 1, did.size - bare.size - 1 };
}

static const char *skip_welcome(const struct import_convo *convo, const struct source_row *row,
    struct mls_message *ret_welcome, struct member **ret_member)
{
    struct span bytes = source_bytes(row, TO_BYTES);
    struct span did = import_bare_did(source_bytes(row, TO_WHOM));

    if (source_int(row, TO_IS_CONSUMED) != 0)
        return "was used";
    if (bytes.size == 0 || bytes.size > WELCOME_SIZE_MAX ||
        mls_message_read(bytes, ret_welcome) != NULL || ret_welcome->wire != MLS_WELCOME)
        return "is no Welcome";
    *ret_member = did.size == 0 ? NULL : roster_find(&convo->roster, did);
    if (*ret_member == NULL || !convo->persons[*ret_member - convo->roster.members].is_in)
        return "is for somebody who is no member";
    return NULL;
}

/* Stores the Welcome at a place in the log that its recipient, a member since join_seq, can see. */
static void put_welcome_bytes(
    struct import_convo *convo, struct span bytes, int64_t created_ms, uint64_t join_seq)
{
    struct import_run *run = convo->run;
    unsigned char hash[32];

    crypto_sha256(bytes.at, bytes.size, hash);
    if (convo->welcome_part > 0 && memcmp(hash, convo->welcome_hash, sizeof hash) == 0 &&
        convo->welcome_seq >= join_seq)
        return;
    memcpy(convo->welcome_hash, hash, sizeof hash);
    convo->welcome_seq = join_seq;
    import_step(run, &import_put_welcome, 1);
    import_text(run, import_id(convo));
    import_int(run, (int64_t)convo->welcome_seq);
    import_int(run, convo->welcome_part++);
    import_blob(run, bytes);
    import_int(run, created_ms);
}

static int on_welcome(void *data, const struct source_row *row)
{
    struct import_convo *convo = data;
    struct import_run *run = convo->run;
    struct span why = source_bytes(row, TO_WHY), to = source_bytes(row, TO_WHOM);
    unsigned char ref[MLS_REFERENCE_SIZE_MAX];
    struct mls_message welcome;
    struct member *member = NULL;
    const char *reason = skip_welcome(convo, row, &welcome, &member);
    int64_t created_ms =
        source_is_null(row, TO_CREATED) ? run->import->now_ms : source_int(row, TO_CREATED);
    size_t ref_size;

    if (reason == NULL && !find_ref(&welcome, source_bytes(row, TO_REF), ref, &ref_size))
        reason = "names no key package";
    import_fate(run, CATBIRD_WELCOMES, reason, 1);
    if (reason != NULL)
        return 0;
    put_welcome_bytes(convo, source_bytes(row, TO_BYTES), created_ms,
        convo->persons[member - convo->roster.members].join_seq);
    import_step_maybe(run, &import_put_target, CATBIRD_WELCOMES);
    import_text(run, import_id(convo));
    import_int(run, (int64_t)convo->welcome_seq);
    import_int(run, convo->welcome_part - 1);
    import_blob(run, (struct span){ (const char *)ref, ref_size });
    import_text(run, import_bare_did(to));
    import_text(run, device_of(to));
    import_int(run, why.size > 0 ? WELCOME_INVALID : WELCOME_WAITING);
    import_int(run, run->import->now_ms);
    import_text(run, why);
    return import_store(run, false);
}

int import_welcomes(struct import_convo *convo)
{
    return import_select(convo->run, CATBIRD_WELCOMES,
        "WHERE convo_id::text = $1 ORDER BY md5(welcome_data), 2", convo->id, on_welcome, convo);
}
