#include "engine/device/streams.h"

#include "engine/device/cuda/check.h"
#include "engine/device/cuda/cuda_streams.h"
#include "engine/device/cuda/queues.h"

#include <algorithm>

namespace stagecraft {

CudaStreams::CudaStreams(int device) : device_(device) { cuda_check(cudaSetDevice(device), "cudaSetDevice"); }

CudaStreams::~CudaStreams() {
  for (const Made& made : events_) cudaEventDestroy(made.event);
  for (std::size_t i = 1; i < streams_.size(); ++i) cudaStreamDestroy(streams_[i]);
}

DeviceStreams::Stream CudaStreams::make_stream() {
  cudaStream_t stream = nullptr;
  // The compute stream is CUDA's default one, which others wait for unless they are made so. What is moved
  // begins before the blocks of a product that are not on the device yet: others wait for it.
  int least = 0;
  int greatest = 0;
  cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
             "cudaStreamCreateWithPriority");
  streams_.push_back(stream);
  return static_cast<Stream>(streams_.size() - 1);
}

int CudaStreams::most_streams() const {
  // One is the compute stream's, one is left for LibTorch's stream that data goes over
  // (engine/core/device_feed.h).
  return std::max(0, queues() - 2);
}

DeviceStreams::Event CudaStreams::take(Pool& pool, unsigned int flags) {
  if (!pool.empty()) {
    const Event event = pool.back();
    pool.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  events_.push_back({event, &pool});
  return static_cast<Event>(events_.size() - 1);
}

void CudaStreams::give_event(Event event) { events_[static_cast<std::size_t>(event)].pool->push_back(event); }

void CudaStreams::record(Event event, Stream stream) {
  cuda_check(cudaEventRecord(of(event), of(stream)), "cudaEventRecord");
}

void CudaStreams::wait(Stream stream, Event event) {
  cuda_check(cudaStreamWaitEvent(of(stream), of(event), 0), "cudaStreamWaitEvent");
}

bool CudaStreams::over(Event event) {
  const cudaError_t state = cudaEventQuery(of(event));
  if (state == cudaErrorNotReady) return false;
  cuda_check(state, "cudaEventQuery");
  return true;
}

Seconds CudaStreams::between(Event begin, Event end) {
  float milliseconds = 0;
  cuda_check(cudaEventElapsedTime(&milliseconds, of(begin), of(end)), "cudaEventElapsedTime");
  return Seconds{static_cast<double>(milliseconds) * 1e-3};
}

void CudaStreams::copy(Stream stream, void* to, const void* from, std::size_t bytes) {
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, of(stream)), "cudaMemcpyAsync");
}

std::shared_ptr<void> CudaStreams::host_memory(std::size_t bytes) {
  void* memory = nullptr;
  cuda_check(cudaMallocHost(&memory, bytes), "cudaMallocHost");
  return {memory, [](void* its) { cudaFreeHost(its); }};
}

std::shared_ptr<DeviceStreams> make_device_streams(int index) {
  ask_for_queues();
  return std::make_shared<CudaStreams>(index);
}

}  // namespace stagecraft
