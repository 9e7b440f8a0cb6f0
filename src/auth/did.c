/* SPDX-License-Identifier: Apache-2.0 */
#include "auth/did.h"

#include <string.h>

#include <troupe/error.h>

#include "auth/jwk.h"
#include "base/assert.h"
#include "json/json.h"

static const char *const labels[DID_REFUSAL_COUNT] = {
#define LABEL(name, label, text) label,
    DID_REFUSALS(LABEL)
#undef LABEL
};
static const char *const texts[DID_REFUSAL_COUNT] = {
#define TEXT(name, label, text) text,
    DID_REFUSALS(TEXT)
#undef TEXT
};

const char *did_refusal_label(enum did_refusal refusal)
{
    tr_assert(refusal < DID_REFUSAL_COUNT);
    return labels[refusal];
}

const char *did_refusal_text(enum did_refusal refusal)
{
    tr_assert(refusal < DID_REFUSAL_COUNT);
    return texts[refusal];
}

static struct span did_skip(struct span text, size_t size)
{
    return (struct span){ text.at + size, text.size - size };
}

static enum did_refusal from_key_code(int code)
{
    return code == 0                 ? DID_OK
           : code == TR_ENOMEM       ? DID_NO_MEMORY
           : code == TR_EUNSUPPORTED ? DID_KEY_KIND
                                     : DID_KEY_BAD;
}

/* ---- the identifier -------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

/* idchar of DID Core section 3.1, and the colon; did_web_url checks a percent sign. */
static bool is_id_char(char c)
{
    return is_digit(c) || is_lower(c) || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' ||
           c == '_' || c == ':' || c == '%';
}

static bool is_plc_id(struct span id)
{
    if (id.size != 24)
        return false;
    for (size_t i = 0; i < id.size; i++)
        if (!is_lower(id.at[i]) && (id.at[i] < '2' || id.at[i] > '7'))
            return false;
    return true;
}

enum did_refusal did_parse(struct span text, struct did *ret_did)
{
    static const struct {
        const char *prefix;
        enum did_method method;
    } methods[] = { { "did:key:", DID_METHOD_KEY }, { "did:web:", DID_METHOD_WEB },
        { "did:plc:", DID_METHOD_PLC } };
    struct span id;

    if (text.size > DID_CHARS_MAX || !span_starts(text, "did:"))
        return DID_SYNTAX;
    for (size_t i = 4; i < text.size; i++)
        if (!is_id_char(text.at[i]))
            return DID_SYNTAX;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (!span_starts(text, methods[i].prefix))
            continue;
        id = did_skip(text, strlen(methods[i].prefix));
        if (id.size == 0 || id.at[id.size - 1] == ':' ||
            (methods[i].method == DID_METHOD_PLC && !is_plc_id(id)))
            return DID_SYNTAX;
        *ret_did = (struct did){ methods[i].method, id };
        return DID_OK;
    }
    return DID_METHOD;
}

enum did_refusal did_key_parse(struct span text, struct crypto_key **ret_key)
{
    struct did did;
    enum did_refusal refusal = did_parse(text, &did);

    if (refusal != DID_OK)
        return refusal;
    if (did.method != DID_METHOD_KEY)
        return DID_METHOD;
    return from_key_code(crypto_multikey_decode(did.id, ret_key));
}

size_t did_key_format(const struct crypto_key *key, char ret_text[DID_KEY_CHARS_MAX])
{
    static const struct span prefix = { "did:key:", 8 };
    size_t size = crypto_multikey_encode(key, ret_text + prefix.size);

    if (size == 0)
        return 0;
    memcpy(ret_text, prefix.at, prefix.size);
    return prefix.size + size;
}

/* ---- did:web --------------------------------------------------------------------------------- */

/* Top-level names that are never public: special-use ones (RFC 6761, 6762, 7686, 8375, 9476) and those
 * that home and company networks use. */
static const char *const private_tlds[] = { "localhost", "local", "internal", "arpa", "onion",
    "test", "invalid", "example", "alt", "lan", "home", "corp", "intranet", "private" };

struct host {
    size_t label_count;
    struct span last;
    bool is_numeric; /* every label is a number from 0 to 255 in its shortest form */
};

