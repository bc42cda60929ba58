"""Kernels of the engine ``gpu``, in Triton: draws, coordinate steps, line profiles, sums.

`engines.gpu.terminals` launches them. A program runs a block of terminals in sequence, for a column of labels. The
local model and XᵀΔα stay in its registers. Rows are padded with zeros; a kernel reads the first ``FILLED`` numbers, in
two parts with a power of two each. While a program works on a row, the next rows are loaded into shared memory. Random
numbers equal the numbers of `maths.kernels.rounds`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rhfedmtl.engines.gpu.losses import conjugate, conjugate_inside, dual_step, line, rate, value

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_POINTS = tl.constexpr(32)
"""Largest number of points of a gain curve, or of stored changes of a terminal: a number per lane."""
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return z ^ (z >> 31)


@triton.jit
def draw_rows(
    base,
    ids,
    starts,
    ends,
    terminals,
    offsets,
    deck,
    visits,
    first,
    last,
    first_visit,
    UNIFORM: tl.constexpr,
    SMALL: tl.constexpr,
    N: tl.constexpr,
):
    """Write the rows that terminals first … last − 1 of ``terminals`` visit; each lane shuffles a terminal's deck.

    ``offsets`` are the starts of each terminal's visits. ``deck`` numbers the rows of every terminal from 0, and is
    restored at the end. A deck of up to 16 rows (``SMALL``) is stored as 16 digits of a number instead.
    """
    place = first + tl.program_id(0) * N + tl.arange(0, N)
    there = place < last
    t = tl.load(terminals + place, mask=there, other=0)
    start = tl.load(starts + t)
    n = tl.load(ends + t) - start
    offset = tl.load(offsets + place, mask=there, other=0)
    H = tl.load(offsets + place + 1, mask=there, other=0) - offset
    key = _mix(tl.load(base).to(tl.uint64, bitcast=True) + tl.load(ids + t).to(tl.uint64) * _GOLDEN)
    out = visits + (offset - first_visit)
    cards = tl.zeros([N], tl.uint64) + 0xFEDCBA9876543210
    longest = tl.max(H, axis=0)
    for h in range(0, longest):
        active = h < H
        key += _GOLDEN
        number = _mix(key) >> 32
        if UNIFORM:
            row = ((number * n.to(tl.uint64)) >> 32).to(tl.int64)
        else:
            spot = h % tl.maximum(n, 1)
            partner = spot + ((number * (n - spot).to(tl.uint64)) >> 32).to(tl.int64)
            if SMALL:
                to = (4 * partner).to(tl.uint64)
                back = (4 * spot).to(tl.uint64)
                row = ((cards >> to) & 15).to(tl.int64)
                change = ((cards >> to) ^ (cards >> back)) & 15
                cards = cards ^ (change << to) ^ (change << back)
            else:
                row = tl.load(deck + start + partner, mask=active).to(tl.int64)
                card = tl.load(deck + start + spot, mask=active)
                tl.store(deck + start + spot, row.to(tl.int32), mask=active)
                tl.store(deck + start + partner, card, mask=active)
        tl.store(out + h, (start + row).to(tl.int32), mask=active)
    if not (UNIFORM or SMALL):
        dealt = tl.minimum(H, n)
        longest = tl.max(dealt, axis=0)
        if tl.max(n - dealt, axis=0) > 0:  # cards that were not dealt may lie at places of dealt cards
            for h in range(0, longest):
                active = h < dealt
                card = tl.load(deck + start + h, mask=active, other=0)
                tl.store(deck + start + card, card, mask=active & (card >= dealt))
        for h in range(0, longest):
            tl.store(deck + start + h, tl.zeros([N], tl.int32) + h, mask=h < dealt)


@triton.jit
def _take(was, alpha, label, s, q, gamma, LOSS: tl.constexpr, WEIGHTED: tl.constexpr):
    """Return the inputs of a step on a row."""
    a = alpha + was
    if WEIGHTED:
        a = a / tl.where(s > 0.0, s, 1.0)
        q = q * s
    return was, a, label, s, q, rate(q, gamma, LOSS)


@triton.jit
def _store_changes(pending, visits, begin, stop, changes, columns, c):
    """Store the changes of a terminal from its visits begin … stop − 1."""
    turn = tl.arange(0, _POINTS)
    there = turn < stop - begin
    rows = tl.load(visits + begin + turn, mask=there, other=0).to(tl.int64)
    tl.store(pending + rows * columns + c, changes, mask=there)


@triton.jit
def ascend(
    X,
    y,
    weight,
    norm,
    alpha,
    pending,
    offsets,
    visits,
    blocks,
    stations,
    models,
    per_scales,
    sums,
    gamma,
    columns,
    features,
    first_block,
    first_visit,
    LOSS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    INTERCEPT: tl.constexpr,
    CONSTANT_SQUARED: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    FILLED: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    CURVE: tl.constexpr,
    ONCE: tl.constexpr,
    THREADS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Take the coordinate steps of a block of terminals in a column; write ``pending``, XᵀΔα and the gain curve.

    ``visits`` are the rows in the order of the visits; the visits of a terminal start at its ``offsets``. ``alpha`` and
    ``pending`` are by row and column, ``models`` by station, column and (padded) feature. Nothing is pending at the
    start. With ``ONCE`` no terminal visits a row twice, or makes more than 32 visits, and its changes are stored
    together at the end.
    """
    block = first_block + tl.program_id(0)
    c = tl.program_id(1)
    station = tl.load(stations + block)
    per_scale = tl.load(per_scales + station)
    parameter = tl.load(gamma)
    j = tl.arange(0, MAIN)
    r = MAIN + tl.arange(0, REST if REST > 0 else 1)
    model = models + (station * columns + c) * WIDTH
    total = tl.zeros([MAIN], tl.float64)
    total_rest = tl.zeros([REST if REST > 0 else 1], tl.float64)
    total_own = per_scale * 0.0
    point = tl.arange(0, _POINTS)
    limit = tl.where(point < CURVE - 1, 1 << tl.minimum(point, CURVE), 0x7FFFFFFF)
    curve = tl.zeros([_POINTS], tl.float64)
    all_threads = tl.arange(0, THREADS) * 0

    place = tl.load(blocks + block)
    begin = tl.load(offsets + place) - first_visit
    stop = tl.load(offsets + place + 1) - first_visit
    end = tl.load(offsets + tl.load(blocks + block + 1)) - first_visit
    w = tl.load(model + j)
    rest = tl.load(model + r, mask=r < FILLED, other=0.0) if REST > 0 else 0.0
    own = tl.load(model + STRIDE) if INTERCEPT else 0.0
    gain = per_scale * 0.0
    own_curve = tl.zeros([_POINTS], tl.float64)
    mine = tl.zeros([_POINTS], tl.float64)
    # The other inputs of a step are loaded a step ahead. The loads are below an ``if``, because Triton would otherwise
    # move them further ahead, like the loads of rows, and a dual variable may still change until then.
    next_i = tl.load(visits + begin, mask=begin < end, other=0).to(tl.int64)
    next_was = per_scale * 0.0
    next_a = tl.load(alpha + next_i * columns + c)
    next_label = tl.load(y + next_i * columns + c).to(tl.float64)
    next_q = tl.load(norm + next_i).to(tl.float64) * per_scale
    next_s = tl.load(weight + next_i).to(tl.float64) if WEIGHTED else 1.0
    was, a, label, s, q, slope_rate = _take(next_was, next_a, next_label, next_s, next_q, parameter, LOSS, WEIGHTED)
    for f in tl.range(begin, end, num_stages=STAGES):
        i = tl.load(visits + f).to(tl.int64)
        x = tl.load(X + i * STRIDE + j)
        x_rest = tl.load(X + i * STRIDE + r, mask=r < FILLED, other=0.0) if REST > 0 else 0.0
        if f + 1 < end:
            next_i = tl.load(visits + f + 1).to(tl.int64)
            if not ONCE:
                next_was = tl.load(pending + next_i * columns + c)
            next_a = tl.load(alpha + next_i * columns + c)
            next_label = tl.load(y + next_i * columns + c).to(tl.float64)
            next_q = tl.load(norm + next_i).to(tl.float64) * per_scale
            if WEIGHTED:
                next_s = tl.load(weight + next_i).to(tl.float64)
        if f == stop:  # the next terminal begins
            if ONCE:
                _store_changes(pending, visits, begin, stop, mine, columns, c)
            place += 1
            begin = stop
            stop = tl.load(offsets + place + 1) - first_visit
            w = tl.load(model + j)
            if REST > 0:
                rest = tl.load(model + r, mask=r < FILLED, other=0.0)
            if INTERCEPT:
                own = tl.load(model + STRIDE)
            gain = gain * 0.0
            curve += own_curve

        z = tl.sum(x * w, axis=0)
        if REST > 0:
            z += tl.sum(x_rest * rest, axis=0)
        z = z.to(tl.float64)
        if INTERCEPT:
            z += own.to(tl.float64)
        step = dual_step(a, label, z, q, slope_rate, parameter, LOSS)
        if WEIGHTED:
            step = tl.where(s > 0.0, step, 0.0)
        gained = conjugate_inside(a, label, parameter, LOSS) - conjugate_inside(a + step, label, parameter, LOSS)
        gain += s * (gained - step * z - 0.5 * q * step * step)
        own_curve = tl.where(limit >= f - begin + 1, gain, own_curve)
        change = s * step
        factor = (change * per_scale).to(tl.float32)
        w += factor * x
        total += change * x.to(tl.float64)
        if REST > 0:
            rest += factor * x_rest
            total_rest += change * x_rest.to(tl.float64)
        if INTERCEPT:
            own += factor * CONSTANT_SQUARED
            total_own += change
        if ONCE:
            mine = tl.where(point == f - begin, change, mine)
            current = next_was
        else:
            # Every thread stores the number, so each thread reads it at the next visit of the row. If the next row is
            # the same row, its loaded value is out of date.
            tl.store(pending + i * columns + c + all_threads, was + change)
            current = tl.where(next_i == i, was + change, next_was)
        was, a, label, s, q, slope_rate = _take(current, next_a, next_label, next_s, next_q, parameter, LOSS, WEIGHTED)
    curve += own_curve
    if ONCE:
        _store_changes(pending, visits, begin, end, mine, columns, c)
    out = sums + (block * columns + c).to(tl.int64) * (WIDTH + CURVE)
    tl.store(out + j, total, mask=j < features)
    if REST > 0:
        tl.store(out + r, total_rest, mask=r < features)
    if INTERCEPT:
        tl.store(out + STRIDE, total_own)
    tl.store(out + WIDTH + point, curve, mask=point < CURVE)


