// Barriers in shared memory, bulk copies and warpgroups; see hopper.h.
//
// Threads that such barriers order are told apart by clocks: a thread's clock goes up whenever it arrives, and a view holds,
// for each other thread, up to which clock it is ordered before the view's owner. Barriers hand views on.

#include "hopper.h"

#include <memory>
#include <unordered_map>

namespace gm_emulator {

namespace {

constexpr uint32_t GRANULE = 16;
constexpr uint32_t GRANULES = MAX_SHARED / GRANULE;
constexpr uint32_t WARPS = MAX_THREADS / 32;
constexpr uint32_t MAX_BARRIERS = 64;

// What happened before a thread, or before the end of a phase.
struct View {
    // By thread: its clock, and how many gm_fence_proxy it had done.
    uint32_t clocks[MAX_THREADS], fences[MAX_THREADS];
    // By warp, how often it had waited for its products; by barrier, how many phases were over.
    uint32_t waits[WARPS], phases[MAX_BARRIERS];

    void join(const View& other) {
        for (uint32_t i = 0; i < state.threads; i++) {
            clocks[i] = std::max(clocks[i], other.clocks[i]);
            fences[i] = std::max(fences[i], other.fences[i]);
        }
        for (uint32_t i = 0; i < WARPS; i++) waits[i] = std::max(waits[i], other.waits[i]);
        for (uint32_t i = 0; i < MAX_BARRIERS; i++) phases[i] = std::max(phases[i], other.phases[i]);
    }
};

struct PhaseBarrier {
    uint32_t at, count, pending, phase, maker, maker_fences;
    int64_t bytes;
    // How many phases were over when the last one with a bulk copy was, and the copy's line.
    uint32_t copied;
    int copy_line;
    std::unique_ptr<View> arrived, over;
    std::vector<uint32_t> waiting;
};

struct BulkCopy {
    uint32_t to, bytes, barrier, phase;
    const unsigned char* from;
    int line;
};

// Sixteen bytes of shared memory that products read, by warp.
struct Granule {
    uint32_t block_epoch;
    uint8_t in_flight[WARPS];
    // The count of the warp's waits behind which its last read was over.
    uint32_t over[WARPS];
};

// Sums of a thread that are on their way.
struct Sums {
    int32_t* d;
    uint32_t count, group;
    std::vector<int32_t> values, poison;
    int line;
};
// An operand of a thread that is being read.
struct Operand {
    const uint32_t* a;
    uint32_t copy[4], group;
    int line;
};
// Registers as gm_wgmma_fence found them.
struct Known {
    const void* registers;
    std::vector<uint32_t> copy;
};
struct Lane {
    std::vector<Sums> sums;
    std::vector<Operand> operands;
    std::vector<Known> known;
    uint32_t committed = 0;
};
struct Group {
    bool fenced = false;
    struct Read {
        uint32_t granule, group;
    };
    std::vector<Read> reads;
};

// Somebody who read a byte that others read too.
struct Reader {
    uint16_t thread;
    uint32_t clock;
    uint64_t warp_epoch;
};
// Those of a byte, by its place, for as long as its tag says that they are several.
std::unordered_map<uint32_t, std::vector<Reader>> readers;

uint32_t clocks[MAX_THREADS], fences[MAX_THREADS], waits[WARPS];
// At each thread's last gm_fence_proxy: the epoch, and up to which clock the others were ordered before it.
uint32_t fence_epochs[MAX_THREADS];
uint32_t (*before_fence)[MAX_THREADS];
View* views;
// What gm_sync told everybody.
View* of_all;
std::vector<PhaseBarrier> barriers;
std::vector<BulkCopy> bulk_copies;
Granule* granules;
Lane lanes_of[MAX_THREADS];
Group groups[MAX_THREADS / 128];
uint32_t in_group_op[MAX_THREADS / 128];

View& own_view() { return views[state.thread]; }

void publish(View& to, uint32_t thread) {
    to.join(views[thread]);
    to.clocks[thread] = clocks[thread] + 1;
    to.fences[thread] = std::max(to.fences[thread], fences[thread]);
    to.waits[thread / 32] = std::max(to.waits[thread / 32], waits[thread / 32]);
    clocks[thread]++;
}

uint32_t fences_seen(uint32_t other) {
    const uint32_t told = std::max(own_view().fences[other], of_all->fences[other]);
    return other == state.thread ? fences[other] : told;
}

// Whether this thread's own gm_fence_proxy lies behind a write that it reads now.
bool own_fence_lies_between(const SharedByte& byte) {
    if (byte.write.epoch < fence_epochs[state.thread]) return true;
    return byte.write.spread == 0 && before_fence[state.thread][byte.write.thread] > byte.write_clock;
}

PhaseBarrier& barrier_at(uint32_t at, const char* what, int line) {
    for (PhaseBarrier& barrier : barriers) {
        if (barrier.at != at) continue;
        if (unordered_write(state.shared_bytes[at]))
            fail(line, "%s on a barrier that thread %u made, and no gm_sync lies between", what, barrier.maker);
        return barrier;
    }
    fail(line, "%s on what is no barrier", what);
}

void end_phase_if_over(PhaseBarrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    barrier.phase++;
    barrier.pending = barrier.count;
    barrier.over->join(*barrier.arrived);
    barrier.over->phases[&barrier - barriers.data()] = barrier.phase;
    for (uint32_t thread : barrier.waiting) {
        fibers[thread].wait = Wait::None;
        push_ready(thread);
    }
    barrier.waiting.clear();
}

// One of the bulk copies on their way, any, comes to its end.
void land(uint32_t which) {
    const BulkCopy copy = bulk_copies[which];
    PhaseBarrier& barrier = barriers[copy.barrier];
    if (barrier.phase != copy.phase)
        fail(copy.line, "phase %u was over before this copy of %u bytes, which it should have waited for", copy.phase, copy.bytes);
    // A launch that fails leaves its copies, so that the next one knows whose bytes they are.
    bulk_copies.erase(bulk_copies.begin() + which);
    memcpy(state.shared + copy.to, copy.from, copy.bytes);
    for (uint32_t at = copy.to; at < copy.to + copy.bytes; at++) {
        SharedByte& byte = state.shared_bytes[at];
        byte.awaited = false;
        note_write(byte);
        byte.bulk = uint16_t(copy.barrier + 1);
        byte.phase = copy.phase;
    }
    barrier.bytes -= copy.bytes;
    end_phase_if_over(barrier);
}

bool land_any() {
    if (bulk_copies.empty()) return false;
    land(uint32_t(random_bits() % bulk_copies.size()));
    return true;
}

// Copies end whenever they like.
void land_some() {
    while (random_bits() % 4 == 0 && land_any()) {}
}

bool hopper_prepare() {
    views = static_cast<View*>(calloc(MAX_THREADS, sizeof(View)));
    of_all = static_cast<View*>(calloc(1, sizeof(View)));
    granules = static_cast<Granule*>(calloc(GRANULES, sizeof(Granule)));
    before_fence = static_cast<uint32_t(*)[MAX_THREADS]>(calloc(MAX_THREADS, sizeof *before_fence));
    state.clocks = clocks;
    state.fences = fences;
    return views && of_all && granules && before_fence;
}

// Clocks go on from block to block, so that no view of an earlier one says anything.
void hopper_block_starts() {
    for (const BulkCopy& copy : bulk_copies)
        for (uint32_t at = copy.to; at < copy.to + copy.bytes; at++) state.shared_bytes[at].awaited = false;
    for (const PhaseBarrier& barrier : barriers)
        for (uint32_t at = barrier.at; at < barrier.at + 8; at++) state.shared_bytes[at].barrier = false;
    if (state.has_barriers) {
        memset(views, 0, MAX_THREADS * sizeof(View));
        memset(of_all, 0, sizeof(View));
    }
    state.has_barriers = false;
    readers.clear();
    bulk_copies.clear();
    barriers.clear();
    for (Lane& lane : lanes_of) lane = Lane();
    for (Group& group : groups) group = Group();
    std::fill(std::begin(in_group_op), std::end(in_group_op), 0);
}

void hopper_thread_ends() {
    const Lane& lane = lanes_of[state.thread];
    if (!lane.sums.empty()) fail(lane.sums[0].line, "the thread returned before it waited for this product");
    if (done + 1 < state.threads) return;
    for (size_t i = 0; i < barriers.size(); i++) {
        uint32_t seen = 0;
        for (uint32_t thread = 0; thread < state.threads; thread++) seen = std::max(seen, views[thread].phases[i]);
        if (seen < barriers[i].copied) fail(barriers[i].copy_line, "the block ended, and nobody waited for this copy");
    }
}

// gm_sync orders everything before everything; what it tells is kept once for all threads.
void hopper_block_barrier() {
    if (!state.has_barriers) return;
    for (uint32_t thread = 0; thread < state.threads; thread++) publish(*of_all, thread);
}

void hopper_warp_barrier(uint32_t warp) {
    if (!state.has_barriers) return;
    static View together;
    together = views[warp * 32];
    for (uint32_t lane = 0; lane < 32; lane++) publish(together, warp * 32 + lane);
    for (uint32_t lane = 0; lane < 32; lane++) views[warp * 32 + lane].join(together);
}

}  // namespace

bool barriers_order(uint32_t other, uint32_t clock) { return own_view().clocks[other] > clock; }

void note_reader(const SharedByte& byte) {
    std::vector<Reader>& here = readers[uint32_t(&byte - state.shared_bytes)];
    if (byte.read.spread == 0) {
        here.clear();
        if (byte.read.epoch == state.epoch) here.push_back({byte.read.thread, byte.read_clock, byte.read.warp_epoch});
    }
    const Reader now{uint16_t(state.thread), clocks[state.thread], state.warp_epochs[state.thread / 32]};
    for (Reader& reader : here)
        if (reader.thread == now.thread) {
            reader = now;
            return;
        }
    here.push_back(now);
}

bool readers_unordered(const SharedByte& byte) {
    const auto found = readers.find(uint32_t(&byte - state.shared_bytes));
    // Those of the time before the block had barriers are not known one by one.
    if (found == readers.end() || found->second.empty()) return true;
    const uint32_t warp = state.thread / 32;
    for (const Reader& reader : found->second) {
        if (reader.thread == state.thread) continue;
        if (reader.thread / 32 == warp && reader.warp_epoch != state.warp_epochs[warp]) continue;
        if (!barriers_order(reader.thread, reader.clock)) return true;
    }
    return false;
}

bool has_seen_phase(uint32_t barrier, uint32_t phase) {
    return std::max(own_view().phases[barrier - 1], of_all->phases[barrier - 1]) > phase;
}

void check_products(uint32_t begin, size_t bytes, const char* what, const char* name, int line) {
    for (uint32_t i = begin / GRANULE; i <= (begin + bytes - 1) / GRANULE; i++) {
        const Granule& granule = granules[i];
        if (granule.block_epoch != state.block_epoch) continue;
        for (uint32_t warp = 0; warp < state.threads / 32; warp++) {
            if (granule.in_flight[warp])
                fail(line, "%s in %s, where a product of warp %u reads that it hasn't waited for", what, name, warp);
            const uint32_t told = std::max(own_view().waits[warp], of_all->waits[warp]);
            const uint32_t seen = warp == state.thread / 32 ? waits[warp] : told;
            if (granule.over[warp] > seen)
                fail(line, "%s in %s, where a product of warp %u read, and no barrier lies between", what, name, warp);
        }
    }
}

void barrier_init(uint32_t at, uint32_t count, int line) {
    if (count == 0 || count >= 1 << 20) fail(line, "a barrier for %u arrivals; it takes 1 to 1048575", count);
    if (barriers.size() == MAX_BARRIERS) fail(line, "more than %u barriers", MAX_BARRIERS);
    for (uint32_t i = at; i < at + 8; i++) {
        SharedByte& byte = state.shared_bytes[i];
        if (byte.barrier) fail(line, "this barrier is there already");
        if (byte.awaited || unordered_write(byte) || unordered_read(byte))
            fail(line, "a barrier where another thread was, and no barrier lies between");
        note_write(byte);
        byte.barrier = true;
    }
    state.has_barriers = true;
    barriers.push_back({at, count, count, 0, state.thread, fences[state.thread], 0, 0, line, std::make_unique<View>(), std::make_unique<View>(), {}});
    memset(barriers.back().arrived.get(), 0, sizeof(View));
    memset(barriers.back().over.get(), 0, sizeof(View));
}

void barrier_expect(uint32_t at, uint32_t bytes, int line) {
    land_some();
    PhaseBarrier& barrier = barrier_at(at, "gm_barrier_expect", line);
    barrier.bytes += bytes;
    if (barrier.bytes >= 1 << 20) fail(line, "%lld bytes expected in one phase; a barrier counts to 1048575", (long long)barrier.bytes);
}

void barrier_arrive(uint32_t at, int line) {
    land_some();
    PhaseBarrier& barrier = barrier_at(at, "gm_barrier_arrive", line);
    if (barrier.pending == 0) fail(line, "more than the %u arrivals that the barrier takes in a phase", barrier.count);
    publish(*barrier.arrived, state.thread);
    barrier.pending--;
    end_phase_if_over(barrier);
}

void barrier_wait(uint32_t at, uint32_t parity, int line) {
    if (parity > 1) fail(line, "gm_barrier_wait for parity %u", parity);
    land_some();
    PhaseBarrier& barrier = barrier_at(at, "gm_barrier_wait", line);
    const size_t index = size_t(&barrier - barriers.data());
    if (barrier.phase % 2 == parity) {
        Fiber& self = fibers[state.thread];
        self.wait = Wait::Phase;
        self.line = line;
        barrier.waiting.push_back(state.thread);
        leave();
    }
    // Barriers may have been added meanwhile.
    own_view().join(*barriers[index].over);
}

void fence_proxy() {
    fences[state.thread]++;
    fence_epochs[state.thread] = state.epoch;
    memcpy(before_fence[state.thread], own_view().clocks, state.threads * sizeof(uint32_t));
    // From here on it matters which barrier tells whom.
    state.has_barriers = true;
}

void check_source(const unsigned char* from, uint32_t bytes, int line) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(from);
    if (state.overlaps && !state.waited[state.thread])
        fail_access(line, "gm_bulk_copy", address, bytes, "in front of gm_wait_for_previous");
    if (address % 16 != 0) fail_access(line, "gm_bulk_copy", address, bytes, "not aligned to 16 bytes");
    const Allocation* place = find_allocation(line, "gm_bulk_copy", address, bytes);
    check_set(line, "gm_bulk_copy", address, bytes, place);
    if (!place->writes) return;
    for (uint32_t i = 0; i < bytes; i++) {
        const Tag& tag = place->writes[address + i - place->begin];
        if (tag.epoch >= state.launch_epoch) fail_race(line, "gm_bulk_copy", address + i, place->name, tag);
    }
}

