/* SPDX-License-Identifier: Apache-2.0 */
/* audit.h: who changed what, when. A row is written by the unit that makes the change, so it is
 * there exactly if the change is. */
#ifndef SERVICES_PACKS_AUDIT_H
#define SERVICES_PACKS_AUDIT_H

#include "services/packs/edit.h"

/* The last step of the unit. */
void edit_audit(struct sql_unit *unit, const struct edit *edit, const struct packs_view *view);

#endif
