/* SPDX-License-Identifier: Apache-2.0 */
/* sync_host.h: the data directory of a Matrix device and the engine on it.
 *
 * 1. The holder of engine.lock runs the engine. The lock ends with its process.
 * 2. A holder that stays listens on engine.socket; other commands ask there. A holder that does not
 *    listen ends soon: others wait for it. Both ends of the socket are processes of one user.
 * 3. The key that seals the secrets is in a file or comes over a descriptor; it never leaves this
 *    process. All files have the mode 0600.
 * 4. The directory belongs to the user, and nobody else can write it: another user could put a socket
 *    or a database there. */
#ifndef CLI_SYNC_HOST_H
#define CLI_SYNC_HOST_H

#include "cli/sync_link.h"

enum { SYNC_WHY_BYTES = 1024, SYNC_WAIT_MS = 30 * 1000 };

struct sync_host_options {
    const char *data_path;
    const char *key_path; /* NULL: "key" in the data directory, created if missing */
    int key_fd;           /* -1: none */
    enum mxclient_policy policy;
    bool listens;  /* serve other commands, as long as the engine runs here */
    bool creates;  /* make a directory that is not there; else that is an error */
    int signal_fd; /* readable after a signal, which ends the wait for another command; -1: none */
};

struct sync_host;

/* Connect to the engine of a data directory, or start it. *ret_host is NULL if another process has
 * the engine. Returns 0, or an error with a sentence in `why`; TR_ECANCELLED after a signal. The caller
 * closes the descriptor before it stops the host. */
int sync_host_open(const struct sync_host_options *options, struct sync_host **ret_host,
    int *ret_fd, char why[SYNC_WHY_BYTES]);
/* Stop the engine, if it runs here, and null *host; NULL is fine. */
void sync_host_close(struct sync_host **host);

#endif