void start_bulk_copy(uint32_t to, const unsigned char* from, uint32_t bytes, uint32_t at, int line) {
    PhaseBarrier& barrier = barrier_at(at, "gm_bulk_copy", line);
    if (fences_seen(barrier.maker) <= barrier.maker_fences)
        fail(line, "a bulk copy reports to a barrier behind whose making lies no gm_fence_proxy");
    for (uint32_t i = to; i < to + bytes; i++) {
        state.shared_bytes[i].awaited = true;
        state.shared[i] = uint8_t(random_bits());
    }
    bulk_copies.push_back({to, bytes, uint32_t(&barrier - barriers.data()), barrier.phase, from, line});
    barrier.copied = barrier.phase + 1;
    barrier.copy_line = line;
    land_some();
}

namespace {

// The last thread to arrive does the operation for all four warps.
void group_op(WarpOp op, int line, uint32_t parameter, void (*operation)(uint32_t first, int line)) {
    Fiber& self = fibers[state.thread];
    self.wait = Wait::Group;
    self.op = op;
    self.line = line;
    self.parameter = parameter;
    const uint32_t group = state.thread / 128;
    if (++in_group_op[group] < 128) return leave();
    in_group_op[group] = 0;
    for (uint32_t i = group * 128; i < group * 128 + 128; i++) {
        const Fiber& other = fibers[i];
        if (other.op != op || other.line != line || other.parameter != parameter)
            fail(line, "%s, but thread %u of the same warpgroup is at %s of line %d", name_of(op), i, name_of(other.op), other.line);
        fibers[i].wait = Wait::None;
    }
    operation(group * 128, line);
    for (uint32_t warp = group * 4; warp < group * 4 + 4; warp++) push_lanes_shuffled(warp, state.thread);
}

Known* known(Lane& lane, const void* registers) {
    for (Known& each : lane.known)
        if (each.registers == registers) return &each;
    return nullptr;
}

// Whether registers are as the last fence found them; it doesn't know those that no product had before.
bool as_fenced(Lane& lane, const void* registers, uint32_t count) {
    if (const Known* found = known(lane, registers)) return memcmp(found->copy.data(), registers, count * 4) == 0;
    const uint32_t* words = static_cast<const uint32_t*>(registers);
    lane.known.push_back({registers, std::vector<uint32_t>(words, words + count)});
    return true;
}

bool on_their_way(const Lane& lane, const void* registers) {
    for (const Sums& sums : lane.sums)
        if (sums.d == registers) return true;
    return false;
}

void fence_group(uint32_t first, int) {
    groups[first / 128].fenced = true;
    for (uint32_t thread = first; thread < first + 128; thread++) {
        Lane& lane = lanes_of[thread];
        for (Known& each : lane.known)
            if (!on_their_way(lane, each.registers)) memcpy(each.copy.data(), each.registers, each.copy.size() * 4);
    }
}

void commit_group(uint32_t first, int) {
    // The next group's operands are other registers, or the same with other values.
    groups[first / 128].fenced = false;
    for (uint32_t thread = first; thread < first + 128; thread++) lanes_of[thread].committed++;
}

void await_group(uint32_t first, int line) {
    const uint32_t pending = fibers[first].parameter, made = lanes_of[first].committed;
    const uint32_t finished = made < pending ? 0 : made - pending;
    for (uint32_t thread = first; thread < first + 128; thread++) {
        Lane& lane = lanes_of[thread];
        for (size_t i = 0; i < lane.operands.size();) {
            const Operand& operand = lane.operands[i];
            if (memcmp(operand.a, operand.copy, sizeof operand.copy) != 0)
                fail(operand.line, "operand A of gm_wgmma was changed before gm_wgmma_wait (thread %u)", thread);
            if (operand.group < finished) lane.operands.erase(lane.operands.begin() + ptrdiff_t(i));
            else i++;
        }
        for (size_t i = 0; i < lane.sums.size();) {
            const Sums& sums = lane.sums[i];
            if (memcmp(sums.d, sums.poison.data(), sums.count * 4) != 0)
                fail(sums.line, "sums of gm_wgmma were touched before gm_wgmma_wait (thread %u)", thread);
            if (sums.group >= finished) {
                i++;
                continue;
            }
            memcpy(sums.d, sums.values.data(), sums.count * 4);
            lane.sums.erase(lane.sums.begin() + ptrdiff_t(i));
        }
    }
    std::vector<Group::Read>& reads = groups[first / 128].reads;
    size_t kept = 0;
    for (uint32_t warp = first / 32; warp < first / 32 + 4; warp++) waits[warp]++;
    for (const Group::Read& read : reads) {
        if (read.group >= finished) {
            reads[kept++] = read;
            continue;
        }
        for (uint32_t warp = first / 32; warp < first / 32 + 4; warp++) {
            granules[read.granule].in_flight[warp]--;
            granules[read.granule].over[warp] = waits[warp];
        }
    }
    reads.resize(kept);
    (void)line;
}

struct Product {
    // Bits of i32 or f32.
    int32_t* d;
    // Operand A: registers, or where they are none, a matrix in shared memory.
    const uint32_t* a;
    uint64_t a_matrix, b;
    uint32_t count;
    // Whether it adds to d, and does not begin with zeros.
    bool add;
};
Product products[MAX_THREADS];

// The bits of a matrix descriptor: start, and the bytes from one core matrix to the next along k and along the rows, all in
// sixteens; whether rows are swizzled lines of 128 bytes; the rest zero: no offset of the base, no other swizzle.
struct Described {
    uint32_t start, along_k, along_n;
    bool lines;

