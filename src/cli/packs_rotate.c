/* SPDX-License-Identifier: Apache-2.0 */
/* packs_rotate.c: `troupe packs rotate`: a valid key of a pack signs that another key is valid too, or
 * that a key is retired. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <troupe/env.h>

#include "cli/packs_command.h"
#include "json/json_write.h"

/* Read a key, or the file of a private key. With `may_make`, create a missing file. */
static int read_subject(const char *text, bool may_make, char ret_key[CRYPTO_MULTIKEY_CHARS_MAX])
{
    struct manifest_keys keys = { 0 };
    struct crypto_key *key = NULL;
    int rc;

    if (manifest_keys_add(&keys, span_of(text)) == 0) {
        memcpy(ret_key, keys.keys[0], CRYPTO_MULTIKEY_CHARS_MAX);
        return CLI_OK;
    }
    /* Reject a malformed key; do not create a file of that name. */
    if (!packs_key_is_there(text) && (!may_make || strncmp(text, "z6Mk", 4) == 0))
        return packs_fail("'%s' is neither a key nor a file.", text);
    rc = packs_key_load(text, may_make, &key);
    if (rc != CLI_OK)
        return rc;
    (void)crypto_multikey_encode(key, ret_key);
    crypto_key_unref(&key);
    return CLI_OK;
}

/* {"statement":"…","signature":"…"}, terminated. */
static int write_statement(
    const struct manifest_statement *statement, const struct crypto_key *key, struct buffer *body)
{
    char signature[MANIFEST_SIGNATURE_CHARS + 1];
    struct buffer text = { 0 };
    struct json_writer writer;
    int rc = manifest_statement_write(statement, &text);

    if (rc == 0)
        rc = manifest_sign(key, (struct span){ text.bytes, text.size }, signature);
    if (rc == 0) {
        writer = json_writer(body);
        json_put_object(&writer, NULL);
        json_put_string(&writer, "statement", (struct span){ text.bytes, text.size });
        json_put_text(&writer, "signature", signature);
        json_put_end(&writer);
        rc = json_writer_end(&writer);
    }
    if (rc == 0)
        rc = buffer_append(body, "", 1);
    buffer_free(&text);
    return rc == 0 ? CLI_OK : packs_fail("The statement could not be signed.");
}

static int send_statement(const struct packs_arguments *arguments, const char *body)
{
    struct packs_answer answer = { 0 };
    struct packs_web web;
    char path[512];
    int rc = CLI_OK;

    if (!packs_web_open_admin(&web, arguments))
        return CLI_FAILED;
    snprintf(path, sizeof path, "/v1/admin/packs/%s/keys", arguments->word);
    if (packs_web_ask(&web, "POST", path, body, &answer) == 404 &&
        packs_answer_is(&answer, "PackNotFound"))
        rc = packs_fail("There is no pack %s on %s.", arguments->word,
            web.socket[0] != '\0' ? web.socket : web.base);
    else if (answer.status != 200)
        rc = packs_web_complain(&web, "The change of keys", &answer);
    packs_answer_fini(&answer);
    packs_web_close(&web);
    return rc;
}

int packs_rotate(const struct packs_arguments *arguments)
{
    const struct tr_env *env = tr_env_real();
    struct manifest_statement statement = { .is_retire = arguments->retire != NULL,
        .created_s = (int64_t)(env->wall_ns(env->data) / 1000000000) };
    const char *subject = statement.is_retire ? arguments->retire : arguments->add;
    struct buffer body = { 0 };
    struct crypto_key *key = NULL;
    int rc;

    if (arguments->word == NULL)
        return cli_wrong(
            arguments->command, "Name the pack, as in `troupe packs rotate NAME`", NULL);
    if (!manifest_is_pack(span_of(arguments->word)))
        return packs_wrong_pack(arguments, "A pack name has", arguments->word);
    if (subject == NULL || (statement.is_retire && arguments->add != NULL))
        return cli_wrong(
            arguments->command, "Name the key with either --add KEY or --retire KEY", NULL);
    snprintf(statement.pack, sizeof statement.pack, "%s", arguments->word);
    rc = packs_key_load(arguments->key, false, &key);
    if (rc != CLI_OK)
        return rc;
    (void)crypto_multikey_encode(key, statement.key);
    rc = read_subject(subject, !statement.is_retire, statement.subject);
    if (rc == CLI_OK)
        rc = write_statement(&statement, key, &body);
    if (rc == CLI_OK)
        rc = send_statement(arguments, body.bytes);
    if (rc == CLI_OK)
        printf("%s %s for %s\n", statement.subject,
            statement.is_retire ? "is retired" : "is now valid", arguments->word);
    buffer_free(&body);
    crypto_key_unref(&key);
    return rc;
}
