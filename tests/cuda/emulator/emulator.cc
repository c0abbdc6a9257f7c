// The emulator's state: allocations, fibers and their scheduler, barriers and warp operations, reports.
//
// Launches are one at a time in a process; a lock sees to it.

#include "emulator.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unordered_map>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace gm_emulator {

State state;

namespace {

constexpr uint32_t MAX_THREADS = 1024;
// Shared memory of a block: static arrays, and those together with what a launch gives.
constexpr uint32_t MAX_STATIC = 48 * 1024, MAX_SHARED = 227 * 1024;
constexpr size_t STACK_BYTES = 128 * 1024;
constexpr size_t PAGE = 4096;
// Stores into larger allocations are not tracked: tags take sixteen bytes for each.
constexpr size_t MAX_TRACKED = 64 << 20;

std::mutex lock;

// ------------------------------------------------------------------------------------------------------- fibers

#if defined(__x86_64__)
// Saves what a call must keep on this stack and goes on where the other stack was left.
extern "C" void gm_emulator_switch(void** save, void* load);
asm(R"(
    .text
    .type gm_emulator_switch, @function
gm_emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size gm_emulator_switch, .-gm_emulator_switch
)");
struct Context {
    void* stack = nullptr;
    void enter_at(unsigned char* base, void (*entry)()) {
        // Where a called function expects the stack to be: a return address, which is never used, below 16 bytes.
        void** top = reinterpret_cast<void**>(base + STACK_BYTES - 64);
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(entry);
        for (int i = 0; i < 6; i++) *--top = nullptr;
        stack = top;
    }
    void switch_to(const Context& other) { gm_emulator_switch(&stack, other.stack); }
};
#else
struct Context {
    ucontext_t context;
    void enter_at(unsigned char* base, void (*entry)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = base;
        context.uc_stack.ss_size = STACK_BYTES;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
    }
    void switch_to(const Context& other) { swapcontext(&context, &other.context); }
};
#endif

// Phase: of a barrier in shared memory. Group: a warpgroup.
enum class Wait : uint8_t { None, Block, Warp, Group, Phase, Done };

struct Fiber {
    Context context;
    Wait wait;
    WarpOp op;
    int line;
    uint32_t parameter;
    uint64_t value;
    // Registers of an mma.
    int32_t* c;
    const uint32_t *a, *b;
};

// A copy to shared memory that was started; `group` counts the thread's commits before it.
struct Copy {
    uint32_t to, bytes, group;
    const void* from;
    int line;
};

struct SharedPlace {
    const void* key;
    uint32_t begin;
    size_t bytes;
};

Fiber fibers[MAX_THREADS];
unsigned char* stacks;
Context scheduler;
// Threads that can run, in order; a ring.
uint16_t ready[MAX_THREADS];
uint32_t ready_first, ready_count;
uint32_t at_barrier, in_warp_op[MAX_THREADS / 32], done;
std::vector<SharedPlace> shared_places;
std::vector<Copy> copies[MAX_THREADS];
// Copies of sixteen bytes of this launch, how often 32 bytes are moved for them, and what was moved for one half alone so far.
uint64_t copied_sixteens, copy_trips;
std::unordered_map<uint64_t, uint8_t> halves;
uint32_t commits[MAX_THREADS];
// Static arrays stand behind what the launch gives.
uint32_t shared_given, shared_end;
uint64_t random_state;
const Kernel* kernel;
void** arguments;
bool failed;
std::string report;
std::vector<Allocation> allocations;

// A thread that counted, and when.
struct Moment {
    uint32_t block_epoch, epoch, thread;
    uint64_t warp_epoch;
};
// Who counted at which counter in this launch.
std::map<const uint32_t*, std::vector<Moment>> told;
// What this block's threads heard: how many had counted there before.
struct Heard {
    const uint32_t* counter;
    size_t arrivals;
    Moment at;
};
std::vector<Heard> heard;

// In hopper.cc.
bool hopper_prepare();
void hopper_block_starts();
void hopper_thread_ends();
void hopper_block_barrier();
void hopper_warp_barrier(uint32_t warp);
bool land_any();

const char* name_of(WarpOp op) {
    switch (op) {
        case WarpOp::Sync: return "gm_sync_warp";
        case WarpOp::Shfl: return "gm_shfl";
        case WarpOp::ShflXor: return "gm_shfl_xor";
        case WarpOp::ShflDown: return "gm_shfl_down";
        case WarpOp::Ballot: return "gm_ballot";
        case WarpOp::Mma: return "gm_mma";
        case WarpOp::Registers: return "gm_more_registers or gm_fewer_registers";
        case WarpOp::Fence: return "gm_wgmma_fence";
        case WarpOp::Commit: return "gm_wgmma_commit";
        case WarpOp::Await: return "gm_wgmma_wait";
        case WarpOp::Wgmma: return "gm_wgmma";
        case WarpOp::MmaHalves: return "gm_mma of halves";
        case WarpOp::MmaFp4: return "gm_mma of FP4";
    }
    return "?";
}

uint64_t random_bits() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

void push_ready(uint32_t thread) { ready[(ready_first + ready_count++) % MAX_THREADS] = uint16_t(thread); }

void push_all_shuffled() {
    uint16_t order[MAX_THREADS];
    for (uint32_t i = 0; i < state.threads; i++) {
        uint32_t j = uint32_t(random_bits() % (i + 1));
        order[i] = order[j];
        order[j] = uint16_t(i);
    }
    for (uint32_t i = 0; i < state.threads; i++) push_ready(order[i]);
}

void push_lanes_shuffled(uint32_t warp, uint32_t except) {
    uint32_t bits = uint32_t(random_bits());
    uint32_t first = bits % 32, stride = bits / 32 % 16 * 2 + 1;
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t thread = warp * 32 + (first + i * stride) % 32;
        if (thread != except) push_ready(thread);
    }
}