static bool is_label(struct span label)
{
    if (label.size == 0 || label.size > 63 || label.at[0] == '-' || label.at[label.size - 1] == '-')
        return false;
    for (size_t i = 0; i < label.size; i++)
        if (!is_lower(label.at[i]) && !is_digit(label.at[i]) && label.at[i] != '-')
            return false;
    return true;
}

static bool split_host(struct span name, struct host *ret_host)
{
    struct host host = { .is_numeric = true };
    struct span rest = name;
    uint64_t number;

    if (name.size == 0 || name.size > 253)
        return false;
    for (;;) {
        const char *dot = memchr(rest.at, '.', rest.size);

        host.last = (struct span){ rest.at, dot == NULL ? rest.size : (size_t)(dot - rest.at) };
        if (!is_label(host.last))
            return false;
        host.is_numeric = host.is_numeric && span_u64(host.last, &number) && number <= 255 &&
                          (host.last.size == 1 || host.last.at[0] != '0');
        host.label_count++;
        if (dot == NULL)
            break;
        rest = did_skip(rest, host.last.size + 1);
    }
    *ret_host = host;
    return true;
}

/* Tell whether a resolver would read the host as an address, also in forms like 127.1 or 0x7f000001.
 */
static bool is_address(const struct host *host)
{
    bool is_number = true;

    if (span_starts(host->last, "0x"))
        return true;
    for (size_t i = 0; i < host->last.size; i++)
        is_number = is_number && is_digit(host->last.at[i]);
    return is_number;
}

static bool is_private_name(const struct host *host)
{
    if (host->label_count < 2)
        return true;
    for (size_t i = 0; i < sizeof private_tlds / sizeof private_tlds[0]; i++)
        if (span_is(host->last, private_tlds[i]))
            return true;
    return false;
}

static enum did_refusal check_host(struct span name, bool allow_private, bool *ret_is_http)
{
    struct host host;

    *ret_is_http = false;
    if (!split_host(name, &host))
        return DID_HOST;
    if (is_address(&host)) {
        if (!allow_private)
            return DID_PRIVATE;
        *ret_is_http = true;
        return host.is_numeric && host.label_count == 4 ? DID_OK : DID_HOST;
    }
    if (is_private_name(&host) && !allow_private)
        return DID_PRIVATE;
    *ret_is_http = span_is(name, "localhost");
    return DID_OK;
}

enum did_refusal did_web_url(struct span text, bool allow_private, struct buffer *url)
{
    struct did did;
    struct span name, port = { NULL, 0 };
    const char *percent;
    uint64_t number = 0;
    bool is_http;
    size_t before = url->size;
    enum did_refusal refusal = did_parse(text, &did);

    if (refusal != DID_OK)
        return refusal;
    if (did.method != DID_METHOD_WEB)
        return DID_METHOD;
    if (memchr(did.id.at, ':', did.id.size) != NULL)
        return DID_PATH;
    name = did.id;
    percent = memchr(name.at, '%', name.size);
    if (percent != NULL) {
        /* Only the colon before a port may be encoded, and only as %3A. */
        name.size = (size_t)(percent - did.id.at);
        port = did_skip(did.id, name.size);
        if (!span_starts(port, "%3A"))
            return DID_HOST;
        port = did_skip(port, 3);
        if (port.size == 0 || port.size > 5 || port.at[0] == '0' || !span_u64(port, &number) ||
            number > 65535)
            return DID_HOST;
    }
    refusal = check_host(name, allow_private, &is_http);
    if (refusal != DID_OK)
        return refusal;
    buffer_text(url, is_http ? "http://" : "https://");
    buffer_span(url, name);
    if (port.size > 0) {
        buffer_text(url, ":");
        buffer_span(url, port);
    }
    buffer_text(url, "/.well-known/did.json");
    if (url->failed != 0)
        url->size = before;
    return url->failed != 0 ? DID_NO_MEMORY : DID_OK;
}

enum did_refusal did_plc_url(struct span text, struct span directory, struct buffer *url)
{
    struct did did;
    size_t before = url->size;
    enum did_refusal refusal = did_parse(text, &did);

