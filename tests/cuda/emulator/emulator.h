// What generated CUDA code is compiled against by g++: the other half of codegen/cuda/device.h.
//
// A block's threads are fibers of one host thread, run in an order that a seed shuffles. Every access goes through
// here and is checked; the first mistake ends the launch with a report. What is checked:
// - global memory: inside one allocation, aligned, written before it is read, not read-only, and not written by another
//   thread of the launch without a barrier between, or by another block that this one did not hear of by a counter;
// - shared memory: inside its array, aligned, written before it is read, and no two threads at the same byte, one of
//   them writing, without a barrier between;
// - copies to shared memory: as an access of both, and that nobody touches their bytes before the thread that started
//   them has waited; a launch that copies much, in sixteens, moves 32 bytes at a time (which is what a device does) for not
//   much more than it wants;
// - launches that overlap with those in front of them: until a thread has waited for those, it touches no global memory
//   but what they can't write; and every thread waits;
// - barriers and warp operations: reached by all threads of the block or lanes of the warp, at the same place;
// - integer sums of dp4a, mma and wgmma: inside i32;
// - barriers in shared memory, bulk copies and wgmma: see hopper.h.
// The compiler's own checks (array indices, signed overflow, shifts) report here as well; see emulator.cc.
//
// Blocks run one after the other. What one of them wrote is another's to read only by gm_count: a counter tells what its
// threads wrote before they counted (or before a barrier with the thread that did), and tells it to the thread that counts
// later, and behind a barrier to others of its warp or block.
//
// What it is not: a model of time, of the memory system's order, or of more than one block at once. A loop without an end
// is not noticed.

#ifndef GM_EMULATOR
#define GM_EMULATOR

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