// Leaves this fiber for the next that can run, or for the scheduler if none can.
void leave() {
    Fiber& self = fibers[state.thread];
    // Only now does everybody wait for copies that took their time.
    while (ready_count == 0 && land_any()) {}
    if (ready_count == 0) {
        uint32_t thread = state.thread;
        self.context.switch_to(scheduler);
        state.thread = thread;
        return;
    }
    uint32_t next = ready[ready_first];
    ready_first = (ready_first + 1) % MAX_THREADS;
    ready_count--;
    uint32_t thread = state.thread;
    if (next == thread) return;
    state.thread = next;
    self.context.switch_to(fibers[next].context);
    state.thread = thread;
}

void run_thread() {
    kernel->call(arguments);
    if (!copies[state.thread].empty())
        fail(copies[state.thread][0].line, "the thread returned before it waited for this copy");
    hopper_thread_ends();
    if (state.overlaps && !state.waited[state.thread])
        fail(0, "the thread returned without gm_wait_for_previous, in a launch that overlaps");
    fibers[state.thread].wait = Wait::Done;
    done++;
    for (;;) leave();
}

// Threads by where they are: "threads 0-31 64".
std::string describe_threads(Wait wait, WarpOp op, int line) {
    std::string text = "threads";
    auto here = [&](uint32_t i) {
        const Fiber& fiber = fibers[i];
        if (fiber.wait != wait) return false;
        if (wait == Wait::Done) return true;
        return fiber.line == line && (wait == Wait::Block || wait == Wait::Phase || fiber.op == op);
    };
    for (uint32_t i = 0; i < state.threads; i++) {
        if (!here(i)) continue;
        uint32_t last = i;
        while (last + 1 < state.threads && here(last + 1)) last++;
        text += " " + std::to_string(i);
        if (last > i) text += "-" + std::to_string(last);
        i = last;
    }
    return text;
}

// A block that can't go on: who waits where, and who has returned.
void report_deadlock() {
    std::string text = "the block can't go on";
    bool told[MAX_THREADS] = {};
    for (uint32_t i = 0; i < state.threads; i++) {
        if (told[i]) continue;
        const Fiber& first = fibers[i];
        for (uint32_t j = i; j < state.threads; j++) {
            const Fiber& other = fibers[j];
            bool same = other.wait == first.wait && (first.wait == Wait::Done || other.line == first.line) &&
                        (first.wait == Wait::Block || first.wait == Wait::Phase || other.op == first.op);
            told[j] = told[j] || same;
        }
        text += "; " + describe_threads(first.wait, first.op, first.line);
        if (first.wait == Wait::Done) {
            text += " returned";
        } else {
            const char* place = first.wait == Wait::Block ? "gm_sync" : first.wait == Wait::Phase ? "gm_barrier_wait" : name_of(first.op);
            text += std::string(" wait at ") + place;
            text += ", line " + std::to_string(first.line);
        }
    }
    if (failed) return;
    failed = true;
    report = std::string("kernel ") + kernel->name + ", block (" + std::to_string(state.block) + ", " +
             std::to_string(state.block_y) + ", " + std::to_string(state.block_z) + "), " + kernel->file + ": " + text;
}

void next_epoch() {
    state.epoch++;
    ready_first = ready_count = 0;
}