    // Where sixteen bytes of a row are.
    uint32_t at(uint32_t row, uint32_t half) const {
        if (!lines) return start + row / 8 * along_n + half * along_k + row % 8 * 16;
        // The address without the swizzle, whose bits 7 to 9 are added to bits 4 to 6.
        const uint32_t plain = start + row / 8 * along_n + row % 8 * 128 + half * 16;
        return plain ^ (plain >> 7 & 7) << 4;
    }
};
Described described(uint64_t matrix, char which, int line) {
    const uint64_t fields = 0x3fffull | 0x3fffull << 16 | 0x3fffull << 32;
    const bool lines = matrix >> 62 == 1;
    if (matrix >> 63) fail(line, "operand %c has a swizzle of 64 or 32 bytes, which this emulator doesn't do", which);
    if (matrix << 2 >> 2 & ~fields) fail(line, "operand %c's descriptor %#llx has bits outside its fields", which, (unsigned long long)matrix);
    const uint32_t start = uint32_t(matrix & 0x3fff) * 16;
    if (lines && start % 1024 > 96)
        fail(line, "operand %c is lines, which begin at byte %u: at no multiple of 1024, or with no place for 32 bytes in each", which, start);
    return {start, uint32_t(matrix >> 16 & 0x3fff) * 16, uint32_t(matrix >> 32 & 0x3fff) * 16, lines};
}

// Sixteen bytes that a product of a warpgroup reads, seen by one lane of each of its warps, any.
void check_read(uint32_t at, uint32_t first, uint32_t end, char which, int line) {
    if (at + GRANULE > end) fail(line, "operand %c of gm_wgmma goes beyond its array", which);
    const uint32_t here = state.thread;
    for (uint32_t warp = 0; warp < 4; warp++) {
        state.thread = first + warp * 32 + uint32_t(random_bits() % 32);
        for (uint32_t i = at; i < at + GRANULE; i++) {
            const SharedByte& byte = state.shared_bytes[i];
            if (byte.awaited) fail(line, "operand %c of gm_wgmma is where a copy is on its way that nobody waited for", which);
            if (byte.barrier) fail(line, "operand %c of gm_wgmma is a barrier", which);
            if (byte.write.epoch < state.block_epoch) fail(line, "operand %c of gm_wgmma was never written by this block", which);
            if (unordered_write(byte)) {
                char text[32];
                snprintf(text, sizeof text, "operand %c of gm_wgmma", which);
                fail_race(line, text, i, "shared memory", byte.write);
            }
            if (!byte.bulk && fences_seen(byte.write.thread) <= byte.fences && !own_fence_lies_between(byte))
                fail(line, "operand %c of gm_wgmma was written by thread %u, and no gm_fence_proxy of it or of thread %u lies between", which,
                    byte.write.thread, state.thread);
        }
    }
    state.thread = here;
    Granule& granule = granules[at / GRANULE];
    if (granule.block_epoch != state.block_epoch) {
        granule = Granule();
        granule.block_epoch = state.block_epoch;
    }
    for (uint32_t warp = first / 32; warp < first / 32 + 4; warp++) granule.in_flight[warp]++;
    groups[first / 128].reads.push_back({at / GRANULE, lanes_of[first].committed});
}

// Two core matrices along k of each eight rows: 32 bytes a row.
void read_matrix(uint64_t matrix, uint32_t rows, uint32_t first, char which, int line, uint8_t (*to)[32]) {
    const Described where = described(matrix, which, line);
    uint32_t end = 0;
    for (const SharedPlace& place : shared_places)
        if (place.begin <= where.start && where.start < place.begin + place.bytes) end = place.begin + uint32_t(place.bytes);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t at = where.at(row, half);
            check_read(at, first, end, which, line);
            memcpy(to[row] + half * 16, state.shared + at, 16);
        }
    }
}

