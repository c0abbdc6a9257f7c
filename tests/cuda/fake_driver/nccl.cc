// A libnccl.so in the same object, as far as sums are made by it, for ranks that are threads of one process. Stricter than the library: a rank that calls it
// waits in the call until all ranks have, for ten seconds, and what they ask for must be alike.

#include "driver.h"

#include <chrono>
#include <condition_variable>

using namespace fake;

namespace {

enum : int { NCCL_SUCCESS = 0, NCCL_CUDA_ERROR = 1, NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5 };
enum : int { NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

struct Id { char bytes[128]; };

// A sum, of which each rank has an operand.
struct Sum {
    struct Operand {
        uint64_t send = 0, receive = 0;
        Stream* stream = nullptr;
        // Of the stream's operations, those in front of the sum.
        uint64_t behind = 0;
    };
    std::vector<Operand> operands;
    size_t arrived = 0, count = 0;
    bool differs = false, computed = false;
    std::vector<float> result;

    // Under the driver's lock: whichever device comes to it first does it for all, when all have come so far.
    int compute() {
        if (computed) return SUCCESS;
        for (Operand& each : operands)
            if (int error = run_until(each.stream, each.behind)) return error;
        result.assign(count, 0);
        size_t bytes = count * sizeof(float);
        for (Operand& each : operands) {
            if (int error = alive("a sum", each.send, bytes)) return error;
            if (size_t unset = gm_emulator_unset(reinterpret_cast<void*>(each.send), bytes))
                say("a sum reads %zu bytes that nobody wrote", unset);
            const float* values = reinterpret_cast<const float*>(each.send);
            for (size_t i = 0; i < count; i++) result[i] += values[i];
        }
        computed = true;
        return SUCCESS;
    }
};

// Ranks that found each other.
struct Group {
    int ranks = 0, joined = 0;
    std::set<int> seen;
    std::map<uint64_t, std::shared_ptr<Sum>> sums;
};

struct Comm {
    std::shared_ptr<Group> group;
    int rank;
    Device* device;
    uint64_t next = 0;
};

std::mutex meeting;
std::condition_variable met;
std::map<std::string, std::shared_ptr<Group>> groups;
size_t communicators = 0;

struct AtExit {
    ~AtExit() {
        if (communicators) say("%zu communicators were not destroyed", communicators);
    }
} at_exit_of_nccl;

template <class F> bool all_come(std::unique_lock<std::mutex>& lock, F have) {
    met.notify_all();
    return met.wait_for(lock, std::chrono::seconds(10), have);
}

}  // namespace

GM_API ncclGetUniqueId(Id* id) {
    static std::atomic<int> made{0};
    memset(id->bytes, 0, sizeof id->bytes);
    snprintf(id->bytes, sizeof id->bytes, "ranks of meeting %d", made++);
    return NCCL_SUCCESS;
}
GM_API ncclCommInitRank(Comm** made, int ranks, Id id, int rank) {
    if (!current || !current->retained) return NCCL_CUDA_ERROR;
    if (rank < 0 || rank >= ranks) return NCCL_INVALID_ARGUMENT;
    std::unique_lock<std::mutex> lock(meeting);
    std::shared_ptr<Group>& place = groups[std::string(id.bytes, sizeof id.bytes)];
    if (!place) place = std::make_shared<Group>();
    std::shared_ptr<Group> group = place;
    if (!group->ranks) group->ranks = ranks;
    if (group->ranks != ranks || !group->seen.insert(rank).second) return NCCL_INVALID_USAGE;
    group->joined++;
    if (!all_come(lock, [&] { return group->joined == ranks; })) return NCCL_SYSTEM_ERROR;
    communicators++;
    *made = new Comm{group, rank, current};
    return NCCL_SUCCESS;
}
static int leave(Comm* comm) {
    std::lock_guard<std::mutex> lock(meeting);
    communicators--;
    delete comm;
    return NCCL_SUCCESS;
}
GM_API ncclCommDestroy(Comm* comm) { return leave(comm); }
GM_API ncclCommAbort(Comm* comm) { return leave(comm); }
GM_API ncclAllReduce(const void* send, void* receive, size_t count, int type, int operation, Comm* comm, void* handle) {
    if (type != NCCL_FLOAT32 || operation != NCCL_SUM || !count) return NCCL_INVALID_ARGUMENT;
    Stream* stream = stream_of(handle);
    size_t bytes = count * sizeof(float);
    Sum::Operand own{uint64_t(send), uint64_t(receive), stream, 0};
    {
        GM_LOCK;
        if (current != comm->device || !known(stream) || stream->device != comm->device) return NCCL_INVALID_USAGE;
        if (owner_of(own.send, bytes) != comm->device || owner_of(own.receive, bytes) != comm->device) return NCCL_INVALID_ARGUMENT;
        if (current->called()) return NCCL_CUDA_ERROR;
        own.behind = stream->added;
    }
    std::shared_ptr<Sum> sum;
    {
        std::unique_lock<std::mutex> lock(meeting);
        std::shared_ptr<Sum>& place = comm->group->sums[comm->next++];
        if (!place) {
            place = std::make_shared<Sum>();
            place->operands.resize(size_t(comm->group->ranks));
            place->count = count;
        }
        sum = place;
        if (sum->count != count) {
            say("rank %d sums %zu numbers, and another one %zu", comm->rank, count, sum->count);
            sum->differs = true;
        }
        sum->operands[size_t(comm->rank)] = own;
        sum->arrived++;
        if (!all_come(lock, [&] { return sum->arrived == sum->operands.size(); })) return NCCL_SYSTEM_ERROR;
        if (sum->differs) return NCCL_INVALID_ARGUMENT;
    }
    GM_LOCK;
    auto run = [sum, own, bytes] {
        if (int error = sum->compute()) return error;
        if (int error = alive("a sum", own.receive, bytes)) return error;
        memcpy(reinterpret_cast<void*>(own.receive), sum->result.data(), bytes);
        gm_emulator_written(reinterpret_cast<void*>(own.receive), bytes);
        return int(SUCCESS);
    };
    return submit(stream, Operation{run}) ? NCCL_CUDA_ERROR : NCCL_SUCCESS;
}