void run_block(uint32_t x, uint32_t y, uint32_t z) {
    state.block = x;
    state.block_y = y;
    state.block_z = z;
    heard.clear();
    next_epoch();
    state.block_epoch = state.epoch;
    at_barrier = done = 0;
    std::fill(std::begin(in_warp_op), std::end(in_warp_op), 0);
    shared_places.clear();
    shared_end = shared_given;
    hopper_block_starts();
    for (uint32_t i = 0; i < state.threads; i++) {
        commits[i] = 0;
        state.waited[i] = false;
        fibers[i].wait = Wait::None;
        fibers[i].context.enter_at(stacks + i * (STACK_BYTES + PAGE) + PAGE, run_thread);
    }
    push_all_shuffled();
    // The first of them; the others follow one another until none is ready.
    state.thread = ready[ready_first];
    ready_first = (ready_first + 1) % MAX_THREADS;
    ready_count--;
    scheduler.switch_to(fibers[state.thread].context);
    if (!failed && done != state.threads) report_deadlock();
}

bool prepare() {
    if (stacks) return true;
    size_t bytes = MAX_THREADS * (STACK_BYTES + PAGE) + PAGE;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    stacks = static_cast<unsigned char*>(memory);
    // A page that can't be touched below each stack.
    for (uint32_t i = 0; i <= MAX_THREADS; i++) mprotect(stacks + i * (STACK_BYTES + PAGE), PAGE, PROT_NONE);
    state.shared = static_cast<unsigned char*>(aligned_alloc(128, MAX_SHARED));
    state.shared_bytes = static_cast<SharedByte*>(calloc(MAX_SHARED, sizeof(SharedByte)));
    return state.shared && state.shared_bytes && hopper_prepare();
}

Allocation* locate(uintptr_t address, size_t bytes) {
    auto after = std::upper_bound(allocations.begin(), allocations.end(), address,
                                  [](uintptr_t a, const Allocation& b) { return a < b.begin; });
    if (after == allocations.begin()) return nullptr;
    Allocation* found = &*(after - 1);
    return address + bytes <= found->end ? found : nullptr;
}

// "offset 12 of `w` (256 bytes)" for an address in or next to an allocation.
std::string describe_address(uintptr_t address) {
    const Allocation* nearest = nullptr;
    uintptr_t distance = 1 << 20;
    for (const Allocation& each : allocations) {
        uintptr_t here = address < each.begin ? each.begin - address : address >= each.end ? address - each.end : 0;
        if (here < distance || (here == 0 && address < each.end)) nearest = &each, distance = here;
    }
    char text[256];
    if (nearest) {
        snprintf(text, sizeof text, "offset %lld of `%s`, which has %zu bytes",
                 (long long)(address - nearest->begin), nearest->name, size_t(nearest->end - nearest->begin));
    } else {
        snprintf(text, sizeof text, "address %#zx, near no allocation", size_t(address));
    }
    return text;
}

}  // namespace

void fail(int line, const char* format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    char whole[1024];
    snprintf(whole, sizeof whole, "kernel %s, block (%u, %u, %u), thread %u, %s:%d: %s", kernel->name, state.block,
             state.block_y, state.block_z, state.thread, kernel->file, line, text);
    report = whole;
    failed = true;
    // This fiber is never gone back to, nor is any other of the launch.
    Context nowhere;
    for (;;) nowhere.switch_to(scheduler);
}

void fail_access(int line, const char* what, uintptr_t address, size_t bytes, const char* why) {
    // Copied, since nothing on this stack is ever destroyed.
    char place[256];
    snprintf(place, sizeof place, "%s", describe_address(address).c_str());
    fail(line, "%s of %zu bytes at %s: %s", what, bytes, place, why);
}

void fail_race(int line, const char* what, uintptr_t address, const char* place, const Tag& other) {
    bool other_block = other.epoch < state.block_epoch;
    const char* who = other_block ? "a thread of another block" : "another thread";
    const Allocation* inside = locate(address, 1);
    unsigned long long at = inside ? address - inside->begin : address;
    fail(line, "%s at %s[%s%llu]: %s (thread %u) was there, and no barrier lies between", what, place,
         inside ? "byte " : "", at, who, other.thread);
}

void tell(const uint32_t* counter) {
    const Moment now{state.block_epoch, state.epoch, state.thread, state.warp_epochs[state.thread / 32]};
    std::vector<Moment>& there = told[counter];
    heard.push_back({counter, there.size(), now});
    there.push_back(now);
}

bool heard_of(const Tag& tag) {
    const uint32_t warp = state.thread / 32;
    for (const Heard& each : heard) {
        const Moment& at = each.at;
        const bool same_warp = at.thread / 32 == warp && state.warp_epochs[warp] > at.warp_epoch;
        if (at.thread != state.thread && at.epoch == state.epoch && !same_warp) continue;
        for (size_t i = 0; i < each.arrivals; i++) {
            const Moment& teller = told[each.counter][i];
            if (tag.epoch < teller.block_epoch || tag.epoch > teller.epoch) continue;
            if (tag.epoch < teller.epoch) return true;
            // Nothing but a barrier of the warp lies between.
            if (tag.spread == 2 || tag.thread / 32 != teller.thread / 32) continue;
            if (tag.warp_epoch < teller.warp_epoch || (tag.spread == 0 && tag.thread == teller.thread)) return true;
        }
    }
    return false;
}

