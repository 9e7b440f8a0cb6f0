/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_sync.c: `troupe sync`: a Matrix device for people and scripts. */
#include <stdio.h>
#include <string.h>

#include "cli/sync_command.h"
#include "matrix/client/media.h"

/* An action with the words and the options that it needs. */
struct sync_action {
    const char *name;
    const char *words;           /* names of its words, for messages; "" for none */
    size_t words_min, words_max; /* with the name */
    int (*run)(struct sync_client *client);
};

static const struct sync_action sync_actions[] = {
    { "login", "--homeserver URL and either --user NAME --password-file F or --token-file F", 1, 1,
        sync_login },
    { "logout", "", 1, 1, sync_logout },
    { "status", "", 1, 1, sync_status },
    { "rooms", "", 1, 1, sync_rooms },
    { "create", "--name N [--invite USER]", 1, 1, sync_create },
    { "invite", "ROOM USER", 3, 3, sync_invite },
    { "join", "ROOM", 2, 2, sync_join },
    { "leave", "ROOM", 2, 2, sync_leave },
    { "members", "ROOM", 2, 2, sync_members },
    { "state", "ROOM TYPE", 3, 3, sync_state },
    { "send", "ROOM TEXT", 3, 3, sync_send },
    { "tail", "[--room R] [--count N]", 1, 1, sync_tail },
    { "attach", "ROOM FILE", 3, 3, sync_attach },
    { "outbox", "list, drop ID or retry ID", 1, 3, sync_outbox },
    { "devices", "USER", 2, 2, sync_devices },
    { "keys", "export FILE or keys import FILE, with --passphrase-file F", 3, 3, sync_keys },
    { "verify", "USER [DEVICE], or verify --listen", 1, 3, sync_verify },
};

static const char **sync_option(struct sync_arguments *arguments, const char *name, size_t size)
{
    const struct {
        const char *name;
        const char **value;
    } table[] = {
        { "--data", &arguments->data },
        { "--key-file", &arguments->key_file },
        { "--key-fd", &arguments->key_fd },
        { "--share", &arguments->share },
        { "--homeserver", &arguments->homeserver },
        { "--user", &arguments->user },
        { "--password-file", &arguments->password_file },
        { "--token-file", &arguments->token_file },
        { "--name", &arguments->name },
        { "--invite", &arguments->invite },
        { "--room", &arguments->room },
        { "--count", &arguments->count },
        { "--since", &arguments->since },
        { "--save", &arguments->save },
        { "--save-max", &arguments->save_max },
        { "--passphrase-file", &arguments->passphrase_file },
        { "--emoji", &arguments->emoji },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strlen(table[i].name) == size && memcmp(table[i].name, name, size) == 0)
            return table[i].value;
    return NULL;
}

/* Read the command line: -1 to go on, or an exit status. */
static int sync_parse(struct sync_arguments *arguments, int argc, char **argv)
{
    bool has_ended = false; /* a -- ended the options */

    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        size_t size = equals == NULL ? strlen(argv[i]) : (size_t)(equals - argv[i]);
        const char **value = sync_option(arguments, argv[i], size);

        if (has_ended || argv[i][0] != '-' || argv[i][1] == '\0') {
            if (arguments->word_count == SYNC_WORDS_MAX)
                return cli_wrong(arguments->command, "There is one argument too many:", argv[i]);
            arguments->words[arguments->word_count++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0)
            has_ended = true;
        else if (cli_is_help(argv[i])) {
            cli_help(arguments->command);
            return CLI_OK;
        } else if (strcmp(argv[i], "--json") == 0)
            arguments->as_json = true;
        else if (strcmp(argv[i], "--listen") == 0)
            arguments->listens = true;
        else if (strcmp(argv[i], "--unencrypted") == 0)
            arguments->unencrypted = true;
        else if (value == NULL)
            return cli_wrong(arguments->command, "There is no option", argv[i]);
        else if (equals == NULL && i + 1 >= argc)
            return cli_wrong(arguments->command, "There is no value after", argv[i]);
        else
            *value = equals == NULL ? argv[++i] : equals + 1;
    }
    return -1;
}

