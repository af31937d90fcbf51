/* src/dilated/dilated.c - dilated attention: forward and backward.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "forward.c"
#include "backward.c"
