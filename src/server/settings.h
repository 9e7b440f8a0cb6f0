/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: what is wrong with settings that each have the right kind: the form of addresses,
 * URLs and DIDs, and what belongs together. Opens nothing and asks nobody, so that `troupe config
 * check` and a reload can say the same as a start. */
#ifndef SERVER_SETTINGS_H
#define SERVER_SETTINGS_H

#include "auth/session.h"
#include "ops/config.h"

/* TR_EINVAL, and a line "PLACE: what is wrong" in `errors` for each; TR_ENOMEM. */
int settings_check(const struct config *config, struct buffer *errors);

/* http:// or https:// with a host, and no character that a URL cannot have. */
bool settings_is_url(const char *text);
/* NAME+ISSUER+KEYS+CLIENT_ID, taken apart in place. */
bool settings_parse_provider(char *text, struct session_provider *ret_provider);

#endif
