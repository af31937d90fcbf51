/* dilated_errors.c - every sentence of dilated attention.
 * SPDX-License-Identifier: MIT
 */
#include "dilated.h"
void dilated_errors(void)
{
}
