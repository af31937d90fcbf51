# hot_loops.awk - finds the hot loops in the output of `objdump -d --no-show-raw-insn`.
# SPDX-License-Identifier: MIT
#
#     objdump -d --no-show-raw-insn FILE.o | awk -v least=6 -f tests/hot_loops.awk
#
# A loop is the code from the target of a backward jump up to that jump. It is innermost if no other
# backward jump lies in between, and hot if it then holds at least `least` multiply-adds of vectors,
# fused ones of floats or sums of products of bytes or of bf16 numbers. Prints a line for each: multiply-adds, accesses
# to the stack, function.

# Loads and stores by way of the stack pointer, or of the frame pointer where the function has set
# one up: compilers use that register for anything else otherwise. Calls, push and pop do so unsaid.
function on_stack(text)
{
    if (text ~ /^lea/)
        return 0
    return text ~ /\(%[re]sp[,)]|\[sp[],]|^(call|push|pop|bl) / ||
           framed && text ~ /\(%[re]bp[,)]|\[x29[],]/
}

# Where the jump `text`, instruction number `at`, leads back to; 0 for everything else.
function backward(text, at,    address)
{
    if (text !~ /^(j[a-z]+|b|b\.[a-z]+|[ct]bn?z) /)
        return 0
    address = text
    sub(/ <.*$/, "", address)
    sub(/^.* /, "", address)
    return (address in number_of) && number_of[address] <= at ? number_of[address] : 0
}

function report(    at, first, i, products, stack)
{
    for (at = 1; at <= count; at++) {
        first = backward(code[at], at)
        if (!first)
            continue
        products = stack = 0
        for (i = first; i <= at && (i == at || !backward(code[i], i)); i++) {
            products += code[i] ~ /^vfn?m(add|sub)[0-9]+ps |vpdpbusd |vdpbf16ps |^fml[as] .*\.4s/
            stack += on_stack(code[i])
        }
        if (i > at && products >= least)
            print products, stack, name
    }
}

/^[0-9a-f]+ <.*>:$/ {
    report()
    count = framed = 0
    split("", number_of)
    name = $2
    gsub(/[<>:]/, "", name)
}

/^ +[0-9a-f]+:\t/ {
    address = $1
    sub(/:$/, "", address)
    text = $0 " "
    sub(/^[^\t]*\t/, "", text)
    gsub(/[ \t]+/, " ", text)
    code[++count] = text
    number_of[address] = count
    if (text ~ /^mov %[re]sp,%[re]bp|^(mov|add) x29, sp/)
        framed = 1
}

END { report() }
