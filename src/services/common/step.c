/* SPDX-License-Identifier: Apache-2.0 */
#include "services/common/step.h"

#include "base/assert.h"

void step_add(struct sql_unit *unit, const struct sql_statement *statement, int64_t rows,
    const struct step_value *values, size_t count)
{
    tr_assert(rows >= SQL_ROWS_ANY);
    sql_unit_step(unit, statement, rows);
    for (size_t i = 0; i < count; i++) {
        if (values[i].kind == STEP_INT)
            sql_unit_int(unit, values[i].number);
        else if (values[i].bytes.at == NULL)
            sql_unit_null(unit);
        else if (values[i].kind == STEP_TEXT)
            sql_unit_text(unit, values[i].bytes);
        else
            sql_unit_blob(unit, values[i].bytes.at, values[i].bytes.size);
    }
}
