/* SPDX-License-Identifier: Apache-2.0 */
/* The chassis counts requests against their address: here with five an hour. */
#define SITE_BURST 5
#include "site.h"

TEST(rate, the_sixth_request_of_an_address_is_429_and_health_is_not_counted)
{
    struct site site;

    site_begin(&site);
    for (int i = 0; i < 20; i++)
        want(&site, ANYONE, "GET health", NULL, 200, "ok");
    want(&site, ANYONE, "GET packs/available", NULL, 200, "packs");
    want(&site, USER, "GET packs/manifest", NULL, 200, "packs");
    want(&site, BOSS, "GET admin/packs", NULL, 200, "packs");
    want(&site, ANYONE, "GET packs/none/checksum", NULL, 404, "PackNotFound");
    want(&site, STRANGER, "GET packs/available", NULL, 401, "error");
    want(&site, ANYONE, "GET packs/available", NULL, 429, "RateLimitExceeded|Retry-After");
    want(&site, USER, "GET packs/available", NULL, 429, "RateLimitExceeded");
    want(&site, BOSS, "POST admin/packs", "{'package_id':'core'}", 429, "RateLimitExceeded");
    want(&site, ANYONE, "GET ready", NULL, 200, "ready");
    /* The admin listener is another door. */
    want(&site, TOKEN, "POST admin/packs", "{'package_id':'core'}", 201, "core");
    site_end(&site);
}