Allocation* find_allocation(int line, const char* what, uintptr_t address, size_t bytes) {
    Allocation* found = locate(address, bytes);
    if (!found) fail_access(line, what, address, bytes, "not inside an allocation");
    state.recent = found;
    return found;
}

void make_tags(Allocation* allocation) {
    size_t bytes = allocation->end - allocation->begin;
    if (bytes > MAX_TRACKED) return;
    allocation->writes = static_cast<Tag*>(calloc(bytes, sizeof(Tag)));
}

void sync(int line) {
    Fiber& self = fibers[state.thread];
    self.wait = Wait::Block;
    self.line = line;
    if (++at_barrier < state.threads) return leave();
    for (uint32_t i = 0; i < state.threads; i++) {
        if (fibers[i].line != line)
            fail(line, "thread %u is at gm_sync of line %d instead", i, fibers[i].line);
        fibers[i].wait = Wait::None;
    }
    at_barrier = 0;
    hopper_block_barrier();
    next_epoch();
    push_all_shuffled();
    leave();
}

namespace {

// The last lane to arrive does the operation for all.
void finish_warp_op(uint32_t warp, void (*operation)(Fiber* lanes)) {
    Fiber* lanes = fibers + warp * 32;
    const Fiber& self = fibers[state.thread];
    for (uint32_t i = 0; i < 32; i++) {
        if (lanes[i].op != self.op || lanes[i].line != self.line)
            fail(self.line, "%s, but thread %u of the same warp is at %s of line %d", name_of(self.op),
                 warp * 32 + i, name_of(lanes[i].op), lanes[i].line);
        lanes[i].wait = Wait::None;
    }
    in_warp_op[warp] = 0;
    operation(lanes);
    push_lanes_shuffled(warp, state.thread);
}

void warp_op(WarpOp op, int line, void (*operation)(Fiber* lanes)) {
    Fiber& self = fibers[state.thread];
    self.wait = Wait::Warp;
    self.op = op;
    self.line = line;
    uint32_t warp = state.thread / 32;
    if (++in_warp_op[warp] < 32) return leave();
    finish_warp_op(warp, operation);
}

void exchange_lanes(Fiber* lanes) {
    uint64_t values[32];
    uint32_t ballot = 0;
    for (uint32_t i = 0; i < 32; i++) {
        values[i] = lanes[i].value;
        ballot |= uint32_t(lanes[i].value & 1) << i;
    }
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t parameter = lanes[i].parameter;
        switch (lanes[i].op) {
            case WarpOp::Shfl: lanes[i].value = values[parameter]; break;
            case WarpOp::ShflXor: lanes[i].value = values[i ^ parameter]; break;
            case WarpOp::ShflDown: lanes[i].value = values[i + parameter < 32 ? i + parameter : i]; break;
            case WarpOp::Ballot: lanes[i].value = ballot; break;
            case WarpOp::Sync:
            case WarpOp::Mma:
            case WarpOp::MmaHalves:
            case WarpOp::MmaFp4:
            case WarpOp::Registers:
            case WarpOp::Fence:
            case WarpOp::Commit:
            case WarpOp::Await:
            case WarpOp::Wgmma: break;
        }
    }
}

MmaShape mma_shape;

void multiply_lanes(Fiber* lanes) {
    const MmaShape& shape = mma_shape;
    uint32_t rows = shape.c * 4, steps = shape.b * 16;
    // Products of sixteen bits are added in pairs by one instruction.
    int16_t a[16][32], b[8][32];
    // A register of A holds four k of a row: rows first, then the next sixteen k.
    uint32_t row_halves = rows / 8;
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t group = lane / 4, within = lane % 4;
        for (uint32_t r = 0; r < shape.a; r++) {
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t byte = lanes[lane].a[r] >> 8 * i & 0xff;
                int16_t v = shape.a_signed ? int8_t(byte) : int16_t(byte);
                a[group + r % row_halves * 8][r / row_halves * 16 + within * 4 + i] = v;
            }
        }
        for (uint32_t r = 0; r < shape.b; r++)
            for (uint32_t i = 0; i < 4; i++)
                b[group][r * 16 + within * 4 + i] = int8_t(lanes[lane].b[r] >> 8 * i & 0xff);
    }
    for (uint32_t lane = 0; lane < 32; lane++) {
        for (uint32_t r = 0; r < shape.c; r++) {
            uint32_t row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
            int32_t products = 0;
            for (uint32_t k = 0; k < steps; k++) products += a[row][k] * b[column][k];
            int64_t sum = int64_t(lanes[lane].c[r]) + products;
            if (sum != int32_t(sum)) fail(lanes[lane].line, "a sum of gm_mma is %lld, beyond i32", (long long)sum);
            lanes[lane].c[r] = int32_t(sum);
        }
    }
}

