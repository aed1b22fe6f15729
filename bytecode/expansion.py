"""Replaces an instruction of a code object by several, and adapts jumps, exception table and source positions.

The code is CPython's compiler's. Replacing only increases operands, so no instruction gets shorter.
"""

from .verifier.tables import handlers

_ONE_LINE, _LINE_ONLY, _LONG = 10, 13, 14  # kinds of entries in the table of source positions


def expanded(code, instructions, replaced):
    """`code` with some of its `instructions` replaced: `replaced` maps their indices to lists of (opcode, operand).

    None of the new instructions jumps or has inline caches.
    """
    table = instructions.table
    rows = []  # [opcode, operand, index of the jump's target or -1, code units of caches]
    first = []  # old index -> the first of its rows
    for index, op in enumerate(instructions.ops):
        first.append(len(rows))
        if index in replaced:
            rows += [[op, operand, -1, 0] for op, operand in replaced[index]]
        else:
            rows.append([op, instructions.operands[index], instructions.target[index], table.caches[op]])
    first.append(len(rows))
    for row in rows:
        row[2] = first[row[2]] if row[2] >= 0 else -1
    start = _settled(rows, table)
    data = bytearray()
    for op, operand, _, caches in rows:
        for shift in range(8 * (_units(operand) - 1), 0, -8):
            data += bytes((table.extended_arg, operand >> shift & 0xFF))
        data += bytes((op, operand & 0xFF)) + bytes(2 * caches)
    sizes = [start[first[index + 1]] - start[first[index]] for index in range(len(instructions.ops))]
    ranges = [
        (start[first[each.first]], start[first[each.past]], start[first[each.target]], each.depth << 1 | each.lasti)
        for each in handlers(code, instructions)
    ]
    return code.replace(
        co_code=bytes(data),
        co_exceptiontable=b"".join(_entry(begin, past - begin, target, depth) for begin, past, target, depth in ranges),
        co_linetable=_positions(code.co_linetable, instructions, sizes),
    )


def _units(operand):
    """Code units of an instruction with this operand, prefixes included, caches not."""
    return max(1, (operand.bit_length() + 7) // 8)


def _settled(rows, table):
    """Sets the operands of jumps; returns the code unit at which each row starts, and the end."""
    backward = {op for op, domain in enumerate(table.domain_of) if domain == "backward"}
    while True:
        start = [0]
        for _, operand, _, caches in rows:
            start.append(start[-1] + _units(operand) + caches)
        settled = True
        for index, row in enumerate(rows):
            if row[2] < 0:
                continue
            distance = start[row[2]] - start[index + 1]
            operand = -distance if row[0] in backward else distance
            if operand != row[1]:
                row[1], settled = operand, False
        if settled:
            return start


def _entry(*numbers):
    """An exception table entry: each number as six bits per byte, highest first. A bit marks the entry's first byte."""
    found = bytearray()
    for number in numbers:
        rest = [number & 0x3F]
        while number := number >> 6:
            rest.append(number & 0x3F | 0x40)
        found += bytes(reversed(rest))
    found[0] |= 0x80
    return bytes(found)


def _positions(packed, instructions, sizes):
    """The table of source positions with the instructions' new `sizes`, in code units."""
    units = [1] * instructions.end[-1]
    for index, size in enumerate(sizes):
        begin = instructions.start[index]
        units[begin] += size - (instructions.end[index] - begin)
    found, offset, unit = bytearray(), 0, 0
    while offset < len(packed):
        kind, length = packed[offset] >> 3 & 15, (packed[offset] & 7) + 1
        past = offset + 1
        while past < len(packed) and not packed[past] & 0x80:
            past += 1
        payload = packed[offset + 1 : past]
        left = sum(units[unit : unit + length])
        while left:
            found.append(0x80 | kind << 3 | min(left, 8) - 1)
            found += payload
            left -= min(left, 8)
            kind, payload = _on_the_same_line(kind, payload)
        offset, unit = past, unit + length
    return bytes(found)


def _on_the_same_line(kind, payload):
    """An entry for the same line as this one, right after it; lines are relative to the previous entry."""
    if _ONE_LINE <= kind < _LINE_ONLY:
        return _ONE_LINE, payload
    if kind in (_LINE_ONLY, _LONG):
        end = next(index for index, byte in enumerate(payload) if not byte & 0x40) + 1
        return kind, b"\0" + payload[end:]
    return kind, payload