// The sums of a thread while they are on their way: what they will be, and poison in the registers.
Sums& begin_sums(uint32_t thread, int line) {
    const Product& product = products[thread];
    Lane& lane = lanes_of[thread];
    for (Sums& sums : lane.sums) {
        if (sums.d != product.d) continue;
        if (memcmp(sums.d, sums.poison.data(), sums.count * 4) != 0)
            fail(line, "sums of gm_wgmma were touched before gm_wgmma_wait (thread %u)", thread);
        if (sums.count != product.count) fail(line, "sums of a product of another shape, without a wait between");
        sums.group = lane.committed;
        return sums;
    }
    if (!as_fenced(lane, product.d, product.count))
        fail(line, "sums of gm_wgmma were written behind gm_wgmma_fence (thread %u)", thread);
    Sums sums{product.d, product.count, lane.committed, std::vector<int32_t>(product.count), {}, line};
    memcpy(sums.values.data(), product.d, product.count * 4);
    for (uint32_t i = 0; i < product.count; i++) sums.poison.push_back(int32_t(random_bits()));
    memcpy(product.d, sums.poison.data(), product.count * 4);
    lane.sums.push_back(std::move(sums));
    return lane.sums.back();
}

// What all products begin with: operand B.
void read_b(uint32_t first, int line, uint8_t (*to)[32]) {
    if (!groups[first / 128].fenced) fail(line, "gm_wgmma without gm_wgmma_fence since the last gm_wgmma_commit");
    read_matrix(products[first].b, products[first].count * 2, first, 'B', line, to);
    for (uint32_t thread = first; thread < first + 128; thread++)
        if (products[thread].b != products[first].b) fail(line, "thread %u has another operand B than its warpgroup", thread);
    for (uint32_t thread = first; thread < first + 128; thread++)
        if (products[thread].add != products[first].add) fail(line, "thread %u adds, and others of its warpgroup do not, or the other way round", thread);
}