// The type of the product of halves that a warp is at.
Half mma_half;

double half_value(uint32_t bits) {
    const bool bf16 = mma_half == Half::Bf16;
    const int fraction = bf16 ? 7 : 10, top = bf16 ? 255 : 31, bias = bf16 ? 127 : 15;
    const int exponent = int(bits >> fraction) & top, rest = int(bits) & ((1 << fraction) - 1);
    const double sign = bits >> 15 & 1 ? -1.0 : 1.0;
    if (exponent == top) return rest ? NAN : sign * INFINITY;
    const int whole = exponent == 0 ? rest : rest + (1 << fraction);
    return sign * ldexp(whole, std::max(exponent, 1) - bias - fraction);
}

// A sum as the least careful devices take it: all addends are cut off at 24 bits below the largest, and the sum at f32.
float cut_sum(const double* addends, int count) {
    double most = 0.0, plain = 0.0;
    for (int i = 0; i < count; i++) {
        most = std::max(most, std::fabs(addends[i]));
        plain += addends[i];
    }
    if (!std::isfinite(plain) || most == 0.0) return float(plain);
    int exponent;
    frexp(most, &exponent);
    // Products with powers of two are exact here.
    const double up = ldexp(1.0, 24 - exponent), down = ldexp(1.0, exponent - 24);
    double sum = 0.0;
    for (int i = 0; i < count; i++) sum += trunc(addends[i] * up) * down;
    float rounded = float(sum);
    if (std::fabs(double(rounded)) > std::fabs(sum)) rounded = std::nextafter(rounded, 0.0f);
    return rounded;
}

void multiply_halves_of_lanes(Fiber* lanes) {
    double a[16][16], b[8][16];
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t group = lane / 4, within = lane % 4;
        for (uint32_t i = 0; i < 2; i++) {
            for (uint32_t r = 0; r < 4; r++)
                a[group + r % 2 * 8][r / 2 * 8 + within * 2 + i] = half_value(lanes[lane].a[r] >> 16 * i & 0xffff);
            for (uint32_t r = 0; r < 2; r++)
                b[group][r * 8 + within * 2 + i] = half_value(lanes[lane].b[r] >> 16 * i & 0xffff);
        }
    }
    for (uint32_t lane = 0; lane < 32; lane++) {
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
            double addends[17];
            for (uint32_t k = 0; k < 16; k++) addends[k] = a[row][k] * b[column][k];
            float c;
            memcpy(&c, lanes[lane].c + r, 4);
            addends[16] = c;
            c = cut_sum(addends, 17);
            memcpy(lanes[lane].c + r, &c, 4);
        }
    }
}

// Where the product of FP4 that a warp is at finds its scales.
ScaledBy scaled_by;

double e2m1(uint32_t code) {
    const uint32_t exponent = code >> 1 & 3, fraction = code & 1;
    const double magnitude = exponent == 0 ? fraction * 0.5 : ldexp(1.0 + fraction * 0.5, int(exponent) - 1);
    return code & 8 ? -magnitude : magnitude;
}

double block_scale(uint32_t bits, int line) {
    if (scaled_by.type == Scale::E8m0) return bits == 255 ? NAN : ldexp(1.0, int(bits) - 127);
    if (bits & 0x80) fail(line, "the scale %#x of gm_mma of FP4 has its highest bit set, which ue4m3 has not", bits);
    const uint32_t exponent = bits >> 3, fraction = bits & 7;
    if (bits == 0x7f) return NAN;
    return exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, int(exponent) - 10);
}

