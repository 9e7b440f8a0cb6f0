/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/pack_manifest.h"

#include "crypto/encoding.h"

/* Rows are in the order of their statements: the last statement about a key counts. */
void pack_keys_gather(const struct pack *pack, struct manifest_keys *ret_keys)
{
    *ret_keys = (struct manifest_keys){ 0 };
    for (uint32_t i = 0; i < pack->key_count; i++) {
        struct span key = span_of(pack->keys[i].key);

        /* The key was checked when its statement arrived. */
        if (pack->keys[i].state == PACK_KEY_CURRENT)
            (void)manifest_keys_add(ret_keys, key);
        else
            (void)manifest_keys_retire(ret_keys, key);
    }
}

void pack_version_expected(const struct pack_version *version, struct manifest *ret_expected)
{
    *ret_expected = (struct manifest){ .size = version->size };
    packs_copy(ret_expected->pack, span_of(version->pack_name));
    packs_copy(ret_expected->version, span_of(version->version));
    packs_copy(ret_expected->type, span_of(version->type));
    packs_copy(ret_expected->sha256, span_of(version->sha256_hex));
}

int pack_signature_decode(struct span text, uint8_t ret_signature[PACK_SIGNATURE_BYTES])
{
    size_t size;

    if (crypto_base64url_decode(text, ret_signature, PACK_SIGNATURE_BYTES, &size) != 0 ||
        size != PACK_SIGNATURE_BYTES)
        return TR_EPROTO;
    return 0;
}

static void put_signature(struct json_writer *writer, struct span signature)
{
    char text[MANIFEST_SIGNATURE_CHARS];

    if (signature.size != PACK_SIGNATURE_BYTES)
        json_put_null(writer, "signature");
    else
        json_put_string(writer, "signature",
            (struct span){ text, crypto_base64url_encode(signature.at, signature.size, text) });
}

static void put_keys(struct json_writer *writer, const struct pack *pack)
{
    json_put_array(writer, "keys");
    for (uint32_t i = 0; i < pack->key_count; i++) {
        const struct pack_key *key = &pack->keys[i];

        json_put_object(writer, NULL);
        json_put_text(writer, "key", key->key);
        if (key->statement.size > 0) {
            json_put_string(writer, "statement", key->statement);
            put_signature(writer, key->signature);
        }
        json_put_end(writer);
    }
    json_put_end(writer);
}

void pack_put_manifest(struct json_writer *writer, const struct pack_version *version)
{
    if (version->manifest.size == 0) {
        json_put_null(writer, "manifest");
        json_put_null(writer, "signature");
    } else {
        json_put_string(writer, "manifest", version->manifest);
        put_signature(writer, version->signature);
    }
    put_keys(writer, version->pack);
}

void pack_put_keys(struct json_writer *writer, const struct pack *pack)
{
    json_put_text(writer, "pack", pack->name);
    put_keys(writer, pack);
}
