/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/manifest_api.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/encoding.h"
#include "json/json_expect.h"
#include "services/packs/edit.h"

enum { SIGNATURE_BYTES = 64 };

/* ---- stored and served ---------------------------------------------------------------------- */

/* Rows are in the order of their statements: the last word about a key counts. */
void pack_keys_gather(const struct pack *pack, struct manifest_keys *ret_keys)
{
    *ret_keys = (struct manifest_keys){ 0 };
    for (uint32_t i = 0; i < pack->key_count; i++) {
        struct span key = span_of(pack->keys[i].key);

        /* It was checked when it came. */
        if (pack->keys[i].state == PACK_KEY_CURRENT)
            (void)manifest_keys_add(ret_keys, key);
        else
            (void)manifest_keys_retire(ret_keys, key);
    }
}

void pack_version_expected(
    const struct pack *pack, const struct pack_version *version, struct manifest *ret_expected)
{
    *ret_expected = (struct manifest){ .size = version->size };
    (void)snprintf(ret_expected->pack, sizeof ret_expected->pack, "%s", pack->name);
    (void)snprintf(ret_expected->version, sizeof ret_expected->version, "%s", version->version);
    (void)snprintf(ret_expected->type, sizeof ret_expected->type, "%s", version->type);
    (void)snprintf(ret_expected->sha256, sizeof ret_expected->sha256, "%s", version->sha256_hex);
}

int pack_signature_decode(struct span text, uint8_t ret_signature[SIGNATURE_BYTES])
{
    size_t size;

    if (crypto_base64url_decode(text, ret_signature, SIGNATURE_BYTES, &size) != 0 ||
        size != SIGNATURE_BYTES)
        return TR_EPROTO;
    return 0;
}

