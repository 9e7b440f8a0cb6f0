/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: the checks of settings that need no file and no network: the form of addresses, URLs and
 * DIDs, and settings that belong together. A start, a reload and `troupe config check` run them. */
#ifndef SERVER_SETTINGS_H
#define SERVER_SETTINGS_H

#include "auth/session.h"
#include "ops/config.h"

/* Check all settings. TR_EINVAL, with a line "PLACE: SENTENCE" in `errors` for each error; TR_ENOMEM. */
int settings_check(const struct config *config, struct buffer *errors);

/* True for http:// or https:// with a host, and only characters that a URL may have. */
bool settings_is_url(const char *text);
/* Split NAME+ISSUER+KEYS+CLIENT_ID in place. False: the text has another form. */
bool settings_parse_provider(char *text, struct session_provider *ret_provider);

#endif
