#include "stagecraft/engine/device/nccl_backend.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/stopwatch.h"
#include "stagecraft/engine/device/cuda/check.h"
#include "stagecraft/engine/device/cuda/cuda_streams.h"

#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

namespace stagecraft {
namespace {

/// A wait of the host's, while this process runs.
class Deadline {
 public:
  explicit Deadline(Seconds bound) : bound_(bound) {}
  [[nodiscard]] bool over() { return passed_.read() > bound_; }

 private:
  Stopwatch passed_;
  Seconds bound_;
};

/// NCCL launches on threads of its own, over connections that are open: nobody else is waited for.
constexpr Seconds kLaunch{300};

/// Communicators do not block, so each call is followed by looking whether it is done: NCCL connects and
/// launches on threads of its own, and an event recorded before that would mark too little.
void settle(ncclComm_t communicator, Deadline& deadline, const char* call) {
  ncclResult_t state = ncclInProgress;
  while (true) {
    const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
    if (asked != ncclSuccess) state = asked;
    if (state != ncclInProgress) break;
    if (deadline.over()) {
      throw PeerError(fmt::format("{} is not done in time; the other rank hangs or died", call));
    }
    std::this_thread::yield();
  }
  if (state == ncclSuccess) return;
  throw PeerError(
      fmt::format("{}: {} ({})", call, ncclGetErrorString(state), ncclGetLastError(communicator)));
}

void nccl_check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw PeerError(fmt::format("{}: {} ({})", call, ncclGetErrorString(result), ncclGetLastError(nullptr)));
}

/// Of a launch.
void settle(ncclComm_t communicator, const char* call) {
  Deadline deadline(kLaunch);
  settle(communicator, deadline, call);
}

/// With rings alone an all-reduce of two members adds each pair of numbers once, by an ordinary addition of
/// the device, so that its bits are those of a + b; of NVLink's switches nobody promises that. And a ring
/// that has moved one number is connected for all sizes, where other algorithms would connect at their first
/// use, with the host waiting. NCCL reads this whenever a communicator is opened; who sets it knows better.
void ask_for_rings() { ::setenv("NCCL_ALGO", "allreduce:ring", /*overwrite=*/0); }

/// What was compiled against may be missing in what is loaded, which LibTorch has a part in.
void check_version() {
  int loaded = 0;
  nccl_check(ncclGetVersion(&loaded), "ncclGetVersion");
  if (loaded >= NCCL_VERSION_CODE) return;
  throw InputError(fmt::format(
      "the NCCL that is loaded is older ({}) than the one this build was made with ({}): see LD_LIBRARY_PATH "
      "and `stagecraft doctor`",
      loaded, NCCL_VERSION_CODE));
}

ncclDataType_t nccl_type(NcclBackend::NumberType type) {
  switch (type) {
    case NcclBackend::NumberType::float64:
      return ncclFloat64;
    case NcclBackend::NumberType::uint8:
      return ncclUint8;
    case NcclBackend::NumberType::float32:
      break;
  }
  return ncclFloat32;
}

class CudaNcclBackend final : public NcclBackend {
 public:
  explicit CudaNcclBackend(std::shared_ptr<CudaStreams> streams) : streams_(std::move(streams)) {}
  /// Aborting is the only end that cannot wait for the peer.
  ~CudaNcclBackend() override { abort(); }
  CudaNcclBackend(const CudaNcclBackend&) = delete;
  CudaNcclBackend& operator=(const CudaNcclBackend&) = delete;

  std::string make_id() override {
    ncclUniqueId id;
    nccl_check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    return {id.internal, sizeof id.internal};
  }

  void open(const std::vector<Endpoint>& ends, const std::vector<Membership>& groups,
            Seconds timeout) override {
    if (ends.empty() && groups.empty()) return;
    check_version();
    ask_for_rings();
    void* number = nullptr;
    cuda_check(cudaMalloc(&number, sizeof(float)), "cudaMalloc");
    const std::unique_ptr<void, decltype(&cudaFree)> freed(number, &cudaFree);
    const Stream stream = streams_->make_stream();
    Deadline deadline(timeout);
    for (const Endpoint& end : ends) {
      P2pChannel& line = lines_[end.channel];
      line.peer = end.sends ? 1 : 0;
      connect(line.communicator, 2, end.sends ? 0 : 1, end.id, kLineBlocks, deadline);
      end.sends ? send(end.channel, stream, number, 1) : receive(end.channel, stream, number, 1);
      await(stream, deadline);
    }
    for (const Membership& mine : groups) {
      connect(groups_[mine.group], mine.members, mine.number, mine.id, kGroupBlocks, deadline);
      all_reduce(mine.group, stream, {{number, 1, NumberType::float32}});
      await(stream, deadline);
    }
  }

  void send(int channel, Stream stream, const void* from, std::size_t bytes) override {
    const P2pChannel& line = lines_.at(channel);
    nccl_check(ncclSend(from, bytes, ncclInt8, line.peer, line.communicator, streams_->of(stream)),
               "ncclSend");
    settle(line.communicator, "ncclSend");
  }
  void receive(int channel, Stream stream, void* into, std::size_t bytes) override {
    const P2pChannel& line = lines_.at(channel);
    nccl_check(ncclRecv(into, bytes, ncclInt8, line.peer, line.communicator, streams_->of(stream)),
               "ncclRecv");
    settle(line.communicator, "ncclRecv");
  }

