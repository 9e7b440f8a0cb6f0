/* SPDX-License-Identifier: Apache-2.0 */
/* audit.h: who changed what, when. A row is written by the unit that makes the change, so it is
 * there exactly if the change is. */
#ifndef SERVICES_PACKS_AUDIT_H
#define SERVICES_PACKS_AUDIT_H

#include "services/packs/change.h"

/* The last step of the unit. */
void change_audit(
    struct sql_unit *unit, const struct change *change, const struct packs_view *view);

#endif
