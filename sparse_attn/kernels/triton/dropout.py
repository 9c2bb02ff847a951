"""Dropout by the hash of kernels/dropout.py, so that all kernels agree."""

import triton
import triton.language as tl

from sparse_attn.kernels.triton.names import Drop


@triton.jit
def mixed(x):
    """A bijection of 32 bits under which neighbours look independent (lowbias32, C. Wellons)."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def kept(drop, columns, site):
    """Return a mask of the kept weights of a tile [BM, BN].

    Two neighbours share a hash, each with 16 bits, so a rate is rounded to 2^-16.
    """
    head = drop.head.to(tl.uint32)
    first = mixed(drop.seed.to(tl.uint32) ^ mixed(head))
    second = mixed((drop.seed >> 32).to(tl.uint32) + head)
    row = mixed(site.rows.to(tl.uint32) + first)
    # two independent states per row, because single states of two rows are too often similar
    state, other = row[:, None], mixed(row + second)[:, None]
    bits = (state ^ (columns & -2).to(tl.uint32)[None, :]) * 0x7FEB352D + other
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits ^= bits >> 16
    bits = tl.where((columns & 1 == 0)[None, :], bits << 16, bits)
    return bits.to(tl.int32, bitcast=True) >= drop.cut


@triton.jit
def drop_of(seed, head, dropping, FLAGS: tl.constexpr):
    value = tl.load(seed) if FLAGS.dropout else head.to(tl.int64)
    return Drop(value, head, dropping[0], dropping[1])
