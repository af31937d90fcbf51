/* attn.c - exact attention: every portable level in one file. The manual is attn.h; the order of
 * every operation is docs/canon.md.
 * SPDX-License-Identifier: MIT (full text at the end)
 * attn 0.1.0
 *
 * tools/amalgamate.sh makes this file from the rooms in src/: edit there. docs/house.md is the map.
 */
#include "forward.c"
#include "explain.c"
#include "options.c"
#include "merge.c"
#include "rope/rope.c"
#include "cache/cache.c"
#include "snapshot/snapshot.c"
#include "backward/backward.c"
#include "resume.c"
#include "patterns.c"
#include "index.c"
#include "dilated/dilated.c"
#include "ring/ring.c"
#include "dilated_ring/dilated_ring.c"
#include "ring_decode/ring_decode.c"

/* ------------------------------------------------------------------------------------------------
 * MIT License
 *
 * Copyright (c) 2026 the attn authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
