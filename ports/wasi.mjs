// wasi.mjs PROGRAM ARGUMENT... - runs a program of WebAssembly with WASI by Node.js 18 or later.
// SPDX-License-Identifier: MIT
import { readFileSync } from 'node:fs';
import { WASI } from 'node:wasi';

const args = process.argv.slice(2);
const wasi = new WASI({ version: 'preview1', args, returnOnExit: true });
const program = new WebAssembly.Module(readFileSync(args[0]));
process.exitCode = wasi.start(
    new WebAssembly.Instance(program, { wasi_snapshot_preview1: wasi.wasiImport }));