static void put_signature(struct json_writer *writer, struct span signature)
{
    char text[MANIFEST_SIGNATURE_CHARS];

    if (signature.size != SIGNATURE_BYTES)
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

void pack_put_manifest(
    struct json_writer *writer, const struct pack *pack, const struct pack_version *version)
{
    if (version == NULL || version->manifest.size == 0) {
        json_put_null(writer, "manifest");
        json_put_null(writer, "signature");
    } else {
        json_put_string(writer, "manifest", version->manifest);
        put_signature(writer, version->signature);
    }
    put_keys(writer, pack);
}

/* ---- GET packs/{name}/keys ------------------------------------------------------------------ */

static void put_pack_keys(struct json_writer *writer, const struct pack *pack)
{
    json_put_object(writer, NULL);
    json_put_text(writer, "pack", pack->name);
    put_keys(writer, pack);
    json_put_end(writer);
}

void api_get_pack_keys(struct http_request *request, void *state)
{
    struct packs_request *call = packs_request_start(request, state);
    struct buffer body = { 0 };
    const struct pack *pack;
    struct json_writer writer;

    if (call == NULL)
        return;
    pack = catalogue_pack(catalogue_view(call->packs), http_path_part(request, "name"));
    if (pack == NULL) {
        http_respond_error(request, 404, "PackNotFound", "there is no such pack");
        return;
    }
    writer = json_writer(&body);
    put_pack_keys(&writer, pack);
    if (json_writer_end(&writer) != 0)
        http_respond_shed(request, 503, 1, "memory");
    else
        http_respond_buffer(request, 200, "application/json", &body);
    buffer_free(&body);
}

/* ---- POST admin/packs/{name}/keys ----------------------------------------------------------- */

struct key_change {
    char statement[MANIFEST_BYTES_MAX];
    size_t statement_size;
    char signature[MANIFEST_SIGNATURE_CHARS];
};

SQL_STATEMENT(insert_key,
    "INSERT INTO pack_keys (pack, place, signing_key, state, statement, signature, created_ms)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7)");

static void refuse_statement(struct edit *edit, int rc)
{
    if (rc == TR_ENOMEM)
        edit_refuse(edit, 503, "memory", "");
    else if (rc == TR_EACCES)
        edit_refuse(edit, 422, "SignatureInvalid",
            "the statement is not signed by a key that counts for this pack");
    else if (rc == TR_ELIMIT)
        edit_refuse(
            edit, 409, "TooManyKeys", "retire a key first: a pack has at most 16 at a time");
    else if (rc == TR_EINVAL)
        edit_refuse(edit, 409, "LastKey",
            "this would retire the only key of the pack: add another one first");
    else if (rc == TR_ENOENT)
        edit_refuse(edit, 404, "KeyUnknown", "the key to retire does not count for this pack");
    else
        edit_refuse(edit, 422, "StatementInvalid",
            "this is no statement in canonical form about this pack");
}

/* The PRIMARY KEY makes sure that two statements cannot take one place. */
static void plan_key(struct edit *edit, const struct packs_view *view, struct sql_unit *unit)
{
    const struct pack *pack = edit_pack(edit, view);
    const struct key_change *data = edit->data;
    struct span text = { data->statement, data->statement_size };
    struct span signature = { data->signature, sizeof data->signature };
    struct manifest_statement statement;
    uint8_t bytes[SIGNATURE_BYTES];
    struct manifest_keys keys;
    size_t count;
    int rc;

    if (pack == NULL)
        return;
    if (pack->key_count >= MANIFEST_STATEMENTS_MAX) {
        edit_refuse(edit, 409, "TooManyKeys", "the keys of this pack have changed too often");
        return;
    }
    pack_keys_gather(pack, &keys);
    count = keys.count;
    rc = manifest_keys_apply(&keys, pack->name, text, signature);
    if (rc == 0)
        rc = manifest_statement_read(text, &statement, NULL);
    if (rc == 0)
        rc = pack_signature_decode(signature, bytes);
    if (rc != 0) {
        refuse_statement(edit, rc);
        return;
    }
    if (keys.count == count) { /* it adds a key that counts already */
        edit_done(edit);
        return;
    }
    sql_unit_step(unit, &insert_key, 1);
    sql_unit_int(unit, pack->id);
    sql_unit_int(unit, (int64_t)pack->key_count + 1);
    sql_unit_text(unit, span_of(statement.subject));
    sql_unit_int(unit, statement.is_retire ? PACK_KEY_RETIRED : PACK_KEY_CURRENT);
    sql_unit_text(unit, text);
    sql_unit_blob(unit, bytes, sizeof bytes);
    sql_unit_int(unit, edit->now_ms);
}

static void answer_key(const struct edit *edit, const struct packs_view *view,
    const struct sql_unit *unit, struct json_writer *writer)
{
    const struct pack *pack = catalogue_any_pack(view, span_of(edit->pack));

    (void)unit;
    if (pack != NULL)
        put_pack_keys(writer, pack);
    else
        json_put_null(writer, NULL);
}

static void finish_key(struct edit *edit)
{
    base_free(edit->data);
}

static const struct edit_kind key_kind = {
    .action = "key",
    .plan = plan_key,
    .answer = answer_key,
    .finish = finish_key,
};

/* NULL: the request has been answered. */
static struct key_change *read_key_change(struct http_request *request)
{
    struct json_doc doc = { .depth_max = 4 };
    struct key_change *data = NULL;
    struct span statement, signature;
    struct json_expect expect;

    if (json_parse(&doc, http_body_bytes(request), http_body(request).size, JSON_UNIQUE_KEYS) !=
        0) {
        http_respond_error(request, 400, "InvalidRequest", "the body is not JSON");
        json_doc_free(&doc);
        return NULL;
    }
    expect = json_expect(json_root(&doc));
    statement = json_need_string(&expect, "statement", 1, MANIFEST_BYTES_MAX);
    signature =
        json_need_string(&expect, "signature", MANIFEST_SIGNATURE_CHARS, MANIFEST_SIGNATURE_CHARS);
    if (expect.failed) {
        http_respond_error(request, 400, "InvalidRequest", expect.message);
    } else {
        data = base_calloc(sizeof *data);
        if (data == NULL) {
            http_respond_shed(request, 503, 1, "memory");
        } else {
            memcpy(data->statement, statement.at, statement.size);
            data->statement_size = statement.size;
            memcpy(data->signature, signature.at, sizeof data->signature);
        }
    }
    json_doc_free(&doc);
    return data;
}

void api_post_pack_key(struct http_request *request, void *state)
{
    struct key_change *data;
    struct edit *edit;

    if (packs_request_start(request, state) == NULL)
        return;
    data = read_key_change(request);
    if (data == NULL)
        return;
    edit = edit_create(request, &key_kind);
    if (edit == NULL) {
        base_free(data);
        return;
    }
    edit->data = data;
    if (edit_read_path(request, edit))
        edit_ask(request, edit);
}
