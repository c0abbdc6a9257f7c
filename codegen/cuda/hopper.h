// What sm_90a has beyond device.h, behind which it stands in the units that use it: barriers in shared memory, bulk copies
// that report to them, and products by a warpgroup (four warps from a multiple of four on).
//
// Two proxies reach shared memory: the generic one (loads, stores, gm_copy) and the async one (bulk copies, gm_wgmma).
// What a thread wrote by the one is read by the other only behind a gm_fence_proxy on the way: its own and then a barrier, or a barrier and
// then the reader's. A fence waits for all that its thread has under way, so it stands where least is.

#ifndef GM_HOPPER_H
#define GM_HOPPER_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// GM_SHARED_FROM(type, name, count, begin): an array that begins at byte `begin`, a multiple of sixteen, of the shared memory
// that the launch gives: more than the 48 KiB that GM_SHARED has in all.
extern __shared__ __align__(1024) u8 gm_given[];
#define GM_SHARED_FROM(T, name, count, begin) T* const name = (T*)(gm_given + (begin))

GM_DEVICE u32 gm_shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Element i of an array of u64 becomes a barrier whose phases each take `count` arrivals. Behind it the same thread's
// gm_fence_proxy, then gm_sync.
GM_DEVICE void gm_barrier_init(u64* array, u32 i, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(gm_shared_address(array + i)), "r"(count) : "memory");
}
// The current phase also waits for so many bytes of bulk copies.
GM_DEVICE void gm_barrier_expect(u64* array, u32 i, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
        : : "r"(gm_shared_address(array + i)), "r"(bytes) : "memory");
}
// What this thread did before is done for those who wait for the phase.
GM_DEVICE void gm_barrier_arrive(u64* array, u32 i) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.release.cta.shared::cta.b64 state, [%0];\n}"
        : : "r"(gm_shared_address(array + i)) : "memory");
}
// Waits until the current phase has the other parity: phases count from 0, and before the first one is over, to wait for
// parity 1 is over at once.
GM_DEVICE void gm_barrier_wait(u64* array, u32 i, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}"
        : : "r"(gm_shared_address(array + i)), "r"(parity) : "memory");
}

// Starts a copy to byte i of an array, of memory that nobody writes during the launch. Both places and `bytes` are
// multiples of sixteen. Element `at` of `barriers` is told when all is there.
GM_DEVICE void gm_bulk_copy(u8* array, u32 i, const u8* from, u32 bytes, u64* barriers, u32 at) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        : : "r"(gm_shared_address(array + i)), "l"(from), "r"(bytes), "r"(gm_shared_address(barriers + at)) : "memory");
}
GM_DEVICE void gm_fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

// Whether this is the lane of the warp that does what one is to do; asked by all 32 together. Behind this the compiler knows that there
// is one: bulk copies, whose operands are the warp's and not a lane's, need no loop over lanes.
GM_DEVICE bool gm_elect() {
    u32 is;
    asm volatile("{\n.reg .pred is;\nelect.sync _|is, 0xffffffff;\nselp.u32 %0, 1, 0, is;\n}" : "=r"(is));
    return is != 0;
}

// All four warps of a warpgroup change how many registers each of their threads has; both are multiples of 8.
template <u32 COUNT> GM_DEVICE void gm_more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(COUNT)); }
template <u32 COUNT> GM_DEVICE void gm_fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(COUNT)); }

// An operand of gm_wgmma from byte i of an array on: core matrices of eight rows of sixteen bytes, one row behind the
// other; `along_k` bytes lie between two that follow along k, `along_n` between two that follow along the rows.
GM_DEVICE u64 gm_wgmma_operand(const u8* array, u32 i, u32 along_k, u32 along_n) {
    return (u64)(gm_shared_address(array + i) >> 4 & 0x3fffu) | (u64)(along_k >> 4) << 16 | (u64)(along_n >> 4) << 32;
}
// Before the first gm_wgmma that reads or adds to registers which something else wrote.
GM_DEVICE void gm_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
// Those since the last commit are a group; waits until at most PENDING groups are on their way.
GM_DEVICE void gm_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
template <u32 PENDING> GM_DEVICE void gm_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(PENDING) : "memory");
}
// Behind the gm_wgmma_wait for the last products of d: keeps what uses the sums behind it. To the compiler they are there as
// soon as the products begin, and it may move arithmetic on registers across a wait.
template <u32 COUNT> GM_DEVICE void gm_wgmma_done(i32 (&d)[COUNT]) {
    GM_UNROLL for (u32 i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i]) : : "memory");
}
template <u32 COUNT> GM_DEVICE void gm_wgmma_done(f32 (&d)[COUNT]) {
    GM_UNROLL for (u32 i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i]) : : "memory");
}

#else

#define GM_LINE int line = __builtin_LINE()
#define GM_SHARED_FROM(T, name, count, begin) GM_EMULATOR_SHARED_FROM(T, name, count, begin)
typedef gm_emulator::SharedArray<u64> GmBarriers;

GM_DEVICE void gm_barrier_init(const GmBarriers& array, u32 i, u32 count, GM_LINE) {
    gm_emulator::barrier_init(array.locate(i, 8, "a barrier", line), count, line);
}
GM_DEVICE void gm_barrier_expect(const GmBarriers& array, u32 i, u32 bytes, GM_LINE) {
    gm_emulator::barrier_expect(array.locate(i, 8, "a barrier", line), bytes, line);
}
GM_DEVICE void gm_barrier_arrive(const GmBarriers& array, u32 i, GM_LINE) {
    gm_emulator::barrier_arrive(array.locate(i, 8, "a barrier", line), line);
}
GM_DEVICE void gm_barrier_wait(const GmBarriers& array, u32 i, u32 parity, GM_LINE) {
    gm_emulator::barrier_wait(array.locate(i, 8, "a barrier", line), parity, line);
}