void multiply_fp4_of_lanes(Fiber* lanes) {
    const uint32_t runs = scaled_by.type == Scale::E8m0 ? 2 : 4;
    const int line = lanes[0].line;
    double a[16][64], b[8][64];
    for (uint32_t lane = 0; lane < 32; lane++) {
        if (lanes[lane].parameter != lanes[0].parameter)
            fail(line, "the lanes of a warp do not agree where the scales of gm_mma of FP4 are");
        const uint32_t group = lane / 4, within = lane % 4;
        for (uint32_t i = 0; i < 8; i++) {
            for (uint32_t r = 0; r < 4; r++)
                a[group + r % 2 * 8][r / 2 * 32 + within * 8 + i] = e2m1(lanes[lane].a[r] >> 4 * i & 15);
            for (uint32_t r = 0; r < 2; r++)
                b[group][r * 32 + within * 8 + i] = e2m1(lanes[lane].b[r] >> 4 * i & 15);
        }
    }
    for (uint32_t k = 0; k < 64; k++) {
        const uint32_t byte = 8 * (scaled_by.byte + k / (64 / runs));
        for (uint32_t row = 0; row < 16; row++) {
            const uint32_t scales = uint32_t(lanes[row % 8 * 4 + scaled_by.a_pair * 2 + row / 8].value);
            a[row][k] *= block_scale(scales >> byte & 255, line);
        }
        for (uint32_t column = 0; column < 8; column++) {
            const uint32_t scales = uint32_t(lanes[column * 4 + scaled_by.b_lane].value >> 32);
            b[column][k] *= block_scale(scales >> byte & 255, line);
        }
    }
    for (uint32_t lane = 0; lane < 32; lane++) {
        for (uint32_t r = 0; r < 4; r++) {
            const uint32_t row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
            double addends[65];
            for (uint32_t k = 0; k < 64; k++) addends[k] = a[row][k] * b[column][k];
            float c;
            memcpy(&c, lanes[lane].c + r, 4);
            addends[64] = c;
            c = cut_sum(addends, 65);
            memcpy(lanes[lane].c + r, &c, 4);
        }
    }
}

void pass_warp_barrier(Fiber* lanes) {
    const uint32_t warp = uint32_t(lanes - fibers) / 32;
    hopper_warp_barrier(warp);
    state.warp_epochs[warp]++;
}

}  // namespace

void sync_warp(int line) { warp_op(WarpOp::Sync, line, pass_warp_barrier); }

uint64_t exchange(WarpOp op, uint64_t value, uint32_t parameter, int line) {
    if (parameter >= 32) fail(line, "%s by %u; a warp has 32 lanes", name_of(op), parameter);
    Fiber& self = fibers[state.thread];
    self.value = value;
    self.parameter = parameter;
    warp_op(op, line, exchange_lanes);
    return self.value;
}

void multiply(const MmaShape& shape, int32_t* c, const uint32_t* a, const uint32_t* b, int line) {
    Fiber& self = fibers[state.thread];
    self.a = a;
    self.b = b;
    self.c = c;
    // The shape is the instruction's, so it goes with the line; a mismatch shows as another line.
    mma_shape = shape;
    warp_op(WarpOp::Mma, line, multiply_lanes);
}

void multiply_halves(Half type, float* c, const uint32_t* a, const uint32_t* b, int line) {
    Fiber& self = fibers[state.thread];
    self.a = a;
    self.b = b;
    // Only copied from and to, byte by byte.
    self.c = reinterpret_cast<int32_t*>(c);
    mma_half = type;
    warp_op(WarpOp::MmaHalves, line, multiply_halves_of_lanes);
}

void multiply_fp4(
    const ScaledBy& by, float* c, const uint32_t* a, const uint32_t* b, uint32_t a_scales, uint32_t b_scales, int line) {
    const bool halves = by.type == Scale::E8m0;
    if (by.a_pair > 1 || by.b_lane > 3 || !(by.byte == 0 || (halves && by.byte == 2)))
        fail(line, "gm_mma of FP4 finds no scales at byte %u, pair %u, lane %u", by.byte, by.a_pair, by.b_lane);
    Fiber& self = fibers[state.thread];
    self.a = a;
    self.b = b;
    // Only copied from and to, byte by byte.
    self.c = reinterpret_cast<int32_t*>(c);
    self.value = uint64_t(b_scales) << 32 | a_scales;
    self.parameter = by.byte << 8 | by.a_pair << 4 | by.b_lane;
    scaled_by = by;
    warp_op(WarpOp::MmaFp4, line, multiply_fp4_of_lanes);
}

// Sixteen bytes that a copy takes are half of 32 that are moved together if the other half goes to the same 32 of shared memory
// by another lane of the warp.
void count_trips(uint32_t to, const void* from) {
    const uintptr_t source = reinterpret_cast<uintptr_t>(from);
    const uint64_t pair = uint64_t(source / 32) << 18 | to / 32 << 5 | state.thread / 32;
    const uint8_t own = uint8_t(source / 16 % 2 << 5 | state.thread % 32);
    copied_sixteens++;
    const auto [other, alone] = halves.try_emplace(pair, own);
    if (!alone && other->second >> 5 != own >> 5 && other->second % 32 != own % 32) {
        halves.erase(other);
        return;
    }
    other->second = own;
    copy_trips++;
}

