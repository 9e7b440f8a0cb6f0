/* SPDX-License-Identifier: Apache-2.0 */
/* sync_trust.c: devices, verification and key files of `troupe sync`. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "base/assert.h"
#include "cli/packs_command.h"
#include "cli/sync_command.h"
#include "crypto/digest.h"

enum {
    TRUST_MS = 30 * 1000, /* for the answer to a query of devices */
    READY_MS = 3000,      /* for the peer to start, before we do */
    ASK_STEP_MS = 300,    /* between looks for a cancel while the user thinks */
    POST_TRIES = 100,
    ANSWER_BYTES_MAX = 64,
    ROUNDS_MAX = 10 * 1000 * 1000, /* that a key file may ask for: half a minute */
};

/* ---- devices ---------------------------------------------------------------------------------- */

int sync_devices(struct sync_client *client)
{
    int status = sync_settle(client), rc;
    struct sync_call call;

    if (status != CLI_OK)
        return status;
    sync_call_start(&call, client, "devices");
    json_put_text(&call.writer, "user", client->arguments->words[1]);
    json_put_int(&call.writer, "timeoutMs", TRUST_MS);
    rc = sync_call_end(&call);
    if (rc != 0)
        status = sync_complain(client, "devices", rc);
    else if (client->arguments->as_json)
        status = sync_print_json(call.answer) ? CLI_OK : CLI_FAILED;
    else
        for (struct json_iter it = json_iterate(json_get(call.answer, "devices"));
             json_next(&it);) {
            sync_print_cell(sync_text(it.value, "deviceId"), 20);
            sync_print_cell(sync_text(it.value, "trust"), 10);
            sync_print_safe(sync_text(it.value, "ed25519"));
            putchar('\n');
        }
    sync_call_fini(&call);
    return status;
}

/* ---- key files -------------------------------------------------------------------------------- */

static void keys_fill(void *data, void *bytes, size_t size)
{
    (void)data;
    crypto_random_fill(bytes, size);
}

static int keys_export(struct sync_client *client, struct span passphrase)
{
    const struct mx_random random = { .fill = keys_fill };
    const struct mx_key_file_options options = { passphrase, MX_KEY_FILE_ROUNDS };
    const char *path = client->arguments->words[2];
    struct buffer sessions = { 0 }, file = { 0 };
    struct json_writer writer = json_writer(&sessions);
    struct sync_call call;
    size_t count = 0;
    int rc, status = CLI_OK;

    sync_call_start(&call, client, "export");
    rc = sync_call_end(&call);
    if (rc == 0) {
        json_put_value(&writer, NULL, json_get(call.answer, "sessions"));
        rc = json_writer_end(&writer);
        count = (size_t)json_get(call.answer, "sessions")->as.count;
    }
    if (rc == 0)
        rc = mx_key_file_encrypt(&options, mxclient_span(&sessions), &random, &file);
    if (rc != 0)
        status = sync_complain(client, "keys export", rc);
    else if (!packs_write(path, 0600, file.bytes, file.size))
        status = sync_fail("%s cannot be written: %s.", path, strerror(errno));
    else if (client->arguments->as_json)
        printf("{\"sessions\":%zu}\n", count);
    else
        (void)sync_say("%zu sessions are in %s.", count, path);
    mx_wipe_buffer(&sessions);
    buffer_free(&file);
    sync_call_fini(&call);
    return status;
}

static int keys_open(const char *path, struct span passphrase, struct buffer *sessions)
{
    const struct mx_key_file_options options = { passphrase, ROUNDS_MAX };
    struct buffer file;
    int rc;

    if (!packs_read(AT_FDCWD, path, MX_KEY_FILE_BYTES_MAX, &file))
        return sync_fail("%s cannot be read: %s.", path, strerror(errno));
    rc = mx_key_file_decrypt(&options, mxclient_span(&file), sessions);
    buffer_free(&file);
    if (rc == MX_EMAC)
        return sync_fail("The passphrase does not open %s, or the file was changed.", path);
    return rc == 0 ? CLI_OK : sync_fail("%s is no key file: %s.", path, sync_error_text(rc));
}