GM_DEVICE void gm_bulk_copy(
    const gm_emulator::SharedArray<u8>& array, u32 i, const u8* from, u32 bytes, const GmBarriers& barriers, u32 at, GM_LINE
) {
    gm_emulator::bulk_copy(array, i, from, bytes, barriers.locate(at, 8, "a barrier", line), line);
}
GM_DEVICE void gm_fence_proxy() { gm_emulator::fence_proxy(); }

// The PTX ISA does not say which lane it is.
GM_DEVICE bool gm_elect(GM_LINE) { return gm_emulator::shfl((gm_warp() * 5 + 3) % 32, 0, line) == gm_lane(); }

template <u32 COUNT> GM_DEVICE void gm_more_registers(GM_LINE) {
    static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "a count that setmaxnreg takes");
    gm_emulator::set_registers(COUNT, line);
}
template <u32 COUNT> GM_DEVICE void gm_fewer_registers(GM_LINE) { gm_more_registers<COUNT>(line); }

GM_DEVICE u64 gm_wgmma_operand(const gm_emulator::SharedArray<u8>& array, u32 i, u32 along_k, u32 along_n, GM_LINE) {
    const u32 address = array.locate(i, 1, "an operand", line);
    if (address % 16 != 0 || along_k % 16 != 0 || along_n % 16 != 0)
        gm_emulator::fail(line, "an operand at byte %u, its parts %u and %u bytes apart: not all multiples of 16", address, along_k, along_n);
    return (u64)(address >> 4 & 0x3fffu) | (u64)(along_k >> 4) << 16 | (u64)(along_n >> 4) << 32;
}
GM_DEVICE void gm_wgmma_fence(GM_LINE) { gm_emulator::wgmma_fence(line); }
GM_DEVICE void gm_wgmma_commit(GM_LINE) { gm_emulator::wgmma_commit(line); }
template <u32 PENDING> GM_DEVICE void gm_wgmma_wait(GM_LINE) {
    static_assert(PENDING <= 7, "as many groups as the instruction can leave");
    gm_emulator::wgmma_wait(PENDING, line);
}
// The emulator has no compiler that moves sums.
template <u32 COUNT, class T> GM_DEVICE void gm_wgmma_done(T (&)[COUNT]) {}
// d += a * b by a warpgroup, or d = a * b where `add` is 0, which is the same for all: 64 rows by twice as many columns as d has registers; unsigned by signed. Warp w of the four has
// rows 16 w to 16 w + 15: a and each four of d lie in its lanes as those of gm_mma_16832_us do, and b is what
// gm_wgmma_operand says, a row of it for each column of d. Until gm_wgmma_wait nobody touches d, and nobody writes a and b.
// (For a device the unit has it for its own number of columns.)
template <u32 COUNT> GM_DEVICE void gm_wgmma_us(i32 (&d)[COUNT], const u32 (&a)[4], u64 b, u32 add = 1, GM_LINE) {
    static_assert(COUNT % 4 == 0 && COUNT <= 128, "8 to 256 columns");
    gm_emulator::wgmma(d, COUNT, a, b, add != 0, line);
}
// The same with f16 or bf16 and f32 sums, sixteen k. Operand a is in shared memory too, 64 rows of it; nobody writes it before
// gm_wgmma_wait.
template <u32 COUNT> GM_DEVICE void gm_wgmma_f16(f32 (&d)[COUNT], u64 a, u64 b, GM_LINE) {
    static_assert(COUNT % 4 == 0 && COUNT <= 128, "8 to 256 columns");
    gm_emulator::wgmma_halves(gm_emulator::Half::F16, d, COUNT, a, b, line);
}
template <u32 COUNT> GM_DEVICE void gm_wgmma_bf16(f32 (&d)[COUNT], u64 a, u64 b, GM_LINE) {
    static_assert(COUNT % 4 == 0 && COUNT <= 128, "8 to 256 columns");
    gm_emulator::wgmma_halves(gm_emulator::Half::Bf16, d, COUNT, a, b, line);
}
#undef GM_LINE

#endif

// An operand of gm_wgmma whose rows are lines of 128 bytes, one behind the other from byte i of an array on, a multiple of 1024, in the
// PTX ISA's 128-byte swizzle: bytes 16 c to 16 c + 15 of row r stand at 16 (c ^ r % 8). `byte` is where the operand's k begin in each line.
template <class A> GM_DEVICE u64 gm_wgmma_lines(const A& array, u32 i, u32 byte) {
    return gm_wgmma_operand(array, i + byte, 16, 1024) | 1ull << 62;
}

// y / x, given the inverse of x: for integers y of up to 32 bits (or zero) and x from 2^-60 to 2^60, so that nothing here
// is subnormal or infinite. The first correction leaves a quotient that is off by one place at most; Markstein (1990): one more,
// by the rounded inverse and the exact remainder, gives the rounded quotient.
GM_DEVICE f32 gm_quotient(f32 y, f32 x, f32 inverse) {
    const f32 near = y * inverse;
    const f32 next = gm_fma(gm_fma(-near, x, y), inverse, near);
    return gm_fma(gm_fma(-next, x, y), inverse, next);
}
GM_DEVICE bool gm_divides_in_place(f32 x) { return (gm_bits(x) >> 23 & 0xffu) - 67u < 120u; }

#endif
