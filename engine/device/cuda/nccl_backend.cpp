#include "engine/device/nccl_backend.h"

#include "base/bounded.h"
#include "base/error.h"
#include "base/stopwatch.h"
#include "engine/device/cuda/check.h"
#include "engine/device/cuda/cuda_streams.h"

#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
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

void nccl_check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  throw PeerError(fmt::format("{}: {} ({})", call, ncclGetErrorString(result), ncclGetLastError(nullptr)));
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
    // Calls of communicators block until the peers come. So all are opened, and used once, on a thread that is left
    // behind where one does not; afterwards connections are there, and a launch waits for nobody.
    struct Opening {
      Communicators made;
      std::exception_ptr failed;
    };
    const auto opening = std::make_shared<Opening>();
    const bool done = done_within(timeout, [opening, streams = streams_, ends, groups, timeout] {
      try {
        open_all(opening->made, *streams, ends, groups, timeout);
      } catch (...) {
        opening->failed = std::current_exception();
      }
    });
    if (!done)
      throw PeerError("opening NCCL's communicators is not done in time; another rank hangs or died");
    if (opening->failed) std::rethrow_exception(opening->failed);
    all_ = std::move(opening->made);
  }

  void send(int channel, Stream stream, const void* from, std::size_t bytes) override {
    const P2pChannel& line = all_.lines.at(channel);
    nccl_check(ncclSend(from, bytes, ncclInt8, line.peer, line.communicator, streams_->of(stream)),
               "ncclSend");
  }
  void receive(int channel, Stream stream, void* into, std::size_t bytes) override {
    const P2pChannel& line = all_.lines.at(channel);
    nccl_check(ncclRecv(into, bytes, ncclInt8, line.peer, line.communicator, streams_->of(stream)),
               "ncclRecv");
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
    for (const auto& [channel, line] : all_.lines) {
      if (auto said = failure_of(line.communicator)) return fmt::format("channel {}: {}", channel, *said);
    }
    for (const auto& [group, communicator] : all_.groups) {
      if (auto said = failure_of(communicator)) return fmt::format("group {}: {}", group, *said);
    }
    return std::nullopt;
  }

  /// All in one group: each abort waits for what its communicator has under way, and that may wait for what
  /// another one has. In a group all are told to end before any is waited for.
  void abort() noexcept override {
    (void)ncclGroupStart();
    for (const auto& [channel, line] : all_.lines) {
      if (line.communicator != nullptr) (void)ncclCommAbort(line.communicator);
    }
    for (const auto& [group, communicator] : all_.groups) {
      if (communicator != nullptr) (void)ncclCommAbort(communicator);
    }
    (void)ncclGroupEnd();
    all_ = {};
  }

 private:
  struct P2pChannel {
    ncclComm_t communicator = nullptr;
    int peer = 0;
  };
  struct Communicators {
    std::map<int, P2pChannel> lines;
    std::map<int, ncclComm_t> groups;
  };
  // A transfer between two ranks is small beside what computes meanwhile: a few blocks move it, the rest
  // computes. A sum moves all weights, beside a backward at most: as many as NVLink's bandwidth takes.
  static constexpr int kLineBlocks = 4;
  static constexpr int kGroupBlocks = 16;

  static void open_all(Communicators& all, CudaStreams& streams, const std::vector<Endpoint>& ends,
                       const std::vector<Membership>& groups, Seconds timeout) {
    cuda_check(cudaSetDevice(streams.device()), "cudaSetDevice");
    void* number = nullptr;
    cuda_check(cudaMalloc(&number, sizeof(float)), "cudaMalloc");
    const std::unique_ptr<void, decltype(&cudaFree)> freed(number, &cudaFree);
    const Stream stream = streams.make_stream();
    Deadline deadline(timeout);
    for (const Endpoint& end : ends) {
      P2pChannel& line = all.lines[end.channel];
      line.peer = end.sends ? 1 : 0;
      connect(line.communicator, 2, end.sends ? 0 : 1, end.id, kLineBlocks);
      const auto moved =
          end.sends ? ncclSend(number, 1, ncclInt8, line.peer, line.communicator, streams.of(stream))
                    : ncclRecv(number, 1, ncclInt8, line.peer, line.communicator, streams.of(stream));
      nccl_check(moved, "the first byte of a communicator");
      await(streams, stream, line.communicator, deadline);
    }
    for (const Membership& mine : groups) {
      ncclComm_t& communicator = all.groups[mine.group];
      connect(communicator, mine.members, mine.number, mine.id, mine.small ? kLineBlocks : kGroupBlocks);
      nccl_check(ncclAllReduce(number, number, 1, ncclFloat32, ncclSum, communicator, streams.of(stream)),
                 "the first number of a communicator");
      await(streams, stream, communicator, deadline);
    }
  }

  /// Of which this is number `number`.
  static void connect(ncclComm_t& communicator, int members, int number, const std::string& name,
                      int blocks) {
    ncclUniqueId id;
    STAGECRAFT_CHECK(name.size() == sizeof id.internal, "an id of NCCL's has another length");
    std::memcpy(id.internal, name.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;  // else each launch starts a thread of NCCL's, which the host waits for
    config.minCTAs = 1;
    config.maxCTAs = blocks;
    config.cgaClusterSize = 1;  // clusters of blocks begin only where one part of the device has room for all
    nccl_check(ncclCommInitRankConfig(&communicator, members, id, number, &config), "ncclCommInitRankConfig");
  }

  /// The host does, for the first number through a communicator.
  static void await(CudaStreams& streams, Stream stream, ncclComm_t communicator, Deadline& deadline) {
    const DeviceStreams::Event moved = streams.take_event();
    streams.record(moved, stream);
    while (!streams.over(moved)) {
      if (const auto failed = failure_of(communicator)) throw PeerError("opening a communicator: " + *failed);
      if (deadline.over()) throw PeerError("the first number of a communicator does not arrive");
      std::this_thread::yield();
    }
    streams.give_event(moved);
  }

  /// `call` for each tensor, all in one launch.
  template <class Call>
  void collective(int group, const char* name, const std::vector<Numbers>& tensors, const Call& call) {
    const ncclComm_t communicator = all_.groups.at(group);
    nccl_check(ncclGroupStart(), "ncclGroupStart");
    for (const Numbers& one : tensors) nccl_check(call(one, communicator), name);
    nccl_check(ncclGroupEnd(), name);
  }

  [[nodiscard]] static std::optional<std::string> failure_of(ncclComm_t communicator) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess) return std::nullopt;
    return fmt::format("{} ({})", ncclGetErrorString(state), ncclGetLastError(communicator));
  }

  std::shared_ptr<CudaStreams> streams_;
  Communicators all_;
};

}  // namespace

std::shared_ptr<NcclBackend> make_nccl_lines(std::shared_ptr<DeviceStreams> streams) {
  auto cuda = std::dynamic_pointer_cast<CudaStreams>(std::move(streams));
  STAGECRAFT_CHECK(cuda != nullptr, "NCCL needs streams of CUDA's");
  return std::make_shared<CudaNcclBackend>(std::move(cuda));
}

}  // namespace stagecraft