static int keys_import(struct sync_client *client, struct span passphrase)
{
    struct buffer sessions = { 0 };
    struct sync_call call;
    int status = keys_open(client->arguments->words[2], passphrase, &sessions), rc;

    if (status == CLI_OK)
        status = sync_settle(client);
    if (status != CLI_OK) {
        mx_wipe_buffer(&sessions);
        return status;
    }
    sync_call_start(&call, client, "import");
    json_put_string(&call.writer, "text", mxclient_span(&sessions));
    rc = sync_call_end(&call);
    if (rc != 0)
        status = sync_complain(client, "keys import", rc);
    else if (client->arguments->as_json)
        status = sync_print_json(call.answer) ? CLI_OK : CLI_FAILED;
    else
        printf("%lld sessions: %lld new, %lld known, %lld not valid.\n",
            (long long)sync_number(call.answer, "sessions"),
            (long long)sync_number(call.answer, "taken"),
            (long long)sync_number(call.answer, "known"),
            (long long)sync_number(call.answer, "invalid"));
    mx_wipe_buffer(&sessions);
    sync_call_fini(&call);
    return status;
}

int sync_keys(struct sync_client *client)
{
    const struct sync_arguments *arguments = client->arguments;
    struct buffer passphrase;
    int status;

    if (strcmp(arguments->words[1], "export") != 0 && strcmp(arguments->words[1], "import") != 0)
        return cli_wrong(arguments->command, "`troupe sync keys` takes export or import, not",
            arguments->words[1]);
    if (!sync_read_secret(arguments->passphrase_file, "The passphrase file", &passphrase))
        return CLI_FAILED;
    status = strcmp(arguments->words[1], "export") == 0
                 ? keys_export(client, mxclient_span(&passphrase))
                 : keys_import(client, mxclient_span(&passphrase));
    mx_wipe_buffer(&passphrase);
    return status;
}

/* ---- verification ----------------------------------------------------------------------------- */

/* One verification. */
struct verify {
    struct sync_client *client;
    struct json_doc emoji;        /* of --emoji; empty: English names */
    struct buffer transaction_id; /* empty: none has begun */
    int64_t seq;                  /* of the last step that was read */
    bool is_ready;                /* at step `ready`, and the peer has not started */
    struct buffer answer;         /* the line that the user types */
};

static int verify_act(const struct verify *verify, const char *act)
{
    struct sync_call call;
    int rc;

    sync_call_start(&call, verify->client, "act");
    json_put_string(&call.writer, "text", mxclient_span(&verify->transaction_id));
    json_put_text(&call.writer, "act", act);
    rc = sync_call_end(&call);
    sync_call_fini(&call);
    return rc;
}

/* Read the next step of this verification. TR_ETIMEOUT without one in time; 0 waits for ever. */
static int verify_next(struct verify *verify, int64_t timeout_ms, struct sync_call *call)
{
    bool is_ours = false;
    int rc = 0;

    while (rc == 0 && !is_ours) {
        sync_call_start(call, verify->client, "news");
        json_put_int(&call->writer, "after", verify->seq);
        if (timeout_ms > 0)
            json_put_int(&call->writer, "timeoutMs", timeout_ms);
        rc = sync_call_end(call);
        if (rc == 0) {
            verify->seq = sync_number(call->answer, "seq");
            is_ours = verify->transaction_id.size == 0
                          ? span_is(sync_text(call->answer, "step"), "asked")
                          : span_equal(sync_text(call->answer, "transactionId"),
                                mxclient_span(&verify->transaction_id));
        }
        if (!is_ours)
            sync_call_fini(call);
    }
    return rc;
}

static void verify_show_code(const struct verify *verify, const struct json *news)
{
    const struct json *emoji = json_get(news, "emoji"), *decimals = json_get(news, "decimals");
    int64_t number = 0;

    printf("\n");
    for (struct json_iter it = json_iterate(emoji); json_next(&it);)
        if (json_int(it.value, &number) && number >= 0 && number < MX_SAS_EMOJIS) {
            printf("   %s  ", mx_sas_emojis[number].emoji);
            sync_print_safe(sync_emoji_name(json_root(&verify->emoji), number));
            putchar('\n');
        }
    for (struct json_iter it = json_iterate(decimals); emoji == NULL && json_next(&it);)
        if (json_int(it.value, &number))
            printf("   %lld", (long long)number);
    printf("\nDoes the other device show the same, in the same order? (y/n) ");
    (void)fflush(stdout);
}

