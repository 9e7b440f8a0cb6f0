/* SPDX-License-Identifier: Apache-2.0 */
/* libolm.c: objects of libolm in our memory. With the build option olm_backend=libolm, the files of
 * this folder replace those of the same name above it; everything else is the same code.
 * CVE-2024-45191 (timing of AES) and 45192 (timing of base64, here of session keys and pickles) are
 * libolm's and stay. Each file says where this backend differs from our own code. */
#include "matrix/crypto/libolm/libolm.h"

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/assert.h"

enum { LIBOLM_PICKLE_BYTES_MAX = 1 << 16 }; /* a session with all its skipped keys has 5 KB */

/* Our envelope protects the pickle; libolm wants a key for its own one too. */
static const char libolm_pickle_key[] = "TROUPE";

void *mx__libolm_create(const struct mx__libolm_type *type)
{
    void *memory = base_alloc(type->size());

    return memory == NULL ? NULL : type->init(memory);
}

void mx__libolm_destroy(const struct mx__libolm_type *type, void *object)
{
    if (object != NULL)
        (void)type->clear(object);
    base_free(object);
}

/* Create an object from the pickle at `text`, which libolm overwrites. MX_EFORMAT, TR_ENOMEM. */
static int libolm_unpickle(
    const struct mx__libolm_type *type, void *text, size_t size, void **ret_object)
{
    void *object = mx__libolm_create(type);

    if (object == NULL)
        return TR_ENOMEM;
    if (type->unpickle(object, libolm_pickle_key, sizeof libolm_pickle_key, text, size) ==
        olm_error()) {
        mx__libolm_destroy(type, object);
        return MX_EFORMAT;
    }
    *ret_object = object;
    return 0;
}

void mx__libolm_pack(struct mx__pack *pack, const struct mx__libolm_type *type, void **object)
{
    uint32_t size = pack->mode == MX__PACK_READ ? 0 : (uint32_t)type->pickle_length(*object);
    void *text;
    size_t written;

    mx__pack_u32(pack, &size, LIBOLM_PICKLE_BYTES_MAX);
    text = mx__pack_place(pack, size);
    if (text == NULL)
        return;
    if (pack->mode == MX__PACK_READ) {
        pack->rc = libolm_unpickle(type, text, size, object);
        return;
    }
    written = type->pickle(*object, libolm_pickle_key, sizeof libolm_pickle_key, text, size);
    tr_assert(written == size);
}

int mx__libolm_error(enum OlmErrorCode code)
{
    static const int errors[] = {
        [OLM_BAD_MESSAGE_VERSION] = MX_EVERSION,
        [OLM_BAD_MESSAGE_MAC] = MX_EMAC,
        [OLM_BAD_MESSAGE_KEY_ID] = MX_EONETIME,
        [OLM_INVALID_BASE64] = MX_EBASE64,
        [OLM_UNKNOWN_MESSAGE_INDEX] = MX_EINDEX,
        [OLM_BAD_SIGNATURE] = MX_ESIGNATURE,
    };
    const size_t count = sizeof errors / sizeof errors[0];

    tr_assert(code != OLM_NOT_ENOUGH_RANDOM);
    tr_assert(code != OLM_OUTPUT_BUFFER_TOO_SMALL);
    return (size_t)code < count && errors[code] != 0 ? errors[code] : MX_EFORMAT;
}
