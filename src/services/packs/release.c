/* SPDX-License-Identifier: Apache-2.0 */
#include "services/packs/release.h"

#include <string.h>

#include "base/assert.h"
#include "services/packs/pack_json.h"

const char *release_failure_text(enum release_failure failure)
{
    static const char *const texts[] = { "no_artifacts", "missing_required_roles",
        "package_not_published", "package_metadata_missing" };

    return texts[failure];
}

bool release_role_is_valid(struct span role)
{
    return role.size <= RELEASE_ROLE_MAX && pack_name_is_valid(role);
}

struct findings {
    release_failure_fn told;
    void *data;
    uint32_t count;
};

static void report_failure(
    struct findings *findings, enum release_failure failure, struct span subject)
{
    findings->count++;
    if (findings->told != NULL)
        findings->told(findings->data, failure, subject);
}

static bool has_role(const struct release *release, struct span role)
{
    for (uint32_t i = 0; i < release->artifact_count; i++)
        if (release->artifacts[i].is_required && span_is(role, release->artifacts[i].role))
            return true;
    return false;
}

static void look_for_roles(struct findings *findings, const struct release *release)
{
    const char *at = release->roles;

    while (*at != '\0') {
        struct span role = { at, strcspn(at, ",") };

        if (!has_role(release, role))
            report_failure(findings, RELEASE_MISSING_ROLE, role);
        at += role.size;
        at += *at == ',';
    }
}

uint32_t release_validate(const struct release *release, release_failure_fn told, void *data)
{
    struct findings findings = { told, data, 0 };

    tr_assert(release->artifact_count <= CATALOGUE_ARTIFACTS_MAX);
    if (release->artifact_count == 0)
        report_failure(&findings, RELEASE_NO_ARTIFACTS, (struct span){ NULL, 0 });
    look_for_roles(&findings, release);
    for (uint32_t i = 0; i < release->artifact_count; i++) {
        const struct pack *pack = release->artifacts[i].pack;

        if (release_choice(&release->artifacts[i]) == NULL)
            report_failure(&findings, RELEASE_NOT_PUBLISHED, span_of(pack->name));
        else if (pack->title[0] == '\0')
            report_failure(&findings, RELEASE_METADATA_MISSING, span_of(pack->name));
    }
    return findings.count;
}
