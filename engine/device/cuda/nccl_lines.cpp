#include "engine/device/nccl_lines.h"

#include "engine/device/cuda/check.h"
#include "engine/device/cuda/cuda_streams.h"

#include <nccl.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;

/// Communicators do not block, so each call is followed by looking whether it is done: NCCL connects and
/// launches on threads of its own, and an event recorded before that would mark too little.
void settle(ncclComm_t communicator, Clock::time_point until, const char* call) {
  ncclResult_t state = ncclInProgress;
  while (true) {
    const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
    if (asked != ncclSuccess) state = asked;
    if (state != ncclInProgress) break;
    if (Clock::now() > until) {
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

Clock::time_point after(Seconds time) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time.value));
}

class CudaNcclLines final : public NcclLines {
 public:
  explicit CudaNcclLines(std::shared_ptr<CudaStreams> streams) : streams_(std::move(streams)) {}
  /// Aborting is the only end that cannot wait for the peer.
  ~CudaNcclLines() override { abort(); }
  CudaNcclLines(const CudaNcclLines&) = delete;
  CudaNcclLines& operator=(const CudaNcclLines&) = delete;

  std::string make_id() override {
    ncclUniqueId id;
    nccl_check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    return {id.internal, sizeof id.internal};
  }

  void open(const std::vector<End>& ends, Seconds timeout) override {
    const Clock::time_point until = after(timeout);
    timeout_ = timeout;
    if (ends.empty()) return;
    void* byte = nullptr;
    cuda_check(cudaMalloc(&byte, 1), "cudaMalloc");
    const std::unique_ptr<void, decltype(&cudaFree)> freed(byte, &cudaFree);
    const Stream stream = streams_->make_stream();
    for (const End& end : ends) {
      ncclUniqueId id;
      STAGECRAFT_CHECK(end.id.size() == sizeof id.internal, "an id of NCCL's has another length");
      std::memcpy(id.internal, end.id.data(), sizeof id.internal);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      config.minCTAs = 1;
      config.maxCTAs = kBlocks;
      Line& line = lines_[end.channel];
      nccl_check(ncclCommInitRankConfig(&line.communicator, 2, id, end.sends ? 0 : 1, &config),
                 "ncclCommInitRankConfig");
      settle(line.communicator, until, "opening a channel");
      line.peer = end.sends ? 1 : 0;
      end.sends ? send(end.channel, stream, byte, 1) : receive(end.channel, stream, byte, 1);
      const DeviceStreams::Event moved = streams_->take_event();
      streams_->record(moved, stream);
      while (!streams_->over(moved)) {
        if (const auto failed = failure()) throw PeerError("opening a channel: " + *failed);
        if (Clock::now() > until) throw PeerError("the first byte of a channel does not arrive");
        std::this_thread::yield();
      }
      streams_->give_event(moved);
    }
  }

  void send(int channel, Stream stream, const void* from, std::size_t bytes) override {
    const Line& line = lines_.at(channel);
    nccl_check(ncclSend(from, bytes, ncclInt8, line.peer, line.communicator, streams_->of(stream)),
               "ncclSend");
    settle(line.communicator, after(timeout_), "ncclSend");
  }
  void receive(int channel, Stream stream, void* into, std::size_t bytes) override {
    const Line& line = lines_.at(channel);
    nccl_check(ncclRecv(into, bytes, ncclInt8, line.peer, line.communicator, streams_->of(stream)),
               "ncclRecv");
    settle(line.communicator, after(timeout_), "ncclRecv");
  }

  std::optional<std::string> failure() override {
    for (const auto& [channel, line] : lines_) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(line.communicator, &state);
      if (asked != ncclSuccess) state = asked;
      if (state != ncclSuccess && state != ncclInProgress) {
        return fmt::format("channel {}: {} ({})", channel, ncclGetErrorString(state),
                           ncclGetLastError(line.communicator));
      }
    }
    return std::nullopt;
  }

  void abort() noexcept override {
    for (auto& [channel, line] : lines_) {
      if (line.communicator != nullptr) ncclCommAbort(line.communicator);
      line.communicator = nullptr;
    }
    lines_.clear();
  }

 private:
  struct Line {
    ncclComm_t communicator = nullptr;
    int peer = 0;
  };
  // A boundary is small beside what computes meanwhile: a few blocks move it, the rest computes.
  static constexpr int kBlocks = 4;

  std::shared_ptr<CudaStreams> streams_;
  std::map<int, Line> lines_;
  Seconds timeout_{300};
};

}  // namespace

std::shared_ptr<NcclLines> make_nccl_lines(std::shared_ptr<DeviceStreams> streams) {
  auto cuda = std::dynamic_pointer_cast<CudaStreams>(std::move(streams));
  STAGECRAFT_CHECK(cuda != nullptr, "NCCL needs streams of CUDA's");
  return std::make_shared<CudaNcclLines>(std::move(cuda));
}

}  // namespace stagecraft
