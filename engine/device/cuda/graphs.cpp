#include "engine/device/graphs.h"

#include "engine/device/cuda/check.h"
#include "engine/device/cuda/pool_id.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>

namespace stagecraft {
namespace {

using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

/// LibTorch's, which this library does not link: all its functions are virtual.
Allocator& allocator() { return *static_cast<Allocator*>(c10::getDeviceAllocator(c10::DeviceType::CUDA)); }

/// One user of a pool; with the last its memory goes back.
class PoolUse {
 public:
  /// Memory that `stream` takes from now on is the pool's.
  PoolUse(int device, DeviceGraphs::Pool pool, cudaStream_t stream)
      : device_(static_cast<c10::DeviceIndex>(device)), id_(pool_id(pool)) {
    allocator().beginAllocateToPool(device_, id_, [stream](cudaStream_t asks) { return asks == stream; });
  }
  ~PoolUse() {
    stop();
    allocator().releasePool(device_, id_);
  }
  PoolUse(const PoolUse&) = delete;
  PoolUse& operator=(const PoolUse&) = delete;
  void stop() {
    if (taking_) allocator().endAllocateToPool(device_, id_);
    taking_ = false;
  }

 private:
  c10::DeviceIndex device_;
  c10::MempoolId_t id_;
  bool taking_ = true;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(cudaGraph_t recorded, int device, std::unique_ptr<PoolUse> memory)
      : device_(device), memory_(std::move(memory)) {
    const cudaError_t made = cudaGraphInstantiate(&executable_, recorded, 0);
    cudaGraphDestroy(recorded);
    cuda_check(made, "cudaGraphInstantiate");
    cuda_check(cudaEventCreateWithFlags(&over_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  /// It may be under way, and its memory goes back: the host waits for its last launch, not for the device,
  /// on which something may wait for a rank that has failed. What does not come to its end is left where it is.
  ~CudaGraph() override {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (cudaEventQuery(over_) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > until) {
        (void)memory_.release();
        return;
      }
      std::this_thread::yield();
    }
    (void)cudaGetLastError();  // the process ends by what it was told of before
    cudaGraphExecDestroy(executable_);
    cudaEventDestroy(over_);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void launch() override {
    const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    const c10::Stream stream =
        cuda.getStream({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_)});
    const auto on = static_cast<cudaStream_t>(stream.native_handle());
    cuda_check(cudaGraphLaunch(executable_, on), "cudaGraphLaunch");
    cuda_check(cudaEventRecord(over_, on), "cudaEventRecord");
  }

 private:
  static constexpr std::chrono::seconds kPatience{10};

  int device_;
  std::unique_ptr<PoolUse> memory_;
  cudaGraphExec_t executable_ = nullptr;
  cudaEvent_t over_ = nullptr;  ///< behind the last launch
};

class CudaGraphs final : public DeviceGraphs {
 public:
  explicit CudaGraphs(int device)
      : device_(device),
        // CUDA does not record its default stream, on which the engine computes.
        stream_(
            c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA)
                .getStreamFromGlobalPool({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)})) {}

  Pool make_pool() override {
    static std::atomic<int> next{0};  // ranks may be threads that share a device
    return Pool{next++};
  }

  std::unique_ptr<DeviceGraph> record(Pool pool, const std::function<void()>& work) override {
    if (!std::exchange(released_, true)) {
      // What passes took that ran as they are, no pool can have. LibTorch gives nothing back while it records.
      const std::unique_lock nobody_records(recording());
      allocator().emptyCache();
    }
    const std::shared_lock records(recording());
    const c10::StreamGuard on_it(stream_);
    const auto stream = static_cast<cudaStream_t>(stream_.native_handle());
    auto memory = std::make_unique<PoolUse>(device_, pool, stream);
    // Relaxed: other ranks of this process may be using CUDA meanwhile.
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    std::exception_ptr failed;
    try {
      work();
    } catch (...) {
      failed = std::current_exception();
    }
    cudaGraph_t recorded = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &recorded);
    memory->stop();
    if (failed != nullptr) {
      if (recorded != nullptr) cudaGraphDestroy(recorded);
      (void)cudaGetLastError();  // it is told by what was thrown
      std::rethrow_exception(failed);
    }
    cuda_check(ended, "cudaStreamEndCapture");
    return std::make_unique<CudaGraph>(recorded, device_, std::move(memory));
  }

 private:
  /// Of all ranks of this process, which share LibTorch's allocator: who records shares it.
  static std::shared_mutex& recording() {
    static std::shared_mutex its;
    return its;
  }

  int device_;
  c10::Stream stream_;
  bool released_ = false;
};

}  // namespace

std::shared_ptr<DeviceGraphs> make_device_graphs(int index) { return std::make_shared<CudaGraphs>(index); }

}  // namespace stagecraft
