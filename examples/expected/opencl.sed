# which device there is, and why none, differs from machine to machine
/^no device: /d
/^device: /d
/^kept programs: /d
/^compiling: /d
/^ran on: /d