namespace gm_emulator {

// Who last touched a byte, and when. A block's start and every block barrier begin a new epoch, so that epochs order
// launches and blocks too; warp_epoch counts the warp's own barriers.
struct Tag {
    uint32_t epoch = 0;
    uint16_t thread = 0;
    // 0: by that thread; 1: by several of its warp, the last at warp_epoch; 2: by several warps.
    uint8_t spread = 0;
    bool atomic = false;
    uint64_t warp_epoch = 0;
};

struct Allocation {
    uintptr_t begin, end;
    const char* name;
    bool read_only;
    // Last writer of each byte; made at the first store.
    Tag* writes;
    // For each byte, whether nothing was ever written there; null where all of it was.
    bool* unset;
    // The launch in front may still be writing it.
    bool fresh;
};

// A byte of shared memory.
struct SharedByte {
    Tag write, read;
    // A copy that nobody waited for yet will write here.
    bool awaited = false;
    // Part of a barrier.
    bool barrier = false;
    // Written by a bulk copy that reported to this barrier, counted from 1, in this phase; 0: by `write.thread`.
    uint16_t bulk = 0;
    uint32_t phase = 0;
    // Clocks of `write.thread` and `read.thread` at the time, and how often the first had fenced its proxies.
    uint32_t write_clock = 0, read_clock = 0, fences = 0;
};

struct State {
    uint32_t thread, threads, block, block_y, block_z, blocks, blocks_y, blocks_z;
    uint32_t epoch, block_epoch, launch_epoch;
    // The launch of the last kernel that waited for all in front of it to end. Those since may still run beside this one,
    // if it overlaps.
    uint32_t chain_epoch;
    bool overlaps;
    bool waited[1024];
    uint64_t warp_epochs[32];
    Allocation* recent;
    unsigned char* shared;
    SharedByte* shared_bytes;
    // For each thread of the block, what hopper.cc counts.
    uint32_t *clocks, *fences;
    // Whether the block has barriers in shared memory, by which its threads may be ordered.
    bool has_barriers;
};
extern State state;

// A kernel of a unit, found by the name of this object: gm_export_NAME.
struct Kernel {
    const char* name;
    const char* file;
    uint32_t threads;
    uint32_t parameters;
    const uint32_t* sizes;
    // One letter each: p pointer, c pointer to const, i integer, f floating point, s anything else.
    const char* kinds;
    void (*call)(void** arguments);
};

// The launch bounds of the kernel that follows; GM_EXPORT takes them.
struct Bounds {
    Bounds(uint32_t threads, int line);
};
uint32_t take_bounds(const char* name);

// The last ones are a warpgroup's.
enum class WarpOp : uint8_t {
    Sync, Shfl, ShflXor, ShflDown, Ballot, Mma, MmaHalves, MmaFp4, Registers, Fence, Commit, Await, Wgmma
};

// Ends the launch.
[[noreturn]] void fail(int line, const char* format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void fail_access(int line, const char* what, uintptr_t address, size_t bytes, const char* why);
[[noreturn]] void fail_race(int line, const char* what, uintptr_t address, const char* place, const Tag& other);
Allocation* find_allocation(int line, const char* what, uintptr_t address, size_t bytes);
void make_tags(Allocation* allocation);

void sync(int line);
void sync_warp(int line);
uint64_t exchange(WarpOp op, uint64_t value, uint32_t parameter, int line);
struct MmaShape {
    bool a_signed;
    uint32_t c, a, b;
};
void multiply(const MmaShape& shape, int32_t* c, const uint32_t* a, const uint32_t* b, int line);
// What the halves of a register are, where a product sums in f32.
enum class Half : uint8_t { F16, Bf16 };
void multiply_halves(Half type, float* c, const uint32_t* a, const uint32_t* b, int line);
// The type of block scales, and in which byte of which lanes of a quad a product finds them.
enum class Scale : uint8_t { E8m0, E4m3 };
struct ScaledBy {
    Scale type;
    uint32_t byte, a_pair, b_lane;
};
void multiply_fp4(const ScaledBy& by, float* c, const uint32_t* a, const uint32_t* b, uint32_t a_scales, uint32_t b_scales, int line);
void start_copy(uint32_t to, const void* from, uint32_t bytes, int line);
void commit_copies();
void wait_copies(uint32_t pending);
uint32_t shared_place(const void* key, const char* name, size_t bytes, int line);
// A byte of what a launch gives beyond static arrays, where an array of it begins.
struct From {
    uint32_t byte;
};
uint32_t shared_place_from(uint32_t begin, const char* name, size_t bytes, int line);

inline uint32_t thread() { return state.thread; }
inline uint32_t threads() { return state.threads; }
inline uint32_t block() { return state.block; }
inline uint32_t block_y() { return state.block_y; }
inline uint32_t block_z() { return state.block_z; }
inline uint32_t blocks() { return state.blocks; }
inline uint32_t blocks_y() { return state.blocks_y; }
inline uint32_t blocks_z() { return state.blocks_z; }

// Whether nothing orders what `tag` stands for before what this thread of this block does now.
inline bool unordered(const Tag& tag) {
    if (tag.epoch != state.epoch) return false;
    if (tag.spread == 2 || tag.thread / 32 != state.thread / 32) return true;
    bool since = tag.warp_epoch != state.warp_epochs[state.thread / 32];
    return !since && (tag.spread == 1 || tag.thread != state.thread);
}
inline Tag tag_now() {
    return Tag{state.epoch, uint16_t(state.thread), 0, false, state.warp_epochs[state.thread / 32]};
}
// This thread besides those of `last`: the widest circle of those that somebody else would have to wait for.
inline Tag joined(const Tag& last) {
    Tag now = tag_now();
    if (last.epoch != now.epoch) return now;
    if (last.spread == 2 || last.thread / 32 != now.thread / 32) now.spread = 2;
    else if (last.warp_epoch == now.warp_epoch && (last.spread == 1 || last.thread != now.thread)) now.spread = 1;
    return now;
}

// Whether barriers in shared memory order what thread `other` did at its `clock` before what this thread does now.
bool barriers_order(uint32_t other, uint32_t clock);
// Of a byte that several threads have read: this one besides, and whether nothing orders one of them before this thread.
void note_reader(const SharedByte& byte);
bool readers_unordered(const SharedByte& byte);
// Whether this thread has waited for a phase of a barrier, or was told by one that has.
bool has_seen_phase(uint32_t barrier, uint32_t phase);
// A gm_wgmma reads some of these bytes of shared memory, or nothing orders that before this thread.
void check_products(uint32_t begin, size_t bytes, const char* what, const char* name, int line);

inline bool unordered_write(const SharedByte& byte) {
    if (byte.write.epoch < state.block_epoch) return false;
    if (byte.bulk) return !has_seen_phase(byte.bulk, byte.phase);
    if (!unordered(byte.write)) return false;
    return !state.has_barriers || byte.write.spread != 0 || !barriers_order(byte.write.thread, byte.write_clock);
}
inline bool unordered_read(const SharedByte& byte) {
    if (!unordered(byte.read)) return false;
    if (!state.has_barriers) return true;
    if (byte.read.spread != 0) return readers_unordered(byte);
    return !barriers_order(byte.read.thread, byte.read_clock);
}
inline void note_read(SharedByte& byte) {
    // A read that is ordered before this one is ordered before whatever is behind this one.
    const bool alone = byte.read.spread == 0 && !unordered_read(byte);
    if (state.has_barriers && !alone) note_reader(byte);
    byte.read = alone ? tag_now() : joined(byte.read);
    byte.read_clock = state.clocks[state.thread];
}
inline void note_write(SharedByte& byte) {
    byte.write = tag_now();
    byte.bulk = 0;
    byte.write_clock = state.clocks[state.thread];
    byte.fences = state.fences[state.thread];
}

inline Allocation* check(int line, const char* what, uintptr_t address, size_t bytes, bool early = false) {
    if (state.overlaps && !early && !state.waited[state.thread])
        fail_access(line, what, address, bytes, "in front of gm_wait_for_previous");
    if (address % bytes != 0) fail_access(line, what, address, bytes, "not aligned to its size");
    Allocation* found = state.recent;
    if (found && address >= found->begin && address + bytes <= found->end) return found;
    return find_allocation(line, what, address, bytes);
}

// This thread counts: it tells what was ordered before it, and hears what was told there before.
void tell(const uint32_t* counter);
// Whether this thread heard, by a counter, of what another block of the launch wrote.
bool heard_of(const Tag& tag);

// Other blocks of this launch can't be waited for, so whatever they wrote is in a race with this access unless a counter
// told of it.
inline void check_tag(int line, const char* what, uintptr_t address, const Allocation* place, const Tag& tag) {
    bool other_block = tag.epoch >= state.launch_epoch && tag.epoch < state.block_epoch;
    if (other_block ? !heard_of(tag) : unordered(tag)) fail_race(line, what, address, place->name, tag);
}

inline void check_set(int line, const char* what, uintptr_t address, size_t bytes, const Allocation* place) {
    if (!place->unset) return;
    for (size_t i = 0; i < bytes; i++)
        if (place->unset[address + i - place->begin]) fail_access(line, what, address, bytes, "never written");
}

template <class T> T load(const T* p, int line) {
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    Allocation* place = check(line, "gm_load", address, sizeof(T));
    check_set(line, "gm_load", address, sizeof(T), place);
    if (place->writes) {
        for (size_t i = 0; i < sizeof(T); i++)
            check_tag(line, "gm_load", address + i, place, place->writes[address + i - place->begin]);
    }
    T v;
    memcpy(&v, p, sizeof(T));
    return v;
}

// Fails for memory that a launch which this one overlaps may still write.
inline void check_late(int line, const char* what, uintptr_t address, size_t bytes, const Allocation* place) {
    bool late = place->fresh;
    if (place->writes)
        for (size_t i = 0; i < bytes; i++) late |= place->writes[address + i - place->begin].epoch >= state.chain_epoch;
    if (late) fail_access(line, what, address, bytes, "a launch in front may still write it");
}

// Memory that no thread of this launch writes.
template <class T> T load_unwritten(const T* p, const char* what, int line) {
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    Allocation* place = check(line, what, address, sizeof(T));
    check_set(line, what, address, sizeof(T), place);
    if (place->writes) {
        for (size_t i = 0; i < sizeof(T); i++) {
            const Tag& tag = place->writes[address + i - place->begin];
            if (tag.epoch >= state.launch_epoch) fail_race(line, what, address + i, place->name, tag);
        }
    }
    T v;
    memcpy(&v, p, sizeof(T));
    return v;
}

template <class T> T load_once(const T* p, int line) {
    T v = load_unwritten(p, "gm_load_once", line);
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    // It is for memory that stays as it is from the kernel's beginning on, which is before its wait.
    if (state.overlaps) check_late(line, "gm_load_once", address, sizeof(T), check(line, "gm_load_once", address, sizeof(T)));
    return v;
}

template <class T> T load_early(const T* p, int line) {
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    Allocation* place = check(line, "gm_load_early", address, sizeof(T), true);
    check_set(line, "gm_load_early", address, sizeof(T), place);
    check_late(line, "gm_load_early", address, sizeof(T), place);
    T v;
    memcpy(&v, p, sizeof(T));
    return v;
}

inline void wait_for_previous() { state.waited[state.thread] = true; }

template <class T> void store(T* p, T v, int line) {
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    Allocation* place = check(line, "gm_store", address, sizeof(T));
    if (!place->writes) make_tags(place);
    if (place->read_only) fail_access(line, "gm_store", address, sizeof(T), "read-only memory");
    if (place->writes) {
        for (size_t i = 0; i < sizeof(T); i++) {
            Tag& tag = place->writes[address + i - place->begin];
            check_tag(line, "gm_store", address + i, place, tag);
            tag = tag_now();
        }
    }
    if (place->unset) memset(place->unset + (address - place->begin), false, sizeof(T));
    memcpy(p, &v, sizeof(T));
}

// Atomics are in no race with each other, but with plain accesses of the same launch.
template <class T> T atomic(T* p, T v, bool smaller, const char* what, int line) {
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    Allocation* place = check(line, what, address, sizeof(T));
    check_set(line, what, address, sizeof(T), place);
    if (!place->writes) make_tags(place);
    if (place->read_only) fail_access(line, what, address, sizeof(T), "read-only memory");
    if (place->writes) {
        for (size_t i = 0; i < sizeof(T); i++) {
            Tag& tag = place->writes[address + i - place->begin];
            if (!tag.atomic) check_tag(line, what, address + i, place, tag);
            tag = joined(tag);
            tag.atomic = true;
        }
    }
    T old = *p;
    if (smaller ? v < old : v > old) *p = v;
    return old;
}
inline unsigned long long atomic_min(unsigned long long* p, unsigned long long v, int line) {
    return atomic(p, v, true, "gm_atomic_min", line);
}
inline uint32_t atomic_max(uint32_t* p, uint32_t v, int line) { return atomic(p, v, false, "gm_atomic_max", line); }
// A counter that is at its end already was left so by a launch before.
inline uint32_t count(uint32_t* p, uint32_t end, int line) {
    const uint32_t before = atomic(p, uint32_t(0), false, "gm_count", line);
    if (before >= end) fail(line, "gm_count at a counter that is %u, and counts to %u", before, end);
    *p = before + 1 == end ? 0 : before + 1;
    tell(p);
    return before;
}

// A shared array: what each thread of a block holds is the same bytes.
template <class T> class SharedArray {
    const char* name;
    uint32_t begin, count;

  public:
    // Where `bytes` from element i on stand in the block's shared memory.
    uint32_t locate_bytes(uint32_t i, size_t bytes, const char* what, int line) const {
        size_t from = size_t(i) * sizeof(T);
        if (from + bytes > size_t(count) * sizeof(T))
            fail(line, "%s of %zu bytes at %s[%u], which has %u elements", what, bytes, name, i, count);
        return uint32_t(begin + from);
    }
    // The same, aligned to their number.
    uint32_t locate(uint32_t i, size_t bytes, const char* what, int line) const {
        const uint32_t from = locate_bytes(i, bytes, what, line);
        if (from % bytes != 0) fail(line, "%s of %zu bytes at %s[%u] is not aligned", what, bytes, name, i);
        return from;
    }
    const char* own_name() const { return name; }

    void not_awaited(const SharedByte& byte, const char* what, uint32_t i, int line) const {
        if (byte.awaited) fail(line, "%s at %s[%u], where a copy is on its way that nobody waited for", what, name, i);
        if (byte.barrier) fail(line, "%s at %s[%u], which is a barrier", what, name, i);
    }

    // What whoever writes here must not be in a race with.
    void may_write(uint32_t from, size_t bytes, const char* what, uint32_t i, int line) const {
        for (uint32_t at = from; at < from + bytes; at++) {
            const SharedByte& byte = state.shared_bytes[at];
            not_awaited(byte, what, i, line);
            if (unordered_write(byte)) fail_race(line, what, i, name, byte.write);
            if (unordered_read(byte)) {
                char text[32];
                snprintf(text, sizeof text, "%s after a read", what);
                fail_race(line, text, i, name, byte.read);
            }
        }
        if (state.has_barriers) check_products(from, bytes, what, name, line);
    }

    SharedArray(const void* key, const char* name, uint32_t count, int line = __builtin_LINE())
        : name(name), begin(shared_place(key, name, sizeof(T) * count, line)), count(count) {}
    SharedArray(From from, const char* name, uint32_t count, int line = __builtin_LINE())
        : name(name), begin(shared_place_from(from.byte, name, sizeof(T) * count, line)), count(count) {}

    template <class V> V get(uint32_t i, int line) const {
        uint32_t from = locate(i, sizeof(V), "a read", line);
        for (uint32_t at = from; at < from + sizeof(V); at++) {
            SharedByte& byte = state.shared_bytes[at];
            not_awaited(byte, "a read", i, line);
            if (byte.write.epoch < state.block_epoch)
                fail(line, "a read of %s[%u], which this block never wrote", name, i);
            if (unordered_write(byte)) fail_race(line, "a read", i, name, byte.write);
            note_read(byte);
        }
        V v;
        memcpy(&v, state.shared + from, sizeof(V));
        return v;
    }

    template <class V> void put(uint32_t i, V v, int line) const {
        uint32_t from = locate(i, sizeof(V), "a write", line);
        may_write(from, sizeof(V), "a write", i, line);
        for (uint32_t at = from; at < from + sizeof(V); at++) note_write(state.shared_bytes[at]);
        memcpy(state.shared + from, &v, sizeof(V));
    }

    // Starts a copy of sizeof(V) bytes of memory that nobody writes during the launch.
    template <class V> void copy(uint32_t i, const V* source, int line) const {
        static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16, "the device copies 4, 8 or 16 bytes");
        uint32_t to = locate(i, sizeof(V), "a copy", line);
        load_unwritten(source, "gm_copy", line);
        may_write(to, sizeof(V), "a copy", i, line);
        start_copy(to, source, sizeof(V), line);
    }

    // Threads may do this to the same element at the same time.
    void atomic_or(uint32_t i, T v, int line) const {
        uint32_t from = locate(i, sizeof(T), "an atomic", line);
        for (uint32_t at = from; at < from + sizeof(T); at++) {
            SharedByte& byte = state.shared_bytes[at];
            not_awaited(byte, "an atomic", i, line);
            if (byte.write.epoch < state.block_epoch)
                fail(line, "an atomic on %s[%u], which this block never wrote", name, i);
            if (!byte.write.atomic && unordered_write(byte)) fail_race(line, "an atomic", i, name, byte.write);
            if (unordered_read(byte)) fail_race(line, "an atomic after a read", i, name, byte.read);
            const Tag together = joined(byte.write);
            note_write(byte);
            byte.write = together;
            byte.write.atomic = true;
        }
        T old;
        memcpy(&old, state.shared + from, sizeof(T));
        old |= v;
        memcpy(state.shared + from, &old, sizeof(T));
    }

    // An index that knows which line it stands in.
    struct At {
        uint32_t i;
        int line;
        template <class I, class = std::enable_if_t<std::is_integral_v<I>>>
        At(I i, int line = __builtin_LINE()) : i(uint32_t(i)), line(line) {
            if (i < I(0) || uint64_t(i) > UINT32_MAX) fail(line, "an index of shared memory is %lld", (long long)i);
        }
    };

    class Element {
        const SharedArray array;
        const At at;

      public:
        Element(const SharedArray& array, At at) : array(array), at(at) {}
        operator T() const { return array.template get<T>(at.i, at.line); }
        T operator=(T v) const { return array.put(at.i, v, at.line), v; }
        T operator=(const Element& other) const { return *this = T(other); }
        T operator+=(T v) const { return *this = T(T(*this) + v); }
        T operator-=(T v) const { return *this = T(T(*this) - v); }
        T operator*=(T v) const { return *this = T(T(*this) * v); }
        T operator|=(T v) const { return *this = T(T(*this) | v); }
        T operator&=(T v) const { return *this = T(T(*this) & v); }
        T operator^=(T v) const { return *this = T(T(*this) ^ v); }
    };
    Element operator[](At at) const { return Element(*this, at); }
};

template <class T> uint64_t to_bits(T v) {
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof(T));
    return bits;
}
template <class T> T from_bits(uint64_t bits) {
    T v;
    memcpy(&v, &bits, sizeof(T));
    return v;
}
template <class T> T shfl(T v, uint32_t lane, int line) {
    return from_bits<T>(exchange(WarpOp::Shfl, to_bits(v), lane, line));
}
template <class T> T shfl_xor(T v, uint32_t mask, int line) {
    return from_bits<T>(exchange(WarpOp::ShflXor, to_bits(v), mask, line));
}
template <class T> T shfl_down(T v, uint32_t delta, int line) {
    return from_bits<T>(exchange(WarpOp::ShflDown, to_bits(v), delta, line));
}
inline uint32_t ballot(bool yes, int line) { return uint32_t(exchange(WarpOp::Ballot, yes, 0, line)); }