// Where a thread's sum r stands.
uint32_t row_of(uint32_t thread, uint32_t r) { return thread % 128 / 32 * 16 + thread % 32 / 4 + r % 4 / 2 * 8; }
uint32_t column_of(uint32_t thread, uint32_t r) { return r / 4 * 8 + thread % 4 * 2 + r % 2; }

void multiply_group(uint32_t first, int line) {
    static int16_t a[64][32];
    static uint8_t b[256][32];
    read_b(first, line, b);
    for (uint32_t thread = first; thread < first + 128; thread++) {
        const Product& product = products[thread];
        Lane& lane = lanes_of[thread];
        if (!as_fenced(lane, product.a, 4)) fail(line, "operand A of gm_wgmma was written behind gm_wgmma_fence (thread %u)", thread);
        Operand operand{product.a, {}, lane.committed, line};
        memcpy(operand.copy, product.a, sizeof operand.copy);
        lane.operands.push_back(operand);
        const uint32_t row = row_of(thread, 0), k = thread % 4 * 4;
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t i = 0; i < 4; i++) a[row + r % 2 * 8][r / 2 * 16 + k + i] = int16_t(product.a[r] >> 8 * i & 0xff);
    }
    for (uint32_t thread = first; thread < first + 128; thread++) {
        Sums& sums = begin_sums(thread, line);
        for (uint32_t r = 0; r < sums.count; r++) {
            const uint32_t row = row_of(thread, r), column = column_of(thread, r);
            int32_t dot = 0;
            for (uint32_t i = 0; i < 32; i++) dot += int32_t(a[row][i]) * int8_t(b[column][i]);
            const int64_t sum = (products[thread].add ? int64_t(sums.values[r]) : 0) + dot;
            if (sum != int32_t(sum)) fail(line, "a sum of gm_wgmma is %lld, beyond i32", (long long)sum);
            sums.values[r] = int32_t(sum);
        }
    }
}