@triton.jit
def follow_profile(
    y,
    weight,
    alpha,
    pending,
    starts,
    ends,
    terminals,
    blocks,
    factors,
    profile,
    gamma,
    columns,
    n_factors,
    LOSS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    QUADRATIC: tl.constexpr,
    FACTORS: tl.constexpr,
    N: tl.constexpr,
):
    """Write the profile of a block's dual sum along Δα: linear, quadratic and room, or the values at ``factors``."""
    block = tl.program_id(0)
    c = tl.program_id(1)
    row = tl.arange(0, N)
    k = tl.arange(0, FACTORS)
    parameter = tl.load(gamma)
    eta = tl.load(factors + k, mask=k < n_factors, other=0.0)
    values = tl.zeros([FACTORS], tl.float64)
    linear = tl.zeros([N], tl.float64)
    quadratic = tl.zeros([N], tl.float64)
    room = tl.zeros([N], tl.float64) + _INFINITY
    for place in range(tl.load(blocks + block), tl.load(blocks + block + 1)):
        t = tl.load(terminals + place)
        stop = tl.load(ends + t)
        for first in range(tl.load(starts + t), stop, N):
            i = first + row
            there = i < stop
            s = tl.load(weight + i, mask=there, other=0.0).to(tl.float64) if WEIGHTED else tl.where(there, 1.0, 0.0)
            used = s > 0.0
            safe = tl.where(used, s, 1.0).to(tl.float64)
            a = tl.load(alpha + i * columns + c, mask=used, other=0.0) / safe
            d = tl.load(pending + i * columns + c, mask=used, other=0.0) / safe
            label = tl.load(y + i * columns + c, mask=used, other=1.0).to(tl.float64)
            if QUADRATIC:
                part, bend, end = line(a, label, d, parameter, LOSS)
                linear += tl.where(used, safe * part, 0.0)
                quadratic += tl.where(used, safe * bend, 0.0)
                room = tl.minimum(room, tl.where(used, end, _INFINITY))
            else:
                at = a[:, None] + eta[None, :] * d[:, None]
                term = safe[:, None] * conjugate(at, label[:, None], parameter, LOSS)
                values -= tl.sum(tl.where(used[:, None], term, 0.0), axis=0)
    out = profile + (block * columns + c).to(tl.int64) * n_factors
    if QUADRATIC:
        tl.store(out, tl.sum(linear, axis=0))
        tl.store(out + 1, tl.sum(quadratic, axis=0))
        tl.store(out + 2, tl.min(room, axis=0))
    else:
        tl.store(out + k, values, mask=k < n_factors)


