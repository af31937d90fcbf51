# which device there is, and why none, differs from machine to machine
/^no device: /d
/^ran on: /d