/* Take a line of the user: 1 yes, 0 no, -1 none yet, -2 the input has ended. */
static int verify_read_answer(struct verify *verify)
{
    char byte;
    int answer;

    for (;;) {
        ssize_t got = read(STDIN_FILENO, &byte, 1);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -2;
        if (byte != '\n' && verify->answer.size < ANSWER_BYTES_MAX)
            (void)buffer_append(&verify->answer, &byte, 1);
        if (byte == '\n')
            break;
        if (poll(&(struct pollfd){ .fd = STDIN_FILENO, .events = POLLIN }, 1, 0) <= 0)
            return -1;
    }
    answer = -1;
    if (span_is_nocase(mxclient_span(&verify->answer), "yes") ||
        span_is_nocase(mxclient_span(&verify->answer), "y"))
        answer = 1;
    else if (span_is_nocase(mxclient_span(&verify->answer), "no") ||
             span_is_nocase(mxclient_span(&verify->answer), "n"))
        answer = 0;
    else if (!verify->client->arguments->as_json) {
        printf("Type y or n: ");
        (void)fflush(stdout);
    }
    buffer_clear(&verify->answer);
    return answer;
}

/* Wait for the user's answer, or for a step of the peer: a cancel, in *call. Returns 1 yes, 0 no,
 * -1 a step came, or TR_ECANCELLED, TR_ECLOSED (both below -1). */
static int verify_ask_user(struct verify *verify, struct sync_call *call)
{
    for (;;) {
        struct pollfd fds[] = { { .fd = STDIN_FILENO, .events = POLLIN },
            { .fd = verify->client->signal_fd, .events = POLLIN } };
        int rc = poll(fds, 2, ASK_STEP_MS);

        if (sync_is_signalled(verify->client))
            return TR_ECANCELLED;
        if (rc > 0 && fds[0].revents != 0) {
            int answer = verify_read_answer(verify);

            if (answer >= 0)
                return answer;
            if (answer == -2)
                return TR_ECANCELLED;
            continue;
        }
        rc = verify_next(verify, 1, call);
        if (rc == 0)
            return -1;
        if (rc != TR_ETIMEOUT)
            return rc;
    }
}

static void verify_tell(const struct verify *verify, const struct json *news)
{
    struct span step = sync_text(news, "step"), user = sync_text(news, "userId");
    struct span device = sync_text(news, "deviceId"), reason = sync_text(news, "reason");

    if (verify->client->arguments->as_json) {
        (void)sync_print_json(news);
        return;
    }
    if (span_is(step, "asked"))
        (void)sync_say("%.*s asks with the device %.*s.", (int)user.size, user.at, (int)device.size,
            device.at);
    else if (span_is(step, "ready"))
        (void)sync_say("The device %.*s of %.*s is ready.", (int)device.size, device.at,
            (int)user.size, user.at);
    else if (span_is(step, "compare"))
        verify_show_code(verify, news);
    else if (span_is(step, "confirmed"))
        (void)sync_say("Waiting for the other side.");
    else if (span_is(step, "done"))
        (void)sync_say("The device %.*s of %.*s is verified.", (int)device.size, device.at,
            (int)user.size, user.at);
    else if (span_is(step, "cancelled"))
        (void)sync_say("Not verified: %.*s%s.", (int)reason.size, reason.at,
            sync_truth(news, "byPeer") ? ", says the other side" : "");
}

/* Do what a step needs. Returns -1 to go on, or an exit status. */
static int verify_step(struct verify *verify, struct sync_call *call)
{
    struct span step = sync_text(call->answer, "step");
    int rc = 0, answer;

    verify_tell(verify, call->answer);
    verify->is_ready = span_is(step, "ready");
    if (verify->transaction_id.size == 0) {
        (void)buffer_span(&verify->transaction_id, sync_text(call->answer, "transactionId"));
        rc = verify_act(verify, "accept");
    } else if (span_is(step, "done"))
        return CLI_OK;
    else if (span_is(step, "cancelled"))
        return CLI_FAILED;
    else if (span_is(step, "compare")) {
        sync_call_fini(call);
        *call = (struct sync_call){ 0 };
        answer = verify_ask_user(verify, call);
        if (answer == -1)
            return verify_step(verify, call); /* of a peer that cancelled */
        rc = answer < 0 ? answer : verify_act(verify, answer == 1 ? "match" : "mismatch");
    }
    /* A step that the peer has taken meanwhile is in the news. */
    return rc == 0 || rc == TR_EBUSY || rc == TR_ENOENT
               ? -1
               : sync_complain(verify->client, "verify", rc);
}

