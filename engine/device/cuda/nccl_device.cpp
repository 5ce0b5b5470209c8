#include "engine/device/nccl_device.h"

#include "schedules/base/error.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;

// Hardware queues of a device; the driver's default is 8. It is read when the context is made.
constexpr int kQueues = 32;

void cuda_check(cudaError_t error, const char* call) {
  STAGECRAFT_CHECK(error == cudaSuccess, fmt::format("{}: {}", call, cudaGetErrorString(error)));
}

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

class CudaNcclDevice final : public NcclDevice {
 public:
  explicit CudaNcclDevice(int index) { cuda_check(cudaSetDevice(index), "cudaSetDevice"); }

  ~CudaNcclDevice() override {
    for (auto& [channel, line] : lines_) {
      // Aborting is the only end that cannot wait for the peer.
      if (line.communicator != nullptr) ncclCommAbort(line.communicator);
    }
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
    for (std::size_t i = 1; i < streams_.size(); ++i) cudaStreamDestroy(streams_[i]);
  }

  CudaNcclDevice(const CudaNcclDevice&) = delete;
  CudaNcclDevice& operator=(const CudaNcclDevice&) = delete;

  Stream make_stream() override {
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    streams_.push_back(stream);
    return static_cast<Stream>(streams_.size() - 1);
  }

  int most_streams() const override {
    const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int queues = connections != nullptr ? std::atoi(connections) : 8;
    return std::max(0, queues - 1);  // one is the compute stream's
  }

  Event take_event() override {
    if (free_.empty()) {
      cudaEvent_t event = nullptr;
      cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
      events_.push_back(event);
      return static_cast<Event>(events_.size() - 1);
    }
    const Event event = free_.back();
    free_.pop_back();
    return event;
  }
  void give_event(Event event) override { free_.push_back(event); }

  void record(Event event, Stream stream) override {
    cuda_check(cudaEventRecord(of(event), of(stream)), "cudaEventRecord");
  }
  void wait(Stream stream, Event event) override {
    cuda_check(cudaStreamWaitEvent(of(stream), of(event), 0), "cudaStreamWaitEvent");
  }
  bool over(Event event) override {
    const cudaError_t state = cudaEventQuery(of(event));
    if (state == cudaErrorNotReady) return false;
    cuda_check(state, "cudaEventQuery");
    return true;
  }

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
    const Stream stream = make_stream();
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
      const Event moved = take_event();
      record(moved, stream);
      while (!over(moved)) {
        if (const auto failed = failure()) throw PeerError("opening a channel: " + *failed);
        if (Clock::now() > until) throw PeerError("the first byte of a channel does not arrive");
        std::this_thread::yield();
      }
      give_event(moved);
    }
  }

  void send(int channel, Stream stream, const void* from, std::size_t bytes) override {
    const Line& line = lines_.at(channel);
    nccl_check(ncclSend(from, bytes, ncclInt8, line.peer, line.communicator, of(stream)), "ncclSend");
    settle(line.communicator, after(timeout_), "ncclSend");
  }
  void receive(int channel, Stream stream, void* into, std::size_t bytes) override {
    const Line& line = lines_.at(channel);
    nccl_check(ncclRecv(into, bytes, ncclInt8, line.peer, line.communicator, of(stream)), "ncclRecv");
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

  [[nodiscard]] cudaEvent_t of(Event event) const { return events_[static_cast<std::size_t>(event)]; }
  [[nodiscard]] cudaStream_t of(Stream stream) const { return streams_[static_cast<std::size_t>(stream)]; }

  std::vector<cudaStream_t> streams_{nullptr};  // ATen's default stream is CUDA's
  std::vector<cudaEvent_t> events_;
  std::vector<Event> free_;
  std::map<int, Line> lines_;
  Seconds timeout_{300};
};

}  // namespace

std::unique_ptr<NcclDevice> make_nccl_device(int index) {
  // Streams that share a queue wait for each other, and a receive that waits behind another may wait for
  // ever.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(kQueues).c_str(), /*overwrite=*/0);
  return std::make_unique<CudaNcclDevice>(index);
}

}  // namespace stagecraft