static const struct sync_action *sync_find(const char *name)
{
    for (size_t i = 0; i < sizeof sync_actions / sizeof sync_actions[0]; i++)
        if (strcmp(name, sync_actions[i].name) == 0)
            return &sync_actions[i];
    return NULL;
}

/* Check the options of a token: it names its user, and it works once. Returns -1, or CLI_USAGE after a
 * message. */
static int sync_check_token(
    const struct sync_arguments *arguments, const struct sync_action *action)
{
    if (arguments->token_file == NULL)
        return -1;
    if (action->run != sync_login)
        return cli_wrong(
            arguments->command, "A login token works once: only login takes --token-file", NULL);
    if (arguments->password_file != NULL)
        return cli_wrong(arguments->command, "Use --password-file or --token-file, not both", NULL);
    if (arguments->user != NULL)
        return cli_wrong(arguments->command,
            "A login token names its user: use --token-file without --user", NULL);
    return -1;
}

/* Check words and options before the engine starts. Returns -1, or CLI_USAGE after a message. */
static int sync_check(const struct sync_arguments *arguments, const struct sync_action *action)
{
    const struct cli_command *command = arguments->command;
    char problem[160];
    uint64_t number;
    bool is_complete = arguments->word_count >= action->words_min;

    if (action->run == sync_login)
        is_complete = is_complete && arguments->homeserver != NULL &&
                      (arguments->token_file != NULL ||
                          (arguments->user != NULL && arguments->password_file != NULL));
    if (action->run == sync_create)
        is_complete = is_complete && arguments->name != NULL;
    if (action->run == sync_keys)
        is_complete = is_complete && arguments->passphrase_file != NULL;
    if (action->run == sync_verify)
        is_complete = is_complete && (arguments->word_count > 1) != arguments->listens;
    (void)snprintf(problem, sizeof problem, "`troupe sync %s` takes %s", action->name,
        action->words[0] == '\0' ? "no arguments" : action->words);
    if (!is_complete || arguments->word_count > action->words_max)
        return cli_wrong(command, problem, NULL);
    if (arguments->key_fd != NULL &&
        (!span_u64(span_of(arguments->key_fd), &number) || number > 65535))
        return cli_wrong(
            command, "--key-fd takes the number of an open descriptor, not", arguments->key_fd);
    if (arguments->key_fd != NULL && arguments->key_file != NULL)
        return cli_wrong(command, "Use --key-file or --key-fd, not both", NULL);
    if (arguments->share != NULL && strcmp(arguments->share, "verified") != 0 &&
        strcmp(arguments->share, "halt") != 0 && strcmp(arguments->share, "all") != 0)
        return cli_wrong(command, "--share takes verified, halt or all, not", arguments->share);
    if (arguments->save_max != NULL && (!span_u64(span_of(arguments->save_max), &number) ||
                                           number == 0 || number > MXCLIENT_MEDIA_BYTES_MAX))
        return cli_wrong(
            command, "--save-max takes a number of bytes from 1 on, not", arguments->save_max);
    return sync_check_token(arguments, action);
}

static int sync_run(const struct cli_command *command, int argc, char **argv)
{
    struct sync_arguments arguments = { .command = command, .data = "troupe-sync" };
    const struct sync_action *action;
    struct sync_client client;
    int status = sync_parse(&arguments, argc, argv);

    if (status != -1)
        return status;
    if (arguments.word_count == 0)
        return cli_wrong(command, "Name the action, such as login, rooms, send or tail", NULL);
    action = sync_find(arguments.words[0]);
    if (action == NULL)
        return cli_wrong(command, "There is no action", arguments.words[0]);
    status = sync_check(&arguments, action);
    if (status != -1)
        return status;
    status = sync_client_open(&client, &arguments);
    if (status == CLI_OK)
        status = action->run(&client);
    sync_client_close(&client);
    return status;
}

