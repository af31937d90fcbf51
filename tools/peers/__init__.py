# __init__.py - the program behind tools/compare_peers, which starts it as `python3 -m peers`.
# SPDX-License-Identifier: MIT