void multiply_group_of_halves(uint32_t first, int line) {
    static uint8_t a_bytes[64][32], b_bytes[256][32];
    static double a[64][16], b[256][16];
    read_b(first, line, b_bytes);
    read_matrix(products[first].a_matrix, 64, first, 'A', line, a_bytes);
    auto numbers = [](const uint8_t* bytes, double* to) {
        for (uint32_t i = 0; i < 16; i++) to[i] = half_value(uint32_t(bytes[2 * i]) | uint32_t(bytes[2 * i + 1]) << 8);
    };
    for (uint32_t row = 0; row < 64; row++) numbers(a_bytes[row], a[row]);
    for (uint32_t column = 0; column < products[first].count * 2; column++) numbers(b_bytes[column], b[column]);
    for (uint32_t thread = first; thread < first + 128; thread++) {
        if (products[thread].a_matrix != products[first].a_matrix)
            fail(line, "thread %u has another operand A than its warpgroup", thread);
        Sums& sums = begin_sums(thread, line);
        for (uint32_t r = 0; r < sums.count; r++) {
            const uint32_t row = row_of(thread, r), column = column_of(thread, r);
            double addends[17];
            for (uint32_t k = 0; k < 16; k++) addends[k] = a[row][k] * b[column][k];
            float sum;
            memcpy(&sum, &sums.values[r], 4);
            addends[16] = sum;
            sum = cut_sum(addends, 17);
            memcpy(&sums.values[r], &sum, 4);
        }
    }
}

void nothing(uint32_t, int) {}

}  // namespace

void set_registers(uint32_t count, int line) { group_op(WarpOp::Registers, line, count, nothing); }
void wgmma_fence(int line) { group_op(WarpOp::Fence, line, 0, fence_group); }
void wgmma_commit(int line) { group_op(WarpOp::Commit, line, 0, commit_group); }
void wgmma_wait(uint32_t pending, int line) { group_op(WarpOp::Await, line, pending, await_group); }
void wgmma(int32_t* d, uint32_t count, const uint32_t* a, uint64_t b, bool add, int line) {
    products[state.thread] = {d, a, 0, b, count, add};
    group_op(WarpOp::Wgmma, line, count, multiply_group);
}
void wgmma_halves(Half type, float* d, uint32_t count, uint64_t a, uint64_t b, int line) {
    // Only copied from and to, byte by byte.
    products[state.thread] = {reinterpret_cast<int32_t*>(d), nullptr, a, b, count, true};
    mma_half = type;
    // No two types stand in one line.
    group_op(WarpOp::Wgmma, line, count, multiply_group_of_halves);
}

}  // namespace gm_emulator
