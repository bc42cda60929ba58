"""What masked sums cost: bytes of a round beside one in the clear, and the CPU time of both sides' arithmetic.

python benchmarks/masking.py [TERMINALS ...]    (25 and 1000 unless told; 561 features, as HAR has)
"""

from __future__ import annotations

import sys
import time

import numpy as np

from rhfedmtl.roles.channel import FixedPoint
from rhfedmtl.roles.message_sizes import message_sizes
from rhfedmtl.roles.secure.masked_sums import MaskRoom
from rhfedmtl.roles.secure.masking import Masker, seat

NUMBERS, ROUNDS = 562 + 17, 3


def measure(n: int) -> None:
    """One station with so many terminals, in one process, without a network."""
    clear, masked = message_sizes((1, 562), 1, 0), message_sizes((1, 562), 1, 0, FixedPoint(), n)
    ratio = (masked.order + masked.update) / (clear.order + clear.update)
    room, maskers = MaskRoom(), {t: Masker(t) for t in range(n)}
    words = np.random.default_rng(0).integers(0, 2**64, (n, NUMBERS), dtype=np.uint64)
    for masker in maskers.values():
        room.admit(masker.key)
    began = time.process_time()
    for t, circle in room.prepare(maskers).items():
        room.receive(maskers[t].deal(circle))
    keys, below, above = time.process_time() - began, 0.0, 0.0
    for number in range(ROUNDS):
        began = time.process_time()
        asked = room.start(b"order", dict.fromkeys(maskers, seat(1, 0, 5)))
        assert asked is not None
        partners = asked.partners()
        above += time.process_time() - began
        began = time.process_time()
        sent = [
            masker.mask(partners[t], b"order", seat(1, 0, 5), words[t] + np.uint64(number))
            for t, masker in maskers.items()
        ]
        deals = [masker.deal_for(room.slot + 1) for masker in maskers.values()]
        below += time.process_time() - began
        began = time.process_time()
        for each in sent:
            asked.receive(each)
        unmask = asked.close()
        assert unmask is not None
        above += time.process_time() - began
        began = time.process_time()
        opened = [masker.open(unmask) for masker in maskers.values()]
        below += time.process_time() - began
        began = time.process_time()
        for shares in opened:
            asked.open(shares)
        assert asked.total() is not None
        for deal in deals:
            room.receive(deal)
        above += time.process_time() - began
    each = 1e3 * below / ROUNDS / n
    print(f"{n:6} {ratio:8.3f} {1e3 * keys / n:12.2f} {each:14.2f} {1e3 * above / ROUNDS:12.1f}")


def main() -> None:
    """A line for each number of terminals."""
    print("     n    bytes   keys, ms   terminal, ms  station, ms   (keys once; the others in every round)")
    for n in [int(word) for word in sys.argv[1:]] or [25, 1000]:
        measure(n)


if __name__ == "__main__":
    main()
