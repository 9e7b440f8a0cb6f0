/* SPDX-License-Identifier: Apache-2.0 */
/* sync_command.h: the shared parts of `troupe sync`: arguments, requests to the engine, messages. */
#ifndef CLI_SYNC_COMMAND_H
#define CLI_SYNC_COMMAND_H

#include "cli/cli.h"
#include "cli/sync_host.h"

enum { SYNC_WORDS_MAX = 4 };

struct sync_arguments {
    const struct cli_command *command;
    const char *data, *key_file, *key_fd, *share;
    const char *homeserver, *user, *password_file, *token_file;
    const char *name, *invite, *room, *count, *since, *save, *save_max, *passphrase_file, *emoji;
    bool as_json, listens, unencrypted;
    const char *words[SYNC_WORDS_MAX]; /* the action is the first */
    size_t word_count;
};

/* A connection to the engine. */
struct sync_client {
    const struct sync_arguments *arguments;
    struct sync_host *host; /* NULL: the engine runs in another process */
    int fd;
    int signal_fd; /* SIGINT and SIGTERM */
    int64_t next_id;
    struct buffer in;
    struct buffer why;      /* the engine's sentence about the last failure; empty: none */
    struct buffer password; /* of --password-file, to log in again; empty: none */
    bool is_over;           /* the login has ended for good: sync_settle_to_read found it so */
    /* Called with the engine's status, several times a second while a request waits; or NULL. It
     * returns 0, or a code to give the request up with. */
    int (*on_status)(void *data, const struct json *status);
    void *on_status_data;
};

/* The actions. Each returns an exit status. */
int sync_login(struct sync_client *client);
int sync_logout(struct sync_client *client);
int sync_status(struct sync_client *client);
int sync_rooms(struct sync_client *client);
int sync_create(struct sync_client *client);
int sync_invite(struct sync_client *client);
int sync_join(struct sync_client *client);
int sync_leave(struct sync_client *client);
int sync_members(struct sync_client *client);
int sync_state(struct sync_client *client);
int sync_send(struct sync_client *client);
int sync_tail(struct sync_client *client);
int sync_attach(struct sync_client *client);
int sync_devices(struct sync_client *client);
int sync_keys(struct sync_client *client);
int sync_verify(struct sync_client *client);
int sync_outbox(struct sync_client *client);

/* ---- texts for people: sync_text.c; each prints no control character that the text has ---------- */

/* Append a text with every control character, line break, mark of direction and byte that is no UTF-8
 * replaced. A failure stays in the buffer. */
void sync_text_put(struct span text, struct buffer *out);
/* Print a text so, to stdout. */
void sync_print_safe(struct span text);
/* Print the next column of a table so, `width` bytes wide at least. */
void sync_print_cell(struct span text, int width);
/* Print a line so, to stdout. False: the output is closed. */
bool sync_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Print "troupe sync: TEXT" so, to stderr. sync_fail returns CLI_FAILED. */
void sync_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
int sync_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Print what an error of the engine means and what to do. Returns CLI_FAILED. */
int sync_complain(const struct sync_client *client, const char *what, int rc);

/* ---- requests: sync_client.c ------------------------------------------------------------------ */

/* Open the engine. CLI_OK, or CLI_FAILED and a message. */
int sync_client_open(struct sync_client *client, const struct sync_arguments *arguments);
void sync_client_close(struct sync_client *client);

/* A request: start it, put members into `writer`, end it, read `answer`, fini. */
struct sync_call {
    struct sync_client *client;
    struct buffer line;
    struct json_writer writer;
    int64_t id;
    struct json_doc doc;
    const struct json *answer;
};
void sync_call_start(struct sync_call *call, struct sync_client *client, const char *verb);
/* Send the request and wait for its answer. Returns the engine's code; TR_ECANCELLED after a signal,
 * TR_ECLOSED if the engine ended. */
int sync_call_end(struct sync_call *call);
void sync_call_fini(struct sync_call *call); /* wipes */
/* Return a text or a number of an answer; "" and 0 without it. */
struct span sync_text(const struct json *object, const char *key);
int64_t sync_number(const struct json *object, const char *key);
bool sync_truth(const struct json *object, const char *key);

/* Log in again after a soft logout, with client->password. CLI_OK, or CLI_FAILED and a message. */
int sync_login_again(struct sync_client *client, struct span user);
/* Go on after TR_EACCES: log in again, if a password is there and the server ended the login. CLI_OK,
 * or CLI_FAILED and a message. */
int sync_recover(struct sync_client *client, const char *what);
/* Wait until the engine has synced and its keys are on the server, with progress on a terminal.
 * CLI_OK; CLI_FAILED and a message if there is no login or the server does not answer. */
int sync_settle(struct sync_client *client);
/* The same for a command that reads what is stored: after the end of the login it says so, and goes
 * on. */
int sync_settle_to_read(struct sync_client *client);
/* Take a signal, SIGINT or SIGTERM; false if there is none. */
bool sync_is_signalled(const struct sync_client *client);
/* Wait `ms`; false after a signal. */
bool sync_pause(const struct sync_client *client, int ms);

/* Print an answer, without the members of the link, or an object that was written, as a line on
 * stdout. False: the output is closed. */
bool sync_print_json(const struct json *answer);
bool sync_print_line(struct buffer *line);

/* Read a file of one secret, without the newline at its end; "-" is stdin. False: a message was
 * printed. The caller wipes it. */
bool sync_read_secret(const char *path, const char *what, struct buffer *ret_secret);

/* Read the --password-file of a command that runs on into client->password. False: a message was
 * printed. True without that option. */
bool sync_read_password(struct sync_client *client);

/* ---- rooms: sync_rooms.c ---------------------------------------------------------------------- */

/* Check that a message may go to a room: this user is a member, and it is encrypted or the command line
 * has --unencrypted. CLI_OK, or CLI_FAILED and a message. */
int sync_check_room(struct sync_client *client, const char *what, const char *room);

/* ---- names of emoji: sync_emoji.c ------------------------------------------------------------- */

/* Read a file of names, as the Matrix specification's sas-emoji.json. False: a message was printed. */
bool sync_emoji_read(const char *path, struct json_doc *ret_doc);
/* Return the name of an emoji in the language of the locale, or the English one. `table` is the root
 * of such a file, or NULL. */
struct span sync_emoji_name(const struct json *table, int64_t number);

/* ---- events on their way: sync_outbox.c ------------------------------------------------------- */

/* Send the event of a room, under --share, and wait until it has left or is held back by the policy. The
 * caller ended its content. */
int sync_send_content(struct sync_client *client, const char *room, struct span content);

/* ---- media: sync_media.c ---------------------------------------------------------------------- */

/* Save the attachment of an event, if it has one, into a directory. Returns the code of a failure, after
 * a message; 1 if a file was saved, 0 without one; *ret_path is its path. A file over its limit
 * (--save-max, and the size that the event says) leaves no part. */
int sync_save(struct sync_client *client, const struct json *content, const char *directory,
    struct buffer *ret_path);

#endif