    if (refusal != DID_OK)
        return refusal;
    if (did.method != DID_METHOD_PLC)
        return DID_METHOD;
    while (directory.size > 0 && directory.at[directory.size - 1] == '/')
        directory.size--;
    buffer_span(url, directory);
    buffer_text(url, "/");
    buffer_span(url, text);
    if (url->failed != 0)
        url->size = before;
    return url->failed != 0 ? DID_NO_MEMORY : DID_OK;
}

/* ---- the document ---------------------------------------------------------------------------- */

/* "#atproto", or the whole did:...#atproto. */
static bool is_method_id(struct span id, struct span did, struct span fragment)
{
    if (span_equal(id, fragment))
        return true;
    return id.size == did.size + fragment.size && memcmp(id.at, did.at, did.size) == 0 &&
           memcmp(id.at + did.size, fragment.at, fragment.size) == 0;
}

static enum did_refusal find_method(const struct json *methods, struct span did,
    struct span fragment, const struct json **ret_method)
{
    const struct json *found = NULL;
    struct span id;

    if (methods == NULL)
        return DID_KEY_MISSING;
    if (json_kind(methods) != JSON_ARRAY || json_count(methods) > DID_METHODS_MAX)
        return DID_DOCUMENT;
    for (struct json_iter it = json_iterate(methods); json_next(&it);) {
        if (json_kind(it.value) != JSON_OBJECT || !json_string(json_get(it.value, "id"), &id))
            return DID_DOCUMENT;
        if (!is_method_id(id, did, fragment))
            continue;
        if (found != NULL)
            return DID_KEY_AMBIGUOUS;
        found = it.value;
    }
    if (found == NULL)
        return DID_KEY_MISSING;
    *ret_method = found;
    return DID_OK;
}

static enum did_refusal read_method(
    const struct json *method, struct span did, struct crypto_key **ret_key)
{
    struct span text;

    if (json_get(method, "controller") != NULL &&
        (!json_string(json_get(method, "controller"), &text) || !span_equal(text, did)))
        return DID_CONTROLLER;
    if (!json_string(json_get(method, "type"), &text))
        return DID_DOCUMENT;
    if (span_is(text, "Multikey")) {
        if (!json_string(json_get(method, "publicKeyMultibase"), &text))
            return DID_KEY_BAD;
        return from_key_code(crypto_multikey_decode(text, ret_key));
    }
    if (span_is(text, "JsonWebKey") || span_is(text, "JsonWebKey2020"))
        return from_key_code(
            jwk_parse(json_get(method, "publicKeyJwk"), JWK_PUBLIC, ret_key, NULL));
    return DID_KEY_KIND;
}

static enum did_refusal read_document(
    const struct json *document, struct span did, struct span fragment, struct crypto_key **ret_key)
{
    const struct json *deactivated = json_get(document, "deactivated"), *method = NULL;
    struct span id;
    bool is_deactivated;
    enum did_refusal refusal;

    if (json_kind(document) != JSON_OBJECT)
        return DID_DOCUMENT;
    if (!json_string(json_get(document, "id"), &id) || !span_equal(id, did))
        return DID_DOCUMENT_ID;
    /* Any value but false counts as deactivated: when in doubt, refuse the identity. */
    if (deactivated != NULL && (!json_bool(deactivated, &is_deactivated) || is_deactivated))
        return DID_DEACTIVATED;
    refusal = find_method(json_get(document, "verificationMethod"), did, fragment, &method);
    if (refusal != DID_OK)
        return refusal;
    return read_method(method, did, ret_key);
}

enum did_refusal did_document_key(
    struct span document, struct span did, struct span fragment, struct crypto_key **ret_key)
{
    struct json_doc doc = { .depth_max = DID_DOCUMENT_DEPTH_MAX };
    enum did_refusal refusal;
    int rc;

    if (document.size > DID_DOCUMENT_BYTES_MAX)
        return DID_DOCUMENT_LARGE;
    rc = json_parse_copy(&doc, document, JSON_UNIQUE_KEYS);
    if (rc == 0)
        refusal = read_document(json_root(&doc), did, fragment, ret_key);
    else
        refusal = rc == TR_ENOMEM ? DID_NO_MEMORY : DID_DOCUMENT;
    json_doc_free(&doc);
    return refusal;
}