  void all_reduce(int group, Stream stream, const std::vector<Numbers>& tensors) override {
    collective(group, "ncclAllReduce", tensors, [&](const Numbers& one, ncclComm_t communicator) {
      return ncclAllReduce(one.first, one.first, one.count, nccl_type(one.type), ncclSum, communicator,
                           streams_->of(stream));
    });
  }
  void reduce(int group, Stream stream, int root, const std::vector<Numbers>& tensors) override {
    collective(group, "ncclReduce", tensors, [&](const Numbers& one, ncclComm_t communicator) {
      return ncclReduce(one.first, one.first, one.count, nccl_type(one.type), ncclSum, root, communicator,
                        streams_->of(stream));
    });
  }
  void broadcast(int group, Stream stream, int root, const std::vector<Numbers>& tensors) override {
    collective(group, "ncclBroadcast", tensors, [&](const Numbers& one, ncclComm_t communicator) {
      return ncclBroadcast(one.first, one.first, one.count, nccl_type(one.type), root, communicator,
                           streams_->of(stream));
    });
  }

  std::optional<std::string> failure() override {
    for (const auto& [channel, line] : lines_) {
      if (auto said = failure_of(line.communicator)) return fmt::format("channel {}: {}", channel, *said);
    }
    for (const auto& [group, communicator] : groups_) {
      if (auto said = failure_of(communicator)) return fmt::format("group {}: {}", group, *said);
    }
    return std::nullopt;
  }

  /// All in one group: each abort waits for what its communicator has under way, and that may wait for what
  /// another one has. In a group all are told to end before any is waited for.
  void abort() noexcept override {
    (void)ncclGroupStart();
    for (const auto& [channel, line] : lines_) {
      if (line.communicator != nullptr) (void)ncclCommAbort(line.communicator);
    }
    for (const auto& [group, communicator] : groups_) {
      if (communicator != nullptr) (void)ncclCommAbort(communicator);
    }
    (void)ncclGroupEnd();
    lines_.clear();
    groups_.clear();
  }

 private:
  struct P2pChannel {
    ncclComm_t communicator = nullptr;
    int peer = 0;
  };
  // A transfer between two ranks is small beside what computes meanwhile: a few blocks move it, the rest
  // computes. A sum moves all weights, beside a backward at most: as many as NVLink's bandwidth takes.
  static constexpr int kLineBlocks = 4;
  static constexpr int kGroupBlocks = 16;

  /// Of which this is number `number`.
  static void connect(ncclComm_t& communicator, int members, int number, const std::string& name, int blocks,
                      Deadline& deadline) {
    ncclUniqueId id;
    STAGECRAFT_CHECK(name.size() == sizeof id.internal, "an id of NCCL's has another length");
    std::memcpy(id.internal, name.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = blocks;
    config.cgaClusterSize = 1;  // clusters of blocks begin only where one part of the device has room for all
    nccl_check(ncclCommInitRankConfig(&communicator, members, id, number, &config), "ncclCommInitRankConfig");
    settle(communicator, deadline, "opening a communicator");
  }

  /// The host does, for the first number through a communicator.
  void await(Stream stream, Deadline& deadline) {
    const DeviceStreams::Event moved = streams_->take_event();
    streams_->record(moved, stream);
    while (!streams_->over(moved)) {
      if (const auto failed = failure()) throw PeerError("opening a communicator: " + *failed);
      if (deadline.over()) throw PeerError("the first number of a communicator does not arrive");
      std::this_thread::yield();
    }
    streams_->give_event(moved);
  }

  /// `call` for each tensor, all in one launch.
  template <class Call>
  void collective(int group, const char* name, const std::vector<Numbers>& tensors, const Call& call) {
    const ncclComm_t communicator = groups_.at(group);
    nccl_check(ncclGroupStart(), "ncclGroupStart");
    for (const Numbers& one : tensors) nccl_check(call(one, communicator), name);
    nccl_check(ncclGroupEnd(), "ncclGroupEnd");
    settle(communicator, name);
  }

  [[nodiscard]] static std::optional<std::string> failure_of(ncclComm_t communicator) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
    return fmt::format("{} ({})", ncclGetErrorString(state), ncclGetLastError(communicator));
  }

  std::shared_ptr<CudaStreams> streams_;
  std::map<int, P2pChannel> lines_;
  std::map<int, ncclComm_t> groups_;
};

}  // namespace

std::shared_ptr<NcclBackend> make_nccl_lines(std::shared_ptr<DeviceStreams> streams) {
  auto cuda = std::dynamic_pointer_cast<CudaStreams>(std::move(streams));
  STAGECRAFT_CHECK(cuda != nullptr, "NCCL needs streams of CUDA's");
  return std::make_shared<CudaNcclBackend>(std::move(cuda));
}

}  // namespace stagecraft