void start_copy(uint32_t to, const void* from, uint32_t bytes, int line) {
    if (bytes == 16) count_trips(to, from);
    for (uint32_t at = to; at < to + bytes; at++) {
        state.shared_bytes[at].awaited = true;
        state.shared[at] = uint8_t(random_bits());
    }
    copies[state.thread].push_back({to, bytes, commits[state.thread], from, line});
}

void commit_copies() { commits[state.thread]++; }

// Finishes what was committed, but for the last `pending` commits.
void wait_copies(uint32_t pending) {
    std::vector<Copy>& own = copies[state.thread];
    const uint32_t made = commits[state.thread], finished = made < pending ? 0 : made - pending;
    size_t kept = 0;
    for (const Copy& copy : own) {
        if (copy.group >= finished) {
            own[kept++] = copy;
            continue;
        }
        memcpy(state.shared + copy.to, copy.from, copy.bytes);
        for (uint32_t at = copy.to; at < copy.to + copy.bytes; at++) {
            state.shared_bytes[at].awaited = false;
            note_write(state.shared_bytes[at]);
        }
    }
    own.resize(kept);
}

void add_shared_place(const void* key, uint32_t begin, size_t bytes);

uint32_t shared_place(const void* key, const char* name, size_t bytes, int line) {
    for (const SharedPlace& place : shared_places)
        if (place.key == key) return place.begin;
    uint32_t begin = (shared_end + 15) / 16 * 16;
    const uint32_t most = std::min(shared_given + MAX_STATIC, MAX_SHARED);
    if (begin + bytes > most)
        fail(line, "%s needs %zu bytes of shared memory where %u are left", name, bytes, most - std::min(begin, most));
    return add_shared_place(key, begin, bytes), shared_end = begin + uint32_t(bytes), begin;
}

uint32_t shared_place_from(uint32_t begin, const char* name, size_t bytes, int line) {
    for (const SharedPlace& place : shared_places) {
        if (!place.key && place.begin == begin && place.bytes == bytes) return begin;
        if (!place.key && begin < place.begin + place.bytes && place.begin < begin + bytes)
            fail(line, "%s begins at byte %u of shared memory, in another array", name, begin);
    }
    if (begin % 16 != 0 || begin + bytes > shared_given)
        fail(line, "%s is bytes %u to %zu of shared memory, of which the launch gives %u", name, begin, begin + bytes, shared_given);
    return add_shared_place(nullptr, begin, bytes), begin;
}

void add_shared_place(const void* key, uint32_t begin, size_t bytes) {
    // What a block finds in shared memory is whatever the last one left there.
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t bits = random_bits();
        memcpy(state.shared + begin + i, &bits, std::min<size_t>(8, bytes - i));
    }
    shared_places.push_back({key, begin, bytes});
}

namespace {
uint32_t pending_bounds;
}
Bounds::Bounds(uint32_t threads, int line) {
    if (pending_bounds) fprintf(stderr, "gm_emulator: the kernel before line %d has no GM_EXPORT\n", line), abort();
    pending_bounds = threads;
}
uint32_t take_bounds(const char* name) {
    if (!pending_bounds) fprintf(stderr, "gm_emulator: %s has no GM_KERNEL before it\n", name), abort();
    return std::exchange(pending_bounds, 0);
}

}  // namespace gm_emulator

using namespace gm_emulator;