@triton.jit
def settle(alpha, pending, factor, row_terminal, n, columns, N: tl.constexpr):
    """Set α += factor Δα; nothing is pending afterwards."""
    place = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    there = place < n
    change = tl.load(pending + place, mask=there, other=0.0)
    t = tl.load(row_terminal + place // columns, mask=there, other=0)
    a = tl.load(alpha + place, mask=there, other=0.0) + tl.load(factor + t) * change
    tl.store(alpha + place, a, mask=there)
    tl.store(pending + place, tl.zeros([N], tl.float64), mask=there)


@triton.jit
def add_up(
    X,
    y,
    weight,
    alpha,
    starts,
    ends,
    terminals,
    blocks,
    stations,
    models,
    losses,
    duals,
    gamma,
    columns,
    n_stations,
    LOSS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    INTERCEPT: tl.constexpr,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
):
    """Write the losses of a block under a model in a column; with model 0 also the dual terms."""
    m = tl.program_id(0)
    block = tl.program_id(1)
    c = tl.program_id(2)
    model = models + ((m * n_stations + tl.load(stations + block)) * columns + c).to(tl.int64) * WIDTH
    parameter = tl.load(gamma)
    row = tl.arange(0, N)
    j = tl.arange(0, D)
    loss_sum = tl.zeros([N], tl.float64)
    dual_sum = tl.zeros([N], tl.float64)
    for place in range(tl.load(blocks + block), tl.load(blocks + block + 1)):
        t = tl.load(terminals + place)
        stop = tl.load(ends + t)
        for first in range(tl.load(starts + t), stop, N):
            i = first + row
            there = i < stop
            z = tl.zeros([N], tl.float64)
            for k in range(0, STRIDE, D):
                inside = k + j < STRIDE
                x = tl.load(
                    X + i[:, None] * STRIDE + (k + j)[None, :], mask=there[:, None] & inside[None, :], other=0.0
                )
                w = tl.load(model + k + j, mask=inside, other=0.0)
                z += tl.sum(x.to(tl.float64) * w[None, :], axis=1)
            if INTERCEPT:
                z += tl.load(model + STRIDE)
            s = tl.load(weight + i, mask=there, other=0.0).to(tl.float64) if WEIGHTED else tl.where(there, 1.0, 0.0)
            used = s > 0.0
            safe = tl.where(used, s, 1.0).to(tl.float64)
            label = tl.load(y + i * columns + c, mask=used, other=1.0).to(tl.float64)
            loss_sum += tl.where(used, safe * value(z, label, parameter, LOSS), 0.0)
            if m == 0:
                a = tl.load(alpha + i * columns + c, mask=used, other=0.0) / safe
                dual_sum -= tl.where(used, safe * conjugate(a, label, parameter, LOSS), 0.0)
    n_models = tl.num_programs(0)
    tl.store(losses + (block * columns + c) * n_models + m, tl.sum(loss_sum, axis=0))
    if m == 0:
        tl.store(duals + block * columns + c, tl.sum(dual_sum, axis=0))


@triton.jit
def add_blocks(parts, starts, sums, width, N: tl.constexpr, D: tl.constexpr):
    """Write the sum of each station's blocks, N at a time."""
    station = tl.program_id(0)
    j = tl.program_id(1) * D + tl.arange(0, D)
    row = tl.arange(0, N)
    total = tl.zeros([D], tl.float64)
    stop = tl.load(starts + station + 1)
    for first in range(tl.load(starts + station), stop, N):
        k = first + row
        mask = (k < stop)[:, None] & (j < width)[None, :]
        total += tl.sum(tl.load(parts + k[:, None].to(tl.int64) * width + j[None, :], mask=mask, other=0.0), axis=0)
    tl.store(sums + station.to(tl.int64) * width + j, total, mask=j < width)