// A: the type of a's bytes; b's are signed.
template <class A> int32_t dp4a(uint32_t a, uint32_t b, int32_t c, int line) {
    int64_t sum = c;
    for (int i = 0; i < 4; i++) sum += int64_t(A(a >> 8 * i)) * int8_t(b >> 8 * i);
    if (sum != int32_t(sum)) fail(line, "the sum of gm_dp4a is %lld, beyond i32", (long long)sum);
    return int32_t(sum);
}
template <class A, uint32_t C_REGISTERS, uint32_t A_REGISTERS, uint32_t B_REGISTERS>
void mma(int32_t (&c)[C_REGISTERS], const uint32_t (&a)[A_REGISTERS], const uint32_t (&b)[B_REGISTERS], int line) {
    multiply({std::is_signed_v<A>, C_REGISTERS, A_REGISTERS, B_REGISTERS}, c, a, b, line);
}

inline void mma_fp4(const ScaledBy& by, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t a_scales, uint32_t b_scales, int line) {
    multiply_fp4(by, c, a, b, a_scales, b_scales, line);
}

inline void mma_halves(Half type, float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
    multiply_halves(type, c, a, b, line);
}

// Takes a kernel apart: what its parameters are, and how to call it with pointers to them.
template <auto FUNCTION> struct Parameters;
template <class... P, void (*FUNCTION)(P...)> struct Parameters<FUNCTION> {
    static constexpr uint32_t count = sizeof...(P);
    static constexpr uint32_t sizes[count + 1] = {sizeof(P)..., 0};
    template <class T> static constexpr char kind() {
        if constexpr (std::is_pointer_v<T>) return std::is_const_v<std::remove_pointer_t<T>> ? 'c' : 'p';
        else if constexpr (std::is_integral_v<T>) return 'i';
        else if constexpr (std::is_floating_point_v<T>) return 'f';
        else return 's';
    }
    static constexpr char kinds[count + 1] = {kind<P>()..., 0};
    template <size_t... I> static void apply(void** arguments, std::index_sequence<I...>) {
        FUNCTION(*static_cast<P*>(arguments[I])...);
    }
    static void call(void** arguments) { apply(arguments, std::index_sequence_for<P...>()); }
};

}  // namespace gm_emulator

#define GM_EMULATOR_CAT2(a, b) a##b
#define GM_EMULATOR_CAT(a, b) GM_EMULATOR_CAT2(a, b)
#define GM_EMULATOR_KERNEL(threads) \
    static const gm_emulator::Bounds GM_EMULATOR_CAT(gm_bounds_, __COUNTER__)(threads, __LINE__); \
    static void
#define GM_EMULATOR_EXPORT(name) \
    extern "C" __attribute__((visibility("default"))) const gm_emulator::Kernel gm_export_##name = { \
        #name, __FILE__, gm_emulator::take_bounds(#name), gm_emulator::Parameters<&name>::count, \
        gm_emulator::Parameters<&name>::sizes, gm_emulator::Parameters<&name>::kinds, \
        gm_emulator::Parameters<&name>::call};
#define GM_EMULATOR_SHARED(T, name, count) \
    static char GM_EMULATOR_CAT(gm_key_, name); \
    const gm_emulator::SharedArray<T> name(&GM_EMULATOR_CAT(gm_key_, name), #name, count)
#define GM_EMULATOR_SHARED_FROM(T, name, count, begin) \
    const gm_emulator::SharedArray<T> name(gm_emulator::From{begin}, #name, count)

#endif