extern "C" {

// Makes memory of the process known as device memory. `name` is copied. What is `unset` may not be read before it is
// written, by a kernel or as gm_emulator_written says.
void gm_emulator_allocate(const void* memory, size_t bytes, const char* name, bool read_only, bool unset) {
    std::lock_guard<std::mutex> guard(lock);
    uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
    auto at = std::upper_bound(allocations.begin(), allocations.end(), begin,
                               [](uintptr_t a, const Allocation& b) { return a < b.begin; });
    bool* map = unset && bytes <= MAX_TRACKED ? static_cast<bool*>(malloc(bytes)) : nullptr;
    if (map) memset(map, true, bytes);
    allocations.insert(at, Allocation{begin, begin + bytes, strdup(name), read_only, nullptr, map, false});
}

// From now on, the launch in front may still be writing this memory when one that overlaps with it begins.
void gm_emulator_fresh(const void* memory) {
    std::lock_guard<std::mutex> guard(lock);
    if (Allocation* place = locate(reinterpret_cast<uintptr_t>(memory), 1)) place->fresh = true;
}

// A copy or fill was made into device memory.
void gm_emulator_written(const void* memory, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    Allocation* place = locate(address, bytes);
    if (!place || !place->unset) return;
    if (bytes == place->end - place->begin) {
        free(place->unset);
        place->unset = nullptr;
    } else {
        memset(place->unset + (address - place->begin), false, bytes);
    }
}

// How many bytes of a range of device memory were never written.
size_t gm_emulator_unset(const void* memory, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    const Allocation* place = locate(address, bytes);
    if (!place || !place->unset) return 0;
    const bool* from = place->unset + (address - place->begin);
    return size_t(std::count(from, from + bytes, true));
}

// Forgets it; false if it isn't known.
bool gm_emulator_free(const void* memory) {
    std::lock_guard<std::mutex> guard(lock);
    uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
    for (size_t i = 0; i < allocations.size(); i++) {
        if (allocations[i].begin != begin) continue;
        free(const_cast<char*>(allocations[i].name));
        free(allocations[i].writes);
        free(allocations[i].unset);
        allocations.erase(allocations.begin() + ptrdiff_t(i));
        return true;
    }
    return false;
}

// Runs a kernel. 0, or 1 with a report of what is wrong with the launch or the kernel.
int gm_emulator_launch(const Kernel* which, uint32_t blocks_x, uint32_t blocks_y, uint32_t blocks_z, uint32_t threads, uint32_t shared,
                       void** values, bool overlaps, uint64_t seed, char* text, size_t capacity) {
    std::lock_guard<std::mutex> guard(lock);
    auto answer = [&](const char* what) {
        snprintf(text, capacity, "%s", what);
        return 1;
    };
    char why[256];
    const char* name = which->name;
    if (!prepare()) return answer("no memory for the emulator's stacks");
    if (threads == 0 || threads > which->threads) {
        snprintf(why, sizeof why, "kernel %s: %u threads a block, where its bounds are 1 to %u", name, threads, which->threads);
        return answer(why);
    }
    if (threads % 32 != 0) {
        snprintf(why, sizeof why, "kernel %s: %u threads a block are no whole number of warps", name, threads);
        return answer(why);
    }
    if (blocks_x == 0 || blocks_y == 0 || blocks_z == 0 || blocks_x > 0x7fffffffu || blocks_y > 65535 || blocks_z > 65535) {
        snprintf(why, sizeof why, "kernel %s: no device takes a grid of %u by %u by %u blocks", name, blocks_x, blocks_y, blocks_z);
        return answer(why);
    }
    if (shared > MAX_SHARED) {
        snprintf(why, sizeof why, "kernel %s: %u bytes of shared memory, where a block has %u", name, shared, MAX_SHARED);
        return answer(why);
    }
    kernel = which;
    arguments = values;
    shared_given = (shared + 15) / 16 * 16;
    // A launch that failed may have left copies on their way, of more threads than this one has.
    for (std::vector<Copy>& of_thread : copies) {
        for (const Copy& copy : of_thread)
            for (uint32_t at = copy.to; at < copy.to + copy.bytes; at++) state.shared_bytes[at].awaited = false;
        of_thread.clear();
    }
    copied_sixteens = copy_trips = 0;
    halves.clear();
    failed = false;
    report.clear();
    random_state = seed * 0x9e3779b97f4a7c15u | 1;
    state.threads = threads;
    state.blocks = blocks_x;
    state.blocks_y = blocks_y;
    state.blocks_z = blocks_z;
    told.clear();
    state.recent = nullptr;
    state.launch_epoch = state.epoch + 1;
    state.overlaps = overlaps;
    if (!overlaps) state.chain_epoch = state.launch_epoch;
    // Every block once, from a random one on by a random stride that has no divisor in common with their number.
    uint64_t blocks = uint64_t(blocks_x) * blocks_y * blocks_z;
    uint64_t first = random_bits() % blocks, stride = random_bits() % blocks;
    auto common = [](uint64_t a, uint64_t b) {
        while (b) a = std::exchange(b, a % b);
        return a;
    };
    while (common(stride, blocks) != 1) stride++;
    for (uint64_t i = 0; i < blocks && !failed; i++) {
        uint64_t block = (first + unsigned((i * static_cast<unsigned __int128>(stride)) % blocks)) % blocks;
        const uint64_t layer = block / blocks_x;
        run_block(uint32_t(block % blocks_x), uint32_t(layer % blocks_y), uint32_t(layer / blocks_y));
    }
    // Two thirds of what is moved is wanted at least; of rows that begin between two 32 bytes, that is three of each four.
    if (!failed && copied_sixteens >= 2048 && copy_trips * 4 > copied_sixteens * 3) {
        snprintf(why, sizeof why, "kernel %s: copies to shared memory move 32 bytes %llu times for %llu bytes: halves of one go to different ones of the other",
            name, (unsigned long long)copy_trips, (unsigned long long)copied_sixteens * 16);
        return answer(why);
    }
    return failed ? answer(report.c_str()) : 0;
}
}