static int verify_loop(struct verify *verify)
{
    int status = -1;

    while (status == -1) {
        struct sync_call call = { 0 };
        int rc = verify_next(verify, verify->is_ready ? READY_MS : 0, &call);

        if (rc == TR_ETIMEOUT) {
            verify->is_ready = false; /* the peer leaves the start to us */
            (void)verify_act(verify, "start");
        } else if (rc == TR_EACCES)
            status = sync_recover(verify->client, "verify") == CLI_OK ? -1 : CLI_FAILED;
        else if (rc != 0)
            status = sync_complain(verify->client, "verify", rc);
        else {
            status = verify_step(verify, &call);
            sync_call_fini(&call);
        }
    }
    return status;
}

/* Wait until the last messages have left, before the engine ends. */
static void verify_post(struct sync_client *client)
{
    bool is_posting = true;

    for (int i = 0; is_posting && i < POST_TRIES; i++) {
        struct sync_call call;

        sync_call_start(&call, client, "status");
        is_posting = sync_call_end(&call) == 0 && sync_truth(call.answer, "posting");
        sync_call_fini(&call);
        if (is_posting && !sync_pause(client, 50))
            return;
    }
}

static int verify_complain(const struct sync_client *client, int rc)
{
    const char *user = client->arguments->words[1], *device = client->arguments->words[2];

    if (rc == TR_ENOENT)
        return sync_fail("%s has no device%s%s. See `troupe sync devices %s`.", user,
            device == NULL ? "" : " ", device == NULL ? "" : device, user);
    if (rc == TR_EINVAL && device != NULL)
        return sync_fail("%s is this device, or no device id.", device);
    if (rc == TR_ELIMIT)
        return sync_fail("Too many verifications are under way. Wait until they have ended.");
    return sync_complain(client, "verify", rc);
}

static int verify_begin(struct verify *verify)
{
    const struct sync_arguments *arguments = verify->client->arguments;
    struct sync_call call;
    int rc;

    sync_call_start(&call, verify->client, "status");
    rc = sync_call_end(&call);
    /* -1: a request that came before and still waits for us counts too. */
    verify->seq = arguments->listens ? -1 : sync_number(call.answer, "newsSeq");
    sync_call_fini(&call);
    if (rc == 0 && !arguments->listens) {
        sync_call_start(&call, verify->client, "verify");
        json_put_text(&call.writer, "user", arguments->words[1]);
        if (arguments->words[2] != NULL)
            json_put_text(&call.writer, "device", arguments->words[2]);
        json_put_int(&call.writer, "timeoutMs", TRUST_MS);
        rc = sync_call_end(&call);
        if (rc == 0)
            rc = buffer_span(&verify->transaction_id, sync_text(call.answer, "result"));
        sync_call_fini(&call);
    }
    if (rc != 0)
        return verify_complain(verify->client, rc);
    if (!arguments->as_json)
        printf("%s\n", arguments->listens ? "Waiting for a request; Ctrl-C ends."
                                          : "Waiting for the other device to accept.");
    (void)fflush(stdout);
    return CLI_OK;
}

int sync_verify(struct sync_client *client)
{
    struct verify verify = { .client = client };
    int status = sync_read_password(client) ? CLI_OK : CLI_FAILED;

    if (status == CLI_OK && client->arguments->emoji != NULL)
        status = sync_emoji_read(client->arguments->emoji, &verify.emoji) ? CLI_OK : CLI_FAILED;
    if (status == CLI_OK)
        status = sync_settle(client);
    if (status == CLI_OK)
        status = verify_begin(&verify);
    if (status == CLI_OK)
        status = verify_loop(&verify);
    if (status != CLI_OK && verify.transaction_id.size > 0)
        (void)verify_act(&verify, "cancel");
    verify_post(client);
    buffer_free(&verify.transaction_id);
    buffer_free(&verify.answer);
    json_doc_free(&verify.emoji);
    return status;
}
