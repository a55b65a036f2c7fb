"""The random words that draws are made of, for the preludes of all dialects; `ir.ops.random` has their meaning."""

TEXT = r"""
// Philox4x32-10. Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
struct Words { u32 at[4]; };
HELPER Words philox(u64 stream, u32 block, u32 trip, u64 site) {
  u32 c0 = block, c1 = trip, c2 = (u32)site, c3 = (u32)(site >> 32), k0 = (u32)stream, k1 = (u32)(stream >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u64 p0 = (u64)c0 * 0xD2511F53u, p1 = (u64)c2 * 0xCD9E8D57u;
    c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
    c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
    c1 = (u32)p1;
    c3 = (u32)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return Words{{c0, c1, c2, c3}};
}"""
