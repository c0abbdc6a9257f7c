// The other half of codegen/cuda/hopper.h: barriers in shared memory (mbarrier), bulk copies (cp.async.bulk), proxies, and
// products by a warpgroup (wgmma). What is checked, by the rules of the PTX ISA:
// - barriers: made once, by a thread behind which gm_sync lies; not touched as memory; no more arrivals in a phase than its
//   count; as many bytes copied as were expected, in the phase that expected them. A wait that nobody ends is a deadlock;
// - who waited for a phase is ordered behind what those who arrived had done, and behind its bulk copies; nobody else is;
// - bulk copies: whole multiples of sixteen bytes at such places, of memory that is there and not written by the launch; no
//   access to their bytes before the phase is over; a barrier that its maker's gm_fence_proxy shows to the async proxy;
// - what gm_wgmma reads from shared memory: inside one array, written, ordered before, and, unless a bulk copy wrote it,
//   behind the writer's gm_fence_proxy or, once that is ordered, the reader's; not written before the products were waited for and their warps arrived somewhere;
// - registers of gm_wgmma: written before gm_wgmma_fence, not changed (operands) or touched (sums) before gm_wgmma_wait;
//   until then the sums hold random numbers;
// - warpgroups: all 128 threads at the same instruction, with the same operand in shared memory.
//
// What is left out: clusters; swizzles of 32 and 64 bytes, which are refused.

#ifndef GM_EMULATOR_HOPPER
#define GM_EMULATOR_HOPPER

namespace gm_emulator {

void barrier_init(uint32_t at, uint32_t count, int line);
void barrier_expect(uint32_t at, uint32_t bytes, int line);
void barrier_arrive(uint32_t at, int line);
void barrier_wait(uint32_t at, uint32_t parity, int line);

void start_bulk_copy(uint32_t to, const unsigned char* from, uint32_t bytes, uint32_t barrier, int line);
void fence_proxy();
void check_source(const unsigned char* from, uint32_t bytes, int line);

inline void bulk_copy(
    const SharedArray<unsigned char>& array, uint32_t i, const unsigned char* from, uint32_t bytes, uint32_t barrier, int line
) {
    if (bytes == 0 || bytes % 16 != 0) fail(line, "a bulk copy of %u bytes, no multiple of 16", bytes);
    const uint32_t to = array.locate_bytes(i, bytes, "a bulk copy", line);
    if (to % 16 != 0) fail(line, "a bulk copy to %s[%u], which is not aligned to 16 bytes", array.own_name(), i);
    check_source(from, bytes, line);
    array.may_write(to, bytes, "a bulk copy", i, line);
    start_bulk_copy(to, from, bytes, barrier, line);
}

void set_registers(uint32_t count, int line);
void wgmma_fence(int line);
void wgmma_commit(int line);
void wgmma_wait(uint32_t pending, int line);
void wgmma(int32_t* d, uint32_t count, const uint32_t* a, uint64_t b, bool add, int line);
void wgmma_halves(Half type, float* d, uint32_t count, uint64_t a, uint64_t b, int line);

}  // namespace gm_emulator

#endif