const struct cli_command cmd_sync = {
    .name = "sync",
    .arguments = "ACTION [ARGUMENT...] [OPTION...]",
    .summary = "a Matrix device: log in, verify, send and receive encrypted messages",
    .help =
        "  login --homeserver URL --user NAME --password-file F\n"
        "                       log in as a new device; F may be - for standard input\n"
        "  login --homeserver URL --token-file F\n"
        "                       the same with a login token (m.login.token), which works once\n"
        "  logout               delete the device on the homeserver; received events stay\n"
        "  status               show the login, the last problem, unsent messages, and why events\n"
        "                       cannot be read\n"
        "  rooms                list rooms and invitations: encryption, kind, name, inviter\n"
        "  create --name N [--invite USER]\n"
        "                       create an encrypted room and print its id; exit status 1 with an "
        "id:\n"
        "                       the room is there, and the user is not invited\n"
        "  invite ROOM USER     invite a user\n"
        "  join ROOM            accept an invitation\n"
        "  leave ROOM           leave a room, or decline an invitation\n"
        "  members ROOM         list the members of a room\n"
        "  state ROOM TYPE      print the content of a state event, such as m.room.name\n"
        "  send ROOM TEXT       send a message of up to 46,000 bytes and print its event id; the\n"
        "                       TEXT - is read from standard input\n"
        "  attach ROOM FILE     encrypt, upload and send a file\n"
        "    --unencrypted        send and attach: also to a room that is not encrypted\n"
        "  outbox               list messages that have not left, with their ids\n"
        "  outbox drop ID       forget one\n"
        "  outbox retry ID      send one that was given up, or that waits, now\n"
        "  tail                 print decrypted events as they come, and why others cannot be "
        "read\n"
        "    --room R             of this room alone\n"
        "    --count N            end after N events of others that can be read\n"
        "    --since SEQ          start after this number, 0 for all (default: new events)\n"
        "    --save DIR           save attachments there; if one fails, the exit status is 1\n"
        "    --save-max BYTES     of an attachment (1 GiB); one that is larger than its event "
        "says\n"
        "                         is not saved either\n"
        "                       Each line begins with the trust in the device that wrote it:\n"
        "                       verified, unverified, blocked, gone, forwarded, imported,\n"
        "                       unencrypted, own or unknown; `was` is the trust at its decryption\n"
        "  devices USER         list the devices of a user\n"
        "  verify USER [DEVICE] ask a device for verification and compare seven emoji; the user "
        "must\n"
        "                       share a room with you\n"
        "  verify --listen      wait for such a request, accept it and compare\n"
        "                       With --json each step is an object; answer `yes` or `no` on\n"
        "                       standard input. Exit status 0: both sides verified the other\n"
        "    --emoji FILE         names of the emoji in the language of the locale, from the "
        "Matrix\n"
        "                         specification's sas-emoji.json (default: English)\n"
        "  keys export FILE --passphrase-file F\n"
        "  keys import FILE --passphrase-file F\n"
        "                       write and read the keys of received messages, as other Matrix\n"
        "                       clients do\n"
        "\n"
        "  --data DIR           the device's directory (troupe-sync). If a `tail` or `verify`\n"
        "                       runs there, other commands go through it\n"
        "  --json               print JSON, one object a line\n"
        "  --password-file F    tail and verify: log in again if the homeserver ends the login\n"
        "  --key-file F         the key that seals secrets in DIR: 64 hexadecimal digits\n"
        "  --key-fd N           the same from an open descriptor (default: DIR/key, created)\n"
        "  --share WHO          send, attach: devices that get the keys of the message: verified\n"
        "                       (default), all, or halt: the message waits in the outbox while a\n"
        "                       device is not verified. tail, verify: of messages sent beside "
        "them\n"
        "\n"
        "Exit status: 0 success, 1 failure, 2 a wrong command line.\n"
        "\n"
        "Examples:\n"
        "\n"
        "  troupe sync login --homeserver https://matrix.example.org --user ada "
        "--password-file pw\n"
        "  troupe sync verify @bob:example.org\n"
        "  room=$(troupe sync create --name notes --invite @bob:example.org)\n"
        "  troupe sync send \"$room\" hello\n"
        "  troupe sync tail --json --count 1\n",
    .run = sync_run,
};
